"""Actions that are choices and numbers at once, a Dict or Tuple: spaces, masks, the pool, distributions by hand in
float64, policies, and PPO, which learns both parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import action_envs
import evopipe
import populations
from evopipe.envs import mixed
from evopipe.envs.check import check
from evopipe.envs.pool import EnvPool
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed, ParamsError, UsageError
from evopipe.ops.distributions import distribution
from evopipe.params.load import parse_params
from evopipe.policies.policy import Policy
from evopipe.problems.env_check import check as check_params
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import first_members
from evopipe.schema.env import EnvConfig
from evopipe.types import Spaces

FORMS = ("dict", "tuple", "nested")
MIXED = Spaces(4, 7, kind="mixed", choices=(2, 3), numbers=2)


def desk(form: str = "dict", masks: bool = False) -> EnvConfig:
    return EnvConfig.model_validate({"id": "action_envs:Desk-v0", "kwargs": {"form": form, "masks": masks}})


def space_of(form: str) -> ActionSpace:
    return ActionSpace.of(action_envs.Desk(form).action_space)


@pytest.mark.parametrize("form", FORMS)
def test_rows_become_the_environments_own_structure_and_back(form: str) -> None:
    env, space, g = action_envs.Desk(form), space_of(form), np.random.default_rng(0)
    assert (space.kind, space.size, space.numbers) == ("mixed", 3 + 6 + 2, 2)
    assert space.spaces(space_observed()).action_shape == (5,)
    legal = np.ones(space.size, bool)
    rows = np.stack([space.sample(legal, g) for _ in range(50)])
    assert rows.dtype == np.float32
    assert all(env.action_space.contains(action) for action in space.each(rows))
    assert np.allclose(space.relative(space.own(rows)), rows, atol=1e-6)
    again = ActionSpace.from_json(space.to_json())
    assert again.to_json() == space.to_json()
    assert repr(again.each(rows)) == repr(space.each(rows))


def space_observed() -> Any:
    return ObservationSpace.vector(4)


def test_columns_are_choices_then_numbers_each_in_the_order_of_the_parts() -> None:
    space = space_of("tuple")  # lever, gear from 1, keys from 0 and -1
    (lever, gear, keys), nan = space.own(np.array([[2, 1, 3, -1.0, 0.5]], np.float32)), np.float32(np.nan)
    assert (lever.tolist(), gear.tolist(), keys.tolist()) == ([[0.0, 1.0]], [3], [[1, 2]])
    lever, *_ = space.own(np.array([[0, 0, 0, nan, 7.0]], np.float32))  # of a member that diverged, and beyond bounds
    assert lever.tolist() == [[2.0, 2.0]]


def test_masks_follow_the_structure_and_numbers_have_none() -> None:
    gear, keys = np.array([1, 0, 1], np.int8), (np.array([1, 0], np.int8), np.array([0, 1, 1, 0], np.int8))
    flat = np.array([1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1], bool)
    assert np.array_equal(space_of("tuple").flat_mask((None, gear, keys)), flat)
    space = space_of("nested")
    order = [*flat[3:9], *flat[:3], True, True] if space.parts[0].path[0] == "hand" else flat
    assert np.array_equal(space.flat_mask({"hand": (None, keys), "gear": gear}), order)
    assert space.possible(np.array([order, np.zeros(11, bool)])).tolist() == [True, False]
    for wrong, says in (
        ({"gear": gear}, "no action\\['hand'\\]"),
        ({"hand": (gear, keys), "gear": gear}, "whose actions are numbers: it must be None"),
        ({"hand": (None, keys), "gear": gear[:2]}, "action\\['gear'\\] that is int8\\[2\\], expected 3"),
    ):
        with pytest.raises(ValueError, match=says):
            space.flat_mask(wrong)


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Dict({"bits": spaces.MultiBinary(3)}), "a MultiBinary among its parts"),
        (spaces.Tuple(()), "a Tuple without parts"),
        (spaces.Dict({"a": spaces.Box(-np.inf, np.inf, (2,))}), "unbounded"),
        (spaces.Dict({"a": spaces.Text(4)}), "is not served"),
    ],
)
def test_parts_that_are_not_served_are_named(space: Any, says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        ActionSpace.of(space)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.thorough
def test_legal_actions_reach_the_environment_and_workers_change_nothing(form: str) -> None:
    findings = check("action_envs:Desk-v0", {"form": form})
    assert [text for text in findings if not text.startswith("warning: Gymnasium's checker says: For Box")] == []

    def play(workers: Workers | None) -> list[bytes]:
        pool, g, seen = EnvPool(desk(form, True), 4, workers=workers), np.random.default_rng(3), []
        try:
            pool.reset(np.arange(4), np.arange(4))
            for tick in range(20):
                step = pool.step(np.stack([pool.actions.sample(mask, g) for mask in pool.mask]))
                pool.reset(np.flatnonzero(step.over), 100 * tick + np.flatnonzero(step.over))
                seen += [*(part.tobytes() for part in step.parts), *(x.tobytes() for x in pool.state().values())]
            again = EnvPool(desk(form, True), 4)
            assert not again.restore(pool.state()).any()
            again.close()
        finally:
            pool.close()
        return seen

    assert play(None) == play(Workers(2, 1))


def test_what_is_masked_fails_in_the_environment_that_checks() -> None:
    pool = EnvPool(desk("dict", True), 1)
    pool.reset([0], [0])
    banned = np.zeros((1, 5), np.float32)
    banned[0, 2 if pool.actions.parts[0].path == ("gear",) else 1] = 3.0
    with pytest.raises(EnvironmentFailed, match="is masked"):
        pool.step(banned)
    pool.close()


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_log_probabilities_and_entropies_add_up_as_by_hand_in_float64(masked: bool, squash: bool) -> None:
    g = torch.Generator().manual_seed(1)
    outputs, log_std = torch.randn(2, 6, 7, generator=g), 0.3 * torch.randn(2, 1, 2, generator=g)
    legal = torch.rand(2, 6, 7, generator=g) < 0.6
    legal[..., [0, 3, 5, 6]] = True
    chances = distribution(MIXED, outputs, log_std, legal if masked else None, squash)
    action = chances.sample(Stream(torch.tensor([3, 4]), Purpose.ACT, torch.tensor([9])))
    assert action.shape == (2, 6, 4)
    found, entropy = chances.log_prob(action), chances.entropy()
    for p, b in np.ndindex(2, 6):
        out, taken = outputs[p, b].double().numpy(), action[p, b].double().numpy()
        expected = own_entropy = 0.0
        for start, count, index in ((0, 2, int(taken[0])), (2, 3, int(taken[1]))):
            weights = np.exp(out[start : start + count])
            if masked:
                weights = weights * legal[p, b, start : start + count].numpy()
            pi = weights / weights.sum()
            assert pi[index] > 0, "what is illegal is never drawn"
            expected += np.log(pi[index])
            own_entropy -= sum(x * np.log(x) for x in pi if x > 0)
        for c in range(2):
            std, u = float(log_std[p, 0, c].double().exp()), taken[2 + c]
            if squash:
                expected, u = expected - np.log(1 - u * u), np.arctanh(u)
            expected += -0.5 * ((u - out[5 + c]) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
            own_entropy += np.log(std) + 0.5 * np.log(2 * np.pi * np.e)
        assert float(found[p, b]) == pytest.approx(expected, rel=2e-4 if squash else 1e-5, abs=1e-4 if squash else 1e-5)
        assert float(entropy[p, b]) == pytest.approx(own_entropy, rel=1e-5)
    best = chances.mode()
    assert torch.equal(best[..., 2:], torch.tanh(outputs[..., 5:].double()).float() if squash else outputs[..., 5:])


def test_draws_follow_the_chances_and_both_parts_are_independent() -> None:
    out = torch.tensor([0.7, -0.2, 0.1, 0.5, -1.0, 0.3, -0.4]).expand(1, 20_000, 7)
    chances = distribution(MIXED, out, torch.full((1, 1, 2), -0.5))
    drawn = chances.sample(Stream(torch.tensor([5]), Purpose.ACT, torch.tensor([2])))[0].double()
    first = torch.softmax(out[0, 0, :2].double(), 0)[1]
    assert float(drawn[:, 0].mean()) == pytest.approx(float(first), abs=0.02)
    assert float(drawn[:, 2].mean()) == pytest.approx(0.3, abs=0.02)
    assert float(drawn[:, 3].std()) == pytest.approx(np.exp(-0.5), abs=0.02)
    assert (torch.corrcoef(drawn.T) - torch.eye(4)).abs().max() < 0.03


@pytest.mark.parametrize("only", ["choices", "numbers"])
def test_a_dict_may_hold_choices_or_numbers_alone(only: str) -> None:
    own = MIXED.choices if only == "choices" else ()
    numbers = 2 if only == "numbers" else 0
    spaces_ = Spaces(4, sum(own) + numbers, kind="mixed", choices=own, numbers=numbers)
    outputs = torch.randn(1, 3, spaces_.actions, generator=torch.Generator().manual_seed(0))
    chances = distribution(spaces_, outputs, torch.zeros(1, 1, numbers))
    action = chances.mode()
    assert action.shape == (1, 3, *spaces_.action_shape)
    assert action.dtype == torch.float32
    assert chances.log_prob(action).isfinite().all()
    assert chances.entropy().shape == (1, 3)


# --- policies and learning --------------------------------------------------------------------------------------------


def policy(form: str) -> Policy:
    p = populations.problem("action_envs:Desk-v0", "ppo", kwargs={"form": form})
    (member,), _ = first_members(p, 1)
    env = action_envs.Desk(form)
    described = {"algo": "ppo", **ActionSpace.of(env.action_space).to_json(), **space_observed_of(env)}
    return Policy(p.algo, p.algo_config, replace(member), described)


def space_observed_of(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    return ObservationSpace.of(env.observation_space).to_json()


@pytest.mark.parametrize("form", FORMS)
def test_a_policy_acts_in_the_environments_terms(form: str) -> None:
    env, player, obs = (
        action_envs.Desk(form),
        policy(form),
        np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
    )
    one = player.act(obs[0])
    assert env.action_space.contains(one)
    batch = player.act(obs)
    assert repr(player.action_space.relative(batch)[0].tolist()) == repr(
        player.action_space.relative(as_batch(player, one))[0].tolist()
    )
    assert player.log_prob(obs, batch).shape == (3,)
    assert float(player.log_prob(obs[0], one)) == pytest.approx(float(player.log_prob(obs, batch)[0]), abs=1e-5)
    with pytest.raises(UsageError, match=r"mixed actions has no probabilities.*log_prob\(obs, action\)"):
        player.probabilities(obs)
    with pytest.raises(UsageError, match="action holds no action"):
        player.log_prob(obs[0], {})
    program = player.module()(torch.from_numpy(obs))
    space = player.action_space
    own = space.relative(batch)
    assert np.allclose(program[:, :3].numpy(), own[:, :3] + np.array(space.starts), atol=1e-6)
    assert program.shape == (3, 5)


def as_batch(player: Policy, one: Any) -> Any:
    parts = player.action_space.parts
    return mixed.nested(parts, [np.asarray(mixed.find(one, part))[None] for part in parts])


def test_an_action_outside_of_its_space_is_named() -> None:
    player, obs = policy("dict"), np.zeros(4, np.float32)
    wrong = {**player.act(obs), "gear": 9}
    with pytest.raises(UsageError, match=r"action\['gear'\] holds a value that is not in"):
        player.log_prob(obs, wrong)
    with pytest.raises(UsageError, match=r"action\['keys'\] has shape \(3,\); expected \[2\] or \[1, 2\]"):
        player.log_prob(obs, {**player.act(obs), "keys": [0, 0, 0]})


def params(form: str, **train: Any) -> dict[str, Any]:
    block = {"learn_step": 256, "batch_size": 64, "gamma": 0.5, "lr": 3e-3, "network": {"encoder": [32], "latent": 32}}
    return {
        "env": {"id": "action_envs:Desk-v0", "kwargs": {"form": form}, "num_envs": 8},
        "population": {"size": 2},
        "train": {"algo": "ppo", "max_steps": 15_000, "evo_steps": 3_000, "target": None, "eval_episodes": 8, **train},
        "algos": {"ppo": block},
        "runtime": {"device": "cpu", "learners": 1},
        "tracking": {"backends": []},
    }


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["dict", "nested"])
def test_ppo_learns_a_choice_and_a_number_that_only_count_together(form: str, tmp_path: Path) -> None:
    """Seven steps, a reward of 1 each where both are right; at random it is 0.2. The exported elite plays."""
    result = evopipe.train({**params(form), "seed": 1}, tmp_path)
    assert result.evaluation["elite"]["mean"] >= 6.0
    env, player = action_envs.Desk(form), evopipe.load(tmp_path / "models/elite")
    obs, total = env.reset(seed=5)[0], 0.0
    for _ in range(action_envs.STEPS):
        obs, reward, *_ = env.step(player.act(obs))
        total += reward
    assert total >= 4.0


def test_other_algorithms_refuse_mixed_actions_with_a_sentence() -> None:
    found = parse_params({**params("dict"), "train": {"algo": "sac"}, "algos": {"sac": {}}})
    with pytest.raises(ParamsError, match=r"train\.algo: sac serves .* has mixed ones .*; take ppo"):
        check_params(found)  # type: ignore[arg-type]


def test_teams_refuse_mixed_actions_with_a_sentence() -> None:
    with pytest.raises(
        ParamsError, match=r"the actions of agent '\w+' are a Dict or Tuple, which is served for single"
    ):
        EnvPool(EnvConfig(id="teams_for_tests:Desks"), 1)
