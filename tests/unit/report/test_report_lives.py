"""Who lived when: of searches in which members wait or trials begin anew."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from evopipe.report import draw, figures, read
from evopipe.report.draw import Plot
from evopipe.report.lives import lives_of
from evopipe.report.page import compose
from lineages import WAITED, born, record
from reports import write_run
from tiny import call, write_params

STEPS = {1: 100, 2: 200, 3: 300, 4: 500}
TORCH = {
    "env.backend": "torch", "train.algo": "ppo", "train.evo_steps": 200, "train.max_steps": 800,
    "train.replay.evaluation": False, "population.size": 4, "search.budget": 4000,
    "algos.ppo": {"learn_step": 100, "batch_size": 50, "network": {"encoder": [8], "latent": 8}},
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run in which two of four live, and the rest waits; neither evaluated nor exported."""
    from evopipe import algos

    folder = tmp_path_factory.mktemp("halving")
    config = algos.get("ppo").Config(**TORCH["algos.ppo"]).model_dump(mode="json")
    search = {"search.strategy": "halving", "search.halving": {"eta": 2, "rung": 200, "width": 2}}
    write_params(folder, {**TORCH, "algos.ppo": config, **search})
    for stage in ("population", "train"):
        done = call(folder, "-q", stage)
        assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def halving(trained: Path) -> Path:
    """The same, complete."""
    for stage in ("evaluate", "export"):
        done = call(trained, "-q", stage)
        assert done.code == 0, done.err
    return trained


@pytest.fixture(scope="module")
def page(halving: Path) -> tuple[str, dict[str, Plot]]:
    """Its page, and every figure by name."""
    found: dict[str, Plot] = {}
    plain = Plot.svg

    def kept(plot: Plot, label: Any) -> Any:
        found[plot.name] = plot
        return plain(plot, label)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plot, "svg", kept)
        return compose(read.read(halving), {}, "No film."), found


def test_lives_from_their_births_to_their_ends() -> None:
    lives = {life.id: life for life in lives_of(WAITED, STEPS)}
    assert [(life.id, life.slot, life.parent, life.since, life.steps) for life in lives.values()] == [
        (0, 0, None, 0, 200), (1, 1, None, 0, 0), (2, 1, 0, 100, 300), (3, 0, None, 300, 100),
    ]  # fmt: skip
    assert {id: life.keys for id, life in lives.items()} == {
        0: [(1, 0), (2, 0)], 1: [], 2: [(3, 1), (4, 1)], 3: [(4, 0)],
    }  # fmt: skip
    assert (lives[0].best, lives[2].best) == (7.0, 9.0)
    assert math.isnan(lives[1].best)
    assert [life.why for life in lives.values()] == ["", "", "a child", "a trial"]
    assert [life.end for life in lives.values()] == ["a trial", "a child", "the run ended", "the run ended"]


def test_who_waits_when_the_run_ends_says_so() -> None:
    first = [born(0, 0), born(1, 1)]
    stay = [born(0, 0, of=0), born(1, 1, of=1, why="too slow")]
    both, one = record(1, 100, [(0, 0, 1.0), (1, 1, None)], stay), record(2, 200, [(0, 0, 2.0)])
    lives = lives_of([record(0, 0, children=first), both, one], STEPS)
    assert [life.end for life in lives] == ["the run ended", "waited at the end (too slow)"]


def test_one_of_the_first_says_why_it_began_when_it_did_and_others_why_they_were_born() -> None:
    """Who has lived, and who came later, keeps the reason that it had."""
    first = [born(0, 0), born(1, 1), born(2, 2)]
    one = [born(0, 0, of=0, why="goes on"), born(1, 1, of=1, why="begins"), born(2, 3, of=0, parent=0, why="a child")]
    two = [born(0, 0, of=0, why="rests"), born(1, 1, of=1, why="stays"), born(2, 3, of=2, parent=0, why="waits")]
    records = [
        record(0, 0, children=first), record(1, 100, [(0, 0, 1.0)], one), record(2, 200, [(1, 1, -math.inf)], two),
        record(3, 200, [(1, 1, -5.0), (1, 1, -7.0)]),
    ]  # fmt: skip
    lives = {life.id: life for life in lives_of(records, STEPS)}
    assert {id: life.why for id, life in lives.items()} == {0: "", 1: "begins", 2: "", 3: "a child"}
    assert [lives[id].end for id in (0, 1, 2, 3)] == ["waited at the end (rests)", "the run ended", "a child",
                                                      "waited at the end"]  # fmt: skip
    assert (lives[1].best, lives[0].best, lives[1].steps, lives[0].steps) == (-5.0, 1.0, 200, 100)
    assert (lives[3].since, lives[3].kind, lives[2].kind) == (100, "child of member 0", "trial")
    assert lives[3].about == "slot 2, member 3: child of member 0\nlr 1e-3 → 1e-3\na child"


def test_a_run_in_lockstep_has_none(tmp_path: Path) -> None:
    write_run(tmp_path, members=3, generations=3, episodes=2)
    assert read.read(tmp_path).lives == ()


