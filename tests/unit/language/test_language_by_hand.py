"""Rows, tool calls, tasks and exported models by hand: each test has the numbers that one wrong place would change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

import words
from evopipe import rng
from evopipe.errors import DataError
from evopipe.language import tasks, tool_calls
from evopipe.language.data import _rows, asked, generate, is_pair, read_jsonl, same
from evopipe.language.policy import LanguagePolicy
from evopipe.language.tokens import games, seen, tokenise, with_end
from evopipe.regimes.order import held_out
from evopipe.rng import Purpose
from evopipe.schema.language import TextFetch
from evopipe.types import Text

SYSTEM, USER, OWN, TOOL = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant", "tool"))


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_asks_all_that_the_assistant_did_not_say() -> None:
    assert asked({"messages": [SYSTEM, USER, OWN, TOOL, OWN]}) == [SYSTEM, USER, TOOL]
    assert asked({"messages": [OWN, USER]}) == [USER]
    assert asked({"prompt": [USER, OWN]}) == [USER, OWN]  # an answer that it goes on with
    assert asked({"secret": 1}) is None


def test_equal_values_are_known_whatever_the_order_of_their_keys() -> None:
    assert same([{"a": 1, "b": [2]}, "x"], [{"b": [2], "a": 1}, {"a": 1, "b": [3]}, "x", "x", "y"]) == [0, 2, 3]
    rows = [{"messages": [USER, OWN]}, {"messages": [{"content": "u", "role": "user"}, {**OWN, "content": "b"}]}]
    splits = {"train": np.array([0]), "validation": np.array([], int), "test": np.array([1])}
    assert {name: index.tolist() for name, index in seen(rows, splits).items()} == {"validation": [], "test": [1]}


@pytest.mark.parametrize(
    ("row", "pair"),
    [({"chosen": 1, "rejected": 2}, True), ({"chosen": 1}, False), ({"rejected": 1}, False),
     ({"chosen": 1, "rejected": 2, "label": True}, False)],
)  # fmt: skip
def test_a_pair_has_two_completions_and_no_label(row: dict[str, Any], pair: bool) -> None:
    assert is_pair(row) is pair


def test_a_task_makes_as_many_labelled_rows_as_are_asked_for_two_of_a_prompt() -> None:
    task = tasks.get("copy", {"shortest": 3, "longest": 3})
    pairs = generate(task, "copy", 7, 3, "preference")
    rows = generate(task, "copy", 7, 5, "labelled")
    expected = [(each["prompt"], each[name], name == "chosen") for each in pairs for name in ("chosen", "rejected")]
    assert [(row["prompt"], row["completion"], row["label"]) for row in rows] == expected[:5]
    assert not any("chosen" in row for row in rows)
    assert len(generate(task, "copy", 7, 6, "labelled")) == 6
    made = [generate(task, "copy", seed, 3, "reasoning") for seed in (7, 8)]
    assert made[0] == [*made[0]] == generate(task, "copy", 7, 3, "supervised") != made[1]


def test_each_line_of_a_file_is_looked_at_with_its_own_number(tmp_path: Path) -> None:
    path, told = tmp_path / "games.jsonl", []
    path.write_text('{"n": 0}\n\n{"n": 1}\n  \n{"n": 2}\n')
    rows = read_jsonl(path, "games", lambda row, where: told.append((row["n"], where)))
    assert rows == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert told == [(0, f"{path}:1"), (1, f"{path}:3"), (2, f"{path}:5")]


def test_columns_are_renamed_and_what_has_no_json_form_is_left_out() -> None:
    class Table(list[dict[str, Any]]):
        column_names = ("question", "prompt", "answer", "image", "odd")

    table = Table([{"question": "q", "prompt": "p", "answer": 1, "image": object(), "odd": float("nan")}])
    # `question` goes under the name `prompt` alone, and takes the place of the column that had it
    assert _rows(table, {"prompt": "question"}, "x") == [{"prompt": "q", "answer": 1}]
    assert _rows(table, {"a": "answer", "b": "answer"}, "x") == [{"question": "q", "prompt": "p", "a": 1, "b": 1}]


@pytest.mark.parametrize(("most", "kept"), [(4, [0, 1, 2]), (3, [0, 1]), (5, [0, 1, 2, 3])])
def test_a_pair_fits_if_both_of_its_completions_do_with_their_ends(most: int, kept: list[int]) -> None:
    long = [("1", "2"), ("12", "1"), ("1", "123"), ("1234", "1"), ("1", "12345")]
    rows = [{"prompt": f"{i}=", "chosen": a, "rejected": b} for i, (a, b) in enumerate(long)]
    more = [{"prompt": f"{i}=", "chosen": "1", "rejected": "2"} for i in range(5, 9)]
    corpus = tokenise([*rows, *more], "preference", words.base(), words.config(max_completion=most), TextFetch(), 1)
    assert [int(row["prompt"][0]) for row in corpus.rows] == [*kept, 5, 6, 7, 8]
    assert corpus.left_out == 5 - len(kept)


def test_what_is_drawn_of_a_dataset_is_of_its_own_purpose_and_the_runs_seed() -> None:
    """Rows of a task and the splits: of the same draws the order of rows would say what they are."""
    task = tasks.get("copy", {"shortest": 2, "longest": 6})
    rows = generate(task, "copy", 5, 40, "reasoning")
    assert rows == task.rows(rng.host(rng.run_key(5), Purpose.BEHAVIOUR), 40)
    corpus = tokenise(rows, "reasoning", words.base(), words.config(), TextFetch(test=0.1, validation=0.2), 5)
    order = rng.host(rng.run_key(5), Purpose.PROMPT).permutation(40).tolist()
    found = {name: index.tolist() for name, index in corpus.splits.items()}
    assert found == {"test": sorted(order[:4]), "validation": sorted(order[4:12]), "train": sorted(order[12:])}


def test_splits_are_drawn_by_the_seed_or_cut_at_a_row_and_overlaps_are_treated_in_both() -> None:
    def made(seed: int, **how: Any) -> Any:
        return tokenise(rows, "reasoning", words.base(), words.config(max_prompt=3), TextFetch(**how), seed, held)

    held: int | None = None
    rows = [{"prompt": f"{i}=", "answer": "1"} for i in range(30)]
    splits = [made(seed).splits["test"].tolist() for seed in (0, 1, 1)]
    assert splits[0] != splits[1] == splits[2]
    rows, held = [*rows[:6], {"prompt": "long=", "answer": "1"}, *rows[4:9]], 8
    kept, apart = made(1), made(1, overlap="leave_out")
    for corpus, later in ((kept, ["5=", "6=", "7=", "8="]), (apart, ["6=", "7=", "8="])):
        found = {name: [corpus.rows[i]["prompt"] for i in index.tolist()] for name, index in corpus.splits.items()}
        assert found == {"train": ["0=", "1=", "2=", "3=", "4=", "5=", "4="], "validation": later, "test": []}
        assert corpus.left_out == 1  # too long; what overlaps is not among them
    held = len(rows)
    with pytest.raises(DataError, match="too few"):
        made(1)


def test_a_prompt_that_ends_with_the_assistants_words_is_gone_on_with() -> None:
    base = words.base()
    rows = [{"prompt": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}], "completion": "3"}]
    corpus = tokenise(rows * 4, "supervised", base, words.config(), TextFetch(), 1)
    assert base.show(corpus.prompts[0]).replace(" ", "") == "<|user|>1<|end|><|assistant|>2"
    assert base.show(corpus.answers[0][0]).replace(" ", "") == "3<|end|>"
    assert corpus.learned[0] == [1, 1]


def test_a_text_with_an_end_has_one_pad_more_and_is_learned_as_before() -> None:
    ids = torch.tensor([[[5, 6, 7]]])
    yes = torch.ones(1, 1, 3, dtype=torch.bool)
    found = with_end(Text(ids, yes, yes[..., 1:], torch.tensor([[[3, 4]]])))
    assert found.ids.tolist() == [[[5, 6, 7, 0]]]
    assert found.real.tolist() == [[[True, True, True, False]]]
    assert found.mask.tolist() == [[[True, True, False]]]
    assert found.turn.tolist() == [[[3, 4, 0]]]


def test_games_are_split_by_their_number_and_keep_what_players_wrote() -> None:
    task = tasks.get("wordle", {"words": "tiny", "tries": 2})
    rows = generate(task, "wordle", 3, 20, "games")
    told = task.encode(rows)  # type: ignore[attr-defined]
    base = words.base()
    corpora = [games(rows, told, base, TextFetch(test=0.2, validation=0.1), seed) for seed in (1, 2)]
    for corpus in corpora:
        assert {name: len(index) for name, index in corpus.splits.items()} == {"train": 14, "validation": 2, "test": 4}
        for i in range(20):
            n = int(told.real[i].sum())
            assert corpus.answers[0][i] == told.ids[i, :n].tolist()
            assert corpus.learned[i] == told.acts[i, :n].astype(int).tolist()
            assert corpus.prompts[i] == []
    assert corpora[0].splits["test"].tolist() != corpora[1].splits["test"].tolist()


def test_held_out_rows_are_as_many_as_there_are_at_most() -> None:
    assert sorted(held_out(np.arange(9), 4).tolist()) == [0, 1, 2, 3]


# --- tool calls -------------------------------------------------------------------------------------------------------

ADD = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"b": {"type": "string"}}}}}


def test_what_stands_before_the_first_call_is_text_and_a_call_may_have_no_arguments() -> None:
    call = '<tool_call>{"name": "add"}</tool_call>'
    said = tool_calls.read(f"First. \n{call} and {call} end", [ADD])
    assert said == tool_calls.Spoken("First.", (tool_calls.ToolCall("add", "{}"),) * 2)
    assert tool_calls.numbered(said, 12) == ["000120000", "000120001"]
    message = tool_calls.spoken(said, ["x", "y"])
    assert message["content"] == "First."
    assert [each["id"] for each in message["tool_calls"]] == ["x", "y"]
    assert "tool_calls" not in tool_calls.spoken(tool_calls.Spoken("First.", ()), [])


def test_values_of_parameters_are_json_unless_they_are_said_to_be_texts() -> None:
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>" for k, v in (("a", "[1]"), ("b", "2"), ("c", "x y")))
    (call,) = tool_calls.read(f"<tool_call><function=add>{given}</function></tool_call>", [ADD]).calls
    assert json.loads(call.arguments) == {"a": [1], "b": "2", "c": "x y"}
    bare = {"type": "function", "function": {"name": "add"}}
    (call,) = tool_calls.read(f"<tool_call><function=add>{given}</function></tool_call>", [bare]).calls
    assert json.loads(call.arguments) == {"a": [1], "b": 2, "c": "x y"}


def test_calls_stand_behind_what_was_said_where_a_template_shows_none() -> None:
    function = {"name": "add", "arguments": "{broken"}
    chat: list[dict[str, Any]] = [
        {"role": "assistant", "content": "So:", "tool_calls": [{"id": "x", "function": function}]},
        {"role": "user", "content": "u"},
    ]
    plain, tools = tool_calls.for_template("{{ messages }}", chat, [])
    assert tools == []
    told = '<tool_call>{"name": "add", "arguments": "{broken"}</tool_call>'
    assert plain == [{"role": "assistant", "content": f"So:{told}"}, chat[1]]
    knows, tools = tool_calls.for_template("{{ tool_calls }} {{ tools }}", chat, [ADD])
    assert (knows[0]["content"], tools) == ("So:", [ADD])
    assert knows[0]["tool_calls"] == [{"id": "x", "type": "function", "function": function}]
    told_of, tools = tool_calls.for_template("{{ tool_calls }}", [{"role": "system", "content": None}], [ADD])
    assert tools == []
    assert [each["role"] for each in told_of] == ["system"]
    assert told_of[0]["content"].startswith("\n\nYou may call")


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_wrong_sums_are_off_by_one_to_nine_either_way_and_numbers_have_every_digit() -> None:
    task = tasks.get("arithmetic", {"digits": 1, "operations": ["+"]})
    rows = task.rows(np.random.default_rng(0), 150)
    assert {int(row["rejected"]) - int(row["answer"]) for row in rows} == {*range(-9, 10)} - {0}
    assert {int(x) for row in rows for x in row["prompt"].rstrip("=").split("+")} == {*range(10)}
    two = tasks.get("arithmetic", {"digits": 2, "operations": ["*", "-"], "terms": 3})
    numbers = {int(x) for row in two.rows(np.random.default_rng(0), 200)
               for x in row["prompt"].rstrip("=").replace("*", "-").split("-")}  # fmt: skip
    assert (min(numbers), max(numbers)) == (0, 99)


def test_a_product_joins_the_number_before_it() -> None:
    task: Any = tasks.get("arithmetic", {"operations": ["+", "*", "-"], "terms": 4})
    for seed in range(40):
        text, value = task._expression(np.random.default_rng(seed))
        assert value == eval(text)


def test_a_score_by_place_is_a_share_of_the_longer_text() -> None:
    task = tasks.get("sort", {"by_place": True})
    row = {"answer": "124"}
    found = [task.score(row, text) for text in ("124", "12", "1249", "x24", "")]
    assert found == pytest.approx([1.0, 2 / 3, 3 / 4, 2 / 3, 0.0])
    assert task.score({"answer": ""}, "") == 0.0


def test_failed_scores_are_counted_each_and_the_first_is_told_of() -> None:
    def score(row: Any, completion: str) -> float:
        row["seen"] = True
        if completion == "0":
            raise ValueError("zero")
        return {"1": 1.5, "2": float("nan")}.get(completion, 7.0)

    rows = [{"n": i} for i in range(5)]
    found = tasks.rewards(score, rows, ["1", "2", "0", "2", "3"], 5.0)
    assert (found.values.tolist(), found.failed) == ([1.5, 0.0, 0.0, 0.0, 7.0], 3)
    assert found.why == "returned nan, which is no finite number"
    assert rows == [{"n": i} for i in range(5)]


# --- exported models --------------------------------------------------------------------------------------------------


def hidden_after(text: list[int]) -> torch.Tensor:
    """What the base's last layer says after a whole text."""
    model = words.base().model
    with torch.no_grad():
        found: torch.Tensor = model.model(torch.tensor([text])).last_hidden_state[0, -1]
    return found


