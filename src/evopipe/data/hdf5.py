"""HDF5 files: opening them, and reading numbers safely.

The format does not detect damage: one changed bit can turn a column into zeros. A file of evopipe's own is therefore
opened only after its SHA-256 was compared: in a folder with a manifest (`storage/folders.py`), or alone and sealed
(`transitions.py`). Nothing in a dataset from elsewhere is trusted: links and storage outside the file, objects,
declared sizes that the file does not hold, ragged lengths and values that are not finite are refused, with dataset and
index. A file from elsewhere is read in a separate process with limited memory: ten thousand bytes can unpack to any
size, and a damaged file can crash the library that reads it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import numpy.typing as npt
import psutil

from evopipe.errors import DataError, MissingInputError, ResourceError
from evopipe.parallel import Died, Helper, can_help

Array = npt.NDArray[Any]
_T = TypeVar("_T")

_MAX_RATIO = 1100  # deflate's limit is 1032: a dataset that declares more than this holds nothing but its declaration
_TIMES, _SPARE = 64, 2**30  # what anybody wrote may take 64 times its size and 1 GiB


class Unusable(Exception):
    """The content of a file cannot be used. Whoever opened the file puts its name before the text."""


def check_regular(path: Path) -> None:
    """Check that a path is a file.

    Raises:
        MissingInputError: there is nothing.
        DataError: there is something else.
    """
    if not path.is_file():
        if path.exists():
            raise DataError(f"{path}: is not a regular file")
        raise MissingInputError(f"{path}: is not there; run the stage that writes it, or correct the path")


@contextlib.contextmanager
def opened(source: Path | bytes, where: str) -> Iterator[h5py.File]:
    """Open a file or its content for a `with` block: evopipe's own after its checksum, others in a separate process.

    Raises:
        DataError: it is not HDF5, or the block raised `Unusable`; the message begins with `where`.
    """
    try:
        with h5py.File(io.BytesIO(source) if isinstance(source, bytes) else source, "r") as file:
            link = file.id.links.visit(_leads_away, info=True)  # h5py's own `visititems_links` would follow each
            if link is not None:
                raise Unusable(f"'{link.decode(errors='replace')}' is a link to another place; links are not followed")
            yield file
    except Unusable as error:
        raise DataError(f"{where}: {error}") from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # h5py: a TypeError for unknown types
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: is truncated, damaged or not HDF5 ({reason})") from error


def _leads_away(name: bytes, info: Any) -> bytes | None:
    """Name a link that could lead to another file's bytes; soft ones too, for they lead on to external ones."""
    return None if info.type == h5py.h5l.TYPE_HARD else name


def read_foreign(path: Path, read: Callable[[h5py.File], _T]) -> _T:
    """Return the result of `read` on a file, see `read_apart`.

    Raises:
        MissingInputError, ResourceError: see `read_apart`.
        DataError: it is damaged, `read` raised `Unusable`, or reading it crashed.
    """

    def work() -> _T:
        with opened(path, str(path)) as file:
            return read(file)

    return read_apart(path, work)


def read_apart(path: Path, read: Callable[[], _T]) -> _T:
    """Return the result of `read`, which must be picklable, from a process that reads a file of unknown origin.

    On a system without helper processes (not Linux), the file is read in this process, without a limit of memory.

    Raises:
        MissingInputError: there is no such file.
        DataError: reading it crashed, or `read` raised it.
        ResourceError: reading it takes more memory than its size explains.
    """
    check_regular(path)
    if not can_help():
        return read()
    allowed = _TIMES * path.stat().st_size + _SPARE
    too_much = (
        f"{path}: takes more than {allowed / 2**30:.1f} GiB of memory, the limit for its size ({_TIMES} times that and "
        "1 GiB); if you trust it, unpack it first with `h5repack -f NONE`, else fetch another dataset"
    )
    with open(os.memfd_create("evopipe"), "w+b") as result:

        def work() -> None:
            _limit(allowed)
            try:
                content = read()
                pickle.dump(content, result, pickle.HIGHEST_PROTOCOL)
                result.flush()
            except MemoryError:
                raise ResourceError(too_much) from None

        helper = Helper(work)
        try:
            helper.tell()
            error = helper.wait()
        except Died as died:
            if died.killed:
                remedy = "use a machine with more, or fetch another dataset"
                raise ResourceError(f"{path}: reading it took all memory there is ({died}); {remedy}") from died
            raise DataError(f"{path}: is damaged so that reading it crashed ({died}); fetch another dataset") from died
        finally:
            helper.dismiss()
        if error is not None:
            raise error
        result.seek(0)
        found: _T = pickle.load(result)
        return found


