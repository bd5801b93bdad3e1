"""Signals of the operating system: a run that is to stop saves its state first, and no process outlives its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import FrameType
from typing import Any, Literal

import psutil

from evopipe import watchdog
from evopipe.parallel import signal_at_parent_death

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 60.0
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ash", "ksh", "busybox"})
_Handler = Callable[[int, FrameType | None], Any] | int | None


class StopSignal:
    """A context manager that turns SIGINT, SIGTERM and SIGHUP into a flag that a training loop checks between updates.

    The flag is the attribute `signum`. It is None until a signal arrives, and then the number of that first signal. A
    loop that sees the flag finishes its update, saves its state and raises `errors.Interrupted(stop.signum, ...)`. From
    the first signal on, users' code that runs under a `Watchdog` must return within `watchdog.GRACE` seconds. A second
    SIGINT raises `KeyboardInterrupt` at once. A SIGHUP that was ignored before (`nohup`) stays ignored. In any thread
    but the main thread, `signum` stays None, because Python delivers signals to the main thread only.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._interrupts = 0
        self._old: dict[int, _Handler] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
                signum = getattr(signal, name, None)
                if signum is not None and not (name == "SIGHUP" and signal.getsignal(signum) is signal.SIG_IGN):
                    self._old[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        watchdog.hurry(False)
        while self._old:
            signum, handler = self._old.popitem()
            # None: the old handler was installed from C, and Python cannot put it back.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum
            watchdog.hurry()
        self._interrupts += signum == signal.SIGINT
        if signum == signal.SIGINT and self._interrupts > 1:
            raise KeyboardInterrupt


def watch_ancestors() -> None:
    """Make this process stop when the `dvc` process that started it ends for any reason.

    Otherwise, if `dvc repro` is killed, the stage's command runs on. The next `dvc repro` then starts a second process
    that writes the same files.

    This function asks the kernel to send SIGTERM when the parent process ends. The parent may be a shell that lives
    longer than `dvc`. A daemon thread therefore waits until the nearest `dvc` ancestor ends; it then sends SIGTERM, and
    SIGKILL a minute later. A `StopSignal` turns the SIGTERM into save and exit.

    Nothing happens if DVC did not start the process (`DVC_STAGE` is not set), or if the system is not Linux.
    """
    if not os.environ.get("DVC_STAGE") or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    signal_at_parent_death(signal.SIGTERM)  # where that is not possible the watching thread is left
    dvc = _find_dvc()
    if os.getppid() != parent or dvc == "gone":
        os.kill(os.getpid(), signal.SIGTERM)
    elif dvc is not None:
        threading.Thread(target=_stop_after, args=(dvc,), name="evopipe-watch-dvc", daemon=True).start()


def _find_dvc() -> psutil.Process | Literal["gone"] | None:
    """Find the nearest `dvc`, or the program that runs DVC itself; None where `DVC_STAGE` was set by hand."""
    try:
        top = here = psutil.Process()
        for above in here.parents():
            argv = above.cmdline()
            if _is_dvc(argv):
                return above
            if here is top and _is_command_shell(argv):
                top = above
            here = above
        if os.getpgid(top.pid) == top.pid:  # DVC starts no process groups; an interactive shell does.
            return None
        owner = top.parent()
        # A session is inherited at birth: a parent of another session is one that adopted us.
        adopted = owner is None or os.getsid(owner.pid) != os.getsid(top.pid)
        return "gone" if owner is None or adopted or (owner.pid == 1 and not _is_python(owner.cmdline())) else owner
    except (psutil.Error, OSError):  # one of them ended while we looked
        return "gone"


def _is_dvc(argv: Sequence[str]) -> bool:
    # `python .../bin/dvc`, `python -m dvc`, `python .../dvc/__main__.py`, each perhaps after some flags.
    words = [PurePath(word) for word in argv[1:4]] if _is_python(argv) else [PurePath(word) for word in argv[:1]]
    return any(word.name == "dvc" or word.match("dvc/__main__.py") for word in words)


def _is_python(argv: Sequence[str]) -> bool:
    return bool(argv) and PurePath(argv[0]).name.startswith(("python", "pypy"))


def _is_command_shell(argv: Sequence[str]) -> bool:
    """Whether this is a shell that runs one given command, as DVC starts them: `sh -c '...'`."""
    return bool(argv) and PurePath(argv[0]).name in _SHELLS and "-c" in argv[1:4]


def _stop_after(process: psutil.Process) -> None:
    """Wait until a process has ended, then stop this one: by a signal first, by force after a minute."""
    while _lives(process):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _lives(process: psutil.Process) -> bool:
    """Whether it has not ended; one that waits for its parent to notice has."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
