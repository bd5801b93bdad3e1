"""The numbers of the report: all that is written or drawn is computed anew, by plain code, from the run's own files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

import lineages
from evopipe.report import draw, figures, read
from evopipe.report.draw import Plot
from evopipe.report.page import compose
from reports import write_run
from round_runs import TEAM

MEMBERS, GENERATIONS, EPISODES = 5, 9, 11
KINDS = {"none": "no mutation", "architecture": "architecture", "parameters": "parameters", "activation": "activation",
         "rl_hp": "hyper-parameter"}  # fmt: skip
SECONDS = {1: 30.0, 2: 70.5, 4: 0.0, 5: 200.25, 6: 11.0, 7: 95.0, 8: 31.0, 9: 44.5}
"""Of each generation: the third was not measured, the fourth took no time that a clock could tell."""

Key = tuple[int, int]


def said(value: float, signed: bool = False) -> str:
    """A score as the page writes it: four digits, and one behind the point where there is room."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.4g}" + ".0" * (re.fullmatch(r"-?\d{1,3}", f"{value:.4g}") is not None)
    return ("+" if signed and value > 0 else "") + text.replace("-", "−")


def rounded(value: float) -> str:
    """A setting as the page writes it, of those that this run has."""
    return f"{value:.4g}".replace("-", "−")


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


class Files:
    """What the run's files say, read by plain code."""

    def __init__(self, folder: Path) -> None:
        reports = folder / "reports"
        self.records = [json.loads(line) for line in (reports / "lineage.jsonl").read_text().splitlines()]
        self.curve, self.timing = table(reports / "fitness.csv"), table(reports / "timing.csv")
        self.train = json.loads((reports / "train.json").read_text())
        self.evaluation = json.loads((reports / "evaluation.json").read_text())
        self.members = json.loads((reports / "members.json").read_text())
        self.policy = json.loads((folder / "models/elite/policy.json").read_text())
        self.episodes: dict[str, list[dict[str, str]]] = {}
        for row in table(reports / "episodes.csv"):
            self.episodes.setdefault(row["member"], []).append(row)
        self.fitness: dict[Key, float] = {}
        self.ids: dict[Key, int] = {}
        self.parent: dict[Key, Key | None] = {}
        self.kind: dict[Key, str] = {}
        self.what: dict[Key, str] = {}
        for before, record in zip(self.records, self.records[1:], strict=False):
            born = {child["slot"]: child for child in before["children"]}
            for scored in record["members"]:
                key = record["generation"], scored["slot"]
                value = scored["fitness"]
                self.fitness[key] = math.nan if value is None or not scored["healthy"] else value
                self.ids[key], child = scored["id"], born[scored["slot"]]
                place = child["parent_slot"]
                self.parent[key] = None if place is None else (before["generation"], place)
                self.kind[key], self.what[key] = child["mutation"]["kind"], child["mutation"]["what"]

    def gain(self, key: Key) -> float:
        parent = self.parent[key]
        return math.nan if parent is None else self.fitness[key] - self.fitness[parent]

    def survived(self, key: Key) -> bool:
        parent = self.parent[key]
        return parent is not None and self.ids[parent] == self.ids[key]

    @property
    def line(self) -> list[Key]:
        """The elite and its ancestors, oldest first."""
        elite = self.train["elite"]
        key: Key | None = next(k for k, i in self.ids.items() if (k[0], i) == (elite["generation"], elite["id"]))
        found: list[Key] = []
        while key is not None:
            found.insert(0, key)
            key = self.parent[key]
        return found

    @property
    def steps(self) -> dict[int, int]:
        return {int(row["generation"]): int(row["env_steps"]) for row in self.curve}

    def gains(self, kind: str) -> tuple[int, list[float]]:
        """Children of a kind, and what those that were scored gained."""
        keys = [k for k in self.kind if self.kind[k] == kind and self.parent[k] is not None and not self.survived(k)]
        return len(keys), sorted(gain for gain in map(self.gain, keys) if math.isfinite(gain))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Members that diverge now and then, an elite that is none of the last generation, and unequal generations."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, MEMBERS, GENERATIONS, diverge=0.2, episodes=EPISODES, overrides={"seed": 4})
    rows = [f"{g},{seconds},{1000 * g + 7},{300 * g * g + 11}" for g, seconds in SECONDS.items()]
    (folder / "reports/timing.csv").write_text("generation,seconds,env_steps,eval_steps\n" + "\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> Files:
    return Files(folder)


@pytest.fixture(scope="module")
def page(folder: Path) -> tuple[str, dict[str, tuple[Plot, str]]]:
    """The page, and every figure of it by name, with its label."""
    found: dict[str, tuple[Plot, str]] = {}
    plain = Plot.svg

    def kept(plot: Plot, label: Any) -> Any:
        found[plot.name] = plot, " ".join(label.unescape().split())
        return plain(plot, label)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plot, "svg", kept)
        return compose(read.read(folder), {}, "No film."), found


