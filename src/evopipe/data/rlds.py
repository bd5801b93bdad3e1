"""Reads datasets in RLDS's layout, episodes of steps: https://github.com/google-research/rlds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from evopipe.data.arrow import need_arrow, read_arrow, reading
from evopipe.data.episodes import EpisodeDataset, RecordedEpisode
from evopipe.data.hdf5 import Array, StoredArray, Unusable, read_apart
from evopipe.data.observations import read_rows
from evopipe.errors import DataError, MissingInputError, suggestion
from evopipe.schema.fetch import FetchConfig

_KINDS = {
    ".arrow": "arrow",
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".json": "json",
}  # the first that is there counts
_ABOUT = frozenset({"dataset_info.json", "state.json", "dataset_dict.json", "features.json"})  # beside the data
_FLAGS = ("is_first", "is_last", "is_terminal")


def read_rlds(cfg: FetchConfig.Rlds, shows: gymnasium.Space[Any] | None, discrete: bool) -> EpisodeDataset:
    """Read the episodes of a dataset in RLDS's layout, each file in a process with limited memory.

    A row is a step with the fields `is_first`, `is_last`, `is_terminal`, `observation`, `action` and `reward`; or it is
    an episode, with a field `steps` that lists such steps. Other fields, such as `discount`, are not read. The last
    step of an episode only has an observation: its action and its reward mean nothing, and are not looked at. An
    episode of n steps is therefore one of n - 1 transitions. The episode was terminated if its last step is terminal,
    and truncated if not. An episode that ends without a last step is truncated at its last observation, and the
    result's `dropped` counts it.

    Args:
        cfg: the block `fetch.rlds`: a file, or a folder of Parquet, Arrow (by `Dataset.save_to_disk` of the package
            datasets), `.jsonl` or `.json` files, which are read in the order of their names; and the names of fields.
        shows: the environment's observation space, by which observations are flattened; None if the observations in the
            files are flat already.
        discrete: whether the environment's actions are discrete; whole floats are then read as indices.

    Raises:
        MissingInputError: the path does not exist, a folder holds no such file, or pyarrow is not installed.
        ResourceError: reading takes more memory than the limit, which depends on the file's size.
        DataError: a file is damaged, lacks a field, or has a wrong value; the message names field and step.
    """
    path = Path(cfg.path)
    need_arrow(f"fetch.source: rlds ({path})")
    parts = [part for file, kind in _files(path) if (part := read_apart(file, partial(_read, file, kind, cfg)))]
    acting = next((part for part in parts if part["action"] is not None), None)
    if acting is None:  # no step but last ones
        return EpisodeDataset([], str(path))
    for part in parts:
        for name in ("action", "reward"):
            if part[name] is None:  # of last steps alone, which do not tell its shape
                part[name] = np.zeros((len(part["bound"]), *acting[name].shape[1:]), acting[name].dtype)
    names = {"observation": cfg.observation, "action": cfg.action, "reward": "reward"}
    columns = {each: _joined([part[each] for part in parts], names.get(each, each), path) for each in parts[0]}
    content = io.BytesIO()
    try:
        with h5py.File(content, "w") as file:  # where all that a dataset from elsewhere may not hold is refused
            for name in names:
                _store(file, name, columns[name])
            obs = read_rows(StoredArray(file, "observation"), None, shows)
            action, reward = StoredArray(file, "action").actions(discrete), StoredArray(file, "reward").rewards()
    except (Unusable, ValueError, TypeError) as error:
        raise DataError(f"{path}: {error}") from error
    return _split(columns, obs, action, reward, path)


def _files(path: Path) -> list[tuple[Path, str]]:
    """Return the files to read with their kinds."""
    if path.is_file():
        if path.suffix not in _KINDS:
            raise DataError(f"{path}: ends in none of {', '.join(_KINDS)}")
        return [(path, _KINDS[path.suffix])]
    if not path.is_dir():
        raise MissingInputError(f"{path}: is not there; correct fetch.rlds.path")
    there = sorted(file for file in path.iterdir() if file.is_file() and file.name not in _ABOUT)
    for suffix, kind in _KINDS.items():
        if found := [(file, kind) for file in there if file.suffix == suffix]:
            return found
    if any(".tfrecord" in file.name for file in there):
        raise DataError(
            f"{path}: holds TFRecord files, which need TensorFlow: write the steps as Parquet with it, as "
            "docs/pipeline.md shows, and name that folder"
        )
    if splits := sorted(each.name for each in path.iterdir() if each.is_dir()):
        raise DataError(f"{path}: has folders and no data: name one of them, such as {path / splits[0]}")
    raise MissingInputError(f"{path}: holds no file that ends in {', '.join(_KINDS)}")


def _read(file: Path, kind: str, cfg: FetchConfig.Rlds) -> dict[str, Any]:
    """Return a file's N steps as columns by name, nothing if there are none."""
    with reading(file, kind):
        fields, bounds = _steps(read_arrow(file, kind), file)
        if not len(bounds):
            return {}
        closed = bool(bounds.any())  # episodes are lists, whose ends are known without the flags
        known = {"is_first": np.append(True, bounds[:-1]), "is_last": bounds} if closed else {}
        flags = {
            name: known[name] if name in known and name not in fields else _flag(fields, name, file) for name in _FLAGS
        }
        counts = np.flatnonzero(~flags["is_last"])  # steps whose action means something
        whole = _field(fields, cfg.observation, file)
        found = {"observation": _numbers(whole, cfg.observation, np.arange(len(bounds)), file)}
        for name, key in (("action", cfg.action), ("reward", "reward")):
            found[name] = _taken(_field(fields, key, file), key, counts, file)
        return {**found, **flags, "bound": bounds}


