"""Whole updates by the CPU's own kernels: those of the algorithm's own torch, to what float32 can know, and a member's
bits its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from evopipe.algos import cqn, dqn
from evopipe.core.arch import Arch
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.native import build
from evopipe.core.net import Net
from evopipe.core.optim import Adam
from evopipe.core.structure import Widths
from evopipe.rng import Purpose, Stream
from evopipe.types import Batch, Learned, Tensor
from reference import known, random_row

pytestmark = pytest.mark.numerical
OBS, ACTIONS, ROWS = 5, 3, 40
WIDTHS = Widths(OBS, ACTIONS)
SIZES = (40, 7, 33, 1)  # members' own batch sizes, in turn
ALGOS = [
    pytest.param(dqn, {"double": True, "loss": "huber"}, id="dqn"),
    pytest.param(dqn, {"double": False, "loss": "mse", "target": "hard", "target_interval": 3}, id="dqn-hard"),
    pytest.param(cqn, {"double": True, "loss": "huber"}, id="cqn"),
]


@pytest.fixture(autouse=True)
def torch_again() -> Iterator[None]:
    yield
    build.use(None)


def archs(norm: bool) -> list[Arch]:
    """Unlike members, one of each activation; blends, and layers that some lack."""
    shapes: list[tuple[tuple[Block, ...], int, tuple[Block, ...]]] = [
        ((Block(37), Block(20, True)), 24, (Block(50, True),)),
        ((Block(64),), 33, ()),
        ((Block(5), Block(40, True)), 16, ()),
    ]
    return [Arch(*shapes[i % 3], name, norm) for i, name in enumerate(sorted(ACTIVATIONS))]


def state(members: list[Arch], algo: ModuleType) -> Any:
    """A state in the middle of training: moments that are not 0, a target of its own."""
    shape, draw = Arch.stack(members, WIDTHS, torch.device("cpu")), np.random.default_rng(1)

    def rows() -> Tensor:
        return shape.pack([random_row(arch, WIDTHS, draw) for arch in members])

    online = Net(shape, rows(), trainable=True)
    adam = Adam(shape, 0.1 * rows(), rows().square() + 0.05 * (online.values != 0), torch.full((len(members),), 7.0))
    updates = torch.arange(float(len(members)))
    return algo.State(online, Net(shape, rows()), adam, updates)


def hyper(members: int) -> dict[str, Tensor]:
    return {
        "lr": torch.linspace(1e-3, 1e-2, members), "tau": torch.linspace(0.0, 1.0, members),
        "grad_clip": torch.tensor([0.3, 1e9]).repeat(members)[:members], "alpha": torch.linspace(0.0, 2.0, members),
    }  # fmt: skip


def batch(members: int, masked: bool) -> Batch:
    draw = torch.Generator().manual_seed(5)
    shape = members, ROWS

    def normal(*more: int) -> Tensor:
        return torch.randn(*shape, *more, generator=draw)

    action = torch.randint(ACTIONS, shape, generator=draw)
    legal, next_legal = (torch.rand(*shape, ACTIONS, generator=draw) < 0.6 for _ in range(2))
    next_legal[..., 1] = True
    legal.scatter_(2, action[..., None], True)
    own = torch.tensor([SIZES[i % len(SIZES)] for i in range(members)])[:, None]
    weight = torch.where(torch.arange(ROWS) < own, 0.5 + torch.rand(*shape, generator=draw), 0.0) / own
    discount = 0.97 * (torch.rand(*shape, generator=draw) < 0.8)
    packed = normal(2 * OBS)  # as in the memory: views of wider rows
    return Batch(
        packed[..., :OBS], action, normal(), discount, packed[..., OBS:], next_legal if masked else None, weight,
        legal if masked else None,
    )  # fmt: skip


def updated(algo: ModuleType, cfg: Any, own: Any, given: Batch, hp: Mapping[str, Tensor], healthy: Tensor) -> Learned:
    draw = Stream(torch.arange(len(healthy)), Purpose.UPDATE, torch.zeros(1, dtype=torch.int64))
    return algo.update(cfg, own, hp, given, healthy, draw, 0)  # type: ignore[no-any-return]


def copied(own: Any, values: Tensor, target: Tensor, mean: Tensor, square: Tensor) -> Any:
    shape, adam = own.q.structure, own.adam
    moments = Adam(shape, mean.clone(), square.clone(), adam.steps.clone())
    return replace(
        own, q=Net(shape, values.clone(), trainable=True), target=Net(shape, target.clone()), adam=moments,
        updates=own.updates.clone(),
    )  # fmt: skip


def fresh(own: Any) -> Any:
    return copied(own, own.q.values, own.target.values, own.adam.mean, own.adam.square)


def told(own: Any, learned: Learned, given: Batch) -> list[Tensor]:
    """All that an update changes or says; errors only of rows that count."""
    assert learned.errors is not None
    errors = torch.where(given.weight > 0, learned.errors, 0.0)
    return [own.q.values, own.target.values, own.adam.mean, own.adam.square, learned.losses.detach(), errors]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("algo", "settings"), ALGOS)
def test_a_whole_update_is_torchs(algo: ModuleType, settings: dict[str, Any], norm: bool) -> None:
    members = archs(norm)
    cfg, own, given, hp = algo.Config(**settings), state(members, algo), batch(len(members), norm), hyper(len(members))
    healthy = torch.ones(len(members), dtype=torch.bool)

    def reference(*tensors: Tensor) -> list[Tensor]:
        values, target, mean, square, obs, next_obs, reward = tensors
        moved = copied(own, values, target, mean, square)
        shown = replace(given, obs=obs, next_obs=next_obs, reward=reward)
        learned = updated(algo, cfg, moved, shown, {name: each.double() for name, each in hp.items()}, healthy)
        assert learned.healthy.all()
        return told(moved, learned, given)

    right = known(
        reference, own.q.values, own.target.values, own.adam.mean, own.adam.square, given.obs, given.next_obs,
        given.reward,
    )  # fmt: skip
    build.use(build.load())
    moved = fresh(own)
    learned = updated(algo, cfg, moved, given, hp, healthy)
    assert not moved.q.grad.any()  # the kernels took it
    assert learned.healthy.all()
    assert torch.equal(moved.updates, own.updates + 1)
    assert torch.equal(moved.adam.steps, own.adam.steps + 1)
    assert right.agrees(*told(moved, learned, given))


@pytest.mark.parametrize(("algo", "settings"), ALGOS)
def test_a_members_update_is_its_own_to_the_bit(algo: ModuleType, settings: dict[str, Any]) -> None:
    build.use(build.load())
    members = archs(True)
    cfg, own, given, hp = algo.Config(**settings), state(members, algo), batch(len(members), True), hyper(len(members))
    healthy = torch.ones(len(members), dtype=torch.bool)
    together = fresh(own)
    all_told = told(together, updated(algo, cfg, together, given, hp, healthy), given)
    for first, end in ((0, 1), (3, 7)):
        cut = slice(first, end)
        q = own.q.part(first, end)
        alone = fresh(algo.State(q, own.target.part(first, end), own.adam.part(first, end), own.updates[cut]))
        fields = {name: getattr(given, name)[cut] for name in Batch.__dataclass_fields__ if name != "alive"}
        own_given = Batch(**fields)
        learned = updated(algo, cfg, alone, own_given, {k: v[cut] for k, v in hp.items()}, healthy[cut])
        for one, all_of_them in zip(told(alone, learned, own_given), all_told, strict=True):
            assert torch.equal(one, all_of_them[cut])


def test_whoever_diverges_stays_where_it_was_and_touches_nobody() -> None:
    build.use(build.load())
    members = archs(False)[:4]
    own, given, hp = state(members, dqn), batch(4, False), hyper(4)
    cfg, healthy = dqn.Config(), torch.tensor([True, True, False, True])
    sound, broken = fresh(own), fresh(own)
    expected = told(sound, updated(dqn, cfg, sound, given, hp, healthy), given)
    reward = given.reward.clone()
    reward[1, 3] = torch.nan
    learned = updated(dqn, cfg, broken, replace(given, reward=reward), hp, healthy)
    assert learned.healthy.tolist() == [True, False, False, True]
    assert broken.updates.tolist() == [1.0, 1.0, 2.0, 4.0]
    assert broken.adam.steps.tolist() == [8.0, 7.0, 7.0, 8.0]
    before = [own.q.values, own.target.values, own.adam.mean, own.adam.square]
    for now, was, neighbour in zip(told(broken, learned, given), before, expected, strict=False):
        assert torch.equal(now[[1, 2]], was[[1, 2]])
        assert torch.equal(now[[0, 3]], neighbour[[0, 3]])
    assert torch.equal(learned.losses[[0, 2, 3]], expected[4][[0, 2, 3]])
