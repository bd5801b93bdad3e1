"""Agents: episodes as tokens, advantages within groups, and what users' code may do without ending a run."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")


from typer.testing import CliRunner

import words
from evopipe import AgentTrainer, algos
from evopipe.agents import (
    BaseEnv,
    ChatAgent,
    CopyGame,
    Dataset,
    DatasetRegistry,
    Episode,
    GymEnvironment,
    Model,
    ModelOutput,
    MultiTurnWorkflow,
    Step,
    TerminationReason,
    ToolAgent,
    Trajectory,
    Workflow,
)
from evopipe.agents.engine import EpisodeJob, RolloutEngine
from evopipe.agents.games import Calculator, FrozenLake, WordGame, _calculate
from evopipe.agents.model import Limits, Reply, Request, Sampled, Tokens
from evopipe.agents.rows import AdvantageSettings, RoundTrajectory, advantages, batch_of, returns, rows_of
from evopipe.agents.settings import Agents
from evopipe.cli import app
from evopipe.compat.rllm.config import read, resolve
from evopipe.errors import DataError, EnvironmentFailed, MissingInputError, ParamsError
from evopipe.types import Text

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 4, "trainer.test_freq": 2,
    "train.eval_episodes": 4, "train.confirm_episodes": 4, "evaluate.bootstrap": 100, "agents.advantage": "turn",
}  # fmt: skip
TASKS = CopyGame.tasks(8)


def trainer(**changes: Any) -> AgentTrainer:
    config = {**SMALL, **changes.pop("config", {})}
    given = {"agent_class": ChatAgent, "env_class": CopyGame, "train_dataset": TASKS, "val_dataset": TASKS[:4]}
    return AgentTrainer(**{**given, "config": config, **changes})


# --- data -------------------------------------------------------------------------------------------------------------


def test_an_episode_comes_back_from_json_as_it_was() -> None:
    output = ModelOutput("7", "7", prompt_ids=[3, 4], completion_ids=[9], logprobs=[-0.5])
    step = Step([{"role": "user", "content": "7"}], "7", action="7", model_output=output, reward=1.0, done=True)
    episode = Episode(
        "4:1", {"digits": "7"}, TerminationReason.ENV_DONE, True, [Trajectory("u", steps=[step], reward=1.0)]
    )
    again = Episode.from_dict(json.loads(json.dumps(episode.to_dict())))
    assert again == episode
    assert (again.task_id, again.rollout_idx) == ("4", 1)


def test_a_registry_keeps_datasets_by_name_and_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = DatasetRegistry.register_dataset("copy", TASKS, "train")
    assert DatasetRegistry.load_dataset("copy", "train").data == made.data == TASKS
    assert made.get_verl_data_path() == str(tmp_path / "data/agents/copy/train.jsonl")
    assert Dataset(TASKS).get_data_path() is None
    assert (DatasetRegistry.get_dataset_names(), DatasetRegistry.get_dataset_splits("copy")) == (["copy"], ["train"])
    with pytest.raises(MissingInputError, match="did you mean 'train'"):
        DatasetRegistry.load_dataset("copy", "trian")
    assert DatasetRegistry.remove_dataset("copy")
    assert not DatasetRegistry.dataset_exists("copy")


# --- tokens -----------------------------------------------------------------------------------------------------------


def model(replies: list[list[int]], limits: Limits | None = None) -> tuple[Model, list[Request]]:
    """A model of which these are the completions, and what it is asked."""
    asked: list[Request] = []

    async def submit(request: Request) -> Reply:
        asked.append(request)
        ids = replies[len(asked) - 1]
        return Reply(ids, [-1.0] * len(ids), [0.5] * len(ids))

    return Model(Tokens(words.base()), submit, 0, 0, Sampled(), limits or Limits(64, 8)), asked


def test_the_length_of_a_prompt_counts_the_tools_that_are_offered() -> None:
    one, _ = model([])
    chat = [{"role": "user", "content": "7"}]
    tools = [{"type": "function", "function": {"name": "1", "parameters": {"properties": {"2": {}}}}}]
    assert one.prompt_length(chat, tools) == len(one.prompt(chat, tools).ids) > one.prompt_length(chat)


def test_a_chat_goes_on_with_the_tokens_that_were_written_and_not_with_their_text() -> None:
    base = words.base()
    end, role = base.ends[0], words.special("<|user|>")[0]
    strange = [*base.encode("1"), role, *base.encode("2"), end]  # its text is "12": no special token is told
    told, asked = model([strange, [9]])

    async def talk() -> None:
        chat = [{"role": "user", "content": "0"}]
        out = await told.get_model_response(chat)
        assert out.content == "12"
        chat += [{"role": "assistant", "content": out.content}, {"role": "user", "content": "3"}]
        await told.get_model_response(chat)

    asyncio.run(talk())
    first = base.prompt([{"role": "user", "content": "0"}], True, None)
    assert asked[0].ids == first
    assert asked[1].ids == [*first, *strange, *words.special("<|user|>3<|end|><|assistant|>")]
    steps = [Step(model_output=out) for out in told.log]
    (row,) = rows_of(Trajectory(steps=steps))
    assert [*row.prompt, *row.ids] == [*asked[1].ids, 9]
    assert [token for token, own in zip(row.ids, row.mask, strict=True) if own] == [*strange, 9]
    assert row.turn == [0] * 4 + [1] * 5


def test_a_completion_that_was_cut_is_ended_by_the_template_and_that_is_not_learned() -> None:
    base = words.base()
    told, asked = model([base.encode("12"), [9]])

    async def talk() -> None:
        chat = [{"role": "user", "content": "0"}]
        out = await told.get_model_response(chat)
        assert out.finish_reason == "length"
        await told.get_model_response([*chat, {"role": "assistant", "content": "12"}, {"role": "user", "content": "3"}])

    asyncio.run(talk())
    assert asked[1].ids[len(asked[0].ids) + 2] == base.ends[0]
    (row,) = rows_of(Trajectory(steps=[Step(model_output=out) for out in told.log]))
    assert sum(row.mask) == 3


def test_a_chat_that_was_changed_begins_a_row_of_its_own() -> None:
    told, _ = model([words.base().encode("12"), [9]])

    async def talk() -> None:
        await told.get_model_response([{"role": "user", "content": "0"}])
        await told.get_model_response([{"role": "user", "content": "1"}])

    asyncio.run(talk())
    assert len(rows_of(Trajectory(steps=[Step(model_output=out) for out in told.log]))) == 2


# --- advantages -------------------------------------------------------------------------------------------------------


def played(rewards: list[list[float]], task: int, name: str = "agent", counts: bool = True) -> list[RoundTrajectory]:
    """Trajectories of a task, of one token a step."""
    made = []
    for steps in rewards:
        own = [
            Step(model_output=ModelOutput(prompt_ids=[3], completion_ids=[8], logprobs=[-1.0]), reward=r) for r in steps
        ]
        made.append(RoundTrajectory(task, Trajectory(name=name, steps=own, reward=sum(steps)), counts))
    return made


def estimated(
    trajectories: list[RoundTrajectory], tasks: int, level: Any, gamma: float = 0.0
) -> tuple[list[Any], list[bool]]:
    grpo = algos.get("grpo")
    cfg = grpo.Config(dr=True)  # R − mean

    def estimate(text: Text, group: int) -> Text:
        done: Text = grpo.estimate(cfg, {}, text, group)
        return done

    batch = batch_of([trajectories], 0, words.CPU)
    text, _ = advantages(batch, tasks, AdvantageSettings(level, gamma, {"": estimate}))
    assert text.advantage is not None
    assert text.keep is not None
    return text.advantage[0, :, 0].tolist(), text.keep[0].tolist()


def test_groups_are_of_one_task_and_role_and_their_advantages_sum_to_0() -> None:
    solver = played([[1.0], [0.0], [1.0], [0.0]], 0, "solver") + played([[3.0], [5.0], [7.0], [9.0]], 1, "solver")
    judge = played([[10.0], [30.0], [20.0], [20.0]], 0, "judge")
    found, keep = estimated(solver + judge, 2, "trajectory")
    assert found == [0.5, -0.5, 0.5, -0.5, -3.0, -1.0, 1.0, 3.0, -10.0, 10.0, 0.0, 0.0]
    assert [sum(found[i : i + 4]) for i in (0, 4, 8)] == [0.0, 0.0, 0.0]
    assert all(keep)


def test_failed_episodes_and_groups_without_spread_teach_nothing() -> None:
    trajectories = played([[1.0], [0.0]], 0) + played([[9.0]], 0, counts=False) + played([[2.0], [2.0], [2.0]], 1)
    found, keep = estimated(trajectories, 2, "trajectory")
    assert found == [0.5, -0.5, 0.0, 0.0, 0.0, 0.0]
    assert keep == [True, True, False, False, False, False]


def test_turns_are_compared_with_the_same_turn_of_the_others() -> None:
    trajectories = played([[1.0, 0.0], [0.0, 4.0], [0.5]], 0)
    found, _ = estimated(trajectories, 1, "turn")
    assert found == pytest.approx([0.5, -2.0, -0.5, 2.0, 0.0])
    assert returns(trajectories[1].trajectory.steps, 0.5) == [2.0, 4.0]


def test_a_turn_that_no_other_took_has_its_trajectorys_advantage() -> None:
    found, _ = estimated(played([[1.0, 3.0], [0.0]], 0), 1, "turn")
    assert found == pytest.approx([0.5, 2.0, -0.5])


def test_steps_share_a_trajectorys_advantage() -> None:
    found, _ = estimated(played([[2.0, 2.0], [0.0, 0.0]], 0), 1, "step")
    assert found == pytest.approx([1.0, 1.0, -1.0, -1.0])


# --- engine -----------------------------------------------------------------------------------------------------------


class Nasty(BaseEnv):
    """Does what its task says; counts those that are open."""

    open = 0
    lock = threading.Lock()
    release = threading.Event()

    def __init__(self, task: dict[str, Any]) -> None:
        self.does = task["does"]
        with Nasty.lock:
            Nasty.open += 1

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return "0", {}

    def step(self, action: Any) -> Any:
        if self.does == "raise":
            raise RuntimeError("broken")
        if self.does == "hang":
            Nasty.release.wait(30)
        if self.does == "rubbish":
            return "what"
        return "", math.nan if self.does == "nan" else 1.0, True, {}

    def close(self) -> None:
        with Nasty.lock:
            Nasty.open -= 1


def engine(make: Any = None, **agents: Any) -> RolloutEngine:
    def decode(wave: Any) -> list[Reply]:
        return [Reply([8], [-1.0], [0.5]) for _ in wave]

    make = make or partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=Nasty, max_steps=2)
    return RolloutEngine(make, Tokens(words.base()), Limits(64, 4), decode, Agents(**{"retries": 0, **agents}))


def jobs(kinds: list[str]) -> list[EpisodeJob]:
    return [EpisodeJob(0, i, f"{i}:0", {"does": kind}, Sampled()) for i, kind in enumerate(kinds)]


def faults(n: int) -> dict[TerminationReason, int]:
    """Run so many episodes of which some hang, raise and return rubbish; return how many ended how."""
    kinds = ["hang"] * (n // 50) + ["raise"] * (n // 20) + ["rubbish"] * (n // 100)
    kinds += ["well"] * (n - len(kinds))
    before, Nasty.open = threading.active_count(), 0
    Nasty.release.clear()
    done = engine(env_seconds=0.5 if n == 100 else 5.0, at_once=n).run(jobs(kinds))
    Nasty.release.set()
    assert [each.job.place for each in done] == list(range(n))
    assert Nasty.open == 0  # hung ones are closed too
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before
    reasons = [each.episode.termination_reason for each in done]
    return {reason: reasons.count(reason) for reason in set(reasons)}  # type: ignore[misc]


@pytest.mark.parametrize("n", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_hangs_raises_or_returns_rubbish_fails_alone(n: int) -> None:
    found = faults(n)
    assert found == {
        TerminationReason.TIMEOUT: n // 50,
        TerminationReason.ERROR: n // 20 + n // 100,
        TerminationReason.ENV_DONE: n - n // 50 - n // 20 - n // 100,
    }


def test_a_failed_episode_is_tried_again_and_says_what_went_wrong() -> None:
    (one,) = engine(retries=2).run(jobs(["nan"]))
    assert one.attempts == 3
    assert "the reward nan, which is no finite number" in one.episode.info["error"]["error_message"]


def test_no_more_episodes_run_than_asked_for() -> None:
    seen: list[int] = []

    class Counted(Workflow):
        live = 0

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            Counted.live += 1
            seen.append(Counted.live)
            await self.rollout_engine.get_model_response([{"role": "user", "content": "0"}])
            Counted.live -= 1

    done = engine(Counted, at_once=3).run(jobs(["well"] * 8))
    assert len(done) == 8
    assert max(seen) == 3


def test_all_that_wait_are_answered_in_one_wave() -> None:
    made = engine()
    made.run(jobs(["well"] * 20))
    assert made.waves == 1


def test_an_episode_that_takes_too_long_ends_alone() -> None:
    class Slow(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            await asyncio.sleep(30)

    (one,) = engine(Slow, episode_seconds=0.05).run(jobs(["well"]))
    assert one.episode.termination_reason is TerminationReason.TIMEOUT


# --- trainer ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_agents_workflows_and_functions_are_one_run() -> None:
    async def flow(task: dict[str, Any], told: Model) -> list[float]:
        chat, rewards = [], []
        for digit in task["digits"]:
            chat.append({"role": "user", "content": digit})
            said = (await told.get_model_response(chat)).content
            chat.append({"role": "assistant", "content": said})
            rewards.append(float(said == digit))
        return rewards

    none = {"agent_class": None, "env_class": None}
    args = {"agent_cls": ChatAgent, "env_cls": CopyGame}
    ways = [
        trainer(),
        trainer(**none, workflow_class=MultiTurnWorkflow, workflow_args=args),
        trainer(**none, flow=flow),
    ]
    found = [way.train() for way in ways]
    assert found[0].measures == found[1].measures == found[2].measures
    assert all(each["drift"] < 1e-4 for each in found[0].measures)
    assert found[0].policy is not None
    assert found[0].evaluation["elite"]["pass@1"] <= 1


@pytest.mark.parametrize("name", ["agent_class", "agent_args", "env_class", "env_args"])
@pytest.mark.parametrize("config", [None, {"rllm.workflow.use_workflow": True}])
def test_a_workflow_takes_its_agent_and_environment_among_its_arguments(name: str, config: Any) -> None:
    instead = {"agent_class": "agent_cls", "env_class": "env_cls"}.get(name, name)
    with pytest.raises(ValueError, match=rf"^{name} is not supported when using workflow, .*\['{instead}'\]$"):
        AgentTrainer(MultiTurnWorkflow, config=config, train_dataset=TASKS, **{name: {}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"env_args": {"tasks": 1}}, ValueError, "CopyGame takes no argument 'tasks', did you mean 'task'"),
        ({"agent_args": {"nome": 1}}, ValueError, "did you mean 'name'"),
        ({"env_class": None}, ValueError, "env_class is missing"),
        ({"env_class": ChatAgent}, ValueError, "it has no step, close, from_dict"),
        ({"agent_class": None, "env_class": None, "workflow_class": dict}, ValueError, "must be a subclass"),
        ({"agent_class": None, "env_class": None}, ValueError, "there is nothing to train"),
        ({"train_dataset": []}, DataError, "train_dataset: is empty"),
        ({"train_dataset": ["a"]}, DataError, "row 0 is of type str"),
        ({"engine": "rya"}, ValueError, "none of auto, local, ray"),
        ({"config": {"actor_rollout_ref.rollout.n": 1}}, ParamsError, "must be at least 2"),
        ({"config": {"data.train_batchsize": 1}}, ParamsError, "did you mean 'data.train_batch_size'"),
        ({"config": {"agents.max_step": 1}}, ParamsError, "agents.max_step: unknown key, did you mean 'max_steps'"),
        ({"config": {"language.engine": "vllm", "language.full": False}}, ParamsError, "leave it at transformers"),
        ({"population": {"sizes": 3}}, ParamsError, "did you mean 'size'"),
    ],
)
def test_what_cannot_be_used_is_said(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        trainer(**changes)


def test_fields_that_a_dataset_lacks_end_the_run_with_a_sentence() -> None:
    with pytest.raises(EnvironmentFailed, match="KeyError: 'digits'"):
        trainer(train_dataset=[{"digit": "1"}], config={"agents.retries": 0}).train()


@pytest.mark.parametrize(
    "config",
    [
        {"data.train_batch_size": 8, "rllm.agent.max_steps": 7},
        {"data": {"train_batch_size": 8}, "rllm": {"agent": {"max_steps": 7}}},
        ["data.train_batch_size=8", "+rllm.agent.max_steps=7"],
    ],
)
def test_configurations_of_any_form_say_the_same(config: Any, tmp_path: Path) -> None:
    found = resolve(config, None, 10, "x")
    assert (found.agents.max_steps, found.params.algo_config.rows) == (7, 64)
    path = tmp_path / "config.yaml"
    path.write_text("data: {train_batch_size: 8}\nrllm: {agent: {max_steps: 7}}\nnew: {key: 1}\n")
    assert read(path)[0] == {"data.train_batch_size": 8, "rllm.agent.max_steps": 7, "new.key": 1}
    told, whole = read([str(path), "new.key=2"])  # later ones win, and every key is asked for
    assert (told["new.key"], told["rllm.agent.max_steps"], whole) == (2, 7, False)


def test_what_has_no_meaning_here_is_said_once_and_the_rest_is_explained() -> None:
    told = trainer(config={"ray_init.num_cpus": 4, "trainer.n_gpus_per_node": 8}).explain()
    assert told.count("ray_init.num_cpus: has no meaning here") == 1
    assert told.count("trainer.n_gpus_per_node: has no meaning here: one device") == 1
    assert "train.max_steps = 4  (trainer.total_training_steps=4)" in told
    assert "algos.grpo.rows = 8  (data.train_batch_size=2 × actor_rollout_ref.rollout.n=4)" in told
    assert "agents.workers = 64  (default)" in told


SEARCHES = {
    "tournament": {},
    "growth": {"search.budget": 80},
    "halving": {"search.budget": 80, "search.halving": {"eta": 2}},
    "random": {"search.budget": 80},
}


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", SEARCHES)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(strategy: str, tmp_path: Path) -> None:
    """And keeps the episodes of every round, though members that live by turns are of one age again and again."""

    class Stop(Exception):
        pass

    def run(folder: Path, at: int | None = None) -> Any:
        made = trainer(
            config={
                "trainer.default_local_dir": str(folder),
                "runtime.checkpoint_seconds": 1e-9,
                "agents.record": "all",
                "search.strategy": strategy,
                "algos.grpo.evolve": {"lr": {"min": 1e-4, "max": 1e-1}},
                **SEARCHES[strategy],
            },
            population=2,
        )
        if at is not None:
            regime = made._regime

            def failing(*args: Any) -> Any:
                found = regime(*args)
                advance = found.advance

                def once(most: int = 1) -> None:
                    if found.clock.ticks == at:
                        raise Stop
                    advance(most)

                found.advance = once
                return found

            made._regime = failing  # type: ignore[method-assign]
            with pytest.raises(Stop):
                made.train()
            return None
        return made.train()

    whole = run(tmp_path / "whole")
    run(tmp_path / "cut", at=3)
    again = run(tmp_path / "cut")
    assert again.measures == whole.measures
    assert again.validated == whole.validated
    left = written(tmp_path / "whole")
    assert written(tmp_path / "cut") == left
    rounds = json.loads(left["reports/train.json"])["steps"]["training"]
    alive = 2 if strategy in ("tournament", "random") else 1
    assert len([name for name in left if "episodes/train-" in name]) == rounds // alive


def written(folder: Path) -> dict[str, bytes]:
    """What a run leaves, but for its state and the time that it took."""
    files = [path for part in ("models", "reports", "episodes") for path in sorted((folder / part).rglob("*.*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name != "timing.csv"}


MODULE = """
import evopipe
from evopipe.agents import ChatAgent, CopyGame

