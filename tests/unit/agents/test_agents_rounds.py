"""Rounds of agents: budgets of workflows, masks, estimators of roles, and what is measured, by hand."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, ClassVar

import pytest

pytest.importorskip("transformers")

import words
from evopipe import AgentTrainer, algos
from evopipe.agents import (
    ChatAgent,
    CopyGame,
    CumulativeWorkflow,
    Episode,
    ModelOutput,
    MultiTurnEnvironment,
    MultiTurnWorkflow,
    SingleTurnWorkflow,
    Step,
    Trajectory,
    Workflow,
)
from evopipe.agents.engine import EpisodeJob, RolloutEngine
from evopipe.agents.model import Limits, Reply, Sampled, Tokens
from evopipe.agents.rows import AdvantageSettings, RoundTrajectory, advantages, batch_of
from evopipe.agents.settings import Agents
from evopipe.errors import DataError, ParamsError
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.types import Text

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 1, "trainer.test_freq": 1,
    "train.eval_episodes": 2, "train.confirm_episodes": 2, "evaluate.bootstrap": 100,
}  # fmt: skip


class Talk(MultiTurnEnvironment):
    """Says 1 as often as it is asked."""

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task, max_turns=9)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        return "1", {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        return 1.0, "1"


def play(kind: Any, lengths: list[int], limit: int) -> tuple[Episode, list[int]]:
    """Play one episode whose completions have these lengths; return it, and the most tokens that each might have."""
    asked: list[int] = []

    def decode(wave: Any) -> list[Reply]:
        (request,) = wave
        asked.append(request.limit)
        n = min(request.limit, lengths[len(asked) - 1])
        ended = n < request.limit
        ids = [*words.base().encode("2" * (n - ended)), *([words.base().ends[0]] * ended)]
        return [Reply(ids, [-1.0] * n, [0.5] * n)]

    make = partial(kind, agent_cls=ChatAgent, env_cls=Talk)
    engine = RolloutEngine(make, Tokens(words.base()), Limits(99, limit), decode, Agents(retries=0))
    return engine.run([EpisodeJob(0, 0, "0:0", {}, Sampled())])[0].episode, asked


def test_all_that_follows_the_first_prompt_has_the_length_of_one_response() -> None:
    # 3 tokens are written, and the next turn's <|user|>1<|end|><|assistant|> are 4: of 12 are left 5, then none.
    episode, asked = play(CumulativeWorkflow, [3, 9], 12)
    assert asked == [12, 5]
    assert episode.termination_reason is not None
    assert episode.termination_reason.value == "max_response_length_exceeded"
    assert [step.reward for step in episode.trajectories[0].steps] == [1.0, 1.0]
    episode, asked = play(CumulativeWorkflow, [3, 2], 7)  # nothing is left for a second one
    assert (asked, len(episode.trajectories[0].steps)) == ([7], 1)


def test_a_workflow_of_one_turn_asks_once() -> None:
    episode, asked = play(SingleTurnWorkflow, [2, 2], 6)
    assert (asked, episode.trajectories[0].reward) == ([6], 1.0)


def test_a_role_has_the_advantages_of_its_own_algorithm() -> None:
    def of(name: str, **changes: Any) -> Any:
        algo = algos.get(name)

        def estimate(text: Text, group: int) -> Text:
            done: Text = algo.estimate(algo.Config(**changes), {}, text, group)
            return done

        return estimate

    def played(name: str, rewards: list[float]) -> list[RoundTrajectory]:
        step = ModelOutput(prompt_ids=[3], completion_ids=[8], logprobs=[-1.0])
        return [
            RoundTrajectory(0, Trajectory(name=name, steps=[Step(model_output=step)], reward=r), True) for r in rewards
        ]

    both = played("solver", [1.0, 0.0, 0.0, 3.0]) + played("judge", [1.0, 0.0, 0.0, 3.0])
    how = AdvantageSettings("trajectory", 0.0, {"": of("grpo", dr=True), "judge": of("reinforce", baseline="rloo")})
    text, _ = advantages(batch_of([both], 0, words.CPU), 1, how)
    assert text.advantage is not None
    # R − mean; and R − mean of the others: 1 − 1, 0 − 4/3, 0 − 4/3, 3 − 1/3
    assert text.advantage[0, :, 0].tolist() == pytest.approx([0, -1, -1, 2, 0, -4 / 3, -4 / 3, 8 / 3], abs=1e-6)


class Parity(Workflow):
    """A rollout is right by its number: what is measured does not depend on what is written."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        chat = [{"role": "user", "content": "1"}]
        step = Step.from_model_output(await self.rollout_engine.get_model_response(chat), chat)
        rollout = int(uid.rpartition(":")[2])
        good = rollout < task["right"]
        if task["right"] == 3 and rollout == 3:
            raise RuntimeError("no")
        return Episode(trajectories=[Trajectory(steps=[step], reward=float(good))], is_correct=good)


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        # tasks of the round: each of 4 rollouts; shares of tasks with none and all right, of rows that say something
        ((0, 4), {"correct": 0.5, "none": 0.5, "all": 0.5, "effective": 0.0, "silent": 2.0, "failed": 0.0}),
        ((1, 1), {"correct": 0.25, "none": 0.0, "all": 0.0, "effective": 1.0, "silent": 0.0, "failed": 0.0}),
        # rollouts 0 to 2 are right, the last one fails: three equal rewards say nothing
        ((3, 3), {"correct": 0.75, "none": 0.0, "all": 0.0, "effective": 0.0, "silent": 2.0, "failed": 0.25}),
    ],
)
@pytest.mark.thorough
def test_a_round_is_measured_as_by_hand(right: tuple[int, int], expected: dict[str, float]) -> None:
    tasks = [{"right": n} for n in right]
    config = {**SMALL, "agents.retries": 0}
    trained = AgentTrainer(
        workflow_class=Parity, config=config, train_dataset=tasks, val_dataset=[{"right": 1}]
    ).train()
    (measures,) = trained.measures
    assert {name: measures[name] for name in expected} == expected


