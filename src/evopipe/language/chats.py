"""Chats as a model's template writes them: which parts of the text are data, and which the model itself wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evopipe.errors import DataError
from evopipe.language.encoding import OPEN, PLACE, SHUT, Encoder, Marked, plain

Message = Mapping[str, Any]
_MARK = re.compile(f"([{OPEN}{SHUT}])(.)", re.DOTALL)
_NUMBERS = 0xE000  # a message's number as a character: of Unicode's private use area
_BLOCK = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Shown:
    """A chat as the text that a chat template wrote.

    Attributes:
        text: the text, in which data is marked.
        of: a mapping from the index of a message to the range (start, end) of its content's characters in the text.
            It has only the messages whose content stands in the text unchanged, and exactly once.
    """

    text: Marked
    of: Mapping[int, tuple[int, int]]


def show(
    tokenizer: Any, encoder: Encoder, name: str, messages: Sequence[Message], own: int, special: bool,
    replies: Collection[int] = (), ending: str | None = None, tools: Sequence[Mapping[str, Any]] = (),
) -> Shown:  # fmt: skip
    """Write a chat as text by the tokenizer's chat template.

    Args:
        tokenizer: the tokenizer.
        encoder: the encoder that was made from the tokenizer; it finds special tokens in texts.
        name: the model's name, for error messages.
        messages: the chat.
        own: the number of messages at the start of the chat that the run itself added, such as the system message.
            Special tokens take effect in these messages.
        special: whether special tokens take effect in all other messages, too. If False, they are plain data there.
        replies: the indices of messages whose content is replaced by a placeholder, `encoding.PLACE`.
        ending: the name of an argument of `apply_chat_template` that is set to True, such as `add_generation_prompt`;
            None sets no argument.
        tools: JSON Schemas of tools in the form of OpenAI's API, which the template shows in its own way.

    Raises:
        DataError: there is no template, it refuses the messages, it alters the content of a message that holds a
            special token, or tools hold a special token.
    """
    if tools and not special and encoder.holds_special(json.dumps(list(tools), ensure_ascii=False)):
        raise DataError(f"tools hold a special token of {name}: remove it, or set language.special_tokens to true")
    clean = [
        {**message, "content": PLACE} if i in replies else _with_content(message, plain)
        for i, message in enumerate(messages)
    ]
    how = _how(ending, tools)
    text = _text(tokenizer, name, clean, how)
    found = _found(tokenizer, clean, how, text)
    of = {i: spans[0] for i, spans in found.items() if len(spans) == 1}
    if special:
        return Shown(Marked(text), of)
    for i, message in enumerate(clean[own:], start=own):
        for field, value in message.items():
            if (field != "content" or i not in found) and encoder.holds_special(str(value)):
                raise DataError(
                    f"message {i + 1 - own} holds a special token of {name} in its {field}, which the chat template "
                    "does not show as it is: remove it, or set language.special_tokens to true"
                )
    data = sorted(span for i, spans in found.items() if i >= own for span in spans)
    return Shown(Marked(text, tuple(data)), of)


def _with_content(message: Message, change: Any) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": change(content)} if isinstance(content, str) else dict(message)


def _how(ending: str | None = None, tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the arguments of `apply_chat_template`."""
    return {**({} if ending is None else {ending: True}), **({"tools": list(tools)} if tools else {})}


def _text(tokenizer: Any, name: str, messages: Sequence[Message], how: Mapping[str, Any]) -> str:
    if not tokenizer.chat_template:
        raise DataError(f"language.chat: {name} has no chat template; set it to false, with prompts as texts")
    try:
        return _written(tokenizer, messages, how)
    except Exception as error:
        raise DataError(f"the chat template of {name} refuses a prompt ({error}): mend its messages") from None


def _written(tokenizer: Any, messages: Sequence[Message], how: Mapping[str, Any]) -> str:
    return str(tokenizer.apply_chat_template([dict(message) for message in messages], tokenize=False, **how))


