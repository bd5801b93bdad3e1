"""Environments of envpool: C++ builds that step in threads of this process, outside Python's lock.

envpool fixes its seeds at construction, and its environments reset themselves. In a pool of evopipe the caller gives
every episode its own seed, and no row resets by itself. An environment of envpool therefore serves for one episode:
each batch holds environments for many coming episodes, seeded one by one, and only those that a row is playing are
stepped. Constructing one costs a few microseconds; its first reset does the work.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np

from evopipe.envs.make import refuse
from evopipe.envs.rows import Actions, Begun, Fault, Ints, RowStep, Upcoming
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.errors import EnvironmentFailed, ParamsError, did_you_mean
from evopipe.schema.env import EnvConfig
from evopipe.types import Spaces

AHEAD = 8  # episodes of each row that a batch holds, where the caller tells their seeds
_ROWS_A_THREAD = 32  # fewer, and waking a thread costs more than it saves
_RESERVED = ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "thread_affinity_offset", "env_type")


class EnvpoolRows:
    """The environments of one pool, made by the package envpool.

    Args:
        cfg: the block `env` of `params.yaml`.
        rows: the number of environments.
        spaces: the spaces of the same environment in Gymnasium, with which envpool's must agree.
        threads: the most threads that step environments.

    Raises:
        ParamsError: envpool is not installed, or does not offer this environment, these arguments or these spaces.
    """

    def __init__(self, cfg: EnvConfig, rows: int, spaces: Spaces, threads: int) -> None:
        self._cfg, self._threads = cfg, threads
        self._batch: list[Any] = [None] * rows  # of each row
        self._place = np.zeros(rows, np.int32)  # its environment there
        self._spares: dict[int, list[tuple[Any, int]]] = {}  # environments by seed, that no row has used
        self._all: Ints = np.arange(rows)
        self._groups: list[tuple[Any, Ints]] | None = None  # all rows by batch; None: to be found anew
        self._sent: list[tuple[Any, Ints]] = []
        self._observations, self._actions = self._check(spaces)

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin an episode in each of the environments `rows` `[n]`, from its own seed `[n]`; return the first
        observations.

        Envpool takes a seed only at construction, so each episode has an environment of its own. `upcoming` is None or
        a function (rows `[n]`, k) that returns the seeds `[n, k]` of the next k episodes of these rows. If it is given,
        environments for later episodes may be constructed at the same time.
        """
        if any(not self._spares.get(seed) for seed in seeds.tolist()):
            self._restock(seeds, upcoming)
        for row, seed in zip(rows.tolist(), seeds.tolist(), strict=True):
            if not self._spares.get(seed):  # one seed twice
                self._restock(np.array([seed]), upcoming)
            self._batch[row], self._place[row] = self._spares[seed].pop()
        self._groups = None
        observations = np.empty((len(rows), self._observations.size), np.float32)
        for batch, where in self._by_batch(rows):
            places = self._place[rows[where]]
            obs, info = batch.reset(places)
            observations[where] = self._flat(obs)[_order(info, places)]
        bad = ~np.isfinite(observations).all(axis=1)
        if bad.any():
            raise Fault(int(rows[bad.argmax()]), "reset() returned an observation that is not finite")
        return Begun(observations, None)

    def send(self, rows: Ints, actions: Actions) -> None:
        """Start a step of the environments `rows` `[n]` in envpool's threads, which `receive` finishes.

        `actions` are indices from 0, `[n]`, or `[n, D]` for an action of D parts; for a Box of A numbers, `[n, A]` in
        [-1, 1].
        """
        if np.array_equal(rows, self._all):
            self._groups = self._sent = self._groups or self._by_batch(rows)
        else:
            self._sent = self._by_batch(rows)
        places, own = self._place[rows], self._actions.own(actions)
        chosen = own if self._actions.continuous else own.astype(np.int32)
        for batch, where in self._sent:
            batch.send(chosen[where], places[where])

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        """Finish the step that `send` started with the same arguments, and return its results."""
        places, n = self._place[rows], len(rows)
        obs, reward = np.empty((n, self._observations.size), np.float32), np.empty(n, np.float32)
        terminated, truncated = np.empty(n, np.bool_), np.empty(n, np.bool_)
        with np.errstate(over="ignore", invalid="ignore"):
            for batch, where in self._sent:
                seen, paid, ended, cut, info = batch.recv()
                order = _order(info, places[where])
                obs[where], reward[where] = self._flat(seen)[order], paid[order]
                terminated[where], truncated[where] = ended[order], cut[order]
        return RowStep.of(self._actions, obs, reward, terminated, truncated, None)

    def close(self) -> None:
        """Wait until a running step has finished, then release all environments."""
        for batch, _ in self._sent:
            with contextlib.suppress(Exception):
                batch.recv()
        self._batch, self._spares, self._groups, self._sent = [None] * len(self._batch), {}, None, []

    def _by_batch(self, rows: Ints) -> list[tuple[Any, Ints]]:
        """Group rows by the batch that they play in: the batch, and positions in `rows`."""
        found: dict[int, list[int]] = {}
        for i, row in enumerate(rows.tolist()):
            found.setdefault(id(self._batch[row]), []).append(i)
        return [(self._batch[int(rows[where[0]])], np.array(where, np.int64)) for where in found.values()]

    def _restock(self, seeds: Ints, upcoming: Upcoming) -> None:
        """Construct a new batch: the environments that are asked for, and those of every row's coming episodes.

        Older spares are dropped, so that rows play in few batches at a time: the newest, and those of long episodes.
        """
        wanted = seeds if upcoming is None else np.concatenate((seeds, upcoming(self._all, AHEAD).reshape(-1)))
        batch = self._make(wanted)
        self._spares = {}
        for place, seed in enumerate(wanted.tolist()):
            self._spares.setdefault(seed, []).append((batch, place))

    def _make(self, seeds: Ints) -> Any:
        """Construct environments with these seeds `[n]`."""
        cfg = self._cfg
        threads = max(1, min(self._threads, len(self._all) // _ROWS_A_THREAD, len(seeds) // _ROWS_A_THREAD))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # bounds that float32 rounds
                batch = _envpool().make(
                    cfg.id, env_type="gymnasium", num_envs=len(seeds), num_threads=threads, seed=seeds.tolist(),
                    **cfg.kwargs,
                )  # fmt: skip
                _ = batch.observation_space, batch.action_space  # made when first asked for, and kept
        except TypeError as error:
            raise ParamsError(f"env.kwargs: envpool's {cfg.id!r} does not take {cfg.kwargs}: {error}") from error
        except Exception as error:
            raise EnvironmentFailed(
                f"envpool's {cfg.id!r} could not be constructed: {type(error).__name__}: {error}; check env.kwargs"
            ) from error
        return batch

    def _check(self, theirs: Spaces) -> tuple[ObservationSpace, ActionSpace]:
        """Refuse what envpool does not have, or has with other spaces than Gymnasium; return its spaces."""
        cfg = self._cfg
        refuse(cfg, _RESERVED)
        known = _envpool().list_all_envs()
        if cfg.id not in known:
            raise ParamsError(
                f"env.backend: envpool has no {cfg.id!r}{did_you_mean(cfg.id, known)}; "
                "`envpool.list_all_envs()` lists what it has, `sync` serves every Gymnasium environment"
            )
        batch = self._make(np.zeros(1, np.int64))
        try:
            found = ObservationSpace.of(batch.observation_space), ActionSpace.of(batch.action_space)
        except ParamsError as error:
            text = str(error).removeprefix("env.id: ")
            raise ParamsError(f"env.backend: envpool's {cfg.id!r}: {text}; set it to sync") from error
        spaces = found[1].spaces(found[0])
        if spaces != theirs:
            raise ParamsError(
                f"env.backend: envpool's {cfg.id!r} has observations of length {spaces.observations} and "
                f"{spaces.actions} {spaces.kind} actions, Gymnasium's {theirs.observations} and "
                f"{theirs.actions} {theirs.kind} ones; set it to sync"
            )
        return found

    def _flat(self, obs: Any) -> Any:
        """Rows `[n, O]` of a batch of observations."""
        if self._observations.plain:
            return np.asarray(obs).astype(np.float32, copy=False).reshape(len(obs), -1)
        return self._observations.read(obs)[0]


def rows(cfg: EnvConfig, rows: int, spaces: Spaces, threads: int) -> EnvpoolRows:
    """Return an `EnvpoolRows`, the environments of a pool, made by the package envpool.

    Args:
        cfg: the block `env` of `params.yaml`.
        rows: the number of environments.
        spaces: the spaces of the same environment in Gymnasium, with which envpool's must agree.
        threads: the most threads that step environments.
    """
    return EnvpoolRows(cfg, rows, spaces, threads)


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        text = 'env.backend: envpool is not installed: `pip install "evopipe[envpool]"`, or set it to sync'
        raise ParamsError(text) from error
    return envpool


def _order(info: Any, places: Any) -> Any:
    """Where in envpool's answer each of `places` stands: environments answer in the order in which they are done."""
    came = info["env_id"]
    if len(came) == len(places) and (came == places).all():
        return slice(None)
    order = np.empty(int(max(came.max(), places.max())) + 1, np.int64)
    order[came] = np.arange(len(came))
    return order[places]