@pytest.mark.thorough
def test_tasks_whose_rewards_are_all_equal_give_way_to_others() -> None:
    """A round has 2 tasks and may draw 3 times 2 others: half of these say something."""
    tasks = [{"right": 2 * (n % 2)} for n in range(40)]
    found = {}
    for redraws in (0, 3):
        config = {**SMALL, "trainer.total_training_steps": 6, "trainer.test_freq": 6, "algos.grpo.redraws": redraws}
        trained = AgentTrainer(workflow_class=Parity, config=config, train_dataset=tasks, val_dataset=tasks[:1]).train()
        (found[redraws],) = trained.measures
    assert found[0]["silent"] > 0.5
    assert "redrawn" not in found[0]
    assert found[3]["silent"] < 0.25
    assert found[3]["redrawn"] > 0.25
    assert found[3]["correct"] > found[0]["correct"]


def test_pass_at_1_and_at_k_are_of_tasks_and_samples() -> None:
    tasks = [{"right": n} for n in (0, 1, 4, 2)]
    config = {**SMALL, "agents.samples": 4}
    found = AgentTrainer(workflow_class=Parity, config=config, train_dataset=tasks, val_dataset=tasks).evaluate()
    assert (found["pass@1"], found["pass@4"], found["mean"]) == (7 / 16, 3 / 4, 7 / 16)


