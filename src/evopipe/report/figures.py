"""The report's figures: a run in, SVG text out. Each takes the width to draw for, in pixels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median, quantiles
from typing import Any

from evopipe.report import draw, words
from evopipe.report.draw import PALETTE
from evopipe.report.read import Key, Node, Run

WIDE, NARROW, SMALL = 1000, 358, 318  # a page on a desk, on a phone; one of three in a row
HUES = ("none", "architecture", "parameters", "activation", "rl_hp")
MARKERS = {"none": "o", "architecture": "s", "parameters": "D", "activation": "^", "rl_hp": "v"}
SEEN = 1.5  # of the middle nine tenths' spread: what lies farther out would squeeze the rest
CROWDED = 36  # generations that fit no phone
ROOM = 0.3  # columns left and right of the tree
NAN = float("nan")


@dataclass(frozen=True)
class Payoff:
    """What one kind of mutation brought.

    Attributes:
        kind: its name.
        children: how many members it made.
        gains: their fitness minus their parents', without those that diverged.
        diverged: how many children did.
    """

    kind: str
    children: int
    gains: tuple[float, ...]
    diverged: int

    @property
    def improved(self) -> float:
        """Share of the children that beat their parents."""
        return sum(gain > 0 for gain in self.gains) / self.children if self.children else NAN

    @property
    def median(self) -> float:
        """Median gain; NaN where there is none."""
        return median(self.gains) if self.gains else NAN


def hue(kind: str) -> str:
    """Return the colour's name of a mutation kind; kinds that are new here look like `none`."""
    return kind if kind in HUES else "none"


# --- fitness ----------------------------------------------------------------------------------------------------------


def fitness(run: Run, width: int) -> str:
    """Draw every member's fitness by descent, the elite's line, the best score so far and the target."""
    wide = width > 600
    figure, axes = draw.canvas(width, 410 if wide else 310, (52, 84 if wide else 16, 28, 44))
    _head(axes, "mean return")
    target = run.summary.get("target")
    scores = [n.fitness for n in run.nodes.values() if math.isfinite(n.fitness)]
    scores += [g.elite for g in run.generations if math.isfinite(g.elite)] + ([target] if target is not None else [])
    low, high = _limits(scores)
    steps = run.env_steps
    x, y = _threads(run, lambda node: (steps[node.key[0]], max(node.fitness, low)))
    few = run.slots <= 8
    axes.plot(x, y, color=PALETTE["member"], linewidth=1.2 if few else 0.9, alpha=0.75 if few else 0.45)
    titles = _points(axes, run, low)
    if target is not None:
        axes.axhline(target, color=PALETTE["ink"], linewidth=1, dashes=(1, 3), dash_capstyle="round")
    best = [(g.env_steps, g.elite) for g in run.generations if math.isfinite(g.elite)]
    axes.step(*_columns(best), where="post", color=PALETTE["elite"], linewidth=1.4, dashes=(4, 3))
    line = [(steps[node.key[0]], max(node.fitness, low)) for node in run.descent]
    axes.plot(*_columns(line), color=PALETTE["elite"], linewidth=2.6, marker="o", markersize=6 if few else 0)
    axes.plot(*_columns(line[-1:]), color=PALETTE["elite"], marker="o", markersize=9, linestyle="none", clip_on=False)
    end = max(steps.values(), default=1)
    axes.set(xlim=(0, end * 1.01), ylim=(low - 0.04 * (high - low), high + 0.06 * (high - low)))
    _label_ends(axes, wide, end, target, best, line)
    draw.plain_axis(axes.xaxis, words.thousands, 8 if wide else 4)
    draw.plain_axis(axes.yaxis, words.amount, 6)
    axes.xaxis.grid(False)
    axes.set_xlabel("environment steps of the population")
    final = f"the elite's line ends at {words.figure(line[-1][1])}" if line else "no elite"
    label = f"Fitness of {run.slots} members over {words.thousands(end)} environment steps; {final}."
    return draw.svg(figure, f"fitness.{width}", label, titles if wide else None)


