"""The outbox: one process beside a training that reads its record as it grows and brings it to the trackers.

Whatever a tracker does (import for seconds, hang, fail, fill its disk) happens in that process: the training starts it,
never waits for it, and hears from it only what is wrong. It ends when all is delivered and nobody writes any more, or
when its time is up; `evopipe track sync` brings what is left then.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from filelock import FileLock, Timeout

import evopipe
from evopipe.errors import EvopipeError
from evopipe.schema.blocks import TrackingConfig
from evopipe.track.backends import Backend, find_tracker, missing_package
from evopipe.track.record import Record
from evopipe.track.run import New, Run, TrackerError

ADVICE = "the run goes on and loses nothing, `evopipe track sync` brings the rest later"
_POLL_SECONDS, _LONGEST_PAUSE = 2.0, 60.0
_GATHER_SECONDS = 1.5  # stages that end shortly after one another are brought together
_started: list[subprocess.Popen[bytes]] = []  # to be reaped at the next start, in a program that trains many times


class Outbox:
    """Has a record delivered while a `with` block writes it. No method raises, or waits for a tracker.

    Args:
        folder: the record; `track.record.begin` has made it. None: nothing is to be delivered.
        root: the DVC root.
        config: the `tracking` block.
    """

    def __init__(self, folder: Path | None, root: Path, config: TrackingConfig) -> None:
        missing = {name: text for name in config.backends if (text := missing_package(name)) is not None}
        there = tuple(name for name in config.backends if name not in missing)
        self._folder, self._root, self._config = folder, root, config.model_copy(update={"backends": there})
        self._problems = list(missing.values()) if folder is not None else []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Outbox:
        if self._folder is not None and self._config.backends:
            try:
                self._process = start(self._folder, self._root, self._config, follow=True)
            except OSError as error:
                self._problems.append(f"tracking: no process could be started ({error.strerror or error})")
        return self

    def __exit__(self, *_: object) -> None:
        """Let the process know that no more comes; it ends by itself."""
        if self._process is not None and self._process.stdin and self._process.stdout:
            self._process.stdin.close()
            self._process.stdout.close()

    def problems(self) -> list[str]:
        """Return sentences on what has gone wrong with the delivery since the last call."""
        if self._process is not None and self._process.stdout is not None:
            said = self._process.stdout.read() or b""  # None where there is nothing yet
            self._problems += [f"tracking: {line}" for line in said.decode(errors="replace").splitlines()]
        fresh, self._problems = self._problems, []
        return [f"{text}; {ADVICE}" for text in fresh]


def start(folder: Path, root: Path, config: TrackingConfig, follow: bool) -> subprocess.Popen[bytes]:
    """Start the process that delivers a record.

    It has its own session, so that Ctrl-C at the terminal leaves it to finish, and none of this process's streams, so
    that nobody who waits for their end (DVC does) waits for it.

    Args:
        folder: the record.
        root: the DVC root.
        config: the `tracking` block.
        follow: whether more comes, until its stdin is closed or this process dies; its stdout then says what is wrong.

    Raises:
        OSError: it cannot be started.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    source = Path(evopipe.__file__).absolute().parents[1]
    paths = [str(source), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths),
        # Numeric libraries come along with MLflow and would keep a thread ready for every core.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }
    words = [str(folder), str(root), config.model_dump_json(), str(os.getpid())]
    with (folder / "track.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "evopipe.track.outbox", *words],
            bufsize=0,
            stdin=subprocess.PIPE if follow else subprocess.DEVNULL,
            stdout=subprocess.PIPE if follow else log,
            stderr=log,
            cwd=root,
            env=env,
            start_new_session=True,
        )
    if process.stdout is not None:
        os.set_blocking(process.stdout.fileno(), False)
    _started.append(process)
    return process


