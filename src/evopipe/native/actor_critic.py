"""Whole updates of actors and critics by the CPU's own kernels; `algos` has the same in torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from evopipe.native import build, dense
from evopipe.native.build import at
from evopipe.native.learn import owned
from evopipe.native.networks import BETA1, BETA2, EPS, Adam, Net
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Hyper, Learned, Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """Who of a team's `K` agents sees and does how much of a row, which network of a member's is its own, and which of
    those that share it an agent is. One agent alone: `Places((observations,), (actions,))`."""

    sees: tuple[int, ...]
    does: tuple[int, ...]
    group: tuple[int, ...] = (0,)
    seat: tuple[int, ...] = (0,)
    ids: int = 0  # numbers that tell those apart

    @property
    def joint(self) -> int:
        """Width of what a critic reads."""
        return sum(self.sees) + sum(self.does) + self.ids

    @cached_property
    def fields(self) -> Tensor:
        return torch.tensor([self.sees, self.does, self.group, self.seat], dtype=torch.int32)


@dataclass(frozen=True)
class Learners:
    """What of an algorithm's state learns, in place."""

    actor: Net
    actor_target: Net | None
    critic: Net
    critic_target: Net
    actor_adam: Adam
    critic_adam: Adam
    updates: Tensor

    def key(self, *others: Tensor) -> tuple[int, ...]:
        """Where all of it lies, and some more."""
        a, c = self.actor_adam, self.critic_adam
        nets = (net.values for net in (self.actor, self.actor_target, self.critic, self.critic_target) if net)
        held = (*nets, a.mean, a.square, a.steps, c.mean, c.square, c.steps, self.updates, *others)
        return tuple([tensor.data_ptr() for tensor in held])


def normals(draw: Stream, n: int) -> Tensor:
    """Return what `draw.normal(n)` returns, to its last bit or the one before."""
    return _drawn("normals", draw, n)


def gumbels(draw: Stream, n: int) -> Tensor:
    """Return what `ops.distributions.gumbel` does, as float32 and −40 at least."""
    return _drawn("gumbels", draw, n)


def _drawn(name: str, draw: Stream, n: int) -> Tensor:
    found = torch.empty(len(draw.keys), n)
    getattr(build.kernels(), name)(*found.shape, at(draw.keys), salt(draw.purpose), at(draw.step), at(found))
    return found


@cache
def alone(observations: int, actions: int) -> Places:
    """Return the places of one agent."""
    return Places((observations,), (actions,))


def climb(
    of: Learners, hp: Hyper, places: Places, batch: Batch, healthy: Tensor, climbs: bool, *, discrete: bool = False,
    noise: Tensor | None = None, own_noise: Tensor | None = None, limit: float = 0.0, temperature: float = 1.0,
    penalty: float = 0.0, close: bool = False,
) -> Learned | None:  # fmt: skip
    """Let critics regress, and where it is their turn deterministic actors climb; None where torch must.

    Noise, `[P, K · B · A]`, is added to the next actions within `limit`, or decides which are drawn; `own_noise`
    decides which of an actor's own are. `close`: actors stay close to the batch's actions by the hyper-parameter
    `alpha`. Rows of weight 0 at a batch's end are not looked at: their errors are 0.
    """
    rates = [hp[name] for name in ("lr_actor", "lr_critic", "grad_clip", "tau", *(("alpha",) if close else ()))]

    def made() -> Any:
        seen, members = batch.obs.shape[-1], len(of.updates)
        found = [
            _nets(of.actor, of.actor_adam, seen + places.ids, members),
            _nets(of.actor_target, None, seen + places.ids, members),
            _nets(of.critic, of.critic_adam, places.joint, members),
            _nets(of.critic_target, None, places.joint, members),
        ]
        if None in found or not _plain(of.updates, *rates):
            return None
        critics = len(of.critic.values) // members * of.critic.structure.copies
        sees, does, group, seat = (row.data_ptr() for row in places.fields)
        actor, actor_target, critic, critic_target = found
        lr_actor, lr_critic, limits, tau, *alpha = map(at, rates)
        return build.structure("climb_job")(
            actor=actor, actor_target=actor_target, critic=critic, critic_target=critic_target,
            sees=sees, does=does, group=group, seat=seat, batch=batch.weight.shape[1], agents=len(places.sees),
            obs=seen, actions=of.actor.structure.widths.outputs, joint=places.joint, ids=places.ids,
            twins=critics // (max(places.group) + 1), discrete=discrete, noise_limit=limit, temperature=temperature,
            penalty=penalty, beta1=BETA1, beta2=BETA2, eps=EPS, updates=at(of.updates), lr_actor=lr_actor,
            lr_critic=lr_critic, limit=limits, tau=tau, close=alpha[0] if alpha else None,
        )  # fmt: skip

    job = _job(of, (*batch.weight.shape, limit, temperature, penalty), made, *rates)
    if job is None or batch.obs.dtype != torch.float32:
        return None
    of_team = [None if x is None else x.contiguous() for x in (batch.alive, batch.learns, batch.next_alive)]
    job.climbs, (job.alive, job.learns, job.next_alive) = climbs, map(at, of_team)
    return _learned("climb", job, batch, healthy, noise, own_noise)


