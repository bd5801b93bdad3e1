"""Actions that are several choices or bits: spaces, masks, the pool and its workers, resume, evaluation, policies."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import action_envs
import populations
from evopipe import algos
from evopipe.core.net import forward
from evopipe.envs.check import check
from evopipe.envs.pool import EnvPool
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.workers import Workers
from evopipe.errors import DataError, EnvironmentFailed, ParamsError, UsageError
from evopipe.ops.distributions import distribution
from evopipe.params.load import Params
from evopipe.policies import play as playing
from evopipe.policies.policy import Policy
from evopipe.problems.specs import spaces_of
from evopipe.rng import Purpose
from evopipe.run.act import act
from evopipe.run.evaluate import evaluate
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.env import EnvConfig
from evopipe.stages import fetch
from evopipe.types import Spaces
from tiny import params

NAMES = sorted(action_envs.SPACES)
MASKS = [
    ("Locks", "none"),
    ("Locks", "flat"),
    ("Locks", "tuple"),
    ("Table", "tuple"),
    ("Switches", "flat"),
    ("Grid", "none"),
]


def config(name: str, masks: str = "none", **more: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": f"action_envs:{name}-v0", "kwargs": {"masks": masks, **more}})


def space_of(name: str) -> ActionSpace:
    return ActionSpace.of(action_envs.SPACES[name])


def started(cfg: EnvConfig, rows: int, workers: Workers | None = None) -> EnvPool:
    pool = EnvPool(cfg, rows, workers=workers)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


def drawn(pool: EnvPool, generator: np.random.Generator) -> np.ndarray:
    """A random legal action of every row."""
    return np.stack([pool.actions.sample(pool.mask[row], generator) for row in range(pool.rows)])


def play(pool: EnvPool, ticks: int, seed: int = 3) -> list[list[bytes]]:
    """Random legal actions; ended rows begin anew. All there is to see."""
    generator, seen = np.random.default_rng(seed), []
    for tick in range(ticks):
        step = pool.step(drawn(pool, generator))
        over = np.flatnonzero(step.over)
        pool.reset(over, 1000 * tick + over)
        fields = [part.tobytes() for part in step.parts]
        seen.append([*fields, pool.obs.tobytes(), *(array.tobytes() for array in pool.state().values())])
    return seen


# --- spaces -----------------------------------------------------------------------------------------------------------

EXPECTED: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "Locks": ("multidiscrete", 9, (2, 3, 4)),
    "Table": ("multidiscrete", 8, (2, 3, 1, 2)),
    "Switches": ("multibinary", 5, (2, 2, 2, 2, 2)),
    "Grid": ("multibinary", 6, (2, 2, 2, 2, 2, 2)),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_an_algorithm_knows(name: str) -> None:
    kind, width, choices = EXPECTED[name]
    found = space_of(name).spaces(ObservationSpace.vector(4))
    assert found == Spaces(4, width, kind=kind, choices=choices)
    assert (found.action_shape, found.action_size, found.continuous) == ((len(choices),), len(choices), False)
    about = {"observations": 4, "actions": width, "continuous": False, "kind": kind, "choices": list(choices)}
    assert found.to_json() == about


def test_what_follows_from_the_kind_need_not_be_said() -> None:
    assert Spaces(4, 3) == Spaces(4, 3, False, (), "discrete", (3,))
    assert Spaces(4, 3, True) == Spaces(4, 3, True, (), "continuous", ())
    assert Spaces(4, 3, kind="multibinary").choices == (2, 2, 2)
    assert [Spaces(4, 3).action_shape, Spaces(4, 3, True).action_shape] == [(), (3,)]
    assert [Spaces(4, 3).action_size, Spaces(4, 3, True).action_size] == [1, 3]
    assert Spaces(4, 3).to_json() == {"observations": 4, "actions": 3, "continuous": False}
    assert Spaces(4, 3, True).to_json() == {"observations": 4, "actions": 3, "continuous": True}


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back_is_the_identity(name: str) -> None:
    theirs, ours = action_envs.SPACES[name], space_of(name)
    theirs.seed(0)
    own = np.stack([theirs.sample() for _ in range(200)])
    relative = ours.relative(own)
    assert (relative.shape, relative.dtype) == ((200, len(ours.choices)), np.int64)
    assert relative.min() == 0
    assert relative.max(axis=0).tolist() == [n - 1 for n in ours.choices]
    again = ActionSpace.from_json(ours.to_json())
    for space in (ours, again):
        np.testing.assert_array_equal(space.own(relative), own)
        assert (space.kind, space.size, space.choices) == (ours.kind, ours.size, ours.choices)
    assert all(theirs.contains(action) for action in ours.own(relative))
    assert ours.empty(3, 2).shape == (3, 2, len(ours.choices))
    assert ours.empty(3, 2).dtype == np.int64


def test_a_damaged_description_is_refused() -> None:
    with pytest.raises(ValueError, match="action_kind is 'graph'"):
        ActionSpace.from_json({**space_of("Locks").to_json(), "action_kind": "graph"})


def test_a_mask_in_parts_is_the_flat_one() -> None:
    space, flat = space_of("Locks"), np.array([1, 0, 0, 1, 1, 1, 1, 0, 1], np.int8)
    np.testing.assert_array_equal(space.flat_mask((flat[:2], flat[2:5], flat[5:])), flat)
    nested = ((np.array([1, 0]), np.array([0, 1, 1])), (np.array([1]), np.array([0, 1])))
    assert space_of("Table").flat_mask(nested).tolist() == [1, 0, 0, 1, 1, 1, 0, 1]
    batch = np.stack([flat, 1 - flat])
    np.testing.assert_array_equal(space.flat_mask((batch[:, :2], batch[:, 2:5], batch[:, 5:])), batch)
    with pytest.raises(
        ValueError, match=r"2 arrays of the shapes \[\[2\], \[7\]\], expected one for each choice, of t"
    ):
        space.flat_mask((flat[:2], flat[2:]))


def test_which_masks_leave_an_action() -> None:
    """Every choice needs an alternative; bits do not, for none need be set."""
    mask = np.array([[1, 0, 0, 1, 1, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0]], np.bool_)
    assert space_of("Locks").possible(mask).tolist() == [True, False, False]
    assert space_of("Switches").possible(np.zeros((2, 5), np.bool_)).tolist() == [True, True]
    assert ActionSpace.of(spaces.Discrete(9)).possible(mask & False).tolist() == [False] * 3


# --- the pool ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_pool_steps_as_the_environment_itself_does(name: str) -> None:
    pool, env = started(config(name), 1), gymnasium.make(f"action_envs:{name}-v0")
    generator, space = np.random.default_rng(0), pool.actions
    obs, _ = env.reset(seed=0)
    total = 0.0
    for _ in range(action_envs.STEPS):
        np.testing.assert_array_equal(pool.obs[0], obs)
        action = drawn(pool, generator)
        step = pool.step(action)
        obs, reward, _, truncated, _ = env.step(space.own(action)[0])
        total += float(reward)
        assert float(step.reward[0]) == pytest.approx(float(reward), abs=1e-6)
    assert step.truncated.tolist() == [truncated] == [True]
    assert pool.episode_return[0] == pytest.approx(total, abs=1e-5)
    pool.close()


@pytest.mark.parametrize("name", ["Locks", "Table"])
def test_both_forms_of_a_mask_mean_the_same(name: str) -> None:
    """The environment raises where an action is illegal: masks arrive in the right places."""
    flat, parts = started(config(name, "flat"), 4), started(config(name, "tuple"), 4)
    assert flat.masked
    assert flat.mask.shape == (4, flat.actions.size)
    assert not flat.mask.all()
    assert play(flat, 40) == play(parts, 40)


@pytest.mark.parametrize(("name", "masks"), MASKS)
@pytest.mark.thorough
def test_worker_processes_give_what_this_process_gives(name: str, masks: str) -> None:
    with Workers(2) as workers:
        here, there = started(config(name, masks), 5), started(config(name, masks), 5, workers)
        assert there.worker_count == 2
        assert play(here, 40) == play(there, 40)
        there.close()


@pytest.mark.parametrize(("name", "masks"), MASKS)
def test_a_restored_pool_goes_on_bit_for_bit(name: str, masks: str) -> None:
    pool = started(config(name, masks), 3)
    play(pool, action_envs.STEPS + 3)
    state = {key: array.copy() for key, array in pool.state().items()}
    assert state["actions"].shape == (int(state["length"].sum()), len(pool.actions.choices))
    assert state["length"].min() == 3
    other = EnvPool(config(name, masks), 3)
    assert not other.restore(state).any()
    assert play(other, 20, seed=9) == play(pool, 20, seed=9)
    with pytest.raises(DataError, match="action log"):
        other.restore({**state, "actions": state["actions"][:, :1]})


def test_a_choice_without_any_alternative_breaks_the_step() -> None:
    pool = started(config("Locks", "tuple", impossible=2), 2)
    assert not pool.step(drawn(pool, np.random.default_rng(0))).broken.any()
    assert pool.step(drawn(pool, np.random.default_rng(1))).broken.all()


def test_bits_none_of_which_may_be_set_break_nothing() -> None:
    pool, generator = started(config("Switches", "flat", impossible=2), 4), np.random.default_rng(0)
    for _ in range(2):
        step = pool.step(drawn(pool, generator))
    assert not pool.mask.any()
    assert not step.broken.any()
    assert drawn(pool, generator).sum() == 0
    assert not pool.step(np.zeros((4, 5))).broken.any()


class Mistaken(action_envs.Panel):
    """Gives a mask that does not fit its choices, or leaves none of them at the start."""

    def __init__(self, what: str) -> None:
        super().__init__("Locks", "tuple")
        self.what = what

    def seen(self) -> tuple[Any, dict[str, Any]]:
        obs, info = super().seen()
        first, *rest = info["action_mask"]
        wrong = {"parts": (first, rest[0]), "flat": np.ones(8, np.int8), "empty": (first * 0, *rest)}
        return obs, {"action_mask": wrong[self.what]}


gymnasium.register("Mistaken-v0", entry_point=Mistaken)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("parts", "an action_mask of 2 arrays of the shapes [[2], [3]], expected one for each choice, of the lengths "),
        ("flat", "an action_mask int8[8], expected bool[9]"),
        ("empty", "an action_mask in which no action is legal"),
    ],
)
def test_a_mask_that_cannot_be_used_is_told(what: str, text: str) -> None:
    pool = EnvPool(EnvConfig.model_validate({"id": "Mistaken-v0", "kwargs": {"what": what}}), 1)
    with pytest.raises(EnvironmentFailed) as failed:
        pool.reset([0], [0])
    assert text in str(failed.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_checker_finds_nothing_wrong(name: str) -> None:
    assert check(f"action_envs:{name}-v0", {}) == []
    kwargs = {"masks": "flat" if name in ("Switches", "Grid") else "tuple"}
    # Gymnasium's checker knows no masks and draws illegal actions, at which these environments raise.
    assert not [found for found in check(f"action_envs:{name}-v0", kwargs) if "Gymnasium's checker" not in found]


# --- algorithms and policies ------------------------------------------------------------------------------------------


def chosen(cfg: Any, state: Any, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """The mode of a policy's distribution."""
    with torch.no_grad():
        return distribution(cfg.spaces, forward(state.actor, obs), legal=legal).mode()


