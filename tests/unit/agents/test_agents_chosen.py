"""Which environment is adapted: what a program passes, or what the parameters name, and never both."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from evopipe.agents import adapters
from evopipe.agents.adapters.text_spaces import TextSpaces
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
