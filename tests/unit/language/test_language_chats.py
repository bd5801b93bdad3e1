"""Text as tokens: what is learned from is what the template writes, to the token, and no data acts as a template."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

import torch
from transformers import PreTrainedTokenizerFast

import templates
import words
from evopipe.agents.model import Limits, Model, Reply, Sampled, Tokens
from evopipe.agents.rows import rows_of
from evopipe.agents.types import Step, Trajectory
from evopipe.errors import DataError
from evopipe.language.base import Base
from evopipe.language.encoding import Marked
from evopipe.language.policy import LanguagePolicy
from evopipe.language.tokens import Corpus, tokenise
from evopipe.schema.language import LanguageConfig, TextFetch
from templates import CHATS, FAMILIES

WORDS = ("the", "turn", "42", "It's", "no,", "x y", "a\nb", "ok.\n\n- one", "é漢", "12 + 30", "  two", "?!", "(end)")
EVERY = [  # the two older ways of SentencePiece differ in where spaces begin: with one template quickly
    pytest.param(family, name, marks=() if family in FAMILIES[:2] or name == "llama-2" else pytest.mark.thorough)
    for family in FAMILIES for name in CHATS
]  # fmt: skip


def config(**changes: Any) -> LanguageConfig:
    return LanguageConfig.model_validate({"chat": True, "max_prompt": 10_000, "max_completion": 10_000, **changes})


def corpus(base: Base, rows: list[dict[str, Any]], form: Any = "supervised", **changes: Any) -> Corpus:
    return tokenise(rows, form, base, config(**changes), TextFetch(), seed=1)


def words_of(draws: np.random.Generator) -> str:
    return " ".join(draws.choice(WORDS, draws.integers(1, 6)).tolist()).strip()


def chat(draws: np.random.Generator, turns: int) -> list[dict[str, str]]:
    return [{"role": role, "content": words_of(draws)} for _ in range(turns) for role in ("user", "assistant")]


def plain(base: Base, text: str) -> list[int]:
    """The tokens of a text by the tokenizer itself."""
    found: list[int] = base.tokenizer.encode(text, add_special_tokens=False)
    return found


def learned(told: Corpus, row: int) -> tuple[list[int], list[list[int]]]:
    """All tokens of a row, and each run of those that are learned."""
    answer, marks = told.answers[0][row], told.learned[row]
    runs: list[list[int]] = []
    for i, (token, mark) in enumerate(zip(answer, marks, strict=True)):
        if mark:
            if not i or not marks[i - 1]:
                runs.append([])
            runs[-1].append(token)
    return [*told.prompts[row], *answer], runs


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_a_chat_is_learned_from_as_its_template_writes_it_and_its_answers_alone(family: str, name: str) -> None:
    base, end = templates.base(family, name), CHATS[name][1]
    draws = np.random.default_rng(sum(map(ord, family + name)))
    rows = [{"messages": chat(draws, int(draws.integers(1, 5)))} for _ in range(12)]
    if name not in ("gemma", "llama-2"):
        rows[0]["messages"].insert(0, {"role": "system", "content": "be brief"})
    told = corpus(base, rows)
    for i, row in enumerate(rows):
        text = base.tokenizer.apply_chat_template(row["messages"], tokenize=False)
        ids, runs = learned(told, i)
        whole = plain(base, text)
        assert ids == whole[: len(ids)]
        rest = base.show(whole[len(ids) :]).strip()
        assert rest in ("", base.tokenizer.eos_token if name == "phi-3" else "")
        answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert [base.show(run).strip() for run in runs] == [answer + end for answer in answers]
        assert all(run[-1] in base.ends for run in runs)
        # What a member is shown before its first answer is what it is shown where it writes.
        before = row["messages"][: next(k for k, m in enumerate(row["messages"]) if m["role"] == "assistant")]
        assert told.prompts[i] == base.prompt(before, True, None)


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_what_agents_are_shown_in_later_turns_is_what_the_template_writes(family: str, name: str) -> None:
    base = templates.base(family, name)
    draws = np.random.default_rng(5)
    whole = chat(draws, 4)
    text = base.tokenizer.apply_chat_template(whole, tokenize=False)
    asked: list[list[int]] = []

    async def submit(request: Any) -> Reply:
        asked.append(request.ids)
        upto = base.tokenizer.apply_chat_template(whole[: 2 * len(asked)], tokenize=False)
        stop = upto.rindex(whole[2 * len(asked) - 1]["content"]) + len(whole[2 * len(asked) - 1]["content"])
        ids = plain(base, upto[:stop] + CHATS[name][1])[len(request.ids) :]
        return Reply(ids, [-1.0] * len(ids), [0.5] * len(ids))

    async def talk() -> Model:
        model = Model(Tokens(base), submit, 0, 0, Sampled(), Limits(9999, 9999))
        told: list[Any] = []
        for i in range(4):
            told.append(whole[2 * i])
            out = await model.get_model_response(told)
            told.append({"role": "assistant", "content": out.content})
        return model

    log = asyncio.run(talk()).log
    (row,) = rows_of(Trajectory(steps=[Step(model_output=out) for out in log]))
    found = [*row.prompt, *row.ids]
    assert found == plain(base, text)[: len(found)]
    written = [token for token, own in zip(row.ids, row.mask, strict=True) if own]
    assert written == [token for out in log for token in out.completion_ids]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["supervised", "preference"])
def test_a_prompt_and_its_completion_are_one_text(family: str, form: str) -> None:
    """No space is learned before a completion that begins none, and one is where it does."""
    base = templates.base(family, "zephyr")
    draws = np.random.default_rng(7)
    first, second = ("completion", "other") if form == "supervised" else ("chosen", "rejected")
    rows = [{"prompt": f"{words_of(draws)}=", first: gap + words_of(draws), second: gap + "(end)"} for gap in
            ("", " ", "\n", "  ") for _ in range(5)]  # fmt: skip
    told = corpus(base, rows, form, chat=False)
    for i, row in enumerate(rows):
        for answer, name in zip(told.answers, (first, second), strict=False):
            whole = plain(base, row["prompt"] + row[name])
            assert [*told.prompts[i], *answer[i]] == [*whole, base.ends[0]]
            assert told.prompts[i] == base.prompt(row["prompt"], False, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_where_a_token_stands_on_both_sides_the_prompt_is_what_is_shown_and_the_completion_has_no_more(
    family: str,
) -> None:
    base = templates.base(family, "zephyr")
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in (
        ("12 and ", "the end"), ("a tu", "rn, it is so"), ("what\n", "\nis it"), ("no ", " more"), ("?", "!"),
        ("", "a"),
    )]  # fmt: skip
    told, apart = corpus(base, rows, chat=False), 0
    for i, row in enumerate(rows):
        assert told.prompts[i] == base.prompt(row["prompt"], False, None)
        ids, (answer,) = learned(told, i)
        assert answer[-1] == base.ends[0]
        shown = base.show([plain(base, "?")[-1], *answer[:-1]])  # behind something: what begins a text has no space
        assert shown.endswith(row["completion"])
        assert len(shown) <= len(row["completion"]) + 2
        apart += ids[: len(ids) - 1] != plain(base, row["prompt"] + row["completion"])
    assert apart  # some are made of other tokens than their text is by itself


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reward_models_completions_are_one_text_with_their_prompts(family: str) -> None:
    seen: list[torch.Tensor] = []
    base = templates.base(family, "zephyr")
    policy = LanguagePolicy(base, config(chat=False), {}, None, (torch.zeros(8), torch.zeros(())))
    assert repr(policy) == f"<LanguagePolicy : reward model over {base.name}>"
    hook = base.model.get_input_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    policy.reward(["12="], ["42."])
    hook.remove()
    shown = seen[0].flatten().tolist()
    wanted = [*plain(base, "12=42."), base.ends[0]]
    assert any(shown[i : i + len(wanted)] == wanted for i in range(len(shown)))


# --- special tokens in data -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_no_special_token_of_data_acts(family: str, name: str) -> None:
    base = templates.base(family, name)
    special = set(base.tokenizer.all_special_ids)
    end = CHATS[name][1].strip()
    inside = f"5{end}1<unk>{CHATS[name][2]}"
    clean = "5 and 1"
    for text in (inside, f"{end}", f"a{end}<s>"):
        acting = [
            [
                [t for t in learned(corpus(base, [row] * 3, **how), 0)[0] if t in special]
                for row, how in (
                    ({"prompt": said, "completion": said}, {"chat": False}),
                    ({"prompt": said, "completion": said}, {}),
                    ({"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": said}] * 2}, {}),
                )
            ]
            for said in (text, clean)
        ]
        assert acting[0] == acting[1]  # those of the template, no others
    told = corpus(base, [{"prompt": "1", "completion": inside}] * 3, chat=False)
    assert base.show(told.answers[0][0]).replace(" ", "").endswith(inside + base.show([base.ends[0]]))
    acts = corpus(replace(base, special_tokens=True), [{"prompt": "1", "completion": inside}] * 3, chat=False)
    assert len(set(acts.answers[0][0][:-1]) & special) >= 2


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_no_observation_opens_a_turn(family: str, name: str) -> None:
    base = templates.base(family, name)
    asked: list[list[int]] = []

    async def submit(request: Any) -> Reply:
        asked.append(request.ids)
        return Reply([plain(base, "4")[-1], base.ends[0]], [-1.0] * 2, [0.5] * 2)

    async def talk(said: str) -> list[int]:
        asked.clear()
        model = Model(Tokens(base), submit, 0, 0, Sampled(), Limits(9999, 9999))
        told: list[Any] = [{"role": "user", "content": said}]
        for _ in range(3):
            out = await model.get_model_response(told)
            told += [{"role": "assistant", "content": out.content}, {"role": "user", "content": said}]
        await model.get_model_response(said)
        return [sum(ids.count(token) for ids in asked) for token in base.tokenizer.all_special_ids]

    attack = "so".join([*base.tokenizer.all_special_tokens, "x"])
    assert asyncio.run(talk(attack)) == asyncio.run(talk("so"))


def test_a_special_token_where_it_cannot_be_told_from_the_template_is_refused() -> None:
    base = templates.base("bytes", "chatml")
    with pytest.raises(DataError, match=r"message 2 holds a special token of written in its role"):
        base.prompt([{"role": "user", "content": "1"}, {"role": "user<|im_end|>", "content": "2"}], True, None)
    changes = templates.of(_with_template(templates.GENERATION))
    assert changes.prompt([{"role": "assistant", "content": "a</think>4"}], True, None)
    with pytest.raises(DataError, match=r"message 1 holds a special token of written in its content"):
        changes.prompt([{"role": "assistant", "content": "a</think>4<|end|>"}], True, None)


@pytest.mark.parametrize("name", ["gemma", "llama-3"])
def test_where_a_template_cuts_spaces_from_a_content_the_rest_is_what_was_said(name: str) -> None:
    """Which is found there: it is learned, and no special token of it acts."""
    base, end = templates.base("bytes", name), CHATS[name][1]
    said = [f" {turn}{end}5 " for turn in "1234"]
    told = [
        corpus(base, [{"messages": [{"role": role, "content": change(text)} for role, text in
                                    zip(("user", "assistant") * 2, said, strict=True)]}] * 3)
        for change in (str, str.strip)
    ]  # fmt: skip
    ids, runs = learned(told[0], 0)
    assert (ids, runs) == learned(told[1], 0)
    assert [base.show(run) for run in runs] == [f"2{end}5{end}", f"4{end}5{end}"]
    assert [sum(token in base.ends for token in run) for run in runs] == [1, 1]


def test_an_answer_that_a_template_shows_twice_is_nowhere_learned_from() -> None:
    """Which of them the model is to write is not known."""
    twice = templates.CHATML + "{{ messages[-1]['content'] }}"
    said = [{"role": role, "content": f"{i} and"} for i, role in enumerate(("user", "assistant"))]
    with pytest.raises(DataError, match="message 2: the chat template of written does not show this answer as it is"):
        corpus(templates.of(_with_template(twice)), [{"messages": said}] * 3)


def test_a_message_is_named_by_its_place_in_the_data() -> None:
    """Whether or not the run puts one of its own before it."""
    base = templates.base("bytes", "chatml")
    twice = templates.of(_with_template(templates.CHATML + "{{ messages[-1]['content'] }}"))
    for system in (None, "be brief"):
        with pytest.raises(DataError, match="message 1 holds a special token of written in its role"):
            base.prompt([{"role": "user<|im_end|>", "content": "2"}], True, system)
        with pytest.raises(DataError, match="message 2: the chat template"):
            twice.conversation([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}], system)


def test_a_special_token_of_the_runs_own_message_is_not_looked_for() -> None:
    changes = templates.of(_with_template(templates.GENERATION))
    assert changes.prompt([{"role": "assistant", "content": "a</think>4"}], True, "be<|end|> brief")


def _with_template(template: str) -> Any:
    known = templates.tokenizer("bytes", "phi-3")
    make: Any = PreTrainedTokenizerFast
    made = make(tokenizer_object=known.backend_tokenizer, bos_token="<s>", eos_token=known.eos_token, unk_token="<unk>")
    made.chat_template = template
    return made


def test_where_a_template_changes_an_answer_its_own_blocks_say_what_is_learned_or_it_is_refused() -> None:
    rows = [{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "x</think>42"},
                          {"role": "user", "content": "2"}, {"role": "assistant", "content": "43"}]}] * 3  # fmt: skip
    base = templates.of(_with_template(templates.GENERATION))
    _, runs = learned(corpus(base, rows), 0)
    assert [base.show(run) for run in runs] == ["42<|end|>", "43<|end|>"]
    plainly = templates.GENERATION.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    with pytest.raises(DataError, match=r"message 2: the chat template of written does not show this answer as it is"):
        corpus(templates.of(_with_template(plainly)), rows)


def test_of_a_part_of_a_text_that_is_data_which_lies_in_it() -> None:
    text = Marked("0123456789", ((1, 4), (6, 9)))
    assert text.part(2, 7) == Marked("23456", ((0, 2), (4, 5)))
    assert text.part(4, 6) == Marked("45")
    assert text.part(7) == Marked("789", ((0, 2),))


def test_no_text_holds_the_names_that_special_tokens_have_within() -> None:
    """Whoever wrote it: these characters are of no text."""
    encoder = templates.base("bytes", "chatml").encoder
    special = set(templates.tokenizer("bytes", "chatml").all_special_ids)
    names = "".join(encoder._renamed[1].values())
    assert len(names) >= 6
    ends = f"{names}<|im_end|>"
    for text in (Marked(names), Marked.as_data(names), Marked(ends), Marked(ends, ((0, len(names)),))):
        assert sum(token in special for token in encoder.encode(text)) == text.text.count("<|im_end|>")


def test_special_tokens_of_the_runs_own_system_prompt_act() -> None:
    base = words.base()
    (end,) = base.ends
    assert base.prompt("1", False, "0<|end|>")[1] == end
    assert base.prompt("1", True, "0<|end|>").count(end) == base.prompt("1", True, "0").count(end) + 1
    assert end not in base.prompt("1<|end|>", False, None)
    assert base.prompt("1<|end|>", True, None).count(end) == base.prompt("1", True, None).count(end)
