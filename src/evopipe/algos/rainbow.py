"""Rainbow DQN.

Hessel et al., "Rainbow: combining improvements in deep reinforcement learning", AAAI 2018.

The network gives the distribution p(s, a) of the return over `atoms` values z between `v_min` and `v_max` (C51). Its
last layer has a value and advantages, combined as v + a − mean a (dueling). Learned noise w + σ ε on the weights behind
the latent replaces ε-greedy actions (noisy networks). Let y be the projection of r + γⁿ z under the target network's
p⁻(s′, a*), where a* maximises the online network's mean (double). The loss of a member is the weighted mean over its
batch of the cross-entropy −Σ y ln p(s, a). The priority of a transition is the divergence Σ y ln (y / p). Multi-step
returns and priorities come from the replay buffer: `train.replay.n_step`, `train.replay.prioritised`. Every part can be
switched off; without all of them it is DQN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from pydantic import model_validator

from evopipe.algos import _hyper, _q_network
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row, scales
from evopipe.core.net import Net, Nets, forward
from evopipe.core.padded import Views, noise_scale, noisy
from evopipe.core.structure import Widths
from evopipe.native.update import Learners, Recipe, take
from evopipe.native.value import value_recipe
from evopipe.ops import signals as told
from evopipe.ops.policy import best_legal, epsilon_greedy
from evopipe.ops.value import masked_argmax, project, regression_loss
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1710.02298"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)
COMPILED = True


class Config(AlgoConfig):
    """Hyper-parameters of Rainbow (Hessel et al., 2018), a distributional DQN.

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 5e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 10.0
    distributional: bool = hyper(True, doc="whether the distribution of the return is learned (C51), not only its mean")
    atoms: int = hyper(51, doc="number of atoms (returns) of the distribution", raising="finer, slower", ge=2, le=1001)
    v_min: float = hyper(-200.0, doc="return of the lowest atom; lower returns count as it", unit="return",
        raising="atoms closer together; worse returns look alike")  # fmt: skip
    v_max: float = hyper(200.0, doc="return of the highest atom; higher returns count as it", unit="return",
        raising="atoms further apart; better returns can be told apart")  # fmt: skip
    dueling: bool = hyper(True, doc="whether heads for value and advantages make up Q (Wang et al., 2016)")
    noisy: bool = hyper(True, doc="whether learned noise on weights explores, not ε (Fortunato et al., 2018)")
    noisy_sigma: float = hyper(0.5, doc="initial scale σ₀ of noise on weights", raising="explores more", ge=0, le=10)
    double: _hyper.DoubleQ = True
    eps_start: _hyper.EpsilonStart = 1.0
    eps_end: _hyper.EpsilonEnd = 0.05
    eps_steps: _hyper.EpsilonSteps = 10_000
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), batch_size=(32, 512), learn_step=(1, 8))

    @model_validator(mode="after")
    def _ordered(self) -> Config:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min ({self.v_min}) must be below v_max ({self.v_max})")
        return self


@dataclass(frozen=True)
class State:
    q: Net = parameters("q", trainable=True)
    target: Net = parameters("q")
    noise: Net = scales("q", trainable=True)  # σ of every weight; those up to the latent are not used
    noise_target: Net = scales("q")
    adam: optim.Adam = moments("q")
    noise_adam: optim.Adam = moments("q")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    outputs = (spaces.actions + cfg.dueling) * (cfg.atoms if cfg.distributional else 1)
    return {"q": Widths(spaces.observations, outputs)}


def init(cfg: Config, nets: Nets) -> State:
    q = nets["q"]
    noise = replace(q, values=noise_scale(q.structure, cfg.noisy_sigma if cfg.noisy else 0.0))
    return State(q, q.copy(), noise, noise.copy(), *optim.start(q, noise))


def explore(cfg: Config, step: int) -> float:
    """Return ε after `step` environment steps of a member: it goes linearly from `eps_start` to `eps_end`.

    With noisy networks, ε is 0, because the noise on the weights explores.
    """
    return 0.0 if cfg.noisy else _q_network.explore(cfg, step)


def _logits(cfg: Config, net: Net, obs: Tensor, views: Sequence[Views] | None) -> Tensor:
    """Return the network's output for every action: obs `[P, B, O]` → `[P, B, A, K]`, K = 1 without a distribution."""
    out = forward(net, obs, views)
    out = out.view(*out.shape[:-1], -1, cfg.atoms if cfg.distributional else 1)
    if not cfg.dueling:
        return out
    value, advantage = out[..., :1, :], out[..., 1:, :]
    return value + advantage - advantage.mean(dim=-2, keepdim=True)


def _support(cfg: Config, device: torch.device) -> Tensor:
    """Return the returns `[K]` that the atoms stand for."""
    return torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms, device=device)