@pytest.fixture(scope="module")
def drawn(page: tuple[str, dict[str, tuple[Plot, str]]]) -> dict[str, tuple[Plot, str]]:
    return page[1]


@pytest.fixture(scope="module")
def text(page: tuple[str, Any]) -> str:
    """The page's text, without its figures."""
    plain = re.sub(r"<[^>]*>", " ", re.sub(r"<svg.*?</svg>", " ", page[0].partition("</style>")[2], flags=re.DOTALL))
    return re.sub(r" ([.,;:])", r"\1", " ".join(unescape(plain).split()))


@pytest.fixture(scope="module")
def tables(page: tuple[str, Any]) -> dict[str, list[list[str]]]:
    """The cells of the page's tables by their titles, heads included."""
    found = {}
    pattern = r'<div class="table"[^>]*aria-label="([^"]*)"><table>(.*?)</table>'
    for title, body in re.findall(pattern, page[0], re.DOTALL):
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        found[unescape(title)] = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in rows]
    return found


def written(plot: Plot) -> list[str]:
    return [note.get_text() for note in plot.axes.texts]


def marked(plot: Plot, gid: str) -> list[tuple[float, float]]:
    (line,) = (line for line in plot.axes.lines if line.get_gid() == gid)
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def coloured(plot: Plot, colour: str) -> list[Any]:
    return [line for line in plot.axes.lines if line.get_color() == draw.PALETTE[colour]]


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def assert_ticks_are_true(axis: Any) -> None:
    """What stands at a tick is its place."""
    letters = {"k": 1e3, "M": 1e6}
    for place, label in zip(axis.get_ticklocs(), axis.get_majorticklabels(), strict=True):
        shown = label.get_text().replace("−", "-")
        number = float(shown.rstrip("kM")) * letters.get(shown[-1:], 1.0)
        assert number == pytest.approx(place, rel=0.005, abs=1e-9)


def test_the_run_has_what_can_go_wrong(files: Files) -> None:
    """Or the tests below would find nothing."""
    assert sum(map(math.isnan, files.fitness.values())) >= 3
    assert files.train["elite"]["generation"] < GENERATIONS
    assert files.line[0][1] != files.line[-1][1]
    assert any(files.survived(key) for key in files.line)
    assert len({files.kind[key] for key in files.kind}) >= 4
    assert len({json.dumps(member["arch"]) for member in files.records[-1]["members"]}) > 1
    assert len({row["seed"] for row in files.episodes["elite"]}) == EPISODES


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_head_says_what_the_files_say(files: Files, text: str) -> None:
    elite, line = files.evaluation["elite"], files.line
    low, high = map(said, elite["interval"])
    changes = sum(files.kind[key] != "none" and not files.survived(key) for key in line)
    diverged = sum(map(math.isnan, files.fitness.values()))
    assert (
        f"The elite came up in generation {files.train['elite']['generation']}, after {changes} mutations along its "
        f"line. {diverged} times a member diverged and was replaced. mean return of the elite, 95 % interval {low} to "
        f"{high}, {EPISODES} held-out episodes {said(elite['mean'])} training steps of {MEMBERS} members "
        f"{files.train['steps']['training'] / 1000:.4g}k generations {GENERATIONS} evaluation steps "
        f"{files.train['steps']['evaluation'] / 1000:.4g}k target score −100"
    ) in text


def test_the_population_went_from_its_first_mean_to_its_last(files: Files, text: str) -> None:
    first, last = (
        said(mean(value for key, value in files.fitness.items() if key[0] == generation and math.isfinite(value)))
        for generation in (1, GENERATIONS)
    )
    assert first != last
    assert f"The population's mean went from {first} in the first generation to {last} in the last." in text


