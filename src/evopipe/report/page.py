"""The report's page: one HTML file that contains everything, loads nothing and has no script."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from evopipe.errors import DataError, EvopipeError
from evopipe.formats import leaves
from evopipe.layout import ELITE
from evopipe.report import advice, draw, figures, opponents, words
from evopipe.report.family import Family
from evopipe.report.read import FinishedRun, read

if TYPE_CHECKING:
    from evopipe.policies.film import FilmFrames
    from evopipe.policies.play import Score

WIDTH = 480  # pixels; wider frames are made smaller
FRAMES = 300  # at most; a longer episode is shown in larger steps
BUDGET = 700_000  # bytes; a third more as the page's text
_LONGEST = 2_000  # steps; drawing all of an endless episode would take minutes
_SLOWEST = 100  # milliseconds a frame; an episode that would need more is shown faster than it was
_MOVES = 1  # frames a second, at most, of games, whose moves are to be followed
_REST = 1_200  # milliseconds that the last frame stays
_PLANS = ((60, 1), (35, 1), *((15, 2**n) for n in range(9)))  # quality, every how many-th frame: the first that fits
_SAMPLE = 16  # frames to judge by: encoding all of them may take seconds
_TEXT = "What the elite writes stands below, beside what the base does."
_UNFILMED = "The elite was not filmed: `export.film` is false."
_GAMES = "Games that the elite played stand below."


def page(folder: str | Path, params: Mapping[str, Any], family: Family | None = None) -> str:
    """Return the report of the run in a folder, as the text of one HTML file without scripts or external resources.

    `params` has the layout of `params.yaml`. `family` is a comparison of several configurations, which becomes a
    section of the page; None for no such section. Equal files and parameters give equal text.

    Raises:
        MissingInputError: a file of the run is missing.
        DataError: a file is damaged, or belongs to another run than the parameters describe.
    """
    run, elite = read(Path(folder)), Path(folder) / ELITE
    wanted = {"algo": params.get("train", {}).get("algo"), "env": params.get("env", {}).get("id")}
    found = {"algo": run.policy["algo"], "env": run.policy["env"]["id"]}
    for name, value in wanted.items():
        if value not in (None, found[name]):
            raise DataError(
                f"{elite}: written for {name} {found[name]!r}, params.yaml says {value!r}; run `evopipe export` or "
                "`dvc repro export` again"
            )
    if run.told is not None:
        return compose(run, params, _GAMES if run.told.games else _TEXT, family)
    if not params.get("export", {}).get("film", True):
        return compose(run, params, _UNFILMED, family)
    return compose(run, params, _Movie.filmed(elite, run, params.get("evaluate", {}).get("steps")), family)


def compose(run: FinishedRun, params: Mapping[str, Any], movie: _Movie | str, family: Family | None = None) -> str:
    """Return the report's page for a run whose files were read.

    Args:
        run: the run.
        params: the parameters in the layout of `params.yaml`.
        movie: the film of the run's elite (the best member), or a sentence that stands in its place.
        family: a comparison of several configurations, which becomes a section; None for no such section.
    """
    html = words.template("page.html.j2", True, figures=figures, opponents=opponents, words=words, flat=_flat,
                          breakable=_breakable, inline=_inline)  # fmt: skip
    provenance, algo = dict(run.policy["provenance"]), run.policy["algo"]
    machine = provenance.pop("fingerprint", {})
    provenance.setdefault("git_revision", None)
    with draw.style():
        return html.render(
            run=run,
            movie=movie,
            family=family,
            advised=advice.advise(advice.facts_of(run, params)),
            column=partial(advice.column, run),
            origins={"provenance": provenance, "machine and versions": machine},
            settings={
                "general": {"seed": params.get("seed")},
                **{name: value for name, value in params.items() if name not in ("algos", "seed")},
                f"algos.{algo}": params.get("algos", {}).get(algo, {}),
            },
        )


def without_measured(text: str) -> str:
    """Return the text of a report's page without the parts that differ between equal runs, such as times.

    Pages of equal runs are equal after this.
    """
    return re.sub("<!-- measured -->.*?<!-- /measured -->\n?", "", text, flags=re.DOTALL)


def _inline(image: bytes, kind: str = "webp") -> str:
    """Return an image as the address of itself."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _breakable(key: str) -> Markup:
    """Let a long dotted name break where a person would break it."""
    return escape(words.clean(key)).replace(".", Markup(".<wbr>")).replace("_", Markup("_<wbr>"))


def _flat(value: Any) -> list[tuple[str, str]]:
    """Return the leaves of nested mappings as text, by dotted name."""

    def text(each: Any) -> str:
        return words.value(each) if not isinstance(each, list | tuple) else ", ".join(map(words.value, each)) or "none"

    return [(name, text(each)) for name, each in leaves(value)]


@dataclass(frozen=True)
class _Movie:
    """One episode of the elite at play, as a WebP that the page carries inside itself, small enough."""

    animation: bytes
    still: bytes  # the middle frame
    width: int
    height: int
    score: Score
    cut: bool  # whether these are only the first steps of a longer episode
    seconds: float  # how long it runs
    speed: float  # times the environment's own pace

    @classmethod
    def filmed(cls, elite: Path, run: FinishedRun, max_steps: int | None) -> _Movie | str:
        """Film the policy in the folder `elite`, in the held-out episode whose return is nearest the mean.

        At most this many steps are filmed. Return a sentence that says why if it cannot be filmed.
        """
        from evopipe.policies import play, policy  # what acts needs torch, and a page without a film does not
        from evopipe.policies.film import FilmFrames

        typical = min(run.elite.episodes, key=lambda episode: abs(episode.total - run.elite.mean))
        actor, frames = policy.load(elite), FilmFrames(WIDTH, FRAMES)
        limit = min(max_steps or _LONGEST, _LONGEST)
        try:
            cfg = play.environment_of(actor, trust=True)  # `page` has seen that params.yaml names it
            (score,) = play.watch(actor, cfg, [frames.begin], seed=typical.seed, max_steps=limit)
        except EvopipeError as error:
            return f"There is no picture of the elite at play: {error}."
        return cls.of(frames, score, cut=score.steps < typical.length)

    @classmethod
    def of(cls, frames: FilmFrames, score: Score, cut: bool = False) -> _Movie:
        """Return what was filmed, within the budget."""
        from evopipe.policies.film import animate

        images = frames.images
        gap = frames.gap if frames.fps <= _MOVES else min(_SLOWEST, frames.gap)
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
