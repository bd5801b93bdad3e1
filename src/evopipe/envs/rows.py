"""The environments of a pool that live in one process and are stepped one by one.

The same code runs in the trainer and in worker processes, so the place of an environment cannot change a result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from evopipe.envs.make import close, guard, make_env
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.errors import EvopipeError, one_line, said
from evopipe.schema.env import EnvConfig
from evopipe.types import ACTS, CUT, GONE
from evopipe.watchdog import Hung, Watchdog

if TYPE_CHECKING:
    import gymnasium
    import numpy.typing as npt

# In quotes: checking a params file imports this module and must not load NumPy.
Bools: TypeAlias = "npt.NDArray[np.bool_]"
Floats: TypeAlias = "npt.NDArray[np.float32]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Actions: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32]"  # [n] or [n, D] indices, or [n, A] in [-1, 1]
Upcoming: TypeAlias = "Callable[[Ints, int], Ints] | None"  # see `EnvPool.upcoming`


class Fault(Exception):
    """Raised if an environment raised an exception, hung, or returned a value that cannot be used. It holds the
    environment's `row` in the pool and a description, `text`."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(row, text)  # both, so that it can go from one process to another
        self.row, self.text = row, text


class Begun(NamedTuple):
    """The starts of `n` episodes: the first observations, `O` numbers each, and which of the `A` actions are legal. For
    a team of K agents the arrays are `[n, K, …]`.

    Attributes:
        obs: `[n, O]`, the observations.
        mask: `[n, A]` bool, whether each action is legal; None if the environment has no masks.
        alive: `[n, K]`, for a team: the agents that act first; None if all act.
        forced: `[n, K, …]`, for a team: first actions that the environment sets itself, NaN where the policy chooses;
            None if it never sets any.
    """

    obs: Floats
    mask: Bools | None
    alive: Bools | None = None
    forced: Floats | None = None


@dataclass(frozen=True, slots=True)
class RowStep:
    """The results of one step of `n` environments, with `O` numbers in an observation and `A` actions. No later step
    overwrites the arrays.

    For a team of K agents every array but `broken` is `[n, K, …]`. An agent that did not act has the reward 0, and is
    neither terminated nor truncated. An agent that neither acted nor acts next has the observation 0.

    Attributes:
        obs: `[n, O]`, the next observations; at the end of an episode its last one.
        reward: `[n]`, the rewards.
        terminated: `[n]`, whether the episode reached an end state, so that nothing is bootstrapped.
        truncated: `[n]`, whether the episode was cut, so that the value of `obs` is bootstrapped.
        broken: `[n]`, whether a reward or observation is not finite, or no action is legal although the episode goes
            on. Nothing is learned from such a step.
        mask: `[n, A]`, whether each action is legal next. For a team: a truncated agent has the actions that are legal
            after its last observation; an agent that is gone has only its first action.
        alive: `[n, K]`, for a team: the agents that act next; else None.
        forced: `[n, K, …]`, for a team: next actions that the environment sets itself, NaN where the policy chooses;
            None if it never sets any.
    """

    obs: Floats
    reward: Floats
    terminated: Bools
    truncated: Bools
    broken: Bools
    mask: Bools
    alive: Bools | None = None
    forced: Floats | None = None

    @classmethod
    def of(
        cls, actions: ActionSpace, obs: Floats, reward: Floats, terminated: Bools, truncated: Bools, mask: Bools | None
    ) -> RowStep:
        """Build the results of a step, and find the broken rows: those with a reward or observation that is not finite,
        or without a legal action.

        `actions` is the environment's action space; the other arguments become the fields of the same names. If `mask`
        is None, every action is legal.
        """
        broken: Bools = ~(np.logical_and.reduce(np.isfinite(obs), axis=1) & np.isfinite(reward))
        if mask is None:
            mask = _every_legal(len(obs), actions.size)
        else:  # a mask after the last action means nothing
            broken |= ~actions.possible(mask) & ~(terminated | truncated)
        return cls(obs, reward, terminated, truncated, broken, mask)

    @property
    def parts(self) -> list[npt.NDArray[Any]]:
        """All arrays of the step, without those that are None."""
        found = [getattr(self, part.name) for part in fields(self)]
        return [part for part in found if part is not None]

    @property
    def next_alive(self) -> Floats:
        """The state of each of the K agents of n teams after the step, `[n, K]` float32.

        It is a constant of `evopipe.types`: ACTS if the agent acts next, CUT if it was truncated, GONE if it terminated
        or is absent.
        """
        assert self.alive is not None
        cut = self.truncated & ~self.terminated
        return np.where(self.alive, np.float32(ACTS), np.where(cut, np.float32(CUT), np.float32(GONE)))

    @property
    def over(self) -> Bools:
        """Whether each episode was terminated, truncated or broken, `[n]`, so that the caller must reset the row."""
        if self.alive is not None:
            return self.broken | ~self.alive.any(axis=1)
        return self.terminated | self.truncated | self.broken


