"""Implicit Q-learning: learning from a dataset without ever asking for the value of an action that is not in it.

Kostrikov, Nair & Levine, "Offline reinforcement learning with implicit Q-learning", ICLR 2022.

V regresses on Q⁻ = min(Q₁⁻, Q₂⁻)(s, a) by the expectile loss |τ − 1(Q⁻ < V)| (Q⁻ − V)², so that it stands for the
better ones of the dataset's actions (eq. 5); Q₁ and Q₂ regress on r + γ (1 − terminated) V(s′) (eq. 6); the actor
imitates the dataset with weights exp(β (Q⁻ − V)), at most `weight_limit` (eq. 7). β = 0 is behaviour cloning.
log π(a|s) is that of a softmax over the legal actions where they are discrete; where they are continuous,
−½ |μ(s) − a|², a Gaussian of fixed deviation around μ = tanh(·) in [−1, 1], which the environment stretches to its
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field

from evopipe.core import health, optim
from evopipe.core.networks import Net, action_values, forward, forward_each, interleave
from evopipe.core.optim import Adam
from evopipe.core.population import Widths, moments, parameters, row
from evopipe.ops.distributions import masked_log_softmax
from evopipe.ops.noise import gaussian
from evopipe.ops.policy import epsilon_greedy, or_random
from evopipe.ops.value import expectile_loss, masked_argmax, pick
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, Evolve, hyper
from evopipe.types import Batch, Learned, Spaces

PAPER = "https://arxiv.org/abs/2110.06169"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous", "discrete")
MASKED_LOSS = True


class Config(AlgoConfig):
    """Hyper-parameters of implicit Q-learning."""

    lr_actor: float = hyper(
        3e-4, doc="learning rate of the actor's Adam", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    lr_critic: float = hyper(
        3e-4, doc="learning rate of Adam for Q and V", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    batch_size: int = hyper(
        128, doc="transitions an update", raising="steadier gradients, slower updates", evolvable=True, ge=1, le=65536
    )
    learn_step: int = hyper(
        1, doc="steps of the member between two updates", unit="steps", raising="fewer updates, faster",
        evolvable=True, ge=1, le=65536,
    )  # fmt: skip
    gamma: float = hyper(0.99, doc="discount", raising="looks further ahead", evolvable=True, ge=0, le=1)
    tau: float = hyper(5e-3, doc="share of the online critics mixed into the targets", evolvable=True,
        raising="targets follow faster, less stable", ge=0, le=1)  # fmt: skip
    grad_clip: float = hyper(
        10.0, doc="largest gradient norm", raising="larger steps let through", evolvable=True, gt=0
    )
    expectile: float = hyper(
        0.7, doc="expectile τ of Q that V stands for", raising="from the dataset's mean action to its best",
        evolvable=True, gt=0, lt=1,
    )  # fmt: skip
    beta: float = hyper(
        3.0, doc="inverse temperature of the imitation weights; 0: behaviour cloning", unit="1 / return",
        raising="imitates the best actions only", evolvable=True, ge=0, le=1000,
    )  # fmt: skip
    weight_limit: float = hyper(100.0, doc="largest imitation weight", raising="few actions may count more", gt=0)
    epsilon: float = hyper(
        0.05, doc="chance of a random action while it learns online", raising="explores more", ge=0, le=1
    )
    noise_sd: float = hyper(
        0.1, doc="standard deviation of the noise on continuous actions while it learns online",
        raising="explores more", ge=0, le=10,
    )  # fmt: skip
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="architecture that members start from")
    evolve: dict[str, Evolve] = Field(
        default_factory=lambda: {
            "lr_actor": Evolve(min=1e-4, max=1e-2),
            "lr_critic": Evolve(min=1e-4, max=1e-2),
            "batch_size": Evolve(min=32, max=512),
            "beta": Evolve(min=0.01, max=20.0),
        },
        description="which hyper-parameters the `rl_hp` mutation may change, and how far",
    )


@dataclass(frozen=True)
class State:
    """Everything that learns, one row a member."""

    actor: Net = parameters("actor", trainable=True)
    value: Net = parameters("value", trainable=True)
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: Adam = moments("actor")
    value_adam: Adam = moments("value")
    critics_adam: Adam = moments("critic_1", "critic_2")
    updates: torch.Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network: the mean action, or a logit for each."""
    o, a = spaces.observations, spaces.actions
    critic = Widths(o + a, 1) if spaces.continuous else Widths(o, a)
    return {"actor": Widths(o, a), "value": Widths(o, 1), "critic_1": critic, "critic_2": critic}


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks; the targets are copies."""
    actor, value, critics = nets["actor"], nets["value"], interleave(nets["critic_1"], nets["critic_2"])
    adams = (Adam.start(actor), Adam.start(value), Adam.start(critics))
    updates = torch.zeros(len(actor.values), device=actor.values.device)
    return State(actor, value, critics, critics.copy(), *adams, updates)


def explore(cfg: Config, step: int) -> float:
    """Return the chance of a random action, the same at every step of a member."""
    return cfg.epsilon


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Return μ(s): obs `[P, E, O]` → `[P, E, A]` in [−1, 1], or `[P, E]` int64, the likeliest legal action."""
    with torch.no_grad():
        chosen = forward(state.actor, obs)
    return torch.tanh(chosen) if cfg.spaces.continuous else masked_argmax(torch.nan_to_num(chosen), legal)


