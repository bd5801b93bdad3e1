"""The language model as an episode uses it: messages in, a completion out.

Tokens are never made twice from the same text.
"""

from __future__ import annotations

import asyncio
import json
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from evopipe.agents.types import Message, ModelOutput, TerminationEvent, TerminationReason
from evopipe.language import tool_calls
from evopipe.language.base import Base
from evopipe.language.generate import before


class Sampled(NamedTuple):
    """Settings by which the tokens of a completion are sampled from the model's distribution.

    Attributes:
        temperature: the divisor of the logits; 0 for the most likely token.
        top_k: samples from the k most likely tokens; 0 for all.
        top_p: samples from the most likely tokens whose probabilities sum to p; 1 for all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass
class Request:
    """A completion that an episode has requested from the model and waits for.

    Attributes:
        slot: the slot of the member, its place in the population.
        job: the number of the episode among this member's episodes of the round.
        call: the number of the request in its episode. `job` and `call` together fix the random draws.
        ids: the tokens of the prompt.
        limit: the most tokens of the completion.
        how: the settings of sampling.
        reply: the future that receives the completion.
        stop: texts that end the completion.
        place: the number of the episode among the episodes of all members in the round.
        draw: a number that replaces `call` in the random draws. It is given if the order of the requests may vary; else
            it is None.
    """

    slot: int
    job: int
    call: int
    ids: list[int]
    limit: int
    how: Sampled
    reply: asyncio.Future[Reply] = field(repr=False)
    stop: tuple[str, ...] = ()
    place: int = 0
    draw: int | None = None


class Reply(NamedTuple):
    """The answer to a request: the completion's tokens (`ids`), their log-probabilities, and the entropies of the
    distributions that they were drawn from, one entry for each token."""

    ids: list[int]
    log_probs: list[float]
    entropies: list[float]


class Tokens:
    """A converter of chats to tokens, by the chat template of a base model. Results are cached."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._prompt = lru_cache(4096)(self._write)
        self._after = lru_cache(4096)(self._write_after)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the tokens of a whole chat, including the schemas of the `tools` that the model may call.

        Raises:
            DataError: the template refuses the chat.
        """
        return list(self._prompt(_key(messages, tools)))

    def after(
        self, messages: Sequence[Message], replies: Sequence[int], last: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int] | None:
        """Return the tokens that the chat template writes after the last completion of the model in a chat: the end of
        its turn, later messages, and the beginning of the next turn.

        Args:
            messages: the chat.
            replies: the indices of the messages that are completions of the model.
            last: the last token of the last completion.
            tools: the tools that the model may call.

        Returns:
            The tokens, or None if there is no chat template, or if it does not show each completion exactly once.
        """
        held = [dict(message) for message in messages]
        for place in replies:
            held[place]["content"] = ""  # its tokens are known, calls of tools included
            held[place].pop("tool_calls", None)
        found = self._after(_key(held, tools), tuple(replies), last)
        return None if found is None else list(found)

    def _write(self, key: str) -> tuple[int, ...]:
        messages, tools = self._shown(key)
        return tuple(self.base.prompt(messages, True, None, tools=tools))

    def _write_after(self, key: str, replies: tuple[int, ...], last: int) -> list[int] | None:
        messages, tools = self._shown(key)
        more = len(messages) - len(json.loads(key)[0])  # a message before all others
        return self.base.between(messages, [place + more for place in replies], last, tools)

    def _shown(self, key: str) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
        messages, tools = json.loads(key)
        return tool_calls.for_template(str(self.base.tokenizer.chat_template or ""), messages, tools)


def _key(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    return whole(json.dumps([[dict(message) for message in messages], list(tools)], ensure_ascii=False))


def whole(text: str) -> str:
    """Return a text with `?` in the place of each lone surrogate: half a character, as of an emoji that was cut in two,
    which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@dataclass
class Limits:
    """The limits that end a completion.

    Attributes:
        prompt: the most tokens of the prompt.
        response: the most tokens of the completion.
        stop: the texts that end the completion.
    """

    prompt: int
    response: int
    stop: tuple[str, ...] = ()


class Prompt(NamedTuple):
    """A prompt as tokens, and, if it is a chat, its messages and tools.

    Attributes:
        ids: the tokens.
        replies: the indices of the messages that are completions of this episode.
        edited: whether the chat has an assistant's message that the model did not write in this episode, or that it
            wrote with other tokens than `ids` has.
        messages: the messages; None if the prompt is no chat.
        tools: the schemas of the tools that the model may call.
    """

    ids: list[int]
    replies: Sequence[int] = ()
    edited: bool = False
    messages: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] = ()


