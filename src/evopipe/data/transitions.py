"""The packed transitions from which members learn: one HDF5 file, `data/transitions.h5`."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from evopipe.core import pixels
from evopipe.data.episodes import RecordedEpisode
from evopipe.data.hdf5 import Array, StoredArray, Unusable, check_regular, opened, same_length
from evopipe.errors import DataError
from evopipe.storage.files import RESTORE, dump_json, write_bytes

SEAL = 512  # bytes at a file's beginning that HDF5 leaves to others (its user block), the fewest there can be
_FORMAT = 1
_LISTED = 128  # most elements that are described one by one: images have thousands
_DTYPES = {
    "obs": np.float32,
    "action": np.int64,
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "next_obs": np.float32,
    "episode": np.int64,
}


@dataclass(frozen=True, slots=True)
class Transitions:
    """`N` transitions, as arrays with one row for each transition; an observation has `O` numbers, a continuous action
    `A`.

    Attributes:
        obs: `[N, O]` float32, the observations before the steps.
        action: `[N]` int64, indices from 0; or `[N, A]` float32 in [-1, 1], scaled from the action space's bounds.
        reward: `[N]` float32, the rewards.
        terminated: `[N]` bool, whether the step reached an end state, so that nothing is bootstrapped.
        truncated: `[N]` bool, whether the episode was cut after the step; `next_obs` is still its next observation.
        next_obs: `[N, O]` float32, the observations after the steps.
        episode: `[N]` int64, the number of the episode.
    """

    obs: Array  # [N, O] float32
    action: Array  # [N] int64, indices from 0; or [N, A] float32 in [-1, 1], relative to the action space's bounds
    reward: Array  # [N] float32
    terminated: Array  # [N] bool; `next_obs` has no future
    truncated: Array  # [N] bool; the episode was cut after this step, `next_obs` is still its true next observation
    next_obs: Array  # [N, O] float32
    episode: Array  # [N] int64, the episode's number

    def __len__(self) -> int:
        return len(self.action)


def pack(episodes: Sequence[RecordedEpisode], relative: Callable[[Array], Array]) -> Transitions:
    """Concatenate one or more recorded episodes into transitions.

    `relative` converts the environment's actions `[N, …]` to indices from 0, or to vectors in [-1, 1].
    """
    whole = {
        name: np.concatenate([getattr(episode, name) for episode in episodes])
        for name in ("reward", "terminated", "truncated")
    }
    return Transitions(
        obs=np.concatenate([episode.obs[:-1] for episode in episodes]),
        action=relative(np.concatenate([episode.action for episode in episodes])),
        next_obs=np.concatenate([episode.obs[1:] for episode in episodes]),
        episode=np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes]),
        **whole,
    )


def write_transitions(path: Path, transitions: Transitions, stats: Mapping[str, Any]) -> None:
    """Write transitions and their statistics `stats` (JSON data) to one HDF5 file, atomically, with a SHA-256 checksum
    in its first bytes.

    Equal content gives equal bytes. Observations are stored as bytes if they consist of byte-valued images only.

    Raises:
        DiskError: the file cannot be written.
    """
    memory = io.BytesIO()
    with h5py.File(memory, "w", userblock_size=SEAL) as file:
        file.attrs["format"] = _FORMAT
        file.attrs["stats"] = np.bytes_(dump_json(dict(stats), str(path)))
        for name, dtype in _DTYPES.items():
            array: Array = getattr(transitions, name)
            array = np.ascontiguousarray(array, np.float32 if name == "action" and array.ndim == 2 else dtype)
            if name.endswith("obs") and (images := pixels.exact(array)) is not None:
                array = images
            file.create_dataset(name, data=array)
    write_bytes(path, sealed(memory.getbuffer()))


def read_transitions(path: Path, limit: int | None = None) -> Transitions:
    """Read the first `limit` transitions of a file that `write_transitions` wrote; all transitions if `limit` is None.

    Raises:
        MissingInputError: the file does not exist.
        DataError: the file is truncated, damaged or ragged, or holds values of a wrong type or that are not finite.
    """
    with _opened(Path(path)) as file:
        if file.attrs.get("format") != _FORMAT:
            raise Unusable(f"not a transitions file of format {_FORMAT}; run the stage `buffer` again")
        found = Transitions(**{name: _read(file, name, limit) for name in _DTYPES})
        same_length({name: len(file[name]) for name in _DTYPES})
        if found.obs.shape != found.next_obs.shape:
            raise Unusable(f"datasets 'obs' {found.obs.shape} and 'next_obs' {found.next_obs.shape} differ")
        low, high = (0, np.inf) if found.action.ndim == 1 else (-1, 1)
        wrong = np.argwhere((found.action < low) | (found.action > high))
        if wrong.size:
            value = found.action[tuple(wrong[0])]
            raise Unusable(f"dataset 'action' holds {value} at index {wrong[0].tolist()}, not from {low} to {high}")
    return found


def sealed(content: memoryview) -> memoryview:
    """Write the SHA-256 of an HDF5 file's content into its first `SEAL` bytes, in place; return the content.

    The file must have been made with `userblock_size=SEAL`, which leaves these bytes free.
    """
    content[:SEAL] = _seal(hashlib.sha256(content[SEAL:]).hexdigest())
    return content


def _seal(digest: str) -> bytes:
    return f"evopipe sha256 {digest}\n".encode().ljust(SEAL, b"\0")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open a sealed file; any changed bit of it is a DataError."""
    check_regular(path)
    try:
        with open(path, "rb") as file:
            intact = file.read(SEAL) == _seal(hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}): {RESTORE}") from error
    if not intact:
        raise DataError(f"{path}: is damaged or not written by evopipe, its checksum does not match: {RESTORE}")
    with opened(path, str(path)) as content:
        yield content


