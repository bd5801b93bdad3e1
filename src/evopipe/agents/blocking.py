"""Runs users' blocking code in threads that nothing waits for, not even the end of the process, or in processes.

Processes serve for code that keeps a CPU busy, or may hang and is killed then. A call carries all that it needs, both
ways, so that any process can take any call, and a process that dies affects no other episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from evopipe.errors import said
from evopipe.watchdog import Hung, staying

Blocking = bool | Literal["process"]
_BEGINNING = 120.0  # seconds that a process may take to begin, and to import what its first call needs


class Process:
    """A child process that executes one call at a time. It ends when its last reference is dropped, or with this
    process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads of this process hold
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="evopipe-agent", daemon=True)
        self._process.start()
        theirs.close()
        self.begun = False

    def begin(self, data: bytes) -> None:
        """Wait until the process has started and has imported the modules that a call needs.

        Args:
            data: the call, as `packed` returned it.

        Raises:
            RuntimeError: the process died before it was ready.
        """
        try:
            self._told(data)
        except RuntimeError as error:
            text = f"{error} before it began: a script must start its run below `if __name__ == '__main__':`"
            raise RuntimeError(text) from None
        self.begun = True

    def ask(self, data: bytes) -> tuple[Any, Exception | None]:
        """Execute a call, as `packed` returned it, in the process; return its result and None, or None and the
        exception that it raised.

        Raises:
            RuntimeError: the process died.
        """
        found: tuple[Any, Exception | None] = pickle.loads(self._told(data))
        return found

    def _told(self, data: bytes) -> bytes:
        """Return the process's answer; RuntimeError if it died."""
        try:
            self._pipe.send_bytes(data)
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise RuntimeError("the process that this ran in died") from None

    def kill(self) -> None:
        """Kill the process. A thread that waits in `ask` gets a RuntimeError."""
        self._process.kill()
        self._process.join()


class Processes:
    """A pool of processes for up to `most` calls at a time. A process is started when a call needs one, and reused
    until `close`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._idle: list[Process] = []

    def take(self) -> Process:
        with contextlib.suppress(IndexError):  # rounds that are played at once may ask at once
            return self._idle.pop()
        return Process()

    def give(self, process: Process) -> None:
        self._idle.append(process)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().kill()


def packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a call, a function with its arguments `args`, for `Process.ask`.

    Raises:
        TypeError: the function or an argument cannot be pickled.
    """
    try:
        return pickle.dumps((function, args))
    except Exception as error:
        raise TypeError(
            f"what says blocking = 'process' travels to another one by pickle, and this cannot ({error}): let it be "
            "defined in a module, hold nothing that is open, or say True"
        ) from None


def step_apart(env: Any, method: str, args: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """Call a method of an environment in a child process. Return the method's result, and the environment's attributes
    after the call, so that the caller can copy the attributes to its own instance.

    Args:
        env: the environment, which must be picklable.
        method: the method's name.
        args: the method's arguments.
    """
    return getattr(env, method)(*args), vars(env)


def _serve(pipe: Connection) -> None:
    """What the other process does: calls, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the process that asks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        with contextlib.suppress(Exception):  # it is told of when the call itself comes
            pickle.loads(pipe.recv_bytes())
        pipe.send_bytes(b"")
        while True:
            pipe.send_bytes(_done(pipe.recv_bytes()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _done(data: bytes) -> bytes:
    """Do a call; return its result and None, or None and what it raised: as it is, if it can travel."""
    try:
        function, args = pickle.loads(data)
        return pickle.dumps((function(*args), None))
    except BaseException as raised:  # a SystemExit of user code, too, is its caller's
        error = as_exception(raised)
        with contextlib.suppress(Exception):
            told = pickle.dumps((None, error))
            pickle.loads(told)
            return told
        return pickle.dumps((None, RuntimeError(said(error))))


def as_exception(raised: BaseException) -> Exception:
    """Convert whatever users' code raised to an exception that asyncio's futures and tasks can carry.

    SystemExit, GeneratorExit and other exceptions that are no `Exception` would end the event loop, and StopIteration
    cannot be raised in a coroutine: all of these become a RuntimeError. Any other exception is returned unchanged.
    """
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    return RuntimeError(said(raised))


def here(function: Callable[..., Any], *args: Any) -> Any:
    """Call users' code in this thread, and return its result.

    Raises:
        Exception: what the code raised, converted by `as_exception`.
        KeyboardInterrupt, Hung: raised unchanged, so that Ctrl-C and a watchdog's time limit end the thread's work.
    """
    try:
        return function(*args)
    except (KeyboardInterrupt, Hung):
        raise
    except BaseException as raised:
        raise as_exception(raised) from raised


@dataclass(eq=False)
class _Call:
    """A call that a thread does, for a future of an event loop."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    future: asyncio.Future[Any]
    undo: Callable[[Any], Any] | None
    outcomes: _Outcomes
    result: Any = None
    error: Exception | None = None
    done: bool = False

    def do(self) -> None:
        try:
            with staying():
                self.result = self.function(*self.args)
        except BaseException as raised:  # a SystemExit of user code, too, is its caller's
            self.error = as_exception(raised)
        self.done = True

    def settle(self) -> None:
        """Tell the outcome to whom waits for it, in the thread of the event loop."""
        future = self.future
        if future.done():  # it was given up
            if self.done and self.error is None and self.undo is not None:
                threading.Thread(target=self.undo, args=(self.result,), name="evopipe-agent", daemon=True).start()
        elif self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)


