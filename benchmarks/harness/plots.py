"""The page's plots, as SVG that is the same for the same results, legible on light and dark."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable
from typing import Any

from harness import survival
from harness.aims import seconds_key
from harness.measurements import SEARCHES
from harness.results import Result, Results, names, values
from harness.speed import each

GREY, COLOURS = "#808080", ("#2a7fd4", "#e07b00", "#1f9d6b", "#c0448f", "#8a63d2")


def plots(results: Results) -> dict[str, bytes]:
    """Return the SVG files by name."""
    drawn: dict[str, bytes] = {}
    if "end_to_end" in results:
        drawn["bench-end-to-end.svg"] = picture(lambda axes: _end_to_end(axes, results["end_to_end"]), 2.4)
    if "curve_64" in results or "curve_128" in results:
        drawn["bench-curve.svg"] = picture(lambda axes: _curve(axes, results), 3.6)
    for name in ("cartpole", "lunarlander", *SEARCHES):
        if name in results:
            height = max(2.4, 0.45 * len(names(results[name])))
            drawn[f"bench-{name}.svg"] = picture(lambda axes, name=name: _solved(axes, results[name]), height)  # type: ignore[misc]
    for name, result in survival.there(results).items():
        drawn[survival.picture_of(name)] = picture(lambda axes, of=result: survival.draw(axes, of, COLOURS), 4.2)  # type: ignore[misc]
    return drawn


def picture(draw: Callable[[Any], None], height: float, about: str | None = None) -> bytes:
    """Return what is drawn on axes as SVG.

    Args:
        draw: draws.
        height: in inches.
        about: a text that goes into the file's metadata.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": "evopipe", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
        "axes.edgecolor": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "text.color": GREY,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        file = io.BytesIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(file, metadata={"Date": None, "Creator": None, **({"Description": about} if about else {})})
    return file.getvalue()


def _end_to_end(axes: Any, result: Result) -> None:
    for place, name in enumerate(names(result)):
        rates = values(result, name, lambda r: r["training_steps"] / r["seconds"])
        colour = COLOURS[0] if name.startswith("evopipe") else COLOURS[1]
        axes.barh(place, statistics.median(rates), color=colour, height=0.6)
        axes.plot(rates, [place] * len(rates), "|", color=GREY, markersize=9)
    axes.set_yticks(range(len(names(result))), names(result))
    axes.invert_yaxis()
    axes.set_xlabel("training steps per second, evolution and evaluation included")


def _curve(axes: Any, results: Results) -> None:
    for name, colour in (("curve_64", COLOURS[2]), ("curve_128", COLOURS[0])):
        if name in results:
            result = results[name]
            sizes = result["settings"]["sizes"]
            medians = [statistics.median(each(result, str(size))) for size in sizes]
            label = f"{result['settings']['layers'][0]} wide, {result['machine']['cpu']}"
            axes.plot(sizes, medians, "o-", color=colour, label=label, markersize=4)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("members P")
    axes.set_ylabel("µs a member, T(P) / P")
    axes.legend(frameon=False)


def _solved(axes: Any, result: Result) -> None:
    key = seconds_key(result)
    for place, name in enumerate(names(result)):
        for run in values(result, name, lambda r: r):
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(run[key], place, "o" if run["solved"] else ">", color=colour, markersize=7, alpha=0.75,
                      markerfacecolor=colour if run["solved"] else "none")  # fmt: skip
    axes.set_yticks(range(len(names(result))), names(result))
    axes.set_ylim(len(names(result)) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(
        f"{key.replace('_', ' ')} to a solved elite, one mark a seed (▷ stopped by its budget: would take longer)"
    )