def _read(file: h5py.File, name: str, limit: int | None) -> Array:
    part = StoredArray(file, name)
    vectors = name.endswith("obs") or (name == "action" and getattr(part.found(), "ndim", 1) == 2)
    array = part.numbers(rank=2 if vectors else 1, limit=limit)
    if name.endswith("obs") and array.dtype == np.uint8:
        array = pixels.numbers(array)
    expected = np.dtype(np.float32 if vectors else _DTYPES[name])
    if array.dtype != expected:
        raise part.wrong(f"has dtype {array.dtype}, expected {expected}")
    return part.finite(array) if expected == np.float32 else array


def statistics(transitions: Transitions, num_actions: int) -> dict[str, Any]:
    """Return statistics of transitions as plain numbers for JSON.

    These are counts, and summaries of episodes' returns and lengths, of rewards, and of each element of observations.
    `actions` has the count of each of the `num_actions` discrete actions, or a summary of each element of continuous
    actions. A summary is the mean, standard deviation, minimum and maximum.
    """
    returns = np.bincount(transitions.episode, weights=transitions.reward.astype(np.float64))
    lengths = np.bincount(transitions.episode).astype(np.float64)
    played = lengths > 0
    action = transitions.action
    return {
        "transitions": len(transitions),
        "episodes": int(played.sum()),
        "terminations": int(transitions.terminated.sum()),
        "truncations": int((transitions.truncated & ~transitions.terminated).sum()),
        "return": _summary(returns[played]),
        "length": _summary(lengths[played]),
        "reward": _summary(transitions.reward.astype(np.float64)),
        "obs": _by_element(transitions.obs),
        "actions": np.bincount(action, minlength=num_actions).tolist() if action.ndim == 1 else _by_element(action),
    }


def _by_element(rows: Array) -> dict[str, list[float]]:
    """Describe each column of `[N, n]`; where there are very many, all of them as one."""
    wide = rows.astype(np.float64)
    return _summary(wide if wide.shape[1] <= _LISTED else wide.reshape(-1, 1))


def _summary(values: Array) -> dict[str, Any]:
    """Describe numbers `[N]`, or each column of `[N, n]`."""
    return {name: getattr(values, name)(axis=0).tolist() for name in ("mean", "std", "min", "max")}
