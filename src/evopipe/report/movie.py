"""The elite at play, as an animation that a page carries inside itself: WebP, small enough."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evopipe import play, policy
from evopipe.errors import EvopipeError
from evopipe.film import Frames, animate
from evopipe.report.read import Held

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
    """One episode as a WebP of so many pixels.

    Attributes:
        still: the middle frame.
        cut: whether these are only the first steps of a longer episode.
        seconds: how long it runs; `speed`: how many times the environment's own pace that is.
    """

    animation: bytes
    still: bytes
    width: int
    height: int
    score: play.Score
    cut: bool
    seconds: float
    speed: float

    @classmethod
    def of(cls, frames: Frames, score: play.Score, cut: bool = False) -> Movie:
        """Return what was filmed, within the budget."""
        images, gap = frames.images, min(_SLOWEST, frames.gap)
        webp = partial(animate, kind="WEBP", unit=1, rest=_REST, method=1)  # little effort: 100 frames take a second
        middle = max(0, len(images) // 2 - _SAMPLE // 2)
        sample = images[middle : middle + _SAMPLE]
        for quality, stride in _PLANS:
            expected = len(webp(sample, gap=gap, quality=quality)) * len(images) / len(sample) / stride
            if expected <= BUDGET:
                data = webp(images[::stride], gap=gap * stride, quality=quality)
                if len(data) <= BUDGET:
                    break
        seconds = len(images) * gap / 1000
        return cls(
            animation=data,
            still=webp(images[len(images) // 2 :][:1], gap=gap, quality=_PLANS[0][0]),
            width=images[0].width,
            height=images[0].height,
            score=score,
            cut=cut,
            seconds=seconds,
            speed=frames.shown / frames.fps / seconds,
        )


def film(elite: Path, played: Held, max_steps: int | None) -> Movie | str:
    """Film the policy in the folder `elite` in that of its held-out episodes whose return is nearest the mean, for at
    most so many steps; return a sentence that says why where there can be no film."""
    typical = min(played.episodes, key=lambda episode: abs(episode.total - played.mean))
    actor, frames = policy.load(elite), Frames(WIDTH, FRAMES)
    limit = min(max_steps or _LONGEST, _LONGEST)
    try:
        cfg = play.environment_of(actor, trust=True)  # `page` has seen that params.yaml names it
        (score,) = play.watch(actor, cfg, [frames.begin], seed=typical.seed, max_steps=limit)
    except EvopipeError as error:
        return f"There is no picture of the elite at play: {error}."
    return Movie.of(frames, score, cut=score.steps < typical.length)
