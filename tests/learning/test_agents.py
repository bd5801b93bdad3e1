"""Agents learn: three ways to say the same game, from random weights."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import evopipe
from evopipe.agents import ChatAgent, CopyGame, Model, MultiTurnWorkflow

STEPS = 100


async def copies(task: dict[str, Any], model: Model) -> list[float]:
    messages, rewards = [], []
    for digit in task["digits"]:
        messages.append({"role": "user", "content": digit})
        said = (await model.get_model_response(messages)).content
        messages.append({"role": "assistant", "content": said})
        rewards.append(float(said == digit))
    return rewards


WAYS: dict[str, dict[str, Any]] = {
    "agent": {"agent_class": ChatAgent, "env_class": CopyGame},
    "workflow": {
        "workflow_class": MultiTurnWorkflow, "workflow_args": {"agent_cls": ChatAgent, "env_cls": CopyGame},
    },
    "function": {"flow": copies},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("way", list(WAYS))
def test_three_turns_of_copying_are_learned_from_scratch(way: str, seed: int) -> None:
    found = evopipe.AgentTrainer(
        **WAYS[way],
        config={
            "seed": seed, "data.train_batch_size": 8, "data.max_response_length": 1,
            "actor_rollout_ref.rollout.n": 8, "actor_rollout_ref.actor.optim.lr": 2e-3,
            "actor_rollout_ref.actor.use_kl_loss": False, "language.tiny.characters": "0123456789",
            "language.full": True, "trainer.total_training_steps": STEPS, "trainer.test_freq": 50,
            "agents.advantage": "turn", "agents.gamma": 0.0,
        },
        train_dataset=CopyGame.tasks(256, seed),
        val_dataset=CopyGame.tasks(64, 99),
    ).train()  # fmt: skip
    first, last = found.measures[0], found.measures[-1]
    assert first["reward"] < last["reward"]
    assert found.evaluation["elite"]["mean"] / 3 >= 0.85
    assert last["reward"] / 3 >= 0.8  # drawn, the mean of the last half
    assert last["drift"] < 1e-4


RATES = {
    "size": 4,
    "evolve": {"lr": {"min": 1e-5, "max": 1e-2, "grow": 10.0, "shrink": 0.1}},
    "tournament": {"window": 1},
    "mutation": {"probabilities": {"none": 0.0, "rl_hp": 1.0}},
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_population_finds_the_learning_rate_that_one_member_lacks(seed: int) -> None:
    """All begin with a rate that is a hundred times too low; the same steps of each member."""
    scores = {}
    for population in (RATES, None):
        found = evopipe.AgentTrainer(
            agent_class=ChatAgent,
            env_class=CopyGame,
            population=population,
            config={
                "seed": seed, "data.train_batch_size": 8, "data.max_response_length": 1,
                "actor_rollout_ref.rollout.n": 8, "actor_rollout_ref.actor.optim.lr": 1e-5,
                "actor_rollout_ref.actor.use_kl_loss": False, "language.tiny.characters": "0123456789",
                "language.full": True, "trainer.total_training_steps": 120, "trainer.test_freq": 10,
                "train.eval_episodes": 32, "agents.advantage": "turn", "agents.gamma": 0.0,
            },
            train_dataset=CopyGame.tasks(256, seed),
            val_dataset=CopyGame.tasks(64, 99),
        ).train()  # fmt: skip
        scores[population is not None] = found.evaluation["elite"]["mean"] / 3
    assert scores[True] >= 0.75  # 1.0, .81, 1.0
    assert scores[False] <= 0.3  # .05, .13, .09


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rounds_of_weights_four_rounds_old_teach_as_well_where_they_are_corrected(seed: int) -> None:
    """A digit is copied, as completions are drawn, by all but a few of a hundred tasks."""
    tasks = CopyGame.tasks(100, turns=1)
    config = {
        "seed": seed, "data.train_batch_size": 8, "actor_rollout_ref.rollout.n": 8, "data.max_response_length": 1,
        "language.tiny.characters": "0123456789", "language.tiny.hidden": 32, "language.tiny.layers": 1,
        "language.tiny.heads": 2, "language.full": True, "agents.advantage": "turn", "agents.temperature": 1.0,
        "agents.staleness": 4, "trainer.total_training_steps": 150, "trainer.test_freq": 150,
        "train.eval_episodes": 100, "algos.grpo.lr": 5e-3, "algos.grpo.beta": 0.0, "algos.grpo.evolve": {},
        "algos.grpo.correction": "token_truncate",
    }  # fmt: skip
    found = evopipe.AgentTrainer(
        agent_class=ChatAgent, env_class=CopyGame, train_dataset=tasks, val_dataset=tasks, config=config
    ).train()
    assert found.measures[-1]["drift"] > 0.1
    assert found.score >= 0.95
