"""Observations as rows: whatever an environment shows becomes one row of float32 numbers, here and nowhere else.

| space | columns |
|---|---|
| Box | its numbers as they are, row by row |
| Box that is an image | channels first, bounded values scaled to [0, 1] |
| Discrete, MultiDiscrete | one-hot: a column for each value |
| MultiBinary | 0 and 1 |
| Dict, Tuple, also nested | their parts, one after another in the space's order |

A Box is an image where it has three dimensions and is of bytes or bools, or has 1, 3 or 4 channels. Its channels are
the first dimension or the last, whichever is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from evopipe.errors import ParamsError
from evopipe.types import Image

if TYPE_CHECKING:
    import numpy.typing as npt

LONGEST = 1 << 20
"""Most numbers in a row: a Discrete space of millions of states is no one-hot input."""

_SERVED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them are"
_COLOURS = (1, 3, 4)

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Leaf:
    """One array of an observation, and how it becomes columns.

    Attributes:
        path: keys and indices from the observation to it; empty where it is the observation.
        shape: of the environment's own array, `()` for a number.
        counts: how many values each number of a discrete space has; empty for other spaces.
        firsts: the least value of each.
        channels: for an image, the dimension of its channels, 0 or 2.
        low: the value that becomes 0 in an image.
        high: the value that becomes 1.
    """

    path: Path
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()
    firsts: tuple[int, ...] = ()
    channels: int | None = None
    low: float = 0.0
    high: float = 1.0

    @cached_property
    def size(self) -> int:
        """How many columns."""
        return sum(self.counts) if self.counts else math.prod(self.shape)

    @property
    def name(self) -> str:
        """What to call it in a sentence: `observation['map'][0]`."""
        return "observation" + "".join(f"[{key!r}]" for key in self.path)

    def image(self, start: int) -> Image:
        """Describe the columns of an image that begin at `start`."""
        height, width = self.shape[1:] if self.channels == 0 else self.shape[:2]
        return Image(start, self.shape[self.channels or 0], height, width)

    def find(self, obs: Any) -> npt.NDArray[Any]:
        """Return its array in an observation, or in a batch of them whose arrays have one dimension more.

        Raises:
            ValueError: it is not there, or not an array of numbers.
        """
        try:
            for key in self.path:
                obs = obs[key]
            array = np.asarray(obs.detach().cpu() if hasattr(obs, "detach") else obs)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"an {self.name} that is missing or no array ({type(error).__name__})") from error
        if array.dtype.kind not in ("biu" if self.counts else "biuf"):
            wanted = "whole numbers" if self.counts else "numbers"
            raise ValueError(f"an {self.name} of dtype {array.dtype}, its space has {wanted}")
        return array

    def columns(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """`[n, *shape]` → `[n, size]`.

        Raises:
            ValueError: a number of a discrete space is outside it.
        """
        if self.counts:
            return self._one_hot(values.reshape(len(values), len(self.counts)))
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            x: npt.NDArray[np.float32] = values.astype(np.float32)
        if self.channels is not None:
            if (self.low, self.high) != (0.0, 1.0):
                x = (x - np.float32(self.low)) / np.float32(self.high - self.low)
            x = np.moveaxis(x, 1 + self.channels, 1)
        return x.reshape(len(x), self.size)

    def _one_hot(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        index = values.astype(np.int64) - np.array(self.firsts)
        outside = (index < 0) | (index >= np.array(self.counts))
        if outside.any():
            raise ValueError(f"an {self.name} with the value {values[outside][0]}, which is not in its space")
        columns = index + np.concatenate(([0], np.cumsum(self.counts)[:-1])).astype(np.int64)
        x = np.zeros((len(values), self.size), np.float32)
        x[np.arange(len(values))[:, None], columns] = 1.0
        return x


@dataclass(frozen=True)
class ObservationSpace:
    """An environment's observation space, and the way from its observations to rows.

    Attributes:
        leaves: the arrays of an observation, in the order of their columns.
    """

    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, space: object) -> ObservationSpace:
        """Read a Gymnasium space.

        Raises:
            ParamsError: it holds something that cannot be a row, nothing, or too much.
        """
        found = cls(tuple(_leaves(space, (), space)))
        if not 0 < found.size <= LONGEST:
            raise ParamsError(
                f"env.id: observation space {brief(space)} is not served: it is {found.size} numbers as a row, "
                f"1 to {LONGEST} can be"
            )
        return found

    @classmethod
    def vector(cls, size: int) -> ObservationSpace:
        """Return the space of plain vectors."""
        return cls((Leaf((), (size,)),))

    @cached_property
    def size(self) -> int:
        """`O`, length of a row."""
        return sum(leaf.size for leaf in self.leaves)

    @cached_property
    def plain(self) -> bool:
        """Whether an observation is its row already: a vector."""
        return self == ObservationSpace.vector(self.size)

    @cached_property
    def images(self) -> tuple[Image, ...]:
        """Which columns are images."""
        return tuple(leaf.image(start) for start, leaf in self._placed() if leaf.channels is not None)

    @cached_property
    def one_hot(self) -> tuple[tuple[int, int], ...]:
        """Which columns are one-hot: the first of them and the end, of each stretch."""
        return tuple((start, start + leaf.size) for start, leaf in self._placed() if leaf.counts)

    def row(self, obs: Any) -> npt.NDArray[np.float32]:
        """Flatten one observation: `[O]`.

        Raises:
            ValueError: it does not fit the space; the text goes on from "returned".
        """
        rows, single = self.read(obs)
        if not single:
            raise ValueError("a batch of observations, its space says one")
        row: npt.NDArray[np.float32] = rows[0]
        return row

    def read(self, obs: Any) -> tuple[npt.NDArray[np.float32], bool]:
        """Flatten one observation, or a batch whose every array has one dimension more, NumPy or torch.

        Returns:
            `[n, O]`, and whether it was one observation.

        Raises:
            ValueError: it does not fit the space; the text goes on from "returned".
        """
        arrays = [leaf.find(obs) for leaf in self.leaves]
        single = arrays[0].ndim == len(self.leaves[0].shape)
        n = 1 if single else len(arrays[0])
        parts = []
        for leaf, array in zip(self.leaves, arrays, strict=True):
            if array.shape != (leaf.shape if single else (n, *leaf.shape)):
                raise ValueError(f"an {leaf.name} of shape {array.shape}, its space says {leaf.shape}")
            parts.append(leaf.columns(array[None] if single else array))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), single

    def _placed(self) -> Iterator[tuple[int, Leaf]]:
        """Every leaf with its first column."""
        start = 0
        for leaf in self.leaves:
            yield start, leaf
            start += leaf.size

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, part of an exported policy's description."""
        if self.plain:
            return {"observations": self.size}
        return {"observations": self.size, "observation": [asdict(leaf) for leaf in self.leaves]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ObservationSpace:
        """Build from what `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        if "observation" not in data:
            return cls.vector(int(data["observations"]))
        listed = ("path", "shape", "counts", "firsts")
        leaves = [{**leaf, **{name: tuple(leaf[name]) for name in listed}} for leaf in data["observation"]]
        space = cls(tuple(Leaf(**leaf) for leaf in leaves))
        if space.size != data["observations"]:
            raise ValueError(f"observations of {data['observations']} numbers are described as {space.size}")
        return space


def _leaves(space: object, path: Path, whole: object) -> Iterator[Leaf]:
    """Walk a space."""
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from _leaves(part, (*path, key), whole)
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        counts, firsts = (tuple(int(n) for n in each.reshape(-1)) for each in (space.nvec, space.start))
        yield Leaf(path, tuple(space.nvec.shape), counts, firsts)
    elif isinstance(space, spaces.MultiBinary):
        yield Leaf(path, tuple(space.shape))
    elif isinstance(space, spaces.Box) and space.dtype.kind in "biuf":
        yield _box(space, path)
    else:
        raise ParamsError(f"env.id: observation space {brief(whole)} is not served: {_SERVED}")


def _box(space: Any, path: Path) -> Leaf:
    """A Box: an image where it looks like one."""
    shape = tuple(int(n) for n in space.shape)
    if len(shape) != 3 or 0 in shape:
        return Leaf(path, shape)
    channels = 0 if shape[0] < shape[2] else 2
    if space.dtype.kind != "b" and space.dtype != np.uint8 and shape[channels] not in _COLOURS:
        return Leaf(path, shape)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    scaled = math.isfinite(low) and math.isfinite(high) and low < high and high - low < 1e30
    return Leaf(path, shape, (), (), channels, *((low, high) if scaled else (0.0, 1.0)))


def brief(space: object) -> str:
    """Name a space in at most 200 characters."""
    text = " ".join(repr(space).split())
    return text if len(text) <= 200 else text[:197] + "..."
