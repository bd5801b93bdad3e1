"""`evopipe track sync`: bring to the trackers what they have not got. Twice is as good as once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from evopipe.errors import BusyError, EvopipeError, MissingInputError
from evopipe.schema.blocks import TrackingConfig
from evopipe.track import record
from evopipe.track.deliver import Channel, lock_of
from evopipe.track.experiments import Locked, locked, of_workspace
from evopipe.track.run import FILES, New, Run, TrackerError

Tell = Callable[[str], None]


def sync(root: Path, config: TrackingConfig, tell: Tell, warn: Tell) -> dict[str, New]:
    """Deliver all trainings: those recorded on this machine, then those that only DVC knows.

    Args:
        root: the DVC root.
        config: the `tracking` block.
        tell: takes a sentence on what was brought; `warn` one on what could not be.

    Returns:
        what was new, by tracker.

    Raises:
        TrackerError: a tracker could not take everything; what the others took is there.
    """
    home = root / ".evopipe" / "train"
    channels = [Channel(name, config, root) for name in config.backends]
    totals: dict[str, New] = {channel.name: New() for channel in channels}
    given = _Given(channels, totals, tell)
    try:
        _keep_workspaces(root, home)
        for folder in record.records(home):
            _sync_record(folder, given, warn)
        if (root / ".dvc").is_dir():
            _sync_locked(root, home, given, warn)
    finally:
        for channel in channels:
            channel.close()
    if given.failed:
        raise TrackerError(
            "\n".join(f"{problem}; mend that, then `evopipe track sync` again" for problem in given.failed.values())
        )
    return totals


class _Given:
    """Gives runs to trackers, and gives up on a tracker at its first failure: the next run would wait as long."""

    def __init__(self, channels: list[Channel], totals: dict[str, New], tell: Tell) -> None:
        self.channels, self.totals, self.tell = channels, totals, tell
        self.failed: dict[str, str] = {}

    def give(self, run: Run) -> None:
        for channel in self.channels:
            if channel.name in self.failed:
                continue
            new = channel.deliver(run)
            if new is None:
                self.failed[channel.name] = channel.problem or channel.name
            elif new:
                self.totals[channel.name] += new
                self.tell(f"{channel.name}: {run.name}: {new}")


def _keep_workspaces(root: Path, home: Path) -> None:
    """Add what stages wrote or DVC restored since to the records of the trainings that lie in the workspace."""
    for source in of_workspace(root):
        with contextlib.suppress(OSError, EvopipeError):
            place = record.find(home, source.result)
            if place is not None and source.folder is not None:
                # What is not as the lock says is of another training, or of none.
                same = [name for name in FILES if _is_as_locked(source, source.folder / FILES[name], FILES[name])]
                record.keep(place, source.folder, same)


def _is_as_locked(source: Locked, path: Path, place: str) -> bool:
    return place in source.outs and path.exists() and record.md5_of(path) == source.outs[place]


def _sync_record(folder: Path, given: _Given, warn: Tell) -> None:
    try:
        with lock_of(folder):
            given.give(record.Record(folder).refresh())
            if not given.failed:
                record.write_status(folder, None)
    except BusyError:
        warn(f"{folder.name[:8]} is being delivered by another process; left to it")
    except EvopipeError as error:
        warn(f"{folder.name[:8]}: {error}")


def _sync_locked(root: Path, home: Path, given: _Given, warn: Tell) -> None:
    absent = 0
    for source in locked(root):
        try:
            with tempfile.TemporaryDirectory(prefix="evopipe-track-") as temporary:
                given.give(_as_recorded(source, source.run(Path(temporary)), home))
        except MissingInputError:
            absent += 1
        except EvopipeError as error:
            warn(f"{source.where}: {error}")
    if absent:
        warn(f"{absent} more known to git have no outputs in the cache: `dvc fetch --all-commits` brings them")


def _as_recorded(source: Locked, run: Run, home: Path) -> Run:
    """Say under which key a tracker may already have the training, and whose files are newer."""
    place = record.find(home, source.result)
    if place is not None:
        run.key = place.name
    else:
        run.replace = source.where == "workspace"
    return run
