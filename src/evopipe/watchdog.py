"""Watches foreign code, which may hang, exit, or change the working folder or torch's settings, and undoes such
changes."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time

# That of `signal` raises and catches an error for every handler that is a function.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import FrameType, TracebackType
from typing import Any, NoReturn

GRACE = 5.0
"""Seconds that foreign code has to return once a signal has asked this process to stop."""
_LOOKS = 4  # looks at it in the time that it may take
# The longest time between two looks: a signal that the system gave to another thread is handled at the next one.
_LONGEST = 1.0
_UNWIND = 0.1  # seconds that code has at least, once it was ended, before it is ended again
_SIGEV_THREAD_ID = 4  # of Linux's timers: signal one thread
_watching: Watchdog | None = None  # in the main thread: Python handles signals in no other
_hurried = False
_former: Any = None  # what handled SIGALRM before
_exit: Callable[[int], Any] = os._exit
_foreign = threading.local()  # `pid`: of the process in which a thread runs foreign code now


class Hung(BaseException):
    """The exception raised inside foreign code that did not return in time.

    It is a `BaseException`, so that the foreign code's own `except Exception` does not catch it. The text is a sentence
    without its subject; the caller puts the code's name before it.
    """


class Watchdog:
    """A reusable context manager that limits the time of foreign code and undoes some of its side effects. Contexts do
    not nest.

    Code that makes no progress for too long is ended by the exception `Hung`. The limit needs the main thread, a system
    with SIGALRM, and code that Python can interrupt: an extension that holds the GIL cannot be ended from within its
    process. If the code uses SIGALRM itself, a second timer enforces the limit on Linux. A call of `os._exit` in the
    code raises SystemExit instead. On exit the working folder, torch's default dtype and torch's gradient mode are as
    they were before.

    Args:
        seconds: the longest time without progress. `Hung` is raised at most a quarter of that time later. The attribute
            of this name may be set between two contexts.
        what: the name of the parameter from which `seconds` comes; the message of `Hung` names it.
        progress: a function whose return value changes when the code makes progress.
        grace: a new limit in seconds after a call of the function `hurry`, if it is below `seconds`; None for `GRACE`.
    """

    def __init__(
        self, seconds: float, what: str = "", progress: Callable[[], object] = lambda: None, grace: float | None = None
    ) -> None:  # fmt: skip
        self.seconds, self._what, self._progress, self._grace = seconds, what, progress, grace
        self._seen: object = None
        self._since = 0.0
        self._folder = b""
        self._before: int | None = None
        self._torch: tuple[Any, bool] | None = None
        _install()

    @property
    def _limit(self) -> float:
        return min(self.seconds, GRACE if self._grace is None else self._grace) if _hurried else self.seconds

    def __enter__(self) -> Watchdog:
        global _watching
        self._before = _stay(os.getpid())
        torch = sys.modules.get("torch")
        self._torch = None if torch is None else (torch.get_default_dtype(), torch.is_grad_enabled())
        self._folder = _folder()
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
            # Before a timer that still runs may look at them: those of the last time may be hours old.
            self._seen, self._since = self._progress(), time.monotonic()
            _watching = self
            self.begin()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        global _watching
        _stay(self._before)
        if _watching is self:
            _watching = None
            if getsignal(signal.SIGALRM) is _ring:
                signal.setitimer(signal.ITIMER_REAL, 0)
        if (torch := sys.modules.get("torch")) is not None:
            dtype, gradients = self._torch or (torch.float32, True)
            if torch.get_default_dtype() != dtype:
                torch.set_default_dtype(dtype)
            if torch.is_grad_enabled() != gradients:
                torch.set_grad_enabled(gradients)
        try:  # no `contextlib.suppress`: this is done at every step of an environment
            if self._folder and _folder() != self._folder:
                os.chdir(self._folder)
        except OSError:
            pass

    def begin(self) -> None:
        """Start the timers, which check how long there has been no progress. This time is counted from now."""
        self._seen, self._since = self._progress(), time.monotonic()
        period = min(self._limit / _LOOKS, _LONGEST)
        if getsignal(signal.SIGALRM) is _ring:  # else it is that code's own
            signal.setitimer(signal.ITIMER_REAL, period, period)
        _timer.begin(period)

    def look(self) -> None:
        """Check whether the code has made progress; raise `Hung` if it has made none for too long. The timers call this
        method."""
        now, seen = time.monotonic(), self._progress()
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since >= 0.99 * self._limit:  # an alarm may come a moment too soon
            # Two timers ring at the same moment: the second must not end what the first has begun to clean up.
            self._since = now - self._limit + max(self._limit / _LOOKS, _UNWIND)
            why = " after a signal asked to stop" if _hurried else f" ({self._what})" if self._what else ""
            raise Hung(f"did not return within {self._limit:g} seconds{why}")


@cache
def _getcwd() -> Callable[[], bytes | None]:
    """Return a function that returns the working folder, or None if it was deleted.

    Unlike `os.getcwd` it keeps Python's lock: a thread that gives the lock away waits for it where others compute, and
    this is asked twice at every step.
    """
    import ctypes

    longest = 4096
    try:
        found = ctypes.PyDLL(None).getcwd
    except (AttributeError, OSError, TypeError):  # no such library, as on Windows
        return os.getcwdb
    found.restype, found.argtypes = ctypes.c_char_p, (ctypes.c_char_p, ctypes.c_size_t)
    return partial(found, ctypes.create_string_buffer(longest), longest)


def _folder() -> bytes:
    """Return the working folder; nothing if it was deleted."""
    try:
        return _getcwd()() or b""
    except OSError:
        return b""


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Return a context manager for foreign code in which `os._exit` raises SystemExit and does not end the process.

    This holds for the thread that entered the context. In other threads, and in forked processes, `os._exit` works as
    usual.
    """
    before = _stay(os.getpid())
    try:
        yield
    finally:
        _stay(before)


