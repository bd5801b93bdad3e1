"""`evopipe track sync`: bring to the trackers what they have not got. Twice is as good as once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import Timeout

from evopipe.errors import EvopipeError, MissingInputError
from evopipe.schema.blocks import TrackingConfig
from evopipe.track import record
from evopipe.track.locks import Locked, find_trainings
from evopipe.track.outbox import Channel, delivery_lock
from evopipe.track.run import FILES, New, Run, TrackerError


def sync(
    root: Path, config: TrackingConfig, tell: Callable[[str], None], warn: Callable[[str], None]
) -> dict[str, New]:
    """Deliver all trainings: those recorded on this machine, then those that only DVC knows.

    A tracker is given up at its first failure: the next run would wait as long.

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
    totals = {channel.name: New() for channel in channels}

    def give(run: Run) -> None:
        for channel in channels:
            new = New() if channel.problem else channel.deliver(run)
            if new.total():
                totals[channel.name] += new
                tell(f"{channel.name}: {run.name}: {new}")

    with contextlib.ExitStack() as stack:
        for channel in channels:
            stack.callback(channel.close)
        locked = list(find_trainings(root)) if (root / ".dvc").is_dir() else []
        for source in locked:
            _keep(source, home)
        for folder in record.records(home):
            try:
                with delivery_lock(folder).acquire(blocking=False):
                    give(record.Record(folder).refresh())
            except Timeout:
                warn(f"{folder.name[:8]} is being delivered by another process; left to it")
            except EvopipeError as error:
                warn(f"{folder.name[:8]}: {error}")
        absent = 0
        for source in locked:
            try:
                with tempfile.TemporaryDirectory(prefix="evopipe-track-") as temporary:
                    run = source.run(Path(temporary))
                    # A tracker may have the training under its record's key, and newer files of it.
                    recorded = record.find(home, source.result)
                    run.key = run.key if recorded is None else recorded.name
                    run.replace = recorded is None and source.folder is not None
                    give(run)
            except MissingInputError:
                absent += 1
            except EvopipeError as error:
                warn(f"{source.where}: {error}")
        if absent:
            warn(f"{absent} more known to git have no outputs in the cache: `dvc fetch --all-commits` brings them")
    failed = [
        f"{channel.problem}; mend that, then `evopipe track sync` again" for channel in channels if channel.problem
    ]
    if failed:
        raise TrackerError("\n".join(failed))
    return totals


def _keep(source: Locked, home: Path) -> None:
    """Add what stages wrote or DVC restored since to the record of the training that lies in the workspace."""
    with contextlib.suppress(OSError, EvopipeError):
        if source.folder is not None and (place := record.find(home, source.result)) is not None:
            there = {name: source.folder / path for name, path in FILES.items() if (source.folder / path).exists()}
            # What is not as the lock says is of another training, or of none.
            same = [name for name, path in there.items() if record.md5_of(path) == source.outs.get(FILES[name])]
            record.keep(place, source.folder, same)
