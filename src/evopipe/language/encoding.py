"""Text as tokens, with marks on the parts that are data, in which special tokens have no effect.

What a template or a run's own configuration wrote may open or end a turn. What datasets, environments and models wrote
may not, whatever it says: `<|end|>` in data is just seven characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from evopipe.errors import DataError

OPEN, SHUT, PLACE, _NAMED = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"  # Unicode's noncharacters: of no text
_OF_NO_TEXT = str.maketrans(dict.fromkeys((OPEN, SHUT, PLACE, _NAMED), "\ufffd"))
_PRIVATE = 0xE000  # the first character of Unicode's private use area


@dataclass(frozen=True)
class Marked:
    """A text, and the ranges `(start, end)` of its characters that are data, in order. Special tokens in data have no
    effect."""

    text: str
    data: tuple[tuple[int, int], ...] = ()

    @classmethod
    def as_data(cls, text: str) -> Marked:
        return cls(text, ((0, len(text)),))

    def __len__(self) -> int:
        return len(self.text)

    def joined(self, other: Marked) -> Marked:
        """Return this text followed by the other text, with the marks of both."""
        n = len(self.text)
        return Marked(self.text + other.text, (*self.data, *((start + n, end + n) for start, end in other.data)))

    def part(self, first: int, end: int | None = None) -> Marked:
        """Return the characters from `first` up to, but not including, `end`, with their marks; None as `end` is the
        end of the text."""
        last = len(self.text) if end is None else end
        data = ((max(a, first) - first, min(b, last) - first) for a, b in self.data)
        return Marked(self.text[first:last], tuple((a, b) for a, b in data if a < b))


class _Tokens(NamedTuple):
    ids: list[int]
    offsets: list[tuple[int, int]]  # the characters of each
    place: list[int]  # where each character of the text stands in what offsets count, and its end


def plain(text: str) -> str:
    """Return a text in which U+FFFD replaces this module's markers, which are four of Unicode's noncharacters."""
    return text.translate(_OF_NO_TEXT)


@lru_cache(maxsize=8)
def encoder_of(tokenizer: Any, size: int) -> Encoder:
    """Return the cached encoder of a tokenizer. `size`, its number of tokens, is part of the cache's key.

    Raises:
        DataError: the tokenizer is not one of the library `tokenizers` ("fast").
    """
    return Encoder(tokenizer)


class Encoder:
    """A converter of marked text to tokens, in which special tokens are recognised only outside data.

    `tokenizer` is a fast tokenizer of `transformers`. Internally, special tokens get names that no data can contain.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise DataError("language.model: its tokenizer has no tokenizer.json: save a fast one into the folder")

    @cached_property
    def _renamed(self) -> tuple[Any, Mapping[str, str]]:
        """The tokenizer with other names, and those names."""
        from tokenizers import Tokenizer

        told = json.loads(self._tokenizer.backend_tokenizer.to_str())
        special = [each["content"] for each in told["added_tokens"] if each["special"]]
        names = {token: _NAMED + chr(_PRIVATE + i) for i, token in enumerate(special)}
        # What comes after tokens would say of some that they begin behind their first space.
        told |= {"post_processor": None, "truncation": None, "padding": None}
        for each in told["added_tokens"]:
            each["content"] = names.get(each["content"], each["content"])
        model = told["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
        else:
            model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        if "merges" in model:
            model["merges"] = [each for each in model["merges"] if "".join(each) not in names]
        return Tokenizer.from_str(json.dumps(told)), names

    @cached_property
    def _special(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._renamed[1], key=len, reverse=True))) or r"(?!)")

    @cached_property
    def begin(self) -> tuple[int, ...]:
        """The tokens that the tokenizer puts before every text, such as a beginning-of-text token; often empty."""
        alone, whole = (self._tokenizer.encode("0", add_special_tokens=some) for some in (False, True))
        places = [i for i in range(len(whole)) if whole[i : i + len(alone)] == alone]
        return tuple(whole[: places[0]]) if places else ()

    def holds_special(self, text: str) -> bool:
        """Return whether a text contains a special token's text, which would take effect if the text were not marked as
        data."""
        return self._special.search(text) is not None

    def encode(self, text: Marked) -> list[int]:
        """Return the tokens of a text, without the beginning-of-text tokens of `begin`."""
        return self._tokens(text).ids

    def tokens_from(self, text: Marked, at: int) -> list[int]:
        """Tokenise a whole text, and return only its tokens from the character `at` on.

        If a token would begin before that character and end after it, the text from that character on is tokenised
        separately, by the method `continuation`.
        """
        ids, offsets, place = self._tokens(text)
        cut = place[at]
        if at and any(start < cut < end for start, end in offsets):
            return self.continuation(text.part(at))
        return [token for token, (start, _) in zip(ids, offsets, strict=True) if start >= cut]

    def continuation(self, text: Marked) -> list[int]:
        """Return the tokens of a text that continues another, unknown text.

        Some tokenizers add a space before the beginning of a text. Here none is added.
        """
        if not self._renamed[0].encode(PLACE, add_special_tokens=False).ids:  # it leaves out what it does not know
            return self.encode(text)
        ids, offsets, _ = self._tokens(text, PLACE)
        return [token for token, (_, end) in zip(ids, offsets, strict=True) if end > len(PLACE)]

    def _tokens(self, text: Marked, before: str = "") -> _Tokens:
        backend, names = self._renamed
        made, n, done = [before], len(before), 0
        place: list[int] = []

        def add(piece: str, characters: int) -> None:
            nonlocal n
            made.append(piece)
            place.extend(range(n, n + characters) if len(piece) == characters else [n] * characters)
            n += len(piece)

        def acting(first: int, end: int) -> None:
            for found in self._special.finditer(text.text, first, end):
                add(plain(text.text[first : found.start()]), found.start() - first)
                add(names[found.group()], found.end() - found.start())
                first = found.end()
            add(plain(text.text[first:end]), end - first)

        for first, end in text.data:
            acting(done, first)
            add(plain(text.text[first:end]), end - first)
            done = end
        acting(done, len(text.text))
        found = backend.encode("".join(made), add_special_tokens=False)
        return _Tokens(found.ids, found.offsets, [*place, n])
