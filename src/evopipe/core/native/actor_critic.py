"""Whole updates of deterministic actors and their critics by the CPU's own kernels; `algos` has the same in torch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch

from evopipe.core.native import build, dense
from evopipe.core.native.build import at
from evopipe.core.optim import BETA1, BETA2, EPS, Adam
from evopipe.types import Batch, Hyper, Learned, Tensor

if TYPE_CHECKING:
    from evopipe.core.net import Net


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


def _structure(fields: str) -> list[tuple[str, Any]]:
    """C's fields, `type: name name …; …`."""
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_ssize_t, "i": ctypes.c_int, "f": ctypes.c_float, "d": ctypes.c_double}
    parts = (part.split(":") for part in fields.split(";"))
    return [(name, kinds[kind.strip()]) for kind, names in parts for name in names.split()]


class _Nets(ctypes.Structure):
    _fields_ = _structure("p:plan values means squares steps; n:stride moment_stride size keep;"
                          "i:layers rows copies inputs widest")  # fmt: skip


class _Job(ctypes.Structure):
    _fields_ = [
        *((name, _Nets) for name in ("actor", "actor_target", "critic", "critic_target")),
        *_structure(
            "p:sees does group seat; i:batch agents obs actions joint ids twins discrete;"
            "f:noise_limit temperature penalty; d:beta1 beta2 eps; p:updates lr_actor lr_critic limit tau close;"
            "p:now then reward discount weight alive noise own_noise action legal next_legal;"
            "n:now_member now_row then_member then_row action_member action_row; i:climbs; p:losses errors healthy"
        ),
    ]


def climb(
    nets: tuple[Net, Net, Net, Net], adams: tuple[Adam, Adam], updates: Tensor, hp: Hyper, places: Places, batch: Batch,
    healthy: Tensor, climbs: bool, *, discrete: bool = False, noise: Tensor | None = None,
    own_noise: Tensor | None = None, limit: float = 0.0, temperature: float = 1.0, penalty: float = 0.0,
    close: bool = False,
) -> Learned | None:  # fmt: skip
    """Take one step in place; None where torch must.

    Networks are the actors, their targets, critics and theirs; Adam's moments are actors' and critics'. Noise,
    `[P, K · B · A]` in any shape, is added to the next actions within `limit`, or decides which are drawn; `own_noise`
    decides which of an actor's own are. `climbs` says whether it is the actors' turn, `close` whether they are to stay
    close to the batch's actions by the hyper-parameter `alpha`. Rows of weight 0 at a batch's end are not looked at:
    their errors are 0.
    """
    if not serve():
        return None
    held = [net.values for net in nets]
    for adam in adams:
        held += (adam.mean, adam.square, adam.steps)
    held += (updates, *hp.values())
    key = batch.weight.shape, *[tensor.data_ptr() for tensor in held]
    known = nets[0].__dict__.get("climb")  # where `cached_property` keeps what is a network's own
    if known is None or known[0] != key:
        job = _job(nets, adams, updates, hp, places, batch, (discrete, limit, temperature, penalty), close)
        nets[0].__dict__["climb"] = known = key, job
    job = known[1]
    if job is None:
        return None
    obs, next_obs, action = (_whole_rows(x) for x in (batch.obs, batch.next_obs, batch.action))
    rest = [
        None if x is None else x.contiguous()
        for x in (batch.reward, batch.discount, batch.weight, batch.alive, noise, own_noise, batch.legal,
                  batch.next_legal)
    ]  # fmt: skip
    job.reward, job.discount, job.weight, job.alive, job.noise, job.own_noise, job.legal, job.next_legal = map(at, rest)
    job.now, job.then, job.action = obs.data_ptr(), next_obs.data_ptr(), action.data_ptr()
    (job.now_member, job.now_row), (job.then_member, job.then_row) = obs.stride()[:2], next_obs.stride()[:2]
    (job.action_member, job.action_row), job.climbs = action.stride()[:2], climbs
    losses, errors, healthy = torch.empty_like(updates), torch.empty_like(batch.weight), healthy.clone()
    job.losses, job.errors, job.healthy = losses.data_ptr(), errors.data_ptr(), healthy.data_ptr()
    build.kernels().climb(ctypes.addressof(job), len(healthy))
    return Learned(losses, healthy, errors)


@cache
def alone(observations: int, actions: int) -> Places:
    """Return the places of one agent."""
    return Places((observations,), (actions,))


def serve() -> bool:
    """Whether the kernels are in use."""
    return build.chosen() is not None and not torch.compiler.is_compiling()


def _whole_rows(x: Tensor) -> Tensor:
    """Let the numbers of a transition lie together; transitions may be apart."""
    each = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if stride != each and size > 1:
            return x.contiguous()
        each *= size
    return x


def _job(
    nets: tuple[Net, ...], adams: tuple[Adam, Adam], updates: Tensor, hp: Hyper, places: Places, batch: Batch,
    how: tuple[bool, float, float, float], close: bool,
) -> _Job | None:  # fmt: skip
    """Return what stays from update to update; None where the kernels cannot serve."""
    seen, members, actor = batch.obs.shape[-1], len(updates), nets[0].structure.widths
    inputs = seen + places.ids, seen + places.ids, places.joint, places.joint
    found = [_nets(*given, members) for given in zip(nets, (adams[0], None, adams[1], None), inputs, strict=True)]
    rates = [hp[name] for name in ("lr_actor", "lr_critic", "grad_clip", "tau")]
    rates += [hp["alpha"]] if close else []
    if None in found or not all(x.dtype == torch.float32 and x.is_contiguous() for x in (*rates, updates)):
        return None
    if batch.obs.dtype != torch.float32:
        return None
    twins = len(nets[2].values) // members * nets[2].structure.copies // (max(places.group) + 1)
    return _Job(
        *found, *(row.data_ptr() for row in places.fields), batch.weight.shape[1], len(places.sees), seen,
        actor.outputs, places.joint, places.ids, twins, *how, BETA1, BETA2, EPS, at(updates), *map(at, rates),
    )  # fmt: skip


def _nets(net: Net, adam: Adam | None, inputs: int, members: int) -> _Nets | None:
    """Describe networks to the kernels; None where these do not know what they are made of."""
    structure: Any = net.structure
    inner, values = getattr(structure, "inner", structure), net.values
    if any(getattr(inner, part, True) for part in ("memory", "residual")) or inner.layout.stem:
        return None
    if values.device.type != "cpu" or values.dtype != torch.float32 or values.stride(1) != 1:
        return None
    key = 0, inputs
    plan = inner.plans.get(key) or inner.plans.setdefault(key, dense.Plan.of(inner, *key))
    if plan.layers > dense.MOST or inner.widths.role != "whole":
        return None
    moments = (at(adam.mean), at(adam.square), at(adam.steps)) if adam else (None, None, None)
    return _Nets(
        at(plan.fields), at(values), *moments, values.stride(0), adam.mean.stride(0) if adam else 0, structure.size,
        plan.room, plan.layers, len(values) // members, structure.copies, inputs, plan.widest,
    )  # fmt: skip
