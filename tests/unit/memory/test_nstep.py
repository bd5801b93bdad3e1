"""Transitions over several steps, against brute force over whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from evopipe.memory.nstep import NStep
from evopipe.memory.replay import RowLayout
from evopipe.types import Spaces

pytestmark = pytest.mark.numerical

GAMMAS = (0.5, 0.99, 1.0, 0.0)  # one a member
ROWS, OBS, A = 6, 3, 4


@dataclass
class Tick:
    """One step of all rows, `[R, …]`."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: np.ndarray
    next_legal: np.ndarray | None
    broken: np.ndarray
    legal: np.ndarray | None

    @property
    def over(self) -> np.ndarray:
        over: np.ndarray = self.terminated | self.truncated | self.broken
        return over


def play(seed: int, ticks: int, ends: float, masked: bool = False, continuous: bool = False) -> list[Tick]:
    """Random episodes: a share `ends` of the steps terminates, as many are cut, some fewer are broken."""
    rng = np.random.default_rng(seed)
    obs, found = rng.uniform(-1, 1, (ROWS, OBS)).astype(np.float32), []
    for _ in range(ticks):
        broken = rng.random(ROWS) < ends / 3
        next_obs = rng.uniform(-1, 1, (ROWS, OBS)).astype(np.float32)
        reward = rng.uniform(-1, 1, ROWS)
        next_obs[broken & (rng.random(ROWS) < 0.5)] = np.nan
        reward[broken & (rng.random(ROWS) < 0.5)] = np.inf
        tick = Tick(
            obs=obs,
            action=rng.uniform(-1, 1, (ROWS, A)).astype(np.float32) if continuous else rng.integers(A, size=ROWS),
            reward=reward,
            terminated=rng.random(ROWS) < ends,
            truncated=rng.random(ROWS) < ends,
            next_obs=next_obs,
            next_legal=rng.random((ROWS, A)) < 0.5 if masked else None,
            broken=broken,
            legal=rng.random((ROWS, A)) < 0.5 if masked else None,
        )
        found.append(tick)
        fresh = rng.uniform(-1, 1, (ROWS, OBS)).astype(np.float32)
        obs = np.where(tick.over[:, None], fresh, next_obs)
    return found


def made(n: int, played: list[Tick], masked: bool = False, continuous: bool = False) -> tuple[RowLayout, list[Any]]:
    """What the windows give of each row, in order."""
    layout = RowLayout(OBS, A, masked, continuous, n, masked)
    window = NStep(layout, ROWS)
    found: list[list[Any]] = [[] for _ in range(ROWS)]
    for t in played:
        rows, keep = window.add(
            t.obs, t.action, t.reward, t.terminated, t.truncated, t.next_obs, t.next_legal, t.broken, t.legal
        )
        assert rows.shape == (ROWS, n, layout.size)
        for row in range(ROWS):
            found[row] += list(rows[row][keep[row]])
    return layout, found


def by_force(n: int, played: list[Tick], row: int) -> list[dict[str, Any]]:
    """The same from whole episodes, with one return for each γ."""
    episodes, running = [], []
    for tick in played:
        running.append(tick)
        if tick.over[row]:
            episodes.append(running)
            running = []
    found = []
    for episode in [*episodes, running]:
        ended = bool(episode) and bool(episode[-1].over[row])
        good = [tick for tick in episode if not tick.broken[row]]
        for start in range(len(good)):
            steps = good[start : start + n]
            if len(steps) < n and not ended:
                continue  # still under way
            last = steps[-1]
            terminated = bool(last.terminated[row])
            rewards = [tick.reward[row] for tick in steps]
            found.append(
                {
                    "obs": steps[0].obs[row],
                    "action": steps[0].action[row],
                    "reward": [sum(g**k * r for k, r in enumerate(rewards)) for g in GAMMAS],
                    "discount": [0.0 if terminated else g ** len(steps) for g in GAMMAS],
                    "next_obs": last.next_obs[row],
                    "next_legal": None if last.next_legal is None else last.next_legal[row],
                    "legal": None if steps[0].legal is None else steps[0].legal[row],
                }
            )
    return found


