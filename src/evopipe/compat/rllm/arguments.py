"""The arguments of `AgentTrainer`: checks, conversion to datasets, and conversion to text that enters a run's key."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evopipe.agents.data import Tasks
from evopipe.agents.environment import BaseEnv
from evopipe.agents.workflow import Workflow
from evopipe.errors import DataError, MissingInputError, UsageError, need_package, suggestion

GIVEN_BY_US = ("rollout_engine", "executor")
"""Arguments of a workflow's constructor that the engine passes."""
_AGENT = ("chat_completions", "trajectory", "reset", "update_from_env", "update_from_model", "get_current_state")
_ENV = ("reset", "step", "close", "from_dict")
_BASES = {"agent_class": "BaseAgent", "env_class": "BaseEnv"}


def source_of(thing: Any) -> str:
    """Return a text that identifies `thing`, so that a change of its code is noticed.

    For a class or function it is the source text, or the name if there is no source text. For a command (a list of
    words) it has the words, and the hashes of those that are files. For None it is empty.
    """
    if isinstance(thing, (list, tuple)):
        files = [Path(word) for word in thing if Path(word).is_file()]
        return json.dumps([list(thing), [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]])
    try:
        return inspect.getsource(thing) if thing is not None else ""
    except (OSError, TypeError):
        return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def shown(args: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each argument: the source of a class or function, else its value as JSON."""
    return {
        key: source_of(value) if callable(value) else json.dumps(value, default=lambda x: type(x).__qualname__)
        for key, value in args.items()
    }


def check_engine(engine: str, env_class: Any) -> None:
    """Check the name of the engine: `auto`, `local` or `ray`.

    For `ray`, also check that the package is installed and that there is a class of environments, `env_class`.
    """
    if engine not in ("auto", "local", "ray"):
        raise ValueError(f"engine: {engine!r} is none of auto, local, ray")
    if engine == "ray":
        need_package("ray", "ray", "engine='ray'")
        if env_class is None:
            raise UsageError(
                "engine='ray' puts the environments of env_class into Ray's processes: a workflow of your own makes "
                "its environments of evopipe.agents.on_ray(YourEnvironment)"
            )


def check_classes(workflow: Any, agent: Any, env: Any, flow: Any, endpoint: bool) -> None:
    """Check the arguments of `AgentTrainer` that say how episodes are made, and raise an error if they do not fit.

    There must be either `workflow`, or `agent` and `env`, or `flow`. The classes must have the methods of a workflow,
    an agent or an environment. `flow` must be an async function of a task and a model. If `endpoint` is True, there
    must be a `flow`: a function of a task and a connection, or a command.
    """
    if endpoint and flow is None:
        raise ValueError("endpoint=True is for a flow, which asks its model over HTTP: pass flow, no classes")
    if flow is not None:
        if workflow is not None or agent is not None or env is not None:
            raise ValueError("flow stands in the place of classes: pass either flow, or workflow_class, or agent_class")
        if endpoint:
            need_package("aiohttp", "serve", "endpoint=True")
            if not callable(flow):
                _check_command(flow)
                return
        elif not inspect.iscoroutinefunction(flow):
            raise ValueError(f"flow must be an async function, got {getattr(flow, '__name__', type(flow).__name__)!r}")
        try:
            inspect.signature(flow).bind(None, None)
        except TypeError as error:
            other = "connection" if endpoint else "model"
            raise ValueError(f"flow must take (task, {other}): {error}") from None
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


def _check_command(words: Any) -> None:
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) and word for word in words):
        raise ValueError(
            f"flow must be a function, or the words of a command, such as ['node', 'agent.js']: {words!r:.60}"
        )
    if shutil.which(words[0]) is None:
        raise MissingInputError(f"flow: there is no command {words[0]!r:.100}: install it, or correct its name")


def _called(thing: Any) -> str:
    return repr(getattr(thing, "__name__", type(thing).__name__))


def parameters_of(cls: type[Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor, by name.

    If the constructor has `**kwargs`, the result includes the parameters of the base class's constructor.
    """
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
    """Check that the constructor of `cls` takes the arguments in `args`.

    `what` is the name under which the error message mentions `args`.
    """
    known, made = parameters_of(cls), getattr(cls, "from_dict", None)
    if made is not None and getattr(made, "__func__", made) is not vars(BaseEnv)["from_dict"].__func__:
        return  # its own `from_dict` reads them
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()) and not issubclass(cls, Workflow):
        return
    names = [name for name, p in known.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in args:
        if name not in names:
            near = suggestion(name, [each for each in names if each not in GIVEN_BY_US]) if names else ""
            raise ValueError(f"{what}: {cls.__name__} takes no argument {name!r}{near}")


def dataset_of(data: Any, name: str) -> Tasks | None:
    """Return the tasks of a dataset, a path or a list of mappings; None if `data` is None.

    `name` is the argument's name, for error messages.

    Raises:
        DataError: there are no rows.
        ValueError: `data` is of another type.
    """
    if data is None:
        return None
    if isinstance(data, Tasks):
        made = data
    elif isinstance(data, (str, Path)):
        made = Tasks.load_data(data)
    elif hasattr(data, "get_data"):
        made = Tasks(data.get_data())
    elif hasattr(data, "__iter__"):
        made = Tasks(list(data))
    else:
        raise ValueError(f"{name} must be a Dataset or a list of mappings, got {type(data).__name__}")
    if not len(made):
        raise DataError(f"{name}: is empty; pass a dataset with rows")
    return made
