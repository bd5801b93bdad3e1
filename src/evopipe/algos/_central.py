"""What MADDPG and MATD3 have in common: deterministic actors, and critics of everyone's observations and actions.

Of a configuration and a state each function reads what it says, by the names that both use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.algos._team import crew
from evopipe.core.net import Net
from evopipe.core.structure import Widths
from evopipe.ops.distributions import Distribution, distribution, relaxed
from evopipe.ops.policy import likeliest, or_random_legal
from evopipe.rng import Stream
from evopipe.schema.declare import hyper
from evopipe.types import Batch, Spaces, Tensor

Temperature = Annotated[float, hyper(doc="temperature of the Gumbel-softmax by which discrete actions get a gradient",
    raising="smoother, more biased gradients", gt=0, le=100)]  # fmt: skip
OutputPenalty = Annotated[float, hyper(doc="weight of the actors' mean squared outputs in their loss",
    raising="actions stay further from their limits", ge=0)]  # fmt: skip

RANGES = _hyper.ranges(lr_actor=(1e-4, 1e-2), lr_critic=(1e-4, 1e-2), batch_size=(64, 1024), learn_step=(4, 64))


def networks(cfg: Any, spaces: Spaces, critics: int = 1) -> dict[str, Widths]:
    """Return actors and so many centralised critics for each of them: a group's critics lie next to each other."""
    of, copies = crew(cfg, spaces), len(crew(cfg, spaces).groups)
    name = "critic" if critics == 1 else "critics"
    return {
        "actor": Widths(of.observed, spaces.actions, copies=copies),
        name: Widths(of.joint(), 1, copies=critics * copies),
    }


def output(cfg: Any, actor: Net, obs: Tensor) -> Tensor:
    """Return what actors say, logits or actions before tanh: `[P, B, K, O]` → `[P, B, K, A]`."""
    of = crew(cfg)
    return of.run(actor, of.named(obs))


def _finite_output(cfg: Any, state: Any, obs: Tensor) -> Tensor:
    """The same, finite, for observations `[P, B · K, O]`."""
    with torch.no_grad():
        return torch.nan_to_num(output(cfg, state.actor, crew(cfg).apart(obs)))


def _chances(cfg: Any, out: Tensor, legal: Tensor | None) -> Distribution:
    """Return the softmax over the legal actions: outputs `[P, B, K, A]`."""
    return distribution(cfg.spaces, out, None, crew(cfg).legal(legal, out))


