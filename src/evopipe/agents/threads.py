"""Blocking code of users: in threads that nothing waits for, not even the end of the process; or in processes."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any, Literal

from evopipe.agents.processes import BEGINNING, Processes, packed

Blocking = bool | Literal["process"]


class _Worker:
    """A thread that takes one call at a time, and ends when it is told None."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="evopipe-agent", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            loop, future, function, args, undo = call
            try:
                result, error = function(*args), None
            except BaseException as raised:  # a SystemExit of user code, too, is its caller's
                result, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, future, result, error, undo)
            except RuntimeError:  # the loop is over: nobody waits
                if error is None and undo is not None:
                    undo(result)
                return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None, undo: Callable[[Any], Any]) -> None:
    if future.done():  # it was given up
        if error is None and undo is not None:
            threading.Thread(target=undo, args=(result,), name="evopipe-agent", daemon=True).start()
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(
            error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        )


class Threads:
    """Up to `most` calls at a time; one that is given up leaves its thread to itself, and another takes its place."""

    def __init__(self, most: int, processes: Processes) -> None:
        self._slots, self._turns = asyncio.Semaphore(most), asyncio.Semaphore(processes.most)
        self._idle: list[_Worker] = []
        self._processes = processes

    async def call(
        self, function: Callable[..., Any], *args: Any, blocking: Blocking, seconds: float | None,
        undo: Callable[[Any], Any] | None = None,
    ) -> Any:  # fmt: skip
        """Call a function or a coroutine function; TimeoutError if it takes longer than so many seconds. A plain one
        runs in a thread, or in a process, which is killed if it is given up, where it is `blocking`; else it is not
        timed. `undo` takes the result of a call that was given up, in a thread."""
        if inspect.iscoroutinefunction(function):
            async with asyncio.timeout(seconds):
                return await function(*args)
        if not blocking:
            return function(*args)
        if blocking == "process":
            async with self._turns:
                return await self._apart(packed(function, args), seconds)
        async with self._slots:
            worker = self._idle.pop() if self._idle else _Worker()
            future = asyncio.get_running_loop().create_future()
            worker.calls.put((asyncio.get_running_loop(), future, function, args, undo))
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.wait([future])
            except TimeoutError:
                if not future.done():  # else it was in time, and the loop late
                    raise
            finally:
                if future.done():
                    self._idle.append(worker)
                else:
                    future.cancel()
                    worker.calls.put(None)  # it ends when the call does
            return future.result()

    async def _apart(self, data: bytes, seconds: float | None) -> Any:
        process, answered = self._processes.take(), False
        try:
            if not process.begun:
                await self.call(process.begin, data, blocking=True, seconds=BEGINNING)
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

    def close(self) -> None:
        while self._idle:
            worker = self._idle.pop()
            worker.calls.put(None)
            worker.thread.join()
