"""Neural bandits beside a reference in double precision: widths by autograd, one arm at a time, and one update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import reference
from evopipe import algos
from evopipe.algos import _neural_bandit
from evopipe.core.cohort import dissolve, form
from evopipe.core.member import Member
from evopipe.errors import ParamsError
from evopipe.mutations import mutate
from evopipe.rng import Purpose, Stream, host
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.evolution import MutationConfig
from evopipe.types import Batch, Spaces
from populations import env_for, problem

NAMES = ("neural_ucb", "neural_ts")
P, E, B, OBS, A = 3, 4, 12, 4, 2
UNLIKE = {"before_training": True, "activations": ("ReLU", "GELU", "Sigmoid"), "architecture": {"min_nodes": 8}}


def given(name: str, **config: Any) -> tuple[Any, list[Member], Any]:
    """A problem, unlike members that have seen some arms, and their cohort."""
    network = {"encoder": [12], "latent": 16, "head": [8], "layer_norm": True}
    p = problem(env_for(name), name, config={"network": network, "batch_size": B, **config}, mutation=UNLIKE)
    members, _ = first_members(p, P)
    g = torch.Generator().manual_seed(1)
    for member in members:
        member.tensors["q"].add_(0.3 * torch.randn(member.tensors["q"].shape, generator=g))
        member.tensors["seen.square"].copy_(3 * torch.rand(member.tensors["q"].shape, generator=g))
    (cohort,) = form(members, p.algo.State, p.widths, torch.device("cpu"), EnvSpec.pace, "whole")
    return p, [*cohort.members], cohort


def arms(x: torch.Tensor) -> torch.Tensor:
    """By hand: an observation in each arm's own place, `[A, A · O]`."""
    found = torch.zeros(A, A * OBS, dtype=torch.float64)
    for a in range(A):
        found[a, a * OBS : (a + 1) * OBS] = x
    return found


