"""Conversion of spaces: observations to rows of float32 numbers, an algorithm's actions to the environment's own.

| observation space | columns |
|---|---|
| Box | its numbers as they are, row by row |
| Box that is an image | channels first, bounded values scaled to [0, 1] |
| Discrete, MultiDiscrete | one-hot: a column for each value |
| MultiBinary | 0 and 1 |
| Dict, Tuple, also nested | their parts, one after another in the space's order |

A Box is an image if it has three dimensions and consists of bytes or bools, or has 1, 3 or 4 channels. Its channels are
the first dimension or the last, whichever is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from evopipe.envs import mixed
from evopipe.errors import ParamsError
from evopipe.types import Image, Spaces

if TYPE_CHECKING:
    import numpy.typing as npt

LONGEST = 1 << 20  # numbers in a row at most: a Discrete space of millions of states is no one-hot input
_OBSERVED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them are"
_ACTED = "only Discrete, MultiDiscrete, MultiBinary and bounded Box actions are, and Dicts and Tuples of them"
_COLOURS = (1, 3, 4)

_Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Leaf:
    """One of the arrays that an observation (perhaps a nested dictionary or tuple) consists of. The array becomes
    columns of a flat row, a vector with all numbers of the observation.

    Attributes:
        path: the keys and indices that lead from the observation to the array; empty if the array is the observation.
        shape: the shape of the environment's array; `()` for a number.
        counts: for a discrete space, the number of values of each entry; empty for other spaces.
        firsts: for a discrete space, the smallest value of each entry.
        channels: for an image, the axis of its channels, 0 or 2; else None.
        low, high: for an image, the pixel values that are scaled to 0 and 1.
    """

    path: _Path
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()
    firsts: tuple[int, ...] = ()
    channels: int | None = None
    low: float = 0.0
    high: float = 1.0

    @cached_property
    def size(self) -> int:
        """The number of columns that the array becomes."""
        return sum(self.counts) if self.counts else math.prod(self.shape)

    @property
    def name(self) -> str:
        """The array's name in messages, such as `observation['map'][0]`."""
        return "observation" + "".join(f"[{key!r}]" for key in self.path)

    def image(self, start: int) -> Image:
        """Return the position and shape of this image in a flat row. Its columns begin at `start`."""
        height, width = self.shape[1:] if self.channels == 0 else self.shape[:2]
        return Image(start, self.shape[self.channels or 0], height, width)

    def find(self, obs: Any) -> npt.NDArray[Any]:
        """Return this array from an observation, or from a batch of observations.

        Raises:
            ValueError: the array is missing, or does not hold numbers.
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
        """Convert this array of n observations, `[n, *shape]`, to columns of n flat rows, `[n, size]` float32.

        Raises:
            ValueError: a number of a discrete space is outside the space.
        """
        if self.counts:
            return self._one_hot(values.reshape(len(values), len(self.counts)).astype(np.int64) - np.array(self.firsts))
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            x: npt.NDArray[np.float32] = values.astype(np.float32)
        if self.channels is not None:
            if (self.low, self.high) != (0.0, 1.0):
                x = (x - np.float32(self.low)) / np.float32(self.high - self.low)
            x = np.moveaxis(x, 1 + self.channels, 1)
        return x.reshape(len(x), self.size)

    def _one_hot(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        outside = (index < 0) | (index >= np.array(self.counts))
        if outside.any():
            value = (index + np.array(self.firsts))[outside][0]
            raise ValueError(f"an {self.name} with the value {value}, which is not in its space")
        x = np.zeros((len(index), self.size), np.float32)
        x[np.arange(len(index))[:, None], index + _starts(self.counts)] = 1.0
        return x


@dataclass(frozen=True)
class ObservationSpace:
    """An environment's observation space, which converts observations to flat rows of float32 numbers. `leaves` are the
    arrays of an observation, in the order of their columns in a row."""

    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, space: object) -> ObservationSpace:
        """Return the `ObservationSpace` of a Gymnasium observation space.

        Raises:
            ParamsError: the space has an unsupported part, no numbers, or too many numbers.
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
        """Return the observation space of plain vectors of `size` numbers."""
        return cls((Leaf((), (size,)),))

    @cached_property
    def size(self) -> int:
        """The length `O` of a flat row."""
        return sum(leaf.size for leaf in self.leaves)

    @cached_property
    def plain(self) -> bool:
        """Whether observations are flat rows already, because the space is one of plain vectors."""
        return self == ObservationSpace.vector(self.size)

    @property
    def images(self) -> tuple[Image, ...]:
        """The positions and shapes of all images in a flat row."""
        return tuple(leaf.image(start) for start, leaf in self._placed() if leaf.channels is not None)

    @property
    def one_hot(self) -> tuple[tuple[int, int], ...]:
        """The ranges (first, end) of columns that hold one-hot encodings, without the column `end`."""
        return tuple((start, start + leaf.size) for start, leaf in self._placed() if leaf.counts)

    def _placed(self) -> Iterator[tuple[int, Leaf]]:
        """Every leaf with its first column."""
        return zip(_starts([leaf.size for leaf in self.leaves]).tolist(), self.leaves, strict=True)

    def row(self, obs: Any) -> npt.NDArray[np.float32]:
        """Flatten one observation to a row of all its O numbers, `[O]` float32.

        Raises:
            ValueError: the observation does not fit the space. The error's text continues a sentence
                such as "The environment returned".
        """
        rows, single = self.read(obs)
        if not single:
            raise ValueError("a batch of observations, its space says one")
        row: npt.NDArray[np.float32] = rows[0]
        return row

    def read(self, obs: Any) -> tuple[npt.NDArray[np.float32], bool]:
        """Flatten an observation, or a batch of observations, of NumPy arrays or torch tensors. In a batch every array
        has a first axis `n`.

        Returns:
            The rows of O numbers each, `[n, O]` float32, and whether `obs` was a single observation; then n is 1.

        Raises:
            ValueError: an observation does not fit the space. The error's text continues a sentence
                such as "The environment returned".
        """
        arrays = [leaf.find(obs) for leaf in self.leaves]
        single = arrays[0].ndim == len(self.leaves[0].shape)
        batch = () if single else arrays[0].shape[:1]
        parts = []
        for leaf, array in zip(self.leaves, arrays, strict=True):
            if array.shape != (*batch, *leaf.shape):
                raise ValueError(f"an {leaf.name} of shape {array.shape}, its space says {leaf.shape}")
            parts.append(leaf.columns(array[None] if single else array))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), single

    def to_json(self) -> dict[str, Any]:
        """Return the space as JSON data for an exported policy's description; `from_json` reads these data."""
        if self.plain:
            return {"observations": self.size}
        return {"observations": self.size, "observation": [asdict(leaf) for leaf in self.leaves]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ObservationSpace:
        """Build the space from JSON data that `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: the data does not have that form.
        """
        if "observation" not in data:
            return cls.vector(int(data["observations"]))
        listed = ("path", "shape", "counts", "firsts")
        leaves = [{**leaf, **{name: tuple(leaf[name]) for name in listed}} for leaf in data["observation"]]
        space = cls(tuple(Leaf(**leaf) for leaf in leaves))
        if space.size != data["observations"]:
            raise ValueError(f"observations of {data['observations']} numbers are described as {space.size}")
        for leaf in space.leaves:
            numbers = math.prod(leaf.shape) if leaf.counts else 0
            is_image = leaf.channels is None or (len(leaf.shape) == 3 and leaf.low < leaf.high)
            if not len(leaf.counts) == len(leaf.firsts) == numbers or not is_image:
                raise ValueError(f"an {leaf.name} of the shape {leaf.shape} is described by what does not fit it")
        return space


NO_MASK = (
    "for actions that are numbers (Box), of which none can be ruled out: leave it out, or make them Discrete, "
    "MultiDiscrete or MultiBinary"
)


@dataclass(frozen=True, eq=False)
class ActionSpace:
    """An environment's action space, which converts actions between the algorithm's encoding and the environment's own.

    Attributes:
        kind: the kind of the space: `discrete`, `multidiscrete`, `multibinary`, `continuous` or `mixed`.
        shape: the shape of the environment's own action.
        choices: the number of values of each entry of an action; empty if actions are continuous.
        starts: the smallest value of each entry; empty if actions are continuous.
        bounds: the lowest and the highest value of each of the `A` numbers of a Box, `[A]` each; None for other spaces.
        parts: the parts of a mixed space, a Dict or Tuple; empty for other spaces. Its `choices` and `starts` are those
            of all its parts.
    """

    kind: str
    shape: tuple[int, ...]
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    bounds: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None
    parts: tuple[mixed.ActionPart, ...] = ()

    @classmethod
    def of_parts(cls, parts: tuple[mixed.ActionPart, ...]) -> ActionSpace:
        """Return the `ActionSpace` of a Dict or Tuple with these parts."""
        choices, starts = (
            tuple(x for part in parts for x in getattr(part.space, name)) for name in ("choices", "starts")
        )
        return cls("mixed", (), choices, starts, None, parts)

    @classmethod
    def of(cls, space: object) -> ActionSpace:
        """Return the `ActionSpace` of a Gymnasium action space.

        Raises:
            ParamsError: the space is not supported.
        """
        spaces = gymnasium.spaces
        if isinstance(space, spaces.Discrete):
            return cls("discrete", (), (int(space.n),), (int(space.start),))
        if isinstance(space, spaces.Dict | spaces.Tuple):
            return cls.of_parts(mixed.parts_of(space, cls.of))
        if isinstance(space, spaces.MultiBinary) and all(space.shape):
            bits = math.prod(space.shape)
            return cls("multibinary", tuple(space.shape), (2,) * bits, (0,) * bits)
        if isinstance(space, spaces.MultiDiscrete) and all(space.shape):
            return cls("multidiscrete", tuple(space.shape), *_counted(space))
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not all(space.shape):
            raise ParamsError(f"env.id: action space {brief(space)} is not served: {_ACTED}")
        if not space.is_bounded():
            raise ParamsError(
                f"env.id: action space {brief(space)} is unbounded; give it bounds in the environment's own "
                "action_space, or wrap it: gymnasium.wrappers.TransformAction(env, lambda action: action, Box(-1, 1, "
                f"{tuple(space.shape)})), with bounds that suit it"
            )
        low, high = (bound.astype(float).reshape(-1) for bound in (space.low, space.high))
        return cls("continuous", tuple(space.shape), bounds=(low, high))

    @cached_property
    def size(self) -> int:
        """The width `A` of masks and logits. It counts the values of a Discrete space, the values of all parts of a
        MultiDiscrete space together, the bits of a MultiBinary space, or the numbers of a Box. For a mixed space it
        counts all of its parts."""
        if self.kind == "multibinary":
            return len(self.choices)
        return sum(self.choices) + self.numbers

    @cached_property
    def numbers(self) -> int:
        """The count `C` of real numbers in an action: those of a Box, or of all Boxes of a mixed space."""
        return len(self.bounds[0]) if self.bounds is not None else sum(part.space.numbers for part in self.parts)

    @property
    def continuous(self) -> bool:
        return self.bounds is not None

    @property
    def start(self) -> int:
        """The smallest action of a Discrete space; 0 for other spaces."""
        return self.starts[0] if self.kind == "discrete" else 0

    def spaces(self, observations: ObservationSpace) -> Spaces:
        images, one_hot = observations.images, observations.one_hot
        kinds = self.kind, self.choices, one_hot
        return Spaces(observations.size, self.size, self.continuous, images, *kinds, numbers=self.numbers)

    def empty(self, *shape: int) -> npt.NDArray[Any]:
        """Return an array of zeros for actions in the algorithm's encoding, with the leading axes `shape`.

        For a Discrete space, an action is one int64 index. For a MultiDiscrete or MultiBinary space, it is one int64
        index for each part. For a Box, it is `A` float32 numbers. For a mixed space it is float32 too: the indices of D
        choices, then C numbers.
        """
        if self.parts:
            return np.zeros((*shape, len(self.choices) + self.numbers), np.float32)
        if self.continuous:
            return np.zeros((*shape, self.size), np.float32)
        return np.zeros(shape if self.kind == "discrete" else (*shape, len(self.choices)), np.int64)

    def each(self, actions: npt.NDArray[Any]) -> Any:
        """Convert n actions from the algorithm's encoding to the environment's own, as `own`; return a sequence of what
        n environments take."""
        if self.parts:
            return mixed.each(self.parts, actions)
        own = self.own(actions)
        return own.tolist() if self.kind == "discrete" else own

    def own(self, actions: npt.NDArray[Any]) -> Any:
        """Convert n actions from the algorithm's encoding to the environment's own, `[n, …]`.

        The encoding is int64 indices: `[n]`, or `[n, D]` for D choices or bits. For a Box of A numbers it is float32,
        `[n, A]`, clipped to [-1, 1] and scaled to the bounds. A NaN, from a member that diverged, counts as 0, the
        middle. Mixed actions of D choices and C numbers are float32, `[n, D + C]`; they become dicts or tuples of such
        arrays.
        """
        if self.parts:
            return mixed.nested(self.parts, mixed.own(self.parts, actions))
        if self.bounds is None:
            if self.kind == "discrete" and not self.starts[0]:
                return actions.reshape(-1, *self.shape)
            indices: npt.NDArray[np.int64] = actions.reshape(len(actions), len(self.choices)) + np.array(self.starts)
            return indices.reshape(-1, *self.shape)
        low, high = self.bounds
        number = actions.astype(np.float64)
        missing = np.isnan(number)
        if missing.any():
            number[missing] = 0.0
        share = (np.minimum(np.maximum(number, -1.0), 1.0) + 1.0) / 2.0
        return np.minimum(np.maximum(low + share * (high - low), low), high).astype(np.float32).reshape(-1, *self.shape)

    def relative(self, own: Any) -> npt.NDArray[Any]:
        """Convert n of the environment's own actions, `[n, …]`, to the algorithm's encoding; this is the inverse of the
        method `own`.

        The encoding is int64 indices: `[n]`, or `[n, D]` for D choices or bits. For a Box of A numbers it is float32,
        `[n, A]` in [-1, 1]. For a mixed space, `own` is a dict or tuple of arrays, and the encoding `[n, D + C]`.
        """
        if self.parts:
            return mixed.relative(self.parts, [np.asarray(mixed.find(own, part)) for part in self.parts])
        flat: npt.NDArray[Any] = own.reshape(len(own), math.prod(self.shape))
        if self.bounds is None:
            indices: npt.NDArray[np.int64] = flat.astype(np.int64) - np.array(self.starts)
            return indices[:, 0] if self.kind == "discrete" else indices
        low, high = self.bounds
        share = (flat.astype(np.float64) - low) / np.where(high > low, high - low, 1.0)
        return np.clip(2.0 * share - 1.0, -1.0, 1.0).astype(np.float32)

    def sample(self, legal: npt.NDArray[np.bool_], rng: np.random.Generator) -> Any:
        """Draw one action in the algorithm's encoding, uniformly among those of the A actions for which `legal` `[A]`
        is True. `rng` is the NumPy generator."""
        if self.parts:
            return mixed.sample(self.parts, legal, rng)
        if self.continuous:
            return rng.uniform(-1.0, 1.0, self.size).astype(np.float32)
        if self.kind == "multibinary":
            return rng.integers(2, size=self.size) * legal
        if self.kind == "multidiscrete":
            parts = np.split(legal, _starts(self.choices)[1:])
            return np.array([rng.choice(np.flatnonzero(part)) for part in parts])
        able = np.flatnonzero(legal)
        return int(able[rng.integers(len(able))])

    def flat_mask(self, mask: Any) -> Any:
        """Return an action mask as one array `[…, A]`, with an entry for each of A actions. Gymnasium's mask for a
        MultiDiscrete space, a tuple of arrays, is joined, and so are the masks of a mixed space's parts; any other mask
        is returned unchanged.

        Raises:
            ValueError: the tuple does not fit the choices, or actions are continuous. The error's text
                continues a sentence such as "The environment returned".
        """
        if self.parts:
            return mixed.flat_mask(self.parts, mask)
        if self.continuous:
            raise ValueError(f"an action_mask {NO_MASK}")
        if self.kind != "multidiscrete" or not isinstance(mask, tuple):
            return mask
        parts = [np.asarray(part) for part in _flat(mask)]
        widths = [part.shape[-1] if part.ndim else 0 for part in parts]
        if widths != [*self.choices] or len({part.shape[:-1] for part in parts}) > 1:
            raise ValueError(
                f"an action_mask of {len(parts)} arrays of the shapes {[list(part.shape) for part in parts]}, expected "
                f"one for each choice, of the lengths {[*self.choices]}"
            )
        return np.concatenate(parts, axis=-1)

    def possible(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return whether each of n masks of A actions, `[n, A]`, allows any action, `[n]` bool. For a MultiBinary space
        this is always True, because setting no bit is an action, too."""
        if self.kind == "multibinary" or (self.parts and not self.choices):
            return np.ones(len(mask), np.bool_)
        if self.parts:
            mask = mask[:, : sum(self.choices)]
        return np.asarray(np.logical_or.reduceat(mask, _starts(self.choices or (self.size,)), axis=1).all(axis=1))

    def to_json(self) -> dict[str, Any]:
        """Return the space as JSON data for an exported policy's description; `from_json` reads these data."""
        if self.parts:
            parts = [{"path": [*part.path], **part.space.to_json()} for part in self.parts]
            return {"actions": self.size, "action_kind": "mixed", "action_parts": parts}
        if self.kind == "discrete":
            return {"actions": self.size, "action_start": self.start}
        if self.bounds is None:
            numbers = {"action_choices": [*self.choices], "action_starts": [*self.starts]}
            return {"actions": self.size, "action_kind": self.kind, **numbers, "action_shape": [*self.shape]}
        low, high = (bound.tolist() for bound in self.bounds)
        return {"actions": self.size, "action_low": low, "action_high": high, "action_shape": [*self.shape]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActionSpace:
        """Build the space from JSON data that `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: the data does not have that form.
        """
        if data.get("action_kind") == "mixed":
            parts = tuple(mixed.ActionPart(tuple(part["path"]), cls.from_json(part)) for part in data["action_parts"])
            space, fits = cls.of_parts(parts), bool(parts) and all(part.space.kind in mixed.KINDS for part in parts)
            fits = fits and mixed.well_formed(parts)
        elif "action_kind" in data:
            if data["action_kind"] not in ("multidiscrete", "multibinary"):
                raise ValueError(f"action_kind is {data['action_kind']!r}")
            names = ("action_shape", "action_choices", "action_starts")
            shape, choices, starts = (tuple(map(int, data[name])) for name in names)
            space = cls(data["action_kind"], shape, choices, starts)
            binary = space.kind == "multibinary" and set(choices) != {2}
            fits = len(choices) == len(starts) == math.prod(shape) and not binary
        elif "action_low" not in data:
            return cls("discrete", (), (int(data["actions"]),), (int(data.get("action_start", 0)),))
        else:
            low, high = (np.array(data[name], np.float64) for name in ("action_low", "action_high"))
            space = cls("continuous", tuple(data["action_shape"]), bounds=(low, high))
            fits = low.shape == high.shape == (math.prod(space.shape),) and bool((low <= high).all())
        if not fits or space.size != int(data["actions"]):
            raise ValueError(f"{data['actions']} {space.kind} actions are described by what does not fit them")
        return space


def _leaves(space: object, path: _Path, whole: object) -> Iterator[Leaf]:
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from _leaves(part, (*path, key), whole)
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        yield Leaf(path, tuple(space.shape), *_counted(space))
    elif isinstance(space, spaces.MultiBinary):
        yield Leaf(path, tuple(space.shape))
    elif isinstance(space, spaces.Box) and space.dtype.kind in "biuf":
        yield _box(space, path)
    else:
        raise ParamsError(f"env.id: observation space {brief(whole)} is not served: {_OBSERVED}{_without(path, whole)}")


def _without(path: _Path, whole: object) -> str:
    """Return how to leave out a part of a Dict that is not served, such as a text; nothing for what is no such part."""
    if not path or not isinstance(whole, gymnasium.spaces.Dict):
        return ""
    others = ", ".join(str(key) for key in whole.spaces if key != path[0])
    wrapper = f"{{name: FilterObservation, kwargs: {{filter_keys: [{others}]}}}}"
    return f"; to train without {path[0]!r}, set env.wrappers: [{wrapper}]" if others else ""


def _box(space: Any, path: _Path) -> Leaf:
    shape = tuple(int(n) for n in space.shape)
    if len(shape) != 3 or 0 in shape:
        return Leaf(path, shape)
    channels = 0 if shape[0] < shape[2] else 2
    if space.dtype.kind != "b" and space.dtype != np.uint8 and shape[channels] not in _COLOURS:
        return Leaf(path, shape)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    if not 0.0 < high - low < 1e30:
        low, high = 0.0, 1.0
    return Leaf(path, shape, channels=channels, low=low, high=high)


def brief(space: object) -> str:
    """Return a description of a Gymnasium space in at most 200 characters."""
    text = " ".join(repr(space).split())
    return text if len(text) <= 200 else text[:197] + "..."


def _counted(space: gymnasium.spaces.MultiDiscrete) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many values each number of a MultiDiscrete space has, and the least of each."""
    return tuple(map(int, space.nvec.reshape(-1))), tuple(map(int, space.start.reshape(-1)))


def _starts(widths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where each of several stretches begins."""
    return np.cumsum((0, *widths[:-1]))


def _flat(nested: Iterable[Any]) -> Iterator[Any]:
    """What stands in tuples of tuples."""
    for part in nested:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part
