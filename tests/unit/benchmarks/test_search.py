"""Searches on one engine: what is counted, what is kept, what tuners are asked and told, and the statistics by hand."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evopipe
from evopipe.searchers.contract import Bound

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "benchmarks")]

import search as script  # noqa: E402
from harness import curves, search, survival, tuners  # noqa: E402
from harness.kept import Kept  # noqa: E402
from harness.survival import Runs  # noqa: E402
from harness.tuners import Asha, Ask, Setting  # noqa: E402

TINY = replace(curves.TASKS["cartpole"], slice=1024, life=4096)
SPACE = {"lr": Bound(1e-4, 1e-2, log=True), "batch_size": Bound(64, 512, whole=True)}


def setting(told: dict[str, float] | None = None, slices: int = 16) -> Setting:
    return Setting(SPACE, slices, seed=3, lives=20, told=told)


# --- statistics -------------------------------------------------------------------------------------------------------


def runs(*steps: float, censored: int = 0) -> Runs:
    """Runs of which the last so many are censored."""
    return Runs(np.array(steps), np.array([True] * (len(steps) - censored) + [False] * censored))


def test_log_rank_by_hand() -> None:
    """One: 1, 3. Other: 2, 4+. At 1, of 2 and 2 at risk, one expects 1/2 with variance 1/4; at 2 (1 and 2) 1/3, 2/9; at
    3 (1 and 1) 1/2, 1/4. Seen 2, expected 4/3, variance 13/18: χ² = (2/3)² / (13/18) = 8/13."""
    chi = 8 / 13
    assert survival.log_rank(runs(1, 3), runs(2, 4, censored=1)) == pytest.approx(math.erfc(math.sqrt(chi / 2)))


def test_log_rank_where_nothing_tells_them_apart() -> None:
    assert survival.log_rank(runs(9, 9, censored=2), runs(9, censored=1)) == 1.0
    assert survival.log_rank(runs(4, 4), runs(4)) == 1.0


def test_a_restricted_mean_counts_the_budget_for_who_is_not_there() -> None:
    result = {
        "settings": {"lives": 2, "life": 50},
        "runs": [
            {"turn": seed, "contestant": "prior", "result": {"steps": steps, "solved": solved}}
            for seed, (steps, solved) in enumerate([(40, True), (120, False), (60, True)])
        ],
    }
    found = Runs.of(result, "prior")
    mean = survival.restricted(found)
    assert (mean.value, found.share) == (pytest.approx(200 / 3), pytest.approx(2 / 3))
    assert 40 <= mean.low < mean.value < mean.high <= 100
    assert survival.over(found, runs(100, 100)).value == pytest.approx(2 / 3)
    assert survival.curve(found) == ([0, 40, 60], [1, pytest.approx(2 / 3), pytest.approx(1 / 3)])


# --- spaces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", sorted(curves.TASKS.keys() - {"lander"}))
@pytest.mark.parametrize("kind", curves.SPACES)
@pytest.mark.thorough
def test_tuners_and_strategies_search_the_same_space(task: str, kind: str) -> None:
    """And the table of curves draws from it, but for the lowest clips of the hard one."""
    known = curves.TASKS[task]
    params = search.params_of(search.OURS["random"], known, kind, 1)
    ranges = params.algo_config.evolve
    mine, table = search.space(known, kind), curves.space(known, kind)
    assert {name: (each.low, each.high) for name, each in mine.items()} == {
        name: (each.min, each.max) for name, each in ranges.items()
    }
    assert mine.keys() == table.keys()
    for name in mine.keys() - {"clip"}:
        assert mine[name] == table[name]
    if "clip" in mine:
        assert (mine["clip"].log, mine["clip"].low, mine["clip"].high) == (False, 0.0501, 0.5)


@pytest.mark.parametrize("name", search.OURS)
def test_a_strategys_parameters_are_valid_and_end_by_the_budget(name: str) -> None:
    params = search.params_of(search.OURS[name], TINY, "hard", 1, lives=5)
    assert (params.search.budget, params.population.size) == (20_480, search.OURS[name].size)
    assert params.train.replay.sharing == "own"


# --- counting ---------------------------------------------------------------------------------------------------------


def test_a_trials_steps_are_those_of_the_engine_in_one_go(tmp_path: Path) -> None:
    """Slice by slice a trial takes the steps, of training and of evaluation, that the same run reports in one go."""
    trial = search.Trial(TINY, {"lr": 1e-3}, seed=5)
    for _ in range(TINY.slices):
        trial.slice()
    with evopipe.Population(curves.params_of(TINY, {"lr": 1e-3}, 5)) as population:
        population.train()
        population.save(tmp_path)
    steps = json.loads((tmp_path / "reports/train.json").read_text())["steps"]
    assert (trial.now.spent, trial.now.training) == (steps["all"], steps["training"])
    assert trial.now.training == TINY.life < trial.now.spent
    assert trial.now.over
    assert trial.now.winner is None
    trial.close()


def test_what_is_known_of_a_trial_is_what_it_would_come_to() -> None:
    """Two slices are known of another tuner; the others are trained, from where these end."""
    known: search.Known = {}
    first = search.Trial(TINY, {"lr": 2e-3}, 5, known)
    for _ in range(2):
        first.slice()
    second, whole = search.Trial(TINY, {"lr": 2e-3}, 5, known), search.Trial(TINY, {"lr": 2e-3}, 5)
    other = search.Trial(TINY, {"lr": 2e-3}, 6, known)
    for _ in range(TINY.slices):
        for trial in (second, whole, other):
            trial.slice()
        assert second.now == whole.now != other.now
    assert second._slices == TINY.slices  # it caught up on its own
    third = search.Trial(TINY, {"lr": 2e-3}, 5, known)
    for _ in range(TINY.slices):
        third.slice()
    assert third.now == whole.now
    assert third._population is None
    for trial in (first, second, whole, other, third):
        trial.close()


def test_a_strategys_steps_are_those_that_the_engine_reports(tmp_path: Path) -> None:
    with evopipe.Population(search.params_of(search.OURS["halving"], TINY, "narrow", 2, lives=3)) as population:
        population.train()
        population.save(tmp_path)
    steps = json.loads((tmp_path / "reports/train.json").read_text())["steps"]
    found = search._ours(search.OURS["halving"], TINY, "narrow", 2, 3)
    assert found[:3] == (steps["all"], steps["training"], None)
    assert steps["all"] >= 3 * TINY.life


class _Script:
    """A tuner that asks for what a list says, and keeps what it hears."""

    def __init__(self, asks: list[Ask], keeps: bool) -> None:
        self.asks, self.keeps, self.heard = iter(asks), keeps, []  # type: ignore[var-annotated]

    def ask(self) -> Ask:
        return next(self.asks)

    def tell(self, score: float) -> None:
        self.heard.append(score)

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("keeps", [True, False])
def test_steps_of_all_trials_count_whether_kept_or_left(keeps: bool) -> None:
    """Three trials of a slice each; one that waits goes on and pays for what is new alone."""
    values = {"lr": 1e-3}
    asks = [Ask(0, values, 1), Ask(1, values, 1), *([Ask(0, values, 2)] if keeps else [Ask(2, values, 1)])]
    tuner = _Script([*asks, Ask(9, values, 4)], keeps)
    with search.ExitStack() as held:
        spent, training, winner, begun = search._lives(tuner, TINY, 1, 2 * TINY.life, held, {})  # type: ignore[arg-type]
    assert len(tuner.heard) >= 3
    assert all(math.isfinite(score) for score in tuner.heard)
    assert begun == (3 if keeps else 4)
    assert training % TINY.slice == 0
    assert 3 * TINY.slice < training < spent
    assert spent >= 2 * TINY.life
    assert winner is None


EASY = replace(TINY, target=9.0, life=16_384, lowest=1.0)
"""A target that every trial reaches at once."""


@pytest.mark.thorough
@pytest.mark.parametrize("confirmation", curves.CONFIRMATIONS)
def test_winners_of_either_kind_are_audited_at_no_cost(confirmation: str) -> None:
    """A strategy of one slot and a tuner train the same trial; the mean of all episodes is what a whole confirmation
    finds."""
    task = replace(EASY, confirmation=confirmation)
    with evopipe.Population(curves.params_of(replace(EASY, confirmation="full"), {}, 1)) as whole:
        whole.train()
        champion, clock = whole._run.champion, whole._run.clock
        assert champion is not None
        winner = search.audit(whole)
        assert winner.all == champion.score
        assert winner.others != champion.score
        with evopipe.Population(curves.params_of(task, {}, 1)) as population:
            population.train()
            assert search.audit(population) == winner
            spent = population._run.clock.spent
        assert (spent < clock.spent) == (confirmation == "sequential")
    trial = search.Trial(task, {}, 1)
    while trial.now.winner is None:
        trial.slice()
    trial.close()
    assert (trial.now.winner, trial.now.spent) == (winner, spent)
    for name in ("random, configured", "random search, told"):
        outcome = search.run(name, task, "narrow", 1)
        assert outcome.solved
        assert outcome.audit is not None
        assert outcome.audit.all > 9.0


# --- tuners -----------------------------------------------------------------------------------------------------------


def test_asha_promotes_the_best_quarter_and_takes_it_up_again() -> None:
    """Rungs of 1, 4 and 16 slices. The fourth trial makes one promotable, the best; so do four at the next rung."""
    tuner = Asha(setting())
    assert tuner.rungs == [1, 4, 16]
    asked = []
    for _ in range(4):
        asked.append(tuner.ask())
        tuner.tell(10.0 if asked[-1].number == 2 else float(asked[-1].number))
    assert [(each.number, each.slices) for each in asked] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    promoted = tuner.ask()
    assert promoted == Ask(2, asked[2].values, 4)
    tuner.tell(50.0)
    assert tuner.ask().number == 4
    assert tuners._rungs(15, 4) == [1, 4, 15]


def test_asha_never_promotes_who_diverged() -> None:
    tuner = Asha(setting())
    for number in range(8):
        assert tuner.ask().number == number
        tuner.tell(-math.inf)


def test_a_tuner_that_is_told_the_point_begins_with_it() -> None:
    told = {"lr": 2e-3, "batch_size": 100}
    for make in (tuners.random, tuners.tpe):
        assert make(setting(told)).ask() == Ask(0, told, 1)
        assert make(setting()).ask().values != told


def test_random_search_lets_every_trial_live_and_a_pruner_does_not() -> None:
    whole = tuners.random(setting(slices=3))
    asks = []
    for _ in range(6):
        asks.append(whole.ask())
        whole.tell(float(asks[-1].number))
    assert [(each.number, each.slices) for each in asks] == [(n, s) for n in (0, 1) for s in (1, 2, 3)]
    pruned = tuners.tpe(setting(slices=3))
    lived: dict[int, int] = {}
    while len(lived) < 8:  # five begin it, then the median decides
        ask = pruned.ask()
        lived[ask.number] = ask.slices
        pruned.tell(-float(ask.number))
    assert [lived[number] for number in range(7)] == [3, 3, 3, 3, 3, 1, 1]


def test_a_trial_that_diverged_ends_it_and_the_study_goes_on() -> None:
    study = tuners.tpe(setting())
    assert study.ask().number == 0
    study.tell(-math.inf)
    assert study.ask().number == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SMAC", "DEHB"])
def test_tuners_in_an_environment_of_their_own_promote_by_score(name: str) -> None:
    if not tuners.venvs.ready("tuners"):
        pytest.skip("their environment is not here: python benchmarks/run.py --setup")
    peer = search.CONTESTANTS[name]
    tuner = peer.make(setting())  # type: ignore[union-attr]
    asks: list[Ask] = []
    while not asks or asks[-1].slices < 4:
        asks.append(tuner.ask())
        tuner.tell(-math.inf if len(asks) == 2 else -abs(math.log(asks[-1].values["lr"] / 1e-3)))
    tuner.close()
    low = {each.number: each for each in asks[:-1]}
    assert {each.slices for each in asks} == {2, 6}
    assert asks[-1].values == low[asks[-1].number].values
    assert abs(math.log(asks[-1].values["lr"] / 1e-3)) <= sorted(
        abs(math.log(each.values["lr"] / 1e-3)) for each in low.values()
    )[3]  # fmt: skip


# --- the script -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_script_that_was_killed_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made stays as it is and is not made again; what was not is made as it would have been."""
    monkeypatch.setitem(curves.TASKS, "cartpole", TINY)
    arguments = ["cartpole", "--lives", "1", "--seeds", "2", "--strategies", "random", "random search", "--results"]
    made: list[tuple[str, int]] = []
    run = search.run

    def counted(name: str, task: Any, kind: str, seed: int, lives: int, known: search.Known) -> Any:
        if len(made) == 3 and "killed" not in marks:
            marks.add("killed")
            raise KeyboardInterrupt
        made.append((name, seed))
        return run(name, task, kind, seed, lives, known)

    marks: set[str] = set()
    monkeypatch.setattr(search, "run", counted)
    with pytest.raises(KeyboardInterrupt):
        script.main([*arguments, str(tmp_path / "killed")])
    assert script.main([*arguments, str(tmp_path / "killed")]) == 0
    assert made == [("random", 1), ("random search", 1), ("random", 2), ("random search", 2)]
    assert script.main([*arguments, str(tmp_path / "whole")]) == 0

    def told(folder: str) -> list[Any]:
        data = json.loads((tmp_path / folder / "search_cartpole_narrow.json").read_text())
        return [
            (run["contestant"], run["turn"], *(run["result"][key] for key in ("steps", "training", "solved", "trials")))
            for run in data["runs"]
        ]

    assert told("killed") == told("whole")
    assert len(told("whole")) == 4


