"""A training's record, `.evopipe/train/<key>/`: all that a tracker must be told, in local files.

    run.json      parameters, git commit, DVC experiment, when it started; at the end the hash of its outcome
    events.jsonl  the log (`track.files`)
    kept/         what the stages wrote, under the names of `run.FILES`; kept.json says when and with which hash
    track.json    how the delivery is getting on; track.log: what the trackers' own code says

Trackers are fed from here by a process of its own while the run lasts (`track.deliver`), and by `evopipe track sync`
for whatever that process did not bring.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, EvopipeError
from evopipe.storage import safeio
from evopipe.track.base import End, Generation, Start
from evopipe.track.files import read_event
from evopipe.track.run import FILES, TRAINED, WRITTEN_BY, Kept, Run, Status

ABOUT, EVENTS, KEPT, KEPT_INDEX, STATUS, LOG = (
    "run.json",
    "events.jsonl",
    "kept",
    "kept.json",
    "track.json",
    "track.log",
)


def begin(folder: Path, params: Mapping[str, Any], revision: str | None, experiment: str | None, version: str) -> None:
    """Begin a record; one that is there already (the run goes on, or is repeated) stays.

    Args:
        folder: the training's state folder.
        params: all of `params.yaml`.
        revision: the git commit; `experiment`: the DVC experiment's name; `version`: of evopipe.

    Raises:
        DiskError: it cannot be written.
    """
    if (folder / ABOUT).exists():
        return
    about = {
        "key": folder.name,
        "params": params,
        "started": round(time.time(), 3),
        "revision": revision,
        "experiment": experiment,
        "version": version,
        "result": None,
    }
    safeio.write_json(folder / ABOUT, about)


def finish(folder: Path, work: Path) -> None:
    """Note a training's outcome, and keep its files.

    Args:
        folder: the record.
        work: the folder that the pipeline runs in.
    """
    about = safeio.read_json(folder / ABOUT)
    result = md5_of(work / TRAINED)
    keep(folder, work, WRITTEN_BY["train"])
    if about["result"] != result:
        safeio.write_json(folder / ABOUT, {**about, "result": result})


def keep(folder: Path, work: Path, names: Iterable[str]) -> bool:
    """Keep the files of a pipeline that are there and new, so that later runs cannot overwrite them.

    Args:
        folder: the record.
        work: the folder that the pipeline runs in.
        names: which of `FILES`; they must be of this training.

    Returns:
        whether any was new.
    """
    index = _index(folder)
    changed = False
    for name in names:
        source = work / FILES[name]
        if not source.exists():
            continue
        md5 = md5_of(source)
        if index.get(name, {}).get("md5") == md5:
            continue
        target = folder / KEPT / name / source.name
        _replace(source, target)
        index[name] = {"md5": md5, "time": round(time.time(), 3), "path": f"{name}/{source.name}"}
        changed = True
    if changed:
        safeio.write_json(folder / KEPT_INDEX, index)
    return changed


def _replace(source: Path, target: Path) -> None:
    """Put a copy of a file or folder in place of an older one.

    Hard links where the file system has them: stages never write into a file, they put a new one in its place.
    """
    if target.parent.exists():
        shutil.rmtree(target.parent)
    safeio.make_folder(target.parent)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        _link(str(source), str(target))


def _link(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        safeio.write_bytes(Path(target), safeio.read_bytes(Path(source).resolve()))


def find(home: Path, result: str) -> Path | None:
    """Return the record of the training with this outcome; None where there is none.

    Args:
        home: `<DVC root>/.evopipe/train`.
        result: hash of `models/trained`.
    """
    return next((folder for folder in records(home) if _about(folder).get("result") == result), None)


def records(home: Path) -> Iterator[Path]:
    """Return the folders of all records, in the order of their names."""
    return (path.parent for path in sorted(home.glob(f"*/{ABOUT}")))


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = safeio.read_json(folder / ABOUT)
        return about if isinstance(about, dict) else {}
    except EvopipeError:
        return {}


def _index(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(EvopipeError):
        index = safeio.read_json(folder / KEPT_INDEX)
        if isinstance(index, dict):
            return index
    return {}


class Record:
    """Reads a record, and on every `refresh` what was added to it.

    Args:
        folder: the record.

    Raises:
        MissingInputError, DataError: its description is not there, or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = safeio.read_json(folder / ABOUT)
        try:
            self.run = Run(
                key=about["key"],
                params=about["params"],
                started=float(about["started"]),
                experiment=about["experiment"],
                revision=about["revision"],
                version=about["version"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder / ABOUT}: is not the description of a run ({error!r}); remove it") from error
        self._offset = 0
        self._seen = 0  # the last generation

    def refresh(self, writing: bool | None = None) -> Run:
        """Return the run as it stands.

        Args:
            writing: whether its process still writes; None: find out.
        """
        self._read_events()
        self.run.result = _about(self.folder).get("result")
        self.run.files = self._kept()
        self.run.status = self._status(self._is_running() if writing is None else writing)
        return self.run

    def _read_events(self) -> None:
        """Take what was added to the log, whole lines only.

        A run that was killed repeats what came after its last checkpoint, bit for bit: the first word on a generation
        counts, for that is what a tracker has been told.
        """
        with contextlib.suppress(FileNotFoundError), (self.folder / EVENTS).open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                with contextlib.suppress(DataError):  # of another version
                    if (read := read_event(line)) is not None:
                        self._take(*read)

    def _take(self, clock: float, event: Any) -> None:
        if isinstance(event, Generation) and event.generation > self._seen:
            self._seen = event.generation
            self.run.generations.append((clock, event))
        elif isinstance(event, Start) and self.run.result is None:
            self.run.ended = None
        elif isinstance(event, End) and self.run.ended is None:
            self.run.ended = (clock, event.reason)

    def _kept(self) -> dict[str, Kept]:
        index = _index(self.folder)
        kept = {
            name: Kept(self.folder / KEPT / entry["path"], entry["md5"], float(entry["time"]))
            for name, entry in index.items()
            if name in FILES
        }
        return {name: entry for name, entry in kept.items() if entry.path.exists()}

    def _status(self, writing: bool) -> Status:
        if self.run.ended is not None:
            return "finished"
        return "running" if writing else "killed"

    def _is_running(self) -> bool:
        """Whether the process that holds the training's lock lives. Asking for the lock could keep a run from it."""
        try:
            note = json.loads(self.folder.with_suffix(".lock").read_text(encoding="utf-8"))
            if note["host"] != socket.gethostname():
                return True
            os.kill(int(note["pid"]), 0)
        except (ProcessLookupError, FileNotFoundError):
            return False
        except (OSError, ValueError, KeyError, TypeError):
            return True  # just being written, or of another user
        return True


# --- how the delivery is getting on -----------------------------------------------------------------------------------


def write_status(folder: Path, problem: str | None) -> None:
    """Note that all is well, or what is not. A disk that is full costs the note."""
    with contextlib.suppress(EvopipeError):
        safeio.write_json(folder / STATUS, {"problem": problem})


def read_problem(folder: Path) -> str | None:
    """Return what keeps the trackers from being told; None where nothing does."""
    with contextlib.suppress(EvopipeError):
        status = safeio.read_json(folder / STATUS)
        return status["problem"] if isinstance(status, dict) and isinstance(status.get("problem"), str) else None
    return None


# --- hashes as DVC writes them ----------------------------------------------------------------------------------------


def md5_of(path: Path) -> str:
    """Return the hash of a file or folder as `dvc.lock` holds it."""
    if not path.is_dir():
        return _md5(path)
    files = [
        {"md5": _md5(file), "relpath": file.relative_to(path).as_posix()} for file in path.rglob("*") if file.is_file()
    ]
    listed = json.dumps(sorted(files, key=lambda file: file["relpath"]), sort_keys=True)
    return hashlib.md5(listed.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
