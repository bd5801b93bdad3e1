"""Hindsight experience replay: transitions stored again with goals that their episode has achieved.

An episode that missed its goal has reached other states. With one of these as the desired goal, its transitions show
how a goal is reached. When an episode ends, each of its transitions is stored k more times, each time with another goal
and with the reward and the end that follow from it (Andrychowicz et al., 2017, https://arxiv.org/abs/1707.01495,
algorithm 1). The rows are whole: whatever draws from the replay buffer, priorities and kernels included, treats them as
all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
import torch

from evopipe import rng
from evopipe.memory.replay import RowLayout
from evopipe.rng import Purpose

if TYPE_CHECKING:
    from collections.abc import Mapping

Strategy: TypeAlias = Literal["future", "episode", "final"]
_FIRST = 64  # steps of an episode for which there is room at first


class Relabelled(Protocol):
    """The protocol of an environment's goals, see `envs.goals.Goals`."""

    achieved: slice
    desired: slice

    def outcome(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rewards of n steps `[n]`, and whether each ends its episode, `[n]`, from goals `[n, G]`."""


def chosen(steps: int, u: np.ndarray, strategy: Strategy) -> np.ndarray:
    """Return for each of T steps the k steps whose achieved goals replace the desired one, `[T, k]` int64.

    Args:
        steps: T, the number of steps in the episode.
        u: `[T, k]`, uniform random numbers in [0, 1).
        strategy: which steps are possible: `future`, this one and later ones; `episode`, all; `final`, the last.
    """
    at = np.arange(steps)[:, None]
    if strategy == "final":
        return np.full(u.shape, steps - 1)
    first = at if strategy == "future" else np.zeros_like(at)
    found: np.ndarray = first + (u * (steps - first)).astype(np.int64)
    return found


class Hindsight:
    """Recorder of running episodes, which returns their transitions with other goals when they end.

    Args:
        layout: the layout of a transition, which spans one step.
        goals: where goals are in an observation, and what reaching them is worth.
        keys: `[P]` int64, the members' random keys.
        envs: E, the number of environments of each member. Those of one member are adjacent.
        count: k, the number of other goals for each transition.
        strategy: the steps of an episode that goals are taken from, see `chosen`.
    """

    def __init__(
        self, layout: RowLayout, goals: Relabelled, keys: np.ndarray, envs: int, count: int, strategy: Strategy
    ) -> None:
        self._layout, self._goals, self._count, self._strategy = layout, goals, count, strategy
        self._keys, self._envs = torch.from_numpy(np.asarray(keys, np.int64)), envs
        rows = len(keys) * envs
        self._rows = np.zeros((rows, _FIRST, layout.size), np.float32)  # transitions of the running episodes
        self._length = np.zeros(rows, np.int64)

    def add(
        self, at: np.ndarray, rows: np.ndarray, keep: np.ndarray, over: np.ndarray, begun: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Record one step of n environments. Return the m new transitions of the episodes that it ended, `[m, size]`,
        and the environment of each, `[m]`.

        The new transitions are in the order of environments, then of steps. Their number is k times the number of
        recorded steps of these episodes.

        Args:
            at: `[n]`, the environments' numbers among all.
            rows: `[n, size]`, the packed transitions.
            keep: `[n]`, False for steps that are left out.
            over: `[n]`, whether the episode ended with this step.
            begun: `[n]`, the number of the environment's episode, on which random draws depend.
        """
        if self._length.max() >= self._rows.shape[1]:
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)), axis=1)
        good = keep & np.isfinite(rows).all(axis=1)
        self._rows[at[good], self._length[at[good]]] = rows[good]
        self._length[at[good]] += 1
        ended = over & (self._length[at] > 0)
        made = [
            self._episode(env, number) for env, number in zip(at[ended].tolist(), begun[ended].tolist(), strict=True)
        ]
        envs = np.repeat(at[ended], self._count * self._length[at[ended]])
        self._length[at[over]] = 0
        if not made:
            return np.zeros((0, self._layout.size), np.float32), envs
        return self._settled(np.concatenate(made)), envs

    def _episode(self, env: int, number: int) -> np.ndarray:
        """Return an episode's transitions with other goals, `[T · k, size]`, but with the old rewards and ends."""
        steps, k, o = int(self._length[env]), self._count, self._layout.obs
        member, when = env // self._envs, torch.tensor([number * self._envs + env % self._envs])
        u = rng.uniform(self._keys[member : member + 1], Purpose.HINDSIGHT, when, steps * k).numpy().reshape(steps, k)
        episode = self._rows[env, :steps]
        goals = episode[:, o : 2 * o][:, self._goals.achieved][chosen(steps, u, self._strategy).reshape(-1)]
        rows: np.ndarray = episode.repeat(k, axis=0)
        rows[:, :o][:, self._goals.desired] = goals
        rows[:, o : 2 * o][:, self._goals.desired] = goals
        return rows

    def _settled(self, rows: np.ndarray) -> np.ndarray:
        """Put the rewards and ends that follow from their goals into transitions `[m, size]`."""
        after = rows[:, self._layout.obs : 2 * self._layout.obs]
        reward, terminated = self._goals.outcome(after[:, self._goals.achieved], after[:, self._goals.desired])
        return self._layout.with_outcome(rows, reward, terminated)

    def forget(self, envs: np.ndarray) -> None:
        """Discard the running episodes of these environments, which were abandoned."""
        self._length[envs] = 0

    def state(self) -> dict[str, np.ndarray]:
        """Return the running episodes: the number of steps of each, `[R]`, and their transitions one after another."""
        held = np.arange(self._rows.shape[1]) < self._length[:, None]
        return {"length": self._length.copy(), "rows": self._rows[held]}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._length[:] = state["length"]
        if (longest := int(self._length.max(initial=0))) > self._rows.shape[1]:
            self._rows = np.zeros((len(self._length), 2 * longest, self._layout.size), np.float32)
        self._rows[np.arange(self._rows.shape[1]) < self._length[:, None]] = state["rows"]
