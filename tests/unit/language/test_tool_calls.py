"""Tool calls: what completions say, in the forms that chat templates teach, and how templates are shown them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers")

from evopipe.language import tool_calls
from evopipe.language.base import tiny_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    },
}
ONE = tool_calls.ToolCall("add", '{"a": 1, "b": "2"}')


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "2"}}\n</tool_call>', ""),
        ('I add.\n<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": \\"2\\"}"}</tool_call>', "I add."),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "b": "2"}}', ""),  # its end ended the turn
        (
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n"
            "</tool_call>",
            "",
        ),
        ('{"name": "add", "parameters": {"a": 1, "b": "2"}}', ""),
        ('[{"name": "add", "arguments": {"a": 1, "b": "2"}}]', ""),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": "2"}}]', ""),
        ('[TOOL_CALLS]add[ARGS]{"a": 1, "b": "2"}', ""),
        ('add{"a": 1, "b": "2"}', ""),
    ],
)
def test_a_call_is_read_in_every_form(text: str, content: str) -> None:
    assert tool_calls.read(text, [TOOL]) == tool_calls.Spoken(content, (ONE,))
    assert tool_calls.read(text, []) == tool_calls.Spoken(text, ())  # nobody offered one


def test_several_calls_are_read_in_their_order() -> None:
    text = "".join(f'<tool_call>{{"name": "add", "arguments": {{"a": {n}}}}}</tool_call>\n' for n in range(3))
    found = tool_calls.read(text, [TOOL])
    assert [json.loads(call.arguments)["a"] for call in found.calls] == [0, 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {}}</tool_call><tool_call>{"name": </tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        "<tool_call><function=sub></function></tool_call>",
        "<tool_call></tool_call>",
        '{"name": "add"',
        "[" * 100_000,
        "3",
        "null",
        "[]",
        "add 3",
        "",
    ],
)
def test_what_is_no_call_of_these_tools_is_a_text(text: str) -> None:
    assert tool_calls.read(text, [TOOL]) == tool_calls.Spoken(text, ())


def test_the_same_call_is_known_however_it_is_spelt() -> None:
    def message(arguments: Any) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": arguments}}]}

    assert (
        tool_calls.key(message('{"a":1}')) == tool_calls.key(message('{ "a": 1 }')) == tool_calls.key(message({"a": 1}))
    )
    assert tool_calls.key(message('{"a":1}')) != tool_calls.key(message('{"a":2}'))
    assert tool_calls.key(message("{broken")) == [["add", "{broken"]]


KNOWING = (
    "{% for tool in tools %}{{ tool.function.name }};{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}|{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "1+2"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "x", "content": "3"},
]


def shown(template: str, messages: list[dict[str, Any]]) -> str:
    tokenizer = tiny_tokenizer("")
    tokenizer.chat_template = template
    chat, tools = tool_calls.for_template(template, messages, [TOOL])
    return str(tokenizer.apply_chat_template(chat, tools=tools or None, tokenize=False))


def test_a_template_that_knows_tools_shows_them_and_one_that_does_not_has_them_in_a_message() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert shown(KNOWING, CHAT) == f"add;user:1+2|assistant:{call}|tool:3|"
    told = shown(PLAIN, CHAT)
    assert told.startswith("system:You may call these functions:\n" + json.dumps(TOOL["function"]))
    assert told.endswith(f"|user:1+2|assistant:{call}|tool:3|")
    merged = shown(PLAIN, [{"role": "system", "content": "Be short."}, *CHAT])
    assert merged.startswith("system:Be short.\n\nYou may call")
    assert CHAT[1]["content"] == ""  # the chat itself is as it was
    assert tool_calls.read(call, [TOOL]).calls == (tool_calls.ToolCall("add", '{"a": 1}'),)
