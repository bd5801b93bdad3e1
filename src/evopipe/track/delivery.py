"""Bringing runs to the trackers, and `evopipe track sync`: twice is as good as once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from filelock import Timeout

from evopipe.errors import EvopipeError, MissingInputError, TrackerError
from evopipe.schema.blocks import TrackingConfig
from evopipe.track import backends
from evopipe.track.locks import Locked
from evopipe.track.record import FILES, New, Run, TrainingRecord, md5_of


class Trackers:
    """All trackers of the `tracking` block, each opened when it is first needed, and anew after a failure.

    Attributes:
        problems: what is wrong, one sentence a tracker that failed when it was last asked.
    """

    def __init__(self, config: TrackingConfig, root: Path) -> None:
        self._config, self._root = config, root
        self._open: dict[str, backends.Backend] = {}
        self._brought: dict[str, object] = {}  # how far the run was that was brought last
        self.problems: dict[str, str] = {}

    def deliver(self, run: Run, again: bool = True) -> dict[str, New]:
        """Bring a run to the trackers, to those that failed before only `again`; return how much was new to each."""
        names = [name for name in self._config.backends if again or name not in self.problems]
        return {name: self._bring(name, run) for name in names if self._brought.get(name) != run.stand()}

    def _bring(self, name: str, run: Run) -> New:
        try:
            if name not in self._open:
                self._open[name] = backends.connect(name, self._config, self._root)
            new = self._open[name].deliver(run)
        except Exception as error:
            kind = "" if isinstance(error, EvopipeError) else f"{type(error).__name__}: "
            self.problems[name] = f"{name}: {kind}{str(error).strip().partition(chr(10))[0][:300]}".rstrip(": ")
            self._close(name)
            return New()
        self.problems.pop(name, None)
        self._brought[name] = run.stand()
        return new

    def _close(self, name: str) -> None:
        self._brought.pop(name, None)
        with contextlib.suppress(Exception):
            if name in self._open:
                self._open.pop(name).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._open):
            self._close(name)


def sync(
    root: Path, config: TrackingConfig, tell: Callable[[str], None], warn: Callable[[str], None]
) -> dict[str, New]:
    """Deliver all trainings: those recorded on this machine, then those that only DVC knows.

    A tracker is given up at its first failure: the next run would wait as long. `tell` gets a sentence on what was
    brought, `warn` one on what could not be. Returns what was new, by tracker.

    Raises:
        MissingInputError: the project has DVC, which is not installed.
        TrackerError: a tracker could not take everything; what the others took is there.
    """
    home, totals = root / ".evopipe" / "train", {name: New() for name in config.backends}
    known = Locked.all(root) if (root / ".dvc").is_dir() else []
    for locked in known:
        _keep(locked, home)
    with Trackers(config, root) as trackers:

        def give(run: Run) -> None:
            for name, new in trackers.deliver(run, again=False).items():
                totals[name] += new
                if new.total():
                    tell(f"{name}: {run.name}: {new}")

        for record in TrainingRecord.all(home):
            try:
                with record.delivering().acquire(blocking=False):
                    give(record.run())
            except Timeout:
                warn(f"{record.folder.name[:8]} is being delivered by another process; left to it")
            except EvopipeError as error:
                warn(f"{record.folder.name[:8]}: {error}")
        absent = 0
        for locked in known:
            try:
                with tempfile.TemporaryDirectory(prefix="evopipe-track-") as temporary:
                    run, own = locked.run(Path(temporary)), TrainingRecord.find(home, locked.result)
                    if own is not None:  # a tracker has it under this key, and newer files of it
                        run.key, run.replace = own.folder.name, False
                    give(run)
            except MissingInputError:
                absent += 1
            except EvopipeError as error:
                warn(f"{locked.where}: {error}")
        if absent:
            warn(f"{absent} more known to git have no outputs in the cache: `dvc fetch --all-commits` brings them")
    if trackers.problems:
        remedy = "mend that, then `evopipe track sync` again"
        raise TrackerError("\n".join(f"{problem}; {remedy}" for problem in trackers.problems.values()))
    return totals


def _keep(locked: Locked, home: Path) -> None:
    """Add what stages wrote or DVC restored since to the record of the training that lies in the workspace."""
    with contextlib.suppress(OSError, EvopipeError):
        if locked.folder is not None and (record := TrainingRecord.find(home, locked.result)) is not None:
            there = {name: locked.folder / path for name, path in FILES.items() if (locked.folder / path).exists()}
            # What is not as the lock says is of another training, or of none.
            record.keep(locked.folder, [n for n, path in there.items() if md5_of(path) == locked.outs.get(FILES[n])])
