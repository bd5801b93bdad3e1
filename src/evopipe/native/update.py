"""What all updates by the native kernels share: networks, learners and minibatches as the kernels read them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from evopipe.native import build, dense, header
from evopipe.native.header import at
from evopipe.native.networks import BETA1, BETA2, EPS, Adam, Net
from evopipe.native.optimiser import owned
from evopipe.rng import Stream
from evopipe.types import Batch, Learned, Tensor

Row: TypeAlias = "float | Tensor"
"""A number of each member, `[P]`, or of all."""


class Learners(NamedTuple):
    """The networks and optimisers of an algorithm's state, which updates change in place.

    A field is None if the algorithm has no such network.

    Attributes:
        critic, critic_target, critic_adam: the critics, their target networks and their optimiser; for a value-based
            algorithm, those of the Q-network.
        updates: `[P]`, the number of updates of each member so far.
        actor, actor_target, actor_adam: the actor, its target network and its optimiser.
        noise, noise_target, noise_adam: the scales of learned noise on the critic's weights, those of its target
            network, and their optimiser.
    """

    critic: Net
    critic_target: Net
    critic_adam: Adam
    updates: Tensor
    actor: Net | None = None
    actor_target: Net | None = None
    actor_adam: Adam | None = None
    noise: Net | None = None
    noise_target: Net | None = None
    noise_adam: Adam | None = None

    @classmethod
    def of(cls, state: Any, critic: str) -> Learners:
        """Return the learners of an actor-critic algorithm's state.

        `critic` is the name of the state's field with the critics, such as `critics`.
        """
        critics = getattr(state, critic), getattr(state, f"{critic}_target"), getattr(state, f"{critic}_adam")
        return cls(*critics, state.updates, state.actor, getattr(state, "actor_target", None), state.actor_adam)


class Job(NamedTuple):
    """A packed C struct that describes the updates of some learners.

    Attributes:
        place: the memory address of the critic's parameters when the struct was made. If the parameters are at another
            address later, a new struct is made.
        given: the learners and arguments from which the struct was made. For other learners or arguments, a new struct
            is made (see the function `known`).
        pointer: a pointer to the struct.
        held: the tensors that the struct points to, which must be kept alive.
    """

    place: int
    given: tuple[Any, ...]
    pointer: Any
    held: Sequence[Any]


class Recipe(NamedTuple):
    """The description of an update by the C kernels: which kernel makes it, of which networks, with which random
    numbers.

    Attributes:
        name: the name of the C function, such as `ddpg_update`.
        of: the members' networks and optimisers, which change in place.
        job: the C struct that holds the addresses of their arrays.
        noise: the number of normal random numbers that each transition of a minibatch needs to draw the next action.
        scale: `[P]`, each member's standard deviation of these random numbers; None if it is 1.
        own_noise: whether the actor's update needs actions of its own, for which the same number of random numbers is
            drawn once more.
        turn: the update of a period in which the actor learns, counted from 0. A period has `policy_delay` updates, or
            1 if the algorithm has no such hyper-parameter.
    """

    name: str
    of: Learners
    job: Job
    noise: int = 0
    scale: Tensor | None = None
    own_noise: bool = False
    turn: int = 0


def lasting(how: Recipe) -> bool:
    """Return whether a recipe (a description of an update for the C kernels) stays valid as long as its networks and
    optimisers exist.

    It stays valid if its C struct points to the tensors themselves. Copies of them would become out of date.
    """
    return how.of.critic.__dict__.get("job") is how.job


def network(net: Net, adam: Adam | None, inputs: int, members: int) -> dict[str, Any] | None:
    """Return the fields of the C struct for a perceptron; None if the kernels cannot compute it.

    Args:
        net: the network.
        adam: its Adam moments; None for a network that does not learn.
        inputs: the number of inputs.
        members: the number of members.
    """
    plan, structure = dense.plan_of(net, inputs), net.structure
    if plan is None or getattr(structure, "inner", structure).widths.role != "whole":
        return None
    found = rows(net, adam, members)
    return {**found, "plan": at(plan.fields), "keep": plan.room, "layers": plan.layers, "inputs": inputs,
            "widest": plan.widest}  # fmt: skip


def rows(net: Net, adam: Adam | None, members: int) -> dict[str, Any]:
    """Return the fields of a C struct that say where a network's parameters and its Adam moments are in memory.

    Args:
        net: the network; its parameters are flat rows.
        adam: its Adam moments; None for a network that does not learn.
        members: the number of members. Each has the same number of rows, for example one for each critic.
    """
    moments = {} if adam is None else {
        "mean": at(adam.mean), "square": at(adam.square), "steps": at(adam.steps),
        "moment_stride": adam.mean.stride(0),
    }  # fmt: skip
    return {
        "own": at(owned(net.structure)), "values": at(net.values), "stride": net.values.stride(0),
        "size": net.structure.size, "rows": len(net.values) // members, "copies": net.structure.copies, **moments,
    }  # fmt: skip


def known(of: Learners, given: tuple[Any, ...]) -> Job | None:
    """Return the job (C struct) that was made before for the same learners and arguments; None if there is none.

    `given` are the arguments with which the job was made. Arguments are the same if they are the same objects or equal
    floats.
    """
    found: Job | None = of.critic.__dict__.get("job")  # where `cached_property` keeps things
    if found is None or found.place != of.critic.values.data_ptr() or len(found.given) != len(of) + len(given):
        return None
    if all(map(operator.is_, found.given, (*of, *given))):
        return found
    pairs = zip(found.given, (*of, *given), strict=True)
    return (
        found if all(a is b or (isinstance(a, float) and isinstance(b, float) and a == b) for a, b in pairs) else None
    )


def make(
    name: str, of: Learners, given: tuple[Any, ...], members: int, inputs: Mapping[str, int], rates: Mapping[str, Row],
    held: Sequence[Any] = (), **more: Any,
) -> Job | None:  # fmt: skip
    """Return a job (a C struct that describes updates) for some learners; None if the kernels cannot do the update.

    The job is cached, and `known` finds it again. If tensors in `rates` had to be copied, the job is not cached,
    because the copies would become stale.

    Args:
        name: the name of the struct in `kernels.h`.
        of: the learners (networks and optimisers).
        given: the arguments with which the job is made. `known` finds the job if it is called with the same ones.
        members: P, the number of members.
        inputs: the width of each network's input, by the network's name in `Learners`.
        rates: floats or tensors `[P]`, by the name of a field of the C struct `learners` or of the job's struct.
        held: tensors that must be kept alive as long as the job.
        more: the other fields of the job's struct, by name.
    """
    nets: dict[str, bytes] = {}
    for each in ("critic", "critic_target", "actor", "actor_target", "noise", "noise_target"):
        net, adam = getattr(of, each), getattr(of, f"{each}_adam", None)
        if net is None:
            continue
        fields = network(net, adam, inputs[each], members) if each in inputs else rows(net, adam, members)
        if fields is None:
            return None
        nets[each] = header.of("network").packed(**fields)
    own = {x: _row(value, members) for x, value in rates.items()}
    spots = {x: at(row) for x, row in own.items()}
    kind, of_learners = header.of(name), set(header.of("learners").fields)
    learners = header.of("learners").packed(
        **nets, updates=at(of.updates), beta1=BETA1, beta2=BETA2, eps=EPS,
        **{x: spot for x, spot in spots.items() if x in of_learners},
    )  # fmt: skip
    packed = kind.packed(of=learners, **more, **{x: spot for x, spot in spots.items() if x not in of_learners})
    key = (*of, *given)
    made = Job(of.critic.values.data_ptr(), key, kind.pointer(packed), [*own.values(), *held])
    lasts = all(own[x] is value or not isinstance(value, torch.Tensor) for x, value in rates.items())
    of.critic.__dict__["job"] = made if lasts else None
    return made


def _row(value: Row, members: int) -> Tensor:
    return value.float().contiguous() if isinstance(value, torch.Tensor) else torch.full((members,), float(value))


def learn(
    name: str, of: Learners, job: Job, batch: Batch, healthy: Tensor, noise: Tensor | None = None,
    own_noise: Tensor | None = None, actor_learns: bool = True, draw: Stream | None = None,
) -> Learned:  # fmt: skip
    """Make one update from a minibatch, in place, by the kernel of this name.

    Return the losses `[P]`, the errors `[P, B]` of the transitions, and which members are still healthy (all their
    numbers are finite).

    Args:
        name: the name of the C function, such as `ddpg_update`.
        of: the members' networks and optimisers, which change in place.
        job: the C struct that holds the addresses of their arrays.
        batch: the minibatch.
        healthy: `[P]` bool, the members that learn.
        noise: `[P, n]`, the n random numbers of each member for its next actions; None if the kernel needs none.
        own_noise: `[P, n]`, the same for the actor's actions in the minibatch's observations.
        actor_learns: whether the actor is updated too.
        draw: the stream from which the kernel itself draws random numbers; None if it draws none.
    """
    given = of.critic.__dict__.get("batch")
    if given is None or given[0] is not batch:
        given = minibatch(batch)
        of.critic.__dict__["batch"] = given if given[2] is None else None
    weight, healthy = batch.weight, healthy.clone()
    losses, errors = torch.empty(len(healthy)), torch.empty(weight.shape)
    now = header.of("update_call")(
        at(noise), at(own_noise), *((0, 0) if draw is None else (at(draw.keys), at(draw.step))),
        losses.data_ptr(), errors.data_ptr(), healthy.data_ptr(), actor_learns,
    )  # fmt: skip
    build.done(getattr(build.kernels(), name)(job.pointer, given[1], now, len(healthy)))
    return Learned(losses, healthy, errors)


def take(how: Recipe | None, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned | None:
    """Make one update by a recipe, in place.

    Return the losses `[P]`, the errors `[P, B]` of the transitions, and which members are still healthy (all their
    numbers are finite). If the recipe is None, do nothing and return None: the kernels cannot do the update, and torch
    does it.

    Args:
        how: the recipe.
        batch: the minibatch.
        healthy: `[P]` bool, the members that learn.
        draw: the stream of random numbers.
        turn: the number of this update within its period, from 0. A period has `policy_delay` updates, see `Recipe`.
            The actor learns only in the update whose number is `how.turn`.
    """
    if how is None:
        return None
    n, noise, own_noise = batch.weight.shape[1] * how.noise, None, None
    if n:
        noise = draw.normal(n) if how.scale is None else how.scale[:, None] * draw.normal(n)
        own_noise = draw.part(1).normal(n) if how.own_noise else None
    return learn(how.name, how.of, how.job, batch, healthy, noise, own_noise, turn == how.turn, draw)


def minibatch(batch: Batch) -> tuple[Batch, Any, list[Tensor] | None]:
    """Return a minibatch for the kernels as a triple (batch, pointer, copies).

    `pointer` points to the C struct of the batch. `copies` are copies of the batch's tensors, to which the struct
    points because the kernels cannot read the originals; None if no tensor was copied.
    """
    apart = batch.obs, batch.next_obs, batch.action
    whole = [_whole_rows(x) for x in apart]
    rest = (batch.reward, batch.discount, batch.weight, batch.alive, batch.learns, batch.next_alive, batch.legal,
            batch.next_legal)  # fmt: skip
    plain = [None if x is None else x.contiguous() for x in rest]
    strides = [stride for x in whole for stride in x.stride()[:2]]
    pointer = header.of("minibatch")(*map(at, (*whole, *plain)), *strides, batch.weight.shape[1])
    copies = not all(map(operator.is_, (*apart, *rest), (*whole, *plain)))
    return batch, pointer, [x for x in (*whole, *plain) if x is not None] if copies else None


def _whole_rows(x: Tensor) -> Tensor:
    """Let the numbers of a transition lie together; transitions may be apart."""
    each = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if stride != each and size > 1:
            return x.contiguous()
        each *= size
    return x
