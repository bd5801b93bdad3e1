"""Word games: vocabularies, the colours of guesses, running games, and policies that play them.

The word is not fixed when a game begins. At each turn one is drawn among the words that agree with all colours so far,
and the guess gets its colours. The colours are thus the whole state of a game (Snell et al., "Offline RL for Natural
Language Generation with Implicit Language Q Learning", ICLR 2023, §6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from evopipe.errors import DataError, MissingInputError, ParamsError

MAX_WORDS, MAX_LETTERS = 5000, 10
_AT_ONCE = 20_000_000  # comparisons of letters
_FIVE = Path(__file__).with_name("five.txt")
BLACK, YELLOW, GREEN = range(3)  # digits of a code, the first letter's the lowest
COLOURS = "byg"


class Vocabulary:
    """A list of Wordle words of one length, without duplicates (see `read_words`), and the colours that a guess gets
    for each word."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.length = len(words[0])
        self.letters = "".join(sorted(set("".join(words))))
        self.places = {word: i for i, word in enumerate(self.words)}
        self._best: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def codes(self) -> np.ndarray:
        """The colours that each guess gets if each word is the secret, as codes (see `code`): `[guesses, words]`
        uint16."""
        text = np.array(self.words).view(np.uint32).reshape(len(self), self.length)
        rows = max(1, _AT_ONCE // (len(self) * self.length**2))
        return np.concatenate([code(text[i : i + rows, None], text) for i in range(0, len(self), rows)])

    def place(self, guess: str) -> int:
        """Return the index of a word; −1 if it is not in the vocabulary."""
        return self.places.get(guess, -1)

    def colours(self, code: int) -> str:
        """Return a code of colours as text, such as `gyb`. The code −1 means that there are no colours; its text is
        empty."""
        return "" if code < 0 else "".join(COLOURS[code // 3**i % 3] for i in range(self.length))

    def gains(self, possible: np.ndarray) -> np.ndarray:
        """Return the expected information of every guess in bits, `[V]`. It is the entropy of the guess's colours, if
        all `possible` words (bool `[V]`) are equally likely."""
        codes = self.codes[:, possible]
        n, k = codes.shape
        at = codes + np.arange(n)[:, None] * 3**self.length
        alike = np.bincount(at.ravel(), minlength=n * 3**self.length)[at]  # words with the same colours
        gains: np.ndarray = np.log2(k) - np.log2(alike).mean(axis=1)
        return gains

    def best(self, possible: np.ndarray) -> int:
        """Return the guess with the most information. Among equal ones, a possible word comes first, then the first in
        order."""
        key = np.packbits(possible).tobytes()
        if key not in self._best:
            self._best[key] = int(np.argmax(np.round(self.gains(possible), 9) + 1e-10 * possible))
        return self._best[key]


def code(guess: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Return the colours of guesses `[…, n]` (letters as numbers) as a uint16 code each.

    A letter in its place is green. Of the other letters, as many are yellow as the word has left, from the left.
    """
    green = guess == word
    other = (guess[..., :, None] == word[..., None, :]) & ~green[..., None, :]
    same = (guess[..., :, None] == guess[..., None, :]) & ~green[..., None, :]
    n = guess.shape[-1]
    before = np.tril(np.ones((n, n), bool), -1)
    yellow = ~green & (other.sum(axis=-1) > (same & before).sum(axis=-1))
    digits = np.where(green, GREEN, np.where(yellow, YELLOW, BLACK))
    found: np.ndarray = (digits * 3 ** np.arange(n)).sum(axis=-1).astype(np.uint16)
    return found


class WordGames:
    """Running games, one for each row. Each turn may draw another word."""

    def __init__(self, vocabulary: Vocabulary, rows: int) -> None:
        self.vocabulary = vocabulary
        self.possible = np.ones((rows, len(vocabulary)), bool)
        self.over = np.zeros(rows, bool)

    def guess(self, guesses: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Take one guess for each game, `[R]` indices of words, −1 for none; return the codes `[R]`, −1 for no colours.

        `chance` `[R]` in [0, 1) draws the words. Games that are over stay as they are.
        """
        codes = np.full(len(guesses), -1)
        rows = np.flatnonzero(~self.over & (guesses >= 0))
        told = self.vocabulary.codes[guesses[rows]]
        codes[rows] = told[np.arange(len(rows)), draw(self.possible[rows], chance[rows])]
        self.possible[rows] &= told == codes[rows, None]
        self.over |= codes == 3**self.vocabulary.length - 1
        return codes


def draw(allowed: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Draw one of the `allowed` `[R, V]` indices in each row, uniformly; among all if none is allowed."""
    allowed = allowed | ~allowed.any(axis=1, keepdims=True)
    count = allowed.cumsum(axis=1)
    place: np.ndarray = (count > (chance * count[:, -1]).astype(np.int64)[:, None]).argmax(axis=1)
    return place


# --- behaviour --------------------------------------------------------------------------------------------------------

Policy = Callable[[WordGames, np.ndarray, np.ndarray, float], np.ndarray]
"""(games, guesses before `[R, turns]`, chance `[R, 2]`, share that is smart) → guesses `[R]`."""


def _repeating(games: WordGames, before: np.ndarray, chance: np.ndarray, smart: float) -> np.ndarray:
    if before.shape[1] < 2:
        return draw(games.possible, chance[:, 0])
    return np.where(chance[:, 0] < 0.5, before[:, 0], before[:, 1])


POLICIES: dict[str, Policy] = {
    # the guess with the most information
    "optimal": lambda games, before, chance, smart: np.array(
        [0 if over else games.vocabulary.best(row) for row, over in zip(games.possible, games.over, strict=True)]
    ),
    # a word that agrees with all colours
    "consistent": lambda games, before, chance, smart: draw(games.possible, chance[:, 0]),
    "repeating": _repeating,  # its first two guesses, then one of them again and again
    # any word
    "random": lambda games, before, chance, smart: draw(np.ones_like(games.possible), chance[:, 0]),
    # `smart` of the guesses as `consistent`, the others as `random`
    "mixture": lambda games, before, chance, smart: draw(
        games.possible | (chance[:, 1] >= smart)[:, None], chance[:, 0]
    ),
    # a word that cannot be it, where there is one
    "wrong": lambda games, before, chance, smart: draw(~games.possible, chance[:, 0]),
}


# --- vocabularies -----------------------------------------------------------------------------------------------------


def read_words(source: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of `tiny` (all pairs of four letters), of `five` (common words), of a file, or the given list.

    Raises:
        MissingInputError: there is no such file.
        DataError, ParamsError: there are duplicates, different lengths or entries that are no words; in a file the line
            is named.
    """
    if source == "tiny":
        return tuple(map("".join, product("abcd", repeat=2)))
    if not isinstance(source, str):
        return _checked([(f"language.kwargs.words[{i}]", word) for i, word in enumerate(source)], ParamsError, "words")
    path = _FIVE if source == "five" else Path(source)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise MissingInputError(
            f"{path}: is not there: language.kwargs.words is tiny, five, a list, or a file with a word a line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error}): write a word a line, in UTF-8") from None
    found = [(f"{path}:{i}", line.strip()) for i, line in enumerate(lines, start=1) if line.strip()]
    return _checked(found, DataError, str(path))


def _checked(words: list[tuple[str, str]], error: type[Exception], source: str) -> tuple[str, ...]:
    if len(words) < 2 or len(words) > MAX_WORDS:
        raise error(f"{source}: holds {len(words)} words, a vocabulary has 2 to {MAX_WORDS}")
    first = words[0][1]
    seen: dict[str, str] = {}
    for where, word in words:
        if not word.isalpha() or word != word.lower() or len(word) > MAX_LETTERS:
            raise error(f"{where}: {word!r:.40} is no word: it has 1 to {MAX_LETTERS} small letters and nothing else")
        if len(word) != len(first):
            raise error(
                f"{where}: {word!r} has {len(word)} letters, {first!r} has {len(first)}: all words have as many"
            )
        if word in seen:
            raise error(f"{where}: {word!r} stands at {seen[word]} already: delete one of them")
        seen[word] = where
    return tuple(word for _, word in words)
