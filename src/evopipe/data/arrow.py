"""Files that pyarrow reads: CSV, Parquet, Arrow and JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, need_package
from evopipe.storage.files import parse_json, read_bytes

_NAMES = {"csv": "CSV", "parquet": "Parquet", "arrow": "Arrow", "jsonl": "JSON lines", "json": "JSON"}


def need_arrow(what: str) -> None:
    """Check that pyarrow is installed; `what` is the subject of the error's sentence.

    Raises:
        MissingInputError: pyarrow is not installed.
    """
    need_package("pyarrow", "tables", what)


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Convert errors of pyarrow inside a `with` block to a `DataError` that names the file `path` of the kind
    `kind`."""
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others reserve what the limit of a process does not allow
    try:
        yield
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: is damaged, or no {_NAMES[kind]} file ({reason})") from error


def read_arrow(path: Path, kind: str) -> Any:
    """Return the content of a file as a `pyarrow.Table`. Call this in a `with` block of `reading`.

    Args:
        path: the file.
        kind: `csv`, `parquet`, `arrow` (a file or stream of Arrow's IPC format, as the package datasets writes),
            `jsonl` (an object on each line) or `json` (a list of objects, or one).

    Raises:
        DataError: a JSON file is damaged, or holds something else.
    """
    if kind == "csv":
        from pyarrow import csv

        return csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False))
    if kind == "parquet":
        from pyarrow import parquet

        return parquet.read_table(path, use_threads=False)
    if kind == "jsonl":
        from pyarrow import json

        return json.read_json(path, read_options=json.ReadOptions(use_threads=False))
    return _ipc(path) if kind == "arrow" else _objects(path)


def _ipc(path: Path) -> Any:
    from pyarrow import OSFile, ipc

    with OSFile(str(path)) as file:
        magic = file.read(6)
        file.seek(0)
        return (ipc.open_file if magic == b"ARROW1" else ipc.open_stream)(file).read_all()


def _objects(path: Path) -> Any:
    import pyarrow

    found = parse_json(read_bytes(path), str(path))
    rows = [found] if isinstance(found, dict) else found
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: holds no list of objects, and no object")
    return pyarrow.Table.from_pylist(rows)