def _points(axes: Any, run: Run, low: float) -> dict[str, list[str]]:
    """Mark members: a dot each, an arrow for those below the axis, a cross for those that diverged."""
    groups: dict[str, list[tuple[float, float, str]]] = {"dots": [], "below": [], "diverged": []}
    for node in run.nodes.values():
        finite = math.isfinite(node.fitness)
        group = "diverged" if not finite else "dots" if node.fitness >= low else "below"
        at = node.fitness if group == "dots" else low
        groups[group].append((run.env_steps[node.key[0]], at, words.about(node)))
    looks: dict[str, dict[str, Any]] = {
        "dots": {"marker": "o", "markersize": 6 if run.slots <= 8 else 3.4, "markeredgewidth": 0, "alpha": 0.8},
        "below": {"marker": "v", "markersize": 5, "markeredgewidth": 0},
        "diverged": {"marker": "x", "markersize": 5, "markeredgewidth": 1.4},
    }
    for name, points in groups.items():
        if points:
            look = {"linestyle": "none", "color": PALETTE["member"], "gid": name, **looks[name]}
            axes.plot([p[0] for p in points], [p[1] for p in points], **look)
    return {name: [p[2] for p in points] for name, points in groups.items()}


def _label_ends(
    axes: Any,
    wide: bool,
    end: float,
    target: float | None,
    best: Sequence[tuple[float, float]],
    line: Sequence[tuple[float, float]],
) -> None:
    """Write the names of the target and of the elite's score beside the axes, apart from each other."""
    low, high = axes.get_ylim()
    least = 0.055 * (high - low)
    wanted = [(target, f"target {words.amount(target)}", "muted")] if target is not None else []
    if best:
        wanted.append((best[-1][1], f"elite {words.figure(best[-1][1])}", "elite"))
    wanted.sort(key=lambda entry: entry[0])
    if not wide:
        if target is not None:
            axes.text(
                0.015, target, f"target {words.amount(target)}", transform=axes.get_yaxis_transform(), va="bottom",
                color=PALETTE["muted"], fontsize=11, gid="halo-target",
            )  # fmt: skip
        return
    heights = [entry[0] for entry in wanted]
    if len(heights) == 2 and heights[1] - heights[0] < least:
        middle = sum(heights) / 2
        heights = [middle - least / 2, middle + least / 2]
    for (_, text, colour), at in zip(wanted, heights, strict=True):
        weight = "bold" if colour == "elite" else "normal"
        axes.annotate(
            text, (1, at), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points", va="center",
            color=PALETTE[colour], weight=weight,
        )  # fmt: skip


def _threads(run: Run, at: Any) -> tuple[list[float], list[float]]:
    """Return one broken line that joins every member with its parent: `at(node)` gives x and y."""
    pairs = {(*at(run.nodes[node.parent]), *at(node)): None for node in run.nodes.values() if node.parent is not None}
    seen = [pair for pair in pairs if all(map(math.isfinite, pair))]  # each once, though many members share it
    return [x for x0, _, x1, _ in seen for x in (x0, x1, NAN)], [y for _, y0, _, y1 in seen for y in (y0, y1, NAN)]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the range to show: all of it, but for values far below the rest."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if len(values) >= 8:
        cuts = quantiles(values, n=20)
        low = max(low, cuts[0] - SEEN * (cuts[-1] - cuts[0]))
    if high - low <= 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    return low, high


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [p[0] for p in points], [p[1] for p in points]


# --- lineage ----------------------------------------------------------------------------------------------------------


