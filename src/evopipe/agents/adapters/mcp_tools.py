"""Tools of an MCP server: a process that is spoken to over its standard input and output."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shlex
import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import cache
from typing import Any, Self

from evopipe.agents.adapters import AdaptedEnvironment
from evopipe.agents.adapters.tools import EpisodeLost, ToolsEnvironment, chat_of, judged
from evopipe.agents.agent import CallingAgent
from evopipe.agents.types import RewardFunction
from evopipe.errors import MissingInputError, ParamsError, need_package, said, text_of
from evopipe.parallel import available_cpus

_SECONDS = 30.0  # that a server has to begin, and for each call
_ENDING = 5.0  # seconds that servers have to go when this process ends, beside those that they have anyhow
_LOST = (408, -32000)  # the SDK's codes of a call that took too long, and of a session that is closed


class McpTools(ToolsEnvironment):
    """An environment whose tools are those of an MCP server.

    A task is `{"prompt": …, "answer": …}`. The reward is 1 if the agent's last text equals the answer, else 0, unless
    `reward_fn` computes another. By default all episodes share at most one server process per CPU, and any free process
    takes a call: tools must keep no state between calls. A process that dies or answers too late is replaced, and the
    episode that called it fails.

    Args:
        command: the command line that starts the server.
        seconds: time limit for the start of the server and for each call.
        own: whether each episode has a server process of its own, for tools that keep state.
        task: a mapping with the `prompt`, a text or a list of messages, and the `answer`.
        reward_fn: a reward function, called with the task and the agent's last text.
    """

    def __init__(
        self, command: str, seconds: float = _SECONDS, own: bool = False, task: Mapping[str, Any] | None = None,
        reward_fn: RewardFunction | None = None,
    ) -> None:  # fmt: skip
        self.task, self.reward_fn, self.own = dict(task or {}), reward_fn, own
        self.servers = _Servers(command, seconds, 1) if own else _shared(command, seconds)

    @classmethod
    def from_dict(cls, info: Mapping[str, Any]) -> Self:
        own = ("command", "seconds", "own", "reward_fn")
        given = {name: info[name] for name in own if name in info}
        return cls(**given, task={name: value for name, value in info.items() if name not in own})

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self.servers.tools()

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return chat_of(self.task.get("prompt"), ""), {"tools": self.tools}

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        with self.servers.one() as server:
            return server.call(name, arguments)

    def compute_final_reward(self) -> Any:
        """Return the reward of the whole episode.

        If there is a `reward_fn`, it computes the reward. Otherwise the reward is 1.0 if the agent's last text equals
        the task's `answer`, else 0.0.

        Raises:
            ValueError: there is neither `reward_fn` nor an `answer`.
        """
        if self.reward_fn is not None:
            return judged(self.reward_fn, self.task, self.answer)
        if "answer" not in self.task:
            raise ValueError("the task has no 'answer': pass reward_fn")
        return float(self.answer.strip() == str(self.task["answer"]))

    def close(self) -> None:
        if self.own:
            self.servers.close()


class _Server:
    """A process, whose session lives in the loop that all share."""

    def __init__(self, command: str, seconds: float) -> None:
        self._loop, self._seconds, self._command = _loop(), seconds, command
        self._over = asyncio.Event()
        self._ready: Future[tuple[Any, list[dict[str, Any]]]] = Future()
        asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        try:
            self._session, self.tools = self._ready.result(seconds + _ENDING)
        except Exception as error:
            self.close()
            raise RuntimeError(
                f"{command!r:.200} does not begin as an MCP server: {text_of(error) or type(error).__name__}"
            ) from None

    async def _live(self) -> None:
        """Hold the session open until it is to end: it must be closed by the task that opened it."""
        try:
            async with _session(self._command, self._seconds) as opened:
                self._ready.set_result(opened)
                await self._over.wait()
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):  # of the tasks that read and write
                error = error.exceptions[0]
            if not self._ready.done():
                self._ready.set_exception(RuntimeError(said(error)))
            if isinstance(error, asyncio.CancelledError):
                raise

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool; return what it says.

        Raises:
            EpisodeLost: the server is late, or not there any more.
            RuntimeError: the tool, or the server, tells an error.
        """
        from mcp import McpError

        limit = timedelta(seconds=self._seconds)
        asked = asyncio.run_coroutine_threadsafe(self._session.call_tool(name, dict(arguments), limit), self._loop)
        try:
            found = asked.result(self._seconds + _ENDING)
        except McpError as error:
            if error.error.code not in _LOST:
                raise RuntimeError(text_of(error)) from None
            raise self._lost(name, error) from None
        except Exception as error:
            asked.cancel()
            raise self._lost(name, error) from None
        text = "\n".join(str(getattr(part, "text", f"[{part.type}]")) for part in found.content)
        if found.isError:
            raise RuntimeError(text)
        return text

    def _lost(self, name: str, error: Exception) -> EpisodeLost:
        return EpisodeLost(f"the MCP server {self._command!r:.100} failed in {name}: {said(error)}")

    def close(self) -> None:
        """Let the process end; nobody waits for it."""
        self._loop.call_soon_threadsafe(self._over.set)


