"""Games of PettingZoo (Terry et al., 2021) as games for `envs.games`, by its API of agents in turn (AEC)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from evopipe.envs.make import team_function
from evopipe.envs.spaces import ObservationSpace, brief
from evopipe.errors import ParamsError

_KEY, _MASK = "env.kwargs: game", "action_mask"


class AecGame:
    """A game of PettingZoo, as `envs.games.Game`. Its agents are the seats, in the order of `possible_agents`.

    Legal actions are those of `action_mask` in an agent's observation or in its info; without one all are.

    Args:
        name: a module of PettingZoo, such as `tictactoe_v3`, or `module:function`.
        arguments: keyword arguments of its function.

    Raises:
        ParamsError: the name means no game, or its agents have unlike spaces, or actions that are not discrete.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._env = _made(name, arguments)
        self._ids = list(self._env.possible_agents)
        self._seat_of = {agent: seat for seat, agent in enumerate(self._ids)}
        seen, acted = self._env.observation_space(self._ids[0]), self._env.action_space(self._ids[0])
        for agent in self._ids:
            if (self._env.observation_space(agent), self._env.action_space(agent)) != (seen, acted):
                raise ParamsError(f"{_KEY}: {name!r} has agents of unlike spaces, and one network plays every seat")
        if not isinstance(acted, gymnasium.spaces.Discrete) or acted.start:
            raise ParamsError(f"{_KEY}: {name!r} has actions {brief(acted)}; a game has discrete ones from 0")
        self._masked = isinstance(seen, gymnasium.spaces.Dict) and _MASK in seen.spaces
        if self._masked:
            seen = gymnasium.spaces.Dict([part for part in seen.spaces.items() if part[0] != _MASK])
        self._space = ObservationSpace.of(seen)
        self.seats, self.actions, self.observations = len(self._ids), int(acted.n), self._space.size
        self.reset(0)

    @property
    def turn(self) -> int | None:
        env = self._env
        return self._seat_of[env.agent_selection] if env.agents else None

    @property
    def returns(self) -> Sequence[float]:
        return self._returns

    def reset(self, seed: int) -> None:
        """Begin the episode of this seed."""
        self._env.reset(seed=seed)
        self._returns, self.cut = [0.0] * self.seats, False
        self._seen = [np.zeros(self.observations, np.float32)] * self.seats  # of those who are gone: what they saw last
        self._settle()

    def look(self, seat: int) -> np.ndarray:
        """Return what a player observes, `[O]` float32; of one who has left the game what it saw last."""
        if self._ids[seat] in self._env.agents:
            self._seen[seat] = self._row(self._env.observe(self._ids[seat]))
        return self._seen[seat]

    def legal(self, seat: int) -> Sequence[int]:
        """Return the legal actions of the player who is to act."""
        agent = self._ids[seat]
        mask = self._env.observe(agent)[_MASK] if self._masked else self._env.infos[agent].get(_MASK)
        found: Sequence[int] = range(self.actions) if mask is None else np.flatnonzero(mask).tolist()
        return found

    def play(self, action: int) -> None:
        """Let the player who is to act take a legal action."""
        self._env.step(action)
        for agent, reward in self._env.rewards.items():
            self._returns[self._seat_of[agent]] += float(reward)
        self._settle()

    def shown(self) -> str:
        """Return the position as text."""
        return str(self._env.render())

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _settle(self) -> None:
        """Let those leave whose game is over, after they have seen how it ended."""
        env = self._env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            agent = env.agent_selection
            self._seen[self._seat_of[agent]] = self._row(env.observe(agent))
            self.cut = not env.terminations[agent]
            env.step(None)

    def _row(self, seen: Any) -> np.ndarray:
        if self._masked:
            seen = {name: part for name, part in seen.items() if name != _MASK}
        return self._space.row(seen)


def _made(name: str, arguments: Mapping[str, Any]) -> Any:
    if not isinstance(name, str):
        raise ParamsError(f"{_KEY}: {name!r:.40} is no text; name a game of PettingZoo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PettingZoo's, of its old modules and of what they leave to its base class
        try:
            made = team_function(name)(**arguments)
        except ParamsError as error:
            raise ParamsError(f"{_KEY}: {str(error).removeprefix('env.id: ')}") from error
        except TypeError as error:
            raise ParamsError(f"env.kwargs: {name!r} does not take {dict(arguments)}: {error!s:.200}") from error
        made = parallel_to_aec(made) if isinstance(made, ParallelEnv) else made
    if not isinstance(made, AECEnv) or not made.possible_agents:
        raise ParamsError(f"{_KEY}: {name!r} gave no environment of PettingZoo but {type(made).__name__}")
    return made
