"""What a trainer is given: that its classes are such, that constructors take their arguments, that data are rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evopipe.agents.data import Dataset
from evopipe.agents.environment import BaseEnv
from evopipe.agents.workflow import Workflow
from evopipe.errors import DataError, suggestion

GIVEN_BY_US = ("rollout_engine", "executor")
"""Arguments of a workflow's constructor that the engine passes."""


def check_classes(workflow: Any, agent: Any, env: Any, flow: Any) -> None:
    """Check that there is one way to make episodes, and that the classes are such."""
    if flow is not None:
        if workflow is not None or agent is not None or env is not None:
            raise ValueError("flow stands in the place of classes: pass either flow, or workflow_class, or agent_class")
        if not inspect.iscoroutinefunction(flow):
            raise ValueError(f"flow must be an async function, got {getattr(flow, '__name__', type(flow).__name__)!r}")
        _positional(flow, 2)
        return
    if workflow is not None:
        if not (isinstance(workflow, type) and issubclass(workflow, Workflow)):
            raise ValueError(f"workflow_class must be a subclass of evopipe.agents.Workflow, got {_called(workflow)}")
        if not inspect.iscoroutinefunction(workflow.run):
            raise ValueError(f"workflow_class: {workflow.__name__}.run must be an async function")
        return
    if agent is None and env is None:
        raise ValueError("pass workflow_class, or agent_class and env_class, or flow: there is nothing to train")
    for name, value, wanted in (("agent_class", agent, _AGENT), ("env_class", env, _ENV)):
        if value is None:
            raise ValueError(f"{name} is missing: agent_class and env_class go together")
        lacking = [method for method in wanted if not hasattr(value, method)]
        if not isinstance(value, type) or lacking:
            of = f", it has no {', '.join(lacking)}" if lacking else ""
            raise ValueError(f"{name} must be a class like evopipe.agents.{_BASES[name]}, got {_called(value)}{of}")
        if left := sorted(getattr(value, "__abstractmethods__", ())):
            raise ValueError(f"{name}: {value.__name__} does not define {', '.join(left)}")


_AGENT = ("chat_completions", "trajectory", "reset", "update_from_env", "update_from_model", "get_current_state")
_ENV = ("reset", "step", "close", "from_dict")
_BASES = {"agent_class": "BaseAgent", "env_class": "BaseEnv"}


def _called(thing: Any) -> str:
    return repr(getattr(thing, "__name__", type(thing).__name__))


def _positional(function: Callable[..., Any], n: int) -> None:
    try:
        inspect.signature(function).bind(*[None] * n)
    except TypeError as error:
        raise ValueError(f"flow must take (task, model): {error}") from None


def has_argument(cls: type[Any], name: str) -> bool:
    return name in _parameters(cls)


def _parameters(cls: type[Any]) -> dict[str, inspect.Parameter]:
    """Return what a constructor takes, its base classes' arguments included where it hands any on."""
    found: dict[str, inspect.Parameter] = {}
    for each in cls.__mro__:
        if "__init__" not in vars(each) or each is object:
            continue
        own = dict(list(inspect.signature(vars(each)["__init__"]).parameters.items())[1:])
        found = {**own, **found}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
            return {name: p for name, p in found.items() if p.kind is not p.VAR_KEYWORD}
    return found


def check_arguments(cls: type[Any], args: Mapping[str, Any], what: str) -> None:
    known, made = _parameters(cls), getattr(cls, "from_dict", None)
    if made is not None and getattr(made, "__func__", made) is not vars(BaseEnv)["from_dict"].__func__:
        return  # its own `from_dict` reads them
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()) and not issubclass(cls, Workflow):
        return
    names = [name for name, p in known.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in args:
        if name not in names:
            near = suggestion(name, [each for each in names if each not in GIVEN_BY_US]) if names else ""
            raise ValueError(f"{what}: {cls.__name__} takes no argument {name!r}{near}")


def dataset_of(data: Any, name: str) -> Dataset | None:
    if data is None:
        return None
    if isinstance(data, Dataset):
        made = data
    elif isinstance(data, (str, Path)):
        made = Dataset.load_data(data)
    elif hasattr(data, "get_data"):
        made = Dataset(data.get_data())
    elif hasattr(data, "__iter__"):
        made = Dataset(list(data))
    else:
        raise ValueError(f"{name} must be a Dataset or a list of mappings, got {type(data).__name__}")
    if not len(made):
        raise DataError(f"{name}: is empty; pass a dataset with rows")
    return made
