"""The training functions for language models as their page documents them; see `test_pages`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
sys.path.append(str(Path(__file__).parent))

import language

import evopipe
import words
from evopipe import finetune_llm_preference, finetune_llm_reasoning

SHORT = {"size": 2, "rows": 40, "batch": 4}
FIRST = ("pop", "env", "env_fn", "init_hp", "save_elite", "elite_path", "wb", "evo_steps", "checkpoint_steps",
         "tournament", "mutation", "wandb_api_key", "wandb_project", "wandb_entity", "wandb_run_name",
         "evaluation_interval")  # fmt: skip
LAST = ("verbose", "accelerator", "max_steps", "num_epochs", "log_csv")
GIVEN = {"wb": False, "wandb_project": "AgileRL", "evaluation_interval": 10, "verbose": True, "log_csv": False}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(finetune_llm_reasoning, (*FIRST, "max_reward", *LAST)), (finetune_llm_preference, (*FIRST, *LAST))],
)
def test_arguments_and_defaults_are_the_documented_ones(
    function: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    found = inspect.signature(function).parameters
    assert tuple(found) == arguments
    assert {name: found[name].default for name in arguments[1:]} == {name: GIVEN.get(name) for name in arguments[1:]}


@pytest.mark.thorough
def test_reasoning(tmp_path: Path) -> None:
    base = words.base()
    pop = language.reasoning(base.model, base.tokenizer, **SHORT, group=4, max_steps=12, evo_steps=2, folder=tmp_path)
    assert [agent.steps for agent in pop] == [[12], [12]]  # 3 steps of 4 questions
    assert [len(agent.fitness) for agent in pop] == [2, 2]  # before the evolution, and at the end
    policy: Any = evopipe.load(tmp_path / "elite")
    assert len(policy.generate(["123=", "451="])) == 2
    assert policy.about["algo"] == "grpo"


def test_preference(tmp_path: Path) -> None:
    base = words.base()
    pop = language.preference(base.model, base.tokenizer, **SHORT, num_epochs=1, evo_steps=4, folder=tmp_path)
    assert [agent.steps for agent in pop] == [[32], [32]]  # 30 pairs, in whole steps of 4
    assert np.isfinite([agent.fitness for agent in pop]).all()
    assert (tmp_path / "elite/adapter_model.safetensors").exists()


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that copies, reverses or sorts three digits, as it guesses: what `sft-symbols` exports."""
    from learned import run

    folder = tmp_path_factory.mktemp("base")
    run("pipelines/symbols/sft-symbols/params.yaml", 1, folder=folder)
    return folder / "models/elite/merged"


def opened(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def right(policy: Any) -> float:
    """The share of held-out questions that are answered right."""
    rows = language.symbols(2, 100)
    told = policy.generate([row["question"] for row in rows])
    return sum(answer == row["answer"] for answer, row in zip(told, rows, strict=True)) / len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["GRPO", "LLMPPO", "LLMREINFORCE"])
def test_rewards_elicit_one_of_three_things(algo: str, taught: Path, tmp_path: Path) -> None:
    pop = language.reasoning(*opened(taught), algo=algo, folder=tmp_path)
    assert max(agent.fitness[-1] for agent in pop) >= 0.95
    assert right(evopipe.load(tmp_path / "elite")) >= 0.9


@pytest.mark.slow
def test_preferences_elicit_one_of_three_things(taught: Path, tmp_path: Path) -> None:
    pop = language.preference(*opened(taught), folder=tmp_path)
    assert all(agent.fitness[-1] > agent.fitness[0] for agent in pop)
    assert right(evopipe.load(tmp_path / "elite")) >= 0.9