def act(
    cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor, epsilon: torch.Tensor, draw: Stream
) -> torch.Tensor:
    """Act greedily, with noise where actions are continuous; with chance epsilon `[P]` at random.

    Shapes: obs `[P, E, O]`, legal `[P, E, A]` → `[P, E, A]`, or `[P, E]` int64.
    """
    if cfg.spaces.continuous:
        mean = greedy(cfg, state, obs, legal)
        return or_random(mean + gaussian(draw, (mean.shape[1], mean.shape[2]), cfg.noise_sd), epsilon, draw.part(1))
    with torch.no_grad():
        logits = torch.nan_to_num(forward(state.actor, obs))
    u = draw.uniform(2 * obs.shape[1]).view(-1, 2, obs.shape[1])
    return epsilon_greedy(logits, legal, epsilon, u[:, 0], u[:, 1])


def taken(cfg: Config, state: State, net: Net, batch: Batch) -> torch.Tensor:
    """Return both critics' Q(s, a) of the dataset's actions, `[P, 2, B]`."""
    if cfg.spaces.continuous:
        return action_values(net, batch.obs, batch.action)
    return pick(forward_each(net, batch.obs), batch.action[:, None].expand(-1, 2, -1))


def log_policy(cfg: Config, state: State, batch: Batch) -> torch.Tensor:
    """Return log π(a|s) of the dataset's actions up to a constant, `[P, B]`."""
    out = forward(state.actor, batch.obs)
    if cfg.spaces.continuous:
        return -0.5 * (torch.tanh(out) - batch.action).square().sum(dim=-1)
    return pick(masked_log_softmax(out, batch.legal), batch.action)


def loss(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each member's losses of V and Q and of the actor, `[P]` both, and each transition's error `[P, B]`.

    No network gets a gradient from another's loss; hp values are `[P]`.
    """
    value = forward(state.value, batch.obs).squeeze(-1)  # [P, B]
    with torch.no_grad():
        q_minus = taken(cfg, state, state.critics_target, batch).amin(dim=1)
        y = torch.addcmul(batch.reward, batch.discount, forward(state.value, batch.next_obs).squeeze(-1))
        imitate = (hp["beta"][:, None] * (q_minus - value)).exp().clamp(max=cfg.weight_limit)
    errors = taken(cfg, state, state.critics, batch) - y[:, None]
    each = expectile_loss(q_minus - value, hp["expectile"][:, None]) + errors.square().sum(dim=1)
    values, actor = ((batch.weight * x).sum(dim=1) for x in (each, -imitate * log_policy(cfg, state, batch)))
    return values, actor, errors.detach().abs().mean(dim=1)


def update(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, healthy: torch.Tensor, draw: Stream,
    turn: int = 0,
) -> Learned:  # fmt: skip
    """Learn from one batch; hp values and healthy are `[P]`."""
    learners = (
        (state.value, state.value_adam, hp["lr_critic"]),
        (state.critics, state.critics_adam, hp["lr_critic"]),
        (state.actor, state.actor_adam, hp["lr_actor"]),
    )
    values, actor, errors = loss(cfg, state, hp, batch)
    losses = values + actor
    optim.backward(losses, *(net for net, _, _ in learners))
    norms = [optim.clip_gradients(net, hp["grad_clip"]) for net, _, _ in learners]
    healthy = health.after_backward(healthy, losses, norms[0] + norms[1] + norms[2])
    for net, adam, lr in learners:
        optim.step(net, adam, lr, healthy)
    optim.polyak(state.critics_target, state.critics, hp["tau"] * healthy)
    return Learned(replace(state, updates=state.updates + healthy), values.detach(), healthy, errors)
