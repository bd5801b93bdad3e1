"""Continuous control: noise, densities, targets and updates of DDPG, TD3 and SAC against brute force."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import populations
from evopipe import policy
from evopipe.algos import ddpg, sac, td3
from evopipe.core import population
from evopipe.core.networks import named
from evopipe.core.optim import ScalarAdam
from evopipe.core.population import Cohort, Member
from evopipe.envs.make import ActionSpace
from evopipe.errors import ParamsError
from evopipe.loops.problem import Problem, first_members
from evopipe.ops.distributions import masked_log_softmax, squashed_gaussian
from evopipe.ops.noise import gaussian, ornstein_uhlenbeck
from evopipe.ops.policy import or_random
from evopipe.ops.value import clipped_double_target
from evopipe.play import play
from evopipe.rng import Purpose, Stream
from evopipe.types import Batch
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


def formed(algo: str, env: str = "Pendulum-v1", **config: Any) -> tuple[Problem, Cohort, list[Member]]:
    """Three members with output weights large enough that actions differ, their targets unlike them."""
    p = populations.problem(env, algo, config=config)
    members = first_members(p, 3)[0]
    g = torch.Generator().manual_seed(0)
    for member in members:
        for name, (kind, _) in population.tensor_kinds(p.algo.State, p.widths).items():
            if kind == "parameters":
                member.tensors[name].add_(0.2 * torch.randn(member.tensors[name].shape, generator=g))
    (cohort,) = p.form(members)
    return p, cohort, list(cohort.members)


def transitions(p: Problem, cohort: Cohort, seed: int = 1) -> Batch:
    """Random transitions, some terminated, with weights of no special shape."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(cohort.members), cohort.batch)
    weight = torch.rand(shape, generator=g)
    return Batch(
        obs=torch.randn(*shape, p.observations, generator=g),
        action=torch.rand(*shape, p.actions, generator=g) * 2 - 1
        if p.spaces.continuous
        else torch.randint(p.actions, shape, generator=g),
        reward=torch.randn(shape, generator=g),
        discount=0.9 * (torch.rand(shape, generator=g) > 0.3),
        next_obs=torch.randn(*shape, p.observations, generator=g),
        next_legal=None,
        weight=weight / weight.sum(dim=1, keepdim=True),
    )


def net(p: Problem, member: Member, name: str, x: torch.Tensor) -> torch.Tensor:
    """One member's network by the reference in double precision."""
    of = population.tensor_kinds(p.algo.State, p.widths)[name][1]
    parts = {k: v.double() for k, v in named(member.arch, p.widths[of], member.tensors[name]).items()}
    return network(member.arch, parts, x.double())


def q(p: Problem, member: Member, name: str, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
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


def test_the_twin_minimum_by_hand() -> None:
    q1, q2 = torch.tensor([1.0, 5.0, 2.0]), torch.tensor([3.0, 4.0, 2.0])
    y = clipped_double_target(torch.tensor([0.5, 0.0, 1.0]), torch.tensor([0.9, 0.5, 0.0]), q1, q2)
    assert y.tolist() == pytest.approx([1.4, 2.0, 1.0])


def check_loss(losses: torch.Tensor, errors: torch.Tensor, found: list[Any], weight: torch.Tensor) -> None:
    """Compare with (y, [Q of every critic], factor) of each member."""
    for i, (y, values, factor) in enumerate(found):
        wrong = [value - y for value in values]
        loss = factor * sum((weight[i].double() * e.square()).sum() for e in wrong)
        torch.testing.assert_close(losses[i].double(), loss, **CLOSE)
        error = torch.stack([e.abs() for e in wrong]).mean(dim=0)
        # The sign of one critic's error means something, that of a mean of two nothing.
        torch.testing.assert_close((errors if len(wrong) > 1 else errors.abs())[i].double(), error, **CLOSE)


def test_ddpgs_loss_is_the_papers() -> None:
    p, cohort, members = formed("ddpg")
    batch = transitions(p, cohort)
    found = []
    for i, m in enumerate(members):
        action = torch.tanh(net(p, m, "actor_target", batch.next_obs[i]))
        y = batch.reward[i] + batch.discount[i] * q(p, m, "critic_target", batch.next_obs[i], action)
        found.append((y, [q(p, m, "critic", batch.obs[i], batch.action[i])], 1.0))
    losses, errors = ddpg.loss(p.algo_config, cohort.state, cohort.hyper, batch)
    check_loss(losses, errors, found, batch.weight)


def test_td3s_loss_is_the_papers() -> None:
    """Noise is clipped before it is added, and actions after: to the ends of [−1, 1], which are the environment's."""
    p, cohort, members = formed("td3", target_noise=0.6, target_clip=0.5)
    batch = transitions(p, cohort)
    stream = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([4]))
    drawn, found, edges, cut = stream.normal(cohort.batch).view(3, -1, 1), [], 0, 0
    for i, m in enumerate(members):
        blur = np.clip(0.6 * drawn[i].double().numpy(), -0.5, 0.5)
        mean = np.tanh(net(p, m, "actor_target", batch.next_obs[i]).numpy())
        action = torch.from_numpy(np.clip(mean + blur, -1.0, 1.0))
        edges, cut = edges + int((action.abs() == 1).sum()), cut + int((np.abs(blur) == 0.5).sum())
        after = batch.next_obs[i]
        y = torch.minimum(*(q(p, m, f"critics_target.critic_{k}", after, action) for k in (1, 2)))
        y = batch.reward[i] + batch.discount[i] * y
        found.append((y, [q(p, m, f"critics.critic_{k}", batch.obs[i], batch.action[i]) for k in (1, 2)], 1.0))
    assert edges > 5
    assert cut > 5
    losses, errors = td3.loss(p.algo_config, cohort.state, cohort.hyper, batch, stream)
    check_loss(losses, errors, found, batch.weight)


