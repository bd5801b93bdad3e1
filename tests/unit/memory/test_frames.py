"""Images in a replay memory: what comes out is what a memory of plain numbers gives, and every frame is kept once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from device import DEVICE, Device, Recorder
from evopipe.core import optim
from evopipe.core.cohort import COSTS
from evopipe.core.graphs import Paths
from evopipe.data.transitions import Transitions
from evopipe.envs.pool import EnvPool
from evopipe.memory.nstep import NStep
from evopipe.memory.priorities import Priorities
from evopipe.memory.replay import Replay, RowLayout
from evopipe.problems.env import begin
from evopipe.regimes import learners
from evopipe.regimes.learn import _of_share, learn
from evopipe.regimes.off_policy import byte_images
from evopipe.regimes.offline import _pack
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec, first_members
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.types import Image
from populations import advance, close_generation, equal, equal_states, problem

CPU = torch.device("cpu")
IMAGES = (Image(1, 1, 2, 3), Image(9, 2, 2, 2))  # 6 and 8 bytes, vector columns before, between and behind them
OBS = 18
PIXELS = np.r_[1:7, 9:17]


class Games:
    """Random episodes in `n` environments, as rows: every column of an image is a byte / 255."""

    def __init__(self, layout: RowLayout, n: int, length: int, values: int = 256, seed: int = 0) -> None:
        self.layout, self.n, self.length, self.values = layout, n, length, values
        self.random = np.random.default_rng(seed)
        self.obs = self.observe()
        self.episodes, self.steps = n, 0

    def observe(self) -> np.ndarray:
        obs = self.random.standard_normal((self.n, OBS)).astype(np.float32)
        obs[:, PIXELS] = self.random.integers(self.values, size=(self.n, len(PIXELS))).astype(np.uint8) / np.float32(
            255
        )
        return obs

    def tick(self, broken: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """One step everywhere; an episode ends at every step with the chance 1 / length, or breaks."""
        after = self.observe()
        over = self.random.random(self.n) < 1 / self.length
        lost = self.random.random(self.n) < broken
        action, reward = self.random.integers(3, size=self.n), self.random.standard_normal(self.n)
        rows = self.layout.pack(self.obs, action, reward, over, after)
        rows[lost, self.random.integers(rows.shape[1])] = np.nan
        self.obs = np.where((over | lost)[:, None], self.observe(), after)
        self.episodes, self.steps = self.episodes + int((over | lost).sum()), self.steps + self.n
        return rows, ~lost | (self.random.random(self.n) < 0.5)


LAYOUT = RowLayout(OBS, 3, masked=False)


class Walks:
    """Random episodes in `n` environments that terminate, are cut and break, as transitions over several steps."""

    def __init__(self, steps: int, n: int, length: float, seed: int = 0) -> None:
        self.layout = RowLayout(OBS, 3, masked=False, steps=steps)
        self.games, self.chance = Games(self.layout, n, 1, seed=seed), 1 / length
        self.window = NStep(self.layout, n) if steps > 1 else None
        self.episodes = self.rows = 0

    def tick(self, broken: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """One step everywhere: an episode ends with the chance 1 / length, half of them terminate."""
        random, n, obs, after = self.games.random, self.games.n, self.games.obs, self.games.observe()
        over, lost = random.random(n) < self.chance, random.random(n) < broken
        terminated = over & (random.random(n) < 0.5)
        action, reward = random.integers(3, size=n), random.standard_normal(n).astype(np.float32)
        if self.window is None:
            rows, keep = self.layout.pack(obs, action, reward, terminated, after)[:, None], ~lost[:, None]
        else:
            rows, keep = self.window.add(obs, action, reward, terminated, over & ~terminated, after, None, lost)
        self.games.obs = np.where((over | lost)[:, None], self.games.observe(), after)
        self.episodes, self.rows = self.episodes + int((over | lost).sum()), self.rows + int(keep.sum())
        return rows, keep


def pair(memories: int, capacity: int, layout: RowLayout = LAYOUT) -> tuple[Replay, Replay]:
    """A memory of plain numbers, and one of frames."""
    return Replay(layout, memories, capacity, CPU), Replay(layout, memories, capacity, CPU, images=IMAGES)


def whole(memory: Replay) -> list[bytes]:
    """Every filled row of every memory, sampled."""
    found = []
    for slot, size in enumerate(memory.size.tolist()):
        u = ((torch.arange(size, dtype=torch.float64) + 0.5) / size).view(1, 1, size)
        found.append(memory.sample([slot], u).numpy().tobytes())
    return found


def grow(memories: tuple[Replay, ...], games: Games | Walks, broken: float = 0.0) -> None:
    rows, keep = games.tick(broken)
    for memory in memories:
        memory.add(rows.reshape(memory.memories, -1, games.layout.size), keep.reshape(memory.memories, -1))


@pytest.mark.parametrize(
    ("memories", "length", "capacity", "broken", "values"),
    [
        (1, 1, 1, 0.2, 256),
        (3, 1, 64, 0.0, 256),
        (1, 1.2, 17, 0.2, 2),
        (3, 1.2, 2, 0.2, 256),
        (3, 4, 1, 0.0, 256),
        (1, 4, 5, 0.2, 256),
        (1, 4, 64, 0.2, 2),
        (3, 4, 17, 0.0, 256),
        (1, 1000, 2, 0.0, 256),
        (3, 1000, 5, 0.2, 2),
        (1, 1000, 64, 0.2, 256),
    ],
)
def test_rows_come_out_as_they_came_in(memories: int, length: int, capacity: int, broken: float, values: int) -> None:
    plain, framed = pair(memories, capacity)
    games = Games(LAYOUT, 6, length, values, seed=capacity)
    for _ in range(60):
        grow((plain, framed), games, broken)
        assert framed.size.tolist() == plain.size.tolist()
        assert whole(framed) == whole(plain)
    assert plain.size.tolist() == [capacity] * memories, "the ring went round"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("steps", "capacity", "length", "memories"),
    [
        (1, 4, 4, 1),
        (1, 40, 1.5, 3),
        (2, 1, 4, 3),
        (2, 40, 30, 1),
        (3, 4, 30, 3),
        (3, 40, 4, 3),
        (3, 1, 1.5, 1),
        (5, 40, 4, 1),
        (5, 4, 1.5, 3),
        (5, 1, 30, 1),
    ],
)
def test_transitions_over_several_steps_come_out_as_they_came_in(
    steps: int, capacity: int, length: float, memories: int
) -> None:
    walks = Walks(steps, 6, length, seed=capacity)
    plain, framed = pair(memories, capacity, walks.layout)
    for _ in range(120):
        grow((plain, framed), walks, 0.05)
        assert whole(framed) == whole(plain)
    assert plain.size.tolist() == [capacity] * memories
    assert walks.rows > 5 * capacity * memories or capacity == 40, "the ring went round several times"


@pytest.mark.parametrize("memories", [1, 2])
def test_episodes_of_one_step_fill_the_room_and_no_more(memories: int) -> None:
    plain, framed = pair(memories, 7)
    games = Games(LAYOUT, 4, 1)
    for tick in range(1, 40):
        grow((plain, framed), games)
        assert framed.frames is not None
        assert framed.frames.used == 2 * int(plain.size.sum())
        assert whole(framed) == whole(plain), tick
    assert framed.frames.used == len(framed.frames.store) == 2 * 7 * memories


def test_a_frame_is_kept_once() -> None:
    _, framed = pair(1, 10_000)
    games = Games(LAYOUT, 8, 20)
    for _ in range(1000):
        grow((framed,), games)
    assert framed.frames is not None
    # One for every transition, one more for every episode; of those that begin after the last step none was seen yet.
    assert games.steps + games.episodes - games.n <= framed.frames.used <= games.steps + games.episodes
    assert len(torch.unique(framed.frames.store[: framed.frames.used], dim=0)) == framed.frames.used


@pytest.mark.parametrize(("steps", "length", "memories"), [(1, 20, 4), (3, 2, 1), (3, 20, 4), (5, 2, 4), (5, 20, 1)])
@pytest.mark.thorough
def test_a_frame_is_kept_once_however_many_steps_a_transition_spans(steps: int, length: int, memories: int) -> None:
    walks = Walks(steps, 8, length)
    _, framed = pair(memories, 10_000, walks.layout)
    for _ in range(500):
        grow((framed,), walks)
    assert framed.frames is not None
    # One for every transition and one more for every episode; those under way have begun up to n that end nothing yet.
    assert walks.rows + walks.episodes <= framed.frames.used <= walks.rows + walks.episodes + 8 * steps
    assert len(torch.unique(framed.frames.store[: framed.frames.used], dim=0)) == framed.frames.used


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [3, 5])
def test_a_full_memory_of_several_steps_takes_no_more_places(steps: int) -> None:
    walks = Walks(steps, 8, 20)
    _, framed = pair(1, 1000, walks.layout)
    for _ in range(1000):
        grow((framed,), walks)
    assert framed.frames is not None
    assert walks.rows > 7000
    assert framed.frames.used < 1.05 * 1000 + 2 * 8 * steps + 50, "episodes, both ends of the ring, and chance"


@pytest.mark.parametrize(("ticks", "memories"), [(1, 1), (2, 3), (4, 1), (30, 3)])
def test_a_restored_memory_of_several_steps_goes_on_exactly(ticks: int, memories: int) -> None:
    walks = Walks(3, 6, 5)
    plain, framed = pair(memories, 20, walks.layout)
    for _ in range(ticks):
        grow((plain, framed), walks, 0.1)
    _, other = pair(memories, 20, walks.layout)
    other.restore(framed.state())
    for _ in range(30):
        grow((plain, framed, other), walks, 0.1)
        assert whole(other) == whole(plain)
        assert equal_states((framed.state(), {}), (other.state(), {})) == []


def test_a_full_memory_takes_no_more_places() -> None:
    _, framed = pair(1, 400)
    games = Games(LAYOUT, 8, 20)
    used = []
    for _ in range(1000):
        grow((framed,), games)
        assert framed.frames is not None
        used.append(framed.frames.used)
    assert used[-1] < 1.25 * 400, "one in 20 begins an episode; 5 % and what chance adds"


def test_bytes_of_a_transition() -> None:
    layout = RowLayout(4 * 84 * 84, 6, masked=False)
    framed = Replay(layout, 1, 8, CPU, images=(Image(0, 4, 84, 84),))
    assert framed.frames is not None
    assert framed.frames.store.dtype == torch.uint8
    assert framed.frames.size == 28_224
    assert framed.rows.nbytes / 8 == 4 * 3, "action, reward, terminated"
    assert framed.frames.places.nbytes / 8 == 16
    assert Replay(layout, 1, 8, CPU).rows.nbytes / 8 == 4 * (2 * 28_224 + 3), "eight times as much"


def test_every_byte_comes_back() -> None:
    layout = RowLayout(256, 2, masked=False)
    obs = np.arange(256, dtype=np.uint8)[None] / np.float32(255)
    rows = layout.pack(obs, np.zeros(1), np.zeros(1), np.zeros(1), obs[:, ::-1])
    framed = Replay(layout, 1, 1, CPU, images=(Image(0, 1, 16, 16),))
    framed.add(rows[None], np.ones((1, 1), bool))
    assert framed.sample([0], torch.zeros(1, 1, 1, dtype=torch.float64)).numpy().tobytes() == rows.tobytes()


def test_an_environment_that_paused_does_not_find_its_frame_in_a_place_that_serves_another() -> None:
    memories = pair(1, 2)
    rows = Games(LAYOUT, 7, 1).tick()[0]
    rows[5, :OBS] = rows[0, OBS : 2 * OBS]  # where the paused one goes on, its last frame having left the memory
    for number, source in enumerate([0, 1, 1, 1, 1, 0, 1]):
        both = np.stack([rows[number]] * 2)
        for memory in memories:
            memory.add(both[None], np.arange(2)[None] == source)
        assert whole(memories[1]) == whole(memories[0])


def test_numbers_that_are_no_bytes_become_the_nearest() -> None:
    """No environment that keeps to its space has such."""
    layout = RowLayout(4, 2, masked=False)
    obs = np.array([[0.3999, 0.5999, -3.0, 3e38]], np.float32)
    framed = Replay(layout, 1, 1, CPU, images=(Image(0, 1, 2, 2),))
    framed.add(layout.pack(obs, np.zeros(1), np.zeros(1), np.zeros(1), obs)[None], np.ones((1, 1), bool))
    assert framed.frames is not None
    assert framed.frames.store[0].tolist() == [102, 153, 0, 255]


def test_a_sequence_added_at_once_keeps_its_frames_once() -> None:
    """As a warm start does: the rows are one environment's, one after another."""
    plain, framed = pair(1, 500)
    games = Games(LAYOUT, 1, 25)
    rows = np.concatenate([games.tick()[0] for _ in range(300)])
    for memory in (plain, framed):
        memory.add(rows[None], np.ones((1, 300), bool), each=300)
    assert framed.frames is not None
    assert framed.frames.used <= 300 + games.episodes
    several = Games(LAYOUT, 4, 3, seed=1)
    for _ in range(200):
        grow((plain, framed), several)
        assert whole(framed) == whole(plain)


