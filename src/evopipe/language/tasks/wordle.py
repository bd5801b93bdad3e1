"""Wordle as a task whose rows are whole games, for algorithms that learn from games and play them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from evopipe import rng as counted
from evopipe.errors import DataError, suggestion
from evopipe.language.tasks.words import POLICIES, Vocabulary, WordGames, read_words
from evopipe.rng import Purpose
from evopipe.schema.declare import Schema, located

TOKENS = ("<pad>", "<s>", "<g>", "<y>", "<b>", "<x>")  # before the letters
_START, _GREEN, _BLACK, _NONE = 1, 2, 4, 5
_MARKS = "gyb?"  # TOKENS[2:] as text; the last stands for each colour of a guess without feedback

Act = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(tokens so far `[R, L]`, how many they are `[R]`) → the next token of each row `[R]`."""


@dataclass(frozen=True)
class _Encoded:
    """Games as tokens: `[n, L]` each."""

    ids: np.ndarray  # int64
    real: np.ndarray  # bool, False after a game's end
    acts: np.ndarray  # bool, tokens that the player wrote
    reward: np.ndarray  # float32, received after this token
    done: np.ndarray  # bool, the token after which a game is over


@dataclass(frozen=True)
class PlayedGames:
    """The results of `R` finished games.

    Attributes:
        returns: `[R]` float64, the sum of rewards of each game.
        tries: `[R]` int64, the number of guesses.
        won: `[R]` bool, whether the word was found.
        rows: the games as data, with their guesses and colours.
    """

    returns: np.ndarray
    tries: np.ndarray
    won: np.ndarray
    rows: list[dict[str, Any]]


