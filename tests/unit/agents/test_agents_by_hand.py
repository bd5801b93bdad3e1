"""Parts of completions and episodes by hand: limits, rewards, records, copies, JSON and time."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")


import words
from asked import CHAT, model_of
from evopipe.agents import (
    CallingAgent,
    ChatAgent,
    Episode,
    ModelOutput,
    Step,
    TerminationEvent,
    TerminationReason,
    ToolAgent,
    Trajectory,
    records,
    rounds,
)
from evopipe.agents.engine import Done, EpisodeJob, RolloutEngine, _check, _late, _Turns
from evopipe.agents.model import Limits, Request, Sampled, Tokens, back_off
from evopipe.agents.rows import TokenRow, returns
from evopipe.agents.settings import Agents
from evopipe.agents.workflow import number
from evopipe.regimes.samples import rounded

# --- completions ------------------------------------------------------------------------------------------------------


def test_attempts_wait_twice_as_long_each_time_and_at_most_five_seconds() -> None:
    assert [back_off(i) for i in (0, 1, 2, 6, 7, 99)] == [0.05, 0.1, 0.2, 3.2, 5.0, 5.0]


@pytest.mark.parametrize(
    ("how", "fits"),
    [
        ({"temperature": 0.0}, True), ({"temperature": 100.0}, True), ({"temperature": 100.1}, False),
        ({"temperature": -0.1}, False), ({"temperature": "hot"}, False), ({"top_k": 0}, True), ({"top_k": 10**9}, True),
        ({"top_k": 10**9 + 1}, False), ({"top_p": 1.0}, True), ({"top_p": 0.1}, True), ({"top_p": 0.0}, False),
        ({"top_p": 1.1}, False), ({"stop": "x"}, True), ({"stop": ["x", "y"]}, True), ({"stop": ["x", ""]}, False),
        ({"stop": [3]}, False),
    ],
)  # fmt: skip
def test_settings_of_a_completion_have_their_ranges(how: dict[str, Any], fits: bool) -> None:
    seen: list[Request] = []
    asking = model_of(lambda request: [8], seen).get_model_response("1", **how)
    if fits:
        asyncio.run(asking)
        (request,) = seen
        assert (request.slot, request.job, request.place, request.draw) == (3, 7, 0, None)
        assert request.how == Sampled()._replace(**{k: v for k, v in how.items() if k != "stop"})
        stop = how.get("stop", ())
        assert request.stop == ((stop,) if isinstance(stop, str) else tuple(stop))
    else:
        with pytest.raises(ValueError, match="get_model_response"):
            asyncio.run(asking)
        assert not seen


def test_a_completion_ends_by_its_last_token_by_a_text_or_by_its_length() -> None:
    base = words.base()
    replies = iter([base.encode("12"), [*base.encode("1"), base.ends[0]], base.encode("123"), []])
    model = model_of(lambda request: next(replies), [])

    async def talk() -> list[ModelOutput]:
        return [await model.get_model_response("1", stop=stop) for stop in (None, None, "2", None)]

    outs = asyncio.run(talk())
    assert [(out.text, out.finish_reason) for out in outs] == [
        ("12", "length"), ("1", "stop"), ("1", "stop"), ("", "length"),
    ]  # fmt: skip
    assert [len(out.completion_ids) for out in outs] == [2, 2, 3, 0]
    assert model.log == outs
    assert [out.content for out in outs] == [out.text for out in outs]
    assert [out.logprobs for out in outs] == [[-1.0, -2.0], [-1.0, -2.0], [-1.0, -2.0, -3.0], []]
    assert {tuple(out.prompt_ids) for out in outs} == {tuple(base.prompt("1", False, None))}
    assert [model.entropies[id(out)] for out in outs] == [[0.5] * n for n in (2, 2, 3, 0)]
    assert model.name == "3-7"


def test_an_answer_that_the_model_did_not_write_makes_a_chat_an_edited_one() -> None:
    model = model_of(lambda request: words.base().encode("5"), [])
    first = asyncio.run(model.get_model_response(CHAT))
    user, own = {"role": "user", "content": "1"}, {"role": "assistant", "content": first.content}
    foreign = {"role": "assistant", "content": "7"}

    def told(chat: list[dict[str, Any]]) -> tuple[bool, list[int]]:
        prompt = model.prompt(chat)
        return prompt.edited, list(prompt.replies)

    assert told([*CHAT, own, user]) == (False, [1])
    assert told([*CHAT, own, user, foreign, user]) == (True, [1])
    assert told([*CHAT, foreign, user]) == (True, [])
    assert told([user]) == told([user, user]) == (False, [])
    assert told([{"role": "user", "content": "9"}, foreign, user]) == (True, [])
    anew = model_of(lambda request: [8], [])
    assert not anew.prompt([*CHAT, foreign, user]).edited  # a task may begin with a talk


# --- episodes ---------------------------------------------------------------------------------------------------------


def test_numbers_are_rewards_up_to_their_bound() -> None:
    class Found:
        reward = 2.5

    assert [number(x, None) for x in (1, True, 0.5, 10**16, -1e16, Found())] == [1.0, 1.0, 0.5, 1e16, -1e16, 2.5]
    for wrong, text in ((10**400, "beyond"), (-1.1e16, "beyond"), (math.nan, "no finite"), (math.inf, "no finite"),
                        ("1", "no finite"), (None, "no finite")):  # fmt: skip
        with pytest.raises(ValueError, match=f"len gave the reward .* {text}"):
            number(wrong, len)


def test_an_episode_is_made_of_plain_values() -> None:
    step = Step(reward=True)
    episode = Episode(is_correct=1, termination_reason="timeout", metrics={3: True},  # type: ignore[arg-type,dict-item]
                      trajectories=[Trajectory(name=4, reward=2, steps=[step])])  # type: ignore[arg-type]  # fmt: skip
    _check(episode, None)  # type: ignore[arg-type]
    assert episode.is_correct is True
    assert episode.termination_reason is TerminationReason.TIMEOUT
    assert episode.metrics == {"3": 1.0}
    (made,) = episode.trajectories
    assert (made.name, made.reward, type(made.reward), type(step.reward)) == ("4", 2.0, float, float)
    with pytest.raises(TypeError, match=r"NoneType.postprocess_episode returned dict"):
        _check({}, None)  # type: ignore[arg-type]


def test_values_are_json_and_what_has_no_such_form_is_its_text() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    class Scalar:
        ndim = 0

        def item(self) -> float:
            return 1.5

    deep: list[Any] = []
    deep.append(deep)
    task = {
        "x": (1, math.nan, -math.inf),
        3: Scalar(),
        "odd": Odd(),
        "set": {1},
        "made": Step,
        "array": np.arange(2),
    }
    made = Episode("a:b:12", task, TerminationReason.ERROR, info={"deep": deep})
    told = made.to_dict()
    assert told["task"] == {
        "x": [1, None, None], "3": 1.5, "odd": "<Odd>", "set": "{1}", "made": repr(Step),
        "array": "array([0, 1])",
    }  # fmt: skip
    assert (told["termination_reason"], made.task_id, made.rollout_idx) == ("error", "a:b", 12)
    levels, at = 0, told["info"]["deep"]
    while isinstance(at, list):
        (at,), levels = at, levels + 1
    assert (levels, at) == (62, "[[...]]")


def test_what_was_written_is_read_again_as_it_was() -> None:
    out = ModelOutput(text="t", prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5], finish_reason="length")
    assert (out.prompt_length, out.completion_length) == (2, 1)
    steps = [Step(model_output=out, reward=0.5, done=True), Step()]
    made = Episode(
        "1:0", {"n": 1}, TerminationReason.ENV_DONE, True, [Trajectory("u", "n", None, steps, 2.0)], {"m": 1.0}
    )
    told = made.to_dict()
    assert Episode.from_dict({**json.loads(json.dumps(told)), "unknown": 1}) == made
    assert Episode.from_dict({"id": "2:0"}).termination_reason is None


def test_the_reward_of_an_episode_is_the_mean_of_its_trajectories() -> None:
    assert Episode().reward == 0.0
    assert Episode(trajectories=[Trajectory(reward=1.0), Trajectory(reward=4.0)]).reward == 2.5


def test_returns_are_discounted_from_the_end_and_kept_in_the_steps() -> None:
    made = [Step(reward=r) for r in (1.0, 0.0, 4.0)]
    assert returns(made, 0.5) == [2.0, 2.0, 4.0]
    assert [step.mc_return for step in made] == [2.0, 2.0, 4.0]
    assert returns([], 0.5) == []


def test_a_task_is_copied_at_all_depths_and_other_objects_are_shared() -> None:
    thing = object()
    task = {"a": [{"b": [1, thing]}], "c": (1, 2)}
    made = rounds.own(task)
    assert made == task
    made["a"][0]["b"].append(3)
    assert task["a"] == [{"b": [1, thing]}]
    assert made["a"][0]["b"][1] is thing


def test_metrics_are_means_over_the_episodes_that_have_them() -> None:
    assert rounds._means([{"b": 1, "a": 3.0}, {"b": 4}, {}]) == {"a": 3.0, "b": 2.5}
    assert list(rounds._means([{"b": 1, "a": 3.0}])) == ["a", "b"]


def test_turns_and_tokens_of_an_episode_are_those_of_all_its_trajectories() -> None:
    steps = [Step(model_output=ModelOutput(prompt_ids=[1], completion_ids=[2] * n)) for n in (3, 4)]
    episode = Episode(trajectories=[Trajectory(steps=[*steps, Step()]), Trajectory(steps=steps[:1])])
    done = Done(EpisodeJob(0, 0, "0:0", {}, Sampled()), episode, 1, {})
    assert (rounds._turns(done), rounds._length(done)) == (4, 10)
    assert records.reason(done) == "unknown"


def test_a_record_knows_its_member_its_attempts_and_whether_it_counts() -> None:
    out = ModelOutput(
        prompt_ids=words.base().encode("1"), completion_ids=words.base().encode("23"), logprobs=[-1.0, -2.0]
    )
    episode = Episode("4:1", {}, TerminationReason.TIMEOUT, trajectories=[Trajectory(steps=[Step(model_output=out)])])
    done = Done(EpisodeJob(2, 0, "4:1", {}, Sampled()), episode, 3, {})
    found = records.record(done, words.base(), {"timeout"})
    assert (found["slot"], found["attempts"], found["counts"], found["id"]) == (2, 3, False, "4:1")
    assert records.record(done, words.base(), {"error"})["counts"]
    (row,) = found["trajectories"][0]["rows"]
    assert row == [{"text": "1", "written": False, "step": 0}, {"text": "23", "written": True, "step": 0}]
    assert [rounded(x) for x in (1.0000049, -math.inf, math.nan)] == [1.0, None, None]
    assert rounded(0.123456) == 0.12346


def test_the_prompt_of_a_later_row_is_shown_at_the_step_that_it_began_at() -> None:
    base = words.base()
    row = TokenRow(base.encode("1"), base.encode("23"), [True, True], [2, 2], [-1.0, -2.0])
    assert records._pieces(row, base) == [
        {"text": "1", "written": False, "step": 2}, {"text": "23", "written": True, "step": 2},
    ]  # fmt: skip
    assert records._pieces(TokenRow(base.encode("1")), base) == [{"text": "1", "written": False, "step": 0}]


def test_rounds_are_numbered_without_zeros_in_front(tmp_path: Path) -> None:
    for name in ("train-000009", "train-000010", "train-000011", "train-000012", "validation-000003"):
        (tmp_path / f"{name}.jsonl").touch()
    found = {name: path.name for name, path in records.files_of(tmp_path, 11).items()}
    assert found == {
        "Validation 3": "validation-000003.jsonl", "Last round of training": "train-000011.jsonl",
        "Round 10 of training": "train-000010.jsonl", "Round 9 of training": "train-000009.jsonl",
    }  # fmt: skip
    records.thin(tmp_path, 11, 1)
    assert sorted(path.stem for path in tmp_path.glob("train*")) == ["train-000011", "train-000012"]


# --- agents -----------------------------------------------------------------------------------------------------------


def test_a_step_has_the_chat_up_to_its_completion_and_what_it_answers() -> None:
    agent = ToolAgent(system_prompt="s", name="me")
    assert agent.get_current_state() is None
    agent.update_from_env({"question": "q"}, 0.0, False, {})
    action = agent.update_from_model('x {"tool": "t", "input": [1]} y')
    agent.update_from_env({"tool_output": 5}, 1.0, False, {})
    agent.update_from_env("end", 1.0, True, {})  # nobody reads it
    last = agent.update_from_model("a")
    first, second = agent.trajectory.steps
    assert agent.get_current_state() is second
    chat = [
        {"role": "system", "content": "s"}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": 'x {"tool": "t", "input": [1]} y'}, {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "a"},
    ]  # fmt: skip
    assert (first.chat_completions, second.chat_completions, agent.chat_completions) == (chat[:3], chat, chat)
    assert (first.observation, second.observation) == ({"question": "q"}, {"tool_output": 5})
    assert (first.model_response, second.model_response) == (chat[2]["content"], "a")
    assert first.action == action.action == {"tool": "t", "input": [1]}
    assert second.action == last.action == {"answer": "a"}
    agent.reset()
    assert (agent.chat_completions, agent.trajectory.steps, agent.trajectory.name) == (chat[:1], [], "me")


def test_observations_and_calls_of_any_form_are_read() -> None:
    agent = ToolAgent()
    assert [agent.act(text) for text in ("[1]", '{"tool": 3}', "{", '{"tool": "t"}')] == [
        {"answer": "[1]"}, {"answer": '{"tool": 3}'}, {"answer": "{"}, {"tool": "t", "input": ""},
    ]  # fmt: skip
    told = [
        ChatAgent().message(each) for each in ({"x": {1}}, {"text": "t", "prompt": "p"}, {"role": "tool", "a": 1}, 7)
    ]
    assert told == [
        {"role": "user", "content": '{"x": "{1}"}'}, {"role": "user", "content": "p"}, {"role": "tool", "a": 1},
        {"role": "user", "content": "7"},
    ]  # fmt: skip
    assert agent.message("tool_output") == {"role": "user", "content": "tool_output"}


@pytest.mark.parametrize("show", [True, False])
def test_tools_are_called_by_the_templates_format_with_ids_of_their_place_in_the_chat(show: bool) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    agent = CallingAgent(show_tools=show)
    agent.update_from_env([{"role": "user", "content": "a"}, "b"], 0.0, False, {"tools": [tool]})
    assert agent.offered == ([tool] if show else [])
    assert agent.chat_completions == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    text = 'so <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    action = agent.update_from_model(text).action
    (call,) = action["calls"]
    assert (action["content"], call["name"], call["arguments"]) == ("so", "f", {"x": 1})
    spoken = agent.chat_completions[-1]
    assert spoken["content"] == ("so" if show else text)
    assert [each["id"] for each in spoken.get("tool_calls", [])] == ([call["id"]] if show else [])
    (step,) = agent.trajectory.steps
    assert (step.chat_completions, step.action, step.model_response) == (agent.chat_completions, action, text)
    assert step.observation == [{"role": "user", "content": "a"}, "b"]
    agent.update_from_env("c", 0.0, False, {})  # the tools stay
    assert agent.chat_completions[-1] == {"role": "user", "content": "c"}
    assert agent.update_from_model(text).action["calls"][0]["id"] != call["id"]
    agent.update_from_env(["d"], 0.0, True, {})
    assert agent.chat_completions[-1]["role"] == "assistant"
    agent.reset()
    assert agent.offered == agent.chat_completions == []


# --- time -------------------------------------------------------------------------------------------------------------


def test_time_that_others_held_up_is_given_back_and_an_episodes_own_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    engine = RolloutEngine(None, Tokens(words.base()), Limits(9, 9), None, Agents())  # type: ignore[arg-type]
    engine.stopped, engine.blocked = (lambda: False), 5.0
    mine, other, free = _Turns(engine, 20.0), _Turns(engine, 20.0), _Turns(engine, None)
    assert (mine.left(), free.left()) == (20.0, None)
    with other:
        assert engine.overdue == 120.0
        now[0] += 4.0  # beyond one second, and a tenth of its time
    assert engine.overdue is None
    assert (engine.blocked, mine.left(), other.left()) == (9.0, 20.0, 16.0)
    with other:
        now[0] += 0.5
    assert (engine.blocked, mine.left(), other.left()) == (9.0, 19.5, 15.5)  # a moment is everybody's
    short = _Turns(engine, 2.0)
    with short:
        now[0] += 0.25  # above a tenth of two seconds
    assert (engine.blocked, short.left()) == (9.25, 1.75)
    now[0] += 18.0
    with other:
        assert engine.overdue == now[0] + 1.0  # what is left is less than what a step may take
    engine.stopped = lambda: True
    with free:
        assert engine.overdue == now[0] + 2.0
        now[0] += 0.5
    assert engine.stopping == now[0] - 0.5
    now[0] += 1.25
    with free:
        assert engine.overdue == now[0] + 0.25
    now[0] += 9.0
    with free:
        assert engine.overdue == now[0] + 0.02


def test_other_errors_than_of_time_stay_what_they_are() -> None:
    error = ValueError("x")
    assert _late(error) is error
    assert str(TerminationEvent()) == "unknown"
    assert TerminationEvent(TerminationReason.TIMEOUT).reason is TerminationReason.TIMEOUT
