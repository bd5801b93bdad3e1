"""PPO by the CPU's own kernels: what the algorithm's own torch does, to what float32 can know, and a member's bits its
own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import populations
from evopipe.core.cohort import Cohort
from evopipe.memory.rollout import Rollout
from evopipe.native import build, policy
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.run import act
from evopipe.run.spec import EnvSpec, first_members
from populations import TICKS, rollout_for

pytestmark = pytest.mark.numerical
SEVERAL = 4
CASES: list[Any] = [
    ("ppo", {}, False),
    ("ppo", {"share_encoder": True, "clip_value": True, "target_kl": 0.02}, True),
    ("ppo:continuous", {"normalise_advantage": False, "grad_clip": 0.1}, False),
    ("ppo:continuous", {"squash": True, "share_encoder": True}, False),
    ("ppo:multidiscrete", {"clip_value": True}, True),
    ("ppo:multibinary", {"clip": 0.05, "ent_coef": 1.0}, True),
    ("ppo", {"network": {"encoder_kind": "lstm"}, "max_seq_len": 5, "share_encoder": True}, False),
    ("ppo:continuous", {"network": {"encoder_kind": "lstm", "encoder": [16, 20]}, "max_seq_len": 3,
     "sequences": "overlapping"}, False),
    ("mappo", {"share": "all", "clip_value": True, "target_kl": 0.02}, False),
    ("mappo:continuous", {"share": "none"}, False),
    ("ippo", {"network": {"encoder_kind": "lstm"}, "max_seq_len": 4}, False),
    ("ippo:continuous", {"squash": True}, False),
    ("mappo:multidiscrete", {}, False),
    ("ippo:multibinary", {}, False),
]  # fmt: skip
TAUGHT = {
    1,
    3,
    4,
    5,
    7,
    8,
    10,
}  # a case of each kind of actions, of memory, of teams: nothing else compares what C learns


@pytest.fixture(autouse=True)
def torch_again() -> Iterator[None]:
    yield
    build.use(None)


def problem(algo: str, config: dict[str, Any]) -> EnvSpec:
    """Members that differ in all that may differ."""
    network = {"encoder": [16], "latent": 16, "head": [16], "layer_norm": True, **config.get("network", {})}
    own = {"evolve": {"batch_size": {"min": 16, "max": 64}, "lr": {"min": 1e-4, "max": 1e-2}}, "epochs": 3}
    # Of the second seed's members one adds an LSTM layer, that it blends and others lack, and one takes its head away.
    seed, layers = (13, {"new_layer_prob": 1.0}) if "network" in config else (3, {})
    return populations.problem(
        algo=algo, mutation={**populations.UNLIKE, **layers}, cohorts="merged",
        config={**own, **config, "network": network},
        seed=seed,
    )  # fmt: skip


def started(p: EnvSpec) -> Cohort:
    """A cohort in the middle of training: moments that are not 0."""
    members, chosen = first_members(p, SEVERAL)[0], build.chosen()
    build.use(build.load())  # whoever computes: with these all share a cohort
    (cohort,) = p.form(members)
    build.use(chosen)
    for name in ("lr", "gamma", "gae_lambda", "clip", "vf_coef", "ent_coef", "grad_clip", "target_kl"):
        cohort.hyper[name].mul_(torch.tensor([1.0, 0.5, 0.8, 0.3]))  # each member's own
    draw = torch.Generator().manual_seed(1)
    for name in ("encoder", "actor", "critic"):
        net, adam = (getattr(cohort.state, each, None) for each in (name, f"{name}_adam"))
        if net is not None:
            inner = getattr(net.structure, "inner", net.structure)
            for layer, blend in zip(inner.layout.hidden, inner.blends, strict=True):
                if layer.alpha is not None and blend is not None:
                    net.values.view(-1, inner.size)[:, layer.alpha.start] = 0.4 * blend[1][:, 0, 0]
            own = inner.pack([torch.ones(len(index)) for index in inner.index]).view_as(net.values)
            adam.mean.copy_(0.1 * own * torch.randn(own.shape, generator=draw))
            adam.square.copy_(own * (0.05 + torch.rand(own.shape, generator=draw)))
            adam.steps.fill_(7.0)
    return cohort


def held(cohort: Cohort) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in (*cohort.tensors(), cohort.healthy.float(), cohort.losses)]


def learned(p: EnvSpec, cohort: Cohort, rollout: Rollout, kernels: str | None) -> list[torch.Tensor]:
    build.use(build.load(kernels) if kernels else None)
    learn_from_rollout(p, cohort, copy.deepcopy(rollout), TICKS, 3)
    return held(cohort)


def played(p: EnvSpec, masked: bool) -> tuple[Rollout, Cohort]:
    """A random rollout, by torch, with an old policy that is some way off."""
    build.use(None)
    cohort = started(p)
    rollout = rollout_for(p, cohort, masked=masked)
    at = rollout.layout.log_prob
    rollout.rows[..., at] += 0.2 * torch.randn(rollout.rows.shape[:3], generator=torch.Generator().manual_seed(2))
    rollout.rows[..., at + 1] += 0.2 * torch.randn(rollout.rows.shape[:3], generator=torch.Generator().manual_seed(3))
    return rollout, cohort


def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which calls the kernels served."""
    told: list[bool] = []
    original = policy.described

    def described(*given: Any) -> Any:
        found = original(*given)
        told.append(found is not None)
        return found

    monkeypatch.setattr(policy, "described", described)
    return told


