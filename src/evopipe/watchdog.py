"""Foreign code that must give its process back as it was: code that hangs, that exits, or that changes the folder."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

GRACE = 5.0
"""Seconds that foreign code has to return once a signal has asked this process to stop."""
_LOOKS = 4  # looks at it in the time that it may take
_watching: Watchdog | None = None  # in the main thread: Python handles signals in no other
_hurried = False
_former: Any = None  # what handled SIGALRM before


class Hung(BaseException):
    """Foreign code did not return in time; the text goes on from its name. Its own `except Exception` lets it pass."""


class Watchdog:
    """A context for foreign code, entered again and again. Contexts do not nest.

    Code that makes no progress for so many seconds is ended by `Hung`, at most a quarter later, and `GRACE` seconds
    after `hurry`. That takes the main thread, a system with SIGALRM, and code that Python can interrupt: an extension
    that holds Python's lock cannot be ended from within its process. `os._exit` raises SystemExit, in this process and
    thread. The working folder is afterwards what it was. `what` names the parameter that gives the seconds; the value
    of `progress` changes while there is some.
    """

    def __init__(self, seconds: float, what: str = "", progress: Callable[[], object] = lambda: None) -> None:
        self._seconds, self._what, self._progress = seconds, what, progress
        self._seen: object = None
        self._since = 0.0
        self._folder = ""
        self._exit = os._exit
        self._place = 0, 0
        _install()

    @property
    def _limit(self) -> float:
        return min(self._seconds, GRACE) if _hurried else self._seconds

    def __enter__(self) -> Watchdog:
        global _watching
        self._place = os.getpid(), threading.get_ident()
        self._exit, os._exit = os._exit, self._leave
        try:
            self._folder = os.getcwd()
        except OSError:  # it was deleted
            self._folder = ""
        if self._place[1] == threading.main_thread().ident and hasattr(signal, "setitimer"):
            _watching = self
            self.begin()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        global _watching
        os._exit = self._exit
        if _watching is self:
            _watching = None
            signal.setitimer(signal.ITIMER_REAL, 0)
        with contextlib.suppress(OSError):
            if self._folder and os.getcwd() != self._folder:
                os.chdir(self._folder)

    def begin(self) -> None:
        """Count the seconds from now on."""
        self._seen, self._since, period = self._progress(), time.monotonic(), self._limit / _LOOKS
        signal.setitimer(signal.ITIMER_REAL, period, period)

    def look(self) -> None:
        """Raise Hung if there was no progress for too long."""
        now, seen = time.monotonic(), self._progress()
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since >= 0.99 * self._limit:  # an alarm may come a moment too soon
            why = " after a signal asked to stop" if _hurried else f" ({self._what})" if self._what else ""
            raise Hung(f"did not return within {self._limit:g} seconds{why}")

    def _leave(self, status: int) -> NoReturn:
        if self._place != (os.getpid(), threading.get_ident()):  # a fork of that code's own, or another thread
            self._exit(status)
        raise SystemExit(f"os._exit({status})")


def hurry(hurried: bool = True) -> None:
    """Give foreign code `GRACE` seconds from now on, for a signal has asked to stop; or all its time again."""
    global _hurried
    _hurried = hurried
    if hurried and _watching is not None:
        _watching.begin()


def _install() -> None:
    """Have SIGALRM look, in the main thread; leave it to whom it belonged to where nothing is watched."""
    global _former
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        former = signal.getsignal(signal.SIGALRM)
        if former is not _ring:
            _former = former
            signal.signal(signal.SIGALRM, _ring)


def _ring(signum: int, frame: FrameType | None) -> None:
    if _watching is not None:
        _watching.look()
    elif callable(_former):
        _former(signum, frame)
