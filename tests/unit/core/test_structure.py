"""A structure that the core has never heard of goes through all of it: low-rank adapters over one frozen base."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.core import member, optim
from evopipe.core.cohort import Cohort, Pace, create, dissolve, form
from evopipe.core.member import Member, moments, parameters, row, tensor_kinds
from evopipe.core.net import Net, forward
from evopipe.core.structure import Option, ViewOf, Widths
from evopipe.mutations import Traits
from evopipe.native.networks import LINE
from evopipe.schema.evolution import ArchitectureBounds, MutationConfig, TournamentConfig
from evopipe.searchers.apply import evolve
from evopipe.storage import members as stored
from evopipe.storage.tensors import dump_tensors, load_tensors

CPU = torch.device("cpu")
WIDTHS = {"adapter": Widths(5, 3)}
BASE = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Adapter:
    """y = x (W + A B): W is frozen and there once, a member's own row holds A `[5, rank]`, then B `[rank, 3]`."""

    rank: int
    activation: str = ""
    family: str = "adapter"

    @property
    def signature(self) -> int:
        return self.rank

    def describe(self) -> str:
        return f"rank {self.rank}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "adapter", "rank": self.rank}

    def size(self, widths: Widths) -> int:
        return self.rank * (widths.inputs + widths.outputs)

    def named(self, widths: Widths, row: torch.Tensor) -> dict[str, torch.Tensor]:
        a, b = row.split([self.rank * widths.inputs, self.rank * widths.outputs])
        return {"a": a.view(-1, self.rank), "b": b.view(self.rank, -1)}

    def initialise(self, widths: Widths, rng: np.random.Generator) -> torch.Tensor:
        fresh = torch.from_numpy(rng.standard_normal(self.size(widths))).float()
        self.named(widths, fresh)["b"][:] = 0.0
        return fresh

    @staticmethod
    def work(archs: Sequence[Adapter]) -> int:
        return 8 * max(arch.rank for arch in archs)

    @staticmethod
    def stack(archs: Sequence[Adapter], widths: Widths, device: torch.device) -> Adapters:
        return Adapters(tuple(archs), widths, max(arch.rank for arch in archs))

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        yield "rank.add", "rank", self.rank, self.rank + 1, replace(self, rank=self.rank + 1)

    def carry(
        self, new: Adapter, widths: Widths, kind: str, row: torch.Tensor, rng: np.random.Generator
    ) -> torch.Tensor:
        carried = new.initialise(widths, rng) if kind == "parameters" else torch.zeros(new.size(widths))
        old, parts = self.named(widths, row), new.named(widths, carried)
        parts["a"][:, : self.rank], parts["b"][: self.rank] = old["a"], old["b"]
        return carried


