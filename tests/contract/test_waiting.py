"""Members that wait while others live: what they are afterwards, to the bit, is what they would have been without."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import populations
import rota
from evopipe import rng
from evopipe.native import build
from evopipe.run.outs import write_results
from evopipe.searchers.history import origins
from evopipe.storage.files import read_json
from populations import equal_states, finish, go_on
from rota import TURNS, check

ALWAYS = {"probabilities": {"none": 0.0, "architecture": 0.0, "parameters": 0.0, "activation": 0.0, "rl_hp": 1.0}}


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    rota.offer(monkeypatch)


def problem(algo: str, order: Sequence[Sequence[int]] = (), births: Sequence[Sequence[int]] = (), **more: Any) -> Any:
    """A problem whose generations end within episodes; members differ in form, batch and learning rate."""
    train = {"evo_steps": 100, "max_steps": 300, **more.pop("train", {})}
    search = {"strategy": "rota", "rota": {"order": tuple(map(tuple, order)), "births": tuple(map(tuple, births))}}
    return populations.problem(algo=algo, mutation=populations.UNLIKE, train=train, search=search, **more)


@pytest.mark.parametrize("algo", populations.cases(quick=("dqn",), teams=True))
def test_a_member_that_waited_has_the_bits_of_one_that_never_did(algo: str, run: Callable[..., Any]) -> None:
    waiting = run(problem(algo, TURNS), 3)
    check(waiting, run(problem(algo), 3))
    lived = sum(map(len, TURNS))
    assert waiting.clock.env_steps == lived * 100, "environments of those who wait take no step"


@pytest.mark.parametrize(("slot", "of", "anew"), [(0, 1, True), (1, 0, False)])
def test_a_child_draws_anew_where_it_is_younger_than_who_was_there(
    slot: int, of: int, anew: bool, run: Callable[..., Any]
) -> None:
    """The draws of a step would come again: a child of one generation in the place of a member of two gets a key."""
    quick = {"learning_delay": 10**6, "eval_steps": 5}
    loop = run(problem("dqn", ((0, 1), (0,), (0, 1)), births=[(2, slot, of)], train=quick), 2)
    keys = [member.key for member in loop.members]
    while loop.clock.generation < 2:
        go_on(loop)
    fresh = int(rng.member_keys(loop.spec.seed, [2])[0])
    assert [member.key for member in loop.members] == [fresh if anew and s == slot else keys[s] for s in (0, 1)]
    assert loop.ages == [25 * (1 if anew else 2)] * 2
    assert loop.trials == 2 + anew


@pytest.mark.thorough
def test_how_far_a_run_is_and_how_long_members_lived_is_told_by_the_steps_of_those_who_lived(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """Of a child, those of its line; of one that is there no more, those that it had."""
    quick = {"learning_delay": 10**6, "eval_steps": 5}
    waiting = run(problem("dqn", TURNS, births=[(4, 1, 2), (4, 0, -1)], train=quick), 3)
    always = run(problem("dqn", train={**quick, "max_steps": 200}), 3)
    shares, places = [], []
    while not waiting.reason:
        before = waiting.clock.generation
        go_on(waiting)
        if waiting.clock.generation > before:
            shares.append(waiting.share)
            places.append(waiting.place)
    lived = [100 * sum(map(len, TURNS[: n + 1])) for n in range(len(TURNS))]
    assert shares == [pytest.approx(each / 900) for each in lived]
    assert places == [f"step {each} of the population" for each in lived]
    ages = [row[1] for row in waiting.curve]
    assert ages[0] == 100
    assert waiting.lived == {"shortest_life": 100, "longest_life": 300}
    assert waiting.champion is not None
    write_results(waiting, waiting.champion, {"policy": {}}, tmp_path)
    summary = read_json(tmp_path / "reports/train.json")
    steps, scores = summary["steps"], [member.fitness for member in waiting.lineage[-1].members]
    assert [summary["best_fitness"], summary["mean_fitness"]] == pytest.approx([max(scores), sum(scores) / 2])
    evaluated = waiting.clock.eval_steps
    assert steps == {
        "shortest_life": 100, "longest_life": 300, "training": lived[-1], "evaluation": evaluated,
        "all": lived[-1] + evaluated,
    }  # fmt: skip
    while not always.clock.generation_over:
        always.advance()
    assert (always.place, always.share, always.lived) == ("step 100 of each member", 0.5, {"each_member": 100})
    finish(always)
    assert (always.share, always.lived) == (1.0, {"each_member": 200})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algo", "more"),
    [
        pytest.param("dqn", {"train": {"replay": {"sharing": "own", "n_step": 3, "prioritised": True}}}, id="n-step"),
        pytest.param("dqn", {"train": {"normalise": {"observations": True}}}, id="normalised"),
        pytest.param("ppo", {"train": {"normalise": {"observations": True, "rewards": True}}}, id="rewards"),
        pytest.param(
            "ppo", {"config": {"max_seq_len": 8, "network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}}},
            id="recurrent",
        ),
        pytest.param("maddpg", {"train": {"replay": {"sharing": "own", "n_step": 2}}}, id="team-n-step"),
    ],
)  # fmt: skip
def test_so_does_one_of_other_settings(algo: str, more: dict[str, Any], run: Callable[..., Any]) -> None:
    check(run(problem(algo, TURNS, **more), 3), run(problem(algo, **more), 3))


@pytest.mark.parametrize(
    "algo", ["dqn", pytest.param("ppo", marks=pytest.mark.thorough), pytest.param("td3", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("backend", ["torch", "c"])
@pytest.mark.thorough
def test_so_does_one_in_tensors(backend: str, algo: str, run: Callable[..., Any]) -> None:
    waiting, always = problem(algo, TURNS), problem(algo)
    for p in (waiting, always):
        object.__setattr__(p, "env", p.env.model_copy(update={"backend": backend}))
    check(run(waiting, 3), run(always, 3))


@pytest.mark.thorough
@pytest.mark.parametrize(("algo", "steps"), [("dqn", 1), ("dqn", 3), ("ppo", 1), ("maddpg", 1), ("maddpg", 2)])
@pytest.mark.parametrize("ticks", [9, 33, 58, 101])
def test_a_run_in_turns_that_was_killed_goes_on_to_the_same_bits(
    algo: str, steps: int, ticks: int, run: Callable[..., Any]
) -> None:
    p = problem(algo, TURNS, train={"replay": {"sharing": "own", "n_step": steps}} if steps > 1 else {})
    straight, killed = run(p, 3), run(p, 3)
    populations.advance(killed, ticks)
    tensors, meta = killed.state()
    resumed = run(p, 3)
    assert resumed.restore({n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))) == 0
    finish(straight)
    finish(resumed)
    assert equal_states(straight.state(), resumed.state()) == []


@pytest.mark.thorough
def test_what_a_recurrent_member_remembers_waits_through_a_kill(run: Callable[..., Any]) -> None:
    config = {"max_seq_len": 8, "network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}}
    p = problem("ppo", TURNS, config=config)
    straight, killed = run(p, 3), run(p, 3)
    populations.advance(killed, 60)  # the first waits, in the middle of an episode
    resumed = run(p, 3)
    assert resumed.restore(*killed.state()) == 0
    assert list(resumed.regime._put_by) == [0]
    finish(straight)
    finish(resumed)
    assert equal_states(straight.state(), resumed.state()) == []


def test_a_child_that_waits_after_its_birth_is_told_with_its_mutation_when_it_has_lived(
    run: Callable[..., Any],
) -> None:
    p = problem("dqn", ((0, 1), (0,), (0, 1), (0, 1)), ((1, 1, 0),))
    object.__setattr__(p, "mutation", populations.problem(mutation=ALWAYS).mutation)
    loop, told = run(p, 2), []
    while not loop.reason:
        births, over = loop.births, loop.clock.generation
        go_on(loop)
        if loop.clock.generation > over:
            told.append([births[slot].kind for slot in sorted(m.slot for m in loop.lineage[-1].members)])
    assert told == [["none", "none"], ["none"], ["none", "rl_hp"], ["none", "none"]]
    found = {(record.generation, slot): of for record, each in origins(loop.lineage) for slot, of in each.items()}
    assert (found[3, 1].parent, found[3, 1].mutation.kind, found[3, 1].why) == ((1, 0), "rl_hp", "as was said")
    assert found[3, 0].parent == (2, 0)


@pytest.mark.thorough
def test_a_child_is_told_with_its_mutation_once_though_others_live_after_it(run: Callable[..., Any]) -> None:
    """Members of unlike ages live one after another: whoever lived before the last ones has lived too."""
    p = problem("dqn", ((0, 1), (0,), (0, 1), (0, 1)), ((2, 0, 0),))
    object.__setattr__(p, "mutation", populations.problem(mutation=ALWAYS).mutation)
    loop, told = run(p, 2), []
    while not loop.reason:
        births, over = loop.births, loop.clock.generation
        go_on(loop)
        if loop.clock.generation > over:
            told.append([births[slot].kind for slot in sorted(m.slot for m in loop.lineage[-1].members)])
    assert told == [["none", "none"], ["none"], ["rl_hp", "none"], ["none", "none"]]


def test_a_child_that_is_younger_than_who_was_in_its_slot_draws_by_a_key_of_its_own(run: Callable[..., Any]) -> None:
    """Else draws of its next ticks would be those that the one before had; who is as old or older keeps the slot's."""
    p = problem("dqn", ((0, 1, 2), (0, 2), (0, 1, 2)), ((2, 0, 1), (2, 1, 0), (2, 2, 0)))
    loop = run(p, 3)
    before = [member.key for member in loop.members]
    while loop.clock.generation < 2:
        go_on(loop)
    after = [member.key for member in loop.members]
    assert loop.ages == [25, 50, 50]
    assert after[1:] == before[1:]
    assert after[0] not in before