def _found(
    tokenizer: Any, messages: Sequence[Message], how: Mapping[str, Any], text: str
) -> dict[int, list[tuple[int, int]]]:
    """Find contents in a chat's text: those of a chat in which they are marked, if it is the same but for the marks."""
    for bare in (False, True):  # some templates cut spaces from the ends of a content

        def marked(content: str, number: str, bare: bool = bare) -> str:
            inner = content.strip() if bare else content
            return content.replace(inner, f"{OPEN}{number}{inner}{SHUT}{number}", 1) if inner else content

        number_of = [chr(_NUMBERS + i) for i in range(len(messages))]
        told = [
            _with_content(message, lambda content, n=n: marked(content, n))
            for message, n in zip(messages, number_of, strict=True)
        ]
        try:
            written = _written(tokenizer, told, how)
        except Exception:
            continue  # a template that looks into what is said
        opened: dict[int, list[int]] = {}
        shut: dict[int, list[int]] = {}
        pieces, n, last = [], 0, 0
        for mark in _MARK.finditer(written):
            pieces.append(written[last : mark.start()])
            n, last = n + mark.start() - last, mark.end()
            (opened if mark.group(1) == OPEN else shut).setdefault(ord(mark.group(2)) - _NUMBERS, []).append(n)
        if "".join([*pieces, written[last:]]) == text:
            whole = [i for i, starts in opened.items() if len(starts) == len(shut.get(i, ()))]
            return {i: list(zip(opened[i], shut[i], strict=True)) for i in whole}
    return {}


@lru_cache(maxsize=8)
def _turn_end(tokenizer: Any, template: str) -> str:
    try:
        text = _written(tokenizer, [{"role": "user", "content": "0"}, {"role": "assistant", "content": "1"}], {})
    except Exception:
        return ""
    _, _, tail = text.rpartition("1")
    known = sorted((token.content for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
    end = re.match(rf"\s*({'|'.join(map(re.escape, known))})", tail) if known else None
    return end.group() if end else ""


def turn_end(tokenizer: Any) -> str:
    """Return the text with which the chat template ends the model's turn, up to and including its first special token;
    empty if the template has no such end."""
    return _turn_end(tokenizer, str(tokenizer.chat_template)) if tokenizer.chat_template else ""


def answers(tokenizer: Any, name: str, messages: Sequence[Message], own: int, shown: Shown) -> list[tuple[int, int]]:
    """Return which parts of a chat's text members learn to write, as ranges (start, end) of characters.

    There is a range for each assistant message, and it reaches to the end of the message's turn.

    Args:
        tokenizer: the tokenizer.
        name: the model's name, for error messages.
        messages: the chat.
        own: the number of messages at the start that the run itself added, such as the system message. Error messages
            do not count these.
        shown: the chat as `show` wrote it.

    Raises:
        DataError: the template changes the content of an assistant message, and does not mark with `{% generation %}`
            what the model writes.
    """
    text, end, found = shown.text.text, turn_end(tokenizer), []
    clean = [_with_content(message, plain) for message in messages]
    for i, message in enumerate(clean):
        if message["role"] != "assistant":
            continue
        opened = _text(tokenizer, name, clean[:i], _how("add_generation_prompt")) if i else ""
        begins = text.startswith(opened)
        place = (len(opened), len(opened)) if begins and not message["content"] else shown.of.get(i)
        if place is None:
            blocks = _blocks(tokenizer, clean)
            if blocks is None:
                raise DataError(
                    f"message {i + 1 - own}: the chat template of {name} does not show this answer as it is: there is "
                    "nothing to learn it from; shorten the chat to what is shown, or take another template"
                )
            return [(start, _closed(text, stop, end)) for start, stop in blocks]
        start = len(opened) if begins and i and len(opened) <= place[0] else place[0]
        found.append((start, _closed(text, place[1], end)))
    return found


def _closed(text: str, stop: int, end: str) -> int:
    return stop + len(end) if text.startswith(end, stop) else stop


def _blocks(tokenizer: Any, messages: Sequence[Message]) -> list[tuple[int, int]] | None:
    """Return where the template itself says that the model wrote; None where it does not."""
    if not _BLOCK.search(str(tokenizer.chat_template)):
        return None
    from transformers.utils.chat_template_utils import render_jinja_template

    render: Any = render_jinja_template
    _, found = render(
        conversations=[list(messages)], chat_template=tokenizer.chat_template, return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )  # fmt: skip
    return [(int(start), int(stop)) for start, stop in found[0]]