def test_the_line_of_descent_names_each_ancestor_once(files: Files, text: str, tables: Any) -> None:
    own = [key for key in files.line if not files.survived(key)]
    made = sum(files.kind[key] != "none" for key in own)
    assert (
        f"The elite's line begins in slot {own[0][1]} of generation {own[0][0]}: {len(own)} members, {made} of them "
        "made by a mutation."
    ) in text
    head, *rows = tables["The elite's line of descent"]
    assert head == ["first seen", "who", "made by", "fitness", "over its parent", "network"]
    found = [[row[0], row[1], row[3], row[4]] for row in rows]
    assert found == [
        [str(key[0]), f"member {files.ids[key]}", said(files.fitness[key]), said(files.gain(key), signed=True)]
        for key in own
    ]
    assert rows[0][2] == "first generation"
    for row, key in zip(rows[1:], own[1:], strict=True):
        assert files.what[key] in row[2]
        assert files.kind[key] != "none" or row[2] == "no mutation"


def test_the_table_of_mutations_is_counted_anew(files: Files, tables: Any) -> None:
    head, *rows = tables["Gain over the parent by mutation"]
    assert head == ["mutation", "children", "improved", "median gain", "best", "worst", "diverged"]
    expected = []
    for kind, name in KINDS.items():
        children, gains = files.gains(kind)
        if children:
            improved = f"{100 * sum(gain > 0 for gain in gains) / children:.0f} %"
            ends = [said(x, signed=True) for x in (median(gains), gains[-1], gains[0])] if gains else ["–"] * 3
            expected.append([name, str(children), improved, *ends, str(children - len(gains))])
    assert rows == expected
    assert any(row[-1] != "0" for row in rows)


def test_the_table_of_held_out_returns_is_computed_from_the_episodes(files: Files, tables: Any, text: str) -> None:
    head, *rows = tables["Held-out returns"]
    assert head == ["who", "mean", "95 % interval", "worst", "best", "mean length"]
    names = ["elite", *(f"member_{slot}" for slot in range(MEMBERS))]
    intervals = {"elite": files.evaluation["elite"], **files.members}
    assert [row[0] for row in rows] == ["elite", *(f"slot {slot}" for slot in range(MEMBERS))]
    for row, name in zip(rows, names, strict=True):
        returns = [float(each["return"]) for each in files.episodes[name]]
        lengths = [int(each["length"]) for each in files.episodes[name]]
        low, high = intervals[name]["interval"]
        assert row[1:] == [
            said(mean(returns)), f"{said(low)} to {said(high)}", said(min(returns)), said(max(returns)),
            said(mean(lengths)),
        ]  # fmt: skip
    low, high = map(said, files.evaluation["elite"]["interval"])
    assert f"The elite's mean is {rows[0][1]}, 95 % interval {low} to {high}." in text


@pytest.mark.thorough
def test_the_throughput_is_of_the_seconds_that_were_measured(files: Files, text: str) -> None:
    rows = [row for row in files.timing if float(row["seconds"]) > 0]
    seconds = sum(float(row["seconds"]) for row in rows)
    trained, evaluated = (sum(int(row[name]) for row in rows) / seconds for name in ("env_steps", "eval_steps"))
    assert len(rows) == GENERATIONS - 2
    assert (
        f"{int(seconds) // 60} min {round(seconds) % 60:02d} s of training and evaluation: {trained:.4g} training and "
        f"{evaluated:.4g} evaluation steps a second. 1 generation was not measured and left out."
    ) in text


def test_settings_that_never_varied_are_listed_and_those_that_did_say_the_elites_course(
    files: Files, text: str
) -> None:
    values: dict[str, dict[Key, Any]] = {}
    for record in files.records[1:]:
        for scored in record["members"]:
            for name, value in scored["hyper"].items():
                values.setdefault(name, {})[record["generation"], scored["slot"]] = value
    varied = {name for name, column in values.items() if len(set(column.values())) > 1}
    assert {"lr", "batch_size", "learn_step"} & varied
    for name, column in values.items():
        if name in varied:
            ends = dict.fromkeys(rounded(column[files.line[place]]) for place in (0, -1))
            if all(0.01 <= abs(column[files.line[place]]) < 1000 for place in (0, -1)):
                assert f"{name.replace('_', ' ')} elite {' → '.join(ends)}" in text
        else:
            (value,) = set(column.values())
            assert re.search(rf"The same for all members, at all times.*\b{name.replace('_', ' ')} {value:.4g}\b", text)


