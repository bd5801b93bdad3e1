"""The outbox: a process beside a training that reads its record as it grows, and sends it to the trackers.

Whatever a tracker does (import for seconds, hang, fail, fill its disk) happens in that process. The training starts it,
never waits for it, and hears from it only of problems. It ends when everything is delivered and nobody writes any more,
or when its time is up; `evopipe track sync` delivers the rest.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self, cast

from filelock import FileLock, Timeout

from evopipe.errors import EvopipeError, MissingInputError, TrackerError, redacted
from evopipe.schema.tracking import TrackingConfig
from evopipe.track import backends
from evopipe.track.locks import Locked
from evopipe.track.record import FILES, New, TrackedRun, TrainingRecord, md5_of
from evopipe.version import SOURCE

ADVICE = "the run goes on and loses nothing, `evopipe track sync` brings the rest later"
_POLL_SECONDS, _LONGEST_PAUSE = 2.0, 60.0
_GATHER_SECONDS = 1.5  # stages that end shortly after one another are brought together
_Tell = Callable[[str], None]
_ANSWERS = hasattr(os, "set_blocking")  # Windows by Python 3.12; else what went wrong is in the log alone
_started: list[subprocess.Popen[bytes]] = []  # to be reaped at the next start, in a program that trains many times


class Outbox:
    """A process beside a training that delivers the training's record to trackers.

    The record is a folder with everything that trackers need of the training, see `TrainingRecord`. As a context
    manager, an `Outbox` delivers what the `with` block adds to the record; it neither raises nor waits. The method
    `deliver` delivers the record once.

    Args:
        folder: the folder of the record; None to deliver nothing.
        root: the root of the DVC repository.
        config: the block `tracking` of the parameters.
    """

    def __init__(self, folder: Path | None, root: Path, config: TrackingConfig) -> None:
        missing = {name: text for name in config.backends if (text := backends.missing_package(name)) is not None}
        asked = "backends" in config.model_fields_set  # nobody who leaves the default need have its package
        there = tuple(name for name in config.backends if name not in missing)
        self._folder, self._root, self._config = folder, root, config.model_copy(update={"backends": there})
        self._problems = list(missing.values()) if asked and folder is not None else []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Outbox:
        try:
            self._process = self._start(follow=True)
        except OSError as error:
            self._problems.append(f"tracking: no process could be started ({error.strerror or error})")
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout) if self._process is not None else ():
            if pipe is not None:
                pipe.close()  # no more comes: the process ends by itself

    def deliver(self) -> None:
        """Start a process that delivers the record in its current state, and return at once.

        Raises:
            OSError: no process can be started.
        """
        self._start(follow=False)

    def problems(self) -> list[str]:
        """Return one sentence for each problem of delivery that has occurred since the last call."""
        if self._process is not None and self._process.stdout is not None:
            said = self._process.stdout.read() or b""  # None: nothing yet
            self._problems += [f"tracking: {line}" for line in said.decode(errors="replace").splitlines()]
        fresh, self._problems = self._problems, []
        return [f"{text}; {ADVICE}" for text in fresh]

    def _start(self, follow: bool) -> subprocess.Popen[bytes] | None:
        """Start the process that delivers. It follows the record until its stdin is closed, and reports problems on
        stdout.

        It has its own session, so that Ctrl-C at the terminal lets it finish. It has none of this process's streams, so
        that programs that wait for their end (as DVC does) do not wait for it.
        """
        if self._folder is None or not self._config.backends:
            return None
        _started[:] = [process for process in _started if process.poll() is None]
        source = SOURCE
        paths = [str(source), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths),
            # Numeric libraries come along with MLflow and would keep a thread ready for every core.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        words = [str(self._folder), str(self._root), self._config.model_dump_json(), str(os.getpid())]
        with (self._folder / "track.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "evopipe.track.outbox", *words],
                bufsize=0,
                stdin=subprocess.PIPE if follow else subprocess.DEVNULL,
                stdout=subprocess.PIPE if follow and _ANSWERS else log,
                stderr=log,
                cwd=self._root,
                env=env,
                start_new_session=True,
            )
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        _started.append(process)
        return process


# --- delivery ---------------------------------------------------------------------------------------------------------


class _Trackers:
    """All trackers of the `tracking` block, each opened when it is first needed, and anew after a failure."""

    def __init__(self, config: TrackingConfig, root: Path) -> None:
        self._config, self._root = config, root
        self._open: dict[str, backends.TrackerBackend] = {}
        self._brought: dict[str, object] = {}  # how far the run was that was brought last
        self.problems: dict[str, str] = {}  # a sentence for each tracker that failed when it was last asked

    def deliver(self, run: TrackedRun, again: bool = True) -> dict[str, New]:
        """Bring a run to the trackers, to those that failed before only `again`; return how much was new to each."""
        names = [name for name in self._config.backends if again or name not in self.problems]
        return {name: self._bring(name, run) for name in names if self._brought.get(name) != run.snapshot_key()}

    def _bring(self, name: str, run: TrackedRun) -> New:
        try:
            if name not in self._open:
                self._open[name] = backends.connect(name, self._config, self._root)
            new = self._open[name].deliver(run)
        except Exception as error:
            kind = "" if isinstance(error, EvopipeError) else f"{type(error).__name__}: "
            said = redacted(str(error).strip().partition(chr(10))[0])[:300]
            self.problems[name] = f"{name}: {kind}{said}".rstrip(": ")
            self._close(name)
            return New()
        self.problems.pop(name, None)
        self._brought[name] = run.snapshot_key()
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


def sync(root: Path, config: TrackingConfig, tell: _Tell, warn: _Tell) -> dict[str, New]:
    """Deliver all trainings to the trackers: first trainings recorded on this machine, then trainings known only from
    DVC's files.

    A tracker that failed once gets nothing more in this call, because it could make every further training wait. The
    result has for each tracker's name the counts of what the tracker received for the first time.

    `root` is the root of the DVC repository, and `config` the block `tracking` of the parameters. `tell` is called with
    sentences on deliveries, `warn` with sentences on failures.

    Raises:
        MissingInputError: the project uses DVC, which is not installed.
        TrackerError: a tracker could not take everything; all other trackers' deliveries are complete.
    """
    home, totals = root / ".evopipe" / "train", {name: New() for name in config.backends}
    known = Locked.all(root) if (root / ".dvc").is_dir() else []
    for locked in known:
        _keep(locked, home)
    with _Trackers(config, root) as trackers:

        def give(run: TrackedRun) -> None:
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


class _Redacted:
    """A stream in whose lines no address holds a password: trackers' own code may print the one that it was given."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._line = stream, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._stream.write(redacted(line) + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.write(redacted(self._line))
        self._line = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# --- the process ------------------------------------------------------------------------------------------------------