def sampled(cfg: Any, state: Any, obs: Any, legal: Any, epsilon: Any, draw: Any) -> torch.Tensor:
    """A draw from it."""
    with torch.no_grad():
        return distribution(cfg.spaces, forward(state.actor, obs), legal=legal).sample(draw)


SEVERAL: Any = SimpleNamespace(
    **{**vars(algos.get("bc")), "ACTIONS": ("multidiscrete",), "greedy": chosen, "act": sampled}
)
"""An algorithm of one's own: behaviour cloning's network, read as a distribution of whatever the actions are."""


def problem(name: str, masks: str) -> EnvSpec:
    p = populations.problem("CartPole-v1", "bc")
    cfg = config(name, masks)
    pool = EnvPool(cfg, 1)
    pool.close()
    return replace(p, env=cfg, algo=SEVERAL, spaces=pool.spaces, algo_config=p.algo_config.at(pool.spaces))


def policies(p: EnvSpec, size: int) -> tuple[list[Any], list[Policy]]:
    """Members with output weights large enough that actions differ, and the same as policies."""
    members = first_members(p, size)[0]
    g = torch.Generator().manual_seed(0)
    for member in members:
        member.tensors["actor"].add_(0.3 * torch.randn(member.tensors["actor"].shape, generator=g))
    action_space = ActionSpace.of(action_envs.SPACES[p.env.id.removeprefix("action_envs:")[:-3]])
    about = {"observations": p.observations, **action_space.to_json()}
    return members, [Policy(SEVERAL, p.algo_config, member, about) for member in members]


