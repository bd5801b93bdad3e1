"""What members in shards promise: the same bits as in one process, whatever dies on the way."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import rota
from evopipe import layout, rng
from evopipe.core.member import Member
from evopipe.data.transitions import Transitions, write_transitions
from evopipe.errors import EnvironmentFailed, ParamsError, ResourceError
from evopipe.native import build
from evopipe.params.load import parse_params
from evopipe.problems import problem_of
from evopipe.problems.env import begin, regime_of
from evopipe.regimes.measures import Measures
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.regime import Setup
from evopipe.run.run import Run
from evopipe.run.session import Home, Session
from evopipe.run.session import begin as session_begin
from evopipe.run.spec import EnvSpec, first_members
from evopipe.run.world import TensorWorld
from evopipe.scale.changes import changes, fold
from evopipe.scale.divide import divided, in_shards, make
from evopipe.scale.shard import pack, state_of, unpack
from evopipe.scale.shards import InProcess, Lost, Shards, slow_shards
from evopipe.schema.shards import ShardsConfig
from evopipe.schema.write import dump_yaml
from evopipe.track.tracking import Tracked
from populations import UNLIKE, advance, close_generation, finish, go_on, plant_weight, problem, started
from tiny import TRAINED, call, digests, params

MEMBERS = 4
CASES = {
    "dqn": {},
    "rainbow": {"train": {"replay": {"capacity": 2000, "sharing": "own", "n_step": 3, "prioritised": True}}},
    "rainbow:pairs": {"train": {"replay": {"capacity": 2000, "sharing": 2, "n_step": 3, "prioritised": True}}},
    "ppo": {"train": {"normalise": {"observations": True, "rewards": True}}},
    "maddpg": {},
    "dqn:race": {"train": {"evaluation": "race", "eval_episodes": 16}},
}


class Deadly(InProcess):
    """An engine whose shards die where a test says so, before they do what they are told or after."""

    def __init__(self, make: Any, deaths: Sequence[int], after: bool = False) -> None:
        super().__init__(make)
        self.heard_so_far, self.deaths, self.after = 0, set(deaths), after

    def receive(self, shard: int, seconds: float, stopped: Callable[[], bool]) -> bytes | None:
        self.heard_so_far += 1
        dies = self.heard_so_far in self.deaths
        answer = None if dies and not self.after else super().receive(shard, seconds, stopped)
        if dies:
            self._shards[shard].close()
            raise Lost("it was killed")
        return answer


def sharded(
    p: EnvSpec, each: int, engine: Any = InProcess, members: int = MEMBERS, first: Sequence[Member] = (), **more: Any
) -> Run[EnvSpec]:
    """A run with its first population, in shards of so many members, the last one of what is left."""
    first = first or first_members(p, members)[0]
    slots = [range(start, min(start + each, members)) for start in range(0, members, each)]

    def make(about: Mapping[str, Any]) -> tuple[EnvSpec, Any, Clock]:
        clock = Clock.of(p, len(about["keys"]))
        return p, regime_of(Setup(p, clock, np.array(about["keys"]))), clock

    clock = Clock.of(p, members)
    begin = [{"keys": [first[slot].key for slot in own]} for own in slots]
    return Run(p, Shards(p, clock, slots, begin, engine(make, **more)), clock, first)


def outcome(run: Run[Any]) -> tuple[dict[str, bytes], list[Any]]:
    """All that a run leaves behind."""
    assert run.champion is not None
    everyone = [*run.members, run.champion.member]
    tensors = {f"{i}.{n}": t.numpy().tobytes() for i, m in enumerate(everyone) for n, t in m.tensors.items()}
    told = [record.to_json() for record in run.lineage]
    signals = repr((run.signal_names, run.signals))
    return tensors, [told, run.curve, [repr(x) for x in run.losses], vars(run.clock), run.champion.score, signals]


def states(run: Run[Any]) -> list[dict[str, bytes]]:
    """What each shard's regime is, as a run keeps it."""
    found = [state_of(x.numpy().tobytes()) for name, x in sorted(run.state()[0].items()) if "shard" in name]
    return [{name: x.numpy().tobytes() for name, x in each.items()} for each in found]


@pytest.mark.parametrize("case", ["dqn", *(pytest.param(n, marks=pytest.mark.thorough) for n in CASES if n != "dqn")])
def test_no_bit_depends_on_the_number_of_shards(case: str) -> None:
    p = problem(algo=case.partition(":")[0], **CASES[case])
    members, each = (6, 4) if "pairs" in case else (4, 3)
    runs = [started(p, members), sharded(p, each, members=members)]
    played = []
    for run in runs:
        finish(run)
        played.append(run.regime.evaluate(run.cohorts, p.seeds(Purpose.HELD_OUT, 2), lambda: False))
        run.close()
    assert outcome(runs[1]) == outcome(runs[0])
    for name in ("returns", "lengths", "steps"):
        np.testing.assert_array_equal(*(getattr(each, name) for each in played))
    assert [[*each.more] for each in played] == [["agents"] if case == "maddpg" else []] * 2
    for name in played[0].more:  # of a team, each agent's own
        np.testing.assert_array_equal(*(each.more[name] for each in played))


TURNS = ((0,), (0, 2), (1, 2), (3,), (0, 1, 3))
"""Who of four lives in which generation: in the first shard alone, in both, in the second alone."""
BIRTHS = ((1, 1, 0), (2, 0, 0), (3, 3, 2), (3, 0, 3))
"""Children beside their parents, of who waits and of who does not; and of a parent in the other shard."""
RANGES = {"lr": {"min": 1e-4, "max": 1e-2}, "batch_size": {"min": 16, "max": 32}}
LSTM = {"max_seq_len": 8, "network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}}
IN_TURNS = {"strategy": "rota", "rota": {"order": TURNS, "births": BIRTHS}}
CONFIRMED = {"target": 10.0, "target_sigmas": 100.0}  # in each generation, and never reached
LEDGER = {"capacity": 2000, "sharing": 2, "evaluation": True}
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "in turns": (
        "dqn",
        {"search": IN_TURNS, "train": {"replay": {"sharing": "own", "n_step": 3, "prioritised": True}}},
    ),
    "recurrent": ("ppo", {"search": IN_TURNS, "config": LSTM, "train": {"normalise": {"rewards": True}}}),
    "tensors": ("dqn", {"search": IN_TURNS}),
    "in C": ("dqn", {"search": IN_TURNS}),
    "team": ("maddpg", {"search": IN_TURNS}),
    "evaluation": ("dqn", {"train": {"replay": LEDGER, "eval_episodes": 24, **CONFIRMED}}),
    "several steps": ("dqn", {"search": IN_TURNS, "train": {"replay": {**LEDGER, "n_step": 2}, "eval_episodes": 24}}),
    "training": ("dqn", {"search": {"fitness": "training"}}),
    "training in turns": ("ppo", {"search": {"fitness": "training", **IN_TURNS}}),
    "random": ("dqn", {"search": {"strategy": "random", "budget": 3000}, "train": {"max_steps": 200}}),
    "halving": ("ppo", {"search": {"strategy": "halving", "budget": 2500, "halving": {"width": 2}}}),
    "growth": ("dqn", {"search": {"strategy": "growth", "budget": 2500, "fitness": "training"}}),
    "schedule": (
        "ppo",
        {"search": {"strategy": "schedule", "schedule": {"changes": ({"steps": 60, "values": {"lr": 1e-3}},)}}},
    ),
}


