"""Tag, in which the prey is no agent: it is moved by a rule that does not change."""

from __future__ import annotations

from typing import Any

import numpy as np
from pettingzoo.utils import BaseParallelWrapper

_PREY = "agent_0"
_WALL = 0.8  # beyond which the prey turns back; it pays from 0.9 on
_STRENGTH = 0.3  # of its own: at full strength it is quicker than predators, who then see a reward once in hours


def rule(obs: np.ndarray) -> np.ndarray:
    """Return the prey's push of its observation: away from the nearest predator, and back from the walls."""
    position, others = obs[2:4], obs[8:14].reshape(3, 2)
    nearest = others[np.abs(others).sum(axis=1).argmin()]
    way = np.where(np.abs(position) > _WALL, -np.sign(position), -nearest / max(float(np.abs(nearest).max()), 1e-6))
    push = np.zeros(5, np.float32)  # nothing, left, right, down, up
    push[[1, 3]], push[[2, 4]] = np.maximum(-way, 0.0), np.maximum(way, 0.0)
    return _STRENGTH * push


class Predators(BaseParallelWrapper[Any, Any, Any]):
    """The three predators alone are agents."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.possible_agents = [agent for agent in env.possible_agents if agent != _PREY]
        self._seen: Any = None

    @property
    def agents(self) -> list[str]:
        """Those who act."""
        return [agent for agent in self.env.agents if agent != _PREY]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin."""
        return self._without(self.env.reset(seed=seed, options=options))

    def step(self, actions: dict[Any, Any]) -> Any:
        """Step, the prey by its rule."""
        return self._without(self.env.step({**actions, _PREY: rule(self._seen)}))

    def _without(self, given: tuple[dict[Any, Any], ...]) -> tuple[dict[Any, Any], ...]:
        self._seen = given[0].get(_PREY)
        return tuple({agent: x for agent, x in part.items() if agent != _PREY} for part in given)
