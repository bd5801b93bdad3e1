"""Rounds that are played while members learn: which weights play which, the same bits whatever the timing, and what
stops and failures leave.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, cast

import pytest

pytest.importorskip("transformers")

import torch

from evopipe import AgentTrainer
from evopipe.agents import ChatAgent, CopyGame, ahead
from evopipe.agents.engine import Done
from evopipe.agents.rounds import Rounds
from evopipe.core.cohort import Cohort
from evopipe.errors import EnvironmentFailed
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Stopped
from evopipe.run.run import Run
from populations import advance, equal_states, finish, go_on

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 12, "trainer.test_freq": 6,
    "train.eval_episodes": 4, "train.confirm_episodes": 4, "evaluate.bootstrap": 100, "agents.advantage": "turn",
    "algos.grpo.lr": 1e-2,
}  # fmt: skip


class Slow(CopyGame):
    """Its steps take some time, in threads."""

    blocking = True  # type: ignore[misc]
    seconds = 0.0

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        time.sleep(self.seconds)
        return super().get_reward_and_next_obs(task, action)


def run_of(staleness: int, env: Any = CopyGame, members: int = 2, **config: Any) -> Run[Any]:
    """A run of agents at its beginning."""
    own = AgentTrainer(
        agent_class=ChatAgent, env_class=env, train_dataset=CopyGame.tasks(20, turns=2), population=members,
        config={**SMALL, "agents.staleness": staleness, **config},
    )  # fmt: skip
    spec, first, _ = own._begin()
    clock = Clock.of(spec, len(first))
    return Run(spec, cast("Any", own._regime(spec, clock, None)), clock, first)


class Noted:
    """Notes the weights by which each round is played, and those that members have when they learn from it."""

    def __init__(self, run: Run[Any]) -> None:
        self.regime = regime = cast("Rounds", run.regime)
        self.played: dict[int, torch.Tensor] = {}
        self.had: list[torch.Tensor] = []
        self._true, self._next = regime._ahead._play, regime._next
        regime._ahead._play, regime._next = self._note, self._learn  # type: ignore[method-assign]

    def _note(self, cohorts: Sequence[Cohort], tick: int, stopped: Callable[[], bool]) -> list[Done]:
        self.played[tick] = torch.cat([cohort.state.policy.values.clone() for cohort in cohorts])
        return self._true(cohorts, tick, stopped)

    def _learn(self) -> tuple[list[Done], bool]:
        self.had.append(torch.cat([cohort.state.policy.values.clone() for cohort in self.regime.cohorts]))
        return self._next()


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.thorough
def test_round_n_is_played_by_the_weights_after_n_minus_k_rounds_and_never_by_those_of_an_earlier_generation(
    k: int,
) -> None:
    run = run_of(k)
    noted = Noted(run)
    with closing(run):
        finish(run)
        assert run.clock.ticks == 12
    assert len(noted.played) == len(noted.had) == 12
    for n in range(12):
        version = max(n - k, n - n % 6)  # a generation has six rounds
        assert torch.equal(noted.played[n], noted.had[version]), n
    assert sum(not torch.equal(noted.played[n], noted.had[n]) for n in range(12)) > 4


def test_without_staleness_nothing_is_played_ahead() -> None:
    run = run_of(0)
    noted = Noted(run)
    with closing(run):
        advance(run, 3)
    assert (noted.played, len(noted.had)) == ({}, 3)
    assert not any(name.startswith("ahead") for name in run.state()[0])


@pytest.mark.thorough
def test_no_bit_depends_on_how_long_environments_take(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for seconds in (0.0, 0.01):
        monkeypatch.setattr(Slow, "seconds", seconds)
        with closing(run_of(2, Slow)) as run:
            finish(run)
            states.append(run.state())
    assert equal_states(*states) == []


@pytest.mark.thorough
@pytest.mark.parametrize("k", [1, 3])
def test_a_run_that_ends_anywhere_goes_on_to_the_same_bits(k: int) -> None:
    """After every tick of one and a half generations, with all that is in flight thrown away."""
    with closing(run_of(k)) as whole:
        finish(whole)
        expected = whole.state()
    parts, points = run_of(k), 0
    while not parts.reason:
        go_on(parts)
        tensors, meta = parts.state()
        parts.close()
        parts, points = run_of(k), points + 1
        parts.restore({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(meta)))
    assert points >= 12
    assert equal_states(parts.state(), expected) == []
    parts.close()


def test_a_round_that_was_given_up_is_played_again_by_the_weights_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of an earlier tick by then, and the next checkpoint has them."""
    monkeypatch.setattr(ahead, "_ASK", 0.01)
    played: list[tuple[int, float]] = []
    waiting = True

    def play(cohorts: Sequence[Cohort], tick: int, stopped: Callable[[], bool]) -> list[Done]:
        while waiting and not stopped():
            time.sleep(0.001)
        if waiting:
            raise Stopped
        played.append((tick, float(cohorts[0].state.policy.values[0, 0])))
        return []

    with closing(run_of(2)) as run:
        rounds, (cohort,) = ahead.Ahead(play, "policy"), run.cohorts
        rounds.ensure(range(3), run.cohorts, 0)
        with pytest.raises(Stopped):
            rounds.take(0, lambda: True)
        waiting, first = False, float(cohort.state.policy.values[0, 0])
        cohort.state.policy.values.add_(1.0)
        assert {name.split(".")[1] for name in rounds.state(1)} == {"0", "1", "2"}
        rounds.ensure(range(4), run.cohorts, 1)
        assert [rounds.take(tick, lambda: False)[1] for tick in range(4)] == [False, True, True, True]
        assert sorted(played) == [(0, first), (1, first), (2, first), (3, pytest.approx(first + 1.0))]