class Channel:
    """One tracker: opened when it is first needed, and anew after a failure; `problem` says what that was."""

    def __init__(self, name: str, config: TrackingConfig, root: Path) -> None:
        self.name, self._config, self._root = name, config, root
        self.problem: str | None = None
        self._backend: Backend | None = None
        self._delivered: object = None  # how far the run was that was brought last

    def deliver(self, run: Run) -> New:
        """Bring a run to the tracker; return how much was new."""
        stand, new = (run.key, run.stand()), New()
        try:
            if stand != self._delivered:
                self._backend = self._backend or self._connect()
                new = self._backend.deliver(run)
            self.problem, self._delivered = None, stand
        except Exception as error:
            kind = "" if isinstance(error, EvopipeError) else f"{type(error).__name__}: "
            self.problem = f"{self.name}: {kind}{str(error).strip().partition(chr(10))[0][:300]}".rstrip(": ")
            self.close()
        return new

    def close(self) -> None:
        """Let go of the tracker, and of what was believed of it."""
        backend, self._backend, self._delivered = self._backend, None, None
        with contextlib.suppress(Exception):
            if backend is not None:
                backend.close()

    def _connect(self) -> Backend:
        if not self._root.is_dir():  # a temporary copy; do not make a part of it anew
            raise TrackerError(f"{self._root}: this folder is gone, and with it what was to be delivered")
        if (missing := missing_package(self.name)) is not None:
            raise TrackerError(missing)
        return find_tracker(self.name).connect(self._config, self._root)


def delivery_lock(folder: Path) -> FileLock:
    """Return the lock of who delivers a record; not a training's own lock."""
    return FileLock(folder / "track.lock", poll_interval=0.2)


def _main(folder: Path, root: Path, config: TrackingConfig, writer: int) -> None:
    """Deliver a record, while the process that writes it lives and keeps the other end of stdin open, and after."""
    with contextlib.suppress(OSError):
        os.nice(19)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the trackers print is no answer
    over = threading.Event()
    threading.Thread(target=_watch, args=(over, config.finish_seconds, writer), daemon=True).start()
    with contextlib.suppress(Timeout), contextlib.ExitStack() as stack:
        next_one = FileLock(folder / "next.lock", blocking=False)
        if over.wait(0.05):  # All is there: one process that waits for its turn is enough, it brings this as well.
            stack.enter_context(next_one)
            time.sleep(_GATHER_SECONDS)
        stack.enter_context(delivery_lock(folder))
        next_one.release()
        channels = [Channel(name, config, root) for name in config.backends]
        for channel in channels:
            stack.callback(channel.close)
        _follow(folder, channels, over, answer)


def _watch(over: threading.Event, seconds: float, writer: int) -> None:
    """Wait until the writer closes its end, or dies; then until the time is up, however stuck the rest is.

    Its death is looked for as well, for a process that it forked may hold the other end too.
    """
    with contextlib.suppress(OSError, ValueError):
        while os.getppid() == writer and not select.select([0], [], [], _POLL_SECONDS)[0]:
            pass
    over.set()
    time.sleep(seconds)
    print(f"time is up after {seconds:g} s", file=sys.stderr, flush=True)
    os._exit(75)


def _follow(folder: Path, channels: list[Channel], over: threading.Event, answer: int) -> None:
    """Deliver a record until it is whole and nobody writes any more; tell of every new problem."""
    record, told, pause = Record(folder), set[str](), _POLL_SECONDS
    while folder.exists():
        last = over.is_set()
        run = record.refresh(writing=not last)
        for channel in channels:
            channel.deliver(run)
        problem = "; ".join(channel.problem for channel in channels if channel.problem)
        if problem not in told | {""}:
            told.add(problem)
            with contextlib.suppress(OSError):  # nobody listens any more
                os.write(answer, f"{problem}\n".encode())
        if last and not problem:
            return
        pause = min(_LONGEST_PAUSE, 2 * pause) if problem else _POLL_SECONDS
        if last:
            time.sleep(pause)
        else:
            over.wait(pause)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), TrackingConfig.model_validate_json(sys.argv[3]), int(sys.argv[4]))
