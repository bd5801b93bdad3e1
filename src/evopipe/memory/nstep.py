"""Transitions over n steps, put together as an environment is stepped.

A transition begins at the oldest step of its environment's window and ends after n steps, or where the episode ends: at
a terminal state without a bootstrap, at a truncation with the true last observation's. Rewards are kept apart, so that
each member discounts them by its own γ (Sutton & Barto, 2018, § 7.1).

Of a team each agent has a window of its own within the environment's: one that is gone takes no further step, and what
it began ends where it did. One that was cut while others go on is left out: its last observation is not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evopipe.memory.replay import RowLayout

if TYPE_CHECKING:
    from collections.abc import Mapping


class NStep:
    """The windows of `R` environments, of `layout.steps` steps."""

    def __init__(self, layout: RowLayout, rows: int) -> None:
        n, self._layout = layout.steps, layout
        self._obs = np.zeros((n, rows, layout.obs), np.float32)  # slot t mod n holds step t of the episode
        self._action = np.zeros((n, rows, layout.action), np.float32)
        self._reward = np.zeros((n, rows, layout.each), np.float32)
        if layout.agents:
            self._alive = np.ones((n, rows, layout.agents), np.bool_)  # who took each step
            self._ended = np.zeros((2, rows, layout.agents), np.bool_)  # who terminated, who was cut, in this episode
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
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take one step of all environments, `[R, …]`; return rows `[R, n, size]`, and which are transitions `[R, n]`.

        A broken step is left out. What came before it in the window ends there, with the last good observation's
        bootstrap. Of a team, whose numbers have an axis `K`, alive `[R, K]` says who took the step, and over `[R]`
        where the episode ended.
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
            self._alive[place[good], index[good]] = alive[good]
            cut = self._ended[1].copy()
            self._ended[:, good] |= np.stack((terminated, truncated))[:, good]
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
        rewards = np.where(within, self._reward[later % n, each[..., None]], 0.0)  # [R, n, n, K]
        ended, acted, flat = terminated & good if not layout.agents else self._ended[0], None, keep.size
        if layout.agents:
            length = (within & self._alive[later % n, each[..., None]]).sum(axis=2)
            acted = (self._alive[slot, each] & ~cut[:, None]).reshape(flat, -1)
        rows = self._layout.pack(
            self._obs[slot, each].reshape(flat, -1),
            self._action[slot, each].reshape(flat, -1),
            rewards.reshape(flat, -1),
            np.repeat(ended, n, axis=0),
            np.repeat(next_obs, n, axis=0),
            None if next_legal is None else np.repeat(next_legal, n, axis=0),
            length,
            self._legal_at[slot, each].reshape(flat, -1) if layout.legal else None,
            acted,
        )
        self._first = np.where(over, 0, until)
        self._next = np.where(over, 0, self._next)
        if layout.agents:
            self._ended[:, over] = False
        return rows.reshape(*keep.shape, -1), keep

    def forget(self, rows: np.ndarray) -> None:
        """Begin anew in these rows: their episodes were given up."""
        self._first[rows] = self._next[rows] = 0
        if self._layout.agents:
            self._ended[:, rows] = False

    def state(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in self._arrays().items():
            array[:] = state[name]

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ["obs", "action", "reward", "legal", "first", "next", *(["legal_at"] if self._layout.legal else [])]
        names += ["alive", "ended"] if self._layout.agents else []
        return {name: getattr(self, f"_{name}") for name in names}
