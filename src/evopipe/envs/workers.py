"""Worker processes that step a pool's environments, while the trainer learns or with a share of its own.

`Crew` says how many, `Remote` is one pool's environments in them. Every row is stepped by the code that steps it in
this process (`evopipe.envs.rows`), so nothing depends on where it lives or among how many processes rows are split.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evopipe.envs.make import has_threads
from evopipe.envs.rows import NO_MASK, Actions, Begun, Fault, Ints, Rows, Stepped, broken, make_rows
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, UsageError
from evopipe.parallel import Died, Helper, Inline, available_cpus, can_help, shared_memory
from evopipe.schema.blocks import EnvConfig
from evopipe.types import Spaces

if TYPE_CHECKING:
    import gymnasium

MOST = 16  # workers that `auto` starts at most
LEAST_ROWS = 8  # rows that `auto` gives workers at least: below, a wake-up costs more than it saves
LEARNING_ROWS = 32  # rows that `auto` gives each worker while the trainer learns meanwhile, and is in no hurry
# What `auto` reckons with, in microseconds: a step where none was measured; the wake-ups of a tick, and each worker's.
# The latter are those of a busy machine: in vain is dearer than not at all.
STEP_COST, TICK_COST, WORKER_COST = 20.0, 100.0, 50.0
WORTH = 0.8  # of the time without them that a tick with workers may take
_OPEN, _RESET, _STEP = range(3)
_MEMORY = " (often because memory ran out: lower env.num_envs or population.size)"
_WAY_OUT = "; runtime.env_workers: 0 steps them in the trainer's process"


class Unavailable(Exception):
    """An environment cannot live in a worker process; the text says why."""


class Crew:
    """How many processes step the environments of a run's pools, and what a step costs.

    Each pool forks its own; they end with it, with this, and with this process, whatever ends it.

    Args:
        workers: how many; `auto`: by the number of CPUs that this process may use (none where it is only one), and
            fewer, or none, for a pool of few rows.
        learners: processes that compute while a pool steps whose steps they overlap.

    Raises:
        ParamsError: workers were asked for, and this system can have none.
    """

    def __init__(self, workers: int | Literal["auto"] = "auto", learners: int = 1) -> None:
        self.learners, self.auto = learners, workers == "auto"
        if workers == "auto":
            cpus = available_cpus()
            self.workers = min(cpus, MOST) if cpus > 1 and can_help() else 0
        elif can_help() or not workers:
            self.workers = workers
        else:
            raise ParamsError("runtime.env_workers: worker processes are not possible on this system; set it to 0")
        self._pools: list[Remote] = []

    def count(self, rows: int, overlapped: bool, step_cost: float | None = None) -> int:
        """How many workers a pool should use; no result depends on it.

        Under `auto`, where nothing overlaps their steps, this process takes a share besides.

        Args:
            rows: environments.
            overlapped: the caller computes while they step, on a CPU of its own.
            step_cost: microseconds of one environment's step, where that is known.
        """
        if not self.auto:
            return min(self.workers, rows)
        if not self.workers or rows < LEAST_ROWS:
            return 0
        if overlapped:
            return max(1, min(self.workers - self.learners, rows // LEARNING_ROWS))
        alone = rows * (STEP_COST if step_cost is None else step_cost)
        most = min(self.workers, rows) - 1  # this process takes a share as well
        ticks = [alone, *(alone / (n + 1) + TICK_COST + n * WORKER_COST for n in range(1, most + 1))]
        return ticks.index(min(ticks)) if min(ticks) < WORTH * alone else 0

    def step_cost(self, cfg: EnvConfig) -> float | None:
        """Microseconds that a step of this environment took in the pools of this crew, None where none was stepped."""
        pools = [pool.shared for pool in self._pools if (pool.cfg.id, pool.cfg.kwargs) == (cfg.id, cfg.kwargs)]
        steps = sum(int(shared.stepped.sum()) for shared in pools)
        return sum(int(shared.spent.sum()) for shared in pools) / steps / 1000 if steps else None

    def fork(self, cfg: EnvConfig, rows: int, spaces: Spaces, overlapped: bool) -> Remote | None:
        """Return workers for a pool, as many as it may come to use; None where that is none.

        Raises:
            Unavailable: a process cannot be forked.
        """
        count = self.count(rows, overlapped, self.step_cost(cfg) or 1e9)
        # A fork has no threads but one: an environment that has started some might wait for them forever.
        if not count or (self.auto and has_threads(cfg)):
            return None
        self._pools.append(Remote(cfg, rows, spaces, count))
        return self._pools[-1]

    def close(self) -> None:
        """End the processes; the pools that use them cannot be used any more."""
        for pool in self._pools:
            pool.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shared_arrays(rows: int, spaces: Spaces, shares: int) -> Any:
    """Return what the processes of one pool see, arrays of these names, indexed by row unless stated otherwise:

    - `order`: what is to be done, of how many rows (-1: all), among how many shares; `named`: these rows, in the
      caller's order;
    - `action`, see `Actions`; `seed` of the episodes to begin; `next_seed` of the episode that is begun where a step
      ends one, -1: none;
    - `obs`, `reward`, `terminated`, `truncated`, `mask`: what the last step or reset gave;
    - `next_obs`, `next_mask` of the episode that was begun ahead, and `begun`, its seed, -1: none was;
    - of each share: `masked`, whether its environments give masks; `spent`, nanoseconds stepping; `stepped`, steps.
    """
    kinds: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "order": (np.int64, (3,)),
        "action": (np.float32 if spaces.continuous else np.int64, (rows, *spaces.action_shape)),
        "masked": (np.bool_, (shares,)),
        "reward": (np.float32, (rows,)),
        **dict.fromkeys(("named", "seed", "next_seed", "begun"), (np.int64, (rows,))),
        **dict.fromkeys(("obs", "next_obs"), (np.float32, (rows, spaces.observations))),
        **dict.fromkeys(("terminated", "truncated"), (np.bool_, (rows,))),
        **dict.fromkeys(("mask", "next_mask"), (np.bool_, (rows, spaces.actions))),
        **dict.fromkeys(("spent", "stepped"), (np.int64, (shares,))),
    }
    pieces = shared_memory([math.prod(shape) * np.dtype(kind).itemsize for kind, shape in kinds.values()])
    found = {
        name: np.ndarray(shape, kind, piece) for (name, (kind, shape)), piece in zip(kinds.items(), pieces, strict=True)
    }
    found["next_seed"][:] = found["begun"][:] = -1
    return SimpleNamespace(**found)


class _Share:
    """One process's rows of a pool, dealt like cards: neighbours, a member's, are rarely equally dear.

    Args:
        cfg: which environment.
        first: its first row, and its number among the shares.
        shared: see `_shared_arrays`.
        made: its first few environments.
    """

    def __init__(self, cfg: EnvConfig, first: int, shared: Any, made: Sequence[gymnasium.Env[Any, Any]] = ()) -> None:
        self._cfg, self._first, self._shared, self._made = cfg, first, shared, made
        self._rows: Rows | None = None
        self._failed: dict[int, tuple[int, Exception]] = {}  # episodes begun ahead that did not begin: seed, and why

    def serve(self) -> None:
        """Do what is asked."""
        op, count, shares = self._shared.order.tolist()
        if self._rows is None:  # the first request
            self._every = slice(self._first, None, shares)
            self._mine = range(len(self._shared.obs))[self._every]
            self._rows = make_rows(self._cfg, self._mine, made=self._made)
            return
        do = self._reset if op == _RESET else self._step
        if count < 0:
            do(self._rows, self._mine, self._every)
        else:
            named = self._shared.named[:count]
            own = named[named % shares == self._first]
            do(self._rows, own.tolist(), own)

    def close(self) -> None:
        """Close the environments."""
        if self._rows is not None:
            self._rows.close()

    def _reset(self, envs: Rows, rows: Sequence[int], index: Ints | slice) -> None:
        shared = self._shared
        shared.begun[index] = -1
        seeds = shared.seed[index].tolist()
        for row, seed in zip(rows, seeds, strict=True):
            failed = self._failed.pop(row, None)
            if failed is not None and failed[0] == seed:
                raise failed[1]
        shared.obs[index], mask = envs.reset(rows, seeds)
        if mask is not None:
            shared.mask[index], shared.masked[self._first] = mask, True

    def _step(self, envs: Rows, rows: Sequence[int], index: Ints | slice) -> None:
        shared = self._shared
        began = time.perf_counter_ns()
        obs, reward, terminated, truncated, mask = envs.step(rows, shared.action[index])
        shared.spent[self._first] += time.perf_counter_ns() - began
        shared.stepped[self._first] += len(rows)
        shared.obs[index], shared.reward[index] = obs, reward
        shared.terminated[index], shared.truncated[index] = terminated, truncated
        if mask is not None:
            shared.mask[index] = mask
        shared.begun[index] = -1
        over = terminated | truncated | broken(envs.actions, obs, reward, terminated, truncated, mask)
        for i in over.nonzero()[0].tolist():
            self._begin_ahead(envs, rows[i])

    def _begin_ahead(self, envs: Rows, row: int) -> None:
        """Begin the episode that is known to follow. A fault is kept until that episode is asked for."""
        shared = self._shared
        self._failed.pop(row, None)
        seed = int(shared.next_seed[row])
        if seed < 0:
            return
        try:
            obs, mask = envs.reset([row], [seed])
        except Exception as error:
            self._failed[row] = seed, error
            return
        shared.next_obs[row] = obs[0]
        if mask is not None:
            shared.next_mask[row] = mask[0]
        shared.begun[row] = seed


class Remote:
    """The rows of one pool in worker processes, and this process's share of them where it takes one.

    They are forked here, before the trainer's memory and threads grow, and make their environments in `open`, when it
    is known how many are used.

    Args:
        cfg: which environment.
        rows: `R`.
        spaces: what an algorithm knows of its spaces.
        count: processes at most.

    Raises:
        Unavailable: a process cannot be forked.
    """

    def __init__(self, cfg: EnvConfig, rows: int, spaces: Spaces, count: int) -> None:
        self.cfg, self.shared = cfg, _shared_arrays(rows, spaces, count + 1)
        shares = [_Share(cfg, first, self.shared) for first in range(count)]
        try:
            self.helpers: list[Helper | Inline] = [Helper(share.serve, share.close) for share in shares]
        except OSError as error:
            raise Unavailable(f"a worker process cannot be forked ({error.strerror or error})") from error
        self._asked: list[Helper | Inline] = []  # who has not answered yet
        self._masked, self._death = False, ""

    def open(self, count: int, made: gymnasium.Env[Any, Any] | None) -> None:
        """Have the first `count` processes make their environments; let the others go.

        Args:
            count: how many.
            made: this process takes a share besides, of which that is the first environment; None: it does not.

        Raises:
            Unavailable: an environment cannot be made there.
        """
        for helper in self.helpers[count:]:
            helper.dismiss()
        del self.helpers[count:]
        if made is not None:
            own = _Share(self.cfg, count, self.shared, [made])
            self.helpers.append(Inline(own.serve, own.close))
        try:
            self._begin(_OPEN, None)
            self._end(None)
        except Exception as error:
            raise Unavailable(str(error)) from error

    def reset(self, rows: Ints, seeds: Ints) -> Begun:
        """Begin episodes; those that were begun ahead are there already. See `Rows.reset`."""
        shared = self.shared
        ahead = shared.begun[rows] == seeds
        if ahead.any():
            taken = rows[ahead]
            shared.obs[taken], shared.begun[taken] = shared.next_obs[taken], -1
            if self._masked:
                shared.mask[taken] = shared.next_mask[taken]
        due = rows[~ahead]
        if len(due):
            shared.seed[due] = seeds[~ahead]
            self._begin(_RESET, due)
            self._end(due)
            masked = shared.masked[due % len(self.helpers)]
            self._masked = self._masked or bool(masked.any())
            if self._masked and not masked.all():
                raise Fault(int(due[~masked][0]), NO_MASK)
        return shared.obs[rows], shared.mask[rows] if self._masked else None

    def send(self, rows: Ints | None, actions: Actions, next_seeds: Ints | None) -> None:
        """Begin a step of `rows`, of all where None."""
        where: Ints | slice = slice(None) if rows is None else rows
        self.shared.action[where] = actions
        if next_seeds is not None:
            self.shared.next_seed[where] = next_seeds
        self._begin(_STEP, rows)

    def receive(self, rows: Ints | None, actions: Actions) -> Stepped:
        """End it. See `Rows.step`."""
        self._end(rows)
        shared = self.shared
        where: Ints | slice = slice(None) if rows is None else rows
        return (
            np.array(shared.obs[where]),
            np.array(shared.reward[where]),
            np.array(shared.terminated[where]),
            np.array(shared.truncated[where]),
            np.array(shared.mask[where]) if self._masked else None,
        )

    def close(self) -> None:
        """Close the environments, in the middle of a step too, and end the processes."""
        self._death = self._death or "the pool was closed: make another one"
        for helper in self.helpers:
            helper.dismiss()

    def _begin(self, op: int, rows: Ints | None) -> None:
        """Ask for something about `rows`, about all where None."""
        if self._death:
            raise EnvironmentFailed(self._death)
        while self._asked:  # an interrupt left it
            self._answer()
        asked: Iterable[int] = range(len(self.helpers))
        if rows is not None:
            if len(rows) > len(self.shared.named):
                raise UsageError("a row was named twice in one step or reset of an environment pool")
            self.shared.named[: len(rows)] = rows
            asked = sorted(set((rows % len(self.helpers)).tolist()))
        self.shared.order[:] = op, -1 if rows is None else len(rows), len(self.helpers)
        self._asked = [self.helpers[share] for share in asked]
        for helper in self._asked:
            helper.tell()

    def _end(self, rows: Ints | None) -> None:
        """Wait for all that was asked; of several faults, raise the one that one row after the other meets first."""
        if self._death:
            raise EnvironmentFailed(self._death)
        errors = []
        while self._asked:
            errors.append(self._answer())
        if found := [error for error in errors if error is not None]:
            order = {} if rows is None else {row: i for i, row in enumerate(rows.tolist())}
            raise min(found, key=lambda fault: order.get(fault.row, fault.row) if isinstance(fault, Fault) else -1)

    def _answer(self) -> BaseException | None:
        """Wait for the last of those asked, this process's own share where it has one; return what it raised."""
        helper = self._asked[-1]
        try:
            error = helper.wait()
        except Died as death:
            self._death = f"worker {death}{_MEMORY if death.killed else ''}{_WAY_OUT}"
            self._asked = []
            self.close()
            raise EnvironmentFailed(self._death) from None
        self._asked.pop()
        if isinstance(helper, Inline) or error is None or isinstance(error, Fault | EvopipeError):
            return error
        return EnvironmentFailed(f"{type(error).__name__}: {error}")  # sys.exit() in an environment
