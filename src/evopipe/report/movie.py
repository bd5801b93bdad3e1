"""The elite at play, as an animation that a page carries inside itself: WebP, small enough."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evopipe import play, policy
from evopipe.errors import EvopipeError
from evopipe.film import Frames, animate
from evopipe.report.read import Run

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
    """One episode as a WebP."""

    animation: bytes
    still: bytes  # the middle frame
    width: int
    height: int
    score: play.Score
    cut: bool  # whether these are only the first steps of a longer episode
    seconds: float  # how long it runs
    speed: float  # times the environment's own pace

    @classmethod
    def filmed(cls, elite: Path, run: Run, max_steps: int | None) -> Movie | str:
        """Film the policy in the folder `elite` in that of its held-out episodes whose return is nearest the mean, for
        at most so many steps; return a sentence that says why where there can be no film."""
        typical = min(run.elite.episodes, key=lambda episode: abs(episode.total - run.elite.mean))
        actor, frames = policy.load(elite), Frames(WIDTH, FRAMES)
        limit = min(max_steps or _LONGEST, _LONGEST)
        try:
            cfg = play.environment_of(actor, trust=True)  # `page` has seen that params.yaml names it
            (score,) = play.watch(actor, cfg, [frames.begin], seed=typical.seed, max_steps=limit)
        except EvopipeError as error:
            return f"There is no picture of the elite at play: {error}."
        return cls.of(frames, score, cut=score.steps < typical.length)

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
        still = webp(images[len(images) // 2 :][:1], gap=gap, quality=_PLANS[0][0])
        return cls(data, still, *images[0].size, score, cut, seconds, speed=frames.shown / frames.fps / seconds)
