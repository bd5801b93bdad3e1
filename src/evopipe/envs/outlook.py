"""Findings about an environment from random play: scales of observations, rewards, episode lengths and speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import gymnasium
import numpy as np
import numpy.typing as npt

from evopipe.envs.pool import EnvPool
from evopipe.formats import number
from evopipe.schema.env import EnvConfig

_STEPS, _SECONDS = 5_000, 10.0  # of play, whichever is first
_EPISODES = 5  # that must have ended before something is said of all of them
_SEED = 20_012
_WIDE = 10.0  # a component of an observation that is this far from 0, or varies so much, is better normalised
_LARGE, _SMALL = 200.0, 1e-3  # rewards beyond these make values that networks learn slowly


def outlook(cfg: EnvConfig, gamma: float = 0.99) -> list[str]:
    """Play random actions and return findings about an environment, each one sentence.

    The first is a `note:` with figures; then comes a `warning:` for each property that makes learning slow or
    impossible, with the parameter that helps.

    Args:
        cfg: the block `env` of `params.yaml`; it has been checked, see `evopipe.envs.check`.
        gamma: the discount that training will use, with which the length of episodes is compared.

    Raises:
        EnvironmentFailed: the environment raised an exception.
    """
    rng, row = np.random.default_rng(_SEED), np.zeros(1, np.int64)
    returns: list[float] = []
    lengths: list[int] = []
    rewards: list[float] = []
    observations = []
    with closing(EnvPool(cfg, 1, what="tried")) as pool:
        pool.reset(row, row + _SEED)
        begun = time.perf_counter()
        while len(rewards) < _STEPS and time.perf_counter() - begun < _SECONDS:
            masks = pool.mask if pool.team is None else pool.mask[0]
            actions = np.array([pool.actions.sample(mask, rng) for mask in masks])
            observations.append(pool.obs[0].copy())
            step = pool.step(actions if pool.team is None else actions[None], row)
            rewards.append(float(np.sum(step.reward)))
            if step.over[0]:
                returns.append(float(np.mean(pool.episode_return)))
                lengths.append(int(pool.episode_length[0]))
                pool.reset(row, row + _SEED + len(lengths))
        rate = len(rewards) / (time.perf_counter() - begun)
        scaled = _of_plain_numbers(pool)
    found = [_figures(len(rewards), returns, lengths, rate)]
    found += _of_observations(np.array(observations, np.float64)) if scaled else []
    found += _of_rewards(np.array(rewards), returns)
    found += _of_lengths(lengths, gamma)
    return found


def _figures(steps: int, returns: list[float], lengths: list[int], rate: float) -> str:
    speed = f"{rate:,.0f} steps a second in one process"
    if not lengths:
        return f"note: random play: no episode ended in {steps:,} steps; {speed}"
    spread = f"returns {number(min(returns))} to {number(max(returns))}, mean {number(float(np.mean(returns)))}"
    return f"note: random play: {len(lengths)} episodes of {np.mean(lengths):.0f} steps in the mean, {spread}; {speed}"


def _of_plain_numbers(pool: EnvPool) -> bool:
    """Whether observations are vectors of numbers: images and indices are scaled on their way in."""
    return pool.team is None and isinstance(pool.observation_space, gymnasium.spaces.Box) and pool.observations.plain


def _of_observations(seen: npt.NDArray[np.float64]) -> Iterator[str]:
    far = np.maximum(np.abs(seen.mean(axis=0)), seen.std(axis=0))
    if far.max() > _WIDE:
        worst = int(far.argmax())
        low, high = (number(float(end)) for end in (seen[:, worst].min(), seen[:, worst].max()))
        yield (
            f"warning: element {worst} of an observation goes from {low} to {high}: networks learn best from numbers "
            "around 1; set train.normalise.observations to true, or scale it in the environment"
        )


def _of_rewards(rewards: npt.NDArray[np.float64], returns: list[float]) -> Iterator[str]:
    largest = float(np.abs(rewards).max())
    if len(returns) >= _EPISODES and len({*returns}) == 1:
        yield (
            f"warning: random play had the same return, {number(returns[0])}, in all of {len(returns)} episodes: what "
            "is rewarded was never met; give steps towards it a reward, or explore for longer"
        )
    if largest > _LARGE:
        yield (
            f"warning: a reward was {number(float(rewards[np.abs(rewards).argmax()]))}: values of that size are "
            "learned slowly; set train.normalise.rewards to true (on-policy), or scale rewards in the environment"
        )
    elif 0 < largest < _SMALL:
        yield (
            f"warning: no reward was larger than {number(largest)}: gradients of that size are lost in noise; scale "
            "rewards in the environment"
        )


def _of_lengths(lengths: list[int], gamma: float) -> Iterator[str]:
    horizon = 1 / (1 - gamma) if gamma < 1 else float("inf")
    if lengths and np.mean(lengths) > 6 * horizon:
        yield (
            f"warning: episodes last {np.mean(lengths):,.0f} steps, and γ of {gamma:g} sees some {horizon:,.0f} ahead: "
            f"what comes later counts for nothing; raise gamma to {1 - 5 / np.mean(lengths):.4g} if it should"
        )
