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
    """A list of words of the same length, without duplicates (see `read_words`), and the colours that each guess gets
    for each secret word."""

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
        """Codes of colours (see `code`), `[guesses, words]` uint16. Entry [i, j] stands for the colours that the guess
        of word i gets if word j is the secret word."""
        text = np.array(self.words).view(np.uint32).reshape(len(self), self.length)
        rows = max(1, _AT_ONCE // (len(self) * self.length**2))
        return np.concatenate([code(text[i : i + rows, None], text) for i in range(0, len(self), rows)])

    def place(self, guess: str) -> int:
        """Return the index of the word `guess` in the vocabulary; −1 if the vocabulary does not have this word."""
        return self.places.get(guess, -1)

    def colours(self, code: int) -> str:
        """Return a code of colours as text, such as `gyb`; an empty text for the code −1, which means no colours."""
        return "" if code < 0 else "".join(COLOURS[code // 3**i % 3] for i in range(self.length))

    def gains(self, possible: np.ndarray) -> np.ndarray:
        """Return for each of the V words how much information it is expected to give as a guess, `[V]` in bits.

        `possible` is bool `[V]`: the words that may be the solution. All of these are equally likely. The expected
        information is the entropy of the colours that the guess gets.
        """
        codes = self.codes[:, possible]
        n, k = codes.shape
        at = codes + np.arange(n)[:, None] * 3**self.length
        alike = np.bincount(at.ravel(), minlength=n * 3**self.length)[at]  # words with the same colours
        gains: np.ndarray = np.log2(k) - np.log2(alike).mean(axis=1)
        return gains

    def best(self, possible: np.ndarray) -> int:
        """Return the index of the guess with the most expected information about the secret word.

        `possible` `[V]` bool says which of the vocabulary's V words can be the secret. The guess may be any word of the
        vocabulary. Ties go to a possible word, then to the lowest index.
        """
        key = np.packbits(possible).tobytes()
        if key not in self._best:
            self._best[key] = int(np.argmax(np.round(self.gains(possible), 9) + 1e-10 * possible))
        return self._best[key]


def code(guess: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Return the colours of each guess for its secret word, as a uint16 code, `[…]`. `guess` and `word` are `[…, n]`:
    words of n letters, as numbers.

    A letter in its right place is green. Another letter is yellow if the secret word has it in a place that is not
    green. If the guess has such a letter more often than the secret word, only the leftmost are yellow. All other
    letters are black. The code has one digit of base 3 for each letter, the lowest for the first letter: black is 0,
    yellow 1 and green 2.
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
    """The state of `R` running Wordle games. The argument `rows` is R.

    A game has no fixed secret word. For each guess, a secret word is drawn from the words that agree with all earlier
    colours.
    """

    def __init__(self, vocabulary: Vocabulary, rows: int) -> None:
        self.vocabulary = vocabulary
        self.possible = np.ones((rows, len(vocabulary)), bool)
        self.over = np.zeros(rows, bool)

    def guess(self, guesses: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Make one guess in each game; return the codes of the colours `[R]`.

        The code is −1, for no colours, if the guess is no word or the game is over. Such games do not change.

        Args:
            guesses: `[R]` indices of words, −1 for a text that is no word.
            chance: `[R]` random numbers in [0, 1). Each draws its game's secret from the words that are still possible.
        """
        codes = np.full(len(guesses), -1)
        rows = np.flatnonzero(~self.over & (guesses >= 0))
        told = self.vocabulary.codes[guesses[rows]]
        codes[rows] = told[np.arange(len(rows)), draw(self.possible[rows], chance[rows])]
        self.possible[rows] &= told == codes[rows, None]
        self.over |= codes == 3**self.vocabulary.length - 1
        return codes


def draw(allowed: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Draw one of V indices in each of R rows, `[R]`, uniformly among the `allowed` ones (bool `[R, V]`), or among all
    if none is allowed. `chance` `[R]` has random numbers in [0, 1)."""
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
    """Return the words of a vocabulary.

    `source` is `tiny` (all pairs of the letters a to d), `five` (common words of five letters), the path of a text file
    with one word a line, or a list of words.

    Raises:
        MissingInputError: the file does not exist.
        DataError: a file has duplicates, words of different lengths, or lines that are no words; the message names the
            line.
        ParamsError: the list has duplicates, words of different lengths, or entries that are no words.
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
