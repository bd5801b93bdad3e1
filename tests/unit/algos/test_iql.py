"""Implicit Q-learning: the expectile by hand, and behaviour cloning where nothing is weighed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import populations
from evopipe.algos import bc, iql
from evopipe.core.cohort import Cohort
from evopipe.core.net import Net
from evopipe.ops.value import expectile_loss
from evopipe.run.spec import EnvSpec, first_members
from evopipe.types import Batch

pytestmark = pytest.mark.numerical

MEMBERS, BATCH = 3, 32
ENVS = {True: "Pendulum-v1", False: "CartPole-v1"}


def example(algo: str, continuous: bool, double: bool = True) -> tuple[EnvSpec, Cohort, Batch]:
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


def cloned(p: EnvSpec, cohort: Cohort, batch: Batch) -> torch.Tensor:
    """Behaviour cloning's losses for another algorithm's actor."""
    state = bc.State(cohort.state.actor, cohort.state.actor_adam, torch.zeros(1))
    return bc.loss(bc.Config().at(p.spaces), state, {}, batch).detach()


def test_without_a_temperature_it_is_behaviour_cloning() -> None:
    p, cohort, batch = example("iql", continuous=False)
    hp = {"expectile": torch.full((MEMBERS,), 0.7), "beta": torch.zeros(MEMBERS)}
    _, actor, _ = iql.loss(p.algo_config, cohort.state, hp, batch)
    cloning = cloned(p, cohort, batch)
    torch.testing.assert_close(actor, cloning, rtol=0, atol=1e-12)
