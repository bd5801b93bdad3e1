"""A pool of environments, one seed per episode, rebuilt exactly by re-simulation.

Gymnasium's own vector environments seed once and reset by themselves. Here the caller resets a row, with the seed of
that very episode: an episode is a function of its seed and its actions, whatever ran in the row before, and no
phantom row exists that a buffer would have to leave out. Where the environments live is another matter: in this process
(`evopipe.envs.rows`), in worker processes (`evopipe.envs.workers`), in envpool's threads (`evopipe.envs.native`), or in
tensors (`evopipe.envs.batched`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import gymnasium
import numpy as np

from evopipe.envs.batched.pool import TensorRows
from evopipe.envs.make import ActionSpace, make_env
from evopipe.envs.native import Native
from evopipe.envs.observations import ObservationSpace
from evopipe.envs.rows import Actions, Begun, Bools, Fault, Floats, Ints, Rows, Stepped, broken, close_all, make_rows
from evopipe.envs.workers import Unavailable
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError, ParamsError, UsageError
from evopipe.schema.blocks import EnvConfig

if TYPE_CHECKING:
    import numpy.typing as npt

    from evopipe.envs.workers import Crew, Remote

_FIRST_LOG = 256


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


class _Home(Protocol):
    """Where the environments of a pool live."""

    def reset(self, rows: Ints, seeds: Ints) -> Begun: ...

    def send(self, rows: Ints | None, actions: Actions, next_seeds: Ints | None) -> None: ...

    def receive(self, rows: Ints | None, actions: Actions) -> Stepped: ...

    def close(self) -> None: ...


class EnvPool:
    """`R` independent environments. A row that ended must be reset by the caller, with a seed.

    Args:
        cfg: which environment.
        rows: `R`.
        what: the pool's name in error messages.
        crew: worker processes that may hold the environments; None: they live in this process. Nothing that the pool
            gives depends on it.
        overlapped: the caller computes between `send` and `receive`, so a CPU should be left to it.

    Attributes:
        obs: `[R, O]`, current observation of every row.
        mask: `[R, A]`, legal actions; all True where the environment gives no `info["action_mask"]`.
        masked: whether the environment gives masks; known after the first reset.
        episode_return: `[R]`, undiscounted return of the running episode.
        episode_length: `[R]`, steps of the running episode.
        actions: the action space, and the way to the environment's own actions.
        observations: the observation space, and the way from the environment's own observations.
        spaces: what an algorithm knows of the spaces.
        reward_threshold: the return at which the environment counts as solved, where its spec names one.
        upcoming: `(rows [n], ahead) → seeds [n, ahead]`, which the next resets of these rows will be given, where the
            caller knows. Episodes are then begun ahead of time. No result depends on it.

    Raises:
        ParamsError: the environment is unknown or its spaces are not served, or `env.backend` does not offer it.
        EnvironmentFailed: its constructor raised.
    """

    def __init__(
        self,
        cfg: EnvConfig,
        rows: int,
        *,
        what: str = "training",
        crew: Crew | None = None,
        overlapped: bool = False,
    ) -> None:
        self._cfg, self._id, self._what, self.rows = cfg, cfg.id, what, rows
        first = make_env(cfg)
        self.observation_space, self.action_space = (first.observation_space, first.action_space)
        try:
            self.observations = ObservationSpace.of(self.observation_space)
            self.actions = ActionSpace.of(self.action_space)
        except EvopipeError:
            close_all([first])
            raise
        self.reward_threshold: float | None = first.spec.reward_threshold if first.spec else None
        self.num_actions = self.actions.size
        self.spaces = self.actions.spaces(self.observations)
        self.obs_size = self.observations.size
        self.upcoming: Callable[[Ints, int], Ints] | None = None

        self.obs: Floats = np.zeros((rows, self.obs_size), np.float32)
        self.mask: Bools = np.ones((rows, self.num_actions), np.bool_)
        self.masked = False
        self.episode_return = np.zeros(rows, np.float64)
        self.episode_length: Ints = np.zeros(rows, np.int64)
        self._all = np.arange(rows)
        self._all_legal: Bools = np.ones((rows, self.num_actions), np.bool_)
        self._all_legal.setflags(write=False)
        self._seed: Ints = np.full(rows, -1, np.int64)  # -1: never reset
        self._next_seed: Ints | None = None
        self._log = self.actions.empty(rows, _FIRST_LOG)  # actions of the running episodes
        self._sent: tuple[Ints | None, Actions] | None = None  # rows (None: all) and actions of the step that was begun
        self._longest = 0  # an upper bound of episode_length, cheaper to keep than its maximum
        self.workers = 0
        self._crew, self._overlapped, self._example = crew, overlapped, first
        self._remote = self._fork() if cfg.backend == "sync" else None
        # With workers it is chosen at the first reset: how dear a step is may be known by then.
        self._home: _Home | None = None if self._remote else self._choose()

    @property
    def row_space(self) -> gymnasium.Space[Any]:
        """The space of the pool's own observations, which are rows: the environment's where its are rows already."""
        if self.observations.plain:
            return self.observation_space
        return gymnasium.spaces.Box(-np.inf, np.inf, (self.obs_size,), np.float32)

    # ------------------------------------------------------------------------------------------ where they live

    def _fork(self) -> Remote | None:
        """Return workers that may come to hold the environments, where there is a crew and they are worth it."""
        try:
            return self._crew.fork(self._cfg, self.rows, self.spaces, self._overlapped) if self._crew else None
        except Unavailable as reason:
            self._stay_here(reason)
            return None

    def _choose(self) -> _Home:
        cfg, crew = self._cfg, self._crew
        if cfg.backend != "sync":
            close_all([self._example])
            threads = crew.count(self.rows, self._overlapped) if crew is not None else 1
            if cfg.backend == "torch":
                return TensorRows(cfg, self.rows)
            return Native(cfg, self.rows, self.spaces, max(1, threads), self._spares)
        count = crew.count(self.rows, self._overlapped, crew.step_cost(cfg)) if crew and self._remote else 0
        if crew and self._remote and count:
            shared = crew.auto and not self._overlapped  # this process has time for a share
            try:
                self._remote.open(count, self._example if shared else None)
            except Unavailable as reason:
                self._stay_here(reason)
                self._example = make_env(cfg)
            else:
                self.workers = count
                if not shared:
                    close_all([self._example])
                return self._remote
        if self._remote:
            self._remote.close()
        return make_rows(cfg, range(self.rows), made=[self._example])

    def _settled(self) -> _Home:
        if self._home is None:
            self._home = self._choose()
        return self._home

    def _stay_here(self, reason: Unavailable) -> None:
        """Workers were asked for and are not possible: where they were only a default, that is no news."""
        if self._crew and not self._crew.auto:
            raise ParamsError(
                f"runtime.env_workers: the {self._what} environment {self._id!r} cannot live in worker processes: "
                f"{reason}; set it to 0"
            ) from None

    def _spares(self, rows: Ints, ahead: int) -> Ints:
        """Seeds of coming episodes, none where the caller does not tell."""
        return np.empty((len(rows), 0), np.int64) if self.upcoming is None else self.upcoming(rows, ahead)

    # ------------------------------------------------------------------------------------------ episodes

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None:
        """Start a new episode in `rows` `[n]`, each from its own seed `[n]`.

        Raises:
            EnvironmentFailed: an environment raised, or its first observation or mask cannot be used.
        """
        home = self._settled()
        index, seed_of = np.asarray(rows, np.int64), np.asarray(seeds, np.int64)
        self._seed[index], self.episode_length[index], self.episode_return[index] = (seed_of, 0, 0.0)
        self._longest = int(self.episode_length.max())
        try:
            obs, mask = home.reset(index, seed_of)
        except Fault as fault:
            self._fail(fault)
        self.obs[index] = obs
        if mask is not None:
            self.masked = True
            self.mask[index] = mask
        if self.upcoming is not None and self.workers:
            if self._next_seed is None:
                self._next_seed = np.full(self.rows, -1, np.int64)
            self._next_seed[index] = self.upcoming(index, 1)[:, 0]

    def step(self, actions: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> Step:
        """Step `rows` `[n]` (all where None).

        Args:
            actions: indices `[n]`, or `[n, D]` where an action is several, counted from 0 whatever the space's start;
                where the space is continuous vectors `[n, A]` in [-1, 1], which are stretched to its bounds.
            rows: which.

        Raises:
            EnvironmentFailed: an environment raised, or returned something of a wrong type or shape.
        """
        self.send(actions, rows)
        return self.receive()

    def send(self, actions: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> None:
        """Begin a step, see `step`; `receive` ends it. In between the caller may do other work.

        Until `receive` returns, all that the pool shows (`obs`, `mask`, `episode_return`, `episode_length`, `state()`)
        stays as it was before the step, and nothing may be called that changes it but `receive` and `close`.

        Raises:
            UsageError: a step was begun and not received yet.
        """
        if self._sent is not None:
            raise UsageError("the pool's last step was not received: call receive() between two send()")
        index, action = None if rows is None else np.array(rows, np.int64), np.array(actions, self._log.dtype)
        home = self._settled()
        next_seeds = self._next_seed
        if next_seeds is not None and index is not None:
            next_seeds = next_seeds[index]
        home.send(index, action, next_seeds)
        self._sent = index, action

    def receive(self) -> Step:
        """End the step that `send` began and return what it gave.

        Raises:
            UsageError: no step was begun.
            EnvironmentFailed: an environment raised, or returned something of a wrong type or shape; everything the
                pool shows is as before the step.
        """
        if self._sent is None:
            raise UsageError("the pool has no step to receive: call send(actions) first")
        (index, action), self._sent = self._sent, None
        try:
            stepped = self._settled().receive(index, action)
        except Fault as fault:
            self._fail(fault)
        return self._record(self._all if index is None else index, action, *stepped)

    def _record(
        self,
        index: Ints,
        action: Actions,
        obs: Floats,
        reward: Floats,
        terminated: Bools,
        truncated: Bools,
        mask: Bools | None,
    ) -> Step:
        """Enter one step of the rows `index` into the running episodes."""
        bad = broken(self.actions, obs, reward, terminated, truncated, mask)
        if self._longest >= self._log.shape[1]:
            self._grow()
        self._longest += 1
        self._log[index, self.episode_length[index]] = action
        self.obs[index] = obs
        self.episode_length[index] += 1
        self.episode_return[index] += reward
        if mask is None:
            mask = self._all_legal[: len(index)]
        else:
            self.mask[index] = mask
        return Step(obs, reward, terminated, truncated, bad, mask)

    def _grow(self) -> None:
        self._longest = int(self.episode_length.max())
        if self._longest >= self._log.shape[1]:
            self._log = np.concatenate((self._log, np.zeros_like(self._log)), axis=1)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what rebuilds the pool.

        Returns:
            `seed` `[R]` of each running episode (-1: never reset), `length` `[R]`, `actions` `[sum(length), …]` (the
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
        log = self.actions.empty(self.rows, max(1, int(length.max(initial=0))))
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
        if (length < 0).any() or state["actions"].shape != (int(length.sum()), *self._log.shape[2:]):
            raise DataError(f"the saved {self._what} environments hold an action log that does not fit its lengths")

    def env(self, row: int) -> gymnasium.Env[Any, Any]:
        """Return one row's environment, for rules that look inside. Stepping or resetting it belongs to the pool.

        Raises:
            UsageError: the environments do not live in this process.
        """
        home = self._settled()
        if not isinstance(home, Rows):
            raise UsageError("the pool's environments do not live in this process: give it no crew, and backend sync")
        return home.env(row)

    def close(self) -> None:
        """Close every environment. One that fails to close cannot harm a finished run."""
        if self._home is not None:
            self._home.close()
            return
        close_all([self._example])
        if self._remote is not None:
            self._remote.close()

    def _fail(self, fault: Fault) -> NoReturn:
        row = fault.row
        where = f"row {row}, episode seed {self._seed[row]}, step {self.episode_length[row] + 1}"
        raise EnvironmentFailed(f"{self._what} environment {self._id!r} ({where}): {fault.text}") from fault
