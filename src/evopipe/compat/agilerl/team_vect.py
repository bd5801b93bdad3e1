"""Vectors of teams' environments for users' own loops. Observations also hold the results of the step before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from evopipe.compat.agilerl.environments import remember
from evopipe.envs import make
from evopipe.envs.team import Situation, TeamEnv, TeamSpace
from evopipe.schema.env import EnvConfig

_Bools = npt.NDArray[np.bool_]
_ByAgent = dict[Any, Any]


@dataclass(frozen=True)
class Ends:
    """The result of the step that led to a `TeamObservations`, as it was before ended episodes began anew.

    An environment whose agents have all left is reset in the same step.

    Attributes:
        obs: the observations after the step. Where the step ended an episode, they are the last ones of that episode.
        terminated, truncated: bool `[n]` by agent: whether the step terminated or truncated the agent's episode in each
            of the n environments.
    """

    obs: TeamObservations
    terminated: Mapping[Any, _Bools]
    truncated: Mapping[Any, _Bools]


class TeamObservations(dict[Any, Any]):
    """Observations of `n` teams: a dictionary of arrays `[n, …]` by agent, with zeros where an agent is absent.

    Args:
        obs: the observations by agent.
        present: bool `[n]` by agent: whether the agent is present.
        ends: the result of the step that led to the observations, see `Ends`; None after a reset.
    """

    def __init__(self, obs: Mapping[Any, Any], present: Mapping[Any, _Bools], ends: Ends | None = None) -> None:
        super().__init__(obs)
        self.present, self.ends = present, ends


def ends_of(obs: Any) -> Ends | None:
    """Return the result of the step after which a vector returned the observations `obs`.

    Return None if the observations are those of a reset, or if `obs` is no `TeamObservations`.
    """
    return getattr(obs, "ends", None)


def present_of(obs: Any, agent: Any) -> Any:
    """Return whether an agent is present in the observations `obs`, a mapping by agent.

    For a `TeamObservations` of n teams, the result is bool `[n]`. For any other mapping it is one bool: whether `obs`
    has the agent as a key.
    """
    present = getattr(obs, "present", None)
    return agent in obs if present is None else present.get(agent, False)


def situation_of(team: TeamSpace, obs: Mapping[Any, Any], masks: Mapping[Any, Any] | None = None) -> Situation:
    """Return a `Situation`: the observations, the present agents and the legal actions of `n` teams, as arrays.

    Args:
        team: the team's spaces.
        obs: observations by agent, a `TeamObservations` or a plain dictionary.
        masks: legal actions by agent; None if all are legal.
    """
    found, present = team.situation(obs, masks), getattr(obs, "present", None)
    if present is None:
        return found
    there = np.stack([present[agent] for agent in team.ids], axis=1) & found.alive
    free = None if (found.legal[there] == team.legal(there)[there]).all() else found.legal
    return Situation(np.where(there[..., None], found.obs, 0), there, team.legal(there, free), found.single)


class TeamVectEnv:
    """A vector of environments of a team, for a script's own loop. The environments step together in this process.

    If no agent is left in an environment, it is reset in the same step. The training functions do not step this object;
    they make other environments from `config`.

    Args:
        config: the block `env` of `params.yaml`, whose `num_envs` is the number of environments.
        seed: seed of the first `reset` without a seed.
    """

    def __init__(self, config: EnvConfig, seed: int = 1) -> None:
        self.num_envs, self._config, self._seed = config.num_envs, config, seed
        self._envs: list[TeamEnv] = []
        example = self._made(1)[0]
        self.possible_agents = self.agents = [*example.ids]
        self.num_agents, spaces = len(self.agents), (example.observation_space, example.action_space)
        self.observation_space, self.action_space = (dict(each).__getitem__ for each in spaces)  # type: ignore[call-overload]
        self.single_observation_space, self.single_action_space = self.observation_space, self.action_space
        self.metadata = example.metadata
        remember(self, config)

    def _made(self, count: int) -> list[TeamEnv]:
        while len(self._envs) < count:
            made = make.make_env(self._config)
            assert isinstance(made, TeamEnv)
            self._envs.append(made)
        return self._envs

    def reset(self, *, seed: int | Sequence[int] | None = None, options: Any = None) -> tuple[_ByAgent, _ByAgent]:
        """Begin an episode in each of the n environments; return observations `[n, …]` and infos, each a dictionary by
        agent.

        `options` are passed to each environment's `reset`. `seed` is one seed per environment, or the first of
        consecutive seeds. If it is None, the first call uses the vector's own seed, and later calls continue the
        environments' random draws.
        """
        seeds: Sequence[int | None]
        if seed is None:
            first, self._seed = self._seed, -1
            seeds = [None if first < 0 else first + i for i in range(self.num_envs)]
        else:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else [*seed]
        found = [env.reset(seed=at, options=options) for env, at in zip(self._made(self.num_envs), seeds, strict=True)]
        return self._shown([obs for obs, _ in found]), self._told([info for _, info in found])

    def step(self, actions: Mapping[Any, Any]) -> tuple[_ByAgent, _ByAgent, _ByAgent, _ByAgent, _ByAgent]:
        """Step each of the n environments with the actions `[n, …]` by agent.

        Return observations `[n, …]`, rewards `[n]`, terminated `[n]`, truncated `[n]` and infos, each a dictionary by
        agent.
        """
        after, shown, told = [], [], []
        rewards = {agent: np.zeros(self.num_envs, np.float32) for agent in self.agents}
        ends = [{agent: np.zeros(self.num_envs, np.bool_) for agent in self.agents} for _ in range(2)]
        for i, env in enumerate(self._envs):
            acts = {agent: actions[agent][i] for agent in env.agents}
            obs, reward, terminated, truncated, info = env.step(acts)
            for agent in acts:
                rewards[agent][i] = reward.get(agent, 0.0)
                for end, flags in zip(ends, (terminated, truncated), strict=True):
                    end[agent][i] = bool(flags.get(agent, False))
            after.append(obs)
            if not env.agents:
                obs, info = env.reset()
            shown.append({agent: obs[agent] for agent in env.agents})
            told.append(info)
        found = self._shown(shown)
        found.ends = Ends(self._shown(after), *ends)
        return found, rewards, ends[0], ends[1], self._told(told)

    def _shown(self, seen: Sequence[Mapping[Any, Any]]) -> TeamObservations:
        obs, present = {}, {}
        for agent in self.agents:
            nothing = _zeros(self.observation_space(agent))
            obs[agent] = _stacked([each.get(agent, nothing) for each in seen])
            present[agent] = np.array([agent in each for each in seen])
        return TeamObservations(obs, present)

    def _told(self, infos: Sequence[Mapping[Any, Any]]) -> _ByAgent:
        """Return of each agent what a team's `get_action` reads of infos, `[n, …]` each."""
        found: _ByAgent = {agent: {} for agent in self.agents}
        for agent in self.agents:
            said = [each.get(agent) or {} for each in infos]
            masks = [each.get("action_mask") for each in said]
            if (mask := next((each for each in masks if each is not None), None)) is not None:
                free = np.ones_like(np.asarray(mask))
                found[agent]["action_mask"] = np.stack([free if each is None else each for each in masks])
            given = [each.get("env_defined_actions") for each in said]
            if (action := next((each for each in given if each is not None), None)) is not None:
                none = np.full_like(np.asarray(action, float), np.nan)
                found[agent]["env_defined_actions"] = np.stack([none if each is None else each for each in given])
        return found

    def close(self) -> None:
        """Close the environments."""
        while self._envs:
            make.close(self._envs.pop())


def _zeros(space: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _zeros(part) for name, part in space.spaces.items()}
    return np.zeros(space.shape, space.dtype)


def _stacked(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Mapping):
        return {name: _stacked([part[name] for part in parts]) for name in parts[0]}
    return np.stack([np.asarray(part) for part in parts])
