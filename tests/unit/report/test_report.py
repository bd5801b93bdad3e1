"""The report: what it says, what it draws of odd runs, and that it depends on nothing but its files."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image

import rendering_envs  # noqa: F401  # registers them
from evopipe.errors import DataError, MissingInputError
from evopipe.layout import OUTS, SIGNALS, WRITER
from evopipe.params.load import parse_params
from evopipe.policies.film import FilmFrames
from evopipe.policies.play import Score
from evopipe.report import draw, figures, read, words
from evopipe.report.page import BUDGET, FRAMES, WIDTH, _Movie, compose, page, without_measured
from evopipe.report.read import FinishedRun, Node
from evopipe.run.outs import TIMING, write_timing
from evopipe.stages import report
from evopipe.track.events import End, Generation, JsonlSink, Progress, Start
from reports import write_run
from tiny import environment

SECTIONS = ["next", "fitness", "lineage", "mutations", "trajectories", "evaluation", "throughput", "provenance"]
NO_MOVIE = "No film."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4 members and 8 generations, with a member that diverges now and then."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, members=4, generations=8, diverge=0.1, episodes=12)
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> str:
    """Its page without parameters and film."""
    return compose(read.read(folder), {}, NO_MOVIE)


@pytest.fixture(scope="module")
def filmed(folder: Path) -> str:
    """Its page with a film."""
    return page(folder, {"evaluate": {"steps": 40}})


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


class Document(HTMLParser):
    """What a page consists of; refuses tags that do not nest."""

    VOID = frozenset({"meta", "link", "img", "source", "wbr", "br"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def plots(self) -> list[dict[str, str | None]]:
        return [svg for svg in self.all("svg") if (svg.get("class") or "").startswith("plot ")]


def document(folder: Path) -> Document:
    return Document(compose(read.read(folder), {}, NO_MOVIE))


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_section_has_its_figures(plain: str) -> None:
    found = Document(plain)
    assert [section["id"] for section in found.all("section")] == SECTIONS
    kinds = [(plot["class"] or "").split()[1] for plot in found.plots]
    for kind in ("fitness", "lineage", "mutations", "evaluation", "throughput"):
        assert kinds.count(kind) == 2, "one for a desk, one for a phone"
    assert kinds.count("trajectory") >= 3
    assert all(plot["role"] == "img" and len(plot["aria-label"] or "") > 20 for plot in found.plots)
    assert len(found.all("figure")) == len(found.all("figcaption"))
    assert len(found.all("h1")) == 1
    assert found.all("html")[0]["lang"] == "en"


def test_it_loads_nothing_and_runs_nothing(filmed: str) -> None:
    found = Document(filmed)
    assert not {"script", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in found.tags}
    assert "://" not in filmed
    assert "@import" not in filmed
    for tag, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "srcset", "href", "xlink:href", "poster", "data"):
            assert re.match(r"(data:|#|$)", attributes.get(name) or ""), (tag, name)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", filmed))


def test_ids_are_unique_and_every_reference_has_its_target(plain: str) -> None:
    found = Document(plain)
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r"url\(#([^)]*)\)", plain))
    wanted |= {(a.get("href") or "")[1:] for _, a in found.tags if (a.get("href") or "").startswith("#")}
    wanted |= {a["aria-labelledby"] for _, a in found.tags if "aria-labelledby" in a}
    assert wanted <= set(ids)


def test_all_colours_are_the_pages_own(plain: str) -> None:
    """So that light and dark serve every plot, and both define every colour."""
    style, body = plain.split("</style>")
    assert not re.search(r"#[0-9a-fA-F]{6}\b|rgb\(", body)
    assert set(re.findall(r"var\(--(\w+)\)", body)) <= set(draw.PALETTE)
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for name in draw.PALETTE:
        assert f"--{name}: #" in light
        assert f"--{name}: #" in dark.partition("* {")[0]
    assert draw.PALETTE["elite"] == "#cf4a1f"


def test_a_name_with_dollars_is_no_formula() -> None:
    with draw.style():
        plot = draw.Plot("some.600", 600, 200, (50, 10, 10, 40))
        plot.note(r"cost $\no_such$", (0, 0), (0, 0), "ink")
        assert r">cost $\no_such$</text>" in plot.svg(Markup("A name"))


def test_a_colour_of_no_palette_is_refused() -> None:
    with draw.style():
        plot = draw.Plot("odd", 100, 100, (10, 10, 10, 10))
        plot.axes.plot([0, 1], [0, 1], color="#123456")
        with pytest.raises(KeyError):
            plot.svg(Markup("odd"))


def test_the_headline_is_the_evaluation(folder: Path, plain: str) -> None:
    text = Document(plain).text
    elite = json.loads((folder / "reports/evaluation.json").read_text())["elite"]
    low, high = (words.figure(end) for end in elite["interval"])
    assert f"<dd>{words.figure(elite['mean'])}</dd>" in plain
    assert f"95 % interval {low} to {high}, 12 held-out episodes" in text
    assert "Training ended because all steps had been taken." in text
    assert "160k" in text  # 4 members · 8 generations · 5000 steps


@pytest.mark.thorough
def test_what_comes_from_data_is_escaped(copy: Path) -> None:
    """A hyper-parameter, a mutation and a version that are markup stay text."""
    evil = "</title><script>alert('x')</script><b onclick=\"y\">&amp;"
    path = copy / "reports/lineage.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for child in record["children"]:
            child["mutation"]["what"], child["mutation"]["before"], child["mutation"]["after"] = evil, evil, evil
        for number, member in enumerate(record["members"]):
            member["hyper"][evil] = float(number)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read.read(copy)
    about = json.loads(json.dumps(run.policy))
    about["provenance"]["evopipe"] = about["env"]["id"] = evil
    text = compose(replace(run, policy=about), {"env": {"id": evil, evil: [evil]}}, evil)
    found = Document(text)
    assert evil in found.text
    assert "script" not in {tag for tag, _ in found.tags}
    assert not [a for _, a in found.tags if "onclick" in a]
    assert "<script" not in text


def test_where_data_comes_from_is_shown_where_a_run_reads_any() -> None:
    """Of a run that reads none it would say what was not done."""
    for warm, expected in ((0, None), (10, {"source", "collect"})):
        shown = report._shown(parse_params({"train": {"warm_start": warm}}))
        assert (set(shown["fetch"]) if "fetch" in shown else None) == expected
        assert set(shown["algos"]) == {"dqn"}


@pytest.mark.thorough
def test_the_parameters_are_shown(folder: Path) -> None:
    params = write_run(folder / "again", members=1, generations=1, episodes=3)
    shown = report._shown(params)
    text = Document(compose(read.read(folder), shown, NO_MOVIE)).text
    for words_ in (
        "evo_steps400",
        "mutation.activationsReLU, ELU, GELU",
        "network.encoder16",
        "warm_start0",
        "git_revision",
    ):
        assert words_ in text
    assert "checkpoint_seconds" not in text  # what no stage tracks must not be on the page
    assert "fetch" not in shown  # no dataset was used


def test_another_runs_files_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"written for env 'Acrobot-v1', params.yaml says 'CartPole-v1'; run `evopipe"):
        page(folder, {"env": {"id": "CartPole-v1"}})


# --- the same bytes ---------------------------------------------------------------------------------------------------

_PAGE = "import sys, evopipe.report.page as h; sys.stdout.write(h.page(sys.argv[1], {'evaluate': {'steps': 40}}))"


@pytest.mark.thorough
def test_equal_files_give_equal_bytes(folder: Path, filmed: str) -> None:
    """In another process, with other hashes, in another folder, with the user's own matplotlib settings."""
    matplotlibrc = folder.parent / "matplotlibrc"
    matplotlibrc.write_text("lines.linewidth: 9\nfont.size: 30\nsvg.fonttype: path\n")
    more = environment(PYTHONHASHSEED="7", MATPLOTLIBRC=str(matplotlibrc), TZ="Asia/Tokyo", OMP_NUM_THREADS="1")
    there = subprocess.run(
        [sys.executable, "-c", _PAGE, str(folder)], env=more, cwd=folder.parent, capture_output=True, check=True
    )
    assert there.stdout.decode() == filmed


