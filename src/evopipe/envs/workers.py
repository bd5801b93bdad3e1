"""Worker processes that step the environments of a pool, while this process learns or steps some of them itself.

`Workers` decides how many there are; `_WorkerRows` is one pool's environments in them. Every row is stepped by the same
code as in this process (`evopipe.envs.rows`), so no result depends on where a row lives or on how many processes there
are.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from evopipe.envs.make import close, guard, has_threads
from evopipe.envs.rows import Actions, Begun, Fault, Ints, Rows, RowStep, Upcoming
from evopipe.envs.team_rows import FORCED, TeamRows
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, UsageError, said
from evopipe.parallel import Died, Helper, available_cpus, can_help, dismiss, shared_memory
from evopipe.schema.env import EnvConfig
from evopipe.types import Spaces
from evopipe.watchdog import Hung

if TYPE_CHECKING:
    import gymnasium
    import numpy.typing as npt

_MOST = 16  # workers that `auto` starts at most
_LEAST_ROWS = 8  # rows that `auto` gives workers at least: below, a wake-up costs more than it saves
_LEARNING_ROWS = 32  # rows that `auto` gives each worker while the trainer learns meanwhile, and is in no hurry
# What `auto` reckons with, in microseconds: a step where none was measured; the wake-ups of a tick, and each worker's.
# The latter are those of a busy machine: in vain is dearer than not at all.
_STEP_COST, _TICK_COST, _WORKER_COST = 20.0, 100.0, 50.0
_WORTH = 0.8  # of the time without them that a tick with workers may take
_PATIENCE = 1.5  # times as long as a worker may the trainer wait for it: it has a better sentence
_OPEN, _RESET, _STEP, _REOPEN = range(4)
_KWARGS = 1 << 14  # bytes of keyword arguments, as JSON, that workers can be told
_MEMORY = " (often because memory ran out: lower env.num_envs or population.size)"
_WAY_OUT = "; runtime.env_workers: 0 steps them in the trainer's process"
_STEP_FIELDS = tuple(field.name for field in fields(RowStep))


class Workers:
    """Settings and bookkeeping of the worker processes that step the environments of a run's pools. The object decides
    how many processes each pool gets, and measures the time of a step.

    Each pool forks its own workers. A pool's workers end with the pool, with this object, and with this process.

    Args:
        workers: the number of workers of a pool; `auto` decides by the available CPUs and the size of the pool.
        learners: the number of learner processes that compute while environments step.

    Raises:
        ParamsError: a number of workers was given, and this system cannot fork processes.
    """

    def __init__(self, workers: int | Literal["auto"] = "auto", learners: int = 1) -> None:
        self.learners, self.auto = learners, workers == "auto"
        if workers == "auto":
            cpus = available_cpus()
            self.workers = min(cpus, _MOST) if cpus > 1 and can_help() else 0
        elif can_help() or not workers:
            self.workers = workers
        else:
            raise ParamsError("runtime.env_workers: worker processes are not possible on this system; set it to 0")
        self._pools: list[_WorkerRows] = []

    def count(self, rows: int, overlapped: bool, step_cost: float | None = None) -> int:
        """Return the number of worker processes for a pool. If this process steps a share of the environments as well,
        it is not counted.

        Args:
            rows: the number of environments in the pool.
            overlapped: whether the caller computes while the environments step.
            step_cost: the microseconds of a step; None if unknown.
        """
        if not self.auto:
            return min(self.workers, rows)
        if not self.workers or rows < _LEAST_ROWS:
            return 0
        if overlapped:
            free = self.workers - min(self.learners, self.workers // 2)
            return max(1, min(free, rows // _LEARNING_ROWS))
        alone = rows * (_STEP_COST if step_cost is None else step_cost)
        most = min(self.workers, rows) - 1  # this process takes a share as well
        ticks = [alone, *(alone / (n + 1) + _TICK_COST + n * _WORKER_COST for n in range(1, most + 1))]
        return ticks.index(min(ticks)) if min(ticks) < _WORTH * alone else 0

    def step_cost(self, cfg: EnvConfig) -> float | None:
        """Return the mean microseconds of a step of this environment, as measured in the pools of these workers; None
        if no step was taken."""
        pools = [pool.shared for pool in self._pools if pool.cfg.on_gymnasium == cfg.on_gymnasium]
        steps = sum(int(shared["stepped"].sum()) for shared in pools)
        return sum(int(shared["spent"].sum()) for shared in pools) / steps / 1000 if steps else None

    def fork(self, cfg: EnvConfig, rows: int, spaces: Spaces, overlapped: bool) -> _WorkerRows | None:
        """Fork as many workers as a pool may need at most.

        The method should be called early, while the trainer has little memory and few threads.

        Args:
            cfg: the block `env` of `params.yaml`.
            rows: the number of environments in the pool.
            spaces: the environment's spaces, from which the sizes of the shared arrays follow.
            overlapped: whether the caller computes while the environments step.

        Returns:
            The pool's environments in worker processes; their method `open` decides how many processes are kept. None
            if there are no workers.

        Raises:
            ParamsError: a process cannot be forked, and the number of workers is not `auto`.
        """
        count = self.count(rows, overlapped, self.step_cost(cfg) or 1e9)
        # A fork has no threads but one: an environment that has started some might wait for them forever.
        if cfg.backend != "sync" or not count or (self.auto and has_threads(cfg)):
            return None
        try:
            self._pools.append(_WorkerRows(self, cfg, rows, spaces, overlapped, count))
        except OSError as error:
            self.give_up(cfg, f"a worker process cannot be forked ({error.strerror or error})")
            return None
        return self._pools[-1]

    def give_up(self, cfg: EnvConfig, why: str) -> None:
        """Let a pool continue without workers. This is possible only if their number is `auto`.

        `cfg` is the configuration of the pool's environment, and `why` the reason, for the error message.

        Raises:
            ParamsError: the number of workers is not `auto`.
        """
        if not self.auto:
            raise ParamsError(
                f"runtime.env_workers: the environment {cfg.id!r} cannot live in worker processes: {why}; set it to 0"
            ) from None

    def close(self) -> None:
        """End all worker processes. Pools with workers cannot be used any more."""
        for pool in self._pools:
            pool.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shared_arrays(rows: int, spaces: Spaces, shares: int) -> dict[str, npt.NDArray[Any]]:
    """Return what the processes of one pool see, by row unless stated otherwise; of a team by row and agent."""
    lead = (rows,) if spaces.team is None else (rows, spaces.agents)
    masks, observations = (np.bool_, (*lead, spaces.actions)), (np.float32, (*lead, spaces.observations))
    actions = np.float32 if spaces.real else np.int64, (*lead, *spaces.action_shape)
    kinds: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "order": (np.int64, (3,)),  # what is to be done, of how many rows, among how many shares
        "named": (np.int64, (rows,)),  # these rows, in the caller's order
        "action": actions,
        "seed": (np.int64, (rows,)),  # of the episode to begin
        "kwargs": (np.uint8, (_KWARGS,)),  # of the environments to be made anew, JSON and then zeros
        "obs": observations,  # this and the next five, and a team's: what the last step gave, or the last reset
        "reward": (np.float32, lead),
        **dict.fromkeys(("terminated", "truncated"), (np.bool_, lead)),
        "broken": (np.bool_, (rows,)),
        "mask": masks,
        "masked": (np.bool_, (1,)),  # whether the environments give masks
        "next_seed": (np.int64, (rows,)),  # of the episode that is begun where a step ends one, -1: not known
        "begun": (np.int64, (rows,)),  # seed of the episode that was begun ahead, -1: none was; and what it shows:
        "next_obs": observations,
        "next_mask": masks,
        # Of each share: nanoseconds, steps, what changes from one environment to the next.
        **dict.fromkeys(("spent", "stepped", "turn"), (np.int64, (shares,))),
    }
    if spaces.team is not None:
        kinds |= dict.fromkeys(("alive", "next_alive"), (np.bool_, lead))
        if spaces.kind in FORCED:
            kinds |= dict.fromkeys(("forced", "next_forced"), (np.float32, actions[1]))
    pieces = shared_memory([math.prod(shape) * np.dtype(kind).itemsize for kind, shape in kinds.values()])
    found: dict[str, npt.NDArray[Any]] = {
        name: np.ndarray(shape, kind, piece) for (name, (kind, shape)), piece in zip(kinds.items(), pieces, strict=True)
    }
    found["next_seed"][:] = found["begun"][:] = -1
    return found


class _Share:
    """One process's rows of a pool, dealt like cards: neighbours, a member's, are rarely equally dear."""

    def __init__(self, cfg: EnvConfig, number: int, shared: dict[str, npt.NDArray[Any]]) -> None:
        self._cfg, self._number, self._shared = cfg, number, shared
        self._rows: Rows | TeamRows | None = None
        self._given = [name for name in _STEP_FIELDS if name in shared]  # of a step
        self._failed: dict[int, tuple[int, Exception]] = {}  # episodes begun ahead that did not begin: seed, and why

    def open(self, shares: int, made: Sequence[gymnasium.Env[Any, Any]] = ()) -> None:
        """Make the environments, but for the first few, which were made already."""
        numbers = range(self._number, len(self._shared["obs"]), shares)
        turn = self._shared["turn"][self._number : self._number + 1]
        kind = TeamRows if "alive" in self._shared else Rows
        self._rows = kind(self._cfg, numbers, made, self._shared["masked"], turn)

    def reopen(self, shares: int, made: Sequence[gymnasium.Env[Any, Any]] = ()) -> None:
        """Make the environments anew, but for the first few, with the keyword arguments that all processes see."""
        kwargs = json.loads(self._shared["kwargs"].tobytes().rstrip(b"\0"))
        self._cfg = self._cfg.model_copy(update={"kwargs": kwargs})
        self.close()
        self._failed.clear()
        self.open(shares, made)

    def serve(self) -> None:
        """Do what is asked."""
        op, count, shares = self._shared["order"].tolist()
        if self._rows is None:  # the first request
            self.open(shares)
            return
        if op == _REOPEN:
            self.reopen(shares)
            return
        named = self._shared["named"][:count]
        own = named[named % shares == self._number]
        (self._reset if op == _RESET else self._step)(self._rows, own)

    def close(self) -> None:
        """Close the environments."""
        if self._rows is not None:
            self._rows.close()

    def _reset(self, envs: Rows | TeamRows, rows: Ints) -> None:
        seeds = self._shared["seed"][rows]
        for row, seed in zip(rows.tolist(), seeds.tolist(), strict=True):
            expected, error = self._failed.pop(row, (None, None))
            if error is not None and expected == seed:
                raise error
        self._begin(envs, rows, seeds, "")

    def _begin(self, envs: Rows | TeamRows, rows: Ints, seeds: Ints, ahead: str) -> None:
        """Begin episodes and keep what they show."""
        begun = envs.reset(rows, seeds)
        if (
            begun.mask is None and begun.alive is not None and isinstance(envs, TeamRows)
        ):  # other rows may yet find that there are masks
            begun = begun._replace(mask=envs.legal(begun.alive))
        for name, value in begun._asdict().items():
            if value is not None:
                self._shared[ahead + name][rows] = value

    def _step(self, envs: Rows | TeamRows, rows: Ints) -> None:
        shared = self._shared
        began = time.perf_counter_ns()
        step = envs.receive(rows, shared["action"][rows])
        shared["spent"][self._number] += time.perf_counter_ns() - began
        shared["stepped"][self._number] += len(rows)
        for name in self._given:
            shared[name][rows] = getattr(step, name)
        for row in rows[step.over & (shared["next_seed"][rows] >= 0), None]:
            self._begin_ahead(envs, row, shared["next_seed"][row])

    def _begin_ahead(self, envs: Rows | TeamRows, row: Ints, seed: Ints) -> None:
        """Begin the episode that is known to follow, `[1]`. A fault is kept until that episode is asked for."""
        try:
            self._begin(envs, row, seed, "next_")
        except Exception as error:
            self._failed[int(row[0])] = int(seed[0]), error
            return
        self._shared["begun"][row] = seed


class _WorkerRows:
    """The rows of one pool in worker processes, and this process's share where it takes one; see `Workers.fork`."""

    def __init__(
        self, workers: Workers, cfg: EnvConfig, rows: int, spaces: Spaces, overlapped: bool, count: int
    ) -> None:
        self.cfg, self.shared = cfg, _shared_arrays(rows, spaces, count + 1)
        self._begun = [name for name in Begun._fields if name in self.shared]
        self._workers, self._overlapped = workers, overlapped
        forked = [_Share(cfg, number, self.shared) for number in range(count)]
        self.helpers = [Helper(share.serve, share.close) for share in forked]
        self._own: _Share | None = None
        self._shares = 0
        self._asked: list[int] = []  # shares that have not answered yet
        self._raised: BaseException | None = None  # by this process's own share
        self._death = ""
        # A worker looks at its own environments; the trainer at the workers, a little more patiently.
        self._guard = guard(cfg, lambda: self.shared["turn"].tobytes(), _PATIENCE)

    def open(self, made: gymnasium.Env[Any, Any]) -> bool:
        """Have as many processes as are worth it make their environments, and let the others go.

        Returns:
            Whether the environments live here: then `made` belongs to this process's share, or is closed.

        Raises:
            ParamsError: a number of workers was asked for, and an environment cannot be made there.
        """
        workers = self._workers
        count = workers.count(len(self.shared["obs"]), self._overlapped, workers.step_cost(self.cfg))
        here = workers.auto and not self._overlapped  # this process has time for a share
        self._keep(count)
        if not count:
            return False
        self._shares, shares = count + here, np.arange(count)
        try:
            self._ask(_OPEN, shares)
            self._end(shares)
        except Exception as error:
            self._keep(0)
            workers.give_up(self.cfg, str(error))
            return False
        if here:
            self._own = _Share(self.cfg, count, self.shared)
            self._own.open(self._shares, [made])
        else:
            close(made)
        return True

    def reopen(self, cfg: EnvConfig, made: gymnasium.Env[Any, Any]) -> None:
        """Make all environments anew from `cfg`, which differs in `kwargs` alone; `made` is one of them.

        Raises:
            EnvironmentFailed: an environment could not be made, or the arguments are too long.
        """
        data, shared = json.dumps(cfg.kwargs).encode(), self.shared
        if len(data) > _KWARGS:
            raise EnvironmentFailed(f"train.curriculum: arguments of {len(data)} bytes as JSON, at most {_KWARGS} fit")
        shared["kwargs"][:] = 0
        shared["kwargs"][: len(data)] = np.frombuffer(data, np.uint8)
        shared["next_seed"][:] = shared["begun"][:] = -1  # episodes begun ahead are of the former environments
        shares = np.arange(len(self.helpers))
        self._ask(_REOPEN, shares)
        self._end(shares)
        if self._own is None:
            close(made)
        else:
            self._own.reopen(self._shares, [made])

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin episodes; those that were begun ahead are there already. See `Rows.reset`."""
        shared = self.shared
        ahead = shared["begun"][rows] == seeds
        shared["begun"][rows] = -1  # what was foretold binds nobody, and serves once
        taken, due = rows[ahead], rows[~ahead]
        for name in self._begun:
            shared[name][taken] = shared["next_" + name][taken]
        if len(due):
            shared["seed"][due] = seeds[~ahead]
            self._ask(_RESET, due)
            self._end(due)
        shared["next_seed"][rows] = -1 if upcoming is None else upcoming(rows, 1)[:, 0]
        mask = shared["mask"][rows] if shared["masked"][0] else None
        return Begun(shared["obs"][rows], mask, *(shared[name][rows] for name in self._begun[2:]))

    def send(self, rows: Ints, actions: Actions) -> None:
        """Begin a step."""
        self.shared["action"][rows] = actions
        self._ask(_STEP, rows)

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        """End it, see `Rows.receive`."""
        self._end(rows)
        return RowStep(*(self.shared[name][rows] for name in _STEP_FIELDS if name in self.shared))

    def close(self) -> None:
        """Close the environments, in the middle of a step too, and end the processes."""
        self._death = self._death or "the pool was closed: make another one"
        self._keep(0)
        if self._own is not None:
            self._own.close()

    def _keep(self, count: int) -> None:
        """Let all but the first processes go."""
        dismiss(self.helpers[count:])
        del self.helpers[count:]

    def _ask(self, op: int, rows: Ints) -> None:
        """Ask for something about `rows`; do this process's own share of it."""
        if self._death:
            raise EnvironmentFailed(self._death)
        while self._asked:  # an interrupt left it
            self._answer()
        if len(rows) > len(self.shared["named"]):
            raise UsageError("a row was named twice in one step or reset of an environment pool")
        self.shared["named"][: len(rows)] = rows
        self.shared["order"][:] = op, len(rows), self._shares
        shares, self._raised = {*(rows % self._shares).tolist()}, None
        self._asked = sorted(shares - {len(self.helpers)})
        for share in self._asked:
            self.helpers[share].tell()
        if len(self.helpers) in shares and self._own is not None:
            try:
                self._own.serve()
            except BaseException as error:  # others have been told, and must be waited for
                self._raised = error

    def _end(self, rows: Ints) -> None:
        """Wait for all that was asked; of several faults, raise the one that one row after the other meets first."""
        if self._death:
            raise EnvironmentFailed(self._death)
        errors, self._raised = [self._raised], None
        while self._asked:
            errors.append(self._answer())
        if found := [error for error in errors if error is not None]:
            order = rows.tolist()
            raise min(found, key=lambda fault: order.index(fault.row) if isinstance(fault, Fault) else -1)

    def _answer(self) -> BaseException | None:
        """Wait for the last of those asked; return what it raised."""
        share = self._asked[-1]
        try:
            with self._guard:
                raised = self.helpers[share].wait()
        except Died as death:
            self._give_up(f"worker {death}{_MEMORY if death.killed else ''}{_WAY_OUT}")
        except Hung as hung:
            self._give_up(f"worker process {self.helpers[share].pid} {hung}; an environment hangs in it: mend it")
        self._asked.pop()
        if raised is None or isinstance(raised, Fault | EvopipeError):
            return raised
        return EnvironmentFailed(said(raised))

    def _give_up(self, death: str) -> NoReturn:
        self._death, self._asked = death, []
        self.close()
        raise EnvironmentFailed(death) from None