def lineage(run: Run, width: int) -> str:
    """Draw who descends from whom: a column a generation, a row a slot; wider than asked for where it must be."""
    generations = len(run.generations)
    left, right, top, bottom = 34, 18, 26, 44
    spread = max(1.0, generations - 1 + 2 * ROOM)
    column = min(280.0, max(18.0, (width - left - right) / spread))
    row = 18 if run.slots > 12 else 28 if run.slots > 6 else 46
    worded = column >= 150 and row >= 46
    below = 0.75 if worded else 0.5  # rows under the last one
    size = left + right + round(column * spread), top + bottom + row * (run.slots - 0.5 + below)
    figure, axes = draw.canvas(*size, (left, right, top, bottom))
    path = {node.key for node in run.descent}
    others = [node for node in run.nodes.values() if node.parent and node.key not in path]
    few = row > 18
    _edges(axes, others, {"edgecolor": PALETTE["member"], "linewidth": 1.2 if few else 1, "alpha": 0.8 if few else 0.4})
    line = [node for node in run.descent if node.parent]
    _edges(axes, line, {"edgecolor": PALETTE["elite"], "linewidth": 2.8, "zorder": 3})
    titles = _lineage_nodes(axes, run, path, few)
    if worded:
        _lineage_words(axes, run, path)
    numbers = [generation.number for generation in run.generations] or [1]
    axes.set(xlim=(numbers[0] - ROOM, numbers[0] - ROOM + spread), ylim=(run.slots - 1 + below, -0.5))
    every = 1 if column >= 26 else 5
    axes.set_xticks([n for n in numbers if n % every == 0 or n in (numbers[0], numbers[-1])])
    axes.set_yticks(range(0, run.slots, 1 if row > 18 or run.slots <= 20 else 5))
    axes.grid(False)
    axes.set_xlabel("generation")
    _head(axes, "slot", 34)
    label = (
        f"Family tree of {run.slots} slots over {generations} generations; the elite descends from "
        f"{', '.join(f'slot {node.key[1]} in generation {node.key[0]}' for node in run.descent[:1]) or 'nobody'}, "
        f"{sum(node.kind != 'none' for node in run.descent)} mutations led to it."
    )
    return draw.svg(figure, f"lineage.{width}", label, titles)