def test_members_are_selected_on_validation_tasks_and_reported_on_test_tasks() -> None:
    """Tasks name themselves: of validation no rollout is right, of the test every one."""
    config = {**SMALL, "train.eval_episodes": 4}
    tasks = {name: [{"right": right, "n": n} for n in range(4)] for name, right in (("val", 0), ("test", 4))}
    trained = AgentTrainer(
        workflow_class=Parity, config=config, train_dataset=[{"right": 2}], val_dataset=tasks["val"],
        test_dataset=tasks["test"],
    ).train()  # fmt: skip
    assert [row["mean"] for row in trained.validated] == [0.0]
    assert (trained.score, trained.evaluation["elite"]["pass@1"]) == (1.0, 1.0)
    assert trained.evaluation["elite"]["pass@1_interval"] == pytest.approx([0.5101, 1.0], abs=1e-4)


def test_tasks_that_are_learned_from_are_told_left_out_or_an_error() -> None:
    tasks = [{"right": n, "n": n} for n in range(6)]

    def made(overlap: str, val: Any = tasks[3:]) -> AgentTrainer:
        return AgentTrainer(
            workflow_class=Parity, config={**SMALL, "agents.overlap": overlap}, train_dataset=tasks[:4],
            val_dataset=val, test_dataset=tasks[2:],
        )  # fmt: skip

    kept = made("keep")
    assert kept.val_dataset is not None
    assert kept.test_dataset is not None
    assert (len(kept.val_dataset), len(kept.test_dataset)) == (3, 4)
    says = "val_dataset: 1 of 3 tasks are in train_dataset, too"
    assert says in kept.resolved.notes
    assert "test_dataset: 3 of 4 tasks are in val_dataset, too" in kept.resolved.notes
    apart = made("leave_out", tasks[3:5])
    assert apart.val_dataset is not None
    assert apart.test_dataset is not None
    assert (apart.val_dataset.data, apart.test_dataset.data) == (tasks[4:5], tasks[5:])
    with pytest.raises(DataError, match=rf"{says} \(rows 0\): remove them"):
        made("error")
    with pytest.raises(DataError, match="2 of 2 tasks are in train_dataset, too, and none is left"):
        made("leave_out", tasks[:2])


