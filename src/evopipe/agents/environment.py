"""Environments of agents: base classes, and adapters for tools and for Gymnasium."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Self

from evopipe.agents.blocking import Blocking
from evopipe.agents.types import RewardFunction, RewardOutput


@lru_cache(256)
def _arguments(cls: type[Any]) -> frozenset[str]:
    return frozenset(inspect.signature(cls).parameters)


class BaseEnv(ABC):
    """The base class of environments. An instance runs one episode of one task.

    Methods may be plain functions or coroutine functions.

    Attributes:
        blocking: where plain methods run: True for a thread, `"process"` for a process, False for the thread of the
            event loop, which then waits for them.
        idx: the episode's name, which the workflow sets.
        scores_cut: whether an episode that ends early, by a limit on tokens, still gets a final reward.
    """

    blocking: ClassVar[Blocking] = True
    """Whether its methods may take longer than a moment: they run in threads then. `"process"`: in processes, which
    several CPUs run at once, and which are killed where a method hangs. The environment travels to one and back with
    each call: it must be picklable, and is best small."""
    idx: Any = None
    scores_cut: ClassVar[bool] = False
    """Whether its `compute_final_reward`, if it has one, scores an episode too that it did not end itself."""

    @abstractmethod
    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin the episode; return the first observation and an info mapping."""

    @abstractmethod
    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Return the next observation, the action's reward, whether the episode is over, and an info mapping."""

    def close(self) -> None:  # noqa: B027 most have nothing to let go
        """Release all resources. This method is called once, even if `reset` failed or while a `step` still hangs."""

    @classmethod
    def from_dict(cls, info: Mapping[str, Any]) -> Self:
        """Make an environment from a task `info`. Entries with the name of a constructor's argument become that
        argument; the remaining entries become the argument `task`."""
        named = _arguments(cls)
        given = {name: value for name, value in info.items() if name in named}
        if "task" in named and "task" not in given:
            given["task"] = {name: value for name, value in info.items() if name not in named}
        return cls(**given)

    @staticmethod
    def is_multithread_safe() -> bool:
        return True


class MultiTurnEnvironment(BaseEnv):
    """An environment whose episodes have at most `max_turns` turns. Subclasses define the reward and the next
    observation in `get_reward_and_next_obs`.

    `task` is the data of one task, such as a question and its answer. `reset` returns it as the first observation.
    """

    def __init__(self, task: dict[str, Any] | None = None, max_turns: int = 3) -> None:
        self.task, self.max_turns = task or {}, max_turns
        self.current_turn, self.done = 0, False
        self.history: list[Any] = []

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.current_turn, self.done, self.history = 0, False, []
        return self.task, {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self.history.append(action)
        reward, observation = self.get_reward_and_next_obs(self.task, action)
        self.current_turn += 1
        self.done = self.done or self.current_turn >= self.max_turns
        return ({} if self.done else observation), reward, self.done, {"turn": self.current_turn}

    @abstractmethod
    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        """Return the reward of an action, and the next observation. Set `self.done = True` to end the episode."""


class SingleTurnEnvironment(MultiTurnEnvironment):
    """A task with one answer, whose reward is what `reward_fn` returns.

    Args:
        task: the task, a mapping, which is also the observation.
        reward_fn: a reward function, called with the task and the answer.

    Raises:
        ValueError: there is no `reward_fn`.
    """

    def __init__(self, task: dict[str, Any] | None = None, reward_fn: RewardFunction | None = None) -> None:
        super().__init__(task, max_turns=1)
        if reward_fn is None:
            raise ValueError(
                "SingleTurnEnvironment: reward_fn is missing; pass env_args={'reward_fn': …}, or reward_fn"
            )
        self.reward_fn = reward_fn

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        found = self.reward_fn(task, action)
        return (found.reward if isinstance(found, RewardOutput) else float(found)), {}


class ToolEnvironment(BaseEnv):
    """An environment for `ToolAgent`, which executes the agent's tool calls and scores its answer with `reward_fn`.

    Tool calls have the reward 0. The episode ends with the answer, or after `max_turns` steps.

    Args:
        task: the task, a mapping, which is also the first observation.
        tools: a function for each tool by name; it takes the input of a call and returns the output.
        reward_fn: a reward function, called with the task and the answer as text.
        max_turns: the most steps.

    Raises:
        ValueError: there is no `reward_fn`.
    """

    def __init__(
        self, task: dict[str, Any] | None = None, tools: Mapping[str, Callable[[Any], Any]] | None = None,
        reward_fn: RewardFunction | None = None, max_turns: int = 4,
    ) -> None:  # fmt: skip
        if reward_fn is None:
            raise ValueError("ToolEnvironment: reward_fn is missing; pass env_args={'reward_fn': …}, or reward_fn")
        self.task, self.tools, self.reward_fn, self.max_turns = task or {}, dict(tools or {}), reward_fn, max_turns
        self.current_turn = 0

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.current_turn = 0
        return self.task, {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self.current_turn += 1
        over = self.current_turn >= self.max_turns
        if isinstance(action, dict) and "tool" in action:
            return {"tool_output": self.call(action["tool"], action["input"])}, 0.0, over, {"tool": action["tool"]}
        answer = action.get("answer", "") if isinstance(action, dict) else action
        found = self.reward_fn(self.task, str(answer))
        return {}, (found.reward if isinstance(found, RewardOutput) else float(found)), True, {}

    def call(self, tool: str, value: Any) -> str:
        """Call a tool with the argument `value`; return its output as text. An unknown name or an exception gives an
        error message for the agent."""
        if tool not in self.tools:
            return f"error: no tool {tool}"
        try:
            return str(self.tools[tool](value))
        except Exception as error:
            return f"error: {error}"


class GymEnvironment(BaseEnv):
    """A Gymnasium environment with observations as text and actions by name. A task is `{"seed": 7}`.

    Args:
        task: a mapping that may have a `seed`.
        id: the environment's id, as `gymnasium.make` takes it.
        actions: names of its discrete actions, in order; None passes actions to the environment unchanged.
        show: a function that converts an observation to text. None shows the text that `render` returns if
            `render_mode` is `"ansi"`, and otherwise the observation by `str`.
        kwargs: arguments of `gymnasium.make`.
    """

    def __init__(
        self, task: dict[str, Any] | None = None, id: str = "", actions: tuple[str, ...] | list[str] | None = None,
        show: Callable[[Any], str] | None = None, kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        import gymnasium

        self.env = gymnasium.make(id, **dict(kwargs or {}))
        self.seed, self.show = (task or {}).get("seed"), show
        self.actions = None if actions is None else {name.lower(): i for i, name in enumerate(actions)}

    def reset(self) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=self.seed)
        return self.text(observation), dict(info)

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        if self.actions is not None:
            named = str(action).strip().lower()
            if named not in self.actions:
                known = ", ".join(self.actions)
                return f"no action {named[:40]!r}; there are {known}", 0.0, False, {"legal": False}
            action = self.actions[named]
        observation, reward, ended, cut, info = self.env.step(action)
        return self.text(observation), float(reward), bool(ended or cut), {**info, "legal": True}

    def text(self, observation: Any) -> str:
        if self.show is not None:
            return self.show(observation)
        return str(self.env.render() if self.env.render_mode == "ansi" else observation)

    def close(self) -> None:
        self.env.close()
