"""Every promise of a run also holds with transitions over several steps and prioritised replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

import populations
from device import DEVICE, Device
from evopipe.core import optim
from evopipe.core.cohort import COSTS
from evopipe.core.graphs import Capture, Paths
from evopipe.problems.env import begin
from evopipe.regimes import learners
from evopipe.regimes.off_policy import OffPolicy
from evopipe.run.spec import EnvSpec, first_members
from populations import advance, close_generation, equal, equal_states, finish, same, started

pytestmark = pytest.mark.parametrize("algo", populations.cases(quick=("rainbow",), on_policy=False, teams=True))

UNLIKE = {
    "before_training": True,
    "architecture": {"min_nodes": 8, "max_nodes": 64, "min_latent": 8, "node_steps": (1, 8, 16), "latent_steps": (8,)},
    "activations": ("ReLU", "GELU", "Sigmoid"),
}
LONG: dict[str, Any] = {"evo_steps": 100_000, "max_steps": 100_000}
Sharing = Literal["own", "shared"]


def variant(
    algo: str, sharing: Sharing = "own", cohorts: Literal["exact", "merged"] = "exact", env: str | None = None,
    **train: Any,
) -> EnvSpec:  # fmt: skip
    """Three steps at once, prioritised; unlike members; a ring that goes round within the run."""
    replay = {"capacity": 300, "sharing": sharing, "n_step": 3, "prioritised": True}
    return populations.problem(env, algo, mutation=UNLIKE, cohorts=cohorts, train={**train, "replay": replay})


@pytest.fixture
def run() -> Iterator[Callable[..., OffPolicy]]:
    """Makes runs, and closes them."""
    made: list[OffPolicy] = []

    def make(p: EnvSpec, members: Any, processes: int = 1) -> OffPolicy:
        found = first_members(p, members)[0] if isinstance(members, int) else members
        made.append(begin(p, found, learners=processes))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.product
@pytest.mark.parametrize("sharing", ["own", "shared"])
@pytest.mark.parametrize("ticks", [1, 50, 93])
@pytest.mark.thorough
def test_a_restored_run_continues_bit_for_bit(
    algo: str, sharing: Sharing, ticks: int, run: Callable[..., OffPolicy]
) -> None:
    """In the middle of the windows, at a generation's end, and after the ring went round."""
    p = variant(algo, sharing, max_steps=400)
    whole = run(p, 3)
    advance(whole, ticks)
    if ticks == 50:
        close_generation(whole)
    assert whole.regime.nstep is not None
    assert ((whole.regime.nstep._next - whole.regime.nstep._first) > 0).any(), "some window is half full"
    tensors, meta = whole.state()
    tensors, meta = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))
    resumed = run(p, 3)
    advance(resumed, 5)  # whatever it held before is gone
    assert resumed.restore(tensors, meta) == 0
    assert equal_states(whole.state(), resumed.state()) == []
    for loop in (whole, resumed):
        finish(loop)
    assert equal_states(whole.state(), resumed.state()) == []
    assert "replay.priorities" in whole.state()[0]


