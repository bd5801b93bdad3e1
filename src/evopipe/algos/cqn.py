"""Conservative Q-learning for discrete actions, to learn from a dataset.

Kumar, Zhou, Tucker & Levine, "Conservative Q-learning for offline reinforcement learning", NeurIPS 2020, CQL(H).

With y = r + γ (1 − terminated) Q⁻(s′, a*), where a* maximises Q (double) or Q⁻ (not), the loss of a member is the
weighted mean over its batch of ℓ(Q(s, a) − y) + α (log Σ exp Q(s, ·) − Q(s, a)), where ℓ is the Huber loss or ½ e². The
second term lowers the values of all legal actions and raises that of the dataset's own action. An action that the
dataset does not have is therefore not overrated. α = 0 is deep Q-learning.
"""

from __future__ import annotations

from evopipe.algos import _hyper, _q_network
from evopipe.core import optim
from evopipe.core.net import forward
from evopipe.native.update import Recipe, take
from evopipe.ops.value import conservative_gap, pick, regression_loss
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Tensor

PAPER = "https://arxiv.org/abs/2006.04779"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)
COMPILED = True
MASKED_LOSS = True


class Config(AlgoConfig):
    """Hyper-parameters of conservative Q-learning for discrete actions (Kumar et al., 2020).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 5e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    alpha: float = hyper(1.0, doc="weight of the conservative term in the loss; 0: plain deep Q-learning",
        raising="closer to the dataset's actions", evolvable=True, ge=0, le=1000)  # fmt: skip
    double: _hyper.DoubleQ = True
    loss: _q_network.RegressionLoss = "huber"
    epsilon: _hyper.Epsilon = 0.05
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), batch_size=(32, 512), alpha=(0.05, 5.0))


State = _q_network.State
networks, init, values = _q_network.networks, _q_network.init, _q_network.values
greedy, act, choice = _q_network.greedy, _q_network.act, _q_network.choice


def explore(cfg: Config, step: int) -> float:
    return cfg.epsilon


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    y = _q_network.target(cfg, state, batch)
    q = forward(state.q, batch.obs)  # [P, B, A]
    q_tm1 = pick(q, batch.action)
    gap = conservative_gap(q, batch.action, batch.legal)
    each = regression_loss(q_tm1, y, cfg.loss == "huber") + hp["alpha"][:, None] * gap
    return (batch.weight * each).sum(dim=1), (q_tm1 - y).detach()


def recipe(cfg: Config, state: State, hp: Hyper, batch: Batch) -> Recipe | None:
    return _q_network.recipe(cfg, state, hp, batch, hp["alpha"])


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    if (learned := take(recipe(cfg, state, hp, batch), batch, healthy, draw, turn)) is not None:
        return learned
    losses, errors = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.q, state.adam, hp["lr"]))
    optim.polyak(state.target, state.q, hp["tau"] * healthy)
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy, errors)
