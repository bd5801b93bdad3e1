"""OpenAI's API as data: checks of requests, and conversion of completions to answers and of failures to errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evopipe.agents.types import Message, ModelOutput
from evopipe.language.base import Base
from evopipe.language.hub import first_line
from evopipe.language.tool_calls import Spoken, spoken

_PIECES = 64  # of a streamed completion, at most
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
# What would change a completion and is not done here, with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "functions": ([],), "audio": (),
    "modalities": (["text"],), "response_format": ({"type": "text"},), "tool_choice": ("auto", "none"), "suffix": ("",),
    "echo": (False,), "best_of": (1,), "web_search_options": (), "prediction": (), "min_tokens": (0,),
    "top_logprobs": (0,),
}  # fmt: skip


class Refused(Exception):
    """Raised for a request that is answered with an error of OpenAI's API: a sentence, the HTTP status, the name of the
    faulty field (`param`), and an error code."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: _Function


class _Streaming(BaseModel):
    include_usage: bool | None = None


class _Asked(BaseModel):
    """What both kinds of requests say. What is not listed, and not in `_NEUTRAL`, changes no completion."""

    model_config = ConfigDict(extra="allow")
    model: str
    stream: bool | None = None
    stream_options: _Streaming | None = None
    n: int | None = Field(None, ge=1, le=128)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    stop: str | list[str] | None = None
    return_token_ids: bool | None = None

    @property
    def how(self) -> dict[str, Any]:
        """The settings of the completion, as `Model.complete` takes them."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        top_k = None if self.top_k is None else max(0, self.top_k)
        found = {"max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p, "top_k": top_k}
        return {**found, "stop": [text for text in stop if text] if stop else None}

    @property
    def usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatAsked(_Asked):
    """The body of a request for the completion of a chat (`/chat/completions`).

    Attributes:
        messages: the chat.
        max_completion_tokens: the most tokens of a completion, the newer name of `max_tokens`; None for the run's
            limit.
        logprobs: whether the answer has log-probabilities.
        tools: the tools that the model may call.
    """

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    tools: list[_Tool] | None = None

    @property
    def how(self) -> dict[str, Any]:
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return {**super().how, "max_tokens": limit}

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The schemas of the tools that the model may call, as the client sent them. Empty if `tool_choice` is
        `none`."""
        none = (self.model_extra or {}).get("tool_choice") == "none"
        return [] if none else [tool.model_dump(exclude_unset=True) for tool in self.tools or ()]

    def chat(self) -> list[Message]:
        """Return the messages in one form: each content is a text, and keys that chat templates do not read are left
        out.

        Raises:
            Refused: a message has an unknown role, or is otherwise malformed.
        """
        return [_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)]


class TextAsked(_Asked):
    """The body of a request for the completion of texts or lists of tokens (`/completions`).

    Attributes:
        prompt: a text, several texts, a list of tokens, or several lists of tokens.
        logprobs: 1 to get the tokens' log-probabilities; None or 0 for none.
    """

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=1)

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]
        return list(self.prompt)  # type: ignore[arg-type]


_Form = TypeVar("_Form", bound=_Asked)