class _Servers:
    """At most `most` processes of a command, begun when there are calls for them."""

    def __init__(self, command: str, seconds: float, most: int) -> None:
        self._command, self._seconds = command, seconds
        self._free: list[_Server] = []
        self._slots = threading.BoundedSemaphore(most)
        self._tools: list[dict[str, Any]] | None = None

    @contextlib.contextmanager
    def one(self) -> Iterator[_Server]:
        """Give a free server, or wait for one."""
        if not self._slots.acquire(timeout=self._seconds):
            raise TimeoutError(f"all servers of {self._command!r:.100} were busy for {self._seconds:g} seconds")
        try:
            try:
                server = self._free.pop()
            except IndexError:
                server = _Server(self._command, self._seconds)
            try:
                yield server
            except EpisodeLost:
                server.close()
                raise
            except BaseException:
                self._free.append(server)
                raise
            self._free.append(server)
        finally:
            self._slots.release()

    def tools(self) -> list[dict[str, Any]]:
        if self._tools is None:
            with self.one() as server:
                self._tools = server.tools
        return self._tools

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


@contextlib.asynccontextmanager
async def _session(command: str, seconds: float) -> AsyncIterator[tuple[Any, list[dict[str, Any]]]]:
    """Begin a server; give its session and its tools, as OpenAI's API has them."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    program, *words = shlex.split(command)
    how = StdioServerParameters(command=program, args=words, env=dict(os.environ))
    with open(os.devnull, "w") as nowhere:
        async with stdio_client(how, errlog=nowhere) as (receive, send), ClientSession(receive, send) as session:
            async with asyncio.timeout(seconds):
                await session.initialize()
                listed = (await session.list_tools()).tools
            yield session, [_tool(each) for each in listed]


def _tool(each: Any) -> dict[str, Any]:
    function = {"name": each.name, "description": each.description or "", "parameters": each.inputSchema}
    return {"type": "function", "function": function}


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop that all servers' sessions live in, in a thread that nothing waits for."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="evopipe-mcp", daemon=True).start()
    atexit.register(_end, loop)
    return loop


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """End all sessions, so that no server outlives this process."""

    async def ended() -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=_ENDING) if rest else None

    with contextlib.suppress(Exception):
        asyncio.run_coroutine_threadsafe(ended(), loop).result(2 * _ENDING)


@cache
def _shared(command: str, seconds: float) -> _Servers:
    return _Servers(command, seconds, available_cpus())


def adapted(command: str, key: str) -> AdaptedEnvironment:
    """Return the adapter of the MCP server that a command line starts.

    `key` is the parameter or argument that error messages name.

    Raises:
        ParamsError: the command is empty, or cannot be split into words.
        MissingInputError: the command's program is not found, or the package mcp is not installed.
    """
    need_package("mcp", "mcp", key)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ParamsError(f"{key}: {command!r:.100} is no command: {error}") from None
    if not words:
        raise ParamsError(f"{key}: 'mcp:' must be followed by the command that begins the server")
    if shutil.which(words[0]) is None:
        raise MissingInputError(f"{key}: there is no command {words[0]!r:.100}: install it, or correct its name")
    return AdaptedEnvironment(McpTools, {"command": command}, CallingAgent)
