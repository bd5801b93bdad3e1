"""Transitions over n steps, assembled while environments are stepped.

A transition begins at the oldest step in its environment's window. It ends after n steps or with the episode: at a
terminal state without a bootstrap, at a truncation with that of the true last observation. Rewards are kept separate,
so that each member discounts them by its own γ (Sutton & Barto, 2018, § 7.1).

In a team, each agent has its own window within the environment's. Its transitions end where it terminates or is
truncated, whether or not it returns later. If an agent is truncated while others continue, only the rows of that step
hold its last observation. These rows are written for every start in the window, as transitions of the truncated agents;
when the window is complete, its rows hold no transition of those agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evopipe.memory.replay import RowLayout
from evopipe.types import CUT

if TYPE_CHECKING:
    from collections.abc import Mapping

_GOES_ON, _TERMINATED, _TRUNCATED = 0, 1, 2


class NStep:
    """Assembler of n-step transitions: it holds the last n steps of each of `R` environments.

    Args:
        layout: the layout of the transitions. Its attribute `steps` is n.
        rows: `R`, the number of environments.
    """

    def __init__(self, layout: RowLayout, rows: int) -> None:
        n, self._layout = layout.steps, layout
        self._obs = np.zeros((n, rows, layout.obs), np.float32)  # slot t mod n holds step t of the episode
        self._action = np.zeros((n, rows, layout.action), np.float32)
        self._reward = np.zeros((n, rows, layout.each), np.float32)
        if layout.agents:
            self._alive = np.ones((n, rows, layout.agents), np.bool_)  # who took each step
            self._ends = np.zeros((n, rows, layout.agents), np.int8)  # how each step ended: _GOES_ON, and so on
        self._legal = np.ones((rows, layout.actions if layout.masked else 0), np.bool_)  # after the last good step
        self._legal_at = np.ones((n, rows, layout.actions if layout.legal else 0), np.bool_)  # before each step
        self._first = np.zeros(rows, np.int64)  # the oldest step in the window, counted from the episode's first
        self._next = np.zeros(rows, np.int64)  # the step that comes next

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_obs: np.ndarray,
        next_legal: np.ndarray | None,
        broken: np.ndarray,
        legal: np.ndarray | None = None,
        alive: np.ndarray | None = None,
        over: np.ndarray | None = None,
        next_alive: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add one step of all R environments, and return the n-step transitions that it completes.

        The result is packed transitions `[R, n, size]` and a mask `[R, n]` bool. Each environment has room for n
        transitions, and the mask says which of them are valid. Usually one is; more are where an episode ended.

        Every argument is `[R, …]`, one row per environment. For a team, an axis K of its K agents follows the axis R.

        Args:
            obs, action, reward, terminated, truncated, next_obs: the step: the observation before it, the action, and
                the results.
            next_legal, legal: whether each action is legal after and before the step; None if all are.
            broken: `[R]`, unusable steps, such as those with a number that is not finite. A broken step is left out:
                unfinished transitions of that environment end before it and bootstrap from the last good observation.
            alive: for a team, `[R, K]`, which agents took the step.
            over: `[R]`, whether the episode ended; by default, where the step terminated or was truncated.
            next_alive: for a team, `[R, K]`, each agent's status after the step: `GONE` (takes no part in the next
                step), `ACTS` (acts next) or `CUT` (was truncated).
        """
        n, index, layout = self._layout.steps, np.arange(len(obs)), self._layout
        obs, next_obs, action, reward = (x.reshape(len(obs), -1) for x in (obs, next_obs, action, reward))
        good = ~broken & np.isfinite(obs).all(axis=1)
        place = self._next % n
        self._obs[place[good], index[good]] = obs[good]
        self._action[place[good], index[good]] = action[good]
        self._reward[place[good], index[good]] = reward[good]
        if layout.legal:
            self._legal_at[place[good], index[good]] = True if legal is None else legal[good].reshape(good.sum(), -1)
        if layout.agents:
            assert alive is not None
            assert next_alive is not None
            self._alive[place[good], index[good]] = alive[good]
            ends = np.where(terminated, _TERMINATED, np.where(next_alive == CUT, _TRUNCATED, _GOES_ON))
            self._ends[place[good], index[good]] = ends[good]
            next_alive = np.where(good[:, None], next_alive, alive)  # ACTS where one did
        self._next += good
        over = (terminated | truncated if over is None else over) | ~good
        until = np.where(over, self._next, np.maximum(self._next - n + 1, self._first))  # starts below it are complete

        start = self._first[:, None] + np.arange(n)  # [R, n]
        keep = start < until[:, None]
        length = np.maximum(self._next[:, None] - start, 0)  # steps from each start to now
        if not good.all():  # a row's last good observation is where its broken step began
            next_obs = np.where(good[:, None], next_obs, obs)
            keep &= np.isfinite(next_obs).all(axis=1)[:, None]
        if self._layout.masked:
            if next_legal is not None:
                self._legal[good] = next_legal[good].reshape(good.sum(), -1)
            next_legal = self._legal
        each, slot = np.broadcast_to(index[:, None], start.shape), start % n
        later = start[..., None] + np.arange(n)  # [R, n, n], the steps from each start on
        within = (later < self._next[:, None, None])[..., None]
        acted, flat = None, keep.size
        if layout.agents:
            within, length, ended, keep = self._lives(slot, each, within, later, length, keep, good)
            acted = self._alive[slot, each].reshape(flat, -1)
        else:
            ended = np.repeat(terminated & good, n, axis=0)
        rewards = np.where(within, self._reward[later % n, each[..., None]], 0.0)  # [R, n, n, K]
        rows = self._layout.pack(
            self._obs[slot, each].reshape(flat, -1),
            self._action[slot, each].reshape(flat, -1),
            rewards.reshape(flat, -1),
            ended,
            np.repeat(next_obs, n, axis=0),
            None if next_legal is None else np.repeat(next_legal, n, axis=0),
            length,
            self._legal_at[slot, each].reshape(flat, -1) if layout.legal else None,
            acted,
            None if next_alive is None else np.repeat(next_alive, n, axis=0),
        )
        self._first = np.where(over, 0, until)
        self._next = np.where(over, 0, self._next)
        return rows.reshape(*keep.shape, -1), keep

    def _lives(
        self, slot: np.ndarray, each: np.ndarray, within: np.ndarray, later: np.ndarray, length: np.ndarray,
        complete: np.ndarray, good: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """Return of every start of a window which steps are each agent's own `[R, n, n, K]`, how many its transition
        has, 0 where it has none in this row `[R, n, K]`, whether it terminated in them `[R · n, K]`, and which starts
        have a row `[R, n]`: the complete ones, and all from which an agent lived until this step truncated it."""
        n = len(self._ends)
        ends = np.where(within, self._ends[later % n, each[..., None]], _GOES_ON)  # [R, n, n, K]
        before = np.cumsum(ends != _GOES_ON, axis=2) - (ends != _GOES_ON)
        own = within & (before == 0) & self._alive[slot, each][:, :, None]
        how, count = np.where(own, ends, _GOES_ON).max(axis=2), own.sum(axis=2)  # [R, n, K]
        now = (how == _TRUNCATED) & (count == length[..., None]) & good[:, None, None]
        learns = np.where(complete[..., None], (how != _TRUNCATED) | now, now) & (count > 0)
        return own, np.where(learns, count, 0), (how == _TERMINATED).reshape(each.size, -1), learns.any(axis=2)

    def forget(self, rows: np.ndarray) -> None:
        """Clear the stored steps of the environments `rows`, whose episodes were abandoned."""
        self._first[rows] = self._next[rows] = 0

    def part(self, rows: np.ndarray) -> NStep:
        """Return a copy of the stored steps of the environments `rows`, as an `NStep` with only these environments."""
        found = NStep(self._layout, len(rows))
        arrays = self._arrays()
        found.restore({name: array[_at(array, rows)] for name, array in arrays.items()})
        return found

    def put(self, rows: np.ndarray, part: NStep) -> None:
        """Overwrite the stored steps of the environments `rows` with those in `part`, an `NStep` that the method `part`
        returned."""
        for name, array in part._arrays().items():
            own = self._arrays()[name]
            own[_at(own, rows)] = array

    def state(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in self._arrays().items():
            array[:] = state[name]

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ["obs", "action", "reward", "legal", "first", "next", *(["legal_at"] if self._layout.legal else [])]
        names += ["alive", "ends"] if self._layout.agents else []
        return {name: getattr(self, f"_{name}") for name in names}


def _at(array: np.ndarray, rows: np.ndarray) -> tuple[Any, ...]:
    """Return the index of environments in an array of windows, `[n, R, numbers]`, or in one without steps."""
    return (slice(None), rows) if array.ndim == 3 else (rows,)
