"""Whole updates by the CPU's own kernels: those of the algorithm's own torch, to what float32 can know, and a member's
bits its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evopipe.algos import cqn, dqn, rainbow
from evopipe.core.arch import Arch
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.net import Net
from evopipe.core.optim import Adam
from evopipe.core.padded import noise_scale
from evopipe.native import build
from evopipe.parallel import Helper, can_help, shared_memory
from evopipe.rng import Purpose, Stream
from evopipe.types import Batch, Learned, Spaces
from kernel_cases import starving
from reference import known, random_row

pytestmark = pytest.mark.numerical
OBS, ACTIONS, ROWS = 5, 3, 40
SIZES = (40, 7, 33, 1)  # members' own batch sizes, in turn
RANGE = {"v_min": -3.0, "v_max": 3.0, "atoms": 21}
ALGOS = [
    pytest.param(dqn, {"double": True, "loss": "huber"}, id="dqn"),
    pytest.param(dqn, {"double": False, "loss": "mse", "target": "hard", "target_interval": 3}, id="dqn-hard"),
    pytest.param(cqn, {"double": True, "loss": "huber"}, id="cqn"),
    pytest.param(rainbow, RANGE, id="rainbow"),
    pytest.param(rainbow, {**RANGE, "noisy": False, "double": False, "dueling": False}, id="rainbow-c51"),
    pytest.param(rainbow, {"distributional": False}, id="rainbow-noisy-dueling"),
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


def state(members: list[Arch], algo: ModuleType, cfg: Any) -> Any:
    """A state in the middle of training: moments that are not 0, a target of its own."""
    spaces = Spaces(OBS, ACTIONS)
    widths = algo.networks(cfg, spaces)["q"]
    shape, draw = Arch.stack(members, widths, torch.device("cpu")), np.random.default_rng(1)

    def rows() -> Tensor:
        return shape.pack([random_row(arch, widths, draw) for arch in members])

    made: dict[str, Any] = {"updates": torch.arange(float(len(members)))}
    for field in fields(algo.State):
        kind = field.metadata["kind"]
        if kind == "moments":
            values = rows()
            square = values.square() + 0.05 * (values != 0)
            made[field.name] = Adam(shape, 0.1 * values, square, torch.full((len(members),), 7.0))
        elif kind == "scales":
            made[field.name] = Net(shape, 0.3 * noise_scale(shape, 0.5), field.metadata["trainable"])
        elif kind == "parameters":
            made[field.name] = Net(shape, rows(), field.metadata["trainable"])
    return algo.State(**made)


def tensors(own: Any) -> list[Tensor]:
    """All that an update changes, but for counts."""
    found = (getattr(own, field.name) for field in fields(own))
    return [x for each in found for x in ([each.values] if isinstance(each, Net) else
            [each.mean, each.square] if isinstance(each, Adam) else [])]  # fmt: skip


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


def updated(
    algo: ModuleType, cfg: Any, own: Any, given: Batch, hp: Mapping[str, Tensor], healthy: Tensor,
    keys: Sequence[int] = (),
) -> Learned:  # fmt: skip
    draw = Stream(torch.tensor(keys or range(len(healthy))), Purpose.UPDATE, torch.zeros(1, dtype=torch.int64))
    return algo.update(cfg, own, hp, given, healthy, draw, 0)  # type: ignore[no-any-return]


def copied(own: Any, given: Sequence[Tensor]) -> Any:
    """The same state with copies of these tensors."""
    rest = iter([tensor.clone() for tensor in given])
    made: dict[str, Any] = {"updates": own.updates.clone()}
    for field in fields(own):
        each = getattr(own, field.name)
        if isinstance(each, Net):
            made[field.name] = Net(each.structure, next(rest), each.trainable)
        elif isinstance(each, Adam):
            made[field.name] = Adam(each.structure, next(rest), next(rest), each.steps.clone())
    return type(own)(**made)


def part(own: Any, first: int, end: int) -> Any:
    cut = {field.name: getattr(own, field.name) for field in fields(own)}
    return type(own)(**{name: x[first:end] if isinstance(x, Tensor) else x.part(first, end) for name, x in cut.items()})


def told(own: Any, learned: Learned, given: Batch) -> list[Tensor]:
    """All that an update changes or says; errors only of rows that count."""
    assert learned.errors is not None
    errors = torch.where(given.weight > 0, learned.errors, 0.0)
    return [learned.losses.detach(), errors, *tensors(own)]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("algo", "settings"), ALGOS)
def test_a_whole_update_is_torchs(algo: ModuleType, settings: dict[str, Any], norm: bool) -> None:
    members = archs(norm)
    cfg, given, hp = algo.Config(**settings), batch(len(members), norm), hyper(len(members))
    own, healthy = state(members, algo, cfg), torch.ones(len(members), dtype=torch.bool)

    def reference(obs: Tensor, next_obs: Tensor, reward: Tensor, *given_state: Tensor) -> list[Tensor]:
        moved, shown = copied(own, given_state), replace(given, obs=obs, next_obs=next_obs, reward=reward)
        learned = updated(algo, cfg, moved, shown, {name: each.double() for name, each in hp.items()}, healthy)
        assert learned.healthy.all()
        return told(moved, learned, given)

    right = known(reference, given.obs, given.next_obs, given.reward, *tensors(own))
    build.use(build.load())
    moved = copied(own, tensors(own))
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
    cfg, given, hp = algo.Config(**settings), batch(len(members), True), hyper(len(members))
    own, healthy = state(members, algo, cfg), torch.ones(len(members), dtype=torch.bool)
    together = copied(own, tensors(own))
    all_told = told(together, updated(algo, cfg, together, given, hp, healthy, range(len(members))), given)
    for first, end in ((0, 1), (3, 7)):
        cut = slice(first, end)
        some = part(own, first, end)
        alone = copied(some, tensors(some))
        held = {name: getattr(given, name) for name in Batch.__dataclass_fields__}
        named = {name: each[cut] for name, each in held.items() if each is not None}
        own_given, own_hp = Batch(**named), {name: each[cut] for name, each in hp.items()}
        learned = updated(algo, cfg, alone, own_given, own_hp, healthy[cut], range(first, end))
        for one, all_of_them in zip(told(alone, learned, own_given), all_told, strict=True):
            assert torch.equal(one, all_of_them[cut])


def polite_threads() -> int:
    """How many threads of this process give way to others."""
    nice = [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
    return sum(each == min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19) for each in nice)


def test_threads_share_members_out_and_change_no_bit() -> None:
    kernels = build.load()
    build.use(kernels)
    members = archs(True)
    cfg, given, hp = dqn.Config(), batch(len(members), True), hyper(len(members))
    own, healthy = state(members, dqn, cfg), torch.ones(len(members), dtype=torch.bool)

    def after_three() -> list[bytes]:
        moved = copied(own, tensors(own))
        for _ in range(3):
            learned = updated(dqn, cfg, moved, given, hp, healthy)
        return [each.numpy().tobytes() for each in told(moved, learned, given)]

    right = after_three()
    try:
        kernels.share_among(4)
        assert after_three() == right
        assert kernels.value_update(*starving(weight := torch.ones(2)), len(weight)) == 1  # the kernel reads it
        assert after_three() == right, "who comes after has memory"
        if sys.platform.startswith("linux"):
            until = time.monotonic() + 60.0  # a thread that has not run yet has not stood back either
            while polite_threads() < 3:
                assert time.monotonic() < until
                time.sleep(0.01)
        with ThreadPoolExecutor(3) as callers:  # one at a time has the threads, the others compute alone
            assert [each.result() for each in [callers.submit(after_three) for _ in range(6)]] == [right] * 6
    finally:
        kernels.share_among(1)


def test_a_fork_computes_without_the_threads_that_it_has_not() -> None:
    if not can_help():
        pytest.skip("no forks here")
    kernels = build.load()
    build.use(kernels)
    members = archs(False)
    cfg, given, hp = dqn.Config(), batch(len(members), False), hyper(len(members))
    own, healthy = state(members, dqn, cfg), torch.ones(len(members), dtype=torch.bool)
    values = torch.frombuffer(shared_memory([own.q.values.nbytes])[0], dtype=torch.float32)

    def work() -> None:
        moved = copied(own, tensors(own))
        updated(dqn, cfg, moved, given, hp, healthy)
        values[: moved.q.values.numel()] = moved.q.values.ravel()

    try:
        kernels.share_among(3)
        work()
        here = values.clone()
        values.zero_()
        helper = Helper(work)
        helper.tell()
        assert helper.wait() is None
        helper.dismiss()
    finally:
        kernels.share_among(1)
    assert torch.equal(values, here)
    assert here.any()


@pytest.mark.parametrize(("algo", "settings"), [ALGOS[0], ALGOS[3]])
def test_whoever_diverges_stays_where_it_was_and_touches_nobody(algo: ModuleType, settings: dict[str, Any]) -> None:
    build.use(build.load())
    members = archs(False)[:4]
    cfg, given, hp = algo.Config(**settings), batch(4, False), hyper(4)
    own, healthy = state(members, algo, cfg), torch.tensor([True, True, False, True])
    sound, broken = copied(own, tensors(own)), copied(own, tensors(own))
    expected = told(sound, updated(algo, cfg, sound, given, hp, healthy), given)
    reward = given.reward.clone()
    reward[1, 3] = torch.nan
    learned = updated(algo, cfg, broken, replace(given, reward=reward), hp, healthy)
    assert learned.healthy.tolist() == [True, False, False, True]
    assert broken.updates.tolist() == [1.0, 1.0, 2.0, 4.0]
    assert broken.adam.steps.tolist() == [8.0, 7.0, 7.0, 8.0]
    for now, was in zip(tensors(broken), tensors(own), strict=True):
        assert torch.equal(now[[1, 2]], was[[1, 2]])
    for now, neighbour in zip(told(broken, learned, given), expected, strict=True):
        assert torch.equal(now[[0, 3]], neighbour[[0, 3]])