def _taken(field: Any, name: str, counts: Array, file: Path) -> Array | None:
    """Return a field of N steps, `[N, …]`, with zeros in all steps but `counts`; None if there are none."""
    if not len(counts):
        return None
    taken = _numbers(field.take(counts), name, counts, file)
    if isinstance(taken, dict):
        raise DataError(f"{file}: field {name!r} is {', '.join(taken)}: name one, as {name}.{min(taken)}")
    whole = np.zeros((len(field), *taken.shape[1:]), taken.dtype)
    whole[counts] = taken
    return whole


def _steps(table: Any, file: Path) -> tuple[dict[str, Any], Array]:
    """Return the fields of all N steps as Arrow arrays, and where a list of steps ends, `[N]` bool."""
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    if "steps" not in columns:
        return columns, np.zeros(table.num_rows, np.bool_)
    steps = columns["steps"]
    if hasattr(steps, "value_lengths"):  # a list of steps
        lengths, inner = steps.value_lengths(), steps.flatten()
        fields = (
            dict(zip((field.name for field in inner.type), inner.flatten(), strict=True)) if _is_struct(inner) else {}
        )
    else:
        lists = (
            dict(zip((field.name for field in steps.type), steps.flatten(), strict=True)) if _is_struct(steps) else {}
        )
        unlike = [name for name, each in lists.items() if not hasattr(each, "value_lengths")]
        counts = {name: each.value_lengths() for name, each in lists.items() if name not in unlike}
        lengths = next(iter(counts.values()), None)
        wrong = next((name for name, each in counts.items() if not each.equals(lengths)), None)
        if unlike or wrong:
            raise DataError(f"{file}: field 'steps.{wrong or unlike[0]}' has not a value for each step of an episode")
        fields = {name: each.flatten() for name, each in lists.items()}
    if not fields:
        raise DataError(f"{file}: field 'steps' holds {steps.type}, no steps with fields"[:200])
    ends = np.cumsum(np.nan_to_num(lengths.to_numpy(zero_copy_only=False)).astype(np.int64))
    bounds = np.zeros(int(ends[-1]) if len(ends) else 0, np.bool_)
    bounds[ends[ends > 0] - 1] = True
    return fields, bounds


def _is_struct(array: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_struct(array.type))


def _field(fields: Mapping[str, Any], name: str, file: Path) -> Any:
    """Return a field of the steps; a dot in its name leads into a struct."""
    there, found = fields, None
    for key in name.split("."):
        if key not in there:
            raise DataError(f"{file}: a step has no field {name!r}{suggestion(key, [*there])}")
        found = there[key]
        inner = found.flatten() if _is_struct(found) else ()
        there = dict(zip((field.name for field in found.type), inner, strict=True)) if inner else {}
    return found


