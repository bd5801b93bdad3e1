"""Groups of a round by hand: which say something, which give way to others, and what is measured where nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

import words
from evopipe import AgentTrainer, algos
from evopipe.agents import Episode, ModelOutput, Step, TerminationReason, Trajectory
from evopipe.agents.engine import Done, EpisodeJob
from evopipe.agents.model import Sampled
from evopipe.agents.rows import AdvantageSettings, RoundTrajectory, advantages, batch_of, rows_of
from evopipe.run.clock import Clock
from evopipe.types import Text

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 8, "actor_rollout_ref.rollout.n": 2,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True,
}  # fmt: skip


def regime_of(config: dict[str, Any], tasks: int = 12) -> Any:
    async def flow(task: dict[str, Any], model: Any) -> float:
        return 1.0

    trainer = AgentTrainer(flow=flow, config={**SMALL, **config}, train_dataset=[{"n": n} for n in range(tasks)])
    spec, members, _ = trainer._begin()
    return trainer._regime(spec, Clock.of(spec, len(members)), None), spec.form(members)


def job(place: int) -> EpisodeJob:
    return EpisodeJob(0, place, f"{place}:0", {}, Sampled())


def ended(place: int, *rewards: float, reason: str = "env_done", names: str = "aaa") -> Done:
    parts = [Trajectory(name=name, reward=reward) for name, reward in zip(names, rewards, strict=False)]
    return Done(job(place), Episode(trajectories=parts, termination_reason=TerminationReason(reason)), 1, {})


def test_a_group_says_something_if_rewards_of_a_role_differ_among_what_counts() -> None:
    regime, _ = regime_of({"agents.mask": ["max_turns_exceeded"]})
    assert not regime._says([])
    assert not regime._says([ended(0, 1.0), ended(1, 1.0)])
    assert regime._says([ended(0, 1.0), ended(1, 2.0)])
    assert regime._says([ended(0, 1.0, 2.0)])
    assert not regime._says([ended(i, 1.0, 2.0, names="ab") for i in range(2)])  # each role's are equal
    for reason in ("error", "timeout", "max_turns_exceeded"):
        assert not regime._says([ended(0, 1.0), ended(1, 2.0, reason=reason)])
    assert regime._says([ended(0, 1.0), ended(1, 2.0, reason="unknown")])


def test_a_member_without_a_row_has_nothing_effective() -> None:
    regime, (cohort,) = regime_of({})
    batch = batch_of([[]], 0, words.CPU)
    assert batch.owner == [[]]
    regime._measure(cohort, batch.text, [[ended(place, 1.0 + place) for place in range(4)]], [[]], torch.zeros(1), 3)
    (row,) = regime.measures.rows()
    found = dict(zip(regime.measures.names, row[2:], strict=True))
    told = {name: found[name] for name in ("reward", "effective", "silent", "turns", "length", "entropy", "kl", "cut")}
    assert told == {"reward": 2.5, "effective": 0.0, "silent": 3.0, "turns": 0.0, "length": 0.0, "entropy": 0.0,
                    "kl": "", "cut": 0.0}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "cut", "failed"),
    [("max_prompt_length_exceeded", 1, 0), ("max_turns_exceeded", 0, 0), ("timeout", 0, 1), ("error", 0, 1)],
)
def test_what_a_limit_of_tokens_ended_is_cut_and_what_is_masked_has_not_failed(
    reason: str, cut: int, failed: int
) -> None:
    regime, (cohort,) = regime_of({"agents.mask": ["max_prompt_length_exceeded", "max_turns_exceeded"]})
    done = [ended(place, 1.0, reason=reason if place else "env_done") for place in range(4)]
    regime._measure(cohort, batch_of([[]], 0, words.CPU).text, [done], [[]], torch.zeros(1), 0)
    (row,) = regime.measures.rows()
    told = dict(zip(regime.measures.names, row[2:], strict=True))
    assert (told["cut"], told["failed"]) == (0.75 * cut, 0.75 * failed)


@pytest.mark.parametrize(("record", "taken"), [("validation", [0, 0, 1]), ("all", [1, 1, 1]), ("none", [0, 0, 0])])
def test_of_a_generation_the_last_rounds_tokens_are_written(record: str, taken: list[int], tmp_path: Path) -> None:
    regime, _ = regime_of({"agents.record": record})
    clock, found, done = regime.clock, [], [[ended(0, 1.0)]]
    assert not regime._sample(done)  # there is no folder
    regime.folder, clock.each, clock.total = tmp_path, 3, 9
    for here in range(3):
        clock.here = clock.tick = here
        found.append(len(regime._sample(done)))
    assert found == taken


def output(prompt: list[int], ids: list[int]) -> ModelOutput:
    return ModelOutput(prompt_ids=prompt, completion_ids=ids, logprobs=[-1.0] * len(ids))


def test_a_step_goes_on_with_the_row_before_it_and_not_with_an_earlier_one() -> None:
    outs = [output([1], [2]), output([7], [8]), output([7, 8, 9], [3]), output([1, 2, 5], [6])]
    first, second, third = rows_of(Trajectory(steps=[Step(model_output=out) for out in outs]))
    assert (first.prompt, first.ids, first.turn) == ([1], [2], [0])
    assert (second.prompt, second.ids, second.turn) == ([7], [8, 9, 3], [1, 2, 2])
    assert (third.prompt, third.ids, third.turn) == ([1, 2, 5], [6], [3])


def trajectory(reward: float, task: int, ids: list[int] | None = None) -> RoundTrajectory:
    return RoundTrajectory(task, Trajectory(reward=reward, steps=[Step(model_output=output([9], ids or [1]))]), True)


def estimates(seen: list[Text], members: int = 1) -> AdvantageSettings:
    grpo = algos.get("grpo")

    def estimate(text: Text, group: int) -> Text:
        seen.append(text)
        done: Text = grpo.estimate(grpo.Config(dr=True), {"beta": torch.zeros(members)}, text, group)
        return done

    return AdvantageSettings("trajectory", 1.0, {"": estimate})


def test_groups_of_unlike_sizes_are_each_compared_and_counted() -> None:
    played = [[trajectory(1.0, 0), trajectory(1.0, 0), *(trajectory(r, 1) for r in (0.0, 0.0, 3.0))]]
    seen: list[Text] = []
    text, silent = advantages(batch_of(played, 0, words.CPU), 2, estimates(seen))
    assert silent == 1  # of two trajectories, where the other has three
    assert text.advantage is not None
    assert text.advantage[0, :, 0].tolist() == [0.0, 0.0, -1.0, -1.0, 2.0]
    (given,) = seen
    assert given.reward is not None
    assert given.keep is not None
    assert given.log_prob is not None
    assert given.reward.tolist() == [[1.0, 1.0, 0.0, 0.0, 0.0, 3.0]]
    assert given.keep.tolist() == [[True, True, False, True, True, True]]
    assert given.mask[0, :, 0].tolist() == given.real[0, :, 0].tolist() == given.keep[0].tolist()
    assert given.log_prob[0, :, 0].tolist() == [-1.0, -1.0, 0.0, -1.0, -1.0, -1.0]


def test_a_trajectory_without_tokens_is_compared_with_a_log_probability_of_0() -> None:
    nothing = RoundTrajectory(0, Trajectory(reward=4.0, steps=[Step()]), True)
    seen: list[Text] = []
    batch = batch_of([[nothing, trajectory(2.0, 0, [1, 2])]], 0, words.CPU)
    assert batch.owner == [[1]]
    text, silent = advantages(batch, 1, estimates(seen))
    assert text.advantage is not None
    assert (text.advantage[0, 0].tolist(), silent) == ([-1.0, -1.0], 0)
    (given,) = seen
    assert given.log_prob is not None
    assert given.log_prob[0, :, 0].tolist() == [0.0, -2.0]
    assert given.reference is None