@pytest.mark.parametrize(("name", "masks"), MASKS)
def test_an_evaluation_returns_what_the_exported_policy_reaches(name: str, masks: str) -> None:
    """Step by step in the bare environment, which takes its own actions only and only legal ones."""
    p = problem(name, masks)
    members, singles = policies(p, 2)
    seeds = p.seeds(Purpose.EVALUATE, 3)
    pool = EnvPool(p.env, 4, what="evaluation")
    returns = evaluate(p, p.form(members), pool, seeds).returns
    pool.close()
    env = gymnasium.make(p.env.id, **p.env.kwargs)
    for member, policy in enumerate(singles):
        for episode, seed in enumerate(seeds.tolist()):
            total, over, (obs, info) = 0.0, False, env.reset(seed=seed)
            while not over:
                obs, reward, _, over, info = env.step(policy.act(obs, mask=info.get("action_mask")))
                total += float(reward)
            assert returns[member, episode] == pytest.approx(total, abs=1e-5)
    assert len(np.unique(returns.round(4))) > 2


@pytest.mark.parametrize(("name", "masks"), MASKS)
def test_members_draw_legal_actions_of_the_pools_shape(name: str, masks: str) -> None:
    p = problem(name, masks)
    cohorts, pool, seen = p.form(policies(p, 2)[0]), started(p.env, 8), set()
    for tick in range(action_envs.STEPS):
        actions = act(p, cohorts, pool.obs, pool.mask, 0.0, tick)
        assert (actions.shape, actions.dtype) == ((8, *p.spaces.action_shape), np.int64)
        seen |= set(map(tuple, actions.tolist()))
        assert not pool.step(actions).broken.any()
    assert len(seen) > 8


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_policy_returns_the_environments_own_actions(name: str) -> None:
    p = problem(name, "none")
    policy, space = policies(p, 1)[1][0], action_envs.SPACES[name]
    obs = 5 * np.random.default_rng(0).normal(size=(40, p.observations)).astype(np.float32)
    actions = policy.act(obs)
    assert (actions.shape, actions.dtype) == ((40, *space.shape), np.int64)
    assert all(space.contains(action) for action in actions)
    assert len(np.unique(actions.reshape(40, -1), axis=0)) > 3
    np.testing.assert_array_equal(policy.act(obs[7]), actions[7])
    as_torch = policy.act(torch.from_numpy(obs))
    assert isinstance(as_torch, torch.Tensor)
    np.testing.assert_array_equal(as_torch.numpy(), actions)
    fresh = policies(p, 1)[1][0].module()
    exported = torch.export.export(
        fresh, (torch.from_numpy(obs[:2]),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    np.testing.assert_array_equal(exported.module()(torch.from_numpy(obs)).numpy(), actions)


def test_a_policy_takes_both_forms_of_a_mask() -> None:
    p = problem("Locks", "none")
    policy = policies(p, 1)[1][0]
    obs = np.random.default_rng(0).uniform(0, 1, (6, p.observations)).astype(np.float32)
    flat = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0], np.int8)  # one alternative each: the second, third and first
    expected = [[1, 1 + 2, -2]] * 6
    for mask in (flat, np.stack([flat] * 6), (flat[:2], flat[2:5], flat[5:])):
        assert policy.act(obs, mask=mask).tolist() == expected
        assert policy.act(obs, mask=mask, epsilon=0.5).tolist() == expected
    with pytest.raises(UsageError, match="mask is an action_mask of 2 arrays"):
        policy.act(obs, mask=(flat[:2], flat[2:]))
    with pytest.raises(UsageError, match="no legal action"):
        policy.act(obs, mask=np.array([1, 1, 0, 0, 0, 1, 1, 1, 1]))
    with pytest.raises(UsageError, match=r"mask has shape \(8,\)"):
        policy.act(obs, mask=flat[:8])