def _flag(fields: Mapping[str, Any], name: str, file: Path) -> Array:
    found: Any = _numbers(_field(fields, name, file), name, None, file)
    if isinstance(found, dict) or found.ndim != 1 or not np.isin(found, (0, 1)).all():
        raise DataError(f"{file}: field {name!r} holds something else than true or false")
    flags: Array = found.astype(np.bool_)
    return flags


def _numbers(array: Any, name: str, rows: Array | None, file: Path) -> Any:
    """Return a field of n steps as an array `[n, …]`, or as a dict of such if it is a struct; `rows` are their numbers
    in messages."""
    import pyarrow
    from pyarrow import types

    n, shape = len(array), list[int]()
    rows = np.arange(n) if rows is None else rows

    def check(whole: Any) -> None:
        if whole.null_count:
            at = whole.is_null().index(pyarrow.scalar(True)).as_py() // max(1, int(np.prod(shape)))
            raise DataError(f"{file}: field {name!r} has no value in step {rows[at]}")

    array = getattr(array, "storage", array)  # of an extension type, such as an array of the package datasets
    check(array)
    if _is_struct(array):
        parts = zip((field.name for field in array.type), array.flatten(), strict=True)
        return {key: _numbers(part, f"{name}.{key}", rows, file) for key, part in parts}
    while hasattr(array, "value_lengths"):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        unlike = np.flatnonzero(lengths != lengths[:1])
        if unlike.size:
            at = rows[unlike[0] // max(1, int(np.prod(shape)))]
            raise DataError(
                f"{file}: field {name!r} has {lengths[unlike[0]]} values in step {at}, and {lengths[0]} before"
            )
        array = array.flatten()
        shape.append(int(lengths[0]) if len(lengths) else 0)
        array = getattr(array, "storage", array)
        check(array)
    if not (types.is_integer(array.type) or types.is_floating(array.type) or types.is_boolean(array.type)):
        raise DataError(f"{file}: field {name!r} holds {array.type}, no numbers")
    return array.to_numpy(zero_copy_only=False).reshape(n, *shape)


def _joined(parts: Sequence[Any], name: str, path: Path) -> Any:
    """Return the columns of all files as one."""
    if any(isinstance(part, dict) for part in parts):
        keys = {tuple(part) if isinstance(part, dict) else None for part in parts}
        if len(keys) > 1:
            raise DataError(f"{path}: field {name!r} differs between the files")
        return {key: _joined([part[key] for part in parts], f"{name}.{key}", path) for key in parts[0]}
    if len({part.shape[1:] for part in parts}) > 1:
        raise DataError(f"{path}: field {name!r} differs in shape between the files")
    return np.concatenate(parts)


def _store(group: h5py.Group, name: str, value: Any) -> None:
    if isinstance(value, dict):
        inner = group.create_group(name)
        for key, part in value.items():
            _store(inner, key, part)
    else:
        group.create_dataset(name, data=value, track_times=False)


def _split(columns: Mapping[str, Array], obs: Array, action: Array, reward: Array, path: Path) -> EpisodeDataset:
    """Make episodes of N steps."""
    first, last, terminal = (columns[name] for name in _FLAGS)
    amiss = np.flatnonzero(last[:-1] & ~first[1:])
    if amiss.size:
        raise DataError(f"{path}: step {amiss[0] + 1} follows the last of an episode and is not first (is_first)")
    ends = last | columns["bound"]
    ends[:-1] |= first[1:]
    ends[-1:] = True
    amiss = np.flatnonzero(terminal & ~last)
    if amiss.size:
        raise DataError(f"{path}: step {amiss[0]} is terminal (is_terminal) and not the last of its episode (is_last)")
    episodes, begin = [], 0
    for end in np.flatnonzero(ends).tolist():
        if end > begin:
            terminated = np.zeros(end - begin, np.bool_)
            truncated = terminated.copy()
            (terminated if terminal[end] else truncated)[-1] = True
            steps = slice(begin, end)
            episodes.append(RecordedEpisode(obs[begin : end + 1], action[steps], reward[steps], terminated, truncated))
        begin = end + 1
    open_ends = int((ends & ~last).sum())
    notes = (f"{open_ends} episodes without a last step (is_last) cut at their last observation",) if open_ends else ()
    return EpisodeDataset(episodes, str(path), dropped=open_ends, notes=notes)
