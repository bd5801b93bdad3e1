"""Coroutines of users: what they begin is ended with them, and one that will not end is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")
_GRACE = 0.25  # seconds that tasks have to end at a loop's end
_brood: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("evopipe_brood", default=None)


def _made(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
    """Make a task, and note it for the coroutine that begins it."""
    task = asyncio.Task(work, loop=loop, **how)
    if (brood := _brood.get()) is not None:
        brood.add(task)
        task.add_done_callback(brood.discard)
    return task


async def alone(
    work: Callable[[], Coroutine[Any, Any, _T]], seconds: float | None, grace: float
) -> tuple[_T | None, BaseException | None]:
    """Run a coroutine function for at most so many seconds; return its result, or what it raised: TimeoutError if late.
    Tasks that it has begun and not waited for are cancelled when it is over. What does not end within `grace` seconds
    of being cancelled is left behind."""
    brood: set[asyncio.Task[Any]] = set()
    token = _brood.set(brood)
    try:
        main = asyncio.create_task(_outcome(work))
    finally:
        _brood.reset(token)
    try:
        await asyncio.wait([main], timeout=seconds)
        return main.result() if main.done() else (None, TimeoutError())
    finally:
        await _stop(brood, grace)


async def _outcome(work: Callable[[], Coroutine[Any, Any, _T]]) -> tuple[_T | None, BaseException | None]:
    try:
        return await work(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a SystemExit of a task would end the loop
        return None, error


async def _stop(tasks: Iterable[asyncio.Task[Any]], grace: float) -> None:
    rest = [task for task in tasks if not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        done, _ = await asyncio.wait(rest, timeout=grace)
        for task in done:
            if not task.cancelled():
                task.exception()  # nobody else asks for it


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end, in another thread where this one has a loop that runs, as in a notebook."""
    if not _loop_runs():
        return _run(work)
    found: list[Any] = []

    def there() -> None:
        try:
            found.append(_run(work))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=there, name="evopipe-agents")
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    done: _T = found[0]
    return done


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """Like `asyncio.run`, which waits for ever for a task that will not be cancelled, and for threads that hang."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(_made)
    main = loop.create_task(work)
    try:
        return loop.run_until_complete(main)
    except BaseException:
        if not main.done():  # interrupted: let it clean up
            main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(main)
        raise
    finally:
        try:
            loop.run_until_complete(_stop(asyncio.all_tasks(loop), _GRACE))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
