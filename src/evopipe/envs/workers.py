"""Worker processes that step a pool's environments while the trainer learns.

`Crew` holds the processes, `Remote` one pool's environments in them. Every row is stepped by the code that steps it in
process (`evopipe.envs.rows`), so nothing depends on where it lives or among how many processes the rows are split.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evopipe import errors
from evopipe.envs.rows import NO_MASK, Actions, Begun, Fault, Ints, Stepped, describe_spec, floating_point
from evopipe.envs.shared import Bell, Message, Op, SharedArrays, read_message
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, UsageError
from evopipe.schema.blocks import EnvConfig
from evopipe.types import Spaces

MOST = 16  # workers that `auto` starts at most
LEAST_ROWS = 8  # rows that `auto` gives workers at least: below, a message costs more than it saves
LEARNING_ROWS = 32  # rows that `auto` gives each worker while the trainer learns meanwhile, and is in no hurry
# What `auto` reckons with, in microseconds: a step where none was measured; the messages of a tick, and each worker's.
# The latter are those of a busy machine: in vain is dearer than not at all.
STEP_COST, TICK_COST, WORKER_COST = 20.0, 100.0, 50.0
WORTH = 0.8  # of the time without them that a tick with workers may take
_PATIENCE = 5.0  # seconds that a process has to end
_MEMORY = " (often because memory ran out: lower env.num_envs or population.size)"
_WAY_OUT = "; runtime.env_workers: 0 steps them in the trainer's process"


class Unavailable(Exception):
    """An environment cannot live in a worker process; the text says why."""


class Crew:
    """Worker processes, started when a pool first needs them, shared by the pools of a run.

    They end with this process, whatever ends it, and are deaf to the signals that ask it to stop.

    Args:
        workers: how many; `auto`: by the number of CPUs that this process may use (none where it is only one), and
            fewer, or none, for a pool of few rows.
        learners: processes that compute while a pool steps whose steps they overlap.
    """

    def __init__(self, workers: int | Literal["auto"] = "auto", learners: int = 1) -> None:
        self.learners = learners
        self.auto = workers == "auto"
        cpus = available_cpus()
        possible = bool(sys.executable) and hasattr(socket, "send_fds")
        if workers == "auto":
            self.workers = min(cpus, MOST) if possible and cpus > 1 else 0
        elif possible or not workers:
            self.workers = workers
        else:
            raise ParamsError("runtime.env_workers: worker processes are not possible on this system; set it to 0")
        self._members: list[Worker] = []
        self._pools: list[Remote] = []
        weakref.finalize(self, _stop, self._members, os.getpid())

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

    def take(self, count: int) -> list[Worker]:
        """Return the first so many workers, started where they are not running yet.

        Raises:
            Unavailable: a process cannot be started.
        """
        while len(self._members) < count:
            try:
                self._members.append(Worker(len(self._members) + 1))
            except OSError as error:
                raise Unavailable(f"a worker process cannot be started ({error.strerror or error})") from error
        return self._members[:count]

    def add(self, pool: Remote) -> int:
        """Remember a pool, and return its number."""
        self._pools.append(pool)
        return len(self._pools)

    def close(self) -> None:
        """End the processes; the pools that use them cannot be used any more."""
        _stop(self._members, os.getpid())

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def available_cpus() -> int:
    """CPUs that this process may use: its affinity, and the quota of its control group."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cpus = min(cpus, max(1, round(int(quota) / int(period))))
    return cpus


