"""What MADDPG and MATD3 have in common: deterministic actors, and critics of everyone's observations and actions.

Of a configuration and a state each function reads what it says, by the names that both use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.core.groups import agent_groups
from evopipe.core.net import Net
from evopipe.core.structure import Widths
from evopipe.native import actor_critic as native
from evopipe.native import build
from evopipe.native.update import Learners
from evopipe.ops import signals as told
from evopipe.ops.distributions import Distribution, distribution, relaxed
from evopipe.ops.policy import likeliest, noisy, or_random_legal, smoothed
from evopipe.rng import Stream
from evopipe.schema.declare import hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

Temperature = Annotated[float, hyper(doc="temperature of the Gumbel-softmax that gives discrete actions a gradient",
    raising="smoother, more biased gradients", gt=0, le=100)]  # fmt: skip
OutputPenalty = Annotated[float, hyper(doc="weight of the mean squared outputs of actors in their loss",
    raising="actions stay further from their limits", ge=0)]  # fmt: skip

RANGES = _hyper.ranges(lr_actor=(1e-4, 1e-2), lr_critic=(1e-4, 1e-2), batch_size=(64, 1024), learn_step=(4, 64))


def networks(cfg: Any, spaces: Spaces, critics: int = 1) -> dict[str, Widths]:
    """Return the input and output width of the networks `actor` and `critic` (`critics` if there are two), by name.

    Each group of agents has an actor and centralised critics, which read all agents' observations and actions.

    Args:
        cfg: the algorithm's configuration.
        spaces: the environment's spaces.
        critics: the number of critics of each group, 1 or 2.
    """
    of, copies = agent_groups(cfg, spaces), len(agent_groups(cfg, spaces).groups)
    actors, own = Widths(of.observed, spaces.actions, copies=copies), Widths(of.joint(), 1, copies=critics * copies)
    return {"actor": actors, "critic" if critics == 1 else "critics": own}


def output(cfg: Any, actor: Net, obs: Tensor) -> Tensor:
    """Return the outputs of the actors, `[P, K, B, A]` for P members, K agents and B observations.

    The outputs are logits of discrete actions, or continuous actions before the tanh.

    Args:
        cfg: the algorithm's configuration.
        actor: the actors, one network for each group of agents.
        obs: `[P, K, B, O]`, each agent's observations.
    """
    of = agent_groups(cfg)
    return of.run(actor, of.named(obs))


def _finite_output(cfg: Any, state: Any, obs: Tensor) -> Tensor:
    """The same, finite, for observations `[P, B · K, O]`."""
    with torch.no_grad():
        return torch.nan_to_num(output(cfg, state.actor, agent_groups(cfg).apart(obs)))


def _chances(cfg: Any, out: Tensor, legal: Tensor | None) -> Distribution:
    """Return the softmax over the legal actions: outputs and legal `[P, K, B, A]`."""
    return distribution(cfg.spaces, out, None, agent_groups(cfg).legal(legal, out))


def greedy(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return every agent's greedy action.

    A continuous action is the tanh of the actor's output. A discrete action is the most likely legal one. The result is
    `[P, E · K, A]` for continuous actions, else `[P, E · K]`. There are P members with E environments. The K agents of
    an environment are adjacent.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E · K, O]`, the agents' observations.
        legal: `[P, E · K, A]` bool, the legal discrete actions; None if all are.
    """
    of, out = agent_groups(cfg), _finite_output(cfg, state, obs)
    best = likeliest(out, of.legal(None if legal is None else of.apart(legal), out), cfg.spaces.continuous)
    return of.side_by_side(of.own(best) if cfg.spaces.continuous else best)


