"""Deep Q-network, double by default.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt, Guez & Silver, "Deep
reinforcement learning with double Q-learning", AAAI 2016.

With y = r + γ (1 − terminated) Q⁻(s′, a*), where a* maximises Q (double) or Q⁻ (not), the loss of a member is the
weighted mean over its batch of ℓ(Q(s, a) − y), where ℓ is the Huber loss or ½ e².
"""

from __future__ import annotations

from typing import Literal

from evopipe.algos import _hyper, _q_network
from evopipe.core import optim
from evopipe.core.net import forward
from evopipe.native.update import take
from evopipe.ops.value import pick, regression_loss
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Tensor

PAPER = "https://doi.org/10.1038/nature14236"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)
COMPILED = True


class Config(AlgoConfig):
    """Hyper-parameters of the deep Q-network (DQN; Mnih et al., 2015).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 5e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 10.0
    double: _hyper.DoubleQ = True
    loss: _q_network.RegressionLoss = "huber"
    target: Literal["soft", "hard"] = hyper("soft",
        doc="target network: `soft` mixes by `tau`, `hard` copies every `target_interval` updates")  # fmt: skip
    target_interval: int = hyper(250, doc="updates between two copies to a `hard` target network", unit="updates",
        raising="targets follow later, more stable", ge=1, le=10**9)  # fmt: skip
    eps_start: _hyper.EpsilonStart = 1.0
    eps_end: _hyper.EpsilonEnd = 0.05
    eps_schedule: Literal["linear", "exponential"] = hyper("linear", doc="course of ε from `eps_start` to `eps_end`")
    eps_steps: _hyper.EpsilonSteps = 10_000
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), batch_size=(32, 512), learn_step=(1, 8))


State = _q_network.State
networks, init, values = _q_network.networks, _q_network.init, _q_network.values
greedy, act, choice = _q_network.greedy, _q_network.act, _q_network.choice
recipe = _q_network.recipe


def explore(cfg: Config, step: int) -> float:
    if cfg.eps_schedule == "linear":
        return _q_network.explore(cfg, step)
    start, end = max(cfg.eps_start, 1e-8), max(cfg.eps_end, 1e-8)
    return float(start * (end / start) ** min(1.0, step / cfg.eps_steps))


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    y = _q_network.target(cfg, state, batch)
    q_tm1 = pick(forward(state.q, batch.obs), batch.action)
    losses = (batch.weight * regression_loss(q_tm1, y, cfg.loss == "huber")).sum(dim=1)
    return losses, (q_tm1 - y).detach()


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    if (learned := take(recipe(cfg, state, hp, batch), batch, healthy, draw, turn)) is not None:
        return learned
    losses, errors = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.q, state.adam, hp["lr"]))
    state.updates.add_(healthy)
    mixed = hp["tau"] if cfg.target == "soft" else (state.updates % cfg.target_interval == 0).to(hp["tau"].dtype)
    optim.polyak(state.target, state.q, mixed * healthy)
    return Learned(losses.detach(), healthy, errors)
