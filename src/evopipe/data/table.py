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

from evopipe.data.d4rl import as_episodes, read_columns
from evopipe.data.episodes import EpisodeDataset
from evopipe.data.hdf5 import Array, Unusable, read_apart
from evopipe.errors import DataError, ParamsError, suggestion
from evopipe.schema.fetch import FetchConfig
from evopipe.storage.files import make_folder, write_bytes

_READERS = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


@dataclass(frozen=True, eq=False)
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
        """Return a dataset from a data frame (pandas, polars), or from a mapping of names to arrays `[N]`, with one row
        for each of N steps.

        Args:
            frame: the data frame or mapping.
            **columns: the names of the frame's columns, as the block `fetch.table` of `params.yaml` gives them, such as
                `rewards="r"`. What is not given has the block's default.

        Raises:
            ParamsError: an argument is no key of that block.
            DataError: a column is missing, ragged, not finite, or of a wrong type.
        """
        from evopipe.schema.declare import parsed

        cfg = parsed(FetchConfig.Table, columns)
        return cls._of({str(name): np.asarray(frame[name]) for name in frame.keys()}, cfg, "the frame")  # noqa: SIM118

    @classmethod
    def _of(cls, table: Mapping[str, Array], cfg: FetchConfig.Table, where: str) -> Dataset:
        """Gather the columns that a configuration names."""
        names = [*table]
        obs = _gathered(table, _named(names, cfg.observations, "observations", where), where)
        actions = _gathered(table, _named(names, cfg.actions, "actions", where), where)
        columns = {"observations": obs, "actions": actions[:, 0] if actions.shape[1] == 1 else actions}
        for name, column in (("rewards", cfg.rewards), ("terminals", cfg.terminals), ("timeouts", cfg.timeouts)):
            if column is not None:
                columns[name] = _gathered(table, _named(names, [column], name, where), where)[:, 0]
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
        MissingInputError: the file does not exist.
        ResourceError: reading takes more memory than the limit, which depends on the file's size.
        DataError: the file is damaged, lacks a column, or has a wrong value; the message names column and row.
    """
    path = Path(cfg.path)
    kind = _READERS.get(path.suffix.lower())
    if kind is None:
        raise ParamsError(f"fetch.table.path: {cfg.path!r} ends in none of {', '.join(_READERS)}")

    def work() -> Dataset:
        return Dataset._of(_read(path, kind), cfg, str(path))

    return read_apart(path, work).episodes(str(path), shows, discrete)


def _read(path: Path, kind: str) -> dict[str, Array]:
    """Return all columns of a file."""
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others reserve what the limit does not allow
    try:
        if kind == "csv":
            from pyarrow import csv

            table = csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False))
        else:
            from pyarrow import parquet

            table = parquet.read_table(path, use_threads=False)
        columns: dict[str, Array] = {}
        for name in table.column_names:
            column = table.column(name)
            if column.null_count:
                row = column.is_null().combine_chunks().index(True).as_py()
                raise DataError(f"{path}: column {name!r} has no value in row {row} (counted from 0, without the head)")
            columns[name] = np.asarray(column.combine_chunks().to_numpy(zero_copy_only=False))
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: is damaged, or no {kind.upper()} file ({reason})") from error
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


def _gathered(table: Mapping[str, Array], names: Sequence[str], where: str) -> Array:
    """Return columns side by side, `[N, C]`, of one type of numbers."""
    for name in names:
        array = table[name]
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            first = repr(array[0]) if len(array) else "nothing"
            raise DataError(f"{where}: column {name!r} holds no numbers but {array.dtype} ({first[:40]} in row 0)")
        wrong = np.flatnonzero(~np.isfinite(array))
        if len(wrong):
            raise DataError(f"{where}: column {name!r} holds {array[wrong[0]]} in row {wrong[0]}, not a finite number")
    return np.stack([table[name] for name in names], axis=1)