@pytest.mark.thorough
def test_only_the_measured_part_knows_the_clock(folder: Path, plain: str) -> None:
    run = read.read(folder)
    slower = tuple(replace(row, seconds=3 * row.seconds) for row in run.timing[1:])
    for timing in (slower, ()):
        other = compose(replace(run, timing=timing), {}, NO_MOVIE)
        assert other != plain
        assert without_measured(other) == without_measured(plain)
    assert 'class="plot throughput"' in plain
    assert 'class="plot throughput"' not in without_measured(plain)
    assert without_measured(plain).count("<section") == len(SECTIONS)


# --- odd runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "generations", "diverge"), [(1, 1, 0.0), (1, 4, 0.0), (3, 1, 0.0), (20, 2, 0.9)])
@pytest.mark.thorough
def test_small_and_sick_runs_are_drawn(tmp_path: Path, members: int, generations: int, diverge: float) -> None:
    write_run(tmp_path, members, generations, diverge, episodes=2)
    found = document(tmp_path)
    kinds = {(plot["class"] or "").split()[1] for plot in found.plots}
    assert {"fitness", "lineage", "evaluation", "throughput"} <= kinds
    assert ("mutations" in kinds) == (members * generations > 4)
    assert not re.search(r"\b(nan|inf)\b", found.text)


