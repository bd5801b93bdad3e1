"""Datasets on disk: Minari folders, D4RL files, and the packed transitions that learners read.

A dataset may come from anywhere, so what is read here is never trusted: links and storage outside of the file, objects,
declared sizes that the file does not hold, ragged lengths and values that are not finite are refused with the file, the
dataset and the index. Metadata is parsed as plain JSON; no environment and no callable is ever made from it (Minari's
own loader would do both).

Layouts: https://minari.farama.org/content/dataset_standards/ and https://github.com/Farama-Foundation/D4RL.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import h5py
import numpy as np
import numpy.typing as npt

from evopipe.core import pixels
from evopipe.errors import DataError, EvopipeError, MissingInputError
from evopipe.storage import safeio

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

Array = npt.NDArray[Any]

REACH_SECONDS = 30.0
_DOWNLOAD_SECONDS = 6 * 3600.0
_MAX_METADATA = 16 * 2**20
REMEDY = "set `env` to the dataset's environment, or fetch another dataset"
_OWN = "evopipe/"  # namespace of the ids of evopipe's own datasets, which hold observations as rows
_MAX_RATIO = 1100  # deflate's limit is 1032: a dataset that declares more than this holds nothing but its declaration
_CHUNK_ROWS = 4096
_FORMAT = 1
_SLACK = 1e-4  # share of its width by which an action may lie outside of a Box, as rounding makes it
_NUMBERS, _FLAGS = "fiu", "biu"


@dataclass(frozen=True, slots=True)
class Transitions:
    """`N` transitions, one row each.

    Attributes:
        obs: `[N, O]` float32.
        action: `[N]` int64, indices from 0 whatever the action space starts at; or `[N, A]` float32 in [-1, 1],
            relative to the action space's bounds.
        reward: `[N]` float32.
        terminated: `[N]` bool; `next_obs` has no future.
        truncated: `[N]` bool; the episode was cut after this step, `next_obs` is still its true next observation.
        next_obs: `[N, O]` float32.
        episode: `[N]` int64, the episode's number.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Array
    episode: Array

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of `T` steps.

    Attributes:
        obs: `[T + 1, O]` float32.
        action: `[T]` int64 or `[T, A]` float32, the environment's own values.
        reward: `[T]` float32.
        terminated: `[T]` bool, True at most in the last step.
        truncated: `[T]` bool, True at most in the last step.
        seed: what the environment was reset with, where known.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Episodes and what their source says of them.

    Attributes:
        episodes: in the source's order.
        where: the source's name in messages.
        obs_size: `O` of the recorded observation space; None where the source records none.
        num_actions: `A` of the recorded action space; None where the source records none.
        action_start: the recorded Discrete space's smallest action; None where the source records none.
        bounds: low and high `[A]` of the recorded Box; None where the source records none.
        dropped: steps left out because their true next observation is not known.
        notes: what else there is to say of the source, in sentences.
    """

    episodes: list[Episode]
    where: str
    obs_size: int | None = None
    num_actions: int | None = None
    action_start: int | None = None
    bounds: tuple[Array, Array] | None = None
    dropped: int = 0
    notes: tuple[str, ...] = ()


class Observations(Protocol):
    """What an environment shows: a dataset's observations are compared with it and become its rows."""

    @property
    def space(self) -> gymnasium.Space[Any]:
        """The environment's observation space, which a file that records none is read by."""

    def compare(self, recorded: gymnasium.Space[Any], where: str) -> None:
        """Raise a `DataError` where a dataset's observation space is another one."""

    def rows(self, recorded: Any) -> Array:
        """Turn arrays `[n, …]`, nested as in the space, into rows `[n, O]`.

        Raises:
            ValueError: they do not fit the space; the text goes on from "holds".
        """


_DTYPES = {
    "obs": np.float32,
    "action": np.int64,
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "next_obs": np.float32,
    "episode": np.int64,
}


# --- Packed transitions -----------------------------------------------------------------------------------------------


def pack(episodes: Sequence[Episode], relative: Callable[[Array], Array] | None = None) -> Transitions:
    """Flatten episodes into transitions.

    Args:
        episodes: at least one step in all.
        relative: from the environment's own actions `[N, …]` to indices from 0, or to vectors in [-1, 1]; None where
            they are that already.

    Raises:
        DataError: there is no step at all.
    """
    if not sum(len(episode) for episode in episodes):
        raise DataError("the dataset holds no step: collect or fetch at least one episode")
    action: Array = np.concatenate([episode.action for episode in episodes])
    return Transitions(
        obs=np.concatenate([episode.obs[:-1] for episode in episodes]),
        action=action if relative is None else relative(action),
        reward=np.concatenate([episode.reward for episode in episodes]),
        terminated=np.concatenate([episode.terminated for episode in episodes]),
        truncated=np.concatenate([episode.truncated for episode in episodes]),
        next_obs=np.concatenate([episode.obs[1:] for episode in episodes]),
        episode=np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes]),
    )