def searched(name: str) -> EnvSpec:
    """A problem whose members wait, begin anew, or are scored by what they did in training."""
    if name == "in C":
        build.use(build.load())
    algo, more = SEARCHES[name]
    train = {"evo_steps": 100, "max_steps": 300, **more.get("train", {})}
    config = {"evolve": RANGES if algo != "maddpg" else {}, **more.get("config", {})}
    mutation = {"probabilities": {"none": 0.0, "rl_hp": 1.0, "architecture": 0.0, "parameters": 0.0, "activation": 0.0}}
    p = problem(algo=algo, **{**more, "train": train, "config": config, "mutation": mutation})
    if name in ("tensors", "in C"):
        object.__setattr__(p, "env", p.env.model_copy(update={"backend": "torch" if name == "tensors" else "c"}))
    return p


def remembered(run: Run[Any]) -> list[bytes]:
    """Every memory of a run, whole or in shards; empty if there is none."""
    run.state()  # what was seen last is put there first
    kept: Any = run.regime
    parts = [each.regime for each in kept.engine._shards.values()] if isinstance(kept, Shards) else [kept]
    held = [part.replay for part in parts if hasattr(part, "replay")]
    return [each.rows[m, : each.size[m]].numpy().tobytes() for each in held for m in range(each.memories)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", SEARCHES)
def test_nor_does_one_of_a_search_in_which_members_wait_or_begin_anew(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rota.offer(monkeypatch)
    p = searched(name)
    runs = [started(p, 4), *(sharded(p, each) for each in ((2,) if p.train.replay.sharing == 2 else (1, 3)))]
    for run in runs:
        finish(run)
        assert remembered(run) == remembered(runs[0])
        assert outcome(run) == outcome(runs[0])
    if name in ("in turns", "halving", "growth"):
        assert min(len(record.members) for record in runs[0].lineage[1:]) < 4
    for run in runs:
        run.close()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SEARCHES)
def test_such_a_search_in_shards_goes_on_to_the_same_bits_whatever_is_killed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run, at every boundary of its generations and within them; then shards, before they do what they are told and
    after."""
    rota.offer(monkeypatch)
    p = searched(name)
    straight, parts = sharded(p, 2, Deadly, deaths=[]), sharded(p, 2)
    finish(straight)
    while not parts.reason:
        generation, living = parts.clock.generation, parts.living
        parts.regime._ticks = 9  # type: ignore[attr-defined]
        go_on(parts)
        tensors, meta = copy.deepcopy(parts.state())
        if (generation, living) != (parts.clock.generation, parts.living) or parts.clock.ticks % 3 == 0:
            parts.close()
            parts = sharded(p, 2)
            assert parts.restore(tensors, json.loads(json.dumps(meta))) == 0
    assert outcome(parts) == outcome(straight)
    draws = np.random.default_rng(7)
    for after in (False, True):
        messages = np.arange(3, straight.regime.engine.heard_so_far)  # type: ignore[attr-defined]
        deaths = sorted(draws.choice(messages, 3, replace=False).tolist())
        run = sharded(p, 2, Deadly, deaths=deaths, after=after)
        finish(run)
        assert len(run.regime.said) == 3  # type: ignore[attr-defined]
        assert remembered(run) == remembered(straight), deaths
        assert outcome(run) == outcome(straight), deaths


def drawn_search(seed: int) -> tuple[EnvSpec, int]:
    """A problem in C and its number of members, with a drawn life: who lives when, who has children and where trials
    begin."""
    draws = np.random.default_rng(seed)
    members, generations = int(draws.integers(3, 6)), 5
    order = tuple(
        tuple(sorted(draws.choice(members, draws.integers(1, members + 1), replace=False).tolist()))
        for _ in range(generations)
    )
    births = [
        (generation, *draws.choice(members, 2, replace=False).tolist())
        for generation in range(1, generations)
        for _ in range(2)
    ]
    births += [(int(draws.integers(1, generations)), int(draws.integers(members)), -1) for _ in range(2)]
    build.use(build.load())
    replay = {"capacity": 60, "sharing": "own", "n_step": 1 + seed % 2, "prioritised": seed % 3 > 0}
    evaluation = {"evaluation": True} if seed % 4 == 1 else {}
    p = problem(
        num_envs=3, config={"evolve": RANGES, "batch_size": 16},
        search={"strategy": "rota", "rota": {"order": order, "births": tuple(births)},
                "fitness": "training" if seed % 4 == 2 else "evaluation"},
        # Who lives more generations than such steps has some without a tick.
        train={"evo_steps": 30, "max_steps": 60 if seed % 2 else 150, "learning_delay": 12,
               "replay": {**replay, **evaluation}, "eval_episodes": 3, "eval_steps": 20},
    )  # fmt: skip
    return replace(p, env=p.env.model_copy(update={"backend": "c"})), members


@pytest.mark.parametrize("fitness", ["evaluation", "training"])
@pytest.mark.thorough
def test_a_short_search_in_shards_is_that_of_one_process_and_goes_on_so_after_deaths_and_restores(
    fitness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three, who take turns, in shards of two and one, who step some ticks at a time: children of who is beside them
    and of who is elsewhere, a trial in either shard, and ages that make two of one shard live one after the other: the
    first of them, who has lived long enough, for no tick."""
    rota.offer(monkeypatch)
    monkeypatch.setattr("evopipe.scale.shards._FOLDS", 2)
    monkeypatch.setattr("evopipe.scale.changes._LARGE", 1)
    build.use(build.load())
    order = ((0,), (0, 1, 2), (2,), (0, 1), (1, 2))
    births = ((1, 2, 0), (3, 2, -1), (4, 1, 0), (4, 0, -1))
    steps = 8 if fitness == "evaluation" else 30
    replay = {"capacity": 40, "sharing": "own", "n_step": 2, "evaluation": fitness == "evaluation"}
    p = problem(
        num_envs=2, search={"strategy": "rota", "rota": {"order": order, "births": births}, "fitness": fitness},
        train={"evo_steps": steps, "max_steps": 2 * steps, "learning_delay": 10**6, "replay": replay,
               "eval_episodes": 3, "eval_steps": 6},
    )  # fmt: skip
    p = replace(p, env=p.env.model_copy(update={"backend": "c"}))
    whole = started(p, 3)
    finish(whole)
    assert [len(record.members) for record in whole.lineage[1:]] == [1, 3, 1, 2, 2]
    ways = [(False, ()), (False, (9, 14, 23, 30, 31)), (True, ())] if fitness == "evaluation" else [(False, ())]
    for restored, deaths in ways:
        run = sharded(p, 2, Deadly, members=3, deaths=deaths)
        while not run.reason:
            run.regime._ticks = 2  # type: ignore[attr-defined]
            go_on(run)
            if restored and run.clock.ticks % 4 == 2:
                tensors, meta = copy.deepcopy(run.state())
                run = sharded(p, 2, Deadly, members=3, deaths=())
                assert run.restore(tensors, json.loads(json.dumps(meta))) == 0
        assert len(run.regime.said) == len(deaths)  # type: ignore[attr-defined]
        assert outcome(run) == outcome(whole)
        assert remembered(run) == remembered(whole)


# Of the seventh a member's turn has no tick, and it is restored after that.
QUICK = {2, 7}


@pytest.mark.parametrize("seed", [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in range(24)])
@pytest.mark.thorough
def test_a_drawn_search_in_shards_is_that_of_one_process_whatever_is_killed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In shards of any size; and restored at any tick, while shards die before they do what they are told or after."""
    rota.offer(monkeypatch)
    monkeypatch.setattr("evopipe.scale.changes._LARGE", 1 + 63 * (seed % 2))
    (p, members), draws = drawn_search(seed), np.random.default_rng(seed)
    whole, apart = started(p, members), sharded(p, 1 + seed % members, Deadly, members=members, deaths=[])
    for run in (whole, apart):
        finish(run)
    assert remembered(apart) == remembered(whole)
    assert outcome(apart) == outcome(whole)
    heard = apart.regime.engine.heard_so_far  # type: ignore[attr-defined]

    def again(deaths: Sequence[int]) -> Run[EnvSpec]:
        each, after = int(draws.integers(1, members)), bool(draws.integers(2))
        return sharded(p, each, Deadly, members=members, deaths=deaths, after=after)

    killed = again(draws.choice(np.arange(members + 3, 2 * heard), 4, replace=False).tolist())
    while not killed.reason:  # in short laps, of which several are to be repeated
        killed.regime._ticks = int(draws.integers(1, 5))  # type: ignore[attr-defined]
        go_on(killed)
    engine = killed.regime.engine  # type: ignore[attr-defined]
    assert len(killed.regime.said) == sum(death <= engine.heard_so_far for death in engine.deaths)  # type: ignore[attr-defined]
    restored = again([])
    while not restored.reason:
        restored.regime._ticks = int(draws.integers(1, 12))  # type: ignore[attr-defined]
        go_on(restored)
        if draws.random() < 0.2:
            tensors, meta = copy.deepcopy(restored.state())
            restored.close()
            restored = sharded(
                p, restored.regime.slots[0].stop, Deadly, members=members,  # type: ignore[attr-defined]
                deaths=[int(draws.integers(2 * members + 3, 30))], after=bool(draws.integers(2)),
            )  # fmt: skip
            assert restored.restore(tensors, json.loads(json.dumps(meta))) == 0
    for run in (killed, restored):
        assert outcome(run) == outcome(whole)
        assert remembered(run) == remembered(whole)


@pytest.mark.thorough
def test_an_evaluation_in_shards_that_was_stopped_leaves_nothing_in_their_memories() -> None:
    """Though one shard had ended its part when the other stopped."""
    p = searched("evaluation")
    straight, stopped = sharded(p, 2), sharded(p, 2)
    for run in (straight, stopped):
        while not run.clock.generation_over:
            run.advance()
    asked = iter([False] * 40 + [True])
    with pytest.raises(Stopped):
        stopped.close_generation(lambda: next(asked))
    for run in (straight, stopped):
        finish(run)
    assert remembered(stopped) == remembered(straight)
    assert outcome(stopped) == outcome(straight)


class Overheard(InProcess):
    """An engine that keeps what it brings to the shards."""

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        self.sent: list[tuple[int, dict[str, Any]]] = []

    def send(self, shard: int, message: bytes) -> None:
        self.sent.append((shard, unpack(message)[0]))
        super().send(shard, message)


def test_every_shard_hears_once_of_an_evaluation_that_was_given_up_whenever_it_is_asked_next() -> None:
    run = sharded(problem(), 2, Overheard)
    seeds, engine = run.spec.seeds(Purpose.EVALUATE, 2), run.regime.engine  # type: ignore[attr-defined]
    forgot: list[int] = []
    for number, shard in engine._shards.items():
        shard.regime.evaluate.watch = SimpleNamespace(
            begin=bool, note=lambda *given: None, forget=lambda number=number: forgot.append(number)
        )

    def stop() -> bool:
        raise Stopped

    with pytest.raises(Stopped):
        run.regime.evaluate(run.cohorts, seeds, stop)
    engine.sent.clear()
    forgot.clear()
    for slots in ((0, 1), (2, 3), (0, 1, 2, 3)):
        run.regime.evaluate(run.spec.form([run.members[slot] for slot in slots]), seeds, lambda: False)
    assert [(shard, about["torn"]) for shard, about in engine.sent] == [(0, True), (1, True), (0, False), (1, False)]
    assert forgot == [0, 1], "what was noted of it"


@pytest.mark.parametrize("learns", [False, True], ids=["scored", "learned-from"])
def test_what_shards_play_is_put_together_by_slots_or_for_one_member_by_seeds(learns: bool) -> None:
    """Of shards of three, three and one: each member's own episodes, and steps and cut episodes of them all. What is
    learned from is played where its member's memory is."""
    replay = {"capacity": 100, "sharing": "own", "evaluation": learns}
    run, asked = sharded(problem(train={"replay": replay}), 3, members=7), []
    keys = [member.key for member in run.members]
    assert len({*keys}) == 7
    run.advance()
    for number, shard in run.regime.engine._shards.items():  # type: ignore[attr-defined]

        def play(cohorts: Any, seeds: np.ndarray, stopped: object, number: int = number) -> Episodes:
            members = sorted((m for cohort in cohorts for m in cohort.members), key=lambda member: member.slot)
            found = np.array([[100.0 * keys.index(member.key) + seed for seed in seeds] for member in members])
            asked.append((number, len(seeds)))
            more = {"agents": np.stack((found, -found), axis=2)}
            return Episodes(found, found.astype(np.int64) + 1, 10**number, more, cut=2 * 10**number)

        shard.regime.evaluate = play
    seeds, places = np.array([3, 1, 7, 20, 9]), ((0, 1, 2), (3, 4, 5), (6,))
    for slots in ((0, 1, 2, 3, 4, 5, 6), (1, 3, 5), (0, 2), (5,), (6,)):
        asked.clear()
        played = run.regime.evaluate(run.spec.form([run.members[slot] for slot in slots]), seeds, lambda: False)
        wanted = 100.0 * np.array(slots)[:, None] + seeds
        np.testing.assert_array_equal(played.returns, wanted)
        np.testing.assert_array_equal(played.lengths, wanted + 1)
        np.testing.assert_array_equal(played.more["agents"], np.stack((wanted, -wanted), axis=2))
        whole = [(number, 5) for number, held in enumerate(places) if {*held} & {*slots}]
        parts = [(0, 2), (1, 2), (2, 1)] if len(slots) == 1 and not learns else whole
        assert asked == parts
        assert played.steps == sum(10**number for number, _ in parts)
        assert played.cut == 2 * played.steps


def test_means_of_all_shards_members_come_together() -> None:
    """Of generations in which one of them trained nobody, too."""
    p, noted, names = problem(train={"learning_delay": 10**6}), Measures(3, ("loss", "kl")), ("loss", "kl")
    draws = np.random.default_rng(0)

    def make(about: Mapping[str, Any]) -> tuple[EnvSpec, Any, Clock]:
        clock = Clock.of(p, len(about["keys"]))
        regime: Any = regime_of(Setup(p, clock, np.array(about["keys"])))
        own, told, first = Measures(clock.members, names), regime.state, 3 - about["last"]
        for generation, slots in enumerate(about["notes"]):
            values = {name: torch.from_numpy(draws.normal(size=len(slots))) for name in names}
            own.note(generation, slots, values)
            noted.note(generation, [slot + first for slot in slots], values)
        regime.measures, regime.state = own, lambda: {**told(), **own.state()}
        return p, regime, clock

    first, clock = first_members(p, 3)[0], Clock.of(p, 3)
    begin = [
        {"keys": [member.key for member in first[:2]], "last": 3, "notes": [[0, 1], [1], [0]]},
        {"keys": [first[2].key], "last": 1, "notes": [[0]]},
    ]
    run = Run(p, Shards(p, clock, [range(2), range(2, 3)], begin, InProcess(make)), clock, first)
    run.advance()
    found = run.regime.measures  # type: ignore[attr-defined]
    assert found.names == names
    assert [*found.rows()] == [*noted.rows()]
    assert [row[:2] for row in found.rows()] == [[1, 0], [1, 1], [1, 2], [2, 1], [3, 0]]
    assert sharded(p, 2).regime.measures is None  # type: ignore[attr-defined]


def test_a_run_in_shards_is_whole_if_each_of_them_is() -> None:
    run = sharded(problem(), 2)
    run.advance()
    assert run.regime.whole
    run.regime.engine._shards[1].regime.whole = False  # type: ignore[attr-defined]
    run.state()
    assert not run.regime.whole


class Elsewhere:
    """An engine that has another one do its work."""

    def __init__(self, make: Any) -> None:
        within = InProcess(make)
        self.room, self.start, self.send, self.receive, self.close = (
            within.room, within.start, within.send, within.receive, within.close,
        )  # fmt: skip


@pytest.mark.parametrize("closed", [2, 1, 0])
@pytest.mark.thorough
def test_what_shards_exchange_is_told_by_generations_since_the_run_went_on(closed: int) -> None:
    """Of three, so many were closed before the run was saved and restored."""
    p = problem(train={"evo_steps": 20, "max_steps": 60})
    first, second = sharded(p, 2, Elsewhere), sharded(p, 2, Elsewhere)
    assert sharded(p, 2).regime.account is None  # type: ignore[attr-defined]
    for _ in range(closed):
        close(first)
    first.advance()
    before, regime = time.perf_counter(), cast(Any, second.regime)
    second.restore(*copy.deepcopy(first.state()))
    assert regime._bytes == regime._asking == regime._busy == regime._idle == 0.0, "or what was before would count"
    while not second.reason:
        close(second)
    seconds = time.perf_counter() - before
    assert regime._bytes > 1e4
    assert 0.0 < regime._busy < regime._asking < seconds
    assert 0.0 < regime._idle < regime._busy, "two shards: the other one takes some time as well"
    assert 0.0 < time.perf_counter() - regime._began < time.perf_counter() - before
    regime._bytes = 12_000_000 * (3 - closed)
    regime._began, regime._asking, regime._busy, regime._idle = time.perf_counter() - 1000.0, 400.0, 320.0, 200.0
    assert regime.account == (
        "2 shards: 12.0 MB to and fro a generation; exchange took 8.0% of the time, evolution and checkpoints 60.0%, "
        "and shards waited 20.0% of it for the slowest"
    )


def close(run: Run[Any]) -> None:
    """Advance a run to the end of a generation, and close it."""
    while not run.clock.generation_over:
        run.advance()
    close_generation(run)


def test_a_shard_is_late_by_one_generation_and_not_by_all_so_far() -> None:
    run = sharded(problem(train={"evo_steps": 20, "max_steps": 60}), 2)
    for _ in range(2):
        assert run.regime._took == [0.0, 0.0]  # type: ignore[attr-defined]
        while not run.clock.generation_over:
            run.advance()
        close_generation(run)


@pytest.mark.parametrize("count", [2, 3])
def test_a_problem_that_is_divided_is_the_same_run_and_scores_alike(count: int, tmp_path: Path) -> None:
    """Of parameters as a stage has them: each shard makes its own members' part anew. Their keys are drawn, not
    numbers of slots."""
    changes = {
        "env.backend": "c", "population.size": 5, "runtime.cohorts": "exact", "train.replay.sharing": "own",
        "runtime.env_workers": 0, "runtime.learners": 1, "train.warm_start": 0, "train.max_steps": 80,
        "train.evo_steps": 40, "train.eval_steps": 30, "train.learning_delay": 10, "evaluate.steps": 15,
    }  # fmt: skip
    data, found = params(changes), []
    alone = parse_params(data)
    data["runtime"]["shards"] = ShardsConfig(count=count).model_dump(mode="json")
    asked = parse_params(data)
    members, births = first_members(problem_of(asked, tmp_path).spec, 5)
    for each in (alone, asked):
        with divided(problem_of(each, tmp_path), each, 5, tmp_path) as made:
            run = session_begin(made, members, births)
            finish(run)
            found.append(outcome(run))
        with divided(problem_of(each, tmp_path), each, 5, tmp_path, learn=False) as made:
            scored = made.held_out(5, 4)
            scored.adopt(made.spec.form(run.members))
            played = scored.evaluate(made.spec.form(run.members), made.spec.seeds(Purpose.HELD_OUT, 7), lambda: False)
            found[-1][1].append((played.returns.tolist(), played.lengths.tolist(), played.steps))
            assert played.lengths.max() == 15
            assert made.parts == (count if each is asked else 0)
    assert found[1] == found[0]


def test_a_lap_is_about_as_long_as_was_said_and_has_a_tick_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ticks take longer than a lap, one by one; else twice as many as before, to the end of the generation."""
    p = problem(train={"evo_steps": 80, "max_steps": 80, "learning_delay": 10**6})
    for lap, ends in ((0.0, [*range(1, 21)]), (1e9, [1, 3, 7, 15, 20])):
        monkeypatch.setattr("evopipe.scale.shards._LAP", lap)
        run = sharded(p, 2, Overheard)
        finish(run)
        sent = run.regime.engine.sent  # type: ignore[attr-defined]
        for own in (0, 1):
            told = [about for shard, about in sent if shard == own and about["do"] == "go on"]
            assert [about["tick"] for about in told] == ends
            assert [about["after"] for about in told] == [None] * (len(ends) - 1) + [0], "its state at the end alone"
            assert ["members" in about for about in told] == [True] + [False] * (len(ends) - 1), "they go out once"
        run.close()


def test_a_shard_that_is_late_is_told_of_once_and_only_where_all_live(monkeypatch: pytest.MonkeyPatch) -> None:
    rota.offer(monkeypatch)
    search = {"strategy": "rota", "rota": {"order": ((0, 1, 2), (3,), (0, 1, 2, 3), (0, 1, 2, 3))}}
    run = sharded(problem(train={"evo_steps": 20, "max_steps": 80, "learning_delay": 10**6}, search=search), 1)
    said, regime = [], cast(Any, run.regime)
    for slow in (0, None, 1, 1):
        regime._ticks = 1
        run.advance()
        if slow is not None:
            regime._took[slow] += 100.0
        before = run.clock.generation
        while run.clock.generation == before:
            go_on(run)
        said.append([*regime.said])
        regime.said.clear()
    assert [len(each) for each in said] == [0, 0, 1, 0], "who waits makes shards unlike; and it is said once"
    assert said[2][0].startswith("shard 1 took 100 s for a generation, half of them at most 0 s, and all wait for it: ")


class Timed(InProcess):
    """An engine whose shards work 1, 2 and 6 seconds for whatever they are told."""

    def receive(self, shard: int, seconds: float, stopped: Callable[[], bool]) -> bytes | None:
        answer = super().receive(shard, seconds, stopped)
        assert answer is not None
        about, tensors = unpack(answer)
        return pack({**about, "seconds": (1.0, 2.0, 6.0)[shard]}, tensors, state_of(answer))


def test_shards_wait_for_the_slowest_as_long_as_they_work_less_than_it() -> None:
    """As a share of all of them, whenever they are asked together; where one is asked alone nobody waits."""
    run = sharded(problem(train={"evo_steps": 20, "max_steps": 20, "learning_delay": 10**6}), 1, Timed, members=3)
    regime = cast(Any, run.regime)
    run.advance()
    assert (regime._busy, regime._idle) == (6.0, 3.0)
    assert regime._took == [1.0, 2.0, 6.0]
    run.regime.evaluate(run.spec.form([run.members[1]]), run.spec.seeds(Purpose.CONFIRM, 2), lambda: False)
    assert (regime._busy, regime._idle) == (8.0, 3.5), "two seeds, of two shards"
    assert regime._took == [1.0, 2.0, 6.0], "of a generation's steps alone"
    regime.first(run.members[2])
    assert (regime._busy, regime._idle) == (14.0, 3.5)


def test_shards_end_with_their_run() -> None:
    run = sharded(problem(), 2)
    closed: list[int] = []
    for number, shard in run.regime.engine._shards.items():  # type: ignore[attr-defined]
        shard.regime.close = lambda number=number: closed.append(number)
    run.close()
    assert closed == [0, 1]


@pytest.mark.thorough
def test_deaths_of_a_shard_are_counted_by_generation() -> None:
    run = sharded(problem(train={"evo_steps": 20, "max_steps": 120}), 2, Deadly, deaths=())
    engine = run.regime.engine  # type: ignore[attr-defined]
    for generation in range(1, 6):
        engine.deaths = {engine.heard_so_far + 1}
        while not run.clock.generation_over:
            run.advance()
        close_generation(run)
        assert len(run.regime.said) == generation  # type: ignore[attr-defined]
        text = f"shard 0 is made anew from generation {generation - 1}: it was killed"
        assert run.regime.said[-1] == text  # type: ignore[attr-defined]


def test_shards_whose_environments_are_in_c_take_rollouts_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many ticks in a call as the shard was told, and no more."""
    build.use(build.load())
    p, many, took = problem("CartPole-v1", "ppo"), [], TensorWorld.took
    p = replace(p, env=p.env.model_copy(update={"backend": "c"}))
    monkeypatch.setattr(TensorWorld, "took", lambda world, n, broken: (many.append(n), took(world, n, broken)))
    together, apart = started(p, MEMBERS), sharded(p, 3)
    finish(together)
    assert not many, "by single ticks"
    finish(apart)
    assert max(many) > 4
    assert outcome(apart) == outcome(together)
    for run in (together, apart):
        run.close()


def wild(member: Member) -> Member:
    """A member that diverges when it first learns."""
    return replace(member, hyper={**member.hyper, "lr": 1e30})


@pytest.mark.thorough
def test_the_books_of_many_generations_are_those_of_one_process() -> None:
    """Of members that inherit priorities, in an environment that breaks steps; some diverge, in the first generation
    and in a later one, and they are replaced."""
    replay = {"capacity": 200, "sharing": 2, "n_step": 2, "prioritised": True}
    p = problem(
        "envs_for_tests:Lottery-v0", seed=4, num_envs=2, tournament={"window": 2},
        kwargs={"least": 0.1, "steps": 3, "bonus": 0.3},
        train={
            "learning_delay": 0, "evo_steps": 14, "max_steps": 14 * 5, "eval_steps": None, "replay": replay,
            "normalise": {"observations": True},
        },
        config={"batch_size": 8, "learn_step": 4},
    )  # fmt: skip
    first = first_members(p, 6)[0]
    first[3] = wild(first[3])
    runs = [begin(p, first), sharded(p, 4, members=6, first=first)]
    books: list[list[Any]] = [[], []]
    for run, kept in zip(runs, books, strict=True):
        while not run.reason:
            if run.clock.generation_over:
                close_generation(run)
                kept.append([vars(run.clock).copy(), [repr(x) for x in run.losses], copy.deepcopy(run.curve)])
                if run.clock.generation == 3:
                    run._form([wild(m) if m.slot in (1, 4) else m for m in run.members])
            else:
                run.advance()
    assert [[scored.slot for scored in record.members if not scored.healthy] for record in runs[0].lineage[1:5]] == [
        [3], [], [], [1, 4],
    ]  # fmt: skip
    came = [(child.slot, child.parent_slot) for record in runs[0].lineage[1:4] for child in record.children]
    assert {(4, 5), (5, 4)} & {*came}, "or else nobody in the second shard inherits from a neighbour"
    assert runs[0].clock.broken > 0
    assert books[1] == books[0]
    assert outcome(runs[1]) == outcome(runs[0])
    whole, apart = runs[0].regime.state(), states(runs[1])
    for name in ("replay.size", "episodes"):
        assert b"".join(each[name] for each in apart) == whole[name].numpy().tobytes()
    played = [run.regime.evaluate(run.cohorts, p.seeds(Purpose.HELD_OUT, 3), lambda: False) for run in runs]
    assert played[1].steps == played[0].steps
    for run in runs:
        run.close()


def test_what_a_shard_says_of_its_task_is_the_run_s() -> None:
    """The score at which it counts as solved; and how many environments did not come back to where they were."""
    for env in ("CartPole-v1", "envs_for_tests:Random-v0"):
        p = problem(env, train={"learning_delay": 10**6, "target": "auto"})
        runs = [started(p, 3), sharded(p, 2, members=3)]
        assert runs[1].target == runs[0].target == (475.0 if env == "CartPole-v1" else None)
        for run in runs:
            advance(run, 2)
        lost = [run.restore(*copy.deepcopy(run.state())) for run in runs]
        assert lost == [0 if env == "CartPole-v1" else 12] * 2
        for run in runs:
            run.close()


def test_a_member_that_diverged_in_its_shard_comes_back_so() -> None:
    run = sharded(problem(train={"learning_delay": 10**6, "evo_steps": 20, "max_steps": 20}), 2)
    run.advance()
    shard = run.regime.engine._shards[1]  # type: ignore[attr-defined]
    (cohort,) = shard._cohorts
    cohort.healthy[1] = False
    while not run.clock.generation_over:
        run.advance()
    assert [member.healthy for member in run.members] == [True, True, True, False]
    run.close()


def test_losses_come_back_to_their_slots() -> None:
    """Of members that are computed in another order."""
    p = problem(seed=12, mutation=UNLIKE, train={"learning_delay": 0, "evo_steps": 40, "max_steps": 40})
    runs = [started(p, 4), sharded(p, 4)]
    assert [slot for cohort in runs[1].cohorts for slot in cohort.slots] == [0, 2, 3, 1]
    for run in runs:
        finish(run)
        run.close()
    assert len(set(runs[0].losses)) == 4
    assert runs[1].losses == runs[0].losses


@pytest.mark.thorough
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_shards_that_die_are_made_anew_and_change_no_bit(after: bool) -> None:
    p = problem(train={"max_steps": 400})
    whole = sharded(p, 2, Deadly, deaths=[])
    finish(whole)
    draws = np.random.default_rng(7)
    for _ in range(4):
        messages = np.arange(3, whole.regime.engine.heard_so_far)  # type: ignore[attr-defined]
        deaths = sorted(draws.choice(messages, 3, replace=False).tolist())
        run = sharded(p, 2, Deadly, deaths=deaths, after=after)
        finish(run)
        assert len(run.regime.said) == 3  # type: ignore[attr-defined]
        assert outcome(run) == outcome(whole), deaths


@pytest.mark.parametrize("deaths", [pytest.param([], marks=pytest.mark.thorough), [9, 13]])
@pytest.mark.thorough
def test_what_has_changed_of_a_memory_tells_all_of_it(deaths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever size counts as large, and a memory that comes round."""
    p = problem(train={"max_steps": 400, "replay": {"capacity": 120, "sharing": "own"}})
    saved = []
    for large in (1 << 40, 1):
        monkeypatch.setattr("evopipe.scale.changes._LARGE", large)
        run = sharded(p, 2, Deadly, deaths=deaths)
        finish(run)
        saved.append((states(run), run.regime._bytes, run.regime.said))  # type: ignore[attr-defined]
    assert saved[0][0] == saved[1][0]
    assert saved[1][1] < saved[0][1]
    assert len(saved[1][2]) == len(deaths)


@pytest.mark.parametrize("seed", range(4))
def test_changes_of_any_shape_fold_to_what_they_were_made_of(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evopipe.scale.changes._LARGE", 1)
    draws = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws)

    state, told, before = {"rows": drawn(2, 5, 3), "frames": drawn(4, 2, 3), "gone": drawn(3)}, [], {}
    for step in range(6):
        told.append({name: x.clone() for name, x in changes(before, state).items()})
        before, more = state, step % 3
        rows = torch.cat((state["rows"], drawn(2, more, 3)), dim=1)
        rows[step % 2, step % 5, step % 3 :] = -0.0 if step % 2 else math.nan
        state = {"rows": rows, "frames": torch.cat((state["frames"], drawn(more, 2, 3))), "new": drawn(2, 2 + step)}
        assert sum(x.nbytes for x in told[-1].values()) < 900
    found = fold([*told, changes(before, state)])
    assert {k: (x.shape, x.numpy().tobytes()) for k, x in found.items()} == {
        k: (x.shape, x.numpy().tobytes()) for k, x in state.items()
    }


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_told_that_are_new_or_whose_bits_differ_and_no_others(seed: int) -> None:
    """Of any type and width, along either axis, as far as they are at most half; and small tensors whole."""
    draws = np.random.default_rng(seed)
    axis, width, before = seed % 2, int(draws.integers(1, 7)), int(draws.integers(6000, 9000))
    rows = before + int(draws.integers(1, 3000)) * int(draws.integers(1 - axis, 2))  # else both axes would do
    kind = [torch.uint8, torch.float32, torch.int64, torch.float64][seed // 2]
    shape = (2, rows, width) if axis else (rows, 2, width)
    now = torch.from_numpy(draws.integers(0, 200, shape)).to(kind).repeat_interleave(8, dim=2)
    was = now.narrow(axis, 0, before).clone()
    changed = np.zeros(shape[: axis + 1], bool)
    for _ in range(40):
        place = tuple(int(draws.integers(n)) for n in was.shape)
        was[place] += 1
        changed[place[: axis + 1]] = True
    changed[..., before:] = True
    told = changes({"rows": was, "small": torch.zeros(3)}, {"rows": now, "small": torch.zeros(3)})
    places = np.flatnonzero(changed)
    assert torch.equal(told["small"], torch.zeros(3))
    assert told["places of rows"].tolist() == [axis, rows, *places]
    assert torch.equal(told["rows of rows"], now.flatten(0, axis)[places])
    few = was.narrow(axis, 0, (rows // 2) - 20)
    assert torch.equal(changes({"rows": few}, {"rows": now})["rows"], now), "more than half is told as all"
    other = now.clone() if kind.is_floating_point else now.double()
    if kind.is_floating_point:
        other[other == 0] = -0.0
    told = changes({"rows": other}, {"rows": now})
    if kind.is_floating_point:
        assert torch.equal(fold([{"rows": other}, told])["rows"].signbit(), now.signbit()), "−0 is not 0"
    else:
        assert torch.equal(told["rows"], now), "another type is told whole"


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4)])
def test_what_was_empty_is_told_whole(shape: tuple[int, ...]) -> None:
    """As rollouts are where a generation ends, and memories before the first transition."""
    now = {"rows": torch.randn(2, 9000, 3) if len(shape) == 3 else torch.randn(9000, 4)}
    told = changes({"rows": torch.zeros(shape)}, now)
    assert torch.equal(fold([{"rows": torch.zeros(shape)}, told])["rows"], now["rows"])


@pytest.mark.parametrize(
    "case", ["rainbow", "ppo", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("maddpg", "cqn"))]
)
def test_a_regimes_state_does_not_change_with_what_it_was_taken_of(case: str) -> None:
    """Or else nothing would have changed when a shard next tells it."""
    offline = {"train": {"mode": "offline", "replay": {"capacity": 200, "prioritised": True}}}
    steps = {"train": {"replay": {"capacity": 200, "sharing": "own", "n_step": 3}}}
    p = problem(algo=case, **{"cqn": offline, "maddpg": steps}.get(case, CASES.get(case, {})))
    run = begin(p, first_members(p, 2)[0], transitions(60) if case == "cqn" else None)
    advance(run, 10)
    state = run.regime.state()
    before = {name: x.numpy().tobytes() for name, x in state.items()}
    advance(run, 25)
    assert {name: x.numpy().tobytes() for name, x in state.items()} == before
    assert any(x.numpy().tobytes() != before.get(name) for name, x in run.regime.state().items())
    run.close()


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ([10.0, 12.0, 11.0, 35.0], [3]),
        ([10.0, 12.0, 11.0, 33.0], []),
        ([0.1, 0.1, 4.0], []),
        ([1.0, 1.0, 6.0], [2]),
        ([10.0, 30.0, 10.0], []),
        ([1.0, 5.0, 1.0], []),
    ],
)
def test_a_shard_that_takes_three_times_as_long_as_others_is_told_of(seconds: list[float], found: list[int]) -> None:
    assert list(slow_shards(seconds)) == found


def test_a_shard_that_always_dies_ends_the_run_with_a_sentence() -> None:
    run = sharded(problem(), 2, Deadly, deaths=range(7, 100))
    sentence = "shard [01] died 4 times in one generation, at last because it was killed"
    with pytest.raises(ResourceError, match=sentence):
        finish(run)
    p = problem(train={"evo_steps": 20, "max_steps": 20, "learning_delay": 10**6})
    again = sharded(p, 2, Deadly, deaths=range(7, 10))
    finish(again)
    assert len(again.regime.said) == 3, "as often as that it is made anew"  # type: ignore[attr-defined]
    with pytest.raises(ResourceError, match="died 4 times"):
        finish(sharded(p, 2, Deadly, deaths=range(7, 11)))


@pytest.mark.parametrize("ticks", [50, *(pytest.param(n, marks=pytest.mark.thorough) for n in (0, 3, 80))])
@pytest.mark.thorough
def test_a_run_in_shards_goes_on_from_what_was_saved(ticks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evopipe.scale.changes._LARGE", 1)
    p = problem(train={"max_steps": 400})
    whole, first, second = sharded(p, 2), sharded(p, 2), sharded(p, 2)
    while first.clock.tick < ticks:
        close_generation(first) if first.clock.generation_over else first.advance()
    tensors, meta = copy.deepcopy(first.state())
    second.restore(tensors, meta)
    finish(first)
    first.restore(tensors, meta)  # what its shards told last is of a future that it left
    for run in (whole, second, first):
        finish(run)
    assert outcome(second) == outcome(whole)
    assert outcome(first) == outcome(whole)
    assert states(second) == states(first) == states(whole)


def test_a_run_that_returns_to_what_was_saved_knows_nothing_of_the_future_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its shards told more since then, of which only changes would be told next."""
    monkeypatch.setattr("evopipe.scale.changes._LARGE", 1)
    p = problem(train={"learning_delay": 10**6, "evo_steps": 20, "max_steps": 60, "eval_steps": 5})
    whole, run = (sharded(p, 1, members=2) for _ in range(2))
    assert all(states(run)), "before the first tick there is one, too"
    close(run)
    saved = copy.deepcopy(run.state())
    run.regime._ticks = 2  # type: ignore[attr-defined]
    run.advance()
    run.state()
    run.restore(*saved)
    for each in (whole, run):
        finish(each)
    assert outcome(run) == outcome(whole)
    assert states(run) == states(whole)


def test_a_restored_shard_knows_the_losses_of_members_that_learn_no_more_in_this_generation() -> None:
    p = problem(train={"learning_delay": 0, "evo_steps": 32, "max_steps": 32}, config={"learn_step": 20})
    first, second = sharded(p, 2), sharded(p, 2)
    first.regime._ticks = 6  # type: ignore[attr-defined]
    first.advance()
    assert first.clock.tick == 6
    second.restore(*copy.deepcopy(first.state()))
    for run in (first, second):
        finish(run)
        run.close()
    assert all(map(math.isfinite, first.losses))
    assert second.losses == first.losses


@pytest.mark.thorough
def test_an_environment_that_breaks_in_one_shard_is_mended_and_changes_no_bit(tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    p = problem(
        env="breaking_envs:Breakable-v0", train={"max_steps": 400, "eval_steps": 20},
        kwargs={"trigger": str(trigger), "when": 10},
    )  # fmt: skip
    whole, first, second = sharded(p, 2), sharded(p, 2), sharded(p, 2)
    finish(whole)
    first.advance()
    trigger.touch()
    with pytest.raises(EnvironmentFailed, match="the motor broke"):
        finish(first)
    assert first.regime.whole
    trigger.unlink()
    second.restore(*first.state())
    finish(second)
    assert outcome(second) == outcome(whole)


def test_a_shard_whose_environment_fails_waits_for_the_others(tmp_path: Path) -> None:
    """It alone stands before the step that failed, and the run with it; mended, it catches up and no bit is lost. And
    what one shard alone was paid counts."""
    trigger = tmp_path / "trigger"
    keys = np.array([first_members(problem("envs_for_tests:Chain-v0"), 4)[0][3].key])
    seed = int(rng.seeds(keys, Purpose.EPISODE, np.array([1]), np.array([1]))[0])  # its second in another environment
    p = problem(
        "envs_for_tests:Chosen-v0", kwargs={"seed": seed, "trigger": str(trigger)}, num_envs=2,
        train={"learning_delay": 10**6, "evo_steps": 40, "max_steps": 40},
    )  # fmt: skip
    runs = [started(p, 4), sharded(p, 2), sharded(p, 2)]
    finish(runs[0])
    trigger.touch()
    with pytest.raises(EnvironmentFailed, match="the motor broke"):
        finish(runs[1])
    assert (runs[1].clock.tick, runs[1].clock.here, runs[1].regime.whole) == (12, 12, True), "an episode is 10 steps"
    trigger.unlink()
    runs[2].restore(*runs[1].state())
    finish(runs[2])
    assert outcome(runs[2]) == outcome(runs[0])
    assert runs[2].clock.rewarded
    for run in runs:
        run.close()


def test_what_was_broken_before_it_was_mended_counts_no_more_in_any_shard() -> None:
    p = problem("envs_for_tests:Diary-v0", train={"learning_delay": 10**6, "evo_steps": 96})
    apart, whole = sharded(p, 2), started(p, 4)
    while apart.clock.tick < 7:
        apart.advance()
    while whole.clock.tick < apart.clock.tick:
        whole.advance()
    for run in (apart, whole):
        assert run.clock.broken_here > 0
        run.clock.broken_here = 0  # as where an environment failed
        run.state()
        while not run.clock.generation_over:
            run.advance()
        run.close()
    assert vars(apart.clock) == vars(whole.clock)
    assert 0 < whole.clock.broken_here < whole.clock.broken


@pytest.mark.thorough
def test_where_all_diverge_every_shards_priorities_go_with_them() -> None:
    replay = {"capacity": 200, "sharing": "own", "prioritised": True}
    p = problem(train={"learning_delay": 0, "evo_steps": 80, "max_steps": 160, "replay": replay})
    runs = [started(p, 2), sharded(p, 1, members=2)]
    for run in runs:
        while not run.clock.generation_over:
            run.advance()
        for slot in range(2):
            plant_weight(run, slot)
        close_generation(run)
        assert run.lineage[-1].restored
        finish(run)
        run.close()
    # The spoilt weight of a sharded run is the driver's alone: what was played with it is not compared.
    assert outcome(runs[1])[0] == outcome(runs[0])[0]


@pytest.mark.thorough
def test_a_stop_while_members_are_scored_leaves_nothing_behind() -> None:
    p = problem(train={"max_steps": 200})
    whole, run = sharded(p, 2), sharded(p, 2)
    finish(whole)
    while not run.clock.generation_over:
        run.advance()
    with pytest.raises(Stopped):
        run.close_generation(lambda: True)
    finish(run)
    assert outcome(run) == outcome(whole)


def transitions(n: int) -> Transitions:
    """Random ones of CartPole's shapes."""
    g, ends = np.random.default_rng(0), np.zeros(n, bool)
    obs = g.normal(size=(n, 4)).astype(np.float32)
    return Transitions(obs, g.integers(0, 2, n), np.ones(n, np.float32), ends, ends, obs + 1, np.zeros(n, np.int64))


@pytest.mark.thorough
def test_stages_train_and_score_in_shards_as_in_one_process(tmp_path: Path) -> None:
    """Of six members pairs share a memory, so shards are of four and of two; they begin with transitions, and are
    scored in shards of their own, the elite a seventh."""
    changes = {
        "population.size": 6, "runtime.cohorts": "exact", "train.replay.sharing": 2, "runtime.env_workers": 0,
        "runtime.learners": 1, "train.warm_start": 30, "train.max_steps": 240, "train.evo_steps": 120,
        "train.eval_steps": 30, "evaluate.steps": 15, "runtime.checkpoint_seconds": 1e-3,
    }  # fmt: skip
    found = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        data = params(changes)
        data["runtime"]["shards"] = ShardsConfig(count=count).model_dump(mode="json")
        folder.mkdir()
        (folder / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")
        write_transitions(folder / "data/transitions.h5", transitions(40), {})
        for stage in ("population", "train", "evaluate"):
            answer = call(folder, "--quiet", stage)
            assert answer.code == 0, answer.err
        found.append(digests(folder, (*TRAINED, *(out.as_posix() for out in layout.OUTS["evaluate"]))))
    assert found[0] == found[1]
    lengths = [row.split(",")[-1] for row in (folder / layout.EPISODES).read_text().split()[1:]]
    assert max(map(int, lengths)) == 15, "or else their end would not tell"


def test_how_many_shards_there_are_and_what_is_told_of_them(tmp_path: Path) -> None:
    class Roomy(InProcess):
        room = 8

    data = params({"population.size": 4, "runtime.cohorts": "exact", "train.replay.sharing": "own"})
    asked, home = parse_params(data), Home(tmp_path, tmp_path, 1e9)
    whole = problem_of(asked, tmp_path)
    with divided(whole, asked, 4, tmp_path) as undivided:
        assert undivided is whole
        assert home.store(undivided.parts).folder.name == "checkpoints"
    assert in_shards(whole, asked.runtime.shards, data, 4, tmp_path, Roomy(make)).parts == 4, "no more than members"
    pairs = in_shards(whole, asked.runtime.shards, data, 4, tmp_path, Roomy(make), each=2)
    assert pairs.parts == 2, "no more than memories, of two members each"
    data["runtime"]["shards"] = {"count": 3}
    asked = parse_params(data)
    made = in_shards(whole, asked.runtime.shards, data, 4, tmp_path, Roomy(make))
    assert home.store(made.parts).folder.name == "checkpoints-3"
    members, births = first_members(whole.spec, 4)
    with Session.opened(made, members, births, Tracked(asked.tracking, data), home) as session:
        regime: Any = session.run.regime
        assert [list(own) for own in regime.slots] == [[0], [1, 2], [3]]
        regime.said.append("one was late")
        assert list(session.problems()) == ["one was late"]
        assert list(session.problems()) == [], "it is said once"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"runtime.cohorts": "merged"}, "set runtime.cohorts: exact"),
        ({"train.replay.sharing": "shared"}, "set train.replay.sharing: own"),
        ({"runtime.shards.count": 5}, "5 shards are more than there are members (4)"),
        ({"train.algo": "cqn", "train.mode": "offline", "train.replay.prioritised": True}, "prioritised: false"),
        ({"runtime.shards.ranks": 2}, "several are of language models, with engine: accelerate"),
        (
            {"train.replay.sharing": 2, "runtime.shards.count": 3},
            "3 shards are more than there are memories of theirs (2)",
        ),
    ],
)
def test_what_would_change_results_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    data = params({"population.size": 4, "runtime.cohorts": "exact", "train.replay.sharing": "own"})
    data["runtime"]["shards"] = {"count": 2}
    for key, value in changes.items():
        *blocks, name = key.split(".")
        place = data
        for block in blocks:
            place = place[block]
        place[name] = value
    asked = parse_params(data)
    with pytest.raises(ParamsError) as refused, divided(problem_of(asked, tmp_path), asked, 4, tmp_path):
        pass
    assert sentence in str(refused.value)


