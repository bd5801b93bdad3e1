"""The pages on agents say what is: every documented argument, class and key, and blocks that run as they stand."""

from __future__ import annotations

import gc
import inspect
import re
import sys
import warnings
from typing import Any

import pytest

pytest.importorskip("transformers")

import evopipe
from evopipe import agents
from evopipe.compat.rllm.config import resolve
from evopipe.compat.rllm.documented import BLOCKS_OF_ARGUMENTS, FILTERS, OWN, SAME, WITHOUT
from tiny import ROOT

DOCUMENTED = (
    "workflow_class", "workflow_args", "agent_class", "env_class", "agent_args", "env_args", "config", "train_dataset",
    "val_dataset",
)  # fmt: skip
SHORT = [
    "trainer.total_training_steps=2", "trainer.test_freq=1", "language.tiny.hidden=16", "language.tiny.layers=1",
    "language.tiny.heads=2", "train.eval_episodes=4", "train.confirm_episodes=4", "evaluate.bootstrap=100",
]  # fmt: skip


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def test_the_constructor_is_the_documented_one_with_ours_behind_it() -> None:
    parameters = list(inspect.signature(evopipe.AgentTrainer).parameters.values())
    positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert [each.name for each in positional] == list(DOCUMENTED)
    assert all(each.default is None for each in positional)
    told = page("coming-from-rllm.md")
    assert [each.name for each in parameters if f"`{each.name}`" not in told] == []


def test_the_page_has_every_class_and_every_documented_key() -> None:
    told = page("coming-from-rllm.md")
    named = set(re.findall(r"`([\w.]+)`", told))
    assert {*agents.__all__} - named - {"AgentTrainer", "Trained"} == set()
    assert {*SAME, *OWN, *FILTERS, *BLOCKS_OF_ARGUMENTS, *WITHOUT} - named == set()


def test_the_page_has_no_key_that_is_unknown() -> None:
    first = [line.split("|")[1] for line in page("coming-from-rllm.md").splitlines() if line.startswith("| `")]
    keys = [
        key
        for cell in first
        for key in re.findall(r"`((?:data|actor_\w+|algorithm|trainer|rllm|ray_init)\.[\w.]+)`", cell)
    ]
    assert len(keys) > 60
    for key in keys:
        known = key in {*SAME, *OWN, *FILTERS, *BLOCKS_OF_ARGUMENTS}
        assert known or resolve({key: 1}, None, 10, "x").notes, key


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("agents.md", 0), ("workflows.md", 0), ("agents-endpoint.md", 0), ("agents-environments.md", 0),
        ("agents-environments.md", 1),
    ],
)  # fmt: skip
def test_the_trainers_of_the_pages_train_as_they_stand(name: str, number: int) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks(name)[number], name, "exec", dont_inherit=True), names)
    trained = names["make"](SHORT).train()
    assert trained.policy is not None
    assert trained.evaluation["elite"]["failed"] == 0
    assert trained.measures[-1]["failed"] == 0
    del trained
    names.clear()
    with (
        warnings.catch_warnings()
    ):  # a client that a page shares among its agents has connections until its process ends
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_the_team_of_the_page_plays() -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks("workflows.md")[1], "workflows.md", "exec", dont_inherit=True), names)
    assert {each["name"] for each in names["episode"]["trajectories"]} <= {"player_1", "player_2"}
    assert names["episode"]["termination_reason"] in ("max_turns_exceeded", "max_prompt_length_exceeded", "env_done")


@pytest.mark.thorough
def test_the_servers_of_the_page_on_environments_are_played_with(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("websockets")
    pytest.importorskip("mcp")
    from openenv_server import serving

    own = [block for block in blocks("agents-environments.md") if "def make" not in block]
    (openenv,) = [block for block in own if "openenv:" in block]
    (mcp,) = [block for block in own if "mcp:" in block]
    assert len(own) == 2
    monkeypatch.chdir(ROOT / "tests")
    with serving() as (address, _):
        places = [
            (openenv, "openenv:ws://127.0.0.1:8000", address),
            (mcp, "python server.py", f"{sys.executable} mcp_server.py"),
        ]
        for block, written, place in places:
            assert written in block
            names: dict[str, Any] = {}
            exec(compile(block.replace(written, place), "agents-environments.md", "exec", dont_inherit=True), names)
            assert "error" not in names["episode"]["info"]
            assert names["episode"]["trajectories"][0]["steps"]
