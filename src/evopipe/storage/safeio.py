"""Files and folders that are whole or absent: atomic, durable, deterministic, and checked when they are read.

A single file is written under a temporary name in its own folder, flushed to the device and renamed over the target, so
a reader, a kill or a power cut sees the old content or the new, never half of it. A folder is published the same way
with a `manifest.json`, written last, that holds the size and SHA-256 of every file; `read_folder` hands out no byte
that does not match. The tensor format alone would not notice: safetensors carries no checksum.

Nothing here imports torch before a tensor is dumped or loaded.
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
import stat
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from evopipe.errors import DataError, DiskError, MissingInputError, UsageError

if TYPE_CHECKING:
    import torch

Buffer = bytes | bytearray | memoryview
"""Anything whose bytes can be written without copying them."""

MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
RETIRED = ".old-"
MANIFEST_FORMAT = 1
RESTORE = "restore it with `dvc checkout`, or run the stage that writes it again"

_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space and run again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or have the quota raised, and run again"),
    errno.EFBIG: ("the file would exceed the size limit", "raise the limit (`ulimit -f`) and run again"),
    errno.EROFS: ("the file system is read-only", "mount it writable, or work in another folder"),
    errno.EACCES: ("permission is denied", "make the folder writable for this user, or work in another folder"),
    errno.EPERM: (
        "the operation is not permitted",
        "make the folder writable for this user, or work in another folder",
    ),
    errno.EIO: ("the device reports an input/output error", "check the disk, or work on another one"),
    errno.ENOTDIR: ("a part of this path is a file", "move that file away, or work in another folder"),
    errno.EEXIST: ("a part of this path is a file", "move that file away, or work in another folder"),
    errno.EISDIR: ("a folder is in its place", "move that folder away, or choose another name"),
}

# Names of the safetensors format. Only types whose bytes are the same on every machine we support.
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


# --- Writing single files ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translating(path: Path) -> Iterator[None]:
    """Turn an operating system error in the block into a `DiskError` that says which path, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise _disk_error(path, error) from error


def _disk_error(path: Path, error: OSError) -> DiskError:
    system = error.strerror or type(error).__name__
    reason, remedy = _REASONS.get(error.errno or 0, (system, "correct that and run again"))
    detail = "" if reason == system else f" ({system})"
    return DiskError(f"{path}: cannot be written, {reason}{detail}: {remedy}; what was saved before is unchanged")


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents durably; one that exists is left alone.

    Raises:
        DiskError: it cannot be created.
    """
    with translating(path):
        _make_folder(path)


def write_bytes(path: Path, data: Buffer | Sequence[Buffer]) -> None:
    """Write a file atomically and durably; missing parent folders are created.

    Args:
        path: the target. A link is replaced, not written through, so a linked cache stays as it was.
        data: its content, in one piece or as pieces to be written one after the other.

    Raises:
        DiskError: it cannot be written; the old content, if any, is still there.
    """
    with translating(path):
        _make_folder(path.parent)
        temporary = _temporary_beside(path)
        try:
            _write_durably(temporary, data)
            os.replace(temporary, path)
            _sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, see `write_bytes`.

    Raises:
        DataError: the text holds half a surrogate pair and has no UTF-8 form.
        DiskError: it cannot be written.
    """
    write_bytes(path, _encode(text, str(path)))


