"""Datasets as tables, with a row for each step: CSV and Parquet files, and arrays or data frames in Python."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from evopipe.data.arrow import need_arrow, read_arrow, reading
from evopipe.data.d4rl import as_episodes, read_columns, read_d4rl
from evopipe.data.episodes import EpisodeDataset
from evopipe.data.hdf5 import Array, Unusable, read_apart
from evopipe.data.rlds import read_rlds
from evopipe.errors import DataError, ParamsError, suggestion
from evopipe.schema.fetch import FetchConfig
from evopipe.storage.files import make_folder, write_bytes

_READERS = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Recorded steps in their order in time, as columns: data for offline learning, or to fill a replay buffer at the
    start.

    A dataset that is saved to a file can be named in `fetch.hdf5.path`, with `fetch.source: hdf5`.

    Attributes:
        columns: the columns by D4RL's names, one row a step: `observations`, `actions`, `rewards`, `terminals`, and
            optionally `timeouts` and `next_observations`.

    Examples:
        >>> import numpy as np
        >>> from evopipe import Dataset
        >>> data = Dataset.from_arrays(np.zeros((4, 3)), np.array([0, 1, 1, 0]), np.ones(4), np.array([0, 1, 0, 0]))
        >>> data
        <Dataset: 4 steps; observations float64 [3], actions int64, rewards float64, terminals int64>
        >>> sorted(data.columns), len(data)
        (['actions', 'observations', 'rewards', 'terminals'], 4)
    """

    columns: dict[str, Array]  # by the names of D4RL's layout, `[N, ...]` each

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any = None,
        next_observations: Any = None,
    ) -> Dataset:
        """Return a dataset of N steps from one array for each column.

        Args:
            observations: `[N, ...]`, before each step.
            actions: `[N]` whole numbers, or `[N, A]` floats for actions of A numbers.
            rewards: `[N]`, one for each step.
            terminated: `[N]`, 1 where the step ended the episode in a terminal state.
            truncated: `[N]`, 1 where the episode was cut after the step; None if truncations are not known.
            next_observations: `[N, ...]`, after each step; None if each is the observation of the next row.

        Raises:
            DataError: a column is missing, ragged, not finite, or of a wrong type.
        """
        given = {
            "observations": observations, "actions": actions, "rewards": rewards, "terminals": terminated,
            "timeouts": truncated, "next_observations": next_observations,
        }  # fmt: skip
        made = cls({name: np.asarray(value) for name, value in given.items() if value is not None})
        made._checked(None, False)
        return made

    @classmethod
    def from_frame(cls, frame: Any, **columns: Any) -> Dataset:
        """Return a dataset from a table with one row for each of N steps: a data frame (pandas, polars), a `Dataset` of
        the package datasets, an Arrow table, or a mapping of names to arrays.

        A column holds one number in each row, or a list of C numbers, as `[N, C]`.

        Args:
            frame: the table.
            **columns: the names of the frame's columns, as the block `fetch.table` of `params.yaml` gives them, such as
                `rewards="r"`. What is not given has the block's default.

        Raises:
            ParamsError: an argument is no key of that block.
            DataError: a column is missing, ragged, not finite, or of a wrong type, or the table has splits.
        """
        from evopipe.schema.declare import parsed

        cfg = parsed(FetchConfig.Table, columns)
        return cls._of({str(name): _column(frame[name]) for name in _names_of(frame)}, cfg, "the frame")

    @classmethod
    def from_d4rl(cls, path: str | Path) -> Dataset:
        """Return the steps of an HDF5 file in D4RL's layout, or of a folder of such files, by the rules of `read_d4rl`.

        Observations in the file must be rows of numbers.

        Raises:
            MissingInputError: nothing is at the path, or the folder has no such file.
            DataError: a file is damaged, or cannot be used; the message names HDF5 dataset and index.
        """
        return cls._of_episodes(read_d4rl(Path(path)))

    @classmethod
    def from_rlds(cls, path: str | Path, **fields: Any) -> Dataset:
        """Return the steps of a dataset in RLDS's layout, by the rules of `read_rlds`.

        Observations must be rows of numbers.

        Args:
            path: a file or a folder, as `fetch.rlds.path` of `params.yaml` names it.
            **fields: further keys of the block `fetch.rlds`, such as `observation="observation.state"`.

        Raises:
            ParamsError: an argument is no key of that block.
            MissingInputError: nothing is at the path, the folder has no such file, or pyarrow is not installed.
            DataError: a file is damaged, or cannot be used; the message names field and step.
        """
        from evopipe.schema.declare import parsed

        return cls._of_episodes(read_rlds(parsed(FetchConfig.Rlds, {"path": str(path), **fields}), None, False))

    @classmethod
    def _of_episodes(cls, found: EpisodeDataset) -> Dataset:
        episodes = found.episodes
        if not episodes:
            raise DataError(f"{found.where}: holds no step; give a dataset with at least one episode")
        columns = {"actions": "action", "rewards": "reward", "terminals": "terminated", "timeouts": "truncated"}
        gathered = {key: np.concatenate([getattr(each, name) for each in episodes]) for key, name in columns.items()}
        obs, after = (np.concatenate([each.obs[part] for each in episodes]) for part in (slice(-1), slice(1, None)))
        return cls({"observations": obs, **gathered, "next_observations": after})

    @classmethod
    def _of(cls, table: Mapping[str, Array], cfg: FetchConfig.Table, where: str) -> Dataset:
        """Gather the columns that a configuration names."""
        names = [*table]
        obs = _gathered(table, _named(names, cfg.observations, "observations", where), where)
        actions = _gathered(table, _named(names, cfg.actions, "actions", where), where)
        columns = {"observations": obs, "actions": actions[:, 0] if actions.shape[1] == 1 else actions}
        for name, column in (("rewards", cfg.rewards), ("terminals", cfg.terminals), ("timeouts", cfg.timeouts)):
            if column is not None:
                columns[name] = _gathered(table, _named(names, [column], name, where), where, single=True)[:, 0]
        if cfg.episodes is not None:
            (column,) = _named(names, [cfg.episodes], "episodes", where)
            ends = np.append(table[column][1:] != table[column][:-1], True)
            columns["timeouts"] = (columns.get("timeouts", False) != 0) | (ends & (columns["terminals"] == 0))
        if cfg.next_observations:
            columns["next_observations"] = _gathered(
                table, _named(names, cfg.next_observations, "next_observations", where), where
            )
        return cls(columns)

    def __len__(self) -> int:
        return len(self.columns["rewards"])

    def __repr__(self) -> str:
        shapes = ((name, column.dtype, list(column.shape[1:])) for name, column in self.columns.items())
        each = ", ".join(f"{name} {kind}{f' {shape}' if shape else ''}" for name, kind, shape in shapes)
        return f"<Dataset: {len(self):,} steps; {each}>"

    def save(self, path: str | Path) -> Path:
        """Write the dataset to an HDF5 file in D4RL's layout; return the file's path.

        Raises:
            DiskError: the file cannot be written.
        """
        path = Path(path)
        make_folder(path.parent)
        write_bytes(path, self._stored())
        return path

    def episodes(self, name: str, shows: gymnasium.Space[Any] | None = None, discrete: bool = False) -> EpisodeDataset:
        """Split the dataset into episodes by the rules of `read_d4rl`.

        Args:
            name: the dataset's name in messages.
            shows: the environment's observation space, by which observations are flattened; None if the observations in
                the dataset are flat already.
            discrete: whether the environment's actions are discrete; whole floats are then read as indices.

        Raises:
            DataError: a column is missing, ragged, not finite, or of a wrong type; the message begins with `name`.
        """
        return as_episodes(self._checked(shows, discrete, name), name)

    def _checked(
        self, shows: gymnasium.Space[Any] | None, discrete: bool, name: str = "the dataset"
    ) -> dict[str, Array]:
        """Read the columns as from a file, so that they must hold what a file must hold."""
        with h5py.File(io.BytesIO(self._stored()), "r") as file:
            try:
                return read_columns(file, shows, discrete)
            except Unusable as error:
                raise DataError(f"{name}: {error}") from error

    def _stored(self) -> bytes:
        content = io.BytesIO()
        with h5py.File(content, "w") as file:
            for name, array in self.columns.items():
                try:
                    file.create_dataset(name, data=array, track_times=False)
                except TypeError:
                    raise DataError(f"{name}: they are {array.dtype}, no numbers") from None
        return content.getvalue()


