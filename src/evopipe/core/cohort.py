"""Cohorts: several members as padded tensors with a leading population axis.

Training works on cohorts; evolution and storage work on members. `form` and `dissolve` convert between the two without
changing a bit.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from evopipe.core.graphs import Paths, Runner
from evopipe.core.member import Member, names_of
from evopipe.core.net import Net
from evopipe.core.normalise import Normaliser
from evopipe.core.optim import Adam
from evopipe.core.padded import round_up
from evopipe.core.structure import Structure, Widths
from evopipe.types import Tensor

BATCH_MULTIPLE = 32


class Pace(NamedTuple):
    """A member's batch size, and the steps at which it learns.

    All members of a cohort (group that trains as one batch) learn at the same steps.

    Attributes:
        batch: the member's batch size.
        when: a value that identifies the steps at which the member learns, such as its `learn_step`; None if all
            members learn at the same steps.
    """

    batch: int = 1
    when: Hashable = None

    @property
    def room(self) -> int:
        """The padded batch size that the member needs: its batch size rounded up to a multiple of `BATCH_MULTIPLE`."""
        return round_up(self.batch, BATCH_MULTIPLE)


PaceOf: TypeAlias = Callable[[Member], Pace]
Grouping: TypeAlias = Literal["merged", "exact", "whole"]
"""Who shares a cohort of those that may. `exact`: like members only, so that a member's arithmetic depends on itself
alone. `merged`: unlike ones too, where the cost model gains by it. `whole`: all, for kernels that compute member by
member and no pads."""


@dataclass(frozen=True)
class Cohort:
    """P members that train as one batch of padded tensors, one row per member.

    Row r belongs to the member of slot `slots[r]`; a slot is a place in the population.

    Attributes:
        members: the members as they were when the cohort was formed; their tensors are out of date.
        structures: the structure of every network, by name.
        state: the algorithm's state, an instance of its class `State`. Its rows are in the order of `members`.
        keys: `[P]` int64, the members' random keys.
        hyper: the hyper-parameters by name, `[P]` each.
        weight: `[P, B]`, the weight of each place in a minibatch. A member with batch size b ≤ B has b places of weight
            1 / b; the others have weight 0.
        healthy: `[P]` bool, False for members that have diverged.
        losses: `[P]`, the losses of the last update; NaN before the first.
        pace: a function that returns a member's `Pace`: its batch size, and when it learns.
        normaliser: the running statistics of observations and rewards; None if nothing is normalised.
        runner: a cache of recorded functions, such as CUDA graphs.
    """

    members: tuple[Member, ...]
    structures: Mapping[str, Structure]
    state: Any
    keys: Tensor
    hyper: Mapping[str, Tensor]
    weight: Tensor
    healthy: Tensor
    losses: Tensor
    pace: PaceOf
    normaliser: Normaliser | None = None
    runner: Runner = field(default_factory=Runner, repr=False, compare=False)

    @property
    def slots(self) -> list[int]:
        """The slot (place in the population) of each row's member."""
        return [member.slot for member in self.members]

    @cached_property
    def without_runner(self) -> Cohort:
        """A copy of the cohort that has an empty runner (the cache of recorded functions), and shares all tensors.

        Functions that the cohort's runner records use this copy. If they used the cohort itself, cohort and runner
        would refer to each other, and their memory would be freed late.
        """
        return replace(self, runner=Runner())

    @property
    def batch(self) -> int:
        """The padded batch size B: every member's minibatch has B places, of which a member may use fewer."""
        return self.weight.shape[1]

    @property
    def memory(self) -> int:
        """The number of recurrent state values `M` that the networks of one member carry from step to step, with
        padding."""
        return sum(structure.memory for structure in self.structures.values())

    def pieces(self, memory: Tensor) -> dict[tuple[str, int], Tensor]:
        """Split the recurrent states `memory` `[…, M]` into views, one for each part of each network's state.

        The keys are pairs (network, index): the network's name, and the part's index in `Structure.memory_widths`. Each
        view has the part's padded width.
        """
        widths = {
            (name, i): width
            for name, structure in self.structures.items()
            for i, width in enumerate(structure.memory_widths)
        }
        return dict(zip(widths, memory.split([*widths.values()], dim=-1), strict=True)) if widths else {}

    def normalised(self, obs: Tensor, there: Tensor | None = None) -> Tensor:
        """Return observations as the members' networks read them: normalised, if the run normalises observations.

        Args:
            obs: `[P, …, O]`, the observations.
            there: for a team, `[P, …]` bool, whether the agent is present. The observations of absent agents become
                zeros after normalisation.
        """
        if self.normaliser is None:
            return obs
        found = self.normaliser.normalised(obs.flatten(1, -2)).view_as(obs)
        return found if there is None else found.masked_fill(~there[..., None], 0.0)

    def copied_state(self) -> Any:
        """Return a deep copy of the algorithm's state. Changes of the copy leave the cohort unchanged."""

        def copied(value: Any) -> Any:
            if isinstance(value, Net):
                return value.copy(value.trainable)
            if isinstance(value, Adam):
                return Adam(value.structure, value.mean.clone(), value.square.clone(), value.steps.clone())
            return None if value is None else value.clone()

        fields = dataclasses.fields(self.state)
        return type(self.state)(**{f.name: copied(getattr(self.state, f.name)) for f in fields})

    def part(self, first: int, end: int) -> Cohort:
        """Return the rows `first` to `end` (exclusive) as a cohort that shares memory with this cohort.

        Computing with the part gives the same bits as computing with the whole.
        """
        cut = slice(first, end)

        def rows(f: dataclasses.Field[Any]) -> Any:
            value = getattr(self.state, f.name)
            if isinstance(value, (Net, Adam)):
                each = len(value.values if isinstance(value, Net) else value.mean) // len(self.members)
                return value.part(each * first, each * end)
            return None if value is None else value[cut]

        return Cohort(
            members=self.members[cut],
            structures={name: structure.part(first, end) for name, structure in self.structures.items()},
            state=type(self.state)(**{f.name: rows(f) for f in dataclasses.fields(self.state)}),
            keys=self.keys[cut],
            hyper={name: values[cut] for name, values in self.hyper.items()},
            weight=self.weight[cut],
            healthy=self.healthy[cut],
            losses=self.losses[cut],
            pace=self.pace,
            normaliser=None if self.normaliser is None else self.normaliser.part(first, end),
        )

    def tensors(self) -> list[Tensor]:
        """Return every tensor of the algorithm's state, in a fixed order."""
        return [tensor for _, _, tensor, _ in _tensors(self.state)]

    def normaliser_tensors(self) -> list[Tensor]:
        """Return the tensors of the normaliser's running statistics, in a fixed order; empty if nothing is
        normalised."""
        return [] if self.normaliser is None else list(self.normaliser.held.values())