class Worker:
    """One worker process and the socket to it. Requests are answered in order.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.channel, theirs = socket.socketpair()
        self._call, self._ready = Bell(), Bell()
        main_thread = threading.current_thread() is threading.main_thread()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from evopipe.envs.worker import main; "
            f"main({theirs.fileno()}, {self._call.fd}, {self._ready.fd}, {os.getpid()}, {main_thread})"
        )
        flags = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
        try:
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), self._call.fd, self._ready.fd) if fd >= 0],
                start_new_session=True,  # Ctrl-C in a terminal is for the trainer, which saves first
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            theirs.close()
        self._asked = self._answered = 0
        self._answers: dict[int, Message] = {}
        self._death = ""

    @property
    def busy(self) -> bool:
        """Whether a request was not answered yet."""
        return self._answered < self._asked

    def ask(self, op: Op, pool: int, count: int = -1, body: Any = None, fd: int | None = None) -> int:
        """Send a request and return its number. That the worker is gone shows when its answer is read."""
        self._asked += 1
        message = Message(op, self._asked, pool, count, body).pack()
        with contextlib.suppress(OSError):
            if fd is None:
                self.channel.sendall(message)
            else:
                sent = socket.send_fds(self.channel, [message], [fd])
                self.channel.sendall(message[sent:])
            self._call.ring()
        return self._asked

    def answer(self, number: int) -> Message:
        """Wait for the answer to a request.

        Raises:
            Unavailable: the worker is gone.
        """
        while number not in self._answers:
            message = None if self._death else self._read()
            if message is None:
                raise Unavailable(self._died())
            self._answered = message.number
            self._answers[message.number] = message
        return self._answers.pop(number)

    def _read(self) -> Message | None:
        self._ready.wait(self.channel)
        return read_message(self.channel)

    def _died(self) -> str:
        """Say what became of the process."""
        if not self._death:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_PATIENCE)
            code = self.process.returncode
            if code is None:
                self._death = f"worker process {self.process.pid} does not answer any more"
            elif code < 0:
                name = _signal_name(-code)
                memory = _MEMORY if -code == signal.SIGKILL else ""
                self._death = f"worker process {self.process.pid} was ended by {name}{memory}"
            else:
                self._death = f"worker process {self.process.pid} ended with exit code {code}"
        return self._death

    def stop(self) -> None:
        """End the process: by itself where it is idle, else at once."""
        if self.busy:
            self.process.kill()
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)
            self._call.ring()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._let_go()

    def _let_go(self) -> None:
        self.channel.close()
        self._call.close()
        self._ready.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stop(workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the trainer; they are not its own
        return
    while workers:
        workers.pop().stop()


class Remote:
    """The rows of one pool, dealt to worker processes like cards: neighbours, a member's, are rarely equally dear.

    Args:
        cfg: which environment.
        rows: `R`.
        spaces: what an algorithm knows of its spaces.
        example: one of the environments, made here.
        crew: the processes.
        count: how many of them.
        shares: among how many the rows are dealt: those after the first `count` are somebody else's.

    Raises:
        Unavailable: the environment cannot live in another process.
    """

    def __init__(
        self, cfg: EnvConfig, rows: int, spaces: Spaces, example: Any, crew: Crew, count: int, shares: int
    ) -> None:
        kwargs = _portable(cfg.kwargs)
        self._workers = crew.take(count)
        self.cfg, self.rows, self.shared = cfg, rows, SharedArrays(rows, spaces)
        self._pool = crew.add(self)
        self.masked = False
        self._asked: list[tuple[Worker, int, Ints | None]] = []  # what was not answered yet: about which rows
        self._shares = shares
        torch = sys.modules.get("torch")
        about = {
            "id": cfg.id, "kwargs": kwargs, "rows": rows, "shares": shares, "spaces": asdict(spaces),
            "spec": describe_spec(example),
            "folder": os.getcwd(), "path": sys.path, "torch_threads": torch.get_num_threads() if torch else None,
            "floating_point": floating_point(),
        }  # fmt: skip
        for first, worker in enumerate(self._workers):
            body = {**about, "first": first}
            self._asked.append((worker, worker.ask(Op.OPEN, self._pool, body=body, fd=self.shared.fd), None))
        os.close(self.shared.fd)  # on its way to them, and mapped here

    def settle(self) -> None:
        """Wait until the workers have made their environments.

        Raises:
            Unavailable: one of them could not.
        """
        for answer, _ in self._collect():
            if answer.op is Op.FAULT:
                raise Unavailable(answer.body["text"])

    def reset(self, rows: Ints, seeds: Ints) -> Begun:
        """Begin episodes; those that were begun ahead are there already. See `Rows.reset`."""
        shared = self.shared
        ahead = shared.begun[rows] == seeds
        if ahead.any():
            taken = rows[ahead]
            shared.obs[taken], shared.begun[taken] = shared.next_obs[taken], -1
            if self.masked:
                shared.mask[taken] = shared.next_mask[taken]
        due = rows[~ahead]
        shared.seed[due] = seeds[~ahead]
        if len(due):
            self._ask(Op.RESET, due)
            for answer, own in self._answers(due):
                self.masked = self.masked or bool(answer.body)
                if self.masked and not answer.body and own is not None:
                    raise Fault(int(own[0]), NO_MASK)
        return shared.obs[rows], shared.mask[rows] if self.masked else None

    def send(self, rows: Ints | None, actions: Actions, next_seeds: Ints | None) -> None:
        """Begin a step of `rows`, of all where None."""
        where: Ints | slice = slice(None) if rows is None else rows
        self.shared.action[where] = actions
        if next_seeds is not None:
            self.shared.next_seed[where] = next_seeds
        self._ask(Op.STEP, rows)

    def receive(self, rows: Ints | None) -> Stepped:
        """End it. See `Rows.step`."""
        self._answers(rows)
        shared = self.shared
        where: Ints | slice = slice(None) if rows is None else rows
        return (
            np.array(shared.obs[where]),
            np.array(shared.reward[where]),
            np.array(shared.terminated[where]),
            np.array(shared.truncated[where]),
            np.array(shared.mask[where]) if self.masked else None,
        )

    def close(self) -> None:
        """Close the environments; the processes stay for other pools."""
        for worker in self._workers:
            worker.ask(Op.CLOSE, self._pool)

    def _ask(self, op: Op, rows: Ints | None) -> None:
        for first, worker in enumerate(self._workers):
            if rows is None:
                self._asked.append((worker, worker.ask(op, self._pool), None))
                continue
            own, places = rows[rows % self._shares == first], self.shared.rows[first :: self._shares]
            if len(own) > len(places):
                raise UsageError("a row was named twice in one step or reset of an environment pool")
            if len(own):
                places[: len(own)] = own
                self._asked.append((worker, worker.ask(op, self._pool, len(own)), own))

    def _collect(self) -> list[tuple[Message, Ints | None]]:
        """Wait for all answers that are due; each comes with the rows that were asked about."""
        asked, self._asked = self._asked, []
        return [(worker.answer(number), own) for worker, number, own in asked]

    def _answers(self, rows: Ints | None) -> list[tuple[Message, Ints | None]]:
        """Wait for all answers; of several faults, raise the one that stepping one row after the other meets first."""
        try:
            answers = self._collect()
        except Unavailable as death:
            raise EnvironmentFailed(f"{death}{_WAY_OUT}") from None
        faults = [answer.body for answer, _ in answers if answer.op is Op.FAULT]
        if faults:
            order = {row: i for i, row in enumerate(rows.tolist())} if rows is not None else {}
            first = min(faults, key=lambda fault: order.get(fault["row"], fault["row"]))
            if not first["kind"]:
                raise Fault(first["row"], first["text"])
            raise _error(first["kind"], first["text"])
        return answers


def _error(kind: str, text: str) -> EvopipeError:
    """The typed error that an environment raised in a worker."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, EvopipeError) and found is not errors.Interrupted:
        return found(text)
    return EnvironmentFailed(text)


def _portable(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON carries them, if it carries them exactly.

    Raises:
        Unavailable: it does not.
    """
    try:
        carried = json.loads(json.dumps(kwargs))
    except (TypeError, ValueError):
        carried = None
    if carried != kwargs or repr(carried) != repr(kwargs):
        raise Unavailable("env.kwargs holds a value that is not plain data")
    return dict(carried)
