"""Rows of text as tokens: what is asked, what is learned, what is left out, and what comes back from the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import words
from evopipe.errors import DataError
from evopipe.language.data import unpaired
from evopipe.language.tokens import Corpus, read_corpus, tokenise, write_corpus
from evopipe.regimes.order import held_out, rows_at
from evopipe.schema.language import TextFetch

QUESTIONS = [{"prompt": f"{i}=", "answer": str(i), "completion": str(i), "chosen": f"{i}", "rejected": "abc"}
             for i in range(40)]  # fmt: skip


def made(rows: list[dict[str, Any]], form: Any, fetch: TextFetch | None = None, **changes: Any) -> Corpus:
    cfg = words.config(**changes)
    return tokenise(rows, form, words.base(), cfg, fetch or TextFetch(), seed=1)


def test_prompts_stand_left_of_what_follows_and_only_that_is_learned() -> None:
    base, corpus = words.base(), made(QUESTIONS, "supervised")
    text = corpus.batch([3, 12], base.pad)
    (end,) = base.ends
    three, one, two, equals = (base.encode(c)[0] for c in "312=")
    assert text.ids.tolist() == [[[base.pad, three, equals, three, end, base.pad], [one, two, equals, one, two, end]]]
    assert text.real.tolist() == [[[False, True, True, True, True, False], [True] * 6]]
    assert text.mask.tolist() == [[[True, True, False], [True, True, True]]]


def test_pairs_are_the_chosen_ones_then_the_rejected() -> None:
    base, corpus = words.base(), made(QUESTIONS, "preference")
    text = corpus.batch([3, 12], base.pad)
    said = [base.decode(row[real].tolist()) for row, real in zip(text.ids[0, :, 3:], text.real[0, :, 3:], strict=True)]
    assert said == ["3", "12", "abc", "abc"]
    assert torch.equal(text.ids[0, :2, :3], text.ids[0, 2:, :3])
    assert torch.equal(text.mask, text.real[..., 3:])


def test_of_a_chat_the_assistants_words_are_learned_and_no_others() -> None:
    base = words.base()
    chat = [("system", "0"), ("user", "1"), ("assistant", "22"), ("user", "3"), ("assistant", "4"), ("user", "5")]
    rows = [{"messages": [{"role": role, "content": content} for role, content in chat]}] * 4
    text = made(rows, "supervised", max_completion=16).batch([0], base.pad)
    learned = text.ids[..., -text.mask.shape[-1] :][text.mask].tolist()
    assert base.tokenizer.convert_ids_to_tokens(learned) == ["2", "2", "<|end|>", "4", "<|end|>"]
    whole = " ".join(base.tokenizer.convert_ids_to_tokens(text.ids[0, 0].tolist()))
    assert whole == (
        "<|system|> 0 <|end|> <|user|> 1 <|end|> <|assistant|> 2 2 <|end|> <|user|> 3 <|end|> <|assistant|> 4 <|end|>"
    )


def test_what_is_too_long_is_left_out_and_counted() -> None:
    corpus = made([*QUESTIONS, {"prompt": "123456789=", "answer": "1"}], "reasoning", max_prompt=3)
    assert (len(corpus.rows), corpus.left_out) == (40, 1)
    assert all(len(corpus.prompts[i]) <= 3 for i in range(40))
    corpus = made(QUESTIONS, "supervised", max_completion=2)  # the end counts
    assert (len(corpus.rows), corpus.left_out) == (10, 30)
    with pytest.raises(DataError, match=r"of 40 rows 40 are longer than language.max_prompt \(1\)"):
        made(QUESTIONS, "reasoning", max_prompt=1)


def test_rows_from_a_place_on_score_members_whatever_is_left_out_before_it() -> None:
    rows = [{"prompt": "123456789=", "answer": "0"}, *({"prompt": f"{i}=", "answer": str(i)} for i in range(1, 8))]
    corpus = tokenise(rows, "reasoning", words.base(), words.config(max_prompt=3), TextFetch(), 1, held_out=5)
    found = {name: [corpus.rows[i]["answer"] for i in index.tolist()] for name, index in corpus.splits.items()}
    assert found == {"train": ["1", "2", "3", "4"], "validation": ["5", "6", "7"], "test": []}


def test_pairs_of_one_prompt_are_in_one_split() -> None:
    rows = [row for row in QUESTIONS for _ in range(3)]
    splits = made(rows, "preference").splits
    assert {name: len(index) for name, index in splits.items()} == {"train": 96, "validation": 12, "test": 12}
    asked = [{rows[i]["prompt"] for i in index.tolist()} for index in splits.values()]
    assert len(set.union(*asked)) == sum(map(len, asked)) == 40


def test_a_labelled_row_comes_with_the_completion_of_another_prompt_of_its_split() -> None:
    base, rows = words.base(), unpaired(QUESTIONS)
    corpus = made(rows, "labelled")
    for index in corpus.splits.values():
        for i in index.tolist():
            others = [corpus.answers[0][j] for j in index.tolist() if rows[j]["prompt"] != rows[i]["prompt"]]
            assert corpus.answers[1][i] in others
    index = corpus.splits["train"][:3]
    text = corpus.batch(index, base.pad)
    assert text.reward is not None
    assert text.reward[0].tolist() == [float(rows[i]["label"]) for i in index] + [0.0] * 3
    prompts, _ = corpus.prompt_batch(index, base.pad)
    width = prompts.shape[1]
    assert torch.equal(text.ids[0, :3, :width], text.ids[0, 3:, :width])
    told = [text.ids[0, b, width:][text.mask[0, b]].tolist() for b in range(6)]
    assert told == [corpus.answers[n][i] for n in (0, 1) for i in index.tolist()]
    asked = [{rows[i]["prompt"] for i in each.tolist()} for each in corpus.splits.values()]
    assert len(set.union(*asked)) == sum(map(len, asked)) == 40


def test_the_other_completion_is_the_next_ones_of_its_split_that_answers_another_prompt() -> None:
    """Four rows of a prompt stand side by side, and no two completions are equal."""
    rows = [{"prompt": f"{i // 4}=", "completion": str(i), "label": i % 2 == 0} for i in range(40)]
    corpus = made(rows, "labelled")
    own = [corpus.answers[0][i] for i in range(40)]
    for index in corpus.splits.values():
        places = index.tolist()
        for n, i in enumerate(places):
            another = [j for j in places[n:] + places[:n] if j // 4 != i // 4]
            assert own.index(corpus.answers[1][i]) == (another or [*places[n + 1 :], *places])[0]


def test_every_row_is_in_one_split() -> None:
    corpus = made(QUESTIONS, "reasoning")
    assert sorted(np.concatenate([*corpus.splits.values()]).tolist()) == list(range(40))
    assert {name: len(index) for name, index in corpus.splits.items()} == {"train": 32, "validation": 4, "test": 4}
    unlike = made(QUESTIONS, "reasoning", TextFetch(test=0.25, validation=0.05)).splits
    assert {name: len(index) for name, index in unlike.items()} == {"train": 28, "validation": 2, "test": 10}
    assert {name: len(index) for name, index in made(QUESTIONS[:3], "reasoning").splits.items()} == {
        "train": 1, "validation": 1, "test": 1,
    }  # fmt: skip
    with pytest.raises(DataError, match="2 rows are too few to split"):
        made(QUESTIONS[:2], "reasoning")


@pytest.mark.parametrize("form", ["reasoning", "supervised", "preference", "labelled"])
def test_rows_come_back_from_the_disk(form: Any, tmp_path: Path) -> None:
    rows = [{**QUESTIONS[0], "prompt": "123456789="}, *QUESTIONS]
    corpus = made(unpaired(rows) if form == "labelled" else rows, form, max_prompt=6)
    assert corpus.left_out == 1 + (form == "labelled")
    write_corpus(tmp_path / "tokens", corpus)
    again = read_corpus(tmp_path / "tokens")
    assert list(again.rows) == list(corpus.rows)
    assert (again.form, again.left_out, again.digest) == (corpus.form, corpus.left_out, corpus.digest)
    for name, index in corpus.splits.items():
        assert np.array_equal(index, again.splits[name])
    if form == "reasoning":
        for one, two in zip(corpus.prompt_batch([1, 22], 0), again.prompt_batch([1, 22], 0), strict=True):
            assert torch.equal(one, two)
    else:
        one, two = (each.batch([1, 22], 0) for each in (corpus, again))
        assert torch.equal(one.ids, two.ids)
        assert torch.equal(one.mask, two.mask)
    write_corpus(tmp_path / "again", again)
    for path in (tmp_path / "tokens").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path / "tokens", made(QUESTIONS, "reasoning"))
    rows = tmp_path / "tokens" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[:-5])
    with pytest.raises(DataError, match="is damaged"):
        read_corpus(tmp_path / "tokens")


def test_a_pass_shows_every_row_once_and_the_next_one_in_another_order() -> None:
    places = np.concatenate([rows_at(1, 10, start, 5) for start in range(0, 20, 5)])
    assert sorted(places[:10].tolist()) == sorted(places[10:].tolist()) == list(range(10))
    assert places[:10].tolist() != places[10:].tolist()
    assert rows_at(1, 10, 8, 5).tolist() == places[8:13].tolist()
    assert rows_at(2, 10, 0, 10).tolist() != places[:10].tolist()


def test_held_out_rows_are_chosen_by_the_seeds_alone_and_none_twice() -> None:
    seeds = np.arange(100, 108)
    chosen = held_out(seeds, 20)
    assert len(set(chosen.tolist())) == 8
    assert held_out(seeds, 20).tolist() == chosen.tolist() != held_out(seeds + 1, 20).tolist()
    assert held_out(seeds, 8).tolist() == [*held_out(seeds, 5).tolist(), 5, 6, 7] == list(range(8))


@pytest.mark.parametrize(("prompts", "pairs"), [(1, 40), (2, 40)])
def test_pairs_that_share_one_prompt_are_told_so_and_not_that_rows_are_too_long(prompts: int, pairs: int) -> None:
    rows = [{"prompt": f"{i % prompts}=", "chosen": f"{i % 10}", "rejected": "abc"} for i in range(pairs)]
    with pytest.raises(DataError) as refused:
        tokenise(rows, "preference", words.base(), words.config(), TextFetch(), 1)
    said = str(refused.value)
    assert f"the {pairs} pairs have {prompts} prompt{'s' * (prompts > 1)} in all" in said
    assert "pairs of one prompt are in one split, and there are three" in said
    assert "bring pairs of 3 prompts or more" in said
    assert "longer than" not in said


def test_too_few_short_rows_name_what_is_too_long_and_too_few_rows_do_not() -> None:
    rows = [{"prompt": "1=", "answer": "1"}] * 2
    with pytest.raises(DataError, match=r"^2 rows are too few to split into three: bring more$"):
        tokenise(rows, "reasoning", words.base(), words.config(), TextFetch(), 1)
    long = [{"prompt": "1" * 80, "answer": "1"}] * 9
    with pytest.raises(DataError, match=r"^of 11 rows 9 are longer than language.max_prompt \(64\).*, and 2 are too"):
        tokenise([*rows, *long], "reasoning", words.base(), words.config(), TextFetch(), 1)
