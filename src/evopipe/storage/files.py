"""Atomic files: written under a temporary name, flushed to the device, then renamed.

After a kill or a power cut, and to any reader, a file has its old content or its new content, never a part of it.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, DiskError, MissingInputError

Content = bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview]
"""What a file is to hold, in one piece or in pieces that follow each other; no piece is copied."""

TEMPORARY = ".tmp-"
RESTORE = "restore it with `dvc checkout`, or run the stage that writes it again"

_SPACE = "free some space and run again"
_WRITABLE = "make the folder writable for this user, or work in another folder"
_AWAY = "move that file away, or work in another folder"
_REASONS = {
    errno.ENOSPC: ("the disk is full", _SPACE),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or have the quota raised, and run again"),
    errno.EFBIG: ("the file would exceed the size limit", "raise the limit (`ulimit -f`) and run again"),
    errno.EROFS: ("the file system is read-only", "mount it writable, or work in another folder"),
    errno.EACCES: ("permission is denied", _WRITABLE),
    errno.EPERM: ("the operation is not permitted", _WRITABLE),
    errno.EIO: ("the device reports an input/output error", "check the disk, or work on another one"),
    errno.ENOTDIR: ("a part of this path is a file", _AWAY),
    errno.EEXIST: ("a part of this path is a file", _AWAY),
    errno.EISDIR: ("a folder is in its place", "move that folder away, or choose another name"),
}


@contextlib.contextmanager
def translating(path: Path) -> Iterator[None]:
    """Convert an operating system error inside a `with` block to a `DiskError` that says which path, why, and what to
    do."""
    try:
        yield
    except OSError as error:
        system = error.strerror or type(error).__name__
        reason, remedy = _REASONS.get(error.errno or 0, (system, "correct that and run again"))
        detail = "" if reason == system else f" ({system})"
        raise DiskError(
            f"{path}: cannot be written, {reason}{detail}: {remedy}; what was saved before is unchanged"
        ) from error


@contextlib.contextmanager
def publishing(path: Path, rename: Callable[[Path, Path], None] = os.replace) -> Iterator[Path]:
    """Yield a temporary path beside `path`. At the end of the `with` block, rename the file or folder that the block
    has written there to `path`.

    If the block or the renaming fails, the temporary file or folder is removed, and `path` is unchanged. Temporaries of
    killed processes in the same folder are removed first. Missing parent folders are created.

    `rename` is the function that moves the first path to the second; by default an atomic replacement.

    Raises:
        DiskError: a file or folder cannot be written, or `path` is a device or a pipe, which a renaming would destroy.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DiskError(f"{path}: this is a device or a pipe, not a file: choose another name")
    make_folder(path.parent)
    with translating(path):
        _clear_dead(path.parent)
        temporary = temporary_beside(path)
        try:
            yield temporary
            rename(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                delete(temporary)
            raise


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, durably: after a power cut they still exist.

    Raises:
        DiskError: the folder cannot be created.
    """
    with translating(path):
        for folder in reversed([path, *path.parents]):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's list of entries to the device; without this a power cut may undo a rename in the folder. Nothing
    happens on a system that opens no folders (Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(handle)


def temporary_prefix() -> str:
    """Return the prefix of all temporary names that this process uses.

    The prefix identifies the process and its machine, so that the temporaries of a killed process can be told from
    those of a running one.
    """
    return f"{TEMPORARY}{_processes()}-{os.getpid()}-"


def temporary_beside(path: Path) -> Path:
    """Return a random temporary path in the folder of `path`, which no other process uses."""
    return path.parent / f"{temporary_prefix()}{secrets.token_hex(6)}"


@cache
def _processes() -> str:
    """What process numbers are unique among: this start of this machine, and this container. Empty where that is not
    known."""
    try:
        here = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return hashlib.sha256(here.encode()).hexdigest()[:10]


def _clear_dead(folder: Path) -> None:
    """Delete temporaries of processes of this machine that live no more."""
    for entry in folder.glob(f"{TEMPORARY}{_processes()}-*") if _processes() else ():
        number = entry.name.split("-")[2]
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            with contextlib.suppress(OSError):
                delete(entry)
        except (OSError, ValueError, OverflowError):
            continue  # another user's, or no number


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with its content. If nothing is at `path`, nothing happens."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def create(path: Path, data: Content) -> None:
    """Write `data` (bytes, or a sequence of bytes) to a new file, and flush the file to the device.

    Raises:
        FileExistsError: the file exists.
    """
    with open(path, "xb") as file:
        file.writelines(pieces(data))
        file.flush()
        os.fsync(file.fileno())


def pieces(data: Content) -> Sequence[bytes | bytearray | memoryview]:
    """Return content as a sequence of byte strings; a single byte string becomes a sequence of one."""
    return [data] if isinstance(data, bytes | bytearray | memoryview) else data


# --- Writing ----------------------------------------------------------------------------------------------------------


def write_bytes(path: Path, data: Content) -> None:
    """Write the content `data` (bytes, or a sequence of bytes) to a file, atomically and durably. A link at `path` is
    replaced, and the file to which the link leads is unchanged.

    Raises:
        DiskError: the file cannot be written; its old content, if any, is unchanged.
    """
    with publishing(path) as temporary:
        create(temporary, data)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically and durably as `write_bytes` does.

    Raises:
        DataError: the text has an unpaired surrogate.
        DiskError: the file cannot be written; its old content, if any, is unchanged.
    """
    write_bytes(path, _encode(text, str(path)))


def write_json(path: Path, obj: Any) -> None:
    """Write an object to a JSON file, indented by two spaces, atomically and durably.

    Raises:
        DataError: a value has no exact JSON form.
        DiskError: the file cannot be written; its old content, if any, is unchanged.
    """
    write_bytes(path, dump_json(obj, str(path), indent=2))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    r"""Write a CSV file with `\n` line ends: floats with all digits, None as an empty cell, NaN as `nan`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue())


def dump_json(obj: Any, where: str, *, indent: int | None = None) -> bytes:
    """Return the object `obj` as deterministic JSON bytes: keys are sorted, and a newline ends the text.

    `parse_json` returns an equal object, except that tuples become lists. `indent` is the number of spaces of
    indentation. Without it, the JSON is one line, which is several times faster to write.

    Raises:
        DataError: a value has no exact JSON form; the message begins with `where` and names the place.
    """
    separators = (",", ":") if indent is None else None
    try:
        _check_plain(obj, where, "")
        text = json.dumps(obj, sort_keys=True, indent=indent, separators=separators, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be written as JSON ({error}): use plain values only") from error
    return _encode(text + "\n", where)


def _check_plain(value: Any, where: str, place: str) -> None:
    """Refuse what `json` would change silently: keys that are not text become text, NaN becomes invalid JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{where}: {place or 'the value'} is {value}, which JSON cannot hold: write null instead")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise DataError(f"{where}: {place or 'the object'} has the key {key!r}: JSON keys must be text")
            _check_plain(item, where, f"{place}.{key}" if place else key)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_plain(item, where, f"{place}[{index}]")


def _encode(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        bad = text[error.start : error.end]
        raise DataError(f"{where}: {bad!r} has no UTF-8 form: remove it from the text") from error


# --- Reading ----------------------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """Read a regular file, and return its content.

    Raises:
        MissingInputError: the file does not exist.
        DataError: the path leads to no regular file, or the file cannot be read.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would block
            raise DataError(f"{path}: is not a regular file: {RESTORE}")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingInputError(f"{path}: is not there: run the stage that writes it, or correct the path") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}): {RESTORE}") from error


def read_json(path: Path) -> Any:
    """Read a JSON file, and return its content.

    Raises:
        MissingInputError: the file does not exist.
        DataError: the file cannot be read, or is not valid JSON.
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON bytes; NaN and infinity are not allowed.

    Raises:
        DataError: the bytes are not valid JSON; the message begins with `where`.
    """
    try:
        return json.loads(data.decode(), parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not valid JSON ({error}): {RESTORE}") from error


def finite(text: str) -> float:
    """Parse the text of a number as a finite float.

    Raises:
        ValueError: the number is not finite.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number