class Wordle(Schema):
    """A task of guessing a word within some tries. A wrong guess has the reward −1, the right guess 0.

    As tokens, a game is a start token, then for each turn the letters of the guess and as many colours. The game is
    over after the last guess. A guess that is not in the vocabulary gets no colours, but counts as a try.
    """

    words: str | Annotated[tuple[str, ...], Field(strict=False)] = Field(
        "tiny",
        description="vocabulary: `tiny` (the 16 pairs of letters a to d), `five` (common five-letter words), the path "
        "of a file with one word a line, or a list",
    )
    tries: int = Field(5, ge=1, le=100, description="largest number of guesses of a game")
    policies: dict[str, Annotated[float, Field(ge=0.0)]] = Field(
        default_factory=lambda: {"consistent": 0.6, "random": 0.2, "repeating": 0.2},
        description="relative shares of the scripted players that generate the games of the dataset: `optimal`, "
        "`consistent`, `repeating`, `random`, `mixture`, `wrong`",
    )
    smart: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="share of guesses of the player `mixture` that agree with all colours so far; the others are "
        "random words",
    )

    @model_validator(mode="after")
    def _can_be(self) -> Wordle:
        for name in self.policies:
            if name not in POLICIES:
                raise located([(("policies", name), f"no such policy{suggestion(name, POLICIES)}")])
        if not sum(self.policies.values()):
            raise located([(("policies",), "all shares are 0: give at least one policy a positive share")])
        _ = self.vocabulary
        return self

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of the game.

        Raises:
            MissingInputError: the file of words does not exist.
            DataError: the file has duplicates, words of different lengths, or lines that are no words.
            ParamsError: the list has duplicates, words of different lengths, or entries that are no words.
        """
        return Vocabulary(read_words(self.words))

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens of the game; the id of a token is its index."""
        return (*TOKENS, *self.vocabulary.letters)

    @property
    def guess(self) -> int:
        """The number of tokens that the player writes in a turn: the letters of a word."""
        return self.vocabulary.length

    @property
    def length(self) -> int:
        """The largest number of tokens of a game, including the start token."""
        return 1 + self.vocabulary.length * (2 * self.tries - 1)

    # --- games that are made ---

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        names = list(self.policies)
        shares = np.array([self.policies[name] for name in names])
        who = rng.choice(len(names), n, p=shares / shares.sum())
        seeds = rng.integers(0, 1 << 62, n)
        rows: list[dict[str, Any]] = [{}] * n
        for i, name in enumerate(names):
            mine = np.flatnonzero(who == i)
            for at, row in zip(mine, self.behave(name, seeds[mine]).rows, strict=True):
                rows[at] = {**row, "policy": name}
        return rows

    def behave(self, policy: str, seeds: np.ndarray) -> PlayedGames:
        games = WordGames(self.vocabulary, len(seeds))
        guesses = np.zeros((len(seeds), 0), np.int64)
        codes = np.zeros((len(seeds), 0), np.int64)
        for turn in range(self.tries):
            chance = _chance(seeds, 2 * turn + 1, 2)
            chosen = POLICIES[policy](games, guesses, chance, self.smart)
            code = games.guess(chosen, _chance(seeds, 2 * turn, 1)[:, 0])
            guesses, codes = np.column_stack([guesses, chosen]), np.column_stack([codes, code])
            if games.over.all():
                break
        words = self.vocabulary.words
        return self._played([[words[i] for i in row] for row in guesses.tolist()], codes)

    def behaviours(self, seeds: np.ndarray) -> dict[str, PlayedGames]:
        return {name: self.behave(name, seeds) for name in POLICIES}

    # --- games that are played ---

    def play(self, seeds: np.ndarray, act: Act) -> PlayedGames:
        """Play R games at once, one for each of the `seeds` `[R]`; return the results.

        `act` is a function that chooses letters. Its arguments are the tokens of the games so far, `[R, L]`, padded to
        L tokens, and the number of tokens in each game, `[R]`. It returns the token of the next letter of every game,
        `[R]`. The letters of finished games are ignored. A game depends only on its own seed and guesses.
        """
        vocabulary, n = self.vocabulary, len(seeds)
        games = WordGames(vocabulary, n)
        ids = np.zeros((n, self.length + vocabulary.length), np.int64)  # with room for the last colours
        ids[:, 0], used = _START, np.ones(n, np.int64)
        guesses: list[list[str]] = [[] for _ in range(n)]
        codes = np.zeros((n, 0), np.int64)
        for turn in range(self.tries):
            rows = np.flatnonzero(~games.over)
            if not len(rows):
                break
            at = 1 + 2 * turn * vocabulary.length
            for place in range(at, at + vocabulary.length):
                ids[rows, place] = act(ids[:, : self.length], used)[rows]
                used[rows] += 1
            texts = [self._text(row) for row in ids[rows, at : at + vocabulary.length].tolist()]
            for row, text in zip(rows, texts, strict=True):
                guesses[row].append(text)
            chosen = np.full(n, -1)
            chosen[rows] = [vocabulary.place(text) for text in texts]
            code = games.guess(chosen, _chance(seeds, 2 * turn, 1)[:, 0])
            codes = np.column_stack([codes, code])
            rows = np.flatnonzero(~games.over)
            place = at + vocabulary.length
            digits = code[rows, None] // 3 ** np.arange(vocabulary.length) % 3
            ids[rows, place : place + vocabulary.length] = np.where(code[rows, None] < 0, _NONE, _BLACK - digits)
            used[rows] += vocabulary.length
        return self._played(guesses, codes)

    def _text(self, ids: Sequence[int]) -> str:
        """Return a guess as text; `?` is a token that is no letter."""
        letters = self.vocabulary.letters
        return "".join(letters[i - len(TOKENS)] if len(TOKENS) <= i < len(self.tokens) else "?" for i in ids)

    def _played(self, guesses: list[list[str]], codes: np.ndarray) -> PlayedGames:
        won = codes == 3**self.vocabulary.length - 1
        tries = np.where(won.any(axis=1), won.argmax(axis=1) + 1, self.tries)
        rows = [
            {"guesses": words[:n], "colours": [self.vocabulary.colours(code) for code in told[:n]]}
            for words, told, n in zip(guesses, codes.tolist(), tries.tolist(), strict=True)
        ]
        return PlayedGames(won.any(axis=1) - tries.astype(np.float64), tries, won.any(axis=1), rows)

    # --- games as tokens ---

    def check(self, row: Mapping[str, Any], where: str) -> None:
        """Check that a row is a possible, finished game.

        Raises:
            DataError: the game is impossible or unfinished; the message begins with `where`.
        """
        size = self.vocabulary.length
        guesses, colours = (_texts(row.get(name), f"{where}: {name}") for name in ("guesses", "colours"))
        if len(guesses) != len(colours):
            raise DataError(
                f"{where}: has {len(guesses)} guesses and {len(colours)} colours: a turn that is unfinished must go"
            )
        if len(guesses) > self.tries:
            raise DataError(f"{where}: has {len(guesses)} turns, language.kwargs.tries is {self.tries}")
        for turn, (guess, told) in enumerate(zip(guesses, colours, strict=True), start=1):
            here = f"{where}: turn {turn}"
            if len(guess) != size:
                raise DataError(f"{here}: {guess!r:.40} has {len(guess)} letters, words have {size}")
            strange = sorted(set(guess) - set(self.vocabulary.letters))
            if strange:
                raise DataError(f"{here}: {guess!r} has letters that no word of the vocabulary has: {''.join(strange)}")
            if not told and guess in self.vocabulary.places:
                raise DataError(f"{here}: is unfinished, {guess!r} has no colours: give them, or delete the game")
            if told and (len(told) != size or set(told) - set("gyb")):
                raise DataError(f"{here}: colours are {size} of the letters g, y and b, got {told!r:.40}")
            if told == "g" * size and turn < len(guesses):
                raise DataError(f"{here}: the word was found, and the game goes on: delete what follows")
        if len(guesses) < self.tries and "g" * size not in colours:
            raise DataError(f"{where}: is not over: {len(guesses)} of {self.tries} turns, and the word was not found")

    def encode(self, rows: Sequence[Mapping[str, Any]], where: str = "games") -> _Encoded:
        """Return n games as rows of L tokens, in an object with the arrays `ids`, `real` (False after a game's end),
        `acts` (tokens that the player wrote), `reward` and `done`, `[n, L]` each.

        Raises:
            DataError: a game is impossible or unfinished. The message begins with `where` and the game's number; the
                first game has the number 1.
        """
        for number, row in enumerate(rows, start=1):
            self.check(row, f"{where}:{number}")
        size, n, letters = self.vocabulary.length, len(rows), self.vocabulary.letters
        width = 2 * size * self.tries
        turns = [zip(row["guesses"], row["colours"], strict=True) for row in rows]
        texts = ["".join(guess + (told or "?" * size) for guess, told in turn).ljust(width) for turn in turns]
        text = np.array(texts, f"<U{width}").view(np.uint32).reshape(n, width)[:, : self.length - 1]
        acts = np.arange(self.length - 1) // size % 2 == 0
        ends = np.array([2 * size * len(row["guesses"]) - size for row in rows])
        won = np.array([row["colours"][-1] == "g" * size for row in rows])
        real = np.arange(self.length - 1) < ends[:, None]
        ids = np.zeros((n, self.length), np.int64)
        ids[:, 0] = _START
        told = np.where(acts, _among(text, letters) + len(TOKENS), _among(text, _MARKS) + _GREEN)
        ids[:, 1:] = np.where(real, np.where(text == ord("?"), _NONE, told), 0)
        place = np.arange(1, self.length)
        last = acts & (place % size == 0)
        done = real & (place == ends[:, None])
        reward = np.where(real & last & ~(done & won[:, None]), -1.0, 0.0)
        first = np.zeros((n, 1), bool)
        return _Encoded(
            ids,
            np.column_stack([~first, real]),
            np.column_stack([first, acts & real]),
            np.column_stack([first, reward]).astype(np.float32),
            np.column_stack([first, done]),
        )


def _texts(field: Any, where: str) -> list[str]:
    if not isinstance(field, list) or not all(isinstance(text, str) for text in field):
        raise DataError(f"{where} must be a list of texts, one a turn")
    return field


def _among(text: np.ndarray, letters: str) -> np.ndarray:
    """Return where characters, as numbers, stand among letters; 0 for those that do not."""
    known = np.array([ord(letter) for letter in letters])
    order = known.argsort()
    at = np.searchsorted(known[order], text).clip(max=len(known) - 1)
    return np.where(known[order][at] == text, order[at], 0)


def _chance(seeds: np.ndarray, counter: int, n: int) -> np.ndarray:
    """Draw `[R, n]` numbers from [0, 1), a row's by its seed."""
    keys = np.asarray(seeds, np.int64)
    drawn = [counted.seeds(keys, Purpose.EPISODE, np.full_like(keys, counter), np.full_like(keys, i)) for i in range(n)]
    return np.stack(drawn, axis=1) / 2.0**31