def check_spaces(
    dataset: Dataset,
    obs_size: int,
    num_actions: int,
    action_start: int,
    bounds: tuple[Array, Array] | None = None,
) -> None:
    """Compare what a dataset records and holds with an environment's spaces.

    Args:
        dataset: what was read.
        obs_size: `O`.
        num_actions: `A`, actions of a Discrete space, numbers in an action of a Box.
        action_start: a Discrete space's smallest action.
        bounds: low and high `[A]` of a Box; None for a Discrete space.

    Raises:
        DataError: they differ; the message says which and how.
    """
    remedy = REMEDY
    kinds = {True: "vectors of numbers", False: "indices"}
    if dataset.num_actions is not None and (dataset.bounds is None) != (bounds is None):
        mine, theirs = kinds[bounds is not None], kinds[dataset.bounds is not None]
        raise DataError(f"{dataset.where}: its actions are {theirs}, env's {mine}: {remedy}")
    recorded = (
        ("observation space has", dataset.obs_size, "numbers", obs_size),
        ("action space has", dataset.num_actions, "actions" if bounds is None else "numbers", num_actions),
        ("action space starts at", dataset.action_start, "", action_start),
    )
    for what, has, unit, wanted in recorded:
        if has not in (None, wanted):
            raise DataError(f"{dataset.where}: its {what} {has} {unit}".rstrip() + f", env's {wanted}: {remedy}")
    if bounds is not None and dataset.bounds is not None and not np.allclose(dataset.bounds, bounds):
        theirs, mine = (f"{low.tolist()} to {high.tolist()}" for low, high in (dataset.bounds, bounds))
        raise DataError(f"{dataset.where}: its actions go from {theirs}, env's from {mine}: {remedy}")
    for number, episode in enumerate(dataset.episodes):
        where = f"{dataset.where}: episode {number}"
        if episode.obs.shape[1] != obs_size:
            raise DataError(
                f"{where} has observations of {episode.obs.shape[1]} numbers, env's have {obs_size}: {remedy}"
            )
        if (episode.action.ndim == 2) != (bounds is not None):
            mine, theirs = kinds[bounds is not None], kinds[episode.action.ndim == 2]
            raise DataError(f"{where} took actions that are {theirs}, env's are {mine}: {remedy}")
        if bounds is None:
            _check_indices(episode.action, action_start, action_start + num_actions - 1, where, remedy)
        else:
            _check_vectors(episode.action, *bounds, where, remedy)


def _check_indices(action: Array, first: int, last: int, where: str, remedy: str) -> None:
    wrong = np.flatnonzero((action < first) | (action > last))
    if wrong.size:
        raise DataError(
            f"{where} took action {action[wrong[0]]} at step {wrong[0]}, env has {first} to {last}: {remedy}"
        )


def _check_vectors(action: Array, low: Array, high: Array, where: str, remedy: str) -> None:
    if action.shape[1] != len(low):
        raise DataError(f"{where} took actions of {action.shape[1]} numbers, env's have {len(low)}: {remedy}")
    slack = _SLACK * (high - low)
    wrong = np.argwhere((action < low - slack) | (action > high + slack))
    if wrong.size:
        step, i = wrong[0]
        raise DataError(
            f"{where} took action {action[step].tolist()} at step {step}, env's go from {low[i]:g} to {high[i]:g} at "
            f"index {i}: {remedy}"
        )


def write_transitions(path: Path, transitions: Transitions, stats: Mapping[str, Any]) -> None:
    """Write transitions and their statistics as one HDF5 file, atomically; equal content gives equal bytes.

    Observations that are images of bytes from end to end are bytes in it.

    Raises:
        DiskError: it cannot be written.
    """
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        file.attrs["format"] = _FORMAT
        file.attrs["stats"] = np.bytes_(safeio.dump_json(dict(stats), str(path)))
        for name, dtype in _DTYPES.items():
            array: Array = getattr(transitions, name)
            array = np.ascontiguousarray(array, np.float32 if name == "action" and array.ndim == 2 else dtype)
            chunks = (min(_CHUNK_ROWS, max(1, len(array))), *array.shape[1:])
            if name.endswith("obs") and (images := pixels.exact(array)) is not None:
                array = images
            # The checksum of each chunk lets a reader notice a damaged file.
            file.create_dataset(name, data=array, chunks=chunks, fletcher32=True)
    safeio.write_bytes(path, memory.getbuffer())


