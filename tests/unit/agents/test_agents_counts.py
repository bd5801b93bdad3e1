"""What a round of agents counts, compares and draws, against numbers by hand: every index, group, mask and mean."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

import words
from evopipe import AgentTrainer, algos
from evopipe.agents import (
    BaseEnv,
    ChatAgent,
    Dataset,
    Episode,
    ModelOutput,
    MultiTurnWorkflow,
    Step,
    TeamWorkflow,
    TerminationReason,
    ToolEnvironment,
    Trajectory,
    Workflow,
)
from evopipe.agents.engine import Done, EpisodeJob, RolloutEngine, _know_outputs
from evopipe.agents.model import Limits, Model, Reply, Request, Sampled, Tokens
from evopipe.agents.records import summary
from evopipe.agents.rounds import MEASURED
from evopipe.agents.rows import AdvantageSettings, RoundTrajectory, advantages, batch_of, rows_of
from evopipe.agents.settings import Agents
from evopipe.compat.rllm.config import resolve
from evopipe.errors import EnvironmentFailed
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.types import Text

CHAT = [{"role": "user", "content": "0"}]
DONE, ERROR, TIMEOUT = TerminationReason.ENV_DONE, TerminationReason.ERROR, TerminationReason.TIMEOUT
SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 8, "actor_rollout_ref.rollout.n": 2,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 1, "trainer.test_freq": 1,
    "train.eval_episodes": 4, "train.confirm_episodes": 4, "evaluate.bootstrap": 100, "agents.retries": 0,
    "actor_rollout_ref.actor.optim.lr": 1e-12,
}  # fmt: skip


def play(make: Any, n: int = 1, texts: str = "1", limits: Limits | None = None, **agents: Any) -> list[Done]:
    """Play so many episodes, whose completions are these letters in turn."""
    base, said = words.base(), iter(texts * 99)

    def decode(wave: Any) -> list[Reply]:
        return [Reply(base.encode(next(said)), [-1.0], [0.5]) for _ in wave]

    engine = RolloutEngine(make, Tokens(base), limits or Limits(64, 4), decode, Agents(**{"retries": 0, **agents}))
    return engine.run([EpisodeJob(0, i, f"{i}:0", {"n": i}, Sampled()) for i in range(n)])


def one(reward: float, model: Any, correct: bool = False) -> Any:
    """An episode of one completion."""

    async def asked() -> Episode:
        step = Step.from_model_output(await model.get_model_response(CHAT), CHAT)
        return Episode(trajectories=[Trajectory(steps=[step], reward=reward)], is_correct=correct)

    return asked()


# --- draws ------------------------------------------------------------------------------------------------------------


def test_an_attempt_draws_other_tokens_than_the_one_before_and_equal_runs_equal_ones() -> None:
    def texts() -> list[str]:
        said: list[str] = []

        async def flow(task: dict[str, Any], model: Any) -> float:
            said.append((await model.get_model_response(CHAT)).content)
            if len(said) < 3:
                raise RuntimeError("again")
            return 1.0

        config = {**SMALL, "agents.retries": 2, "agents.temperature": 1.0}
        (found,) = AgentTrainer(flow=flow, config=config, train_dataset=[{"n": 0}]).play()
        assert (found["attempts"], found["termination_reason"]) == (3, "env_done")
        return said

    first, second = texts(), texts()
    assert len(set(first)) == 3
    assert first == second


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (3, 4)])
def test_an_episode_that_raises_is_tried_as_often_as_retries_say_and_a_late_one_once(
    retries: int, attempts: int
) -> None:
    tried = []

    class Raises(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            tried.append(uid)
            raise TimeoutError if task["n"] else ValueError("no")

    done = play(Raises, 2, retries=retries)
    assert [(each.attempts, each.episode.termination_reason) for each in done] == [(attempts, ERROR), (1, TIMEOUT)]
    assert sorted(tried) == ["0:0"] * attempts + ["1:0"]


@pytest.mark.thorough
def test_tokens_are_drawn_by_tick_rollout_call_and_member() -> None:
    said: dict[tuple[int, int, int], list[str]] = {}

    class Asks(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            model = self.rollout_engine
            outs = [await model.get_model_response(CHAT) for _ in range(2)]
            for call, out in enumerate(outs):
                if model.how.temperature:  # of training
                    said.setdefault((model._slot, int(uid.rpartition(":")[2]), call), []).append(out.content)
            return Episode(trajectories=[Trajectory(steps=[Step.from_model_output(outs[0], CHAT)], reward=1.0)])

    config = {**SMALL, "data.train_batch_size": 1, "trainer.total_training_steps": 3, "trainer.test_freq": 3}
    AgentTrainer(workflow_class=Asks, config=config, train_dataset=[{"n": 0}], population=2).train()
    assert sorted(said) == [(slot, rollout, call) for slot in (0, 1) for rollout in (0, 1) for call in (0, 1)]
    assert {len(each) for each in said.values()} == {3}  # ticks
    assert len({tuple(each) for each in said.values()}) == 8  # no two members, rollouts or calls draw alike
    assert len(set(zip(*said.values(), strict=True))) == 3  # and no two ticks


def regime_of(config: dict[str, Any], population: Any = None, tasks: int = 5) -> Any:
    async def flow(task: dict[str, Any], model: Any) -> float:
        await model.get_model_response(CHAT)
        return 1.0

    trainer = AgentTrainer(
        flow=flow, config={**SMALL, **config}, train_dataset=[{"n": n} for n in range(tasks)], population=population
    )
    spec, members, _ = trainer._begin()
    regime = trainer._regime(spec, Clock.of(spec, len(members)), None)
    return regime, spec.form(members)


def test_a_completion_is_drawn_by_its_own_number_or_by_its_place_in_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each counts, also one that has a number of its own."""
    monkeypatch.setattr("evopipe.agents.engine.back_off", lambda attempt: 0.0)
    base, drawn, attempts = words.base(), [], []

    def decode(wave: Any) -> list[Reply]:
        drawn.append([request.call for request in wave])
        return [Reply(base.encode("1"), [-1.0], [0.5]) for _ in wave]

    class Asks(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            model = self.rollout_engine
            prompt = model.prompt(CHAT)
            for draws in ((500, None, 700), (900,), (None,), (500,)):
                outs = await model.complete(prompt, {}, draws)
            attempts.append(len(outs))
            if len(attempts) < 2:
                raise ValueError("again")
            return Episode(trajectories=[Trajectory(steps=[Step.from_model_output(outs[0], CHAT)])])

    engine = RolloutEngine(Asks, Tokens(base), Limits(64, 4), decode, Agents(retries=1))
    engine.run([EpisodeJob(0, 0, "0:0", {}, Sampled())])
    second = (1 << 16) + 1, (1 << 16) + 4
    assert drawn == [[500, 1, 700], [900], [4], [500], [500, second[0], 700], [900], [second[1]], [500]]


def test_a_rounds_file_is_named_by_all_rounds_of_the_run(tmp_path: Path) -> None:
    """Where members take turns a tick comes again."""
    regime, _ = regime_of({"agents.record": "all"})
    regime.folder, regime.clock.ticks, regime.clock.tick = tmp_path, 7, 2
    regime._record([], [], {})
    assert [path.name for path in tmp_path.iterdir()] == ["train-000008.jsonl"]


def test_jobs_of_a_round_are_each_members_tasks_in_order_with_its_own_temperature() -> None:
    regime, cohorts = regime_of({"actor_rollout_ref.rollout.n": 3}, population=2)
    (cohort,) = cohorts
    cohort.hyper["temperature"] = torch.tensor([0.5, 2.0])
    seen = []
    for tick in range(5):
        jobs = regime._jobs(cohort, tick, 0)
        assert [(job.slot, job.place) for job in jobs] == [(slot, place) for slot in (0, 1) for place in range(6)]
        assert [job.how.temperature for job in jobs] == pytest.approx([0.5] * 6 + [2.0] * 6)
        tasks = [int(job.uid.partition(":")[0]) for job in jobs]
        assert tasks[:6] == tasks[6:]  # all members play the same ones
        assert [job.task["n"] for job in jobs] == tasks
        assert [job.uid.rpartition(":")[2] for job in jobs[:6]] == ["0", "1", "2"] * 2
        seen += tasks[:6:3]
    assert sorted(seen[:5]) == sorted(seen[5:]) == [0, 1, 2, 3, 4]  # each once before any comes again
    again = [int(job.uid.partition(":")[0]) for job in regime._jobs(cohort, 3, 0)]
    assert again[:6:3] == seen[6:8], "as a run that goes on from there"


def test_every_redraw_has_tasks_of_its_own_and_places_behind_those_before() -> None:
    regime, (cohort,) = regime_of({"algos.grpo.redraws": 2}, tasks=12)
    seen = []
    for tick, wave in product(range(2), range(3)):
        jobs = regime._jobs(cohort, tick, wave)
        assert [job.place for job in jobs] == [4 * wave + n for n in range(4)]
        seen += [job.task["n"] for job in jobs[::2]]
    assert sorted(seen) == [*range(12)]  # no task comes twice in a pass


@pytest.mark.parametrize(
    ("slot", "rewarded", "together"), [(0, True, False), (1, True, False), (2, False, False), (1, True, True)]
)
def test_a_round_was_rewarded_if_any_member_of_any_cohort_was(slot: int, rewarded: bool, together: bool) -> None:
    class Of(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            found: Episode = await one(float(self.rollout_engine._slot == slot), self.rollout_engine)
            return found

    trainer = AgentTrainer(workflow_class=Of, config=SMALL, train_dataset=[{"n": 0}, {"n": 1}], population=2)
    spec, members, _ = trainer._begin()
    regime = trainer._regime(spec, Clock.of(spec, 2), None)
    regime.adopt(spec.form(members) if together else [*spec.form(members[:1]), *spec.form(members[1:])])
    assert len(regime.cohorts) == 2 - together
    regime.advance()
    assert (regime.clock.ticks, regime.clock.rewarded) == (1, rewarded)


def test_an_episode_was_redrawn_whose_place_is_behind_those_of_the_first_wave() -> None:
    """Two tasks of two rollouts are the places 0 to 3; the second task gave way to one of the next wave. Of two members
    each has its share of the groups that say nothing."""
    regime, (cohort,) = regime_of({"algos.grpo.redraws": 1}, population=2)
    made = Trajectory(steps=[Step(model_output=output([1], [2]))], reward=1.0)
    done = [
        [
            Done(EpisodeJob(slot, n, f"{n}:0", {}, Sampled()), Episode(trajectories=[made], is_correct=n < 2), 1, {})
            for n in places
        ]
        for slot, places in enumerate(((0, 1, 4, 5), (0, 1, 2, 3)))
    ]
    text = batch_of([[RoundTrajectory(0, made, True)] * 4] * 2, 0, words.CPU).text
    regime._measure(cohort, text, done, [[0, 1, 2, 3]] * 2, torch.zeros(2), 1)
    rows = [dict(zip(regime.measures.names, row[2:], strict=True)) for row in regime.measures.rows()]
    told = [(row["redrawn"], row["all"], row["none"], row["silent"]) for row in rows]
    assert told == [(0.5, 0.5, 0.5, 0.5), (0.0, 0.5, 0.5, 0.5)]


@pytest.mark.thorough
def test_the_share_of_redrawn_episodes_counts_each_of_them() -> None:
    """In the first wave all rewards are equal, and both tasks give way to others."""
    played = []

    class Differs(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            played.append(uid)
            reward = float(uid.rpartition(":")[2]) if len(played) > 4 else 0.0
            found: Episode = await one(reward, self.rollout_engine)
            return found

    config = {**SMALL, "algos.grpo.redraws": 1}
    tasks = [{"n": n} for n in range(4)]
    (measures,) = AgentTrainer(workflow_class=Differs, config=config, train_dataset=tasks).train().measures
    assert (measures["redrawn"], measures["silent"]) == (1.0, 0.0)


def test_validations_play_each_task_as_often_as_samples_say_at_their_own_temperature() -> None:
    regime, _ = regime_of({"agents.samples": 2, "agents.temperature": 0.25})
    jobs = regime.validation([{"n": 7}, {"n": 9}], [3, 5], [7, 9])
    told = [(job.slot, job.place, job.uid, job.task["n"], job.how) for job in jobs]
    how = Sampled(0.25)
    assert told == [
        (slot, place, uid, n, how)
        for slot in (3, 5)
        for place, (uid, n) in enumerate([("7:0", 7), ("7:1", 7), ("9:0", 9), ("9:1", 9)])
    ]


# --- validations ------------------------------------------------------------------------------------------------------


class Scored(Workflow):
    """Does what the task says, by rollout: a reward, `raise` or `late`."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        does = task["does"][int(uid.rpartition(":")[2]) % len(task["does"])]
        if does == "raise":
            raise RuntimeError("no")
        if does == "late":
            raise TimeoutError
        found: Episode = await one(does, self.rollout_engine, does >= 4)
        found.metrics["speed"] = float(self.rollout_engine._slot * 10 + does)
        return found


def test_a_failed_episode_of_a_validation_counts_as_the_lowest_return_and_is_counted() -> None:
    tasks = [{"does": [5.0, 3.0]}, {"does": ["raise", 4.0]}, {"does": ["late", "raise"]}, {"does": [7.0]}]
    config = {**SMALL, "agents.samples": 2, "agents.max_error_fraction": 0.5}
    found = AgentTrainer(workflow_class=Scored, config=config, train_dataset=tasks, val_dataset=tasks).evaluate()
    assert found["mean"] == pytest.approx((5 + 3 + 3 + 4 + 3 + 3 + 7 + 7) / 8)  # not 0: no return is that low
    assert found["failed"] == 3 / 8
    assert (found["pass@1"], found["pass@2"]) == (5 / 8, 3 / 4)  # what failed is not right


@pytest.mark.parametrize(("fraction", "fails"), [(0.374, True), (0.375, False)])
def test_a_round_ends_the_run_above_the_fraction_of_errors_and_not_at_it(fraction: float, fails: bool) -> None:
    tasks = [{"does": [1.0, 1.0]}, {"does": ["raise", 1.0]}, {"does": ["late", "raise"]}, {"does": [1.0, 1.0]}]
    config = {**SMALL, "agents.samples": 2, "agents.max_error_fraction": fraction}
    trainer = AgentTrainer(workflow_class=Scored, config=config, train_dataset=tasks, val_dataset=tasks)
    if fails:
        with pytest.raises(EnvironmentFailed, match="3 of 8 episodes failed") as failed:
            trainer.evaluate()
        assert failed.value.exit_code == 71
    else:
        assert trainer.evaluate()["failed"] == 3 / 8


class Uneven(Workflow):
    """What a member gets depends on its slot: the second one's are right, and of twice the turns."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        slot, rollout = self.rollout_engine._slot, int(uid.rpartition(":")[2])
        if slot == 0 and task["n"] == 0 and rollout == 0:
            raise TimeoutError
        outs = [await self.rollout_engine.get_model_response(CHAT, max_tokens=3) for _ in range(1 + slot)]
        steps = [Step.from_model_output(out, CHAT) for out in outs]
        reason = TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED if slot and rollout == 0 else DONE
        reward = float(10 * slot + task["n"] + rollout)
        good = bool(slot) and (rollout == 0 or task["n"] == 1)
        made = Trajectory(name="solver", steps=steps, reward=reward)
        return Episode(trajectories=[made], is_correct=good, termination_reason=reason, metrics={"slot": slot})


def test_measures_of_training_and_validation_are_each_members_own(tmp_path: Path) -> None:
    config = {
        **SMALL, "agents.samples": 2, "trainer.default_local_dir": str(tmp_path), "agents.record": "all",
        "language.stop": ["no such"],
    }  # fmt: skip
    trained = AgentTrainer(
        workflow_class=Uneven, config=config, train_dataset=[{"n": 1}, {"n": 0}], val_dataset=[{"n": 0}, {"n": 1}],
        population=2,
    ).train()  # fmt: skip
    # member 0: rewards (failed, 1), (1, 2); member 1: (10, 11), (11, 12), and two turns
    first, second = trained.measures
    told = [(each["slot"], each["reward"], each["turns"], each["failed"], each["cut"]) for each in (first, second)]
    assert told == [(0, 1.0, 3 / 4, 1 / 4, 0.0), (1, 11.0, 2.0, 0.0, 1 / 2)]
    # any positive reward is right
    assert [(each["correct"], each["none"], each["all"]) for each in (first, second)] == [(3 / 4, 0, 1 / 2), (1, 0, 1)]
    # of task 0 of member 0 one rollout is left, and says nothing; a failed one has no row, and one of two turns two
    assert [each["effective"] for each in (first, second)] == pytest.approx([2 / 3, 1.0])
    episodes = [json.loads(line) for line in (tmp_path / "episodes/train-000001.jsonl").read_text().splitlines()]
    for slot, each in enumerate((first, second)):
        own = [one for one in episodes if one["slot"] == slot]
        lengths = [
            sum(len(step["model_output"]["completion_ids"]) for t in one["trajectories"] for step in t["steps"])
            for one in own
        ]
        assert each["length"] == pytest.approx(np.mean(lengths))
        assert [one["counts"] for one in own] == [one["termination_reason"] != "timeout" for one in own]
    rows = {(each["generation"], each["slot"]): each for each in trained.validated}
    # its failed one counts as the lowest of all that were played, 1
    assert rows[1, 0]["mean"] == pytest.approx((1 + 1 + 1 + 2) / 4)
    assert rows[1, 1]["mean"] == pytest.approx((10 + 11 + 11 + 12) / 4)
    assert (rows[1, 0]["failed"], rows[1, 1]["failed"]) == (1 / 4, 0.0)
    assert (rows[1, 0]["pass@1"], rows[1, 0]["pass@k"]) == (3 / 4, 1.0)
    assert (rows[1, 1]["pass@1"], rows[1, 1]["pass@k"]) == (1.0, 1.0)
    elite = trained.evaluation["elite"]
    assert (elite["slot"], elite["mean"], elite["solver_acc"]) == (1.0, 11.0, 11.0)  # the elite's own alone
    assert trained.score == 11.0


def test_the_entropy_of_a_round_is_over_its_tokens() -> None:
    """Not over its episodes: these are of unlike numbers of tokens."""
    regime, cohorts = regime_of({"language.stop": ["no such"]})

    class Chatty(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            most = 8 if uid.endswith("0") else 1
            outs = [await self.rollout_engine.get_model_response(CHAT, max_tokens=most) for _ in range(most)]
            return Episode(trajectories=[Trajectory(steps=[Step.from_model_output(out) for out in outs], reward=1.0)])

    regime.make = Chatty
    regime.adopt(cohorts)
    (cohort,) = cohorts
    done = regime.play(cohorts, regime._jobs(cohort, 0, 0), Purpose.GENERATE, 0)
    parts = [[e for part in each.entropies.values() for e in part] for each in done]
    assert len({len(part) for part in parts}) > 1
    regime.advance()
    (found,) = regime.measures.rows()
    assert found[2 + MEASURED.index("entropy")] == pytest.approx(float(np.mean(np.concatenate(parts))))


def test_metrics_and_lengths_of_a_validation_are_the_first_members_own() -> None:
    async def flow(task: dict[str, Any], model: Any) -> Any:
        out = await model.get_model_response(CHAT, max_tokens=3)
        made = Trajectory(steps=[Step.from_model_output(out, CHAT)], reward=float(model._slot))
        return Episode(trajectories=[made], metrics={"slot": float(model._slot), "own": task["n"]})

    trainer = AgentTrainer(
        flow=flow, config={**SMALL, "agents.samples": 3}, train_dataset=[{"n": 9}], val_dataset=[{"n": 1}, {"n": 4}],
        population=2,
    )  # fmt: skip
    spec, members, _ = trainer._begin()
    regime = trainer._regime(spec, Clock.of(spec, 2), None)
    played = regime.evaluate(spec.form(members), spec.seeds(Purpose.HELD_OUT, 2), lambda: False)
    assert (regime.last["slot"], regime.last["own"]) == (0.0, 2.5)
    assert (regime.last["pass@1"], regime.last["pass@3"]) == (0.0, 0.0), "the second one's are right"
    assert (played.returns.shape, len(regime.seen)) == ((2, 2), 12)
    # three samples of at most three tokens: their sum
    outs = [sum(len(s.model_output.completion_ids) for s in d.episode.trajectories[0].steps) for d in regime.seen]
    assert played.lengths.ravel().tolist() == np.array(outs).reshape(4, 3).sum(axis=1).tolist()
    turned = [*spec.form(members[1:]), *spec.form(members[:1])]  # their results are in the order of slots
    again = regime.evaluate(turned, spec.seeds(Purpose.HELD_OUT, 2), lambda: False)
    assert again.returns.tolist() == played.returns.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_members_learn_from_training_tasks_are_selected_on_validation_tasks_and_reported_on_all_of_them(
    tmp_path: Path,
) -> None:
    seen: dict[str, set[int]] = {}

    async def flow(task: dict[str, Any], model: Any) -> float:
        seen.setdefault("train" if model.how.temperature else "val", set()).add(task["n"])
        await model.get_model_response(CHAT)
        return float(task["n"])

    config = {
        **SMALL, "trainer.default_local_dir": str(tmp_path), "agents.record": "all", "trainer.total_training_steps": 2,
        "trainer.test_freq": 1, "train.eval_episodes": 2, "train.confirm_episodes": 2,
    }  # fmt: skip
    trained = AgentTrainer(
        flow=flow, config=config, train_dataset=[{"n": n} for n in range(4)],
        val_dataset=[{"n": n} for n in range(100, 107)], population=2,
    ).train()  # fmt: skip
    assert seen == {"train": set(range(4)), "val": set(range(100, 107))}

    def tasks(name: str) -> list[list[int]]:
        told = [json.loads(line) for line in (tmp_path / f"episodes/{name}.jsonl").read_text().splitlines()]
        return [[each["task"]["n"] for each in told if each["slot"] == slot] for slot in (0, 1)]

    for generation in (1, 2):
        first, second = tasks(f"validation-{generation:06d}")
        assert first == second  # all members on the same ones
        assert len(set(first)) == 2  # train.eval_episodes of them
    elite = next(each for each in tasks("elite") if each)
    assert elite == list(range(100, 107))  # and the elite on every one
    assert trained.evaluation["elite"]["mean"] == trained.score == 103.0


def test_an_interval_is_of_returns_and_tasks_are_played_by_their_names() -> None:
    tasks = [{"does": [float(n)]} for n in (-2.0, 6.0, 1.0)]
    trainer = AgentTrainer(workflow_class=Scored, config=SMALL, train_dataset=tasks, val_dataset=tasks)
    found = trainer.evaluate()
    assert (found["mean"], found["failed"]) == (pytest.approx(5 / 3), 0.0)
    assert [each["id"] for each in trainer.play()] == ["0:0", "1:0", "2:0"]
    assert [each["trajectories"][0]["reward"] for each in trainer.play(tasks[::-1])] == [1.0, 6.0, -2.0]


def test_what_a_runs_outcome_depends_on_is_in_the_key_of_its_checkpoints() -> None:
    def key(tasks: Any = ({"does": [1.0]},), val: Any = ({"does": [2.0]},), config: Any = None, **args: Any) -> str:
        given = {"workflow_args": args} if args else {}
        return AgentTrainer(
            workflow_class=Scored, config={**SMALL, **(config or {})}, train_dataset=tasks, val_dataset=val, **given
        )._key()

    keys = [
        key(), key(tasks=[{"does": [3.0]}]), key(val=[{"does": [3.0]}]), key(config={"agents.max_steps": 3}),
        key(config={"actor_rollout_ref.actor.optim.lr": 2e-3}), key(gamma=0.5), key(gamma=0.25),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key() == keys[0] == key(config={"trainer.default_local_dir": "elsewhere"})


# --- rows and advantages ----------------------------------------------------------------------------------------------


def output(prompt: list[int], ids: list[int], log_prob: float = -1.0) -> ModelOutput:
    return ModelOutput(prompt_ids=prompt, completion_ids=ids, logprobs=[log_prob - i for i in range(len(ids))])


def test_tokens_of_a_row_know_their_mask_their_step_and_their_log_probability() -> None:
    outs = [output([1, 2], [3, 4], -1.0), output([1, 2, 3, 4, 5], [6], -7.0), output([1, 2, 3, 9], [8], -9.0)]
    first, second = rows_of(Trajectory(steps=[Step(model_output=out) for out in [*outs[:2], outs[2]]]))
    assert (first.prompt, first.ids, first.mask) == ([1, 2], [3, 4, 5, 6], [True, True, False, True])
    assert (first.turn, first.log_prob) == ([0, 0, 1, 1], [-1.0, -2.0, 0.0, -7.0])
    assert (second.prompt, second.ids, second.turn) == ([1, 2, 3, 9], [8], [2])  # of the same length, and another chat
    (only,) = rows_of(Trajectory(steps=[Step(), Step(model_output=output([1], [2]))]))
    assert only.turn == [1]  # a step without tokens is one


def test_rows_of_unlike_members_have_their_own_trajectorys_reward_and_count() -> None:
    split = [Step(model_output=output([1], [2])), Step(model_output=output([7], [8]))]  # two rows
    plain = [Step(model_output=output([1], [3]))]
    members = [
        [
            RoundTrajectory(0, Trajectory(steps=split, reward=5.0), True),
            RoundTrajectory(0, Trajectory(steps=plain, reward=6.0), False),
        ],
        [RoundTrajectory(0, Trajectory(steps=plain, reward=7.0), True)],
    ]
    batch = batch_of(members, 0, words.CPU)
    assert batch.owner == [[0, 0, 1], [0]]
    assert batch.text.reward is not None
    assert batch.text.keep is not None
    assert batch.text.reward.tolist() == [[5.0, 5.0, 6.0], [7.0, 0.0, 0.0]]
    assert batch.text.keep.tolist() == [[True, True, False], [True, False, False]]
    assert batch.text.mask.sum(dim=-1).tolist() == [[1, 1, 1], [1, 0, 0]]


def compared(members: list[list[RoundTrajectory]], tasks: int, level: Any, algo: str = "grpo", **changes: Any) -> Any:
    made = algos.get(algo)
    cfg = made.Config(**{**({"dr": True} if algo == "grpo" else {}), **changes})
    beta = torch.full((len(members),), 0.5)

    def estimate(text: Text, group: int) -> Text:
        done: Text = made.estimate(cfg, {"beta": beta}, text, group)
        return done

    return batch_of(members, 0, words.CPU), AdvantageSettings(level, 0.5, {"": estimate})


def trajectory(rewards: list[float], task: int = 0, counts: bool = True, name: str = "agent") -> RoundTrajectory:
    """A row a step, of one token each."""
    steps = [Step(model_output=output([9 + i], [i + 1]), reward=r) for i, r in enumerate(rewards)]
    return RoundTrajectory(task, Trajectory(name=name, steps=steps, reward=sum(rewards)), counts)


def test_returns_of_turns_are_discounted_and_compared_among_those_that_count() -> None:
    members = [[
        trajectory([1.0, 4.0]), trajectory([3.0, 0.0]),
        # of task 1 one counts, and one failed: its second turn is nobody's but its own
        trajectory([2.0, 2.0], 1), trajectory([8.0], 1), trajectory([0.0, 6.0], 1, counts=False),
    ]]  # fmt: skip
    text, silent = advantages(*_batch(members, "turn", 2))
    assert text.advantage is not None
    assert text.keep is not None
    # G = r + G'/2: (3, 4), (3, 0): the first turns are alike, the second ±2; (3, 2), (8): ∓2.5, and R − mean = −2
    assert text.advantage[0, :, 0].tolist() == pytest.approx([0.0, 2.0, 0.0, -2.0, -2.5, -2.0, 2.5, 0.0, 0.0])
    # a trajectory of which any turn says something is kept, with all its rows; what failed is not
    assert text.keep[0].tolist() == [True] * 7 + [False] * 2
    assert silent == 0


def _batch(
    members: list[list[RoundTrajectory]], level: Any, tasks: int, **how: Any
) -> tuple[Any, int, AdvantageSettings]:
    batch, made = compared(members, tasks, level, **how)
    return batch, tasks, made


def test_groups_that_say_nothing_are_counted_and_no_places_without_trajectories() -> None:
    members = [
        [trajectory([1.0]), trajectory([1.0]), trajectory([1.0], 1), trajectory([3.0], 1)],
        [trajectory([2.0], 1), trajectory([5.0], 1), trajectory([7.0], 2), trajectory([7.0], 2)],
    ]
    text, silent = advantages(*_batch(members, "trajectory", 4))
    assert text.advantage is not None
    assert silent == 2  # of four groups; a third task of the first member, a fourth of both, are none
    assert text.advantage[..., 0].tolist() == [[0.0, 0.0, -1.0, 1.0], [-1.5, 1.5, 0.0, 0.0]]
    failed = [[trajectory([1.0], counts=False), trajectory([9.0], counts=False), trajectory([0.0]), trajectory([2.0])]]
    text, silent = advantages(*_batch(failed, "trajectory", 1))
    assert text.advantage is not None
    assert text.keep is not None
    assert text.advantage[0, :, 0].tolist() == [0.0, 0.0, -1.0, 1.0]
    assert text.keep[0].tolist() == [False, False, True, True]


def test_the_divergence_of_a_trajectory_is_over_all_its_rows() -> None:
    members = [[trajectory([1.0, 0.0]), trajectory([0.0, 0.0])]]
    batch, tasks, how = _batch(members, "trajectory", 1, algo="reinforce", baseline="rloo")
    # Σ log π − Σ log π_ref of the first: (−1 + 3) + (−1 + 2) = 3; of the second 0: returns 1 − 3/2 and 0
    reference = batch.text.log_prob.clone()
    reference[0, :2, 0] = torch.tensor([-3.0, -2.0])
    text, _ = advantages(replace(batch, text=replace(batch.text, reference=reference)), tasks, how)
    assert text.advantage is not None
    assert text.advantage[0, :, 0].tolist() == pytest.approx([-0.5, -0.5, 0.5, 0.5])


def test_the_divergence_that_is_measured_is_of_written_tokens() -> None:
    regime, (cohort,) = regime_of({})
    steps = [Step(model_output=output([1], [2, 3])), Step(model_output=output([1, 2, 3, 4], [5]))]
    played = [[RoundTrajectory(0, Trajectory(steps=steps, reward=1.0), True)]]
    text = batch_of(played, 0, words.CPU).text
    assert text.log_prob is not None
    text = replace(text, reference=text.log_prob + torch.tensor([0.1, 0.2, 50.0, 0.3]))
    done = [[Done(EpisodeJob(0, i, f"0:{i}", {}, Sampled()), Episode(), 1, {}) for i in range(2)]]
    regime._measure(cohort, text, done, [[0]], torch.zeros(1), 0)
    (row,) = regime.measures.rows()
    found = dict(zip(regime.measures.names, row[2:], strict=True))
    k3 = np.mean([np.exp(x) - x - 1 for x in (0.1, 0.2, 0.3)])
    assert found["kl"] == pytest.approx(k3, rel=1e-4)


# --- steps, workflows, environments -----------------------------------------------------------------------------------


def steps(rewards: list[float], **how: Any) -> list[float]:
    """What a workflow makes of the rewards of an episode's steps."""

    class Own(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            return Episode(trajectories=[Trajectory(steps=[Step(CHAT, reward=r) for r in rewards], reward=-99.0)])

    (done,) = play(partial(Own, **how))
    (found,) = done.episode.trajectories
    assert found.reward == sum(rewards)
    return [step.reward for step in found.steps]


def test_rewards_of_steps_become_bonuses_and_returns() -> None:
    assert steps([1.0, 4.0, 2.0]) == [1.0, 4.0, 2.0]
    assert steps([1.0, 4.0, 2.0], reward_bonus_coeff=0.5) == [1.0, 4.0 + 1.5, 2.0 - 1.0]
    assert steps([1.0, 4.0, 2.0], gamma=0.5) == [1 + (4 + 2 / 2) / 2, 4 + 2 / 2, 2.0]
    assert steps([3.0], gamma=0.5, reward_bonus_coeff=1.0) == [3.0]


def test_what_is_committed_stays_as_it_was_and_is_collected_once() -> None:
    class Two(Workflow):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.first, self.second = ChatAgent(name="first"), ChatAgent(name="second")

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            for agent in (self.first, self.second):
                agent.update_from_env("0", 0.0, False, {})
                agent.update_from_model("1")
            self.first.trajectory.steps[0].reward = 2.0
            self.commit("kept", agent=self.first)
            self.first.trajectory.steps[0].reward = 7.0
            self.first.update_from_model("2")

    (done,) = play(Two)
    told = [(each.name, [step.reward for step in each.steps]) for each in done.episode.trajectories]
    assert told == [("kept", [2.0]), ("second", [0.0])]
    assert [each.uid for each in done.episode.trajectories] == ["0:0:0", "0:0:1"]
    assert done.episode.metrics == {"kept_acc": 2.0, "second_acc": 0.0}


@pytest.mark.parametrize(("rewards", "correct"), [([0.0], False), ([-1.0, 1.0], False), ([-1.0, 3.0], True)])
def test_an_episode_is_right_by_a_positive_sum_and_its_roles_have_their_mean(
    rewards: list[float], correct: bool
) -> None:
    class Own(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            return Episode(trajectories=[Trajectory(reward=r) for r in rewards])

    (done,) = play(Own)
    assert done.episode.is_correct is correct
    assert done.episode.metrics == {"agent_acc": np.mean(rewards)}
    assert done.episode.reward == np.mean(rewards)


class Five(BaseEnv):
    """Ends as its task says at the second step, by Gymnasium's five values; its final reward is another."""

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any]) -> None:
        self.n, self.turn = task["n"], 0

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return "0", {}

    def step(self, action: Any) -> Any:
        self.turn += 1
        over = self.turn == 2
        return str(self.turn), 1.0, over and self.n == 1, over and self.n == 2, {"turn": self.turn}

    def compute_final_reward(self) -> float:
        return 5.0


def test_steps_of_an_environment_end_by_termination_truncation_or_their_number() -> None:
    make = partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=Five, max_steps=4)
    done = play(make, 3)
    told = [(each.episode.termination_reason, [s.reward for s in each.episode.trajectories[0].steps]) for each in done]
    most = TerminationReason.MAX_TURNS_EXCEEDED
    assert told == [(most, [1.0] * 4), (DONE, [1.0, 5.0]), (DONE, [1.0, 5.0])]
    assert [s.done for s in done[2].episode.trajectories[0].steps] == [False, True]
    assert [s.info["turn"] for s in done[0].episode.trajectories[0].steps] == [1, 2, 3, 4]


def test_tools_are_called_as_often_as_there_are_turns() -> None:
    env = ToolEnvironment({}, {"t": str}, lambda task, answer: 1.0, max_turns=2)
    assert [env.step({"tool": "t", "input": 1})[2] for _ in range(2)] == [False, True]


class Passing(BaseEnv):
    """Three turns of two agents that take turns; each turn rewards the one that waits."""

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any]) -> None:
        self.turn = 0

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return {"a": "0"}, {}

    def step(self, action: Any) -> Any:
        (who,) = action
        self.turn += 1
        other = "b" if who == "a" else "a"
        return {other: "0"}, {other: float(10**self.turn)}, self.turn == 4, {}


def test_rewards_that_come_while_an_agent_waits_are_its_last_steps_or_owed_to_its_first() -> None:
    (done,) = play(partial(TeamWorkflow, env_cls=Passing, max_steps=9, roles={"b": "second"}))
    told = {each.name: [s.reward for s in each.steps] for each in done.episode.trajectories}
    # a acts at 1 and 3, b at 2 and 4: 10 is owed to b, which gets it with 1000; 100 and 10000 are a's
    assert told == {"a": [100.0, 10000.0], "second": [1010.0, 0.0]}
    (cut,) = play(partial(TeamWorkflow, env_cls=Passing, max_steps=3))
    assert [len(each.steps) for each in cut.episode.trajectories] == [2, 1]
    assert cut.episode.termination_reason is TerminationReason.MAX_TURNS_EXCEEDED


class Owing(BaseEnv):
    """Rewards b twice before it acts, and twice after."""

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any]) -> None:
        self.turn = 0

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return {"a": "0"}, {}

    def step(self, action: Any) -> Any:
        self.turn += 1
        return {"b" if self.turn == 2 else "a": "0"}, {"b": float(10**self.turn)}, self.turn == 4, {}


