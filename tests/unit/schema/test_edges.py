"""Rules of the schemas that no single bound says, at their edges: what is just taken, and what is just refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from evopipe.errors import ParamsError
from evopipe.params.load import parse_params
from evopipe.schema.env import EnvConfig
from evopipe.schema.stored import Number, StoredTeam


def team(agents: int, observations: int, actions: int) -> dict[str, Any]:
    one = {"masked": False, "observations": observations, "actions": actions}
    return {"team": [{**one, "id": name} for name in range(agents)]}


def test_a_team_has_four_million_numbers_of_observations_and_actions_together() -> None:
    """Of its largest agent, once for each."""
    StoredTeam.model_validate(team(64, (1 << 16) - 5, 5))
    mixed = team(4, 1, 1)
    mixed["team"][2] |= {"observations": (1 << 20) - 1, "actions": 1}
    StoredTeam.model_validate(mixed)
    mixed["team"][2] |= {"observations": 1 << 20}
    for much, count in ((team(64, (1 << 16) - 5, 6), (1 << 22) + 64), (mixed, (1 << 22) + 4)):
        with pytest.raises(ValidationError, match=f"has {count} numbers of observations and actions, at most 4194304"):
            StoredTeam.model_validate(much)


def test_a_stored_number_is_small_on_either_side() -> None:
    number: Any = TypeAdapter(Number)
    for value in (1e30, -1e30, 0, 10**30):
        assert number.validate_python(value) == value
    for value in (1.1e30, -1.1e30, float("inf"), -(10**31)):
        with pytest.raises(ValidationError, match="at most 1e30 in size"):
            number.validate_python(value)


def test_chances_of_opponents_add_up_to_one_at_most() -> None:
    play = {"every": 1, "latest": 0.75, "fixed": 0.25}
    own = {"replay": {"sharing": "own"}}
    parse_params({"train": {**own, "self_play": play}})
    with pytest.raises(ParamsError, match=r"latest \(0.75\) and fixed \(0.5\) add up to more than 1"):
        parse_params({"train": {**own, "self_play": {**play, "fixed": 0.5}}})
    with pytest.raises(ParamsError, match=r"latest \(1.0\) and fixed \(0.1\) add up"):
        parse_params({"train": {**own, "self_play": {"every": 1, "latest": 1.0}}})


def test_what_gymnasium_steps_is_the_same_environment_unless_it_is_ones_own() -> None:
    for given, backend in (
        ({"id": "CartPole-v1", "backend": "c"}, "sync"),
        ({"id": "CartPole-v1", "backend": "torch"}, "sync"),
        ({"id": "Mine-v0", "backend": "c", "source": "mine.c"}, "c"),
        ({"id": "own:Tensors", "backend": "torch"}, "torch"),
        ({"id": "own:Tensors", "backend": "sync"}, "sync"),
    ):
        cfg = EnvConfig.model_validate(given)
        assert cfg.on_gymnasium == cfg.model_copy(update={"backend": backend})
