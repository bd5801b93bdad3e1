"""Which environment is adapted: what a program passes, or what the parameters name, and never both."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from evopipe.agents import adapters
from evopipe.agents.adapters.text_spaces import TextSpaces
from evopipe.agents.adapters.textarena import ArenaGame
from evopipe.errors import ParamsError


class Plain(gymnasium.Env[Any, Any]):
    """An environment that needs an adapter."""


def test_an_environment_beside_a_workflow_is_the_workflows_own() -> None:
    """It is not adapted, nor even looked at: a text that names nothing is none of the adapters' business then."""
    found = adapters.chosen(Plain, None, other=False)
    assert found is not None
    assert found.env_args == {"environment": Plain}
    assert adapters.chosen(Plain, None, other=True) is None
    assert adapters.chosen("nobody:", None, other=True) is None
    assert adapters.chosen(None, None, other=False) is None
    named = adapters.chosen(None, "gym:CartPole-v1", other=False)
    assert named is not None
    assert named.env_args == {"environment": "CartPole-v1"}
    for passed, other in ((Plain, False), (None, True)):
        with pytest.raises(ParamsError, match=r"agents\.environment: 'gym:CartPole-v1' beside what the program passes"):
            adapters.chosen(passed, "gym:CartPole-v1", other)
    with pytest.raises(ParamsError, match=r"agents\.environment: of type int, expected a text"):
        adapters.chosen(None, 3, other=False)


class Ends(gymnasium.Env[Any, Any]):
    """An episode that ends as its only action says."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    observation_space = gymnasium.spaces.Text(9)
    action_space = gymnasium.spaces.Text(9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return f"{seed} {options}", {}

    def step(self, action: Any) -> Any:
        return action, 0.5, "end" in action, "cut" in action, {"said": action}


@pytest.mark.parametrize(("action", "over"), [("go", False), ("end", True), ("cut", True), ("cutend", True)])
def test_an_episode_of_texts_is_over_where_it_ends_and_where_it_is_cut(action: str, over: bool) -> None:
    env = TextSpaces(Ends, task={"seed": 7, "options": {"a": 1}})
    assert env.reset() == ("7 {'a': 1}", {})
    assert env.step(action) == (action, 0.5, over, {"said": action, "legal": True})


class Dice:
    """A game as textarena has them, that throws a die at every move, and is over after the third."""

    def reset(self, num_players: int, seed: int) -> None:
        self.shown, self.moves = random.randrange(10**6), 0

    def get_observation(self) -> tuple[int, int]:
        return 0, self.shown

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.moves, self.shown = self.moves + 1, random.randrange(10**6)
        return self.moves == 3, {"move": action}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
        return {0: self.shown / 10}, {0: {"reason": "over"}}


def test_a_game_draws_on_from_its_own_seed_whoever_plays_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", SimpleNamespace(make=lambda game, **given: Dice()))
    own = random.Random(7)
    thrown = [own.randrange(10**6) for _ in range(4)]
    assert len({*thrown}) == 4
    random.seed(3)
    before = random.getstate()
    game, beside = (ArenaGame("Dice", task={"seed": seed}) for seed in (7, 8))
    assert game.reset() == (str(thrown[0]), {})
    beside.reset()
    for move in (1, 2):
        assert game.step(move) == (str(thrown[move]), 0.0, False, {"move": str(move)})
        beside.step(move)
    assert game.step("x") == ("", thrown[3] / 10, True, {"move": "x", "reason": "over"})
    assert random.getstate() == before
