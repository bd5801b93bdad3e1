"""The elite at play, as an animation that a page carries inside itself: WebP, small enough."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evopipe import play, policy
from evopipe.errors import EvopipeError
from evopipe.report.read import Episodes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

WIDTH = 480  # pixels; wider frames are made smaller
LONGEST = 2_000  # steps; drawing all of an endless episode would take minutes
FRAMES = 300  # at most; a longer episode is shown in larger steps
RATE = 25  # frames a second that look smooth enough
SLOWEST = 100  # milliseconds a frame; an episode that would need more is shown faster than it was
BUDGET = 700_000  # bytes; a third more as the page's text
QUALITIES = (60, 35, 15)  # the first that fits the budget, then fewer frames
SAMPLE = 16  # frames to judge by: encoding all of them may take seconds


@dataclass(frozen=True)
class Movie:
    """One episode.

    Attributes:
        animation: an animated WebP; `still` is its middle frame.
        width, height: in pixels.
        seed: of the episode; `total` is its return, `steps` its length.
        cut: whether these are only the first steps of a longer episode.
        seconds: how long it runs; `speed`: how many times the environment's own pace that is.
    """

    animation: bytes
    still: bytes
    width: int
    height: int
    seed: int
    total: float
    steps: int
    cut: bool
    seconds: float
    speed: float


def film(elite: Path, played: Episodes, max_steps: int | None) -> Movie | str:
    """Film the elite in a held-out episode whose return is near the mean.

    Args:
        elite: the folder of the exported policy.
        played: its held-out episodes.
        max_steps: step cap of an episode.

    Returns:
        The film, or a sentence that says why there is none.
    """
    if not played.seeds:
        return "There is no held-out episode to show."
    typical = min(range(len(played.seeds)), key=lambda i: (abs(played.returns[i] - played.mean), i))
    actor, camera = policy.load(elite), Camera()
    limit = min(max_steps or LONGEST, LONGEST)
    try:
        cfg = play.environment_of(actor)
        (score,) = play.watch(actor, cfg, [camera], seed=played.seeds[typical], max_steps=limit)
    except EvopipeError as error:
        return f"There is no picture of the elite at play: {error}."
    return camera.develop(score, cut=score.steps < played.lengths[typical])


@dataclass
class Camera:
    """Keeps small frames, evenly spaced, never more than twice `FRAMES` of them."""

    _frames: list[Image.Image] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0
    _fps: int = play.FPS

    def begin(self, fps: int) -> None:
        """Take the number of frames a second."""
        self._fps = fps
        self._every = max(1, round(fps / RATE))

    def show(self, frame: npt.NDArray[np.uint8]) -> None:
        """Keep a frame `[H, W, 3]`, or leave it out."""
        if self._seen % self._every == 0:
            self._frames.append(_small(frame))
        self._seen += 1
        if len(self._frames) > 2 * FRAMES:
            self._frames = self._frames[::2]
            self._every *= 2

    def save(self) -> None:
        """Nothing is written: `develop` returns the bytes."""

    def close(self) -> None:
        """Nothing is open."""

    def develop(self, score: play.Score, cut: bool = False) -> Movie:
        """Return what was filmed, within the budget."""
        frames, every = self._frames, self._every
        while len(frames) > FRAMES:
            frames, every = frames[::2], every * 2
        gap = min(SLOWEST, max(20, round(1000 * every / self._fps)))
        quality, stride = _plan(frames, gap)
        frames, gap = frames[::stride], gap * stride
        data = _encode(frames, gap, quality)
        while len(data) > BUDGET and len(frames) > 1:
            frames, gap = frames[::2], gap * 2
            data = _encode(frames, gap, quality)
        seconds = len(frames) * gap / 1000
        return Movie(
            animation=data,
            still=_encode([frames[len(frames) // 2]], gap, QUALITIES[0]),
            width=frames[0].width,
            height=frames[0].height,
            seed=score.seed,
            total=score.total,
            steps=score.steps,
            cut=cut,
            seconds=seconds,
            speed=self._seen / self._fps / seconds if seconds else math.nan,
        )


def _plan(frames: Sequence[Image.Image], gap: int) -> tuple[int, int]:
    """Return a quality, and every how many frames to keep, that should fit the budget, judged by a few frames."""
    middle = max(0, len(frames) // 2 - SAMPLE // 2)
    sample = frames[middle : middle + SAMPLE]
    for quality in QUALITIES:
        expected = len(_encode(sample, gap, quality)) * len(frames) / len(sample)
        if expected <= BUDGET:
            return quality, 1
    return quality, math.ceil(expected / BUDGET)


def _small(frame: npt.NDArray[np.uint8]) -> Image.Image:
    from PIL import Image

    image = Image.fromarray(frame)
    if image.width > WIDTH:
        height = max(1, round(image.height * WIDTH / image.width))
        image = image.resize((WIDTH, height), Image.Resampling.BOX)
    return image


def _encode(frames: Sequence[Image.Image], gap: int, quality: int) -> bytes:
    """Return WebP bytes; more than one frame make an animation that repeats, and rests at the end."""
    stream = io.BytesIO()
    first, *rest = frames
    if rest:
        gaps = [gap] * len(rest) + [1200]
        # Lossy, little effort: a hundred frames take a second.
        first.save(stream, "WEBP", save_all=True, append_images=rest, duration=gaps, loop=0, quality=quality, method=1)
    else:
        first.save(stream, "WEBP", quality=quality, method=1)
    return stream.getvalue()
