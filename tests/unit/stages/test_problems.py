"""What the stages make of the parameters: what divides a population, what the page shows, which masks count."""

from __future__ import annotations

from typing import Any

import pytest

from evopipe.params.load import Params, parse_params
from evopipe.problems.env import _undivided, _workers, neighbours_of
from evopipe.problems.env_check import _masks
from evopipe.problems.told import names_of
from evopipe.run.problem import RANKS
from evopipe.stages.report import _shown


@pytest.mark.parametrize(
    ("train", "shards", "size", "begin"),
    [
        ({}, {}, 4, "runtime.shards: members that share a memory cannot live apart"),
        ({}, {}, 1, None),
        ({"replay": {"sharing": "own"}}, {}, 4, None),
        ({"replay": {"sharing": 2}}, {}, 4, None),
        ({"algo": "ppo"}, {}, 4, None),
        ({"mode": "offline"}, {}, 4, None),
        ({"mode": "offline", "replay": {"prioritised": True}}, {}, 4, "runtime.shards: a child would inherit its"),
        ({"replay": {"sharing": "own", "prioritised": True}}, {}, 4, None),
        ({"replay": {"sharing": "own"}, "curriculum": "games_for_tests:lessons"}, {}, 4, "train.curriculum: shards do"),
        ({"replay": {"sharing": "own"}, "self_play": {"every": 1}}, {}, 4, "train.self_play: shards do not make"),
        ({"replay": {"sharing": "own"}}, {"ranks": 2}, 4, RANKS),
    ],
)
def test_a_population_is_divided_unless_members_would_miss_each_other(
    train: dict[str, Any], shards: dict[str, Any], size: int, begin: str | None
) -> None:
    found = parse_params({"population": {"size": size}, "train": train})
    assert isinstance(found, Params)
    divided = found.runtime.shards.model_copy(update=shards)
    said = _undivided(divided, found.train, neighbours_of(found.train, size))
    assert (said or "")[: len(begin or "")] == (begin or "")
    assert bool(said) == bool(begin)


def test_the_page_shows_the_settings_of_what_ran() -> None:
    """Of data only what was read, and of that only its own source; no block of another algorithm."""
    blocks = {"algos": {"ppo": {"lr": 0.5}, "dqn": {"lr": 0.25}}, "seed": 3}
    warm = _shown(
        parse_params({**blocks, "train": {"warm_start": 5}, "fetch": {"source": "hdf5", "hdf5": {"path": "x"}}})
    )
    assert warm["fetch"] == {"source": "hdf5", "hdf5": {"path": "x"}}
    assert {name: block["lr"] for name, block in warm["algos"].items()} == {"dqn": 0.25}
    assert (warm["seed"], warm["train"]["algo"], "algo" in warm, "tracking" in warm) == (3, "dqn", False, False)
    cold = _shown(parse_params({**blocks, "train": {"warm_start": 0}}))
    assert "fetch" not in cold
    assert cold.keys() | {"fetch"} == warm.keys()


def test_a_mask_is_one_of_the_environment_or_of_any_agent() -> None:
    assert _masks({"action_mask": [1, 0]}, team=False)
    assert not _masks({"action_mask": None, "mask": [1]}, team=False)
    assert _masks({"a": {}, "b": {"action_mask": [1]}}, team=True)
    assert not _masks({"action_mask": [1], "a": None}, team=True), "it is no agent's"
    assert not _masks({"a": {"action_mask": [1]}}, team=False)


def test_the_elite_is_the_last_of_those_that_are_scored() -> None:
    assert names_of(3) == ["member_0", "member_1", "elite"]
    assert names_of(1) == ["elite"]


@pytest.mark.parametrize(
    ("asked", "steps", "alone", "found"),
    [("auto", 10_000, False, 0), ("auto", 10_001, False, "auto"), ("auto", 10_001, True, 0), (3, 10_000, False, 3)],
)
def test_a_run_of_seconds_starts_no_worker_processes(asked: Any, steps: int, alone: bool, found: Any) -> None:
    assert _workers(asked, steps, alone) == found