def test_results_of_sequential_confirmations_stand_apart(tmp_path: Path) -> None:
    """And those of full ones are settled as they always were, so that files which are there go on."""
    full, early = Kept(tmp_path, "cartpole", "narrow", 20), Kept(tmp_path, "cartpole", "narrow", 20, "sequential")
    assert not {"confirmation", "lowest"} & full.data["settings"].keys()
    assert (early.data["settings"]["confirmation"], early.data["settings"]["lowest"]) == ("sequential", 0.0)
    assert early.path.name == "search_cartpole_narrow_sequential.json"
    assert early.data["measurement"] in survival.NAMES
    assert early.data["command"].endswith("--confirm sequential")
    early.add("prior", 1, search.Outcome(10, 5, True, 1, 0.1, search.Audit(480.123, 470.0)))
    assert json.loads(early.path.read_text())["runs"][0]["result"]["audit"] == [480.12, 470.0]
    assert not full.path.exists()


def test_results_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "cartpole", "narrow", 20)
    kept.add("prior", 1, search.Outcome(10, 5, True, 1, 0.1))
    assert Kept(tmp_path, "cartpole", "narrow", 20).has("prior", 1)
    with pytest.raises(SystemExit, match="holds runs of other settings"):
        Kept(tmp_path, "cartpole", "narrow", 10)


