"""Reads HDF5 files in D4RL's layout, and folders of them: https://github.com/Farama-Foundation/D4RL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from evopipe.data.episodes import EpisodeDataset, RecordedEpisode
from evopipe.data.hdf5 import Array, StoredArray, Unusable, read_foreign, same_length
from evopipe.data.observations import read_rows
from evopipe.errors import MissingInputError


def read_d4rl(path: Path, shows: gymnasium.Space[Any] | None = None, discrete: bool = False) -> EpisodeDataset:
    """Read the episodes of an HDF5 file in D4RL's layout, or of a folder of such files in order of their names.

    The file has the HDF5 datasets `observations`, `actions`, `rewards`, `terminals`, and optionally `timeouts` and
    `next_observations`. Observations of a Dict or Tuple space are HDF5 groups. Integer actions are indices.

    Episodes end at terminals and timeouts, and are never joined. AgileRL's files have no timeouts, so truncations are
    unknown in these files, and the result's `notes` say so. If the file has no next observations, the last step of a
    truncated episode is left out, because its true next observation is unknown; the result's `dropped` counts these
    steps. The last step of a terminated episode is kept. Its next observation is then a copy of its own observation,
    which has no effect on targets.

    Args:
        path: the file, or the folder; its files end in .hdf5 or .h5.
        shows: the environment's observation space, by which observations are flattened; None if the observations in the
            file are flat already.
        discrete: whether the environment's actions are discrete. Then whole floats are indices, too, because some of
            AgileRL's files store indices as floats.

    Raises:
        MissingInputError: the file does not exist, or the folder has none.
        DataError: the file is damaged, or a dataset in it cannot be used; the message names dataset and index.
        ResourceError: reading takes more memory than the limit, which depends on the file's size.
    """
    found = [
        as_episodes(read_foreign(file, lambda each: read_columns(each, shows, discrete)), str(file))
        for file in _files(Path(path))
    ]
    episodes = [episode for each in found for episode in each.episodes]
    notes = tuple(dict.fromkeys(note for each in found for note in each.notes))
    return EpisodeDataset(episodes, str(path), dropped=sum(each.dropped for each in found), notes=notes)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in (".hdf5", ".h5"))
    if not found:
        raise MissingInputError(f"{path}: holds no file that ends in .hdf5 or .h5")
    return found


def as_episodes(arrays: dict[str, Array], name: str) -> EpisodeDataset:
    """Split the columns `arrays` that `read_columns` returned into episodes, by the rules of `read_d4rl`. `name` is the
    source's name in messages."""
    timed, following = "timeouts" in arrays, "next_observations" in arrays
    arrays.setdefault("timeouts", np.zeros_like(arrays["terminals"]))
    episodes = [_episode(arrays, first, last) for first, last in _stretches(arrays)]
    kept = [episode for episode in episodes if len(episode)]
    dropped = len(arrays["rewards"]) - sum(len(episode) for episode in kept)
    notes = ["the file has no timeouts: an episode that was cut runs on into the next one"]
    if timed or following:
        notes = []
    if dropped:
        notes.append(f"{dropped} last steps of cut episodes left out: the file has no next observation for them")
    return EpisodeDataset(kept, name, dropped=dropped, notes=tuple(notes))


def read_columns(file: h5py.File, shows: gymnasium.Space[Any] | None, discrete: bool) -> dict[str, Array]:
    """Read and check the datasets of an open HDF5 file in D4RL's layout; return them as arrays by name.

    Args:
        file: the file.
        shows: the environment's observation space, by which observations are flattened; None if the observations in the
            file are flat already.
        discrete: whether the environment's actions are discrete; whole floats are then read as indices.

    Raises:
        Unusable: a dataset is missing, ragged, of a wrong type, or holds a value that is not allowed.
    """
    arrays = {
        "actions": StoredArray(file, "actions").actions(discrete),
        "observations": read_rows(StoredArray(file, "observations"), None, shows),
        "rewards": StoredArray(file, "rewards").rewards(),
        "terminals": StoredArray(file, "terminals").flags(),
    }
    if "timeouts" in file:
        arrays["timeouts"] = StoredArray(file, "timeouts").flags()
    if "next_observations" in file:
        arrays["next_observations"] = read_rows(StoredArray(file, "next_observations"), None, shows)
    same_length({name: len(array) for name, array in arrays.items()})
    if arrays.get("next_observations", arrays["observations"]).shape != arrays["observations"].shape:
        raise Unusable("datasets 'observations' and 'next_observations' differ in shape")
    return arrays


def _stretches(arrays: Mapping[str, Array]) -> Iterator[tuple[int, int]]:
    """Yield first and last step of each stretch in which one step leads to the next."""
    ends = arrays["terminals"] | arrays["timeouts"]
    if "next_observations" in arrays:  # a step that does not lead to the next row ends its stretch, whatever its flags
        ends[:-1] |= (arrays["next_observations"][:-1] != arrays["observations"][1:]).any(axis=1)
    ends[-1:] = True
    first = 0
    for last in np.flatnonzero(ends).tolist():
        yield first, last
        first = last + 1


def _episode(arrays: Mapping[str, Array], first: int, last: int) -> RecordedEpisode:
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
    return RecordedEpisode(obs, arrays["actions"][steps], arrays["rewards"][steps], terminated, truncated)
