"""What does not fit between a search strategy and the rest of `params.yaml` is said with its place, before anything
runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evopipe.errors import ParamsError
from evopipe.params.load import load_params, parse_params
from tiny import write_params

GROWTH = {"slice": None, "window": 3, "factor": 1.5}
HALVING = {"eta": 3, "rung": None, "width": 1}
NEVER = "begins new trials and does not end by itself: give the environment steps of the population after which it ends"


@pytest.mark.parametrize(
    ("changes", "key", "sentence"),
    [
        ({"strategy": "random"}, "budget", f"search.budget: random {NEVER}"),
        ({"strategy": "growth", "growth": GROWTH}, "budget", f"search.budget: growth {NEVER}"),
        (
            {"strategy": "random", "budget": 399},
            "budget",
            "search.budget: must be at least one slice (train.evo_steps: 400), got 399",
        ),
        (
            {"strategy": "growth", "budget": 900, "growth": {**GROWTH, "slice": 1000}},
            "slice",
            "search.growth.slice: the run ends before (search.budget: 900); lower it, or raise search.budget",
        ),
        (
            {"strategy": "halving", "budget": 900, "halving": {**HALVING, "width": 4}},
            "width",
            "search.halving.width: there are only 3 members (population.size); lower it, or raise population.size",
        ),
        (
            {"strategy": "halving", "budget": 900, "halving": {**HALVING, "rung": 2001}},
            "rung",
            "search.halving.rung: no trial lives that long (train.max_steps: 2000); lower it",
        ),
        (
            {"strategy": "halving", "budget": 900},
            "search",
            "search.halving: missing block: add it, the defaults are {eta: 3, rung: null, width: 1}",
        ),
        ({"budget": 399}, "budget", "search.budget: must be at least one slice (train.evo_steps: 400), got 399; "
                                    "raise it, or lower train.evo_steps"),
        ({"strategy": "halvin", "budget": 900}, "strategy",
         "search.strategy: there is no strategy 'halvin', did you mean 'halving'?"),
        ({"strategy": "nothing"}, "strategy", "search.strategy: there is no strategy 'nothing'; there are growth, "),
        ({"strategy": "halving", "budget": 900, "halving": {**HALVING, "eta": 1}}, "eta",
         "search.halving.eta: must be at least 2, got 1"),
    ],
)  # fmt: skip
def test_a_search_that_cannot_be_run_is_refused_where_it_stands(
    changes: dict[str, Any], key: str, sentence: str, tmp_path: Path
) -> None:
    path = write_params(tmp_path, {f"search.{name}": value for name, value in changes.items()})
    found = refusal(path)
    assert found.partition(": ")[2].startswith(sentence)
    assert place(found, path) == key


def test_a_budget_of_one_slice_is_enough() -> None:
    data = {"train": {"evo_steps": 400}, "search": {"strategy": "random", "budget": 400}}
    assert parse_params(data).search.budget == 400


@pytest.mark.parametrize("strategy", ["halving", "growth", "random"])
@pytest.mark.parametrize("given", [True, False])
def test_a_space_that_is_empty_is_refused(strategy: str, given: bool, tmp_path: Path) -> None:
    """But for a strategy that draws nothing; and one whose ends are crossed is refused by itself."""
    search = {"search.strategy": strategy, "search.budget": 10**6}
    search |= {"search.growth": GROWTH} if strategy == "growth" else {}
    search |= {"search.halving": HALVING} if strategy == "halving" else {}
    ranges: dict[str, Any] = {"lr": {"min": 1e-2, "max": 1e-4, "grow": 1.2, "shrink": 0.8}} if given else {}
    path = write_params(tmp_path, {**search, "algos.dqn.evolve": ranges})
    found = refusal(path)
    said = "algos.dqn.evolve.lr: min (0.01) is above max (0.0001)" if given else (
        f"algos.dqn.evolve: search.strategy {strategy} draws values from these ranges, and there are none: give at "
        "least one hyper-parameter a range"
    )  # fmt: skip
    assert found.partition(": ")[2] == said
    assert place(found, path) == ("lr" if given else "evolve")
    if not given:
        load_params(write_params(tmp_path, {"algos.dqn.evolve": {}}))


@pytest.mark.parametrize("strategy", ["halving", "growth"])
def test_a_dataset_and_a_language_model_can_be_searched_too(strategy: str) -> None:
    """A strategy asks for scores and steps only."""
    search = {"strategy": strategy, "budget": 10**6}
    offline = parse_params({"train": {"algo": "cqn", "mode": "offline"}, "search": search})
    text = parse_params({"language": {}, "train": {"algo": "sft"}, "search": search})
    assert offline.search.strategy == text.search.strategy == strategy
    with pytest.raises(ParamsError, match=r"^search\.budget: must be at least one slice"):
        parse_params({"language": {}, "train": {"algo": "sft"}, "search": {**search, "budget": 1}})


def refusal(path: Path) -> str:
    with pytest.raises(ParamsError) as error:
        load_params(path)
    return str(error.value)


def place(said: str, path: Path) -> str:
    """The key at the line and column that a refusal names."""
    _, line, column, _ = said.split(":", 3)
    return path.read_text().splitlines()[int(line) - 1][int(column) - 1 :].partition(":")[0]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        (
            {"search": {"fitness": "training"}, "train": {"algo": "cqn", "mode": "offline"}},
            "search.fitness: no episode ends while members learn from a dataset or write text",
        ),
        (
            {"search": {"fitness": "training"}, "language": {}, "train": {"algo": "sft"}},
            "search.fitness: no episode ends while members learn from a dataset or write text",
        ),
        (
            {"train": {"algo": "ppo", "replay": {"evaluation": True}}},
            "train.replay.evaluation: ppo fills no memory, and evaluation's steps go into one",
        ),
        (
            {"train": {"algo": "maddpg", "replay": {"evaluation": True}}},
            "train.replay.evaluation: maddpg is for teams, and evaluation's steps go into one",
        ),
        (
            {"train": {"replay": {"updates": "pooled", "sharing": "own"}}},
            "train.replay.updates: pooled counts the steps of one memory: set train.replay.sharing to shared",
        ),
    ],
)
def test_a_ledger_that_cannot_be_kept_is_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParamsError) as refused:
        parse_params(params)
    assert sentence in str(refused.value)