def test_all_that_is_owed_to_an_agent_is_added_up() -> None:
    (done,) = play(partial(TeamWorkflow, env_cls=Owing, max_steps=9))
    (b,) = [each for each in done.episode.trajectories if each.name == "b"]
    assert [s.reward for s in b.steps] == [11110.0]


# --- the model --------------------------------------------------------------------------------------------------------


def asked(replies: list[list[int]], talk: Any, limits: Limits) -> list[Request]:
    seen: list[Request] = []

    async def submit(request: Request) -> Reply:
        seen.append(request)
        ids = replies[len(seen) - 1]
        return Reply(ids, [-1.0] * len(ids), [0.5] * len(ids))

    asyncio.run(talk(Model(Tokens(words.base()), submit, 0, 0, Sampled(), limits)))
    return seen


def test_limits_of_prompts_and_completions_hold_to_the_token() -> None:
    async def talk(model: Model) -> None:
        for limit in (None, 3, 8, 99):
            await model.get_model_response("12345", max_tokens=limit)
        with pytest.raises(Exception, match="max_prompt_length_exceeded"):
            await model.get_model_response("123456")
        with pytest.raises(Exception, match="max_response_length_exceeded"):
            await model.get_model_response("1", max_tokens=0)

    n = len(words.base().prompt("12345", False, None))
    assert [each.limit for each in asked([[8]] * 4, talk, Limits(n, 8))] == [8, 3, 8, 8]