def read_transitions(path: Path, limit: int | None = None) -> Transitions:
    """Read the first `limit` transitions (all where None).

    Raises:
        MissingInputError: the file is not there.
        DataError: it is truncated, damaged, ragged, of a wrong type, or holds a value that is not finite.
    """
    arrays: dict[str, Array] = {}
    with _opened(Path(path)) as (file, where):
        if file.attrs.get("format") != _FORMAT:
            raise DataError(f"{where}: not a transitions file of format {_FORMAT}; run the stage `buffer` again")
        for name, dtype in _DTYPES.items():
            vectors = name.endswith("obs") or (name == "action" and _dimensions(file, name, where) == 2)
            array = _read(file, name, where, 2 if vectors else 1, limit=limit)
            if name.endswith("obs") and array.dtype == np.uint8:
                array = pixels.numbers(array)
            expected = np.dtype(np.float32 if vectors else dtype)
            if array.dtype != expected:
                raise DataError(f"{where}: dataset '{name}' has dtype {array.dtype}, expected {expected}")
            arrays[name] = array
        _same_length(where, {name: file[name].shape[0] for name in _DTYPES})
    if arrays["obs"].shape != arrays["next_obs"].shape:
        raise DataError(
            f"{where}: datasets 'obs' {arrays['obs'].shape} and 'next_obs' {arrays['next_obs'].shape} differ"
        )
    for name in ("obs", "action", "reward", "next_obs"):
        _finite(arrays[name], where, name)
    if arrays["action"].ndim == 1:
        _not_negative(arrays["action"], where, "action")
    elif (np.abs(arrays["action"]) > 1.0).any():
        row = np.argwhere(np.abs(arrays["action"]) > 1.0)[0].tolist()
        raise DataError(
            f"{where}: dataset 'action' holds {arrays['action'][tuple(row)]} at index {row}, not in [-1, 1]"
        )
    return Transitions(**arrays)


# --- Minari -----------------------------------------------------------------------------------------------------------


def write_minari(
    folder: Path,
    episodes: Sequence[Episode],
    *,
    dataset_id: str,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    env_spec: EnvSpec | None,
    algorithm: str,
    description: str,
) -> None:
    """Write a Minari dataset (`MinariDataset(folder / "data")` opens it) and a manifest of checksums beside it.

    Equal content gives equal bytes. A folder in its place is replaced as a whole.

    Raises:
        DiskError: it cannot be written.
    """
    from minari import __version__ as minari_version
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    safeio.make_folder(folder.parent)
    with (
        safeio.translating(folder),
        tempfile.TemporaryDirectory(prefix=safeio.TEMPORARY, dir=folder.parent.resolve()) as scratch,
    ):
        storage = MinariStorage.new(
            scratch, observation_space, action_space, _plain_spec(env_spec), data_format="hdf5", jpeg_encoding=False
        )
        storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": minari_version,
                "algorithm_name": algorithm,
                "description": description,
            }
        )
        storage.update_episodes(
            EpisodeBuffer(
                id=number,
                seed=episode.seed,
                observations=episode.obs.astype(observation_space.dtype),
                actions=episode.action.reshape(-1, *(action_space.shape or ())),
                rewards=episode.reward,
                terminations=episode.terminated,
                truncations=episode.truncated,
            )
            for number, episode in enumerate(episodes)
        )
        files = {f"data/{path.name}": path.read_bytes() for path in sorted(Path(scratch).iterdir())}
    metadata = json.loads(files["data/metadata.json"])
    files["data/metadata.json"] = safeio.dump_json(metadata, str(folder), indent=2)
    safeio.write_folder(folder, files)


def _plain_spec(env_spec: EnvSpec | None) -> EnvSpec | None:
    """Leave out a spec that JSON cannot hold (an entry point that is a class): the dataset is whole without it."""
    with contextlib.suppress(Exception):
        if env_spec is not None:
            env_spec.to_json()
            return env_spec
    return None


