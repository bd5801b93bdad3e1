"""Every word of the page and every mark of its figures, of the runs of `round_runs.py`: as `whole/` has them.

`PYTHONPATH=src:tests python tests/unit/report/test_whole_page.py` writes those files anew. What changes there has to be
true of those runs: look at each line before it is committed.
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

from evopipe.policies.play import Score
from evopipe.report import advice, draw, figures, page, read
from evopipe.report.draw import Plot
from evopipe.report.episodes import episodes_page
from evopipe.report.family import Family
from evopipe.report.read import _traits
from round_runs import EPISODES, GAMES, LONG, MANY, MEASURES, SIGNALS, TEAM, WAITED

WHOLE = Path(__file__).parent / "whole"
# --- words ------------------------------------------------------------------------------------------------------------


@contextmanager
def without_drawing() -> Iterator[None]:
    """A figure is its name, its width and its label."""

    def named(name: str, width: Any, label: Any) -> Markup:
        return Markup(f"[{name} {width}: {escape(' '.join(label.unescape().split()))}]")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fitness", "lineage", "turns", "mutations", "evaluation", "replays", "throughput"):
            patch.setattr(figures, name, lambda run, width, label, name=name: named(name, width, label))
        patch.setattr(figures, "trajectory", lambda run, column, n, label: named(f"trajectory {column}", n, label))
        agents = figures.SECTIONS["agents"]._replace(draw=lambda run, width, label: named("agents", width, label))
        patch.setitem(figures.SECTIONS, "agents", agents)
        yield


def words_of(html: str) -> str:
    """What the page says, a line for each block; with the classes of numbers, keys and tiles."""
    body = html.partition("</style>")[2]
    body = re.sub(r"data:image/([^;]*);base64,([^\"]{0,8})[^\"]*", r"\1 \2", body)
    body = re.sub(r'<img src="([^"]*)"[^>]*alt="([^"]*)"[^>]*>', r"[image \1: \2]", body)
    body = re.sub(r'<source[^>]*srcset="([^"]*)"[^>]*>', r"[still \1]", body)
    body = re.sub(r'<svg[^>]*style="([^"]*)"[^>]*>', r"[\1] ", body)
    body = re.sub(r"<(?:path|rect|circle) ([^>]*)/>", r"[\1] ", body)
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
    "seed": 3, "train": {"algo": "ippo", "target": 40.0, "normalise": {"rewards": False, "observations": True}},
    "env": {"id": "chase_v1"},
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


def words_of_episodes() -> str:
    """Its text, with the styles and classes that say what a mark is worth."""
    html = episodes_page("run A", EPISODES)
    rules = [line.strip() for line in html.partition("</style>")[0].split("\n") if line.startswith(":root:has(#by-")]
    body = html.partition("</style>")[2]
    body = re.sub(
        r"<(?:b|i|span|details|div)( [^>]*)>", lambda tag: "\n" * ("<d" in tag[0]) + f"[{tag[1].strip()}]", body
    )
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
    wide, high = plot.figure.get_size_inches() * 72
    box = pairs([(x1 * wide, y1 * high), (x2 * wide, y2 * high)])
    found.append(f"== {plot.name}, {short(wide)} by {short(high)}, axes {box.replace(' ', ' to ')}")
    for patch in axes.patches:
        look = f"{hue(patch.get_facecolor()) if patch.get_fill() else 'hollow ' + hue(patch.get_edgecolor())} " \
               f"alpha {patch.get_alpha()} width {short(patch.get_linewidth())} z {patch.get_zorder()}"  # fmt: skip
        if isinstance(patch, StepPatch):
            data = patch.get_data()
            base = " ".join(map(short, np.atleast_1d(data.baseline)))
            what = f"{' '.join(map(short, data.values))} over {' '.join(map(short, data.edges))} from {base}"
        elif isinstance(patch, Rectangle):
            at, size = (patch.get_x(), patch.get_y()), (patch.get_width(), patch.get_height())
            what = f"{pairs([at])} by {pairs([size])}"
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
        titles = plot._titles.get(str(line.get_gid()), ())[:8]
        found += ["  title " + title.replace("\n", " / ") for title in titles]
    for note in axes.texts:
        at = getattr(note, "xy", note.get_position())
        shift = pairs([note.xyann]) if hasattr(note, "xyann") else "–"
        look = f"{note.get_ha()} {note.get_weight()} {short(note.get_fontsize())} {note.get_gid() or ''}".rstrip()
        found.append(f"note {note.get_text()!r} at {pairs([at])} shift {shift} {hue(note.get_color())} {look}")
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
      for figure in (figures.fitness, figures.mutations, figures.evaluation, figures.replays, figures.agents,
      figures.throughput)),
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
    (figures.fitness, replace(TEAM, nodes=dict(reversed(TEAM.nodes.items()))), (358,)),
    # one that diverged is the first
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
@pytest.mark.thorough
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
    assert not re.search(
        r"#[0-9a-f]{6}|\d\.\d\d|xmlns|\n", re.sub(r'clip-path="[^"]*"|id="[^"]*"|href="[^"]*"|style="[^"]*"', "", text)
    )
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


def test_an_architecture_is_told_by_its_layers_and_all_of_their_units() -> None:
    arch = {"encoder": [[16], [32]], "head": [], "latent": 8, "activation": "ELU", "layer_norm": True}
    assert dict(_traits(arch)) == {
        "encoder layers": 2.0, "encoder units": 48.0, "head layers": 0.0, "head units": 0.0, "latent units": 8.0,
        "activation": "ELU", "layer norm": "yes",
    }  # fmt: skip


if __name__ == "__main__":
    WHOLE.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        (WHOLE / name).write_text(text(), encoding="utf-8")
