"""A pool of environments stepped in this process, one seed per episode, rebuilt exactly by re-simulation.

Gymnasium's own vector environments seed once and reset by themselves. Here the caller resets a row, with the seed of
that very episode: an episode is a function of its seed and its actions, whatever ran in the row before, and no
phantom row exists that a buffer would have to leave out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import gymnasium
import numpy as np

from evopipe.envs.make import EnvConfig, discrete_actions, make_env, vector_observation_size
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError

if TYPE_CHECKING:
    import numpy.typing as npt

_FIRST_LOG = 256

# In quotes, and the classes below in functions: checking a params file imports this module and must not load NumPy.
Bools: TypeAlias = "npt.NDArray[np.bool_]"
Floats: TypeAlias = "npt.NDArray[np.float32]"
Ints: TypeAlias = "npt.NDArray[np.int64]"


@cache
def _bools() -> frozenset[type]:
    return frozenset((bool, np.bool_))


@cache
def _numbers() -> frozenset[type]:
    return frozenset((float, int, np.float64, np.float32))


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of `n` rows gave. Nothing in it is overwritten by a later step.

    Attributes:
        obs: true next observation `[n, O]`, also where the episode ended.
        reward: `[n]`.
        terminated: `[n]`, the episode reached an end state: nothing to bootstrap from.
        truncated: `[n]`, the episode was cut: bootstrap from `obs`.
        broken: `[n]`, reward or observation is not finite, or no action is legal in a running episode. Such a
            transition must not be learned from and the caller resets the row.
        mask: `[n, A]`, legal next actions.
    """

    obs: Floats
    reward: Floats
    terminated: Bools
    truncated: Bools
    broken: Bools
    mask: Bools