def parts(steps: int, rows: int) -> tuple[RowLayout, list[np.ndarray]]:
    """Transitions of one environment in order of time, in parts of one to seven."""
    walks, found = Walks(steps, 1, 6), list[np.ndarray]()
    while len(found) < rows:
        made, keep = walks.tick()
        found += list(made[keep])
    sizes = np.random.default_rng(1).integers(1, 8, size=rows).cumsum()
    return walks.layout, np.split(np.stack(found), sizes[sizes < len(found)])


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_sequence_added_in_parts_keeps_its_frames_once(steps: int) -> None:
    """Where parts meet, the place in the ring of an environment's last frames is what it is within one."""
    layout, added = parts(steps, 200)
    _, framed = pair(1, 1000, layout)
    for part in added:
        framed.add(part[None], np.ones((1, len(part)), bool), each=len(part))
    assert framed.frames is not None
    rows = np.concatenate(added)
    images = np.concatenate((rows[:, PIXELS], rows[:, OBS + PIXELS]))
    # An episode's last frame comes again where parts meet between the transitions that share it.
    ends = [(before[-1, OBS + PIXELS], after[0, OBS + PIXELS]) for before, after in itertools.pairwise(added)]
    again = sum(np.array_equal(last, first) for last, first in ends)
    assert framed.frames.used == len(np.unique(images, axis=0)) + again


