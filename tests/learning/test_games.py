"""Players of games learn: what the committed pipelines of Wordle reach, over several seeds, in games drawn anew.

Thresholds are never lowered to get green.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evopipe import algos, layout
from evopipe.core.net import Net
from evopipe.language.data import read_jsonl
from evopipe.language.gpt import GPT, Block
from evopipe.language.tasks.wordle import Wordle
from evopipe.ops import language as ops
from evopipe.schema.text import LanguageParams
from evopipe.stages.language.setup import about_spec, make_spec
from evopipe.storage import members as stored
from evopipe.storage.files import read_json
from evopipe.types import Words
from learned import SEEDS, run

pytestmark = pytest.mark.slow

WORDLE = "pipelines/wordle/"
SECONDS = 90.0  # of two cores: what either training may take
RATES = (1e-5, 3e-5, 1e-4, 3e-4)


def behaviour(folder: Path) -> float:
    """The mean return of the games that were learned from: a guess costs 1, the right one nothing."""
    rows = read_jsonl(folder / layout.TEXT, "games")
    return float(np.mean([("g" * len(row["guesses"][0]) in row["colours"]) - len(row["guesses"]) for row in rows]))


@pytest.mark.parametrize("seed", SEEDS)
def test_cloned_players_play_as_those_whose_games_they_read_and_better_ones_better(seed: int, tmp_path: Path) -> None:
    cloned, better = tmp_path / "bc", tmp_path / "ilql"
    began = time.process_time()
    before = run(f"{WORDLE}bc-wordle/params.yaml", seed, folder=cloned).evaluation["elite"]
    took = time.process_time() - began
    assert before["mean"] == pytest.approx(behaviour(cloned), abs=0.15)
    start = [("population.start", str(cloned / layout.ELITE))]
    began = time.process_time()
    after = run(f"{WORDLE}ilql-wordle/params.yaml", seed, start, better).evaluation["elite"]
    assert after["mean"] >= before["mean"] + 0.25
    assert max(took, time.process_time() - began) <= 2 * SECONDS


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


def test_four_tiny_gpts_learn_in_twice_the_time_of_one() -> None:
    """As small as in the quick tests: what a batch saves is dispatch, and with more arithmetic that is less."""

    def learner(members: int) -> Callable[[], object]:
        task, algo, cfg = Wordle(), algos.get("ilql"), algos.get("ilql").Config()
        arch = GPT((Block(1, 16),), 16, 16, task.length)
        nets = {}
        for name, widths in algo.networks(cfg, Words(len(task.tokens), 16)).items():  # type: ignore[arg-type]
            structure = arch.stack([arch] * members, widths, torch.device("cpu"))
            rows = [arch.initialise(widths, np.random.default_rng(p)) for p in range(members)]
            nets[name] = Net(structure, structure.pack(rows), trainable=True)
        told = task.encode(task.rows(np.random.default_rng(0), 8))
        parts = (torch.from_numpy(x) for x in (told.ids, told.real, told.acts, told.reward, told.done))
        batch = ops.games(*(x.expand(members, -1, -1) for x in parts))
        hp = {name: torch.full((members,), value) for name, value in cfg if isinstance(value, float)}
        state, healthy = algo.init(cfg, nets), torch.ones(members, dtype=torch.bool)
        return lambda: algo.update(cfg, state, hp, batch, healthy, None, 0)

    one, four = learner(1), learner(4)
    ratios = []
    for _ in range(30):
        seconds = [timeit.timeit(each, number=10) for each in (one, four)]
        ratios.append(seconds[1] / seconds[0])
    assert np.median(ratios[5:]) <= 2.0


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
        import_module(f"evopipe.stages.language.{name}").run(params, quiet=True, folder=folder)