def test_the_elites_line_is_walked_from_where_it_was_crowned(tmp_path: Path) -> None:
    """Also where it had been there before, under the same id."""
    write_run(tmp_path, MEMBERS, 8, diverge=0.2, episodes=3)
    files, run = Files(tmp_path), read.read(tmp_path)
    assert files.survived(files.line[-1])
    assert [node.key for node in run.descent] == files.line
    assert {key: node.fitness for key, node in run.nodes.items()} == pytest.approx(files.fitness, nan_ok=True)
    assert {key: node.parent for key, node in run.nodes.items()} == files.parent
    assert {key: node.survived for key, node in run.nodes.items()} == {key: files.survived(key) for key in files.ids}


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1000, 358])
def test_the_figure_of_fitness(width: int, files: Files, drawn: dict[str, tuple[Plot, str]]) -> None:
    plot, label = drawn[f"fitness.{width}"]
    steps, low = files.steps, min(value for value in files.fitness.values() if math.isfinite(value))
    scored = [(steps[key[0]], value) for key, value in files.fitness.items() if math.isfinite(value)]
    shown = marked(plot, "dots") + ([] if len(scored) == len(marked(plot, "dots")) else marked(plot, "below"))
    assert Counter(x for x, _ in shown) == Counter(x for x, _ in scored)
    assert sorted(marked(plot, "dots")) == sorted(scored)[-len(marked(plot, "dots")) :] or low < min(
        y for _, y in marked(plot, "dots")
    )
    assert set(marked(plot, "dots")) <= set(scored)
    gone = [steps[key[0]] for key, value in files.fitness.items() if math.isnan(value)]
    assert [x for x, _ in marked(plot, "diverged")] == gone
    best = [(int(row["env_steps"]), float(row["elite"])) for row in files.curve]
    line = [(steps[key[0]], files.fitness[key]) for key in files.line]
    dashed, own, end = coloured(plot, "elite")
    assert points(dashed) == best
    assert [x for x, _ in points(own)] == [x for x, _ in line]
    assert points(own)[-1] == points(end)[0] == line[-1]
    (target,) = coloured(plot, "ink")
    assert {y for _, y in points(target)} == {-100.0}
    notes = written(plot)
    assert "target −100" in notes
    if width == 1000:
        assert notes[0] == "mean return"
        assert f"elite {said(best[-1][1])}" in notes
        assert f"elite {said(best[0][1])}" not in notes
    joined = [tuple(pair) for pair in zip(*[iter(points(coloured(plot, "member")[0]))] * 3, strict=True)]
    expected = {
        ((steps[parent[0]], files.fitness[parent]), (steps[key[0]], files.fitness[key]))
        for key, parent in files.parent.items()
        if parent is not None and math.isfinite(files.gain(key))
    }
    assert {(x1, x2) for (x1, _), (x2, _), _ in joined} == {(one[0], two[0]) for one, two in expected}
    assert len(joined) == len(expected)
    assert plot.axes.get_xlabel() == "environment steps of the population"
    assert_ticks_are_true(plot.axes.xaxis)
    assert_ticks_are_true(plot.axes.yaxis)
    assert label == (
        f"Fitness of {MEMBERS} members over {files.train['steps']['training'] / 1000:.4g}k environment steps; the "
        f"elite's line ends at {said(files.fitness[files.line[-1]])}."
    )


def test_the_figure_of_the_lineage(files: Files, drawn: dict[str, tuple[Plot, str]]) -> None:
    plot, label = drawn["lineage.1000"]
    groups: dict[str, list[Key]] = {}
    for key in files.fitness:
        kept = "survived" if files.survived(key) else files.kind[key]
        look = "diverged" if math.isnan(files.fitness[key]) else kept
        better = files.gain(key) > 0 or files.parent[key] is None
        groups.setdefault(f"{look}-{better}-{key in files.line}", []).append(key)
    assert {gid: marked(plot, gid) for gid in groups} == groups
    filled = {line.get_gid(): line.get_markerfacecolor() for line in plot.axes.lines if line.get_gid() in groups}
    for gid, colour in filled.items():
        assert (colour == draw.PALETTE["surface"]) == ("-False-" in gid and not gid.startswith("diverged"))
    edges = [patch.get_path().vertices.reshape(-1, 4, 2) for patch in plot.axes.patches]
    joined = {(tuple(map(int, edge[0])), tuple(map(int, edge[3]))) for each in edges for edge in each}
    assert joined == {(parent, key) for key, parent in files.parent.items() if parent is not None}
    assert {tuple(map(int, edge[3])) for edge in edges[-1]} == set(files.line[1:])
    assert_ticks_are_true(plot.axes.xaxis)
    assert_ticks_are_true(plot.axes.yaxis)
    made = sum(files.kind[key] != "none" and not files.survived(key) for key in files.line)
    assert label == (
        f"Family tree of {MEMBERS} slots over {GENERATIONS} generations; the elite descends from slot "
        f"{files.line[0][1]} in generation 1, {made} mutations led to it."
    )


