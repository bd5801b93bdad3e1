"""Proximal policy optimisation, feed-forward or recurrent.

Schulman et al., "Proximal policy optimization algorithms", 2017, with the generalised advantage estimates Â of Schulman
et al., "High-dimensional continuous control using generalized advantage estimation", 2016.

With ρ = π(a|s) / π_old(a|s), a member's loss over a minibatch of what it has just done is the mean of

    −min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â)  +  c_v ½ (V(s) − V̂)²  −  c_h H(π(·|s)),   V̂ = Â + V_old(s),

Â normalised over the minibatch. A member whose policy has gone too far from the old one, mean(ρ − 1 − log ρ) above
`target_kl`, rests until its next rollout. With an LSTM encoder a minibatch is made of sequences, each begun with the
memory that was there when it was played.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward, remember, unroll
from evopipe.core.structure import Widths
from evopipe.ops.distributions import Distribution, distribution
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Chosen, Hyper, Learned, Sequences, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1707.06347"
REGIME = "on_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous", "multidiscrete", "multibinary")
ACTS_WITH = ("log_std",)
RECURRENT = True


class Config(AlgoConfig):
    """Hyper-parameters of PPO."""

    lr: _hyper.Rate = 1e-3
    batch_size: int = hyper(128, doc="steps of a minibatch, at most the rollout's", raising="fewer, steadier updates",
        evolvable=True, ge=1, le=1 << 20)  # fmt: skip
    learn_step: int = hyper(2048,
        doc="steps of the member in a rollout, over all its environments; rounded up to whole ticks",
        unit="environment steps", raising="steadier, less often", evolvable=True, ge=1, le=1 << 24)  # fmt: skip
    epochs: int = hyper(4, doc="times that a rollout is gone through",
        raising="learns more from each, goes further from it", evolvable=True, ge=1, le=100)  # fmt: skip
    gamma: _hyper.Discount = 0.99
    gae_lambda: float = hyper(0.95, doc="λ of the advantage estimates", raising="less bias, more variance",
        evolvable=True, ge=0, le=1)  # fmt: skip
    clip: float = hyper(0.2, doc="ε, how far the probability ratio may go", raising="larger steps of the policy",
        evolvable=True, gt=0)  # fmt: skip
    clip_value: bool = hyper(False, doc="whether the value, too, stays within ε of what it was")
    vf_coef: float = hyper(0.5, doc="weight of the value loss", raising="values first", evolvable=True, ge=0)
    ent_coef: float = hyper(0.01, doc="weight of the entropy", raising="explores longer", evolvable=True, ge=0)
    grad_clip: float = hyper(0.5, doc="largest gradient norm, of all networks together",
        raising="larger steps let through", evolvable=True, gt=0)  # fmt: skip
    target_kl: float = hyper(0.0, doc="distance from the old policy at which a member stops its epochs; 0: never",
        unit="nats", raising="stops later", evolvable=True, ge=0)  # fmt: skip
    normalise_advantage: bool = hyper(True, doc="whether advantages are normalised over each minibatch")
    decay_steps: int = hyper(0, unit="environment steps", raising="decays more slowly", ge=0, le=10**12,
        doc="steps of the member until learning rate and clip reach their ends; 0: they stay as they are")  # fmt: skip
    lr_end: float = hyper(0.0, doc="share of the learning rate at the end", raising="learns more late", ge=0, le=1)
    clip_end: float = hyper(1.0, doc="share of the clip at the end", raising="larger steps late", ge=0, le=1)
    std: float = hyper(0.6, doc="standard deviation of continuous actions at the start", raising="explores more", gt=0)
    squash: bool = hyper(False, doc="tanh-squashed Gaussian actions, in place of ones that the environment clips")
    share_encoder: bool = hyper(False, doc="one encoder for policy and value, which have a head each")
    max_seq_len: int = hyper(16, doc="longest sequence of a recurrent network's minibatch", unit="ticks",
        raising="gradients reach further back", ge=1, le=1 << 16)  # fmt: skip
    sequences: Literal["chunked", "overlapping", "whole"] = hyper("chunked",
        doc="recurrent: a rollout is cut every `max_seq_len` ticks, every half of it, or nowhere")  # fmt: skip
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(
        lr=(1e-4, 1e-2), batch_size=(32, 1024), learn_step=(256, 8192), ent_coef=(1e-3, 0.1), epochs=(1, 10)
    )


@dataclass(frozen=True)
class State:
    encoder: Net | None = parameters("encoder", trainable=True)  # None where policy and value have one each
    actor: Net = parameters("actor", trainable=True)
    critic: Net = parameters("critic", trainable=True)
    encoder_adam: optim.Adam | None = moments("encoder")
    actor_adam: optim.Adam = moments("actor")
    critic_adam: optim.Adam = moments("critic")
    log_std: Tensor = row()  # [P, A] of continuous actions, else [P, 0]
    log_std_adam: Tensor = row()  # [P, A, 3], see ScalarAdam
    resting: Tensor = row()  # [P] float32, 1 until the next rollout
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network: a logit for each choice, or a mean for each dimension."""
    o, a = spaces.observations, spaces.actions
    return _actor_critic.share_encoder({"actor": Widths(o, a), "critic": Widths(o, 1)}, o, cfg.share_encoder)