def write_json(path: Path, obj: Any) -> None:
    """Write JSON with sorted keys, two spaces of indentation and a newline at the end, see `write_bytes`.

    Raises:
        DataError: a value has no exact JSON form (NaN, infinity, keys that are not text, objects); the place is named.
        DiskError: it cannot be written.
    """
    write_bytes(path, dump_json(obj, str(path), indent=2))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    r"""Write comma-separated values with `\n` line ends, see `write_bytes`.

    Floats are written in full (`repr`), None as an empty cell, NaN as `nan`.

    Raises:
        DataError: a row has not as many cells as the header.
        DiskError: it cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {number} has {len(row)} cells, the header {len(header)}: give every row one per column"
            )
        writer.writerow(row)
    write_text(path, text.getvalue())


def dump_json(obj: Any, where: str, *, indent: int | None = None) -> bytes:
    """Return deterministic JSON bytes (sorted keys, newline at the end) that `parse_json` gives back exactly.

    Args:
        obj: dicts with text keys, lists, tuples (read back as lists), text, numbers, booleans and None.
        where: the name that error messages begin with.
        indent: spaces of indentation; None writes one line and is several times faster.

    Raises:
        DataError: a value has no exact JSON form; the place is named.
    """
    separators = (",", ":") if indent is None else None
    try:
        _check_plain(obj, where, "")
        text = json.dumps(
            obj, sort_keys=True, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
        )
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
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = text[error.start : error.end]
        raise DataError(f"{where}: {bad!r} has no UTF-8 form: remove it from the text") from error


def _write_durably(path: Path, data: Buffer | Sequence[Buffer]) -> None:
    """Create a new file and flush it to the device."""
    with open(path, "xb") as file:
        file.writelines(_pieces(data))
        file.flush()
        os.fsync(file.fileno())


def _pieces(data: Buffer | Sequence[Buffer]) -> Sequence[Buffer]:
    return [data] if isinstance(data, bytes | bytearray | memoryview) else data


def _make_folder(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(path: Path) -> None:
    """Flush a folder's entries: without it a rename may be undone by a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush a folder and say so with EINVAL
            raise
    finally:
        os.close(handle)


def _temporary_beside(path: Path) -> Path:
    return path.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"


# --- Reading single files ---------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """Read a file.

    Raises:
        MissingInputError: it is not there.
        DataError: it is not a regular file, or cannot be read.
    """
    return _read(path, None, RESTORE)


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        MissingInputError: it is not there.
        DataError: it cannot be read or is not valid JSON (NaN and infinity are not).
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON bytes.

    Args:
        data: UTF-8 text.
        where: the name that error messages begin with.

    Raises:
        DataError: they are not valid JSON (NaN and infinity are not).
    """
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not valid JSON ({error}): {RESTORE}") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _read(path: Path, size: int | None, remedy: str) -> bytes:
    """Read a regular file; a pipe or device in its place would block, a wrong `size` might fill the memory."""
    try:
        with open(path, "rb", opener=_open_unblocked) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DataError(_damaged(path, "is not a regular file", remedy))
            if size is not None and status.st_size != size:
                raise DataError(_damaged(path, f"has {status.st_size} bytes, its manifest says {size}", remedy))
            return file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingInputError(f"{path}: is not there: run the stage that writes it, or correct the path") from error
    except IsADirectoryError as error:
        raise DataError(_damaged(path, "is a folder, a file is expected", remedy)) from error
    except OSError as error:
        raise DataError(_damaged(path, f"cannot be read ({error.strerror or error})", remedy)) from error


def _open_unblocked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _damaged(path: Path | str, fault: str, remedy: str) -> str:
    return f"{path}: {fault}: {remedy}" if remedy else f"{path}: {fault}"


# --- Tensors ----------------------------------------------------------------------------------------------------------