def _limit(more: int) -> None:
    """Limit this process to a number of bytes of address space more than now, without a core file if it crashes.

    If the machine has less memory than that, the kernel should end this process, and no other.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + more
    resource.setrlimit(resource.RLIMIT_AS, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard))
    with contextlib.suppress(OSError):  # /proc may be read-only
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


class StoredArray:
    """An entry, by its name, of a group in an HDF5 file. Its methods read it as what they say, and raise `Unusable` if
    it is something else."""

    def __init__(self, group: h5py.Group, name: str) -> None:
        self._group, self._name = group, name
        self.label = f"{group.name}/{name}".strip("/")  # its path in the file

    def found(self) -> h5py.Group | h5py.Dataset:
        """Return the entry, whatever it is."""
        if self._name not in self._group:
            raise Unusable(f"has no dataset '{self.label}'")
        return self._group[self._name]

    def group(self, otherwise: str) -> h5py.Group:
        """Return the entry as an HDF5 group.

        Raises:
            Unusable: there is no such entry, or it is no group; the message then ends with the text `otherwise`.
        """
        if not isinstance(found := self.found(), h5py.Group):
            raise Unusable(f"'{self.label}' is no group{otherwise}")
        return found

    def dataset(self) -> h5py.Dataset:
        """Return the entry as a dataset that stores its values in its own file, as many as it declares."""
        found = self.found()
        if not isinstance(found, h5py.Dataset):
            raise Unusable(f"'{self.label}' is a group, expected a dataset")
        if found.is_virtual or found.external:
            raise self.wrong("keeps its values in other files; that is not read")
        held = found.id.get_storage_size()
        if found.nbytes > _MAX_RATIO * held + 2**20:
            raise self.wrong(f"declares {found.nbytes} bytes and holds {held}")
        return found

    def numbers(self, kinds: str = "biuf", *, rank: int | None = None, limit: int | None = None) -> Array:
        """Read the first `limit` rows, of `rank` dimensions. Their type must be one of `kinds` (NumPy's letters)."""
        found = self.dataset()
        if found.dtype.kind not in kinds:
            names = {"b": "bool", "i": "integer", "f": "float"}
            expected = " or ".join(names[kind] for kind in kinds if kind in names)
            raise self.wrong(f"has dtype {found.dtype}, expected {expected}")
        if not found.shape or rank not in (None, len(found.shape)):
            raise self.wrong(f"has shape {found.shape}, expected {rank or 1} dimension(s)")
        return np.asarray(found[:limit])

    def _column(self, kinds: str = "biuf") -> Array:
        """Read one number a step, `[N]`; some files keep them as `[N, 1]`."""
        array = self.numbers(kinds)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise self.wrong(f"has shape {array.shape}, expected 1 dimension(s)")
        return array

    def rewards(self) -> Array:
        """Read rewards, `[N]` float32."""
        return self.finite(self._column("fiu"))

    def flags(self) -> Array:
        """Read flags, `[N]` bool, stored as any numbers that are 0 or 1."""
        array = self._column()
        wrong = np.flatnonzero((array != 0) & (array != 1))
        if wrong.size:
            raise self.wrong(f"holds {array[wrong[0]]} at index {wrong[0]}, expected 0 or 1")
        return array.astype(np.bool_)

    def actions(self, discrete: bool = False) -> Array:
        """Read actions: integers are indices, `[N]` int64; floats are vectors, `[N, A]` float32. Floats `[N]` or
        `[N, 1]` that are all whole numbers are indices too if actions are known to be `discrete`."""
        array = self.numbers("fiu")
        single = array.size == len(array)
        if array.dtype.kind == "f":
            if not (discrete and single and np.isfinite(array).all() and (array == np.rint(array)).all()):
                return self.finite(array.reshape(len(array), int(np.prod(array.shape[1:]))))
        elif array.ndim > 1 and array.shape != (len(array), 1):
            raise self.wrong(f"has shape {array.shape}; whole numbers are one index a step, vectors are floats")
        return array.reshape(-1).astype(np.int64)

    def finite(self, array: Array) -> Array:
        """Convert what was read to float32, which must be finite then."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes infinite
            array = np.ascontiguousarray(array, np.float32)
        wrong = np.argwhere(~np.isfinite(array))
        if wrong.size:
            raise self.wrong(f"holds {array[tuple(wrong[0])]} at index {wrong[0].tolist()}, not a finite float32")
        return array

    def wrong(self, what: str) -> Unusable:
        """Return the error that says what is wrong with a dataset."""
        return Unusable(f"dataset '{self.label}' {what}")


def same_length(lengths: Mapping[str, int]) -> int:
    """Return the common length of datasets that belong together."""
    (first, length), *others = lengths.items()
    for name, other in others:
        if other != length:
            raise Unusable(f"ragged, dataset '{name}' has {other} rows and '{first}' {length}")
    return length
