"""The run's log: one JSON line an event, in the untracked state folder."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evopipe.errors import DataError
from evopipe.track.base import End, Event, Generation, MemberRow, Message, Progress, Start

_KINDS: dict[str, type[Event]] = {kind.__name__.lower(): kind for kind in (Start, Progress, Generation, Message, End)}


class JsonlSink:
    """Appends events to a file, one JSON object a line: `event`, `time` (seconds since 1970), and the event's fields.

    Non-finite numbers become null. Of `Progress` at most one a second is written. A disk that is full costs the lines
    that do not fit, not the run; writing goes on when there is space again.

    Args:
        path: the file; it and its folder are made at the first event.
        progress_seconds: least time between two written `Progress` events.
    """

    def __init__(self, path: Path, progress_seconds: float = 1.0) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._torn = False
        self._every = progress_seconds
        self._next_progress = -math.inf

    def emit(self, event: Event) -> None:
        """Append one event.

        Raises:
            OSError: the file cannot be opened.
        """
        now = time.monotonic()
        if isinstance(event, Progress):
            if now < self._next_progress:
                return
            self._next_progress = now + self._every
        self._write(_encode(event, time.time()))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> io.FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered bytes: a buffer would keep a line that did not fit and fail again at every later write.
        file = io.FileIO(self._path, "a+")
        if file.seek(0, os.SEEK_END):  # A killed run may have left half a line.
            file.seek(-1, os.SEEK_END)
            self._torn = file.read(1) != b"\n"
        return file

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._open()
        data = b"\n" + line if self._torn else line
        try:
            self._torn = self._file.write(data) != len(data)
        except OSError:
            self._torn = True


def read_events(path: Path) -> Iterator[tuple[float, Event]]:
    """Read a log back.

    A line that was cut off by a full disk or a kill is skipped.

    Yields:
        (seconds since 1970, event); a number that was not finite is NaN again.

    Raises:
        DataError: a whole line is no event of this version.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                read = read_event(line)
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from error
            if read is not None:
                yield read


def read_event(line: bytes) -> tuple[float, Event] | None:
    """Read one line of a log; None where it was cut off by a full disk or a kill.

    Raises:
        DataError: a whole line is no event of this version.
    """
    try:
        fields = json.loads(line.decode("utf-8", errors="replace"))
    except ValueError:
        return None
    try:
        return _decode(fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a line of an evopipe log ({error}); use a log that this version wrote") from error


def _encode(event: Event, clock: float) -> bytes:
    fields = {"event": type(event).__name__.lower(), "time": round(clock, 3), **dataclasses.asdict(event)}
    return json.dumps(_finite(fields), separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    """Copy a JSON-like value with None in place of NaN and infinities, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _decode(fields: dict[str, Any]) -> tuple[float, Event]:
    clock = float(fields.pop("time"))
    kind = _KINDS[fields.pop("event")]
    if kind is Generation:
        fields["members"] = tuple(MemberRow(**_numbers(MemberRow, row)) for row in fields["members"])
    return clock, kind(**_numbers(kind, fields))


def _numbers(kind: type[Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Put NaN back where a field is a plain float."""
    floats = {field.name for field in dataclasses.fields(kind) if field.type == "float"}
    return {key: math.nan if value is None and key in floats else value for key, value in fields.items()}
