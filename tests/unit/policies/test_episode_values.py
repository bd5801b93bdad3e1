"""What policies at play are given and hand on, step by step, against scripted environments; and how they are drawn."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import populations
from evopipe import evaluate
from evopipe.envs.make import opened
from evopipe.envs.spaces import ObservationSpace
from evopipe.envs.team import read_spaces
from evopipe.policies import policy
from evopipe.policies.board import TextFrames
from evopipe.policies.card import _columns
from evopipe.policies.play import environment_of, play
from evopipe.policies.policy import Policy, TeamPolicy
from evopipe.run.spec import EnvSpec, first_members
from populations import TEAM

AGENTS = ("red_0", "blue_0", "red_1")


def described(p: EnvSpec) -> dict[str, Any]:
    with opened(p.env) as env:
        _, known = read_spaces(env)
    about = {"algo": p.train.algo, "config": p.algo_config.model_dump(mode="json"), **known}
    return {**about, "env": {"id": p.env.id, "kwargs": p.env.kwargs}}


def made(folder: Path, env: str, algo: str, change: dict[str, Any] | None = None, **more: Any) -> Any:
    p = populations.problem(env, algo, **more)
    policy.save(folder, p.train.algo, first_members(p, 1)[0][0], {**described(p), **(change or {})}, False, "card\n")
    return policy.load(folder)


class Scripted:
    """Plays what is written, and keeps the actions that it was sent."""

    def __init__(self, steps: list[tuple[Any, ...]], **has: Any) -> None:
        self._steps = iter(steps)
        self.sent: list[Any] = []
        self.__dict__ |= has

    def step(self, action: Any) -> Any:
        self.sent.append(action)
        *found, left = next(self._steps)
        self.agents = left
        return found


@pytest.mark.parametrize(("end", "terminated"), [((True, False), True), ((False, True), False), ((True, True), True)])
def test_an_episode_hands_memory_and_masks_on(
    end: tuple[bool, bool], terminated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = made(tmp_path / "elite", "CartPole-v1", "dqn")
    assert isinstance(actor, Policy)
    asked: list[Any] = []

    def step(obs: Any, memory: Any = None, mask: Any = None) -> Any:
        asked.append((obs, memory, mask))
        return np.int64(len(asked)), f"memory {len(asked)}"

    monkeypatch.setattr(actor, "step", step)
    steps = [("o1", 1.5, False, False, {"action_mask": "m1"}, ()), ("o2", -2.0, False, False, {}, ()),
             ("o3", 4.0, *end, {}, ()), ("o4", 8.0, False, False, {}, ())]  # fmt: skip
    for limit, kept in ((2, 2), (9, 3)):
        asked.clear()
        env = Scripted(steps)
        moments = [*actor.episode(env, nullcontext, ("o0", {"action_mask": "m0"}), limit)]
        assert moments == [(1.5, False), (-2.0, False), (4.0, terminated)][:kept]
        assert asked == [("o0", None, "m0"), ("o1", "memory 1", "m1"), ("o2", "memory 2", None)][:kept]
        assert env.sent == [1, 2, 3][:kept]
        assert all(type(action) is int for action in env.sent)


@pytest.mark.parametrize("score", ["sum", "mean"])
def test_a_team_plays_until_the_last_agent_is_gone(score: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose turn it is not has the first action alone; who is gone neither acts nor earns; the environment's own
    actions replace the policy's."""
    actor = made(tmp_path / "elite", TEAM, "maddpg", config={"score": score})
    assert isinstance(actor, TeamPolicy)
    red, blue, other = AGENTS
    asked: list[Any] = []

    def step(obs: Any, memory: Any = None, mask: Any = None) -> Any:
        asked.append((obs, memory, {agent: np.asarray(own).tolist() for agent, own in mask.items()}))
        return dict.fromkeys(obs, 7), f"memory {len(asked)}"

    monkeypatch.setattr(actor, "step", step)
    nobody = dict.fromkeys(AGENTS, False)
    steps = [
        ({red: "r1", blue: "b1", other: "o1"}, {red: 1.0, blue: 2.0, other: 6.0}, {**nobody, blue: True}, nobody,
         {red: {"env_defined_actions": 3}, other: {"action_mask": [1, 0, 1, 1]}}, [*AGENTS]),
        ({red: "r2", other: "o2"}, {red: 1.0, blue: 99.0, other: 2.0}, {red: False, other: False},
         {red: True, other: False}, {}, [red, other]),
        ({other: "o3"}, {other: 5.0}, {other: True}, {other: False}, {}, [other]),
        ({}, {}, {}, {}, {}, []),
    ]  # fmt: skip
    env = Scripted(steps, agents=[*AGENTS], ids=AGENTS, turn=None)
    begun = ({red: "r0", blue: "b0", other: "o0"}, {red: {"action_mask": [0, 1]}, blue: {}})
    moments = [*actor.episode(env, nullcontext, begun, 9)]
    parts = 1 if score == "sum" else 3
    assert moments == [(9.0 / parts, False), (3.0 / parts, False), (5.0 / parts, True)]
    assert asked == [
        ({red: "r0", blue: "b0", other: "o0"}, None, {red: [0, 1]}),
        ({red: "r1", other: "o1"}, "memory 1", {other: [1, 0, 1, 1]}),
        ({other: "o2"}, "memory 2", {}),
    ]
    assert env.sent == [dict.fromkeys(AGENTS, 7), {red: 3, other: 7}, {other: 7}]
    asked.clear()
    env = Scripted(steps, agents=[*AGENTS], ids=AGENTS, turn=blue)
    assert len([*actor.episode(env, nullcontext, begun, 1)]) == 1
    assert asked[0][2] == {red: [True, False], other: [True, False, False, False]}


