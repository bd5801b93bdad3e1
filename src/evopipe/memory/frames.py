"""The images of a replay buffer, as bytes, each frame stored once.

Rows hold everything but images, and point to frames that are stored beside them. A transition brings its next frame.
Its own frame is usually, byte for byte, the next frame of the n-th or the first transition before it from the same
environment; if not, it is stored too. A frame is kept as long as a row points to it, then its place is reused. There is
room for two frames a row; on a CPU, memory is taken only for places that were ever used.

A byte b represents the float32 number b / 255.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from evopipe.core import pixels
from evopipe.core.graphs import upload
from evopipe.types import Image

NONE = -1


class Frames:
    """Storage of a replay buffer's images as bytes. Transitions that share a frame point to one copy of the frame.

    A frame holds all images of one observation. A row is a transition over n steps, with a frame before and a frame
    after it. A packed transition is a vector of `W` numbers: the observation, the next observation, then the rest.

    Args:
        images: the positions and shapes of the images in an observation.
        observations: the width of an observation.
        rows: `N`, the number of transitions for which all buffers together have room.
        steps: n, the number of steps of a transition.
        device: the device of the tensors.

    Attributes:
        size: `S`, the number of bytes of a frame. Each byte is one number of an observation.
        store: `[2 N, S]` uint8, the frames; on a CPU in memory that forked processes share.
        places: `[N, 2]` int64, for every row the indices in `store` of its frame before and of its frame after.
        used: the number of entries of `store` that were ever written. These are the first ones; the others are
            untouched.
    """

    def __init__(self, images: Sequence[Image], observations: int, rows: int, steps: int, device: torch.device) -> None:
        self.images, self._obs, self._rows, self._steps = tuple(images), observations, rows, steps
        self._device = device
        self.size = sum(image.size for image in images)
        self.store = _empty(2 * rows, self.size, device)
        self.places = torch.zeros(rows, 2, dtype=torch.int64, device=device)
        self._white = torch.full((), 255.0, device=device)  # on the device: dividing by a number would not be exact
        self._clear()

    def _clear(self) -> None:
        self.used = 0
        self._held = np.full((self._rows, 2), NONE)  # `places` on the host, NONE where a row is not filled
        self._count = np.zeros(2 * self._rows, np.int64)  # how many rows point to each place, once or twice each
        self._free = np.empty(0, np.int64)  # places below `used` that no row points to; the last one goes first
        self._watch(np.empty((0, self._steps), np.int64))

    def _watch(self, last: np.ndarray) -> None:
        """Take over where the last n next frames of each environment lie, `[sources, n]`, the oldest first."""
        self._last = last  # rings
        self._turn = np.zeros(len(last), np.int64)  # where in its ring an environment's next one goes
        self._seen = np.zeros((*last.shape, self.size), np.uint8)  # those frames

    def _columns(self, start: int) -> list[slice]:
        return [slice(start + image.start, start + image.start + image.size) for image in self.images]

    def _between(self, size: int) -> list[slice]:
        images = [*self._columns(0), *self._columns(self._obs)]
        ends, starts = [0, *(image.stop for image in images)], [*(image.start for image in images), size]
        return [slice(a, b) for a, b in zip(ends, starts, strict=True)]

    def without_images(self, rows: np.ndarray) -> np.ndarray:
        """Return n packed transitions `rows` `[n, W]` without the columns of their two frames, `[n, W - 2 S]`.

        A packed transition has W numbers, and each of its two frames has S.
        """
        return np.concatenate([rows[:, columns] for columns in self._between(rows.shape[1])], axis=1)

    def add(self, at: np.ndarray, rows: np.ndarray, source: np.ndarray, sources: int) -> None:
        """Store the frames of n packed transitions, which replace the frames of the rows `at`.

        A frame that is equal to a recent frame of the same environment is not stored a second time.

        Args:
            at: `[n]`, the indices of the rows to be replaced, counted over all buffers. No index occurs twice.
            rows: `[n, W]`, the packed transitions of W numbers each. They are sorted by environment, and those of one
                environment by time.
            source: `[n]`, the index of each transition's environment, ascending.
            sources: the number of environments.
        """
        own, following = self._read(rows, 0), self._read(rows, self._obs)
        if len(self._last) != sources:
            self._watch(np.full((sources, self._steps), NONE))
        rank = np.arange(len(at)) - np.searchsorted(source, source)  # how many of its environment come before
        known, chained = self._find(own, following, source, rank)
        own_is_new = (known == NONE) & (chained == NONE)
        next_is_new = np.ones(len(at), bool)
        later = np.flatnonzero(rank)
        next_is_new[later] = (following[later] != following[later - 1]).any(axis=1)
        np.add.at(self._count, known[known != NONE], 1)
        self._release(self._held[at])

        place = self._take(int(next_is_new.sum()) + int(own_is_new.sum()))
        held = np.empty((len(at), 2), np.int64)
        held[:, 1] = place[next_is_new.cumsum() - 1]
        held[:, 0] = np.where(known != NONE, known, held[chained, 1])
        held[own_is_new, 0] = place[int(next_is_new.sum()) :]
        np.add.at(self._count, held[:, 1], 1)
        np.add.at(self._count, held[known == NONE, 0], 1)
        self._held[at] = held
        self._note(source, rank, held[:, 1], following)
        fresh = upload(torch.from_numpy(np.concatenate((following[next_is_new], own[own_is_new]))), self._device)
        self.store[upload(torch.from_numpy(place), self._device)] = fresh
        self.places[upload(torch.from_numpy(at), self._device)] = upload(torch.from_numpy(held), self._device)

    def _find(
        self, own: np.ndarray, following: np.ndarray, source: np.ndarray, rank: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find rows' own frames: their place in `store` `[n]`, or the row that brings them as its next `[n]`."""
        known, chained = np.full(len(own), NONE), np.full(len(own), NONE)
        for back in sorted({1, self._steps}, reverse=True):
            missing = (known == NONE) & (chained == NONE)
            here = np.flatnonzero(missing & (rank >= back))
            here = here[(own[here] == following[here - back]).all(axis=1)]
            chained[here] = here - back
            earlier = np.flatnonzero(missing & (rank < back))
            ring = source[earlier], (self._turn[source[earlier]] + rank[earlier] - back) % self._steps
            same = (own[earlier] == self._seen[ring]).all(axis=1)
            known[earlier[same]] = self._last[ring][same]  # NONE where it was let go
        return known, chained

    def _note(self, source: np.ndarray, rank: np.ndarray, place: np.ndarray, frames: np.ndarray) -> None:
        ring = source, (self._turn[source] + rank) % self._steps
        self._last[ring], self._seen[ring] = place, frames  # where a ring goes round, NumPy lets the last one stay
        self._turn += np.bincount(source, minlength=len(self._last))

    def _read(self, rows: np.ndarray, start: int) -> np.ndarray:
        return pixels.nearest(np.concatenate([rows[:, columns] for columns in self._columns(start)], axis=1))

    def _release(self, held: np.ndarray) -> None:
        gone = held[held != NONE]
        np.subtract.at(self._count, gone, 1)
        gone = np.unique(gone)
        self._free = np.concatenate((self._free, gone[self._count[gone] == 0]))
        self._last[(self._last != NONE) & (self._count[self._last] == 0)] = NONE

    def _take(self, n: int) -> np.ndarray:
        """Find places for n frames: those that were let go last, then those never used."""
        kept = max(0, len(self._free) - n)
        again, self._free = self._free[kept:], self._free[:kept]
        never = np.arange(self.used, self.used + n - len(again))
        self.used += len(never)
        return np.concatenate((again, never))

    def join(self, bare: Tensor, index: Tensor) -> Tensor:
        """Return n packed transitions of W numbers, `[n, W]`, with the columns of their two frames put back.

        The bytes of the frames become numbers in [0, 1].

        Args:
            bare: `[n, W - 2 S]`, the transitions as `without_images` returned them. A frame has S numbers.
            index: `[n]`, the transitions' indices among the N rows of all buffers.
        """
        size = bare.shape[1] + 2 * self.size
        rows, at = bare.new_empty(len(bare), size), 0
        for columns in self._between(size):
            width = columns.stop - columns.start
            rows[:, columns] = bare[:, at : at + width]
            at += width
        places = self.places.index_select(0, index)
        for which, start in enumerate((0, self._obs)):
            frames, at = self.store.index_select(0, places[:, which]), 0
            for columns, image in zip(self._columns(start), self.images, strict=True):
                torch.div(frames[:, at : at + image.size], self._white, out=rows[:, columns])
                at += image.size
        return rows

    def state(self) -> dict[str, Tensor]:
        order = (self._turn[:, None] + np.arange(self._steps)) % self._steps  # the oldest first
        last = np.take_along_axis(self._last, order, axis=1)
        kept = {"held": self._held, "free": self._free, "last": last.reshape(-1)}
        return {
            "frames": self.store[: self.used].to("cpu", copy=True),
            **{f"frames.{name}": torch.from_numpy(array.copy()) for name, array in kept.items()},
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._clear()
        self.used = len(state["frames"])
        self.store[: self.used] = state["frames"].to(self._device)
        self._held, self._free, last = (state[f"frames.{name}"].numpy().copy() for name in ("held", "free", "last"))
        self._count += np.bincount(self._held[self._held != NONE], minlength=len(self._count))
        self.places.copy_(torch.from_numpy(np.maximum(self._held, 0)))
        self._watch(last.reshape(-1, self._steps))
        known = self._last != NONE
        self._seen[known] = state["frames"].numpy()[self._last[known]]


def _empty(rows: int, columns: int, device: torch.device) -> Tensor:
    """Bytes that are 0; on a CPU in memory that forked processes share, and that is taken where it is first written."""
    if device.type != "cpu":
        return torch.zeros(rows, columns, dtype=torch.uint8, device=device)
    return torch.frombuffer(mmap.mmap(-1, rows * columns), dtype=torch.uint8).view(rows, columns)
