"""Agents learn what the committed pipelines say, over several seeds, on tasks that nobody trained on.

Thresholds are never lowered to get green.
"""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

from learned import SEEDS, run
from tiny import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]


class Pipeline:
    """A pipeline with its `start`, with another seed."""

    def __init__(self, folder: str, module: str, seed: int, out: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.seed, self.out = ROOT / "pipelines" / folder, seed, out
        patch.syspath_prepend(str(self.folder))
        self.module: Any = import_module(module)
        run(f"pipelines/{folder}/start/params.yaml", seed, folder=out)

    def train(self, below: str = "") -> dict[str, Any]:
        """Run the stage `train` of the folder, or of one below it; return the evaluation."""
        config = [
            str(self.folder / below / "params.yaml"), f"seed={self.seed}", "tracking.backends=[]",
            f"language.model={self.out / 'models/elite/merged'}",
        ]  # fmt: skip
        found: dict[str, Any] = self.module.make(config).train().evaluation
        print(json.dumps({"seed": self.seed, "folder": self.folder.name + below, **found}))
        return found


@pytest.fixture
def pipeline(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return partial(Pipeline, seed=seed, out=tmp_path, patch=monkeypatch)


def test_a_calculator_is_asked_and_the_answer_is_what_it_says(pipeline: Any) -> None:
    own = pipeline("agent-calculator", "calculator")
    found, without = own.train(), own.train("without")
    assert found["elite"]["mean"] > found["base"]["mean"]
    assert found["elite"]["mean"] >= 0.9
    assert found["elite"]["mean"] >= without["elite"]["mean"] + 0.4


def test_a_solver_and_its_judge_both_improve(pipeline: Any) -> None:
    found = pipeline("agent-solver-judge", "solver_judge").train()
    assert found["base"]["solver_acc"] <= 0.6
    assert found["base"]["judge_acc"] <= 0.7
    assert found["elite"]["solver_acc"] >= 0.9
    assert found["elite"]["judge_acc"] >= 0.9


def test_a_lake_is_crossed_nearly_as_well_as_can_be(pipeline: Any) -> None:
    own = pipeline("agent-frozenlake", "frozenlake")
    best = own.module.best_return(own.module.held_out())
    found = own.train()
    assert found["base"]["mean"] <= best / 2
    assert found["elite"]["mean"] >= 0.9 * best


def test_a_tool_user_follows_the_notes_to_the_key(pipeline: Any) -> None:
    found = pipeline("agent-tools", "find_key").train()
    assert found["base"]["mean"] <= 0.6
    assert found["elite"]["mean"] >= 0.9


def test_an_item_of_a_store_is_found_and_counted_by_the_tools_of_a_server(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp", reason="an extra of its own: pip install 'evopipe[mcp]'")
    monkeypatch.chdir(ROOT / "pipelines/agent-stock")  # where the server's command finds it
    found = pipeline("agent-stock", "stock").train()
    assert found["base"]["mean"] <= 0.6
    assert found["elite"]["mean"] >= 0.9


@pytest.mark.parametrize(
    ("name", "package"), [("guess", "gymnasium"), ("lights", "websockets"), ("number", "textarena")]
)
def test_three_digits_are_enough_from_random_weights(
    name: str, package: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    folder = ROOT / f"pipelines/agent-{name}"
    monkeypatch.syspath_prepend(str(folder))
    config = [str(folder / "params.yaml"), f"seed={seed}", "tracking.backends=[]"]
    found = import_module(name).make(config).train().evaluation
    print(seed, found["base"]["mean"], found["elite"]["mean"])
    assert found["base"]["mean"] <= 0.6
    assert found["elite"]["mean"] >= 0.9