def read_minari(
    dataset: str | Path, observations: Observations | None = None, *, reach_seconds: float = REACH_SECONDS
) -> Dataset:
    """Read a Minari dataset of Discrete or Box actions.

    Args:
        dataset: a folder (the dataset's own, or its `data`), or the id of a remote one (`namespace/name-v0`), which is
            downloaded into Minari's own cache unless it is there.
        observations: what makes rows of its observations; None where they must be rows already, as in what `fetch`
            writes.
        reach_seconds: how long to wait for a remote's answer.

    Raises:
        MissingInputError: there is no such folder, or the remote cannot be reached or does not have it.
        DataError: the content cannot be used; the message names file, dataset and index.
    """
    root = Path(dataset)
    if not root.exists():
        root = _remote(str(dataset), reach_seconds)
    files, where = _minari_files(root)
    metadata = _metadata(files["metadata.json"], f"{where}/metadata.json")
    space = _observation_space(metadata, f"{where}/metadata.json")
    if space is not None and len(space.shape or ()) == 1 and str(metadata.get("dataset_id")).startswith(_OWN):
        observations = None  # rows already
    if observations is not None and space is not None:
        observations.compare(space, where)
    size = None if space is None or observations is not None else _row_size(space, f"{where}/metadata.json")
    with _opened(files["main_data.hdf5"], f"{where}/main_data.hdf5") as (file, name):
        _only_hard_links(file, name)
        if len(file) != metadata["total_episodes"]:
            raise DataError(f"{name}: holds {len(file)} episodes, its metadata says {metadata['total_episodes']}")
        read = _reader(observations, space)
        episodes = [_minari_episode(file, f"episode_{number}", name, read) for number in range(len(file))]
    return Dataset(episodes, where, size, *_recorded_actions(metadata, f"{where}/metadata.json"))


def _minari_files(root: Path) -> tuple[dict[str, Path | bytes], str]:
    """Find the two files of a dataset, checked against their manifest where evopipe wrote them."""
    data = next((folder for folder in (root / "data", root) if (folder / "metadata.json").is_file()), None)
    if data is None:
        raise MissingInputError(f"{root}: holds no Minari dataset (no data/metadata.json)")
    if data.name == "data" and (data.parent / safeio.MANIFEST).is_file():
        content = safeio.read_folder(data.parent)
        if {"data/metadata.json", "data/main_data.hdf5"} <= content.keys():
            return {name.removeprefix("data/"): raw for name, raw in content.items()}, str(data)
    return {name: data / name for name in ("metadata.json", "main_data.hdf5")}, str(data)


def _metadata(source: Path | bytes, where: str) -> dict[str, Any]:
    if isinstance(source, Path) and source.stat().st_size > _MAX_METADATA:
        raise DataError(f"{where}: {source.stat().st_size} bytes of metadata; a dataset's are a few thousand")
    content = safeio.parse_json(safeio.read_bytes(source) if isinstance(source, Path) else source, where)
    if not isinstance(content, dict) or not isinstance(content.get("total_episodes"), int):
        raise DataError(f"{where}: not the metadata of a Minari dataset (no total_episodes)")
    if content.get("data_format", "hdf5") != "hdf5":
        raise DataError(f"{where}: data format {content['data_format']!r} is not served; store the dataset as hdf5")
    return content


def _observation_space(metadata: Mapping[str, Any], where: str) -> gymnasium.Space[Any] | None:
    """Build the recorded observation space, None where none is recorded."""
    described = _space(metadata, "observation_space", where)
    if described is None:
        return None
    from minari.serialization import deserialize_space

    try:
        space: gymnasium.Space[Any] = deserialize_space(described)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: observation space {_brief(described)} describes no space ({reason})") from error
    return space


def _row_size(space: gymnasium.Space[Any], where: str) -> int:
    """Return `O` of a space of rows."""
    if type(space).__name__ not in ("Box", "MultiBinary") or len(space.shape or ()) != 1:
        raise DataError(f"{where}: observations are no rows of numbers; fetch the dataset as fetch.source minari")
    return int((space.shape or ())[0])


def _recorded_actions(
    metadata: Mapping[str, Any], where: str
) -> tuple[int | None, int | None, tuple[Array, Array] | None]:
    """Return `A`, the first action and the bounds of the action space in the metadata, None where it records none."""
    action = _space(metadata, "action_space", where)
    num_actions = start = bounds = None
    if action is not None and action.get("type") == "Discrete" and isinstance(action.get("n"), int):
        num_actions, start = int(action["n"]), int(action.get("start", 0))
    elif action is not None:
        bounds = _recorded_bounds(action, where)
        num_actions = len(bounds[0])
    return num_actions, start, bounds