def agree(n: int, seed: int, ticks: int, ends: float, continuous: bool, masked: bool) -> set[int]:
    """Windows are those by force; returns how many discounts transitions have among the members."""
    played, kinds = play(seed, ticks, ends, masked, continuous), set()
    layout, found = made(n, played, masked, continuous)
    for row in range(ROWS):
        expected = by_force(n, played, row)
        assert len(found[row]) == len(expected) > ticks / 6
        rows = torch.from_numpy(np.stack(found[row])).expand(len(GAMMAS), -1, -1)
        batch = layout.unpack(rows, torch.ones(rows.shape[:2]), torch.tensor(GAMMAS))
        for name in ("obs", "action", "next_obs", *(["legal", "next_legal"] if masked else [])):
            given = getattr(batch, name)[0].numpy()
            np.testing.assert_array_equal(given, np.stack([e[name] for e in expected]), err_msg=name)
        for name in ("reward", "discount"):
            value = np.array([e[name] for e in expected]).T
            np.testing.assert_allclose(getattr(batch, name).numpy(), value, rtol=0, atol=n * 1e-6, err_msg=name)
        assert masked or batch.legal is batch.next_legal is None
        kinds |= {len(set(map(float, e["discount"]))) for e in expected}
    return kinds


@pytest.mark.thorough
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("ends", [0.02, 0.2, 0.6])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_random_episodes_against_brute_force(n: int, ends: float, continuous: bool, masked: bool) -> None:
    """Terminals on the first step, truncations, broken steps, episodes shorter than n; every member its own γ."""
    kinds = set().union(*(agree(n, seed, 120, ends, continuous, masked) for seed in range(3)))
    assert kinds >= {1, len(GAMMAS)}, "some terminate, some bootstrap"


def test_masked_steps_and_numbers_of_a_few_episodes_against_brute_force() -> None:
    assert agree(3, 1, 40, 0.2, False, True) | agree(3, 2, 40, 0.2, True, False) >= {1, len(GAMMAS)}


def one_row(n: int, steps: Sequence[tuple[float, bool, bool, bool]]) -> list[list[tuple[float, float]]]:
    """(return, discount) at γ = ½ of what each step (reward, terminated, truncated, broken) of one row completes."""
    layout, found = RowLayout(1, 2, False, steps=n), []
    window = NStep(layout, 1)
    for t, (reward, terminated, truncated, broken) in enumerate(steps):
        obs, after = np.full((1, 1), t, np.float32), np.full((1, 1), t + 1, np.float32)
        end, cut, bad = (np.array([flag]) for flag in (terminated, truncated, broken))
        rows, keep = window.add(obs, np.zeros(1), np.array([reward]), end, cut, after, None, bad)
        kept = torch.from_numpy(rows[keep])[None]
        batch = layout.unpack(kept, torch.ones(kept.shape[:2]), torch.tensor([0.5]))
        found.append(list(zip(batch.reward[0].tolist(), batch.discount[0].tolist(), strict=True)))
    return found


def test_a_terminal_first_step_stands_alone() -> None:
    """Peer fault: its reward was mixed with the next episode's, and it bootstrapped."""
    given = one_row(3, [(1, True, False, False), (2, False, False, False), (4, False, False, False)])
    assert given == [[(1.0, 0.0)], [], []]
    given = one_row(3, [(1, True, False, False), *[(2, False, False, False)] * 3])
    assert given == [[(1.0, 0.0)], [], [], [(3.5, 0.125)]]


def test_a_truncated_episode_bootstraps_after_as_many_steps_as_there_were() -> None:
    """Peer fault: a window that was cut short was still discounted by γⁿ, and truncation cut nothing."""
    given = one_row(3, [(1, False, False, False), (2, False, True, False), (8, False, False, False)])
    assert given == [[], [(2.0, 0.25), (2.0, 0.5)], []]


def test_a_terminal_step_ends_the_whole_window() -> None:
    steps = [(1, False, False, False), (2, False, False, False), (4, False, False, False), (8, True, False, False)]
    assert one_row(3, steps) == [[], [], [(3.0, 0.125)], [(6.0, 0.0), (8.0, 0.0), (8.0, 0.0)]]


