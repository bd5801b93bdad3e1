"""Strategies that begin with nothing but a space solve CartPole within their budget, though many draws of it do not.

Thresholds are never lowered to get green.
"""

from __future__ import annotations

from typing import Any

import pytest

import evopipe
from learned import SEEDS

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]

BUDGET = 1_000_000
RANGES = {"lr": {"min": 1e-6, "max": 1e-1}, "ent_coef": {"min": 0.0, "max": 0.5}, "clip": {"min": 0.01, "max": 0.5}}


def searched(strategy: str, seed: int, life: int = 65_536) -> evopipe.Result:
    """Train CartPole by a strategy, and tell what it took."""
    params: dict[str, Any] = {
        "seed": seed,
        "env": {"id": "CartPole-v1", "num_envs": 16, "backend": "torch"},
        "population": {"size": 8},
        "train": {"algo": "ppo", "max_steps": life, "evo_steps": 8192, "eval_episodes": 8, "target": 475.0,
                  "target_sigmas": 0.0, "evaluation": "race"},
        "search": {"strategy": strategy, "budget": BUDGET},
        "algos": {"ppo": {"evolve": RANGES}},
        "runtime": {"device": "cpu", "env_workers": 0, "learners": 1},
        "evaluate": {"episodes": 100},
        "export": {"program": False},
        "tracking": {"backends": []},
    }  # fmt: skip
    result = evopipe.train(params)
    steps = result.summary["steps"]
    print({"strategy": strategy, "seed": seed, "steps": steps, "generations": len(result.lineage) - 1})
    return result


@pytest.mark.parametrize("strategy", ["pbt", "pb2", "mf_pbt"])
def test_a_population_that_copies_its_best_solves_cartpole(strategy: str, seed: int) -> None:
    """All members live, each with values of the space, and copies of the best explore from there."""
    result = searched(strategy, seed, life=131_072)
    assert result.summary["reason"] == "target"
    assert result.summary["steps"]["all"] < BUDGET
    assert result.evaluation["elite"]["mean"] >= 450.0
    assert all(len(record.members) == 8 for record in result.lineage[1:])
    copied = [child for record in result.lineage[1:-1] for child in record.children if child.parent_slot != child.slot]
    assert copied
    assert any(child.mutation.kind == "rl_hp" for child in copied), "who copies another has values of its own"


@pytest.mark.parametrize("strategy", ["halving", "growth"])
def test_a_search_solves_cartpole_within_its_budget(strategy: str, seed: int) -> None:
    """The member that is found scores as well on episodes that nobody has seen."""
    result = searched(strategy, seed)
    assert result.summary["reason"] == "target"
    assert result.summary["steps"]["all"] < BUDGET
    assert result.evaluation["elite"]["mean"] >= 450.0
    assert all(len(record.members) == 1 for record in result.lineage[1:]), "one member lives at a time"
    told = [child.why for record in result.lineage[1:-1] for child in record.children]
    assert all(told), "the lineage says of every slot why its member is there"
