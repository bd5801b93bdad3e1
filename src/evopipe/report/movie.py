"""The elite at play, as an animation that a page carries inside itself: WebP, small enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evopipe import play, policy
from evopipe.errors import EvopipeError
from evopipe.film import Frames, animate
from evopipe.report.read import Held

if TYPE_CHECKING:
    from PIL import Image

WIDTH = 480  # pixels; wider frames are made smaller
FRAMES = 300  # at most; a longer episode is shown in larger steps
BUDGET = 700_000  # bytes; a third more as the page's text
_LONGEST = 2_000  # steps; drawing all of an endless episode would take minutes
_SLOWEST = 100  # milliseconds a frame; an episode that would need more is shown faster than it was
_REST = 1_200  # milliseconds that the last frame stays
_PLANS = ((60, 1), (35, 1), *((15, 2**n) for n in range(9)))  # quality, every how many-th frame: the first that fits
_SAMPLE = 16  # frames to judge by: encoding all of them may take seconds


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


def film(elite: Path, played: Held, max_steps: int | None) -> Movie | str:
    """Film the elite in a held-out episode whose return is near the mean.

    Args:
        elite: the folder of the exported policy.
        played: its held-out episodes.
        max_steps: step cap of an episode.

    Returns:
        The film, or a sentence that says why there is none.
    """
    typical = min(played.episodes, key=lambda episode: abs(episode.total - played.mean))
    actor, frames = policy.load(elite), Frames(WIDTH, FRAMES)
    limit = min(max_steps or _LONGEST, _LONGEST)
    try:
        cfg = play.environment_of(actor)
        (score,) = play.watch(actor, cfg, [frames.begin], seed=typical.seed, max_steps=limit)
    except EvopipeError as error:
        return f"There is no picture of the elite at play: {error}."
    return develop(frames, score, cut=score.steps < typical.length)


def develop(frames: Frames, score: play.Score, cut: bool = False) -> Movie:
    """Return what was filmed, within the budget."""
    images, gap = frames.images, min(_SLOWEST, frames.gap)
    middle = max(0, len(images) // 2 - _SAMPLE // 2)
    sample = images[middle : middle + _SAMPLE]
    for quality, stride in _PLANS:
        expected = len(_webp(sample, gap, quality)) * len(images) / len(sample) / stride
        if expected <= BUDGET:
            data = _webp(images[::stride], gap * stride, quality)
            if len(data) <= BUDGET:
                break
    seconds = len(images) * gap / 1000
    return Movie(
        animation=data,
        still=_webp(images[len(images) // 2 :][:1], gap, _PLANS[0][0]),
        width=images[0].width,
        height=images[0].height,
        seed=score.seed,
        total=score.total,
        steps=score.steps,
        cut=cut,
        seconds=seconds,
        speed=frames.shown / frames.fps / seconds,
    )


def _webp(images: Sequence[Image.Image], gap: float, quality: int) -> bytes:
    # Lossy, little effort: a hundred frames take a second.
    return animate(images, "WEBP", gap, unit=1, rest=_REST, quality=quality, method=1)
