"""Replay memory of packed rows.

A transition is one float32 row: observation, next observation, action, reward, terminated, and the legal next actions
where the environment masks any. Rows packed in one tensor sample 5 to 28 times faster than five fancy-indexed ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field

from evopipe.core.graphs import upload
from evopipe.types import Batch, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence


class ReplayConfig(Schema):
    """Uniform experience replay (Lin, 1992)."""

    capacity: int = Field(100_000, ge=1, le=10**9, description="transitions kept (per member where sharing is `own`)")
    sharing: Literal["shared", "own"] = Field(
        "shared", description="`shared`: one memory that all members fill and sample; `own`: one memory a member"
    )


@dataclass(frozen=True)
class RowLayout:
    """Where a transition's parts lie in a packed row."""

    obs: int
    actions: int
    masked: bool

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return 2 * self.obs + 3 + (self.actions if self.masked else 0)

    def pack(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        next_obs: np.ndarray,
        next_legal: np.ndarray | None = None,
    ) -> np.ndarray:
        """Pack transitions `[n, …]` into rows `[n, size]` float32."""
        rows = np.empty((len(obs), self.size), np.float32)
        o = self.obs
        rows[:, :o], rows[:, o : 2 * o] = obs, next_obs
        rows[:, 2 * o], rows[:, 2 * o + 1], rows[:, 2 * o + 2] = action, reward, terminated
        if self.masked:
            rows[:, 2 * o + 3 :] = 1.0 if next_legal is None else next_legal
        return rows

    def unpack(self, rows: torch.Tensor, weight: torch.Tensor) -> Batch:
        """Split rows `[P, B, size]` into a batch of views; weight is `[P, B]`."""
        o = self.obs
        return Batch(
            obs=rows[..., :o],
            action=rows[..., 2 * o].long(),
            reward=rows[..., 2 * o + 1],
            terminated=rows[..., 2 * o + 2],
            next_obs=rows[..., o : 2 * o],
            next_legal=rows[..., 2 * o + 3 :] > 0.5 if self.masked else None,
            weight=weight,
        )


class Replay:
    """`M` ring memories of packed rows: one that all members share, or one a member.

    Args:
        layout: what a row holds.
        memories: `M`, 1 for shared.
        capacity: rows of each memory.
        device: where rows live.

    Attributes:
        rows: `[M, capacity, size]`.
        position: `[M]` int64 on the host, where the next row goes.
        size: `[M]` int64 on the host, rows filled.
    """

    def __init__(self, layout: RowLayout, memories: int, capacity: int, device: torch.device) -> None:
        self.layout, self.memories, self.capacity, self.device = layout, memories, capacity, device
        self.rows = torch.zeros(memories, capacity, layout.size, device=device)
        self.position = np.zeros(memories, np.int64)
        self.size = np.zeros(memories, np.int64)
        self._flat = self.rows.view(-1, layout.size)

    def rebind(self) -> None:
        """Take note that `rows` lies elsewhere now."""
        self._flat = self.rows.view(-1, self.layout.size)

    def add(self, rows: np.ndarray, keep: np.ndarray) -> None:
        """Append rows; the oldest go where a memory is full.

        Args:
            rows: `[M, n, size]`.
            keep: `[M, n]` bool: rows to leave out (non-finite ones) are False.
        """
        kept = keep & np.isfinite(rows).all(axis=2)
        if kept.shape[1] > self.capacity:  # only the last ones would survive
            rank = kept.cumsum(axis=1)
            kept &= rank > rank[:, -1:] - self.capacity
        if kept.all():
            offset = np.broadcast_to(np.arange(kept.shape[1]), kept.shape)
            chosen = rows.reshape(-1, self.layout.size)
        else:
            offset = (kept.cumsum(axis=1) - 1)[kept]
            chosen = rows[kept]
        memory = np.broadcast_to(np.arange(self.memories)[:, None], kept.shape)[kept]
        place = memory * self.capacity + (self.position[memory] + offset.reshape(-1)) % self.capacity
        self._flat[upload(torch.from_numpy(place), self.device)] = upload(torch.from_numpy(chosen), self.device)
        count = kept.sum(axis=1)
        self.position = (self.position + count) % self.capacity
        self.size = np.minimum(self.size + count, self.capacity)

    def sample(self, slots: Sequence[int], u: torch.Tensor) -> torch.Tensor:
        """Draw rows uniformly, with replacement.

        Args:
            slots: the members `[P]` that sample.
            u: `[P, U, B]` float64 in [0, 1).

        Returns:
            `[P, U, B, size]`.
        """
        size = upload(torch.from_numpy(self.filled(slots)), self.device)
        return self.draw(self.first(slots), size, u)

    def filled(self, slots: Sequence[int]) -> np.ndarray:
        """Return on the host how many rows the memory of each of these members holds, `[P]` int64."""
        filled: np.ndarray = self.size[self._memory(slots)]
        return filled

    def first(self, slots: Sequence[int]) -> torch.Tensor:
        """Return where the memory of each of these members begins, `[P]` int64, on the device."""
        return upload(torch.from_numpy(self._memory(slots) * self.capacity), self.device)

    def _memory(self, slots: Sequence[int]) -> np.ndarray:
        return np.zeros(len(slots), np.int64) if self.memories == 1 else np.asarray(slots)

    def draw(self, first: torch.Tensor, size: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """`sample` from what is on the device already, so that a graph can hold it: the size is no constant in it.

        Args:
            first: `[P]`, see `first`.
            size: `[P]`, see `filled`.
            u: `[P, U, B]` float64 in [0, 1).

        Returns:
            `[P, U, B, size]`.
        """
        index = (u * size[:, None, None]).long() + first[:, None, None]
        return self._flat.index_select(0, index.view(-1)).view(*u.shape, self.layout.size)

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of everything: rows of every memory as far as any is filled, positions, sizes."""
        filled = int(self.size.max(initial=0))
        return {
            "rows": self.rows[:, :filled].to("cpu", copy=True),
            "position": torch.from_numpy(self.position.copy()),
            "size": torch.from_numpy(self.size.copy()),
        }

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what `state` returned."""
        self.rows[:, : state["rows"].shape[1]] = state["rows"].to(self.device)
        self.position = state["position"].numpy().copy()
        self.size = state["size"].numpy().copy()
