"""Environments in which several agents act: PettingZoo's environments as text, and the workflow that plays them."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evopipe.agents.agent import ChatAgent
from evopipe.agents.environment import BaseEnv
from evopipe.agents.types import Action, Episode, TerminationEvent, TerminationReason
from evopipe.agents.workflow import Workflow, number
from evopipe.envs.make import team_function


class PettingZooEnvironment(BaseEnv):
    """A PettingZoo environment with observations as text and actions by name. A task is `{"seed": 7}`.

    `reset` and `step` return mappings by agent: the observations of the agents that act next, and the rewards of all
    agents. An action is a mapping by agent, too. In an `AECEnv` one agent acts next, in a `ParallelEnv` all agents
    whose episode is not over.

    Args:
        task: a mapping that may have a `seed`.
        id: the environment's id, in the form of the parameter `env.id`: `tictactoe_v3`,
            `mpe2.simple_spread_v3:parallel_env`, or `module:function`.
        actions: names of discrete actions, in order; None passes actions to the environment unchanged. If the
            environment has an action mask, only legal actions are accepted.
        show: a function (observation, agent) → text; None for `str`.
        kwargs: arguments of the environment.
    """

    def __init__(
        self, task: dict[str, Any] | None = None, id: str = "", actions: Sequence[str] | None = None,
        show: Callable[[Any, str], str] | None = None, kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PettingZoo's, of what an environment leaves to its base class
            self.env = team_function(id)(**dict(kwargs or {}))
        self.seed, self.show = (task or {}).get("seed"), show
        self.names = None if actions is None else [name.lower() for name in actions]
        self.masks: dict[str, Any] = {}
        self.held: dict[Any, Any] = {}  # actions that wait for those of others
        self.turns = hasattr(self.env, "agent_iter")  # one after the other

    def reset(self) -> tuple[dict[str, str], dict[str, Any]]:
        self.held = {}
        found = self.env.reset(seed=self.seed)
        if not self.turns:
            return self._texts(found[0]), {}
        return self._next({})[0], {}

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, str], Any, bool, dict[str, Any]]:
        wrong: dict[str, str] = {}
        for who in [self.env.agent_selection] if self.turns else list(self.env.agents):
            if str(who) not in action:
                continue
            value, complaint = self._meant(who, action[str(who)])
            if complaint:
                wrong[str(who)] = complaint
            else:
                self.held[who] = value
        if wrong:
            return wrong, {}, False, {"legal": False}
        if self.turns:
            self.env.step(self.held.pop(self.env.agent_selection))
            seen, rewards = self._next({str(who): float(r) for who, r in self.env.rewards.items()})
            return seen, rewards, not seen, {}
        acts, self.held = {who: self.held[who] for who in self.env.agents}, {}
        observations, paid, _, _, _ = self.env.step(acts)
        living = {who: observations[who] for who in self.env.agents}
        return self._texts(living), {str(who): float(r) for who, r in paid.items()}, not living, {}

    def close(self) -> None:
        self.env.close()

    def _next(self, rewards: dict[str, float]) -> tuple[dict[str, str], dict[str, float]]:
        """Let those that are over leave, and return what the next one sees."""
        while self.env.agents:
            who = self.env.agent_selection
            observation, _, ended, cut, _ = self.env.last()
            if not (ended or cut):
                return self._texts({who: observation}), rewards
            self.env.step(None)
        return {}, rewards

    def _meant(self, who: Any, action: Any) -> tuple[Any, str]:
        """Return an action as the environment has it, or what to say of it."""
        if self.names is None:
            return action, ""
        mask = self.masks.get(str(who))
        legal = [name for i, name in enumerate(self.names) if mask is None or (i < len(mask) and mask[i])]
        named = str(action).strip().lower()
        if named in legal:
            return self.names.index(named), ""
        return None, f"no action {named[:40]!r}; there are {', '.join(legal)}"

    def _texts(self, observations: Mapping[Any, Any]) -> dict[str, str]:
        self.masks = {}
        told: dict[str, str] = {}
        for who, observation in observations.items():
            if isinstance(observation, Mapping) and "action_mask" in observation:
                self.masks[str(who)] = np.asarray(observation["action_mask"])
                observation = observation.get("observation", observation)
            told[str(who)] = self.show(observation, str(who)) if self.show is not None else str(observation)
        return told


class TeamWorkflow(Workflow):
    """A workflow of several agents in one environment, such as `PettingZooEnvironment`, whose observations say which
    agents act next.

    All agents that act next call the model at the same time. A reward for an agent that has not acted yet is added to
    its first step.

    Args:
        env_cls: the environment's class; its observations and rewards are mappings by agent.
        agent_cls: the class of the agents; an agent is made when it first acts.
        env_args, agent_args: arguments of the constructors.
        roles: the role of each agent, by its id; the default is the id itself. Advantages compare only agents of the
            same role.
        max_steps: the most steps of the environment.
        **kwargs: the arguments of `Workflow`.
    """

    def __init__(
        self, env_cls: type[Any] = PettingZooEnvironment, agent_cls: type[Any] = ChatAgent,
        env_args: Mapping[str, Any] | None = None, agent_args: Mapping[str, Any] | None = None,
        roles: Mapping[str, str] | None = None, max_steps: int = 50, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.env_cls, self.agent_cls, self.max_steps = env_cls, agent_cls, max_steps
        self.env_args, self.agent_args, self.roles = dict(env_args or {}), dict(agent_args or {}), dict(roles or {})
        self.agents: dict[str, Any] = {}
        self.env: Any = None

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode | None:
        self.env = await self.made(self.env_cls, {**task, **self.env_args})
        seen, _ = await self.on_env(self.env, "reset")
        owed: dict[str, float] = {}
        for _ in range(self.max_steps):
            said = await asyncio.gather(*(self._ask(who, text) for who, text in seen.items()))
            acts = dict(zip(seen, said, strict=True))
            seen, rewards, over, _ = await self.on_env(self.env, "step", acts)
            for who, reward in rewards.items():
                owed[who] = owed.get(who, 0.0) + number(reward, self.env)
                step = self.agents[who].get_current_state() if who in self.agents else None
                if step is not None:
                    step.reward, step.done = step.reward + owed.pop(who), over
            if over:
                raise TerminationEvent(TerminationReason.ENV_DONE)
        raise TerminationEvent(TerminationReason.MAX_TURNS_EXCEEDED)

    async def _ask(self, who: str, text: str) -> Any:
        if who not in self.agents:
            agent = self.agents[who] = self.agent_cls(**self.agent_args)
            agent.reset()
            agent.trajectory.name = self.roles.get(who, who)
        agent = self.agents[who]
        agent.update_from_env(text, 0.0, False, {})
        out = await self.rollout_engine.get_model_response(agent.chat_completions)
        action = agent.update_from_model(out.content)
        agent.get_current_state().model_output = out
        return action.action if isinstance(action, Action) else action
