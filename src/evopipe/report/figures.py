"""The report's figures: from a run to SVG text. Each takes a width in pixels, and a label for screen readers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import median, quantiles
from typing import Any, NamedTuple, TypeAlias

from markupsafe import Markup

from evopipe.report import words
from evopipe.report.draw import PALETTE, Plot
from evopipe.report.lives import Key
from evopipe.report.read import FinishedRun, Node, Payoff

MARKERS = {"none": "o", "architecture": "s", "parameters": "D", "activation": "^", "rl_hp": "v"}
_DESK = 600  # what is wider is for a desk, else for a phone
_SMALL = 318  # one of three figures in a row
_SEEN = 1.5  # of the middle nine tenths' spread: what lies farther out would squeeze the rest
_SHADES = 5  # of a bar, above the palest
_ROOM = 0.3  # columns left and right of the tree
_NAN = float("nan")
_Draw: TypeAlias = Callable[[FinishedRun, int, Markup], Markup]
_TARGET: dict[str, Any] = {"color": PALETTE["ink"], "linewidth": 1, "dashes": (1, 3), "dash_capstyle": "round"}


class Section(NamedTuple):
    """A section of the report's page that consists of one figure.

    Attributes:
        title: the section's title.
        caption: the text below the title.
        draw: the function (run, width, label) that draws the figure, as SVG text.
        shown: a function that returns whether the report of a run has the section.
    """

    title: str
    caption: str
    draw: _Draw
    shown: Callable[[FinishedRun], bool]


SECTIONS: dict[str, Section] = {}
"""Sections behind the held-out evaluation, by the name of their figure; the others have words of their own."""


def section(
    title: str, caption: str, shown: Callable[[FinishedRun], bool] = lambda run: True
) -> Callable[[_Draw], _Draw]:
    """Return a decorator that adds a drawing function to the report, as a section with this title and caption.

    The decorated function takes the run, a width in pixels and a label for screen readers, and returns SVG text. The
    decorator returns the function unchanged. The section appears in reports of those runs for which `shown` returns
    True.
    """

    def add(draw: _Draw) -> _Draw:
        SECTIONS[draw.__name__] = Section(title, caption, draw, shown)
        return draw

    return add


def _hue(kind: str) -> str:
    """Return the colour's name of a mutation kind; kinds that are new here look like `none`."""
    return kind if kind in words.KINDS else "none"


def _threads(run: FinishedRun, at: Callable[[Node], tuple[float, float]]) -> list[tuple[float, float]]:
    """Return one broken line that joins every member with its parent."""
    pairs = {(at(run.nodes[node.parent]), at(node)): None for node in run.nodes.values() if node.parent is not None}
    seen = [pair for pair in pairs if all(map(math.isfinite, (*pair[0], *pair[1])))]  # each once, though many share it
    return [point for one, two in seen for point in (one, two, (_NAN, _NAN))]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the range to show: all of it, but for values far below the rest."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if len(values) >= 8:
        cuts = quantiles(values, n=20)
        low = max(low, cuts[0] - _SEEN * (cuts[-1] - cuts[0]))
    if high - low <= 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    return low, high