def test_members_that_are_scored_need_no_neighbours(tmp_path: Path) -> None:
    """An elite beside two pairs makes five, for as many as five shards; to train, a pair stays together."""
    data = params({"population.size": 4, "runtime.cohorts": "exact", "train.replay.sharing": 2})
    for count, learn in ((5, False), (2, True), (3, True)):
        data["runtime"]["shards"] = {"count": count}
        asked = parse_params(data)
        one = divided(problem_of(asked, tmp_path), asked, 4 + (not learn), tmp_path, learn=learn)
        with pytest.raises(ParamsError, match="memories") if count == 3 else nullcontext(), one as made:
            assert made.parts == count


def test_a_population_that_cannot_be_divided_among_its_memories_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"train\.replay\.sharing: 3 members .* among memories of 2 each"):
        parse_params(params({"population.size": 3, "train.replay.sharing": 2}))


def test_a_sequential_confirmation_is_that_of_one_process() -> None:
    """It ends where it does there, and what the bets did not ask for is not played."""
    train = {
        "confirmation": "sequential", "lowest_score": 1.0, "target": 9.0, "target_sigmas": 0.0, "confirm_episodes": 64,
        "eval_steps": 60, "evo_steps": 8, "learning_delay": 10**6,
    }  # fmt: skip
    p = problem(train=train)
    alone, apart = started(p, MEMBERS), sharded(p, 2)
    for run in (alone, apart):
        finish(run)
    assert outcome(alone) == outcome(apart)
    whole = started(replace(p, train=p.train.model_copy(update={"confirmation": "full"})), MEMBERS)
    finish(whole)
    assert alone.reason == apart.reason == "target"
    assert alone.clock.eval_steps < whole.clock.eval_steps
