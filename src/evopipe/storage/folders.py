"""Atomic folders of files, which are checked when they are read.

A folder is published as a file is, with a `manifest.json`, written last, that holds the size and SHA-256 of every file.
`read_folder` returns no byte that does not match.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, MissingInputError
from evopipe.storage import files as whole
from evopipe.storage.files import RESTORE, TEMPORARY, Content, delete, dump_json, read_bytes, sync_folder

MANIFEST = "manifest.json"
_RETIRED = ".old-"
_FORMAT = 1


def write_folder(path: Path, files: Mapping[str, Content]) -> None:
    """Write a folder of files with a manifest of their checksums, atomically and durably.

    Keys of `files` are relative paths with `/` between the parts. An existing folder is replaced completely. Equal
    files give equal bytes. A process that is killed while it replaces the folder may leave the old folder under another
    name; `read_folder` then reads that one, and `clean_temporaries` restores it.

    Raises:
        DiskError: a file cannot be written; the old folder is unchanged.
    """
    with whole.publishing(path, _swap_in) as temporary:
        temporary.mkdir()
        entries = {}
        for name in sorted(files):
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            whole.create(target, files[name])
            entries[name] = _entry(files[name])
        whole.create(temporary / MANIFEST, _manifest({"files": entries, "format": _FORMAT}))
        for folder in (temporary, *(inner for inner in temporary.rglob("*") if inner.is_dir())):
            sync_folder(folder)
    remove_folder(path.with_name(_RETIRED + path.name))


def _swap_in(temporary: Path, path: Path) -> None:
    """Rename a folder into the place of another one, or of none."""
    if not path.is_dir():
        os.rename(temporary, path)
        return
    retired = path.with_name(_RETIRED + path.name)
    remove_folder(retired)
    os.rename(path, retired)
    try:
        os.rename(temporary, path)
    except BaseException:
        os.rename(retired, path)
        raise


def read_folder(path: Path, only: Collection[str] | None = None) -> dict[str, bytes]:
    """Return the content of a folder's files by name, and check every file against the folder's manifest of checksums.

    `only` names the files to read; None reads all files in the manifest. Files that are not in the manifest are
    ignored.

    Raises:
        MissingInputError: the folder or its manifest does not exist, or a wanted file is not in the manifest.
        DataError: a file or the manifest is damaged, or a file in the manifest is missing; the message names the file.
    """
    retired = path.parent / (_RETIRED + path.name)
    if not path.exists() and retired.is_dir():
        path = retired
    entries = _read_manifest(path / MANIFEST)
    files = {}
    for name in sorted(entries if only is None else only):
        file = path / name
        if name not in entries:
            raise MissingInputError(
                f"{file}: is not in the folder's manifest: run the stage that writes it, or correct the name"
            )
        try:
            files[name] = read_bytes(file)
        except MissingInputError as error:
            raise DataError(f"{file}: is gone, though the folder's manifest lists it: {RESTORE}") from error
        if _entry(files[name]) != entries[name]:
            raise DataError(f"{file}: is damaged, its checksum does not match the folder's manifest: {RESTORE}")
    return files


def remove_folder(path: Path) -> None:
    """Remove a folder with its content, if it exists.

    The folder is renamed first, so that a killed process leaves a temporary folder for `clean_temporaries` to remove.

    Raises:
        DiskError: a file cannot be removed.
    """
    with whole.translating(path):
        if os.path.lexists(path):
            temporary = whole.temporary_beside(path)
            os.rename(path, temporary)
            sync_folder(path.parent)
            delete(temporary)


def clean_temporaries(folder: Path) -> None:
    """Remove all temporaries in a folder, and restore folders that a killed process had moved away but not replaced.

    No other process may write into the folder meanwhile, because its temporaries would be removed too.

    Raises:
        DiskError: a file cannot be removed or renamed.
    """
    with whole.translating(folder):
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            target = entry.with_name(entry.name.removeprefix(_RETIRED))
            if entry.name.startswith(TEMPORARY):
                delete(entry)
            elif target != entry and os.path.lexists(target):
                remove_folder(entry)
            elif target != entry:
                os.rename(entry, target)
                sync_folder(folder)


# --- The manifest -----------------------------------------------------------------------------------------------------


def _entry(content: Content) -> dict[str, Any]:
    digest = hashlib.sha256()
    for piece in whole.pieces(content):
        digest.update(piece)
    return {"sha256": digest.hexdigest(), "size": sum(memoryview(piece).nbytes for piece in whole.pieces(content))}


def _manifest(content: Mapping[str, Any]) -> bytes:
    """Return a manifest's bytes: its content and the SHA-256 of that."""
    own = hashlib.sha256(dump_json(content, MANIFEST)).hexdigest()
    return dump_json({**content, "sha256": own}, MANIFEST, indent=2)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return SHA-256 and size by name; any changed byte of the manifest, even between its values, is refused."""
    raw = read_bytes(path)
    try:
        content = {key: value for key, value in whole.parse_json(raw, str(path)).items() if key != "sha256"}
        intact = _manifest(content) == raw
    except (DataError, AttributeError):
        intact = False
    if not intact:
        raise DataError(f"{path}: is damaged, its own checksum does not match: {RESTORE}")
    if content.get("format") != _FORMAT:
        raise DataError(
            f"{path}: has format {content.get('format')!r}, this version reads {_FORMAT}: "
            "use the version of evopipe that wrote it"
        )
    entries = content.get("files")
    if not isinstance(entries, dict) or any({"", ".", ".."} & set(name.split("/")) or "\0" in name for name in entries):
        raise DataError(f"{path}: lists files in a way that is not safe to read: {RESTORE}")
    return entries