@pytest.mark.parametrize(("name", "masks"), MASKS)
def test_a_policy_plays_and_is_filmed(name: str, masks: str) -> None:
    p = problem(name, masks)
    policy = policies(p, 1)[1][0]
    policy.about["env"] = {"id": p.env.id, "kwargs": p.env.kwargs}
    seeds = p.seeds(Purpose.EVALUATE, 1)
    pool = EnvPool(p.env, 1)
    (expected,) = evaluate(p, p.form(policies(p, 1)[0]), pool, seeds).returns[0]
    pool.close()
    shown = playing.play(policy, seed=int(seeds[0]), trust=True)
    assert len(shown.frames) == action_envs.STEPS + 1
    assert sum(shown.rewards) == pytest.approx(expected, abs=1e-5)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Locks", "Grid"])
def test_an_algorithm_that_cannot_serve_them_says_so(name: str) -> None:
    kind = EXPECTED[name][0]
    with pytest.raises(ParamsError) as failed:
        spaces_of(config(name), "dqn")
    text = (
        f"train.algo: dqn serves discrete actions, action_envs:{name}-v0 has {kind} ones ({action_envs.SPACES[name]}); "
    )
    assert str(failed.value).startswith(text)


def test_a_policy_of_other_actions_is_not_played() -> None:
    """Six bits are as many outputs as six alternatives, and mean something else."""
    p = problem("Grid", "none")
    policy = policies(p, 1)[1][0]
    policy.about["env"] = {"id": "action_envs:Grid-v0", "kwargs": {}}
    policy.action_space = ActionSpace.of(spaces.Discrete(6))
    with pytest.raises(DataError, match=r"and 6 multibinary actions, the policy .* and 6 discrete actions; play it in"):
        playing.play(policy, trust=True)


def test_no_dataset_is_made_of_them(tmp_path: Any) -> None:
    overrides = {"env.id": "action_envs:Locks-v0", "train.warm_start": 0}
    with pytest.raises(ParamsError, match="has multidiscrete actions, which no dataset holds; train in it without the"):
        fetch.run(Params.model_validate(params(overrides)), quiet=True, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("space", [spaces.Sequence(spaces.Discrete(2)), spaces.Text(3)])
def test_other_spaces_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(ParamsError, match=r"MultiBinary and bounded Box actions are, and Dicts and Tuples of them$"):
        ActionSpace.of(space)
