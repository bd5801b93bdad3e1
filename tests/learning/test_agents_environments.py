"""Agents learn in environments that were written for other libraries, from random weights.

Thresholds are never lowered to get green.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

import evopipe
from adapted_envs import Digits
from learned import SEEDS

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]

USUAL = {
    "language.tiny.characters": "0123456789", "language.full": True, "data.max_response_length": 1,
    "data.train_batch_size": 8, "actor_rollout_ref.rollout.n": 8, "actor_rollout_ref.actor.optim.lr": 2e-3,
    "actor_rollout_ref.actor.use_kl_loss": False, "trainer.total_training_steps": 80, "trainer.test_freq": 40,
    "agents.advantage": "turn", "agents.gamma": 0.0,
}  # fmt: skip


def scored(seed: int, **how: Any) -> float:
    """Return the mean reward of a turn, of the elite, on tasks that nobody trained on."""
    found = evopipe.AgentTrainer(config={**USUAL, "seed": seed}, **how).train()
    assert found.evaluation["elite"]["failed"] == 0.0
    print(seed, found.curve[-1], found.score)
    return found.score / 3


def test_digits_of_a_text_space_are_said(seed: int) -> None:
    assert scored(seed, env_class=Digits) >= 0.9


def test_digits_of_a_server_of_openenv_are_said(seed: int) -> None:
    pytest.importorskip("websockets", reason="an extra of its own: pip install 'evopipe[openenv]'")
    from openenv_server import serving

    with serving() as (address, _):
        assert scored(seed, env_class=address) >= 0.9