@pytest.mark.parametrize(
    ("algo", "config", "masked"),
    [case if i in TAUGHT else pytest.param(*case, marks=pytest.mark.thorough) for i, case in enumerate(CASES)],
)
def test_a_rollout_teaches_what_torch_learns(
    algo: str, config: dict[str, Any], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem(algo, config)
    rollout, cohort = played(p, masked)
    theirs = learned(p, cohort, rollout, None)
    told = served(monkeypatch)
    ours = learned(p, started(p), rollout, "native")
    assert told == [True, True]  # values, then all minibatches
    begun = held(started(p))
    for mine, other, before in zip(ours, theirs, begun, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5)
        if before.shape[-1] > 20:
            assert not torch.equal(mine, before)


@pytest.mark.parametrize(("algo", "config", "masked"), [CASES[0], CASES[3], CASES[6], CASES[9]])
@pytest.mark.thorough
def test_the_same_members_are_healthy_as_in_torch(algo: str, config: dict[str, Any], masked: bool) -> None:
    p = problem(algo, config)
    rollout, _ = played(p, masked)
    for size in (1e6, 1e17, 1e21, 1e30):
        grown = copy.deepcopy(rollout)
        grown.rows[1, ..., : p.observations] *= size
        theirs, ours = (learned(p, started(p), grown, kernels)[-2:] for kernels in (None, "native"))
        assert torch.equal(ours[0], theirs[0]), size
        assert ours[0].tolist()[0] == ours[0].tolist()[2] == 1.0
        finite = theirs[1].isfinite()
        torch.testing.assert_close(ours[1][finite], theirs[1][finite], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("algo", "config", "masked"), CASES)
def test_members_act_as_in_torch(
    algo: str, config: dict[str, Any], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem(algo, config)
    cohort, draw = started(p), torch.Generator().manual_seed(4)
    cohort.state.log_std.add_(0.3 * torch.randn(cohort.state.log_std.shape, generator=draw))  # of each group its own
    members = len(cohort.members)
    obs = torch.randn(members, 21 * p.spaces.agents, p.observations, generator=draw)
    rows = 21 * p.spaces.agents
    legal = (populations.own_for if p.spaces.team else populations.legal_for)(
        p, (members, rows), *([] if p.spaces.team else [draw])
    )
    begins = torch.rand(members, rows, generator=draw) < 0.3
    memory = act.step(p, cohort, obs, legal, begins, torch.zeros(members, rows, cohort.memory), 4).memory
    told = served(monkeypatch)
    for tick in (5, None):
        build.use(None)
        theirs = act.step(p, cohort, obs, legal, begins, memory, tick)
        build.use(build.load())
        ours = act.step(p, cohort, obs, legal, begins, memory, tick)
        assert ours.action.dtype == theirs.action.dtype
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert told == [False, True, False, True]


@pytest.mark.parametrize(("algo", "config", "masked"), [CASES[1], CASES[3], CASES[6]])
def test_a_member_learns_by_itself(algo: str, config: dict[str, Any], masked: bool) -> None:
    p = problem(algo, config)
    rollout, _ = played(p, masked)
    together = learned(p, started(p), rollout, "native")
    spoiled, other = started(p), copy.deepcopy(rollout)
    spoiled.state.actor.values[0] = torch.nan
    for given in (spoiled.part(1, 3), spoiled.part(3, len(spoiled.members)), spoiled.part(0, 1)):
        first = spoiled.slots.index(given.slots[0])
        learned(p, given, other.part(first, first + len(given.slots)), "native")
    for mine, every in zip(held(spoiled), together, strict=True):
        assert torch.equal(mine[1:], every[1:])
    assert spoiled.healthy.tolist() == [False, *[True] * (len(spoiled.members) - 1)]
    assert spoiled.state.updates[0] == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("algo", "config", "masked"), [CASES[0], CASES[6], CASES[10]])
def test_a_step_that_does_not_count_ends_no_epochs(algo: str, config: dict[str, Any], masked: bool) -> None:
    """The old policy is far off where nothing is learned, and there alone: no bit of what is learned changes, with the
    kernels and with torch."""
    p = problem(algo, {**config, "target_kl": 1.0})
    rollout, _ = played(p, masked)
    out = rollout.after[..., p.observations + 3] == 0
    assert out.flatten(1).any(dim=1)[:3].all()
    far = copy.deepcopy(rollout)
    far.rows[..., rollout.layout.log_prob][out] -= 40.0
    for kernels in (None, "native"):
        cohort, other = started(p), started(p)
        near = learned(p, cohort, rollout, kernels)
        assert all(torch.equal(a, b) for a, b in zip(near, learned(p, other, far, kernels), strict=True))
        assert (cohort.state.updates - started(p).state.updates).min() >= 3, "nobody rests"


@pytest.mark.thorough
def test_squashed_actions_at_their_bounds_have_a_density() -> None:
    """At −1 and at 1, where the hyperbolic tangent's inverse is infinite: what was near such an action is learned."""
    p = problem("ppo:continuous", {"squash": True})
    rollout, cohort = played(p, False)
    rows, first = rollout.rows.flatten(1, 2), p.observations
    rows[:, ::3, first], rows[:, 1::3, first] = -1.0, 1.0
    chances = p.algo.answers(p.algo_config).chances(
        p.algo_config, cohort.state, rows[..., :first], None, rollout.memory[:, :-1].flatten(1, 2)
    )
    rows[..., first + 1] = chances.log_prob(rows[..., first : first + 1])
    assert rows[:, ::3, first + 1].max() < -80
    rollout.rows.copy_(rows.view_as(rollout.rows))
    theirs, ours = learned(p, cohort, rollout, None), learned(p, started(p), rollout, "native")
    assert ours[-2].tolist() == [1.0] * SEVERAL
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5)