def _main(folder: Path, root: Path, config: TrackingConfig, writer: int) -> None:
    """Deliver a record, while the process that writes it lives and keeps the other end of stdin open, and after."""
    with contextlib.suppress(OSError, AttributeError):  # Windows has no `nice`
        os.nice(19)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the trackers print is no answer
    sys.stdout = sys.stderr = cast("Any", _Redacted(sys.stderr))
    record, over = TrainingRecord(folder), threading.Event()
    threading.Thread(target=_watch, args=(over, config.finish_seconds, writer), daemon=True).start()
    with contextlib.suppress(Timeout), contextlib.ExitStack() as stack:
        next_one = FileLock(folder / "next.lock", blocking=False)
        if over.wait(0.05):  # All is there: one process that waits for its turn is enough, it brings this as well.
            stack.enter_context(next_one)
            time.sleep(_GATHER_SECONDS)
        stack.enter_context(record.delivering())
        next_one.release()
        _follow(record, stack.enter_context(_Trackers(config, root)), over, answer)


def _watch(over: threading.Event, seconds: float, writer: int) -> None:
    """Wait until the writer closes its end, or dies; then until the time is up, however stuck the rest is. Its death is
    looked for as well, for a process that it forked may hold the other end too."""
    with contextlib.suppress(OSError, ValueError):
        try:
            while os.getppid() == writer and not select.select([0], [], [], _POLL_SECONDS)[0]:
                pass
        except OSError:  # Windows waits for sockets alone; there nobody else can hold the other end
            os.read(0, 1)
    over.set()
    time.sleep(seconds)
    print(f"time is up after {seconds:g} s", file=sys.stderr, flush=True)
    os._exit(75)


def _follow(record: TrainingRecord, trackers: _Trackers, over: threading.Event, answer: int) -> None:
    """Deliver a record until it is complete and nobody writes to it any more; report every new problem."""
    told, pause = set[str](), _POLL_SECONDS
    while record.folder.exists():
        last = over.is_set()
        trackers.deliver(record.run(writing=not last))
        problem = "; ".join(trackers.problems.values())
        if problem not in told | {""}:
            told.add(problem)
            with contextlib.suppress(OSError):  # nobody listens any more
                os.write(answer, f"{problem}\n".encode())
        if last and not problem:
            return
        pause = min(_LONGEST_PAUSE, 2 * pause) if problem else _POLL_SECONDS
        (time.sleep if last else over.wait)(pause)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), TrackingConfig.model_validate_json(sys.argv[3]), int(sys.argv[4]))
