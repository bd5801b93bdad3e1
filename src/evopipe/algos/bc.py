"""Behaviour cloning, which imitates the actions of a dataset: the baseline that offline learning must beat.

Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NeurIPS 1988; Bain & Sammut, "A framework for
behavioural cloning", 1995.

A member learns by supervision to take the dataset's actions. Its loss is a weighted mean over its batch. For discrete
actions it is that of −log π(a|s), where π is a softmax. For continuous actions it is that of |μ(s) − a|² / A, where μ =
tanh(·) in [−1, 1], which the environment stretches to its bounds. Rewards, next observations and discounts are not
read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.ops.policy import epsilon_greedy, or_random
from evopipe.ops.value import pick
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://proceedings.neurips.cc/paper/1988/hash/812b4ba287f5ee0bc9d43bbf5bbe87fb-Abstract.html"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous")
OFFLINE_ONLY = True


class Config(AlgoConfig):
    """Hyper-parameters of behaviour cloning, which imitates the actions of a dataset.

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    grad_clip: _hyper.GradientClip = 10.0
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-4, 1e-2), batch_size=(32, 512))


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    adam: optim.Adam = moments("actor")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return the input and output width of the only network, the actor.

    An output is the logit of a discrete action, or a value of the continuous action before the tanh.
    """
    return {"actor": Widths(spaces.observations, spaces.actions)}


def init(cfg: Config, nets: Nets) -> State:
    return State(nets["actor"], *optim.start(nets["actor"]))


def explore(cfg: Config, step: int) -> float:
    """Return the probability of a random action for a member that acts while it learns: 0.05, at every `step`."""
    return 0.05


greedy = _actor_critic.best


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return the greedy actions, each of which is replaced by a random action with probability ε.

    obs is `[P, E, O]` for P members with E environments each, legal `[P, E, A]` bool, epsilon (ε) `[P]`; `draw` is the
    stream of random numbers. The result is `[P, E, A]` for continuous actions, else `[P, E]` int64.
    """
    if cfg.spaces.continuous:
        return or_random(greedy(cfg, state, obs, legal), epsilon, draw)
    return epsilon_greedy(_actor_critic.output(cfg, state, obs), legal, epsilon, draw)


def answers(cfg: Config) -> Answers:
    return Answers(chances=None if cfg.spaces.continuous else _actor_critic.chances)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> Tensor:
    out = forward(state.actor, batch.obs)  # [P, B, A]
    if cfg.spaces.continuous:
        error = (torch.tanh(out) - batch.action).square().mean(dim=-1)
    else:
        error = -pick(out.log_softmax(dim=-1), batch.action)
    return (batch.weight * error).sum(dim=1)


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    losses = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.actor, state.adam, hp["lr"]))
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy)
