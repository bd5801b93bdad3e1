"""Implicit Q-learning, TD3+BC and behaviour cloning: their losses against brute force."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe import rng
from evopipe.algos import bc, iql, td3bc
from evopipe.core import optim
from evopipe.core.networks import Net, forward
from evopipe.core.population import Cohort
from evopipe.loops.problem import Problem, first_members
from evopipe.ops.value import expectile_loss
from evopipe.rng import Purpose, Stream
from evopipe.types import Batch

pytestmark = pytest.mark.numerical

MEMBERS, BATCH = 3, 32
ENVS = {True: "Pendulum-v1", False: "CartPole-v1"}


def example(algo: str, continuous: bool, double: bool = True) -> tuple[Problem, Cohort, Batch]:
    """A problem, its cohort, networks that differ from their targets, and random transitions; in float64 or as is."""
    p = populations.problem(ENVS[continuous], algo=algo)
    (cohort,) = p.form(first_members(p, MEMBERS)[0])
    g = torch.Generator().manual_seed(7)
    nets = {f.name: getattr(cohort.state, f.name) for f in fields(cohort.state)}
    moved = {
        name: replace(net, values=_as(net.values * (0.5 if name.endswith("target") else 2.0), double))
        for name, net in nets.items()
        if isinstance(net, Net)
    }
    shape = (MEMBERS, BATCH)
    batch = Batch(
        obs=_as(torch.randn(*shape, p.observations, generator=g), double),
        action=_as(torch.rand(*shape, p.actions, generator=g) * 2 - 1, double)
        if continuous
        else torch.randint(p.actions, shape, generator=g),
        reward=_as(torch.randn(*shape, generator=g), double),
        discount=_as(0.9 * (torch.rand(*shape, generator=g) > 0.3), double),
        next_obs=_as(torch.randn(*shape, p.observations, generator=g), double),
        next_legal=None,
        weight=_as(torch.rand(*shape, generator=g) / BATCH, double),
    )
    return p, replace(cohort, state=replace(cohort.state, **moved)), batch


def _as(x: torch.Tensor, double: bool) -> torch.Tensor:
    return x.double() if double else x


def outputs(net: Net, *inputs: torch.Tensor) -> np.ndarray:
    """What a network gives for its inputs side by side, as numbers."""
    found: np.ndarray = forward(net, torch.cat(inputs, dim=-1)).detach().double().numpy()
    return found


def of_action(net: Net, batch: Batch, continuous: bool) -> np.ndarray:
    """Q(s, a) of the dataset's actions, one by one."""
    if continuous:
        return outputs(net, batch.obs, batch.action)[..., 0]
    all_values, action = outputs(net, batch.obs), batch.action.numpy()
    return np.array([[all_values[m, b, action[m, b]] for b in range(BATCH)] for m in range(MEMBERS)])


@pytest.mark.parametrize(
    ("error", "tau", "expected"),
    [(2.0, 0.5, 2.0), (-2.0, 0.5, 2.0), (2.0, 0.9, 3.6), (-2.0, 0.9, 0.4), (0.0, 0.7, 0.0), (-1.0, 0.7, 0.3)],
)
def test_the_expectile_loss_of_hand_computed_examples(error: float, tau: float, expected: float) -> None:
    found = expectile_loss(torch.tensor(error, dtype=torch.float64), tau)
    assert float(found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.95])
def test_its_minimum_is_the_expectile(tau: float) -> None:
    """Where τ times the mean distance above equals (1 − τ) times that below; τ = ½ is the mean."""
    samples = torch.from_numpy(np.random.default_rng(0).normal(size=500))
    candidates = torch.linspace(-2, 2, 4001, dtype=torch.float64)
    best = candidates[expectile_loss(samples[None] - candidates[:, None], tau).sum(dim=1).argmin()]
    above = (samples - best).clamp(min=0).mean()
    below = (best - samples).clamp(min=0).mean()
    assert float(tau * above) == pytest.approx(float((1 - tau) * below), abs=1e-3)
    if tau == 0.5:
        assert float(best) == pytest.approx(float(samples.mean()), abs=1e-3)


