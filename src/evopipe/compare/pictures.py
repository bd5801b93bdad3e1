"""Pictures of several configurations: what `evopipe compare` draws with `--picture`, `--curves` and `--parallel`."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evopipe.compare import Row, cells, legend
from evopipe.compare.labels import differing, short, wrapped
from evopipe.errors import MissingInputError, UsageError, need_package
from evopipe.formats import clean, number, score
from evopipe.layout import FITNESS, TIMING
from evopipe.ops.statistics import bootstrap_interval
from evopipe.report.family import Family

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RESAMPLES = 2_000
_COLOURS = ("elite", "architecture", "activation", "rl_hp", "parameters", "member", "ink", "evaluate")
_LINE, _LETTER = 13, 5.2  # points: the height of a line of a legend, the width of its letters
_STYLES = ("-", "--", ":", "-.")  # for configurations beyond the colours
_Array = NDArray[np.float64]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the returns of each configuration as a row of a picture: each run, the mean with its 95 % interval, and the
    IQM.

    The IQM is the interquartile mean. The picture is written to `path`, in the format of its suffix.

    Raises:
        UsageError: matplotlib does not write this format.
        MissingInputError: matplotlib is not installed.
    """
    from evopipe.report.draw import Plot

    with _styled():
        left = 24 + 7.2 * max(len(row.label) for row in rows)
        told = wrapped(legend(rows), round((left + 430) / _LETTER))
        below = _LINE * len(told)
        plot = Plot("compare", left + 460, 84 + 58 * len(rows) + below, (left, 24, 28, 56 + below), "")
        _explain(plot.figure, told)
        for y, row in enumerate(rows):
            plot.marks([(x, y) for x in row.means], "member", "o", 6, gid="runs", alpha=0.8)
            plot.line([(end, y) for end in row.interval], "elite", 2.6)
            plot.marks([(row.mean, y)], "elite", "o", 9, gid="mean")
            plot.marks([(row.iqm, y)], "ink", "|", 16, gid="iqm", markeredgewidth=2)
        plot.axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="held-out return: dots runs, line 95 %, | IQM")
        plot.axes.set_yticks(range(len(rows)), [row.label for row in rows])
        _save(plot.figure, path)


def family(rows: Sequence[Row], notes: Sequence[str]) -> Family:
    """Return the table, notes and pictures of a comparison, as a section of the report.

    Learning curves are included only if every run has one, and parallel coordinates only if the configurations differ
    in a parameter besides the seed.
    """
    head, *body = cells(rows)
    fitness = "The elite's fitness over environment steps and over seconds: the mean over runs, with a 95 % band."
    parallel = "Parallel coordinates: a line for each run through its values of what differs, to its score."
    drawn: list[tuple[str, bytes]] = []
    for about, draw_it in ((fitness, draw_curves), (parallel, draw_parallel)):
        stream = io.BytesIO()
        with contextlib.suppress(MissingInputError, UsageError):
            draw_it(rows, stream)
            drawn.append((about, stream.getvalue()))
    return Family(head, body, [*notes, *legend(rows)], drawn)