def _edges(axes: Any, nodes: Iterable[Node], look: Mapping[str, Any]) -> None:
    """Draw curves from parents to children, all in one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points: list[tuple[float, float]] = []
    for node in nodes:
        assert node.parent is not None
        (x0, y0), (x1, y1) = node.parent, node.key
        middle = (x0 + x1) / 2
        points += [(x0, y0), (middle, y0), (middle, y1), (x1, y1)]
    if points:
        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4] * (len(points) // 4)
        axes.add_patch(PathPatch(Path(points, codes), fill=False, clip_on=False, **look))


def _lineage_nodes(axes: Any, run: Run, path: set[Key], few: bool) -> dict[str, list[str]]:
    """Mark every member by how it was made: filled where it beat its parent, larger on the elite's line.

    Returns:
        the tooltips.
    """
    groups: dict[tuple[str, bool, bool], list[Node]] = {}
    for node in run.nodes.values():
        look = "diverged" if not math.isfinite(node.fitness) else "survived" if node.survived else hue(node.kind)
        better = node.gain > 0 or node.parent is None  # the first have nobody to beat
        groups.setdefault((look, better, node.key in path), []).append(node)
    titles = {}
    for (look, better, ancestor), nodes in sorted(groups.items()):
        name = f"{look}-{better}-{ancestor}"
        titles[name] = [words.about(node) for node in nodes]
        quiet = look in ("survived", "none")
        colour = PALETTE["elite" if ancestor and quiet else hue(look)]
        size = (7.5 if few else 5.4) * (1.45 if ancestor else 1.0) * (0.8 if quiet else 1.0)
        axes.plot(
            *_columns([node.key for node in nodes]),
            linestyle="none",
            gid=name,
            clip_on=False,
            zorder=4 if ancestor else 2,
            alpha=1.0 if ancestor or few else 0.6,
            marker="x" if look == "diverged" else MARKERS.get(look, "o"),
            markersize=size,
            markeredgewidth=1.5 if ancestor or few else 1.1,
            markeredgecolor=colour,
            markerfacecolor=colour if better or look == "diverged" else PALETTE["surface"],
        )
    return titles


def _lineage_words(axes: Any, run: Run, path: set[Key]) -> None:
    """Write beside each mark what changed and what that gained, where there is room for it."""
    for node in run.nodes.values():
        text = "" if node.survived or node.kind == "none" else words.shortened(node.change or words.kind(node.kind), 24)
        gain = words.signed(node.gain) if math.isfinite(node.gain) else ""
        for words_, dy, colour in ((text, -13, hue(node.kind)), (gain, -13 if not text else -26, "muted")):
            axes.annotate(
                words_, node.key, xytext=(0, dy), textcoords="offset points", ha="center", va="center", fontsize=10.5,
                color=PALETTE["elite" if node.key in path and colour == "muted" else colour], gid="halo-node",
            )  # fmt: skip


# --- mutations --------------------------------------------------------------------------------------------------------


def payoffs(run: Run) -> list[Payoff]:
    """Return what each kind of mutation brought, in the order of the kinds; survivors are no children."""
    children: dict[str, list[Node]] = {}
    for node in run.nodes.values():
        if node.parent is not None and not node.survived:
            children.setdefault(node.kind, []).append(node)
    order = [*HUES, *sorted(children.keys() - set(HUES))]
    return [
        Payoff(
            kind,
            len(nodes),
            tuple(sorted(n.gain for n in nodes if math.isfinite(n.gain))),
            sum(not math.isfinite(n.fitness) for n in nodes),
        )
        for kind in order
        if (nodes := children.get(kind))
    ]


def mutations(rows: Sequence[Payoff], width: int) -> str:
    """Draw the gains of each kind: a dot a child, the middle half as a bar, the median as a line."""
    wide = width > 600
    row = 58 if wide else 74
    figure, axes = draw.canvas(width, row * len(rows) + 52, (132 if wide else 10, 150 if wide else 10, 8, 44))
    gains = [gain for payoff in rows for gain in payoff.gains]
    low, high = _both_limits(gains)
    if wide:
        axes.axvline(0, color=PALETTE["ink"], linewidth=1)
    for place, payoff in enumerate(rows):
        _gain_row(axes, place, payoff, (low, high), wide)
    axes.set(xlim=(low, high), ylim=(len(rows) - 0.4, -0.6 if wide else -0.75))
    axes.set_yticks([])
    draw.plain_axis(axes.xaxis, words.amount, 8 if wide else 4)
    axes.set_xlabel("fitness of the child minus fitness of its parent")
    parts = [
        f"{words.kind(row.kind)}: {row.children} children, {words.share(row.improved)} improved, "
        f"median {words.signed(row.median)}"
        for row in rows
    ]
    return draw.svg(figure, f"mutations.{width}", f"Gain of children over their parents. {'; '.join(parts)}.")


def _gain_row(axes: Any, place: int, payoff: Payoff, limits: tuple[float, float], wide: bool) -> None:
    from matplotlib.patches import Rectangle

    low, high = limits
    colour = PALETTE[hue(payoff.kind)]
    if not wide:  # the words above a row stay clear of the line
        axes.plot([0, 0], [place - 0.34, place + 0.34], color=PALETTE["ink"], linewidth=1)
    seen = [min(max(gain, low), high) for gain in payoff.gains]
    size, dim = (4.6, 0.5) if payoff.children > 20 else (7, 0.8)
    heights = [place + 0.2 * _scatter(number) for number in range(len(seen))]
    axes.plot(
        seen, heights, linestyle="none", marker="o", markersize=size, markeredgewidth=0, alpha=dim, color=colour,
        clip_on=False,
    )  # fmt: skip
    if len(seen) >= 4:
        first, _, third = quantiles(seen, n=4, method="inclusive")
        axes.add_patch(Rectangle((first, place - 0.3), third - first, 0.6, color=colour, alpha=0.16, linewidth=0))
    if seen:
        middle = median(seen)
        axes.plot([middle, middle], [place - 0.3, place + 0.3], color=colour, linewidth=2.6)
    name, count = words.kind(payoff.kind), f"{payoff.children} {'child' if payoff.children == 1 else 'children'}"
    share = f"{words.share(payoff.improved)} improved"
    heading = PALETTE["muted"] if hue(payoff.kind) == "none" else colour
    if wide:
        _beside(axes, place, 0, -14, 7, "right", name, heading, "bold")
        _beside(axes, place, 0, -14, -8, "right", count, PALETTE["muted"])
        _beside(axes, place, 1, 14, 7, "left", share, PALETTE["ink"])
        _beside(axes, place, 1, 14, -8, "left", f"median {words.signed(payoff.median)}", PALETTE["muted"])
    else:
        _beside(axes, place - 0.52, 0, 0, 0, "left", name, heading, "bold")
        _beside(axes, place - 0.52, 1, 0, 0, "right", f"{count}, {share}", PALETTE["muted"])


def _beside(
    axes: Any, at: float, edge: int, dx: float, dy: float, side: str, text: str, colour: str, weight: str = "normal"
) -> None:
    """Write beside a row, at the left (0) or right (1) edge of the axes."""
    axes.annotate(
        text, (edge, at), xycoords=("axes fraction", "data"), xytext=(dx, dy), textcoords="offset points",
        ha=side, va="center", color=colour, weight=weight, fontsize=draw.FONT, annotation_clip=False, gid="halo-row",
    )  # fmt: skip


def _head(axes: Any, text: str, left: float = 52) -> None:
    """Write what the vertical axis shows above it, `left` pixels to the left of the axes."""
    axes.annotate(
        text, (0, 1), xycoords="axes fraction", xytext=(8 - left, 14), textcoords="offset points", va="center",
        color=PALETTE["muted"], fontsize=11.5, annotation_clip=False,
    )  # fmt: skip


def _both_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the range to show around 0, without what lies far out on either side."""
    low, _ = _limits([*values, 0.0])
    negated, _ = _limits([*(-value for value in values), 0.0])
    room = 0.03 * (-negated - low)
    return low - room, -negated + room