def asked(form: type[_Form], body: bytes, served: str) -> _Form:
    """Parse the JSON body of a request, and check it.

    Args:
        form: the class of the request, `ChatAsked` or `TextAsked`.
        body: the body.
        served: the name of the model that the endpoint serves.

    Raises:
        Refused: the body is no JSON object of this form, names another model, or sets an option that this endpoint does
            not support.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {first_line(error)}") from None
    try:
        found = form.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise Refused(400, f"{where}: {first['msg']}", str(first["loc"][0]) if first["loc"] else None) from None
    if found.model != served:
        text = f"the model {found.model[:100]!r} does not exist; this endpoint serves {served!r}"
        raise Refused(404, text, "model", "model_not_found")
    for name, value in (found.model_extra or {}).items():
        if name in _NEUTRAL and value is not None and value not in _NEUTRAL[name]:
            raise Refused(400, f"{name}: {json.dumps(value)[:100]} is not supported here; leave it out", name)
    return found


def _message(message: Mapping[str, Any], where: str) -> Message:
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise Refused(400, f"{where}.role: {message.get('role')!r:.60} is none of {', '.join(_ROLES)}", "messages")
    found: Message = {"role": role, "content": _content(message.get("content"), f"{where}.content")}
    found |= {key: message[key] for key in ("name", "tool_call_id") if isinstance(message.get(key), str)}
    calls = message.get("tool_calls") or []
    if calls and role == "assistant":
        found["tool_calls"] = [_called(call, f"{where}.tool_calls") for call in _list(calls, f"{where}.tool_calls")]
    return found


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(400, f"{where}: of type {type(value).__name__}, expected a list", "messages")
    return value


def _content(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in _list(content, where):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise Refused(400, f"{where}: a part is no text; this endpoint reads text alone", "messages")
        texts.append(text)
    return "".join(texts)


def _called(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not all(isinstance(function.get(key), str) for key in ("name", "arguments")):
        raise Refused(400, f"{where}: a call has no function with a name and arguments, both texts", "messages")
    return {
        "id": str(call.get("id", "")), "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }  # fmt: skip


# --- answers ----------------------------------------------------------------------------------------------------------


def usage(outs: Sequence[ModelOutput], prompts: int) -> dict[str, int]:
    """Return the token counts of an answer, in the form of OpenAI's API.

    `outs` are the completions of `prompts` prompts, the same number of each. The tokens of a prompt count once, however
    many completions it has.
    """
    read = sum(out.prompt_length for out in outs[:: max(1, len(outs) // prompts)])
    written = sum(out.completion_length for out in outs)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def answer(said: Spoken, ids: Sequence[str]) -> dict[str, Any]:
    """Return the parsed completion `said` as an assistant's message of OpenAI's API. `ids` are the ids of its tool
    calls. The content is null if the completion has tool calls and no other text."""
    message = spoken(said, ids)
    return message if said.content or not said.calls else {**message, "content": None}


def log_probs(base: Base, out: ModelOutput) -> list[dict[str, Any]]:
    """Return a completion's tokens with their log-probabilities, in the form that OpenAI's API has for chats. `base`
    has the tokenizer."""
    texts = [base.show([token]) for token in out.completion_ids]
    return [
        {"token": text, "logprob": _finite(value), "bytes": list(text.encode("utf-8", "replace")), "top_logprobs": []}
        for text, value in zip(texts, out.logprobs, strict=True)
    ]


def text_log_probs(base: Base, out: ModelOutput) -> dict[str, Any]:
    """Return a completion's tokens with their log-probabilities, in the form that OpenAI's API has for text
    completions. `base` has the tokenizer."""
    texts = [base.show([token]) for token in out.completion_ids]
    offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
    values = [_finite(value) for value in out.logprobs]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -9999.0  # as the API writes what is next to impossible


def pieces(base: Base, out: ModelOutput, text: str) -> list[tuple[str, range]]:
    """Divide `text`, the text of the completion `out`, into at most about 64 pieces for a stream; return each piece
    with the range of its tokens. `base` has the tokenizer."""
    n, found, done, first = out.completion_length, [], 0, 0
    stride = max(1, -(-n // _PIECES))
    for end in [*range(stride, n, stride), n]:
        now = text if end == n else base.decode(out.completion_ids[:end])
        if end < n and (not text.startswith(now) or len(now) <= done):
            continue  # half a character, or what stands in no text
        found.append((text[done : len(now)], range(first, end)))
        done, first = max(done, len(now)), end
    return found


def deltas(message: Mapping[str, Any], parts: Sequence[tuple[str, range]]) -> list[tuple[dict[str, Any], range]]:
    """Divide an assistant's message into the chunks (`delta`) of a stream; return each chunk with the range of its
    tokens.

    `parts` are the pieces of the message's text. Tool calls are sent in one chunk.
    """
    if not (calls := message.get("tool_calls")):
        return [({"content": text}, places) for text, places in parts]
    every = range(parts[0][1].start, parts[-1][1].stop) if parts else range(0)
    told = [{"index": i, **call} for i, call in enumerate(calls)]
    content = [({"content": message["content"]}, range(0))] if message["content"] else []
    return [*content, ({"tool_calls": told}, every)]