def _mean(cfg: Config, out: Tensor) -> Tensor:
    """Return action values `[P, B, A]` from outputs `[P, B, A, K]`."""
    if not cfg.distributional:
        return out[..., 0]
    # No product with a vector: its last bits depend on how many rows it has.
    return (out.softmax(dim=-1) * _support(cfg, out.device)).sum(dim=-1)


def values(cfg: Config, state: State, obs: Tensor) -> Tensor:
    """Return the values Q(s, ·) of the A actions, `[P, E, A]`. They are computed without noise on the weights.

    `obs` `[P, E, O]` are E observations of each of P members.
    """
    with torch.no_grad():
        return _mean(cfg, _logits(cfg, state.q, obs, None))


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    return best_legal(values(cfg, state, obs), legal)


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    with torch.no_grad():
        views = noisy(state.q, state.noise, draw.part(1)) if cfg.noisy else None
        q = _mean(cfg, _logits(cfg, state.q, obs, views))
    return epsilon_greedy(q, legal, epsilon, draw)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    online = noisy(state.q, state.noise, draw.part(1)) if cfg.noisy else None
    with torch.no_grad():
        views = noisy(state.target, state.noise_target, draw.part(2)) if cfg.noisy else None
        out_t = _logits(cfg, state.target, batch.next_obs, views)  # [P, B, A, K]
        selector_t = _logits(cfg, state.q, batch.next_obs, online) if cfg.double else out_t
        out_t = _of_action(out_t, masked_argmax(_mean(cfg, selector_t), batch.next_legal))  # [P, B, K]
    out_tm1 = _of_action(_logits(cfg, state.q, batch.obs, online), batch.action)
    if not cfg.distributional:
        y = torch.addcmul(batch.reward, batch.discount, out_t[..., 0])
        losses = regression_loss(out_tm1[..., 0], y, huber=True)
        return (batch.weight * losses).sum(dim=1), (out_tm1[..., 0] - y).detach()
    z = _support(cfg, out_t.device)
    y = project(z, batch.reward, batch.discount, out_t.softmax(dim=-1))
    losses = -(y * out_tm1.log_softmax(dim=-1)).sum(dim=-1)  # cross-entropy
    divergence = losses.detach() - torch.special.entr(y).sum(dim=-1)  # Kullback-Leibler
    return (batch.weight * losses).sum(dim=1), divergence


def _of_action(out: Tensor, action: Tensor) -> Tensor:
    """Return the outputs of the action taken: `[P, B, A, K]`, int64 `[P, B]` → `[P, B, K]`."""
    return out.gather(-2, action[..., None, None].expand(*action.shape, 1, out.shape[-1])).squeeze(-2)


def signals(cfg: Config, state: State, batch: Batch) -> dict[str, Tensor]:
    """Return training metrics `[P]` of each of P members on a minibatch, by name.

    The metrics are the means over the minibatch of the probabilities of the lowest and of the highest atom. Large
    values show that `v_min` or `v_max` cuts off the return's distribution. If the algorithm is not `distributional`,
    the result is an empty dict.
    """
    if not cfg.distributional:
        return {}
    chance = _of_action(_logits(cfg, state.q, batch.obs, None), batch.action).softmax(dim=-1)
    ends = told.means(batch.weight, chance[..., 0], chance[..., -1]).unbind(dim=1)
    return dict(zip(("losses/support_low", "losses/support_high"), ends, strict=True))


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    if (learned := take(recipe(cfg, state, hp, batch), batch, healthy, draw, turn)) is not None:
        return learned
    losses, errors = loss(cfg, state, hp, batch, draw)
    learners = [(state.q, state.adam, hp["lr"]), (state.noise, state.noise_adam, hp["lr"])]
    healthy = optim.descend(losses, healthy, hp["grad_clip"], *learners[: 1 + cfg.noisy])
    optim.polyak(state.target, state.q, hp["tau"] * healthy)
    if cfg.noisy:
        optim.polyak(state.noise_target, state.noise, hp["tau"] * healthy)
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy, errors)


def recipe(cfg: Config, state: State, hp: Hyper, batch: Batch) -> Recipe | None:
    noise = (state.noise, state.noise_target, state.noise_adam) if cfg.noisy else (None, None, None)
    of = Learners(state.q, state.target, state.adam, state.updates, None, None, None, *noise)
    support = _kept_support(cfg.v_min, cfg.v_max, cfg.atoms) if cfg.distributional else None
    rates = {"lr_critic": hp["lr"], "grad_clip": hp["grad_clip"], "tau": hp["tau"]}
    return value_recipe(of, rates, batch, double=cfg.double, huber=True, dueling=cfg.dueling, support=support)


@cache
def _kept_support(v_min: float, v_max: float, atoms: int) -> Tensor:
    return torch.linspace(
        v_min, v_max, atoms
    )  # as `_support` has it: what points to it is kept as long as it lies there
