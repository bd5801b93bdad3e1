"""Transitions and rollouts of teams, against brute force over whole episodes in which agents go one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch

from evopipe import algos
from evopipe.memory.nstep import NStep
from evopipe.memory.replay import Replay, RowLayout
from evopipe.memory.rollout import Rollout, StepLayout
from evopipe.native import build
from evopipe.rng import Purpose, Stream
from evopipe.types import ACTS, CUT, GONE, Batch, Chosen, Spaces, Team

pytestmark = pytest.mark.numerical

K, OBS, A, ROWS = 3, 2, 4, 5
TEAM = Team(("a_0", "a_1", "b_0"), (OBS,) * K, (A,) * K)
SPACES = Spaces(OBS, A, team=TEAM)
GAMMAS = torch.tensor([0.5, 0.9])


@pytest.fixture
def kernels() -> Iterator[None]:
    before = build.chosen()
    yield
    build.use(before)


@dataclass(eq=False)
class Tick:
    """One step of all rows; `alive` says who took it, `next_alive` where it leaves each."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: np.ndarray
    alive: np.ndarray
    over: np.ndarray
    broken: np.ndarray
    next_alive: np.ndarray


def play(seed: int, ticks: int) -> list[Tick]:
    """Episodes in which each agent terminates in a tenth of its steps, is cut in a twentieth, all are cut together in
    another tenth, and who is gone comes back in a third."""
    rng = np.random.default_rng(seed)
    obs, alive, found = rng.normal(size=(ROWS, K, OBS)).astype(np.float32), np.ones((ROWS, K), bool), []
    for _ in range(ticks):
        terminated = alive & (rng.random((ROWS, K)) < 0.1)
        cut = (rng.random((ROWS, 1)) < 0.1) | (rng.random((ROWS, K)) < 0.05)
        truncated = alive & ~terminated & cut
        broken = rng.random(ROWS) < 0.05
        stays = alive & ~terminated & ~truncated
        comes = ~alive & (rng.random((ROWS, K)) < 0.3) & stays.any(axis=1)[:, None]
        next_obs = (rng.normal(size=(ROWS, K, OBS)) * (alive | comes)[..., None]).astype(np.float32)
        reward = rng.normal(size=(ROWS, K)) * alive
        over = broken | ~stays.any(axis=1)
        action = rng.integers(A, size=(ROWS, K))
        next_alive = np.where(stays | comes, ACTS, np.where(truncated, CUT, GONE))
        found.append(Tick(obs, action, reward, terminated, truncated, next_obs, alive, over, broken, next_alive))
        alive = stays | comes | over[:, None]
        obs = np.where(over[:, None, None], rng.normal(size=next_obs.shape).astype(np.float32), next_obs)
    return found


def own_transition(window: list[Tick], row: int, k: int, gamma: float) -> tuple[float, float, bool]:
    """An agent's return over the steps of a window that it took before it ended, what comes after them counts, and
    whether it was truncated in the last of these."""
    total = 0.0
    for i, tick in enumerate(window):
        total += gamma**i * float(tick.reward[row, k])
        if tick.terminated[row, k]:
            return total, 0.0, False
        if tick.truncated[row, k]:
            return total, gamma ** (i + 1), True
    return total, gamma ** len(window), False


def expected(ticks: list[Tick], row: int, steps: int) -> dict[tuple[int, int], dict[str, Any]]:
    """Every agent's own transition that is complete, by the good step at which it begins and the agent, for each γ."""
    found, good = {}, [tick for tick in ticks if not tick.broken[row]]
    ends = [sum(not t.broken[row] for t in ticks[: i + 1]) for i, tick in enumerate(ticks) if tick.over[row]]
    for i, begun in enumerate(good):
        end = next((end for end in ends if end > i), None)
        whole = good[i : i + steps] if end is None else good[i : min(i + steps, end)]
        for k in range(K):
            if not begun.alive[row, k]:
                continue
            lived = next((j + 1 for j, t in enumerate(whole) if t.truncated[row, k]), len(whole))
            died = next((j + 1 for j, t in enumerate(whole) if t.terminated[row, k]), len(whole) + 1)
            window = whole[:lived] if lived < died else whole
            if len(whole) < steps and end is None and not (lived < died and window[-1].truncated[row, k]):
                continue  # it is not complete yet
            last = window[-1]
            numbers = [own_transition(window, row, k, gamma) for gamma in GAMMAS.tolist()]
            broke = ticks[ticks.index(last) + 1] if last is not ticks[-1] else None
            stopped = broke is not None and broke.broken[row] and len(window) < steps and not numbers[0][2]
            stopped = stopped and not last.over[row]
            found[i, k] = {
                "obs": begun.obs[row], "action": begun.action[row], "alive": begun.alive[row],
                "next_obs": broke.obs[row] if stopped and broke else last.next_obs[row],
                "next_alive": np.where(broke.alive[row], ACTS, GONE) if stopped and broke else last.next_alive[row],
                "reward": [x[0] for x in numbers], "discount": [x[1] for x in numbers],
            }  # fmt: skip
    return found