@pytest.mark.thorough
def test_a_stop_while_a_round_is_played_leaves_what_the_next_run_goes_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(run_of(2)) as whole:
        finish(whole)
        expected = whole.state()
    for at in (0, 3):  # where no weights but the members' own play, and where others do
        run = run_of(2, Slow)
        advance(run, at)
        regime = cast("Rounds", run.regime)
        began = time.perf_counter()
        monkeypatch.setattr(Slow, "seconds", 30.0)
        regime.stopped = lambda began=began: time.perf_counter() > began + 0.5
        ticks = -1
        while run.clock.ticks > ticks:  # rounds that were played ahead before there was anything to wait for are over
            ticks = run.clock.ticks
            run.advance()
        assert at <= ticks <= at + 2
        assert regime.whole
        tensors, meta = run.state()
        monkeypatch.setattr(Slow, "seconds", 0.0)
        with closing(run_of(2, Slow)) as again:
            again.restore({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(meta)))
            finish(again)
            assert equal_states(again.state(), expected) == []
        run.close()


def test_a_round_that_fails_ahead_ends_the_run_by_its_sentence_when_its_turn_comes() -> None:
    class Broken(CopyGame):
        def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
            raise RuntimeError("no such digit")

    with (
        closing(run_of(2, Broken, **{"agents.retries": 0})) as run,
        pytest.raises(EnvironmentFailed, match=r"8 of 8 episodes failed|16 of 16 episodes failed"),
    ):
        advance(run, 1)


def test_what_earlier_weights_wrote_is_corrected_and_the_drift_told() -> None:
    """The first round of a generation is the members' own: nothing of it is corrected."""
    seen: list[tuple[int, bool]] = []
    with closing(run_of(2)) as run:
        regime = cast("Rounds", run.regime)
        true = regime._round

        def watched(cohort: Any, done: Any, stale: bool, *more: Any) -> bool:
            seen.append((run.clock.tick, stale))
            return true(cohort, done, stale, *more)

        regime._round = watched  # type: ignore[method-assign]
        advance(run, 5)
        assert seen == [(0, False), (1, True), (2, True), (3, True), (4, True)]
        told = regime.signals([0, 1])
        drifts = [one["completions/drift"][0] for one in told]
        assert min(drifts) > 1e-4
        rows = [dict(zip(regime.measures.names, row[2:], strict=True)) for row in regime.measures.rows()]
        assert all(row["drift"] > 1e-4 for row in rows)
    with closing(run_of(0)) as run:
        advance(run, 3)
        assert all("completions/drift" not in one for one in cast("Rounds", run.regime).signals([0, 1]))
