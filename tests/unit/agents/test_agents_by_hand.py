"""Parts of rounds, sessions and episodes by hand: draws, limits, time, errors, copies and JSON."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from aiohttp import web

import words
from evopipe.agents import Episode, ModelOutput, Step, TerminationEvent, TerminationReason, Trajectory, endpoint
from evopipe.agents import protocol, records, rounds
from evopipe.agents.endpoint import AgentSession, Endpoint, Waves
from evopipe.agents.engine import Done, EpisodeJob, RolloutEngine, _check, _late, _Turns
from evopipe.agents.model import Limits, Model, Reply, Request, Sampled, Tokens, back_off
from evopipe.agents.protocol import ChatAsked, Refused, TextAsked
from evopipe.agents.rows import returns
from evopipe.agents.settings import Agents
from evopipe.agents.workflow import number
from evopipe.errors import DataError

CHAT = [{"role": "user", "content": "0"}]


def model_of(said: Callable[[Request], list[int]], seen: list[Request], limits: Limits | None = None) -> Model:
    async def submit(request: Request) -> Reply:
        seen.append(request)
        ids = said(request)
        return Reply(ids, [-float(i + 1) for i in range(len(ids))], [0.5] * len(ids))

    return Model(Tokens(words.base()), submit, 3, 7, Sampled(), limits or Limits(64, 4))


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


# --- sessions of an endpoint ------------------------------------------------------------------------------------------


def chat_asked(**more: Any) -> ChatAsked:
    return protocol.asked(ChatAsked, json.dumps({"model": "m", "messages": CHAT, **more}).encode(), "m")


def text_asked(**more: Any) -> TextAsked:
    return protocol.asked(TextAsked, json.dumps({"model": "m", **more}).encode(), "m")


def draws_of(name: str, *asked: ChatAsked | TextAsked) -> list[int | None]:
    seen: list[Request] = []
    session = AgentSession(name, model_of(lambda request: [8], seen))

    async def talk() -> None:
        for each in asked:
            await (session.chat(each) if isinstance(each, ChatAsked) else session.text(each))

    asyncio.run(talk())
    assert session.counts["completions"] == len(session.steps) == len(seen)
    return [request.draw for request in seen]


def test_a_sessions_draws_are_of_its_name_its_prompt_how_often_it_was_asked_and_the_seed() -> None:
    once, twice, seeded = chat_asked(), chat_asked(n=2), chat_asked(seed=1)
    a, b, c, d = draws_of("a", once, twice, once)
    assert len({a, b, c, d}) == 4
    assert all(isinstance(each, int) and 0 <= each < 2**63 for each in (a, b, c, d))
    assert draws_of("a", twice)[0] == a  # the first of two is the only one's
    assert draws_of("a", seeded, once)[1] == a  # what has a seed is another request
    assert draws_of("b", once) != [a]
    first, again, other = draws_of("a", seeded, seeded, chat_asked(seed=2))
    assert first == again != other
    assert first != a
    equal = draws_of("a", text_asked(prompt=["1", "2", "1"]))
    assert len(set(equal)) == 3
    assert draws_of("a", text_asked(prompt="1"), text_asked(prompt="2"), text_asked(prompt="1")) == equal
    tokens = draws_of("a", text_asked(prompt=[[8, 9], [9, 8]]))
    assert len({*tokens, *equal}) == 5
    # fixed numbers: a run that goes on draws what it drew before
    assert a == int(endpoint._hash(f"{_first('a', None)}:0:0")[:16], 16) >> 1
    assert b == int(endpoint._hash(f"{_first('a', None)}:1:0")[:16], 16) >> 1
    assert c == int(endpoint._hash(f"{_first('a', None)}:1:1")[:16], 16) >> 1


def _first(name: str, seed: int | None) -> str:
    ids = Tokens(words.base()).prompt(CHAT)
    return endpoint._hash(json.dumps([name, ids, seed]))


def test_a_name_is_a_number_of_62_bits() -> None:
    found = [endpoint.number(name) for name in map(str, range(64))]
    assert all(0 <= each < 2**62 for each in found)
    assert max(found) >= 2**61
    assert len(set(found)) == 64


def test_steps_of_a_session_are_its_completions_and_know_whether_a_chat_was_edited() -> None:
    session = AgentSession("a", model_of(lambda request: words.base().encode("5"), []))
    user, foreign = {"role": "user", "content": "1"}, {"role": "assistant", "content": "7"}

    async def talk() -> None:
        (answer,) = await session.chat(chat_asked())
        assert (answer.message["content"], answer.finish) == ("5", "length")
        await session.chat(chat_asked(messages=[*CHAT, answer.message, user]))
        await session.chat(chat_asked(messages=[*CHAT, foreign, user], n=2))

    asyncio.run(talk())
    assert session.counts == {"completions": 4, "edited": 2}
    assert [step.info.get("edited", False) for step in session.steps] == [False, False, True, True]
    assert [len(step.chat_completions) for step in session.steps] == [2, 4, 4, 4]
    assert session.steps[1].chat_completions[-1]["content"] == session.steps[1].model_response == "5"
    assert (session.trajectory.uid, session.trajectory.steps) == ("a", session.steps)
    assert session.over is None


def test_a_prompt_that_is_too_long_is_refused_and_its_session_is_over() -> None:
    session = AgentSession("a", model_of(lambda request: [8], [], Limits(3, 4)))
    with pytest.raises(Refused, match="the prompt has 4 tokens, of at most 3") as refused:
        asyncio.run(session.text(text_asked(prompt=[8, 8, 8, 8])))
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert session.over is TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    assert not session.steps


@pytest.mark.parametrize(("token", "fits"), [(-1, False), (0, True), ("last", True), ("next", False)])
def test_tokens_of_a_prompt_are_the_models_own(token: int | str, fits: bool) -> None:
    last = words.base().words.vocabulary - 1
    asked = text_asked(prompt=[{"last": last, "next": last + 1}.get(str(token), token)])
    session = AgentSession("a", model_of(lambda request: [8], []))
    if fits:
        asyncio.run(session.text(asked))
        return
    with pytest.raises(Refused, match=f"prompt: a token is not among the {last + 1}"):
        asyncio.run(session.text(asked))


def test_sessions_of_a_name_are_counted_within_a_round_and_close_with_their_episode() -> None:
    served, model = Endpoint("m", token="t"), model_of(lambda request: [8], [])

    async def names() -> list[str]:
        found = []
        for _ in range(2):
            with served.session("e", model) as (session, connection):
                key = connection.base_url.split("/")[-2]
                assert served.sessions[key] is session
                assert (connection.api_key, connection.model) == ("t", "m")
                left = asyncio.create_task(asyncio.sleep(30))
                session.open.add(left)
                found.append(session.name)
            assert not served.sessions
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert left.cancelled()
        return found

    assert asyncio.run(names()) == ["e-0", "e-1"]
    served.begin()
    assert asyncio.run(names()) == ["e-0", "e-1"]


def test_so_many_completions_are_waited_for_and_no_more() -> None:
    served, session = Endpoint("m"), AgentSession("a", model_of(lambda request: [8], []))

    async def talk() -> None:
        with served._room(session, endpoint.QUEUE - 2), served._room(session, 2):
            assert session.open == {asyncio.current_task()}
            with pytest.raises(Refused, match=f"{endpoint.QUEUE} completions are waited for") as refused:
                with served._room(session, 1):
                    pass
            assert refused.value.status == 429
        with served._room(session, endpoint.QUEUE):
            pass
        assert not session.open

    asyncio.run(talk())


def test_errors_have_their_status() -> None:
    told = [
        (Refused(408, "late"), 408, "late"), (DataError("no"), 400, "no"), (ValueError("bad"), 400, "bad"),
        (TimeoutError(), 504, "the completion took longer than agents.model_seconds"),
        (KeyError("k"), 500, "the endpoint failed: KeyError: "), (web.HTTPNotFound(), 404, "there is no such address"),
        (web.HTTPMethodNotAllowed("GET", ["POST"]), 405, "there is no such address or method here"),
        (web.HTTPRequestEntityTooLarge(1, 2), 413, "the body is larger than 2000000 bytes"),
    ]  # fmt: skip
    for error, status, text in told:
        found = endpoint._refused(error)
        assert (found.status, str(found)[: len(text)]) == (status, text)
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 400: "invalid_request_error",
             499: "invalid_request_error", 500: "server_error", 504: "server_error"}  # fmt: skip
    for status, kind in kinds.items():
        body = Refused(status, "text", "p", "c").body
        assert body == {"error": {"message": "text", "type": kind, "param": "p", "code": "c"}}


def test_a_wave_has_what_was_asked_together_sorted_by_prompt_and_an_error_is_all_its_requests() -> None:
    waves: list[list[tuple[list[int], int]]] = []

    def decode(wave: Any) -> list[Reply]:
        waves.append([(request.ids, request.call) for request in wave])
        if wave[0].ids == [0]:
            raise ValueError("no")
        return [Reply([each.ids[0] * 10], [-1.0], [0.5]) for each in wave]

    async def talk() -> list[Any]:
        queue, loop = Waves(decode), asyncio.get_running_loop()
        work = asyncio.create_task(queue.run())

        def request(first: int, draw: int | None = None) -> Request:
            return Request(0, 0, 4, [first], 9, Sampled(), loop.create_future(), draw=draw)

        gone = request(1)
        gone.reply.cancel()
        late = asyncio.create_task(queue.submit(gone))
        one = await asyncio.gather(*(queue.submit(request(n, draw)) for n, draw in ((5, 77), (3, None), (4, 0))))
        failed = await asyncio.gather(queue.submit(request(0)), queue.submit(request(2)), return_exceptions=True)
        two = [await queue.submit(request(6))]
        work.cancel()
        assert isinstance((await asyncio.gather(late, return_exceptions=True))[0], asyncio.CancelledError)
        assert [str(each) for each in failed] == ["no", "no"]
        return [*one, *two]

    assert [reply.ids for reply in asyncio.run(talk())] == [[50], [30], [40], [60]]
    assert waves == [[([3], 4), ([4], 0), ([5], 77)], [([0], 4), ([2], 4)], [([6], 4)]]


# --- requests and answers ---------------------------------------------------------------------------------------------


def test_what_a_request_asks_for_is_what_a_completion_takes() -> None:
    plain = {"max_tokens": None, "temperature": None, "top_p": None, "top_k": None, "stop": None}
    assert chat_asked().how == plain
    assert chat_asked(max_tokens=5, top_k=-1, stop="x").how == {**plain, "max_tokens": 5, "top_k": 0, "stop": ["x"]}
    assert chat_asked(max_tokens=5, max_completion_tokens=6, top_k=3).how == {**plain, "max_tokens": 6, "top_k": 3}
    assert text_asked(prompt="1", max_tokens=5, stop=["", "y"]).how == {**plain, "max_tokens": 5, "stop": ["y"]}
    assert [chat_asked(stream_options=each).usage for each in (None, {}, {"include_usage": True})] == [
        False, False, True,
    ]  # fmt: skip
    tool = {"type": "function", "function": {"name": "f"}}
    assert chat_asked(tools=[tool]).offered == chat_asked(tools=[tool], tool_choice="auto").offered == [tool]
    assert chat_asked(tools=[tool], tool_choice="none").offered == chat_asked().offered == []
    assert text_asked(prompt="ab").prompts == ["ab"]
    assert text_asked(prompt=[1, 2]).prompts == [[1, 2]]
    assert text_asked(prompt=[[1], [2]]).prompts == [[1], [2]]
    assert text_asked(prompt=[]).prompts == []


def test_messages_keep_what_chat_templates_read() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "more": 1}, "index": 0}
    given = [
        {"role": "developer", "content": "s", "name": 3},
        {"role": "user", "content": "u", "name": "me", "tool_calls": [call]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "t", "tool_call_id": "c"},
    ]
    kept = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat_asked(messages=given).chat() == [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u", "name": "me"},
        {"role": "assistant", "content": "", "tool_calls": [kept]}, {"role": "tool", "content": "t",
        "tool_call_id": "c"},
    ]  # fmt: skip
    for wrong, text in (
        ({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}, "a call has no function"),
        ({"role": "assistant", "content": "", "tool_calls": {"a": 1}}, r"messages\[0\].tool_calls: of type dict"),
        ({"role": "nobody", "content": ""}, r"messages\[0\].role: 'nobody' is none of system"),
    ):
        with pytest.raises(Refused, match=text):
            chat_asked(messages=[wrong]).chat()


def test_tokens_of_a_prompt_are_counted_once() -> None:
    outs = [ModelOutput(prompt_ids=[1] * n, completion_ids=[2] * m) for n, m in ((3, 1), (3, 2), (5, 3), (5, 4))]
    assert protocol.usage(outs, 2) == {"prompt_tokens": 8, "completion_tokens": 10, "total_tokens": 18}
    assert protocol.usage(outs[:2], 1) == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_log_probabilities_are_told_token_by_token() -> None:
    base = words.base()
    out = ModelOutput(completion_ids=base.encode("12a"), logprobs=[-1.0, -math.inf, -3.0])
    found = protocol.log_probs(base, out)
    assert [(each["token"], each["logprob"]) for each in found] == [("1", -1.0), ("2", -9999.0), ("a", -3.0)]
    assert found[2]["bytes"] == [97]
    told = protocol.text_log_probs(base, out)
    assert told["tokens"] == ["1", "2", "a"]
    assert told["text_offset"] == [0, 1, 2]
    assert told["token_logprobs"] == [-1.0, -9999.0, -3.0]


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
    made = Episode("a:b:12", {"x": (1, math.nan, -math.inf), 3: Scalar(), "odd": Odd(), "set": {1}}, info={"deep": deep},
                   termination_reason=TerminationReason.ERROR)  # fmt: skip
    told = made.to_dict()
    assert told["task"] == {"x": [1, None, None], "3": 1.5, "odd": "<Odd>", "set": "{1}"}
    assert (told["termination_reason"], made.task_id, made.rollout_idx) == ("error", "a:b", 12)
    levels, at = 0, told["info"]["deep"]
    while isinstance(at, list):
        (at,), levels = at, levels + 1
    assert (levels, at) == (62, "[[...]]")


def test_what_was_written_is_read_again_as_it_was() -> None:
    out = ModelOutput(text="t", prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5], finish_reason="length")
    assert (out.prompt_length, out.completion_length) == (2, 1)
    steps = [Step(model_output=out, reward=0.5, done=True), Step()]
    made = Episode("1:0", {"n": 1}, TerminationReason.ENV_DONE, True, [Trajectory("u", "n", None, steps, 2.0)], {"m": 1.0})
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
    out = ModelOutput(prompt_ids=words.base().encode("1"), completion_ids=words.base().encode("23"), logprobs=[-1.0, -2.0])
    episode = Episode("4:1", {}, TerminationReason.TIMEOUT, trajectories=[Trajectory(steps=[Step(model_output=out)])])
    done = Done(EpisodeJob(2, 0, "4:1", {}, Sampled()), episode, 3, {})
    found = records.record(done, words.base(), {"timeout"})
    assert (found["slot"], found["attempts"], found["counts"], found["id"]) == (2, 3, False, "4:1")
    assert records.record(done, words.base(), {"error"})["counts"]
    (row,) = found["trajectories"][0]["rows"]
    assert row == [{"text": "1", "written": False, "step": 0}, {"text": "23", "written": True, "step": 0}]
    assert [records._rounded(x) for x in (1.0000049, -math.inf, math.nan)] == [1.0, None, None]
    assert records._rounded(0.123456) == 0.12346


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