def _scatter(number: int) -> float:
    """Return the number-th of a sequence that fills [-1, 1] evenly: dots lie apart, without chance."""
    return 2 * math.modf(number * 0.6180339887498949)[0] - 1


# --- trajectories -----------------------------------------------------------------------------------------------------


def traits(run: Run) -> tuple[dict[str, dict[Key, float | str]], dict[str, float | str]]:
    """Return what varies between members or over time, by member, and what does not."""
    varying: dict[str, dict[Key, float | str]] = {}
    constant: dict[str, float | str] = {}
    columns: dict[str, dict[Key, float | str]] = {}
    for group in ("hyper", "traits"):
        for node in run.nodes.values():
            values: Mapping[str, float | str] = getattr(node, group)
            for name, value in values.items():
                columns.setdefault(name, {})[node.key] = value
    for name, column in columns.items():
        different = set(column.values())
        if len(different) > 1:
            varying[name] = column
        else:
            constant[name] = different.pop()
    return varying, constant


def trajectory(run: Run, name: str, column: Mapping[Key, float | str], number: int) -> str:
    """Draw one hyper-parameter or trait over generations; a dot's area says how many members have that value."""
    categories = sorted({value for value in column.values() if isinstance(value, str)})
    figure, axes = draw.canvas(SMALL, 200, (74 if categories else 48, 12, 12, 40))
    place: dict[float | str, float] = {category: float(i) for i, category in enumerate(categories)}
    at = {key: place.get(value, value if isinstance(value, float) else NAN) for key, value in column.items()}
    x, y = _threads(run, lambda node: (node.key[0], at.get(node.key, NAN)))
    axes.plot(x, y, color=PALETTE["member"], linewidth=0.9, alpha=0.4)
    largest = 8 if len(run.generations) <= 20 else 5
    counts = Counter((key[0], value) for key, value in at.items())
    for share, points in sorted(_by_count(counts, run.slots).items()):
        axes.plot(
            *_columns(points), linestyle="none", marker="o", color=PALETTE["member"], alpha=0.6, markeredgewidth=0,
            markersize=2 + largest * math.sqrt(share), clip_on=False,
        )  # fmt: skip
    line = [(float(node.key[0]), at[node.key]) for node in run.descent if node.key in at]
    look: dict[str, Any] = {"color": PALETTE["elite"], "clip_on": False, "zorder": 3}
    axes.plot(*_columns(line), linewidth=2.4, **look)
    axes.plot(*_columns(line[-1:]), marker="o", markersize=7, linestyle="none", **look)
    _trajectory_axes(axes, run, categories, [value for value in at.values() if math.isfinite(value)])
    now = column.get(run.descent[-1].key) if run.descent else None
    shown = "" if now is None else f"; the elite has {now if isinstance(now, str) else words.amount(now)}"
    return draw.svg(figure, f"trajectory.{number}", f"{name} of all members over generations{shown}.")


