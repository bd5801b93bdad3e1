"""Transitions and rollouts of teams, against brute force over whole episodes in which agents go one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from evopipe import algos
from evopipe.memory.nstep import NStep
from evopipe.memory.replay import RowLayout
from evopipe.memory.rollout import Rollout, StepLayout
from evopipe.types import Chosen, Spaces, Team

pytestmark = pytest.mark.numerical

K, OBS, A, ROWS = 3, 2, 4, 5
TEAM = Team(("a_0", "a_1", "b_0"), (OBS,) * K, (A,) * K)
SPACES = Spaces(OBS, A, team=TEAM)
GAMMAS = torch.tensor([0.5, 0.9])


@dataclass
class Tick:
    """One step of all rows; terminated says who ended at it, `alive` who took it."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: np.ndarray
    alive: np.ndarray
    over: np.ndarray
    broken: np.ndarray


def play(seed: int, ticks: int) -> list[Tick]:
    """Episodes in which each agent terminates in a tenth of its steps, is cut in a twentieth, and all are cut together
    in another tenth."""
    rng = np.random.default_rng(seed)
    obs, alive, found = rng.normal(size=(ROWS, K, OBS)).astype(np.float32), np.ones((ROWS, K), bool), []
    for _ in range(ticks):
        terminated = alive & (rng.random((ROWS, K)) < 0.1)
        cut = (rng.random((ROWS, 1)) < 0.1) | (rng.random((ROWS, K)) < 0.05)
        truncated = alive & ~terminated & cut
        broken = rng.random(ROWS) < 0.05
        stays = alive & ~terminated & ~truncated
        next_obs = (rng.normal(size=(ROWS, K, OBS)) * alive[..., None]).astype(np.float32)
        reward = rng.normal(size=(ROWS, K)) * alive
        over = broken | ~stays.any(axis=1)
        action = rng.integers(A, size=(ROWS, K))
        found.append(Tick(obs, action, reward, terminated, truncated, next_obs, alive, over, broken))
        alive = stays | over[:, None]
        obs = np.where(over[:, None, None], rng.normal(size=next_obs.shape).astype(np.float32), next_obs)
    return found


def expected(ticks: list[Tick], row: int, steps: int) -> list[dict[str, np.ndarray]]:
    """Every transition of a row that is complete, begun at each good step in turn, for each γ."""
    episodes: list[list[Tick]] = [[]]
    broke = []  # whether each one ended by a broken step, after which the observation of who was cut is gone
    for tick in ticks:
        if not tick.broken[row]:
            episodes[-1].append(tick)
        if tick.over[row]:
            episodes.append([])
            broke.append(tick.broken[row])
    found = []
    for number, episode in enumerate(episodes):
        for i, begun in enumerate(episode):
            window = episode[i : i + steps]
            if len(window) < steps and number == len(episodes) - 1:
                continue
            after = window[-1].next_obs[row]
            reward, discount = np.zeros((2, K)), np.zeros((2, K))
            known = window if len(window) < steps and broke[number] else window[:-1]
            cut = np.array([tick.truncated[row] for tick in known]).any(axis=0)
            for p, gamma in enumerate(GAMMAS.tolist()):
                for k in range(K):
                    lived = [tick for tick in window if tick.alive[row, k]]
                    reward[p, k] = sum(gamma**j * tick.reward[row, k] for j, tick in enumerate(lived))
                    gone = any(tick.terminated[row, k] for tick in episode[: i + len(window)])
                    discount[p, k] = 0.0 if gone else gamma ** len(lived)
            found.append({
                "obs": begun.obs[row], "action": begun.action[row], "next_obs": after, "reward": reward,
                "discount": discount, "alive": (begun.alive[row] & ~cut).astype(np.float32),
            })  # fmt: skip
    return found


def added(windows: NStep, t: Tick) -> tuple[np.ndarray, np.ndarray]:
    """The transitions that a step completes, and which these are."""
    taken = t.obs, t.action, t.reward, t.terminated, t.truncated, t.next_obs
    rows, keep = windows.add(*taken, None, t.broken, None, t.alive, t.over)
    return rows[keep], keep


def test_a_teams_saved_windows_go_on_and_forgotten_ones_begin_anew() -> None:
    """They know who has ended, and how."""
    layout = RowLayout.of(SPACES, masked=False, steps=3)
    whole, restored, fresh = (NStep(layout, ROWS) for _ in range(3))
    for t in play(3, 20):
        added(whole, t)
    assert (whole._ended[0] ^ whole._ended[1]).any(axis=1).sum() > 1
    assert whole._ended.any(axis=(1, 2)).all()
    restored.restore(whole.state())
    for t in play(5, 10):
        for one, other in zip(added(whole, t), added(restored, t), strict=True):
            np.testing.assert_array_equal(one, other)
    assert whole._ended.any()
    whole.forget(np.arange(ROWS))
    for t in play(4, 10):
        for one, other in zip(added(whole, t), added(fresh, t), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("steps", [1, 3])
def test_each_agent_is_paid_until_it_is_gone(steps: int) -> None:
    layout = RowLayout.of(SPACES, masked=False, steps=steps)
    windows, ticks, kept = NStep(layout, ROWS), play(steps, 40), [[] for _ in range(ROWS)]
    for t in ticks:
        if steps == 1:
            rows = layout.pack(t.obs, t.action, t.reward, t.terminated, t.next_obs, alive=t.alive)[:, None]
            keep = ~t.broken[:, None]
        else:
            taken = t.obs, t.action, t.reward, t.terminated, t.truncated, t.next_obs
            rows, keep = windows.add(*taken, None, t.broken, None, t.alive, t.over)
        for row in range(ROWS):
            kept[row] += list(rows[row][keep[row]])
    assert any(not t.alive.all() for t in ticks)
    assert any((t.truncated[~t.over].any()) for t in ticks)
    for row in range(ROWS):
        wanted = expected(ticks, row, steps)
        packed = torch.from_numpy(np.stack(kept[row]))[None].expand(2, -1, -1)
        batch = layout.unpack(packed, torch.ones(2, len(kept[row])), GAMMAS)
        assert len(wanted) == len(kept[row])
        for i, want in enumerate(wanted):
            for name in ("obs", "action", "next_obs", "alive"):
                np.testing.assert_array_equal(getattr(batch, name)[0, i].numpy(), want[name])
            living = want["alive"] > 0
            np.testing.assert_allclose(batch.reward[:, i].numpy(), want["reward"], atol=1e-5)
            np.testing.assert_allclose(batch.discount[:, i].numpy()[:, living], want["discount"][:, living], atol=1e-6)


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
        rollout.finish(t, torch.zeros(1, envs * K, OBS), own, nobody, nobody, gone)
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
