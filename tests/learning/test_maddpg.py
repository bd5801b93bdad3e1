"""MADDPG learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green.

In speaker and listener a return is summed over both agents. Who flies to the landmarks' centre, which needs no word,
gets -28. A script that knows the goal from the first step gets -11, and -14.5 where actions are discrete.
"""

from __future__ import annotations

import pytest

from learned import SEEDS, run

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]


def test_speaker_and_listener_talk_by_their_pipeline(seed: int) -> None:
    result = run("pipelines/maddpg-speaker-listener/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -18


def test_speaker_and_listener_talk_with_discrete_actions(seed: int) -> None:
    # Starts are so unlike that the script's mean of 100 is -17.3 with seed 1, -11 with seed 3: more of them are needed.
    settings = [
        ("env.kwargs.continuous_actions", "false"),
        ("train.max_steps", "160000"),
        ("evaluate.episodes", "1000"),
    ]
    result = run("pipelines/maddpg-speaker-listener/params.yaml", seed, settings)
    assert result.evaluation["episodes"] == 1000
    assert result.evaluation["elite"]["mean"] >= -18


def test_predators_catch_a_prey_that_does_not_learn(seed: int) -> None:
    """A touch counts 10 for each of the three. Random predators get 1; those that all fly straight at the prey get 36,
    and `fixed_prey.rule` makes it flee from the nearest."""
    settings = [("env.backend", "sync"), ("env.wrappers", "[fixed_prey:Predators]"), ("train.max_steps", "32000")]
    result = run("pipelines/maddpg-tag/params.yaml", seed, settings)
    assert result.evaluation["elite"]["groups"].keys() == {"adversary"}
    assert result.evaluation["elite"]["mean"] >= 36