def test_continuous_sacs_losses_are_the_papers() -> None:
    p, cohort, members = formed("sac")
    cohort.state.log_alpha.copy_(torch.tensor([0.1, -1.0, -3.0]))
    batch = transitions(p, cohort)
    stream = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([4]))
    drawn = stream.normal(cohort.batch * p.actions).view(3, -1, p.actions).double()
    found, climbs, entropies = [], [], []

    def sampled(i: int, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = net(p, members[i], "actor", obs).chunk(2, dim=1)
        assert log_std.abs().max() < 2  # no clamp at work
        u = mean + log_std.exp() * drawn[i]
        log_pi = Normal(mean, log_std.exp()).log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
        return torch.tanh(u), log_pi.sum(dim=1)

    for i, m in enumerate(members):
        alpha = cohort.state.log_alpha[i].double().exp()
        action, log_pi = sampled(i, batch.next_obs[i])
        least = torch.minimum(*(q(p, m, f"critics_target.critic_{k}", batch.next_obs[i], action) for k in (1, 2)))
        y = batch.reward[i] + batch.discount[i] * (least - alpha * log_pi)
        found.append((y, [q(p, m, f"critics.critic_{k}", batch.obs[i], batch.action[i]) for k in (1, 2)], 0.5))
        action, log_pi = sampled(i, batch.obs[i])
        least = torch.minimum(*(q(p, m, f"critics.critic_{k}", batch.obs[i], action) for k in (1, 2)))
        climbs.append((batch.weight[i] * (alpha * log_pi - least)).sum())
        entropies.append(-log_pi)
    losses, errors = sac.loss(p.algo_config, cohort.state, cohort.hyper, batch, stream)
    check_loss(losses, errors, found, batch.weight)
    climb, entropy = sac.actor_loss(p.algo_config, cohort.state, batch, stream)
    torch.testing.assert_close(climb.detach().double(), torch.stack(climbs), **CLOSE)
    torch.testing.assert_close(entropy.double(), torch.stack(entropies), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_discrete_sacs_losses_are_exact_expectations(masked: bool) -> None:
    p, cohort, members = formed("sac", "CartPole-v1")
    cohort.state.log_alpha.copy_(torch.tensor([0.1, -1.0, 1.0]))
    batch = transitions(p, cohort)
    if masked:
        legal, next_legal = torch.rand(2, 3, cohort.batch, 2, generator=torch.Generator().manual_seed(2)) < 0.6
        for mask in (legal, next_legal):
            mask[..., 1] |= ~mask[..., 0]
        batch = replace(batch, legal=legal, next_legal=next_legal)
    found, climbs, entropies = [], [], []
    for i, m in enumerate(members):
        alpha = math.exp(float(cohort.state.log_alpha[i]))
        after, now = net(p, m, "actor", batch.next_obs[i]), net(p, m, "actor", batch.obs[i])
        below = [net(p, m, f"critics_target.critic_{k}", batch.next_obs[i]) for k in (1, 2)]
        values = [net(p, m, f"critics.critic_{k}", batch.obs[i]) for k in (1, 2)]
        y, climb, entropy = [], 0.0, []
        for j in range(cohort.batch):
            may = [a for a in range(2) if not masked or batch.next_legal[i, j, a]]  # type: ignore[index]
            z = sum(math.exp(after[j, a]) for a in may)
            pi = {a: math.exp(after[j, a]) / z for a in may}
            v = sum(pi[a] * (min(float(b[j, a]) for b in below) - alpha * math.log(pi[a])) for a in may)
            y.append(float(batch.reward[i, j] + batch.discount[i, j] * v))
            may = [a for a in range(2) if not masked or batch.legal[i, j, a]]  # type: ignore[index]
            chance = [math.exp(now[j, a]) / sum(math.exp(now[j, b]) for b in may) for a in may]
            least = [min(float(v[j, a]) for v in values) for a in may]
            each = sum(c * (alpha * math.log(c) - w) for c, w in zip(chance, least, strict=True))
            climb += float(batch.weight[i, j]) * each
            entropy.append(-sum(c * math.log(c) for c in chance))
        taken = [v.gather(1, batch.action[i][:, None])[:, 0] for v in values]
        found.append((torch.tensor(y, dtype=torch.float64), taken, 0.5))
        climbs.append(climb)
        entropies.append(entropy)
    stream = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([4]))
    losses, errors = sac.loss(p.algo_config, cohort.state, cohort.hyper, batch, stream)
    check_loss(losses, errors, found, batch.weight)
    climb, entropy = sac.actor_loss(p.algo_config, cohort.state, batch, stream)
    torch.testing.assert_close(climb.detach(), torch.tensor(climbs), **CLOSE)
    torch.testing.assert_close(entropy, torch.tensor(entropies), **CLOSE)


@pytest.mark.parametrize("alpha", [0.5, 4.0])
@pytest.mark.parametrize("legal", [None, [[True, True, False]], [[False, True, True]], [[False, True, False]]])
def test_the_gradient_of_discrete_sacs_actor_is_finite_where_a_probability_is_zero(
    legal: list[list[bool]] | None, alpha: float
) -> None:
    """Above α = 1 an illegal action's α log π is −∞."""
    logits = torch.tensor([[300.0, 0.0, -300.0]], requires_grad=True)
    log_pi = masked_log_softmax(logits, None if legal is None else torch.tensor(legal))
    sac.expected(log_pi, alpha * log_pi - torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    if legal is not None:
        assert not logits.grad[~torch.tensor(legal)].any()


@pytest.mark.parametrize("target", ["auto", 0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_discrete_sacs_temperature_aims_at_a_share_of_what_legal_actions_allow(
    masked: bool, target: float | str
) -> None:
    """The gradient of its loss, which Adam's first moment holds a tenth of: states of one legal action say nothing."""
    p, cohort, _ = formed("sac", "Acrobot-v1", target_entropy=target)
    batch = transitions(p, cohort)
    count = 1 + torch.arange(cohort.batch) % 3
    legal = (torch.arange(3) < count[:, None]).expand(3, -1, 3)
    if masked:
        batch = replace(batch, legal=legal)
    else:
        count.fill_(3)
    stream = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([4]))
    learned = sac.update(p.algo_config, cohort.state, {**cohort.hyper, "lr_critic": torch.zeros(3)}, batch,
        cohort.healthy, stream)  # fmt: skip
    assert learned.healthy.all()
    _, _, members = formed("sac", "Acrobot-v1", target_entropy=target)
    for i, m in enumerate(members):
        out, surplus = net(p, m, "actor", batch.obs[i]), 0.0
        for j in range(cohort.batch):
            logits = [float(out[j, a]) for a in range(int(count[j]))]
            chance = [math.exp(x) / sum(math.exp(y) for y in logits) for x in logits]
            aim = 0.6 * math.log(len(logits)) if target == "auto" else float(target)
            surplus += float(batch.weight[i, j]) * (-sum(c * math.log(c) for c in chance) - aim)
        assert 10 * float(learned.state.log_alpha_adam[i, 0]) == pytest.approx(surplus, rel=1e-4, abs=1e-6)


# --- updates ----------------------------------------------------------------------------------------------------------


def before_and_after(
    p: Problem, cohort: Cohort, turn: int, seed: int = 1
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The first member's tensors before and after one update."""
    stream = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([turn]))
    old = population.dissolve([cohort])[0].tensors
    learned = p.algo.update(
        p.algo_config, cohort.state, cohort.hyper, transitions(p, cohort, seed), cohort.healthy, stream, turn
    )
    return old, population.dissolve([replace(cohort, state=learned.state, healthy=learned.healthy)])[0].tensors


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_the_actor_and_the_targets_move_once_in_policy_delay_updates(algo: str) -> None:
    p, cohort, _ = formed(algo, policy_delay=3, tau=0.25)
    assert p.period == 3
    for turn in (0, 1):
        old, new = before_and_after(p, cohort, turn)
        moved = {name for name in old if not torch.equal(old[name], new[name])}
        assert not {name for name in moved if "target" in name or "actor" in name}
        assert {name.split(".")[0] for name in moved} >= {"updates"}
        assert any(name.startswith("critic") for name in moved)
    old, new = before_and_after(p, cohort, 2)
    assert not torch.equal(old["actor"], new["actor"])
    for name in (n for n in old if "_target" in n):
        online = new[name.replace("_target", "")]
        torch.testing.assert_close(new[name], 0.75 * old[name] + 0.25 * online, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_the_actor_climbs_the_critic_and_leaves_it_as_it_is(algo: str) -> None:
    """The gradient is that of automatic differentiation through one member's own networks."""
    p, cohort, members = formed(algo)
    batch, state = transitions(p, cohort), cohort.state
    critic, name = (state.critic, "critic") if algo == "ddpg" else (state.critics, "critics.critic_1")
    critic.grad.zero_()
    if algo == "sac":
        state.log_alpha.fill_(-math.inf)  # without entropy, and without spread below, it is a deterministic policy
        climb, _ = sac.actor_loss(p.algo_config, state, batch, Stream(cohort.keys, Purpose.UPDATE, torch.tensor([0])))
    else:
        climb = p.algo.actor_loss(state, batch)  # type: ignore[attr-defined]
    state.actor.grad.zero_()
    climb.sum().backward()
    assert not critic.grad.any()
    m = members[1]
    parts = {
        k: v.double().clone().requires_grad_() for k, v in named(m.arch, p.widths["actor"], m.tensors["actor"]).items()
    }
    out = network(m.arch, parts, batch.obs[1].double())
    if algo == "sac":
        mean, log_std = out.chunk(2, dim=1)
        drawn = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([0])).normal(cohort.batch)[1].double()[:, None]
        action = torch.tanh(mean + log_std.exp() * drawn)
        value = torch.minimum(*(q(p, m, f"critics.critic_{k}", batch.obs[1], action) for k in (1, 2)))
    else:
        value = q(p, m, name, batch.obs[1], torch.tanh(out))
    (-(batch.weight[1] * value).sum()).backward()
    own = state.actor.structure.unpack(state.actor.grad)[1]
    for key, mine in named(m.arch, p.widths["actor"], own).items():
        expected = parts[key].grad
        assert expected is not None
        torch.testing.assert_close(mine.double(), expected.view(mine.shape), rtol=1e-4, atol=1e-6)


def test_the_temperatures_step_is_adams() -> None:
    g = torch.Generator().manual_seed(3)
    value, lr = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1e-3, 1e-2, 0.1])
    theirs = [value[i].double().clone().requires_grad_() for i in range(3)]
    adams = [torch.optim.Adam([theirs[i]], lr=float(lr[i])) for i in range(3)]
    state = ScalarAdam.start(value)
    for t in range(60):
        grad = torch.randn(3, generator=g) * 10 ** (t % 5 - 2)
        active = torch.tensor([True, t % 3 > 0, True])
        value, state = ScalarAdam.step(value, state, grad, lr, active)
        for i in range(3):
            if active[i]:
                theirs[i].grad = grad[i].double()
                adams[i].step()
    torch.testing.assert_close(value.double(), torch.stack(theirs).detach(), rtol=2e-6, atol=1e-6)
    assert state[:, 2].tolist() == [60.0, 40.0, 60.0]


def test_a_temperature_step_ignores_what_is_no_number_of_a_frozen_member() -> None:
    value = torch.tensor([0.5, 0.5])
    state = ScalarAdam.start(value)
    moved, after = ScalarAdam.step(value, state, torch.tensor([1.0, math.nan]), torch.ones(2), torch.tensor([1, 0]) > 0)
    assert moved.tolist() == pytest.approx([-0.5, 0.5])
    assert torch.equal(after[1], state[1])


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_the_temperature_rises_where_entropy_is_below_its_aim_and_falls_above(env: str) -> None:
    for aim, sign in ((50.0, 1.0), (-50.0, -1.0)):
        p, cohort, _ = formed("sac", env, target_entropy=aim, lr_alpha=1e-2)
        old, new = before_and_after(p, cohort, 0)
        assert float(new["log_alpha"] - old["log_alpha"]) == pytest.approx(sign * 1e-2, rel=1e-4)
    p, cohort, _ = formed("sac", env, learn_alpha=False)
    old, new = before_and_after(p, cohort, 0)
    assert torch.equal(old["log_alpha"], new["log_alpha"])
    assert float(old["log_alpha"]) == pytest.approx(math.log(0.2))


def test_the_entropy_aimed_at_is_the_papers() -> None:
    p, _, _ = formed("sac", "LunarLanderContinuous-v3")
    assert sac.aim(p.algo_config) == -2.0
    p, _, _ = formed("sac", "CartPole-v1")
    assert sac.aim(p.algo_config) == pytest.approx(0.6 * math.log(2))
    legal = torch.tensor([[True, True], [True, False], [False, True]])
    assert torch.as_tensor(sac.aim(p.algo_config, legal)).tolist() == pytest.approx([0.6 * math.log(2), 0.0, 0.0])
    p, _, _ = formed("sac", "CartPole-v1", target_entropy=0.25)
    assert sac.aim(p.algo_config) == 0.25


def test_discrete_sac_acts_by_its_probabilities_and_never_illegally() -> None:
    p, cohort, members = formed("sac", "CartPole-v1")
    obs = torch.tensor([0.3, -0.2, 0.5, 0.1]).expand(3, 4000, 4)
    legal = torch.ones(3, 4000, 2, dtype=torch.bool)
    stream = Stream(cohort.keys, Purpose.ACT, torch.tensor([1]))
    taken = p.algo.act(p.algo_config, cohort.state, obs, legal, torch.zeros(3), stream)
    for i, m in enumerate(members):
        pi = net(p, m, "actor", obs[i, :1]).softmax(dim=1)[0]
        assert float((taken[i] == 1).float().mean()) == pytest.approx(float(pi[1]), abs=0.03)
    legal[:, ::2, 0] = False
    for epsilon in (0.0, 1.0):
        taken = p.algo.act(p.algo_config, cohort.state, obs, legal, torch.full((3,), epsilon), stream)
        assert (taken[:, ::2] == 1).all()
        assert 0 < float(taken[:, 1::2].float().mean()) < 1


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
    own = torch.from_numpy(loop.pool.actions.own(relative.reshape(-1, 1).numpy())).view(2, 2)
    np.testing.assert_allclose(own, marks.expand(2, 2), atol=0.1)
    critic = cohort.state.critic if algo == "ddpg" else cohort.state.critics.pair[0]
    best = (2 * marks - 1).expand(2, 2)[..., None]
    values = td3.action_value(critic, obs, best).detach()
    np.testing.assert_allclose(values, [[1.8, 1.0]] * 2, atol=0.1)
    worst = td3.action_value(critic, obs, -best).detach()  # half the range off: one less
    np.testing.assert_allclose(worst, [[0.8, 0.0]] * 2, atol=0.1)
    loop.close()


# --- exported policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["Pendulum-v1", "LunarLanderContinuous-v3"])
@pytest.mark.parametrize("algo", sorted(OWN))
def test_an_exported_policy_acts_within_the_bounds_and_so_does_its_program(algo: str, env: str, tmp_path: Path) -> None:
    p, _, members = formed(algo, env)
    space = actions_of(env)
    about = {"observations": p.observations, "env": {"id": env, "kwargs": {}}, **space.to_json()}
    policy.save(tmp_path / "elite", algo, members[0], about, program=True, card="")
    loaded = policy.load(tmp_path / "elite")
    obs = 3 * np.random.default_rng(0).normal(size=(200, p.observations)).astype(np.float32)
    actions = loaded.act(obs)
    assert (actions.shape, actions.dtype) == ((200, *space.shape), np.float32)
    assert (actions >= space.low).all()
    assert (actions <= space.high).all()
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
    assert (explored >= space.low).all()
    assert (explored <= space.high).all()
    assert (explored != actions).any()
    assert (loaded.act(np.full(p.observations, 1e30, np.float32)) <= space.high).all()


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
