"""What every algorithm for language models promises of a run: the same bits, whatever stops it or spoils others."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")


import rota
from evopipe import algos
from evopipe.core.member import Member
from evopipe.language.data import generate
from evopipe.language.tokens import Corpus, games, tokenise
from evopipe.params.text import LanguageParams
from evopipe.problems.text import make_spec, regime_of
from evopipe.problems.text_data import form_of, task_of
from evopipe.run.clock import Clock
from evopipe.run.run import Run
from evopipe.run.spec import first_members
from evopipe.run.text import TextSpec
from evopipe.scale.shards import InProcess, Shards
from populations import advance, close_generation, equal_states, finish, go_on, of_slot, same
from rota import TURNS, check

QUICK = ("dpo", "grpo")  # one of each regime
pytestmark = pytest.mark.parametrize(
    "algo",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.thorough) for n in algos.names("text")],
)

DIGITS = {"alphabet": "012", "shortest": 2, "longest": 3, "by_place": True}
TINY = {"hidden": 16, "layers": 1, "heads": 2}
ROWS = {"rows": 8, "group_size": 4, "batch_size": 4}
GPT = {
    "model": "gpt", "task": "wordle", "gpt": {"hidden": 16, "layers": 1, "heads": 1, "feedforward": 16},
    "kwargs": {"words": ["ab", "ba", "aa"], "tries": 2},
}  # fmt: skip


SEARCHES: dict[str, dict[str, Any]] = {
    "tournament": {},
    "rota": {"strategy": "rota"},
    "in turns": {"strategy": "rota", "rota": {"order": TURNS}},
    "halving": {"strategy": "halving", "budget": 100, "halving": {"width": 2}},
    "growth": {"strategy": "growth", "budget": 100},
    "random": {"strategy": "random", "budget": 100},
    "mf_pbt": {"strategy": "mf_pbt"},
}


@cache
def problem(algo: str, seed: int = 3, search: str = "tournament") -> tuple[TextSpec, Corpus]:
    """A task of two or three digits, or games of two turns; members begin with unlike forms and hyper-parameters."""
    able, plays = algos.get(algo).Config.model_fields, algos.get(algo).REGIME == "games"
    form = "architecture" if plays else "rank"
    lives = 6 if search in ("rota", "in turns") else 4
    block = {name: value for name, value in {**ROWS, "lr": 1e-2, "lr_policy": 1e-2}.items() if name in able}
    ranges = {
        "lr": {"min": 1e-3, "max": 1e-1},
        "beta": {"min": 0.01, "max": 64.0},
        "temperature": {"min": 0.5, "max": 2.0},
    }
    params = LanguageParams.model_validate({
        "seed": seed,
        "language": GPT if plays else {
            "tiny": TINY, "task": "reverse", "kwargs": DIGITS, "rank": 3, "max_prompt": 4, "max_completion": 4,
        },
        "fetch": {"generate": {"rows": 40}},
        "search": SEARCHES[search],
        "population": {"size": 8 if search == "mf_pbt" else 4},
        "train": {"algo": algo, "max_steps": lives, "evo_steps": 2, "eval_episodes": 4, "confirm_episodes": 4},
        "evolution": {
            "tournament": {"size": 2, "window": 1},
            "mutation": {"probabilities": {"none": 0.0, form: 1.0, "rl_hp": 1.0}, "before_training": True},
        },
        "runtime": {"cohorts": "exact", "device": "cpu"},
        "algos": {algo: {**block, "evolve": {name: ends for name, ends in ranges.items() if name in able}}},
    })  # fmt: skip
    spec = make_spec(params)
    rows = generate(task_of(spec.language), spec.language.task, seed, 40, form_of(spec.algo))
    if plays:
        return spec, games(rows, task_of(spec.language).encode(rows), spec.base, params.fetch, seed)
    return spec, tokenise(rows, form_of(spec.algo), spec.base, spec.language, params.fetch, seed)


def run_of(algo: str, members: int | list[Member] = 4, seed: int = 3, search: str = "tournament") -> Any:
    """A run at its beginning."""
    spec, corpus = problem(algo, seed, search)
    first = first_members(spec, members)[0] if isinstance(members, int) else members
    clock = Clock.of(spec, len(first))
    return Run(spec, regime_of(spec, clock, corpus), clock, first)


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(algo: str) -> None:
    states = []
    for seed in (3, 3, 4):
        run = run_of(algo, seed=seed)
        finish(run)
        states.append(run.state())
    assert run.reason == "max_steps"
    assert equal_states(states[0], states[1]) == []
    assert "members.0.policy" in equal_states(states[0], states[2])


@pytest.mark.thorough
def test_a_member_trains_alike_by_itself_and_among_others(algo: str) -> None:
    """To the bit, beside members of its own form and of others."""
    crowd = run_of(algo)
    forms = [member.arch.signature for member in crowd.members]
    assert 1 < len(set(forms)) < len(forms)
    advance(crowd, 2)
    for slot in (0, 3):
        alone = run_of(algo, [replace(first_members(crowd.spec, 4)[0][slot], slot=0)])
        advance(alone, 2)
        assert same(alone.members[0], crowd.members[slot]), slot
    assert min(float(member.tensors["updates"]) for member in crowd.members) > 0


def test_a_member_that_is_no_number_leaves_the_others_bit_identical(algo: str) -> None:
    clean, ill = run_of(algo), run_of(algo)
    for run in (clean, ill):
        advance(run, 1)
    cohort, row = of_slot(ill.cohorts, 2)
    cohort.state.policy.values[row, 0] = math.nan
    for run in (clean, ill):
        advance(run, 1)
    after = {member.slot: member for member in ill.members}
    for slot in (0, 1, 3):
        assert after[slot].healthy
        assert same(after[slot], clean.members[slot]), slot
    close_generation(ill)
    record = ill.lineage[-1].to_json()
    assert record["members"][2]["fitness"] is None
    assert all(record["members"][slot]["fitness"] is not None for slot in (0, 1, 3))
    assert all(member.healthy for member in ill.members), "a child of a healthy one took its place"


@pytest.mark.parametrize("ticks", [1, 2])
@pytest.mark.thorough
def test_a_run_goes_on_from_a_checkpoint_to_the_same_end(algo: str, ticks: int) -> None:
    """From the middle of a generation, and from its end."""
    whole, stopped, again = run_of(algo), run_of(algo), run_of(algo)
    finish(whole)
    advance(stopped, ticks)
    assert again.restore(*stopped.state()) == 0
    finish(again)
    assert equal_states(whole.state(), again.state()) == []


def test_a_member_that_waited_has_the_bits_of_one_that_never_did(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rota.offer(monkeypatch)
    waiting = run_of(algo, 3, search="in turns")
    check(waiting, run_of(algo, 3, search="rota"))
    told = {(row[0] - 1, row[1]) for row in waiting.regime.measures.rows()}
    assert told == {(generation, slot) for generation, slots in enumerate(TURNS) for slot in slots}


@pytest.mark.thorough
@pytest.mark.parametrize("search", ["in turns", "halving", "growth", "random", "mf_pbt"])
def test_a_search_that_was_killed_goes_on_to_the_same_end(
    search: str, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rota.offer(monkeypatch)
    members = {"in turns": 3, "mf_pbt": 8}.get(search, 4)
    straight, parts = (run_of(algo, members, search=search) for _ in range(2))
    finish(straight)
    points = 0
    while not parts.reason:
        go_on(parts)
        points += 1
        if points % 3 == 0:
            tensors, meta = parts.state()
            parts = run_of(algo, members, search=search)
            parts.restore({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(meta)))
    assert equal_states(straight.state(), parts.state()) == []


def test_what_learns_is_what_wrote(algo: str) -> None:
    """In the first update after writing no log-probability is off by more than 1e-5."""
    run = run_of(algo)
    advance(run, 2)
    rows = [dict(zip(run.regime.measures.names, row[2:], strict=True)) for row in run.regime.measures.rows()]
    assert len(rows) == 4
    if run.spec.algo.REGIME == "dialogue":
        assert all(0 <= row["drift"] <= 1e-5 for row in rows)
        assert all(row["failed"] == 0 and 1 <= row["length"] <= 4 and row["entropy"] > 0 for row in rows)
    else:
        assert all(math.isfinite(row["loss"]) for row in rows)


@pytest.mark.parametrize("search", ["tournament", pytest.param("in turns", marks=pytest.mark.thorough)])
def test_what_members_did_in_shards_is_told_by_generation_and_slot(
    search: str, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in one process, to the bit; where a value head learns, whose sums have other last bits for other numbers of
    members, but for those."""
    rota.offer(monkeypatch)
    spec, corpus = problem(algo, search=search)
    first, slots = first_members(spec, 3)[0], [range(2), range(2, 3)]

    def make(about: Any) -> Any:
        clock = Clock.of(spec, len(about["slots"]))
        return spec, regime_of(spec, clock, corpus), clock

    clock, whole = Clock.of(spec, 3), run_of(algo, 3, search=search)
    begin = [{"slots": list(own)} for own in slots]
    apart = Run(spec, Shards(spec, clock, slots, begin, InProcess(make)), clock, first)  # type: ignore[arg-type]
    for run in (whole, apart):
        finish(run)
    rows = [list(run.regime.measures.rows()) for run in (whole, apart)]
    order = TURNS if search == "in turns" else [range(3)] * 2
    assert {(row[0], row[1]) for row in rows[0]} == {(i, slot) for i, slots in enumerate(order, 1) for slot in slots}
    assert len({tuple(map(str, row[2:])) for row in rows[0]}) > 1
    if algo == "ppo_language":
        for one, other in zip(*rows, strict=True):
            assert [x for x in one if isinstance(x, str)] == [x for x in other if isinstance(x, str)]
            numbers = ([x for x in row if not isinstance(x, str)] for row in (one, other))
            assert next(numbers) == pytest.approx(next(numbers), rel=1e-4, abs=1e-6)
    else:
        assert rows[1] == rows[0]
    for run in (whole, apart):
        run.close()