def make(config):
    tasks = CopyGame.tasks(4)
    return evopipe.AgentTrainer(agent_class=ChatAgent, env_class=CopyGame, config=config, train_dataset=tasks)
"""


@pytest.mark.thorough
def test_a_trainer_is_used_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "copying_agent.py").write_text(MODULE)
    overrides = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]

    def call(*words: str) -> str:
        told = CliRunner().invoke(app, ["--quiet", "agent", *words], catch_exceptions=False)
        assert told.exit_code == 0
        return told.stdout

    elite = json.loads(call("train", "copying_agent:make", *overrides))["elite"]
    assert elite["agent_acc"] == pytest.approx(elite["mean"])  # a workflow's own metric of its only role
    assert 0.0 <= elite["pass@1"] <= 1.0
    assert json.loads(call("evaluate", "copying_agent:make", *overrides))["failed"] == 0
    assert "agents.max_steps = 9  (agents.max_steps=9)" in call("explain", "copying_agent:make", "agents.max_steps=9")
    DatasetRegistry.register_dataset("copy", TASKS)
    assert call("datasets") == "copy: default\n"


# --- what is ready ----------------------------------------------------------------------------------------------------


def test_a_tool_is_called_by_json_and_any_other_text_is_the_answer() -> None:
    agent, env = ToolAgent(), Calculator({"question": "12*34", "answer": "408"})
    agent.update_from_env(env.reset()[0], 0.0, False, {})
    action = agent.update_from_model('so {"tool": "calculator", "input": "12*34"}').action
    observation, reward, done, _ = env.step(action)
    assert (observation, reward, done) == ({"tool_output": "408"}, 0.0, False)
    agent.update_from_env(observation, reward, done, {})
    assert agent.chat_completions[-1] == {"role": "tool", "content": "408"}
    assert env.step(agent.update_from_model("408").action)[1:3] == (1.0, True)
    assert env.call("calculator", "__import__('os')") == "error: only whole numbers with + - * //"


def test_what_is_no_sum_is_answered_without_a_warning() -> None:
    env = Calculator({"question": "12*34", "answer": "408"})
    assert [env.call("calculator", text) for text in ("2or", "12(3)", "1_0", "2**9", "")] == [
        "error: only whole numbers with + - * //",
        "error: only whole numbers with + - * //",
        "error: only whole numbers with + - * //",
        "error: only whole numbers with + - * //",
        "error: only whole numbers with + - * //",
    ]
    assert [env.call("calculator", text) for text in ("-(7 - 2)*3", "07")] == [
        "-15", "error: cannot be calculated (SyntaxError)"
    ]  # fmt: skip


def test_tasks_of_a_calculator_are_of_its_numbers_and_operators() -> None:
    tasks = Calculator.tasks(200, 3, 5, 7, "+-")
    assert {task["question"][1] for task in tasks} == {"+", "-"}
    assert {int(task["question"][place]) for task in tasks for place in (0, 2)} == {5, 6, 7}
    assert all(int(task["answer"]) == _calculate(task["question"]) for task in tasks)
    assert {task["answer"] for task in tasks} == {"-2", "-1", "0", "1", "2", "10", "11", "12", "13", "14"}


def test_a_slip_goes_to_either_side_and_slips_are_those_of_the_tasks_seed() -> None:
    def walk(seed: int, slip: float) -> list[str]:
        env = FrozenLake({"map": ["FFF", "FSF", "FFF"], "seed": seed}, slip)
        env.reset()
        return [env.step("up")[0], env.step("left")[0]]

    first = [walk(seed, 1.0)[0] for seed in range(40)]
    assert set(first) == {"FFF\nPSF\nFFF", "FFF\nFSP\nFFF"}  # of up: left or right, never up
    assert first == [walk(seed, 1.0)[0] for seed in range(40)]
    assert {walk(seed, 0.0)[1] for seed in range(5)} == {"PFF\nFSF\nFFF"}
    env = FrozenLake({"map": ["FFFFF", "FFSFF", "FFFFF"], "seed": 3}, 0.5)
    once, again = ([env.reset()[0], *(env.step("up")[0] for _ in range(9))] for _ in range(2))
    assert once == again, "each episode's slips are those of its seed"
    env = FrozenLake(max_turns=2)
    env.reset()
    assert [env.step("no such")[2], env.step("up")[2]] == [False, True]


def test_a_lake_is_crossed_by_words() -> None:
    env = FrozenLake()
    assert env.reset()[0] == "PFFF\nFHFH\nFFFH\nHFFG"
    steps = [env.step(move) for move in ("down", "down", "right", "down", "right", "right")]
    assert [step[1:3] for step in steps] == [(0.0, False)] * 5 + [(1.0, True)]
    env.reset()
    assert [env.step(move)[1:3] for move in ("right", "jump", "down")] == [(0.0, False), (0.0, False), (0.0, True)]


def test_words_are_guessed_by_their_colours() -> None:
    """Of two words the second guess is right at the latest; what is no word tells nothing, and counts."""
    for seed in range(8):
        env = WordGame.from_dict({"seed": seed, "words": ["abba", "baba"], "max_turns": 3})
        assert env.reset() == ("????", {})
        assert env.step("abab") == ("not a word", -1.0, False, {"turn": 1})
        seen, reward, over, _ = env.step(" ABBA ")
        assert (seen, reward, over) == (({}, 0.0, True) if over else ("yygg", -1.0, False))
        if not over:
            assert env.step("baba")[1:3] == (0.0, True)
    env = WordGame(WordGame.tasks(1)[0], max_turns=1)
    assert env.step("xx") == ({}, -1.0, True, {"turn": 1})
    assert set(WordGame().vocabulary.letters) == set("abcd")


def test_a_gymnasium_environment_speaks_and_takes_actions_by_name() -> None:
    env = GymEnvironment.from_dict({
        "seed": 1, "id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"], "kwargs": {"is_slippery": False},
    })  # fmt: skip
    assert env.reset()[0] == "0"
    assert env.step("jump")[0] == "no action 'jump'; there are left, down, right, up"
    assert [env.step(move)[:3] for move in ("Down", "right")] == [("4", 0.0, False), ("5", 0.0, True)]
    env.close()


def test_an_environment_that_reads_its_own_arguments_may_be_given_any() -> None:
    class Own(CopyGame):
        @classmethod
        def from_dict(cls, info: Any) -> Own:
            return cls({"digits": info["digits"] * info["times"]})

    assert trainer(env_class=Own, env_args={"times": 2}).env_args == {"times": 2}
