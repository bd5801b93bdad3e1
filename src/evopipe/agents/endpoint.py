"""An endpoint that speaks OpenAI's API on loopback, so that an agent written for any client is trained as it is.

Each episode is a session, `/s/KEY/v1` in the address or the header `X-Session`: what is asked there are its steps. A
chat that comes back is matched to the tokens that its session has recorded. The draws of a completion depend on the
session, the prompt, and how often that was asked there; not on what else is asked meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from aiohttp import web

from evopipe.agents import protocol
from evopipe.agents.model import Model, Prompt, Reply, Request
from evopipe.agents.protocol import ChatAsked, Refused, TextAsked
from evopipe.agents.types import Message, ModelOutput, Step, TerminationEvent, TerminationReason, Trajectory
from evopipe.errors import DataError, UsageError, text_of
from evopipe.language import tool_calls

SERVED = "policy"  # the model's name, where nobody chose another
HOST = "127.0.0.1"
HEADER = "X-Session"
LARGEST = 2_000_000  # bytes of a body
QUEUE = 4096  # completions that are waited for at a time
_READING, _WRITING = 10.0, 30.0  # seconds that a client may take to send its body, and to take in a stream
_CLOSING = 1.0  # seconds that requests have to end when the endpoint closes
_GATHER = 0.003  # seconds in which requests that are to share a wave come
_ASK = 0.1  # seconds between two looks at whether to stop
_HELD = 1024  # sessions that are kept, where clients name them
_FULL = {"Retry-After": "1"}


@dataclass(frozen=True)
class Connection:
    """The address (`base_url`), API key and model name with which an OpenAI client reaches the model of an episode."""

    base_url: str
    api_key: str
    model: str


class Answer(NamedTuple):
    """A completion in the form of an answer of OpenAI's API.

    Attributes:
        out: the completion of the model.
        message: the assistant's message; for a text completion a mapping with its text.
        finish: the API's `finish_reason`: `stop`, `length` or `tool_calls`.
    """

    out: ModelOutput
    message: dict[str, Any]
    finish: str


class AgentSession:
    """The requests of one episode to the endpoint, and their completions as steps.

    `model` writes the completions. `name` is the session's name, which seeds the random draws of the completions.
    """

    def __init__(self, name: str, model: Model) -> None:
        self.name, self.model = name, model
        self.steps: list[Step] = []
        self.over: TerminationReason | None = None  # why no more could be written, if a request asked for too much
        self.counts: Counter[str] = Counter()
        self.open: set[asyncio.Task[Any]] = set()  # that answer requests
        self._asked: Counter[str] = Counter()

    @property
    def trajectory(self) -> Trajectory:
        """A trajectory with one step for each completion of this session."""
        return Trajectory(uid=self.name, steps=self.steps)

    async def chat(self, asked: ChatAsked) -> list[Answer]:
        """Complete the chat of the request `asked`, as often as its field `n` says; return one answer for each
        completion.

        Raises:
            Refused: a message is malformed, or the prompt is too long.
            DataError: the chat template refuses the chat.
        """
        messages, tools = asked.chat(), asked.offered
        prompt = self.model.prompt(messages, tools)
        found = []
        for out, draw in await self._complete(prompt, asked.how, asked.seed, asked.n or 1):
            read = tool_calls.read(out.text, tools)
            ids = [f"call_{_hash(f'{draw}:{i}')[:24]}" for i in range(len(read.calls))]
            message = protocol.answer(read, ids)
            out.content, out.tool_calls = read.content, message.get("tool_calls", [])
            kept = {**message, "content": read.content}
            self.model.remember(prompt, kept, out)
            self._step(out, [*messages, kept], prompt.edited)
            found.append(Answer(out, message, "tool_calls" if read.calls else out.finish_reason))
        return found

    async def text(self, asked: TextAsked) -> list[list[Answer]]:
        """Complete each prompt of the request `asked`, as often as its field `n` says; return a list of answers for
        each prompt. A prompt is a text or a list of tokens.

        Raises:
            Refused: a token is not in the model's vocabulary, or a prompt is too long.
        """
        base, prompts = self.model.tokens.base, []
        for each in asked.prompts:
            if not isinstance(each, str) and not all(0 <= token < base.words.vocabulary for token in each):
                raise Refused(400, f"prompt: a token is not among the {base.words.vocabulary} of the model", "prompt")
            prompts.append(self.model.prompt(each) if isinstance(each, str) else Prompt(each or [base.ends[0]]))
        # One behind the other, so that equal prompts are told apart by their place.
        asking = [self._complete(prompt, asked.how, asked.seed, asked.n or 1) for prompt in prompts]
        found = []
        for prompt, outs in zip(prompts, await asyncio.gather(*asking, return_exceptions=True), strict=True):
            if isinstance(outs, BaseException):
                raise outs
            for out, _ in outs:
                self._step(out, [], prompt.edited)
            found.append([Answer(out, {"content": out.text}, out.finish_reason) for out, _ in outs])
        return found

    async def _complete(
        self, prompt: Prompt, how: Mapping[str, Any], seed: int | None, n: int
    ) -> list[tuple[ModelOutput, int]]:
        """Complete a prompt n times; return each with the number that fixed its draws."""
        # Another prompt, or the same once more, draws anew; the same with the same seed does not.
        first = _hash(json.dumps([self.name, list(prompt.ids), seed]))
        times = self._asked[first] if seed is None else 0
        self._asked[first] += 1
        draws = [int(_hash(f"{first}:{times}:{i}")[:16], 16) >> 1 for i in range(n)]
        try:
            found = await self.model.complete(prompt, how, draws)
        except TerminationEvent as event:
            self.over = event.reason
            limits = self.model.limits
            raise Refused(
                400, f"the prompt has {len(prompt.ids)} tokens, of at most {limits.prompt}: {event}", "messages",
                "context_length_exceeded",
            ) from None  # fmt: skip
        return list(zip(found, draws, strict=True))

    def _step(self, out: ModelOutput, chat: list[Message], edited: bool) -> None:
        self.counts["completions"] += 1
        self.counts["edited"] += edited
        step = Step(chat_completions=chat, model_response=out.text, model_output=out)
        if edited:
            step.info["edited"] = True
        self.steps.append(step)


class Endpoint:
    """An HTTP server with OpenAI's API on loopback.

    It holds its access token, its open sessions, and counts of its answers by status. A client names its session by a
    key in the address, `/s/<key>/v1`, or in the header `X-Session`.

    Args:
        served: the model's name, which every request must have.
        find: a function that makes the session for a key that is not open yet; None refuses such keys.
        token: the API key that clients must send; None draws a new one.
    """

    def __init__(
        self, served: str = SERVED, find: Callable[[str], AgentSession] | None = None, token: str | None = None
    ) -> None:
        self.served, self._find, self.token = served, find, token or secrets.token_urlsafe(32)
        self.sessions: dict[str, AgentSession] = {}
        self.counts: Counter[str] = Counter()  # of answers by status; and `closed`, by clients that did not wait
        self.port = 0
        self._attempts: Counter[str] = Counter()
        self._open = 0

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[None]:
        """Answer requests in this event loop while the context is open, on this port of loopback; 0 takes a free port.

        Raises:
            UsageError: the port cannot be opened, for example because it is in use.
        """
        # The headers' size, and that of the body, are limited; `_guard` turns what is wrong into an error of the API.
        app = web.Application(middlewares=[self._guard], client_max_size=LARGEST)
        for prefix in ("/v1", "/s/{session}/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self._chat)
            app.router.add_post(f"{prefix}/completions", self._text)
            app.router.add_get(f"{prefix}/models", self._models)
            app.router.add_get(f"{prefix}/models/{{model}}", self._models)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSING)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, HOST, port, backlog=1024).start()
            except OSError as error:
                raise UsageError(f"port {port} cannot be listened on ({error.strerror}): choose another") from None
            self.port = int(runner.addresses[0][1])
            yield
        finally:
            await runner.cleanup()

    def begin(self) -> None:
        """Begin a round of episodes, in which attempts are counted from 0 again.

        If an episode is tried again, the new attempt opens a session of the same name. The endpoint counts the sessions
        of each name in the round. A session's random draws depend on this count, so they differ between attempts.
        """
        self._attempts.clear()

    def connection(self, key: str | None = None) -> Connection:
        """Return the address, API key and model name for the session `key`.

        With None, return the address, key and name of the endpoint itself. Each request to that address is a session of
        its own, unless its header `X-Session` names one.
        """
        path = "/v1" if key is None else f"/s/{key}/v1"
        return Connection(f"http://{HOST}:{self.port}{path}", self.token, self.served)

    @contextlib.contextmanager
    def session(self, name: str, model: Model) -> Iterator[tuple[AgentSession, Connection]]:
        """Open the session of one episode, whose completions `model` writes; yield the session with the connection that
        the agent uses.

        At the end of the `with` block the session is closed, and requests that are still open are cancelled. If an
        episode is tried again in the same round (see `begin`), its new session has the same `name` but gets other
        random draws.
        """
        key = secrets.token_urlsafe(12)
        session = AgentSession(f"{name}-{self._attempts[name]}", model)
        self._attempts[name] += 1
        self.sessions[key] = session
        try:
            yield session, self.connection(key)
        finally:
            del self.sessions[key]
            for task in session.open:
                task.cancel()

    # --- requests -----------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        """Check the token, and answer what goes wrong by an error of the API."""
        try:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(
                token.encode("utf-8", "replace"), self.token.encode()
            ):
                raise Refused(
                    401, "the API key is not this endpoint's: send it as a bearer token", None, "invalid_api_key"
                )
            response: web.StreamResponse = await handler(request)
            self.counts[str(response.status)] += 1
            return response
        except asyncio.CancelledError:
            self.counts["closed"] += 1
            raise
        except ConnectionError:
            self.counts["closed"] += 1
            return web.Response(status=400)  # nobody reads it
        except Exception as error:
            refused = _refused(error)
        self.counts[str(refused.status)] += 1
        headers = _FULL if refused.status == 429 else None
        return web.json_response(refused.body, status=refused.status, headers=headers)

    def _session(self, request: web.Request) -> AgentSession:
        key = request.match_info.get("session") or request.headers.get(HEADER)
        if (found := self.sessions.get(key or "")) is not None:
            return found
        if self._find is None:
            text = f"no session {(key or '')[:60]!r} is open: ask at the base URL of an episode that is under way"
            raise Refused(404, text, None, "session_not_found")
        session = self._find(key or secrets.token_urlsafe(12))
        if key is not None:
            self.sessions[key] = session
            while len(self.sessions) > _HELD:
                self.sessions.pop(next(iter(self.sessions)))
        return session

    async def _body(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > LARGEST:
            raise web.HTTPRequestEntityTooLarge(LARGEST, request.content_length or 0)
        try:
            async with asyncio.timeout(_READING):
                return await request.read()
        except TimeoutError:
            raise Refused(408, f"the body did not come within {_READING:g} seconds") from None

    @contextlib.contextmanager
    def _room(self, session: AgentSession, n: int) -> Iterator[None]:
        """Hold a place for n completions while a session waits for them."""
        if self._open + n > QUEUE:
            raise Refused(429, f"{self._open} completions are waited for, of at most {QUEUE}: ask later")
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._open += n
        session.open.add(task)
        try:
            yield
        finally:
            self._open -= n
            session.open.discard(task)

    async def _models(self, request: web.Request) -> web.Response:
        about = {"id": self.served, "object": "model", "created": 0, "owned_by": "evopipe"}
        if (name := request.match_info.get("model")) is None:
            return web.json_response({"object": "list", "data": [about]})
        if name != self.served:
            text = f"the model {name[:100]!r} does not exist; this endpoint serves {self.served!r}"
            raise Refused(404, text, "model", "model_not_found")
        return web.json_response(about)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        asked = protocol.asked(ChatAsked, await self._body(request), self.served)
        with self._room(session, asked.n or 1):
            found = await session.chat(asked)
        base = session.model.tokens.base
        head = self._head("chat.completion", "chatcmpl", session, found)
        if asked.stream:
            return await self._stream(
                request, {**head, "object": "chat.completion.chunk"}, self._chunks(asked, base, found)
            )
        choices = []
        for i, each in enumerate(found):
            choice = {"index": i, "message": each.message, "finish_reason": each.finish, "logprobs": None}
            if asked.logprobs:
                choice["logprobs"] = {"content": protocol.log_probs(base, each.out), "refusal": None}
            choices.append(choice | _token_ids(asked, each.out))
        answer = {**head, "choices": choices, "usage": protocol.usage([each.out for each in found], 1)}
        if asked.return_token_ids:
            answer["prompt_token_ids"] = list(found[0].out.prompt_ids)
        return web.json_response(answer)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        asked = protocol.asked(TextAsked, await self._body(request), self.served)
        if not (prompts := asked.prompts):
            raise Refused(400, "prompt: is empty", "prompt")
        with self._room(session, len(prompts) * (asked.n or 1)):
            found = [each for prompt in await session.text(asked) for each in prompt]
        base = session.model.tokens.base
        head = self._head("text_completion", "cmpl", session, found)
        choices = []
        for i, each in enumerate(found):
            choice = {"index": i, "text": each.out.text, "finish_reason": each.finish, "logprobs": None}
            if asked.logprobs is not None:
                choice["logprobs"] = protocol.text_log_probs(base, each.out)
            if asked.return_token_ids:
                choice["prompt_token_ids"] = list(each.out.prompt_ids)
            choices.append(choice | _token_ids(asked, each.out))
        usage = protocol.usage([each.out for each in found], len(prompts))
        if asked.stream:
            chunks: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
            return await self._stream(request, head, [*chunks, *([{"choices": [], "usage": usage}] * asked.usage)])
        return web.json_response({**head, "choices": choices, "usage": usage})

    def _head(self, kind: str, prefix: str, session: AgentSession, found: Sequence[Answer]) -> dict[str, Any]:
        number = _hash(f"{session.name}:{session.counts['completions']}")[:24]
        return {"id": f"{prefix}-{number}", "object": kind, "created": int(time.time()), "model": self.served}

    def _chunks(self, asked: ChatAsked, base: Any, found: Sequence[Answer]) -> Iterator[dict[str, Any]]:
        """Yield a stream's parts: who speaks, the text in pieces, how it ended; for each choice in turn."""

        def chunk(i: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
            return {"choices": [{"index": i, "delta": dict(delta), "finish_reason": finish, "logprobs": None, **more}]}

        for i, each in enumerate(found):
            first = chunk(i, {"role": "assistant", "content": ""})
            if asked.return_token_ids:
                first["prompt_token_ids"] = list(each.out.prompt_ids)
            yield first
            every = protocol.log_probs(base, each.out) if asked.logprobs else []
            for delta, places in protocol.deltas(each.message, protocol.pieces(base, each.out, each.out.text)):
                more: dict[str, Any] = {}
                if asked.logprobs:
                    more["logprobs"] = {"content": [every[at] for at in places], "refusal": None}
                if asked.return_token_ids:
                    more["token_ids"] = [each.out.completion_ids[at] for at in places]
                yield chunk(i, delta, **more)
            yield chunk(i, {}, each.finish)
        if asked.usage:
            yield {"choices": [], "usage": protocol.usage([each.out for each in found], 1)}

    async def _stream(
        self, request: web.Request, head: Mapping[str, Any], chunks: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]
    ) -> web.StreamResponse:
        """Send a finished completion in pieces."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        try:
            async with asyncio.timeout(_WRITING):
                await response.prepare(request)
                for chunk in chunks:
                    await response.write(b"data: " + json.dumps({**head, **chunk}).encode() + b"\n\n")
                await response.write(b"data: [DONE]\n\n")
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("a stream was not read") from None
        return response


def _token_ids(asked: ChatAsked | TextAsked, out: ModelOutput) -> dict[str, Any]:
    return {"token_ids": list(out.completion_ids)} if asked.return_token_ids else {}


def _refused(error: Exception) -> Refused:
    """Return what is said of an error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Refused(413, f"the body is larger than {LARGEST} bytes: send less", None, "body_too_large")
    if isinstance(error, web.HTTPException):
        return Refused(error.status, f"there is no such address or method here: {error.reason}")
    if isinstance(error, (DataError, ValueError)):
        return Refused(400, text_of(error))
    if isinstance(error, TimeoutError):
        return Refused(504, "the completion took longer than agents.model_seconds")
    return Refused(500, f"the endpoint failed: {type(error).__name__}: {text_of(error)}")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def number(name: str) -> int:
    """Return a number in [0, 2⁶²) that is a hash of a session's name."""
    return int(_hash(name)[:16], 16) >> 2


