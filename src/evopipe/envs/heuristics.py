"""Hand-written behaviour policies for a few environments, to collect data better than random.

A rule is `(env, obs [O]) → the environment's action`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Heuristic = Callable[[gymnasium.Env[Any, Any], npt.NDArray[np.float32]], Any]


def _lunar_lander(env: gymnasium.Env[Any, Any], obs: npt.NDArray[np.float32]) -> Any:
    """Gymnasium's own demonstration controller, which asks the environment what kind of actions it takes."""
    from gymnasium.envs.box2d.lunar_lander import heuristic

    return heuristic(env, obs)  # type: ignore[no-untyped-call]


def _cart_pole(*weights: float) -> Heuristic:
    """Push to the right where position, speed, angle and angular speed, so weighted, are positive."""
    return lambda _, obs: int(obs @ np.array(weights) > 0.0)


def _pendulum(env: gymnasium.Env[Any, Any], obs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Swing up by energy, then hold (Åström & Furuta, 2000).

    With θ = 0 upright the pendulum is θ̈ = 15 sin θ + 3 u, |u| ≤ 2, so that E = ½ θ̇² + 15 cos θ changes by 3 u θ̇ and is
    15 where it stands upright. Near there a linear law, which two units of torque are enough for, holds it.
    """
    cos, sin, speed = (float(x) for x in obs)
    if cos > 0.9:
        torque = -12.0 * np.arctan2(sin, cos) - 3.0 * speed
    else:
        torque = (15.0 - 0.5 * speed * speed - 15.0 * cos) * (1.0 if speed >= 0.0 else -1.0)
    return np.array([np.clip(torque, -2.0, 2.0)], np.float32)


# Push towards the side the pole falls to, and lean it back to the middle; or keep it up, and drive off the track.
_balance, _drift = _cart_pole(0.05, 0.15, 1.0, 0.5), _cart_pole(-0.4, -0.4, 1.0, 0.5)
GOOD: dict[str, Heuristic] = {
    "LunarLander-v3": _lunar_lander,
    "LunarLanderContinuous-v3": _lunar_lander,
    "CartPole-v0": _balance,
    "CartPole-v1": _balance,
    "Pendulum-v1": _pendulum,
}
POOR: dict[str, Heuristic] = {"CartPole-v0": _drift, "CartPole-v1": _drift}