def test_a_third_turn_goes_on_with_the_tokens_of_both_before() -> None:
    base = words.base()
    role, end = words.special("<|user|>")[0], base.ends[0]
    strange = [*base.encode("1"), role, end]  # its text is "1"

    async def talk(model: Model) -> None:
        chat = [{"role": "user", "content": "0"}]
        for said in ("2", "3", "4"):
            out = await model.get_model_response(chat)
            chat += [{"role": "assistant", "content": out.content}, {"role": "user", "content": said}]
            replies.append(list(model.prompt(chat).replies))

    replies: list[list[int]] = []
    seen = asked([strange] * 3, talk, Limits(99, 8))
    assert seen[1].ids == [*seen[0].ids, *strange, *words.special("<|user|>2<|end|><|assistant|>")]
    assert seen[2].ids == [*seen[1].ids, *strange, *words.special("<|user|>3<|end|><|assistant|>")]
    assert replies == [[1], [1, 3], [1, 3, 5]]


def test_a_completion_that_is_late_is_asked_again_as_often_as_retries_say() -> None:
    tried = 0

    async def submit(request: Request) -> Reply:
        nonlocal tried
        tried += 1
        if tried < 3:
            await asyncio.sleep(30)
        return Reply([8], [-1.0], [0.5])

    async def talk(retries: int) -> None:
        model = Model(Tokens(words.base()), submit, 0, 0, Sampled(), Limits(64, 4), 0.02, retries)
        await model.get_model_response("1")

    asyncio.run(talk(2))
    assert tried == 3
    tried = 0
    with pytest.raises(TimeoutError):
        asyncio.run(talk(1))
    assert tried == 2