@pytest.mark.parametrize("born", [False, True])
def test_who_is_born_into_a_slot_that_waits_remembers_nothing_of_it(born: bool, run: Callable[..., Any]) -> None:
    """Whose member waits remembers what it did."""
    config = {"max_seq_len": 8, "network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}}
    p = problem("ppo", ((0,), (1,), (0, 1)), ((2, 0, 1),) if born else (), config=config)
    loop = run(p, 2)
    while loop.clock.generation < 2:
        go_on(loop)
    while 0 not in loop.living:
        loop.turn()
    (memory,) = (each.memory[each.cohort.slots.index(0)] for each in loop.regime.playing if 0 in each.cohort.slots)
    assert bool(memory.any()) != born


@pytest.mark.parametrize("backend", ["sync", "torch", "c"])
def test_who_is_born_to_an_empty_memory_learns_a_tick_later_and_nobody_waits(
    backend: str, run: Callable[..., Any]
) -> None:
    """Of 25 ticks with two updates each: the first one has nothing to learn from."""
    if backend == "c":
        build.use(build.load())
    p = problem("dqn", ((0,), (0,), (0, 1)), ((2, 1, 0),))
    object.__setattr__(p, "env", p.env.model_copy(update={"backend": backend}))
    loop = run(p, 2)
    while loop.clock.generation < 2:
        go_on(loop)
    before = [int(member.tensors["adam.steps"]) for member in loop.members]
    finish(loop)
    after = [int(member.tensors["adam.steps"]) for member in loop.members]
    assert [end - begin for begin, end in zip(before, after, strict=True)] == [50, 48]
