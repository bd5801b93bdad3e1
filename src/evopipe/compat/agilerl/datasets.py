"""Conversion of the datasets of `train_offline` to transitions that a run learns from."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from evopipe.data.d4rl import read_d4rl
from evopipe.data.episodes import check_fits
from evopipe.data.minari import cached, read_minari
from evopipe.data.transitions import Transitions, pack
from evopipe.envs.pool import EnvPool
from evopipe.errors import UsageError
from evopipe.schema.env import EnvConfig

_COLUMNS = ("observations", "actions", "rewards", "terminals")
_MORE = ("timeouts", "next_observations")


def transitions_from(
    config: EnvConfig, dataset: Any, minari_dataset_id: str | None, remote: bool, limit: int
) -> Transitions:
    """Return the last `limit` transitions of a dataset, encoded as the transitions of a run in the environment.

    Args:
        config: the block `env` of `params.yaml`, which describes the environment.
        dataset: an open `h5py.File`, the path of such a file, or a mapping of arrays by name; None if
            `minari_dataset_id` is given.
        minari_dataset_id: a Minari dataset, a folder or an id; None if `dataset` is given.
        remote: whether Minari may download the dataset.
        limit: the largest number of transitions.

    Raises:
        UsageError: neither or both datasets are given, or `remote` would have no effect.
        MissingInputError: the dataset does not exist.
        DataError: the dataset is damaged, or does not fit the environment.
    """
    if (dataset is None) == (minari_dataset_id is None):
        raise UsageError("dataset: give one, or minari_dataset_id, one of both")
    if remote and minari_dataset_id is None:
        raise UsageError("remote: it would be without effect: give minari_dataset_id too")
    with contextlib.closing(EnvPool(config, 1, what="described")) as pool:
        if minari_dataset_id is not None:
            found = read_minari(_local(minari_dataset_id, remote), pool.observation_space)
        else:
            with _file(dataset) as path:
                found = read_d4rl(path, pool.observation_space, pool.actions.kind == "discrete")
        check_fits(found, pool.obs_size, pool.action_space)
        transitions = pack(found.episodes, pool.actions.relative)
    if len(transitions) <= limit:
        return transitions
    columns = {each.name: getattr(transitions, each.name)[-limit:] for each in dataclasses.fields(transitions)}
    return Transitions(**columns)


def _local(dataset: str, remote: bool) -> str:
    if remote or Path(dataset).exists():
        return dataset
    if (path := cached(dataset)).exists():
        return dataset
    raise UsageError(
        f"minari_dataset_id: {dataset!r} is neither a folder nor in {path.parent}: set remote=True to fetch it"
    )


@contextlib.contextmanager
def _file(dataset: Any) -> Iterator[Path]:
    """The file that a dataset lies in; arrays by name are written to one for the while."""
    if isinstance(dataset, str | Path):
        yield Path(dataset)
    elif isinstance(dataset, h5py.File):
        yield Path(dataset.filename)
    elif isinstance(dataset, Mapping) or all(hasattr(dataset, name) for name in ("keys", "__getitem__")):
        missing = [name for name in _COLUMNS if name not in dataset]
        if missing:
            raise UsageError(f"dataset: it has no {missing[0]!r}; there must be {', '.join(_COLUMNS)}")
        with tempfile.TemporaryDirectory(prefix="evopipe-") as folder:
            path = Path(folder) / "dataset.hdf5"
            with h5py.File(path, "w") as file:
                for name in (*_COLUMNS, *_MORE):
                    if name in dataset:
                        file[name] = np.asarray(dataset[name])
            yield path
    else:
        raise UsageError(f"dataset: give an h5py.File, its path, or arrays by name, not {type(dataset).__name__}")
