"""Games, environments, agents, datasets and what a round keeps, by hand: one slip changes a number of each test."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

import words
from asked import CHAT, model_of
from evopipe import AgentTrainer
from evopipe.agents import (
    CallingAgent,
    Dataset,
    Episode,
    MultiTurnEnvironment,
    Step,
    TerminationReason,
    Trajectory,
    Workflow,
    rounds,
)
from evopipe.agents.engine import Done, EpisodeJob, RolloutEngine
from evopipe.agents.environment import BaseEnv
from evopipe.agents.games import Calculator, CopyGame, FrozenLake, TwentyQuestions, WordGame
from evopipe.agents.model import Limits, Model, Reply, Request, Sampled, Tokens
from evopipe.agents.settings import Agents
from evopipe.agents.workflow import _blocks
from evopipe.rng import Purpose
from evopipe.run.clock import Clock

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 6, "actor_rollout_ref.rollout.n": 2,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True,
}  # fmt: skip


# --- games ------------------------------------------------------------------------------------------------------------


def test_each_digit_is_shown_once_and_pays_its_copy() -> None:
    env = CopyGame({"digits": "472"})
    for _ in range(2):
        assert env.reset() == ("4", {})
        assert env.step("4") == ("7", 1.0, False, {"turn": 1})
        assert env.step("4") == ("2", 0.0, False, {"turn": 2})
        assert env.step("2") == ({}, 1.0, True, {"turn": 3})
        assert env.history == ["4", "4", "2"]
    tasks = [CopyGame.tasks(3, seed, turns=5, alphabet="ab") for seed in (1, 1, 2)]
    assert tasks[0] == tasks[1] != tasks[2]
    assert all(len(task["digits"]) == 5 and set(task["digits"]) <= set("ab") for task in tasks[0])


def test_a_lake_counts_every_action_and_ends_at_its_limit_in_a_hole_or_at_the_goal() -> None:
    env = FrozenLake({"map": ["SFG", "FHF"]}, max_turns=3)
    assert env.reset() == ("PFG\nFHF", {})
    assert env.step("up") == ("PFG\nFHF", 0.0, False, {"legal": True})  # it stays on the lake
    assert env.step("?") == ("PFG\nFHF", 0.0, False, {"legal": False})
    assert env.step("jump") == ("PFG\nFHF", 0.0, True, {"legal": False})
    ends = (("rr", ("SFP\nFHF", 1.0, True)), ("rd", ("SFG\nFPF", 0.0, True)), ("rl", ("PFG\nFHF", 0.0, False)))
    for moves, told in ends:
        env.reset()
        assert [env.step(move)[:3] for move in moves][-1] == told
    env.reset()
    assert [env.step(move)[2] for move in "ddd"] == [False, False, True]
    assert env.shown() == "SFG\nPHF"


def test_slips_are_drawn_by_the_tasks_seed_which_is_0_where_it_has_none() -> None:
    def path(task: dict[str, Any] | None) -> list[str]:
        env = FrozenLake({"map": ["FFFFF", "FFFFF", "FFSFF", "FFFFF", "FFFFF"], **(task or {})}, slip=0.8)
        env.reset()
        return [env.step("right")[0] for _ in range(8)]

    assert path(None) == path({"seed": 0}) != path({"seed": 1})
    # Half of the slips go to one side: a step to the right at .9 goes on, at .1 up or down by what was drawn.
    draws = np.random.default_rng(0).random(8)
    env = FrozenLake({"map": ["F" * 20] * 9 + ["S" + "F" * 19] + ["F" * 20] * 9}, slip=0.8)
    env.reset()
    at = [9, 0]
    for u in draws:
        env.step("right")
        side = 0 if u >= 0.8 else 1 if u < 0.4 else -1
        at = [at[0] + side, at[1] + (side == 0)]
        assert env.place == tuple(at)


def test_a_wrong_word_costs_one_and_the_game_ends_with_the_right_one_or_its_turns() -> None:
    env = WordGame({"seed": 3}, words=["ab", "ba", "cc"], max_turns=3)
    assert env.reset() == ("??", {})
    assert env.step("zz") == ("not a word", -1.0, False, {"turn": 1})
    found: dict[str, Any] = {}
    for word in ("ab", "ba", "cc"):
        env.reset()
        found[word] = env.step(f" {word.upper()}\n")
    won = [word for word, (seen, reward, done, _) in found.items() if (seen, reward, done) == ({}, 0.0, True)]
    assert len(won) == 1, "the same word each time that the game begins"
    assert all(found[word][1:3] == (-1.0, False) for word in found if word not in won)
    env.reset()
    assert [env.step("zz")[2] for _ in range(3)] == [False, False, True]
    drawn = set()
    for seed in range(12):
        env = WordGame({"seed": seed}, words=["ab", "ba", "cc"])
        env.reset()
        drawn.add(env.step("ab")[1])
    assert drawn == {0.0, -1.0}


def test_the_first_known_word_is_asked_about_and_a_guess_is_one_word() -> None:
    env = TwentyQuestions({"secret": "y"}, max_turns=9, things={"x": "red big", "y": "big old", "z": "old"})
    env.reset()
    assert env.step("Is it OLD, not red?")[:3] == ("yes", 0.0, False)
    assert env.step("red or old?")[:2] == ("no", 0.0)
    assert env.step("blue?")[:2] == ("I do not know that word.", 0.0)
    assert env.step("x y")[:3] == ("no", 0.0, False)
    assert env.step("y y")[:3] == ("no", 0.0, False)
    assert env.step("y?")[:3] == ("I do not know that word.", 0.0, False)
    assert env.step(" Y.")[1:3] == (1.0, True)


def test_a_sum_is_answered_with_spaces_around_it_and_without_the_tool_too() -> None:
    for tool in (True, False):
        env = Calculator({"question": "7*8", "answer": 56}, tool=tool)
        env.reset()
        told = env.step({"tool": "calculator", "input": "7*8"})
        assert told[0] == {"tool_output": "56" if tool else "error: no tool calculator"}
        assert [env.step({"answer": text})[1] for text in (" 56\n", "57", "5 6")] == [1.0, 0.0, 0.0]
    numbers = {int(x) for task in Calculator.tasks(200, 1, 8, 9, "+") for x in task["question"].split("+")}
    assert numbers == {8, 9}


# --- environments, agents, datasets -----------------------------------------------------------------------------------


class Two(MultiTurnEnvironment):
    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        self.done = action == "end"
        return len(self.history) + 10.0 * self.current_turn, action


def test_turns_end_by_the_environment_or_by_their_number_and_begin_anew() -> None:
    env = Two({"a": 1}, max_turns=2)
    for _ in range(2):
        assert env.reset() == ({"a": 1}, {})
        assert env.step("x") == ("x", 1.0, False, {"turn": 1})
        assert env.step("y") == ({}, 12.0, True, {"turn": 2})
    env.reset()
    assert env.step("end") == ({}, 1.0, True, {"turn": 1})


def test_a_task_becomes_the_arguments_that_it_names_and_the_rest_of_it_the_task() -> None:
    class Env(BaseEnv):
        def __init__(self, task: dict[str, Any], size: int = 1) -> None:
            self.given = (task, size)

        def reset(self) -> Any: ...

        def step(self, action: Any) -> Any: ...

    assert Env.from_dict({"size": 3, "a": 1}).given == ({"a": 1}, 3)
    assert Env.from_dict({"task": {"b": 2}, "a": 1}).given == ({"b": 2}, 1)


@pytest.mark.parametrize(
    ("own", "reward", "how"),
    [(True, None, True), (False, None, False), ("process", None, "process"), (True, "process", "process"),
     (False, "process", False), (True, True, True)],
)  # fmt: skip
def test_where_code_runs_is_what_it_or_its_reward_function_says(own: Any, reward: Any, how: Any) -> None:
    class Env:
        blocking = own

        def reward_fn(self) -> None: ...

    if reward is not None:
        Env.reward_fn.blocking = reward  # type: ignore[attr-defined]
    assert _blocks(Env) == how


def test_tools_stay_offered_until_others_are_and_messages_of_an_observation_are_added() -> None:
    first, second = ({"type": "function", "function": {"name": name}} for name in "xy")
    agent = CallingAgent("S")
    agent.update_from_env([{"role": "user", "content": "a"}], 0.0, False, {"tools": [first]})
    agent.update_from_model("1")
    agent.update_from_env([{"role": "tool", "content": "b"}, {"role": "user", "content": "c"}], 0.0, False, {})
    assert [each["role"] for each in agent.chat_completions] == ["system", "user", "assistant", "tool", "user"]
    assert agent.offered == [first]
    agent.update_from_env("d", 0.0, False, {"tools": [second]})
    assert agent.offered == [second]
    assert agent.observation == "d"
    assert CallingAgent(show_tools=False).offered == []
    agent.reset()
    assert (agent.offered, [each["role"] for each in agent.chat_completions]) == ([], ["system"])


def test_parts_of_a_dataset_keep_its_names() -> None:
    data = Dataset([{"n": n} for n in range(4)], "sums", "test")
    for made in (data.repeat(2), data.shuffle(1), data.select([0])):
        assert (made.name, made.split) == ("sums", "test")


# --- the model --------------------------------------------------------------------------------------------------------


def test_a_chat_goes_on_where_it_was_last_answered_whatever_else_was_asked() -> None:
    model = model_of(lambda request: words.base().encode("5"), [])
    user = {"role": "user", "content": "1"}

    async def asked(chat: list[dict[str, Any]]) -> dict[str, Any]:
        return {"role": "assistant", "content": (await model.get_model_response(chat)).content}

    first = asyncio.run(asked(CHAT))
    other = asyncio.run(asked([user]))
    chat = [*CHAT, first, user]
    second = asyncio.run(asked(chat))
    assert model.prompt([*chat, second, user]).replies == [1, 3]
    assert model.prompt([*chat, second, user]).ids[: len(model.log[-1].prompt_ids)] == model.log[-1].prompt_ids
    assert model.prompt([user, other, user]).replies == [1]
    # Of two chats that it could be a change of, the one that it shares more with says whether it was edited.
    assert not model.prompt([*CHAT, first, {"role": "user", "content": "7"}]).edited
    assert model.prompt([{"role": "user", "content": "8"}, first, user]).edited
    assert not model.prompt([user, user]).edited


def test_the_tools_of_a_chat_are_part_of_what_makes_it_the_same() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2}}}
    same = {"function": {"parameters": {"b": 2, "a": 1}, "name": "f"}, "type": "function"}
    model = model_of(lambda request: words.base().encode("5"), [], Limits(4096, 4))

    async def talk() -> None:
        out = await model.get_model_response(CHAT, tools=[tool])
        chat = [*CHAT, {"role": "assistant", "content": out.content}, {"role": "user", "content": "1"}]
        found = [model.prompt(chat, tools) for tools in ([tool], [same], [])]
        assert [each.replies for each in found] == [[1], [1], ()]
        assert found[0].ids == found[1].ids
        # A message that says what tools there are stands before all others, where the template shows none.
        assert found[0].ids[: len(out.prompt_ids) + 1] == [*out.prompt_ids, *out.completion_ids]
        assert found[0].ids[len(out.prompt_ids) + 1 :] == words.special("<|end|><|user|>1<|end|><|assistant|>")
        assert len(model.prompt(CHAT, [tool]).ids) == model.prompt_length(CHAT, [tool]) > model.prompt_length(CHAT)

    asyncio.run(talk())


# --- rounds -----------------------------------------------------------------------------------------------------------


def regime_of(config: dict[str, Any] | None = None, population: Any = None) -> Any:
    async def flow(task: dict[str, Any], model: Any) -> float:
        await model.get_model_response(CHAT)
        return 1.0

    data = [{"n": n, "in": {"x": [n]}} for n in range(4)]
    trainer = AgentTrainer(flow=flow, config={**SMALL, **(config or {})}, train_dataset=data, population=population)
    spec, members, _ = trainer._begin()
    return trainer._regime(spec, Clock.of(spec, len(members)), None), spec.form(members)


def test_a_rounds_jobs_have_each_members_settings_and_tasks_of_their_own() -> None:
    regime, (cohort,) = regime_of(population=2)
    cohort.hyper["temperature"] = torch.tensor([0.5, 2.0])
    jobs = [*regime._jobs(cohort, 0, 0), *regime.validation(regime.tasks, [0, 1], range(4))]
    for job in jobs:
        job.task["in"]["x"].append(9)
    assert all(job.task["in"]["x"] == [job.task["n"], 9] for job in jobs)
    assert [task["in"]["x"] for task in regime.tasks] == [[n] for n in range(4)]


def test_limits_of_completions_leave_their_room_among_the_bases_places() -> None:
    regime, _ = regime_of({"data.max_prompt_length": 3000, "language.stop": ["x"]})
    assert regime.spec.base.places == 2048
    assert regime.limits == Limits(2048 - 6, 6, ("x",))
    regime, _ = regime_of({"data.max_prompt_length": 30})
    assert regime.limits == Limits(30, 6, ())


def test_an_elite_is_decoded_by_the_draws_of_validations() -> None:
    regime, (cohort,) = regime_of()
    ids = regime.tokens.prompt(CHAT)
    wave = [Request(0, job, call, ids, 6, Sampled(2.0), None) for job in (0, 1) for call in (0, 1)]  # type: ignore[arg-type]
    told = [each.ids for each in regime.decoder(cohort.members[0])(wave)]
    wanted = [each.ids for each in rounds._decode(regime.spec, [cohort], Purpose.EVALUATE, 0, wave)]
    other = [each.ids for each in rounds._decode(regime.spec, [cohort], Purpose.GENERATE, 0, wave)]
    assert told == wanted != other
    swapped = [Request(0, r.call, r.job, ids, 6, Sampled(2.0), None) for r in wave]  # type: ignore[arg-type]
    found = [each.ids for each in rounds._decode(regime.spec, [cohort], Purpose.EVALUATE, 0, swapped)]
    assert found[1] != told[1], "the second call of an episode is not the first of the second"


def test_what_was_measured_and_validated_comes_back() -> None:
    regime, cohorts = regime_of({"trainer.test_freq": 1})
    regime.adopt(cohorts)
    regime.advance()
    regime.evaluate(cohorts, regime.spec.seeds(Purpose.EVALUATE, 2), lambda: False)
    signals = regime.signals([0])
    again, others = regime_of({"trainer.test_freq": 1})
    again.adopt(others)
    assert again.restore({name: tensor.clone() for name, tensor in regime.state().items()}) == 0
    assert [*again.measures.rows()] == [*regime.measures.rows()] != []
    assert [*again.validated.rows()] == [*regime.validated.rows()] != []
    assert str(again.signals([0])) == str(signals)
    regime.close()
    again.close()


def test_a_second_look_at_members_is_no_validation(tmp_path: Path) -> None:
    regime, cohorts = regime_of({"agents.record": "validation"})
    regime.folder = tmp_path
    for purpose, rows in ((Purpose.CONFIRM, 0), (Purpose.HELD_OUT, 0), (Purpose.EVALUATE, 1)):
        regime.evaluate(cohorts, regime.spec.seeds(purpose, 2), lambda: False)
        assert len([*regime.validated.rows()]) == rows
    assert [path.name for path in tmp_path.iterdir()] == ["validation-000001.jsonl"]


def test_a_run_that_records_nothing_writes_nothing(tmp_path: Path) -> None:
    regime, cohorts = regime_of({"agents.record": "none"})
    regime.folder = tmp_path
    regime.adopt(cohorts)
    regime.advance()
    regime.evaluate(cohorts, regime.spec.seeds(Purpose.EVALUATE, 2), lambda: False)
    assert [*tmp_path.iterdir()] == []
    assert len([*regime.validated.rows()]) == 1


def test_the_first_error_is_told_with_its_task() -> None:
    regime, _ = regime_of({"agents.max_error_fraction": 0.0})
    regime.check([])

    def done(n: int, reason: TerminationReason) -> Done:
        info = {"error": {"error_type": "E", "error_message": f"at {n}"}}
        return Done(EpisodeJob(0, n, f"{n}:0", {}, Sampled()), Episode(f"{n}:0", {}, reason, info=info), 1, {})

    every = [done(0, TerminationReason.ENV_DONE), done(1, TerminationReason.TIMEOUT), done(2, TerminationReason.ERROR)]
    with pytest.raises(Exception, match=r"^2 of 3 episodes failed, .*the first, of task 1:0: E: at 1$"):
        regime.check(every)


# --- the engine -------------------------------------------------------------------------------------------------------


def play(make: Any, n: int = 1, **agents: Any) -> list[Done]:
    base = words.base()

    def decode(wave: Any) -> list[Reply]:
        return [Reply(base.encode("1"), [-1.0], [0.5]) for _ in wave]

    engine = RolloutEngine(make, Tokens(base), Limits(64, 4), decode, Agents(**{"retries": 0, **agents}), grace=0.1)
    return engine.run([EpisodeJob(0, i, f"{i}:0", {"n": i}, Sampled()) for i in range(n)])


@pytest.mark.parametrize(("own", "all_have"), [(0.1, 60.0), (60.0, 0.1), (0.1, None)])
def test_an_episode_has_the_shorter_of_its_workflows_time_and_that_of_all(own: float, all_have: float | None) -> None:
    class Slow(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            await asyncio.sleep(30)

    began = time.monotonic()
    (done,) = play(partial(Slow, timeout=own), episode_seconds=all_have)
    assert done.episode.termination_reason is TerminationReason.TIMEOUT
    assert time.monotonic() - began < 10


def test_episodes_begin_in_the_order_of_their_jobs() -> None:
    begun = []

    class Begins(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            begun.append(task["n"])
            await self.rollout_engine.get_model_response(CHAT)
            return Episode(trajectories=[Trajectory(steps=[Step(CHAT)])])

    done = play(Begins, 5, at_once=2)
    assert begun == [0, 1, 2, 3, 4] == [each.episode.task["n"] for each in done]


def test_a_step_made_of_a_text_alone_is_the_completion_with_that_whole_text() -> None:
    """Not the one whose text without calls it is; and each completion is one step's."""

    class Texts(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            model: Model = self.rollout_engine
            one, two = [await model.get_model_response(CHAT) for _ in range(2)]
            one.content = "2"
            one.text, two.text = "1", "2"
            steps = [Step(model_response="2"), Step(model_response="1"), Step(CHAT, model_response="1")]
            self.outs = [two, one, None]
            found.append((self.outs, steps))
            return Episode(trajectories=[Trajectory(steps=steps)])

    found: list[Any] = []
    (done,) = play(Texts)
    ((outs, _),) = found
    assert [step.model_output for step in done.episode.trajectories[0].steps] == outs