class _Costs(NamedTuple):
    """Cost model of one update: `dispatch + per_unit · members · batch · multiplications`, in µs. Fixed per kind of
    device, never timed: cohorts are a pure function of the population."""

    dispatch: float
    per_unit: float
    max_rows: int


# CPU: of torch's kernels, from the time of one to eight members, 64 and 128 wide, by DQN, TD3, DDPG, CQN and Rainbow. A
# dearer algorithm is dearer in both: for 400 µs of dispatch 5.5e-5 to 8.8e-5. Past 8 to 16 members activations leave
# the L2 cache.
# GPU: launches dominate, so one cohort is best until memory says otherwise.
COSTS = {"cpu": _Costs(400.0, 7e-5, 16), "cuda": _Costs(400.0, 2e-7, 4096)}


def cost(members: Sequence[Member], pace: PaceOf, costs: _Costs = COSTS["cpu"]) -> float:
    """Return how long one update of these members in one cohort takes, in µs, as a cost model estimates it.

    Args:
        members: the members.
        pace: a function that returns a member's `Pace`, which holds the member's batch size.
        costs: the constants of the cost model for the device.
    """
    batch = max(pace(member).room for member in members)
    work = members[0].arch.work([member.arch for member in members])
    return costs.dispatch + costs.per_unit * len(members) * batch * work