@pytest.mark.parametrize("width", [1000, 358])
def test_the_figure_of_mutations(width: int, files: Files, drawn: dict[str, tuple[Plot, str]]) -> None:
    plot, label = drawn[f"mutations.{width}"]
    kinds = [kind for kind in KINDS if files.gains(kind)[0]]
    low, high = plot.axes.get_xlim()
    told = []
    for place, kind in enumerate(kinds):
        children, gains = files.gains(kind)
        on_row = [line for line in plot.axes.lines if abs(np.mean(line.get_ydata()) - place) < 0.3]
        dots = [line for line in on_row if line.get_marker() == "o"]
        if gains:
            seen = sorted(float(x) for line in dots for x in line.get_xdata())
            clipped = [gain for gain in gains if low < gain < high]
            assert len(seen) == len(gains)
            assert set(clipped) <= set(seen)
            middle = [points(line) for line in on_row if line.get_linewidth() == 2.6]
            assert [x for x, _ in middle[0]] == [pytest.approx(median(gains))] * 2
        share = f"{100 * sum(gain > 0 for gain in gains) / children:.0f} % improved"
        count = f"{children} {'child' if children == 1 else 'children'}"
        notes = written(plot)
        assert KINDS[kind] in notes
        if width == 1000:
            assert {count, share, f"median {said(median(gains), signed=True)}" if gains else "median –"} <= {*notes}
        else:
            assert f"{count}, {share}" in notes
        shown = said(median(gains), signed=True) if gains else "–"
        told.append(f"{KINDS[kind]}: {count}, {share}, median {shown}")
    rows = [(4 * place, kind) for place, kind in enumerate(kinds)]
    if width == 1000:
        assert [written(plot)[at] for at, _ in rows] == [KINDS[kind] for _, kind in rows]
    bars = {round(patch.get_y() + 0.3): patch for patch in plot.axes.patches}
    for place, bar in bars.items():
        gains = [min(max(gain, low), high) for gain in files.gains(kinds[place])[1]]
        first, third = np.quantile(gains, [0.25, 0.75])
        assert bar.get_x() == pytest.approx(first, abs=0.1 * (high - low))
        if all(low < gain < high for gain in files.gains(kinds[place])[1]):
            assert (bar.get_x(), bar.get_x() + bar.get_width()) == (pytest.approx(first), pytest.approx(third))
    assert {place for place, kind in enumerate(kinds) if len(files.gains(kind)[1]) >= 4} == {*bars}
    assert_ticks_are_true(plot.axes.xaxis)
    assert label == f"Gain of children over their parents. {'; '.join(told)}."


def test_the_figures_of_what_varied(files: Files, drawn: dict[str, tuple[Plot, str]]) -> None:
    found = {label.partition(" of all members")[0]: plot for name, (plot, label) in drawn.items()
             if name.startswith("trajectory")}  # fmt: skip
    for name in ("lr", "batch_size", "learn_step"):
        if name.replace("_", " ") not in found:
            continue
        plot = found[name.replace("_", " ")]
        column = {(record["generation"], scored["slot"]): float(scored["hyper"][name])
                  for record in files.records[1:] for scored in record["members"]}  # fmt: skip
        dots = [line for line in coloured(plot, "member") if line.get_marker() == "o"]
        sizes = {point: line.get_markersize() for line in dots for point in points(line)}
        counts = Counter((float(generation), value) for (generation, _), value in column.items())
        assert {point: 2 + 8 * math.sqrt(count / MEMBERS) for point, count in counts.items()} == pytest.approx(sizes)
        line, end = coloured(plot, "elite")
        assert points(line) == [(key[0], column[key]) for key in files.line]
        assert points(end) == [(files.line[-1][0], column[files.line[-1]])]
        assert plot.axes.get_xlabel() == "generation"
    assert len(found) >= 3


