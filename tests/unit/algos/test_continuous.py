"""Continuous control: noise, densities, temperatures and exported policies of DDPG, TD3 and SAC."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import populations
from evopipe.algos import _actor_critic
from evopipe.core.cohort import Cohort
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.optim import ScalarAdam
from evopipe.envs.spaces import ActionSpace
from evopipe.errors import ParamsError
from evopipe.ops.distributions import expected, masked_log_softmax, squashed_gaussian
from evopipe.ops.policy import gaussian, or_random, ornstein_uhlenbeck
from evopipe.policies import policy
from evopipe.policies.play import play
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import EnvSpec, first_members
from populations import advance, started
from reference import network

pytestmark = pytest.mark.numerical

KEYS = torch.tensor([5, -77, 123456789])
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


def at(step: int, purpose: Purpose = Purpose.UPDATE) -> Stream:
    return Stream(KEYS, purpose, torch.tensor([step]))


def actions_of(env: str) -> ActionSpace:
    """The action space of an environment."""
    made = gymnasium.make(env)
    made.close()
    return ActionSpace.of(made.action_space)


def formed(algo: str, env: str = "Pendulum-v1", **config: Any) -> tuple[EnvSpec, Cohort, list[Member]]:
    """Three members with output weights large enough that actions differ, their targets unlike them."""
    p = populations.problem(env, algo, config=config)
    members = first_members(p, 3)[0]
    g = torch.Generator().manual_seed(0)
    for member in members:
        for name, (kind, _) in tensor_kinds(p.algo.State, p.widths).items():
            if kind == "parameters":
                member.tensors[name].add_(0.2 * torch.randn(member.tensors[name].shape, generator=g))
    (cohort,) = p.form(members)
    return p, cohort, list(cohort.members)


def net(p: EnvSpec, member: Member, name: str, x: torch.Tensor) -> torch.Tensor:
    """One member's network by the reference in double precision."""
    of = tensor_kinds(p.algo.State, p.widths)[name][1]
    parts = {k: v.double() for k, v in member.arch.named(p.widths[of], member.tensors[name]).items()}
    return network(member.arch, parts, x.double())


