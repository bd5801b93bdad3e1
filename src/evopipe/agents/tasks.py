"""Users' coroutines: asyncio tasks that a coroutine starts and does not wait for are cancelled when the coroutine
ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeVar

from evopipe.agents.blocking import as_exception
from evopipe.watchdog import Hung


class Turns(AbstractContextManager[None], Protocol):
    """The interface of a context manager that limits the time of a user's coroutine.

    It is entered anew for every step of the coroutine, from one `await` to the next. `left` returns the seconds that
    the coroutine may still take; None if it has no limit.
    """

    def left(self) -> float | None: ...


class Brood(NamedTuple):
    """The asyncio tasks that an episode's code has started, and the context manager that limits their time.

    Attributes:
        tasks: the asyncio tasks.
        turns: the context manager. It is entered for each step of a task, from one `await` to the next (see `Turns`).
    """

    tasks: set[asyncio.Task[Any]]
    turns: Turns


class Steps:
    """An awaitable that runs the user's coroutine `work` and limits its time.

    The context manager `turns` enforces the limit. It is entered for each step of the coroutine, from one `await` to
    the next.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], turns: Turns) -> None:
        self.work, self.turns = work, turns

    def __await__(self) -> Generator[Any, Any, Any]:
        go, given = self.work.send, None
        while True:
            try:
                with self.turns:
                    wanted = go(given)
            except StopIteration as stop:
                return stop.value
            except (SystemExit, GeneratorExit) as error:  # asyncio ends loops and coroutines by these
                raise as_exception(error) from error
            try:
                go, given = self.work.send, (yield wanted)
            except GeneratorExit:  # nobody runs it any more
                self.work.close()
                raise
            except BaseException as error:
                go, given = self.work.throw, error


_T = TypeVar("_T")
_brood: ContextVar[Brood | None] = ContextVar("evopipe_brood", default=None)


def task_of(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
    """Return a new asyncio task for the coroutine `work` in the event loop `loop`. If an episode's code creates the
    task, the task is registered with the episode, which cancels the task at the episode's end.

    `how` are further arguments of `asyncio.Task`.
    """
    if (brood := _brood.get()) is None:
        return asyncio.Task(work, loop=loop, **how)
    task = asyncio.Task(_stepwise(work, brood.turns), loop=loop, **how)
    brood.tasks.add(task)
    task.add_done_callback(brood.tasks.discard)
    return task


async def _stepwise(work: Any, turns: Turns) -> Any:
    return await Steps(work, turns)


async def alone(
    work: Callable[[], Coroutine[Any, Any, _T]], turns: Turns, grace: float
) -> tuple[_T | None, Exception | Hung | None]:
    """Run a coroutine function within a time limit; return its result and None, or None and its exception.

    The time limit is that of `turns`: its method `left` returns the seconds that remain, or None if there is no limit.
    `turns` is a context manager, which is entered whenever the event loop continues the coroutine. If the time is up,
    the exception is a TimeoutError; if the coroutine raised `Hung`, it is that one.

    At the end, tasks that the coroutine started are cancelled. If a task does not end within `grace` seconds after
    that, it is abandoned.
    """
    brood = Brood(set(), turns)
    token = _brood.set(brood)
    try:
        main = asyncio.create_task(_outcome(work))
    finally:
        _brood.reset(token)
    try:
        while not main.done() and ((left := turns.left()) is None or left > 0):
            await asyncio.wait([main], timeout=left)
        return main.result() if main.done() else (None, TimeoutError())
    finally:
        await stop(brood.tasks, grace)


async def _outcome(work: Callable[[], Coroutine[Any, Any, _T]]) -> tuple[_T | None, Exception | Hung | None]:
    try:
        return await work(), None
    except KeyboardInterrupt:
        raise
    except Hung as error:
        return None, error
    except BaseException as error:
        return None, as_exception(error)


async def stop(tasks: Iterable[asyncio.Task[Any]], grace: float) -> None:
    rest = [task for task in tasks if not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        done, _ = await asyncio.wait(rest, timeout=grace)
        for task in done:
            if not task.cancelled():
                task.exception()  # nobody else asks for it