@lru_cache(16)
def _every_legal(rows: int, actions: int) -> Bools:
    """A mask of which nothing is illegal; nobody may write to it."""
    mask: Bools = np.ones((rows, actions), np.bool_)
    mask.setflags(write=False)
    return mask


class Rows:
    """The environments of a pool, or of one worker's part of it, that are stepped one after another in this process.

    Args:
        cfg: the block `env` of `params.yaml`.
        numbers: the rows (places in the pool) of these environments.
        made: environments that already exist. The first rows get them; for the other rows, environments are made.
        masked: an array `[1]` that is set to True at the first reset if the environments have action masks.
        turn: an array `[1]` that this object writes and a watchdog reads, to find an environment that hangs. While an
            environment is reset or stepped, the array holds the environment's row. After each construction of an
            environment, it holds a new negative number.

    Raises:
        ParamsError: the environment is unknown, or its arguments or spaces cannot be used.
        EnvironmentFailed: the environment's constructor raised an exception.
    """

    def __init__(
        self,
        cfg: EnvConfig,
        numbers: range,
        made: Sequence[gymnasium.Env[Any, Any]],
        masked: Bools | None = None,
        turn: Ints | None = None,
    ) -> None:
        self._turn: Ints = np.zeros(1, np.int64) if turn is None else turn
        self.envs = make_rows(cfg, numbers, made, self._turn)
        self._guard = guard(cfg, lambda: self._turn[0])
        self._masked: Bools = np.zeros(1, np.bool_) if masked is None else masked
        first = self.envs[numbers[0]]
        self._space, self._actions = ObservationSpace.of(first.observation_space), ActionSpace.of(first.action_space)
        self._dtype = first.observation_space.dtype if self._space.plain else np.dtype(np.float32)
        self._steps = {number: env.step for number, env in self.envs.items()}

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin an episode in the environments `rows` `[n]`, each from its own seed `[n]`; return the first
        observations and masks. `upcoming` (see `EnvPool`) is not used.

        Raises:
            Fault: an environment raised an exception or hung, or its first observation or mask cannot be used.
        """
        observations = np.empty((len(rows), self._space.size), np.float32)
        masks = np.ones((len(rows), self._actions.size), np.bool_)
        with calling(self._guard, self._turn, "reset"):
            for i, (row, seed) in enumerate(zip(rows.tolist(), seeds.tolist(), strict=True)):
                self._turn[0] = row
                obs, info = self.envs[row].reset(seed=seed)
                observations[i] = self._observation(row, obs)
                if not np.isfinite(observations[i]).all():
                    raise Fault(row, "reset() returned an observation that is not finite")
                if not isinstance(info, Mapping):
                    raise Fault(row, f"reset() returned an info that is no mapping but {picture(info)}")
                if "action_mask" in info:
                    self._masked[0] = True
                if self._masked[0]:
                    masks[i] = self._legal(row, info)
                    if not self._actions.possible(masks[i : i + 1])[0]:
                        raise Fault(row, "reset() returned an action_mask in which no action is legal")
        return Begun(observations, masks if self._masked[0] else None)

    def send(self, rows: Ints, actions: Actions) -> None:
        """Do nothing, because `receive` steps these environments."""

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        """Step the environments `rows` `[n]`, and return the results.

        `actions` depend on the action space. Discrete: indices from 0, `[n]`. MultiDiscrete or MultiBinary with D
        parts: indices, `[n, D]`. Box with A numbers: numbers in [-1, 1], `[n, A]`, scaled to its bounds.

        Raises:
            Fault: an environment raised an exception or hung, or returned a value of a wrong type or shape.
        """
        shape, dtype, steps, plain = (self._space.size,), self._dtype, self._steps, self._space.plain
        bools, reals, masked = {bool, np.bool_}, {float, int, np.float64, np.float32}, bool(self._masked[0])
        observations, rewards, terminations, truncations, masks = [], [], [], [], []
        each, turn = self._actions.each(actions), self._turn
        with calling(self._guard, turn, "step"):
            for row, action in zip(rows.tolist(), each, strict=True):
                turn[0] = row
                obs, reward, terminated, truncated, info = steps[row](action)
                if not plain:
                    obs = self._observation(row, obs)
                if not (
                    obs.__class__ is np.ndarray
                    and obs.shape == shape
                    and obs.dtype is dtype
                    and reward.__class__ in reals
                    and terminated.__class__ in bools
                    and truncated.__class__ in bools
                ):  # other types than the declared ones, perhaps of the same meaning
                    obs, reward = self._observation(row, obs) if plain else obs, number(row, reward)
                    for name, flag in (("terminated", terminated), ("truncated", truncated)):
                        if flag.__class__ not in bools:
                            raise Fault(row, f"step() returned {name} = {picture(flag)}, which is not a bool")
                if masked or "action_mask" in info:
                    masks.append(self._legal(row, info))
                observations.append(obs)
                rewards.append(reward)
                terminations.append(terminated)
                truncations.append(truncated)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            obs_t = np.concatenate(observations, dtype=np.float32, casting="unsafe").reshape(-1, *shape)
            reward_t = floats(rewards).astype(np.float32)
        flags = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        return RowStep.of(self._actions, obs_t, reward_t, *flags, np.stack(masks) if masks else None)

    def close(self) -> None:
        """Close every environment."""
        close(*self.envs.values())

    def _observation(self, row: int, obs: Any) -> Floats:
        """Flatten one observation: `[O]`."""
        try:
            return self._space.row(obs)
        except ValueError as error:
            raise Fault(row, f"returned {error}") from error

    def _legal(self, row: int, info: Any) -> Bools:
        """Read `info["action_mask"]`: `[A]`."""
        if not self._masked[0]:
            raise Fault(row, "step() returned an action_mask, reset() did not: give it in both")
        if "action_mask" not in info:
            raise Fault(row, "returned no action_mask, earlier it did: give it at every reset and step")
        return read_mask(row, self._actions, info["action_mask"])


class calling:  # noqa: N801  # a context, like those of `contextlib`
    """A context for a block that calls environments, with a time limit.

    If the block raises an exception or hangs, the context raises a `Fault`, an error that names the environment.

    Args:
        watched: the watchdog with the time limit.
        turn: `[1]`, the row (place in the pool) of the environment that is being called.
        what: the name of the called method in messages.
    """

    __slots__ = "_turn", "_watched", "_what"

    def __init__(self, watched: Watchdog, turn: Ints, what: str) -> None:
        self._watched, self._turn, self._what = watched, turn, what

    def __enter__(self) -> None:
        self._watched.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._watched.__exit__(kind, error, trace)
        if isinstance(error, EvopipeError | Fault):
            return
        if isinstance(error, Exception | SystemExit):
            raise Fault(int(self._turn[0]), f"{self._what}() raised {said(error)}") from error
        if isinstance(error, Hung):
            raise Fault(int(self._turn[0]), f"{self._what}() {error}") from None


def read_mask(row: int, actions: ActionSpace, given: Any, whose: str = "") -> Bools:
    """Check the action mask `given` that an environment returned, and convert it to bool `[A]`, one entry for each of A
    actions.

    The error names the environment by its `row` in the pool, and an agent of a team by the text `whose`.

    Raises:
        Fault: the mask does not fit the actions.
    """
    try:
        mask = np.asarray(actions.flat_mask(given))
    except ValueError as error:
        raise Fault(row, f"returned{whose} {error}") from error
    if mask.shape != (actions.size,) or mask.dtype.kind not in "biu":
        found = f"{mask.dtype}{[*mask.shape]}"
        raise Fault(row, f"returned an action_mask {found}{whose}, expected bool[{actions.size}]")
    return np.asarray(mask != 0, np.bool_)


def make_rows(
    cfg: EnvConfig, numbers: range, made: Sequence[gymnasium.Env[Any, Any]], turn: Ints
) -> dict[int, gymnasium.Env[Any, Any]]:
    """Return environments for the rows (places in the pool) `numbers`, as a dict: row → environment.

    The first rows get the environments in `made`. For the other rows, environments are constructed from `cfg`, the
    block `env`. `turn` has one element. It is set to a new negative number after each construction, so that a watchdog
    sees that there is progress.
    """
    envs = [*made]
    while len(envs) < len(numbers):
        envs.append(make_env(cfg))
        turn[0] = -len(envs)
    return dict(zip(numbers, envs, strict=True))


def floats(rewards: Sequence[Any]) -> npt.NDArray[np.float64]:
    """Convert rewards to float64. An integer too large for a float becomes infinite."""
    try:
        return np.array(rewards, np.float64)
    except OverflowError:
        return np.array([math.inf if abs(reward) > sys.float_info.max else reward for reward in rewards], np.float64)


def number(row: int, reward: Any, whose: str = "") -> float:
    """Convert a reward that is no plain number, such as a NumPy scalar, to a float.

    The error names the environment by its `row` in the pool, and an agent of a team by the text `whose`.

    Raises:
        Fault: the reward cannot be converted.
    """
    plain = reward.item() if isinstance(reward, np.ndarray) and reward.size == 1 else reward
    try:
        if isinstance(plain, str | bytes | bytearray | np.ndarray):
            raise TypeError("text and vectors are no reward, even where Python can read a number from them")
        return float(plain)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError) as error:
        raise Fault(row, f"step() returned reward{whose} = {picture(reward)}, which is not a number") from error


def picture(value: object) -> str:
    """Return a short description of a wrong value, with its type, for an error message."""
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)} of {value.dtype}"
    try:
        text = one_line(repr(value))
    except Exception:
        return f"a value of type {type(value).__name__}"
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