def added(windows: NStep, t: Tick) -> tuple[np.ndarray, np.ndarray]:
    """The transitions that a step completes, and which these are."""
    taken = t.obs, t.action, t.reward, t.terminated, t.truncated, t.next_obs
    rows, keep = windows.add(*taken, None, t.broken, None, t.alive, t.over, t.next_alive)
    return rows[keep], keep


def test_a_teams_saved_windows_go_on_and_forgotten_ones_begin_anew() -> None:
    """They know who has ended, and how, wherever they were saved."""
    layout, ticks = RowLayout.of(SPACES, masked=False, steps=3), play(8, 40)
    whole, fresh = (NStep(layout, ROWS) for _ in range(2))
    wanted, saved = [], []
    for t in ticks:
        saved.append(whole.state())
        wanted.append(added(whole, t))
    assert {*np.unique(whole._ends)} == {0, 1, 2}
    for at, state in enumerate(saved):
        restored = NStep(layout, ROWS)
        restored.restore(state)
        for t, want in zip(ticks[at : at + 3], wanted[at:], strict=False):
            for one, other in zip(want, added(restored, t), strict=True):
                np.testing.assert_array_equal(one, other)
    whole.forget(np.arange(ROWS))
    for t in play(4, 10):
        for one, other in zip(added(whole, t), added(fresh, t), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("steps", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 5)), 3])
def test_each_agent_is_paid_until_it_is_gone(steps: int, native: bool, kernels: None) -> None:
    """Each life by itself, of agents that terminate, are truncated beside others, come and come back: every step of an
    agent begins one transition of its own, and one alone, whose end is where it ended, and with whom."""
    build.use(build.load() if native else None)
    layout = RowLayout.of(SPACES, masked=False, steps=steps)
    windows, ticks = NStep(layout, ROWS), play(steps, 120)
    kept: list[list[np.ndarray]] = [[] for _ in range(ROWS)]
    for t in ticks:
        if steps == 1:
            of_team = {"alive": t.alive, "next_alive": t.next_alive}
            rows = layout.pack(t.obs, t.action, t.reward, t.terminated, t.next_obs, **of_team)[:, None]
            keep = ~t.broken[:, None]
        else:
            taken = t.obs, t.action, t.reward, t.terminated, t.truncated, t.next_obs
            rows, keep = windows.add(*taken, None, t.broken, None, t.alive, t.over, t.next_alive)
        for row in range(ROWS):
            kept[row] += list(rows[row][keep[row]])
    assert any((t.truncated & ~t.over[:, None]).any() for t in ticks)
    assert any(((t.next_alive == ACTS) & ~t.alive).any() for t in ticks)
    for row in range(ROWS):
        wanted = expected(ticks, row, steps)
        begins = {t.obs[row].tobytes(): i for i, t in enumerate(x for x in ticks if not x.broken[row])}
        batch = unpacked(layout, np.stack(kept[row]))
        found = set()
        for i, k in np.argwhere(batch.learns[0].numpy() > 0).tolist():  # type: ignore[union-attr]
            at = begins[batch.obs[0, i].numpy().tobytes()], k
            assert at not in found
            found.add(at)
            want = wanted[at]
            for name in ("obs", "action", "alive", "next_alive"):
                np.testing.assert_array_equal(getattr(batch, name)[0, i].numpy(), want[name])
            there = want["next_alive"] > 0
            np.testing.assert_array_equal(batch.next_obs[0, i].numpy()[there], want["next_obs"][there])
            np.testing.assert_allclose(batch.reward[:, i, k].numpy(), want["reward"], atol=1e-5)
            np.testing.assert_allclose(batch.discount[:, i, k].numpy(), want["discount"], atol=1e-6)
        assert found == {*wanted}
        assert bool((batch.learns[0] > 0).any(dim=1).all()), "somebody learns from every row"  # type: ignore[index]


