"""Agents that ask their model over HTTP: functions in threads of their own, and programs in any language."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from evopipe.agents.endpoint import Connection, Endpoint
from evopipe.agents.tasks import alone, stop, task_of
from evopipe.agents.types import Episode, TerminationEvent
from evopipe.agents.workflow import Workflow, episode_of

Flow = Callable[..., Any] | Sequence[str]
_GRACE = 2.0  # seconds that a coroutine has to end when it is cancelled, and a thread when its loop stops
_KEPT = 1 << 16  # bytes of what a program writes, the last ones
_HERE = "127.0.0.1,localhost"


class _Untimed(contextlib.nullcontext[None]):
    """Turns of a coroutine that holds up nobody but others like it."""

    def left(self) -> float | None:
        return None


class Loop:
    """A thread with an event loop for agents' coroutines, separate from the loop that serves the endpoint. All episodes
    of a run share the thread's loop, so that the agents of all episodes can share one HTTP client."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine function in the loop's thread; return its result, or raise its exception. Tasks that the
        coroutine started and left running are cancelled."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_task_factory(task_of)
            self._thread = threading.Thread(target=_turn, args=(self._loop,), name="evopipe-outside", daemon=True)
            self._thread.start()
        future: Future[Any] = asyncio.run_coroutine_threadsafe(alone(work, _Untimed(), _GRACE), self._loop)
        found, raised = await asyncio.wrap_future(future)
        if raised is not None:
            raise raised
        return found

    def close(self) -> None:
        """Stop the loop and its thread. If a coroutine blocks the thread for more than 2 seconds, the thread is
        abandoned."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_GRACE)
            self._loop = self._thread = None


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(stop(asyncio.all_tasks(loop), _GRACE))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class OutsideAgents:
    """The agents of a run that call the model over HTTP, and the endpoint that they call.

    The endpoint has one event loop, and the agents' coroutine functions have another.

    Args:
        flow: the code of an agent: a function or coroutine function (task, connection), or a command as a list of
            words. `OutsideWorkflow` says what it returns.
        served: the name of the model at the endpoint.
        reward_fn: a reward function, called with the task and the text that a function returned or a command printed.
    """

    settle = 0.002

    def __init__(self, flow: Flow, served: str, reward_fn: Callable[..., Any] | None = None) -> None:
        self.endpoint, self._agents, self._open = Endpoint(served), Loop(), contextlib.AsyncExitStack()
        self.make = partial(OutsideWorkflow, flow=flow, endpoint=self.endpoint, loop=self._agents, reward_fn=reward_fn)
        # The rounds' own loop, one for all of them, so that clients keep their connections.
        self.loop = asyncio.new_event_loop()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        if not self.endpoint.port:
            await self._open.enter_async_context(self.endpoint.serving())
        self.endpoint.begin()
        yield

    def close(self) -> None:
        self._agents.close()
        if not self.loop.is_running():  # else what blocks it was left behind
            # In a thread, for this one may have a loop that runs.
            ending = threading.Thread(target=self._end, name="evopipe-endpoint")
            ending.start()
            ending.join()

    def _end(self) -> None:
        try:
            self.loop.run_until_complete(self._open.aclose())
            self.loop.run_until_complete(stop(asyncio.all_tasks(self.loop), _GRACE))
        finally:
            self.loop.close()


class OutsideWorkflow(Workflow):
    """An episode of an agent that calls its model over HTTP, at the address of a `Connection`.

    The agent is a function or a command. A function returns a reward, a list of one reward for each completion, a
    `Trajectory`, an `Episode` or a text. A command reads the task as JSON from its standard input, and prints a text.
    It finds the connection in the environment variables `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`.

    If there is a `reward_fn`, it computes the reward from the text. Otherwise the last line of the text must be the
    reward, or the list of rewards, as JSON.

    Args:
        flow: the agent, in one of three forms: a coroutine function `async def flow(task, connection)`; a plain
            function of the same arguments, which runs in a thread; or a command as a list of words.
        endpoint: the endpoint, which runs in the engine's event loop.
        loop: the event loop in which coroutine functions run.
        reward_fn: a function (task, text) that returns the reward; None if the agent gives rewards itself.
        **kwargs: the arguments of `Workflow`.
    """

    def __init__(
        self, flow: Flow, endpoint: Endpoint, loop: Loop, reward_fn: Callable[..., Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.flow, self.endpoint, self.loop, self.reward_fn = flow, endpoint, loop, reward_fn

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode | None:
        with self.endpoint.session(self.rollout_engine.name, self.rollout_engine) as (session, connection):
            try:
                found = await self._found(task, connection)
            except Exception:
                if session.over is not None:  # the agent has made an error of its own of it
                    raise TerminationEvent(session.over) from None
                raise
        if isinstance(found, str) and self.reward_fn is not None:
            found = await self.run_in_executor(self.reward_fn, task, found)
        elif isinstance(found, str):
            found = _printed(found, self.flow)
        episode = episode_of(found, session.steps, task, self.flow)
        episode.info["endpoint"] = dict(sorted(session.counts.items()))
        return episode

    async def _found(self, task: dict[str, Any], connection: Connection) -> Any:
        if not callable(self.flow):
            return await self.loop.call(partial(_program, list(self.flow), task, connection))
        if inspect.iscoroutinefunction(self.flow):
            return await self.loop.call(partial(self.flow, task, connection))
        # The engine does not wait for this thread before it decodes: it is the thread that waits.
        return await self.executor.threads.call(self.flow, task, connection, blocking=True, seconds=None)


def _printed(text: str, flow: Flow) -> Any:
    """Return the reward, or the rewards, in the last line of a text."""
    last = (text.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, (int, float, list)):
        raise ValueError(
            f"{name_of(flow)} ended with {last!r:.60}, expected its reward, as JSON: a number, or a list of one for "
            "each completion; or pass reward_fn"
        )
    return found


def name_of(flow: Flow) -> str:
    """Return how messages call an agent: by the name of its function, or by the program of its command."""
    return str(getattr(flow, "__name__", type(flow).__name__)) if callable(flow) else str(flow[0])


async def _program(words: Sequence[str], task: dict[str, Any], connection: Connection) -> str:
    """Run a command; return what it printed. Whatever it has begun ends with it."""
    environment = {
        **os.environ, "OPENAI_BASE_URL": connection.base_url, "OPENAI_API_KEY": connection.api_key,
        "OPENAI_MODEL": connection.model, "NO_PROXY": _HERE, "no_proxy": _HERE,
    }  # fmt: skip
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    written, errors = (asyncio.create_task(_end_of(stream)) for stream in (process.stdout, process.stderr))
    try:
        with contextlib.suppress(ConnectionError):  # it reads no task
            process.stdin.write(json.dumps(task).encode() + b"\n")
            await process.stdin.drain()
        process.stdin.close()
        await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    text, wrong = await written, await errors
    if process.returncode != 0:
        last = (wrong.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"{words[0]} ended with the exit code {process.returncode}: {last[:200]}")
    return text


async def _end_of(stream: asyncio.StreamReader) -> str:
    """Return the end of what a program writes."""
    kept = b""
    while data := await stream.read(_KEPT):
        kept = (kept + data)[-_KEPT:]
    return kept.decode("utf-8", "replace")
