"""The endpoint: official clients of OpenAI's API, what they get, and what they get to hear."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")
pytest.importorskip("openai")

import httpx
import openai
from openai import AsyncOpenAI, OpenAI

import evopipe
from endpoints import LOOKUP, SMALL, TASKS, Served, call_of, serving, tool_base
from evopipe.agents import rounds
from evopipe.agents.endpoint import LARGEST
from evopipe.errors import ParamsError

ASK = [{"role": "user", "content": "12"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tool_base(tmp_path_factory.mktemp("base") / "base")
    with serving(**{"language.model": str(folder)}) as found:
        yield found


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client() as found:
        yield found


def client(served: Served, session: str, http: httpx.Client) -> OpenAI:
    return OpenAI(base_url=served.url(session), api_key=served.connection.api_key, http_client=http, max_retries=0)


def ask(client: OpenAI, messages: Any = ASK, **how: Any) -> Any:
    extra = {key: how.pop(key) for key in ("return_token_ids", "top_k") if key in how}
    how = {"temperature": 1.0, **how}
    return client.chat.completions.create(model="policy", messages=messages, extra_body=extra, **how)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_chat_is_completed_with_its_tokens_and_their_log_probabilities(served: Served, http: httpx.Client) -> None:
    found = ask(client(served, "tokens", http), logprobs=True, return_token_ids=True, max_tokens=5)
    (choice,) = found.choices
    base = served.trainer._begin()[0].base
    assert found.prompt_token_ids == base.prompt(ASK, True, None)
    assert found.model == "policy"
    assert base.decode(choice.token_ids) == choice.message.content
    assert [each.token for each in choice.logprobs.content] == [base.show([token]) for token in choice.token_ids]
    assert all(each.logprob < 0 and bytes(each.bytes).decode() == each.token for each in choice.logprobs.content)
    assert found.usage.prompt_tokens == len(found.prompt_token_ids)
    assert found.usage.completion_tokens == len(choice.token_ids) <= 5
    ended = choice.token_ids[-1] in base.ends
    assert choice.finish_reason == ("stop" if ended else "length")
    assert ended or len(choice.token_ids) == 5


def test_draws_are_of_a_session_and_what_was_asked_there(served: Served, http: httpx.Client) -> None:
    one, other = client(served, "draws-1", http), client(served, "draws-2", http)

    def ids(of: OpenAI, **how: Any) -> list[list[int]]:
        found = ask(of, return_token_ids=True, **how)
        return [choice.token_ids for choice in found.choices]

    first, again, elsewhere = ids(one), ids(one), ids(other)
    assert first != again
    assert first != elsewhere
    assert ids(one, seed=3) == ids(one, seed=3) != ids(one, seed=4)
    several = ids(one, n=4)
    assert len({tuple(each) for each in several}) == 4
    assert ids(one, temperature=0.0) == ids(other, temperature=0.0)
    with serving(**{"language.model": served.trainer.resolved.params.language.model}) as anew:
        assert ids(client(anew, "draws-2", http)) == elsewhere  # though nobody asked before
        assert ids(client(anew, "draws-1", http)) == first


def test_what_is_asked_at_once_is_drawn_as_one_by_one(served: Served, http: httpx.Client) -> None:
    def of(prefix: str, n: int) -> list[int]:
        return list(ask(client(served, f"{prefix}{n}", http), return_token_ids=True).choices[0].token_ids)

    with serving(**{"language.model": served.trainer.resolved.params.language.model}) as other:
        alone = [
            list(ask(client(other, f"at-once-{n}", http), return_token_ids=True).choices[0].token_ids) for n in range(8)
        ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: of("at-once-", n), reversed(range(8))))
    assert found[::-1] == alone


def test_a_stream_is_the_same_completion_in_pieces(served: Served, http: httpx.Client) -> None:
    asking = client(served, "stream", http)
    whole = ask(asking, seed=5, logprobs=True, n=2)
    pieces: dict[int, list[str]] = {0: [], 1: []}
    logprobs: dict[int, list[float]] = {0: [], 1: []}
    finish, usage = {}, None
    for chunk in ask(asking, seed=5, logprobs=True, n=2, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces[choice.index].append(choice.delta.content or "")
            logprobs[choice.index] += [each.logprob for each in (choice.logprobs.content if choice.logprobs else ())]
            finish[choice.index] = choice.finish_reason or finish.get(choice.index)
    assert usage == whole.usage
    for choice in whole.choices:
        assert "".join(pieces[choice.index]) == choice.message.content
        assert logprobs[choice.index] == [each.logprob for each in choice.logprobs.content]
        assert finish[choice.index] == choice.finish_reason
    assert max(map(len, pieces.values())) > 3


def test_texts_that_stop_are_no_part_of_the_text(served: Served, http: httpx.Client) -> None:
    asking, base = client(served, "stop", http), served.trainer._begin()[0].base
    free = ask(asking, seed=1, n=100, max_tokens=3, return_token_ids=True).choices
    texts = [choice.message.content for choice in free]
    i = next(i for i, text in enumerate(texts) if text.isdigit() and len(set(text)) == len(text) == 3)
    found = ask(asking, seed=1, n=100, stop=["x", texts[i][1]], return_token_ids=True).choices[i]
    assert (found.message.content, found.finish_reason) == (texts[i][0], "stop")
    assert base.decode(found.token_ids) == texts[i][:2]


def test_texts_and_tokens_are_completed(served: Served, http: httpx.Client) -> None:
    asking, base = client(served, "texts", http), served.trainer._begin()[0].base

    def text(**how: Any) -> Any:
        extra = {"return_token_ids": True}
        return asking.completions.create(model="policy", temperature=0.0, max_tokens=4, extra_body=extra, **how)

    found = text(prompt=["12", "34"], n=2, logprobs=1)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert found.choices[0].prompt_token_ids == base.encode("12")
    assert found.choices[2].prompt_token_ids == base.encode("34")
    assert found.usage.prompt_tokens == 4
    for choice in found.choices:
        assert choice.text == base.decode(choice.token_ids)
        assert choice.logprobs.tokens == [base.show([token]) for token in choice.token_ids]
        assert len(choice.logprobs.token_logprobs) == len(choice.token_ids)
    assert text(prompt=base.encode("12")).choices[0].text == found.choices[0].text
    streamed = asking.completions.create(model="policy", prompt="12", temperature=0.0, max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == found.choices[0].text


def test_the_async_client_and_the_list_of_models(served: Served) -> None:
    async def run() -> tuple[Any, Any, list[str], Any]:
        connection = served.connection
        async with AsyncOpenAI(base_url=connection.base_url, api_key=connection.api_key) as asking:
            headers = {"X-Session": "by-header"}
            found = await asking.chat.completions.create(
                model="policy",
                messages=ASK,
                temperature=1.0,
                extra_headers=headers,  # type: ignore[arg-type]
            )
            alone = await asking.chat.completions.create(model="policy", messages=ASK)  # type: ignore[arg-type]
            return (
                found,
                alone,
                [each.id async for each in asking.models.list()],
                await asking.models.retrieve("policy"),
            )

    found, alone, models, model = asyncio.run(run())
    assert isinstance(found.choices[0].message.content, str)
    assert isinstance(alone.choices[0].message.content, str)
    assert models == [model.id] == ["policy"]


# --- tokens of a session ----------------------------------------------------------------------------------------------


def test_a_chat_that_comes_back_keeps_the_tokens_of_its_session(tmp_path: Path, http: httpx.Client) -> None:
    with serving(**{"language.model": str(tool_base(tmp_path / "base"))}) as served:
        asking = client(served, "chat", http)
        first = ask(asking, return_token_ids=True)
        read = [*first.prompt_token_ids, *first.choices[0].token_ids]
        going = [*ASK, first.choices[0].message, {"role": "user", "content": "3"}]
        second = ask(asking, going, return_token_ids=True)
        assert second.prompt_token_ids[: len(read)] == read
        assert len(second.prompt_token_ids) > len(read)

        edited = [*ASK, {"role": "assistant", "content": "99999"}, {"role": "user", "content": "3"}]
        third = ask(asking, edited, return_token_ids=True)
        assert third.prompt_token_ids[: len(read)] != read
        fourth = ask(
            asking, [*edited, third.choices[0].message, {"role": "user", "content": "4"}], return_token_ids=True
        )
        read = [*third.prompt_token_ids, *third.choices[0].token_ids]
        assert fourth.prompt_token_ids[: len(read)] == read
        fresh = [{"role": "user", "content": "0"}, {"role": "assistant", "content": "0"}, *ASK]
        ask(client(served, "shown", http), fresh)  # an example, no edit: nothing was written before
        episodes = {each["id"]: each for each in served.stop()}
    chat = episodes["chat:0"]
    steps = chat["trajectories"][0]["steps"]
    assert [step["info"].get("edited", False) for step in steps] == [False, False, True, False]
    assert chat["info"]["endpoint"] == {"completions": 4, "edited": 1}
    assert len(chat["trajectories"][0]["rows"]) == 2  # the edit begins a row, and what follows goes on with it
    assert episodes["shown:0"]["info"]["endpoint"] == {"completions": 1, "edited": 0}


@pytest.mark.thorough
def test_tools_are_offered_called_and_answered(served: Served, http: httpx.Client) -> None:
    asking = client(served, "tools", http)
    found = next(
        found for seed in range(200)
        if (found := ask(asking, seed=seed, tools=[LOOKUP], max_tokens=1, return_token_ids=True))
        .choices[0].message.tool_calls
    )  # fmt: skip
    (choice,) = found.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert (call.type, call.function.name) == ("function", "lookup")
    key = json.loads(call.function.arguments)["key"]
    base = served.trainer._begin()[0].base
    assert base.show(choice.token_ids) == call_of(key)
    # As a framework sends it back: rebuilt, with an id of its own.
    sent = {"id": "x", "type": "function", "function": {"name": "lookup", "arguments": f'{{"key":"{key}"}}'}}
    again = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [sent]},
        {"role": "tool", "tool_call_id": "x", "content": "7"},
    ]
    second = ask(asking, again, tools=[LOOKUP], return_token_ids=True)
    read = [*found.prompt_token_ids, *choice.token_ids]
    assert second.prompt_token_ids[: len(read)] == read
    assert base.show(second.prompt_token_ids[len(read) :]) == "<|end|><|tool|>7<|end|><|assistant|>"
    # One that is not offered is a text.
    other = {**LOOKUP, "function": {**LOOKUP["function"], "name": "other"}}
    seeded = ask(asking, tools=[other], max_tokens=1, n=100)
    assert all(each.message.tool_calls is None for each in seeded.choices)
    assert any(each.message.content.startswith("<tool_call>") for each in seeded.choices)
    streamed = [
        call
        for seed in range(200)
        for chunk in ask(asking, seed=seed, tools=[LOOKUP], max_tokens=1, stream=True)
        for call in chunk.choices[0].delta.tool_calls or ()
    ]
    assert {each.function.name for each in streamed} == {"lookup"}


# --- what is refused --------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "another model": ({"model": "gpt-4o"}, 404, "the model 'gpt-4o' does not exist; this endpoint serves 'policy'"),
    "no messages": ({"messages": []}, 400, "messages: List should have at least 1 item"),
    "no message": ({"messages": ["hello"]}, 400, "messages.0: Input should be a valid dictionary"),
    "an unknown role": ({"messages": [{"role": "king", "content": ""}]}, 400, "messages[0].role: 'king' is none of"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400,
        "messages[0].content: a part is no text",
    ),
    "a broken call": (
        {"messages": [*ASK, {"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}]}, 400,
        "messages[1].tool_calls: a call has no function",
    ),
    "an unknown tool": ({"tools": [{"type": "web_search"}]}, 400, "tools.0.type: Input should be 'function'"),
    "a tool that has to be called": ({"tool_choice": "required"}, 400, 'tool_choice: "required" is not supported here'),
    "a penalty": ({"frequency_penalty": 0.5}, 400, "frequency_penalty: 0.5 is not supported here; leave it out"),
    "a form": ({"response_format": {"type": "json_object"}}, 400, "response_format:"),
    "many": ({"n": 1000}, 400, "n: Input should be less than or equal to 128"),
    "no tokens": ({"max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
    "a hot one": ({"temperature": -1}, 400, "temperature: Input should be greater than or equal to 0"),
    "a long one": ({"messages": [{"role": "user", "content": "1" * 2000}]}, 400, "the prompt has"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_done_is_said_in_a_sentence(what: str, served: Served, http: httpx.Client) -> None:
    change, status, text = WRONG[what]
    headers = {"Authorization": f"Bearer {served.connection.api_key}"}
    body = {"model": "policy", "messages": ASK, **change}
    found = http.post(f"{served.url('wrong')}/chat/completions", json=body, headers=headers)
    error = found.json()["error"]
    assert (found.status_code, error["message"][: len(text)]) == (status, text)
    assert "\n" not in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_only_who_has_the_token_is_answered(served: Served, http: httpx.Client) -> None:
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": served.connection.api_key}):
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/nothing")):
            found = http.request(method, served.root + path, headers=headers)
            assert (found.status_code, found.json()["error"]["code"]) == (401, "invalid_api_key")
    with pytest.raises(openai.AuthenticationError):
        ask(OpenAI(base_url=served.url("a"), api_key="wrong", http_client=http, max_retries=0))


def test_what_is_no_request_is_refused(served: Served, http: httpx.Client) -> None:
    headers = {"Authorization": f"Bearer {served.connection.api_key}"}
    path = f"{served.url('none')}/chat/completions"
    for body, status in (
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'"\xff"', 400),
        (b"x" * (LARGEST + 1), 413),
    ):
        found = http.post(path, content=body, headers=headers)
        assert found.status_code == status, found.text
        assert found.json()["error"]["message"]
    for method, where, status in (("GET", path, 405), ("POST", served.root + "/nothing", 404)):
        found = http.request(method, where, headers=headers)
        assert (found.status_code, found.json()["error"]["type"]) == (
            status, "not_found_error" if status == 404 else "invalid_request_error",
        )  # fmt: skip


def test_half_a_character_is_completed_as_a_question_mark(served: Served, http: httpx.Client) -> None:
    headers = {"Authorization": f"Bearer {served.connection.api_key}"}
    path, found = f"{served.root}/v1/completions", []
    for half in ("\\ud83d", "?"):
        body = f'{{"model": "policy", "prompt": "1{half}2", "max_tokens": 1, "echo": false, "return_token_ids": true}}'
        answer = http.post(path, content=body.encode(), headers=headers)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["choices"][0]["prompt_token_ids"])
    assert found[0] == found[1]
    body = '{"model": "policy", "messages": [{"role": "user", "content": "\\ud83d"}], "max_tokens": 1}'
    assert http.post(f"{served.url('half')}/chat/completions", content=body, headers=headers).status_code == 200


def test_a_port_that_is_taken_is_said(served: Served) -> None:
    port = int(served.root.rpartition(":")[2])
    with pytest.raises(evopipe.errors.UsageError, match=f"port {port} cannot be listened on"):
        served.trainer.serve(port)


# --- training ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys, urllib.request

task, chat, rewards = json.loads(sys.stdin.readline()), [], []
for digit in task["digits"]:
    chat.append({"role": "user", "content": digit})
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": chat}).encode()
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)
    message = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]
    chat.append(message)
    rewards.append(float(message["content"] == digit))
print("done")
print(json.dumps(rewards))
"""


