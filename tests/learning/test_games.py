"""Players of games learn: what the committed pipelines of Wordle reach, over several seeds, in games drawn anew.

Thresholds are never lowered to get green.
"""

from __future__ import annotations

import os
import timeit
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evopipe import layout
from evopipe.language.data import read_jsonl
from evopipe.language.tokens import games as split
from evopipe.machine import configure
from evopipe.parallel import available_cpus
from evopipe.params.text import LanguageParams
from evopipe.problems.text import make_spec, regime_of
from evopipe.problems.text_data import task_of
from evopipe.regimes.text import TextRows
from evopipe.run.clock import Clock
from evopipe.run.population import about_spec
from evopipe.run.spec import first_members
from evopipe.storage import members as stored
from evopipe.storage.files import read_json
from learned import SEEDS, run

pytestmark = pytest.mark.slow

WORDLE = "pipelines/wordle/"
SECONDS = 90.0  # of two cores: what either training may take
RATES = (1e-5, 3e-5, 1e-4, 3e-4)


def behaviour(folder: Path) -> float:
    """The mean return of the games that were learned from: a guess costs 1, the right one nothing."""
    rows = read_jsonl(folder / layout.TEXT, "games")
    return float(np.mean([("g" * len(row["guesses"][0]) in row["colours"]) - len(row["guesses"]) for row in rows]))


def worked() -> float:
    """Seconds of processors: this process's, and those of its helpers that have ended."""
    return sum(os.times()[:4])


@pytest.mark.parametrize("seed", SEEDS)
def test_cloned_players_play_as_those_whose_games_they_read_and_better_ones_better(seed: int, tmp_path: Path) -> None:
    cloned, better = tmp_path / "bc", tmp_path / "ilql"
    began = worked()
    before = run(f"{WORDLE}bc-wordle/params.yaml", seed, folder=cloned).evaluation["elite"]
    took = worked() - began
    assert before["mean"] == pytest.approx(behaviour(cloned), abs=0.15)
    start = [("population.start", str(cloned / layout.ELITE))]
    began = worked()
    after = run(f"{WORDLE}ilql-wordle/params.yaml", seed, start, better).evaluation["elite"]
    assert after["mean"] >= before["mean"] + 0.25
    assert max(took, worked() - began) <= 2 * SECONDS


@pytest.mark.parametrize("seed", SEEDS)
def test_evolution_improves_on_the_worst_setting_that_members_begin_with(seed: int, tmp_path: Path) -> None:
    """Four rates, too low by up to a hundred times: what evolves of them against the lowest by itself."""
    params = LanguageParams.model_validate({
        "seed": seed,
        "language": {"model": "gpt", "task": "wordle", "gpt": {"hidden": 32, "heads": 2, "feedforward": 64}},
        "fetch": {"generate": {"rows": 4000}},
        "population": {"size": 4},
        "train": {"algo": "bc_language", "max_steps": 300, "evo_steps": 30, "eval_episodes": 128},
        "evolution": {
            "tournament": {"window": 1},
            "mutation": {"probabilities": {"none": 0.0, "architecture": 0.25, "rl_hp": 0.75}},
        },
        "evaluate": {"episodes": 500},
        "algos": {"bc_language": {
            "batch_size": 64, "evolve": {"lr": {"min": 1e-5, "max": 1e-2, "grow": 10.0, "shrink": 0.1}},
        }},
    })  # fmt: skip
    evolved, _ = trained(params, tmp_path / "evolved", RATES)
    alone = params.model_copy(update={
        "train": params.train.model_copy(update={"evo_steps": 300}),
        "population": params.population.model_copy(update={"size": 1}),
    })  # fmt: skip
    worst, _ = trained(alone, tmp_path / "worst", RATES[:1])
    assert evolved["mean"] >= worst["mean"] + 0.25


@pytest.mark.parametrize("algo", ["bc_language", "ilql"])
@pytest.mark.parametrize(
    ("gpt", "games"),
    [
        ({"hidden": 16, "layers": 1, "heads": 1, "feedforward": 16}, 8),
        pytest.param({}, None, marks=pytest.mark.skipif(available_cpus() < 4, reason="needs a CPU for each of four")),
    ],
    ids=["tiny", "pipeline"],
)
def test_four_gpts_learn_in_twice_the_time_of_one(algo: str, gpt: dict[str, int], games: int | None) -> None:
    """Tiny ones in one process, for what a batch saves is dispatch. Those of the pipelines fill a CPU with arithmetic:
    they are divided among CPUs, as a run divides them."""
    one, four = (learning(algo, members, gpt, games) for members in (1, 4))
    ratios = []
    for _ in range(30):
        seconds = [timeit.timeit(each.advance, number=10 if games else 2) for each in (one, four)]
        ratios.append(seconds[1] / seconds[0])
    assert len(four.learners._helpers) == (0 if games else 3)
    four.close()
    assert np.median(ratios[5:]) <= 2.0


def learning(algo: str, members: int, gpt: dict[str, int], games: int | None) -> TextRows:
    params = LanguageParams.model_validate({
        "language": {"model": "gpt", "task": "wordle", "gpt": gpt},
        "fetch": {"generate": {"rows": 1000}},
        "population": {"size": members},
        "train": {"algo": algo, "max_steps": 1000, "evo_steps": 1000},
        "algos": {algo: {"batch_size": games} if games else {}},
    })  # fmt: skip
    spec, task = make_spec(params, configure(params.runtime)), task_of(params.language)
    rows = task.rows(np.random.default_rng(0), 1000)
    corpus, clock = split(rows, task.encode(rows), spec.base, params.fetch, 1), Clock.of(spec, members)
    made: Any = regime_of(spec, clock, corpus, 1 if games else 4)
    made.adopt(spec.form(first_members(spec, members)[0]))
    return made


def trained(params: LanguageParams, folder: Path, rates: tuple[float, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The elite's and all members' scores, where the first members have these rates."""
    stages(params, folder, "fetch", "buffer", "population")
    spec = make_spec(params)
    first, about = stored.read(folder / layout.POPULATION, about_spec(spec), "", spec.check)
    first = [replace(member, hyper={**member.hyper, "lr": rate}) for member, rate in zip(first, rates, strict=True)]
    stored.write(folder / layout.POPULATION, first, {**about_spec(spec), "mutations": about["mutations"]})
    stages(params, folder, "train", "evaluate")
    return read_json(folder / layout.EVALUATION)["elite"], read_json(folder / layout.MEMBERS)


def stages(params: LanguageParams, folder: Path, *names: str) -> None:
    for name in names:
        import_module(f"evopipe.stages.{name}").run(params, quiet=True, folder=folder)