def read_table(cfg: FetchConfig.Table, shows: gymnasium.Space[Any] | None, discrete: bool) -> EpisodeDataset:
    """Read the episodes of a CSV or Parquet file that has one row per step, in a process with limited memory.

    Steps are split into episodes by the rules of `read_d4rl`. An episode also ends where the value in the column
    `cfg.episodes` changes.

    Args:
        cfg: the block `fetch.table`: the file's path, and the names of its columns.
        shows: the environment's observation space, by which observations are flattened; None if the observations in the
            file are flat already.
        discrete: whether the environment's actions are discrete; whole floats are then read as indices.

    Raises:
        ParamsError: the file's name ends in none of .csv, .parquet and .pq.
        MissingInputError: the file does not exist, or pyarrow is not installed.
        ResourceError: reading takes more memory than the limit, which depends on the file's size.
        DataError: the file is damaged, lacks a column, or has a wrong value; the message names column and row.
    """
    path = Path(cfg.path)
    kind = _READERS.get(path.suffix.lower())
    if kind is None:
        raise ParamsError(f"fetch.table.path: {cfg.path!r} ends in none of {', '.join(_READERS)}")
    need_arrow(f"fetch.source: table ({path})")

    def work() -> Dataset:
        return Dataset._of(_read(path, kind), cfg, str(path))

    return read_apart(path, work).episodes(str(path), shows, discrete)