def greedy(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return tanh of what actors say, or the likeliest legal actions: obs `[P, E · K, O]`."""
    of, out = crew(cfg), _finite_output(cfg, state, obs)
    may = None if legal is None else of.apart(legal)
    best = likeliest(out, of.legal(may, out), cfg.spaces.continuous)
    return (of.own(best) if cfg.spaces.continuous else best).flatten(1, 2)


def act(cfg: Any, state: Any, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return tanh of what actors say and `noise`, or draw from their softmax; with chance epsilon `[P]`, of each agent
    by itself, a uniform action."""
    of = crew(cfg)
    if cfg.spaces.continuous:
        found = _actor_critic.noisy(cfg, greedy(cfg, state, obs, legal), epsilon, draw)
        return of.own(of.apart(found)).flatten(1, 2)
    drawn = _chances(cfg, _finite_output(cfg, state, obs), of.apart(legal)).sample(draw.part(1))
    return or_random_legal(drawn.flatten(1), legal, epsilon, draw)


def as_numbers(cfg: Any, action: Tensor) -> Tensor:
    """Return actions as critics read them, `[P, B, K, A]`: int64 `[P, B, K]` as one-hot."""
    if cfg.spaces.continuous:
        return crew(cfg).own(action)
    return torch.nn.functional.one_hot(action, cfg.spaces.actions).to(torch.get_default_dtype())


def value(cfg: Any, critic: Net, obs: Tensor, actions: Tensor) -> Tensor:
    """Return every agent's Q of everyone's observations and actions, `[P, B, K]`, of twins `[2, P, B, K]`; see
    `Crew.together`."""
    of = crew(cfg)
    return of.run(critic, of.together(obs, actions)).squeeze(-1)


def next_actions(cfg: Any, actor: Net, batch: Batch, draw: Stream) -> Tensor:
    """Return what actors do in `next_obs`, as numbers: tanh of what they say, or one-hot draws of their softmax."""
    out = output(cfg, actor, batch.next_obs)
    if cfg.spaces.continuous:
        return crew(cfg).own(torch.tanh(out))
    return as_numbers(cfg, _chances(cfg, out, batch.next_legal).sample(draw))


def present(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return which agents act before and after the step, `[P, B, K]`, 1 and 0: one that is gone counts in critics as if
    its action were 0. (One that comes later counts from the step after on.)"""
    alive = batch.alive if batch.alive is not None else torch.ones_like(batch.reward)
    return alive, alive * (batch.discount > 0)


def regression(errors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of the critics' weighted squared errors `[P]`, and each transition's mean error `[P, B]`, without
    gradient, over the agents that act; errors are `[P, B, K]` or `[2, P, B, K]`."""
    alive, _ = present(batch)
    squares, sizes = (errors.square(), errors.detach().abs())
    if errors.ndim == 4:
        squares, sizes = squares.sum(dim=0), sizes.mean(dim=0)
    losses = (batch.weight[..., None] * alive * squares).sum(dim=(1, 2))
    return losses, (alive * sizes).sum(dim=2) / alive.sum(dim=2).clamp(min=1.0)


def actor_loss(cfg: Any, actor: Net, critic: Net, batch: Batch, draw: Stream) -> Tensor:
    """Return −Q of each agent's own policy and the others' actions in the batch, weighted, of each member `[P]`; and
    `output_penalty` times the outputs' mean square."""
    of, (alive, _) = crew(cfg), present(batch)
    out = output(cfg, actor, batch.obs)
    if cfg.spaces.continuous:
        mine = of.own(torch.tanh(out))
    else:
        mine = relaxed(out, of.legal(batch.legal, out), cfg.temperature, draw)
    taken = alive[..., None] * as_numbers(cfg, batch.action)
    seen = torch.where(of.on(out.device).other, taken[:, :, None], mine[:, :, None])  # [P, B, critic, agent, A]
    penalty = cfg.output_penalty * of.own(out).square().sum(dim=-1) / of.on(out.device).sizes
    each: Tensor = batch.weight[..., None] * alive * (penalty - value(cfg, critic, batch.obs, seen))
    return each.sum(dim=(1, 2))


def answers(critic: str) -> Callable[[Any], Answers]:
    """Return the `answers` of an algorithm with such actors and critics, of twins the least."""

    def q_of(cfg: Any, state: Any, obs: Tensor, actions: Tensor) -> Tensor:
        with torch.no_grad():
            found = value(cfg, getattr(state, critic), crew(cfg).apart(obs), actions)
        return (found.amin(dim=0) if found.ndim == 4 else found).flatten(1)

    def q_values(cfg: Any, state: Any, obs: Tensor, action: Tensor | None) -> Tensor:
        """Where no action is given, Q of all of an agent's own, while the others do their best: `[P, B · K, A]`."""
        of = crew(cfg)
        if action is not None:
            return q_of(cfg, state, obs, as_numbers(cfg, of.apart(action)))
        best = as_numbers(cfg, of.apart(greedy(cfg, state, obs, None)))[:, :, None]
        each = torch.eye(cfg.spaces.actions, device=obs.device)
        other = of.on(obs.device).other
        return torch.stack([q_of(cfg, state, obs, torch.where(other, best, own)) for own in each], dim=-1)

    def value_of(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Tensor:
        return q_values(cfg, state, obs, greedy(cfg, state, obs, legal))

    def chances(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Distribution:
        out = _finite_output(cfg, state, obs)
        may = crew(cfg).legal(None if legal is None else crew(cfg).apart(legal), out)
        return distribution(cfg.spaces, out.flatten(1, 2), None, None if may is None else may.flatten(1, 2))

    return lambda cfg: Answers(value_of, q_values, None if cfg.spaces.continuous else chances)
