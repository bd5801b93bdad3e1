"""Whole updates of actor-critic algorithms by the native kernels; `algos` has the same in torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from evopipe.native import build, draws, update
from evopipe.native.header import at
from evopipe.native.update import Job, Learners, Row
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Hyper, Learned, Tensor

_RATES = ("lr_actor", "lr_critic", "grad_clip", "tau")


@dataclass(frozen=True, eq=False)
class Places:
    """The description of a team of `K` agents for the C kernels: widths of spaces, and agents that share networks.

    A single agent with O observation values and A actions has `Places((O,), (A,))`. Every tuple has one entry per
    agent.

    Attributes:
        sees: the width of each agent's observation.
        does: the width of each agent's action.
        group: the index of each agent's group. The agents of a group share the group's networks.
        seat: each agent's index within its group.
        ids: the length of the one-hot code of `seat`, which networks read with an observation; 0 if no agents share
            networks.
    """

    sees: tuple[int, ...]
    does: tuple[int, ...]
    group: tuple[int, ...] = (0,)
    seat: tuple[int, ...] = (0,)
    ids: int = 0

    @property
    def joint(self) -> int:
        """The width of a centralised critic's input: all observations and actions, and the one-hot code of one
        agent."""
        return sum(self.sees) + sum(self.does) + self.ids

    @cached_property
    def fields(self) -> Tensor:
        return torch.tensor([self.sees, self.does, self.group, self.seat], dtype=torch.int32)


def gumbels(draw: Stream, n: int) -> Tensor:
    """Draw n numbers of negative Gumbel noise for each of P members, by the C kernels: float32 `[P, n]`, each at least
    −40.

    `draw` is the stream of random numbers. See `ops.distributions.gumbel`.
    """
    found = torch.empty(len(draw.keys), n)
    draws.kernel(build.kernels())("gumbels", draw.keys, salt(draw.purpose), draw.step, found)
    return found


@cache
def alone(observations: int, actions: int) -> Places:
    """Describe a single agent to the C kernels, as a team of one, with these widths of its observation and action."""
    return Places((observations,), (actions,))


def ddpg_update(
    of: Learners, hp: Hyper, places: Places, batch: Batch, healthy: Tensor, actor_learns: bool, *,
    noise: Tensor | None = None, own_noise: Tensor | None = None, **more: Any,
) -> Learned | None:  # fmt: skip
    """Update critics and, if `actor_learns`, deterministic actors in place, by the C kernels.

    Return the losses `[P]`, the errors `[P, B]` of the transitions, and which of P members are still healthy (all their
    numbers are finite). Return None if the kernels cannot do the update; then torch does it.

    Args:
        of: the networks and optimisers.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        places: the team's agents, or a single agent.
        batch: a minibatch of B transitions.
        healthy: `[P]` bool, the members that learn.
        actor_learns: whether the actors are updated too.
        noise: `[P, K · B · A]`, random numbers for next actions: A numbers for each of K agents in each of B
            transitions. They are added to continuous actions, clipped to `noise_clip`. For discrete actions they are
            Gumbel noise, by which the actions are drawn.
        own_noise: Gumbel noise of the same shape, by which the actor's own discrete actions are drawn.
        more: `discrete`, `noise_clip`, `temperature`, `penalty` and `alpha`, the settings of the update that `ddpg_job`
            explains.
    """
    job = ddpg_job(of, hp, places, batch, **more)
    return None if job is None else update.learn("ddpg_update", of, job, batch, healthy, noise, own_noise, actor_learns)


def ddpg_job(
    of: Learners, hp: Hyper, places: Places, batch: Batch, *, discrete: bool = False, noise_clip: Row = 0.0,
    temperature: Row = 1.0, penalty: Row = 0.0, alpha: Row | None = None,
) -> Job | None:  # fmt: skip
    """Return the C struct that describes updates of critics and deterministic actors; None if the kernels cannot do
    them.

    Transitions of weight 0 at the end of a minibatch are skipped, and their errors are 0. `noise_clip`, `temperature`,
    `penalty` and `alpha` are floats, or tensors `[P]`.

    Args:
        of: the networks and optimisers.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        places: the team's agents, or a single agent.
        batch: a minibatch, from which the width of an observation is read.
        discrete: whether actions are discrete.
        noise_clip: the largest size of the noise on next actions.
        temperature: the temperature of the Gumbel-softmax.
        penalty: the weight of the mean square of the actor's outputs in its loss.
        alpha: α of TD3+BC, the weight of the critic's value in an actor's loss that also imitates the minibatch's
            actions; None for actors that do not imitate.
    """
    if of.actor is None or of.actor_target is None or batch.obs.dtype != torch.float32:
        return None
    rates: dict[str, Row] = {name: hp[name] for name in _RATES}
    rates |= {"noise_clip": noise_clip, "temperature": temperature, "penalty": penalty}
    if alpha is not None:
        rates["alpha"] = alpha
    settings = *rates.values(), discrete, places, batch.obs.shape[2]
    job = update.known(of, settings)
    if job is None:
        sees, does, group, seat = (row.data_ptr() for row in places.fields)
        seen, members, own = batch.obs.shape[-1], len(of.updates), batch.obs.shape[-1] + places.ids
        critics = len(of.critic.values) // members * of.critic.structure.copies
        inputs = {"actor": own, "actor_target": own, "critic": places.joint, "critic_target": places.joint}
        job = update.make(
            "ddpg_job", of, settings, members, inputs, rates, sees=sees, does=does, group=group, seat=seat,
            agents=len(places.sees), obs=seen, actions=of.actor.structure.widths.outputs, joint=places.joint,
            ids=places.ids, twins=critics // (max(places.group) + 1), discrete=discrete,
        )  # fmt: skip
    return job


def sac_job(
    of: Learners, state: Any, hp: Hyper, batch: Batch, discrete: bool, learns_alpha: bool, target_entropy: Row,
    by_legal: bool,
) -> Job | None:  # fmt: skip
    """Return the C struct that describes updates of soft actor-critic; None if the kernels cannot do them.

    An update changes twin critics, a stochastic actor and, if `learns_alpha`, the temperature.

    Args:
        of: the networks and optimisers.
        state: the algorithm's state, which holds the logarithm of the temperature and its Adam moments.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: a minibatch, from which the width of an observation is read.
        discrete: whether actions are discrete.
        learns_alpha: whether the temperature is learned.
        target_entropy: a float or a tensor `[P]`, the policy entropy towards which the temperature is adjusted, see
            `by_legal`.
        by_legal: if True, `target_entropy` is a fraction of the logarithm of the number of legal actions; if False, it
            is the entropy itself.
    """
    held = log_alpha, log_alpha_adam = state.log_alpha, state.log_alpha_adam
    rates: dict[str, Row] = {name: hp[name] for name in _RATES}
    rates |= {"lr_alpha": hp["lr_alpha"], "target_entropy": target_entropy}
    settings = *rates.values(), *held, discrete, by_legal, learns_alpha
    job = update.known(of, settings)
    if job is None:
        plain = all(x.dtype == torch.float32 and x.is_contiguous() for x in held)
        if of.actor is None or batch.obs.dtype != torch.float32 or not plain:
            return None
        obs, outputs = batch.obs.shape[-1], of.actor.structure.widths.outputs
        actions = outputs if discrete else outputs // 2
        asked = obs if discrete else obs + actions
        inputs = {"actor": obs, "critic": asked, "critic_target": asked}
        job = update.make(
            "sac_job", of, settings, len(of.updates), inputs, rates, log_alpha=at(log_alpha),
            log_alpha_adam=at(log_alpha_adam), obs=obs, actions=actions, discrete=discrete, by_legal=by_legal,
            learns_alpha=learns_alpha,
        )  # fmt: skip
    return job if batch.obs.dtype == torch.float32 else None
