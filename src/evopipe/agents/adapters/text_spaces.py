"""Gymnasium's environments whose observations are texts (`spaces.Text`), and whose actions are texts or numbers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium import spaces

from evopipe.agents.adapters import AdaptedEnvironment
from evopipe.agents.environment import BaseEnv
from evopipe.errors import ParamsError, suggestion


class TextSpaces(BaseEnv):
    """A Gymnasium environment whose observations are texts, or mappings of texts and numbers. A task is `{"seed": 7}`,
    and may also have `options`.

    An action outside the environment's action space is not executed: the step returns a message for the agent and the
    reward 0.

    Args:
        environment: an id for `gymnasium.make`, an environment class, or a function that makes the environment.
        environment_args: arguments of `gymnasium.make`, of the class or of the function.
        task: a mapping; its `seed` and `options`, if any, are passed to `reset`.

    Raises:
        TypeError: the observations contain no text, or actions are neither texts nor numbers of a Discrete space.
    """

    def __init__(
        self, environment: str | Callable[..., Any], environment_args: Mapping[str, Any] | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        given = dict(environment_args or {})
        self.env: gymnasium.Env[Any, Any] = (
            gymnasium.make(environment, **given) if isinstance(environment, str) else environment(**given)
        )
        self.task = dict(task or {})
        told, taken = self.env.observation_space, self.env.action_space
        if not _tells(told):
            raise TypeError(f"observations are of {told!r:.100}, no texts: GymEnvironment shows them, by its `show`")
        if not isinstance(taken, (spaces.Text, spaces.Discrete)):
            raise TypeError(f"actions are of {taken!r:.100}: an agent writes texts, or numbers of a Discrete space")

    def reset(self) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=self.task.get("seed"), options=self.task.get("options"))
        return _shown(observation), dict(info)

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        space, text = self.env.action_space, str(action)
        taken: Any = text
        if isinstance(space, spaces.Discrete):
            number = text.strip().removeprefix("-")
            taken = int(text) if number.isdecimal() and len(number) < 10 else None
        if taken is None or not space.contains(taken):
            return f"no action {text[:40]!r}; actions are of {space!r:.100}", 0.0, False, {"legal": False}
        observation, reward, ended, cut, info = self.env.step(taken)
        return _shown(observation), float(reward), bool(ended or cut), {**info, "legal": True}

    def close(self) -> None:
        self.env.close()


def _tells(space: Any) -> bool:
    """Whether what a space has can be read: a text, or a mapping with one."""
    if isinstance(space, spaces.Dict):
        plain = (spaces.Text, spaces.Discrete)
        return any(map(_tells, space.values())) and all(
            isinstance(each, plain) or _tells(each) for each in space.values()
        )
    return isinstance(space, spaces.Text)


def _shown(observation: Any) -> str:
    return observation if isinstance(observation, str) else json.dumps(observation, default=_number, ensure_ascii=False)


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def seeds(n: int, seed: int) -> list[dict[str, Any]]:
    """Return `n` tasks, each `{"seed": …}` with another seed for the environment.

    If `n` is at most a million, two calls with different arguments `seed` give no task in common.
    """
    return [{"seed": seed * 1_000_000 + i} for i in range(n)]


def adapted(environment: Any, key: str) -> AdaptedEnvironment:
    """Return an adapter by which a language model plays a Gymnasium environment: observations become its messages, and
    its completions become actions.

    `environment` is the environment's id, its class, or a function that makes it. `key` is the parameter or argument
    that error messages name.

    Raises:
        ParamsError: no environment is registered under this id, or the class is abstract.
    """
    if isinstance(environment, str):
        try:
            gymnasium.spec(environment)
        except gymnasium.error.Error as error:
            near = suggestion(environment, gymnasium.registry)
            raise ParamsError(
                f"{key}: gymnasium knows no {environment!r:.100} ({str(error)[:200]}){near[:200]}"
            ) from None
    elif inspect.isclass(environment) and inspect.isabstract(environment):
        raise ParamsError(f"{key}: {environment.__name__} is abstract: it cannot be made")
    return AdaptedEnvironment(TextSpaces, {"environment": environment}, tasks=seeds)