@pytest.mark.parametrize("steps", [1, 3])
def test_rows_that_share_a_frame_each_count_for_it(steps: int) -> None:
    """A memory that counts anew, as one does that was restored, lets go of the same frames at the same time."""
    layout, added = parts(steps, 200)
    plain, framed = pair(1, 30, layout)
    _, restored = pair(1, 30, layout)
    for part in added:
        restored.restore(framed.state())
        for memory in (plain, framed, restored):
            memory.add(part[None], np.ones((1, len(part)), bool), each=len(part))
        assert equal_states((framed.state(), {}), (restored.state(), {})) == []
        assert whole(framed) == whole(plain)


@pytest.mark.parametrize(("memories", "ticks"), [(1, 0), (3, 3), (1, 50), (3, 50)])
def test_a_restored_memory_goes_on_exactly(memories: int, ticks: int, tmp_path: Path) -> None:
    plain, framed = pair(memories, 20)
    games = Games(LAYOUT, 6, 5)
    for _ in range(ticks):
        grow((plain, framed), games, 0.1)
    CheckpointStore(tmp_path).save(1, framed.state(), {})
    loaded = CheckpointStore(tmp_path).load()
    assert loaded is not None
    _, other = pair(memories, 20)
    grow((other,), Games(LAYOUT, 6, 2, seed=9))  # what was there before is forgotten
    other.restore(loaded.tensors)
    for _ in range(30):
        grow((plain, framed, other), games, 0.1)
        assert whole(other) == whole(plain)
        assert equal_states((framed.state(), {}), (other.state(), {})) == []


