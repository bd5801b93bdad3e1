"""The zoo as text and pictures: what `evopipe zoo list` and `show` print and draw."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from evopipe import layout
from evopipe.compare import Finished
from evopipe.compare import Row as Compared
from evopipe.errors import MissingInputError, UsageError
from evopipe.formats import columns, duration, interval, number, score
from evopipe.zoo.row import SHARE, Curve, Over, Published, ZooRow, load, rows


def answer(row: ZooRow, over: Over) -> str:
    """Return whether a row reaches what was published, in a word; empty if nothing was published."""
    if row.entry.best is None:
        return ""
    if row.entry.reached(over):
        return "yes"
    return "in more steps" if over.interval[0] >= row.entry.best.bar else "no"


def table(folder: Path | None = None) -> list[str]:
    """Return a table of all rows of the zoo, as lines of text for a terminal.

    Args:
        folder: a clone of evopipe's repository; None searches for one as `row.rows` does.

    Raises:
        MissingInputError: no clone was found.
        DataError: `zoo/rows.yaml` or a file of results cannot be used.
    """
    lines = [("row", "seeds", "IQM", "95 % interval", "steps", "elite's", "CPU", "published", f"{SHARE:g} of it")]
    for name, row in rows(folder).items():
        over = row.over()
        others = " ".join(score(each.score) for each in row.entry.published)
        if over is None:
            lines.append((name, "0", "", "", "", "", "", others, ""))
            continue
        cost = (f"{over.steps:,.0f}", f"{over.agent_steps:,.0f}", duration(over.cpu_seconds))
        reached = answer(row, over)
        lines.append((name, str(over.seeds), score(over.iqm), interval(over.interval), *cost, others, reached))
    return columns(lines)


def described(row: ZooRow, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield lines of text about a row: results of each seed, the score over seeds, published scores, and the command
    that rebuilds the row.

    Args:
        row: the row.
        sources: where each publication can be found, by the publication's name. `evopipe.zoo.row.sources` returns it.
    """
    yield f"{row.name}: {row.entry.family}, parameters in {row.folder / 'params.yaml'}"
    found, over = row.seeds(), row.over()
    stale = [seed for seed, each in found.items() if each.params != row.key]
    if stale:
        yield f"of other parameters than the pipeline's: seeds {', '.join(map(str, stale))}; train them again"
    if found:
        lines = [("seed", "mean", "95 % interval", "episodes", "steps", "CPU", "elite", "code")]
        for seed, each in found.items():
            cost = (f"{each.steps:,}", duration(each.cpu_seconds))
            where = (each.elite[:12], each.code[:12])
            lines.append((str(seed), score(each.mean), interval(each.interval), str(each.episodes), *cost, *where))
        yield from columns(lines)
    if over is not None:
        yield f"interquartile mean over {over.seeds} seeds: {score(over.iqm)}, 95 % interval {interval(over.interval)}"
        yield f"its elites were trained for {over.agent_steps:,.0f} environment steps each"
    for published in row.entry.published:
        yield told(published, sources)
    if over is not None and (best := row.entry.best) is not None:
        verb = "reaches" if over.interval[0] >= best.bar else "does not reach"
        more = ", in more steps" if row.entry.longer(over) else ""
        yield f"the interval's lower end {verb} {SHARE:g} of what was published{more}"
    if row.entry.tried:
        yield f"tried: {row.entry.tried}"
    yield f"rebuild it: evopipe zoo verify {row.name}"


def told(published: Published, sources: Mapping[str, str]) -> str:
    """Return a published score as a line of text, with the publication and where it can be found.

    `sources` has the places of publications by name, as the function `row.sources` returns it.
    """
    spread = "" if published.deviation is None else f" ± {number(published.deviation)}"
    steps = "" if published.steps is None else f" in {published.steps:,} steps"
    return f"{published.by}: {score(published.score)}{spread}{steps} ({sources[published.by]})"


def draw(row: ZooRow, path: Path) -> None:
    """Draw the learning curves of a row of the zoo: an algorithm in an environment, trained with several seeds.

    They show the fitness of the elite (the best member) over environment steps, and over seconds.

    A curve is the mean over the row's seeds, with a 95 % bootstrap band. The picture is written to `path`, in the
    format of its suffix.

    Raises:
        MissingInputError: the row was not trained yet, or matplotlib is not installed.
        UsageError: matplotlib does not write this format.
    """
    from evopipe.compare.pictures import draw_curves

    found, over = row.trained(), row.over()
    if over is None:
        raise MissingInputError(f"zoo: {row.name} was not trained yet: `evopipe zoo train {row.name}`")
    runs = tuple(
        Finished(seed, {}, {}, each.episodes, f"{row.name}, seed {seed}", partial(_file, each.curve))
        for seed, each in found.items()
    )
    means = tuple(each.mean for each in found.values())
    draw_curves([Compared(row.name, f"{over.seeds} seeds", runs, means, over.iqm, over.interval, over.iqm)], path)


def film(row: ZooRow, path: Path) -> None:
    """Film one episode of a row's elite, and write it to `path` as an animated GIF.

    Raises:
        MissingInputError: the row was not trained yet.
        UsageError: the path is a folder.
        EnvironmentFailed: the environment cannot render.
    """
    from evopipe.policies import film, play

    if path.is_dir():
        raise UsageError(f"zoo: {path} is a folder; give the name of a file")
    policy = load(row.name, row.home)
    where = path.absolute()
    with contextlib.chdir(row.folder):  # the module of its environment is the repository's own
        play.watch(policy, play.environment_of(policy, trust=True), [partial(film.gif, where)])


def _file(curve: Curve, file: Path) -> bytes:
    """Return a curve as the file of a run that has it."""
    names = ("env_steps", "eval_steps", "elite") if file == layout.FITNESS else ("seconds",)
    text = io.StringIO()
    csv.writer(text).writerows([names, *zip(*(getattr(curve, name) for name in names), strict=True)])
    return text.getvalue().encode()