@pytest.mark.parametrize(("continuous", "masked"), [(True, False), (False, False), (False, True)])
def test_the_losses_are_those_of_the_paper(continuous: bool, masked: bool) -> None:
    p, cohort, batch = example("iql", continuous)
    legal = torch.rand(MEMBERS, BATCH, 2, generator=torch.Generator().manual_seed(8)) < (0.5 if masked else 1.0)
    if masked:
        batch = replace(batch, legal=legal.scatter_(2, batch.action[..., None], True))
    s = cohort.state
    hp = {
        "expectile": torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64),
        "beta": torch.tensor([0.0, 3.0, 50.0], dtype=torch.float64),
    }
    values, actor, errors = (x.detach() for x in iql.loss(p.algo_config, s, hp, batch))
    v, v_next = outputs(s.value, batch.obs)[..., 0], outputs(s.value, batch.next_obs)[..., 0]
    q1, q2, q1_minus, q2_minus = (
        of_action(net, batch, continuous) for net in (*s.critics.pair, *s.critics_target.pair)
    )
    out = outputs(s.actor, batch.obs)
    limited = 0
    for m in range(MEMBERS):
        fit = imitation = 0.0
        for b in range(BATCH):
            w, tau, beta = float(batch.weight[m, b]), float(hp["expectile"][m]), float(hp["beta"][m])
            advantage = min(q1_minus[m, b], q2_minus[m, b]) - v[m, b]
            y = float(batch.reward[m, b]) + float(batch.discount[m, b]) * v_next[m, b]
            fit += w * (tau if advantage >= 0 else 1 - tau) * advantage**2
            fit += w * ((q1[m, b] - y) ** 2 + (q2[m, b] - y) ** 2)
            if continuous:
                away = np.tanh(out[m, b]) - batch.action[m, b].numpy()
                log_pi = -0.5 * float((away**2).sum())
            else:
                logits = out[m, b]
                may = legal[m, b].numpy()
                log_pi = logits[int(batch.action[m, b])] - math.log(sum(math.exp(x) for x in logits[may]))
            weight = math.exp(beta * advantage)
            limited += weight > 100.0
            imitation -= w * min(weight, 100.0) * log_pi
            assert float(errors[m, b]) == pytest.approx((abs(q1[m, b] - y) + abs(q2[m, b] - y)) / 2, abs=1e-6)
        assert float(values[m]) == pytest.approx(fit, abs=1e-6)
        assert float(actor[m]) == pytest.approx(imitation, abs=1e-6)
    assert limited > 0, "the limit was tried"


@pytest.mark.parametrize("continuous", [True, False])
def test_no_network_learns_from_anothers_loss(continuous: bool) -> None:
    p, cohort, batch = example("iql", continuous, double=False)
    s = cohort.state
    values, actor, _ = iql.loss(p.algo_config, s, cohort.hyper, batch)
    nets = (s.value, s.critics, s.actor)
    optim.backward(values, *nets)
    assert [bool(net.grad.any()) for net in nets] == [True, True, False]
    optim.backward(actor, *nets)
    assert [bool(net.grad.any()) for net in nets] == [False, False, True]


def cloned(p: Problem, cohort: Cohort, batch: Batch) -> torch.Tensor:
    """Behaviour cloning's losses for another algorithm's actor."""
    state = bc.State(cohort.state.actor, cohort.state.actor_adam, torch.zeros(1))
    return bc.loss(bc.Config().at(p.spaces), state, {}, batch).detach()


def test_without_a_temperature_it_is_behaviour_cloning() -> None:
    p, cohort, batch = example("iql", continuous=False)
    hp = {"expectile": torch.full((MEMBERS,), 0.7), "beta": torch.zeros(MEMBERS)}
    _, actor, _ = iql.loss(p.algo_config, cohort.state, hp, batch)
    cloning = cloned(p, cohort, batch)
    torch.testing.assert_close(actor, cloning, rtol=0, atol=1e-12)


def test_cloning_of_discrete_actions_is_cross_entropy() -> None:
    p, cohort, batch = example("bc", continuous=False)
    losses = bc.loss(p.algo_config, cohort.state, {}, batch).detach()
    out = outputs(cohort.state.actor, batch.obs)
    for m in range(MEMBERS):
        total = 0.0
        for b in range(BATCH):
            chance = math.exp(out[m, b, int(batch.action[m, b])]) / sum(math.exp(x) for x in out[m, b])
            total -= float(batch.weight[m, b]) * math.log(chance)
        assert float(losses[m]) == pytest.approx(total, abs=1e-6)