async def serve(
    make: Callable[[str, Callable[[Request], Awaitable[Reply]]], Model],
    decode: Callable[[Sequence[Request]], Sequence[Reply]], served: str, port: int,
    ready: Callable[[Connection], None], stopped: Callable[[], bool],
) -> list[AgentSession]:  # fmt: skip
    """Run an endpoint until `stopped` returns True; return its sessions, at most the last 1024.

    A client names its session by a key, in the address `/s/KEY/v1` or in the header `X-Session`. A request with a new
    key begins a session. A request without a key gets a session for itself alone, which is not returned.

    Args:
        make: a function (key, ask) that returns the model of a session. `key` is the session's key, and `ask` a
            coroutine function that takes a request and returns the reply.
        decode: a function that completes a list of requests, and returns the replies in the same order.
        served: the model's name.
        port: the port on loopback; 0 takes a free port.
        ready: a function that is called once, with the endpoint's connection.
        stopped: a function that is called every 0.1 seconds; it returns whether to stop.
    """
    waves = Waves(decode)
    endpoint = Endpoint(served, lambda key: AgentSession(key, make(key, waves.submit)))
    async with endpoint.serving(port):
        decoding = asyncio.create_task(waves.run())
        try:
            ready(endpoint.connection())
            while not stopped() and not decoding.done():
                await asyncio.sleep(_ASK)
        finally:
            decoding.cancel()
    return list(endpoint.sessions.values())