def _group(members: Sequence[Member], pace: PaceOf, mode: Grouping, device: str) -> list[list[Member]]:
    """Divide members into cohorts: a pure function of the members.

    Members that learn at different times never share one, nor do different families. Those of a cohort are ordered by
    activation, in a `whole` one then by what they have to do, so that threads that share them out end together.
    """
    groups: dict[Hashable, list[Member]] = {}
    for member in sorted(members, key=lambda m: m.slot):
        like = () if mode == "whole" else (member.arch.signature, pace(member).room)
        groups.setdefault((member.arch.family, pace(member).when, like), []).append(member)
    found = list(groups.values())
    if mode == "whole":
        work = {m.slot: m.arch.work([m.arch]) * pace(m).batch for m in members}
        return [sorted(group, key=lambda m: (m.arch.activation, -work[m.slot], m.slot)) for group in found]
    costs = COSTS[device]
    if mode == "merged":
        found = _merge(found, pace, costs)
    chunks = [g[i : i + costs.max_rows] for g in found for i in range(0, len(g), costs.max_rows)]
    return [sorted(chunk, key=lambda m: (m.arch.activation, m.slot)) for chunk in chunks]


def _merge(groups: list[list[Member]], pace: PaceOf, costs: _Costs) -> list[list[Member]]:
    """Merge the pair with the largest saving until none saves anything."""

    def saving(pair: tuple[list[Member], list[Member]]) -> float:
        a, b = pair
        return cost(a, pace, costs) + cost(b, pace, costs) - cost([*a, *b], pace, costs)

    def may_merge(a: list[Member], b: list[Member]) -> bool:
        alike = pace(a[0]).when == pace(b[0]).when and a[0].arch.family == b[0].arch.family
        return alike and len(a) + len(b) <= costs.max_rows

    while pairs := [pair for pair in itertools.combinations(groups, 2) if may_merge(*pair)]:
        a, b = best = max(pairs, key=saving)
        if saving(best) <= 0.0:
            break
        groups = [sorted([*a, *b], key=lambda m: m.slot) if each is a else each for each in groups if each is not b]
    return groups


def _structures(members: Sequence[Member], widths: Mapping[str, Widths], device: torch.device) -> dict[str, Structure]:
    archs = [member.arch for member in members]
    return {name: archs[0].stack(archs, w, device) for name, w in widths.items()}


def form(
    members: Sequence[Member],
    state_type: type[Any],
    widths: Mapping[str, Widths],
    device: torch.device,
    pace: PaceOf,
    mode: Grouping = "merged",
    paths: Paths | None = None,
) -> list[Cohort]:
    """Group the members of a population into cohorts: stack their tensors, padded to common widths, on the device.

    Args:
        members: the population.
        state_type: the algorithm's class `State`.
        widths: the input and output width of every network.
        device: the device of the cohorts' tensors.
        pace: a function that returns a member's `Pace`: its batch size, and when it learns.
        mode: which members share a cohort. In every mode, the members of a cohort learn at the same steps, and the
            attribute `family` of their architectures is equal. In the mode `whole`, nothing else is asked. In `exact`,
            the attribute `signature` of their architectures and their padded batch sizes are equal, too. In `merged`,
            cohorts are formed as in `exact`, and then merged if this is estimated to be faster.
        paths: the fast paths (CUDA graphs, `torch.compile`) that the cohorts use; None if they use none.
    """
    groups = _group(members, pace, mode, device.type)
    return [_form(tuple(each), state_type, widths, device, pace, Runner(paths)) for each in groups]


