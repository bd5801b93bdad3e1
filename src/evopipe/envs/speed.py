"""Measurements of an environment's speed on this machine, by backend and by number of worker processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch

from evopipe.envs import backends
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Workers
from evopipe.errors import EvopipeError
from evopipe.parallel import available_cpus, can_help
from evopipe.schema.blocks import BACKENDS, EnvConfig

_TICKS = 8  # steps of all rows between two looks at the clock
_SEED = 20_013


class Speed(NamedTuple):
    """The measured speed of an environment.

    Attributes:
        backend: the backend, as in `env.backend`.
        workers: the number of worker processes; None if the backend has none.
        rate: environment steps per second, including resets.
    """

    backend: str
    workers: int | None
    rate: float


def speeds(cfg: EnvConfig, rows: int, seconds: float = 1.0) -> Iterator[Speed]:
    """Measure the speed of an environment with every backend that has this environment; yield the results.

    The backend `sync` is measured with each number of worker processes, from 0 to the number of CPUs, or of
    environments if these are fewer. On a system without worker processes it is measured without them.

    Args:
        cfg: the block `env` of `params.yaml`; its `backend` is ignored.
        rows: the number of environments that are stepped together: members times `env.num_envs`.
        seconds: the duration of each measurement.

    Raises:
        ParamsError, EnvironmentFailed: the environment cannot be made, or a step of it failed.
    """
    names = ["c"] if cfg.source is not None else sorted(BACKENDS, key=lambda name: name != "sync")
    for backend in names:
        tried = cfg.model_copy(update={"backend": backend})
        if backend == "sync":
            for workers in range(min(available_cpus(), rows) + 1 if can_help() else 1):
                with Workers(workers) as held, closing(EnvPool(tried, rows, what="timed", workers=held)) as pool:
                    yield Speed(backend, workers, _of_rows(pool, seconds))
            continue
        try:
            rate = _of_backend(tried, rows, seconds)
        except (EvopipeError, ImportError):  # it has no such environment, or is not installed
            continue
        yield Speed(backend, None, rate)


def chosen(rows: int) -> int:
    """Return the number of worker processes that `runtime.env_workers: auto` starts for a pool of `rows` environments.

    It is the number for runs in which members learn while environments step. For other runs it may differ.
    """
    with Workers("auto") as workers:
        return workers.count(rows, True)


def _of_backend(cfg: EnvConfig, rows: int, seconds: float) -> float:
    found = backends.get(cfg)
    if found.tensors is None:
        with closing(EnvPool(cfg, rows, what="timed")) as pool:
            return _of_rows(pool, seconds)
    pool = found.tensors(cfg, rows, torch.device("cpu"))
    with closing(pool):
        pool.reset(np.arange(rows), np.arange(rows) + _SEED)
        actions = torch.as_tensor(_actions(pool.actions, (rows, *_agents(pool))))

        def tick() -> None:
            step = pool.step(actions)
            over = np.flatnonzero((step.terminated | step.truncated).reshape(rows, -1).any(1).numpy())
            if len(over):
                pool.reset(over, over + _SEED)

        return _rate(tick, rows, seconds)


def _of_rows(pool: EnvPool, seconds: float) -> float:
    every = np.arange(pool.rows)
    pool.reset(every, every + _SEED)
    actions = _actions(pool.actions, (pool.rows,) if pool.team is None else pool.mask.shape[:2])

    def tick() -> None:
        over = np.flatnonzero(pool.step(actions).over)
        if len(over):
            pool.reset(over, over + _SEED)

    return _rate(tick, pool.rows, seconds)


def _rate(tick: Callable[[], None], rows: int, seconds: float) -> float:
    tick()  # what is made at the first step
    begun, ticks = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        for _ in range(_TICKS):
            tick()
        ticks += _TICKS
    return ticks * rows / spent


def _actions(space: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Draw an action for each of `shape`; the same ones are taken at every step."""
    rng, legal = np.random.default_rng(_SEED), np.ones(space.size, np.bool_)
    drawn = np.array([space.sample(legal, rng) for _ in range(int(np.prod(shape)))])
    return drawn.reshape(*shape, *drawn.shape[1:])


def _agents(pool: Any) -> tuple[int, ...]:
    team = getattr(pool, "team", None)
    return () if team is None else (len(team.ids),)