@pytest.mark.parametrize("width", [1000, 358])
def test_the_figure_of_the_evaluation(width: int, files: Files, drawn: dict[str, tuple[Plot, str]]) -> None:
    plot, label = drawn[f"evaluation.{width}"]
    scores = {"elite": files.evaluation["elite"]}
    scores |= {name.replace("member_", "slot "): each for name, each in files.members.items()}
    means = {name: mean(float(row["return"]) for row in files.episodes[name.replace("slot ", "member_")])
             for name in scores}  # fmt: skip
    ranked = ["elite", *sorted(means.keys() - {"elite"}, key=lambda name: (-means[name], name))]
    low = plot.axes.get_xlim()[0]
    for place, name in enumerate(ranked):
        rows = [line for line in plot.axes.lines if {y for _, y in points(line)} == {place}]
        marks = next(line for line in rows if line.get_marker() == "|")
        returns = [float(row["return"]) for row in files.episodes[name.replace("slot ", "member_")]]
        assert [x for x, _ in points(marks)] == [pytest.approx(max(value, low), rel=0.05) for value in returns]
        bar = next(line for line in rows if line.get_color() == draw.PALETTE["ink"])
        assert [x for x, _ in points(bar)] == scores[name]["interval"]
        (dot,) = (line for line in rows if line.get_marker() == "o")
        assert points(dot) == [(pytest.approx(means[name]), place)]
    notes = written(plot)
    ends = {
        name: f"   [{' to '.join(map(said, scores[name]['interval']))}]" if width == 1000 else "" for name in scores
    }
    assert notes == [each for name in ranked for each in (name, said(means[name]) + ends[name])]
    assert_ticks_are_true(plot.axes.xaxis)
    order = ["elite", *(f"slot {slot}" for slot in range(MEMBERS))]
    told = "; ".join(f"{name}: mean {said(means[name])}" for name in order)
    assert label == f"Held-out returns, {EPISODES} episodes each. {told}."


@pytest.mark.parametrize("width", [1000, 358])
def test_the_figure_of_the_throughput(width: int, files: Files, drawn: dict[str, tuple[Plot, str]]) -> None:
    plot, label = drawn[f"throughput.{width}"]
    rows = [(float(row["seconds"]), int(row["env_steps"]), int(row["eval_steps"])) for row in files.timing]
    rows = [row for row in rows if row[0] > 0]
    seconds = sum(row[0] for row in rows)
    learned, whole = (patch.get_data() for patch in plot.axes.patches)
    assert learned.values == pytest.approx([trained / time for time, trained, _ in rows])
    assert whole.values == pytest.approx([(trained + judged) / time for time, trained, judged in rows])
    assert whole.baseline == pytest.approx(learned.values)
    assert learned.edges == pytest.approx(np.cumsum([0.0, *(row[0] / 60 for row in rows)]))
    assert plot.axes.get_xlabel() == "minutes of training"
    assert written(plot) == ["steps per second"]
    assert_ticks_are_true(plot.axes.xaxis)
    assert_ticks_are_true(plot.axes.yaxis)
    trained = sum(row[1] for row in rows) / seconds
    time = f"{int(seconds) // 60} min {round(seconds) % 60:02d} s"
    assert label == f"Environment steps per second over {time}; {trained:.4g} a second on average."


@pytest.mark.parametrize(
    ("seconds", "edges", "name"),
    [((60.0, 119.0), [0.0, 60.0, 179.0], "seconds"), ((60.0, 121.0), [0.0, 1.0, 181 / 60], "minutes"),
     ((3600.0, 7201.0), [0.0, 1.0, 10801 / 3600], "hours"), ((3600.0, 7199.0), [0.0, 60.0, 10799 / 60], "minutes")],
)  # fmt: skip
def test_the_time_of_a_run_has_the_unit_that_is_written(
    seconds: tuple[float, ...], edges: list[float], name: str, folder: Path
) -> None:
    run = read.read(folder)
    timed = tuple(replace(row, seconds=each) for row, each in zip(run.timing, seconds, strict=False))
    plots = []
    with pytest.MonkeyPatch.context() as patch, draw.style():
        patch.setattr(Plot, "svg", lambda plot, label: plots.append(plot))
        figures.throughput(replace(run, timing=timed), 1000, Markup(""))
    (plot,) = plots
    assert plot.axes.patches[0].get_data().edges == pytest.approx(edges)
    assert plot.axes.get_xlabel() == f"{name} of training"