@pytest.mark.thorough
def test_the_distance_from_the_old_policy_is_that_of_all_groups() -> None:
    """Only the first agent, whose networks are its own, is far off: of three agents' steps a third is."""
    p = problem("ippo", {"share": "none", "target_kl": 0.4})
    rollout, cohort = played(p, False)
    begun, at = cohort.state.updates.clone(), rollout.layout.log_prob
    rollout.rows[:, :, :: p.spaces.agents, at] -= 1.0
    rests = torch.tensor([False, True, False, True])  # of bounds of 0.4, 0.2, 0.32 and 0.12
    found = []
    for kernels in (None, "native"):
        cohort = started(p)
        learned(p, cohort, rollout, kernels)
        found.append(cohort.state.updates - begun)
        assert torch.equal(found[-1] == 0, rests)
    assert torch.equal(*found)


@pytest.mark.thorough
def test_a_loss_that_overflows_freezes_its_member_though_its_gradient_does_not() -> None:
    p = problem("ppo", {"normalise_advantage": False})
    rollout, _ = played(p, False)
    rollout.after[1, 0, 2, p.observations :] = torch.tensor([2e19, 1.0, 1.0, 1.0])  # whose square is no float
    for kernels in (None, "native"):
        cohort = started(p)
        learned(p, cohort, rollout, kernels)
        assert cohort.healthy.tolist() == [True, False, True, True]


@pytest.mark.thorough
@pytest.mark.parametrize("far", [20.0, 95.0, 200.0])
def test_a_ratio_beyond_all_floats_freezes_as_in_torch(far: float) -> None:
    """What is 88 nats or more away is infinitely more likely: a loss of that is none."""
    p = problem("ppo", {"normalise_advantage": False})
    rollout, _ = played(p, False)
    rollout.rows[1, ..., rollout.layout.log_prob] -= far
    rollout.after[1, ..., p.observations] = -5.0  # of what nobody wants more
    theirs, ours = (learned(p, started(p), rollout, kernels)[-2] for kernels in (None, "native"))
    assert ours.tolist() == theirs.tolist() == [1.0, float(far < 88), 1.0, 1.0]