def q(p: EnvSpec, member: Member, name: str, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return net(p, member, name, torch.cat((obs.double(), action.double()), dim=1))[:, 0]


# --- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0.15, 0.05, 0.5, 1.0])
def test_ornstein_uhlenbeck_noise_is_its_recursion(theta: float) -> None:
    sd, x = 0.3, torch.zeros(3, 2, 2)
    for step in range(1000):
        x = (1 - theta) * x + sd * at(step).normal(4).view(3, 2, 2)
    torch.testing.assert_close(ornstein_uhlenbeck(at(999), (2, 2), sd, theta), x, rtol=0, atol=5e-4 * sd)


def test_ornstein_uhlenbeck_noise_has_its_deviation_and_its_correlation() -> None:
    series = torch.stack([ornstein_uhlenbeck(at(t), (40, 2), 0.2, 0.15).flatten() for t in range(400)])
    assert float(series.std()) == pytest.approx(0.2 / math.sqrt(0.15 * (2 - 0.15)), rel=0.03)
    following = (series[1:] * series[:-1]).mean() / series.square().mean()
    assert float(following) == pytest.approx(0.85, abs=0.02)


def test_gaussian_noise_has_its_deviation_and_no_correlation() -> None:
    series = torch.stack([gaussian(at(t), (40, 2), 0.2).flatten() for t in range(400)])
    assert abs(float(series.mean())) < 0.005
    assert float(series.std()) == pytest.approx(0.2, rel=0.02)
    assert abs(float((series[1:] * series[:-1]).mean() / series.square().mean())) < 0.02


def test_actions_are_clipped_replaced_at_random_and_never_no_number() -> None:
    action = torch.tensor([0.5, -3.0, math.nan, math.inf]).expand(3, 1000, 4)
    taken = or_random(action, torch.tensor([0.0, 0.25, 1.0]), at(3))
    assert torch.equal(taken[0], torch.tensor([0.5, -1.0, 0.0, 1.0]).expand(1000, 4))
    exploring = (taken != taken[0, 0]).any(dim=2).float().mean(dim=1)
    assert exploring.tolist() == pytest.approx([0.0, 0.25, 1.0], abs=0.05)
    assert taken.abs().max() <= 1
    assert taken[2].mean(dim=0).tolist() == pytest.approx([0.0] * 4, abs=0.1)
    assert taken[2].var(dim=0).tolist() == pytest.approx([1 / 3] * 4, rel=0.1)


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_acting_adds_the_noise_that_the_configuration_names(algo: str, kind: str) -> None:
    p, cohort, _ = formed(algo, noise=kind, noise_sd=0.05)
    obs, legal = torch.randn(3, 6, 3), torch.ones(3, 6, 1, dtype=torch.bool)
    stream = Stream(cohort.keys, Purpose.ACT, torch.tensor([9]))
    noise = gaussian(stream, (6, 1), 0.05) if kind == "gaussian" else ornstein_uhlenbeck(stream, (6, 1), 0.05, 0.15)
    mean = p.algo.greedy(p.algo_config, cohort.state, obs, legal)
    taken = p.algo.act(p.algo_config, cohort.state, obs, legal, torch.zeros(3), stream)
    assert torch.equal(taken, (mean + noise).clamp(-1, 1))
    assert (taken != mean).any()


# --- the squashed Gaussian --------------------------------------------------------------------------------------------


def test_the_squashed_density_is_that_of_torch() -> None:
    g = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(50, 3, generator=g, dtype=torch.float64) for _ in range(3))
    action, log_pi = squashed_gaussian(mean, log_std * 0.5 - 0.5, noise)
    theirs = TransformedDistribution(Normal(mean, (log_std * 0.5 - 0.5).exp()), [TanhTransform()])
    inside = action.abs().amax(dim=1) < 0.9999  # beyond, torch's inverse of tanh is imprecise
    assert inside.sum() > 40
    expected = theirs.log_prob(action).sum(dim=1)
    torch.testing.assert_close(log_pi[inside], expected[inside], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.5, 0.3), (-0.5, 2.0), (0.2, 0.05)])
def test_the_squashed_density_integrates_to_one(mean: float, std: float) -> None:
    """Over a = tanh(u), by the trapezium rule in u: dens(a) da = dens(a) (1 − a²) du."""
    u = torch.linspace(mean - 12 * std, mean + 12 * std, 20_001, dtype=torch.float64)
    mu = torch.full((len(u), 1), mean, dtype=torch.float64)
    action, log_pi = squashed_gaussian(mu, torch.full_like(mu, math.log(std)), (u[:, None] - mu) / std)
    slope = 1 / torch.cosh(u) ** 2
    assert float(torch.trapezoid(log_pi.exp() * slope, u)) == pytest.approx(1.0, abs=1e-6)
    assert (action.abs() <= 1).all()


def test_the_squashed_density_and_its_gradient_stay_finite_far_out() -> None:
    mean = torch.tensor([[40.0], [-40.0], [0.0]], requires_grad=True)
    log_std = torch.tensor([[2.0], [-20.0], [-20.0]], requires_grad=True)
    action, log_pi = squashed_gaussian(mean, log_std, torch.tensor([[3.0], [-3.0], [1.0]]))
    (action.sum() + log_pi.sum()).backward()
    assert torch.isfinite(log_pi).all()
    assert mean.grad is not None
    assert log_std.grad is not None
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(log_std.grad).all()


def test_illegal_actions_have_no_probability() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5], [1000.0, -1000.0, 0.0]])
    legal = torch.tensor([[True, False, True], [False, True, True]])
    pi = masked_log_softmax(logits, legal).exp()
    z = math.exp(1.0) + math.exp(0.5)
    assert pi[0].tolist() == pytest.approx([math.exp(1.0) / z, 0.0, math.exp(0.5) / z])
    assert pi[1].tolist() == [0.0, 0.0, 1.0]
    torch.testing.assert_close(masked_log_softmax(logits, None), logits.log_softmax(dim=1))