def test_a_child_with_a_score_of_zero_gained_what_its_parent_lacked() -> None:
    lineage = [
        lineages.record(0, 0, children=[lineages.born(0, 0)]),
        lineages.record(1, 10, [(0, 0, -5.0)], [lineages.born(0, 1, of=0, parent=0, lr=2e-3)]),
        lineages.record(2, 20, [(0, 1, 0.0)]),
    ]
    nodes = read._nodes(lineage)
    assert math.isnan(nodes[1, 0].gain), "the first have no parent"
    assert nodes[2, 0].gain == 5.0


def test_only_who_diverged_is_counted_so_and_who_is_as_good_as_its_parent_beat_nobody(folder: Path) -> None:
    lineage = [
        lineages.record(0, 0, children=[lineages.born(0, 0), lineages.born(1, 1)]),
        lineages.record(1, 10, [(0, 0, None), (1, 1, 3.0)],
               [lineages.born(0, 2, of=0, parent=0, lr=2e-3), lineages.born(1, 3, of=1, parent=1, lr=3e-3)]),
        lineages.record(2, 20, [(0, 2, 5.0), (1, 3, 3.0)]),
    ]  # fmt: skip
    run = replace(read.read(folder), nodes=read._nodes(lineage))
    (one,) = run.payoffs
    assert (one.kind, one.children, one.gains, one.diverged, one.improved) == ("rl_hp", 2, (0.0,), 0, 0.0)
    plot = Plot("marks", 300, 200, (34, 18, 26, 44), "slot")
    figures._tree_marks(plot, run, set(), few=True)
    found = {str(line.get_gid()): line.get_xydata().tolist() for line in plot.axes.lines}
    assert found == {
        "diverged-True-False": [[1, 0]], "none-True-False": [[1, 1]], "rl_hp-False-False": [[2, 0], [2, 1]],
    }  # fmt: skip


def test_below_a_mark_stands_what_changed_else_the_kind_and_what_it_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below who survived or did not mutate but its gain; long words are cut."""
    said: dict[tuple[int, int], list[str]] = {}
    monkeypatch.setattr(Plot, "note", lambda plot, text, at, shift, *rest, **look: said.setdefault(at, []).append(text))
    monkeypatch.setattr(Plot, "svg", lambda plot, label: Markup(""))
    nodes = dict(TEAM.nodes)
    nodes[2, 1] = replace(nodes[2, 1], kind="parameters", change="", survived=False)
    nodes[2, 2] = replace(nodes[2, 2], kind="swap", change="", survived=False)
    nodes[2, 0] = replace(nodes[2, 0], kind="rl_hp", change="l" * 24, survived=False, gain=math.nan)
    nodes[3, 0] = replace(nodes[3, 0], kind="rl_hp", change="l" * 25, survived=False)
    nodes[3, 1] = replace(nodes[3, 1], kind="rl_hp", change="lr", survived=True, gain=2.0)
    nodes[3, 2] = replace(nodes[3, 2], kind="none", change="lr", survived=False, gain=-1.0)
    figures.lineage(replace(TEAM, nodes=nodes), 1000, Markup(""))
    told = {key: [text for text in texts if text] for key, texts in said.items()}
    assert told[2, 1][0] == "parameters"
    assert told[2, 2][0] == "swap"
    assert told[2, 0] == ["l" * 24]
    assert told[3, 0][0] == "l" * 23 + "…"
    assert (told[3, 1], told[3, 2]) == (["+2.0"], ["−1.0"])


def test_figures_have_the_reports_style_whatever_a_users_settings_are() -> None:
    import matplotlib

    with matplotlib.rc_context({"lines.linewidth": 17.0, "axes.grid": True, "font.size": 3.0}):
        with draw.style():
            inside = dict(matplotlib.rcParams)
        assert [matplotlib.rcParams[key] for key in ("lines.linewidth", "axes.grid", "font.size")] == [17.0, True, 3.0]
    with draw.style():
        assert {key: value for key, value in matplotlib.rcParams.items() if inside[key] != value} == {}
    assert (inside["font.size"], inside["lines.linewidth"]) == (12.0, matplotlib.rcParamsDefault["lines.linewidth"])