def _recorded_bounds(action: Mapping[str, Any], where: str) -> tuple[Array, Array]:
    """Return low and high `[A]` of a recorded Box of floats."""
    try:
        low, high = (np.asarray(action[name], np.float64).reshape(-1) for name in ("low", "high"))
    except (KeyError, TypeError, ValueError):
        low = high = np.empty(0)
    floats = action.get("type") == "Box" and str(action.get("dtype")).startswith("float")
    if not floats or not 0 < len(low) == len(high):
        raise DataError(f"{where}: action space {_brief(action)} is not served, only Discrete and a Box of floats are")
    return low, high


def _space(metadata: Mapping[str, Any], key: str, where: str) -> dict[str, Any] | None:
    raw = metadata.get(key)
    try:
        space = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError as error:
        raise DataError(f"{where}: {key} is not valid JSON ({error})") from error
    if space is not None and not isinstance(space, dict):
        raise DataError(f"{where}: {key} is no description of a space")
    return space


def _brief(space: Mapping[str, Any]) -> str:
    return json.dumps({key: space[key] for key in ("type", "shape", "n") if key in space})


def _minari_episode(file: h5py.File, group_name: str, where: str, read: _Reader) -> Episode:
    group = _member(file, group_name, where)
    if not isinstance(group, h5py.Group):
        raise DataError(f"{where}: '{group_name}' is no group: not a Minari dataset")
    _only_hard_links(group, where)
    prefix = group_name + "/"
    arrays = {
        "actions": _actions(_read(group, "actions", where, None, _NUMBERS, prefix), where, prefix + "actions"),
        "rewards": _float32(_read(group, "rewards", where, 1, _NUMBERS, prefix)),
        "terminations": _flags(_read(group, "terminations", where, 1, _FLAGS, prefix), where, prefix + "terminations"),
        "truncations": _flags(_read(group, "truncations", where, 1, _FLAGS, prefix), where, prefix + "truncations"),
    }
    steps = _same_length(where, {prefix + name: len(array) for name, array in arrays.items()})
    obs = read(group, "observations", where, prefix)
    if len(obs) != steps + 1:
        raise DataError(f"{where}: '{prefix}observations' has {len(obs)} rows for {steps} steps, expected {steps + 1}")
    _finite(arrays["rewards"], where, prefix + "rewards")
    terminated, truncated = arrays["terminations"], arrays["truncations"]
    early = np.flatnonzero((terminated | truncated)[:-1])
    if early.size:
        raise DataError(f"{where}: '{group_name}' ends at step {early[0]} and goes on: its flags cannot be right")
    if steps and not (terminated[-1] or truncated[-1]):
        truncated[-1] = True  # recording stopped here, which cuts the episode
    seed = group.attrs.get("seed")
    known = int(seed) if isinstance(seed, int | np.integer) else None
    return Episode(obs, arrays["actions"], arrays["rewards"], terminated, truncated, known)


# --- Observations -----------------------------------------------------------------------------------------------------

_Reader = Callable[[h5py.Group, str, str, str], Array]
"""`(group, name, where, prefix) → [n, O]`: the observations of this name, as rows."""


def _reader(observations: Observations | None, space: gymnasium.Space[Any] | None) -> _Reader:
    """Read rows as they are, or what is recorded in a space (the environment's, where it is None) and make rows."""

    def rows(group: h5py.Group, name: str, where: str, prefix: str = "") -> Array:
        if observations is None:
            found = _float32(_read(group, name, where, 2, _NUMBERS, prefix))
        else:
            recorded = _nested(group, name, where, space or observations.space, prefix)
            try:
                found = observations.rows(recorded)
            except ValueError as error:
                raise DataError(f"{where}: '{prefix}{name}' holds {error}") from error
        _finite(found, where, prefix + name)
        return found

    return rows


