"""The rows of a pool that live in one process: Gymnasium environments, stepped one by one.

The same code runs in the trainer and in worker processes, so that where an environment lives cannot change a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from evopipe.envs.make import ActionSpace, make_env
from evopipe.envs.observations import ObservationSpace
from evopipe.errors import EvopipeError
from evopipe.schema.blocks import EnvConfig

if TYPE_CHECKING:
    import gymnasium
    import numpy.typing as npt

# In quotes: checking a params file imports this module and must not load NumPy.
Bools: TypeAlias = "npt.NDArray[np.bool_]"
Floats: TypeAlias = "npt.NDArray[np.float32]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Actions: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32]"  # [n] or [n, D] indices, or [n, A] in [-1, 1]
Begun: TypeAlias = "tuple[Floats, Bools | None]"
Stepped: TypeAlias = "tuple[Floats, Floats, Bools, Bools, Bools | None]"


NO_MASK = "returned no action_mask, earlier it did: give it at every reset and step"


class Fault(Exception):
    """An environment raised, or returned something that cannot be used: in which row, and what."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(row, text)  # both, so that it can go from one process to another
        self.row, self.text = row, text


def make_rows(cfg: EnvConfig, numbers: range, *, made: Sequence[gymnasium.Env[Any, Any]] = ()) -> Rows:
    """Construct the environments of the rows `numbers`; `made` are the first few of them.

    Raises:
        ParamsError: the environment is unknown or its spaces are not served.
        EnvironmentFailed: its constructor raised.
    """
    envs = list(made)
    envs.extend(make_env(cfg) for _ in range(len(numbers) - len(envs)))
    return Rows(envs, numbers)


