"""Environments with goals: the columns of an observation that hold them, and what reaching another goal is worth.

Such an environment follows the convention of Gymnasium-Robotics (`GoalEnv`): its observations are a Dict with the parts
`achieved_goal` and `desired_goal`, and its reward is a function of both, `compute_reward(achieved, desired, info)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from evopipe.envs.make import guard
from evopipe.envs.pool import EnvPool
from evopipe.envs.spaces import Leaf, brief
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError
from evopipe.own import foreign
from evopipe.schema.env import EnvConfig

if TYPE_CHECKING:
    import numpy.typing as npt

_KEY = "train.replay.hindsight"
_STEPS, _SEED = 32, 20_013  # of random play, in which rewards are compared
_CLOSE = 1e-4  # goals are float32 here, and float64 in many environments


class Goals:
    """The goals of an environment, and the rewards and ends that follow from them.

    One environment is made for this, whose methods `compute_reward` and, if it has one, `compute_terminated` are
    called. They get goals as the environment's space has them (rounded to float32), and an empty `info`.

    Args:
        cfg: the block `env` of `params.yaml`.

    Attributes:
        achieved, desired: the columns of an observation's row that hold the achieved and the desired goal, G each.

    Raises:
        ParamsError: the environment has no goals, or its rewards do not follow from them.
        EnvironmentFailed: the environment could not be made, or raised an exception.
    """

    def __init__(self, cfg: EnvConfig) -> None:
        self._open(cfg)

    def _open(self, cfg: EnvConfig) -> None:
        self._cfg, self._pool = cfg, EnvPool(cfg, 1, what="hindsight's")
        try:
            self._read(self._pool)
            self._compare(self._pool)
        except EvopipeError:
            self._pool.close()
            raise

    def _read(self, pool: EnvPool) -> None:
        (start, self._leaf), (other, _) = _find(pool, self._cfg)
        self.achieved = slice(start, start + self._leaf.size)
        self.desired = slice(other, other + self._leaf.size)
        space: Any = pool.observation_space
        self._dtype = space["achieved_goal"].dtype
        pool.reset([0], [_SEED])  # before that it may have no environment
        reward = _method(pool.env(0), "compute_reward")
        if reward is None:
            raise ParamsError(
                f"{_KEY}: {self._cfg.id!r} has no compute_reward(achieved_goal, desired_goal, info), which says what "
                "another goal is worth: write one, or set this to null"
            )
        self._reward, self._terminated = reward, _method(pool.env(0), "compute_terminated")

    def reopen(self, kwargs: Mapping[str, Any]) -> None:
        """Make the environment anew with these keyword arguments in the place of `env.kwargs`."""
        self.close()
        self._open(self._cfg.model_copy(update={"kwargs": dict(kwargs)}))

    def close(self) -> None:
        """Close the environment."""
        self._pool.close()

    def outcome(
        self, achieved: npt.NDArray[np.float32], desired: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_] | None]:
        """Return the rewards of n steps, `[n]`, and whether each of them ends its episode, `[n]` bool.

        The second is None if the environment has no method `compute_terminated`. Rewards are computed by one call for
        all steps, ends by one call for each: only `compute_reward` takes several goals at once by convention.

        Args:
            achieved: `[n, G]`, the columns of the goals that the steps have achieved.
            desired: `[n, G]`, the columns of the goals that are desired.

        Raises:
            EnvironmentFailed: a method raised an exception, hung, or returned something else than such values.
        """
        pairs, n = (self._own(achieved), self._own(desired)), len(achieved)
        what = f"environment {self._cfg.id!r}: compute_reward(achieved_goal, desired_goal, {{}})"
        with foreign(what, guard(self._cfg)):
            reward = np.asarray(self._reward(*pairs, {}))
        if reward.shape != (n,) or reward.dtype.kind not in "biuf":
            raise EnvironmentFailed(
                f"{what} returned {reward.dtype}{[*reward.shape]} for {n} pairs of goals, expected {n} numbers: it "
                "must take several goals at once, one in each row"
            )
        if self._terminated is None:
            return reward.astype(np.float32), None
        what = what.replace("compute_reward", "compute_terminated")
        with foreign(what, guard(self._cfg)):
            ends = [np.asarray(self._terminated(*pair, {})) for pair in zip(*pairs, strict=True)]
        if wrong := [each for each in ends if each.shape or each.dtype.kind != "b"]:
            raise EnvironmentFailed(f"{what} returned {wrong[0].dtype}{[*wrong[0].shape]}, expected a bool")
        return reward.astype(np.float32), np.array(ends, np.bool_)

    def _own(self, columns: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Return n goals as the environment's space has them, `[n, *shape]`, from their columns `[n, G]`."""
        leaf = self._leaf
        if leaf.counts:  # one-hot
            parts = np.split(columns, np.cumsum(leaf.counts)[:-1], axis=1)
            columns = np.stack([part.argmax(axis=1) for part in parts], axis=1) + np.array(leaf.firsts)
        return columns.reshape(len(columns), *leaf.shape).astype(self._dtype)

    def _compare(self, pool: EnvPool) -> None:
        """Play at random, and see whether rewards and ends follow from the goals."""
        rng, row = np.random.default_rng(_SEED), np.zeros(1, np.int64)
        steps = []
        for n in range(_STEPS):
            steps.append(pool.step(np.array([pool.actions.sample(pool.mask[0], rng)]), row))
            if steps[-1].over[0]:
                pool.reset(row, row + _SEED + n + 1)
        obs, reward, ends = (
            np.concatenate([getattr(s, name) for s in steps]) for name in ("obs", "reward", "terminated")
        )
        computed = self.outcome(obs[:, self.achieved], obs[:, self.desired])
        for name, own, gave in zip(("reward", "terminated"), computed, (reward, ends), strict=True):
            if own is not None and not (same := np.isclose(own, gave, rtol=_CLOSE, atol=_CLOSE)).all():
                at = int(same.argmin())
                raise ParamsError(
                    f"{_KEY}: {self._cfg.id!r} gives {own[at]} by compute_{name}(achieved_goal, desired_goal, {{}}) at "
                    f"step {at + 1} of random play, and {gave[at]} by step(): both must be the same, so mend it, leave "
                    "out the wrapper that changes one of them, or set this to null"
                )