class EnvPool:
    """`R` independent environments. A row that ended must be reset by the caller, with a seed.

    Args:
        cfg: which environment.
        rows: `R`.
        what: the pool's name in error messages.

    Attributes:
        obs: `[R, O]`, current observation of every row.
        mask: `[R, A]`, legal actions; all True where the environment gives no `info["action_mask"]`.
        masked: whether the environment gives masks; known after the first reset.
        episode_return: `[R]`, undiscounted return of the running episode.
        episode_length: `[R]`, steps of the running episode.
        action_start: the environment's own action is this plus the index.
        reward_threshold: the return at which the environment counts as solved, where its spec names one.

    Raises:
        ParamsError: the environment is unknown or its spaces are not served.
        EnvironmentFailed: its constructor raised.
    """

    def __init__(self, cfg: EnvConfig, rows: int, *, what: str = "training") -> None:
        self._id, self._what, self.rows = cfg.id, what, rows
        self._envs = [make_env(cfg)]
        first = self._envs[0]
        self.observation_space, self.action_space = (first.observation_space, first.action_space)
        try:
            self.obs_size = vector_observation_size(self.observation_space)
            self.num_actions = discrete_actions(self.action_space)
        except EvopipeError:
            self.close()
            raise
        self._envs.extend(make_env(cfg) for _ in range(rows - 1))
        self._steps = [env.step for env in self._envs]
        self.reward_threshold: float | None = first.spec.reward_threshold if first.spec else None

        self.obs: Floats = np.zeros((rows, self.obs_size), np.float32)
        self.mask: Bools = np.ones((rows, self.num_actions), np.bool_)
        self.masked = False
        self.episode_return = np.zeros(rows, np.float64)
        self.episode_length: Ints = np.zeros(rows, np.int64)
        self.action_start = int(getattr(self.action_space, "start", 0))
        self._shape, self._dtype = (self.obs_size,), self.observation_space.dtype
        self._all = np.arange(rows)
        self._all_legal: Bools = np.ones((rows, self.num_actions), np.bool_)
        self._all_legal.setflags(write=False)
        self._seed: Ints = np.full(rows, -1, np.int64)  # -1: never reset
        self._log = np.zeros((rows, _FIRST_LOG), np.int32)  # actions of the running episodes
        self._longest = 0  # an upper bound of episode_length, cheaper to keep than its maximum

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None:
        """Start a new episode in `rows` `[n]`, each from its own seed `[n]`.

        Raises:
            EnvironmentFailed: an environment raised, or its first observation or mask cannot be used.
        """
        index, seed_of = np.asarray(rows, np.int64), np.asarray(seeds, np.int64)
        self._seed[index], self.episode_length[index], self.episode_return[index] = (seed_of, 0, 0.0)
        self._longest = int(self.episode_length.max())
        for row, seed in zip(index.tolist(), seed_of.tolist(), strict=True):
            try:
                obs, info = self._envs[row].reset(seed=seed)
            except EvopipeError:
                raise
            except Exception as error:
                self._fail(row, f"reset() raised {type(error).__name__}: {error}", error)
            self._begin(row, obs, info)

    def _begin(self, row: int, obs: Any, info: Any) -> None:
        self.obs[row] = self._observation(row, obs)
        if not np.isfinite(self.obs[row]).all():
            self._fail(row, "reset() returned an observation that is not finite")
        if not isinstance(info, Mapping):
            self._fail(row, f"reset() returned an info that is no mapping but {_name(info)}")
        if "action_mask" in info:
            self.masked = True
        if self.masked:
            self.mask[row] = self._legal(row, info)
            if not self.mask[row].any():
                self._fail(row, "reset() returned an action_mask in which no action is legal")

    def step(self, actions: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> Step:
        """Step `rows` `[n]` (all where None) with action indices `[n]`, counted from 0 whatever the space's start.

        Raises:
            EnvironmentFailed: an environment raised, or returned something of a wrong type or shape.
        """
        index = self._all if rows is None else np.asarray(rows, np.int64)
        action = np.asarray(actions, np.int64)
        shape, dtype, masked, envs = self._shape, self._dtype, self.masked, self._steps
        bools, numbers = _bools(), _numbers()
        observations, rewards, terminations, truncations, masks = [], [], [], [], []
        row = -1
        try:
            for row, chosen in zip(index.tolist(), (action + self.action_start).tolist(), strict=True):
                obs, reward, terminated, truncated, info = envs[row](chosen)
                if not (
                    obs.__class__ is np.ndarray
                    and obs.shape == shape
                    and obs.dtype is dtype
                    and reward.__class__ in numbers
                    and terminated.__class__ in bools
                    and truncated.__class__ in bools
                ):
                    obs, reward = self._coerce(row, obs, reward, terminated, truncated)
                if masked or "action_mask" in info:
                    masks.append(self._legal(row, info))
                observations.append(obs)
                rewards.append(reward)
                terminations.append(terminated)
                truncations.append(truncated)
        except EvopipeError:
            raise
        except Exception as error:
            self._fail(row, f"step() raised {type(error).__name__}: {error}", error)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            obs_t = np.concatenate(observations, dtype=np.float32, casting="unsafe").reshape(-1, self.obs_size)
            reward_t = np.array(rewards, np.float64).astype(np.float32)
        mask_t = np.stack(masks) if masks else self._all_legal[: len(index)]
        return self._record(index, action, obs_t, reward_t, np.array(terminations), np.array(truncations), mask_t)

    def _record(
        self, index: Ints, action: Ints, obs: Floats, reward: Floats, terminated: Bools, truncated: Bools, mask: Bools
    ) -> Step:
        """Enter one step of the rows `index` into the running episodes."""
        broken = ~(np.isfinite(obs).all(axis=1) & np.isfinite(reward))
        if self.masked:  # a mask after the last action means nothing
            broken |= ~mask.any(axis=1) & ~(terminated | truncated)
        if self._longest >= self._log.shape[1]:
            self._grow()
        self._longest += 1
        self._log[index, self.episode_length[index]] = action
        self.obs[index] = obs
        self.episode_length[index] += 1
        self.episode_return[index] += reward
        if self.masked:
            self.mask[index] = mask
        return Step(obs, reward, terminated, truncated, broken, mask)

    def _grow(self) -> None:
        self._longest = int(self.episode_length.max())
        if self._longest >= self._log.shape[1]:
            self._log = np.concatenate((self._log, np.zeros_like(self._log)), axis=1)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what rebuilds the pool.

        Returns:
            `seed` `[R]` of each running episode (-1: never reset), `length` `[R]`, `actions` `[sum(length)]` (the
            running episodes' actions, row after row), `obs` `[R, O]`.
        """
        taken = np.arange(self._log.shape[1])[None] < self.episode_length[:, None]
        return {
            "seed": self._seed.copy(),
            "length": self.episode_length.copy(),
            "actions": self._log[taken],
            "obs": self.obs.copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> Bools:
        """Rebuild the pool by playing each running episode again.

        Returns:
            `[R]`, rows whose episode came out different: the environment is not deterministic. The caller resets
            them.

        Raises:
            DataError: the state belongs to another pool.
            EnvironmentFailed: an environment raised on the way.
        """
        seed, length = (np.asarray(state["seed"], np.int64), np.asarray(state["length"], np.int64))
        self._check_state(seed, length, state)
        log = np.zeros((self.rows, max(1, int(length.max(initial=0)))), np.int32)
        log[np.arange(log.shape[1])[None] < length[:, None]] = state["actions"]
        begun = np.flatnonzero(seed >= 0)
        self._seed[:], self.episode_length[:], self.episode_return[:] = -1, 0, 0.0
        self.obs[:], self.mask[:], self._longest = 0.0, True, 0
        self.reset(begun, seed[begun])
        early: Bools = np.zeros(self.rows, np.bool_)
        for t in range(int(length.max(initial=0))):
            rows = np.flatnonzero((length > t) & ~early)
            if not rows.size:
                break
            step = self.step(log[rows, t], rows)
            early[rows] = (step.terminated | step.truncated) & (length[rows] > t + 1)
        same = (self.obs == state["obs"]) | (np.isnan(self.obs) & np.isnan(state["obs"]))
        return np.asarray(early | ~same.all(axis=1), np.bool_)

    def _check_state(self, seed: Ints, length: Ints, state: Mapping[str, npt.NDArray[Any]]) -> None:
        fits = seed.shape == length.shape == (self.rows,) and state["obs"].shape == self.obs.shape
        if not fits:
            raise DataError(
                f"the saved {self._what} environments are {seed.size} rows with observations {state['obs'].shape}; "
                f"expected {self.rows} rows with {self.obs.shape}"
            )
        if (length < 0).any() or state["actions"].shape != (int(length.sum()),):
            raise DataError(f"the saved {self._what} environments hold an action log that does not fit its lengths")

    def env(self, row: int) -> gymnasium.Env[Any, Any]:
        """Return one row's environment, for rules that look inside. Stepping or resetting it belongs to the pool."""
        return self._envs[row]

    def close(self) -> None:
        """Close every environment. One that fails to close cannot harm a finished run."""
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()

    def _coerce(self, row: int, obs: Any, reward: Any, terminated: Any, truncated: Any) -> tuple[Floats, float]:
        """The slow path of a step: types that differ from the declared ones but carry the same meaning."""
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if flag.__class__ not in _bools():
                self._fail(row, f"step() returned {name} = {_name(flag)}, which is not a bool")
        return self._observation(row, obs), self._reward(row, reward)

    def _observation(self, row: int, obs: Any) -> Floats:
        try:
            array = np.asarray(obs)
        except Exception as error:
            self._fail(row, f"returned an observation that is no array: {error}", error)
        if array.shape != self._shape:
            self._fail(row, f"returned an observation of shape {array.shape}, its space says {self._shape}")
        if array.dtype.kind not in "biuf":
            self._fail(row, f"returned an observation of dtype {array.dtype}, its space says {self._dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(np.float32)

    def _reward(self, row: int, reward: Any) -> float:
        plain = reward.item() if isinstance(reward, np.ndarray) and reward.size == 1 else reward
        try:
            if isinstance(plain, str | bytes | bytearray | np.ndarray):
                raise TypeError("text and vectors are no reward, even where Python can read a number from them")
            return float(plain)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            self._fail(row, f"step() returned reward = {_name(reward)}, which is not a number")

    def _legal(self, row: int, info: Any) -> Bools:
        """Read `info["action_mask"]` `[A]`."""
        if not self.masked:
            self._fail(row, "step() returned an action_mask, reset() did not: give it in both")
        if "action_mask" not in info:
            self._fail(row, "returned no action_mask, earlier it did: give it at every reset and step")
        mask = np.asarray(info["action_mask"])
        if mask.shape != (self.num_actions,) or mask.dtype.kind not in "biu":
            self._fail(
                row, f"returned an action_mask {mask.dtype}{list(mask.shape)}, expected bool[{self.num_actions}]"
            )
        legal: Bools = np.asarray(mask != 0, np.bool_)
        return legal

    def _fail(self, row: int, text: str, cause: Exception | None = None) -> NoReturn:
        where = f"row {row}, episode seed {self._seed[row]}, step {self.episode_length[row] + 1}"
        raise EnvironmentFailed(f"{self._what} environment {self._id!r} ({where}): {text}") from cause


def _name(value: object) -> str:
    """A short picture of a wrong value."""
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)} of {value.dtype}"
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