def test_a_reward_is_the_heads_product_with_what_follows_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    base = words.base()
    weight, bias = torch.linspace(-3, 5, base.words.hidden), torch.tensor(2.5)
    prompts, said = ["1=", "123=", "4=", "55="], ["1", "321", "", "77777"]
    for chat, system in ((False, None), (True, "0")):
        policy = LanguagePolicy(base, words.config(chat=chat, system=system), {}, None, (weight, bias))
        texts = [base.completed(prompt, [own], chat, system) for prompt, own in zip(prompts, said, strict=True)]
        wanted = [float(hidden_after([*ids, *told]) @ weight + bias) for ids, (told,) in texts]
        assert policy.reward(prompts, said) == pytest.approx(wanted, abs=1e-4)
        assert len({round(x, 3) for x in wanted}) == 4
        monkeypatch.setattr("evopipe.language.policy._AT_ONCE", 3)
        assert policy.reward(prompts, said) == pytest.approx(wanted, abs=1e-4)


def test_an_exported_model_writes_by_the_settings_that_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    base = words.base()
    policy = LanguagePolicy(base, words.config(max_completion=5, max_prompt=9, stop=("no such",)), {}, None)
    prompts = ["1=", "22=", "333="]
    greedy = policy.generate(prompts)
    assert greedy == policy.generate(prompts, temperature=3.0, top_k=1)
    assert greedy == policy.generate(prompts, temperature=3.0, top_p=1e-9)
    wild = [policy.generate(prompts, temperature=3.0, seed=seed, samples=4) for seed in (0, 1, 1)]
    assert wild[0] != wild[1] == wild[2]
    assert [len(each) for each in wild[0]] == [4, 4, 4]
    assert len({text for each in wild[0] for text in each}) > 6
    longest = max(len(base.encode(text)) for each in policy.generate(prompts, temperature=9.0, samples=4)
                  for text in each)  # fmt: skip
    assert longest == 5
    assert max(len(base.encode(text)) for text in policy.generate(prompts, max_tokens=7)) > 5
    # A text of training ends a completion and is cut from it, unless others are given.
    (first, *_) = policy.generate("1=", max_tokens=7)
    own = LanguagePolicy(base, words.config(stop=(first,)), {}, None)
    assert (own.generate("1="), own.generate("1=", max_tokens=7, stop="no such")[0]) == ("", first)
    monkeypatch.setattr("evopipe.language.policy._AT_ONCE", 2)
    assert policy.generate(prompts) == greedy


def test_an_exported_model_is_asked_as_members_were() -> None:
    base = words.base()
    plain, chat, told = (
        LanguagePolicy(base, words.config(**changes), {}, None).generate(["1=", "22="], temperature=2.0, samples=6)
        for changes in ({}, {"chat": True}, {"chat": True, "system": "abc"})
    )
    assert plain != chat != told != plain
