"""Hindsight experience replay: rows of hand-made episodes against loops over the paper's algorithm 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evopipe import rng
from evopipe.memory.hindsight import Hindsight, Strategy, chosen
from evopipe.memory.replay import Replay, RowLayout
from evopipe.rng import Purpose
from evopipe.types import Image

KEYS = rng.member_keys(5, [0, 1])
ENVS, SEEN = 2, 4  # an observation: what is achieved, two other numbers, what is desired


class Near:
    """Goals of one number: near is worth 1, and ends the episode where `ends` says so."""

    achieved, desired = slice(0, 1), slice(3, 4)

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def outcome(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        near = (np.abs(achieved - desired) < 1.5)[:, 0]
        return near.astype(np.float32), near if self.ends else None


class Episodes:
    """Episodes of four environments, two of each member, whose numbers tell where they are from."""

    layout = RowLayout(SEEN, 3, masked=False)

    def __init__(self, seed: int = 0) -> None:
        self.g = np.random.default_rng(seed)
        self.begun = np.ones(4, np.int64)
        self.obs = self._first(4)
        self.episodes: list[list[dict[str, Any]]] = [[] for _ in range(4)]

    def _first(self, n: int) -> np.ndarray:
        return self.g.integers(0, 9, (n, SEEN)).astype(np.float32)

    def tick(self, at: np.ndarray, over: np.ndarray, keep: np.ndarray | None = None) -> tuple[Any, ...]:
        """One step of these environments, as arguments of `add`."""
        n = len(at)
        keep = np.ones(n, bool) if keep is None else keep
        after = self._first(n)
        after[:, 3] = self.obs[at, 3]  # the goal stays
        action, reward, ends = self.g.integers(3, size=n), np.full(n, -7.0, np.float32), over & (self.g.random(n) < 0.5)
        rows = self.layout.pack(self.obs[at], action, reward, ends, after)
        for i, env in enumerate(at):
            if keep[i]:
                step = {"obs": self.obs[env].copy(), "action": action[i], "ends": ends[i], "after": after[i].copy()}
                self.episodes[env].append(step)
        given = at, rows, keep, over, self.begun[at].copy()
        self.obs[at] = after
        return given

    def finish(self, envs: np.ndarray) -> None:
        for env in envs:
            self.episodes[env] = []
            self.begun[env] += 1
            self.obs[env] = self._first(1)[0]


def by_hand(episodes: Episodes, env: int, k: int, strategy: Strategy, goals: Near) -> np.ndarray:
    """An episode's rows, one after another."""
    steps = episodes.episodes[env]
    when = torch.tensor([int(episodes.begun[env]) * ENVS + env % ENVS])
    key = torch.from_numpy(KEYS[env // ENVS : env // ENVS + 1])
    u = rng.uniform(key, Purpose.HINDSIGHT, when, len(steps) * k).flatten().tolist()
    rows = []
    for t, step in enumerate(steps):
        for j in range(k):
            first = {"future": t, "episode": 0, "final": len(steps) - 1}[strategy]
            other = steps[first + int(u[t * k + j] * (len(steps) - first))]["after"][0]
            obs, after = step["obs"].copy(), step["after"].copy()
            obs[3] = after[3] = other
            near = abs(after[0] - other) < 1.5
            rows.append([*obs, *after, step["action"], float(near), float(near if goals.ends else step["ends"])])
    return np.array(rows, np.float32)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("strategy", ["future", "episode", "final"])
def test_rows_are_those_of_the_paper_written_out_by_hand(strategy: Strategy, ends: bool) -> None:
    """Episodes of 1 to 9 steps side by side: no goal is of another episode, environment or member."""
    k, goals, made, g = 1 if strategy == "final" else 3, Near(ends), Episodes(), np.random.default_rng(1)
    hindsight, ended = Hindsight(made.layout, goals, KEYS, ENVS, k, strategy), 0
    every = np.arange(4)
    for tick in range(60):
        over = g.random(4) < 0.25
        found, envs = hindsight.add(*made.tick(every, over))
        expected = [by_hand(made, env, k, strategy, goals) for env in np.flatnonzero(over)]
        assert np.array_equal(found, np.concatenate([np.zeros((0, made.layout.size), np.float32), *expected])), tick
        assert envs.tolist() == [env for env in np.flatnonzero(over) for _ in range(k * len(made.episodes[env]))]
        ended += len(expected)
        made.finish(np.flatnonzero(over))
    assert ended > 20


def test_steps_that_are_left_out_are_no_goals_and_some_may_wait() -> None:
    """A broken step ends its episode without a row; environments of members that wait keep their episodes."""
    made, goals = Episodes(), Near(True)
    hindsight, none = Hindsight(made.layout, goals, KEYS, ENVS, 2, "future"), np.zeros(4, bool)
    hindsight.add(*made.tick(np.arange(4), none))
    hindsight.add(*made.tick(np.array([2, 3]), none[:2]))  # the first member waits
    broken = np.array([True, False, True, False])
    found, envs = hindsight.add(*made.tick(np.arange(4), broken, ~broken))
    assert envs.tolist() == [0] * 2 + [2] * 4
    assert np.array_equal(found, np.concatenate([by_hand(made, env, 2, "future", goals) for env in (0, 2)]))
    made.finish(np.array([0, 2]))
    found, envs = hindsight.add(*made.tick(np.arange(4), broken, ~broken))  # of nothing nothing is made
    assert found.shape == (0, made.layout.size)
    assert envs.size == 0
    hindsight.forget(np.array([1]))
    made.episodes[1] = []
    found, envs = hindsight.add(*made.tick(np.array([1]), np.ones(1, bool)))
    assert np.array_equal(found, by_hand(made, 1, 2, "future", goals))
    assert len(found) == 2


def test_future_goals_are_even_from_this_step_to_the_last() -> None:
    u = (np.arange(1000) + 0.5)[None].repeat(5, axis=0) / 1000
    steps = chosen(5, u, "future")
    for t, row in enumerate(steps):
        counts = np.bincount(row, minlength=5)
        assert counts[:t].sum() == 0
        assert np.ptp(counts[t:]) <= 1
    assert chosen(5, np.full((5, 1), 1 - 2.0**-53), "future").ravel().tolist() == [4] * 5
    assert chosen(5, np.zeros((5, 1)), "future").ravel().tolist() == [*range(5)]


def test_episodes_that_run_come_back_from_their_state() -> None:
    """Beyond the steps that there is room for at first, too."""
    made = Episodes()
    whole = Hindsight(made.layout, Near(True), KEYS, ENVS, 2, "future")
    for tick in range(150):
        over = np.array([False, tick % 7 == 6, False, False])
        whole.add(*made.tick(np.arange(4), over))
        made.finish(np.flatnonzero(over))
    state = whole.state()
    assert state["length"].tolist() == [150, 3, 150, 150]
    again = Hindsight(made.layout, Near(True), KEYS, ENVS, 2, "future")
    again.add(*Episodes(3).tick(np.arange(4), np.zeros(4, bool)))  # whatever it held is gone
    again.restore({name: array.copy() for name, array in state.items()})
    step = made.tick(np.arange(4), np.ones(4, bool))
    (found, envs), (also, too) = whole.add(*step), again.add(*step)
    assert np.array_equal(found, also)
    assert np.array_equal(envs, too)
    assert len(found) == 2 * (151 * 3 + 4)


@pytest.mark.parametrize("images", [[], [Image(1, 1, 1, 2)]])
def test_rows_go_round_the_ring_of_their_memory(images: list[Image]) -> None:
    """Buffers of 10 rows get 1 to 8, or 14 of which the last ones stay, in their order; frames too."""
    layout, g = Episodes.layout, np.random.default_rng(2)
    replay = Replay(layout, 2, 10, torch.device("cpu"), images=images)
    kept: list[list[np.ndarray]] = [[], []]
    for n in (3, 8, 14, 1, 5):
        memory, rows = g.integers(2, size=n), g.integers(0, 2, (n, layout.size)).astype(np.float32)
        replay.add_of(memory, rows)
        for m, row in zip(memory, rows, strict=True):
            kept[m] = [*kept[m], row][-10:]
        for m in range(2):
            size, at = int(replay.size[m]), int(replay.position[m])
            assert size == len(kept[m])
            index = torch.arange(at - size, at)[None] % 10
            assert np.array_equal(
                replay._rows(index, torch.tensor([10 * m]))[0].numpy(), np.array(kept[m]).reshape(-1, layout.size)
            )
