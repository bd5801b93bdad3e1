"""Tool calls as text: how a chat template asks for them, and what a completion says.

Tools and calls have OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters"}}`, and
`{"id", "type": "function", "function": {"name", "arguments"}}`, with arguments as JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Message = Mapping[str, Any]
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>|\Z)\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_NAMED = re.compile(r"([\w.-]+)\s*(?:\[ARGS\])?\s*(\{.*\})", re.DOTALL)
_LISTED = "[TOOL_CALLS]"  # where this token of Mistral's is no special one
_ASKED = (
    "You may call these functions:\n{}\nTo call one, write "
    '<tool_call>{{"name": the name, "arguments": {{the arguments}}}}</tool_call>'
)


class ToolCall(NamedTuple):
    """A call of a tool: its name, and its arguments as JSON text."""

    name: str
    arguments: str


class Spoken(NamedTuple):
    """A parsed completion: its plain text, and the tool calls in it."""

    content: str
    calls: tuple[ToolCall, ...]


def read(text: str, tools: Sequence[Mapping[str, Any]]) -> Spoken:
    """Parse a completion into text and tool calls, in the formats that chat templates use.

    In some formats, calls stand inside `<tool_call>` tags: as JSON (Hermes, Qwen), or as `<function=…><parameter=…>`
    (Qwen's coders). In others, the whole completion is the call: a JSON object with `name` and `arguments` or
    `parameters` (Llama), a list of such objects (Mistral), or `name{…}`. If a call is malformed or names no tool in
    `tools`, the whole completion is text.
    """
    known = {str(tool["function"]["name"]): tool["function"] for tool in tools}
    if not known:
        return Spoken(text, ())
    tagged = list(_TAGGED.finditer(text))
    if tagged:
        found = [_tagged(each.group(1), known) for each in tagged]
        content = text[: tagged[0].start()].rstrip()
    else:
        found, content = _bare(text.strip().removeprefix(_LISTED).strip(), known), ""
    calls = tuple(call for call in found if call is not None)
    return Spoken(content, calls) if calls and len(calls) == len(found) else Spoken(text, ())


def _tagged(text: str, known: Mapping[str, Any]) -> ToolCall | None:
    if (function := _FUNCTION.fullmatch(text)) is None:
        return _of_json(text, known)
    name = function.group(1).strip()
    if name not in known:
        return None
    parameters = known[name].get("parameters") or {}
    kinds = parameters.get("properties") or {}
    arguments = {key.strip(): value for key, value in _PARAMETER.findall(function.group(2))}
    return ToolCall(name, json.dumps({key: _value(value, kinds.get(key)) for key, value in arguments.items()}))


def _value(text: str, kind: Any) -> Any:
    if isinstance(kind, Mapping) and kind.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _bare(text: str, known: Mapping[str, Any]) -> list[ToolCall | None]:
    if (named := _NAMED.fullmatch(text)) is not None:
        return [_call({"name": named.group(1), "arguments": _parsed(named.group(2))}, known)]
    found = _parsed(text)
    return [_call(each, known) for each in found] if isinstance(found, list) else [_call(found, known)]


def _of_json(text: str, known: Mapping[str, Any]) -> ToolCall | None:
    return _call(_parsed(text), known)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(found: Any, known: Mapping[str, Any]) -> ToolCall | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or found["name"] not in known:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    return ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def spoken(said: Spoken, ids: Sequence[str]) -> dict[str, Any]:
    """Return the parsed completion `said` as an assistant's message in the form of OpenAI's API. `ids` are the ids of
    its calls."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for id, call in zip(ids, said.calls, strict=True)
        ]
    return message


def numbered(said: Spoken, place: int) -> list[str]:
    """Return an id for each tool call of the parsed completion `said`. `place` is the index of its message in the chat.

    An id has nine digits, as Mistral's templates require.
    """
    return [f"{place:05d}{i:04d}" for i in range(len(said.calls))]


def key(message: Message) -> list[list[Any]]:
    """Return the tool calls of a message as [name, arguments] pairs, by which two messages can be compared.

    Arguments are parsed from JSON, so that spaces and escapes make no difference. The calls' ids are left out.
    """
    found = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments")
        parsed = _parsed(arguments) if isinstance(arguments, str) else arguments
        found.append([call["function"]["name"], arguments if parsed is None else parsed])
    return found


def for_template(
    template: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """Return messages and tools in the form that a chat template takes. The arguments of calls become mappings.

    If the template cannot show calls, they are written as text into the contents of their messages. If it cannot show
    tools, the system message describes them, and no tools are returned. A missing system message is added for this.
    """
    shown = [dict(message) for message in messages]
    for message in shown:
        if not (calls := message.get("tool_calls")):
            continue
        each = [{"name": name, "arguments": arguments} for name, arguments in key(message)]
        if "tool_calls" in template:
            of = zip(calls, each, strict=True)
            message["tool_calls"] = [{**call, "type": "function", "function": function} for call, function in of]
        else:
            del message["tool_calls"]
            texts = [f"<tool_call>{json.dumps(one, ensure_ascii=False)}</tool_call>" for one in each]
            message["content"] = (message.get("content") or "") + "".join(texts)
    if not tools or "tools" in template:
        return shown, list(tools)
    signatures = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    asked = _ASKED.format(signatures)
    if shown and shown[0]["role"] == "system":
        shown[0]["content"] = f"{shown[0].get('content') or ''}\n\n{asked}"
    else:
        shown.insert(0, {"role": "system", "content": asked})
    return shown, []