def test_steps_of_equal_texts_are_different_completions() -> None:
    log = [output([1], [2], -1.0), output([1], [2], -3.0), output([1], [4], -5.0)]
    for out in log:
        out.text = "same"
    made = [Step(model_response="same", model_output=log[1]), Step(model_response="same"), Step(model_response="same")]
    episode = Episode(trajectories=[Trajectory(steps=made)])
    _know_outputs(episode, log)
    assert [step.model_output for step in made] == [log[1], log[0], log[2]]


# --- data, counts in words, budgets -----------------------------------------------------------------------------------


def test_rows_of_a_dataset_are_repeated_side_by_side_and_shuffled_by_seed() -> None:
    data = Dataset([{"n": n} for n in range(20)])

    def numbers(of: Dataset) -> list[int]:
        return [row["n"] for row in of]

    assert numbers(data.select([3, 1]).repeat(2)) == [3, 3, 1, 1]
    shuffled = [numbers(data.shuffle(seed)) for seed in (0, 1, 1)]
    assert shuffled[0] != shuffled[1] == shuffled[2]
    assert all(sorted(each) == list(range(20)) for each in shuffled)


def test_episodes_are_summed_up_by_episode_and_task() -> None:
    def told(uid: str, reward: float, right: bool, reason: str) -> dict[str, Any]:
        return {"id": uid, "trajectories": [{"reward": reward}], "is_correct": right, "termination_reason": reason}

    every = [told("a:1:0", 1.0, True, "env_done"), told("a:1:1", 0.0, False, "error"), told("2:0", 2.0, True, "error")]
    assert summary(every) == "3 episodes of 2 tasks, mean reward 1.0, 2 right; ended: error 2, env_done 1"
    assert (Episode("a:1:0").task_id, Episode("a:1:0").rollout_idx) == ("a:1", 0)


