"""What updates by the CPU's own kernels have in common: networks, learners and minibatches as these read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from evopipe.native import build, dense, header
from evopipe.native.header import at
from evopipe.native.learn import owned
from evopipe.native.networks import BETA1, BETA2, EPS, Adam, Net
from evopipe.rng import Stream
from evopipe.types import Batch, Learned, Tensor

Row: TypeAlias = "float | Tensor"
"""A number of each member, `[P]`, or of all."""


@dataclass(frozen=True)
class Learners:
    """What of an algorithm's state learns, in place. A Q-network alone is the critic."""

    critic: Net
    critic_target: Net
    critic_adam: Adam
    updates: Tensor
    actor: Net | None = None
    actor_target: Net | None = None
    actor_adam: Adam | None = None
    noise: Net | None = None  # scales of learned noise on the critic's weights
    noise_target: Net | None = None
    noise_adam: Adam | None = None

    def places(self) -> list[int]:
        """Where all of it lies."""
        nets = self.critic, self.critic_target, self.actor, self.actor_target, self.noise, self.noise_target
        adams = self.critic_adam, self.actor_adam, self.noise_adam
        held = [net.values for net in nets if net] + [x for a in adams if a for x in (a.mean, a.square, a.steps)]
        return [tensor.data_ptr() for tensor in (*held, self.updates)]


class Job(NamedTuple):
    """A struct of the kernels for some learners, what it was made from, and tensors that it points to."""

    key: tuple[Any, ...]
    pointer: Any
    held: Sequence[Any]


def network(net: Net, adam: Adam | None, inputs: int, members: int) -> dict[str, Any] | None:
    """Return the fields of a network of dense layers that reads so many numbers; None where the kernels cannot."""
    plan, structure = dense.plan_of(net, inputs), net.structure
    if plan is None or getattr(structure, "inner", structure).widths.role != "whole":
        return None
    found = rows(net, adam, members)
    return {**found, "plan": at(plan.fields), "keep": plan.room, "layers": plan.layers, "inputs": inputs,
            "widest": plan.widest}  # fmt: skip


def rows(net: Net, adam: Adam | None, members: int) -> dict[str, Any]:
    """Return the fields that say where a network's numbers are, and its moments."""
    moments = {} if adam is None else {
        "mean": at(adam.mean), "square": at(adam.square), "steps": at(adam.steps),
        "moment_stride": adam.mean.stride(0),
    }  # fmt: skip
    return {
        "own": at(owned(net.structure)), "values": at(net.values), "stride": net.values.stride(0),
        "size": net.structure.size, "rows": len(net.values) // members, "copies": net.structure.copies, **moments,
    }  # fmt: skip


def job(
    name: str, of: Learners, members: int, inputs: Mapping[str, int], rates: Mapping[str, Row], of_learners: set[str],
    more: Callable[[], Mapping[str, Any] | None], key: tuple[Any, ...] = (), held: Sequence[Tensor | None] = (),
) -> Job | None:  # fmt: skip
    """Return the struct of such a name, as it was made when it was asked for by the same learners, settings and rates;
    None where torch must. Rates are rows `[P]`, those by these names of the learners, the others its own; `inputs` are
    the widths that networks read, by their names, and `more` returns its other fields."""
    places = *of.places(), *(x.data_ptr() if isinstance(x, torch.Tensor) else x for x in (*rates.values(), *held))
    known, key = of.critic.__dict__.get("job"), (name, members, *places, *key)  # where `cached_property` keeps things
    if known is not None and known.key == key:
        found: Job = known
        return found
    own, packer = {x: _row(value, members) for x, value in rates.items()}, header.of("network").packed
    nets: dict[str, bytes] = {}
    for each, width in inputs.items():
        net = getattr(of, each)
        if net is not None:
            fields = network(net, getattr(of, f"{each}_adam", None), width, members)
            if fields is None:
                return None
            nets[each] = packer(**fields)
    for each in ("noise", "noise_target"):
        if (net := getattr(of, each)) is not None:
            nets[each] = packer(**rows(net, getattr(of, f"{each}_adam", None), members))
    rest = more()
    if rest is None or of.updates.dtype != torch.float32:
        return None
    spots = {x: at(row) for x, row in own.items()}
    learners = header.of("learners").packed(
        **nets, updates=at(of.updates), beta1=BETA1, beta2=BETA2, eps=EPS,
        **{x: spot for x, spot in spots.items() if x in of_learners},
    )  # fmt: skip
    kind = header.of(name)
    packed = kind.packed(of=learners, **rest, **{x: spot for x, spot in spots.items() if x not in of_learners})
    made = Job(key, kind.pointer(packed), [packed, *own.values(), *held, *rates.values()])
    lasts = all(own[x] is value or not isinstance(value, torch.Tensor) for x, value in rates.items())
    of.critic.__dict__["job"] = made if lasts else None  # nobody would know that copies are old
    return made


def _row(value: Row, members: int) -> Tensor:
    return value.float().contiguous() if isinstance(value, torch.Tensor) else torch.full((members,), value)


def learn(
    name: str, job: Job, batch: Batch, healthy: Tensor, noise: Tensor | None = None, own_noise: Tensor | None = None,
    actor_learns: bool = True, draw: Stream | None = None,
) -> Learned:  # fmt: skip
    """Take an update of that name from a batch, in place."""
    obs, next_obs, action = (_whole_rows(x) for x in (batch.obs, batch.next_obs, batch.action))
    rest = (batch.reward, batch.discount, batch.weight, batch.alive, batch.learns, batch.next_alive, batch.legal,
            batch.next_legal, noise, own_noise)  # fmt: skip
    plain = [None if x is None else x.contiguous() for x in rest]
    weight, healthy = batch.weight, healthy.clone()
    losses, errors = weight.new_empty(len(weight)), torch.empty_like(weight, memory_format=torch.contiguous_format)
    keys, step = (None, None) if draw is None else (draw.keys, draw.step)
    now = header.of("minibatch")(
        at(obs), at(next_obs), at(action), *map(at, plain), at(keys), at(step), at(losses), at(errors), at(healthy),
        *obs.stride()[:2], *next_obs.stride()[:2], *action.stride()[:2], weight.shape[1], actor_learns,
    )  # fmt: skip
    build.done(getattr(build.kernels(), name)(job.pointer, now, len(healthy)))
    return Learned(losses, healthy, errors)


def _whole_rows(x: Tensor) -> Tensor:
    """Let the numbers of a transition lie together; transitions may be apart."""
    each = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if stride != each and size > 1:
            return x.contiguous()
        each *= size
    return x