def _nested(group: h5py.Group, name: str, where: str, space: gymnasium.Space[Any], prefix: str) -> Any:
    """Read arrays `[n, …]` that are nested as in a space, as Minari stores them: a group for a Dict or Tuple."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return _members(group, name, where, space.spaces, prefix)
    if isinstance(space, spaces.Tuple):
        parts = {f"_index_{i}": part for i, part in enumerate(space.spaces)}
        return tuple(_members(group, name, where, parts, prefix).values())
    stored = getattr(_member(group, name, where), "shape", None) or ()
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and 1 <= len(stored) <= 2 <= len(space.shape):
        return _jpegs(group, name, where, space.shape, prefix)
    return _read(group, name, where, None, "biuf", prefix)


def _members(
    group: h5py.Group, name: str, where: str, parts: Mapping[str, gymnasium.Space[Any]], prefix: str
) -> dict[str, Any]:
    """Read the members of a group, each in its own space."""
    inner = _member(group, name, where)
    if not isinstance(inner, h5py.Group):
        raise DataError(f"{where}: '{prefix}{name}' is no group, the observation space has parts {', '.join(parts)}")
    unknown = sorted(set(inner) - parts.keys())
    if unknown:
        raise DataError(f"{where}: '{prefix}{name}' holds {unknown[0]!r}, which the observation space does not")
    return {key: _nested(inner, key, where, part, f"{prefix}{name}/") for key, part in parts.items()}


def _jpegs(group: h5py.Group, name: str, where: str, shape: tuple[int, ...], prefix: str) -> Array:
    """Read images that Minari stored as JPEG, a run of bytes each: `[n, *shape]` uint8."""
    from PIL import Image

    dataset, label = _plain(group, name, where, prefix), f"dataset '{prefix}{name}'"
    if (h5py.check_vlen_dtype(dataset.dtype) or dataset.dtype) != np.uint8:
        raise DataError(f"{where}: {label} has dtype {dataset.dtype}, expected images of shape {shape} or JPEGs")
    images = np.empty((len(dataset), *shape), np.uint8)
    for i in range(len(dataset)):
        try:
            images[i] = _jpeg(np.asarray(dataset[i]).tobytes(), shape)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{where}: {label} holds neither an image of shape {shape} nor a JPEG of one at index {i}"
            ) from error
    return images


def _jpeg(content: bytes, shape: tuple[int, ...]) -> Array:
    """Unpack an image if it has a shape: a few bytes can declare one that fills the memory."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
        bands = () if image.mode == "L" else (len(image.getbands()),)
        if (image.height, image.width, *bands) != shape:
            raise ValueError("another shape")
        return np.asarray(image)


# --- Remote Minari datasets -------------------------------------------------------------------------------------------

_DATASET_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+", re.ASCII)
# Minari answers a dead network with hours of retries or a long traceback: a child process can be stopped and summed up.
# It ends with its parent (prctl(PR_SET_PDEATHSIG, SIGKILL)), which may be killed while it waits.
_END = "import ctypes,sys;sys.platform=='linux' and ctypes.CDLL(None).prctl(1,9);"
_LIST = _END + "import json,minari,sys;print(json.dumps(sorted(minari.list_remote_datasets(prefix=sys.argv[1]))))"
# Without force a folder that a stopped download left behind would count as the dataset.
_DOWNLOAD = _END + "import minari,sys;minari.download_dataset(sys.argv[1],force_download=sys.argv[2]=='again')"


def _remote(dataset_id: str, reach_seconds: float) -> Path:
    """Return the local folder of a remote dataset, downloading it where Minari's cache does not have it."""
    if not _DATASET_ID.fullmatch(dataset_id):
        raise MissingInputError(
            f"fetch.minari.dataset: {dataset_id!r} is no folder here and no remote id (namespace/name-v0)"
        )
    cache = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    folder = cache / dataset_id
    if not all((folder / "data" / name).is_file() for name in ("metadata.json", "main_data.hdf5")):
        prefix = dataset_id.rpartition("-v")[0]
        known = json.loads(_child([_LIST, prefix], dataset_id, reach_seconds) or "[]")
        if dataset_id not in known:
            others = f"; it has {', '.join(known)}" if known else ""
            raise MissingInputError(f"fetch.minari.dataset: the remote has no dataset {dataset_id!r}{others}")
        _child([_DOWNLOAD, dataset_id, "again" if folder.exists() else "new"], dataset_id, _DOWNLOAD_SECONDS)
    return folder


def _child(script: list[str], dataset_id: str, seconds: float) -> str:
    """Run a line of Python with arguments in a process of its own and return the last line it printed."""
    what = f"fetch.minari.dataset: the remote of {dataset_id!r}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", *script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingInputError(
            f"{what} did not answer within {seconds:g} s; check the network, or give a local folder"
        ) from error
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1][:300] if said else f"exit code {done.returncode}"
        raise MissingInputError(f"{what} cannot be used ({reason}); check the network, or give a local folder")
    return next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")


# --- D4RL -------------------------------------------------------------------------------------------------------------