def init(cfg: Config, nets: Nets) -> State:
    actor, critic = nets["actor"], nets["critic"]
    encoder, _, encoder_adam = _actor_critic.start_encoder(nets)
    *adams, zeros = optim.start(actor, critic)
    log_std = zeros[:, None].repeat(1, cfg.spaces.actions if cfg.spaces.continuous else 0) + torch.tensor(cfg.std).log()
    rows: tuple[Tensor, ...] = log_std, optim.ScalarAdam.start(log_std), zeros, zeros.clone()
    return State(encoder, actor, critic, encoder_adam, *adams, *rows)


def schedule(cfg: Config, step: int) -> dict[str, float]:
    """Return what hyper-parameters are multiplied by after `step` environment steps of a member."""
    done = min(1.0, step / cfg.decay_steps) if cfg.decay_steps else 0.0
    return {"lr": 1.0 + done * (cfg.lr_end - 1.0), "clip": 1.0 + done * (cfg.clip_end - 1.0)}


def _policy(cfg: Config, outputs: Tensor, log_std: Tensor, legal: Tensor | None) -> Distribution:
    """Return the distribution of actions: outputs `[P, B, A]`, log_std `[P, A]`."""
    return distribution(cfg.spaces, outputs, log_std[:, None], legal, cfg.squash)


def _memories(state: State, memory: Tensor) -> tuple[Tensor, ...]:
    """Divide a memory `[…, M]` into a shared encoder's, the actor's and the critic's; those without have width 0."""
    sizes = [0 if net is None else net.structure.memory for net in (state.encoder, state.actor, state.critic)]
    return tuple(memory.split(sizes, dim=-1))


def step(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None) -> Chosen:
    """Draw actions, or take the likeliest where `draw` is None: obs `[P, E, O]`, memory `[P, E, M]` before it."""
    with torch.no_grad():
        of_encoder, of_actor, of_critic = _memories(state, memory)
        x, of_encoder = remember(state.encoder, obs, of_encoder)
        outputs, of_actor = remember(state.actor, x, of_actor)
        values, of_critic = remember(state.critic, x, of_critic)
        v, memory = values[..., 0], torch.cat((of_encoder, of_actor, of_critic), dim=-1)
        chances = _policy(cfg, torch.nan_to_num(outputs), state.log_std, legal)
        action = chances.mode() if draw is None else chances.sample(draw)
        log_prob = torch.zeros_like(v) if draw is None else chances.log_prob(action)
        return Chosen(action, log_prob, v, memory)


def value(cfg: Config, state: State, obs: Tensor, memory: Tensor) -> Tensor:
    """Return V(s) `[P, B]`: obs `[P, B, O]`, memory `[P, B, M]` before it."""
    with torch.no_grad():
        of_encoder, _, of_critic = _memories(state, memory)
        x, _ = remember(state.encoder, obs, of_encoder)
        return remember(state.critic, x, of_critic)[0][..., 0]