def _read(path: Path, kind: str) -> dict[str, Array]:
    """Return all columns of a file."""
    columns: dict[str, Array] = {}
    with reading(path, kind):
        table = read_arrow(path, kind)
        for name in table.column_names:
            column = table.column(name)
            if column.null_count:
                row = column.is_null().combine_chunks().index(True).as_py()
                raise DataError(f"{path}: column {name!r} has no value in row {row} (counted from 0, without the head)")
            columns[name] = _column(column.combine_chunks().to_numpy(zero_copy_only=False))
    return columns


def _named(there: Sequence[str], wanted: Sequence[str], what: str, where: str) -> list[str]:
    """Return the columns that are meant by names, of which those with a `*` at the end mean all that begin so."""
    found: list[str] = []
    for name in wanted:
        begin = name.removesuffix("*")
        columns = [each for each in there if each == name or (begin != name and each.startswith(begin))]
        if not columns:
            raise DataError(f"{where}: has no column {name!r} (fetch.table.{what}){suggestion(name, there)}")
        found += columns
    return found


def _names_of(frame: Any) -> list[Any]:
    """Return the names of a table's columns."""
    names = getattr(frame, "column_names", None)  # of the package datasets, and of Arrow
    if isinstance(names, Mapping):
        raise DataError(f"the frame has the splits {', '.join(names)}: give one of them, such as frame[{min(names)!r}]")
    if names is None:
        names = frame.keys() if hasattr(frame, "keys") else frame.columns
    return list(names)


def _column(values: Any) -> Array:
    """Return a column as an array: `[N]`, or `[N, C]` if every row holds a list of C numbers."""
    try:
        array = np.asarray(values)
        if array.dtype == object and len(array) and all(np.ndim(row) == 1 for row in array):
            array = np.stack([np.asarray(row) for row in array])
    except ValueError:  # lists of unlike lengths
        array = np.empty(len(values), object)
        array[:] = [np.asarray(row) for row in values]
    return array


def _gathered(table: Mapping[str, Array], names: Sequence[str], where: str, single: bool = False) -> Array:
    """Return columns side by side, `[N, C]`, of one type of numbers. If `single` is True, each has one number a row."""
    for name in names:
        array = table[name]
        if array.ndim > (1 if single else 2) or array.dtype.kind not in "biuf":
            first = repr(array[0]) if len(array) else "nothing"
            amiss = "more than one number a row" if array.ndim > 1 else f"no numbers but {array.dtype}"
            raise DataError(f"{where}: column {name!r} holds {amiss} ({first[:40]} in row 0)")
        wrong = np.argwhere(~np.isfinite(array))
        if len(wrong):
            value = array[tuple(wrong[0])]
            raise DataError(f"{where}: column {name!r} holds {value} in row {wrong[0][0]}, not a finite number")
    return np.concatenate([table[name].reshape(len(table[name]), -1) for name in names], axis=1)