def _find(pool: EnvPool, cfg: EnvConfig) -> list[tuple[int, Leaf]]:
    """Return the first column and the array of the achieved and the desired goal."""
    parts: dict[Any, tuple[int, Leaf]] = {}
    start = 0
    for leaf in pool.observations.leaves if isinstance(pool.observation_space, gymnasium.spaces.Dict) else ():
        parts[leaf.path] = start, leaf
        start += leaf.size
    found = [parts[path] for path in (("achieved_goal",), ("desired_goal",)) if path in parts]
    if len(found) < 2 or any(leaf.channels is not None or not leaf.size for _, leaf in found):
        raise ParamsError(
            f"{_KEY}: {cfg.id!r} has the observations {brief(pool.observation_space)}, and an environment with goals "
            "has a Dict in which 'achieved_goal' and 'desired_goal' are one array each, and no image: take such an "
            "environment, or set this to null"
        )
    achieved, desired = (replace(leaf, path=()) for _, leaf in found)
    if achieved != desired:
        raise ParamsError(
            f"{_KEY}: {cfg.id!r} achieves goals of another shape than it desires ({brief(pool.observation_space)}): "
            "make both spaces alike, or set this to null"
        )
    return found


def _method(env: gymnasium.Env[Any, Any], name: str) -> Callable[..., Any] | None:
    """Return a method of the outermost wrapper that has it, or of the environment; None if nobody has it."""
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None


def check(cfg: EnvConfig) -> None:
    """Check that an environment has goals and that its rewards follow from them.

    Raises:
        ParamsError, EnvironmentFailed: as `Goals`.
    """
    Goals(cfg).close()