def _stay(pid: int | None) -> int | None:
    """Say in which process this thread runs foreign code, None: in none; return what was said before."""
    global _exit
    if os._exit is not _leave:
        _exit, os._exit = os._exit, _leave
    before, _foreign.pid = getattr(_foreign, "pid", None), pid
    return before


def _leave(status: int) -> NoReturn:
    if getattr(_foreign, "pid", None) != os.getpid():
        _exit(status)
    raise SystemExit(f"os._exit({status})")


def hurry(hurried: bool = True) -> None:
    """Limit foreign code to `GRACE` seconds from now on, because a signal asked the process to stop. With
    `hurried=False`, restore the full time."""
    global _hurried
    _hurried = hurried
    if hurried and _watching is not None:
        _watching.begin()


class _Timer:
    """A timer that foreign code does not know: POSIX's, by a real-time signal. On systems other than Linux there is
    none.

    It runs on between two contexts, so that contexts cost nothing, and stops when it finds none.
    """

    signum = getattr(signal, "SIGRTMAX", 0) - 5

    def __init__(self) -> None:
        self._set: Any = None  # sets the period of this process's timer, in seconds
        self._period, self._pid = 0.0, 0

    def begin(self, period: float) -> None:
        """Check every `seconds` from now on, in the main thread; 0 stops."""
        if os.getpid() != self._pid:  # a fork has none of its parent's timers
            self._set, self._period, self._pid = self._make(), 0.0, os.getpid()
        if period != self._period and self._set is not None:
            self._set(period)
            self._period = period

    def _make(self) -> Callable[[float], None] | None:
        if not sys.platform.startswith("linux") or signal.getsignal(self.signum) not in (signal.SIG_DFL, self._ring):
            return None
        import ctypes

        class Event(ctypes.Structure):
            _fields_ = (
                ("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("thread", ctypes.c_int), ("rest", ctypes.c_byte * 44),
            )  # fmt: skip

        system, timer = ctypes.CDLL(None), ctypes.c_void_p()
        if not hasattr(system, "timer_create"):
            return None
        signal.signal(self.signum, self._ring)
        # To this thread alone: a signal to the process may go to any thread, and does not wake this one from a sleep.
        event = Event(None, self.signum, _SIGEV_THREAD_ID, threading.get_native_id())
        if system.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
            return None

        def set_period(seconds: float) -> None:
            whole, rest = divmod(round(1e9 * seconds), 10**9)
            span = (ctypes.c_long * 4)(whole, rest, whole, rest)  # between two, and until the first
            system.timer_settime(timer, 0, span, None)

        # Python gives signals back to the system as it ends: one that came then would kill the process.
        atexit.register(set_period, 0.0)
        return set_period

    def _ring(self, signum: int, frame: FrameType | None) -> None:
        if _watching is None:
            self.begin(0.0)
        else:
            _watching.look()


_timer = _Timer()


def _install() -> None:
    """Use SIGALRM for the checks, in the main thread, or restore its owner's handler if nothing is watched."""
    global _former
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        former = getsignal(signal.SIGALRM)
        if former is not _ring:
            _former = former
            signal.signal(signal.SIGALRM, _ring)


def _ring(signum: int, frame: FrameType | None) -> None:
    if _watching is not None:
        _watching.look()
    elif callable(_former):
        _former(signum, frame)
