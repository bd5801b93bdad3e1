"""Quantile-regression DQN.

Dabney et al., "Distributional reinforcement learning with quantile regression", AAAI 2018.

The network gives N values θᵢ(s, a) for each action, at the shares τᵢ = (2 i − 1) / (2 N) of the return's distribution;
Q(s, a) is their mean. With targets yⱼ = r + γ (1 − terminated) θⱼ⁻(s′, a*), where a* maximises Q⁻ (or Q: double), the
loss of a member is the weighted mean over its batch of Σᵢ (1/N) Σⱼ ρᵢ(yⱼ − θᵢ(s, a)), the quantile Huber loss with
threshold 1. The error of a transition is Q(s, a) less the mean of its targets. Unlike Rainbow's, the distribution has
no ends to be set.
"""

from __future__ import annotations

import torch

from evopipe.algos import _hyper, _q_network
from evopipe.core import optim
from evopipe.core.net import Net, forward
from evopipe.core.structure import Widths
from evopipe.ops import signals as told
from evopipe.ops.policy import best_legal, epsilon_greedy
from evopipe.ops.quantiles import quantile_huber_loss
from evopipe.ops.value import masked_argmax
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1710.10044"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)


class Config(AlgoConfig):
    """Hyper-parameters of quantile-regression DQN (Dabney et al., 2018).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 5e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 10.0
    quantiles: int = hyper(50, doc="quantiles that represent the distribution of an action's return; 200 in the paper",
        raising="finer; time and memory grow with the square", ge=1, le=1000)  # fmt: skip
    double: _hyper.DoubleQ = False
    eps_start: _hyper.EpsilonStart = 1.0
    eps_end: _hyper.EpsilonEnd = 0.05
    eps_steps: _hyper.EpsilonSteps = 10_000
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), batch_size=(32, 512), learn_step=(1, 8))


State = _q_network.State
init, explore = _q_network.init, _q_network.explore


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    return {"q": Widths(spaces.observations, spaces.actions * cfg.quantiles)}


def _quantiles(cfg: Config, net: Net, obs: Tensor) -> Tensor:
    """Return θ(s, ·) `[P, B, A, N]`: obs `[P, B, O]`."""
    out = forward(net, obs)
    return out.view(*out.shape[:-1], -1, cfg.quantiles)


def _of_action(theta: Tensor, action: Tensor) -> Tensor:
    """Return the quantiles of the action taken: `[P, B, A, N]`, int64 `[P, B]` → `[P, B, N]`."""
    return theta.gather(-2, action[..., None, None].expand(*action.shape, 1, theta.shape[-1])).squeeze(-2)


def values(cfg: Config, state: State, obs: Tensor) -> Tensor:
    """Return the action values Q(s, ·), which are the means of the quantiles, `[P, E, A]`.

    `obs` `[P, E, O]` are E observations of each of P members.
    """
    with torch.no_grad():
        return _quantiles(cfg, state.q, obs).mean(dim=-1)


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    return best_legal(values(cfg, state, obs), legal)


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    return epsilon_greedy(values(cfg, state, obs), legal, epsilon, draw)


def target(cfg: Config, state: State, batch: Batch) -> Tensor:
    """Return the N target quantiles y of each transition, `[P, B, N]` for B transitions of P members.

    The target network gives the quantiles of the next action. The action is chosen by the online network if
    `cfg.double` is True, else by the target network.
    """
    with torch.no_grad():
        theta_t = _quantiles(cfg, state.target, batch.next_obs)  # [P, B, A, N]
        selector_t = values(cfg, state, batch.next_obs) if cfg.double else theta_t.mean(dim=-1)
        theta_t = _of_action(theta_t, masked_argmax(selector_t, batch.next_legal))
        return torch.addcmul(batch.reward[..., None], batch.discount[..., None], theta_t)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    y, theta = target(cfg, state, batch), _of_action(_quantiles(cfg, state.q, batch.obs), batch.action)
    losses = (batch.weight * quantile_huber_loss(theta, y)).sum(dim=1)
    return losses, (theta.detach() - y).mean(dim=-1)


def signals(cfg: Config, state: State, batch: Batch) -> dict[str, Tensor]:
    """Return training metrics `[P]` of each of P members on a minibatch, by name.

    The metrics are the means over the minibatch of the lowest and of the highest quantile of the return of the action
    taken.
    """
    theta = _of_action(_quantiles(cfg, state.q, batch.obs), batch.action)
    ends = told.means(batch.weight, theta.amin(dim=-1), theta.amax(dim=-1)).unbind(dim=1)
    return dict(zip(("losses/quantile_low", "losses/quantile_high"), ends, strict=True))


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    losses, errors = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.q, state.adam, hp["lr"]))
    state.updates.add_(healthy)
    optim.polyak(state.target, state.q, hp["tau"] * healthy)
    return Learned(losses.detach(), healthy, errors)
