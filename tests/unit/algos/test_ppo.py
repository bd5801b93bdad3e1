"""PPO's equations: by hand, and against one member's plain modules and torch.distributions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as td

import populations
import reference
from evopipe import algos
from evopipe.core import optim
from evopipe.core.cohort import Cohort
from evopipe.core.net import Net
from evopipe.errors import EvopipeError
from evopipe.params.load import Params, parse_params
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import EnvSpec, first_members
from evopipe.types import Sequences
from populations import TICKS, advance, close_generation, rollout_for, started

pytestmark = pytest.mark.numerical

ppo: Any = algos.get("ppo")
KINDS = ["ppo", "ppo:continuous", "ppo:multidiscrete", "ppo:multibinary"]

# ----------------------------------------------------------------------------------------------------------- the loss


def hand_made(**config: Any) -> tuple[EnvSpec, Cohort, Sequences]:
    """One member and three steps whose probabilities and values are chosen: networks give their output biases alone."""
    p = populations.problem("CartPole-v1", "ppo", config={"normalise_advantage": False, **config})
    (cohort,) = p.form(first_members(p, 1)[0])
    for net in (cohort.state.actor, cohort.state.critic):
        net.values.zero_()
    view = cohort.state.actor.views[-1].bias.detach()
    view.copy_(torch.tensor([0.6, 0.4]).log().view(1, 1, 2))
    cohort.state.critic.views[-1].bias.detach()[..., 0] = 2.0
    three = lambda *x: torch.tensor(x).view(1, 3, 1)  # noqa: E731
    batch = Sequences(
        obs=torch.zeros(1, 3, 1, 4), action=three(0, 1, 0), legal=None,
        log_prob=three(0.4, 0.5, 0.6).log(),  # ratios 1.5, 0.8, 1
        value=three(1.5, 2.0, 1.0), advantage=three(2.0, -1.0, 3.0), target=three(2.5, 1.0, 2.0),
        begins=torch.zeros(1, 3, 1, dtype=torch.bool), memory=torch.zeros(1, 3, 0), weight=three(0.5, 0.25, 0.25),
    )  # fmt: skip
    return p, cohort, batch


@pytest.mark.parametrize(
    ("clip_value", "errors"),
    [
        (False, (0.25, 1.0, 0.0)),
        # clipped values 1.7, 2, 1.2 of old 1.5, 2, 1: the larger of the two errors counts
        (True, (0.64, 1.0, 0.64)),
    ],
)
def test_the_loss_by_hand(clip_value: bool, errors: tuple[float, ...]) -> None:
    p, cohort, batch = hand_made(clip=0.2, vf_coef=0.5, ent_coef=0.1, clip_value=clip_value)
    losses, distance = ppo.loss(p.algo_config, cohort.state, cohort.hyper, batch, cohort.state.log_std)
    # 1.5 · 2 is clipped to 1.2 · 2; 0.8 · −1 lies on the border; 1 · 3.
    gains = (2.4, -0.8, 3.0)
    entropy = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    weights = (0.5, 0.25, 0.25)
    expected = sum(w * (-g + 0.5 * 0.5 * e - 0.1 * entropy) for w, g, e in zip(weights, gains, errors, strict=True))
    assert float(losses.detach()) == pytest.approx(expected, abs=1e-6)
    apart = sum(w * (r - 1 - math.log(r)) for w, r in zip(weights, (1.5, 0.8, 1.0), strict=True))
    assert float(distance) == pytest.approx(apart, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "flows"),
    [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False), (1.1, 1.0, True), (0.9, -1.0, True)],
)
def test_a_ratio_beyond_its_clip_gets_no_gradient_where_it_would_go_further(
    ratio: float, advantage: float, flows: bool
) -> None:
    p, cohort, batch = hand_made(clip=0.2, ent_coef=0.0, vf_coef=0.0)
    weight = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1)
    old = torch.full((1, 3, 1), math.log(0.6 / ratio))
    batch = replace(batch, log_prob=old, advantage=torch.full_like(old, advantage), weight=weight)
    losses, _ = ppo.loss(p.algo_config, cohort.state, cohort.hyper, batch, cohort.state.log_std)
    optim.backward(losses, cohort.state.actor)
    assert bool(cohort.state.actor.grad.abs().sum() > 0) == flows


def nets_of(cohort: Cohort) -> dict[str, Net]:
    """The networks by name: a shared encoder, the actor, the critic."""
    found = {name: getattr(cohort.state, name) for name in ("encoder", "actor", "critic")}
    return {name: net for name, net in found.items() if net is not None}


def plain(p: EnvSpec, cohort: Cohort, row: int, batch: Sequences) -> tuple[Any, torch.Tensor, dict[str, torch.Tensor]]:
    """One member's policy, as torch.distributions has it, and its values, from plain modules; and their parameters."""
    arch, x = cohort.members[row].arch, batch.obs[row, :, 0]
    rows = {
        name: net.structure.unpack(net.values)[row].clone().requires_grad_(True)
        for name, net in nets_of(cohort).items()
    }
    if "encoder" in rows:
        x = reference.function(arch, p.widths["encoder"], rows["encoder"], x)
    outputs, values = (reference.function(arch, p.widths[name], rows[name], x) for name in ("actor", "critic"))
    values = values[:, 0]
    if p.spaces.continuous:
        rows["log_std"] = cohort.state.log_std[row].clone().requires_grad_(True)
        normal: Any = td.Independent(td.Normal(outputs, rows["log_std"].exp().expand_as(outputs)), 1)
        return normal, values, rows
    if batch.legal is not None:
        outputs = outputs.masked_fill(~batch.legal[row, :, 0], -1e30)
    if p.spaces.kind == "multibinary":
        return td.Independent(td.Bernoulli(logits=outputs), 1), values, rows
    parts = [td.Categorical(logits=part) for part in outputs.split(list(p.spaces.choices), dim=-1)]
    return parts, values, rows