@pytest.mark.parametrize(("mask", "effective"), [([], 1.0), (["unknown"], 0.0)])
def test_episodes_of_a_masked_reason_teach_nothing(mask: list[str], effective: float) -> None:
    config = {**SMALL, "agents.mask": mask}
    trained = AgentTrainer(workflow_class=Parity, config=config, train_dataset=[{"right": 2}]).train()
    assert trained.measures[0]["effective"] == effective


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"agents.estimators": {"judge": "dpo"}}, "'dpo' compares no rewards; take grpo or reinforce"),
        ({"agents.estimators": {"judge": "grpo"}, "algorithm.adv_estimator": "gae"}, "ppo_language learns values"),
    ],
)
def test_estimators_that_cannot_be_are_said(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        AgentTrainer(workflow_class=Parity, config={**SMALL, **config}, train_dataset=[{"right": 1}])
    trainer = AgentTrainer(
        workflow_class=Parity, train_dataset=[{"right": 1}],
        config={**SMALL, "algorithm.adv_estimator": "gae", "agents.advantage": "turn"},
    )  # fmt: skip
    assert "agents.advantage: no meaning with ppo_language, which learns values" in trainer.resolved.notes


def test_a_text_that_stops_a_completion_is_no_part_of_it_and_its_tokens_stay() -> None:
    asked: list[Any] = []

    def decode(wave: Any) -> list[Reply]:
        asked.extend(wave)
        ids = words.base().encode("1231")
        return [Reply(ids, [-1.0] * 4, [0.5] * 4) for _ in wave]

    class Own(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            chat = [{"role": "user", "content": "7"}]
            out = await self.rollout_engine.get_model_response(chat)
            assert (out.content, out.text, out.finish_reason) == ("12", "12", "stop")
            chat += [{"role": "assistant", "content": out.content}, {"role": "user", "content": "8"}]
            out = await self.rollout_engine.get_model_response(chat, stop="4")
            assert (out.content, out.finish_reason) == ("1231", "length")
            await self.rollout_engine.get_model_response("7", stop=["4", ""])

    engine = RolloutEngine(Own, Tokens(words.base()), Limits(99, 4, ("9", "3")), decode, Agents(retries=0))
    (one,) = engine.run([EpisodeJob(0, 0, "0:0", {}, Sampled())])
    told = one.episode.info["error"]["error_message"]
    assert told == "get_model_response: stop=['4', ''] is no text, or several, none of them empty"
    first, second = asked
    assert (first.stop, second.stop) == (("9", "3"), ("4",))
    whole = [*first.ids, *words.base().encode("1231")]
    assert second.ids[: len(whole)] == whole


def test_the_texts_that_stop_completions_of_a_run_stop_those_of_its_agents() -> None:
    said: dict[Any, list[tuple[list[str], str, str]]] = {None: [], (): []}

    async def flow(task: dict[str, Any], model: Any) -> float:
        for stop, told in said.items():
            out = await model.get_model_response([{"role": "user", "content": task["q"]}], stop=stop)
            texts = [model.tokens.base.decode([token]) for token in out.completion_ids]
            told.append((texts, out.content, out.finish_reason))
        return 1.0

    config = {**SMALL, "data.max_response_length": 8, "language.stop": list("01234"), "agents.temperature": 1.0}
    AgentTrainer(flow=flow, config=config, train_dataset=[{"q": str(n)} for n in range(10)]).evaluate()
    ends = set("01234")
    for (*before, last), content, reason in said[None]:
        assert not set(before) & ends
        assert content == "".join(before) + ("" if last in ends else last)
        assert reason == "stop" or last not in ends
    assert any(texts[-1] in ends for texts, _, _ in said[None])
    assert any(set(texts[:-1]) & ends for texts, _, _ in said[()])  # an empty list stops at nothing


@pytest.mark.thorough
def test_workflows_at_once_take_a_fifth_of_the_time_that_they_take_one_by_one() -> None:
    tasks, seconds = CopyGame.tasks(64), {}
    for at_once in (64, 1):
        trainer = AgentTrainer(
            workflow_class=MultiTurnWorkflow,
            workflow_args={"agent_cls": ChatAgent, "env_cls": CopyGame},
            config={
                "data.max_response_length": 4, "language.tiny.characters": "0123456789", "language.full": True,
                "agents.at_once": at_once,
            },
            train_dataset=tasks,
        )  # fmt: skip
        spec, members, _ = trainer._begin()
        regime = trainer._regime(spec, Clock.of(spec, 1), None)
        jobs, cohorts = regime.validation(tasks, [0], range(64)), spec.form_alone(members[0])
        regime.play(cohorts, jobs[:1], Purpose.EVALUATE, 0)  # all is loaded
        start = time.perf_counter()
        found = regime.play(cohorts, jobs, Purpose.EVALUATE, 0)
        seconds[at_once] = time.perf_counter() - start
        assert sum(len(each.episode.trajectories[0].steps) for each in found) == 64 * 3
    assert seconds[64] <= seconds[1] / 5, seconds


@pytest.mark.parametrize(("most", "said"), [(2047, None), (2048, "has places for 2048 tokens; lower it")])
def test_responses_that_leave_a_prompt_no_place_are_refused_at_the_start(most: int, said: str | None) -> None:
    from evopipe.agents import SingleTurnEnvironment

    config = {**SMALL, "data.max_response_length": most}
    trainer = AgentTrainer(
        agent_class=ChatAgent, env_class=SingleTurnEnvironment, config=config,
        train_dataset=[{"question": "1", "answer": "1"}] * 2,
        env_args={"reward_fn": lambda task, action: 0.0},
    )  # fmt: skip
    spec, members, _ = trainer._begin()
    if said is None:
        trainer._regime(spec, Clock.of(spec, len(members)), None).close()
        return
    with pytest.raises(ParamsError, match=f"data.max_response_length: completions of {most} tokens leave no .*{said}"):
        trainer._regime(spec, Clock.of(spec, len(members)), None)