def test_a_broken_step_is_left_out_and_what_came_before_bootstraps() -> None:
    given = one_row(3, [(1, False, False, False), (2, False, False, False), (9, True, False, True)])
    assert given == [[], [], [(2.0, 0.25), (2.0, 0.5)]]
    assert one_row(3, [(9, False, False, True), (1, True, False, False)]) == [[], [(1.0, 0.0)]]


def test_one_environments_end_leaves_the_others_windows_alone() -> None:
    """Peer fault: an end anywhere cut all windows."""
    played = play(0, 60, 0.2)
    for tick in played:
        tick.terminated[1:] = tick.truncated[1:] = tick.broken[1:] = False
        tick.next_obs[1:], tick.reward[1:] = np.nan_to_num(tick.next_obs[1:]), np.nan_to_num(tick.reward[1:], posinf=0)
    layout, found = made(3, played)
    steps_taken = np.stack(found[1])[:, -1]
    assert (steps_taken == 3).all()
    assert len(found[1]) == 58
    assert layout.size == np.stack(found[0]).shape[1]


@pytest.mark.parametrize("masked", [False, True])
def test_a_saved_window_goes_on_where_it_was(masked: bool) -> None:
    played = play(4, 50, 0.15, masked)
    layout = RowLayout(OBS, A, masked, steps=4, legal=masked)
    whole, other = NStep(layout, ROWS), NStep(layout, ROWS)

    def add(window: NStep, t: Tick) -> tuple[np.ndarray, np.ndarray]:
        return window.add(
            t.obs, t.action, t.reward, t.terminated, t.truncated, t.next_obs, t.next_legal, t.broken, t.legal
        )

    for tick in played[:23]:
        add(whole, tick)
    for tick in played[30:40]:
        add(other, tick)  # whatever it held before is gone
    other.restore(whole.state())
    for tick in played[23:]:
        (rows, keep), (again, kept) = add(whole, tick), add(other, tick)
        np.testing.assert_array_equal(keep, kept)
        np.testing.assert_array_equal(rows[keep], again[kept])


def begun(obs: list[list[float]], n: int, forgets: int = -1) -> list[list[list[float]]]:
    """The observations that transitions begin with, tick by tick, where two environments see `[T, 2]` and nothing ends.

    Before tick `forgets` the second one is forgotten.
    """
    window, no, found = NStep(RowLayout(1, 2, False, steps=n), 2), np.zeros(2, bool), []
    for t, seen in enumerate(np.array(obs, np.float32)[:, :, None]):
        if t == forgets:
            window.forget(np.array([1]))
        rows, keep = window.add(seen, np.zeros(2), np.ones(2), no, no, seen + 1, None, no)
        found.append([rows[i][keep[i]][:, 0].tolist() for i in range(2)])
    return found


def test_forgotten_rows_begin_anew() -> None:
    """In the middle of an episode whose first steps are long complete."""
    given = begun([[t, t] for t in range(8)], 3, forgets=4)
    assert [first for first, _ in given] == [[], [], [0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]
    assert [second for _, second in given] == [[], [], [0.0], [1.0], [], [], [4.0], [5.0]]


def test_no_transition_leads_past_an_observation_that_is_no_number() -> None:
    given = begun([[0, 0], [1, np.nan], [2, 2], [3, 3]], 2)
    assert given == [[[], []], [[0.0], []], [[1.0], []], [[2.0], [2.0]]]


def test_a_saved_state_does_not_change_with_what_it_was_taken_of() -> None:
    layout = RowLayout.of(Spaces(OBS, A), False, 3)
    before, after = NStep(layout, ROWS), NStep(layout, ROWS)
    ticks = play(0, 4, 0.0)

    def add(nstep: NStep, t: Tick) -> None:
        nstep.add(t.obs, t.action, t.reward, t.terminated, t.truncated, t.next_obs, None, t.broken, None)

    for t in ticks[:2]:
        add(before, t)
    state = before.state()
    kept = {name: value.copy() for name, value in state.items()}
    after.restore(state)
    for t in ticks[2:]:
        add(before, t)
        add(after, t)
    assert all(np.array_equal(state[name], kept[name]) for name in kept)