def records(folder: Path, change: Callable[[list[Any]], None]) -> None:
    """Change the lineage."""
    path = folder / "reports/lineage.jsonl"
    content = [json.loads(line) for line in path.read_text().splitlines()]
    change(content)
    path.write_text("".join(json.dumps(record) + "\n" for record in content))


@pytest.mark.thorough
def test_a_generation_that_all_diverged_in(copy: Path) -> None:
    """Nobody had a child, and the last healthy generation came back under its own ids."""

    def sick(content: list[Any]) -> None:
        for member in content[4]["members"]:
            member |= {"fitness": None, "healthy": False}
        content[4] |= {"children": [], "restored": True}
        for member, back in zip(content[5]["members"], content[3]["members"], strict=True):
            member |= {"id": back["id"], "parent": back["parent"]}

    records(copy, sick)
    run = read.read(copy)
    back = run.nodes[5, 1]
    assert back.parent is not None
    assert back.parent[0] in (3, 4)
    assert run.nodes[back.parent].id == back.id
    assert back.survived
    assert all(math.isnan(node.fitness) for node in run.nodes.values() if node.key[0] == 4)
    assert "diverged" in document(copy).text


@pytest.mark.thorough
def test_no_target_and_extreme_scores(copy: Path) -> None:
    def extreme(content: list[Any]) -> None:
        content[2]["members"][1]["fitness"] = -1e12
        content[3]["members"][2]["fitness"] = 1e9

    records(copy, extreme)
    summary = json.loads((copy / "reports/train.json").read_text())
    del summary["target"]
    summary["elite"]["confirmed"] = False
    (copy / "reports/train.json").write_text(json.dumps(summary))
    text = document(copy).text
    assert "target scorenone" in text
    assert "luck may be part of it" in text


@pytest.mark.thorough
def test_a_fitness_curve_with_gaps(copy: Path) -> None:
    path = copy / "reports/fitness.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    rows[0] |= {"best": "", "mean": "", "elite": ""}
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    assert document(copy).plots


@pytest.mark.parametrize(
    "path",
    [out for name in ("train", "evaluate", "export") for out in OUTS[name] if out not in (SIGNALS, OUTS["train"][0])],
)
def test_a_missing_file_names_its_stage(copy: Path, path: Path) -> None:
    shutil.rmtree(copy / path) if (copy / path).is_dir() else (copy / path).unlink()
    with pytest.raises(MissingInputError, match=rf"{path}: not there; run `evopipe {WRITER[path]}` or `dvc repro"):
        page(copy, {})


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("reports/train.json", "[1]"),
        ("reports/train.json", '{"elite": 3}'),
        ("reports/lineage.jsonl", '{"generation": 0, "children": 7}\n{"generation": 1, "members": [{}]}\n'),
        ("reports/lineage.jsonl", "{\n"),
        ("reports/fitness.csv", "generation,env_steps\nx,y\n"),
        ("reports/timing.csv", "generation,seconds,env_steps,eval_steps\n1,fast,3,4\n"),
        ("reports/members.json", '{"member_0": {}}'),
        ("reports/episodes.csv", "member,seed,return,length\nnobody,1,2.0,3\n"),
        ("reports/evaluation.json", "{}"),
        ("models/elite/policy.json", "{}"),
    ],
)
def test_a_damaged_file_is_named(copy: Path, path: str, content: str) -> None:
    (copy / path).write_text(content)
    with pytest.raises(DataError, match=re.escape(str(copy / path))):
        page(copy, {})


# --- numbers ----------------------------------------------------------------------------------------------------------


def node(key: tuple[int, int], number: int, parent: tuple[int, int] | None, fitness: float, kind: str = "none") -> Node:
    return Node(key, number, parent, fitness, math.nan, kind, "", False, "8 ReLU", {"lr": 1e-3, "latent units": 8.0})


def run_of(folder: Path, nodes: list[Node]) -> FinishedRun:
    """A run with these members."""
    by_key = {n.key: n for n in nodes}
    whole = {
        k: replace(
            n,
            gain=n.fitness - by_key[n.parent].fitness if n.parent else math.nan,
            survived=n.parent is not None and by_key[n.parent].id == n.id,
        )
        for k, n in by_key.items()
    }
    return replace(read.read(folder), nodes=whole)


