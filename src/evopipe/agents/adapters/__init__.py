"""Environments that were written for other libraries: each kind is a thin adapter in a file of its own.

An environment is named in one way, as `env_class` of an `AgentTrainer` or as `agents.environment`: `module:Class`, of
which the kind is recognised, or `KIND:NAME`. Another package may bring a kind by an entry point of the group
`evopipe.environments`: the name of a function like `adapted` in these files.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from evopipe import plugins
from evopipe.agents.agent import BaseAgent, ChatAgent
from evopipe.errors import ParamsError, suggestion
from evopipe.own import NAME, foreign, import_name
from evopipe.watchdog import Watchdog

KEY = "agents.environment"
_SECONDS = 60.0  # that a function which makes environments has for the first one
_FILES = {
    "gym": "text_spaces", "mcp": "mcp_tools", "openenv": "openenv", "reasoning-gym": "reasoning_gym",
    "textarena": "textarena", "tools": "tools",
}  # fmt: skip
OWN = tuple(_FILES)
_METHODS = ("reset", "step", "close", "from_dict")  # of `BaseEnv`


class AdaptedEnvironment(NamedTuple):
    """The classes, arguments and tasks from which an `AgentTrainer` makes the episodes of one environment.

    Attributes:
        env_class: the class of the environments.
        env_args: keyword arguments for `env_class`, in addition to those that the user gives.
        agent_class: the class of the agents, if the user names none.
        tasks: a function (n, seed) that returns n tasks; another seed gives other tasks. None if the user must give a
            dataset.
    """

    env_class: type[Any]
    env_args: Mapping[str, Any]
    agent_class: type[Any] = ChatAgent
    tasks: Callable[[int, int], list[dict[str, Any]]] | None = None


def chosen(environment: Any, named: Any, other: bool) -> AdaptedEnvironment | None:
    """Return the adapter of the environment that a program passes or that the parameter `agents.environment` names.

    Returns None if neither names an environment, if the environment needs no adapter, or if `other` is true.

    Args:
        environment: the program's environment: a class, a function that makes environments, or a text in the form of
            `agents.environment`; None if the program passes none.
        named: the value of `agents.environment`; None if it is not set.
        other: whether the program makes its episodes by a workflow or a function instead of an environment.

    Raises:
        ParamsError: the parameter names an environment although the program passes an environment, workflow or
            function; the text names no environment of a known kind; or no tool can be made of a method.
        MissingInputError: the kind needs a package that is not installed.
        EnvironmentFailed: importing or making the environment raised an exception.
    """
    if named is None:
        return None if environment is None or other else find(environment, "env_class")
    if not isinstance(named, str):
        raise ParamsError(f"{KEY}: of type {type(named).__name__}, expected a text")
    if environment is not None or other:
        raise ParamsError(f"{KEY}: {named!r:.100} beside what the program passes: leave one of them out")
    return find(named)


def find(environment: Any, key: str = KEY) -> AdaptedEnvironment | None:
    """Return the adapter of an environment.

    The result is None if a class or function needs no adapter or is of an unknown kind. A text of an unknown kind is an
    error.

    Args:
        environment: a class, a function that makes environments, or a text as in `agents.environment`: `module:Class`
            or `KIND:NAME`.
        key: the parameter or argument that error messages name.

    Raises:
        ParamsError: the text names no environment of a known kind, or no tool can be made of one of its methods.
        MissingInputError: the kind needs a package that is not installed.
        EnvironmentFailed: importing or making the environment raised an exception.
    """
    if isinstance(environment, str):
        return _named(environment, key)
    if not callable(environment):
        return None
    cls = environment if inspect.isclass(environment) else _made_by(environment, key)
    kind = _kind(cls)
    return None if kind is None else _adapter(kind)(environment, key)


def _named(text: str, key: str) -> AdaptedEnvironment:
    kind, sign, name = text.partition(":")
    if sign and kind in OWN:
        return _adapter(kind)(name, key)
    if sign and (plugin := plugins.find(plugins.ENVIRONMENTS, kind, key, OWN)) is not None:
        made = plugin.load(key)(name, key)
        if not isinstance(made, AdaptedEnvironment):
            raise ParamsError(f"{key}: {plugin} returned {type(made).__name__}, expected an AdaptedEnvironment")
        return made
    if not NAME.fullmatch(text):
        kinds = [*OWN, *plugins.names(plugins.ENVIRONMENTS, OWN)]
        raise ParamsError(f"{key}: {text!r:.100} is neither 'module:Class' nor 'KIND:NAME'{suggestion(kind, kinds)}")
    found = import_name(text, key)
    if (adapted := find(found, key)) is not None:
        return adapted
    lacking = [method for method in _METHODS if not hasattr(found, method)]
    if not lacking and inspect.isclass(found):
        tasks = getattr(found, "tasks", None)
        return AdaptedEnvironment(found, {}, ChatAgent, tasks if callable(tasks) else None)
    raise ParamsError(
        f"{key}: {text!r} is no environment of a known kind, it has no {', '.join(lacking)}: let it be a "
        f"gymnasium.Env, a subclass of evopipe.agents.BaseEnv, or a class in TRL's form; if step is one of its tools, "
        f"say 'tools:{text}'"
    )


def _kind(cls: type[Any]) -> str | None:
    import gymnasium

    if issubclass(cls, gymnasium.Env):
        return "gym"
    in_trls_form = callable(getattr(cls, "reset", None)) and not hasattr(cls, "step")
    return "tools" if in_trls_form and not issubclass(cls, BaseAgent) else None


def _adapter(kind: str) -> Callable[[Any, str], AdaptedEnvironment]:
    adapted: Callable[[Any, str], AdaptedEnvironment] = import_module(f"evopipe.agents.adapters.{_FILES[kind]}").adapted
    return adapted


def _made_by(environment: Any, key: str) -> type[Any]:
    """Return the class of what a function makes."""
    with foreign(f"{key}: making {getattr(environment, '__name__', 'it')}", Watchdog(_SECONDS)):
        made = environment()
        if callable(close := getattr(made, "close", None)):
            close()
    return type(made)