def read_d4rl(path: Path, observations: Observations | None = None, discrete: bool = False) -> Dataset:
    """Read an HDF5 file in D4RL layout: observations, actions, rewards, terminals [, timeouts] [, next_observations].

    Such a file records no spaces: its observations are read by the environment's (a group for a Dict or Tuple, as in
    Minari's files), or must be rows already where `observations` is None. Its actions are indices where they are whole
    numbers, also ones that stand in a column of floats, as in some of AgileRL's, where they are known to be `discrete`.

    Episodes end at terminals and timeouts, and are never bridged (AgileRL's files have no timeouts, so that where an
    episode was cut there is not known: `notes` says so). Where the file has no next observations, the last
    step of an episode that was cut has no true one and is left out (`dropped` counts them); the last step of an episode
    that terminated is kept, with its own observation repeated, from which nothing bootstraps.

    Raises:
        MissingInputError: the file is not there.
        DataError: its content cannot be used; the message names dataset and index.
    """
    read = _reader(observations, None)
    with _opened(Path(path)) as (file, where):
        _only_hard_links(file, where)
        arrays = {
            "actions": _actions(_whole(_read(file, "actions", where, None, _NUMBERS), discrete), where, "actions"),
            "observations": read(file, "observations", where, ""),
            "rewards": _float32(_squeezed(_read(file, "rewards", where, None, _NUMBERS))),
            "terminals": _flags(_squeezed(_read(file, "terminals", where, None, "biuf")), where, "terminals"),
        }
        timed = bool(file.id.links.exists(b"timeouts"))
        if timed:
            arrays["timeouts"] = _flags(_squeezed(_read(file, "timeouts", where, None, "biuf")), where, "timeouts")
        if file.id.links.exists(b"next_observations"):
            arrays["next_observations"] = read(file, "next_observations", where, "")
    arrays.setdefault("timeouts", np.zeros_like(arrays["terminals"]))
    _same_length(where, {name: len(array) for name, array in arrays.items()})
    _finite(arrays["rewards"], where, "rewards")
    if "next_observations" in arrays and arrays["next_observations"].shape != arrays["observations"].shape:
        raise DataError(f"{where}: datasets 'observations' and 'next_observations' differ in shape")
    episodes = [_d4rl_episode(arrays, first, last) for first, last in _runs(arrays)]
    kept = [episode for episode in episodes if len(episode)]
    dropped = len(arrays["rewards"]) - sum(len(episode) for episode in kept)
    known = timed or "next_observations" in arrays
    notes = () if known else ("the file has no timeouts: an episode that was cut runs on into the next one",)
    return Dataset(kept, where, dropped=dropped, notes=notes)


def _runs(arrays: Mapping[str, Array]) -> Iterator[tuple[int, int]]:
    """Yield first and last step of each stretch in which one step leads to the next."""
    ends = arrays["terminals"] | arrays["timeouts"]
    if "next_observations" in arrays:  # a step that does not lead to the next row ends its stretch, whatever its flags
        ends[:-1] |= (arrays["next_observations"][:-1] != arrays["observations"][1:]).any(axis=1)
    ends[-1:] = True
    first = 0
    for last in np.flatnonzero(ends).tolist():
        yield first, last
        first = last + 1


def _d4rl_episode(arrays: Mapping[str, Array], first: int, last: int) -> Episode:
    steps = slice(first, last + 1)
    obs, terminated = arrays["observations"][steps], arrays["terminals"][steps].copy()
    if "next_observations" in arrays:
        obs = np.concatenate((obs, arrays["next_observations"][last : last + 1]))
    elif terminated[-1]:
        obs = np.concatenate((obs, obs[-1:]))
    else:
        steps, terminated = slice(first, last), terminated[:-1]
    truncated = np.zeros_like(terminated)
    truncated[-1:] = arrays["timeouts"][last] | ~terminated[-1:]
    return Episode(obs, arrays["actions"][steps], arrays["rewards"][steps], terminated, truncated)


# --- Reading HDF5 that may be anybody's -------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(source: Path | bytes, where: str | None = None) -> Iterator[tuple[h5py.File, str]]:
    """Open a file for reading and turn whatever HDF5 says of damaged content into a `DataError`."""
    name = where or str(source)
    if isinstance(source, Path) and not source.is_file():
        if source.exists():
            raise DataError(f"{name}: is not a regular file")
        raise MissingInputError(f"{name}: is not there; run the stage that writes it, or correct the path")
    try:
        with h5py.File(io.BytesIO(source) if isinstance(source, bytes) else source, "r") as file:
            yield file, name
    except EvopipeError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{name}: is truncated, damaged or not HDF5 ({reason})") from error


def _only_hard_links(group: h5py.Group, where: str) -> None:
    for name in group:
        _hard(group, name, where)


def _hard(group: h5py.Group, name: str, where: str) -> None:
    """Refuse links that could lead to another file's bytes; soft ones too, for they lead on to external ones."""
    links, key = group.id.links, name.encode()  # the friendlier `Group.get` would follow the link to see where it ends
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise DataError(f"{where}: {_path(group, name)} is a link to {links.get_val(key)}; links are not followed")