def test_what_mutations_paid(folder: Path) -> None:
    run = run_of(
        folder,
        [
            node((1, 0), 0, None, 10.0),
            node((1, 1), 1, None, 20.0),
            node((2, 0), 1, (1, 1), 25.0),  # survived: no child
            node((2, 1), 2, (1, 1), 26.0, "rl_hp"),  # +6
            node((2, 2), 3, (1, 0), 4.0, "rl_hp"),  # -6
            node((2, 3), 4, (1, 1), 50.0, "rl_hp"),  # +30
            node((2, 4), 5, (1, 1), math.nan, "rl_hp"),
            node((2, 5), 6, (1, 0), 10.0),  # +0 is no improvement
        ],
    )
    plain, hyper = run.payoffs
    assert (plain.kind, plain.children, plain.gains, plain.diverged, plain.improved) == ("none", 1, (0.0,), 0, 0.0)
    assert (hyper.kind, hyper.children, hyper.diverged) == ("rl_hp", 4, 1)
    assert hyper.gains == (-6.0, 6.0, 30.0)
    assert hyper.median == 6.0
    assert hyper.improved == 0.5


@pytest.mark.thorough
def test_the_sentence_on_mutations_says_what_its_figure_shows(folder: Path) -> None:
    def said(*kinds: tuple[str, float]) -> str:
        first = [node((1, 0), 0, None, 10.0)]
        rest = [node((2, i), i + 1, (1, 0), fitness, kind) for i, (kind, fitness) in enumerate(kinds)]
        text = Document(compose(run_of(folder, [*first, *rest]), {}, NO_MOVIE)).text
        return " ".join(text.partition("Which mutations paid")[2].split())

    some = [("rl_hp", 11.0), *[("rl_hp", 9.0)] * 4, *[("activation", 20.0)] * 2, ("parameters", 1.0), ("none", 12.0)]
    assert said(*some).startswith(
        "Of the mutations, changes of a hyper-parameter beat the parent most often: 20 % of 5 children. Left out of "
        "this, with fewer than 5 children: parameters (1), activation (2). Without a mutation 100 % of 1 child did."
    )
    assert said(*[("rl_hp", 9.0)] * 5).startswith("No mutation beat the parent.")
    assert said(*[("rl_hp", 11.0)] * 4).startswith("Too few children of each kind to tell them apart.")