@pytest.mark.parametrize(
    ("given", "steps", "batch"),
    [
        ({"data.train_batch_size": 4, "trainer.total_epochs": 2}, 5, 32),  # ten tasks, four a step
        ({"data.train_batch_size": 4, "trainer.total_epochs": 1}, 3, 32),
        (
            {"data.train_batch_size": 4, "actor_rollout_ref.actor.ppo_mini_batch_size": 2, "trainer.total_epochs": 1},
            3,
            16,
        ),
    ],
)
def test_epochs_and_minibatches_are_counted_in_tasks(given: dict[str, Any], steps: int, batch: int) -> None:
    found = resolve({**given, "actor_rollout_ref.rollout.n": 8}, None, 10, "x").params
    assert (found.train.max_steps, found.algo_config.batch_size, found.algo_config.rows) == (steps, batch, 32)


@pytest.mark.parametrize(
    ("mode", "level"),
    [
        ({"mode": "per_step"}, "turn"),
        ({"mode": "broadcast"}, "trajectory"),
        ({"normalize_by_steps": True}, "step"),
        ({"mode": "per_step", "normalize_by_steps": True}, "turn"),
    ],
)
def test_stepwise_advantages_are_of_their_level(mode: dict[str, Any], level: str) -> None:
    given = {f"rllm.stepwise_advantage.{key}": value for key, value in mode.items()}
    assert resolve({**given, "rllm.stepwise_advantage.enable": True}, None, 10, "x").agents.advantage == level