def fitness(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw fitness over environment steps.

    A line joins every member to its parent. The elite's ancestors, the best score and the target have lines too.
    """
    wide, few, steps, target = width > _DESK, run.slots <= 8, run.env_steps, run.summary.target
    margins = (52, 84 if wide else 16, 28, 44)
    plot = Plot(f"fitness.{width}", width, 410 if wide else 310, margins, "mean return")
    best = [(row.env_steps, row.elite) for row in run.generations if math.isfinite(row.elite)]
    scores = [n.fitness for n in run.nodes.values() if not n.diverged] + [score for _, score in best]
    low, high = _limits(scores if target is None else [*scores, target])

    def at(node: Node) -> tuple[float, float]:
        return steps[node.key[0]], max(node.fitness, low)

    plot.line(_threads(run, at), "member", 1.2 if few else 0.9, alpha=0.75 if few else 0.45)
    _members(plot, run, low, titled=wide)
    if target is not None:
        plot.axes.axhline(target, **_TARGET)
    plot.line(best, "elite", 1.4, drawstyle="steps-post", dashes=(4, 3))
    elite = [at(node) for node in run.descent]
    plot.line(elite, "elite", 2.6, marker="o", markersize=6 if few else 0)
    plot.marks(elite[-1:], "elite", "o", 9, markeredgewidth=1, clip_on=False)
    end = max(steps.values(), default=1)
    plot.axes.set(xlim=(0, end * 1.01), ylim=(low - 0.04 * (high - low), high + 0.06 * (high - low)))
    if wide:
        _label_ends(plot, target, best)
    elif target is not None:
        plot.axes.text(
            0.015, target, f"target {words.value(target)}", transform=plot.axes.get_yaxis_transform(), va="bottom",
            color=PALETTE["muted"], fontsize=11, gid="halo-target",
        )  # fmt: skip
    plot.axes.set_xlabel("environment steps of the population")
    plot.ticks("x", words.thousands, 8 if wide else 4)
    plot.ticks("y", words.value, 6)
    plot.axes.xaxis.grid(False)
    return plot.svg(label)


def _members(plot: Plot, run: FinishedRun, low: float, titled: bool) -> None:
    """Mark members: a dot each, an arrow for those below the axis, a cross for those that diverged."""
    looks: dict[str, dict[str, Any]] = {
        "dots": {"marker": "o", "size": 6 if run.slots <= 8 else 3.4, "alpha": 0.8},
        "below": {"marker": "v", "size": 5},
        "diverged": {"marker": "x", "size": 5, "markeredgewidth": 1.4},
    }
    groups: dict[str, list[Node]] = {name: [] for name in looks}
    for node in run.nodes.values():
        groups["diverged" if node.diverged else "dots" if node.fitness >= low else "below"].append(node)
    for name, nodes in groups.items():
        if nodes:
            points = [(run.env_steps[n.key[0]], n.fitness if name == "dots" else low) for n in nodes]
            titles = [node.about for node in nodes] if titled else ()
            plot.marks(points, "member", titles=titles, gid=name, **looks[name])


def _label_ends(plot: Plot, target: float | None, best: Sequence[tuple[float, float]]) -> None:
    """Write the names of the target and of the elite's score beside the axes, apart from each other."""
    ends = [(target, f"target {words.value(target)}", "muted", "normal")] if target is not None else []
    ends += [(score, f"elite {words.figure(score)}", "elite", "bold") for _, score in best[-1:]]
    ends.sort()
    heights = [end[0] for end in ends]
    low, high = plot.axes.get_ylim()
    least = 0.055 * (high - low)
    if len(heights) == 2 and heights[1] - heights[0] < least:
        middle = sum(heights) / 2
        heights = [middle - least / 2, middle + least / 2]
    for (_, text, colour, weight), at in zip(ends, heights, strict=True):
        plot.note(text, (1, at), (6, 0), colour, ("axes fraction", "data"), weight=weight)


def lineage(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw the family tree of all members, with a column for each generation and a row for each slot (place in the
    population).

    The figure may be wider than `width`, because a column has a least width.
    """
    numbers, path = [row.generation for row in run.generations] or [1], {node.key for node in run.descent}
    left, right, top, bottom = 34, 18, 26, 44
    spread = max(1.0, len(run.generations) - 1 + 2 * _ROOM)
    column = min(280.0, max(18.0, (width - left - right) / spread))
    row = 18 if run.slots > 12 else 28 if run.slots > 6 else 46
    worded, few = column >= 150 and row >= 46, row > 18
    below = 0.75 if worded else 0.5  # rows under the last one
    size = left + right + round(column * spread), top + bottom + row * (run.slots - 0.5 + below)
    plot = Plot(f"lineage.{width}", *size, (left, right, top, bottom), "slot")
    others = [node for node in run.nodes.values() if node.key not in path]
    _edges(plot, others, "member", linewidth=1.2 if few else 1, alpha=0.8 if few else 0.4)
    _edges(plot, run.descent, "elite", linewidth=2.8, zorder=3)
    _tree_marks(plot, run, path, few)
    if worded:
        _tree_words(plot, run, path)
    plot.axes.set(xlim=(numbers[0] - _ROOM, numbers[0] - _ROOM + spread), ylim=(run.slots - 1 + below, -0.5))
    every = 1 if column >= 26 else 5
    plot.axes.set_xticks([n for n in numbers if n % every == 0 or n in (numbers[0], numbers[-1])])
    plot.axes.set_yticks(range(0, run.slots, 1 if few or run.slots <= 20 else 5))
    plot.axes.grid(False)
    plot.axes.set_xlabel("generation")
    return plot.svg(label)


def _edges(plot: Plot, nodes: Iterable[Node], colour: str, **look: Any) -> None:
    """Draw curves from parents to children, all in one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points: list[tuple[float, float]] = []
    for (x1, y1), parent in ((node.key, node.parent) for node in nodes):
        if parent:
            middle = (parent[0] + x1) / 2
            points += [parent, (middle, parent[1]), (middle, y1), (x1, y1)]
    if points:
        path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4] * (len(points) // 4))
        plot.axes.add_patch(PathPatch(path, fill=False, clip_on=False, edgecolor=PALETTE[colour], **look))


def _tree_marks(plot: Plot, run: FinishedRun, path: set[Key], few: bool) -> None:
    """Mark every member by how it was made: filled where it beat its parent, larger on the elite's line."""
    groups: dict[tuple[str, bool, bool], list[Node]] = {}
    for node in run.nodes.values():
        look = "diverged" if node.diverged else "survived" if node.survived else _hue(node.kind)
        better = node.gain > 0 or node.parent is None  # the first have nobody to beat
        groups.setdefault((look, better, node.key in path), []).append(node)
    for (look, better, ancestor), nodes in sorted(groups.items()):
        quiet = look in ("survived", "none")
        colour = "elite" if ancestor and quiet else _hue(look)
        size = (7.5 if few else 5.4) * (1.45 if ancestor else 1.0) * (0.8 if quiet else 1.0)
        plot.marks([node.key for node in nodes], colour, "x" if look == "diverged" else MARKERS.get(look, "o"), size,
            [node.about for node in nodes],
            gid=f"{look}-{better}-{ancestor}",
            clip_on=False,
            zorder=4 if ancestor else 2,
            alpha=1.0 if ancestor or few else 0.6,
            markeredgewidth=1.5 if ancestor or few else 1.1,
            markerfacecolor=PALETTE[colour if better or look == "diverged" else "surface"],
        )  # fmt: skip


def _tree_words(plot: Plot, run: FinishedRun, path: set[Key]) -> None:
    """Write below each mark what changed and what that gained, where there is room for it."""
    for node in run.nodes.values():
        text = "" if node.survived or node.kind == "none" else node.change or words.KINDS.get(node.kind, node.kind)
        gain = words.figure(node.gain, signed=True) if math.isfinite(node.gain) else ""
        look: dict[str, Any] = {"ha": "center", "fontsize": 10.5, "gid": "halo-node"}
        if text:
            plot.note(text if len(text) <= 24 else f"{text[:23]}…", node.key, (0, -13), _hue(node.kind), **look)
        plot.note(gain, node.key, (0, -26 if text else -13), "elite" if node.key in path else "muted", **look)


def turns(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw when each member was training: a row for each slot (place in the population), over environment steps.

    A bar covers the steps during which one member trained, and is more opaque for higher fitness. A gap means that the
    slot's member was waiting.
    """
    left, right, top, bottom = 34, 18, 26, 44
    row = 16 if run.slots > 12 else 24
    plot = Plot(f"turns.{width}", width, top + bottom + row * run.slots, (left, right, top, bottom), "slot")
    low, high = _limits([node.fitness for node in run.nodes.values() if not node.diverged])
    path, ends = {node.key for node in run.descent}, {0: 0, **run.env_steps}
    starts = dict(zip(run.env_steps, ends.values(), strict=False))
    bars: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    for (generation, slot), node in run.nodes.items():
        share = 0.0 if node.diverged else min(1.0, max(0.0, (node.fitness - low) / (high - low)))
        look = "elite" if node.key in path else "member", 0.15 + 0.85 * round(_SHADES * share) / _SHADES
        bars.setdefault(look, []).append((starts[generation], ends[generation], slot))
    for (colour, alpha), places in sorted(bars.items()):
        _bars(plot, places, colour, alpha)
    lived = [life for life in run.lives if life.keys]
    for gid, marker, group in (
        ("trial", "o", [life for life in lived if life.parent is None]),
        ("child", "D", [life for life in lived if life.parent is not None]),
    ):
        at = [(starts[life.keys[0][0]], life.keys[0][1]) for life in group]
        plot.marks(at, "ink", marker, 4.5, [life.about for life in group], gid=gid, clip_on=False, zorder=3)
    gone = [(ends[node.key[0]], node.key[1]) for node in run.nodes.values() if node.diverged]
    plot.marks(gone, "ink", "x", 5, gid="diverged", clip_on=False, zorder=3, markeredgewidth=1.4)
    plot.axes.set(xlim=(0, max(ends.values()) * 1.01 or 1), ylim=(run.slots - 0.5, -0.5))
    plot.axes.set_yticks(range(0, run.slots, 1 if run.slots <= 20 else 5))
    plot.axes.grid(False)
    plot.axes.set_xlabel("environment steps of the population")
    plot.ticks("x", words.thousands, 8 if width > _DESK else 4)
    return plot.svg(label)


def _bars(plot: Plot, places: Sequence[tuple[float, float, float]], colour: str, alpha: float) -> None:
    """Draw bars of (start, end, row), all in one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    shapes = [[(x1, y - 0.3), (x2, y - 0.3), (x2, y + 0.3), (x1, y + 0.3), (x1, y - 0.3)] for x1, x2, y in places]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(shapes)
    path = Path([point for shape in shapes for point in shape], codes)
    plot.axes.add_patch(PathPatch(path, facecolor=PALETTE[colour], alpha=alpha, linewidth=0))


def mutations(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw, for each kind of mutation, the children's gains in fitness over their parents.

    Each child is a dot; the middle half of the gains is a bar, and the median a line.
    """
    wide, rows = width > _DESK, run.payoffs
    height = (58 if wide else 74) * len(rows) + 52
    plot = Plot(f"mutations.{width}", width, height, (132 if wide else 10, 150 if wide else 10, 8, 44))
    limits = _both_limits([gain for payoff in rows for gain in payoff.gains])
    if wide:
        plot.axes.axvline(0, color=PALETTE["ink"], linewidth=1)
    for place, payoff in enumerate(rows):
        _gain_row(plot, place, payoff, limits, wide)
    plot.axes.set(xlim=limits, ylim=(len(rows) - 0.4, -0.6 if wide else -0.75), yticks=[])
    plot.axes.set_xlabel("fitness of the child minus fitness of its parent")
    plot.ticks("x", words.value, 8 if wide else 4)
    return plot.svg(label)


def _gain_row(plot: Plot, place: int, payoff: Payoff, limits: tuple[float, float], wide: bool) -> None:
    from matplotlib.patches import Rectangle

    hue = _hue(payoff.kind)
    if not wide:  # the words above a row stay clear of the line
        plot.line([(0, place - 0.34), (0, place + 0.34)], "ink", 1)
    seen = [min(max(gain, limits[0]), limits[1]) for gain in payoff.gains]
    size, dim = (4.6, 0.5) if payoff.children > 20 else (7, 0.8)
    # Multiples of the golden ratio fill [0, 1] evenly: dots lie apart, without chance.
    points = [(gain, place + 0.2 * (2 * math.modf(n * 0.6180339887498949)[0] - 1)) for n, gain in enumerate(seen)]
    plot.marks(points, hue, "o", size, alpha=dim, clip_on=False)
    if len(seen) >= 4:
        first, _, third = quantiles(seen, n=4, method="inclusive")
        bar = Rectangle((first, place - 0.3), third - first, 0.6, color=PALETTE[hue], alpha=0.16, linewidth=0)
        plot.axes.add_patch(bar)
    if seen:
        plot.line([(median(seen), place - 0.3), (median(seen), place + 0.3)], hue, 2.6)
    kind = words.KINDS.get(payoff.kind, payoff.kind)
    name = {"text": kind, "colour": "muted" if hue == "none" else hue, "weight": "bold"}
    count = f"{payoff.children} {'child' if payoff.children == 1 else 'children'}"
    improved = f"{100 * payoff.improved:.0f} % improved"
    if wide:
        plot.beside(place, 0, (-14, 7), **name, ha="right")
        plot.beside(place, 0, (-14, -8), count, "muted", ha="right")
        plot.beside(place, 1, (14, 7), improved, "ink")
        plot.beside(place, 1, (14, -8), f"median {words.figure(payoff.median, signed=True)}", "muted")
    else:
        plot.beside(place - 0.52, 0, (0, 0), **name)
        plot.beside(place - 0.52, 1, (0, 0), f"{count}, {improved}", "muted", ha="right")


def _both_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the range to show around 0, without what lies far out on either side."""
    low, high = _limits([*values, 0.0])[0], -_limits([*(-value for value in values), 0.0])[0]
    room = 0.03 * (high - low)
    return low - room, high + room


def trajectory(run: FinishedRun, column: Mapping[Key, float | str], number: int, label: Markup) -> Markup:
    """Draw one hyper-parameter or other trait of the members over generations.

    `column` has the values by (generation, slot), where a slot is a member's place in the population; `number` makes
    the figure's ids unique on the page. The area of a dot shows how many members have the value.
    """
    categories = sorted({value for value in column.values() if isinstance(value, str)})
    place: dict[float | str, float] = {category: float(i) for i, category in enumerate(categories)}
    height = {key: place.get(value, value if isinstance(value, float) else _NAN) for key, value in column.items()}
    plot = Plot(f"trajectory.{number}", _SMALL, 200, (74 if categories else 48, 12, 12, 40))
    plot.line(_threads(run, lambda node: (node.key[0], height.get(node.key, _NAN))), "member", 0.9, alpha=0.4)
    largest = 8 if len(run.generations) <= 20 else 5
    groups: dict[float, list[tuple[float, float]]] = {}  # by few shares, so that few sizes of dots are needed
    for point, count in sorted(Counter((key[0], value) for key, value in height.items()).items()):
        share = math.ceil(8 * count / run.slots) / 8 if run.slots > 8 else count / run.slots
        groups.setdefault(share, []).append(point)
    for share, points in sorted(groups.items()):
        plot.marks(points, "member", "o", 2 + largest * math.sqrt(share), alpha=0.6, clip_on=False)
    elite = [(float(node.key[0]), height[node.key]) for node in run.descent if node.key in height]
    plot.line(elite, "elite", 2.4, clip_on=False, zorder=3)
    plot.marks(elite[-1:], "elite", "o", 7, markeredgewidth=1, clip_on=False, zorder=3)
    _trajectory_axes(plot, run, categories, [value for value in height.values() if math.isfinite(value)])
    return plot.svg(label)


def _trajectory_axes(plot: Plot, run: FinishedRun, categories: Sequence[str], values: Sequence[float]) -> None:
    numbers = [row.generation for row in run.generations] or [1]
    plot.axes.set(xlim=(numbers[0] - 0.4, numbers[-1] + 0.4), xlabel="generation")
    plot.axes.xaxis.grid(False)
    plot.ticks("x", words.value, 6, whole=True)
    if categories:
        plot.axes.set_ylim(-0.5, len(categories) - 0.5)
        names = [name if len(name) < 10 else f"{name[:8]}…" for name in categories]
        plot.axes.set_yticks(range(len(names)), names)
        return
    low, high = min(values), max(values)
    if low > 0 and high / low >= 8:
        plot.axes.set(yscale="log", ylim=(low / 1.25, high * 1.25))
    else:
        pad = 0.1 * (high - low) or max(0.5, 0.5 * abs(high))  # a signal may never change
        plot.axes.set_ylim(low - pad, high + pad)
    plot.ticks("y", words.value, 5, whole=all(value == int(value) for value in values))
    low, high = plot.axes.get_ylim()
    longest = max(len(words.value(float(tick))) for tick in plot.axes.get_yticks() if low <= tick <= high)
    plot.axes.set_position((left := max(48, 8 + 8 * longest) / _SMALL, 0.2, 1 - 12 / _SMALL - left, 0.74))


def evaluation(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw the returns of held-out episodes: a row for each member, with a mark for each episode.

    Each row also has the mean and its 95 % interval. The elite (the best member) is the first row; the others are
    sorted by their means.
    """
    wide, target = width > _DESK, run.summary.target
    ranked = [run.elite, *sorted(run.members, key=lambda member: (-member.mean, member.name))]
    row = 30 if len(ranked) <= 12 else 22
    margins = (64 if wide else 56, 190 if wide else 56, 12, 44)
    plot = Plot(f"evaluation.{width}", width, row * len(ranked) + 60, margins)
    low, high = _limits([value for member in ranked for value in member.returns])
    if target is not None and low <= target <= high + 0.3 * (high - low):
        high = max(high, target)
        plot.axes.axvline(target, **_TARGET)
    for place, member in enumerate(ranked):
        first = place == 0
        colour, look = ("elite", {"weight": "bold"}) if first else ("member", {})
        seen = [(max(value, low), place) for value in member.returns]
        plot.marks(seen, colour, "|", row * 0.5, markeredgewidth=1.1, alpha=0.4)
        plot.line([(max(end, low), place) for end in member.interval], "ink", 3.5 if first else 2.2)
        plot.marks([(max(member.mean, low), place)], colour, "o" if member.mean >= low else "<", 10 if first else 8,
            markeredgecolor=PALETTE["surface"], markeredgewidth=1.5, clip_on=False,
        )  # fmt: skip
        plot.beside(place, 0, (-12, 0), member.name, "elite" if first else "muted", ha="right", **look)
        ends = f"   [{' to '.join(map(words.figure, member.interval))}]" if wide else ""
        plot.beside(place, 1, (12, 0), words.figure(member.mean) + ends, "elite" if first else "muted", **look)
    room = 0.02 * (high - low)
    plot.axes.set(xlim=(low - room, high + room), ylim=(len(ranked) - 0.4, -0.6), yticks=[])
    plot.axes.set_xlabel("return of a held-out episode")
    plot.ticks("x", words.value, 8 if wide else 4)
    return plot.svg(label)


def replays(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw mean held-out returns with their intervals: of the elite (the best member), of each replay, and of all
    replays together.

    A replay is a training with the elite's hyper-parameter schedule from another seed (`evopipe replay`).
    """
    wide, found = width > _DESK, run.replays
    assert found is not None
    rows = [("elite", run.elite.mean, run.elite.interval), ("replays", found.mean, found.interval)]
    rows += [(f"seed {each.seed}", each.mean, each.interval) for each in found.replays]
    margins = (104 if wide else 88, 190 if wide else 56, 12, 44)
    plot = Plot(f"replays.{width}", width, 30 * len(rows) + 60, margins)
    for place, (name, mean, interval) in enumerate(rows):
        colour, look = ("elite" if place == 0 else "ink", {"weight": "bold"}) if place < 2 else ("member", {})
        if interval is not None:
            plot.line([(end, place) for end in interval], colour, 3.5 if place < 2 else 2.2)
        if mean is not None:
            plot.marks([(mean, place)], colour, "o", 10 if place < 2 else 8, clip_on=False)
        ends = f"   [{' to '.join(map(words.figure, interval))}]" if wide and interval is not None else ""
        said = "diverged" if mean is None else words.figure(mean) + ends
        plot.beside(place, 0, (-12, 0), name, colour if place < 2 else "muted", ha="right", **look)
        plot.beside(place, 1, (12, 0), said, colour if place < 2 else "muted", **look)
    plot.axes.set(ylim=(len(rows) - 0.4, -0.6), yticks=[], xlabel="mean return of held-out episodes")
    plot.axes.margins(x=0.05)
    plot.ticks("x", words.value, 8 if wide else 4)
    return plot.svg(label)


@section("Agents", "Each agent's mean held-out return: a dot a member, the large one the elite.",
    lambda run: len(run.elite.agents) > 1)  # fmt: skip
def agents(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw the mean held-out return of each agent of a team: a row for each agent, and in it a dot for each member.

    The elite's dot is larger.
    """
    names = list(run.elite.agents)
    plot = Plot(f"agents.{width}", width, 30 * len(names) + 60, (132 if width > _DESK else 84, 56, 12, 44))
    low, high = _limits([value for member in (run.elite, *run.members) for value in member.agents.values()])
    for place, name in enumerate(names):
        mean = run.elite.agents[name]
        others = [(max(member.agents[name], low), place) for member in run.members]
        plot.marks(others, "member", "o", 6, alpha=0.6, clip_on=False)
        plot.marks([(max(mean, low), place)], "elite", "o", 10, clip_on=False)
        plot.beside(place, 0, (-12, 0), name if len(name) < 18 else f"{name[:16]}…", "muted", ha="right")
        plot.beside(place, 1, (12, 0), words.figure(mean), "elite", weight="bold")
    room = 0.03 * (high - low)
    plot.axes.set(xlim=(low - room, high + room), ylim=(len(names) - 0.4, -0.6), yticks=[])
    plot.axes.set_xlabel("mean return of an agent")
    plot.ticks("x", words.value, 8 if width > _DESK else 4)
    return plot.svg(label)


def throughput(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw steps per second over the time of training: a block for each generation, evaluation steps on top of training
    steps."""
    wide = width > _DESK
    plot = Plot(f"throughput.{width}", width, 250 if wide else 220, (52, 16, 28, 44), "steps per second")
    rows = [row for row in run.timing if row.seconds > 0]
    total = sum(row.seconds for row in rows)
    unit, name = (3600.0, "hours") if total > 3 * 3600 else (60.0, "minutes") if total > 180 else (1.0, "seconds")
    edges = [0.0, *accumulate(row.seconds / unit for row in rows)]
    learned = [row.env_steps / row.seconds for row in rows]
    whole = [(row.env_steps + row.eval_steps) / row.seconds for row in rows]
    plot.axes.stairs(learned, edges, fill=True, color=PALETTE["train"], linewidth=0)
    plot.axes.stairs(whole, edges, baseline=learned, fill=True, color=PALETTE["evaluate"], linewidth=0)
    for edge in edges[1:-1] if len(rows) <= 100 else ():
        plot.axes.axvline(edge, color=PALETTE["surface"], linewidth=1)
    plot.axes.set(xlim=(0, edges[-1]), ylim=(0, 1.08 * max(whole) or 1.0), xlabel=f"{name} of training")
    plot.ticks("x", words.value, 8 if wide else 4)
    plot.ticks("y", words.thousands, 5)
    plot.axes.xaxis.grid(False)
    return plot.svg(label)