class Waves:
    """A queue that batches the requests of independent clients. Requests that arrive within a few milliseconds are
    decoded together, as one wave; later requests wait for the next wave.

    `decode` is a function that completes a list of requests, and returns the replies in the same order.
    """

    def __init__(self, decode: Callable[[Sequence[Request]], Sequence[Reply]]) -> None:
        self._decode, self._asked = decode, asyncio.Event()
        self._pending: list[Request] = []

    async def submit(self, request: Request) -> Reply:
        self._pending.append(request)
        self._asked.set()
        return await request.reply

    async def run(self) -> None:
        """Decode one wave of requests after another, until cancelled. If decoding a wave raises an exception, each of
        its requests gets that exception."""
        while True:
            await self._asked.wait()
            await asyncio.sleep(_GATHER)
            self._asked.clear()
            wave = sorted((each for each in self._pending if not each.reply.done()), key=lambda each: each.ids)
            self._pending = []
            for request in wave:
                request.call = request.call if request.draw is None else request.draw
            if not wave:
                continue
            try:
                replies: Sequence[Reply | Exception] = await asyncio.to_thread(self._decode, wave)
            except Exception as error:
                replies = [error] * len(wave)
            for request, reply in zip(wave, replies, strict=True):
                if request.reply.done():
                    continue
                if isinstance(reply, Exception):
                    request.reply.set_exception(reply)
                else:
                    request.reply.set_result(reply)