# --- targets and losses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 4.0])
@pytest.mark.parametrize("legal", [None, [[True, True, False]], [[False, True, True]], [[False, True, False]]])
def test_the_gradient_of_discrete_sacs_actor_is_finite_where_a_probability_is_zero(
    legal: list[list[bool]] | None, alpha: float
) -> None:
    """Above α = 1 an illegal action's α log π is −∞."""
    logits = torch.tensor([[300.0, 0.0, -300.0]], requires_grad=True)
    log_pi = masked_log_softmax(logits, None if legal is None else torch.tensor(legal))
    expected(log_pi, alpha * log_pi - torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    if legal is not None:
        assert not logits.grad[~torch.tensor(legal)].any()


# --- updates ----------------------------------------------------------------------------------------------------------


def test_the_temperatures_step_is_adams() -> None:
    g = torch.Generator().manual_seed(3)
    value, lr = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1e-3, 1e-2, 0.1])
    theirs = [value[i].double().clone().requires_grad_() for i in range(3)]
    adams = [torch.optim.Adam([theirs[i]], lr=float(lr[i])) for i in range(3)]
    state = ScalarAdam.start(value)
    for t in range(60):
        grad = torch.randn(3, generator=g) * 10 ** (t % 5 - 2)
        active = torch.tensor([True, t % 3 > 0, True])
        ScalarAdam.step(value, state, grad, lr, active)
        for i in range(3):
            if active[i]:
                theirs[i].grad = grad[i].double()
                adams[i].step()
    torch.testing.assert_close(value.double(), torch.stack(theirs).detach(), rtol=2e-6, atol=1e-6)
    assert state[:, 2].tolist() == [60.0, 40.0, 60.0]


def test_a_temperature_step_ignores_what_is_no_number_of_a_frozen_member() -> None:
    value = torch.tensor([0.5, 0.5])
    state = ScalarAdam.start(value)
    ScalarAdam.step(value, state, torch.tensor([1.0, math.nan]), torch.ones(2), torch.tensor([1, 0]) > 0)
    assert value.tolist() == pytest.approx([-0.5, 0.5])
    assert torch.equal(state[1], torch.zeros(3))


# --- known values -----------------------------------------------------------------------------------------------------

LEARNER: dict[str, Any] = {
    "network": {"encoder": [32], "latent": 32, "layer_norm": True}, "lr_actor": 1e-3, "lr_critic": 3e-3,
    "batch_size": 64, "learn_step": 1, "gamma": 0.8, "tau": 0.05, "random_steps": 10**9,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ddpg": {},
    "td3": {"target_noise": 0.02},
    "sac": {"alpha": 1e-3, "learn_alpha": False},
}


@pytest.mark.thorough
@pytest.mark.parametrize("algo", [pytest.param(a, marks=() if a == "td3" else pytest.mark.slow) for a in sorted(OWN)])
def test_two_marks_are_found_and_valued(algo: str) -> None:
    """Marks at 0.25 and 0.75 of actions in [0, 1]: a policy that read bounds wrongly could not reach the first."""
    train = {"max_steps": 10**6, "evo_steps": 10**6, "learning_delay": 100}
    p = populations.problem("envs_for_tests:Marks-v0", algo, train=train, config={**LEARNER, **OWN[algo]})
    loop = started(p, 2)
    advance(loop, 700)
    obs, marks = torch.eye(4)[:2].expand(2, 2, 4), torch.tensor([0.25, 0.75])
    (cohort,) = loop.cohorts
    relative = p.algo.greedy(p.algo_config, cohort.state, obs, None)
    own = torch.from_numpy(loop.regime.world.pool.actions.own(relative.reshape(-1, 1).numpy())).view(2, 2)
    np.testing.assert_allclose(own, marks.expand(2, 2), atol=0.1)
    critic = cohort.state.critic if algo == "ddpg" else cohort.state.critics.pair[0]
    best = (2 * marks - 1).expand(2, 2)[..., None]
    values = _actor_critic.action_value(critic, obs, best).detach()
    np.testing.assert_allclose(values, [[1.8, 1.0]] * 2, atol=0.1)
    worst = _actor_critic.action_value(critic, obs, -best).detach()  # half the range off: one less
    np.testing.assert_allclose(worst, [[0.8, 0.0]] * 2, atol=0.1)
    loop.close()