class Model:
    """The language model as one episode calls it.

    A chat may continue an earlier chat of the episode: it begins with the messages of that chat and with the completion
    that followed, all unchanged. The tokens of this beginning are then used again; only the rest of the chat is
    tokenised. Any other chat is tokenised as a whole.

    Args:
        tokens: the converter of chats to tokens.
        submit: a coroutine function that completes a request.
        slot: the slot (place in the population) of the member whose weights are used.
        job: the number of the episode among this member's episodes; it fixes the random draws.
        how: the settings of sampling.
        limits: the limits on tokens.
        seconds: the time limit of a completion; None for no limit.
        retries: how often a completion that is late is requested again.
    """

    def __init__(
        self, tokens: Tokens, submit: Callable[[Request], Awaitable[Reply]], slot: int, job: int, how: Sampled,
        limits: Limits, seconds: float | None = None, retries: int = 3,
    ) -> None:  # fmt: skip
        self.tokens, self.how, self.limits = tokens, how, limits
        self._submit, self._slot, self._job, self._seconds, self._retries = submit, slot, job, seconds, retries
        self._calls = 0
        # Chats with their last completion, each message by its key: tokens, and which messages are completions.
        self._chats: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}
        self.log: list[ModelOutput] = []  # every completion, in order
        self.entropies: dict[int, list[float]] = {}  # by the identity of the output

    @property
    def name(self) -> str:
        """The episode's name, unique in its round: the arguments `slot` and `job`, joined by a hyphen."""
        return f"{self._slot}-{self._job}"

    async def get_model_response(self, messages: str | Sequence[Message], **how: Any) -> ModelOutput:
        """Complete a chat, or a plain text.

        Args:
            messages: the chat, a list of messages with `role` and `content`; or a text.
            **how: settings of this completion: `max_tokens`, `temperature`, `top_k`, `top_p`, `stop` and `tools`. All
                but `tools` default to the run's settings. Other arguments are ignored.
                `stop` is one text or several. A stop text ends the completion; it is removed from the completion's
                text, but not from its tokens.
                `tools` are the schemas of the tools that the model may call, in the form of OpenAI's API. The output
                has the calls in `tool_calls`, and the text before them in `content`.

        Raises:
            TerminationEvent: the prompt is longer than the run allows.
            ValueError: a setting is no number or out of its range; or `stop` is no text.
            DataError: the chat template refuses the chat.
        """
        tools = how.get("tools") or ()
        prompt = self.prompt(messages, tools)
        (out,) = await self.complete(prompt, how)
        if prompt.messages is not None:
            said = tool_calls.read(out.text, tools)
            answer = tool_calls.spoken(said, tool_calls.numbered(said, len(prompt.messages)))
            out.content, out.tool_calls = said.content, answer.get("tool_calls", [])
            self.remember(prompt, answer, out)
        return out

    async def complete(
        self, prompt: Prompt, how: Mapping[str, Any], draws: Sequence[int | None] = (None,)
    ) -> list[ModelOutput]:
        """Return one completion of a prompt for each entry of `draws`.

        Args:
            prompt: the prompt.
            how: `max_tokens`, `temperature`, `top_k`, `top_p` and `stop` of these completions, if they differ from the
                run's. Other keys are ignored.
            draws: for each completion a number that seeds its random draws. None seeds them with the number of the
                request in this episode.

        Raises:
            TerminationEvent: the prompt is longer than the run allows, or the limit of tokens is below 1.
            ValueError: a setting is no number or out of its range; or `stop` is no text.
        """
        if len(prompt.ids) > self.limits.prompt:
            raise TerminationEvent(TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED)
        drawn = self.how._replace(**{name: how[name] for name in Sampled._fields if how.get(name) is not None})
        _check(drawn)
        asked = how.get("max_tokens")
        limit = self.limits.response if asked is None else min(self.limits.response, int(asked))
        if limit < 1:
            raise TerminationEvent(TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED)
        stop = _texts(how["stop"]) if how.get("stop") is not None else self.limits.stop
        asked = [self._ask(prompt.ids, limit, drawn, stop, draw) for draw in draws]
        replies = await asyncio.gather(*asked) if len(asked) > 1 else [await asked[0]]
        found = []
        for reply in replies:
            whole = self.tokens.base.decode(reply.ids)
            text = before(whole, stop)
            ended = text != whole or (bool(reply.ids) and reply.ids[-1] in self.tokens.base.ends)
            out = ModelOutput(
                text=text, content=text, prompt_ids=prompt.ids, completion_ids=reply.ids, logprobs=reply.log_probs,
                finish_reason="stop" if ended else "length",
            )  # fmt: skip
            self.log.append(out)
            self.entropies[id(out)] = reply.entropies
            found.append(out)
        return found

    def remember(self, prompt: Prompt, answer: Message, out: ModelOutput) -> None:
        """Store the tokens of a chat and of its completion, so that a later chat that begins with both continues with
        the same tokens.

        Args:
            prompt: the chat.
            answer: the completion as a message.
            out: the completion as tokens.
        """
        assert prompt.messages is not None
        chat = _keys([*prompt.messages, answer], prompt.tools)
        self._chats[chat] = ([*out.prompt_ids, *out.completion_ids], [*prompt.replies, len(prompt.messages)])

    def prompt_length(self, messages: str | Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Return the number of tokens of a chat, including the schemas of the tools that the model may call."""
        return len(self.prompt(messages, tools).ids)

    def prompt(self, messages: str | Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Prompt:
        """Return a chat or a text as the prompt of a completion.

        If the chat begins with an earlier chat of this episode and its completion, the stored tokens of both are used.
        `tools` are the schemas of the tools that the model may call.
        """
        if isinstance(messages, str):
            return Prompt(self.tokens.base.prompt(whole(messages), False, None))
        keys, edited = _keys(messages, tools), False
        for i in range(len(messages) - 1, 0, -1):
            if messages[i - 1].get("role") != "assistant":
                continue
            if (found := self._chats.get(keys[: i + 1])) is not None:
                ids, replies = found
                after = self.tokens.after(messages, replies, ids[-1], tools)
                if edited := after is None:
                    break
                return Prompt([*ids, *after], replies, _answered(messages[i:]), messages, tools)
        edited = edited or self._edited(keys, messages)
        return Prompt(self.tokens.prompt(messages, tools), (), edited, messages, tools)

    def _edited(self, keys: tuple[str, ...], messages: Sequence[Message]) -> bool:
        """Return whether a chat that continues none of this episode holds an answer where they do not."""
        if not self._chats or not _answered(messages):
            return False
        same = max(sum(1 for _ in takewhile(lambda each: each[0] == each[1], zip(keys, chat, strict=False)))
                   for chat in self._chats)  # fmt: skip
        return _answered(messages[max(0, same - 1) :])

    async def _ask(
        self, ids: list[int], limit: int, how: Sampled, stop: tuple[str, ...], draw: int | None = None
    ) -> Reply:
        for attempt in range(self._retries + 1):
            request = Request(
                self._slot, self._job, self._calls, ids, limit, how, asyncio.get_running_loop().create_future(), stop,
                draw=draw,
            )  # fmt: skip
            self._calls += 1
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._submit(request)
            except TimeoutError:
                if attempt == self._retries:
                    raise
                await asyncio.sleep(back_off(attempt))
        raise AssertionError("unreachable")


def _check(how: Sampled) -> None:
    """Refuse what no completion can be drawn by, before it meets those of others."""
    for name, value, most in (
        ("temperature", how.temperature, 100),
        ("top_k", how.top_k, 10**9),
        ("top_p", how.top_p, 1),
    ):
        if not isinstance(value, numbers.Real) or not 0 <= value <= most or (name == "top_p" and not value):
            raise ValueError(f"get_model_response: {name}={value!r} is no number from 0 to {most}")


def _texts(stop: Any) -> tuple[str, ...]:
    found = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in found):
        raise ValueError(f"get_model_response: stop={stop!r:.60} is no text, or several, none of them empty")
    return found


def back_off(attempt: int) -> float:
    """Return the seconds to wait before the next attempt: 0.05 · 2^attempt, at most 5."""
    return float(min(5.0, 0.05 * 2**attempt))


def _keys(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what makes two chats the same: the tools, then a text for each message."""
    shown = json.dumps(list(tools), sort_keys=True) if tools else ""
    return (shown, *map(_message_key, messages))


def _message_key(message: Message) -> str:
    calls = json.dumps(tool_calls.key(message), sort_keys=True) if message.get("tool_calls") else ""
    return f"{message.get('role')}\x1f{message.get('content')}\x1f{calls}"


def _answered(messages: Sequence[Message]) -> bool:
    return any(message.get("role") == "assistant" for message in messages)
