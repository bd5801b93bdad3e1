"""Tools of an MCP server over standard input and output."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
pytest.importorskip("mcp", reason="an extra of its own: pip install 'evopipe[mcp]'")

from evopipe.agents import CallingAgent, adapters
from evopipe.agents.adapters.tools import EpisodeLost
from evopipe.errors import MissingInputError
from tiny import ROOT

COMMAND = shlex.join([sys.executable, str(ROOT / "tests/mcp_server.py")])
pytestmark = pytest.mark.thorough  # a server takes a second to begin


def made(command: str = COMMAND, **task: Any) -> Any:
    found = adapters.find(f"mcp:{command}")
    assert found is not None
    assert found.agent_class is CallingAgent
    return found.env_class.from_dict({**found.env_args, "seconds": 20.0, **task})


def told(env: Any, name: str, **arguments: Any) -> str:
    (message,) = env.step({"calls": [{"id": "1", "name": name, "arguments": arguments}], "content": ""})[0]
    return str(message["content"])


def test_tools_are_listed_called_and_answered_and_the_answer_is_scored() -> None:
    env = made(prompt="2+3", answer="5")
    chat, info = env.reset()
    assert chat == [{"role": "user", "content": "2+3"}]
    tools = {tool["function"]["name"]: tool["function"] for tool in info["tools"]}
    assert {*tools} == {"add", "fail", "die", "hang", "who"}
    assert tools["add"]["description"] == "Add two numbers."
    assert tools["add"]["parameters"]["required"] == ["a", "b"]
    assert told(env, "add", a=2, b=3) == "5"
    assert "error: Error executing tool fail: no sum" in told(env, "fail")
    assert told(env, "add", a="two", b=3).startswith("error: Error executing tool add: 1 validation error")
    assert told(env, "subtract") == "error: Unknown tool: subtract"
    assert env.step({"calls": [], "content": "5"})[2] is True
    assert env.compute_final_reward() == 1.0
    env.close()


def test_a_server_that_dies_costs_its_episode_and_is_replaced() -> None:
    env = made(prompt="")
    env.reset()
    with pytest.raises(EpisodeLost, match=r"failed in die: McpError: Connection closed"):
        told(env, "die")
    assert told(made(prompt=""), "add", a=1, b=1) == "2"


def test_a_call_that_hangs_is_given_up_in_time() -> None:
    env = made(own=True, seconds=15.0)
    env.reset()
    env.servers.tools()
    env.servers._free[0]._seconds = 0.5
    began = time.monotonic()
    with pytest.raises(EpisodeLost, match=r"failed in hang: McpError: Timed out"):
        told(env, "hang")
    assert time.monotonic() - began < 5
    env.close()


def test_an_episode_may_have_a_process_of_its_own() -> None:
    first, second, shared = made(own=True), made(own=True), made()
    assert told(first, "who") == told(first, "who") != told(second, "who")
    assert told(shared, "who") not in (told(first, "who"), told(second, "who"))
    first.close()
    second.close()


@pytest.mark.parametrize("command", ["true", f"{sys.executable} -c 'print(1)'", "sleep 30"])
def test_what_is_no_server_is_one_sentence(command: str) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="does not begin as an MCP server") as raised:
        made(command, seconds=1.0).reset()
    assert time.monotonic() - began < 15
    assert "\n" not in str(raised.value)


def test_a_command_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(MissingInputError, match=r"agents\.environment: there is no command 'no-such-program'"):
        adapters.find("mcp:no-such-program --stdio")