# --- exported policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["Pendulum-v1", "LunarLanderContinuous-v3"])
@pytest.mark.parametrize("algo", [pytest.param(a, marks=pytest.mark.slow if a == "ddpg" else ()) for a in sorted(OWN)])
@pytest.mark.thorough
def test_an_exported_policy_acts_within_the_bounds_and_so_does_its_program(algo: str, env: str, tmp_path: Path) -> None:
    p, _, members = formed(algo, env)
    space = actions_of(env)
    assert space.bounds is not None
    low, high = space.bounds
    about = {"observations": p.observations, "env": {"id": env, "kwargs": {}}, **space.to_json()}
    policy.save(tmp_path / "elite", algo, members[0], about, program=True, card="")
    loaded = policy.load(tmp_path / "elite")
    obs = 3 * np.random.default_rng(0).normal(size=(200, p.observations)).astype(np.float32)
    actions = loaded.act(obs)
    assert (actions.shape, actions.dtype) == ((200, *space.shape), np.float32)
    assert (actions >= low).all()
    assert (actions <= high).all()
    assert np.ptp(actions) > 0.1
    relative = p.algo.greedy(p.algo_config, p.form_alone(members[0])[0].state, torch.from_numpy(obs)[None], None)[0]
    np.testing.assert_array_equal(actions, space.own(relative.numpy()))
    program = torch.export.load(tmp_path / "elite/policy.pt2").module()
    for n in (1, 7, 200):
        np.testing.assert_allclose(program(torch.from_numpy(obs[:n])), actions[:n], rtol=1e-5, atol=1e-6)
    one = loaded.act(obs[0])
    assert one.shape == space.shape
    np.testing.assert_allclose(one, actions[0], rtol=1e-5, atol=1e-6)
    tensor = loaded.act(torch.from_numpy(obs))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor, actions)
    explored = loaded.act(obs, epsilon=1.0, seed=4)
    assert (explored >= low).all()
    assert (explored <= high).all()
    assert (explored != actions).any()
    assert (loaded.act(np.full(p.observations, 1e30, np.float32)) <= high).all()


def test_an_exported_continuous_policy_plays(tmp_path: Path) -> None:
    p, _, members = formed("sac")
    space = actions_of("Pendulum-v1")
    about = {"observations": p.observations, "env": {"id": "Pendulum-v1", "kwargs": {}}, **space.to_json()}
    policy.save(tmp_path / "elite", "sac", members[0], about, program=False, card="")
    played = play(policy.load(tmp_path / "elite"), seed=1, max_steps=5)
    assert len(played.frames) == 6
    assert len(played.rewards) == 5
    assert all(-17 < reward < 0 for reward in played.rewards)


@pytest.mark.parametrize("algo", ["ddpg", "td3", "td3bc"])
def test_a_policy_that_would_never_move_is_refused(algo: str) -> None:
    """Updates begin their pattern anew with every generation; a learn step that evolution may reach counts."""
    train = {"evo_steps": 200, "max_steps": 800} | ({"mode": "offline"} if algo == "td3bc" else {})
    found = {"learn_step": 8, "policy_delay": 25}
    populations.problem(algo=algo, config=found, train=train)
    with pytest.raises(ParamsError, match=f"algos.{algo}.policy_delay: 26 is more than the 25 updates"):
        populations.problem(algo=algo, config=found | {"policy_delay": 26}, train=train)
    with pytest.raises(ParamsError, match=f"algos.{algo}.policy_delay: 25 is more than the 20 updates"):
        populations.problem(algo=algo, config=found | {"evolve": {"learn_step": {"min": 1, "max": 10}}}, train=train)