def _form(
    members: tuple[Member, ...], state_type: type[Any], widths: Mapping[str, Widths], device: torch.device,
    pace: PaceOf, runner: Runner,
) -> Cohort:  # fmt: skip
    shapes = _structures(members, widths, device)
    several: dict[tuple[str, ...], Structure] = {(name,): shape for name, shape in shapes.items()}

    def stacked(f: dataclasses.Field[Any]) -> Any:
        kind, networks = f.metadata["kind"], tuple(name for name in f.metadata["networks"] if name in shapes)
        if kind == "row":
            return torch.stack([m.tensors[f.name] for m in members]).to(device)
        if not networks:  # this configuration has no use for them
            return None
        rows = [(m.tensors, name) for m in members for name in names_of(f)[: len(networks)]]
        if networks not in several:
            several[networks] = shapes[networks[0]].repeat(len(networks))
        shape = several[networks]
        if kind != "moments":
            return Net(shape, shape.pack([t[name] for t, name in rows]), f.metadata["trainable"])
        mean, square = (shape.pack([t[f"{name}.{part}"] for t, name in rows]) for part in ("mean", "square"))
        return Adam(shape, mean, square, torch.stack([t[f"{name}.steps"] for t, name in rows]).to(device))

    def column(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float32, device=device)

    paces = [pace(member) for member in members]
    sizes = torch.tensor([float(each.batch) for each in paces])[:, None]
    place = torch.arange(max(each.room for each in paces))
    return Cohort(
        members=members,
        structures=shapes,
        state=state_type(**{f.name: stacked(f) for f in dataclasses.fields(state_type)}),
        keys=torch.tensor([m.key for m in members], dtype=torch.int64, device=device),
        hyper={name: column(m.hyper[name] for m in members) for name in members[0].hyper},
        weight=((place < sizes).float() / sizes).to(device),
        healthy=torch.tensor([m.healthy for m in members], device=device),
        losses=torch.full((len(members),), torch.nan, device=device),
        pace=pace,
        normaliser=Normaliser.stack([m.tensors for m in members], device),
        runner=runner,
    )


def dissolve(cohorts: Sequence[Cohort]) -> list[Member]:
    """Return the members of cohorts, with copies of their present tensors on the CPU, without padding.

    The members are ordered by their slots (places in the population).
    """
    found = []
    for cohort in cohorts:
        seen = () if cohort.normaliser is None else cohort.normaliser.rows()
        tensors = _split((*_leaves(cohort.state, len(cohort.members)), *seen), len(cohort.members))
        for member, own, healthy in zip(cohort.members, tensors, cohort.healthy.tolist(), strict=True):
            found.append(replace(member, tensors=own, healthy=healthy))
    return sorted(found, key=lambda m: m.slot)


def _split(leaves: Iterable[tuple[str, Sequence[Tensor]]], rows: int) -> list[dict[str, Tensor]]:
    out: list[dict[str, Tensor]] = [{} for _ in range(rows)]
    for name, tensors in leaves:
        for target, tensor in zip(out, tensors, strict=True):
            target[name] = tensor.detach().to("cpu", copy=True)
    return out


def _leaves(state: Any, members: int) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """Walk a state without pads: (name, one tensor a member)."""
    for f, part, tensor, structure in _tensors(state):
        rows = tensor.unbind(0) if structure is None else structure.unpack(tensor)
        each = len(rows) // members
        yield from ((name + part, rows[i::each]) for i, name in enumerate(names_of(f)[:each]))


def _tensors(state: Any) -> Iterator[tuple[dataclasses.Field[Any], str, Tensor, Structure | None]]:
    """Walk a state: (field, which part of it, all rows, what is padded in them)."""
    for f in dataclasses.fields(state):
        value = getattr(state, f.name)
        if isinstance(value, Net):
            yield f, "", value.values, value.structure
        elif isinstance(value, Adam):
            yield f, ".mean", value.mean, value.structure
            yield f, ".square", value.square, value.structure
            yield f, ".steps", value.steps, None
        elif value is not None:
            yield f, "", value, None


def create(
    members: Sequence[Member],
    init: Callable[[Mapping[str, Net]], Any],
    rows: Mapping[str, Sequence[Tensor]],
    widths: Mapping[str, Widths],
) -> list[Member]:
    """Return new members with the initial tensors that the algorithm's `init` makes.

    Args:
        members: members of one architecture, which have no tensors yet.
        init: the algorithm's function that makes the initial state from the networks by name.
        rows: the initial parameters of every network, by name: one flat row per member.
        widths: the input and output width of every network.
    """
    shapes = _structures(members, widths, torch.device("cpu"))
    nets = {name: Net(shape, shape.pack(rows[name]), trainable=True) for name, shape in shapes.items()}
    tensors = _split(_leaves(init(nets), len(members)), len(members))
    return [replace(member, tensors=own) for member, own in zip(members, tensors, strict=True)]