@pytest.mark.product
@pytest.mark.parametrize("sharing", ["own", "shared"])
@pytest.mark.parametrize("cohorts", ["exact", "merged"])
@pytest.mark.thorough
def test_no_bit_depends_on_how_many_processes_learn(
    algo: str, cohorts: Literal["exact", "merged"], sharing: Sharing, run: Callable[..., OffPolicy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(learners, "LEAST_WORK", 0.0)
    p = variant(algo, sharing, cohorts, evo_steps=128, max_steps=256)
    alone, divided = run(p, 4, 1), run(p, 4, 2)
    while not alone.reason:
        for loop in (alone, divided):
            while not loop.clock.generation_over:
                loop.advance()
        assert len(divided.regime.learners._helpers) == 1, "the work was divided"
        assert equal_states(alone.state(), divided.state()) == []
        for loop in (alone, divided):
            close_generation(loop)
    assert equal_states(alone.state(), divided.state()) == []


@pytest.mark.thorough
def test_a_member_trains_alike_alone_and_in_a_crowd(algo: str, run: Callable[..., OffPolicy]) -> None:
    """With exact cohorts and its own replay, to the bit, priorities included."""
    p = variant(algo, **LONG)
    crowd = run(p, 4)
    advance(crowd, 60)
    for slots in ([3], [0, 2]):
        few = run(p, [replace(populations.alone(p, slot), slot=i) for i, slot in enumerate(slots)])
        advance(few, 60)
        assert few.regime.replay.priorities is not None
        assert crowd.regime.replay.priorities is not None
        for i, slot in enumerate(slots):
            assert same(few.members[i], crowd.members[slot]), slot
            assert equal(few.regime.replay.rows[i], crowd.regime.replay.rows[slot])
            assert equal(few.regime.replay.priorities.levels[0][i], crowd.regime.replay.priorities.levels[0][slot])
            assert equal(few.regime.replay.priorities.largest[i], crowd.regime.replay.priorities.largest[slot])
    assert all(float(m.tensors["updates"]) > 50 for m in crowd.members)


@pytest.mark.thorough
def test_a_diverged_member_spoils_nobodys_priorities(algo: str, run: Callable[..., OffPolicy]) -> None:
    """On a shared memory with merged cohorts: its own tree stays finite too."""
    p = variant(algo, "shared", "merged", **LONG)
    clean, ill = run(p, 4), run(p, 4)
    for loop in (clean, ill):
        advance(loop, 40)
    cohort, row = populations.of_slot(ill.cohorts, 1)
    getattr(cohort.state, p.algo.POLICY).values[row] = torch.nan
    # What it does fills the memory of all, so its own rows must not count here: one tick, before they are learned from.
    for loop in (clean, ill):
        advance(loop, 1)
    cohort, row = populations.of_slot(ill.cohorts, 1)
    assert not cohort.healthy[row]
    for slot in (0, 2, 3):
        assert same(clean.members[slot], ill.members[slot]), slot
    trees = ill.regime.replay.priorities
    assert trees is not None
    assert all(torch.isfinite(tensor).all() for tensor in trees.tensors())
    close_generation(ill)
    advance(ill, 20)
    assert all(m.healthy for m in ill.members)


@pytest.mark.product
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("sharing", ["own", "shared"])
@pytest.mark.thorough
def test_a_child_draws_by_its_parents_priorities_or_by_none(
    algo: str, sharing: Sharing, processes: int, run: Callable[..., OffPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that was wildly wrong spoils nothing for who takes its slot, and learns on from the slot's memory."""
    monkeypatch.setattr(learners, "LEAST_WORK", 0.0)
    loop = run(variant(algo, sharing, max_steps=100_000), 4, processes)
    while not loop.clock.generation_over:
        loop.advance()
    trees = loop.regime.replay.priorities
    assert trees is not None
    trees.update(torch.tensor([1]), torch.arange(5)[None], torch.full((1, 5), 1e20))
    populations.plant_weight(loop, 1)  # no parent
    before, largest = trees.levels[0].clone(), trees.largest.clone()
    close_generation(loop)
    parents = [child.parent_slot for child in loop.lineage[-1].children]
    assert 1 not in parents
    assert any(parent == slot for slot, parent in enumerate(parents)), "some stay"
    for slot, parent in enumerate(parents):
        if sharing == "shared" or parent == slot:
            rows, most = before[parent], largest[parent]
        else:
            rows, most = (before[slot] > 0).float(), torch.tensor(1.0)
            assert int(rows.sum()) == loop.regime.replay.size[slot]
        assert equal(trees.levels[0][slot], rows)
        assert equal(trees.largest[slot], most)
    advance(loop, 20)
    assert trees.largest[1] < 1000
    rows, _ = trees.draw(torch.tensor([1]), torch.rand(1, 5000, dtype=torch.float64))
    assert len(rows.unique()) > 100, "of 300"


@pytest.mark.parametrize("sharing", ["own", "shared"])
@pytest.mark.thorough
def test_where_all_diverge_their_priorities_go_with_them(
    algo: str, sharing: Sharing, run: Callable[..., OffPolicy]
) -> None:
    loop = run(variant(algo, sharing, max_steps=100_000), 3)
    while not loop.clock.generation_over:
        loop.advance()
    for slot in range(3):
        populations.plant_weight(loop, slot)
    trees = loop.regime.replay.priorities
    assert trees is not None
    close_generation(loop)
    assert loop.lineage[-1].restored
    assert torch.equal(trees.levels[0].sum(dim=1).long(), torch.from_numpy(loop.regime.replay.filled([0, 1, 2])))
    assert trees.levels[0].unique().tolist() in ([1.0], [0.0, 1.0])
    assert trees.largest.tolist() == [1.0] * 3


@pytest.mark.thorough
def test_broken_steps_never_enter_the_memory(algo: str, run: Callable[..., OffPolicy]) -> None:
    if populations.env_for(algo) != "CartPole-v1":
        pytest.skip("the small environments that break have discrete actions")
    for env in ("NanReward", "NanObs", "HugeObs"):
        loop = run(variant(algo, "shared", env=f"envs_for_tests:{env}-v0", **LONG), 3)
        advance(loop, 30)
        assert loop.clock.broken > 0
        assert torch.isfinite(loop.regime.replay.rows).all()
        assert all(m.healthy for m in loop.members)


@pytest.mark.thorough
def test_a_run_on_fixed_buffers_is_the_eager_run(algo: str, run: Callable[..., OffPolicy]) -> None:
    p = variant(algo)
    eager, paths = run(p, 3), Paths("buffers")
    fixed = run(replace(p, paths=paths), 3)
    for _ in range(3):
        for loop in (eager, fixed):
            advance(loop, 23)
        assert equal_states(eager.state(), fixed.state()) == []
    assert paths.recorded > 3
    assert not paths.given_up


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["none", "buffers"])
def test_a_run_on_another_device_is_the_run_on_the_host(
    algo: str, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing in learning waits for the device."""
    monkeypatch.setitem(COSTS, DEVICE.type, COSTS["cuda"])
    monkeypatch.setitem(COSTS, "cpu", COSTS["cuda"])
    monkeypatch.setattr(optim, "_fused_is_sound", lambda: False)
    optim._take_layout_warning()
    p = variant(algo, cohorts="merged", learning_delay=20, evo_steps=128, max_steps=256)
    with Device() as device:
        there = begin(replace(p, device=DEVICE, paths=Paths(capture)), first_members(p, 3)[0])
        here = started(p, 3)
        for loop in (there, here):
            advance(loop, 12)
        device.waits.clear()
        advance(there, 10)
        assert device.waits == {"a copy from or to the host": 10 * len(there.cohorts)}
        advance(here, 10)
        assert equal_states(there.state(), here.state()) == []
        for loop in (there, here):
            finish(loop)
        assert equal_states(there.state(), here.state()) == []
        there.close()
        here.close()