async def copies(task: dict[str, Any], connection: Any) -> list[float]:
    async with AsyncOpenAI(base_url=connection.base_url, api_key=connection.api_key) as asking:
        chat: list[Any] = []
        rewards = []
        for digit in task["digits"]:
            chat.append({"role": "user", "content": digit})
            found = await asking.chat.completions.create(model=connection.model, messages=chat)
            chat.append(found.choices[0].message)
            rewards.append(float(found.choices[0].message.content == digit))
        return rewards


def plain(task: dict[str, Any], connection: Any) -> list[float]:
    with OpenAI(base_url=connection.base_url, api_key=connection.api_key) as asking:
        chat: list[Any] = []
        rewards = []
        for digit in task["digits"]:
            chat.append({"role": "user", "content": digit})
            found = asking.chat.completions.create(model=connection.model, messages=chat)
            chat.append(found.choices[0].message)
            rewards.append(float(found.choices[0].message.content == digit))
        return rewards


async def within(task: dict[str, Any], model: Any) -> list[float]:
    chat: list[Any] = []
    rewards = []
    for digit in task["digits"]:
        chat.append({"role": "user", "content": digit})
        found = await model.get_model_response(chat)
        chat.append({"role": "assistant", "content": found.content})
        rewards.append(float(found.content == digit))
    return rewards