def test_a_saved_state_does_not_change_with_the_memory() -> None:
    _, framed = pair(1, 20)
    games = Games(LAYOUT, 6, 5)
    for _ in range(5):
        grow((framed,), games)
    state = framed.state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    _, other = pair(1, 20)
    other.restore(state)
    for _ in range(9):
        grow((framed, other), games)
    assert all(torch.equal(before[name], state[name]) for name in state)


def test_a_memory_stays_in_its_tensors() -> None:
    """A recorded graph reads them by address."""
    _, framed = pair(2, 10)
    games = Games(LAYOUT, 4, 3)
    tensors = framed.tensors()
    at = [tensor.data_ptr() for tensor in tensors]
    assert len(tensors) == 3
    for _ in range(20):
        grow((framed,), games)
    framed.restore(framed.state())
    assert all(a is b for a, b in zip(tensors, framed.tensors(), strict=True))
    assert at == [tensor.data_ptr() for tensor in framed.tensors()]


# ------------------------------------------------------------------------------------------------------------ runs


class Picture(gymnasium.Env[Any, Any]):
    """Noise to look at: bytes, bools and floats as images, beside a vector. Some steps are broken."""

    def __init__(self, plain: bool = False) -> None:
        parts = {
            "bytes": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "dark": spaces.Box(0, 100, (6, 5, 1), np.uint8),
            "flags": spaces.Box(0, 1, (1, 6, 5), bool),
            "floats": spaces.Box(0.0, 1.0, (6, 5, 1), np.float32),
            "vector": spaces.Box(-9.0, 9.0, (2,), np.float32),
        }
        self.observation_space = spaces.Dict(parts) if not plain else parts["floats"]
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chance = self.np_random.random()
        reward = float("nan") if chance > 0.98 else float(action)
        return self.observation_space.sample(), reward, chance < 0.1, False, {}


