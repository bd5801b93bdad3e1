"""Members and cohorts: the two forms of a population.

A `Member` is one individual as data: its architecture, its hyper-parameters, its tensors without pads. Evolution and
storage work on members. A `Cohort` is several members as padded tensors with a leading population axis: training works
on cohorts. `form` and `dissolve` go from one to the other and back without changing a bit.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch

from evopipe.core.arch import WIDTH_MULTIPLE, Arch, Block, round_up
from evopipe.core.arch import Widths as Widths
from evopipe.core.graphs import Paths, Runner
from evopipe.core.net import Net
from evopipe.core.normalise import Normaliser
from evopipe.core.optim import Adam
from evopipe.core.stem import Stem
from evopipe.core.structure import Structure


def share_encoder(networks: Mapping[str, Widths], observations: int, share: bool = True) -> dict[str, Widths]:
    """Return the heads of networks that read observations first, behind one `encoder` of the observations; where they
    do not share, the networks as they are."""
    if not share:
        return dict(networks)
    heads = {name: Widths(inputs - observations, outputs, "head") for name, (inputs, outputs, _) in networks.items()}
    return {"encoder": Widths(observations, 0, "encoder"), **heads}


def least_head(networks: Iterable[Widths]) -> int:
    """Return how many hidden layers a head needs: one where some head reads inputs of its own.

    Without it Q(s, a) would be a sum of one term of the features and one of the action: the best action is then the
    same everywhere.
    """
    return int(any(widths.role == "head" and widths.inputs for widths in networks))


def acting_networks(policy: str, networks: Mapping[str, Widths]) -> list[str]:
    """Return the policy's network, and before it the encoder that it reads where it is a head."""
    encoders = [name for name, widths in networks.items() if widths.role == "encoder"]
    return [*encoders, policy] if networks[policy].role == "head" else [policy]