class Rows:
    """Environments of one kind, addressed by their rows in the pool.

    Args:
        envs: the environments.
        numbers: their rows in the pool.

    Attributes:
        actions: their action space.
        masked: whether the environments give action masks; known after the first reset.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], numbers: range) -> None:
        self.envs, self.numbers, self.masked = envs, numbers, False
        space = envs[0].observation_space
        self._space = ObservationSpace.of(space)
        self._shape = (self._space.size,)
        self._dtype = space.dtype if self._space.plain else np.dtype(np.float32)
        self.actions = ActionSpace.of(envs[0].action_space)
        self._bools, self._numbers = {bool, np.bool_}, {float, int, np.float64, np.float32}
        self._steps = {number: env.step for number, env in zip(numbers, envs, strict=True)}

    def env(self, row: int) -> gymnasium.Env[Any, Any]:
        """Return the environment of one row."""
        return self.envs[self.numbers.index(row)]

    def reset(self, rows: Ints | Sequence[int], seeds: Ints | Sequence[int]) -> Begun:
        """Begin an episode in `rows` `[n]`, each from its own seed: observations `[n, O]`, masks `[n, A]` or None.

        Raises:
            Fault: an environment raised, or its first observation or mask cannot be used.
        """
        observations = np.empty((len(rows), *self._shape), np.float32)
        masks = np.ones((len(rows), self.actions.size), np.bool_)
        for i, (row, seed) in enumerate(zip(map(int, rows), map(int, seeds), strict=True)):
            try:
                obs, info = self.env(row).reset(seed=seed)
            except EvopipeError:
                raise
            except Exception as error:
                raise Fault(row, f"reset() raised {type(error).__name__}: {error}") from error
            observations[i] = self._observation(row, obs)
            if not np.isfinite(observations[i]).all():
                raise Fault(row, "reset() returned an observation that is not finite")
            if not isinstance(info, Mapping):
                raise Fault(row, f"reset() returned an info that is no mapping but {_name(info)}")
            self.masked = self.masked or "action_mask" in info
            if self.masked:
                masks[i] = self._legal(row, info)
                if not self.actions.possible(masks[i : i + 1])[0]:
                    raise Fault(row, "reset() returned an action_mask in which no action is legal")
        return observations, masks if self.masked else None

    def step(self, rows: Sequence[int], actions: Actions) -> Stepped:
        """Step `rows` `[n]` with actions in an algorithm's terms: indices `[n]` or `[n, D]`, or `[n, A]` in [-1, 1].

        Returns:
            Observations `[n, O]`, rewards, terminations and truncations `[n]`, masks `[n, A]` or None.

        Raises:
            Fault: an environment raised, or returned something of a wrong type or shape.
        """
        shape, dtype, masked, steps, plain = self._shape, self._dtype, self.masked, self._steps, self._space.plain
        bools, numbers = self._bools, self._numbers
        observations, rewards, terminations, truncations, masks = [], [], [], [], []
        row = -1
        try:
            own = self.actions.own(actions)
            for row, action in zip(rows, own.tolist() if self.actions.kind == "discrete" else own, strict=True):
                obs, reward, terminated, truncated, info = steps[row](action)
                if not plain:
                    obs = self._observation(row, obs)
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
        except (EvopipeError, Fault):
            raise
        except Exception as error:
            raise Fault(row, f"step() raised {type(error).__name__}: {error}") from error
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            obs_t = np.concatenate(observations, dtype=np.float32, casting="unsafe").reshape(-1, *shape)
            reward_t = np.array(rewards, np.float64).astype(np.float32)
        flags = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        return obs_t, reward_t, *flags, np.stack(masks) if masks else None

    def send(self, rows: Ints | None, actions: Actions, next_seeds: Ints | None) -> None:
        """Begin a step: here the work is done when its result is asked for."""

    def receive(self, rows: Ints | None, actions: Actions) -> Stepped:
        """Step `rows`, all where None. See `step`."""
        return self.step(self.numbers if rows is None else rows.tolist(), actions)

    def close(self) -> None:
        """Close every environment. One that fails to close cannot harm a finished run."""
        close_all(self.envs)

    def _coerce(self, row: int, obs: Any, reward: Any, terminated: Any, truncated: Any) -> tuple[Floats, float]:
        """The slow path of a step: types that differ from the declared ones but carry the same meaning."""
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if flag.__class__ not in self._bools:
                raise Fault(row, f"step() returned {name} = {_name(flag)}, which is not a bool")
        return self._observation(row, obs) if self._space.plain else obs, _reward(row, reward)

    def _observation(self, row: int, obs: Any) -> Floats:
        """Flatten one observation: `[O]`."""
        if not self._space.plain:
            try:
                return self._space.row(obs)
            except ValueError as error:
                raise Fault(row, f"returned {error}") from error
        try:
            array = np.asarray(obs)
        except Exception as error:
            raise Fault(row, f"returned an observation that is no array: {error}") from error
        if array.shape != self._shape:
            raise Fault(row, f"returned an observation of shape {array.shape}, its space says {self._shape}")
        if array.dtype.kind not in "biuf":
            raise Fault(row, f"returned an observation of dtype {array.dtype}, its space says {self._dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(np.float32)

    def _legal(self, row: int, info: Any) -> Bools:
        """Read `info["action_mask"]`: `[A]`."""
        if not self.masked:
            raise Fault(row, "step() returned an action_mask, reset() did not: give it in both")
        if "action_mask" not in info:
            raise Fault(row, NO_MASK)
        try:
            mask = np.asarray(self.actions.flat_mask(info["action_mask"]))
        except ValueError as error:
            raise Fault(row, f"returned {error}") from error
        if mask.shape != (self.actions.size,) or mask.dtype.kind not in "biu":
            raise Fault(
                row, f"returned an action_mask {mask.dtype}{list(mask.shape)}, expected bool[{self.actions.size}]"
            )
        legal: Bools = np.asarray(mask != 0, np.bool_)
        return legal


def close_all(envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    """Close environments, whatever they say to it."""
    for env in envs:
        try:
            env.close()
        except Exception:
            continue


def broken(
    actions: ActionSpace, obs: Floats, reward: Floats, terminated: Bools, truncated: Bools, mask: Bools | None
) -> Bools:
    """Which transitions `[n]` must not be learned from: not finite, or no legal action in a running episode."""
    bad: Bools = ~(np.isfinite(obs).all(axis=1) & np.isfinite(reward))
    if mask is not None:  # a mask after the last action means nothing
        bad |= ~actions.possible(mask) & ~(terminated | truncated)
    return bad


def _reward(row: int, reward: Any) -> float:
    plain = reward.item() if isinstance(reward, np.ndarray) and reward.size == 1 else reward
    try:
        if isinstance(plain, str | bytes | bytearray | np.ndarray):
            raise TypeError("text and vectors are no reward, even where Python can read a number from them")
        return float(plain)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise Fault(row, f"step() returned reward = {_name(reward)}, which is not a number") from error


def _name(value: object) -> str:
    """A short picture of a wrong value."""
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)} of {value.dtype}"
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
