"""Agents, which convert observations to a chat, and the model's completions to actions."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from evopipe.agents.types import Action, Message, Step, Trajectory
from evopipe.language import tool_calls


class BaseAgent(ABC):
    """The base class of agents. An agent holds the chat and the trajectory of one episode at a time; `reset` begins the
    next episode."""

    @property
    @abstractmethod
    def chat_completions(self) -> list[Message]:
        """The messages of the chat that the model continues next.

        The model is called with this chat. Training joins the call to the previous one, as one sequence of tokens, if
        the chat begins with the previous chat and its completion, both unchanged. Otherwise the call begins a new
        sequence.
        """

    @property
    @abstractmethod
    def trajectory(self) -> Trajectory:
        """The trajectory of the episode so far: one step for each completion."""

    @abstractmethod
    def reset(self) -> None:
        """Discard the chat and the trajectory, and begin a new episode."""

    @abstractmethod
    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        """Add an observation to the chat: the first observation of the episode, with reward 0, or the result of the
        last action.

        `done` is true if the action ended the episode; `info` is the environment's info mapping. evopipe passes no
        `kwargs`.
        """

    @abstractmethod
    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        """Add the completion `response` to the chat, and add a step with this completion to the trajectory. Return the
        action that the completion expresses. evopipe passes no `kwargs`."""

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The schemas of the tools that the model may call, in the form of OpenAI's API; the chat template shows the
        schemas to the model. Empty by default."""
        return []

    def get_current_state(self) -> Step | None:
        """Return the last step of the trajectory; None before the first completion."""
        steps = self.trajectory.steps
        return steps[-1] if steps else None


class ChatAgent(BaseAgent):
    """An agent whose actions are the model's completions, unchanged. Each observation becomes a message of the user.

    Args:
        system_prompt: the text of the system message at the start of a chat; None for no such message.
        name: the name of the agent's trajectories.
    """

    def __init__(self, system_prompt: str | None = None, name: str = "agent") -> None:
        self.system_prompt, self.name = system_prompt, name
        self.reset()

    @property
    def chat_completions(self) -> list[Message]:
        return self.messages

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory

    def reset(self) -> None:
        self.messages: list[Message] = []
        if self.system_prompt:
            self.messages.append({"role": "system", "content": self.system_prompt})
        self._trajectory = Trajectory(name=self.name)
        self.observation: Any = None

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        if done:
            return
        self.observation = observation
        self.messages.append(self.message(observation))

    def message(self, observation: Any) -> Message:
        """Return an observation as a chat message.

        A mapping with a `role` is a message already. Otherwise the text is the mapping's `question`, `prompt` or
        `text`, or the whole observation as text, and the role is `user`.
        """
        if isinstance(observation, dict):
            if "role" in observation:
                return dict(observation)
            named = next((observation[key] for key in ("question", "prompt", "text") if key in observation), None)
            observation = json.dumps(observation, default=repr) if named is None else named
        return {"role": "user", "content": str(observation)}

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.messages.append({"role": "assistant", "content": response})
        action = self.act(response)
        step = Step([*self.messages], self.observation, action=action, model_response=response)
        self._trajectory.steps.append(step)
        return Action(action)

    def act(self, response: str) -> Any:
        """Return the action that a completion expresses. For this agent it is the completion itself; subclasses may
        return another action."""
        return response


class ToolAgent(ChatAgent):
    """An agent that calls tools by JSON in its completions: `{"tool": "calculator", "input": "2*3"}`.

    Its actions are mappings: `{"tool": …, "input": …}` for such a call, `{"answer": …}` for any other completion.
    """

    def message(self, observation: Any) -> Message:
        if isinstance(observation, dict) and "tool_output" in observation:
            return {"role": "tool", "content": str(observation["tool_output"])}
        return super().message(observation)

    def act(self, response: str) -> dict[str, Any]:
        start = response.find("{")
        if start >= 0:
            try:
                call, _ = json.JSONDecoder().raw_decode(response[start:])
            except ValueError:
                return {"answer": response}
            if isinstance(call, dict) and isinstance(call.get("tool"), str):
                return {"tool": call["tool"], "input": call.get("input", "")}
        return {"answer": response}


class CallingAgent(ChatAgent):
    """An agent that calls an environment's tools in the format of the model's chat template.

    The first observation's info has the tools, as `tools`, in the form of OpenAI's API. An action is a mapping: `calls`
    is a list of mappings with `id`, `name` and `arguments`, and `content` is the rest of the completion. An observation
    may be a list of messages.

    Args:
        system_prompt: the text of the system message at the start of a chat; None for no such message.
        name: the name of the agent's trajectories.
        show_tools: whether the chat template shows the tools to the model; false for a model that was trained with
            these tools.
    """

    def __init__(self, system_prompt: str | None = None, name: str = "agent", show_tools: bool = True) -> None:
        self.show_tools = show_tools
        super().__init__(system_prompt, name)

    @property
    def offered(self) -> list[dict[str, Any]]:
        return self.tools if self.show_tools else []

    def reset(self) -> None:
        super().reset()
        self.tools: list[dict[str, Any]] = []

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        self.tools = list(info.get("tools") or self.tools)
        if done or not isinstance(observation, list):
            super().update_from_env(observation, reward, done, info)
            return
        self.observation = observation
        self.messages += [self.message(each) for each in observation]

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        said = tool_calls.read(response, self.tools)
        ids = tool_calls.numbered(said, len(self.messages))
        calls = [
            {"id": id, "name": call.name, "arguments": json.loads(call.arguments)}
            for id, call in zip(ids, said.calls, strict=True)
        ]
        shown = tool_calls.spoken(said, ids) if self.show_tools else {"role": "assistant", "content": response}
        self.messages.append(shown)
        action = {"calls": calls, "content": said.content}
        step = Step([*self.messages], self.observation, action=action, model_response=response)
        self._trajectory.steps.append(step)
        return Action(action)
