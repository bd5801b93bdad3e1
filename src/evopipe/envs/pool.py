"""A pool of environments, in which every episode has its own seed and can be rebuilt by playing its actions again.

Gymnasium's vector environments are seeded once and reset themselves. In a pool the caller resets a row, with the seed
of that episode. An episode is therefore a function of its seed and its actions, whatever ran in the row before, and
there are no phantom rows that a buffer must leave out. The environments live in this process (`rows`), in worker
processes (`workers`), in envpool's threads (`envpool`) or in tensors (`tensors`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium
import numpy as np
import torch

from evopipe.envs import backends
from evopipe.envs.make import close, make_env, names_limit
from evopipe.envs.rows import Actions, Begun, Bools, Fault, Floats, Ints, Rows, RowStep, Upcoming
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamEnv, TeamSpace, read_spaces
from evopipe.envs.team_rows import TeamRows
from evopipe.envs.tensors import TensorRows
from evopipe.errors import DataError, EnvironmentFailed, ParamsError, UsageError
from evopipe.schema.env import EnvConfig

if TYPE_CHECKING:
    import numpy.typing as npt

    from evopipe.envs.workers import Workers

_FIRST_LOG = 256


class EnvPool:
    """A pool of `R` independent environments, one in each row of its arrays. After the end of an episode, the caller
    must reset the row with the next episode's seed.

    Args:
        cfg: the block `env` of `params.yaml`.
        rows: the number of environments, `R`.
        what: the pool's name in error messages.
        workers: worker processes that may step the environments; results do not depend on them.
        overlapped: whether the caller computes between `send` and `receive`, and needs a CPU for that.

    Attributes:
        obs: `[R, O]`, the current observation of every environment, O numbers each.
        mask: `[R, A]` bool, whether each of the A actions is legal; all True if the environment has no
            `info["action_mask"]`.
        masked: whether the environment has action masks; known after the first reset.
        episode_return: `[R]`, the undiscounted return of the running episode so far.
        episode_length: `[R]`, the steps of the running episode so far.
        actions, observations: the spaces, which convert the environment's own actions and observations.
        spaces: the widths and kinds of the spaces, as algorithms use them.
        team: the spaces of each agent, if there are several agents; else None. For a team, `actions`, `observations`
            and `spaces` describe what all agents have in common, and every array but `episode_length` has an axis K of
            agents after R.
        alive: `[R, K]` bool, for a team: the agents that act next. Other agents have the observation 0, and only their
            first action is legal.
        forced, is_forced: `[R, K, …]` and `[R, K]`, for a team: actions that the environment sets itself instead of the
            policy. Discrete and MultiDiscrete actions are not forced; their mask has one legal action instead.
        limit: the number of steps after which this pool truncates an episode (`env.step_limit`); None if the
            environment declares its own time limit.
        spec: the environment's spec in Gymnasium; None if it has none.
        reward_threshold: the return at which the environment counts as solved; None if its spec does not say.
        upcoming: None, or a function (rows `[n]`, k) → `[n, k]` that returns the seeds of the next k episodes of these
            rows. The caller may set it so that episodes can be begun ahead of time; results do not depend on it.

    Raises:
        ParamsError: the environment is unknown, its spaces are not supported, or `env.backend` does not offer it.
        EnvironmentFailed: the environment's constructor raised an exception.
    """

    def __init__(
        self,
        cfg: EnvConfig,
        rows: int,
        *,
        what: str = "training",
        workers: Workers | None = None,
        overlapped: bool = False,
    ) -> None:
        self._cfg, self._what, self.rows, self._backend = cfg, what, rows, backends.get(cfg)
        first = make_env(cfg)
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.team: TeamSpace | None = None
        try:
            if isinstance(first, TeamEnv):
                self.team = TeamSpace.of(first)
                self.observations, self.actions, self.spaces = self.team.observation, self.team.action, self.team.spaces
                if self.observations == self.team.observations[0]:  # of each agent
                    self.observation_space = self.observation_space[first.ids[0]]  # type: ignore[index]
                else:
                    self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.observations.size,))
                if not self._backend.teams:
                    raise ParamsError(f"env.backend: {cfg.backend} has no teams, and {cfg.id!r} is one; set it to sync")
            else:
                self.observations = ObservationSpace.of(self.observation_space)
                self.actions = ActionSpace.of(self.action_space)
                self.spaces = self.actions.spaces(self.observations)
        except ParamsError:
            close(first)
            raise
        self.spec = first.spec
        self.reward_threshold: float | None = first.spec.reward_threshold if first.spec else None
        self.limit = None if names_limit(first) else cfg.step_limit
        self.obs_size, self.num_actions = self.spaces.observations, self.spaces.actions
        self.upcoming: Upcoming = None

        lead = (rows,) if self.team is None else (rows, self.spaces.agents)
        self.obs: Floats = np.zeros((*lead, self.obs_size), np.float32)
        self.mask: Bools = np.ones((*lead, self.num_actions), np.bool_)
        self.masked = self.team is not None and self.team.masked
        self.alive: Bools = np.full(lead, self.team is None)
        self.forced = self.actions.empty(*lead)
        self.is_forced: Bools = np.zeros(lead, np.bool_)
        self._joined: Bools = np.zeros(lead, np.bool_)  # acts next and did not before
        self.episode_return = np.zeros(lead, np.float64)
        self.episode_length: Ints = np.zeros(rows, np.int64)
        self._all = np.arange(rows)
        self._seed: Ints = np.full(rows, -1, np.int64)  # -1: never reset
        self._log = self.actions.empty(rows, _FIRST_LOG, *lead[1:])  # actions of the running episodes
        self._sent: tuple[Ints, Actions] | None = None  # rows and actions of the step that was begun
        self._longest = 0  # an upper bound of episode_length, cheaper to keep than its maximum
        self._example = first
        self._home: backends.RowStepper | None = None
        self._rows = Rows if self.team is None else TeamRows
        self._forked = workers.fork(cfg, rows, self.spaces, overlapped) if workers else None
        if self._backend.tensors is not None:
            close(first)
            self._home = TensorRows(self._backend.tensors(cfg, rows, torch.device("cpu")))
        elif self._backend.rows is not None:
            close(first)
            threads = workers.count(rows, overlapped) if workers else 1
            self._home = self._backend.rows(cfg, rows, self.spaces, threads)
        elif self._forked is None:
            self._home = self._rows(cfg, range(rows), [first])

    @property
    def wrapped(self) -> bool:
        """Whether the environment has wrappers (`env.wrappers`), which may change its observations."""
        return bool(self._cfg.wrappers)

    @property
    def begins(self) -> Bools:
        """Whether each environment is at the beginning of an episode, `[R]` bool.

        For a team of K agents, the array is `[R, K]`: True for an agent that acts next and did not act in the step
        before.
        """
        return np.asarray(self.episode_length == 0, np.bool_) if self.team is None else self._joined

    @property
    def idle(self) -> Bools:
        """Whether each of the K agents of a team is idle in each of the R environments, `[R, K]`: the agent is absent,
        or the environment sets the agent's next action."""
        idle: Bools = ~self.alive | self.is_forced
        return idle

    @property
    def row_space(self) -> gymnasium.Space[Any]:
        """The Gymnasium space of the pool's flat observations. It is the environment's own space if that is flat
        already."""
        if self.observations.plain:
            return self.observation_space
        return gymnasium.spaces.Box(-np.inf, np.inf, (self.obs_size,), np.float32)

    @property
    def worker_count(self) -> int:
        """The number of worker processes that step the environments; it is final after the first reset."""
        return len(self._forked.helpers) if self._forked else 0

    def _settled(self) -> backends.RowStepper:
        """Where the environments live: chosen at the first reset, when it may be known how dear a step is."""
        if self._home is None:
            if self._forked is not None and self._forked.open(self._example):
                self._home = self._forked
            else:
                self._home = self._rows(self._cfg, range(self.rows), [self._example])
        return self._home

    def reopen(self, kwargs: Mapping[str, Any]) -> None:
        """Make all environments anew with other keyword arguments in the place of `env.kwargs`. The caller must reset
        every row before the next step.

        Raises:
            ParamsError: the environment does not take the arguments.
            EnvironmentFailed: an environment could not be made, or it has other spaces than before.
        """
        cfg = self._cfg.model_copy(update={"kwargs": dict(kwargs)})
        first, home = make_env(cfg), self._settled()
        if (read_spaces(first)[0], first.action_space) != (self.spaces, self._example.action_space):
            close(first)
            raise EnvironmentFailed(
                f"{self._what} environment {cfg.id!r} with {cfg.kwargs} has other spaces than before: a curriculum may "
                "change anything but the spaces"
            )
        if self._forked is not None and home is self._forked:
            self._forked.reopen(cfg, first)
        else:
            home.close()
            self._home = self._rows(cfg, range(self.rows), [first], np.array([self.masked]))
        self._cfg = cfg

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None:
        """Begin a new episode in the environments `rows` `[n]`, each from its own seed `[n]`.

        Raises:
            EnvironmentFailed: an environment raised an exception, or its first observation or mask cannot be used.
        """
        home = self._settled()
        index, seed_of = np.asarray(rows, np.int64), np.asarray(seeds, np.int64)
        self._seed[index], self.episode_length[index], self.episode_return[index] = (seed_of, 0, 0.0)
        self._longest = int(self.episode_length.max())
        try:
            begun = home.reset(index, seed_of, self.upcoming)
        except Fault as fault:
            self._fail(fault)
        self.obs[index] = begun.obs
        if begun.mask is not None:
            self.masked = True
            self.mask[index] = begun.mask
        if self.team is not None:
            self._muster(self.team, index, begun)

    def step(self, actions: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> RowStep:
        """Step the environments `rows` `[n]`, or all if None, and return the results.

        Args:
            actions: the actions in the algorithm's encoding. For a Discrete space they are indices from 0, `[n]`. For a
                MultiDiscrete or MultiBinary space of D parts they are such indices, `[n, D]`. For a Box of A numbers
                they are numbers in [-1, 1], `[n, A]`, which are scaled to the bounds of the Box. A team of K agents has
                `[n, K, …]`.
            rows: the environments to step.

        Raises:
            EnvironmentFailed: an environment raised an exception, or returned a value of a wrong type or shape.
        """
        self.send(actions, rows)
        return self.receive()

    def send(self, actions: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> None:
        """Start a step, which `receive` finishes. The caller may compute in between.

        The arguments are those of `step`. `actions` `[n, …]` are in the algorithm's encoding. `rows` `[n]` are the
        numbers of the environments to step; None for all.

        Until `receive` is called, `obs`, `mask`, `episode_return`, `episode_length` and `state()` do not change. The
        only methods that may be called are `receive` and `close`.

        Raises:
            UsageError: a step is running already.
        """
        if self._sent is not None:
            raise UsageError("the pool's last step was not received: call receive() between two send()")
        index, action = self._all if rows is None else np.array(rows, np.int64), np.array(actions, self._log.dtype)
        if self.team is not None:
            action = self.taken(action, index)
        self._settled().send(index, action)
        self._sent = index, action

    def taken(self, actions: npt.NDArray[Any], rows: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """Return the actions of a team of K agents as they are executed, `[n, K, …]`.

        If the environment prescribes an agent's action in its `info`, the result has that action. For other agents it
        has the policy's action, from `actions`. `rows` `[n]` are the environments of these actions; None for all.
        """
        if not self.is_forced.any():
            return actions
        index = self._all if rows is None else np.asarray(rows, np.int64)
        forced = self.is_forced[index].reshape(*self.is_forced[index].shape, *(1,) * (actions.ndim - 2))
        return np.where(forced, self.forced[index], actions)

    def receive(self) -> RowStep:
        """Finish the step that `send` started, and return its results.

        Raises:
            UsageError: no step is running.
            EnvironmentFailed: an environment raised an exception, or returned a value of a wrong type or shape. The
                pool's arrays are then as before the step.
        """
        if self._sent is None:
            raise UsageError("the pool has no step to receive: call send(actions) first")
        (rows, action), self._sent = self._sent, None
        try:
            step = self._settled().receive(rows, action)
        except Fault as fault:
            self._fail(fault)
        if self.limit is not None and self._longest + 1 >= self.limit:
            step = self._cut(step, rows, self.episode_length[rows] + 1 >= self.limit)
        if self._longest >= self._log.shape[1]:
            self._longest = int(self.episode_length.max())
            if self._longest >= self._log.shape[1]:
                self._log = np.concatenate((self._log, np.zeros_like(self._log)), axis=1)
        self._longest += 1
        self._log[rows, self.episode_length[rows]] = action
        self.obs[rows] = step.obs
        self.episode_length[rows] += 1
        self.episode_return[rows] += step.reward
        if self.team is not None:
            self._muster(self.team, rows, step)
        elif self.masked:
            self.mask[rows] = step.mask
        return step

    def _cut(self, step: RowStep, rows: Ints, cut: Bools) -> RowStep:
        """Return a step with the episodes truncated that are to be cut `[n]`: of a team those of all who acted."""
        if self.team is None:
            return replace(step, truncated=step.truncated | cut)
        assert step.alive is not None
        cut = cut[:, None]
        alive, acted = step.alive & ~cut, self.alive[rows]
        truncated = step.truncated | (acted & cut)
        obs = np.where((alive | acted)[:, :, None], step.obs, np.float32(0.0))
        mask = np.where((cut & ~acted & step.alive)[:, :, None], self.team.first, step.mask)
        return replace(step, obs=obs, truncated=truncated, mask=mask, alive=alive)

    def _muster(self, team: TeamSpace, rows: Ints, shown: Begun | RowStep) -> None:
        """Keep who acts next in these rows, and which actions the environment sets itself."""
        alive = np.ones_like(self.alive[rows]) if shown.alive is None else shown.alive
        self._joined[rows] = alive & ~(self.alive[rows] & (self.episode_length[rows] > 0)[:, None])
        self.alive[rows] = alive
        self.obs[rows] = np.where(alive[:, :, None], shown.obs, 0.0)
        self.mask[rows] = team.legal(alive, shown.mask if self.masked else None)
        if shown.forced is not None:
            self.is_forced[rows] = ~np.isnan(shown.forced).all(axis=2)
            self.forced[rows] = np.nan_to_num(shown.forced)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state from which `restore` rebuilds the pool with its running episodes.

        The state describes the running episode of each of R environments. `seed` `[R]` is its seed (-1 before the first
        reset), `length` `[R]` its number of steps, `return` `[R]` its return so far, and `obs` `[R, O]` its current
        observation of O numbers. `actions` `[sum(length), …]` are its actions so far: first all of row 0, then all of
        row 1, and so on.
        """
        taken = self._log[np.arange(self._log.shape[1])[None] < self.episode_length[:, None]]
        seed, length = self._seed.copy(), self.episode_length.copy()
        obs, reward = self.obs.copy(), self.episode_return.copy()
        return {"seed": seed, "length": length, "actions": taken, "obs": obs, "return": reward}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> Bools:
        """Rebuild the pool from what the method `state` returned: play the actions of each running episode again.

        Returns:
            `[R]` bool, True for rows whose episode is now another than before, because the environment is not
            deterministic. The caller must reset these rows.

        Raises:
            DataError: the state belongs to another pool.
            EnvironmentFailed: an environment raised an exception.
        """
        seed, length = np.asarray(state["seed"], np.int64), np.asarray(state["length"], np.int64)
        self._check_state(seed, length, state)
        log = self.actions.empty(self.rows, max(1, int(length.max(initial=0))), *self.alive.shape[1:])
        log[np.arange(log.shape[1])[None] < length[:, None]] = state["actions"]
        begun = np.flatnonzero(seed >= 0)
        self._seed[:], self.episode_length[:], self.episode_return[:] = -1, 0, 0.0
        self.obs[:], self.mask[:], self._longest = 0.0, True, 0
        self.alive[:], self.is_forced[:] = self.team is None, False
        self.reset(begun, seed[begun])
        early: Bools = np.zeros(self.rows, np.bool_)
        for t in range(int(length.max(initial=0))):
            rows = np.flatnonzero((length > t) & ~early)
            if not rows.size:
                break
            step = self.step(log[rows, t], rows)
            early[rows] = step.over & (length[rows] > t + 1)
        seen, saved = (
            np.column_stack((obs.reshape(self.rows, -1), returned.reshape(self.rows, -1)))
            for obs, returned in ((self.obs, self.episode_return), (state["obs"], state["return"]))
        )
        same = (seen == saved) | (np.isnan(seen) & np.isnan(saved))
        return np.asarray(early | ~same.all(axis=1), np.bool_)

    def _check_state(self, seed: Ints, length: Ints, state: Mapping[str, npt.NDArray[Any]]) -> None:
        if not (seed.shape == length.shape == (self.rows,) and state["obs"].shape == self.obs.shape):
            raise DataError(
                f"the saved {self._what} environments are {seed.size} rows with observations {state['obs'].shape}; "
                f"expected {self.rows} rows with {self.obs.shape}"
            )
        if (length < 0).any() or state["actions"].shape != (int(length.sum()), *self._log.shape[2:]):
            raise DataError(f"the saved {self._what} environments hold an action log that does not fit its lengths")

    def env(self, row: int) -> gymnasium.Env[Any, Any]:
        """Return the environment of one row, to read its attributes. Only the pool may step or reset it.

        Raises:
            UsageError: the environments are not objects of this process.
        """
        home = self._settled()
        if not isinstance(home, Rows | TeamRows):
            raise UsageError("the pool's environments do not live in this process: give it no workers and backend sync")
        return home.envs[row]

    def close(self) -> None:
        """Close every environment."""
        if self._home is None:
            close(self._example)
        for held in (self._home, self._forked):
            if held is not None:
                held.close()

    def _fail(self, fault: Fault) -> NoReturn:
        row = fault.row
        where = f"row {row}, episode seed {self._seed[row]}, step {self.episode_length[row] + 1}"
        raise EnvironmentFailed(f"{self._what} environment {self._cfg.id!r} ({where}): {fault.text}") from fault