gymnasium.register("Picture-v0", Picture, max_episode_steps=20)


def pictures(**train: Any) -> EnvSpec:
    network = {"conv": [{"channels": 4, "kernel": 3, "stride": 1}], "encoder": [8], "latent": 8}
    small = {"evo_steps": 60, "max_steps": 120, "learning_delay": 20, "eval_steps": 5, **train}
    config = {"network": network, "batch_size": 8, "learn_step": 4}
    return problem("Picture-v0", train=small, config=config, num_envs=4)


def memory_of(sharing: str = "shared", **more: Any) -> dict[str, Any]:
    return {"replay": {"capacity": 50, "sharing": sharing, **more}}


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


def begun(p: EnvSpec, warm: Transitions | None = None, processes: int = 1, framed: bool = True) -> Run:
    run = begin(p, first_members(p, 3)[0], warm, learners=processes)
    if not framed:
        old = run.regime.replay
        trees = None if old.priorities is None else Priorities(3, old.capacity, old.priorities.alpha, CPU)
        run.regime.replay = Replay(old.layout, old.memories, old.capacity, CPU, trees)
        take_over(run)
    return run


def take_over(run: Run) -> None:
    """Let a run learn from another memory that its regime was given."""
    run.regime.learning.replay = run.regime.replay
    run.regime.learners._ready = partial(_of_share, run.spec, run.regime.replay)


def trained(run: Run) -> list[torch.Tensor]:
    """Go through a generation and into the next."""
    advance(run, 15)
    close_generation(run)
    advance(run, 9)
    return [tensor for member in run.members for tensor in member.tensors.values()]


def test_which_images_are_bytes() -> None:
    pool = EnvPool(pictures().env, 1)
    assert [(image.channels, image.height) for image in byte_images(pool)] == [(3, 6), (1, 6)], "bytes and flags"
    assert [image.start for image in byte_images(pool)] == [0, 120]
    for env, kwargs in (("CartPole-v1", {}), ("Picture-v0", {"plain": True})):
        assert byte_images(EnvPool(problem(env, kwargs=kwargs).env, 1)) == []


@pytest.mark.parametrize(
    ("sharing", "more"),
    [
        ("own", {}),
        ("shared", {"n_step": 3}),
        ("own", {"prioritised": True}),
        ("own", {"n_step": 3, "prioritised": True}),
    ],
)
@pytest.mark.thorough
def test_a_run_is_that_of_a_memory_of_plain_numbers(sharing: str, more: dict[str, Any], runs: list[Run]) -> None:
    p = pictures(**memory_of(sharing, **more))
    runs += [begun(p), begun(p, framed=False)]
    (a, b), ran = map(trained, runs), runs[0]
    assert ran.regime.replay.frames is not None
    assert runs[1].regime.replay.frames is None
    assert ran.regime.replay.size.tolist() == [50] * (1 if sharing == "shared" else 3)
    assert all(equal(x, y) for x, y in zip(a, b, strict=True))
    assert whole(ran.regime.replay) == whole(runs[1].regime.replay)
    assert ran.clock.broken > 0


@pytest.mark.parametrize("more", [{}, {"n_step": 3, "prioritised": True}])
@pytest.mark.thorough
def test_a_run_goes_on_bit_for_bit(more: dict[str, Any], runs: list[Run]) -> None:
    p = pictures(**memory_of(**more))
    runs += [begun(p), begun(p)]
    unbroken, resumed = runs
    advance(unbroken, 11)
    assert resumed.restore(*unbroken.state()) == 0
    for run in runs:
        trained(run)
    assert equal_states(unbroken.state(), resumed.state()) == []