def draw_curves(rows: Sequence[Row], path: Path | BinaryIO) -> None:
    """Draw learning curves of the configurations: the fitness of the elite (the best member) over environment steps,
    and over seconds.

    Environment steps include those of evaluation. `rows` are the configurations with their runs, and `path` is the file
    to write. A curve is the mean over a configuration's runs, with a 95 % bootstrap band if there are several runs. It
    spans only the range that all runs of the configuration cover.

    Raises:
        UsageError: matplotlib does not write this format.
        MissingInputError, DataError: a run has no learning curve, its file is damaged, or matplotlib is not installed.
    """
    from evopipe.report.draw import PALETTE

    with _styled():
        from matplotlib.figure import Figure

        told = wrapped(legend(rows), round(920 / _LETTER))
        below = 20 * len(rows) + _LINE * len(told)
        figure = Figure(figsize=(960 / 72, (400 + below) / 72))
        both = figure.subplots(1, 2, sharey=True)
        for index, row in enumerate(rows):
            look = {
                "color": PALETTE[_COLOURS[index % len(_COLOURS)]],
                "linestyle": _STYLES[index // len(_COLOURS) % len(_STYLES)],
            }
            for axes, curves in zip(both, zip(*(_curves(run.curve(FITNESS), run.curve(TIMING)) for run in row.runs),
                                              strict=True), strict=True):  # fmt: skip
                x, y = together(curves)
                axes.plot(x, y.mean(axis=0), linewidth=2.2, label=f"{row.label} ({row.over})", **look)
                if len(y) > 1:
                    draws = np.random.default_rng(0)
                    band = np.array([bootstrap_interval(column, _RESAMPLES, draws) for column in y.T])
                    axes.fill_between(x, band[:, 0], band[:, 1], color=look["color"], alpha=0.18, linewidth=0)
        for axes, title in zip(both, ("environment steps, evaluation too", "seconds"), strict=True):
            axes.set_xlabel(title)
            axes.ticklabel_format(axis="x", style="plain")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.locator_params(axis="x", nbins=5)
        both[0].set_ylabel("the elite's fitness")
        place = (0.06, _LINE * len(told) / (400 + below))
        figure.legend(*both[0].get_legend_handles_labels(), loc="lower left", frameon=False, bbox_to_anchor=place)
        _explain(figure, told)
        figure.tight_layout(rect=(0, 0.03 + below / (400 + below), 1, 1))
        _save(figure, path)


def draw_parallel(rows: Sequence[Row], path: Path | BinaryIO) -> None:
    """Draw the runs of the configurations `rows` in parallel coordinates. `path` is the file to write.

    Each parameter that differs between the configurations has a vertical axis, and the score has the last one. Each run
    is a line from axis to axis, at the height of its values.

    Raises:
        UsageError: the runs differ in no parameter but the seed, or matplotlib does not write this format.
        MissingInputError: matplotlib is not installed.
    """
    keys = differing([row.runs[0].settings for row in rows])
    if not keys:
        raise UsageError("compare: --parallel: there is nothing in which these runs differ but their seeds")
    runs = [run for row in rows for run in row.runs]
    scales = [scaled([run.settings[key] for run in runs]) for key in keys]
    scores = np.array([float(run.elite["mean"]) for run in runs])
    places, ticks = scaled(scores.tolist())
    with _styled():
        import matplotlib
        from matplotlib.figure import Figure

        figure = Figure(figsize=((200 + 170 * len(keys)) / 72, 420 / 72))
        axes = figure.add_axes((0.08, 0.14, 0.84, 0.72))
        heights = np.array([place for place, _ in scales] + [places])
        for column in places.argsort():  # the best on top
            axes.plot(heights[:, column], color=matplotlib.colormaps["viridis"](places[column]), linewidth=1.8)
        behind = {"boxstyle": "square,pad=0.15", "facecolor": "white", "alpha": 0.85, "linewidth": 0}
        for x, shown in enumerate([labels for _, labels in scales] + [ticks]):
            axes.axvline(x, color=matplotlib.rcParams["grid.color"], linewidth=1.4, zorder=0)
            for y, text in shown:
                axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=9.5, bbox=behind)
        names = [clean(name) for name in short(keys).values()]
        axes.set_xticks(range(len(keys) + 1), [*names, "held-out return"], fontsize=10)
        axes.set(xlim=(-0.1, len(keys) + 0.35), ylim=(-0.05, 1.05), yticks=[])
        axes.grid(visible=False)
        _save(figure, path)


def together(curves: Sequence[tuple[_Array, _Array]]) -> tuple[_Array, _Array]:
    """Interpolate R curves linearly at X common positions; return the positions `[X]` and the curves' values `[R, X]`.

    Each curve is a pair (x, y). The common positions are the x of all curves, within the range that all curves cover.
    """
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    shared = np.unique(np.concatenate([x for x, _ in curves]))
    shared = shared[(shared >= low) & (shared <= high)]
    if not len(shared):  # runs of which one ended before another one's first generation
        shared = np.array([low])
    return shared, np.stack([np.interp(shared, x, y) for x, y in curves])


def scaled(values: Sequence[Any]) -> tuple[_Array, list[tuple[float, str]]]:
    """Return the position of each value on an axis from 0 to 1, and the axis' labels as pairs (position, text).

    Numbers are spaced linearly, or by their logarithms if they are positive and span more than a factor of 20. Other
    values are spaced equally, in the order of their texts.
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        x = np.array(values, np.float64)
        by_logarithm = x.min() > 0 and x.max() > 20 * x.min()
        y = np.log(x) if by_logarithm else x
        span = y.max() - y.min()
        places = (y - y.min()) / span if span else np.full(len(y), 0.5)
        write = score if len({*values}) > 8 else number
        ends = sorted({*zip(places.tolist(), x.tolist(), strict=True)})
        return places, [(place, write(value)) for place, value in (ends if len(ends) <= 8 else (ends[0], ends[-1]))]
    texts = [str(value) for value in values]
    order = sorted({*texts})
    at = {text: index / max(1, len(order) - 1) for index, text in enumerate(order)}
    return np.array([at[text] for text in texts]), [
        (place, textwrap.shorten(clean(text), 24)) for text, place in at.items()
    ]


def _curves(fitness: dict[str, list[float]], timing: dict[str, list[float]]) -> list[tuple[_Array, _Array]]:
    """A run's elite over steps and over seconds."""
    elite = np.array(fitness["elite"])
    steps = np.array(fitness["env_steps"]) + np.array(fitness["eval_steps"])
    return [(steps, elite), (np.cumsum(timing["seconds"]), elite)]


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    need_package("matplotlib", "report", "a picture")
    import matplotlib

    from evopipe.report.draw import style

    with style(), matplotlib.rc_context({"svg.hashsalt": "compare"}):
        yield


def _explain(figure: Figure, told: Sequence[str]) -> None:
    """Write the lines of a legend along the lower edge of a figure."""
    if told:
        figure.text(12 / (72 * figure.get_figwidth()), 0, "\n".join(told) + "\n", fontsize=9, va="bottom")


def _save(figure: Figure, path: Path | BinaryIO) -> None:
    """Write a figure to a file, or as SVG to a stream."""
    figure.patch.set_visible(True)
    if not isinstance(path, Path):
        figure.savefig(path, format="svg", metadata={"Date": None})
        return
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except ValueError:
        raise UsageError(f"compare: {path}: no such picture can be written; name it .svg or .png") from None
