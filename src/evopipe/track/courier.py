"""Starts the process that feeds the trackers, and never waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import evopipe
from evopipe.schema.blocks import TrackingConfig
from evopipe.track.record import LOG, STATUS, read_problem
from evopipe.track.run import missing_package

ADVICE = "the run goes on and loses nothing, `evopipe track sync` brings the rest later"
_LOOK_SECONDS = 1.0
_started: list[subprocess.Popen[bytes]] = []


class Courier:
    """Has a record delivered while a `with` block writes it. No method raises, or waits for a tracker.

    Args:
        folder: the record; `track.record.begin` has made it. None: nothing is to be delivered.
        root: the DVC root.
        config: the `tracking` block.
    """

    def __init__(self, folder: Path | None, root: Path, config: TrackingConfig) -> None:
        missing = {name: text for name in config.backends if (text := missing_package(name)) is not None}
        there = tuple(name for name in config.backends if name not in missing)
        self._folder, self._root = folder, root
        self._config = config.model_copy(update={"backends": there})
        self._process: subprocess.Popen[bytes] | None = None
        self._problems = [*missing.values()]
        self._told: set[str] = set()
        self._next_look, self._stamp = 0.0, _stamp(folder)

    def __enter__(self) -> Courier:
        if self._folder is not None and self._config.backends:
            try:
                self._process = start(self._folder, self._root, self._config, subprocess.PIPE)
            except OSError as error:
                self._problems.append(f"tracking: no process could be started ({error.strerror or error})")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the process know that no more comes; it ends by itself."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def problems(self) -> list[str]:
        """Return sentences on what is wrong with the delivery, each once; looks at most once a second."""
        now = time.monotonic()
        if self._folder is None or now < self._next_look:
            return []
        self._next_look = now + _LOOK_SECONDS
        if (stamp := _stamp(self._folder)) != self._stamp:
            self._stamp = stamp
            if (problem := read_problem(self._folder)) is not None:
                self._problems.append(f"tracking: {problem}")
        fresh = [text for text in dict.fromkeys(self._problems) if text not in self._told]
        self._told.update(fresh)
        self._problems.clear()
        return [f"{text}; {ADVICE}" for text in fresh]


def start(folder: Path, root: Path, config: TrackingConfig, stdin: int) -> subprocess.Popen[bytes]:
    """Start the process that delivers a record.

    It has its own session, so that Ctrl-C at the terminal leaves it to finish, and none of this process's streams, so
    that nobody who waits for their end (DVC does) waits for it.

    Args:
        folder: the record.
        root: the DVC root.
        config: the `tracking` block.
        stdin: `subprocess.PIPE`: more comes until it is closed; `subprocess.DEVNULL`: all is there.

    Raises:
        OSError: it cannot be started.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    source = Path(evopipe.__file__).absolute().parents[1]
    paths = [str(source), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths),
        # Numeric libraries come along with MLflow and would keep a thread ready for every core.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }
    words = [sys.executable, "-m", "evopipe.track.deliver", str(folder), str(root), config.model_dump_json()]
    words.append(str(os.getpid()))
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            words, stdin=stdin, stdout=log, stderr=log, cwd=root, env=env, start_new_session=True
        )
    _started.append(process)  # to be reaped at the next start, in a program that trains many times
    return process


def _stamp(folder: Path | None) -> int | None:
    try:
        return None if folder is None else (folder / STATUS).stat().st_mtime_ns
    except OSError:
        return None
