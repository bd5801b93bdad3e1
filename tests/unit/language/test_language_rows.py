"""Which rows serve for what, and what becomes of each: of learning, of scores while members train, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

import torch

from evopipe.core.cohort import dissolve
from evopipe.core.member import Member
from evopipe.core.net import score
from evopipe.language import policy as policies
from evopipe.language.generate import Sampling
from evopipe.language.tokens import Corpus, tokenise
from evopipe.params.text import LanguageParams
from evopipe.problems import text_evaluate as evaluation
from evopipe.problems.text import make_spec, spec_of
from evopipe.problems.text_data import form_of
from evopipe.problems.text_evaluate import _completions, _pass_at
from evopipe.regimes.dialogue import Completer, Dialogue, learn, sampling
from evopipe.regimes.order import rows_at
from evopipe.regimes.text import References, TextRows, TextSource, figures
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.spec import first_members
from evopipe.run.text import TextSpec
from evopipe.types import Text

DIGITS = "0123456789"
# A row's completion has one token more than the row's number: what is told of lengths names the row.
ROWS = [
    {"prompt": f"{i}=", "answer": str(i), "completion": "7" * i, "chosen": "7" * i, "rejected": "3" * (i % 3)}
    for i in range(40)
]


@cache
def problem(algo: str, members: int = 3, **block: Any) -> tuple[TextSpec, Corpus, tuple[Member, ...]]:
    """Members of unlike adapters and hyper-parameters, none of which is 0."""
    params = LanguageParams.model_validate({
        "seed": 5,
        "language": {"tiny": {"characters": DIGITS + "=", "hidden": 16, "layers": 1, "heads": 2}, "rank": 2,
                     "max_prompt": 8, "max_completion": 48 if algo in ("sft", "dpo") else 4},
        "train": {"algo": algo},
        "algos": {algo: {**block, "evolve": {"lr": {"min": 1e-3, "max": 1e-2}}}},
    })  # fmt: skip
    spec = make_spec(params)
    if algo == "grpo":
        ranges = {"lr": {"min": 1e-3, "max": 1e-2}, "temperature": {"min": 0.3, "max": 3.0}}
        params = LanguageParams.model_validate({
            **params.model_dump(), "algos": {algo: {**params.algo_config.model_dump(), "evolve": ranges}},
        })  # fmt: skip
        spec = spec_of(params, spec.base, spec.device, spec.language)
    corpus = tokenise(ROWS, form_of(spec.algo), spec.base, spec.language, params.fetch, 5)
    draws = torch.Generator().manual_seed(9)
    found = []
    for member in first_members(spec, members)[0]:
        policy = 0.3 * torch.randn(member.tensors["policy"].shape, generator=draws)
        hyper = {**member.hyper, **({"temperature": 0.5 + member.slot} if algo == "grpo" else {})}
        found.append(replace(member, tensors={**member.tensors, "policy": policy}, hyper=hyper))
    return spec, corpus, tuple(found)


class Judge:
    """Rewards completions by their text, and remembers of which rows it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: list[str] = []

    def __call__(self, rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        self.asked += [int(row["answer"]) for row in rows]
        self.told += completions
        return np.array([self.value(row, text) for row, text in zip(rows, completions, strict=True)]), 0

    @staticmethod
    def value(row: Mapping[str, Any], text: str) -> float:
        return sum(map(ord, text)) + int(row["answer"]) / 100


def numbers(corpus: Corpus, split: str) -> set[int]:
    return {int(corpus.rows[i]["answer"]) for i in corpus.splits[split].tolist()}


def dialogue(algo: str = "grpo", **block: Any) -> tuple[Dialogue, Judge]:
    spec, corpus, members = problem(algo, **block)
    judge = Judge()
    regime = Dialogue(spec, Clock.of(spec, len(members)), corpus, judge)
    regime.adopt(spec.form(members))
    return regime, judge


# --- which rows -------------------------------------------------------------------------------------------------------


def of_prompts(corpus: Corpus, text: Text, p: int, group: int) -> list[int]:
    """The number of each group's prompt, by the tokens before its completions."""
    width = text.ids.shape[-1] - text.mask.shape[-1]
    known = {tuple(corpus.prompts[i]): int(corpus.rows[i]["answer"]) for i in range(len(corpus.rows))}
    rows = [tuple(ids[:width][real[:width]].tolist()) for ids, real in zip(text.ids[p], text.real[p], strict=True)]
    assert all(len(set(rows[i : i + group])) == 1 for i in range(0, len(rows), group))
    return [known[row] for row in rows[::group]]


def test_prompts_whose_rewards_are_all_equal_give_way_to_others() -> None:
    """Only rows whose number is one above a multiple of three earn something. A round has 4 prompts, and may draw 2
    times 4 others."""
    spec, corpus, members = problem("grpo", rows=16, group_size=4, batch_size=16, redraws=2)

    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        asked.append([int(row["answer"]) for row in rows])
        return np.array([float(n % 3 == 1) * (i % 4) for i, n in enumerate(asked[-1])]), 0

    asked: list[list[int]] = []
    regime = Dialogue(spec, Clock.of(spec, 3), corpus, judge)
    regime.adopt(spec.form(members))
    seen: list[Text] = []
    true, redrawn = regime._measure, []

    def measure(cohort: Any, text: Text, *rest: Any) -> None:
        seen.append(text)
        true(cohort, text, *rest)

    regime._measure = measure  # type: ignore[method-assign]
    train = corpus.splits["train"]
    often = 0
    for tick in range(4):
        asked.clear()
        seen.clear()
        regime.advance()
        every = [int(corpus.rows[i]["answer"]) for i in train[rows_at(5, len(train), tick * 12, 12)].tolist()]
        waves = [every[:4], every[4:8], every[8:]]
        kept, used, twice = waves[0], 1, False
        for wave in waves[1:]:
            if all(n % 3 == 1 for n in kept):
                break
            fresh = iter([n for n in wave if n % 3 == 1])
            twice = used == 2 and kept != waves[0] and any(n % 3 == 1 for n in wave)
            kept, used = [n if n % 3 == 1 else next(fresh, n) for n in kept], used + 1
        redrawn.append(sum(a != b for a, b in zip(kept, waves[0], strict=True)) / 4)
        assert len(asked) == used * 3  # a member at a time
        for text in seen:
            for p in range(len(text.ids)):
                assert of_prompts(corpus, text, p, 4) == kept
            assert text.reward is not None
            assert text.keep is not None
            assert text.keep[0, ::4].tolist() == [n % 3 == 1 for n in kept]
            assert text.log_prob is not None
            assert (text.log_prob[text.mask] < 0).all()
            assert (text.log_prob[~text.mask] == 0).all()
        often += twice
    assert often > 0  # rounds of which both waves gave groups
    told = [dict(zip(regime.measures.names, row[2:], strict=True)) for row in regime.measures.rows()]
    assert [row["redrawn"] for row in told] == pytest.approx([np.mean(redrawn)] * 3)
    assert all(0 <= row["drift"] <= 1e-5 for row in told)


def test_the_drift_is_of_the_first_update_alone() -> None:
    """Whoever wrote is whoever learns: later updates of a round have moved the weights, and are no drift."""
    regime, _ = dialogue(rows=16, group_size=4, batch_size=4, epochs=2)
    before = regime.cohorts[0].state.policy.values.clone()
    regime.advance()
    assert (regime.cohorts[0].state.policy.values - before).abs().amax() > 1e-3
    place = 2 + regime.measures.names.index("drift")
    assert [row[place] for row in regime.measures.rows()] == pytest.approx([0.0] * 3, abs=1e-4)


def test_what_is_written_anew_depends_on_no_neighbour() -> None:
    """Members write unlike texts, so that unlike prompts are drawn again; each learns as it does alone, to the bit."""
    spec, corpus, members = problem("grpo", rows=16, group_size=4, batch_size=16, redraws=3)
    spec = replace(spec, cohorts="exact", base=replace(spec.base, exact=True))

    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        return np.array([float(text > "5") for text in completions]), 0

    found = []
    for chosen in ([0, 1, 2], [0], [1], [2]):
        own = [replace(members[slot], slot=i) for i, slot in enumerate(chosen)]
        regime = Dialogue(spec, Clock.of(spec, len(own)), corpus, judge)
        regime.adopt(spec.form(own))
        for _ in range(3):
            regime.advance()
        found.append({slot: of_member(regime, i) for i, slot in enumerate(chosen)})
    for slot in range(3):
        assert torch.equal(found[0][slot], found[1 + slot][slot])
        assert not torch.equal(found[0][slot], members[slot].tensors["policy"])
    assert sum(row[2 + regime.measures.names.index("redrawn")] > 0 for row in regime.measures.rows())


def of_member(regime: Dialogue, slot: int) -> torch.Tensor:
    """The weights of a member's adapter."""
    (cohort,) = [each for each in regime.cohorts if slot in each.slots]
    row: torch.Tensor = cohort.members[cohort.slots.index(slot)].tensors["policy"]
    policy = cohort.state.policy
    own: torch.Tensor = policy.structure.unpack(policy.values.cpu())[cohort.slots.index(slot)]
    assert own.shape == row.shape
    return own


def test_dialogues_learn_from_rows_of_training_and_are_selected_by_those_of_validation() -> None:
    """A pass shows every row of training once; no fitness, and no confirmation, sees a row of the test."""
    regime, judge = dialogue(rows=32, group_size=4, batch_size=32)
    corpus = regime.completer.corpus
    first = []
    for _ in range(4):  # 8 prompts a tick of 32
        judge.asked.clear()
        regime.advance()
        assert len(judge.asked) == 3 * 32
        assert judge.asked[:32] == judge.asked[32:64] == judge.asked[64:]  # the same for all members
        assert all(len(set(judge.asked[i : i + 4])) == 1 for i in range(0, 32, 4))  # a prompt's lie together
        first += judge.asked[:32:4]
    assert sorted(first) == sorted(numbers(corpus, "train"))
    for purpose, n in ((Purpose.EVALUATE, 2), (Purpose.EVALUATE, 64), (Purpose.CONFIRM, 3)):
        judge.asked.clear()
        regime.evaluate(regime.cohorts, regime.spec.seeds(purpose, n), lambda: False)
        assert set(judge.asked) <= numbers(corpus, "validation")
        assert len(set(judge.asked)) == min(n, 4)


class Watched(TextSource):
    """Lessons that remember which rows were asked for."""

    asked: list[int]

    def batch(self, index: np.ndarray, members: int) -> Text:
        self.asked.append(index.tolist())
        return super().batch(index, members)


@pytest.mark.parametrize("algo", ["sft", "dpo"])
def test_rows_that_are_learned_from_come_once_a_pass_and_validation_alone_scores(algo: str) -> None:
    spec, corpus, members = problem(algo, batch_size=8)
    lessons = Watched(spec, corpus)
    lessons.asked = []
    regime = TextRows(spec, Clock.of(spec, 3), lessons)
    regime.adopt(spec.form(members))
    for _ in range(8):
        regime.advance()
    regime.close()
    for each in (lessons.asked[:4], lessons.asked[4:]):
        assert sorted(i for batch in each for i in batch) == corpus.splits["train"].tolist()
    assert lessons.asked[:4] != lessons.asked[4:]
    played = regime.evaluate(regime.cohorts, spec.seeds(Purpose.EVALUATE, 64), lambda: False)
    assert {int(n) - 1 for n in played.lengths[0]} == numbers(corpus, "validation")


def test_rows_of_scripts_that_score_agents_are_nobodys_test() -> None:
    spec, _, _ = problem("sft")
    corpus = tokenise(ROWS, "supervised", spec.base, spec.language, LanguageParams().fetch, 5, held_out=30)
    assert {name: len(index) for name, index in corpus.splits.items()} == {"train": 30, "validation": 10, "test": 0}


# --- what becomes of them ---------------------------------------------------------------------------------------------


def alone(spec: TextSpec, corpus: Corpus, member: Member, row: int, answer: int = 0) -> torch.Tensor:
    """Log-probabilities of a row's answer, of a member by itself, without pads; by the model's logits."""
    (cohort,) = spec.form_alone(replace(member, slot=0))
    prompt, told = corpus.prompts[row], corpus.answers[answer][row]
    ids = torch.tensor([[[*prompt, *told]]])
    policy = cohort.state.policy
    with torch.no_grad():
        logits = policy.structure.forward(policy.frozen.views, ids)[0, 0]
    found: torch.Tensor = logits.log_softmax(dim=-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(told)[:, None])[:, 0]
    return found


def test_a_score_is_of_the_members_own_words_about_that_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last token, the one that ends the completion; whatever stands beside."""
    spec, corpus, members = problem("sft", batch_size=8)
    regime = TextRows(spec, Clock.of(spec, 3), TextSource(spec, corpus))
    cohorts = spec.form(members)
    played = regime.evaluate(cohorts, spec.seeds(Purpose.EVALUATE, 64), lambda: False)
    regime.close()
    rows = corpus.splits["validation"]
    told = figures(spec, corpus, cohorts, rows, None)["chance"]
    assert len(rows) % 3
    monkeypatch.setattr("evopipe.regimes.text.AT_ONCE", 3)
    np.testing.assert_allclose(figures(spec, corpus, cohorts, rows, None)["chance"], told, rtol=1e-4)
    assert corpus.answers[0][int(rows[0])][-1] == spec.base.ends[0]
    for p, member in enumerate(members):
        each = [alone(spec, corpus, member, int(row)) for row in rows]
        assert played.returns[p] == pytest.approx([float(x.mean()) for x in each], abs=1e-4)
        assert told[p] == pytest.approx(np.mean([float(x.sum().exp()) for x in each]), rel=1e-3, abs=0)


def test_rows_are_shown_as_a_member_says_them_before_and_after_a_generations_last_update() -> None:
    """Of the second generation, which ends with the fourth batch: pairs, of which the first are better."""
    spec, corpus, members = problem("dpo", batch_size=3)
    regime = TextRows(spec, Clock(3, 1, 2, 8, living=3), TextSource(spec, corpus))
    regime.adopt(spec.form(members))
    regime.advance()
    assert list(regime.samples.rows()) == []
    regime.advance()
    assert {row["round"] for row in regime.samples.rows()} == {1}
    regime.clock.begin_generation()
    regime.advance()
    before = dissolve(regime.cohorts)
    regime.advance()
    after, train = dissolve(regime.cohorts), corpus.splits["train"]
    regime.close()
    index = train[rows_at(5, len(train), 3 * 3, 3)].tolist()
    for p in range(3):
        shown = [each for each in regime.samples.rows() if (each["round"], each["slot"]) == (2, p)]
        assert [each["id"] for each in shown] == [f"{row}:{answer}" for answer in (0, 1) for row in index]
        for place, each in enumerate(shown):
            answer, row = place // 3, index[place % 3]
            told = corpus.answers[answer][row]
            (trajectory,) = each["trajectories"]
            assert each["task"] == corpus.rows[row]
            assert (trajectory["reward"], each["is_correct"]) == (1.0 - answer, answer == 0)
            assert trajectory["steps"][0]["model_output"]["completion_ids"] == told
            asked, written = trajectory["rows"][0]
            assert asked["text"] == spec.base.show(corpus.prompts[row])
            assert "".join(written["tokens"]) == written["text"] == spec.base.show(told)
            for name, member in (("log_prob", before[p]), ("new_log_prob", after[p])):
                wanted = alone(spec, corpus, member, row, answer)
                assert written[name] == pytest.approx(wanted.tolist(), abs=1e-4)
            assert written["log_prob"] != written["new_log_prob"]


def test_rows_of_a_reward_model_have_a_place_for_the_end_and_others_have_none() -> None:
    for algo, more in (("sft", 0), ("dpo", 0), ("reward_model", 1)):
        spec, corpus, _ = problem(algo)
        source, index = TextSource(spec, corpus), np.arange(3)
        plain, text = corpus.batch(index, spec.base.pad), source.batch(index, 2)
        assert text.ids.shape == (2, plain.ids.shape[1], plain.ids.shape[2] + more)
        assert (text.reference is not None) == (algo == "dpo")


def test_what_the_base_says_of_pairs_is_of_that_pair() -> None:
    spec, corpus, members = problem("dpo", batch_size=8)
    plain = replace(members[0], tensors={**members[0].tensors, "policy": 0 * members[0].tensors["policy"]})
    references = References(spec, corpus, np.arange(len(corpus.rows)))
    index = [7, 2, 31]
    text = corpus.batch(index, spec.base.pad)
    found = references.of(index, text)[0]
    for i, row in enumerate(index):
        for answer in (0, 1):
            wanted = alone(spec, corpus, plain, row, answer)
            own = found[answer * 3 + i]
            torch.testing.assert_close(own[: len(wanted)], wanted, atol=1e-5, rtol=0)
            assert not own[text.mask[0, answer * 3 + i]].eq(0).any()


def test_members_are_scored_by_their_own_likeliest_completions() -> None:
    regime, judge = dialogue()
    spec, corpus, members = problem("grpo")
    rows = corpus.splits["validation"]
    played = regime.evaluate(regime.cohorts, spec.seeds(Purpose.EVALUATE, 64), lambda: False)
    apart = set()
    for p, member in enumerate(members):
        for i, row in enumerate(rows.tolist()):
            ids, written = list(corpus.prompts[row]), []
            (cohort,) = spec.form_alone(replace(member, slot=0))
            policy = cohort.state.policy
            while len(written) < 4 and (not written or written[-1] not in spec.base.ends):
                with torch.no_grad():
                    logits = policy.structure.forward(policy.frozen.views, torch.tensor([[[*ids, *written]]]))
                written.append(int(logits[0, 0, -1].argmax()))
            text = spec.base.decode(written)
            apart.add(text)
            assert played.returns[p, i] == pytest.approx(judge.value(corpus.rows[row], text), abs=1e-4)
            assert played.lengths[p, i] == len(written)
    assert len(apart) > 3


def test_members_draw_by_their_own_temperature_and_never_the_same_twice() -> None:
    regime, _ = dialogue()
    spec = regime.spec
    for cohort in regime.cohorts:
        how = sampling(cohort, spec)
        assert how.temperature.tolist() == [0.5 + slot for slot in cohort.slots]
        drawn = [regime.completer.write(cohort, [1, 2], 4, how, when)[1] for when in (0, 0, 1)]
        assert torch.equal(drawn[0].ids, drawn[1].ids)
        assert drawn[0].ids.shape != drawn[2].ids.shape or not torch.equal(drawn[0].ids, drawn[2].ids)
        assert len({str(row) for row in drawn[0].ids[-1].tolist()}) > 1


def test_every_round_is_drawn_anew() -> None:
    """Of the same prompt, by members that learn nothing in between: all their rewards are equal."""
    spec, corpus, members = problem("grpo", rows=16, group_size=4, batch_size=16)
    told: list[list[str]] = []

    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        told.append(list(completions))
        return np.zeros(len(completions)), 0

    few = replace(corpus, splits={**corpus.splits, "train": corpus.splits["train"][:1]})
    regime = Dialogue(spec, Clock.of(spec, 3), few, judge)
    regime.adopt(spec.form(members))
    regime.advance()
    regime.advance()
    assert len(told) == 6
    assert all(told[p] != told[3 + p] for p in range(3))


def test_a_round_teaches_with_each_completions_own_reward() -> None:
    """What a member wrote of a row, what it earned, and how likely it was; none of it another's."""
    regime, judge = dialogue(rows=16, group_size=4, batch_size=16)
    spec, seen = regime.spec, []
    true = spec.algo.update

    def update(cfg: Any, state: Any, hp: Any, batch: Text, *rest: Any) -> Any:
        seen.append(batch)
        return true(cfg, state, hp, batch, *rest)

    class Algo:
        def __getattr__(self, name: str) -> Any:
            return update if name == "update" else getattr(spec.algo, name)

    regime.spec = replace(spec, algo=Algo())
    regime.advance()
    asked, place = list(judge.asked), 0
    for batch in seen:
        assert batch.reward is not None
        order = []
        for p in range(len(batch.ids)):
            for b in range(16):
                width = batch.mask.shape[-1]
                prompt = spec.base.decode(batch.ids[p, b, :-width][batch.real[p, b, :-width]].tolist())
                text = spec.base.decode(batch.ids[p, b, -width:][batch.mask[p, b]].tolist())
                wanted = judge.value({"answer": prompt[:-1]}, text)
                assert float(batch.reward[p, b]) == pytest.approx(wanted, abs=1e-3)
                order.append(int(prompt[:-1]))
            assert sorted(order[-16:]) == sorted(asked[place : place + 16])
            place += 16
        assert batch.log_prob is not None
        assert not batch.log_prob[~batch.mask].any()
    assert place == 48


def test_a_round_is_gone_through_as_often_as_epochs_say_every_row_once() -> None:
    regime, _ = dialogue(rows=16, group_size=4, batch_size=4, epochs=2)
    spec, members = regime.spec, regime.cohorts[0].members
    cohort, seen = regime.cohorts[0], []
    text, _ = regime.completer.write(cohort, [1, 2, 3, 4], 4, Sampling.greedy(len(members), spec.device), 0)
    number = torch.arange(16.0).expand(len(members), -1)
    text = replace(text, reward=number, advantage=0 * text.log_prob, keep=torch.ones_like(number).bool())

    class Algo:
        def __getattr__(self, name: str) -> Any:
            return update if name == "update" else getattr(spec.algo, name)

    def update(cfg: Any, state: Any, hp: Any, batch: Text, healthy: Any, draw: Any, turn: int) -> Any:
        seen.append(batch.reward[0].tolist())
        assert torch.equal(batch.ids[0], text.ids[0][batch.reward[0].long()])  # a row stays whole
        return spec.algo.update(cfg, state, hp, replace(batch, reference=batch.log_prob), healthy, draw, turn)

    learn(replace(spec, algo=Algo()), regime.clock, cohort, text, regime._probe)
    assert [len(each) for each in seen] == [4] * 8
    first, second = ([int(x) for each in part for x in each] for part in (seen[:4], seen[4:]))
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second


def test_best_of_is_whether_any_of_a_prompts_completions_is_right() -> None:
    """Not whether all are, and not the mean; of each prompt by itself, drawn by the member's own temperature."""
    spec, corpus, members = problem("grpo")
    calls: list[int] = []

    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        asked = [int(row["answer"]) for row in rows]
        calls.extend(asked)
        place = [asked[:i].count(each) for i, each in enumerate(asked)]  # of the prompt's completions
        return np.array([float(n == 2 and each % 4 != 0) for n, each in zip(place, asked, strict=True)]), 0

    index = corpus.splits["train"][:8]
    found = _pass_at(Completer(spec, corpus, judge), spec, members[1], index, 3, lambda: False)
    right = [int(corpus.rows[i]["answer"]) % 4 != 0 for i in index.tolist()]
    assert 0 < sum(right) < 8
    assert found["best_of_3"] == found["pass@3"] == pytest.approx(np.mean(right))
    assert found["pass@1"] == pytest.approx(np.mean(right) / 3)
    assert found["pass@2"] == pytest.approx(np.mean(right) * 2 / 3)
    assert len(calls) == 24


def test_what_is_told_of_a_round_is_what_it_was() -> None:
    """The base's log-probabilities, the divergence from it, and the share that earned all there was."""
    spec, corpus, members = problem("grpo", rows=16, group_size=4, batch_size=16)
    plain = replace(members[0], tensors={**members[0].tensors, "policy": 0 * members[0].tensors["policy"]})
    told: list[np.ndarray] = []

    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        told.append(np.array([float(min(2, len(text))) for text in completions]))
        return told[-1], 0

    regime = Dialogue(spec, Clock.of(spec, 3), corpus, judge, most=2.0)
    regime.adopt(spec.form(members))
    seen: list[tuple[tuple[int, ...], Text]] = []
    true, names = regime._measure, regime.measures.names

    def measure(cohort: Any, text: Text, *rest: Any) -> None:
        seen.append((cohort.slots, text))
        true(cohort, text, *rest)

    regime._measure = measure  # type: ignore[method-assign]
    regime.advance()
    rows = {int(row[1]): dict(zip(names, row[2:], strict=True)) for row in regime.measures.rows()}
    place = 0
    for slots, text in seen:
        assert text.reference is not None
        assert text.log_prob is not None
        for p, slot in enumerate(slots):
            gaps = []
            for b in range(16):
                ids, real, mask = text.ids[p, b], text.real[p, b], text.mask[p, b]
                (cohort,) = spec.form_alone(replace(plain, slot=0))
                policy, n = cohort.state.policy, int(mask.sum())
                with torch.no_grad():
                    logits = policy.structure.forward(policy.frozen.views, ids[real][None, None])[0, 0]
                own = logits.log_softmax(dim=-1)[-n - 1 : -1].gather(1, ids[real][-n:, None])[:, 0]
                torch.testing.assert_close(text.reference[p, b][mask], own, atol=1e-4, rtol=0)
                gaps.append(own - text.log_prob[p, b][mask])
            gap = torch.cat(gaps)
            assert rows[slot]["kl"] == pytest.approx(float((gap.exp() - gap - 1).mean()), rel=1e-2, abs=1e-4)
            assert rows[slot]["accuracy"] == pytest.approx(float((told[place] == 2).mean()))
            assert rows[slot]["length"] == pytest.approx(float(text.mask[p].sum(dim=-1).float().mean()))
            place += 1
    assert 0 < sum(float(row["accuracy"]) for row in rows.values()) < 3


def test_completions_are_shown_as_the_elites_and_the_bases_by_who_wrote_them() -> None:
    spec, corpus, members = problem("grpo")
    plain = {**members[0].tensors, "policy": 0 * members[0].tensors["policy"]}
    two = [replace(members[2], slot=0), replace(members[0], slot=1, tensors=plain)]
    room, index = Completer(spec, corpus, Judge()), corpus.splits["test"]
    shown = _completions(room, spec.form(two), index)
    for name, member in zip(("elite", "base"), two, strict=True):
        (cohort,) = spec.form_alone(replace(member, slot=0))
        _, written = room.write(cohort, index, 1, Sampling.greedy(1, spec.device), 0)
        (texts,) = room.texts(written, len(index))
        assert [each[name]["text"] for each in shown] == texts
    assert [each["elite"] for each in shown] != [each["base"] for each in shown]
    assert [each["prompt"] for each in shown] == [corpus.rows[int(i)]["prompt"] for i in index]


def test_the_same_prompt_in_another_part_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, corpus, members = problem("grpo")
    told: list[list[str]] = []

    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        told.append(list(completions))
        return np.zeros(len(completions)), 0

    monkeypatch.setattr(evaluation, "AT_ONCE", 2)
    _pass_at(Completer(spec, corpus, judge), spec, members[2], np.array([3, 9, 3, 9]), 4, lambda: False)
    assert len(told) == 2
    assert told[0] != told[1]
    monkeypatch.setattr(policies, "_AT_ONCE", 2)
    policy = policies.LanguagePolicy(spec.base, spec.language, {}, None)
    found = policy.generate(["1=", "2=", "1=", "2="], temperature=2.0, samples=4)
    assert found[:2] != found[2:]
    assert found == policy.generate(["1=", "2=", "1=", "2="], temperature=2.0, samples=4)


def test_score_marks_are_those_of_the_answer_alone() -> None:
    """A token more or less at either edge would be another row's loss."""
    spec, corpus, members = problem("sft", batch_size=8)
    (cohort,) = spec.form_alone(replace(members[2], slot=0))
    batch = corpus.batch([3, 11], spec.base.pad)
    with torch.no_grad():
        now = score(cohort.state.policy.frozen, batch)
    assert batch.mask[0].sum(dim=-1).tolist() == [4, 12]
    for i, row in enumerate((3, 11)):
        wanted = alone(spec, corpus, members[2], row)
        torch.testing.assert_close(now.log_prob[0, i][batch.mask[0, i]], wanted, atol=1e-4, rtol=0)