@pytest.mark.parametrize(("score", "lucky"), [(-59.0, True), pytest.param(-501.0, False, marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_a_fitness_above_the_held_out_interval_is_called_lucky(copy: Path, score: float, lucky: bool) -> None:
    """Above all episodes' returns, which are -60 at most, or below them: they are -500 at least."""
    summary = json.loads((copy / "reports/train.json").read_text())
    summary["elite"]["score"] = score
    (copy / "reports/train.json").write_text(json.dumps(summary))
    assert ("that it was chosen by" in document(copy).text) == lucky
    assert not lucky or "lies below the −59.0 that it was chosen by" in document(copy).text


def test_no_tick_of_a_learning_rate_is_cut_off(folder: Path) -> None:
    run = read.read(folder)
    with draw.style():
        for values in ([1e-4, 3e-4], [9.5e-3, 1.05e-2], [1e-4, 1e-2], [64.0, 128.0], [1e5, 1.5e5]):
            plot = draw.Plot("trajectory.0", figures._SMALL, 200, (48, 12, 12, 40))
            figures._trajectory_axes(plot, run, [], values)
            plot.figure.canvas.draw()
            low, high = plot.axes.get_ylim()
            ticks = zip(plot.axes.get_yticks(), plot.axes.get_yticklabels(), strict=True)
            left = [label.get_window_extent().x0 for place, label in ticks if low <= place <= high]
            assert min(left) >= 0
            assert plot.axes.get_window_extent().x1 <= plot.figure.bbox.x1


def test_the_elites_line(folder: Path) -> None:
    """From the lineage alone: the same line as the elite's own record has."""
    run = read.read(folder)
    elite = run.summary.elite
    assert run.descent[-1].key[0] == elite.generation
    assert run.descent[-1].id == elite.id
    assert run.descent[0].key[0] == 1
    assert [n.key[0] for n in run.descent] == list(range(1, elite.generation + 1))
    ids = list(dict.fromkeys(n.id for n in reversed(run.descent)))
    assert ids == [birth["id"] for birth in run.policy["lineage"]]
    kinds = {
        n.id: n.kind for n in reversed(run.descent)
    }  # an elite that survives appears again: its first is its birth
    assert [kinds[birth["id"]] for birth in run.policy["lineage"]] == [
        b["mutation"]["kind"] for b in run.policy["lineage"]
    ]


def test_what_varies_is_plotted_and_the_rest_is_listed(folder: Path) -> None:
    varying, constant = read.read(folder).traits
    assert not varying.keys() & constant.keys()
    assert all(len(set(column.values())) > 1 for column in varying.values())
    assert {"gamma", "tau", "layer norm"} <= constant.keys()
    names = varying.keys() | constant.keys()
    assert {"lr", "batch size", "learn step", "activation", "encoder layers", "encoder units", "latent units"} <= names


def test_far_values_do_not_squeeze_the_rest() -> None:
    values = [float(v) for v in range(100)]
    assert figures._limits(values) == (0.0, 99.0)
    low, high = figures._limits([*values, -1e9])
    assert -500 < low < 0
    assert high == 99.0
    assert figures._limits([3.0]) == (1.5, 4.5)
    assert figures._limits([]) == (0.0, 1.0)
    low, high = figures._both_limits([*values, -1e9, 1e9])
    assert -500 < low < 0
    assert 99 < high < 600


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (20_000, "20k"), (1_234_567, "1.235M"), (-5e9, "−5G"), (0.5, "0.5")]
)
def test_counts_in_few_characters(value: float, text: str) -> None:
    assert words.thousands(value) == text


# --- how long generations took ----------------------------------------------------------------------------------------


def generation(number: int, seconds: float) -> Generation:
    return Generation(number, 100 * number, 400 * number, 50 * number, seconds, (), 1.0, 1.0, 1.0, 0)


def timing(folder: Path, events: list[Any], generations: int = 3) -> list[list[str]]:
    log = JsonlSink(folder / "events.jsonl")
    for event in events:
        log.emit(event)
    log.close()
    curve = [[g, 100 * g, 400 * g, 50 * g, 1.0, 1.0, 1.0] for g in range(1, generations + 1)]
    write_timing(folder / "events.jsonl", curve, folder)
    header, *rows = csv.reader(io.StringIO((folder / "reports/timing.csv").read_text()))
    assert header == list(TIMING)
    return rows


def start(step: int | None = None) -> Start:
    return Start("train", "E-v0", "dqn", 4, 300, step, None if step is None else 4 * step)


def test_timing_of_a_run_without_interruption(tmp_path: Path) -> None:
    progress = Progress(0, 50, 300, 200, 0, "learning", 10.0, None)
    events = [start(), progress, generation(1, 2.0), generation(2, 2.5), generation(3, 3.1234567), End("", 1.0, 1, 1)]
    assert timing(tmp_path, events) == [
        ["1", "2.0", "400", "50"],
        ["2", "2.5", "400", "50"],
        ["3", "3.123", "400", "50"],
    ]


def test_timing_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """It repeats what came after its last checkpoint: the last word counts, and only the steps of those seconds."""
    events = [start(), generation(1, 2.0), generation(2, 9.0), start(150), generation(2, 1.0), generation(3, 2.0)]
    assert timing(tmp_path, events) == [["1", "2.0", "400", "50"], ["2", "1.0", "200", "50"], ["3", "2.0", "400", "50"]]


def test_timing_where_the_log_lost_lines(tmp_path: Path) -> None:
    assert timing(tmp_path, [start(), generation(1, 2.0), generation(3, 2.0)]) == [
        ["1", "2.0", "400", "50"],
        ["3", "2.0", "400", "50"],
    ]
    (tmp_path / "events.jsonl").write_bytes(b'{"event": "other", "time": 1}\n')
    assert timing(tmp_path, []) == []
    (tmp_path / "events.jsonl").unlink()
    write_timing(tmp_path / "events.jsonl", [], tmp_path)
    assert (tmp_path / "reports/timing.csv").read_text() == "generation,seconds,env_steps,eval_steps\n"


# --- the film ---------------------------------------------------------------------------------------------------------


def shot(frames: int, size: tuple[int, int] = (60, 40), fps: int = 50, noise: bool = False) -> _Movie:
    chance, kept = np.random.default_rng(0), FilmFrames(WIDTH, FRAMES)
    with kept.begin(fps) as show:
        for number in range(frames):
            picture = np.full((size[1], size[0], 3), 37 * number % 250, np.uint8)
            show(chance.integers(0, 255, picture.shape, np.uint8) if noise else picture)
    return _Movie.of(kept, Score(3, 1.5, frames - 1))


def test_a_short_film_runs_at_the_environments_pace() -> None:
    movie = shot(101)
    image = Image.open(io.BytesIO(movie.animation))
    assert getattr(image, "n_frames", 1) == 51  # 25 of 50 frames a second
    assert image.size == (movie.width, movie.height) == (60, 40)
    assert movie.speed == pytest.approx(1.0, abs=0.05)
    assert Image.open(io.BytesIO(movie.still)).size == (60, 40)


def test_a_long_film_is_shown_faster_not_cut() -> None:
    movie = shot(20_000)
    frames = getattr(Image.open(io.BytesIO(movie.animation)), "n_frames", 1)
    assert FRAMES / 2 <= frames <= FRAMES
    assert movie.seconds <= 31
    assert movie.speed > 10


@pytest.mark.thorough
def test_a_film_keeps_its_budget_and_its_shape() -> None:
    movie = shot(90, size=(960, 640), noise=True)
    assert len(movie.animation) <= BUDGET
    assert (movie.width, movie.height) == (480, 320)


def test_a_film_of_one_frame() -> None:
    assert Image.open(io.BytesIO(shot(1).animation)).size == (60, 40)


def test_the_film_is_of_the_held_out_episode_whose_return_is_nearest_the_mean(folder: Path) -> None:
    run = read.read(folder)
    low, near, high = (replace(run.elite.episodes[0], seed=seed, total=run.elite.mean + by)
                       for seed, by in ((1, -5.0), (2, 0.5), (3, 1.0)))  # fmt: skip
    one = _Movie.filmed(folder / "models/elite", replace(run, elite=replace(run.elite, episodes=(low, high, near))), 1)
    assert isinstance(one, _Movie)
    assert one.score.seed == 2


def test_a_film_is_cut_where_it_ends_before_its_episode(folder: Path) -> None:
    run = read.read(folder)
    for length, cut in ((1, False), (2, True)):
        episode = replace(run.elite.episodes[0], length=length)
        one = _Movie.filmed(folder / "models/elite", replace(run, elite=replace(run.elite, episodes=(episode,))), 1)
        assert isinstance(one, _Movie)
        assert one.cut == cut


@pytest.mark.thorough
def test_the_film_is_of_a_held_out_episode(folder: Path) -> None:
    run = read.read(folder)
    one = _Movie.filmed(folder / "models/elite", run, 60)
    assert isinstance(one, _Movie)
    assert one.score.seed in {episode.seed for episode in run.elite.episodes}
    assert one.score.steps == 60
    assert one.cut
    text = compose(run, {}, one)
    assert (
        f"The first 60 steps of a held-out episode of the elite (seed {one.score.seed}): return −60.0."
        in Document(text).text
    )
    (picture,) = list(Document(text).all("img"))
    assert (picture["alt"] or "").startswith("Animation of the elite at play. The first 60 steps of a held-out episode")
    assert (picture["src"] or "").startswith("data:image/webp;base64,")


@pytest.mark.thorough
def test_an_environment_that_cannot_be_drawn_gets_a_sentence(copy: Path) -> None:
    path = copy / "models/elite/policy.json"
    about = json.loads(path.read_text())
    about["env"] = {"id": "no_such_module:Nowhere-v0", "kwargs": {}}
    manifest = copy / "models/elite"
    from evopipe.storage.folders import read_folder, write_folder

    files = read_folder(manifest)
    write_folder(manifest, {**files, "policy.json": json.dumps(about).encode()})
    run = read.read(copy)
    sentence = _Movie.filmed(manifest, run, None)
    assert isinstance(sentence, str)
    assert sentence.startswith("There is no picture of the elite at play: ")
    assert sentence in Document(compose(run, {}, sentence)).text


# --- teams ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a team: of every return the agents have a sixth, a third and a half."""
    folder = tmp_path_factory.mktemp("crew")
    overrides = {"env.id": "teams_for_tests:Drawn", "train.algo": "ippo", "algos.ippo": {"learn_step": 400}}
    write_run(folder, members=2, generations=3, diverge=0.0, episodes=5, overrides=overrides)
    return folder


@pytest.mark.thorough
def test_a_teams_page_has_every_agents_and_groups_return_and_its_film(crew: Path) -> None:
    text = page(crew, {})
    found = Document(text)
    total = json.loads((crew / "reports/evaluation.json").read_text())["elite"]["mean"]
    assert "A return is the sum over the team's 3 agents." in found.text
    first, last = words.figure(total / 6), words.figure(total / 2)
    assert f"Of the elite's, red_0 has most, {first}, and red_1 least, {last}." in " ".join(found.text.split())
    table = text[text.index("<caption>Mean held-out return of each agent, and of each group together") :]
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", table[: table.index("</table>")])
    assert cells[:6] == ["who", "red_0", "blue_0", "red_1", "all of blue", "all of red"]
    assert cells[6:12] == ["elite", *(words.figure(total * share) for share in (1 / 6, 1 / 3, 1 / 2, 1 / 3, 2 / 3))]
    assert [cells[12], cells[18]] == ["slot 0", "slot 1"]
    assert [section["id"] for section in found.all("section")] == [*SECTIONS[:6], "agents", *SECTIONS[6:]]
    drawn = re.findall(r'<svg [^>]*class="plot agents".*?</svg>', text)
    assert len(drawn) == 2
    shares = [words.figure(total * share) for share in (1 / 6, 1 / 3, 1 / 2)]
    for figure in drawn:
        assert re.findall(r">([^<>]+)</text>", figure)[-6:] == [
            text for pair in zip(("red_0", "blue_0", "red_1"), shares, strict=True) for text in pair
        ]
    assert (found.all("img")[0]["alt"] or "").startswith(
        "Animation of the elite at play. The first 9 steps of a held-out episode"
    )


def test_agents_that_only_one_member_has_are_refused(crew: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(crew, tmp_path / "copy"))
    members = json.loads((copy / "reports/members.json").read_text())
    del members["member_1"]["agents"]["red_0"]
    (copy / "reports/members.json").write_text(json.dumps(members))
    with pytest.raises(
        DataError, match=r"member_1: other agents or groups than the elite's\); run `dvc repro evaluate`"
    ):
        read.read(copy)


def test_agents_that_the_policy_does_not_know_are_refused(crew: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(crew, tmp_path / "copy"))
    for name in ("evaluation", "members"):
        text = (copy / f"reports/{name}.json").read_text()
        (copy / f"reports/{name}.json").write_text(text.replace('"red_0"', '"red_9"'))
    with pytest.raises(
        DataError, match=r"evaluation\.json: .*\(other agents than the policy's\); run `dvc repro evaluate`"
    ):
        read.read(copy)


def test_a_page_of_one_agent_says_nothing_of_teams(plain: str) -> None:
    assert "agents" not in Document(plain).text


# --- games of words ---------------------------------------------------------------------------------------------------


def wordle_run(folder: Path) -> FinishedRun:
    """A run whose elite played three games, as the stage `evaluate` writes them."""
    shown = [
        {"game": {"guesses": ["ab", "cd"], "colours": ["yb", "gg"]}, "return": -1.0, "won": True},
        {"game": {"guesses": ["dd", "<<", "ba"], "colours": ["bg", "", "by"]}, "return": -3.0, "won": False},
    ]
    (folder / "reports/completions.json").write_text(json.dumps(shown))
    (folder / "reports/language.csv").write_text("generation,slot,loss\n1,0,0.5\n1,1,0.25\n")
    path = folder / "reports/evaluation.json"
    scores = json.loads(path.read_text())
    scores["elite"] |= {"won": 0.75, "tries": 2.5}
    behaviours = {
        "random": {"mean": -600.0, "won": 0.25, "tries": 4.5},
        "optimal": {"mean": -1.5, "won": 1, "tries": 3},
    }
    path.write_text(json.dumps({**scores, "behaviours": behaviours}))
    return replace(read.read(folder), told=read._told(folder))


def test_games_are_read_with_who_played_them(copy: Path) -> None:
    told = wordle_run(copy).told
    assert told is not None
    assert [(game.total, game.won, game.turns) for game in told.games] == [
        (-1.0, True, [[("a", "y"), ("b", "b")], [("c", "g"), ("d", "g")]]),
        (-3.0, False, [[("d", "b"), ("d", "g")], [("<", "x"), ("<", "x")], [("b", "b"), ("a", "y")]]),
    ]
    mean = json.loads((copy / "reports/evaluation.json").read_text())["elite"]["mean"]
    players = {name: (each.mean, each.won, each.tries) for name, each in told.players.items()}
    assert players == {"elite": (mean, 0.75, 2.5), "random": (-600.0, 0.25, 4.5), "optimal": (-1.5, 1.0, 3.0)}
    assert told.measures == {"loss": {(1, 0): 0.5, (1, 1): 0.25}}


@pytest.mark.thorough
def test_games_are_shown_as_coloured_squares_and_the_elite_beside_who_made_the_data(copy: Path) -> None:
    text = compose(wordle_run(copy), {}, NO_MOVIE)
    found = Document(text)
    key, tiles = 4, [tag["class"] for tag in found.all("span") if (tag.get("class") or "").startswith("tile")]
    assert tiles[key:] == [f"tile {mark}" for mark in "ybggbgxxby"]
    labels = [tag["aria-label"] for tag in found.all("div") if tag.get("role") == "img"]
    assert labels[:2] == ["a: in another place, b: not in the word", "c: in its place, d: in its place"]
    assert "&lt;: no feedback" in text
    table = text[text.index("<caption>The elite, and the policies that games are made by") :]
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", table[: table.index("</table>")])
    assert cells[:8] == ["who", "mean return", "won", "mean guesses", "optimal", "−1.5", "100 %", "3.0"]
    assert [cells[8], cells[10], cells[11], cells[12]] == ["elite", "75 %", "2.5", "random"]
    assert "Completions" not in found.text


# --- completions ------------------------------------------------------------------------------------------------------


def judged_run(folder: Path) -> FinishedRun:
    """A run of language models that a reward model scored, and the task itself too."""
    shown = [{"prompt": "1+1=", "elite": {"text": "2", "reward": 0.75}, "base": {"text": "7", "reward": -0.5}}]
    (folder / "reports/completions.json").write_text(json.dumps(shown))
    (folder / "reports/language.csv").write_text("generation,slot,kl\n1,0,0.5\n1,1,0.25\n")
    path = folder / "reports/evaluation.json"
    scores = json.loads(path.read_text())
    scores["elite"] |= {"task": 0.875}
    path.write_text(json.dumps({**scores, "base": {**scores["elite"], "mean": -3.25, "task": 0.125}}))
    return replace(read.read(folder), told=read._told(folder))


def test_the_bases_numbers_are_the_bases_and_the_elites_its_own(copy: Path) -> None:
    told = judged_run(copy).told
    assert told is not None
    assert (told.base, told.task) == (-3.25, (0.125, 0.875))
    assert [(each.elite.text, each.elite.reward, each.base.text, each.base.reward) for each in told.completions] == [
        ("2", 0.75, "7", -0.5)
    ]
    assert told.measures == {"kl": {(1, 0): 0.5, (1, 1): 0.25}}


@pytest.mark.thorough
def test_completions_are_shown_with_whom_they_are_of(copy: Path) -> None:
    text = " ".join(Document(compose(judged_run(copy), {}, NO_MOVIE)).text.split())
    assert "The base's mean score is −3.25, the elite's −295.1." in text
    assert "the base scores 0.125 and the elite 0.875: what the reward model likes is right, too" in " ".join(
        text.split()
    )


# --- signals, replays, films ------------------------------------------------------------------------------------------


def test_of_signals_the_means_are_read_and_a_run_of_an_earlier_version_has_none(copy: Path) -> None:
    (copy / SIGNALS).unlink(missing_ok=True)
    assert read.read(copy).signals == {}
    head = "generation,slot,losses/entropy,losses/entropy.last,charts/epsilon,charts/epsilon.last\n"
    (copy / SIGNALS).write_text(f"{head}1,0,0.5,0.25,nan,1\n1,1,,,0.75,0.125\n")
    found = read.read(copy).signals
    assert {key: own for key, own in found.items() if key == (1, 1)} == {(1, 1): {"charts/epsilon": 0.75}}
    assert found[1, 0]["losses/entropy"] == 0.5
    assert math.isnan(found[1, 0]["charts/epsilon"])


def test_replays_of_another_elite_are_not_shown(copy: Path) -> None:
    elite = json.loads((copy / "reports/train.json").read_text())["elite"]
    own = {name: elite[name] for name in ("id", "generation", "score")}
    whole = {
        "elite": own,
        "steps": 5,
        "replays": [],
        "mean": None,
        "interval": None,
        "not_followed": [],
        "schedule": [],
    }
    for change, shown in (({}, True), ({"id": -1}, False), ({"generation": 99}, False), ({"score": 0.123}, False)):
        (copy / "reports/replay.json").write_text(json.dumps({**whole, "elite": {**own, **change}}))
        assert (read.read(copy).replays is not None) == shown, change
    (copy / "reports/replay.json").write_text("{}")
    with pytest.raises(DataError, match=r"replay\.json: does not hold what it should .*; run `evopipe replay` again"):
        read.read(copy)


def test_what_stands_in_the_films_place_says_why(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("evopipe.report.page.compose", lambda run, params, movie, family: shown.append(movie) or "")
    page(copy, {"export": {"film": False}})
    run = wordle_run(copy)
    for told in (run.told, judged_run(copy).told):
        monkeypatch.setattr("evopipe.report.page.read", lambda folder, told=told: replace(run, told=told))
        page(copy, {"export": {"film": True}})
    assert shown == [
        "The elite was not filmed: `export.film` is false.", "Games that the elite played stand below.",
        "What the elite writes stands below, beside what the base does.",
    ]  # fmt: skip


# --- size and time ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_twenty_members_and_fifty_generations(tmp_path: Path) -> None:
    """At most 3 MB and 10 s, the film of a long episode included. Processor time: the machine may be busy."""
    params = write_run(tmp_path, members=20, generations=50)
    began = time.process_time()
    report.run(params, quiet=True, folder=tmp_path)
    seconds = time.process_time() - began
    size = (tmp_path / "reports/report.html").stat().st_size
    print(f"{size / 1e6:.2f} MB in {seconds:.1f} s of processor time")
    assert size <= 3_000_000
    assert seconds <= 10
    found = Document((tmp_path / "reports/report.html").read_text())
    assert len([plot for plot in found.plots if "trajectory" in (plot["class"] or "")]) >= 5
