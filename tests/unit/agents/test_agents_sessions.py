"""Sessions, requests and answers of an endpoint, without a server: draws, matching, limits, errors and counts."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

pytest.importorskip("transformers")

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

import words
from asked import CHAT, model_of
from evopipe.agents import (
    ModelOutput,
    TerminationReason,
    endpoint,
    protocol,
)
from evopipe.agents.endpoint import AgentSession, Endpoint, Waves
from evopipe.agents.model import Limits, Reply, Request, Sampled, Tokens
from evopipe.agents.protocol import ChatAsked, Refused, TextAsked
from evopipe.errors import DataError

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
    assert draws_of("a", text_asked(prompt="1", n=2))[0] == equal[0]
    assert len(set(draws_of("a", text_asked(prompt=["1", "2"], n=2)))) == 4
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
    assert [step.model_output for step in session.steps] == session.model.log
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
        for _ in range(3):
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

    assert asyncio.run(names()) == ["e-0", "e-1", "e-2"]
    served.begin()
    assert asyncio.run(names()) == ["e-0", "e-1", "e-2"]


def test_of_sessions_that_clients_name_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_HELD", 2)
    served = Endpoint("m", lambda key: AgentSession(key, model_of(lambda request: [8], [])))
    for key in ("a", "b", "a", "c", None, "d"):
        request: Any = make_mocked_request("GET", "/", match_info={"session": key or ""})
        assert (served._session(request).name == key) == (key is not None)
    assert list(served.sessions) == ["c", "d"]


def test_so_many_completions_are_waited_for_and_no_more() -> None:
    served, session = Endpoint("m"), AgentSession("a", model_of(lambda request: [8], []))

    async def talk() -> None:
        with served._room(session, endpoint.QUEUE - 2), served._room(session, 2):
            assert session.open == {asyncio.current_task()}
            told = pytest.raises(Refused, match=f"{endpoint.QUEUE} completions are waited for")
            with told as refused, served._room(session, 1):
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