def act(cfg: Any, state: Any, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return every agent's exploratory action.

    A continuous action is the greedy action with noise. A discrete action is a sample of the actor's softmax. With
    probability ε, independently for each agent, the action is uniformly random instead. There are P members with E
    environments. The K agents of an environment are adjacent.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E · K, O]`, the agents' observations.
        legal: `[P, E · K, A]` bool, the legal discrete actions.
        epsilon: `[P]`, ε.
        draw: the stream of random numbers.
    """
    of = agent_groups(cfg)
    if cfg.spaces.continuous:
        found = noisy(greedy(cfg, state, obs, legal), epsilon, draw, cfg.noise_sd, cfg.noise, cfg.ou_theta)
        return of.side_by_side(of.own(of.apart(found)))
    drawn = _chances(cfg, _finite_output(cfg, state, obs), of.apart(legal)).sample(draw.part(1))
    return or_random_legal(of.side_by_side(drawn), legal, epsilon, draw)


def as_numbers(cfg: Any, action: Tensor) -> Tensor:
    """Return actions as critics read them, `[…, A]` float: discrete actions, int64 `[…]`, become one-hot.

    `cfg` is the algorithm's configuration.
    """
    if cfg.spaces.continuous:
        return action
    return torch.nn.functional.one_hot(action, cfg.spaces.actions).to(torch.get_default_dtype())


def value(cfg: Any, critic: Net, obs: Tensor, actions: Tensor) -> Tensor:
    """Return the value Q of every agent's centralised critic, `[P, K, B]`; `[2, P, K, B]` for twin critics.

    There are P members, K agents and B transitions. A critic reads the observations and actions of all agents.

    Args:
        cfg: the algorithm's configuration.
        critic: the critics; the agents of a group share theirs.
        obs: `[P, B, K, O]`, the observations; or `[P, K, B, K, O]` if the critics of different agents read different
            values. Axis 1 then counts the critics, and axis 3 the agents whose observations they read.
        actions: `[P, B, K, A]` or `[P, K, B, K, A]`, the actions as numbers, see `as_numbers`.
    """
    of = agent_groups(cfg)
    return of.run(critic, of.together(obs, actions)).squeeze(-1)


def _least(cfg: Any, critic: Net, obs: Tensor, actions: Tensor) -> Tensor:
    """Return `value`, of twins the lesser: `[P, K, B]`."""
    found = value(cfg, critic, obs, actions)
    return found.amin(dim=0) if found.ndim == 4 else found


class _Steps(NamedTuple):
    """A batch, and what of it is needed more than once or with agents first."""

    batch: Batch
    learns: Tensor  # [P, B, K] float32
    weight: Tensor  # [P, K, B], 0 where an agent learns nothing
    seen: Tensor  # [P, B, K, O], observations as critics read them, 0s where an agent is gone
    taken: Tensor  # [P, B, K, A], actions as they read them, 0s there too
    there: Tensor  # [P, K, B, K] bool, see `AgentGroups.there`

    @classmethod
    def of(cls, cfg: Any, batch: Batch) -> _Steps:
        of, ones = agent_groups(cfg), torch.ones_like(batch.reward)
        alive, learns, next_alive = (ones if x is None else x for x in (batch.alive, batch.learns, batch.next_alive))
        weight, gone = of.first(batch.weight[..., None] * learns), (alive == 0)[..., None]
        seen, taken = (x.masked_fill(gone, 0.0) for x in (batch.obs, as_numbers(cfg, batch.action)))
        return cls(batch, learns, weight, seen, taken, of.there(next_alive))


def _next_actions(cfg: Any, actor: Net, steps: _Steps, draw: Stream) -> Tensor:
    """Return what actors do in `next_obs`, as numbers `[P, K, B, A]`: tanh of what they say, or one-hot draws of their
    softmax."""
    of = agent_groups(cfg)
    out, legal = output(cfg, actor, of.first(steps.batch.next_obs)), steps.batch.next_legal
    if cfg.spaces.continuous:
        return torch.tanh(out)
    return as_numbers(cfg, _chances(cfg, out, None if legal is None else of.first(legal)).sample(draw))


def _critics_loss(cfg: Any, critic: Net, target: Net, steps: _Steps, next_action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the weighted squared errors of each member's critics `[P]`, and each transition's mean error
    `[P, B]`, without gradient, over the agents that learn. They regress on r + γ Q⁻ of the next actions `[P, K, B, A]`,
    of twins the lesser. Where an agent is gone critics read zeros, see `AgentGroups.there`."""
    of, batch = agent_groups(cfg), steps.batch
    with torch.no_grad():
        gone = ~steps.there[..., None]
        then = [x[:, None].masked_fill(gone, 0.0) for x in (batch.next_obs, next_action.transpose(1, 2))]
        y = torch.addcmul(of.first(batch.reward), of.first(batch.discount), _least(cfg, target, *then))
    errors = value(cfg, critic, steps.seen, steps.taken) - y
    squares, sizes = errors.square(), errors.detach().abs()
    if errors.ndim == 4:
        squares, sizes = squares.sum(dim=0), sizes.mean(dim=0)
    mean = (of.first(steps.learns) * sizes).sum(dim=1) / steps.learns.sum(dim=2).clamp(min=1.0)
    return (steps.weight * squares).sum(dim=(1, 2)), mean


def _actor_loss(cfg: Any, actor: Net, critic: Net, steps: _Steps, draw: Stream) -> Tensor:
    """Return −Q of each agent's own policy and the others' actions in the batch, weighted, of each member `[P]`; and
    `output_penalty` times the outputs' mean square."""
    of, batch = agent_groups(cfg), steps.batch
    out, places = output(cfg, actor, of.first(batch.obs)), of.on(batch.obs.device)
    if cfg.spaces.continuous:
        mine = torch.tanh(out)
    else:
        legal = of.legal(None if batch.legal is None else of.first(batch.legal), out)
        mine = relaxed(out, legal, cfg.temperature, draw)
    seen = torch.where(places.other, steps.taken[:, None], mine[:, :, :, None])  # [P, critic, B, agent, A]
    penalty = cfg.output_penalty * (out.square() * places.share).sum(dim=-1)
    each: Tensor = steps.weight * (penalty - value(cfg, critic, steps.seen, seen))
    return each.sum(dim=(1, 2))


def _whole_update(
    cfg: Any, state: Any, critic: str, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, climbs: bool
) -> Learned | None:
    """Take the whole update by the CPU's own kernels, of critics by that name in the state; None where torch must."""
    if not build.serve_wholly(batch.obs) or cfg.spaces.images:
        return None
    of, n = agent_groups(cfg), batch.reward[0].numel() * cfg.spaces.actions
    if cfg.spaces.continuous:
        noise = hp["target_noise"][:, None] * draw.normal(n) if critic == "critics" else None
        own, limit = None, hp.get("target_clip", 0.0)
    else:
        noise, limit = native.gumbels(draw, n), 0.0
        own = native.gumbels(draw.part(1), n) if climbs else None
    return native.ddpg_update(
        Learners.of(state, critic), hp, of.places, batch, healthy, climbs,
        discrete=not cfg.spaces.continuous, noise=noise, own_noise=own, noise_clip=limit, temperature=cfg.temperature,
        penalty=cfg.output_penalty,
    )  # fmt: skip


def loss(critic: str, cfg: Any, state: Any, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    return _loss(critic, cfg, state, hp, _Steps.of(cfg, batch), draw)


def _loss(critic: str, cfg: Any, state: Any, hp: Hyper, steps: _Steps, draw: Stream) -> tuple[Tensor, Tensor]:
    """Return the losses and errors of critics by that name; twins see clipped noise on continuous actions."""
    with torch.no_grad():
        action_t = _next_actions(cfg, state.actor_target, steps, draw)
        if critic == "critics" and cfg.spaces.continuous:
            action_t = smoothed(action_t, draw, hp["target_noise"], hp["target_clip"])
    return _critics_loss(cfg, getattr(state, critic), getattr(state, f"{critic}_target"), steps, action_t)


def update(
    critic: str, cfg: Any, state: Any, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int
) -> Learned:
    climbs = turn == cfg.policy_delay - 1
    if (learned := _whole_update(cfg, state, critic, hp, batch, healthy, draw, climbs)) is not None:
        return learned
    steps = _Steps.of(cfg, batch)
    if not cfg.spaces.continuous:
        healthy = healthy & state.actor_target.finite  # an action does not tell what it was drawn from

    def climb() -> Tensor:
        first = state.critic.frozen if critic == "critic" else state.critics.firsts
        return _actor_loss(cfg, state.actor, first, steps, draw.part(1))

    found = _loss(critic, cfg, state, hp, steps, draw)
    return _actor_critic.learn(state, critic, hp, healthy, found, climb if climbs else None)


def signals(critic: str, cfg: Any, state: Any, batch: Batch) -> dict[str, Tensor]:
    """Return training metrics `[P]` of the critics and actors of P members on a minibatch, by name.

    The metrics are the critics' values (of twin critics the smaller), the distance to the target network's values, the
    actors' loss, and for discrete actions the policy's entropy. Values and entropy are also given for each agent. An
    agent's actor loss is minus the critic's value of the agent's greedy action, while the other agents act as in the
    minibatch. Transitions from which an agent does not learn are left out for this agent.

    Args:
        critic: the name of the state's field with the critics.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        batch: the minibatch.
    """
    of, steps = agent_groups(cfg), _Steps.of(cfg, batch)
    nets = getattr(state, critic), getattr(state, f"{critic}_target")
    with torch.no_grad():
        q, q_minus = (_least(cfg, net, steps.seen, steps.taken) for net in nets)
        out, legal = output(cfg, state.actor, of.first(batch.obs)), batch.legal
        legal = None if legal is None else of.first(legal)
        best = as_numbers(cfg, likeliest(out, of.legal(legal, out), cfg.spaces.continuous))[:, :, :, None]
        own = _least(cfg, nets[0], steps.seen, torch.where(of.on(out.device).other, steps.taken[:, None], best))
        each = {"q_values": q}
        if not cfg.spaces.continuous:
            each["entropy"] = _chances(cfg, out, legal).entropy()
    found = told.of_values(steps.weight, q, q_minus) | {"losses/actor_loss": -told.mean(steps.weight, own)}
    if "entropy" in each:
        found["losses/entropy"] = told.mean(steps.weight, each["entropy"])
    return found | told.of_agents(of.team.agents, steps.weight, each)


def answers(critic: str) -> Callable[[Any], Answers]:
    """Make the function `answers` of an algorithm's module, for MADDPG or MATD3.

    The function takes the algorithm's configuration, and returns an `Answers` object, which has the functions by which
    an exported policy computes values. The policy must be exported with its centralised critics. If there are twin
    critics, the smaller of their two values counts. `critic` names the field of the algorithm's state that holds the
    critics.
    """

    def q_of(cfg: Any, state: Any, obs: Tensor, actions: Tensor) -> Tensor:
        of = agent_groups(cfg)
        with torch.no_grad():
            return of.side_by_side(_least(cfg, getattr(state, critic), obs.unflatten(1, (-1, of.agents)), actions))

    def q_values(cfg: Any, state: Any, obs: Tensor, action: Tensor | None) -> Tensor:
        """Where no action is given, Q of all of an agent's own, while the others do their best: `[P, B · K, A]`."""
        of = agent_groups(cfg)
        if action is not None:
            return q_of(cfg, state, obs, as_numbers(cfg, action.unflatten(1, (-1, of.agents))))
        best = as_numbers(cfg, greedy(cfg, state, obs, None).unflatten(1, (-1, of.agents)))[:, None]  # [P, 1, B, K, A]
        other, each = of.on(obs.device).other, torch.eye(cfg.spaces.actions, device=obs.device)
        return torch.stack([q_of(cfg, state, obs, torch.where(other, best, own)) for own in each], dim=-1)

    def value_of(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Tensor:
        return q_values(cfg, state, obs, greedy(cfg, state, obs, legal))

    def chances(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Distribution:
        of, out = agent_groups(cfg), _finite_output(cfg, state, obs)
        may = of.legal(None if legal is None else of.apart(legal), out)
        return distribution(cfg.spaces, of.side_by_side(out), None, None if may is None else of.side_by_side(may))

    return lambda cfg: Answers(value_of, q_values, None if cfg.spaces.continuous else chances)
