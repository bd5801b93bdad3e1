"""Reads observations from files, and flattens them from an environment's own space to rows of numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import h5py
import numpy as np
from gymnasium import spaces
from PIL import Image

from evopipe.data.episodes import REMEDY
from evopipe.data.hdf5 import Array, StoredArray, Unusable
from evopipe.envs.spaces import Leaf, ObservationSpace, brief
from evopipe.errors import ParamsError

Space = gymnasium.Space[Any]


def compare(recorded: Space, shows: Space) -> None:
    """Check that two observation spaces are flattened to the same rows of numbers: `recorded`, that of a dataset, and
    `shows`, that of the environment.

    Raises:
        Unusable: the two spaces are flattened to different rows; the message names the first difference.
    """
    try:
        theirs, mine = ObservationSpace.of(recorded), ObservationSpace.of(shows)
    except ParamsError as error:
        raise Unusable(f"its observation space {brief(recorded)} is not served") from error
    others = {leaf.path: leaf for leaf in theirs.leaves}
    if mine.leaves != theirs.leaves:
        path = next((leaf.path for leaf in mine.leaves if leaf != others.get(leaf.path, leaf)), ())
        name = Leaf(path, ()).name if path else "observation space"
        has, wanted = (brief(_part(space, path)) for space in (recorded, shows))
        raise Unusable(f"its {name} is {has}, env's {wanted}: {REMEDY}")


def read_rows(part: StoredArray, recorded: Space | None, shows: Space | None) -> Array:
    """Read n observations from an HDF5 file, each as one flat row of O numbers: `[n, O]` float32.

    Args:
        part: the HDF5 dataset with the observations; a group if the space is a Dict or Tuple.
        recorded: the space in which the observations were recorded; None if it is the environment's, the argument
            `shows`.
        shows: the observation space of the environment. If it is None, the observations in the file must be flat
            already, and `recorded` has no effect.
    """
    if shows is None:
        return part.finite(part.numbers("fiu", rank=2))
    nested = _nested(part, recorded or shows)
    try:
        return part.finite(_rows(ObservationSpace.of(shows), nested))
    except ValueError as error:
        raise Unusable(f"'{part.label}' holds {error}") from error


def _rows(space: ObservationSpace, nested: Any) -> Array:
    """Turn arrays `[n, …]`, nested as in the space, into rows; a ValueError's text goes on from "holds"."""
    columns: list[Array] = []
    for leaf in space.leaves:
        array = _whole(leaf, _part(nested, leaf.path))
        if array.shape[1:] != leaf.shape:
            raise ValueError(f"an {leaf.name} of shape {array.shape[1:]} a step, env's has {leaf.shape}: {REMEDY}")
        if columns and len(array) != len(columns[0]):
            raise ValueError(f"an {leaf.name} of {len(array)} steps beside others of {len(columns[0])}")
        columns.append(leaf.columns(array))
    return np.concatenate(columns, axis=1)


def _part(nested: Any, path: Sequence[str | int]) -> Any:
    """Follow keys and indices into a space or an observation."""
    for key in path:
        nested = nested[key]
    return nested


def _whole(leaf: Leaf, array: Array) -> Array:
    """Undo what files do to numbers: one a step may stand in a column, and whole ones be stored as floats."""
    if not leaf.shape and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if leaf.counts and array.dtype.kind == "f":
        if not (np.isfinite(array) & (array == np.rint(array))).all():
            raise ValueError(f"an {leaf.name} of fractions, its space has whole numbers")
        array = array.astype(np.int64)
    return array


def _nested(part: StoredArray, space: Space) -> Any:
    """Read arrays `[n, …]` that are nested as in a space, as Minari stores them: a group for a Dict or Tuple."""
    if isinstance(space, spaces.Dict):
        return _members(part, space.spaces)
    if isinstance(space, spaces.Tuple):
        return tuple(_members(part, {f"_index_{i}": inner for i, inner in enumerate(space.spaces)}).values())
    stored = getattr(part.found(), "shape", None) or ()
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and 1 <= len(stored) <= 2 <= len(space.shape):
        return _jpegs(part, space.shape)
    return part.numbers()


def _members(part: StoredArray, wanted: Mapping[str, Space]) -> dict[str, Any]:
    """Read the members of a group, each in its own space."""
    group = part.group(f", the observation space has parts {', '.join(wanted)}")
    unknown = sorted(set(group) - wanted.keys())
    if unknown:
        raise Unusable(f"'{part.label}' holds {unknown[0]!r}, which the observation space does not")
    return {key: _nested(StoredArray(group, key), space) for key, space in wanted.items()}


def _jpegs(part: StoredArray, shape: tuple[int, ...]) -> Array:
    """Read images that Minari stored as JPEG, a run of bytes each: `[n, *shape]` uint8."""
    stored = part.dataset()
    if (h5py.check_vlen_dtype(stored.dtype) or stored.dtype) != np.uint8:
        raise part.wrong(f"has dtype {stored.dtype}, expected images of shape {shape} or JPEGs")
    images = np.empty((len(stored), *shape), np.uint8)
    for i in range(len(stored)):
        try:
            images[i] = _jpeg(np.asarray(stored[i]).tobytes(), shape)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise part.wrong(f"holds neither an image of shape {shape} nor a JPEG of one at index {i}") from error
    return images


def _jpeg(content: bytes, shape: tuple[int, ...]) -> Array:
    """Unpack an image if it has a shape: a few bytes can declare one that fills the memory."""
    with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
        bands = () if image.mode == "L" else (len(image.getbands()),)
        if (image.height, image.width, *bands) != shape:
            raise ValueError("another shape")
        return np.asarray(image)
