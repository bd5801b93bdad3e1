"""The folders for a run's state between two starts, below the DVC root, named by a hash of what the run depends on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from evopipe import layout
from evopipe.errors import DiskError, MissingInputError, UsageError

CODE = Path(__file__).parents[1]
"""The package: what is computed depends on it."""


def dvc_root(folder: Path = Path()) -> Path:
    """Return the absolute path of the root of the DVC repository to which a folder belongs.

    The root is the nearest folder that contains `.dvc`, from `folder` upwards. If there is none, it is `folder` itself.

    There is one exception: if `folder` is the working folder and the environment variable `DVC_ROOT` is set, the root
    is the value of `DVC_ROOT`. DVC sets it to the main repository, even in queued and temporary runs.
    """
    named, here = os.environ.get("DVC_ROOT"), folder.absolute()
    if named and here == Path.cwd():
        return Path(named).absolute()
    return next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here)


def state_folder(stage: str, key: str, where: Path = Path()) -> Path:
    """Return the folder `<dvc_root>/.evopipe/<stage>/<key>`, which is created if it is missing, and excluded from git.

    `stage` is the name of a stage, `key` a hash of what the run depends on, and `where` a folder in the DVC repository.

    Raises:
        DiskError: the folder cannot be created.
    """
    top = dvc_root(where) / layout.STATE
    folder = top / stage / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ignore = top / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise DiskError(
            f"{folder}: cannot make this folder for the run's state ({error.strerror or error}); "
            "make its parent writable, or free some space"
        ) from error
    return folder


def content_key(values: Mapping[str, Any], files: Sequence[Path] = ()) -> str:
    """Return a hash of 32 hex digits that changes with any of the values and any byte of the files.

    Values are JSON-like, pydantic models or paths. A folder in `files` counts with all its files and their relative
    names, except bytecode caches. The order of `files` matters. Modification times, the order of keys, and the location
    of the files do not.

    Raises:
        UsageError: a value has no JSON form.
        MissingInputError: a file does not exist, or cannot be read.
    """
    try:
        text = json.dumps(dict(values), sort_keys=True, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError) as error:
        raise UsageError(f"content_key: a value has no JSON form ({error}); pass plain values") from error
    digest = hashlib.sha256()
    _feed(digest, "values", text.encode())
    for number, path in enumerate(files):
        try:
            for name, file in _tree(Path(path), str(number)):
                with file.open("rb") as stream:
                    _feed(digest, name, hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise MissingInputError(
                f"{error.filename or path}: cannot be read ({error.strerror or error}); "
                "run the stage that makes it, for example with `dvc repro`"
            ) from error
    return digest.hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return value.as_posix()
    raise TypeError(f"{type(value).__name__} {value!r:.60}")


def _feed(digest: hashlib._Hash, name: str, content: bytes) -> None:
    """Add one named part, with its lengths, so that no two lists of parts give the same bytes."""
    label = os.fsencode(name)
    digest.update(len(label).to_bytes(8, "little") + label + len(content).to_bytes(8, "little") + content)


def _tree(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield (relative name, file) for a file, or for all files of a folder in the order of their names."""
    if not path.is_dir():
        yield name, path
        return
    for child in sorted(path.iterdir(), key=lambda child: os.fsencode(child.name)):
        if child.name != "__pycache__":
            yield from _tree(child, f"{name}/{child.name}")