# --- the page ---------------------------------------------------------------------------------------------------------


def _result() -> dict[str, Any]:
    """Four seeds: `prior` needs a fourth of what random search needs, which is censored once."""
    found = {"prior": [(1000, True)] * 4, "random search": [(4000, True)] * 3 + [(9999, False)]}
    runs = [
        {
            "turn": seed + 1,
            "contestant": name,
            "load": 1.0,
            "result": {"steps": steps, "training": steps // 2, "solved": solved},
        }
        for name, each in found.items()
        for seed, (steps, solved) in enumerate(each)
    ]
    settings = {"task": "cartpole", "space": "hard", "target": 475.0, "lives": 4, "life": 1000}
    machine = {"cpu": "one", "device": "cpu", "cores": [[0]], "revision": "abc"}
    about = {"measurement": "search_cartpole_hard", "command": "python benchmarks/search.py cartpole", "lanes": 1}
    contestants = [{"name": name} for name in found]
    return {**about, "settings": settings, "machine": machine, "contestants": contestants, "runs": runs}


def test_the_page_has_means_shares_tests_and_draws_that_solve() -> None:
    text = "\n".join(survival.section({"search_cartpole_hard": _result(), "td3": {}}))
    assert "| **prior** | configured | 4 of 4 | 1.0 [1.0, 1.0] | 0.5 | – | – |" in text
    p = survival.log_rank(runs(*[1000] * 4), runs(4000, 4000, 4000, 4000, censored=1))
    row = "| random search | drawn | 3 of 4 | 4.0 [4.0, 4.0] | 2.7 | – | 0.25 × [0.25, 0.25], p"
    assert f"{row} {survival._p(p)} |" in text
    assert 0.001 < p < 0.02
    assert "Target 475; 60% of 128 draws solve it." in text
    assert "4 turns" in text
    assert "images/bench-search-cartpole-hard.svg" in text
    assert "Not measured yet." in survival.section({})


def test_the_page_counts_winners_that_an_audit_refutes() -> None:
    result = _result()
    for run in result["runs"]:
        ours = run["contestant"] == "prior"
        run["result"]["audit"] = [480.0, 474.9] if ours else [474.0, 475.0] if run["result"]["solved"] else None
    result["settings"]["confirmation"] = "sequential"
    text = "\n".join(survival.section({"search_cartpole_hard_sequential": result}))
    assert "### CartPole, PPO, hard space, sequential confirmation" in text
    assert "| – | – | 0, 4 |" in text
    assert "| 3, 0 |" in text
    assert "false winners |" not in "\n".join(survival.section({"search_cartpole_hard": _result()}))


def test_survival_curves_are_drawn_the_same_for_the_same_results() -> None:
    from harness.plots import plots

    first = plots({"search_cartpole_hard": _result()})
    assert list(first) == ["bench-search-cartpole-hard.svg"]
    assert first == plots({"search_cartpole_hard": _result()})
    assert b"random search" in first["bench-search-cartpole-hard.svg"]
