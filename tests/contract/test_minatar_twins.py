"""MinAtar's games in C and the package's, step for step: from the same state, by the same action and the same draws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from evopipe import rng
from evopipe.envs.compiled import CompiledPool
from evopipe.envs.make import make_env
from evopipe.native.environment import MOST_DRAWS, offered
from evopipe.rng import Purpose
from evopipe.schema.blocks import EnvConfig
from minatar_games import GAMES, Drawn, whole

pytest.importorskip("minatar", reason="an extra of its own: pip install 'evopipe[minatar]'")

CPU, ROWS = torch.device("cpu"), 10
STEPS = [pytest.param(200, id="2e2"), pytest.param(100_000, marks=pytest.mark.slow, id="1e5")]
IDS = [f"MinAtar/{name}-{version}" for name in GAMES for version in ("v1", "v0")]
SOME = [pytest.param(name, marks=() if name.endswith("v1") else pytest.mark.thorough) for name in IDS]
LOOKED_AT = {"Asterix": 35, "Breakout": 4, "Freeway": 35, "Seaquest": 35, "SpaceInvaders": 35}  # after so many steps
OTHER: list[dict[str, Any]] = [{"sticky_action_prob": 0.5}, {"difficulty_ramping": False}]


class Twins:
    """The package's games beside a pool in C."""

    def __init__(self, env_id: str, kwargs: dict[str, Any]) -> None:
        cfg = EnvConfig.model_validate({"id": env_id, "kwargs": kwargs, "backend": "c"})
        self.pool, self.draw = CompiledPool(cfg, ROWS, CPU), np.random.default_rng(5)
        self.envs: list[Any] = [make_env(cfg.on_gymnasium).unwrapped for _ in range(ROWS)]
        self.games = [env.game for env in self.envs]
        self.pack, self.anywhere = GAMES[env_id.partition("/")[2].partition("-")[0]]
        for row in range(ROWS):
            self.begin(row, row)

    def feed(self, rows: Iterable[int], seeds: list[int], step: int) -> None:
        """Let games of the package draw what C draws at this step of episodes with these seeds."""
        numbers = rng.uniform(torch.tensor(seeds), Purpose.EPISODE, torch.tensor([step]), MOST_DRAWS)
        for row, drawn in zip(rows, numbers.reshape(len(seeds), -1).tolist(), strict=True):
            self.games[row].random = self.games[row].env.random = Drawn(drawn)

    def state(self, row: int) -> npt.NDArray[np.uint8]:
        """The state of a game of the package, as C keeps it."""
        game = self.games[row]
        return np.concatenate([whole(game.last_action, game.env.terminal), *self.pack(game.env)])

    def compare(self, row: int, seen: torch.Tensor, obs: Any) -> None:
        np.testing.assert_array_equal(seen.numpy(), self.pool.observations.row(obs))
        theirs = self.state(row)
        np.testing.assert_array_equal(self.pool.memory[row].numpy()[: len(theirs)], theirs)

    def begin(self, row: int, seed: int) -> None:
        """Begin an episode in both, and compare states and observations."""
        self.feed([row], [seed], 0)
        self.games[row].last_action = 0  # the package's first step may repeat an action of the episode before
        self.games[row].reset()
        self.pool.reset([row], [seed])
        self.compare(row, self.pool.obs[row], self.games[row].state())

    def rest(self, row: int, seen: torch.Tensor) -> None:
        """A step after the end changes nothing that is shown, and pays nothing."""
        step = self.pool.step(torch.ones(1, dtype=torch.int64), torch.tensor([row]))
        assert torch.equal(step.obs[0], seen)
        assert (float(step.reward[0]), bool(step.terminated[0])) == (0.0, True)

    def step(self, tick: int) -> tuple[float, int]:
        """Step both, some of them from a state of their own; return the sum of rewards, and how many episodes ended."""
        for row, game in enumerate(self.games):
            if self.draw.random() < 0.1:
                self.anywhere(game.env, self.draw)
            game.last_action = int(self.draw.integers(6))
            state = self.state(row)
            self.pool.memory[row][: len(state)] = torch.from_numpy(state)
        self.pool.restore(self.pool.state() | {"length": np.full(ROWS, tick - 1), "seed": np.arange(ROWS)})
        self.feed(range(ROWS), [*range(ROWS)], tick)
        actions = self.draw.integers(self.pool.spaces.actions, size=ROWS)
        step, paid, ended = self.pool.step(torch.from_numpy(actions)), 0.0, 0
        for row, env in enumerate(self.envs):
            obs, reward, terminated, *_ = env.step(int(actions[row]))
            assert (float(step.reward[row]), bool(step.terminated[row])) == (reward, terminated), (tick, row)
            self.compare(row, step.obs[row], obs)
            paid, ended = paid + float(reward), ended + terminated
            if terminated:
                self.rest(row, step.obs[row])
                self.begin(row, tick)
        return paid, ended


def play(env_id: str, kwargs: dict[str, Any], steps: int) -> None:
    twins = Twins(env_id, kwargs)
    paid, ended = np.sum([twins.step(tick) for tick in range(1, steps // ROWS + 1)], axis=0)
    assert paid > 0
    assert ended > 0


def test_every_game_has_a_twin() -> None:
    assert {*IDS} == {name for name in offered() if name.startswith("MinAtar/")}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("env_id", SOME)
def test_a_step_is_the_packages(env_id: str, steps: int) -> None:
    play(env_id, {}, steps)


@pytest.mark.thorough
@pytest.mark.parametrize("kwargs", OTHER, ids=[*map(str, OTHER)])
@pytest.mark.parametrize("env_id", [name for name in IDS if name.endswith("v1")])
def test_so_is_one_with_other_arguments(env_id: str, kwargs: dict[str, Any]) -> None:
    play(env_id, kwargs, 2_000)


@pytest.mark.thorough
@pytest.mark.parametrize("game", [*LOOKED_AT])
def test_draws_come_as_often(game: str) -> None:
    """By what running episodes show after some steps, of the same actions in all: each pixel as often as the package's,
    and as many episodes that run."""
    cfg = EnvConfig.model_validate({"id": f"MinAtar/{game}-v1", "backend": "c"})
    rows, episodes = 10_000, 500
    pool, env = CompiledPool(cfg, rows, CPU), make_env(cfg.on_gymnasium).unwrapped
    choices = [1, 3, 4] if game == "Seaquest" else [*range(pool.spaces.actions)]  # up without a diver is the end
    actions = np.random.default_rng(3).choice(choices, size=LOOKED_AT[game]).tolist()
    pool.reset(np.arange(rows), np.arange(rows))
    running = torch.ones(rows, dtype=torch.bool)
    for action in actions:
        running &= ~pool.step(torch.full((rows,), action)).terminated
    env.reset(seed=1)
    seen = []
    for _ in range(episodes):
        env.reset()
        env.game.last_action = 0  # type: ignore[attr-defined]
        steps = [env.step(action) for action in actions]
        if not any(step[2] for step in steps):
            seen.append(pool.observations.row(steps[-1][0]))
    own, theirs = pool.obs[running].numpy(), np.array(seen)
    assert len(theirs) > 100
    for mine, other, n, m in (
        (own.mean(0), theirs.mean(0), len(own), len(theirs)),
        (np.array(len(own) / rows), np.array(len(theirs) / episodes), rows, episodes),
    ):
        p = (n * mine + m * other) / (n + m)
        assert (np.abs(mine - other) <= 4.5 * np.sqrt(p * (1 - p) * (1 / n + 1 / m)) + 1e-9).all()
