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
    """The error raised when the content of a file cannot be used.

    Code that knows the file's name converts this error to a `DataError` that begins with the name.
    """


def check_regular(path: Path) -> None:
    """Check that a path leads to a regular file.

    Raises:
        MissingInputError: nothing exists at the path.
        DataError: the path leads to a folder or to something else.
    """
    if not path.is_file():
        if path.exists():
            raise DataError(f"{path}: is not a regular file")
        raise MissingInputError(f"{path}: is not there; run the stage that writes it, or correct the path")


@contextlib.contextmanager
def opened(source: Path | bytes, where: str) -> Iterator[h5py.File]:
    """Open an HDF5 file, or the bytes of one, inside a `with` block, and refuse files with links to other places.

    Call this for evopipe's own files after their checksum was verified, and for other files in a separate process.

    Raises:
        DataError: the file is not HDF5 or is damaged, or the block raised `Unusable`; the message begins with `where`.
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
    """Open an HDF5 file of unknown origin in a separate process with limited memory, call `read` with the open file
    there, and return the result, which must be picklable.

    Raises:
        MissingInputError: the file does not exist.
        ResourceError: reading takes more memory than the limit, which depends on the file's size.
        DataError: the file is damaged, `read` raised `Unusable`, or the process crashed.
    """

    def work() -> _T:
        with opened(path, str(path)) as file:
            return read(file)

    return read_apart(path, work)


def read_apart(path: Path, read: Callable[[], _T]) -> _T:
    """Call `read`, which reads the file `path` of unknown origin, in a separate process with limited memory; return the
    result.

    The result must be picklable. On a system without helper processes (not Linux), `read` runs in this process and
    without a limit.

    Raises:
        MissingInputError: the file does not exist.
        DataError: the process crashed, or `read` raised this error.
        ResourceError: reading takes more memory than the limit, which depends on the file's size.
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
    import resource  # Windows has none, and no helper processes either

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + more
    resource.setrlimit(resource.RLIMIT_AS, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard))
    with contextlib.suppress(OSError):  # /proc may be read-only
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


class StoredArray:
    """One named entry of a group in an HDF5 file, with methods that read and check its content.

    Every method raises `Unusable` if the entry is missing or holds something else than the method reads.
    """

    def __init__(self, group: h5py.Group, name: str) -> None:
        self._group, self._name = group, name
        self.label = f"{group.name}/{name}".strip("/")  # its path in the file

    def found(self) -> h5py.Group | h5py.Dataset:
        """Return the entry as h5py gives it, a group or a dataset."""
        if self._name not in self._group:
            raise Unusable(f"has no dataset '{self.label}'")
        return self._group[self._name]

    def group(self, otherwise: str) -> h5py.Group:
        """Return the entry as an HDF5 group.

        Raises:
            Unusable: the entry is missing, or is no group. If it is no group, the message ends with `otherwise`.
        """
        if not isinstance(found := self.found(), h5py.Group):
            raise Unusable(f"'{self.label}' is no group{otherwise}")
        return found

    def dataset(self) -> h5py.Dataset:
        """Return the entry as an HDF5 dataset.

        A dataset that keeps its values in other files, or declares many more bytes than it stores, is refused.
        """
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
        """Read the first `limit` rows of the dataset; all rows if `limit` is None.

        The dataset must have `rank` dimensions (None: at least one) and a dtype whose kind is in `kinds` (NumPy's
        letters).
        """
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
        """Read the dataset as rewards of N steps, `[N]` float32, and check that all are finite."""
        return self.finite(self._column("fiu"))

    def flags(self) -> Array:
        """Read the dataset as one flag for each of N steps, `[N]` bool. Flags may be stored as numbers of any type that
        are 0 or 1."""
        array = self._column()
        wrong = np.flatnonzero((array != 0) & (array != 1))
        if wrong.size:
            raise self.wrong(f"holds {array[wrong[0]]} at index {wrong[0]}, expected 0 or 1")
        return array.astype(np.bool_)

    def actions(self, discrete: bool = False) -> Array:
        """Read the dataset as the actions of N steps: integers as indices `[N]` int64, floats as vectors of A numbers,
        `[N, A]` float32.

        If `discrete` is true, floats `[N]` or `[N, 1]` that are all whole numbers are read as indices too.
        """
        array = self.numbers("fiu")
        single = array.size == len(array)
        if array.dtype.kind == "f":
            if not (discrete and single and np.isfinite(array).all() and (array == np.rint(array)).all()):
                return self.finite(array.reshape(len(array), int(np.prod(array.shape[1:]))))
        elif array.ndim > 1 and array.shape != (len(array), 1):
            raise self.wrong(f"has shape {array.shape}; whole numbers are one index a step, vectors are floats")
        return array.reshape(-1).astype(np.int64)

    def finite(self, array: Array) -> Array:
        """Convert an array that was read from this entry to float32, and check that every float32 value is finite. If
        one is not, the message of the error `Unusable` names this entry."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes infinite
            array = np.ascontiguousarray(array, np.float32)
        wrong = np.argwhere(~np.isfinite(array))
        if wrong.size:
            raise self.wrong(f"holds {array[tuple(wrong[0])]} at index {wrong[0].tolist()}, not a finite float32")
        return array

    def wrong(self, what: str) -> Unusable:
        """Return an `Unusable` error. Its message is the path of this entry in the HDF5 file, and then `what`."""
        return Unusable(f"dataset '{self.label}' {what}")


def same_length(lengths: Mapping[str, int]) -> int:
    """Check that datasets, given as name and number of rows, have equally many rows; return that number.

    Raises:
        Unusable: two datasets differ in their number of rows.
    """
    (first, length), *others = lengths.items()
    for name, other in others:
        if other != length:
            raise Unusable(f"ragged, dataset '{name}' has {other} rows and '{first}' {length}")
    return length