def _path(group: h5py.Group, name: str) -> str:
    return f"'{group.name.strip('/')}/{name}'".replace("'/", "'")


def _member(group: h5py.Group, name: str, where: str) -> Any:
    if not group.id.links.exists(name.encode()):
        raise DataError(f"{where}: has no dataset {_path(group, name)}")
    _hard(group, name, where)
    return group[name]


def _read(
    group: h5py.Group,
    name: str,
    where: str,
    rank: int | None,
    kinds: str = "biuf",
    prefix: str = "",
    *,
    limit: int | None = None,
) -> Array:
    """Read one dataset's numbers, its first `limit` rows, after looking at where they are and how many."""
    dataset, label = _plain(group, name, where, prefix), f"dataset '{prefix}{name}'"
    if dataset.dtype.kind not in kinds:
        raise DataError(f"{where}: {label} has dtype {dataset.dtype}, expected {_kind_names(kinds)}")
    if not dataset.shape or (rank is not None and len(dataset.shape) != rank):
        raise DataError(f"{where}: {label} has shape {dataset.shape}, expected {rank or 1} dimension(s)")
    return np.asarray(dataset[:limit])


def _plain(group: h5py.Group, name: str, where: str, prefix: str) -> h5py.Dataset:
    """Return a dataset that keeps its values in its own file, as many as it declares."""
    dataset, label = _member(group, name, where), f"dataset '{prefix}{name}'"
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"{where}: '{prefix}{name}' is a group, expected a dataset")
    if dataset.is_virtual or dataset.external:
        raise DataError(f"{where}: {label} keeps its values in other files; that is not read")
    if dataset.nbytes > _MAX_RATIO * dataset.id.get_storage_size() + 2**20:
        raise DataError(f"{where}: {label} declares {dataset.nbytes} bytes and holds {dataset.id.get_storage_size()}")
    return dataset


def _kind_names(kinds: str) -> str:
    names = {"b": "bool", "i": "integer", "f": "float"}
    return " or ".join(names[kind] for kind in kinds if kind in names)


def _float32(array: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array, np.float32)


def _squeezed(array: Array) -> Array:
    """`[N, 1]` → `[N]`: D4RL files store scalars either way."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _dimensions(file: h5py.File, name: str, where: str) -> int:
    return len(getattr(_member(file, name, where), "shape", None) or ())


def _whole(array: Array, discrete: bool) -> Array:
    """Return floats `[N]` or `[N, 1]` that are all whole numbers as such, where they are known to be `discrete`."""
    single = discrete and array.dtype.kind == "f" and math.prod(array.shape[1:]) == 1
    return array.astype(np.int64) if single and np.isfinite(array).all() and (array == np.rint(array)).all() else array


def _actions(array: Array, where: str, name: str) -> Array:
    """Integers are indices `[N]`, floats are vectors `[N, A]`."""
    if array.dtype.kind == "f":
        vectors = _float32(array.reshape(len(array), int(np.prod(array.shape[1:]))))
        _finite(vectors, where, name)
        return vectors
    flat = _squeezed(array)
    if flat.ndim != 1:
        raise DataError(
            f"{where}: dataset '{name}' has shape {array.shape}; whole numbers are one index a step, vectors are floats"
        )
    return flat.astype(np.int64)


def _flags(array: Array, where: str, name: str) -> Array:
    if array.ndim != 1:
        raise DataError(f"{where}: dataset '{name}' has shape {array.shape}, expected 1 dimension")
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if wrong.size:
        raise DataError(f"{where}: dataset '{name}' holds {array[wrong[0]]} at index {wrong[0]}, expected 0 or 1")
    return array.astype(np.bool_)


def _finite(array: Array, where: str, name: str) -> None:
    wrong = np.argwhere(~np.isfinite(array))
    if wrong.size:
        index = ", ".join(str(i) for i in wrong[0])
        raise DataError(
            f"{where}: dataset '{name}' holds {array[tuple(wrong[0])]} at index [{index}], not a finite float32"
        )


def _not_negative(array: Array, where: str, name: str) -> None:
    wrong = np.flatnonzero(array < 0)
    if wrong.size:
        raise DataError(f"{where}: dataset '{name}' holds {array[wrong[0]]} at index {wrong[0]}, expected 0 or more")


def _same_length(where: str, lengths: Mapping[str, int]) -> int:
    """Return the common length of datasets that belong together."""
    (first, length), *others = lengths.items()
    for name, other in others:
        if other != length:
            raise DataError(f"{where}: ragged, dataset '{name}' has {other} rows and '{first}' {length}")
    return length
