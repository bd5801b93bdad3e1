"""Every word of the page and every mark of its figures, of two small runs whose numbers are round: as `whole/` has them.

`PYTHONPATH=src:tests python tests/unit/report/test_whole_page.py` writes those files anew. What changes there has to be
true of the runs below: look at each line before it is committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup, escape

import lineages
from evopipe.core.arch import Arch
from evopipe.mutations import NONE, Mutation
from evopipe.policies.play import Score
from evopipe.report import advice, draw, figures, page, read
from evopipe.report.draw import Plot
from evopipe.report.episodes import episodes_page
from evopipe.report.family import Family
from evopipe.report.lives import Key, lives_of
from evopipe.schema.blocks import NetworkConfig
from evopipe.searchers.history import Best, Born, Record, Scored

WHOLE = Path(__file__).parent / "whole"
SMALL = lineages.ARCH
LARGE = Arch.start(NetworkConfig(encoder=(8, 16), latent=8, activation="Tanh"), ())
WIDENED = Mutation("architecture", "encoder", [8], [8, 16])
FASTER = Mutation("rl_hp", "lr", 1e-3, 2e-3)
NOISE = Mutation("parameters", "noise")
BENT = Mutation("activation", "activation", "ReLU", "Tanh")
SWAPPED = Mutation("swap", "two layers of the encoder")


def scored(slot: int, id: int, fitness: float | None, arch: Arch = SMALL, lr: float = 1e-3) -> Scored:
    hyper = {"lr": lr, "batch_size": 32}
    return Scored(slot, id, None, id, arch, hyper, fitness is not None, float("-inf") if fitness is None else fitness)


def born(
    slot: int, id: int, of: int | None, by: Mutation = NONE, arch: Arch = SMALL, lr: float = 1e-3, why: str = ""
) -> Born:
    return Born(slot, id, of, of, arch, {"lr": lr, "batch_size": 32}, by, why)


LINEAGE = [
    Record(0, 0, (), None, tuple(born(slot, slot, None) for slot in range(3))),
    Record(1, 100, (scored(0, 0, 10.0), scored(1, 1, 20.0), scored(2, 2, None)), Best(1, 20.0),
           (born(0, 1, 1), born(1, 3, 1, WIDENED, LARGE), born(2, 4, 0, FASTER, lr=2e-3))),
    Record(2, 200, (scored(0, 1, 18.0), scored(1, 3, 30.0, LARGE), scored(2, 4, 11.0, lr=2e-3)), Best(3, 30.0),
           (born(0, 3, 1, arch=LARGE), born(1, 5, 1, NOISE, LARGE), born(2, 6, 0, BENT))),
    Record(3, 300, (scored(0, 3, 28.0, LARGE), scored(1, 5, 36.0, LARGE), scored(2, 6, 12.0)), Best(5, 36.0),
           (born(0, 5, 1, arch=LARGE), born(1, 7, 0, arch=LARGE), born(2, 8, 1, SWAPPED, LARGE))),
    Record(4, 400, (scored(0, 5, 37.0, LARGE), scored(1, 7, -400.0, LARGE), scored(2, 8, None, LARGE))),
]  # fmt: skip
"""The elite is 5: 1 came first, 3 of it, 5 of 3 and went on. 7 fell far; 2 and 8 diverged."""


def held(name: str, mean: float, interval: tuple[float, float], returns: dict[int, float], share: float) -> read._Held:
    """Episodes by seed, one step longer each; of the mean the agent `chaser` has a share, and `runner` the rest."""
    episodes = tuple(
        read._Episode(member=name, seed=seed, total=total, length=10 + i)
        for i, (seed, total) in enumerate(returns.items())
    )
    agents = {"runner": mean * (1 - share), "chaser": mean * share}
    return read._Held(name, mean, interval, episodes, agents, {"all": mean})


def alone(held: read._Held) -> read._Held:
    return replace(held, agents={}, groups={})


ELITE = held("elite", 33.0, (30.0, 35.5), {7: 30.0, 8: 31.0, 9: 38.0}, 0.75)
MEMBERS = (
    held("slot 0", 32.0, (28.0, 36.0), {7: 28.0, 8: 31.0, 9: 37.0}, 0.5),
    held("slot 1", -12.0, (-60.0, 20.0), {7: 20.0, 8: 4.0, 9: -60.0}, 0.25),
    held("slot 2", 34.0, (33.0, 35.0), {7: 33.0, 8: 34.0, 9: 35.0}, 1.0),
)
GENERATIONS = tuple(
    read._Generation(generation, steps, score)
    for generation, steps, score in ((1, 300, 20.0), (2, 600, 30.0), (3, 900, 35.0), (4, 1200, 36.5))
)
SIGNALS = {(g, slot): {"losses/approx_kl": 0.1 * g + 0.01 * slot} for g in range(1, 5) for slot in range(3)}
TEAM = read.FinishedRun(
    generations=GENERATIONS,
    nodes=read._nodes(LINEAGE),
    summary=read._Summary("max_steps", 4, read._Steps(1200, 7200), read._Champion(5, 4, 36.5, True), 40.0),
    policy={
        "algo": "ippo", "env": {"id": "chase_v1"}, "config": {"score": "sum"},
        "provenance": {"evopipe": "9.8.7", "git_revision": None, "fingerprint": {"cpu": "x", "torch": "2.1"}},
    },
    elite=ELITE,
    members=MEMBERS,
    timing=(read._Timing(1, 30.0, 300, 150), read._Timing(3, 0.0, 1, 1), read._Timing(4, 60.0, 300, 3000)),
    signals=SIGNALS,
    replays=read._Replays(
        read._Champion(5, 4, 36.5), 400,
        (read._Replayed(21, 20.0, (15.0, 25.0)), read._Replayed(22, None, None), read._Replayed(23, 28.0, (26.0, 29.0))),
        24.0, (20.0, 28.0), ("architecture",),
        (read._Change(0, {"lr": 1e-3, "batch_size": 32.0}), read._Change(200, {"lr": 5e-4})),
    ),
)  # fmt: skip
"""A team of two agents, a target that was not reached, replays, and other runs beside it."""

STEPS = {1: 100, 2: 200, 3: 300, 4: 500}
MEASURES: dict[str, dict[Key, float | str]] = {
    "reward": {(1, 0): 0.25, (2, 0): 0.5, (3, 1): 0.5, (4, 0): 0.75, (4, 1): 1.0},
    "kl": {(1, 0): 0.0005, (2, 0): 0.001, (3, 1): 0.002, (4, 0): 0.016, (4, 1): 0.004},
}
WAITED = read.FinishedRun(
    generations=tuple(read._Generation(g, steps, 9.0 if g > 2 else 7.0) for g, steps in STEPS.items()),
    nodes=read._nodes(lineages.WAITED),
    summary=read._Summary("target", 4, read._Steps(500, 40), read._Champion(2, 3, 9.0)),
    policy={"algo": "grpo", "env": {"id": "sums"}, "config": {}, "provenance": {"evopipe": "9.8.7"}},
    elite=alone(replace(ELITE, interval=(8.0, 8.5), mean=8.25)),
    members=tuple(map(alone, MEMBERS[:2])),
    timing=(),
    told=read._Told(
        MEASURES,
        (
            read._Completion("1+1=", read._Said("2", 1.0), read._Said("11", -0.5)),
            read._Completion("2+2=", read._Said("4"), read._Said("", None)),
        ),
        -3.25, (0.125, 0.875),
    ),
    lives=lives_of(lineages.WAITED, STEPS),
    replays=replace(TEAM.replays, mean=8.6, interval=(8.25, 9.0)),  # type: ignore[type-var]
)  # fmt: skip
"""Language models of which some waited; a child is the elite, and nothing was measured."""

GAMES = replace(
    WAITED,
    told=read._Told(
        {"loss": {(1, 0): 0.5, (2, 0): 0.25}},
        games=(
            read._Game(game=read._Turns(("ab", "cd"), ("yb", "gg")), total=-1.0, won=True),
            read._Game(game=read._Turns(("ba", "<<"), ("by", "")), total=-3.0, won=False),
        ),
        players={
            "elite": read._Player(-1.5, 0.75, 2.5), "random": read._Player(-6.0, 0.25, 4.5),
            "optimal": read._Player(-1.25, 1.0, 2.0),
        },
    ),
)  # fmt: skip
"""The same of games of words."""

SEATS = 21
MANY = replace(
    TEAM,
    generations=(read._Generation(1, 1000, 20.0), read._Generation(2, 2_500_000, 40.0)),
    nodes=read._nodes([
        Record(0, 0, (), None, tuple(born(slot, slot, None) for slot in range(SEATS))),
        Record(1, 10, tuple(scored(slot, slot, float(slot)) for slot in range(SEATS)), Best(20, 20.0),
               tuple(born(slot, SEATS + slot, SEATS - 1 - slot, FASTER, lr=2e-3) for slot in range(SEATS))),
        Record(2, 20, tuple(scored(slot, SEATS + slot, 2.0 * slot - 300.0 * (slot == 3), lr=2e-3 if slot else 3e-3)
                            for slot in range(SEATS))),
    ]),
    summary=replace(TEAM.summary, target=None, elite=read._Champion(41, 2, 40.0, True)),
    members=tuple(held(f"slot {slot}", slot - 90.0 * (slot == 2), (slot - 95.0, slot + 3.0), {7: slot - 200.0 * (slot == 2)}, 0.5)
                  for slot in range(12)),
    timing=(read._Timing(1, 7200.0, 36_000_000, 0), read._Timing(2, 3700.0, 0, 370)),
)  # fmt: skip
"""More than fit: the marks are smaller, and what lies far below the rest stands at the edge."""

LONG = replace(
    TEAM,
    generations=tuple(read._Generation(g, 10 * g, 1.0) for g in range(1, 22)),
    nodes=read._nodes([Record(0, 0, (), None, (born(0, 0, None),)),
                       *(Record(g, g, (scored(0, 0, 1.0),), None, (born(0, 0, 0),)) for g in range(1, 22))]),
    summary=replace(TEAM.summary, target=0.5, elite=read._Champion(0, 21, 1.0)),
)  # fmt: skip
"""One member that never changed."""


# --- words ------------------------------------------------------------------------------------------------------------


@contextmanager
def without_drawing() -> Iterator[None]:
    """A figure is its name, its width and its label."""

    def named(name: str, width: Any, label: Any) -> Markup:
        return Markup(f"[{name} {width}: {escape(' '.join(label.unescape().split()))}]")  # noqa: S704

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fitness", "lineage", "turns", "mutations", "evaluation", "replays", "throughput"):
            patch.setattr(figures, name, lambda run, width, label, name=name: named(name, width, label))
        patch.setattr(figures, "trajectory", lambda run, column, n, label: named(f"trajectory {column}", n, label))
        agents = figures.SECTIONS["agents"]._replace(draw=lambda run, width, label: named("agents", width, label))
        patch.setitem(figures.SECTIONS, "agents", agents)
        yield


def words_of(html: str) -> str:
    """What the page says, a line for each block; tables have a row on a line, and classes of numbers, keys and tiles."""
    body = html.partition("</style>")[2]
    body = re.sub(r"data:image/([^;]*);base64,([^\"]{0,8})[^\"]*", r"\1 \2", body)
    body = re.sub(r'<img src="([^"]*)"[^>]*alt="([^"]*)"[^>]*>', r"[image \1: \2]", body)
    body = re.sub(r'<source[^>]*srcset="([^"]*)"[^>]*>', r"[still \1]", body)
    body = re.sub(r'<svg[^>]*style="([^"]*)"[^>]*>', r"[\1] ", body)
    body = re.sub(r'<(?:path|rect|circle) ([^>]*)/>', r"[\1] ", body)
    body = re.sub(r'<a href="([^"]*)">', r"[\1] ", body)
    body = re.sub(r'<span class="tile (\w)">', r" \1:", body)
    body = re.sub(r'<(?:div|p)[^>]*class="(scroll|block long|wide|narrow|movie)"[^>]*>', r"\n[\1] ", body)
    body = re.sub(r'<t[hd][^>]*class="number"[^>]*>', " | # ", body)
    body = re.sub(r"<t[hd][^>]*>", " | ", body)
    body = re.sub(r"<dd[^>]*>", " = ", body).replace("<summary>", "\n(folded) ")
    body = re.sub(r"<(?:p|li|tr|h\d|div|section|figure|figcaption|caption|dl|details|footer|tbody)\b[^>]*>", "\n", body)
    body = re.sub(r"\n(?=\s*(?:\||#|=))", " ", re.sub(r"<[^>\n]*>", "", body))
    lines = (" ".join(unescape(line).split()) for line in re.sub(r"\n+(?! *\n)", "\n", body).split("\n"))
    return "\n".join(line for line in lines if line) + "\n"


MOVIE = page._Movie(b"moves", b"stands", 48, 32, Score(8, 31.0, 11), cut=False, seconds=2.0, speed=1.15)
PARAMS = {
    "seed": 3, "train": {"algo": "ippo", "target": 40.0, "normalise": {"rewards": False, "observations": True}}, "env": {"id": "chase_v1"},
    "search": {"fitness": "training"}, "algos": {"ippo": {"lr": 1e-3, "betas": [0.9, 0.999]}, "dqn": {"lr": 1.0}},
}  # fmt: skip
FAMILY = Family(
    ["", "who", "mean", "low", "high"], [["a", "this", "33", "30", "35.5"], ["b", "that", "1", "0", "2"]],
    ["another commit made that"], [("Both beside each other", b"<svg/>")],
)  # fmt: skip


def team_page() -> str:
    return page.compose(TEAM, PARAMS, MOVIE, FAMILY)


def waited_page() -> str:
    return page.compose(WAITED, {"algos": {"grpo": {}}}, "No film.")


def games_page() -> str:
    cut = replace(MOVIE, cut=True, speed=1.14)
    games = replace(GAMES, replays=replace(TEAM.replays, mean=None, interval=None, not_followed=()))  # type: ignore[type-var]
    return page.compose(games, {}, cut)


def said(reward: float, action: Any = None, done: bool = False, **out: Any) -> dict[str, Any]:
    return {"reward": reward, "action": action, "done": done, "model_output": out}


def piece(text: str, step: int, written: bool = True, **numbers: Any) -> dict[str, Any]:
    return {"text": text, "step": step, "written": written, **numbers}


ADD = {"function": {"name": "add", "arguments": '{"a": 1}'}}
EPISODES: dict[str, list[dict[str, Any]]] = {
    "Round 1": [
        {
            "id": "7:0", "slot": 2, "task": {"question": "1+1"}, "termination_reason": "env_done", "is_correct": True,
            "attempts": 3, "info": {},
            "trajectories": [
                {
                    "name": "solver", "reward": 1.0,
                    "steps": [said(0.25, completion_ids=[1, 2, 3], tool_calls=[ADD]),
                              said(0.75, "two", True, completion_ids=[4, 5])],
                    "rows": [[
                        piece("What is 1+1?", 0, False),
                        piece("ab", 0, tokens=["a", "b"], advantage=[0.5, -1.0], log_prob=[-1.0, -2.0],
                              new_log_prob=[-0.75, -3.0]),
                        piece("the tool's answer", 0, False),
                        piece("two", 1),
                    ]],
                },
                {"name": "judge", "reward": 1.0, "steps": [said(0.5, completion_ids=[6])]},
            ],
        },
        {
            "id": "7:1", "slot": 2, "task": "1+1", "termination_reason": "max_turns_exceeded", "is_correct": False, "info": {
                "error": {"error_type": "ValueError", "error_message": "no <number>"}, "close": "it hung"}, "counts": False,
            "trajectories": [{"name": "solver", "reward": -0.25, "steps": [said(-0.25, {"move": 3})], "rows": [[piece("x", 0)]]}],
        },
    ],
    "Elite": [
        {"id": "8:0", "task": "2+2", "termination_reason": "timeout", "is_correct": False, "info": {}, "trajectories": []},
        {"id": "9:0", "task": "3", "termination_reason": "env_done", "is_correct": False, "info": {},
         "trajectories": [{"name": "solver", "reward": 0.0, "steps": [said(0.0)], "rows": []}]},
        {"id": "9:1", "task": "3", "termination_reason": "env_done", "is_correct": True, "info": {},
         "trajectories": [{"name": "solver", "reward": 0.0, "steps": [said(0.0)], "rows": []}]},
    ],
}  # fmt: skip


def words_of_episodes() -> str:
    """Its text, with the styles and classes that say what a mark is worth."""
    html = episodes_page("run A", EPISODES)
    rules = [line.strip() for line in html.partition("</style>")[0].split("\n") if line.startswith(":root:has(#by-")]
    body = html.partition("</style>")[2]
    body = re.sub(r"<(?:b|i|span|details|div)( [^>]*)>", lambda tag: "\n" * ("<d" in tag[0]) + f"[{tag[1].strip()}]", body)
    body = re.sub(r' ?(?:tabindex|role|aria-label|aria-hidden)="[^"]*"', "", body)
    body = re.sub(r'<t[hd][^>]*class="number"[^>]*>', " | # ", re.sub(r'<a href="([^"]*)">', r"[\1] ", body))
    body = re.sub(r"<(?:p|li|tr|h\d|section|summary|dl|footer|tbody|label|legend|dt|nav|ol)\b[^>]*>", "\n", body)
    lines = (" ".join(unescape(line).split()) for line in re.sub(r"<[^>\n]*>", " ", body).split("\n"))
    return "\n".join([*rules, *(line for line in lines if line)]) + "\n"


# --- figures ----------------------------------------------------------------------------------------------------------

NAMES = {colour: name for name, colour in draw.PALETTE.items()}


def short(x: Any) -> str:
    return f"{float(x):.4g}".replace("nan", "–")


def pairs(points: Any) -> str:
    return " ".join(f"{short(x)},{short(y)}" for x, y in points)


def hue(colour: Any) -> str:
    from matplotlib.colors import to_hex

    return NAMES.get(str(to_hex(colour)), str(colour))


def described(plot: Plot) -> list[str]:
    """What the figure is made of, in the order in which it was drawn."""
    from matplotlib.patches import Rectangle, StepPatch

    axes, found = plot.axes, []
    x1, y1, x2, y2 = axes.get_position().extents
    size = plot.figure.get_size_inches() * 72
    found.append(f"== {plot.name}, {short(size[0])} by {short(size[1])}, axes {short(x1 * size[0])},{short(y1 * size[1])} "
                 f"to {short(x2 * size[0])},{short(y2 * size[1])}")  # fmt: skip
    for patch in axes.patches:
        look = f"{hue(patch.get_facecolor()) if patch.get_fill() else 'hollow ' + hue(patch.get_edgecolor())} " \
               f"alpha {patch.get_alpha()} width {short(patch.get_linewidth())} z {patch.get_zorder()}"  # fmt: skip
        if isinstance(patch, StepPatch):
            data = patch.get_data()
            base = " ".join(map(short, np.atleast_1d(data.baseline)))
            what = f"{' '.join(map(short, data.values))} over {' '.join(map(short, data.edges))} from {base}"
        elif isinstance(patch, Rectangle):
            what = f"{short(patch.get_x())},{short(patch.get_y())} by {short(patch.get_width())},{short(patch.get_height())}"
        else:
            what = pairs(patch.get_path().vertices)
        found.append(f"patch {look}: {what}")
    for line in axes.lines:
        marker = line.get_marker()
        look = f"{marker} {short(line.get_markersize())} edge {short(line.get_markeredgewidth())}" \
               f" in {hue(line.get_markerfacecolor())}" if marker != "None" else ""  # fmt: skip
        if line.get_linestyle() != "None":
            look += f" line {short(line.get_linewidth())} {line.get_linestyle()} {line.get_drawstyle()}"
        look += f" alpha {line.get_alpha()}" if line.get_alpha() is not None else ""
        look += "" if line.get_clip_on() else " unclipped"
        name = f" {line.get_gid()}" if line.get_gid() else ""
        found.append(f"{hue(line.get_color())}{name} {look.strip()} z {line.get_zorder()}: {pairs(line.get_xydata())}")
        for title in plot._titles.get(line.get_gid(), ())[:8]:
            found.append("  title " + " / ".join(title.split("\n")))
    for note in axes.texts:
        at = getattr(note, "xy", note.get_position())
        shift = pairs([note.xyann]) if hasattr(note, "xyann") else "–"
        found.append(f"note {note.get_text()!r} at {pairs([at])} shift {shift} {hue(note.get_color())} "
                     f"{note.get_ha()} {note.get_weight()} {short(note.get_fontsize())} {note.get_gid() or ''}".rstrip())  # fmt: skip
    for axis, limits, label in (("x", axes.get_xlim(), axes.get_xlabel()), ("y", axes.get_ylim(), axes.get_ylabel())):
        own = getattr(axes, f"{axis}axis")
        low, high = sorted(limits)
        ticks = zip(own.get_ticklocs(), own.get_majorticklabels(), strict=True)
        shown = " ".join(f"{short(at)}={text.get_text()}" for at, text in ticks if low <= at <= high)
        shown += " grid" * any(line.get_visible() for line in own.get_gridlines())
        found.append(f"{axis} {pairs([limits])} {own.get_scale()} {label!r} ticks {shown}")
    return found


FIGURES: list[tuple[Callable[..., Any], read.FinishedRun, tuple[Any, ...]]] = [
    *((figure, TEAM, (width,)) for width in (1000, 358)
      for figure in (figures.fitness, figures.mutations, figures.evaluation, figures.replays, figures.agents, figures.throughput)),
    (figures.lineage, TEAM, (1000,)),
    (figures.lineage, TEAM, (358,)),
    (figures.trajectory, TEAM, (TEAM.traits[0]["lr"], 0)),
    (figures.trajectory, TEAM, (TEAM.traits[0]["activation"], 1)),
    (figures.trajectory, WAITED, (MEASURES["kl"], 2)),
    (figures.turns, WAITED, (1000,)),
    (figures.turns, WAITED, (358,)),
    (figures.fitness, WAITED, (358,)),
    (figures.trajectory, TEAM, (TEAM.traits[0]["encoder units"], 3)),
    (figures.trajectory, MANY, (MANY.traits[0]["lr"], 4)),
    (figures.trajectory, LONG, (dict.fromkeys(LONG.nodes, 7.0), 5)),
    (figures.trajectory, LONG, ({(1, 0): "LayerNormed", (2, 0): "Tanh"}, 6)),
    (figures.fitness, MANY, (1000,)),
    (figures.mutations, MANY, (358,)),
    (figures.evaluation, MANY, (358,)),
    (figures.throughput, MANY, (358,)),
    (figures.lineage, MANY, (1000,)),
    (figures.lineage, LONG, (358,)),
    (figures.fitness, LONG, (1000,)),
    (figures.turns, MANY, (1000,)),
    (figures.fitness, replace(TEAM, nodes=dict(reversed(TEAM.nodes.items()))), (358,)),  # one that diverged is the first
    (figures.turns, replace(TEAM, nodes=dict(reversed(TEAM.nodes.items()))), (358,)),
]  # fmt: skip


def all_figures() -> str:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch, draw.style():
        patch.setattr(Plot, "svg", lambda plot, label: lines.extend(described(plot)))
        for figure, run, how in FIGURES:
            figure(run, *how, Markup(""))
    return "\n".join(lines) + "\n"


def _words(make: Callable[[], str]) -> str:
    with without_drawing():
        return words_of(make())


TEXTS: dict[str, Callable[[], str]] = {
    "team.txt": lambda: _words(team_page),
    "waited.txt": lambda: _words(waited_page),
    "games.txt": lambda: _words(games_page),
    "episodes.txt": words_of_episodes,
    "figures.txt": all_figures,
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_page_and_its_figures_are_what_they_were_when_someone_looked(name: str) -> None:
    assert TEXTS[name]().split("\n") == (WHOLE / name).read_text(encoding="utf-8").split("\n")


def test_a_figure_is_the_pages_own_svg() -> None:
    with draw.style():
        plot = Plot("fitness.7", 200, 100, (20, 30, 10, 40), "a $1$ head")
        plot.marks([(0.25, 0.5), (0.5, 1 / 3)], "elite", "o", 6, ["one <1>", "two"], gid="own")
        plot.marks([(0.75, 0.5)], "member", "o", 6)
        plot.beside(0.5, 1, (6, 0), "end", "muted")
        plot.axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        text = str(plot.svg(Markup(" Fitness &lt; 1 ")))
    root = ElementTree.fromstring(text)
    assert root.attrib == {"viewBox": "0 0 200 100", "width": "200", "height": "100", "role": "img",
                           "aria-label": "Fitness < 1", "class": "plot fitness"}  # fmt: skip
    marks = [(use.attrib["x"], use.attrib["y"], [title.text for title in use]) for use in root.iter("use")]
    assert marks == [("57.5", "35", ["one <1>"]), ("95", "43.3", ["two"]), ("132.5", "35", [])]
    styles = [use.attrib["style"] for use in root.iter("use")]
    assert [re.findall(r"fill:? ?var\(--(\w+)\)", style) for style in styles] == [["elite"], ["elite"], ["member"]]
    assert ["".join(each.itertext()) for each in root.iter("text")] == ["a $1$ head", "end"]
    (halo,) = [each for each in root.iter("g") if each.get("class") == "halo"]
    assert "".join(halo.itertext()) == "end"
    assert "font-family" not in text
    assert not re.search(r"#[0-9a-f]{6}|\d\.\d\d|xmlns|\n", re.sub(r'clip-path="[^"]*"|id="[^"]*"|href="[^"]*"|style="[^"]*"', "", text))
    used = {*re.findall(r"#([\w-]+)", text)}
    assert {each.attrib["id"] for each in root.iter() if "id" in each.attrib} == used


def test_the_rules_of_advice_are_told_what_the_run_says() -> None:
    facts = advice.facts_of(TEAM, PARAMS)
    assert (facts.algo, facts.solved, facts.training, facts.evaluation) == ("ippo", False, 1200, 7200)
    assert (facts.chosen, facts.interval, facts.members, facts.generations) == (36.5, (30.0, 35.5), 3, [1, 2, 3, 4])
    assert (facts.config, facts.train, facts.env) == (PARAMS["algos"]["ippo"], PARAMS["train"], PARAMS["env"])  # type: ignore[index]
    assert facts.signals == SIGNALS
    assert (facts.fitness[2, 1], facts.fitness[4, 1]) == (30.0, -400.0)
    assert facts.hyper[2, 2] == {"batch_size": 32.0, "lr": 2e-3, "encoder layers": 1.0, "encoder units": 8.0,
                                 "head layers": 0.0, "head units": 0.0, "latent units": 8.0}  # fmt: skip
    assert advice.facts_of(WAITED, {}).solved


if __name__ == "__main__":
    WHOLE.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        (WHOLE / name).write_text(text(), encoding="utf-8")
