"""Helper processes, which are forked from this process, share memory with it, and are woken when there is work.

A helper has everything that this process had when it was forked; what changes later is in `shared_memory`. Workers that
step environments are helpers, and so are learners. See `docs/decisions/0014-one-process-layer.md`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from evopipe.errors import said

_LINE = 64  # bytes of a cache line
_AWAKE = 1_000_000  # ns that whoever waits stays awake: waking on an idle virtual CPU costs 200 000, acting takes less
_PATIENCE = 5000  # ms that a helper has to end
STOPPED = 5.0  # seconds that a helper may stand still by a signal
_LOOK = 1.0  # seconds between two looks at whether the other process is still there, and runs
_ROOM = 1 << 16  # bytes of what a helper and this process tell each other: how it stands, then what its work raised
_IDLE, _BUSY, _DISMISSED = range(3)


def can_help() -> bool:
    """Return whether this system supports helper processes: whether it is Linux with `fork` and `eventfd`."""
    return sys.platform.startswith("linux") and hasattr(os, "fork") and hasattr(os, "eventfd")


def available_cpus() -> int:
    """Return the number of CPUs that this process may use, by its CPU affinity and by its control group's quota."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cpus = min(cpus, max(1, round(int(quota) / int(period))))
    return cpus


def shared_memory(sizes: Sequence[int]) -> list[memoryview]:
    """Return blocks of zeroed memory that this process shares with processes forked later, one block for each of
    `sizes`, in bytes.

    A block may be longer than its size, because no two blocks share a cache line. The memory has no name in the system,
    so nothing is left behind when a process dies.
    """
    ends = [0, *itertools.accumulate(max(1, -(-size // _LINE)) * _LINE for size in sizes)]
    block = memoryview(mmap.mmap(-1, max(1, ends[-1])))
    return [block[first:end] for first, end in itertools.pairwise(ends)]


def signal_at_parent_death(signum: int) -> None:
    """Ask the kernel to send this process the signal `signum` when the thread that started the process ends.

    Other systems than Linux do not support this, and nothing happens there. If the parent ended before the call, no
    signal is sent.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, int(signum), 0, 0, 0)  # PR_SET_PDEATHSIG


class Died(Exception):
    """The error raised when a helper process has ended, or was stopped by a signal for too long.

    The text is a sentence without its subject; the caller puts the helper's name before it. `killed` is true if SIGKILL
    ended the process, which is how the kernel acts when memory runs out.
    """

    def __init__(self, text: str, killed: bool) -> None:
        super().__init__(text)
        self.killed = killed


class Helper:
    """A forked process that calls a function once for every call of `tell`.

    The process ends when the parent process ends, when the last reference to this object is dropped, or when `dismiss`
    is called. The process ignores SIGINT, SIGTERM and SIGHUP, because the parent decides when to stop and saves its
    state first.

    Args:
        work: the function that the process calls for every `tell`.
        last: a function that an idle process calls before it ends by `dismiss`. A busy process is killed without it.

    Raises:
        OSError: the process cannot be forked.
    """

    def __init__(self, work: Callable[[], None], last: Callable[[], None] = lambda: None) -> None:
        self._told, self._done, self._note = _WakeUp(), _WakeUp(), mmap.mmap(-1, _ROOM)
        self._life, life = os.pipe()  # hangs up when the process has ended
        parent = os.getpid()
        # The kernel counts the death of the thread that forks: that is this process's only if it is the main one.
        with_parent = threading.current_thread() is threading.main_thread()
        _flush()  # what waits there would be written by both
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads: the helper touches none of their locks
            try:
                self.pid = os.fork()
            except OSError:
                os.close(self._life)
                os.close(life)
                raise
        if self.pid == 0:
            self._live(work, last, parent, with_parent)
        os.close(life)
        self._end = weakref.finalize(self, _end, self.pid, parent, self._told, self._note, self._life)

    def tell(self) -> None:
        """Start one call of `work` in the helper and return at once. The previous call must be over: `wait` for it
        first."""
        self._note[0] = _BUSY
        self._told.ring()

    def wait(self) -> BaseException | None:
        """Wait until the helper's call of `work` is done; return the exception that the call raised, or None.

        Raises:
            Died: the process has ended, or a signal such as SIGSTOP has stopped it for `STOPPED` seconds.
        """
        stopped = 0
        while (rang := self._done.wait(self._life, _LOOK)) is None:
            stopped = stopped + 1 if self._is_stopped() else 0
            if stopped * _LOOK >= STOPPED:
                raise Died(f"process {self.pid} was stopped by a signal and nobody continued it", False)
        if not rang:
            raise self._death()
        length = int.from_bytes(self._note[1:5], "little")
        if not length:
            return None
        import pickle  # 10 ms, which light commands need not pay

        self._note[1:5] = bytes(4)
        error: BaseException = pickle.loads(self._note[5 : 5 + length])
        return error

    def dismiss(self) -> None:
        """End the helper process. An idle process first calls `last`, an argument of `Helper`; a busy one is killed."""
        dismiss([self])

    def _is_stopped(self) -> bool:
        how = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return how is not None and how.si_code == os.CLD_STOPPED

    def _death(self) -> Died:
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status
        if ended.si_code == os.CLD_EXITED:
            return Died(f"process {self.pid} ended with exit code {status}", False)
        name = next((each.name for each in signal.Signals if each == status), f"signal {status}")
        return Died(f"process {self.pid} was ended by {name}", status == signal.SIGKILL)

    def _live(self, work: Callable[[], None], last: Callable[[], None], parent: int, with_parent: bool) -> None:
        """What the forked process does. It must not return: the stack below it is the parent's."""
        code = 1
        try:
            os.setsid()  # Ctrl-C in a terminal is for the process that is helped
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if with_parent:
                signal_at_parent_death(signal.SIGKILL)
            else:
                threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
            if os.getppid() == parent:
                gc.freeze()  # a collection would touch, and so copy, everything that came with the fork
                torch = sys.modules.get("torch")
                if torch is None or torch.get_num_threads() == 1:
                    self._serve(work)
                else:  # OpenMP's threads are gone, and the one that began them waits forever: another begins its own
                    thread = threading.Thread(target=self._serve, args=(work,))
                    thread.start()
                    thread.join()
                last()
                code = 0
        finally:
            _flush()
            os._exit(code)

    def _serve(self, work: Callable[[], None]) -> None:
        while self._told.wait() and self._note[0] != _DISMISSED:
            try:
                work()
            except BaseException as error:  # sys.exit() too
                packed = _pack(error)
                self._note[1 : 5 + len(packed)] = len(packed).to_bytes(4, "little") + packed
            _flush()
            self._note[0] = _IDLE
            self._done.ring()


def dismiss(helpers: Sequence[Helper]) -> None:
    """End several helpers at the same time.

    A busy helper is killed at once. An idle helper first calls the function `last` with which it was made. It has 5
    seconds (`_PATIENCE`) from the start of this call; if it has not ended by then, it is killed.
    """
    ends = [end for helper in helpers if (end := helper._end.detach()) is not None]
    for _, _, (_, owner, told, note, _), _ in ends:
        _ask_to_end(owner, told, note)
    by = time.monotonic() + _PATIENCE / 1000
    for _, _, (pid, owner, told, note, life), _ in ends:
        _end(pid, owner, told, note, life, by)


class _WakeUp:
    """Tells another process that it is its turn. By an eventfd: Linux moves a pipe's reader to the writer's CPU."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._fd)

    def ring(self) -> None:
        os.eventfd_write(self._fd, 1)

    def wait(self, life: int | None = None, seconds: float | None = None) -> bool | None:
        """Wait for a wake-up, or for the other end of the pipe `life` to close; return which (True for a wake-up), None
        after a timeout."""
        end = time.perf_counter_ns() + _AWAKE
        while True:
            try:
                os.eventfd_read(self._fd)
                return True
            except BlockingIOError:
                if time.perf_counter_ns() < end:
                    os.sched_yield()
                elif not (ready := _poll(self._fd, life, None if seconds is None else round(1000 * seconds))):
                    return ready


def _poll(fd: int, life: int | None, milliseconds: int | None = None) -> bool | None:
    """Sleep until `fd` can be read, or the other end of `life` closes; return whether `fd` can be read, None after a
    timeout."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if life is not None:
        poll.register(life, 0)  # a hang-up is always reported
    ready = poll.poll(milliseconds)
    return any(each == fd for each, _ in ready) if ready else None


def _ask_to_end(owner: int, told: _WakeUp, note: mmap.mmap) -> bool:
    """Tell an idle helper to end; return whether it will, by itself."""
    if os.getpid() != owner or note[0] == _BUSY:
        return False
    note[0] = _DISMISSED
    told.ring()
    return True


def _end(pid: int, owner: int, told: _WakeUp, note: mmap.mmap, life: int, by: float | None = None) -> None:
    """End a helper, which may take until `by`, a time of `time.monotonic`, to do it by itself."""
    if os.getpid() != owner:  # a fork of its parent, which has a copy of the reference
        return
    if _ask_to_end(owner, told, note):
        _poll(life, None, _PATIENCE if by is None else max(0, round(1000 * (by - time.monotonic()))))
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(life)


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(0)


def _pack(error: BaseException) -> bytes:
    """Return an exception as bytes, with where it was raised as a note; one that has no such form as its text."""
    import pickle

    error.add_note("raised in a helper process:\n" + "".join(traceback.format_tb(error.__traceback__))[-_ROOM // 4 :])
    with contextlib.suppress(Exception):
        packed = pickle.dumps(error)
        pickle.loads(packed)
        if len(packed) <= _ROOM - 5:
            return packed
    return pickle.dumps(RuntimeError(said(error)))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            stream.flush()