def _by_count(counts: Mapping[tuple[int, float], int], slots: int) -> dict[float, list[tuple[float, float]]]:
    """Group places by the share of members there, in few steps, so that few sizes of dots are needed."""
    groups: dict[float, list[tuple[float, float]]] = {}
    for place, count in sorted(counts.items()):
        share = math.ceil(8 * count / slots) / 8 if slots > 8 else count / slots
        groups.setdefault(share, []).append(place)
    return groups


def _trajectory_axes(axes: Any, run: Run, categories: Sequence[str], values: Sequence[float]) -> None:
    numbers = [generation.number for generation in run.generations] or [1]
    axes.set_xlim(numbers[0] - 0.4, numbers[-1] + 0.4)
    axes.set_xlabel("generation")
    axes.xaxis.grid(False)
    draw.plain_axis(axes.xaxis, words.amount, 6, whole=True)
    if categories:
        axes.set_ylim(-0.5, len(categories) - 0.5)
        axes.set_yticks(range(len(categories)), [name if len(name) < 10 else f"{name[:8]}…" for name in categories])
        return
    low, high = min(values), max(values)
    if low > 0 and high / low >= 8:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.25, high * 1.25)
    else:
        room = 0.1 * (high - low)
        axes.set_ylim(low - room, high + room)
    draw.plain_axis(axes.yaxis, words.amount, 5, whole=all(value == int(value) for value in values))


# --- held-out evaluation ----------------------------------------------------------------------------------------------