def test_cloning_of_continuous_actions_is_the_squared_distance() -> None:
    p, cohort, batch = example("bc", continuous=True)
    losses = bc.loss(p.algo_config, cohort.state, {}, batch).detach()
    away = np.tanh(outputs(cohort.state.actor, batch.obs)) - batch.action.numpy()
    for m in range(MEMBERS):
        total = sum(float(batch.weight[m, b]) * float((away[m, b] ** 2).mean()) for b in range(BATCH))
        assert float(losses[m]) == pytest.approx(total, abs=1e-6)


def test_the_actor_of_td3bc_weighs_the_critic_by_its_own_size() -> None:
    p, cohort, batch = example("td3bc", continuous=True)
    alpha = torch.tensor([0.0, 2.5, 10.0], dtype=torch.float64)
    losses = td3bc.actor_loss(cohort.state, {"alpha": alpha}, batch).detach()
    action = torch.tanh(forward(cohort.state.actor, batch.obs)).detach()
    q = outputs(cohort.state.critics.pair[0], batch.obs, action)[..., 0]
    away = (action - batch.action).numpy()
    for m in range(MEMBERS):
        w = batch.weight[m].numpy()
        scale = float(alpha[m]) / sum(w[b] * abs(q[m, b]) for b in range(BATCH))
        total = sum(w[b] * (float((away[m, b] ** 2).mean()) - scale * q[m, b]) for b in range(BATCH))
        assert float(losses[m]) == pytest.approx(total, abs=1e-6)
    assert float(losses[0]) == pytest.approx(float(cloned(p, cohort, batch)[0]), abs=1e-12)


def test_the_critics_of_td3bc_see_smoothed_target_actions() -> None:
    p, cohort, batch = example("td3bc", continuous=True)
    s, draw = cohort.state, Stream(cohort.keys, Purpose.UPDATE, torch.tensor([4]))
    losses, errors = td3bc.loss(p.algo_config, s, {}, batch, draw)
    noise = draw.normal(BATCH * p.actions).view(MEMBERS, BATCH, p.actions).double().numpy()
    blur = np.clip(0.2 * noise, -0.5, 0.5)
    action = torch.from_numpy(np.clip(np.tanh(outputs(s.actor_target, batch.next_obs)) + blur, -1, 1))
    q_next = np.minimum(*(outputs(n, batch.next_obs, action)[..., 0] for n in s.critics_target.pair))
    y = batch.reward.numpy() + batch.discount.numpy() * q_next
    wrong = [of_action(net, batch, True) - y for net in s.critics.pair]
    np.testing.assert_allclose(errors.numpy(), (np.abs(wrong[0]) + np.abs(wrong[1])) / 2, atol=1e-6)
    total = wrong[0] ** 2 + wrong[1] ** 2
    np.testing.assert_allclose(losses.detach().numpy(), (batch.weight.numpy() * total).sum(axis=1), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "continuous"),
    [("bc", False), ("bc", True), ("cqn", False), ("iql", False), ("iql", True), ("td3bc", True)],
)
def test_learning_lowers_the_loss_on_a_batch_that_stays(name: str, continuous: bool) -> None:
    p, cohort, batch = example(name, continuous, double=False)
    state, healthy, found = cohort.state, cohort.healthy, list[torch.Tensor]()
    for i in range(60):
        draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([i]))
        state, losses, healthy, _ = p.algo.update(
            p.algo_config, state, cohort.hyper, batch, healthy, draw, i % p.period
        )
        found.append(losses)
    assert healthy.all()
    assert (found[-1] < found[0]).all()


def keys(seeds: Sequence[int]) -> torch.Tensor:
    """Member keys for draws."""
    return torch.tensor(rng.member_keys(1, seeds), dtype=torch.int64)


@pytest.mark.parametrize("continuous", [True, False])
def test_a_policy_explores_as_often_as_it_is_told(continuous: bool) -> None:
    p, cohort, batch = example("iql", continuous, double=False)
    legal = torch.ones(MEMBERS, BATCH, p.actions, dtype=torch.bool)
    cfg: Any = p.algo_config.model_copy(update={"noise_sd": 0.0})
    draw = Stream(keys(range(MEMBERS)), Purpose.ACT, torch.tensor([0]))
    best = iql.greedy(cfg, cohort.state, batch.obs, legal)
    same = iql.act(cfg, cohort.state, batch.obs, legal, torch.zeros(MEMBERS), draw)
    torch.testing.assert_close(same, best)
    other = iql.act(cfg, cohort.state, batch.obs, legal, torch.ones(MEMBERS), draw)
    assert not torch.equal(other, best)
    assert bool((other.abs() <= 1).all()) if continuous else set(other.unique().tolist()) <= {0, 1}