class _Outcomes:
    """The calls that threads have done, on their way to an event loop. The loop is woken once for all that came before
    it looks: a thread that wakes it may have to wait for Python's lock while others compute."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[_Call] = deque()
        self._told = False

    def put(self, call: _Call) -> None:
        """Raises RuntimeError if the loop is over."""
        self._calls.append(call)
        if not self._told or self._loop.is_closed():
            self._told = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._told = False  # first: who puts a call from now on tells the loop again
        while self._calls:
            self._calls.popleft().settle()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class IdleThreads:
    """Threads that wait for calls. Rounds of episodes share them, one after another or beside each other.

    All take their calls from one queue. A thread that takes one wakes the next thread if more wait: of many short calls
    the first thread has done most before another is awake, and long ones run beside each other. To wake a thread takes
    a tenth of a millisecond, and more where others compute.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._open: set[_Call] = set()  # calls that no thread has done yet, of which a hanging one keeps its thread
        self._threads: list[threading.Thread] = []
        self._busy: set[threading.Thread] = set()
        self._closed = False

    def begin(self, call: _Call) -> None:
        """Let a thread do a call. There is a thread for each call that is not over."""
        self._open.add(call)
        if len(self._open) > len(self._threads):
            thread = threading.Thread(target=self._work, name="evopipe-agent", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._calls.put(call)
        if self._closed:  # a round that would not end: its call is the thread's last
            self._calls.put(None)

    def _work(self) -> None:
        this = threading.current_thread()
        while (call := self._calls.get()) is not None:
            self._busy.add(this)
            if not call.future.done():  # else it was given up before a thread came to it
                call.do()
            self._open.discard(call)
            self._busy.discard(this)
            try:
                call.outcomes.put(call)
            except RuntimeError:  # the loop is over: nobody waits
                if call.done and call.error is None and call.undo is not None:
                    call.undo(call.result)
            del call  # and what it holds, while the thread waits for the next

    def close(self) -> None:
        """End all threads that wait. One whose call hangs ends when the call does."""
        ending, self._threads, self._closed = self._threads, [], True
        for _ in ending:
            self._calls.put(None)
        for thread in ending:
            if thread not in self._busy:
                thread.join()


class Threads:
    """Up to `most` blocking calls at a time, in threads. A call that exceeds its time limit keeps its thread. `idle`
    has the threads that wait, and `processes` is the pool of processes for calls that run in a process."""

    def __init__(self, most: int, idle: IdleThreads, processes: Processes) -> None:
        self._slots, self._turns = asyncio.Semaphore(most), asyncio.Semaphore(processes.most)
        self._idle, self._processes, self._outcomes = idle, processes, _Outcomes()

    async def call(
        self, function: Callable[..., Any], *args: Any, blocking: Blocking, seconds: float | None,
        undo: Callable[[Any], Any] | None = None,
    ) -> Any:  # fmt: skip
        """Call a function or a coroutine function with `args`, and return its result.

        A coroutine function runs in this event loop. A plain function runs in a thread, or, if `blocking` is
        `"process"`, in a process that is killed when the time is up. If `blocking` is False, the function runs at once
        in this thread, without a time limit.

        Args:
            function: the function.
            *args: its arguments.
            blocking: True for a thread, `"process"` for a process, False for neither.
            seconds: the time limit; None for no limit.
            undo: a function that is called with the result if a thread's call returns only after its time limit; None
                for no such function.

        Raises:
            TimeoutError: the call takes longer than `seconds`.
        """
        if inspect.iscoroutinefunction(function):
            async with asyncio.timeout(seconds):
                return await function(*args)
        if not blocking:
            return here(function, *args)
        if blocking == "process":
            async with self._turns:
                return await self._apart(packed(function, args), seconds)
        async with self._slots:
            loop = asyncio.get_running_loop()
            call = _Call(function, args, loop.create_future(), undo, self._outcomes)
            self._idle.begin(call)
            late = None if seconds is None else loop.call_later(seconds, _expire, call.future)
            try:
                return await call.future
            finally:
                if late is not None:
                    late.cancel()

    async def _apart(self, data: bytes, seconds: float | None) -> Any:
        process, answered = self._processes.take(), False
        try:
            if not process.begun:
                await self.call(process.begin, data, blocking=True, seconds=_BEGINNING)
            found, error = await self.call(process.ask, data, blocking=True, seconds=seconds)
            answered = True
        finally:
            if answered:
                self._processes.give(process)
            else:
                process.kill()
        if error is not None:
            raise error
        return found