def _chances(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Distribution:
    with torch.no_grad():
        of_encoder, of_actor, _ = _memories(state, memory)
        x, _ = remember(state.encoder, obs, of_encoder)
        outputs, _ = remember(state.actor, x, of_actor)
        return _policy(cfg, torch.nan_to_num(outputs), state.log_std, legal)


def answers(cfg: Config) -> Answers:
    return Answers(lambda cfg, state, obs, legal, memory: value(cfg, state, obs, memory), chances=_chances)


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the likeliest legal actions, from an empty memory: obs `[P, E, O]`."""
    with torch.no_grad():
        outputs = forward(state.actor, forward(state.encoder, obs))
        return _policy(cfg, torch.nan_to_num(outputs), state.log_std, legal).mode()


def _evaluate(cfg: Config, state: State, batch: Sequences, log_std: Tensor) -> tuple[Distribution, Tensor]:
    """Return the policy and the values `[P, B·L]` in the states of a minibatch."""
    of_encoder, of_actor, of_critic = _memories(state, batch.memory)
    x = unroll(state.encoder, batch.obs, of_encoder, batch.begins)
    outputs = unroll(state.actor, x, of_actor, batch.begins).flatten(1, 2)
    values = unroll(state.critic, x, of_critic, batch.begins).flatten(1, 2)
    legal = None if batch.legal is None else batch.legal.flatten(1, 2)
    return _policy(cfg, outputs, log_std, legal), values[..., 0]


def loss(cfg: Config, state: State, hp: Hyper, batch: Sequences, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Return each member's loss, and how far its policy has gone from the old one, both `[P]`; hp values are `[P]`."""
    weight, old_value, target = (x.flatten(1, 2) for x in (batch.weight, batch.value, batch.target))  # [P, B·L]
    advantage, clip = batch.advantage.flatten(1, 2), hp["clip"][:, None]
    if cfg.normalise_advantage:
        mean = (weight * advantage).sum(dim=1, keepdim=True)
        deviation = (weight * (advantage - mean).square()).sum(dim=1, keepdim=True).sqrt()
        advantage = (advantage - mean) / (deviation + 1e-8)
    chances, value = _evaluate(cfg, state, batch, log_std)
    log_ratio = chances.log_prob(batch.action.flatten(1, 2)) - batch.log_prob.flatten(1, 2)
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, torch.clamp(ratio, 1.0 - clip, 1.0 + clip) * advantage)
    error = (value - target).square()
    if cfg.clip_value:
        error = torch.maximum(error, (old_value + torch.clamp(value - old_value, -clip, clip) - target).square())
    each = -gain + 0.5 * hp["vf_coef"][:, None] * error - hp["ent_coef"][:, None] * chances.entropy()
    return (weight * each).sum(dim=1), (weight * (ratio - 1.0 - log_ratio)).sum(dim=1).detach()


def _clip_together(grads: list[Tensor], limit: Tensor) -> Tensor:
    """Scale gradients `[P, n]`, as if they were one, to at most `limit` `[P]`; return their norm `[P]` before."""
    each = [torch.linalg.vector_norm(grad, dim=1) for grad in grads]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(each, dim=1), dim=1)  # along 0, bits would depend on P
    scale = (limit / (norms + 1e-6)).clamp(max=1.0)[:, None]
    for grad in grads:
        grad.mul_(scale)
    return norms


def update(cfg: Config, state: State, hp: Hyper, batch: Sequences, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    """Learn from one minibatch, the rollout's first where `turn` is 0, else 1; hp values and healthy are `[P]`."""
    log_std = state.log_std.detach().requires_grad_(True)
    log_std.grad = torch.zeros_like(log_std)
    pairs = (state.encoder, state.encoder_adam), (state.actor, state.actor_adam), (state.critic, state.critic_adam)
    learners = [(net, adam) for net, adam in pairs if net is not None and adam is not None]
    losses, distance = loss(cfg, state, hp, batch, log_std)
    optim.backward(losses, *(net for net, _ in learners))
    norms = _clip_together([*(net.grad for net, _ in learners), log_std.grad], hp["grad_clip"])
    given = batch.weight.flatten(1, 2).sum(dim=1) > 0
    far = given & (hp["target_kl"] > 0) & (distance > hp["target_kl"])
    state.resting.copy_(far if turn == 0 else torch.maximum(state.resting, far.float()))
    learning = given & (state.resting == 0)
    healthy = torch.where(learning, healthy & ((losses + norms).abs() < torch.inf), healthy)
    learning = learning & healthy
    for net, adam in learners:
        optim.step(net, adam, hp["lr"], learning)
    if cfg.spaces.continuous:
        optim.ScalarAdam.step(state.log_std, state.log_std_adam, log_std.grad, hp["lr"][:, None], learning[:, None])
    state.updates.add_(learning)
    return Learned(losses.detach(), healthy)
