"""Collection of datasets: plays episodes with random, rule-based or exported policies.

A few environments have rule-based policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from evopipe.data.episodes import RecordedEpisode
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.errors import EnvironmentFailed, ParamsError
from evopipe.rng import Purpose, host
from evopipe.schema.fetch import CollectConfig

_MEDIUM_RANDOM = 0.3  # share of random actions of the policy `medium`, so that its data shows what it would not do

Heuristic = Callable[[gymnasium.Env[Any, Any], npt.NDArray[np.float32]], Any]
"""A rule: `(env, obs [O]) → the environment's action`."""
Behaviour = Callable[[EnvPool, np.random.Generator], Any]
"""From a pool of one row and the episode's own generator to an action as an algorithm knows it: an index, or `[A]`."""


def collect(
    cfg: CollectConfig, pool: EnvPool, env_id: str, seed: int, exported: Any = None
) -> tuple[list[RecordedEpisode], dict[str, Any]]:
    """Play episodes with behaviour policies; return the episodes that have at least one step, and a dict of statistics.

    Each episode is played by one policy, drawn at random. The random draws of an episode depend only on `seed` and the
    episode's number. An episode is cut before a step that gives a number that is not finite, or no legal action.

    The dict's keys are `notes` (sentences), `broken_steps` (the number of episodes that were cut), and `policies` (for
    each policy what the function `totals` returns for its episodes).

    Args:
        cfg: the number of episodes, the weight of each policy by name, and the most steps of an episode.
        pool: a pool of one environment.
        env_id: the environment's id, by which its rule-based policies are found.
        seed: the run's seed.
        exported: the loaded exported policy, which plays under the name `policy`; None if there is none.

    Raises:
        ParamsError: no policy with a positive weight exists for the environment, or the exported one does not fit it.
        EnvironmentFailed: the environment raised an exception, or no episode had a valid step.
    """
    behaviours, notes = _behaviours(cfg, pool, env_id, exported)
    names = sorted(behaviours)
    weights = np.array([cfg.policies[name] for name in names], np.float64)
    played: list[tuple[str, RecordedEpisode]] = []
    broken = 0
    for number in range(cfg.episodes):
        rng = host(seed, Purpose.BEHAVIOUR, number)
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        episode, cut = _roll(pool, behaviours[name], rng, cfg.max_steps)
        broken += cut
        if len(episode):
            played.append((name, episode))
    if not played:
        raise EnvironmentFailed(f"behaviour environment {env_id!r}: no episode gave a finite first step")
    if broken:
        notes.append(f"{broken} episodes cut where the environment gave a value that is not finite or no legal action")
    by_policy = {name: totals([episode for player, episode in played if player == name]) for name in names}
    return [episode for _, episode in played], {"notes": notes, "broken_steps": broken, "policies": by_policy}


def totals(episodes: Sequence[RecordedEpisode]) -> dict[str, Any]:
    """Return statistics of episodes, as a dict with the keys `episodes`, `transitions` and `return`.

    The first two are counts. `return` has the mean and the standard deviation of the undiscounted returns, as `mean`
    and `std`. It is None if there are no episodes.
    """
    returns = [episode.reward.sum(dtype=np.float64) for episode in episodes]
    return {
        "episodes": len(episodes),
        "transitions": sum(len(episode) for episode in episodes),
        "return": {"mean": float(np.mean(returns)), "std": float(np.std(returns))} if returns else None,
    }


def _roll(
    pool: EnvPool, behave: Behaviour, rng: np.random.Generator, max_steps: int | None
) -> tuple[RecordedEpisode, bool]:
    """Play one episode in the pool's only row; True where a broken step cut it short (that step is left out)."""
    seed = int(rng.integers(2**31))
    pool.reset([0], [seed])
    obs, actions, steps = [pool.obs[0].copy()], [], list[RowStep]()
    while True:
        action = behave(pool, rng)
        step = pool.step([action])
        if step.broken[0]:
            break
        obs.append(step.obs[0])
        actions.append(action)
        steps.append(step)
        if step.terminated[0] or step.truncated[0] or len(steps) == max_steps:
            break
    terminated = np.array([bool(each.terminated[0]) for each in steps], np.bool_)
    truncated = np.array([bool(each.truncated[0]) for each in steps], np.bool_)
    truncated[-1:] |= ~terminated[-1:]  # a step cap, or a broken step behind it, cuts the episode
    reward = np.array([each.reward[0] for each in steps], np.float32)
    taken = pool.actions.empty(len(actions))
    if actions:
        taken[:] = actions
    own = pool.actions.own(taken).reshape(taken.shape)
    return RecordedEpisode(np.stack(obs), own, reward, terminated, truncated, seed), bool(step.broken[0])


def _behaviours(
    cfg: CollectConfig, pool: EnvPool, env_id: str, exported: Any
) -> tuple[dict[str, Behaviour], list[str]]:
    """Return the policies that have a weight, and what there is to say about them."""
    ruled = "" if pool.wrapped else env_id  # a rule reads what the environment itself shows
    good, poor = GOOD.get(ruled), POOR.get(ruled)
    known: dict[str, Behaviour | None] = {
        "random": _random,
        "heuristic": good and _ruled(good),
        "medium": poor and _ruled(poor, _MEDIUM_RANDOM),
        "policy": exported and _exported(exported, cfg.policy_path, pool),
    }
    wanted = {name: known[name] for name, weight in cfg.policies.items() if weight > 0.0}
    found = {name: behave for name, behave in wanted.items() if behave is not None}
    missing = [name for name in wanted if name not in found]
    if not found:
        what = f"{env_id} in env.wrappers" if pool.wrapped else env_id
        raise ParamsError(
            f"fetch.collect.policies: {what} has no {' and no '.join(missing)}; give `random` or `policy` a positive "
            "weight"
        )
    return found, [f"{env_id} has no {name}, its weight went to {', '.join(sorted(found))}" for name in missing]


def _random(pool: EnvPool, rng: np.random.Generator) -> Any:
    return pool.actions.sample(pool.mask[0], rng)


def _ruled(rule: Heuristic, random: float = 0.0) -> Behaviour:
    """Follow a rule, with chance `random` act at random instead."""

    def behave(pool: EnvPool, rng: np.random.Generator) -> Any:
        if random and rng.random() < random:
            return _random(pool, rng)
        return pool.actions.relative(np.asarray([rule(pool.env(0), pool.obs[0])]))[0]

    return behave


def _exported(policy: Any, path: str | None, pool: EnvPool) -> Behaviour:
    """Follow an exported policy."""
    has, wanted = (
        f"{observations} observations and {space.size} {'continuous' if space.continuous else 'discrete'} actions"
        for observations, space in ((policy.observations, policy.action_space), (pool.obs_size, pool.actions))
    )
    if has != wanted:
        raise ParamsError(f"fetch.collect.policy_path: {path} takes {has}, the environment has {wanted}")
    memory: npt.NDArray[Any] | None = None

    def behave(pool: EnvPool, rng: np.random.Generator) -> Any:
        nonlocal memory
        before = memory if pool.episode_length[0] else None
        chosen, memory = policy.step(pool.obs[0], before, pool.mask[0] if pool.masked else None)
        return policy.action_space.relative(np.asarray([chosen]))[0]

    return behave


# --- rules ------------------------------------------------------------------------------------------------------------


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