def parameters(*networks: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state: parameters of a network, a `Net`; None where there is no such network.

    Of K like networks, that they may run in one batch: a member's K rows lie next to each other, `[P · K, N]`.
    """
    return field(metadata={"kind": "parameters", "networks": networks, "trainable": trainable})


def scales(network: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state: one scale for every parameter of `network`, for example of its noise."""
    return field(metadata={"kind": "scales", "networks": (network,), "trainable": trainable})


def moments(*networks: str) -> Any:
    """Declare a field of an algorithm's state: the optimiser moments of a network or of several, an `Adam`."""
    return field(metadata={"kind": "moments", "networks": networks})


def row() -> Any:
    """Declare a field of an algorithm's state: a tensor `[P, …]` with one row a member."""
    return field(metadata={"kind": "row", "networks": ()})


def _names(f: dataclasses.Field[Any]) -> list[str]:
    """Return a member's names for a field: its own; of several networks one each, `critics.critic_1`."""
    networks = f.metadata["networks"]
    return [f.name] if len(networks) < 2 else [f"{f.name}.{network}" for network in networks]


@dataclass(frozen=True)
class Member:
    """One individual.

    Attributes:
        slot: its place in the population; keys belong to slots and are never copied with a winner.
        id: unique over the run.
        parent: id of the parent, None for an initial member.
        key: the slot's random key.
        arch: its architecture, shared by all its networks.
        hyper: its RL hyper-parameters.
        tensors: its state without pads: `q` `[n]`, `adam.mean` `[n]`, `adam.steps` `[]` …; where observations or
            rewards are normalised, what it has seen: `normaliser.mean` `[N]` …
        healthy: False once anything of it was non-finite.
        fitness: its evaluations so far, its ancestors' before.
    """

    slot: int
    id: int
    parent: int | None
    key: int
    arch: Arch
    hyper: Mapping[str, float]
    tensors: Mapping[str, torch.Tensor]
    healthy: bool = True
    fitness: tuple[float, ...] = ()

    def clone(self, slot: int, id: int, key: int) -> Member:
        """Return a child in another slot: tensors copied, nothing shared, the slot's own key."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return replace(self, slot=slot, id=id, parent=self.id, key=key, hyper=dict(self.hyper), tensors=tensors)


@dataclass(frozen=True)
class Cohort:
    """Members that train in one batch. Row r is the member of slot `slots[r]`.

    Attributes:
        members: the members as they were when the cohort was formed (their tensors are stale since).
        structures: padded structure of every network.
        state: the algorithm's state, rows in the order of `members`.
        keys: `[P]` int64.
        hyper: every evolvable hyper-parameter as `[P]`.
        weight: `[P, B]`, (j < b_p) / b_p: a member's own batch size inside the padded batch.
        healthy: `[P]` bool.
        losses: `[P]` of the last update, NaN before the first.
        normaliser: what the members have seen, None where nothing is normalised.
        runner: runs its work, eagerly or from a record of it; no state of its own.
    """

    members: tuple[Member, ...]
    structures: Mapping[str, Structure]
    state: Any
    keys: torch.Tensor
    hyper: Mapping[str, torch.Tensor]
    weight: torch.Tensor
    healthy: torch.Tensor
    losses: torch.Tensor
    normaliser: Normaliser | None = None
    runner: Runner = field(default_factory=Runner, repr=False, compare=False)

    @property
    def slots(self) -> list[int]:
        """Slots of the rows."""
        return [member.slot for member in self.members]

    @cached_property
    def bare(self) -> Cohort:
        """The same without the runner, which is to hold no cohort that holds it."""
        return replace(self, runner=Runner())

    @property
    def batch(self) -> int:
        """Padded batch size B."""
        return self.weight.shape[1]

    @property
    def memory(self) -> int:
        """`M`, the numbers that a member's networks carry from step to step."""
        return sum(structure.memory for structure in self.structures.values())

    def pieces(self, memory: torch.Tensor) -> dict[tuple[str, int], torch.Tensor]:
        """Return views of a memory `[…, M]`: each network's pieces, pads included, see `Structure.memory_widths`."""
        names = [(name, i) for name, structure in self.structures.items() for i in range(len(structure.memory_widths))]
        widths = [self.structures[name].memory_widths[i] for name, i in names]
        return dict(zip(names, memory.split(widths, dim=-1), strict=True)) if names else {}

    def shown(self, obs: torch.Tensor) -> torch.Tensor:
        """Return observations `[P, B, O]` as the members' networks read them."""
        return obs if self.normaliser is None else self.normaliser.shown(obs)


def part(cohort: Cohort, first: int, end: int) -> Cohort:
    """Return some rows of a cohort as a cohort of their own, on the same memory.

    They compute what they compute in the whole cohort, to the bit: pads stay as they are.
    """
    cut = slice(first, end)
    shapes = {name: shape.part(first, end) for name, shape in cohort.structures.items()}
    fields: dict[str, Any] = {}
    for f in dataclasses.fields(cohort.state):
        value, each = getattr(cohort.state, f.name), len(_names(f))
        rows = slice(each * first, each * end)
        if isinstance(value, Net):
            fields[f.name] = Net(value.structure.part(rows.start, rows.stop), value.values[rows], value.trainable)
        elif isinstance(value, Adam):
            kept = (value.mean[rows], value.square[rows], value.steps[rows])
            fields[f.name] = Adam(value.structure.part(rows.start, rows.stop), *kept)
        else:
            fields[f.name] = None if value is None else value[cut]
    return replace(
        cohort,
        members=cohort.members[cut],
        structures=shapes,
        state=type(cohort.state)(**fields),
        keys=cohort.keys[cut],
        hyper={name: values[cut] for name, values in cohort.hyper.items()},
        weight=cohort.weight[cut],
        healthy=cohort.healthy[cut],
        losses=cohort.losses[cut],
        normaliser=None if cohort.normaliser is None else cohort.normaliser.part(first, end),
        runner=Runner(),
    )


class Costs(NamedTuple):
    """Cost model of one update: `dispatch + per_unit · members · batch · parameters`, in µs.

    Fixed per kind of device, never timed, so that cohorts are a pure function of the population.
    """

    dispatch: float
    per_unit: float
    max_rows: int


# CPU: from the time of one to eight members, 64 and 128 wide, by DQN, TD3, DDPG, CQN and Rainbow. A dearer algorithm is
# dearer in both: for 400 µs of dispatch 5.5e-5 to 8.8e-5. Past 8 to 16 members activations leave the L2 cache.
# GPU: launches dominate, so one cohort is best until memory says otherwise.
COSTS = {"cpu": Costs(400.0, 7e-5, 16), "cuda": Costs(400.0, 2e-7, 4096)}
BATCH_MULTIPLE = 32


class Signature(NamedTuple):
    """What members of an exact cohort have in common, so that a member's arithmetic depends on itself alone."""

    activation: str
    encoder: tuple[tuple[int, bool], ...]
    latent: int
    head: tuple[tuple[int, bool], ...]
    full: tuple[bool, ...]  # hidden layers without pads, where the unmasked normalisation runs
    batch: int
    learn_step: int
    stem: Stem


def signature(member: Member) -> Signature:
    """Return a member's signature: widths and batch size rounded up, depth, blends, activation, learn step."""
    arch = member.arch
    encoder, head = (
        tuple((round_up(b.width, WIDTH_MULTIPLE), b.blend) for b in part) for part in (arch.encoder, arch.head)
    )
    full = tuple(block.width % WIDTH_MULTIPLE == 0 for block in arch.hidden)
    batch = round_up(member.hyper.get("batch_size", BATCH_MULTIPLE), BATCH_MULTIPLE)
    latent = round_up(arch.latent, WIDTH_MULTIPLE)
    learn_step = int(member.hyper.get("learn_step", 1))
    return Signature(arch.activation, encoder, latent, head, full, batch, learn_step, arch.stem)


def cost(members: Sequence[Member], costs: Costs = COSTS["cpu"]) -> float:
    """Model cost of one update of these members in one cohort, µs."""
    archs = [member.arch for member in members]
    gates = 8 if archs[0].kind == "lstm" else 1  # an LSTM layer: four gates, each reading its input and its own outputs
    encoder, head = _widest([a.encoder for a in archs]), _widest([a.head for a in archs])
    widths = [*encoder, *_widest([(Block(a.latent),) for a in archs]), *head]
    into = [widths[0], *widths[:-1]]  # of the first layer, whose inputs are not known here, its own
    times = [gates] * len(encoder) + [1] * (1 + len(head))
    products = sum(n * a * b for n, a, b in zip(times, into, widths, strict=True))
    batch = max(signature(member).batch for member in members)
    stem = max(arch.stem.work() for arch in archs)
    return costs.dispatch + costs.per_unit * len(members) * batch * (products + stem)


def _widest(parts: Sequence[Sequence[Block]]) -> list[int]:
    """Return the padded width of each layer that members with these layers share."""
    columns = itertools.zip_longest(*parts)
    return [max(round_up(block.width, WIDTH_MULTIPLE) for block in column if block) for column in columns]


def group(members: Sequence[Member], mode: Literal["merged", "exact"], device: str) -> list[list[Member]]:
    """Divide members into cohorts.

    Args:
        members: any members.
        mode: `exact`: one cohort a signature; `merged`: also unlike ones where the cost model gains by it. Members with
            different learn steps never merge: a cohort learns in step. Nor do members with different convolutions.
        device: `cpu` or `cuda`.

    Returns:
        Groups, each ordered by activation and slot; the order is a pure function of the members.
    """
    costs = COSTS[device]
    groups: dict[Signature, list[Member]] = {}
    for member in sorted(members, key=lambda m: m.slot):
        groups.setdefault(signature(member), []).append(member)
    found = list(groups.values())
    if mode == "merged":
        found = _merge(found, costs)
    chunks = [g[i : i + costs.max_rows] for g in found for i in range(0, len(g), costs.max_rows)]
    return [sorted(chunk, key=lambda m: (m.arch.activation, m.slot)) for chunk in chunks]


def _merge(groups: list[list[Member]], costs: Costs) -> list[list[Member]]:
    """Merge the pair with the largest saving until none saves anything."""
    while True:
        best, pair = 0.0, None
        for i, a in enumerate(groups):
            for j in range(i + 1, len(groups)):
                b = groups[j]
                alike = _together(a[0]) == _together(b[0])
                if not alike or len(a) + len(b) > costs.max_rows:
                    continue
                saving = cost(a, costs) + cost(b, costs) - cost([*a, *b], costs)
                if saving > best:
                    best, pair = saving, (i, j)
        if pair is None:
            return groups
        i, j = pair
        groups[i] = sorted([*groups[i], *groups[j]], key=lambda m: m.slot)
        del groups[j]


def _together(member: Member) -> tuple[Any, ...]:
    """What members of a merged cohort have in common too."""
    return member.hyper.get("learn_step"), member.arch.stem


def structures(members: Sequence[Member], widths: Mapping[str, Widths], device: torch.device) -> dict[str, Structure]:
    """Build the padded structure of every network."""
    archs = [member.arch for member in members]
    return {name: Structure(archs, w, device) for name, w in widths.items()}


def form(
    members: Sequence[Member],
    state_type: type[Any],
    widths: Mapping[str, Widths],
    device: torch.device,
    mode: Literal["merged", "exact"] = "merged",
    paths: Paths | None = None,
) -> list[Cohort]:
    """Form cohorts from members: pad, stack, move to the device.

    Args:
        members: the population.
        state_type: the algorithm's `State`.
        widths: input and output width of every network.
        device: where cohorts live.
        mode: see `group`.
        paths: the fast paths that the cohorts take, None for none.
    """
    groups = group(members, mode, device.type)
    return [replace(_form(tuple(g), state_type, widths, device), runner=Runner(paths)) for g in groups]


def _form(
    members: tuple[Member, ...], state_type: type[Any], widths: Mapping[str, Widths], device: torch.device
) -> Cohort:
    shapes = structures(members, widths, device)
    several: dict[tuple[str, ...], Structure] = {(name,): shape for name, shape in shapes.items()}
    fields: dict[str, Any] = {}
    for f in dataclasses.fields(state_type):
        kind, networks = f.metadata["kind"], f.metadata["networks"]
        if kind == "row":
            fields[f.name] = torch.stack([m.tensors[f.name] for m in members]).to(device)
            continue
        if networks[0] not in shapes:  # a network that this configuration has no use for
            fields[f.name] = None
            continue
        if networks not in several:
            several[networks] = shapes[networks[0]].repeat(len(networks))
        shape = several[networks]
        rows = [(m.tensors, name) for m in members for name in _names(f)]
        if kind in ("parameters", "scales"):
            fields[f.name] = Net(shape, shape.pack([t[name] for t, name in rows]), f.metadata["trainable"])
        else:
            mean, square = (shape.pack([t[f"{name}.{part}"] for t, name in rows]) for part in ("mean", "square"))
            steps = torch.stack([t[f"{name}.steps"] for t, name in rows]).to(device)
            fields[f.name] = Adam(shape, mean, square, steps)
    names = members[0].hyper
    hyper = {n: torch.tensor([m.hyper[n] for m in members], dtype=torch.float32, device=device) for n in names}
    return Cohort(
        members=members,
        structures=shapes,
        state=state_type(**fields),
        keys=torch.tensor([m.key for m in members], dtype=torch.int64, device=device),
        hyper=hyper,
        weight=_batch_weight(members, device),
        healthy=torch.tensor([m.healthy for m in members], device=device),
        losses=torch.full((len(members),), torch.nan, device=device),
        normaliser=Normaliser.stack([m.tensors for m in members], device),
    )


def _batch_weight(members: Sequence[Member], device: torch.device) -> torch.Tensor:
    """`[P, B]`: (j < b_p) / b_p."""
    sizes = torch.tensor([float(m.hyper.get("batch_size", 1)) for m in members])[:, None]
    position = torch.arange(max(signature(m).batch for m in members))
    return ((position < sizes).float() / sizes).to(device)


def dissolve(cohorts: Sequence[Cohort]) -> list[Member]:
    """Return the members of cohorts, in slot order, with copies of their tensors on the CPU."""
    members = [
        replace(member, tensors=tensors, healthy=healthy)
        for cohort in cohorts
        for member, tensors, healthy in zip(cohort.members, _rows(cohort), cohort.healthy.tolist(), strict=True)
    ]
    return sorted(members, key=lambda m: m.slot)


def _rows(cohort: Cohort) -> list[dict[str, torch.Tensor]]:
    """Take a cohort apart into each member's tensors without pads."""
    leaves = _leaves(cohort.state) if cohort.normaliser is None else (*_leaves(cohort.state), *cohort.normaliser.rows())
    return _split(leaves, len(cohort.members))


def _split(leaves: Iterable[tuple[str, Sequence[torch.Tensor]]], rows: int) -> list[dict[str, torch.Tensor]]:
    """Return each row's tensors by name."""
    out: list[dict[str, torch.Tensor]] = [{} for _ in range(rows)]
    for name, tensors in leaves:
        for target, tensor in zip(out, tensors, strict=True):
            target[name] = tensor.detach().to("cpu", copy=True)
    return out


def _leaves(state: Any) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """Walk a state: (name, one tensor a member)."""
    for f in dataclasses.fields(state):
        value, names = getattr(state, f.name), _names(f)
        parts: dict[str, Sequence[torch.Tensor]] = {}
        if isinstance(value, Net):
            parts[""] = value.structure.unpack(value.values)
        elif isinstance(value, Adam):
            parts[".mean"], parts[".square"] = map(value.structure.unpack, (value.mean, value.square))
            parts[".steps"] = value.steps.unbind(0)
        elif value is not None:
            parts[""] = value.unbind(0)
        for part, rows in parts.items():
            yield from ((name + part, rows[i :: len(names)]) for i, name in enumerate(names))


def tensors_of(state: Any) -> list[torch.Tensor]:
    """Return every tensor of an algorithm's state, rows padded, in a fixed order."""
    found: list[torch.Tensor] = []
    for f in dataclasses.fields(state):
        value = getattr(state, f.name)
        if isinstance(value, Net):
            found.append(value.values)
        elif isinstance(value, Adam):
            found += (value.mean, value.square, value.steps)
        elif value is not None:
            found.append(value)
    return found


def seen_by(cohort: Cohort) -> list[torch.Tensor]:
    """Return the tensors of a cohort's normaliser, in a fixed order."""
    return [] if cohort.normaliser is None else cohort.normaliser.tensors()


def tensor_kinds(state_type: type[Any], networks: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return how each tensor of a member resizes with its architecture: name → (kind, network).

    Kinds: `parameters`, `scales`, `moments` (flat rows of a network), `row` (never resizes).

    Args:
        state_type: the algorithm's `State`.
        networks: those that there are; of a network that the configuration has no use for there are no tensors.
    """
    kinds: dict[str, tuple[str, str]] = {}
    for f in dataclasses.fields(state_type):
        kind = f.metadata["kind"]
        for name, network in zip(_names(f), f.metadata["networks"] or ("",), strict=True):
            if network and network not in networks:
                continue
            if kind == "moments":
                kinds |= {f"{name}.mean": (kind, network), f"{name}.square": (kind, network)}
                kinds[f"{name}.steps"] = ("row", "")
            else:
                kinds[name] = (kind, network)
    return kinds


def create(
    members: Sequence[Member],
    init: Callable[[Mapping[str, Net]], Any],
    rows: Mapping[str, Sequence[torch.Tensor]],
    widths: Mapping[str, Widths],
) -> list[Member]:
    """Give new members their state by the algorithm's own `init`.

    Args:
        members: members without tensors, all of one architecture.
        init: maps fresh trainable networks to the algorithm's state.
        rows: every network's initial flat rows, one a member.
        widths: input and output width of every network.
    """
    shapes = structures(members, widths, torch.device("cpu"))
    nets = {name: Net(shape, shape.pack(rows[name]), trainable=True) for name, shape in shapes.items()}
    tensors = _split(_leaves(init(nets)), len(members))
    return [replace(member, tensors=t) for member, t in zip(members, tensors, strict=True)]