@dataclass(frozen=True)
class Adapters:
    """Adapters of unlike ranks in rows: those of a lower one have columns of A and rows of B that are zero."""

    archs: tuple[Adapter, ...]
    widths: Widths
    rank: int
    memory: int = 0
    memory_widths: tuple[int, ...] = ()
    copies: int = 1

    @property
    def size(self) -> int:
        return -(-self.rank * 8 // LINE) * LINE

    def pack(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        packed = torch.zeros(len(rows), self.size)
        for arch, own, padded in zip(self.archs, rows, packed, strict=True):
            padded[: 5 * self.rank].view(5, -1)[:, : arch.rank] = arch.named(self.widths, own)["a"]
            padded[5 * self.rank : 8 * self.rank].view(-1, 3)[: arch.rank] = arch.named(self.widths, own)["b"]
        return packed

    def unpack(self, packed: torch.Tensor) -> list[torch.Tensor]:
        a, b = packed[:, : 5 * self.rank].view(-1, 5, self.rank), packed[:, 5 * self.rank : 8 * self.rank]
        return [
            torch.cat((x[:, : arch.rank].reshape(-1), y[: 3 * arch.rank]))
            for arch, x, y in zip(self.archs, a, b, strict=True)
        ]

    def part(self, first: int, end: int | None, every: int = 1) -> Adapters:
        return replace(self, archs=self.archs[first:end:every])

    def repeat(self, times: int) -> Adapters:
        return replace(self, archs=tuple(arch for arch in self.archs for _ in range(times)))

    def views(self, of: ViewOf) -> tuple[torch.Tensor, torch.Tensor]:
        return of(0, 5, self.rank), of(5 * self.rank, self.rank, 3)

    def forward(self, views: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        a, b = views
        return x @ BASE + (x @ a) @ b


@dataclass(frozen=True)
class State:
    w: Net = parameters("adapter", trainable=True)
    target: Net = parameters("adapter")
    adam: optim.Adam = moments("adapter")
    updates: torch.Tensor = row()


TRAITS = Traits(WIDTHS, ["adapter"], {}, {}, frozenset())


def init(nets: dict[str, Net]) -> State:
    w = nets["adapter"]
    return State(w, w.copy(), *optim.start(w))


def some(*ranks: int) -> list[Member]:
    """Members of these ranks whose tensors are all unlike zero."""
    made = []
    for slot, rank in enumerate(ranks):
        rng = np.random.default_rng(slot)
        bare = Member(slot, slot, None, slot, Adapter(rank), {"lr": 0.01 * (1 + slot), "rows": 4 + slot}, {})
        (born,) = create([bare], init, {"adapter": [bare.arch.initialise(WIDTHS["adapter"], rng)]}, WIDTHS)
        filled = {
            name: torch.from_numpy(rng.uniform(0.5, 1.5, tuple(t.shape))).float() for name, t in born.tensors.items()
        }
        made.append(replace(born, tensors=filled | {"adam.steps": torch.tensor(2.0 + slot)}))
    return made


def pace(m: Member) -> Pace:
    return Pace(int(m.hyper["rows"]))


def cohort_of(members: Sequence[Member]) -> Cohort:
    (found,) = form(members, State, WIDTHS, CPU, pace)
    return found


def inputs(seed: int, members: int) -> torch.Tensor:
    return torch.randn(members, 32, 5, generator=torch.Generator().manual_seed(seed))


def learn(cohort: Cohort, x: torch.Tensor) -> torch.Tensor:
    """One step down each member's mean square; return who took it."""
    losses = (cohort.weight[..., None] * forward(cohort.state.w, x).square()).sum(dim=(1, 2))
    limit = torch.full((len(x),), 1e6)
    healthy = optim.descend(losses, cohort.healthy, limit, (cohort.state.w, cohort.state.adam, cohort.hyper["lr"]))
    cohort.healthy.copy_(healthy)
    return healthy


def test_unlike_ranks_share_a_cohort_and_come_back_to_the_bit() -> None:
    members = some(1, 3, 2)
    cohort = cohort_of(members)
    assert cohort.batch == 32
    assert [int((weight > 0).sum()) for weight in cohort.weight] == [4, 5, 6]
    assert all(populations.same(a, b) for a, b in zip(members, dissolve([cohort]), strict=True))
    assert [len(c.members) for c in form(members, State, WIDTHS, CPU, pace, "exact")] == [1, 1, 1]


def test_members_learn_together_what_each_learns_alone() -> None:
    """By the equations of Adam on A and B of one member, from its moments and its number of steps."""
    members = some(1, 3, 2)
    cohort, x = cohort_of(members), inputs(1, 3)
    for _ in range(3):
        assert learn(cohort, x).all()
    for i, (before, after) in enumerate(zip(members, dissolve([cohort]), strict=True)):
        w, mean, square = (before.tensors[name].double() for name in ("w", "adam.mean", "adam.square"))
        rows = x[i, : int(before.hyper["rows"])].double()
        for n in range(int(before.tensors["adam.steps"]) + 1, int(before.tensors["adam.steps"]) + 4):
            own = w.clone().requires_grad_()
            parts = before.arch.named(WIDTHS["adapter"], own)
            loss = (rows @ (BASE.double() + parts["a"] @ parts["b"])).square().sum(dim=1).mean()
            (grad,) = torch.autograd.grad(loss, own)
            mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad.square()
            w = w - before.hyper["lr"] * (mean / (1 - 0.9**n)) / ((square / (1 - 0.999**n)).sqrt() + 1e-8)
        torch.testing.assert_close(after.tensors["w"], w.float(), atol=1e-5, rtol=1e-5)
        assert torch.equal(after.tensors["target"], before.tensors["target"])


def test_a_member_that_diverges_is_frozen_and_its_neighbours_are_not() -> None:
    members = some(1, 3, 2)
    spoilt = replace(members[1], tensors={**members[1].tensors, "w": torch.full((24,), math.nan)})
    cohort, alone = cohort_of([members[0], spoilt, members[2]]), cohort_of(members)
    assert learn(cohort, inputs(1, 3)).tolist() == [True, False, True]
    assert cohort.state.w.finite.tolist() == [True, False, True]
    learn(alone, inputs(1, 3))
    for slot in (0, 2):
        assert populations.same(dissolve([cohort])[slot], dissolve([alone])[slot])
    assert populations.same(dissolve([cohort])[1], spoilt)


def test_a_part_learns_what_the_whole_learns() -> None:
    members = some(1, 3, 2)
    whole, other = cohort_of(members), cohort_of(members)
    learn(whole, inputs(1, 3))
    learn(other.part(1, 3), inputs(1, 3)[1:])
    for slot in (1, 2):
        assert populations.same(dissolve([whole])[slot], dissolve([other])[slot])


def test_evolution_clones_them_and_mutates_them_by_their_own_mutation() -> None:
    members = some(1, 3, 2)
    traits = replace(TRAITS, kinds=tensor_kinds(State, WIDTHS))
    cfg = MutationConfig.model_validate({"probabilities": {"none": 0.0, "parameters": 0.0, "rl_hp": 0.0}})
    born = evolve(TournamentConfig(), cfg, traits, members, np.array([0.0, 1.0, -np.inf]), 3, 1, 10)
    assert [change.kind for change in born.mutations] == ["none", "architecture", "architecture"]
    x = inputs(2, 1)[0]
    for child, change, slot in zip(born.members[1:], born.mutations[1:], born.parents[1:], strict=True):
        parent = members[slot]
        assert child.arch == replace(parent.arch, rank=parent.arch.rank + 1)
        assert (change.what, change.before, change.after) == ("rank", parent.arch.rank, parent.arch.rank + 1)
        old, new = (m.arch.named(WIDTHS["adapter"], m.tensors["w"]) for m in (parent, child))
        torch.testing.assert_close(x @ new["a"] @ new["b"], x @ old["a"] @ old["b"])
        mean = child.arch.named(WIDTHS["adapter"], child.tensors["adam.mean"])
        assert not mean["a"][:, parent.arch.rank :].any()
        assert torch.equal(child.tensors["adam.steps"], parent.tensors["adam.steps"])
    assert learn(cohort_of(born.members), inputs(1, 3)).all()


def test_parameter_noise_goes_to_their_matrices() -> None:
    cfg = MutationConfig.model_validate({"probabilities": {"none": 0.0, "architecture": 0.0, "rl_hp": 0.0}})
    traits, members = replace(TRAITS, kinds=tensor_kinds(State, WIDTHS)), some(2, 2)
    born = evolve(TournamentConfig(elitism=False), cfg, traits, members, np.array([0.0, 1.0]), 3, 1, 10)
    for child, change, slot in zip(born.members, born.mutations, born.parents, strict=True):
        assert change.kind == "parameters"  # never an activation: they have none to choose
        moved = child.tensors["w"] != members[slot].tensors["w"]
        assert 1 <= int(moved.sum()) <= 2  # a tenth of 10 numbers of A, of 6 of B, or of both
        assert torch.equal(child.tensors["target"], members[slot].tensors["target"])


def test_they_are_written_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(member.ARCHITECTURES, "adapter", lambda data: Adapter(int(data["rank"])))
    tensors, described = stored.pack(some(1, 3), "group")
    after = stored.unpack(load_tensors(dump_tensors(tensors)), json.loads(json.dumps(described)), "group")
    for old, new in zip(some(1, 3), after, strict=True):
        assert populations.same(old, new)
        assert (new.arch, new.hyper) == (old.arch, old.hyper)