@pytest.mark.thorough
def test_members_of_a_search_that_lets_some_wait_are_drawn(halving: Path, page: tuple[str, dict[str, Plot]]) -> None:
    """From the run's own files: a bar a generation of each member that lived, a mark a birth."""
    records = [json.loads(line) for line in (halving / "reports/lineage.jsonl").read_text().splitlines()]
    rows = [line.split(",") for line in (halving / "reports/fitness.csv").read_text().splitlines()[1:]]
    ends = {0: 0, **{int(row[0]): int(row[2]) for row in rows}}
    assert min(len(each["members"]) for each in records[1:]) == 2
    plot = page[1]["turns.1000"]
    bars = set()
    for patch in plot.axes.patches:
        for shape in patch.get_path().vertices.reshape(-1, 5, 2):
            bars.add((round(shape[0][0]), round(shape[1][0]), round(shape[:4, 1].mean())))
    number = {each["generation"]: place for place, each in enumerate(records)}
    assert bars == {
        (ends[g - 1], ends[g], member["slot"]) for g in number if g for member in records[number[g]]["members"]
    }
    assert sum(len(patch.get_path().vertices) // 5 for patch in plot.axes.patches) == len(bars)
    first: dict[int, tuple[int, int]] = {}
    for each in records[1:]:
        for member in each["members"]:
            first.setdefault(member["id"], (ends[each["generation"] - 1], member["slot"]))
    (marks,) = (line for line in plot.axes.lines if line.get_gid() == "trial")
    assert sorted((round(x), round(y)) for x, y in marks.get_xydata()) == sorted(first.values())
    assert len(first) > 4, "trials began after the first ones"


@pytest.mark.thorough
def test_the_fuller_a_bar_the_fitter(halving: Path, page: tuple[str, dict[str, Plot]]) -> None:
    run, plot = read.read(halving), page[1]["turns.1000"]
    ends = {0: 0, **run.env_steps}
    shades: dict[float, list[float]] = {}
    for patch in plot.axes.patches:
        for shape in patch.get_path().vertices.reshape(-1, 5, 2):
            slot, end = round(shape[:4, 1].mean()), round(shape[1][0])
            (generation,) = (number for number, steps in ends.items() if steps == end)
            shades.setdefault(patch.get_alpha(), []).append(run.nodes[generation, slot].fitness)
    ordered = [scores for _, scores in sorted(shades.items())]
    assert len(ordered) > 1
    assert all(max(paler) <= min(fuller) for paler, fuller in pairwise(ordered))
    elite = [patch for patch in plot.axes.patches if draw.PALETTE["elite"] == _hex(patch)]
    assert sum(len(patch.get_path().vertices) // 5 for patch in elite) == len(run.descent)


def _hex(patch: Any) -> str:
    from matplotlib.colors import to_hex

    return str(to_hex(patch.get_facecolor()))


@pytest.mark.thorough
def test_a_table_says_what_became_of_everyone(halving: Path, page: tuple[str, dict[str, Plot]]) -> None:
    text = page[0].partition('id="turns"')[2].partition("</section>")[0]
    run = read.read(halving)
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    assert body.count("<tr>") == len(run.lives)
    assert "nobody could be promoted" in body
    assert "the run ended" in body
    assert " (elite)" in body
    assert all("lr " in row for row in body.split("<tr>")[1:])
    assert text.count("<title>") >= len([life for life in run.lives if life.keys]), "a mark says who began, and why"
    assert "The population's mean went from" not in page[0]


def test_a_waiting_members_line_leads_over_the_generations_that_it_waited() -> None:
    nodes = read._nodes(WAITED)
    assert {key: (node.parent, node.survived, node.steps) for key, node in nodes.items()} == {
        (1, 0): (None, False, 100), (2, 0): ((1, 0), True, 200), (3, 1): ((1, 0), False, 200),
        (4, 0): (None, False, 100), (4, 1): ((3, 1), True, 300),
    }  # fmt: skip
    assert (nodes[3, 1].gain, nodes[3, 1].kind, nodes[4, 1].gain) == (4.0, "rl_hp", -1.0)
    assert (nodes[1, 0].began, nodes[4, 0].began) == ("first generation", "a new trial")
    assert "a new trial (a trial)" in nodes[4, 0].about


@pytest.mark.thorough
def test_a_members_parent_is_itself_or_whom_it_was_cloned_from_and_lived_before_it(halving: Path) -> None:
    real = read.read(halving).nodes
    assert all(real[node.parent].id == node.id for node in real.values() if node.parent is not None)
    assert all(real[node.parent].steps < node.steps for node in real.values() if node.parent is not None)


@pytest.mark.thorough
def test_the_figures_of_such_a_run_draw_on_a_phone_too(halving: Path) -> None:
    with draw.style():
        for width in (1000, 358):
            assert 'class="plot turns"' in figures.turns(read.read(halving), width, Markup("who lived when"))


@pytest.mark.thorough
def test_seconds_are_of_the_populations_own_steps(trained: Path) -> None:
    """A member's steps go back where another lives: the rows add up to what the population took."""
    rows = [line.split(",") for line in (trained / "reports/timing.csv").read_text().splitlines()[1:]]
    steps = json.loads((trained / "reports/train.json").read_text())["steps"]
    assert sum(int(row[2]) for row in rows) == steps["training"]
    assert all(int(row[2]) > 0 for row in rows)