@pytest.mark.parametrize("truncated", [False, True])
def test_all_agents_must_reach_an_end_for_a_team_to_have_reached_one(truncated: bool, tmp_path: Path) -> None:
    actor = made(tmp_path / "elite", TEAM, "maddpg")
    obs = {agent: np.zeros(space.size, np.float32)
           for agent, space in zip(AGENTS, actor.team.observations, strict=True)}  # fmt: skip
    ends = dict.fromkeys(AGENTS, True)
    some = {**ends, "red_1": not truncated}
    env = Scripted([(obs, dict.fromkeys(AGENTS, 1.0), some, ends, {}, [])], agents=[*AGENTS], ids=AGENTS, turn=None)
    assert [*actor.episode(env, nullcontext, (obs, {}), 5)] == [(3.0, not truncated)]


def test_episodes_to_evaluate_have_the_seeds_from_the_first_on(tmp_path: Path) -> None:
    actor = made(tmp_path / "elite", "CartPole-v1", "dqn")
    expected = []
    for seed in (7, 8, 9):
        env = gymnasium.make("CartPole-v1")
        (obs, _), total, over = env.reset(seed=seed), 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(actor.act(obs))
            total, over = total + float(reward), terminated or truncated
        expected.append(total)
    assert evaluate(actor, episodes=3, seed=7).tolist() == expected
    assert [play(actor, seed).total for seed in (7, 8, 9)] == expected


def test_a_policy_plays_behind_its_own_wrappers(tmp_path: Path) -> None:
    env = {"id": "CartPole-v1", "kwargs": {}, "wrappers": [{"name": "TimeLimit", "kwargs": {"max_episode_steps": 4}}]}
    actor = made(tmp_path / "elite", "CartPole-v1", "dqn", {"env": env})
    cfg = environment_of(actor)
    assert [(wrapper.name, wrapper.kwargs) for wrapper in cfg.wrappers] == [("TimeLimit", {"max_episode_steps": 4})]
    played = play(actor)
    assert (played.total, played.terminated) == (4.0, False)


@pytest.mark.parametrize("critic", [False, True])
def test_a_critic_is_stored_where_it_was_asked_for(critic: bool, tmp_path: Path) -> None:
    from safetensors import safe_open

    p = populations.problem("Pendulum-v1", "ddpg")
    policy.save(tmp_path / "elite", "ddpg", first_members(p, 1)[0][0], described(p), False, "card\n", critic=critic)
    with safe_open(tmp_path / "elite" / policy.TENSORS, "np") as file:
        others = [name for name in file.keys() if name.startswith("critic")]  # noqa: SIM118
    assert bool(others) == critic


def test_the_card_tells_columns_as_they_are() -> None:
    for space, said in (
        (spaces.Discrete(3), "one-hot, 3 values from 0 on"),
        (spaces.Discrete(3, start=5), "one-hot, 3 values from 5 on"),
        (spaces.MultiDiscrete([2, 4]), "one-hot each, 2, 4 values from 0 on"),
        (spaces.MultiDiscrete([2, 4], start=[1, -3]), "one-hot each, 2, 4 values from [1, -3] on"),
        (spaces.Box(-1.0, 1.0, (3,), np.float32), "its numbers"),
    ):
        (leaf,) = ObservationSpace.of(space).leaves
        assert _columns(leaf) == said


def test_a_drawn_board_has_the_size_of_its_first_text() -> None:
    """Two columns wider than the longest line; what follows is drawn at the same size."""
    texts = ["x" * 70 + "\n" + "y", "z"]
    env: Any = SimpleNamespace(metadata={}, render=lambda: texts.pop(0))
    drawn = TextFrames.__new__(TextFrames)
    drawn.env, drawn._size = env, None
    first, second = drawn.render(), drawn.render()
    assert drawn._size is not None
    assert drawn._size[0] == 72
    assert first.shape == second.shape
