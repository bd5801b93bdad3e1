"""What every contestant shares: it runs in its own environment, so nothing here needs more than Gymnasium and NumPy.

A contestant is a script: `python contestants/NAME.py TASK SETTINGS`, SETTINGS one JSON object. Its last line on stdout
is one JSON object, its result.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

Task = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class EnvClock:
    """Counts the steps of the environments themselves, below every wrapper, and the seconds inside `step` and `reset`.

    `limits` are the steps and seconds that may be spent, by `spent` seconds; what exceeds them raises `OutOfBudget`.
    """

    def __init__(
        self,
        max_steps: float = float("inf"),
        max_seconds: float = float("inf"),
        spent: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps = 0
        self.step_seconds = self.reset_seconds = 0.0
        self.max_steps = max_steps
        self.began, self.spent, self.over = time.perf_counter(), spent, spent() + max_seconds
        self._resetting = False

    def watch(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Count what this environment does; return it."""
        base = env.unwrapped
        step, reset, clock = base.step, base.reset, time.perf_counter

        def counted_step(action: Any) -> Any:
            if self._resetting:  # LunarLander's reset ends with a step of its own
                return step(action)
            began = clock()
            outcome = step(action)
            self.step_seconds += clock() - began
            self.steps += 1
            if self.steps > self.max_steps or self.spent() > self.over:
                raise OutOfBudget
            return outcome

        def counted_reset(**options: Any) -> Any:
            began = clock()
            self._resetting = True
            try:
                return reset(**options)
            finally:
                self._resetting = False
                self.reset_seconds += clock() - began

        base.step, base.reset = counted_step, counted_reset  # type: ignore[method-assign]
        return env

    def no_more_limits(self) -> None:
        """Let everything that follows go on for as long as it takes."""
        self.max_steps = self.over = float("inf")

    @property
    def seconds(self) -> float:
        """Wall seconds since this clock was made."""
        return time.perf_counter() - self.began


class OutOfBudget(Exception):
    """The contestant has used up its steps or its seconds."""


class Parts:
    """Seconds spent in named parts of the program; a part inside another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._inner = [0.0]  # for every open part, the seconds of the parts in it

    def watch(self, owner: Any, method: str, part: str, only: Callable[..., bool] | None = None) -> None:
        """Count the calls of `owner.method` as `part`."""
        original = getattr(owner, method)

        def counted(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            self._inner.append(0.0)
            try:
                return original(*args, **options)
            finally:
                spent = time.perf_counter() - began
                self.seconds[part] = self.seconds.get(part, 0.0) + spent - self._inner.pop()
                self.calls[part] = self.calls.get(part, 0) + 1
                self._inner[-1] += spent

        setattr(owner, method, counted)


def timed(
    call: Callable[[], object], seconds: float, least: int = 3, sync: Callable[[], object] | None = None
) -> float:
    """Return the median microseconds of one call, of about so many seconds of calls after a tenth of warming up."""
    done = sync or (lambda: None)
    _repeat(call, seconds / 10, 1, done)
    return float(np.median(_repeat(call, seconds, least, done))) * 1e6


def _repeat(call: Callable[[], object], seconds: float, least: int, sync: Callable[[], object]) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        sync()
        times.append(time.perf_counter() - began)
    return times


def sync_of(device: str) -> Callable[[], object] | None:
    """Return what waits for a device, where it needs waiting for."""
    if device == "cpu":
        return None
    import torch

    return torch.cuda.synchronize


def play_episodes(
    env: gymnasium.vector.VectorEnv[Any, Any, Any], act: Callable[[np.ndarray], np.ndarray], seeds: list[int]
) -> np.ndarray:
    """Return the returns of one episode a seed: `envs` episodes at a time, as many steps as the longest of them.

    An environment whose episode is over is stepped on until the others are, as a vector environment does; these steps
    are taken and counted, for everyone.
    """
    width, returns = env.num_envs, []
    if len(seeds) % width:
        raise ValueError(f"{len(seeds)} episodes do not divide by {width} environments")
    for at in range(0, len(seeds), width):
        obs, _ = env.reset(seed=seeds[at : at + width])
        score, over = np.zeros(width), np.zeros(width, bool)
        while not over.all():
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            score += np.where(over, 0.0, reward)
            over |= terminated | truncated
        returns += score.tolist()
    return np.array(returns)


def judge_team(
    env: str, kwargs: Mapping[str, Any], act: Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]], seeds: list[int]
) -> float:
    """Return the mean over episodes, one a seed, of the agents' returns summed up, of an environment of mpe2's: all
    episodes at once, for they are equally long. `act` gets each agent's observations `[episodes, O]`."""
    source = importlib.import_module(f"mpe2.{env}")
    games = [source.parallel_env(**kwargs) for _ in seeds]
    seen = [game.reset(seed=seed)[0] for game, seed in zip(games, seeds, strict=True)]
    total = 0.0
    while games[0].agents:
        chosen = act({agent: np.stack([obs[agent] for obs in seen]) for agent in games[0].agents})
        actions = [{agent: every[i] for agent, every in chosen.items()} for i in range(len(games))]
        seen, rewards, *_ = zip(*(game.step(each) for game, each in zip(games, actions, strict=True)), strict=True)
        total += sum(sum(each.values()) for each in rewards)
    return total / len(seeds)


def held_out_seeds(seed: int, purpose: int, count: int) -> list[int]:
    """Return the seeds of evaluation episodes, the same for every contestant of a seed."""
    return np.random.default_rng((seed, purpose)).integers(0, 2**31 - 1, count).tolist()


def processor() -> float:
    """Return the processor seconds of this process, and of those that it began and that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def by_decades(low: float, high: float) -> bool:
    """Whether values between these bounds are drawn by their logarithms: where they span a factor of ten."""
    return high >= 10 * low


def draws(search: Mapping[str, tuple[float, float]], seed: int, count: int) -> list[dict[str, float]]:
    """Return values drawn from a search space, whole numbers where its bounds are: `count` sets of them."""
    chance, sets = np.random.default_rng((seed, 3)), []
    for _ in range(count):
        drawn = {}
        for name, (low, high) in search.items():
            share = chance.random()
            value = low * (high / low) ** share if by_decades(low, high) else low + (high - low) * share
            drawn[name] = round(value) if isinstance(low, int) else value
        sets.append(drawn)
    return sets


def main(tasks: Mapping[str, Task]) -> None:
    """Run the task of the command line and print its result."""
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    result = tasks[name](settings)
    print("\n" + json.dumps(result), flush=True)