def log_prob_and_entropy(p: EnvSpec, policy: Any, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a plain policy: `[B]` each. Squashed actions' densities have their Jacobian, the entropy is the Gaussian's."""
    if isinstance(policy, list):
        each = action[:, None] if action.ndim == 1 else action
        found = [part.log_prob(each[:, i]) for i, part in enumerate(policy)]
        return torch.stack(found).sum(dim=0), torch.stack([part.entropy() for part in policy]).sum(dim=0)
    if p.algo_config.squash:
        squashed = td.TransformedDistribution(policy, [td.TanhTransform()])  # type: ignore[no-untyped-call]
        return squashed.log_prob(action.clamp(-1 + 1e-7, 1 - 1e-7)), policy.entropy()  # type: ignore[no-untyped-call]
    return policy.log_prob(action if action.dtype.is_floating_point else action.float()), policy.entropy()


def plain_loss(p: EnvSpec, cohort: Cohort, row: int, batch: Sequences) -> tuple[torch.Tensor, Any]:
    """The paper's loss, over the steps that count, as one writes it for one agent; and the parameters."""
    cfg, hp = p.algo_config, {name: float(values[row]) for name, values in cohort.hyper.items()}
    chances, values, rows = plain(p, cohort, row, batch)
    real = batch.weight[row, :, 0] > 0
    log_prob, entropy = log_prob_and_entropy(p, chances, batch.action[row, :, 0])
    ratio = (log_prob - batch.log_prob[row, :, 0])[real].exp()
    advantage = batch.advantage[row, :, 0][real]
    if cfg.normalise_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    gain = torch.min(ratio * advantage, ratio.clamp(1 - hp["clip"], 1 + hp["clip"]) * advantage).mean()
    target, old = batch.target[row, :, 0][real], batch.value[row, :, 0][real]
    error = (values[real] - target) ** 2
    if cfg.clip_value:
        near = old + (values[real] - old).clamp(-hp["clip"], hp["clip"])
        error = torch.max(error, (near - target) ** 2)
    loss = -gain + hp["vf_coef"] * 0.5 * error.mean() - hp["ent_coef"] * entropy[real].mean()
    return loss, rows


def example(algo: str, seed: int = 0, **config: Any) -> tuple[EnvSpec, Cohort, Sequences]:
    """Unlike members in one cohort that have gone away from the policy that played, and a minibatch with pads."""
    masked = config.pop("masked", False)
    members_own = {"batch_size": 32, "clip": 0.05, "ent_coef": 0.03, "vf_coef": 0.7}
    mutation = {**populations.UNLIKE, "activations": ("Tanh",), "probabilities": {"rl_hp": 0.0, "parameters": 0.0}}
    p = populations.problem(algo=algo, cohorts="merged", mutation=mutation, config=config)
    members = [
        replace(m, hyper={**m.hyper, **members_own, "clip": 0.05 * (m.slot + 1)}) for m in first_members(p, 4)[0]
    ]
    (cohort,) = p.form(members)
    rollout = rollout_for(p, cohort, seed, masked=masked)
    next_value = ppo.value(p.algo_config, cohort.state, *rollout.following(TICKS))
    rollout.estimate(TICKS, next_value, cohort.hyper["gamma"], cohort.hyper["gae_lambda"])
    g = torch.Generator().manual_seed(seed)
    for net in nets_of(cohort).values():
        own = net.structure.pack([torch.ones_like(x) for x in net.structure.unpack(net.values)])
        net.values.add_(0.05 * own * torch.randn(net.values.shape, generator=g))
    place = torch.stack([torch.randperm(TICKS * 4, generator=g)[:40] for _ in members])
    weight = (torch.arange(40) < torch.tensor([40, 32, 17, 3])[:, None]).float()[..., None]
    return p, cohort, rollout.sequences((place // 4)[..., None], place % 4, weight)


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("ppo", {"share_encoder": True, "clip_value": True}),
        ("ppo:continuous", {}),
        ("ppo:multidiscrete", {"clip_value": True}),
        ("ppo:multibinary", {"normalise_advantage": False}),
        ("squashed", {"clip_value": True}),
        ("masked", {}),
        ("masked:multidiscrete", {"normalise_advantage": False}),
        ("masked:multibinary", {"share_encoder": True, "clip_value": True}),
    ],
)
def test_loss_and_gradient_are_those_of_one_agent(case: str, options: dict[str, Any]) -> None:
    """To 1e-6, clips active, pads weighing nothing, each member's advantages normalised by themselves."""
    name, _, kind = case.partition(":")
    algo = "ppo:continuous" if name == "squashed" else f"ppo:{kind}" if kind else "ppo"
    for seed in range(3):
        p, cohort, batch = example(algo, seed, masked=name == "masked", squash=name == "squashed", **options)
        log_std = cohort.state.log_std.clone().requires_grad_(True)
        losses, _ = ppo.loss(p.algo_config, cohort.state, cohort.hyper, batch, log_std)
        optim.backward(losses, *nets_of(cohort).values())
        clipped = 0
        for row in range(4):
            loss, rows = plain_loss(p, cohort, row, batch)
            torch.testing.assert_close(losses[row], loss, atol=2e-6, rtol=2e-6)
            loss.backward()
            for part, own in rows.items():
                net = nets_of(cohort).get(part)
                found = log_std.grad[row] if net is None else net.structure.unpack(net.grad)[row]
                torch.testing.assert_close(found, own.grad, atol=1e-5, rtol=1e-4)
            chances, *_ = plain(p, cohort, row, batch)
            log_prob, _ = log_prob_and_entropy(p, chances, batch.action[row, :, 0])
            beyond = (log_prob - batch.log_prob[row, :, 0]).exp() - 1
            clipped += int((beyond.abs() > cohort.hyper["clip"][row]).sum())
        assert clipped > 0, "some ratios are beyond their clip"


def test_normalised_advantages_have_no_scale_and_no_offset() -> None:
    p, cohort, batch = example("ppo", vf_coef=0.0)
    hyper = {**cohort.hyper, "vf_coef": torch.zeros(4)}
    losses = [
        ppo.loss(
            p.algo_config, cohort.state, hyper, replace(batch, advantage=a * batch.advantage + b), cohort.state.log_std
        )
        for a, b in ((1.0, 0.0), (100.0, 7.0))
    ]
    torch.testing.assert_close(losses[0][0], losses[1][0], atol=1e-5, rtol=1e-5)


# --------------------------------------------------------------------------------------------------------- an update


@pytest.mark.parametrize("algo", KINDS)
def test_what_a_member_plays_is_what_its_distribution_says(algo: str) -> None:
    """Log-probabilities of collection equal torch.distributions', squashed ones with their Jacobian, far out too."""
    for squash in (False, True) if algo == "ppo:continuous" else (False,):
        p, cohort, _ = example(algo, squash=squash)
        if squash:
            cohort.state.actor.views[-1].bias.detach()[..., 0] = torch.tensor([0.0, 1.0, 3.0, -9.0]).view(4, 1)
        rollout = rollout_for(p, cohort, masked=not p.spaces.continuous)
        tick, env = torch.arange(TICKS).repeat_interleave(4).repeat(4, 1), torch.arange(4).repeat(TICKS).repeat(4, 1)
        batch = rollout.sequences(tick[..., None], env, torch.ones(4, TICKS * 4, 1))
        chances, values = ppo._evaluate(p.algo_config, cohort.state, batch, cohort.state.log_std)
        again = chances.log_prob(batch.action[:, :, 0])
        torch.testing.assert_close(again, batch.log_prob[:, :, 0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(values, batch.value[:, :, 0], atol=1e-5, rtol=1e-5)
        for row in range(2 if squash else 4):  # further out float32 tells torch's own no more
            own, _, _ = plain(p, cohort, row, batch)
            expected, _ = log_prob_and_entropy(p, own, batch.action[row, :, 0])
            torch.testing.assert_close(batch.log_prob[row, :, 0], expected, atol=5e-4 if squash else 1e-5, rtol=1e-4)


def test_ratios_of_squashed_actions_begin_at_one_however_far_out() -> None:
    """Where tanh rounds to ±1 too: what is stored is an action's log-probability as the loss finds it again."""
    p, cohort, _ = example("ppo:continuous", squash=True)
    cohort.state.actor.views[-1].bias.detach()[..., 0] = torch.tensor([0.0, 5.0, 9.0, -30.0]).view(4, 1)
    rollout = rollout_for(p, cohort, broken=0.0)
    tick, env = torch.arange(TICKS).repeat_interleave(4).repeat(4, 1), torch.arange(4).repeat(TICKS).repeat(4, 1)
    batch = rollout.sequences(tick[..., None], env, torch.ones(4, TICKS * 4, 1))
    assert (batch.action.abs() == 1).any()
    _, distance = ppo.loss(p.algo_config, cohort.state, cohort.hyper, batch, cohort.state.log_std)
    assert distance.abs().max() < 1e-5


@pytest.mark.parametrize("share", [False, True])
def test_the_value_of_what_comes_next_is_the_one_that_the_next_step_finds(share: bool) -> None:
    """By the critic's memory, not the actor's: each network has its own."""
    network = {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}
    p = populations.problem(algo="ppo", config={"network": network, "share_encoder": share})
    (cohort,) = p.form(first_members(p, 3)[0])
    g = torch.Generator().manual_seed(0)
    obs, memory = torch.randn(3, 5, p.observations, generator=g), torch.randn(3, 5, cohort.memory, generator=g)
    took = ppo.step(p.algo_config, cohort.state, obs, None, memory, None)
    assert torch.equal(ppo.value(p.algo_config, cohort.state, obs, memory), took.value)
    assert took.value.std() > 1e-3


# ------------------------------------------------------------------------------------------------------------- masks


def test_illegal_actions_have_no_probability_in_collection_learning_and_evaluation() -> None:
    p, cohort, batch = example("ppo", masked=True)
    assert batch.legal is not None
    legal = batch.legal[:, :, 0]
    chances, _ = ppo._evaluate(p.algo_config, cohort.state, batch, cohort.state.log_std)
    found = torch.stack([chances.log_prob(torch.full_like(batch.action[:, :, 0], a)).exp() for a in (0, 1)], dim=-1)
    assert (found[~legal] == 0).all()
    torch.testing.assert_close(found.sum(dim=-1), torch.ones_like(found[..., 0]))
    assert torch.isfinite(chances.entropy()).all()
    assert (~legal).any()
    illegal = torch.zeros(4, 500, 2, dtype=torch.bool)
    illegal[:, :, 1] = True
    obs = torch.randn(4, 500, p.observations, generator=torch.Generator().manual_seed(0))
    memory = torch.zeros(4, 500, 0)
    for i in range(20):  # 40 000 draws
        draw = Stream(cohort.keys, Purpose.ACT, torch.tensor([i]))
        took = ppo.step(p.algo_config, cohort.state, obs, illegal, memory, draw)
        assert (took.action == 1).all()
        assert (took.log_prob == 0).all()
    assert (ppo.step(p.algo_config, cohort.state, obs, illegal, memory, None).action == 1).all()
    assert (ppo.greedy(p.algo_config, cohort.state, obs, illegal) == 1).all()


@pytest.mark.parametrize(("algo", "masks"), [("ppo:multidiscrete", "tuple"), ("ppo:multibinary", "flat")])
def test_masked_environments_of_several_choices_are_learned_and_evaluated(algo: str, masks: str) -> None:
    """They raise where an action is illegal."""
    loop = started(populations.problem(algo=algo, kwargs={"masks": masks}), 2)
    advance(loop, 49)
    rows = loop.regime.playing[0].rollout
    assert rows.layout.masked
    advance(loop, 1)
    close_generation(loop)
    assert all(m.healthy for m in loop.members)
    loop.close()


def test_a_masked_minibatch_leaves_illegal_logits_without_gradient() -> None:
    p, cohort, batch = example("ppo", masked=True)
    only = torch.zeros_like(batch.legal)  # type: ignore[arg-type]
    only[..., 1] = True
    batch = replace(batch, legal=only, action=torch.ones_like(batch.action), log_prob=torch.zeros_like(batch.log_prob))
    losses, distance = ppo.loss(p.algo_config, cohort.state, cohort.hyper, batch, cohort.state.log_std)
    optim.backward(losses, cohort.state.actor)
    assert torch.isfinite(losses).all()
    assert (distance == 0).all()
    assert (cohort.state.actor.grad == 0).all(), "there is no choice to learn"


# ------------------------------------------------------------------------------------------------------ frozen, spread


def test_the_spread_of_actions_is_learned_by_its_own_member() -> None:
    """From `std` on; discrete actions have none."""
    p = populations.problem(algo="ppo:continuous", config={"std": 0.25})
    members = first_members(p, 3)[0]
    assert all(float(m.tensors["log_std"].exp()) == pytest.approx(0.25) for m in members)
    (cohort,) = p.form(members)
    cohort.healthy[1] = False
    learn_from_rollout(p, cohort, rollout_for(p, cohort), TICKS, 3)
    moved = (cohort.state.log_std[:, 0] - math.log(0.25)).abs()
    assert [bool(x > 0) for x in moved] == [True, False, True]
    discrete = populations.problem(algo="ppo")
    assert first_members(discrete, 1)[0][0].tensors["log_std"].shape == (0,)


# ---------------------------------------------------------------------------------------------------------- bad input


BAD: list[tuple[dict[str, Any], str]] = [
    ({"algos.ppo.batch_size": 512, "algos.ppo.learn_step": 256}, "algos.ppo.batch_size: 512 steps are more than"),
    ({"algos.ppo.max_seq_len": 0}, "algos.ppo.max_seq_len: must be at least 1, got 0"),
    ({"algos.ppo.sequences": "halves"}, "algos.ppo.sequences: "),
    ({"algos.ppo.clip": 0.0}, "algos.ppo.clip: must be above 0, got 0"),
    ({"algos.ppo.gae_lambda": 1.5}, "algos.ppo.gae_lambda: must be at most 1, got 1.5"),
    ({"algos.ppo.epochs": 0}, "algos.ppo.epochs: must be at least 1, got 0"),
    ({"algos.ppo.std": 0.0}, "algos.ppo.std: must be above 0, got 0"),
    ({"train.mode": "offline"}, "train.mode: ppo only learns from its own steps: set it to online"),
]


@pytest.mark.parametrize(("overrides", "sentence"), BAD)
def test_bad_parameters_are_one_sentence_before_training(overrides: dict[str, Any], sentence: str) -> None:
    params: dict[str, Any] = Params().model_dump(mode="json")
    params["train"]["algo"] = "ppo"
    params["algos"]["ppo"] = ppo.Config().model_dump(mode="json")
    for path, value in overrides.items():
        *blocks, key = path.split(".")
        block = params
        for name in blocks:
            block = block[name]
        block[key] = value
    with pytest.raises(EvopipeError) as raised:
        parse_params(params)
    text = str(raised.value)
    assert sentence in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize("env", ["envs_for_tests:MaskedOut-v0"])
def test_an_environment_that_leaves_no_legal_action_is_named(env: str) -> None:
    loop = started(populations.problem(env, "ppo", train=populations.LONG), 2)
    with pytest.raises(EvopipeError, match=r"no legal action.*envs_for_tests:MaskedOut-v0"):
        advance(loop, 200)
    assert all(torch.isfinite(t).all() for m in loop.members for t in m.tensors.values())
    assert np.isfinite(loop.regime.world.pool.obs).all()
    loop.close()


@pytest.mark.parametrize("algo", ["ppo", "ppo:continuous"])
def test_one_epoch_of_one_minibatch_is_a2c(algo: str) -> None:
    """Where the policy is still the one that played, the ratio is 1 and clips nothing (Huang et al., 2022)."""
    p = populations.problem(algo=algo, config={"normalise_advantage": False, "clip": 1e-6, "ent_coef": 0.0})
    (cohort,) = p.form([replace(m, hyper={**m.hyper, "vf_coef": 0.0}) for m in first_members(p, 3)[0]])
    rollout = rollout_for(p, cohort, broken=0.0)
    next_value = ppo.value(p.algo_config, cohort.state, *rollout.following(TICKS))
    rollout.estimate(TICKS, next_value, cohort.hyper["gamma"], cohort.hyper["gae_lambda"])
    everything = torch.arange(TICKS * 4).expand(3, -1)
    batch = rollout.sequences((everything // 4)[..., None], everything % 4, torch.ones(3, TICKS * 4, 1))
    log_std = cohort.state.log_std
    losses, _ = ppo.loss(p.algo_config, cohort.state, cohort.hyper, batch, log_std)
    optim.backward(losses, cohort.state.actor)
    found = cohort.state.actor.grad.clone()
    chances, _ = ppo._evaluate(p.algo_config, cohort.state, batch, log_std)
    log_prob = chances.log_prob(batch.action.flatten(1, 2))
    a2c = -(batch.weight * batch.advantage).flatten(1, 2) * log_prob
    optim.backward(a2c.sum(dim=1), cohort.state.actor)
    assert float(found.abs().max()) > 1e-4
    torch.testing.assert_close(found, cohort.state.actor.grad, atol=1e-6, rtol=1e-4)


def test_a_resting_member_stays_healthy_whatever_its_minibatches_hold() -> None:
    """Nor does one that has no step in a minibatch fall ill of it; one that learns from such numbers does."""
    p, cohort, batch = example("ppo")
    cohort.state.resting.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    target, weight = batch.target.clone(), batch.weight.clone()
    target[:3], weight[1] = math.nan, 0.0
    before, draw = cohort.state.actor.values.clone(), Stream(cohort.keys, Purpose.UPDATE, torch.tensor([0]))
    spoilt = replace(batch, target=target, weight=weight)
    learned = ppo.update(p.algo_config, cohort.state, cohort.hyper, spoilt, cohort.healthy, draw, 1)
    assert learned.healthy.tolist() == [True, True, False, True]
    assert (cohort.state.actor.values != before).any(dim=1).tolist() == [False, False, False, True]
