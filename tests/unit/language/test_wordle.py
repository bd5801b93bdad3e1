"""Wordle: colours, consistency, information and rewards against brute force; games as tokens; what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evopipe.errors import DataError, MissingInputError, ParamsError
from evopipe.language import tasks
from evopipe.language.data import read_jsonl
from evopipe.language.tasks.wordle import Wordle
from evopipe.language.tasks.words import Vocabulary, WordGames, read_words

WORDS = ["abba", "baba", "aabb", "caba", "dada", "abcd", "ddbb", "cccc", "bdac", "acbd"]


def colours(guess: str, word: str) -> str:
    """The rules, letter by letter."""
    told = ["g" if a == b else "b" for a, b in zip(guess, word, strict=True)]
    left = Counter(b for a, b in zip(guess, word, strict=True) if a != b)
    for i, letter in enumerate(guess):
        if told[i] == "b" and left[letter]:
            told[i] = "y"
            left[letter] -= 1
    return "".join(told)


def consistent(words: Sequence[str], row: dict[str, Any], turns: int) -> list[str]:
    told = list(zip(row["guesses"], row["colours"], strict=True))[:turns]
    return [word for word in words if all(colours(guess, word) == seen for guess, seen in told if seen)]


def scripted(task: Wordle, *guesses: str) -> Any:
    """An `act` that writes these guesses, the same in every row; `?` is a token that is no letter."""
    text, size = "".join(guesses), task.guess

    def act(ids: np.ndarray, used: np.ndarray) -> np.ndarray:
        turn, place = (used - 1) // (2 * size), (used - 1) % (2 * size)
        at = np.minimum(turn * size + np.minimum(place, size - 1), len(text) - 1)
        return np.array([task.tokens.index(text[i]) if text[i] in task.tokens else 2 for i in at])

    return act


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "word", "expected"),
    [
        ("abba", "baba", "yygg"), ("aaaa", "abba", "gbbg"), ("aabb", "bbaa", "yyyy"), ("dada", "abcd", "yybb"),
        ("caba", "acbd", "yygb"), ("speed", "erase", "ybyyb"), ("geese", "eagle", "yybbg"), ("allee", "hello", "bygyb"),
    ],
)  # fmt: skip
def test_colours_are_right_where_letters_are_double(guess: str, word: str, expected: str) -> None:
    vocabulary = Vocabulary([guess, word])
    assert vocabulary.colours(int(vocabulary.codes[0, 1])) == expected == colours(guess, word)


def test_colours_of_all_pairs_are_those_of_the_rules() -> None:
    for words in (WORDS, read_words("tiny"), read_words("five")[::29]):
        vocabulary = Vocabulary(words)
        for i, guess in enumerate(words):
            told = [vocabulary.colours(int(code)) for code in vocabulary.codes[i]]
            assert told == [colours(guess, word) for word in words]


def test_possible_words_are_those_that_agree_with_all_colours() -> None:
    vocabulary, rng = Vocabulary(WORDS), np.random.default_rng(0)
    games, told = WordGames(vocabulary, 40), [[] for _ in range(40)]  # type: ignore[var-annotated]
    for _ in range(3):
        guesses = rng.integers(-1, len(WORDS), 40)
        over = games.over.copy()
        codes = games.guess(guesses, rng.random(40))
        for row in np.flatnonzero(~over & (guesses >= 0)):
            told[row].append((WORDS[guesses[row]], vocabulary.colours(int(codes[row]))))
        assert (codes[over | (guesses < 0)] == -1).all(), "no feedback"
        for row, seen in enumerate(told):
            left = [word for word in WORDS if all(colours(guess, word) == c for guess, c in seen)]
            assert [WORDS[i] for i in np.flatnonzero(games.possible[row])] == left != []


def test_a_turns_word_is_any_of_the_possible_ones_equally_often() -> None:
    games = WordGames(Vocabulary(WORDS), 5000)
    chance = (np.arange(5000) + 0.5) / 5000
    codes = games.guess(np.zeros(5000, np.int64), chance)
    expected = Counter(colours("abba", word) for word in WORDS)
    found = Counter(games.vocabulary.colours(int(code)) for code in codes)
    assert found == {seen: 500 * count for seen, count in expected.items()}
    assert games.over.sum() == 500


def test_information_is_the_entropy_of_the_colours() -> None:
    vocabulary = Vocabulary(WORDS)
    for possible in (range(10), (0, 1, 2, 3), (4, 7), (5,)):
        mask = np.isin(np.arange(10), list(possible))
        for guess, gain in zip(WORDS, vocabulary.gains(mask), strict=True):
            counts = Counter(colours(guess, WORDS[i]) for i in possible).values()
            shares = [count / sum(counts) for count in counts]
            assert gain == pytest.approx(-sum(p * math.log2(p) for p in shares), abs=1e-12)
    assert vocabulary.best(np.isin(np.arange(10), [4, 7])) == 4, "possible ones first, where others tell as much"


# --- policies ---------------------------------------------------------------------------------------------------------


def test_behaviour_policies_do_what_their_names_say() -> None:
    task = Wordle(words=tuple(WORDS), tries=6)
    played = task.behaviours(np.arange(60))
    for name, games in played.items():
        again = task.behave(name, np.arange(20, 30))
        assert again.rows == games.rows[20:30], "a game depends on its seed alone"
        for row in games.rows:
            for turn, guess in enumerate(row["guesses"]):
                left = consistent(WORDS, row, turn)
                assert name != "consistent" or guess in left
                assert name != "wrong" or len(left) == len(WORDS) or guess not in left
                assert name != "repeating" or turn < 2 or guess in row["guesses"][:2]
                if name == "optimal":
                    gains = Vocabulary(WORDS).gains(np.isin(WORDS, left))
                    assert gains[WORDS.index(guess)] == pytest.approx(gains.max())
    mean = {name: games.returns.mean() for name, games in played.items()}
    assert mean["optimal"] > mean["consistent"] > mean["mixture"] > mean["random"] > mean["wrong"]
    assert Wordle(smart=0.0).behave("mixture", np.arange(40)).rows == Wordle().behave("random", np.arange(40)).rows
    assert Wordle(smart=1.0).behave("mixture", np.arange(40)).rows == Wordle().behave("consistent", np.arange(40)).rows


def test_games_are_made_by_the_policies_in_their_shares() -> None:
    task = Wordle(policies={"random": 3.0, "optimal": 1.0, "wrong": 0.0})
    rows = task.rows(np.random.default_rng(1), 800)
    assert rows == task.rows(np.random.default_rng(1), 800)
    shares = Counter(row["policy"] for row in rows)
    assert shares.keys() == {"random", "optimal"}
    assert 540 < shares["random"] < 660
    assert len({json.dumps(row) for row in rows}) > 300


def test_words_of_five_letters_are_many_and_alike() -> None:
    words = read_words("five")
    assert len(words) > 500
    assert {len(word) for word in words} == {5}
    assert list(words) == sorted(set(words))


# --- games as tokens --------------------------------------------------------------------------------------------------


def test_encoded_games_agree_with_the_rules_token_by_token() -> None:
    task = Wordle(words=tuple(WORDS), tries=4)
    rows = [
        *task.rows(np.random.default_rng(0), 40),
        {"guesses": ["dcba", *["abba"] * 3], "colours": ["", *["gybb"] * 3]},
    ]
    found = task.encode(rows)
    assert task.length == 1 + 4 * 7 == found.ids.shape[1]
    for i, row in enumerate(rows):
        ids, acts, reward, done = [task.tokens.index("<s>")], [False], [0.0], [False]
        for turn, (guess, told) in enumerate(zip(row["guesses"], row["colours"], strict=True), start=1):
            last = turn == len(row["guesses"])
            ids += [task.tokens.index(letter) for letter in guess]
            acts += [True] * 4
            reward += [0.0, 0.0, 0.0, 0.0 if told == "gggg" else -1.0]
            done += [False, False, False, last]
            if not last:
                ids += [task.tokens.index(f"<{letter}>") for letter in told or "xxxx"]
                acts, reward, done = acts + [False] * 4, reward + [0.0] * 4, done + [False] * 4
        n = len(ids)
        assert found.real[i].tolist() == [True] * n + [False] * (task.length - n)
        assert (found.ids[i, :n].tolist(), found.acts[i, :n].tolist()) == (ids, acts)
        assert (found.reward[i, :n].tolist(), found.done[i, :n].tolist()) == (reward, done)
        for array in (found.ids, found.acts, found.reward, found.done):
            assert not array[i, n:].any()
    assert (found.ids.dtype, found.reward.dtype, found.done.dtype) == (np.int64, np.float32, bool)


def test_a_policy_that_is_played_token_by_token_plays_the_games_that_it_makes() -> None:
    """What `act` sees of a game is what `encode` makes of it."""
    task, seeds = Wordle(words=tuple(WORDS), tries=5), np.arange(50)
    made = task.behave("mixture", seeds)
    whole = task.encode(made.rows)
    asked = []

    def act(ids: np.ndarray, used: np.ndarray) -> np.ndarray:
        for row, n in enumerate(used):
            assert ids[row, :n].tolist() == whole.ids[row, :n].tolist()
        asked.append(used.copy())
        return whole.ids[np.arange(50), np.minimum(used, task.length - 1)]

    played = task.play(seeds, act)
    assert played.rows == made.rows
    assert (played.returns == whole.reward.sum(axis=1)).all()
    assert played.won.tolist() == [row["colours"][-1] == "gggg" for row in made.rows]
    assert played.tries.tolist() == [len(row["guesses"]) for row in made.rows]
    assert max(used.max() for used in asked) < task.length


def test_a_guess_that_is_no_word_costs_a_try_and_tells_nothing() -> None:
    task = Wordle(words=("abba", "baba"), tries=4)
    played = task.play(np.arange(30), scripted(task, "aaaa", "a?ba", "abba", "baba"))
    ways = {json.dumps([row["guesses"], row["colours"]]) for row in played.rows}
    no = [["aaaa", ""], ["a?ba", ""]]
    won, later = [*no, ["abba", "gggg"]], [*no, ["abba", "yygg"], ["baba", "gggg"]]
    assert ways == {json.dumps([list(column) for column in zip(*way, strict=True)]) for way in (won, later)}
    assert set(played.returns) == {-2.0, -3.0}
    never = task.play(np.arange(3), scripted(task, "aaaa", "aaaa", "aaaa", "????"))
    assert never.returns.tolist() == [-4.0] * 3
    assert not never.won.any()


# --- what is refused --------------------------------------------------------------------------------------------------

GOOD = {"guesses": ["ab", "cd"], "colours": ["yb", "gg"]}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"guesses": ["ab", "cz"]}, "turn 2: 'cz' has letters that no word of the vocabulary has: z"),
        ({"guesses": ["abc", "cd"]}, "turn 1: 'abc' has 3 letters, words have 2"),
        ({"colours": ["yb"]}, "has 2 guesses and 1 colours: a turn that is unfinished must go"),
        ({"colours": ["", "gg"]}, "turn 1: is unfinished, 'ab' has no colours: give them, or delete the game"),
        ({"colours": ["yr", "gg"]}, "turn 1: colours are 2 of the letters g, y and b, got 'yr'"),
        ({"colours": ["gg", "gg"]}, "turn 1: the word was found, and the game goes on: delete what follows"),
        ({"colours": ["yb", "gb"]}, "is not over: 2 of 3 turns, and the word was not found"),
        ({"guesses": ["ab"] * 4, "colours": ["yb"] * 4}, "has 4 turns, language.kwargs.tries is 3"),
        ({"guesses": "abcd"}, "guesses must be a list of texts, one a turn"),
        ({"colours": None}, "colours must be a list of texts, one a turn"),
        ({"guesses": [], "colours": []}, "is not over: 0 of 3 turns, and the word was not found"),
    ],
)
def test_games_that_cannot_be_are_named_by_their_line(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    task = Wordle(tries=3)
    path = tmp_path / "games.jsonl"
    path.write_text("\n".join(["", json.dumps(GOOD), json.dumps({**GOOD, **change})]))
    with pytest.raises(DataError) as raised:
        read_jsonl(path, "games", task.check)
    assert str(raised.value) == f"{path}:3: {sentence}"
    with pytest.raises(DataError, match=r"^games:2: "):
        task.encode([GOOD, {**GOOD, **change}])
    path.write_text(json.dumps(GOOD) + "\n")
    assert read_jsonl(path, "games", task.check) == [GOOD]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ab", "cd", "ab"], ":3: 'ab' stands at {path}:1 already: delete one of them"),
        (["ab", "cde"], ":2: 'cde' has 3 letters, 'ab' has 2: all words have as many"),
        (["ab", "Cd"], ":2: 'Cd' is no word: it has 1 to 10 small letters and nothing else"),
        (["ab", "c-"], ":2: 'c-' is no word: it has 1 to 10 small letters and nothing else"),
        (["ab"], ": holds 1 words, a vocabulary has 2 to 5000"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused(words: list[str], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(words))
    with pytest.raises(DataError) as raised:
        tasks.get("wordle", {"words": str(path)})
    assert str(raised.value) == f"{path}{sentence.format(path=path)}"
    with pytest.raises(ParamsError):
        tasks.get("wordle", {"words": words})


def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for kwargs, sentence in (
        ({"words": str(tmp_path / "none.txt")}, "none.txt: is not there: language.kwargs.words is tiny, five, a list"),
        ({"policies": {"optimum": 1.0}}, "language.kwargs.policies.optimum: no such policy, did you mean 'optimal'"),
        ({"policies": {"random": 0.0}}, "language.kwargs.policies: all shares are 0"),
        ({"words": ["ab", "ab"]}, r"language.kwargs.words\[1\]: 'ab' stands at language.kwargs.words\[0\] already"),
        ({"tries": 0}, "language.kwargs.tries: must be at least 1, got 0"),
    ):
        with pytest.raises((ParamsError, MissingInputError), match=sentence):
            tasks.get("wordle", kwargs)
    (tmp_path / "words.txt").write_text("übel\n\nädil\n", encoding="utf-8")
    task = tasks.get("wordle", {"words": str(tmp_path / "words.txt")})
    assert task.tokens[6:] == tuple("bdeiläü")  # type: ignore[attr-defined]