def soften(
    of: Learners, log_alpha: Tensor, log_alpha_adam: Tensor, hp: Hyper, batch: Batch, healthy: Tensor, *,
    discrete: bool, learns: bool, aim: float, by_legal: bool, noise: Tensor | None, own_noise: Tensor | None,
) -> Learned | None:  # fmt: skip
    """Let twin critics, a stochastic actor and, where it `learns`, its temperature take a step; None where torch must.

    The temperature aims at an entropy, where `by_legal` at so large a share of the logarithm of how many actions are
    legal. Noise and `own_noise`, `[P, B · A]` standard normal, are of the next actions and of the actor's own.
    """
    rates = [hp[name] for name in ("lr_actor", "lr_critic", "grad_clip", "tau", "lr_alpha")]

    def made() -> Any:
        obs, actions, members = batch.obs.shape[-1], of.actor.structure.widths.outputs, len(of.updates)
        actions = actions if discrete else actions // 2
        asked = obs if discrete else obs + actions
        found = [
            _nets(of.actor, of.actor_adam, obs, members),
            _nets(of.critic, of.critic_adam, asked, members),
            _nets(of.critic_target, None, asked, members),
        ]
        if None in found or not _plain(of.updates, log_alpha, log_alpha_adam, *rates):
            return None
        actor, critic, critic_target = found
        names = "updates log_alpha log_alpha_adam lr_actor lr_critic limit tau lr_alpha".split()
        held = map(at, (of.updates, log_alpha, log_alpha_adam, *rates))
        return build.structure("soft_job")(
            actor=actor, critic=critic, critic_target=critic_target, batch=batch.weight.shape[1], obs=obs,
            actions=actions, discrete=discrete, learns=learns, aim=aim, by_legal=by_legal, beta1=BETA1, beta2=BETA2,
            eps=EPS, **dict(zip(names, held, strict=True)),
        )  # fmt: skip

    job = _job(of, (*batch.weight.shape, learns, aim, by_legal), made, log_alpha, log_alpha_adam, *rates)
    if job is None or batch.obs.dtype != torch.float32:
        return None
    return _learned("soften", job, batch, healthy, noise, own_noise)


def _job(of: Learners, settings: tuple[Any, ...], made: Callable[[], Any], *others: Tensor) -> Any:
    """Return what stays from update to update, as it was made at the first; None where the kernels cannot serve."""
    key, known = (settings, of.key(*others)), of.actor.__dict__.get("job")  # where `cached_property` keeps things
    if known is None or known[0] != key:
        of.actor.__dict__["job"] = known = key, made()
    return known[1]


def _learned(
    name: str, job: Any, batch: Batch, healthy: Tensor, noise: Tensor | None, own_noise: Tensor | None
) -> Learned:
    obs, next_obs, action = (_whole_rows(x) for x in (batch.obs, batch.next_obs, batch.action))
    rest = [
        None if x is None else x.contiguous()
        for x in (batch.reward, batch.discount, batch.weight, noise, own_noise, batch.legal, batch.next_legal)
    ]
    job.reward, job.discount, job.weight, job.noise, job.own_noise, job.legal, job.next_legal = map(at, rest)
    job.now, job.then, job.action = obs.data_ptr(), next_obs.data_ptr(), action.data_ptr()
    (job.now_member, job.now_row), (job.then_member, job.then_row) = obs.stride()[:2], next_obs.stride()[:2]
    job.action_member, job.action_row = action.stride()[:2]
    weight, healthy = batch.weight, healthy.clone()
    losses, errors = weight.new_empty(len(weight)), torch.empty_like(weight)
    job.losses, job.errors, job.healthy = losses.data_ptr(), errors.data_ptr(), healthy.data_ptr()
    getattr(build.kernels(), name)(ctypes.addressof(job), len(healthy))
    return Learned(losses, healthy, errors)


def _whole_rows(x: Tensor) -> Tensor:
    """Let the numbers of a transition lie together; transitions may be apart."""
    each = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if stride != each and size > 1:
            return x.contiguous()
        each *= size
    return x


def _plain(*tensors: Tensor) -> bool:
    return all(x.dtype == torch.float32 and x.is_contiguous() for x in tensors)


def _nets(net: Net | None, adam: Adam | None, inputs: int, members: int) -> Any:
    """Describe networks to the kernels; None where these do not know what they are made of."""
    plan = None if net is None else dense.plan_of(net, inputs)
    if net is None or plan is None:
        return None
    structure: Any = net.structure
    if getattr(structure, "inner", structure).widths.role != "whole":
        return None
    mean, square, steps = (at(adam.mean), at(adam.square), at(adam.steps)) if adam else (None, None, None)
    return build.structure("nets")(
        plan=at(plan.fields), own=at(owned(structure)), values=at(net.values), means=mean, squares=square,
        steps=steps, stride=net.values.stride(0), moment_stride=adam.mean.stride(0) if adam else 0, size=structure.size,
        keep=plan.room, layers=plan.layers, rows=len(net.values) // members, copies=structure.copies, inputs=inputs,
        widest=plan.widest,
    )  # fmt: skip
