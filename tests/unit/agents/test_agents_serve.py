"""`evopipe agent serve`: a process that real clients talk to, and that ends as processes do."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")
pytest.importorskip("openai")

import httpx
from openai import AuthenticationError, OpenAI

from evopipe.report.episodes import read_episodes
from tiny import environment

MODULE = """
import evopipe


async def flow(task, connection):
    return 0.0


def make(config):
    usual = ["language.tiny.characters='0123456789'", "language.tiny.hidden=16", "language.tiny.layers=1",
             "language.tiny.heads=2", "language.full=true", "data.max_response_length=4"]
    tasks = [{"digits": str(n)} for n in range(4)]
    return evopipe.AgentTrainer(flow=flow, endpoint=True, config=[*usual, *config], train_dataset=tasks)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_served_policy_answers_the_official_client_until_it_is_ended(signum: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "own_agent.py").write_text(MODULE)
    words = ["agent", "serve", "own_agent:make", "--out", "sessions.jsonl", "agents.served=tiny"]
    process = subprocess.Popen(
        [sys.executable, "-m", "evopipe", *words], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        port = int(told["base_url"].split(":")[2].partition("/")[0])
        with httpx.Client() as http:
            client = OpenAI(base_url=told["base_url"], api_key=told["api_key"], http_client=http, max_retries=0)
            assert [model.id for model in client.models.list()] == ["tiny"]
            session = client.with_options(default_headers={"X-Session": "mine"})
            messages = [{"role": "user", "content": "12"}]
            out = session.chat.completions.create(model="tiny", messages=messages, logprobs=True)  # type: ignore[call-overload]
            again = session.chat.completions.create(
                model="tiny", messages=[*messages, out.choices[0].message, *messages], stream=True
            )  # type: ignore[call-overload]
            said = "".join(chunk.choices[0].delta.content or "" for chunk in again if chunk.choices)
            with pytest.raises(AuthenticationError):
                client.with_options(api_key="other").models.list()
        process.send_signal(signum)
        left, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signum
    assert left == "sessions.jsonl: 1 session\n"
    assert errors.strip().endswith("the endpoint is closed")
    assert "Traceback" not in errors
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    (episode,) = read_episodes(tmp_path / "sessions.jsonl")
    steps = episode["trajectories"][0]["steps"]
    assert [step["model_response"] for step in steps] == [out.choices[0].message.content, said]
    assert episode["info"]["endpoint"] == {"completions": 2, "edited": 0}
