"""What algorithms with one Q-network over discrete actions have in common: its state, how it acts, what it aims at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.native.ticks import Choice
from evopipe.native.update import Learners, Recipe, Row
from evopipe.native.value import value_recipe
from evopipe.ops.policy import best_legal, epsilon_greedy
from evopipe.ops.value import q_target
from evopipe.rng import Stream
from evopipe.schema.declare import hyper
from evopipe.types import Batch, Hyper, Spaces, Tensor

RegressionLoss = Annotated[Literal["huber", "mse"], hyper(doc="regression loss of the temporal-difference error")]


@dataclass(frozen=True)
class State:
    q: Net = parameters("q", trainable=True)
    target: Net = parameters("q")
    adam: optim.Adam = moments("q")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Any, spaces: Spaces) -> dict[str, Widths]:
    return {"q": Widths(spaces.observations, spaces.actions)}


def init(cfg: Any, nets: Nets) -> State:
    q = nets["q"]
    return State(q, q.copy(), *optim.start(q))


def explore(cfg: Any, step: int) -> float:
    """Return ε after `step` environment steps of a member: it goes linearly from `eps_start` to `eps_end`.

    The end value is reached after `eps_steps` steps.
    """
    return float(cfg.eps_start + min(1.0, step / cfg.eps_steps) * (cfg.eps_end - cfg.eps_start))


def values(cfg: Any, state: State, obs: Tensor) -> Tensor:
    """Return the action values Q(s, ·), `[P, E, A]`. `obs` is `[P, E, O]`, for P members with E observations each.

    `cfg` is the algorithm's configuration.
    """
    with torch.no_grad():
        return forward(state.q, obs)


def greedy(cfg: Any, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the legal actions of highest value, `[P, E]` int64.

    obs is `[P, E, O]` (P members, E environments each); legal is bool `[P, E, A]`, or None if all actions are legal.
    `cfg` is the algorithm's configuration.
    """
    return best_legal(values(cfg, state, obs), legal)


def act(cfg: Any, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return the legal actions of highest value, `[P, E]` int64. With probability ε, an action is instead drawn
    uniformly from the legal ones.

    obs is `[P, E, O]` (P members, E environments each), legal `[P, E, A]` bool, epsilon (ε) `[P]`; `draw` is the stream
    of random numbers, `cfg` the algorithm's configuration.
    """
    return epsilon_greedy(values(cfg, state, obs), legal, epsilon, draw)


def target(cfg: Any, state: State, batch: Batch) -> Tensor:
    """Return the target y of each transition, `[P, B]` for B transitions of P members.

    The target network gives the value of the next action. The action is chosen by the online network if `cfg.double` is
    True, else by the target network.
    """
    with torch.no_grad():
        target_t = forward(state.target, batch.next_obs)  # [P, B, A]
        selector_t = forward(state.q, batch.next_obs) if cfg.double else target_t
        return q_target(batch.reward, batch.discount, target_t, selector_t, batch.next_legal)


def recipe(cfg: Any, state: State, hp: Hyper, batch: Batch, alpha: Tensor | None = None) -> Recipe | None:
    """Return the `Recipe`, which tells the C kernels how to make a whole update.

    The result is None if the kernels cannot make this update. Torch then makes it.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the members' values of the hyper-parameters, `[P]` each for P members.
        batch: the minibatch of the update.
        alpha: `[P]`, the weight of the conservative term in the loss of CQN; None for other algorithms.
    """
    rates: dict[str, Row] = {"lr_critic": hp["lr"], "grad_clip": hp["grad_clip"], "tau": hp["tau"]}
    if getattr(cfg, "target", "soft") == "hard":
        rates["interval"] = float(cfg.target_interval)
    if alpha is not None:
        rates["alpha"] = alpha
    of = Learners(state.q, state.target, state.adam, state.updates)
    return value_recipe(of, rates, batch, double=cfg.double, huber=cfg.loss == "huber")


def choice(cfg: Any, state: State) -> Choice:
    """Return a `Choice`: what the C kernels need to choose the same actions as `act`.

    Actions are chosen by the values of the Q-network. `cfg` is the algorithm's configuration and has no effect.
    """
    return Choice(state.q, "best")