@pytest.mark.thorough
def test_no_bit_depends_on_how_many_processes_learn(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "LEAST_WORK", 0.0)
    p = pictures(**memory_of())
    runs += [begun(p), begun(p, processes=3)]
    for run in runs:
        advance(run, 14)
    assert runs[1].regime.learners._helpers, "the work was divided"
    assert equal_states(runs[0].state(), runs[1].state()) == []
    for run in runs:
        trained(run)
    assert equal_states(runs[0].state(), runs[1].state()) == []


@pytest.mark.thorough
def test_fixed_tensors_change_nothing(runs: list[Run]) -> None:
    p, paths = pictures(**memory_of()), Paths("buffers")
    runs += [begun(p), begun(replace(p, paths=paths))]
    for run in runs:
        trained(run)
    assert paths.recorded > 0
    assert equal_states(runs[0].state(), runs[1].state()) == []


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The second device, grouped like a CPU, with the optimiser that a GPU gets on both."""
    monkeypatch.setitem(COSTS, DEVICE.type, COSTS["cpu"])
    monkeypatch.setattr(optim, "_fused_is_sound", lambda: False)
    optim._take_layout_warning()
    with Device() as made:
        yield made


@pytest.mark.thorough
def test_a_graph_sees_frames_that_come_later(device: Device) -> None:
    p = pictures()
    (formed,) = replace(p, device=DEVICE).form(first_members(p, 3)[0])
    remote, (local,) = replace(formed, runner=Recorder(device)), p.form(first_members(p, 3)[0])
    layout, images = RowLayout.of(p.spaces, False), byte_images(EnvPool(p.env, 1))
    there, here = (Replay(layout, 1, 20, at, images=images) for at in (DEVICE, CPU))
    g, obs = np.random.default_rng(0), np.zeros((4, p.observations), np.float32)
    for tick in range(6):
        after = g.integers(2, size=obs.shape).astype(np.float32)
        rows = layout.pack(obs, g.integers(2, size=4), g.standard_normal(4), g.random(4) < 0.2, after)
        for replay in (there, here):
            replay.add(rows[None], np.ones((1, 4), bool))
        losses = learn(replace(p, device=DEVICE), remote, there, tick, 2)
        expected = learn(p, local, here, tick, 2)
        assert losses.tolist() == expected.tolist()
        obs = after


def test_a_warm_start_is_kept_as_frames(runs: list[Run]) -> None:
    p = pictures(**memory_of("own"))
    pool = EnvPool(p.env, 1)
    pool.reset(np.arange(1), np.zeros(1, np.int64))
    steps = [(pool.obs.copy(), pool.step(np.zeros(1, np.int64)).obs.copy()) for _ in range(5)]
    obs, after = (np.concatenate(part) for part in zip(*steps, strict=True))
    ends = np.zeros(5, bool)
    warm = Transitions(obs, np.zeros(5, np.int64), np.ones(5, np.float32), ends, ends, after, np.zeros(5, np.int64))
    run = begun(p, warm)
    runs.append(run)
    assert run.regime.replay.frames is not None
    assert run.regime.replay.frames.used == 3 * 6, "every member's own"
    rows = run.regime.replay.sample([0, 1, 2], (torch.arange(5, dtype=torch.float64) / 5 + 0.1).expand(3, 1, 5))
    for member in rows[:, 0].numpy():
        np.testing.assert_array_equal(member[:, : p.observations], obs)
        np.testing.assert_array_equal(member[:, p.observations : 2 * p.observations], after)


# -------------------------------------------------------------------------------------------------------- datasets


def recorded(p: EnvSpec, n: int = 90, seed: int = 0) -> Transitions:
    """Episodes of what a `Picture` shows, that terminate or are cut."""
    random = np.random.default_rng(seed)
    episode = np.concatenate(([0], np.cumsum(random.random(n) < 0.15)[:-1]))
    ends = np.append(episode[1:] != episode[:-1], True)
    terminated = ends & (random.random(n) < 0.5)
    shown = random.standard_normal((n + episode[-1] + 1, p.observations)).astype(np.float32)
    for image in byte_images(EnvPool(p.env, 1)):
        pixels = random.integers(256, size=(len(shown), image.size)).astype(np.uint8)
        shown[:, image.start : image.start + image.size] = pixels / np.float32(255)
    at = np.arange(n) + episode
    reward = random.standard_normal(n).astype(np.float32)
    action = random.integers(2, size=n)
    return Transitions(shown[at], action, reward, terminated, ends & ~terminated, shown[at + 1], episode)


def studied(p: EnvSpec, data: Transitions, framed: bool = True, processes: int = 1) -> Run:
    run = begin(p, first_members(p, 3)[0], data, learners=processes)
    if not framed:
        trees = run.regime.replay.priorities
        run.regime.replay = Replay(run.regime.replay.layout, 1, len(data), CPU, trees)
        run.regime.replay._flat.copy_(torch.from_numpy(np.concatenate([*_pack(run.regime.replay.layout, data)])))
        run.regime.replay.size[:] = len(data)
        take_over(run)
    return run


@pytest.mark.parametrize(("steps", "rows"), [(1, 7), (1, 100), (3, 1), (3, 8), (5, 7), (5, 100)])
def test_a_dataset_is_kept_as_frames_each_once(
    steps: int, rows: int, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = pictures(mode="offline", **memory_of(n_step=steps))
    monkeypatch.setattr("evopipe.regimes.offline._PART", 4 * RowLayout.of(p.spaces, False, steps).size * rows)
    data = recorded(p)
    runs.append(studied(p, data))
    frames = runs[0].regime.replay.frames
    assert frames is not None
    once = len(data) + int(data.episode[-1]) + 1  # one a transition, one more an episode
    assert once <= frames.used <= once + (len(data) - 1) // rows, "where parts meet, an episode's last may come again"
    assert whole(runs[0].regime.replay) == [np.concatenate([*_pack(runs[0].regime.replay.layout, data)]).tobytes()]


@pytest.mark.parametrize("more", [{}, {"n_step": 3}, {"prioritised": True}, {"n_step": 3, "prioritised": True}])
@pytest.mark.thorough
def test_offline_training_is_that_on_plain_numbers(more: dict[str, Any], runs: list[Run]) -> None:
    p = pictures(mode="offline", **memory_of(**more))
    data = recorded(p)
    runs += [studied(p, data), studied(p, data, framed=False)]
    a, b = map(trained, runs)
    assert runs[0].regime.replay.frames is not None
    assert all(equal(x, y) for x, y in zip(a, b, strict=True))
    assert equal_states(runs[0].state(), runs[1].state()) == []


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.thorough
def test_a_checkpoint_of_offline_training_holds_no_dataset(prioritised: bool, runs: list[Run]) -> None:
    p = pictures(mode="offline", **memory_of(n_step=3, prioritised=prioritised))
    runs += [studied(p, recorded(p)) for _ in range(2)]
    unbroken, resumed = runs
    advance(unbroken, 11)
    tensors, meta = unbroken.state()
    kept = {name for name in tensors if name.startswith("replay")}
    assert kept == ({"replay.priorities", "replay.largest"} if prioritised else set())
    advance(resumed, 3)
    resumed.restore(tensors, meta)
    for run in runs:
        trained(run)
    assert equal_states(unbroken.state(), resumed.state()) == []


def test_several_processes_learn_the_same_from_a_dataset(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "LEAST_WORK", 0.0)
    p = pictures(mode="offline", **memory_of())
    runs += [studied(p, recorded(p), processes=n) for n in (1, 2)]
    for run in runs:
        advance(run, 14)
    assert runs[1].regime.learners._helpers, "the work was divided"
    assert equal_states(runs[0].state(), runs[1].state()) == []


@pytest.mark.parametrize(
    ("where", "value"), [("obs", 0.5), ("next_obs", -1 / 255), ("obs", 256 / 255), ("next_obs", -0.0)]
)
def test_a_dataset_whose_images_are_no_bytes_stays_as_it_is(where: str, value: float, runs: list[Run]) -> None:
    p = pictures(mode="offline", **memory_of())
    data = recorded(p)
    getattr(data, where)[80, 120] = value  # the flags
    runs.append(studied(p, data))
    assert runs[0].regime.replay.frames is not None
    assert [image.start for image in runs[0].regime.replay.frames.images] == [0]
    assert whole(runs[0].regime.replay) == [np.concatenate([*_pack(runs[0].regime.replay.layout, data)]).tobytes()]
    online = pictures(warm_start=90, replay={"capacity": 100, "sharing": "shared"})
    runs.append(begun(online, data))
    assert whole(runs[1].regime.replay) == [np.concatenate([*_pack(runs[1].regime.replay.layout, data)]).tobytes()]
