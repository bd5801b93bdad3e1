"""The data that agents, environments and workflows exchange: steps, trajectories and episodes, to and from JSON."""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Protocol, Self, TypeVar, cast

_T = TypeVar("_T")
Message = dict[str, Any]
"""Of a chat: `role` and `content`."""


_DEEPEST = 64  # of nested values that are written


def _json(made: Any, depth: int = 0) -> dict[str, Any]:
    return {each.name: _plain(getattr(made, each.name), depth + 1) for each in fields(made)}


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON data; what has no such form, as its `repr`, and a number that is not finite as None."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _DEEPEST:  # deeper ones may hold themselves
        if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
            return _json(value, depth)
        if isinstance(value, Mapping):
            return {str(key): _plain(each, depth + 1) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [_plain(each, depth + 1) for each in value]
    try:
        return _plain(value.item()) if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else repr(value)
    except Exception:  # of a user's class
        return f"<{type(value).__name__}>"


def _made(cls: type[_T], data: Mapping[str, Any]) -> _T:
    """Make a dataclass of what `to_dict` returned; what it has no fields for is left out."""
    known = {each.name: data[each.name] for each in fields(cast("Any", cls)) if each.name in data}
    for name, read in (("steps", Step.from_dict), ("trajectories", Trajectory.from_dict)):
        if name in known:
            known[name] = [read(each) for each in known[name]]
    if isinstance(known.get("model_output"), Mapping):
        known["model_output"] = ModelOutput.from_dict(known["model_output"])
    if known.get("termination_reason") is not None:
        known["termination_reason"] = TerminationReason(known["termination_reason"])
    return cls(**known)


class TerminationReason(Enum):
    """The reasons why an episode can end: done, a limit of tokens, turns or time reached, or an error."""

    MAX_PROMPT_LENGTH_EXCEEDED = "max_prompt_length_exceeded"
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    ENV_DONE = "env_done"
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    ERROR = "error"


class TerminationEvent(Exception):
    """Raised by a workflow to end its episode for a reason. The trajectories that the workflow has collected by then
    are kept."""

    def __init__(self, reason: TerminationReason = TerminationReason.UNKNOWN) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass
class ModelOutput:
    """A completion of the model.

    Attributes:
        text: the whole text.
        content: the text without tool calls.
        reasoning: the reasoning in the text, if a program fills this in.
        tool_calls: the tool calls, in the form of OpenAI's API.
        prompt_ids: the tokens of the prompt.
        completion_ids: the tokens of the completion.
        logprobs: the log-probability of each token of the completion when it was drawn.
        finish_reason: `stop`, or `length` if the completion reached its limit of tokens.
    """

    text: str = ""
    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = "stop"

    @property
    def prompt_length(self) -> int:
        return len(self.prompt_ids)

    @property
    def completion_length(self) -> int:
        return len(self.completion_ids)

    to_dict = _json

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return _made(cls, data)


@dataclass
class Action:
    """An agent's action. Its attribute `action` has the form that the environment's `step` takes."""

    action: Any = None


@dataclass
class Step:
    """A completion of an agent, with the action that it expresses and the reward of that action.

    Attributes:
        chat_completions: the chat up to and including the completion.
        observation: the observation that the agent answers.
        thought: the agent's reasoning, if a program fills this in.
        action: the action.
        model_response: the text of the completion.
        model_output: the completion with its tokens; None if the model did not write it.
        info: the environment's info mapping after the action.
        reward: the reward of the action.
        done: whether the action ended the episode.
        mc_return: the discounted return Σ γᵏ r from this step on.
    """

    chat_completions: list[Message] = field(default_factory=list)
    observation: Any = None
    thought: str = ""
    action: Any = None
    model_response: str = ""
    model_output: ModelOutput | None = None
    info: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    done: bool = False
    mc_return: float = 0.0

    to_dict = _json

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return _made(cls, data)

    @classmethod
    def from_model_output(cls, output: ModelOutput, messages: Sequence[Message] = (), action: Any = None) -> Self:
        """Make a step from a completion of the model.

        Args:
            output: the completion.
            messages: the chat before the completion.
            action: the action that the completion expresses.
        """
        chat = [*(dict(message) for message in messages), {"role": "assistant", "content": output.content}]
        return cls(chat_completions=chat, action=action, model_response=output.text, model_output=output)


@dataclass
class Trajectory:
    """The steps of one agent in an episode.

    Attributes:
        uid: a name that is unique.
        name: the agent's role; advantages compare only trajectories of the same role.
        task: the task.
        steps: the steps, one for each completion.
        reward: the reward of the whole trajectory.
        info: further facts by name.
    """

    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    name: str = "agent"
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)

    def is_cumulative(self) -> bool:
        """Return whether each step's chat begins with the complete chat of the previous step."""
        chats = [step.chat_completions for step in self.steps]
        return all(later[: len(chat)] == chat for chat, later in itertools.pairwise(chats))

    to_dict = _json

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return _made(cls, data)


@dataclass
class Episode:
    """The result of one rollout of a task.

    Attributes:
        id: `"<task>:<rollout>"`.
        task: the task.
        termination_reason: why the episode ended; None if it is not known.
        is_correct: whether the task was solved.
        trajectories: the trajectories, one for each agent.
        metrics: numbers by name, which validations average over episodes.
        info: further facts by name, such as `error`.
    """

    id: str = ""
    task: Any = None
    termination_reason: TerminationReason | None = None
    is_correct: bool = False
    trajectories: list[Trajectory] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def task_id(self) -> str:
        return self.id.rpartition(":")[0]

    @property
    def rollout_idx(self) -> int:
        return int(self.id.rpartition(":")[2])

    @property
    def reward(self) -> float:
        """The mean reward of the episode's trajectories; 0 if there are none."""
        rewards = [trajectory.reward for trajectory in self.trajectories]
        return sum(rewards) / len(rewards) if rewards else 0.0

    to_dict = _json

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return _made(cls, data)


@dataclass
class RewardOutput:
    """The result of a reward function.

    Attributes:
        reward: the reward.
        metadata: further facts by name.
        is_correct: whether the answer is correct; None if it is not known.
    """

    reward: float
    metadata: dict[str, Any] = field(default_factory=dict)
    is_correct: bool | None = None


class RewardFunction(Protocol):
    """The interface of a reward function. It is called with the task, a mapping, and the agent's action or answer as
    text, and returns the reward as a number or a `RewardOutput`."""

    def __call__(self, task_info: dict[str, Any], action: str) -> RewardOutput | float: ...