def dump_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return tensors in the safetensors format, equal tensors giving equal bytes.

    Args:
        tensors: any shapes and devices; views and tensors that share memory are written out in full.

    Raises:
        DataError: a tensor has a layout or type that the format cannot hold.
    """
    return b"".join(tensor_pieces(tensors))


def tensor_pieces(tensors: Mapping[str, torch.Tensor]) -> list[Buffer]:
    """Return the pieces whose concatenation is `dump_tensors(tensors)`.

    The pieces view the memory of contiguous CPU tensors instead of copying it, so write them before the tensors change.
    The library's own writer needs one more copy of all bytes, which costs more than hashing them.

    Raises:
        DataError: a tensor has a layout or type that the format cannot hold.
    """
    header: dict[str, Any] = {}
    pieces: list[Buffer] = []
    end = 0
    # Widest elements first keeps every tensor aligned; the name settles the rest.
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        dtype, piece = _tensor_piece(name, tensors[name])
        start, end = end, end + piece.nbytes
        header[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
        pieces.append(piece)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *pieces]


def _tensor_piece(name: str, tensor: torch.Tensor) -> tuple[str, memoryview]:
    import torch

    dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if name == "__metadata__":
        raise DataError("tensor '__metadata__': the name is reserved by the safetensors format: choose another")
    if dtype is None or tensor.layout is not torch.strided:
        raise DataError(
            f"tensor {name!r}: {tensor.dtype} with layout {tensor.layout} cannot be saved: make it dense and real first"
        )
    if tensor.numel() == 0:  # has no stride to view as bytes
        return dtype, memoryview(b"")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return dtype, flat.view(torch.uint8).numpy().data


def load_tensors(data: bytes, where: str = "tensors") -> dict[str, torch.Tensor]:
    """Return the tensors (on the CPU, each with its own writable memory) of safetensors bytes.

    Args:
        data: what `dump_tensors` returned, or any safetensors file's content.
        where: the name that error messages begin with.

    Raises:
        DataError: the bytes are not in the safetensors format.
    """
    import safetensors
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise DataError(f"{where}: is not a valid safetensors file ({error}): {RESTORE}") from error
    return dict(sorted(tensors.items()))


# --- Folders ----------------------------------------------------------------------------------------------------------


def write_folder(path: Path, files: Mapping[str, Buffer | Sequence[Buffer]]) -> None:
    """Publish a folder of files at once, with a manifest of their sizes and SHA-256 sums.

    A folder in its place is replaced as a whole, whatever it holds. Between the two renames of a replacement only its
    retired copy exists, which `read_folder` reads and `clean_temporaries` puts back.

    Args:
        path: the folder.
        files: content by relative name, `/` between the parts; in one piece or as pieces. Equal files give an equal
            folder, to the byte.

    Raises:
        UsageError: a name is not a plain relative one.
        DiskError: it cannot be written; what was there before still is.
    """
    _check_names(files)
    with translating(path):
        _make_folder(path.parent)
        temporary = _temporary_beside(path)
        try:
            _fill_folder(temporary, files)
            _swap_in(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def read_folder(path: Path, only: Collection[str] | None = None, *, remedy: str = RESTORE) -> dict[str, bytes]:
    """Return the files of a folder that `write_folder` published, each checked against the manifest.

    Args:
        path: the folder. Files that the manifest does not list are ignored.
        only: the names wanted; None reads all.
        remedy: what an error message advises for a damaged file; empty advises nothing.

    Raises:
        MissingInputError: there is no such folder, it has no manifest, or a wanted name is not in the manifest.
        DataError: a file is damaged, cut short or gone, or the manifest is; the message names the file.
    """
    retired = path.parent / (RETIRED + path.name)
    if not path.exists() and retired.is_dir():
        path = retired
    entries = _read_manifest(path / MANIFEST, remedy)
    wanted = entries if only is None else only
    unknown = sorted(set(wanted) - set(entries))
    if unknown:
        raise MissingInputError(
            f"{path / unknown[0]}: is not in the folder's manifest: run the stage that writes it, or correct the name"
        )
    return {name: _read_listed(path / name, *entries[name], remedy) for name in sorted(wanted)}


def remove_folder(path: Path) -> None:
    """Remove a folder and what is in it; one that is not there is fine.

    It is renamed first, so that a kill leaves a temporary for `clean_temporaries` instead of half a folder.

    Raises:
        DiskError: it cannot be removed.
    """
    with translating(path):
        _remove(path)


def clean_temporaries(folder: Path) -> None:
    """Remove what killed writers left in a folder, and put back what a killed replacement had moved away.

    Call it only while no other process writes there: a living writer's temporaries would go too.

    Raises:
        DiskError: a leftover cannot be removed.
    """
    with translating(folder):
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            if entry.name.startswith(TEMPORARY):
                _delete(entry)
            elif entry.name.startswith(RETIRED):
                _settle(entry)


def _fill_folder(folder: Path, files: Mapping[str, Buffer | Sequence[Buffer]]) -> None:
    folder.mkdir()
    entries: dict[str, dict[str, Any]] = {}
    inner = {folder}
    for name in sorted(files):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        inner.update(parent for parent in target.parents if parent.is_relative_to(folder))
        _write_durably(target, files[name])
        entries[name] = _entry(_pieces(files[name]))
    _write_durably(folder / MANIFEST, _manifest(entries))
    for each in inner:
        _sync_folder(each)


def _swap_in(temporary: Path, path: Path) -> None:
    retired = path.parent / (RETIRED + path.name)
    if not os.path.lexists(path):
        os.rename(temporary, path)
    elif not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    else:
        _remove(retired)
        os.rename(path, retired)
        try:
            os.rename(temporary, path)
        except BaseException:
            os.rename(retired, path)
            raise
    _sync_folder(path.parent)
    _remove(retired)


def _settle(retired: Path) -> None:
    """Finish a replacement that was cut short: remove the retired folder, or put it back where nothing replaced it."""
    target = retired.with_name(retired.name.removeprefix(RETIRED))
    if os.path.lexists(target):
        _remove(retired)
    else:
        os.rename(retired, target)
        _sync_folder(retired.parent)


def _remove(path: Path) -> None:
    if os.path.lexists(path):
        temporary = _temporary_beside(path)
        os.rename(path, temporary)
        _sync_folder(path.parent)
        _delete(temporary)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- The manifest -----------------------------------------------------------------------------------------------------


def _entry(pieces: Sequence[Buffer]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return {"sha256": digest.hexdigest(), "size": sum(memoryview(piece).nbytes for piece in pieces)}


def _manifest(entries: Mapping[str, Any]) -> bytes:
    content = {"files": dict(entries), "format": MANIFEST_FORMAT}
    return dump_json({**content, "sha256": _self_sum(content)}, MANIFEST, indent=2)


def _self_sum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(dump_json(dict(content), MANIFEST)).hexdigest()


def _read_manifest(path: Path, remedy: str) -> dict[str, tuple[str, int]]:
    """Return SHA-256 and size by name; any changed byte of the manifest, even between its values, is refused."""
    raw = _read(path, None, remedy)
    try:
        document = parse_json(raw, str(path))
        content = {key: document[key] for key in document if key != "sha256"}
        intact = document["sha256"] == _self_sum(content) and dump_json(document, MANIFEST, indent=2) == raw
    except (DataError, KeyError, TypeError, IndexError):
        intact = False
    if not intact:
        raise DataError(_damaged(path, "is damaged, its own checksum does not match", remedy))
    if content.get("format") != MANIFEST_FORMAT:
        raise DataError(
            f"{path}: has format {content.get('format')!r}, this version reads {MANIFEST_FORMAT}: "
            "use the version of evopipe that wrote it"
        )
    try:
        entries = {str(name): (str(item["sha256"]), int(item["size"])) for name, item in content["files"].items()}
        _check_names(entries)
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise DataError(_damaged(path, f"lists files in a way that is not safe to read ({error})", remedy)) from error
    return entries


def _read_listed(path: Path, digest: str, size: int, remedy: str) -> bytes:
    try:
        data = _read(path, size, remedy)
    except MissingInputError as error:
        raise DataError(_damaged(path, "is gone, though the folder's manifest lists it", remedy)) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataError(_damaged(path, "is damaged, its checksum does not match the folder's manifest", remedy))
    return data


def _check_names(names: Collection[str]) -> None:
    """Refuse names that leave the folder, meet the manifest, or are a file and a folder at once."""
    for name in names:
        parts = name.split("/")
        if name == MANIFEST or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
            raise UsageError(f"file name {name!r}: use a plain relative name other than {MANIFEST!r}")
        clash = next((str(parent) for parent in PurePosixPath(name).parents if str(parent) in names), None)
        if clash is not None:
            raise UsageError(f"file name {name!r}: {clash!r} is a file already, so it cannot be a folder")