class Alone:
    """One member in double precision, whose gradients are taken one output at a time."""

    def __init__(self, p: Any, member: Member) -> None:
        self.arch, self.widths, self.cfg, self.hyper = member.arch, p.widths["q"], p.algo_config, member.hyper
        self.theta = member.tensors["q"].double().requires_grad_()
        self.start, self.seen = member.tensors["start"].double(), member.tensors["seen.square"].double()

    def f(self, x: torch.Tensor) -> torch.Tensor:
        return reference.function(self.arch, self.widths, self.theta, x)[:, 0]

    def gradient(self, x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(self.f(x[None])[0], self.theta)
        return found

    def width(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gradient(x) ** 2 / (self.cfg.ridge + self.seen)).sum().sqrt()


def drawn(name: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(name))


@pytest.mark.parametrize("name", NAMES)
def test_widths_and_arms_are_those_of_the_papers(name: str) -> None:
    p, members, cohort = given(name, ridge=0.7, exploration=0.8)
    obs = drawn(2, len(members), E, OBS)
    values, widths = (of(p.algo_config, cohort.state, obs) for of in (p.algo.values, _neural_bandit.width))
    stream = Stream(cohort.keys, Purpose.ACT, torch.tensor([3]))
    legal, never = torch.ones(len(members), E, A, dtype=torch.bool), torch.zeros(len(members))
    took = p.algo.act(p.algo_config, cohort.state, obs, legal, never, stream)
    noise = stream.part(1).normal(E * A).view(-1, E, A).double()
    greedy = p.algo.greedy(p.algo_config, cohort.state, obs, legal)
    for i, member in enumerate(members):
        alone = Alone(p, member)
        for e in range(E):
            x = arms(obs[i, e].double())
            mean, sigma = alone.f(x).detach(), torch.stack([alone.width(each) for each in x])
            torch.testing.assert_close(values[i, e].double(), mean, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(widths[i, e].double(), sigma, rtol=1e-4, atol=1e-6)
            bonus = sigma if name == "neural_ucb" else noise[i, e] * 0.7**0.5 * sigma
            assert int(took[i, e]) == int((mean + 0.8 * bonus).argmax())
            assert int(greedy[i, e]) == int(mean.argmax())


@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_one_of_adam_and_counts_what_was_chosen(name: str) -> None:
    p, members, cohort = given(name, decay=0.05, grad_clip=0.4, learn_step=3)
    n = len(members)
    weight = torch.rand(n, B, generator=torch.Generator().manual_seed(4))
    batch = Batch(drawn(5, n, B, OBS), torch.arange(n * B).view(n, B) % A, drawn(6, n, B), torch.ones(n, B),
                  drawn(7, n, B, OBS), None, weight / weight.sum(dim=1, keepdim=True))  # fmt: skip
    draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([0]))
    learned = p.algo.update(p.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, draw, 0)
    after = {m.slot: m.tensors for m in dissolve([cohort])}
    for i, member in enumerate(members):
        alone = Alone(p, member)
        x = torch.stack([arms(o.double())[a] for o, a in zip(batch.obs[i], batch.action[i], strict=True)])
        w = batch.weight[i].double()
        errors = alone.f(x) - batch.reward[i].double()
        loss = 0.5 * (w * errors**2).sum() + 0.5 * 0.05 * ((alone.theta - alone.start) ** 2).sum()
        torch.testing.assert_close(learned.losses[i].double(), loss.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(learned.errors[i].double(), errors.detach(), rtol=1e-4, atol=1e-5)
        (alone.theta.grad,) = torch.autograd.grad(loss, alone.theta)
        torch.nn.utils.clip_grad_norm_([alone.theta], 0.4)
        torch.optim.Adam([alone.theta], lr=member.hyper["lr"]).step()
        found = after[member.slot]
        torch.testing.assert_close(found["q"].double(), alone.theta.detach(), rtol=1e-4, atol=1e-6)
        first = _neural_bandit.COUNTED
        squares = torch.stack([alone.gradient(each) ** 2 for each in x[:first]])
        counted = member.hyper["learn_step"] * (w[:first, None] * squares).sum(dim=0) / w[:first].sum()
        torch.testing.assert_close(found["seen.square"].double(), alone.seen + counted, rtol=1e-3, atol=1e-5)
        assert found["seen.steps"] == member.hyper["learn_step"]
        assert torch.equal(found["start"], member.tensors["start"])


def test_what_was_counted_survives_a_change_of_architecture() -> None:
    p, (member, *_), _ = given("neural_ucb")
    config = MutationConfig.model_validate(
        {"probabilities": {"none": 0.0, "architecture": 1.0, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.0}}
    )
    child, mutation = mutate(config, p.traits, member, host(7, Purpose.MUTATE, 1))
    assert mutation.describe()
    old, new = (m.arch.named(p.widths["q"], m.tensors["seen.square"]) for m in (member, child))
    for name, part in new.items():
        if name in old:
            corner = tuple(slice(min(a, b)) for a, b in zip(old[name].shape, part.shape, strict=True))
            assert torch.equal(part[corner], old[name][corner]), name
    assert child.tensors["seen.square"].min() >= 0.0


def test_rows_of_an_observation_are_the_arms_inputs() -> None:
    algo = algos.get("neural_ucb")
    spaces = Spaces(6, 3, False)
    cfg = algo.Config(contexts="rows").at(spaces)
    assert algo.networks(cfg, spaces)["q"].inputs == 2
    obs = torch.arange(6.0)[None, None]
    assert torch.equal(_neural_bandit.arms(cfg, obs)[0, 0], obs.view(3, 2))
    shared = algo.Config().at(spaces)
    assert algo.networks(shared, spaces)["q"].inputs == 18
    x = _neural_bandit.arms(shared, obs)[0, 0]
    assert [x[a].nonzero()[:, 0].tolist() for a in range(3)] == [[1, 2, 3, 4, 5], [*range(7, 12)], [*range(13, 18)]]
    with pytest.raises(ParamsError, match="no row for each of 4 arms"):
        algo.networks(cfg, Spaces(6, 4, False))


def test_a_member_that_is_frozen_counts_nothing() -> None:
    p, members, cohort = given("neural_ucb")
    n = len(members)
    cohort.healthy[0] = False
    before = cohort.state.seen.square.clone()
    batch = Batch(drawn(5, n, B, OBS), torch.zeros(n, B, dtype=torch.int64), drawn(6, n, B), torch.ones(n, B),
                  drawn(7, n, B, OBS), None, torch.full((n, B), 1 / B))  # fmt: skip
    draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([0]))
    p.algo.update(p.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, draw, 0)
    assert torch.equal(cohort.state.seen.square[0], before[0])
    assert np.all([not torch.equal(cohort.state.seen.square[i], before[i]) for i in range(1, n)])
