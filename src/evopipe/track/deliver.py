"""The process that feeds the trackers: `python -m evopipe.track.deliver`, started beside a training (`track.courier`).

It reads the training's record and nothing else, so whatever a tracker does (import for seconds, hang, fail, fill its
disk) happens here. It ends when all is delivered and nobody writes any more, or when its time is up; what is left then
is brought by `evopipe track sync`.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from evopipe.errors import BusyError, EvopipeError
from evopipe.schema.blocks import Tracker, TrackingConfig
from evopipe.storage.lock import RunLock
from evopipe.track.record import Record, write_status
from evopipe.track.run import Backend, New, Run, TrackerError, missing_package

POLL_SECONDS, FIRST_PAUSE, LONGEST_PAUSE = 2.0, 5.0, 60.0
GATHER_SECONDS = 1.5  # stages that end shortly after one another are brought together


def lock_of(folder: Path) -> RunLock:
    """Return the lock of who delivers a record; not a training's own lock."""
    return RunLock(folder.with_suffix(".track"))


def open_backend(name: Tracker, config: TrackingConfig, root: Path) -> Backend:
    """Make one tracker ready.

    Args:
        name: which.
        config: the `tracking` block.
        root: the DVC root; what a tracker keeps locally goes below `.evopipe/` there.

    Raises:
        TrackerError: its package is not installed, or the project is not there any more.
    """
    if not root.is_dir():  # a temporary copy; do not make a part of it anew
        raise TrackerError(f"{root}: this folder is gone, and with it what was to be delivered")
    if (missing := missing_package(name)) is not None:
        raise TrackerError(missing)
    if name == "mlflow":
        from evopipe.track.mlflow import Mlflow

        return Mlflow(config, root)
    if name == "wandb":
        from evopipe.track.wandb import Wandb

        return Wandb(config, root)
    from evopipe.track.tensorboard import Tensorboard

    return Tensorboard(config, root)


class Channel:
    """One tracker, with a growing pause after a failure.

    Args:
        name: which.
        config: the `tracking` block.
        root: the DVC root.
    """

    def __init__(self, name: Tracker, config: TrackingConfig, root: Path) -> None:
        self.name = name
        self.problem: str | None = None
        self._make: Callable[[], Backend] = lambda: open_backend(name, config, root)
        self._backend: Backend | None = None
        self._pause, self._not_before = FIRST_PAUSE, 0.0

    @property
    def waiting(self) -> float:
        """Seconds until the next attempt; 0 where none failed."""
        return max(0.0, self._not_before - time.monotonic()) if self.problem else 0.0

    def deliver(self, run: Run) -> New | None:
        """Bring a run to the tracker; None where that failed, and `problem` says why."""
        try:
            if self._backend is None:
                self._backend = self._make()
            new = self._backend.deliver(run)
        except Exception as error:
            self.problem = f"{self.name}: {reason(error)}"
            self._not_before, self._pause = time.monotonic() + self._pause, min(LONGEST_PAUSE, 2 * self._pause)
            self._drop()  # with what it believed of the tracker
            return None
        self.problem, self._pause = None, FIRST_PAUSE
        return new

    def find(self, run: Run) -> bool:
        """Whether the tracker has the training; may raise what the tracker raises."""
        if self._backend is None:
            self._backend = self._make()
        return self._backend.find(run)

    def close(self) -> None:
        """Let go of the tracker."""
        self._drop()

    def _drop(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            with contextlib.suppress(Exception):
                backend.close()


def reason(error: Exception) -> str:
    """Return one line that says what failed."""
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, EvopipeError):
        return text
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")


def follow(folder: Path, config: TrackingConfig, root: Path, over: threading.Event) -> bool:
    """Deliver a record until it is whole and nobody writes any more.

    Args:
        folder: the record.
        config: the `tracking` block.
        root: the DVC root.
        over: set when its process writes no more.

    Returns:
        whether everything was delivered.
    """
    record = Record(folder)
    channels = [Channel(name, config, root) for name in config.backends]
    told: str | None = ""
    try:
        while folder.exists():
            last = over.is_set()
            run = record.refresh(None if last else True)
            for channel in channels:
                if not channel.waiting:
                    channel.deliver(run)
            problem = "; ".join(channel.problem for channel in channels if channel.problem) or None
            if problem != told:
                write_status(folder, problem)
                told = problem
            if last and problem is None:
                return True
            if last:
                time.sleep(max(0.1, min(channel.waiting for channel in channels if channel.problem)))
            else:
                over.wait(POLL_SECONDS)
        return False
    finally:
        for channel in channels:
            channel.close()


def main() -> int:
    """Arguments: the record, the DVC root, the `tracking` block as JSON, the number of the process that writes.

    It writes as long as it lives and keeps the other end of stdin open.
    """
    folder, root = Path(sys.argv[1]), Path(sys.argv[2])
    config = TrackingConfig.model_validate_json(sys.argv[3])
    with contextlib.suppress(OSError):
        os.nice(19)
    over = threading.Event()
    threading.Thread(target=_end, args=(over, config.finish_seconds, int(sys.argv[4])), daemon=True).start()
    if not _is_next(folder, over):
        return 0
    return 0 if follow_alone(folder, config, root, over) else 75


def follow_alone(folder: Path, config: TrackingConfig, root: Path, over: threading.Event) -> bool:
    """Wait for whoever delivers this record now, then deliver what is left."""
    while True:
        try:
            with lock_of(folder):
                return follow(folder, config, root, over)
        except BusyError:
            time.sleep(0.2)


def _is_next(folder: Path, over: threading.Event) -> bool:
    """Where nobody writes any more: wait a moment for more to bring, and leave that to one process only."""
    if not over.wait(0.05):
        return True
    try:
        with RunLock(folder.with_suffix(".next")):
            time.sleep(GATHER_SECONDS)
            while _is_busy(folder):
                time.sleep(0.2)
            return True
    except BusyError:
        return False


def _is_busy(folder: Path) -> bool:
    try:
        with lock_of(folder):
            return False
    except BusyError:
        return True


def _end(over: threading.Event, seconds: float, writer: int) -> None:
    """Wait until the writer closes its end, or dies; then until the time is up, however stuck the rest is.

    Its death is looked for as well, for a process that it forked may hold the other end too.
    """
    with contextlib.suppress(OSError, ValueError):
        while os.getppid() == writer:
            ready, _, _ = select.select([0], [], [], POLL_SECONDS)
            if ready and not os.read(0, 4096):
                break
    over.set()
    time.sleep(seconds)
    print(f"time is up after {seconds:g} s", file=sys.stderr, flush=True)
    os._exit(75)


if __name__ == "__main__":
    sys.exit(main())