def trainer(flow: Any, **changes: Any) -> evopipe.AgentTrainer:
    config = {
        **SMALL, "data.max_response_length": 1, "language.tiny.characters": "0123456789",
        "agents.advantage": "turn", "agents.record": "all", **changes,
    }  # fmt: skip
    return evopipe.AgentTrainer(
        flow=flow, endpoint=flow is not within, config=config, train_dataset=TASKS, val_dataset=TASKS[:4]
    )


def test_no_round_is_played_ahead_at_an_endpoint() -> None:
    with pytest.raises(ParamsError, match=r"agents.staleness: .* set it to 0"):
        trainer(copies, **{"agents.staleness": 1}).train()


@pytest.mark.thorough
def test_agents_that_ask_over_http_are_trained_whatever_they_are(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(PROGRAM)
    rows = {}
    for name, flow in {"async": copies, "plain": plain, "program": [sys.executable, str(script)]}.items():
        threads = set(threading.enumerate())
        found = trainer(flow, **{"trainer.default_local_dir": str(tmp_path / name)}).train()
        assert set(threading.enumerate()) <= threads  # one of an earlier test may just end
        assert found.measures[-1]["drift"] < 1e-5
        assert [row["failed"] for row in found.measures] == [0.0, 0.0]
        files = sorted((tmp_path / name / "episodes").glob("*.jsonl"))
        episodes = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert all(each["info"]["endpoint"] == {"completions": 2, "edited": 0} for each in episodes)
        assert all(len(each["trajectories"][0]["rows"]) == 1 for each in episodes)  # the second turn goes on
        rows[name] = [(path.name, path.read_bytes()) for path in files]
    assert rows["async"] == rows["plain"] == rows["program"]  # to the last bit
    assert any(each["trajectories"][0]["reward"] for each in episodes)


@pytest.mark.thorough
def test_requests_of_all_sessions_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waves: list[int] = []
    decode = rounds._decode

    def counted(*args: Any) -> Any:
        waves.append(len(args[-1]))
        return decode(*args)

    monkeypatch.setattr(rounds, "_decode", counted)
    tasks = [{"digits": f"{n:02d}"} for n in range(32)]
    played = trainer(copies).play(tasks)
    assert waves == [32, 32]
    waves.clear()
    alone = trainer(copies, **{"agents.at_once": 1}).play(tasks[:4])
    assert waves == [1] * 8
    ids = [[step["model_output"]["completion_ids"] for step in each["trajectories"][0]["steps"]] for each in played]
    assert ids[:4] == [
        [step["model_output"]["completion_ids"] for step in each["trajectories"][0]["steps"]] for each in alone
    ]


def test_an_agent_that_fails_fails_alone_and_says_why(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        "import json, sys\ntask = json.loads(sys.stdin.readline())\n"
        "if task['digits'] == '00': sys.exit('it broke')\nprint('nothing' if task['digits'] == '07' else 0)\n"
    )
    found = trainer([sys.executable, str(script)], **{"agents.retries": 0}).play(TASKS[:3])
    told = [each["info"].get("error", {}).get("error_message") for each in found]
    assert told[0] == f"{sys.executable} ended with the exit code 1: it broke"
    assert "ended with 'nothing', expected its reward, as JSON" in told[1]
    assert told[2] is None


def test_a_prompt_that_is_too_long_ends_its_episode_for_that_reason() -> None:
    async def long(task: dict[str, Any], connection: Any) -> float:
        async with AsyncOpenAI(base_url=connection.base_url, api_key=connection.api_key) as asking:
            messages: Any = [{"role": "user", "content": "1" * 3000}]
            await asking.chat.completions.create(model=connection.model, messages=messages)
        return 1.0

    (found,) = trainer(long).play(TASKS[:1])
    assert found["termination_reason"] == "max_prompt_length_exceeded"


def test_what_outlives_its_episode_finds_no_session() -> None:
    late: list[Any] = []

    async def leaves(task: dict[str, Any], connection: Any) -> float:
        late.append(connection)
        if len(late) > 1:
            first = late[0]
            async with AsyncOpenAI(base_url=first.base_url, api_key=first.api_key, max_retries=0) as asking:
                with pytest.raises(openai.NotFoundError, match="no session"):
                    await asking.chat.completions.create(model=first.model, messages=ASK)  # type: ignore[arg-type]
        return 1.0

    found = trainer(leaves, **{"agents.at_once": 1, "agents.retries": 0}).play(TASKS[:2])
    assert [each["info"].get("error") for each in found] == [None, None]


@pytest.mark.parametrize(
    ("flow", "text"),
    [
        (None, "endpoint=True is for a flow"),
        (3, "flow must be a function, or the words of a command"),
        ([], "flow must be a function, or the words of a command"),
        (lambda task: 0.0, "flow must take \\(task, connection\\)"),
        (["no-such-program-here"], "there is no command 'no-such-program-here'"),
    ],
)
def test_what_is_no_agent_is_refused(flow: Any, text: str) -> None:
    with pytest.raises((ValueError, evopipe.errors.MissingInputError), match=text):
        evopipe.AgentTrainer(flow=flow, endpoint=True, config=SMALL, train_dataset=TASKS)
