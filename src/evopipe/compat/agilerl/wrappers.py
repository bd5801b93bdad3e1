"""Wrappers of agents: `RSNorm`, which turns a member's own statistics on, and a base for wrappers of one's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Self

import gymnasium
import numpy as np

from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.breed import build, params_of
from evopipe.compat.agilerl.environments import config_of
from evopipe.envs.make import opened
from evopipe.errors import UsageError
from evopipe.ops.statistics import mean_of_finite
from evopipe.rng import Purpose


class AgentWrapper:
    """The base class of a user's own wrappers of agents. A subclass overrides `get_action` or `learn`; all other
    attributes are those of the wrapped agent.

    A script's own loop may use wrapped agents. The training functions do not take wrapped agents, because there all
    members act and learn in one batch.

    Args:
        agent: the agent to be wrapped.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import DQN, AgentWrapper
        >>> class Halved(AgentWrapper):
        ...     def get_action(self, obs, *args, **kwargs):
        ...         return self.agent.get_action(obs / 2, *args, **kwargs)
        >>> env = gymnasium.make("CartPole-v1")
        >>> wrapped = Halved(DQN(env.observation_space, env.action_space))
        >>> wrapped.get_action(env.reset(seed=1)[0]) in (0, 1), type(wrapped.clone()).__name__, wrapped.index
        (True, 'Halved', 0)
    """

    def __init__(self, agent: Agent) -> None:
        self.__dict__["agent"] = agent

    def __getattr__(self, name: str) -> Any:
        if name == "agent":
            raise AttributeError(name)
        return getattr(self.agent, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or not hasattr(self.__dict__.get("agent"), name):
            super().__setattr__(name, value)
        else:
            setattr(self.agent, name, value)

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped agent's actions for the observations `obs`. Further arguments, and the result, are those
        of `Agent.get_action`."""
        return self.agent.get_action(obs, *args, **kwargs)

    def learn(self, experiences: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Let the wrapped agent learn from `experiences`, and return the loss. Further arguments are those of
        `Agent.learn`."""
        return self.agent.learn(experiences, *args, **kwargs)

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Play greedy episodes with the wrapper's own `get_action`; return their mean undiscounted return, and append
        it to `fitness`.

        Args:
            env: the environment. The agent plays in a copy, one episode after the other, with the seeds of
                `Agent.test`.
            swap_channels: has no effect.
            max_steps: the most steps of an episode; None for no limit.
            loop: episodes for each environment of `env`.
        """
        agent, config = inside(self), config_of(env)
        seeds = agent.breed.spec.seeds(Purpose.EVALUATE, loop * config.num_envs)
        before, agent.training = agent.training, False
        try:
            with opened(config) as played:
                returns = [self._episode(played, int(seed), max_steps) for seed in seeds]
        finally:
            agent.training = before
        self.fitness.append(mean_of_finite(np.array(returns)))
        return float(self.fitness[-1])

    def _episode(self, env: Any, seed: int, max_steps: int | None) -> float:
        obs, info = env.reset(seed=seed)
        gained = 0.0
        for _ in itertools.count() if max_steps is None else range(max_steps):
            by_agent = isinstance(env.action_space, gymnasium.spaces.Dict)
            action = self.get_action(obs, infos=info) if by_agent else self.get_action(obs)
            obs, reward, terminated, truncated, info = env.step(action[0] if isinstance(action, tuple) else action)
            gained += sum(reward.values()) if by_agent else float(reward)
            if not env.agents if by_agent else terminated or truncated:
                break
        return gained

    def around(self, agent: Agent) -> Self:
        """Return a copy of this wrapper around another agent. The wrapper's other attributes are the same in the
        copy."""
        found = type(self).__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.__dict__["agent"] = agent
        return found

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """Return a copy of this wrapper around a copy of its agent. `index` is the copy's index in the population; if
        it is None, the copy has the agent's index. `wrap` has no effect."""
        return self.around(self.agent.clone(index))


def inside(agent: Any) -> Agent:
    """Return the agent inside all wrappers of `agent`; an agent without wrappers is returned as it is."""
    while isinstance(agent, AgentWrapper):
        agent = agent.agent
    found: Agent = agent
    return found


def rewrapped(like: Any, agent: Agent) -> Any:
    """Return `agent` inside copies of the wrappers of `like`, which is another agent with or without wrappers."""
    return like.around(rewrapped(like.agent, agent)) if isinstance(like, AgentWrapper) else agent


def RSNorm(agent: Agent, epsilon: float = 1e-4, norm_obs_keys: Sequence[str] | None = None) -> Agent:  # noqa: N802
    """Return a copy of an agent whose networks read observations that are normalised by their running mean and standard
    deviation.

    This sets the parameter `train.normalise.observations`, so that the training functions take the agent. The running
    statistics are empty at first.

    Args:
        agent: an agent that has not learned yet.
        epsilon: has no effect; the variance has a lower bound of 1e-8.
        norm_obs_keys: must be None. All columns of an observation are normalised, except those of images and one-hot
            columns.

    Raises:
        UsageError: `norm_obs_keys` is given, or the agent is already wrapped.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import DQN, RSNorm
        >>> env = gymnasium.make("CartPole-v1")
        >>> agent = RSNorm(DQN(env.observation_space, env.action_space))
        >>> agent.get_action(env.reset(seed=1)[0], epsilon=0.1) in (0, 1)
        True
    """
    if norm_obs_keys is not None:
        raise UsageError("norm_obs_keys: every part of an observation is normalised but images: leave it out")
    if not isinstance(agent, Agent):
        raise UsageError("RSNorm: put it around the agent first, and other wrappers around it")
    breed = agent.breed
    if breed.params.train.normalise.observations:
        return agent
    data = breed.params.model_dump()
    data["train"]["normalise"]["observations"] = True
    made = build(params_of(data), breed.observation_space, breed.action_space)
    found = type(agent).viewing(made, made.spec.equip(agent.member), agent.mutation, agent.spared)
    found.go_on_from(agent, agent)
    return found
