"""A training's record, `.evopipe/train/<key>/`: all that a tracker must be told, in local files.

    run.json      parameters, git commit, DVC experiment, when it started; its outcome's hash, and which files it kept
    events.jsonl  the log (`track.events`)
    kept/         what the stages wrote, under the names of `run.FILES`
    track.log     what the trackers' own code says

The outbox (`track.outbox`) brings it to the trackers while the run lasts, `evopipe track sync` whatever that missed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, EvopipeError
from evopipe.storage.files import make_folder, read_bytes, read_json, write_bytes, write_json
from evopipe.track.events import End, Event, Generation, Start, read_event
from evopipe.track.run import FILES, TRAINED, Kept, Run

ABOUT = "run.json"


def begin(folder: Path, params: Mapping[str, Any], revision: str | None, experiment: str | None, version: str) -> None:
    """Begin a record; one that is there already (the run goes on, or is repeated) stays.

    Args:
        folder: the training's state folder.
        params: all of `params.yaml`.
        revision: the git commit; `experiment`: the DVC experiment's name; `version`: of evopipe.

    Raises:
        DiskError: it cannot be written.
    """
    if not (folder / ABOUT).exists():
        about = {"key": folder.name, "params": params, "started": round(time.time(), 3), "result": None, "files": {}}
        about |= {"revision": revision, "experiment": experiment, "version": version}
        write_json(folder / ABOUT, about)


def keep(folder: Path, work: Path, names: Iterable[str], ended: bool = False) -> bool:
    """Keep the files of a pipeline that are there and new, so that later runs cannot overwrite them.

    Args:
        folder: the record.
        work: the folder that the pipeline runs in.
        names: which of `FILES`; they must be of this training.
        ended: whether training has just ended: its outcome is noted as well.

    Returns:
        whether any was new.
    """
    about = read_json(folder / ABOUT)
    new = {**about, "files": {**about.get("files", {})}}
    if ended:
        new["result"] = md5_of(work / TRAINED)
    for name in names:
        source = work / FILES[name]
        if source.exists() and (md5 := md5_of(source)) != new["files"].get(name, {}).get("md5"):
            _copy(source, folder / "kept" / name / source.name)
            new["files"][name] = {"md5": md5, "time": round(time.time(), 3)}
    if new != about:
        write_json(folder / ABOUT, new)
    return bool(new != about)


def _copy(source: Path, target: Path) -> None:
    """Put a copy of a file or folder in place of an older one.

    Hard links where the file system has them: stages never write into a file, they put a new one in its place.
    """
    if target.parent.exists():
        shutil.rmtree(target.parent)
    make_folder(target.parent)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        _link(str(source), str(target))


def _link(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        write_bytes(Path(target), read_bytes(Path(source).resolve()))


def records(home: Path) -> Iterator[Path]:
    """Return the folders of all records below `<DVC root>/.evopipe/train`, in the order of their names."""
    return (path.parent for path in sorted(home.glob(f"*/{ABOUT}")))


def find(home: Path, result: str) -> Path | None:
    """Return the record of the training whose `models/trained` has this hash; None where there is none."""
    for folder in records(home):
        with contextlib.suppress(EvopipeError, AttributeError):
            if read_json(folder / ABOUT).get("result") == result:
                return folder
    return None


class Record:
    """Reads a record, and on every `refresh` what was added to it.

    Args:
        folder: the record.

    Raises:
        MissingInputError, DataError: its description is not there, or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offset = 0  # of the first byte of the log that was not read
        about = read_json(folder / ABOUT)
        try:
            told = {name: about[name] for name in ("key", "params", "started", "experiment", "revision", "version")}
            self.run = Run(**told)
        except (KeyError, TypeError) as error:
            raise DataError(f"{folder / ABOUT}: is not the description of a run ({error!r}); remove it") from error

    def refresh(self, writing: bool = False) -> Run:
        """Return the run as it stands.

        Args:
            writing: whether its process lives; a run that has not ended and is not written any more was killed.
        """
        run = self.run
        with contextlib.suppress(FileNotFoundError), (self._folder / "events.jsonl").open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if (read := read_event(line)) is not None:
                    self._take(*read)
        about = read_json(self._folder / ABOUT)
        run.result = about["result"]
        places = {name: self._folder / "kept" / name / Path(FILES[name]).name for name in about.get("files", {})}
        run.files = {name: Kept(place, **about["files"][name]) for name, place in places.items() if place.exists()}
        run.status = "finished" if run.ended else "running" if writing else "killed"
        return run

    def _take(self, clock: float, event: Event) -> None:
        """Take an event in.

        A run that was killed repeats what came after its last checkpoint, bit for bit: the first word on a generation
        counts, for that is what a tracker has been told.
        """
        run = self.run
        if isinstance(event, Generation) and not run.after(event.generation - 1):
            run.generations.append((clock, event))
        elif isinstance(event, Start) and run.result is None:
            run.ended = None
        elif isinstance(event, End) and run.ended is None:
            run.ended = (clock, event.reason)


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