def evaluation(run: Run, width: int) -> str:
    """Draw held-out returns: a mark an episode, the mean with its 95 % interval; the elite first, then by mean."""
    wide = width > 600
    ranked = [run.elite, *sorted(run.members, key=lambda member: (-member.mean, member.name))]
    row = 30 if len(ranked) <= 12 else 22
    figure, axes = draw.canvas(width, row * len(ranked) + 60, (64 if wide else 56, 190 if wide else 56, 12, 44))
    returns = [value for member in ranked for value in member.returns]
    low, high = _limits(returns)
    target = run.summary.get("target")
    if target is not None and low <= target <= high + 0.3 * (high - low):
        high = max(high, target)
        axes.axvline(target, color=PALETTE["ink"], linewidth=1, dashes=(1, 3), dash_capstyle="round")
    for place, member in enumerate(ranked):
        colour = PALETTE["elite" if place == 0 else "member"]
        seen = [max(value, low) for value in member.returns]
        axes.plot(
            seen, [place] * len(seen), linestyle="none", marker="|", markersize=row * 0.5, markeredgewidth=1.1,
            color=colour, alpha=0.4,
        )  # fmt: skip
        bar = [max(end, low) for end in member.interval]
        axes.plot(bar, [place, place], color=PALETTE["ink"], linewidth=3.5 if place == 0 else 2.2)
        axes.plot(
            [max(member.mean, low)], [place], marker="o" if member.mean >= low else "<", color=colour,
            markersize=10 if place == 0 else 8, markeredgecolor=PALETTE["surface"], markeredgewidth=1.5, clip_on=False,
        )  # fmt: skip
        bold = "bold" if place == 0 else "normal"
        name = "elite" if place == 0 else member.name.replace("member_", "slot ")
        _beside(axes, place, 0, -12, 0, "right", name, PALETTE["elite" if place == 0 else "muted"], bold)
        ends = " to ".join(words.figure(end) for end in member.interval)
        score = f"{words.figure(member.mean)}   [{ends}]" if wide else words.figure(member.mean)
        _beside(axes, place, 1, 12, 0, "left", score, PALETTE["elite" if place == 0 else "muted"], bold)
    room = 0.02 * (high - low)
    axes.set(xlim=(low - room, high + room), ylim=(len(ranked) - 0.4, -0.6))
    axes.set_yticks([])
    draw.plain_axis(axes.xaxis, words.amount, 8 if wide else 4)
    axes.set_xlabel("return of a held-out episode")
    text = "; ".join(f"{member.name.replace('_', ' ')}: mean {words.figure(member.mean)}" for member in ranked)
    return draw.svg(figure, f"evaluation.{width}", f"Held-out returns, {len(run.elite.returns)} episodes each. {text}.")


# --- throughput -------------------------------------------------------------------------------------------------------


def throughput(run: Run, width: int) -> str:
    """Draw steps per second over wall-clock time: a block a generation, training below, evaluation on top."""
    wide = width > 600
    figure, axes = draw.canvas(width, 250 if wide else 220, (52, 16, 28, 44))
    _head(axes, "steps per second")
    rows = [row for row in run.timing if row.seconds > 0]
    total = sum(row.seconds for row in rows)
    unit, name = (3600.0, "hours") if total > 3 * 3600 else (60.0, "minutes") if total > 180 else (1.0, "seconds")
    edges = [0.0, *accumulate(row.seconds / unit for row in rows)]
    learned = [row.env_steps / row.seconds for row in rows]
    judged = [row.eval_steps / row.seconds for row in rows]
    whole = [a + b for a, b in zip(learned, judged, strict=True)]
    axes.stairs(learned, edges, fill=True, color=PALETTE["train"], linewidth=0)
    axes.stairs(whole, edges, baseline=learned, fill=True, color=PALETTE["evaluate"], linewidth=0)
    if len(rows) <= 100:
        for edge in edges[1:-1]:
            axes.axvline(edge, color=PALETTE["surface"], linewidth=1)
    axes.set(xlim=(0, edges[-1] or 1.0), ylim=(0, 1.08 * max(whole, default=1.0) or 1.0))
    draw.plain_axis(axes.xaxis, words.amount, 8 if wide else 4)
    draw.plain_axis(axes.yaxis, words.thousands, 5)
    axes.xaxis.grid(False)
    axes.set_xlabel(f"{name} of training")
    speed = sum(row.env_steps for row in rows) / total if total else NAN
    label = f"Environment steps per second over {words.duration(total)}; {words.thousands(speed)} a second on average."
    return draw.svg(figure, f"throughput.{width}", label)


def breaks(run: Run) -> list[int]:
    """Return generations whose time is not known."""
    known = {row.generation for row in run.timing}
    return [generation.number for generation in run.generations if generation.number not in known]
