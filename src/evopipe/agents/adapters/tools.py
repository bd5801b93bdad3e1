"""Classes in TRL's form: `reset(**row)`, public methods as tools, and `get_reward()`; and what all tools share."""

from __future__ import annotations

import asyncio
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Self, cast

from evopipe.agents.adapters import AdaptedEnvironment
from evopipe.agents.agent import CallingAgent
from evopipe.agents.blocking import Blocking
from evopipe.agents.environment import BaseEnv
from evopipe.agents.types import Message, RewardFunction, RewardOutput
from evopipe.errors import ParamsError, need_package, text_of
from evopipe.own import import_name

_NO_TOOLS = ("reset", "get_reward", "close")
_LONGEST = 20_000  # characters of a tool's output that an agent is told


class EpisodeLost(Exception):
    """Raised when the server that answers tool calls has died or answers too late: the episode fails. Other exceptions
    of tools become messages for the agent."""


class ToolsEnvironment(BaseEnv):
    """The base class of environments that offer tools to a `CallingAgent`. An episode ends with a completion that calls
    no tool.

    Attributes:
        scores_cut: whether an episode that ends early, by a limit on tokens, still gets a final reward. It does here.
    """

    scores_cut: ClassVar[bool] = True
    answer = ""  # the last completion, without its calls

    @property
    @abstractmethod
    def tools(self) -> list[dict[str, Any]]:
        """The schemas of the environment's tools, as a list in the form of OpenAI's API."""

    @abstractmethod
    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool by its name with keyword `arguments`, and return its result. `step` converts an exception to a
        message for the agent, except `EpisodeLost`, which ends the episode."""

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        calls = action["calls"] if isinstance(action, Mapping) else []
        self.answer = str(action["content"] if isinstance(action, Mapping) else action)
        if not calls:
            return [], 0.0, True, {}
        return [self._told(call) for call in calls], 0.0, False, {"called": [call["name"] for call in calls]}

    def _told(self, call: Mapping[str, Any]) -> Message:
        try:
            found = self.call(call["name"], call["arguments"])
            found = found.decode(errors="replace") if isinstance(found, bytes) else found
            text = found if isinstance(found, str) else json.dumps(found, default=str, ensure_ascii=False)
        except EpisodeLost:
            raise
        except Exception as error:
            text = f"error: {text_of(error) or type(error).__name__}"
        return {"role": "tool", "name": call["name"], "tool_call_id": call["id"], "content": text[:_LONGEST]}


class ToolClass(ToolsEnvironment):
    """An adapter of an environment class in TRL's form: `reset(**row)`, public methods as tools, and optionally
    `get_reward()`.

    The reward of an episode is what `get_reward()` returns. If the class has no such method, the reward is what
    `reward_fn` returns. If that is None, too, the reward is the instance's attribute `reward` at the end.

    Args:
        environment: the class, or a function that makes instances.
        environment_args: arguments of the class or function.
        row: the task, passed to `reset` as keyword arguments. A text that `reset` returns is appended to the row's
            `prompt`, a text or a list of messages.
        reward_fn: a reward function, called with the row and the agent's last text.
    """

    def __init__(
        self, environment: Callable[..., Any], environment_args: Mapping[str, Any] | None = None,
        row: Mapping[str, Any] | None = None, reward_fn: RewardFunction | None = None,
    ) -> None:  # fmt: skip
        self.made, self.row, self.reward_fn = environment(**dict(environment_args or {})), dict(row or {}), reward_fn
        self._tools = schemas(type(self.made))  # here, for another process would have to import transformers
        self.blocking: Blocking = getattr(self.made, "blocking", True)  # type: ignore[misc]  # its class's, as it is

    @classmethod
    def from_dict(cls, info: Mapping[str, Any]) -> Self:
        own = ("environment", "environment_args", "reward_fn")
        given = {name: info[name] for name in own if name in info}
        return cls(**given, row={name: value for name, value in info.items() if name not in own})

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._tools

    def reset(self) -> tuple[Any, dict[str, Any]]:
        told = _awaited(self.made.reset(**self.row))
        if told is not None and not isinstance(told, str):
            raise TypeError(f"{type(self.made).__name__}.reset returned {type(told).__name__}, expected a text or None")
        chat = chat_of(self.row.get("prompt"), told or "")
        return chat, {"tools": self.tools}

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return _awaited(getattr(self.made, name)(**arguments))

    def compute_final_reward(self) -> Any:
        """Return the reward of the whole episode: from `get_reward()`, else from `reward_fn`, else from the attribute
        `reward`.

        Raises:
            ValueError: the environment has none of the three.
        """
        if callable(own := getattr(self.made, "get_reward", None)):
            return _awaited(own())
        if self.reward_fn is not None:
            return judged(self.reward_fn, self.row, self.answer)
        if not hasattr(self.made, "reward"):
            raise ValueError(
                f"{type(self.made).__name__} has neither get_reward nor an attribute reward: pass reward_fn"
            )
        return self.made.reward

    def close(self) -> None:
        if callable(close := getattr(self.made, "close", None)):
            _awaited(close())


def _awaited(found: Any) -> Any:
    """Return what a method returned; where that is a coroutine, its result."""

    async def ended() -> Any:
        return await found

    return asyncio.run(ended()) if inspect.isawaitable(found) else found


def judged(reward_fn: RewardFunction, task: dict[str, Any], answer: str) -> Any:
    """Call a reward function with a task and the agent's answer, and return the reward as a plain value, not as a
    `RewardOutput`."""
    found = reward_fn(task, answer)
    return found.reward if isinstance(found, RewardOutput) else found


def chat_of(prompt: Any, told: str) -> list[Message]:
    """Return the messages of an episode's first observation: the task's prompt with the text `told` appended.

    Args:
        prompt: a text or None, which becomes one message of the user; or a list of messages, of which the last one is
            extended.
        told: the text that the environment's `reset` returned, or an empty text.

    Raises:
        TypeError: `prompt` is of another type, or an empty list.
    """
    if prompt is None or isinstance(prompt, str):
        return [{"role": "user", "content": (prompt or "") + told}]
    if not isinstance(prompt, list) or not prompt or not all(isinstance(each, Mapping) for each in prompt):
        raise TypeError(f"the row's prompt is {prompt!r:.60}, expected a text, or messages with role and content")
    last = {**prompt[-1], "content": str(prompt[-1].get("content") or "") + told}
    return [*(dict(each) for each in prompt[:-1]), last]


@lru_cache(256)
def _schemas(cls: type[Any]) -> str:
    from transformers.utils.chat_template_utils import get_json_schema

    found = []
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if name.startswith("_") or name in _NO_TOOLS:
            continue
        kinds = {each.kind for each in inspect.signature(method).parameters.values()}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            raise ParamsError(
                f"{cls.__name__}.{name}: no tool can be made of it (*args and **kwargs say no names): take a list "
                "or named arguments, or begin its name with '_'"
            )
        try:
            made = get_json_schema(method)
        except Exception as error:
            raise ParamsError(
                f"{cls.__name__}.{name}: no tool can be made of it ({text_of(error)}): give each argument a type and a "
                f"line in its docstring below 'Args:', or begin its name with '_'"
            ) from None
        made["function"].pop("return", None)
        found.append(made)
    return json.dumps(found)


def schemas(cls: type[Any]) -> list[dict[str, Any]]:
    """Return the schemas of a class's tools in the form of OpenAI's API, one for each public method except `reset`,
    `get_reward` and `close`.

    Raises:
        ParamsError: a method has no docstring, an argument no type, or `*args`.
    """
    found: list[dict[str, Any]] = json.loads(_schemas(cast("Hashable", cls)))
    return found


def adapted(environment: Any, key: str) -> AdaptedEnvironment:
    """Return the adapter of an environment in TRL's form.

    Args:
        environment: the class, a function that makes instances, or a text `module:name` that names the class or the
            function.
        key: the parameter or argument that error messages name.

    Raises:
        ParamsError: the class has no method `reset`, or no tool can be made of one of its methods.
        MissingInputError: the extra `language` is not installed.
    """
    need_package("transformers", "language", key)
    if isinstance(environment, str):
        environment = import_name(environment, key)
    if inspect.isclass(environment):
        if not callable(getattr(environment, "reset", None)):
            raise ParamsError(f"{key}: {environment.__name__} has no method 'reset': it is no environment")
        schemas(environment)
    return AdaptedEnvironment(ToolClass, {"environment": environment}, CallingAgent)
