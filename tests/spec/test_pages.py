"""The scripts of the specification's pages: the same calls in the same order with the same names, made short.

The slow ones are as long as on the pages, and must reach what they are after.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

import off_policy
import on_policy

SHORT = {"num_envs": 2, "pop_size": 2}
TARGET = 200.0


def checked(result: Any, generations: int) -> list[list[float]]:
    """The fitnesses of a short run, of which each agent has one a generation."""
    pop, fitnesses = result
    assert [len(each) for each in fitnesses] == [len(pop)] * generations
    assert np.isfinite(fitnesses).all()
    assert all(agent.member.healthy for agent in pop)
    found: list[list[float]] = fitnesses
    return found


def test_off_policy_training_function() -> None:
    checked(off_policy.train(**SHORT, max_steps=160, evo_steps=80, learning_delay=20, target=None), 2)


@pytest.mark.thorough
def test_off_policy_loop() -> None:
    pop, _ = result = off_policy.loop(**SHORT, max_steps=160, evo_steps=80, learning_delay=64)
    checked(result, 2)
    assert [agent.steps for agent in pop] == [[80, 160, 160]] * 2
    assert max(agent._learned for agent in pop) > 0


def test_on_policy_training_function() -> None:
    checked(on_policy.train(**SHORT, max_steps=256, evo_steps=128, target=None), 2)


def test_on_policy_loop() -> None:
    pop, _ = result = on_policy.loop(**SHORT, max_steps=256, evo_steps=128)
    checked(result, 2)
    assert all(agent._learned >= 2 for agent in pop)


def test_on_policy_loop_with_actions_between_bounds() -> None:
    checked(on_policy.loop("LunarLanderContinuous-v3", **SHORT, max_steps=128, evo_steps=128), 1)


def test_recurrent_loop() -> None:
    pop, _ = result = on_policy.recurrent(**SHORT, max_steps=128, evo_steps=128)
    checked(result, 1)
    assert all(agent.recurrent for agent in pop)


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("script", [off_policy, on_policy])
def test_the_training_function_reaches_the_target(script: Any) -> None:
    """LunarLander as on the page, to the page's own target, within its steps. The run ends there once it is certain: of
    DQN it is, of PPO it may be so near the last steps that these end it."""
    pop, fitnesses = script.train()
    assert max(map(max, fitnesses)) >= TARGET
    assert script is on_policy or pop[0].steps[-1] < 200_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "max_steps"), [(off_policy.loop, 200_000), (on_policy.loop, 600_000), (on_policy.recurrent, 200_000)]
)
def test_loops_of_ones_own_reach_the_target(loop: Any, max_steps: int) -> None:
    """LunarLander as on the page. A loop ends before its last step where a test reaches the target, or, as on the page
    of PPO with a memory, training's scores do; plain PPO may take longer than the page's 200,000 steps."""
    pop, history = loop(max_steps=max_steps, target=TARGET)
    assert max(agent.steps[-1] for agent in pop) < max_steps, history[-1]