def unpacked(layout: RowLayout, rows: np.ndarray) -> Batch:
    """All rows as a batch of two members, as the replay memory in use takes them apart."""
    if build.chosen() is None:
        packed = torch.from_numpy(rows)[None].expand(2, -1, -1)
        return layout.unpack(packed, torch.ones(2, len(rows)), GAMMAS)
    replay = Replay(layout, 1, len(rows), torch.device("cpu"))
    replay.add(rows[None], np.ones((1, len(rows)), bool))
    slots, first = replay.places((0, 1))
    draw, size = Stream(torch.tensor([3, 3]), Purpose.REPLAY, torch.tensor([0])), torch.full((2,), len(rows))
    weight = torch.ones(2, 20 * len(rows))
    batch, index = replay.batch(draw, slots, first, size, weight, torch.ones(()), GAMMAS)
    once = np.unique(index[0].numpy(), return_index=True)
    assert len(once[0]) == len(rows), "every row was drawn"
    return Batch(**{f.name: None if (x := getattr(batch, f.name)) is None else x[:, once[1]] for f in fields(batch)})


def test_masks_and_vectors_lie_where_they_were_put() -> None:
    spaces = Spaces(OBS, A, continuous=True, team=TEAM)
    layout = RowLayout.of(spaces, masked=True, legal=True)
    rng = np.random.default_rng(0)
    obs, after = rng.normal(size=(2, 7, K, OBS)).astype(np.float32)
    action = rng.uniform(-1, 1, (7, K, A)).astype(np.float32)
    legal, following = rng.random((2, 7, K, A)) < 0.5
    alive, reward = rng.random((7, K)) < 0.5, rng.normal(size=(7, K)).astype(np.float32)
    packed = layout.pack(obs, action, reward, np.zeros((7, K), bool), after, following, None, legal, alive)
    batch = layout.unpack(torch.from_numpy(packed)[None], torch.ones(1, 7), torch.ones(1))
    for name, want in {"obs": obs, "action": action, "next_obs": after, "reward": reward, "alive": alive}.items():
        np.testing.assert_array_equal(getattr(batch, name)[0].numpy(), want.astype(np.float32))
    assert batch.legal is not None
    assert batch.next_legal is not None
    np.testing.assert_array_equal(batch.legal[0].numpy(), legal)
    np.testing.assert_array_equal(batch.next_legal[0].numpy(), following)


def test_a_minibatch_brings_all_agents_of_an_environment_at_the_same_ticks() -> None:
    envs, ticks = 2, 5
    rollout = Rollout(StepLayout(SPACES, False), 1, ticks, envs * K, 0, torch.device("cpu"))
    for t in range(ticks):
        own = torch.arange(envs * K, dtype=torch.float32)[None] + 100 * t  # [1, E · K]
        took = Chosen(torch.zeros(1, envs * K, dtype=torch.int64), own, own, own[..., None][..., :0])
        nobody = torch.zeros(1, envs * K, dtype=torch.bool)
        rollout.enter(t, own[..., None].expand(-1, -1, OBS), nobody, nobody, took.memory, took)
        gone = torch.arange(envs * K)[None] == 4  # the second environment's second agent
        rollout.finish(t, torch.zeros(1, envs * K, OBS), own, nobody, nobody, gone, (~gone).float())
    rollout.estimate(ticks, torch.zeros(1, ticks * envs * K), torch.ones(1), torch.ones(1))
    batch = rollout.sequences(torch.tensor([[[3, 4], [0, 1]]]), torch.tensor([[1, 0]]), torch.ones(1, 2, 2))
    assert batch.obs.shape == (1, 2 * K, 2, OBS)
    seen = batch.obs[0, :, :, 0].unflatten(0, (2, K))
    assert seen[0].tolist() == [[303.0, 403.0], [304.0, 404.0], [305.0, 405.0]]
    assert seen[1].tolist() == [[0.0, 100.0], [1.0, 101.0], [2.0, 102.0]]
    weight = batch.weight[0].unflatten(0, (2, K))
    assert weight[0, 1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(weight.sum(), torch.tensor(1.0))


def test_groups_are_named_or_read_from_names() -> None:
    assert TEAM.groups({}) == {"a": (0, 1), "b": (2,)}
    assert TEAM.groups({"x": ["a_0", "b_0"], "y": ["a_1"]}) == {"x": (0, 2), "y": (1,)}
    for named, said in (
        ({"x": []}, "names no agent"),
        ({"x": ["c_0"]}, "no agent 'c_0'"),
        ({"x": ["a_0"]}, "'a_1' stands in no group"),
        ({"x": ["a_0", "a_1", "b_0"], "y": ["b_0"]}, "'b_0' stands in more than one group"),
    ):
        with pytest.raises(ValueError, match=said):
            TEAM.groups(named)


def test_a_group_that_does_not_fit_the_team_is_refused_where_it_stands() -> None:
    cfg = algos.get("maddpg").Config(groups={"x": ("a_0", "a_1", "nobody")})
    found = algos.misfit("maddpg", cfg, SPACES)
    assert found == ("groups", "there is no agent 'nobody'; the agents are a_0, a_1, b_0")
