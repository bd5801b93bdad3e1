"""Proximal policy optimisation, feed-forward or recurrent.

Schulman et al., "Proximal policy optimization algorithms", 2017, with the generalised advantage estimates Â of Schulman
et al., "High-dimensional continuous control using generalized advantage estimation", 2016.

With ρ = π(a|s) / π_old(a|s), a member's loss over a minibatch of its rollout is the mean of

    −min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â)  +  c_v ½ (V(s) − V̂)²  −  c_h H(π(·|s)),   V̂ = Â + V_old(s),

where Â is normalised over the minibatch. If a member's policy has moved too far from the old one, with mean(ρ − 1 − log
ρ) above `target_kl`, it makes no more updates until its next rollout. With an LSTM encoder, a minibatch consists of
sequences, each of which starts with the memory that it had when it was played.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evopipe.algos import Answers, _hyper, _ppo
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward, memories, remember, unroll
from evopipe.core.structure import Widths, share_encoder
from evopipe.native import policy, rollouts
from evopipe.ops.distributions import Distribution, distribution
from evopipe.ops.policy import proximal
from evopipe.ops.value import normalised
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Chosen, Hyper, Learned, Sequences, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1707.06347"
REGIME = "on_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous", "multidiscrete", "multibinary", "mixed")
COMPILED = True
ACTS_WITH = ("log_std",)
RECURRENT = True


class Config(AlgoConfig):
    """Hyper-parameters of proximal policy optimisation (PPO; Schulman et al., 2017).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    batch_size: _ppo.BatchSize = 128
    learn_step: _ppo.LearnStep = 2048
    epochs: _ppo.Epochs = 4
    gamma: _hyper.Discount = 0.99
    gae_lambda: _ppo.Lambda = 0.95
    clip: _ppo.Clip = 0.2
    clip_value: _ppo.ClipValue = False
    vf_coef: _ppo.ValueWeight = 0.5
    ent_coef: _ppo.EntropyWeight = 0.01
    grad_clip: _ppo.GradientClip = 0.5
    target_kl: _ppo.TargetDistance = 0.0
    normalise_advantage: bool = hyper(True, doc="whether advantages are normalised over each minibatch")
    decay_steps: _ppo.DecaySteps = 0
    lr_end: _ppo.RateEnd = 0.0
    clip_end: _ppo.ClipEnd = 1.0
    std: _ppo.Deviation = 0.6
    squash: _ppo.Squash = False
    share_encoder: bool = hyper(False, doc="whether policy and value share an encoder, with a head each")
    max_seq_len: _ppo.Longest = 16
    sequences: _ppo.Cut = "chunked"
    network: _hyper.Network = _ppo.NETWORK
    evolve: _hyper.Evolving = _ppo.RANGES


@dataclass(frozen=True)
class State:
    encoder: Net | None = parameters("encoder", trainable=True)  # None where policy and value have one each
    actor: Net = parameters("actor", trainable=True)
    critic: Net = parameters("critic", trainable=True)
    encoder_adam: optim.Adam | None = moments("encoder")
    actor_adam: optim.Adam = moments("actor")
    critic_adam: optim.Adam = moments("critic")
    log_std: Tensor = row()  # [P, C] of the C numbers of an action
    log_std_adam: Tensor = row()  # [P, C, 3], see ScalarAdam
    resting: Tensor = row()  # [P] float32, 1 until the next rollout
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return the input and output width of every network, by name.

    The actor's outputs are logits of discrete actions, or means of continuous actions. Of mixed actions, logits come
    first.
    """
    o, a = spaces.observations, spaces.actions
    return share_encoder({"actor": Widths(o, a), "critic": Widths(o, 1)}, o, cfg.share_encoder)


def init(cfg: Config, nets: Nets) -> State:
    actor, critic = nets["actor"], nets["critic"]
    encoder, _, encoder_adam = optim.start_encoder(nets)
    *adams, zeros = optim.start(actor, critic)
    log_std = zeros[:, None].repeat(1, cfg.spaces.numbers) + torch.tensor(cfg.std).log()
    rows: tuple[Tensor, ...] = log_std, optim.ScalarAdam.start(log_std), zeros, zeros.clone()
    return State(encoder, actor, critic, encoder_adam, *adams, *rows)


schedule, learn, play = _ppo.schedule, policy.learn, rollouts.play


def _policy(cfg: Config, outputs: Tensor, log_std: Tensor, legal: Tensor | None) -> Distribution:
    """Return the distribution of actions: outputs `[P, B, A]`, log_std `[P, C]`."""
    return distribution(cfg.spaces, outputs, log_std[:, None], legal, cfg.squash)


def _memories(state: State, memory: Tensor) -> tuple[Tensor, ...]:
    """Divide a memory `[…, M]` into a shared encoder's, the actor's and the critic's; those without have width 0."""
    return memories(memory, state.encoder, state.actor, state.critic)


def step(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None) -> Chosen:
    """Sample actions from the policy, or take the most likely actions if `draw` is None.

    Return actions, log-probabilities, values and the recurrent state after the step.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E, O]`, the observations of P members with E environments each.
        legal: `[P, E, A]` bool, the legal actions; None if all are.
        memory: `[P, E, M]`, the recurrent state before the step.
        draw: the stream of random numbers.
    """
    if (chosen := policy.act(cfg, state, obs, legal, memory, draw)) is not None:
        return chosen
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
    """Return the state values V(s) `[P, B]` of obs `[P, B, O]`, for B observations of P members.

    `memory` `[P, B, M]` is the recurrent state before each observation.
    """
    if (found := policy.value(cfg, state, obs, memory)) is not None:
        return found
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
    """Return the most likely legal actions for obs `[P, E, O]`, of P members with E environments each.

    legal is `[P, E, A]` bool, or None if all actions are legal. A recurrent policy starts from a zero state.
    """
    if (best := policy.greedy(cfg, state, obs, legal)) is not None:
        return best
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
    """Return each member's loss, and the distance of its policy from the old policy, `[P]` each.

    The old policy is the one that collected the rollout.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: a minibatch of the rollout.
        log_std: `[P, C]`, the log standard deviations of the C numbers of an action; C is 0 for discrete actions.
    """
    flat = batch.weight, batch.action, batch.log_prob, batch.advantage, batch.value, batch.target
    weight, action, log_prob, advantage, old_value, target = (x.flatten(1, 2) for x in flat)  # [P, B·L]
    if cfg.normalise_advantage:
        advantage = normalised(advantage, weight)
    chances, value = _evaluate(cfg, state, batch, log_std)
    each, distance = proximal(chances, action, log_prob, advantage, value, old_value, target, hp, cfg.clip_value)
    return (weight * each).sum(dim=1), (weight * distance).sum(dim=1).detach()


def update(cfg: Config, state: State, hp: Hyper, batch: Sequences, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    pairs = (state.encoder, state.encoder_adam), (state.actor, state.actor_adam), (state.critic, state.critic_adam)
    log_std = optim.leaf(state.log_std)
    found = loss(cfg, state, hp, batch, log_std)
    return _ppo.descend(found, log_std, pairs, cfg, state, hp, batch, healthy, turn)
