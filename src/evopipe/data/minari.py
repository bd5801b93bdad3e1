"""Minari datasets: written as Minari writes them, read without its loader. The package fetches those of its remote.

Metadata is parsed as plain JSON. No environment and no callable is ever made from it, as Minari's own loader would do.
Layout: https://minari.farama.org/content/dataset_standards/.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import h5py
import numpy as np

from evopipe.data.described import space_from, space_to_text
from evopipe.data.episodes import EpisodeDataset, RecordedEpisode
from evopipe.data.hdf5 import StoredArray, Unusable, opened, read_foreign, same_length
from evopipe.data.observations import compare, read_rows
from evopipe.errors import DataError, MissingInputError, need_package
from evopipe.storage.files import dump_json, parse_json, read_bytes
from evopipe.storage.folders import MANIFEST, read_folder, write_folder

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

Space = gymnasium.Space[Any]

_OWN = "evopipe/"  # namespace of the ids of evopipe's own datasets, which hold observations as rows
_METADATA, _CONTENT = "metadata.json", "main_data.hdf5"
_VERSION = "0.5.4"  # of Minari, whose layout it is
_MAX_METADATA = 16 * 2**20
_REACH_SECONDS = 30.0
_DOWNLOAD_SECONDS = 6 * 3600.0
_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+", re.ASCII)
# Minari answers a dead network with hours of retries or a long traceback: a child process can be stopped and summed up.
# It ends with its parent (prctl(PR_SET_PDEATHSIG, SIGKILL)), which may be killed while it waits.
_END = "import ctypes,sys;sys.platform=='linux' and ctypes.CDLL(None).prctl(1,9);"
_LIST = _END + "import json,minari,sys;print(json.dumps(sorted(minari.list_remote_datasets(prefix=sys.argv[1]))))"
# Without force a folder that a stopped download left behind would count as the dataset.
_DOWNLOAD = _END + "import minari,sys;minari.download_dataset(sys.argv[1],force_download=sys.argv[2]=='again')"


def write_minari(
    folder: Path,
    episodes: Sequence[RecordedEpisode],
    *,
    name: str,
    observation_space: Space,
    action_space: Space,
    env_spec: EnvSpec | None,
    algorithm: str,
    description: str,
) -> None:
    """Write recorded episodes as the Minari dataset `evopipe/<name>-v0` into a folder, with a manifest of checksums.

    `MinariDataset(folder / "data")` opens the dataset. An existing folder is replaced completely. Equal content gives
    equal bytes.

    Args:
        folder: the folder.
        episodes: the episodes.
        name: the name in the dataset's id.
        observation_space: the space of the observations in `episodes`, which are flat rows.
        action_space: the environment's action space.
        env_spec: the environment's spec in Gymnasium; None, or a spec that JSON cannot hold, is left out.
        algorithm: how the episodes came about, which the dataset records as `algorithm_name`.
        description: a text about the dataset.

    Raises:
        DiskError: a file cannot be written.
    """
    with h5py.File("in memory", "w", driver="core", backing_store=False) as file:  # with the bytes of a file on disk
        for number, episode in enumerate(episodes):
            _write_episode(file.create_group(f"episode_{number}"), number, episode, observation_space, action_space)
        file.flush()
        content = file.id.get_file_image()
    about: dict[str, Any] = {
        "total_episodes": len(episodes),
        "total_steps": sum(len(episode.reward) for episode in episodes),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": space_to_text(observation_space),
        "action_space": space_to_text(action_space),
    }
    with contextlib.suppress(Exception):  # without a spec that JSON cannot hold the dataset is whole, too
        about |= {"env_spec": env_spec.to_json()} if env_spec is not None else {}
    about |= {
        "dataset_id": f"{_OWN}{name}-v0",
        "minari_version": _VERSION,
        "algorithm_name": algorithm,
        "description": description,
    }
    about["dataset_size"] = round((len(content) + len(json.dumps(about))) / 1e6, 1)  # MB
    metadata = dump_json(about, str(folder), indent=2)
    write_folder(folder, {f"data/{_CONTENT}": content, f"data/{_METADATA}": metadata})


def _write_episode(
    group: h5py.Group, number: int, episode: RecordedEpisode, observation_space: Space, action_space: Space
) -> None:
    """Write an episode of n steps: its columns, `[n, …]`, which anybody may make longer, and its attributes."""
    group.attrs["id"] = number
    if episode.seed is not None:
        group.attrs["seed"] = episode.seed
    group.attrs["total_steps"] = len(episode.reward)
    columns = {
        "observations": episode.obs.astype(observation_space.dtype),
        "actions": episode.action.reshape(-1, *(action_space.shape or ())),
        "rewards": episode.reward,
        "terminations": episode.terminated,
        "truncations": episode.truncated,
    }
    for name, column in columns.items():
        group.create_dataset(name, data=column, chunks=True, maxshape=(None, *column.shape[1:]))


def read_own(folder: Path) -> EpisodeDataset:
    """Read a dataset that `write_minari` wrote, after its checksums were verified.

    Raises:
        MissingInputError: the dataset or its manifest is missing.
        DataError: the dataset is damaged.
    """
    files, data = read_folder(folder, (f"data/{_METADATA}", f"data/{_CONTENT}")), folder / "data"
    metadata = _metadata(files[f"data/{_METADATA}"], f"{data / _METADATA}")
    with opened(files[f"data/{_CONTENT}"], str(data / _CONTENT)) as file:
        return EpisodeDataset(_episodes(file, metadata, None), str(data), metadata["action_space"])


def read_minari(dataset: str | Path, shows: Space | None = None) -> EpisodeDataset:
    """Read the episodes of a Minari dataset whose actions are Discrete or Box.

    Args:
        dataset: the dataset's folder or the folder `data` in it; or the id of a remote dataset (`namespace/name-v0`),
            which is downloaded into Minari's cache first unless the cache has it.
        shows: the environment's observation space, by which observations are flattened; None if the observations in the
            dataset are flat already, as `write_minari` writes them.

    Raises:
        MissingInputError: the dataset does not exist, or the remote server cannot be reached.
        DataError: a file is damaged or cannot be used.
        ResourceError: reading takes more memory than the limit, which depends on the file's size.
    """
    root = Path(dataset) if Path(dataset).exists() else _local_folder(str(dataset))
    data = next((folder for folder in (root / "data", root) if (folder / _METADATA).is_file()), None)
    if data is None:
        raise MissingInputError(f"{root}: holds no Minari dataset (no data/{_METADATA})")
    if data.name == "data" and (data.parent / MANIFEST).is_file():
        read_folder(data.parent)  # refuses damage
    size = (data / _METADATA).stat().st_size
    if size > _MAX_METADATA:
        raise DataError(f"{data / _METADATA}: {size} bytes of metadata; a dataset's are a few thousand")
    metadata = _metadata(read_bytes(data / _METADATA), str(data / _METADATA))
    episodes = read_foreign(data / _CONTENT, lambda file: _episodes(file, metadata, shows))
    return EpisodeDataset(episodes, str(data), metadata["action_space"])


def _metadata(content: bytes, where: str) -> dict[str, Any]:
    """Parse metadata, with the spaces built where it records any."""
    found = parse_json(content, where)
    if not isinstance(found, dict) or not isinstance(found.get("total_episodes"), int):
        raise DataError(f"{where}: not the metadata of a Minari dataset (no total_episodes)")
    if found.get("data_format", "hdf5") != "hdf5":
        raise DataError(f"{where}: data format {found['data_format']!r} is not served; store the dataset as hdf5")
    return {**found, **{key: _space(found.get(key), key, where) for key in ("observation_space", "action_space")}}


def _space(described: Any, key: str, where: str) -> Space | None:
    """Build a space from its description, None where there is none."""
    if described is None:
        return None
    try:
        return space_from(described)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: {key} {str(described)[:100]} describes no space ({reason})") from error


def _episodes(file: h5py.File, metadata: Mapping[str, Any], shows: Space | None) -> list[RecordedEpisode]:
    recorded = metadata["observation_space"]
    if recorded is not None and len(recorded.shape or ()) == 1 and str(metadata.get("dataset_id")).startswith(_OWN):
        shows = None  # rows already
    if shows is not None and recorded is not None:
        compare(recorded, shows)
    if len(file) != metadata["total_episodes"]:
        raise Unusable(f"holds {len(file)} episodes, its metadata says {metadata['total_episodes']}")
    return [_episode(file, f"episode_{number}", recorded, shows) for number in range(len(file))]


def _episode(file: h5py.File, name: str, recorded: Space | None, shows: Space | None) -> RecordedEpisode:
    group = StoredArray(file, name).group(": not a Minari dataset")
    parts = [StoredArray(group, part) for part in ("actions", "rewards", "terminations", "truncations")]
    taken, reward, terminated, truncated = arrays = (
        parts[0].actions(), parts[1].rewards(), parts[2].flags(), parts[3].flags(),
    )  # fmt: skip
    steps = same_length({part.label: len(array) for part, array in zip(parts, arrays, strict=True)})
    obs = read_rows(shown := StoredArray(group, "observations"), recorded, shows)
    if len(obs) != steps + 1:
        raise Unusable(f"'{shown.label}' has {len(obs)} rows for {steps} steps, expected {steps + 1}")
    early = np.flatnonzero((terminated | truncated)[:-1])
    if early.size:
        raise Unusable(f"'{name}' ends at step {early[0]} and goes on: its flags cannot be right")
    truncated[-1:] |= ~terminated[-1:]  # where recording stopped, the episode is cut
    seed = group.attrs.get("seed")
    return RecordedEpisode(
        obs, taken, reward, terminated, truncated, int(seed) if isinstance(seed, int | np.integer) else None
    )


# --- remote datasets --------------------------------------------------------------------------------------------------


def cached(dataset_id: str) -> Path:
    """Return the folder in which Minari's cache has a remote dataset, or would have it."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets") / dataset_id


