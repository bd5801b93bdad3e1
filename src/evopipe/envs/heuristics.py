"""Hand-written behaviour policies for a few environments, to collect data better than random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Heuristic = Callable[[gymnasium.Env[Any, Any], npt.NDArray[np.float32]], int]

# Position, speed, angle, angular speed: push towards the side the pole falls to, and lean it back to the middle.
_CARTPOLE = np.array([0.05, 0.15, 1.0, 0.5], np.float64)


def heuristic(env_id: str) -> Heuristic | None:
    """Return the rule `(env, obs [O]) → the environment's action`, or None where there is none for this id."""
    return _RULES.get(env_id)


def _lunar_lander(env: gymnasium.Env[Any, Any], obs: npt.NDArray[np.float32]) -> int:
    """Gymnasium's own demonstration controller."""
    from gymnasium.envs.box2d.lunar_lander import heuristic as rule

    return int(rule(env, obs))  # type: ignore[no-untyped-call]


def _cart_pole(env: gymnasium.Env[Any, Any], obs: npt.NDArray[np.float32]) -> int:
    return int(obs @ _CARTPOLE > 0.0)


_RULES: dict[str, Heuristic] = {"LunarLander-v3": _lunar_lander, "CartPole-v0": _cart_pole, "CartPole-v1": _cart_pole}