def _local_folder(dataset_id: str) -> Path:
    """Return the local folder of a remote dataset, downloaded unless Minari's cache has it."""
    if not _ID.fullmatch(dataset_id):
        raise MissingInputError(
            f"fetch.minari.dataset: {dataset_id!r} is no folder here and no remote id (namespace/name-v0)"
        )
    folder = cached(dataset_id)
    if not all((folder / "data" / name).is_file() for name in ("metadata.json", "main_data.hdf5")):
        need_package("minari", "minari", f"fetch.minari.dataset: the remote of {dataset_id!r}")
        known = json.loads(_child([_LIST, dataset_id.rpartition("-v")[0]], dataset_id, _REACH_SECONDS) or "[]")
        if dataset_id not in known:
            others = f"; it has {', '.join(known)}" if known else ""
            raise MissingInputError(f"fetch.minari.dataset: the remote has no dataset {dataset_id!r}{others}")
        _child([_DOWNLOAD, dataset_id, "again" if folder.exists() else "new"], dataset_id, _DOWNLOAD_SECONDS)
    return folder


def _child(script: list[str], dataset_id: str, seconds: float) -> str:
    """Run a line of Python with arguments in a process of its own and return the last line it printed."""
    what = f"fetch.minari.dataset: the remote of {dataset_id!r}"
    remedy = "check the network, or give a local folder"
    command = [sys.executable, "-c", *script]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise MissingInputError(f"{what} did not answer within {seconds:g} s; {remedy}") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().rpartition("\n")[2].strip()[:300] or f"exit code {error.returncode}"
        raise MissingInputError(f"{what} cannot be used ({reason}); {remedy}") from error
    return done.stdout.strip().rpartition("\n")[2]
