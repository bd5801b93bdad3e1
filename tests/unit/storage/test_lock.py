"""The run lock: one holder, a busy one is named at once, and death releases it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evopipe.errors import BusyError, DiskError
from evopipe.storage import lock as module
from evopipe.storage.lock import RunLock

HOLD = """
import os, sys, time
from pathlib import Path
from evopipe.storage.lock import RunLock
with RunLock(Path(sys.argv[1])):
    child = os.fork() if sys.argv[2] == "fork" else 1
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


def holder(path: Path, mode: str) -> tuple[subprocess.Popen[str], int]:
    """Start a process that holds the lock; return it and the pid of the child it forked."""
    environment = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    command = [sys.executable, "-c", HOLD, str(path), mode]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_lock_is_free_before_and_after(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.lock"
    for _ in range(2):
        with RunLock(path) as lock:
            assert lock.path == path
            assert f'"pid": {os.getpid()}' in path.read_text()
        assert not path.exists()


def test_a_busy_lock_names_its_holder_and_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    process, _ = holder(path, "alone")
    try:
        note = path.read_bytes()
        for _ in range(2):
            with pytest.raises(BusyError) as caught, RunLock(path):
                pass
            pattern = (
                rf"{re.escape(str(path))}: this run is being worked on by process {process.pid} "
                r"\(since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d\): wait for it, or stop it"
            )
            assert re.fullmatch(pattern, str(caught.value))
            assert caught.value.exit_code == 75
        assert path.read_bytes() == note
    finally:
        kill(process)


def test_a_killed_holder_releases(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    process, _ = holder(path, "alone")
    kill(process)
    assert path.exists()
    path.write_bytes(path.read_bytes() + b"of a host with a long name" * 9)
    with RunLock(path):
        note = json.loads(path.read_text())
        assert (note["host"], note["pid"]) == (socket.gethostname(), os.getpid())


def test_a_child_forked_by_a_killed_holder_does_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    process, child = holder(path, "fork")
    try:
        with pytest.raises(BusyError), RunLock(path):
            pass
        kill(process)
        os.kill(child, 0)  # it is still alive
        for last in (*[False] * 50, True):  # on a busy machine it may not have run yet, and lets go when it does
            try:
                with RunLock(path):
                    break
            except BusyError:
                if last:
                    raise
                time.sleep(0.1)
    finally:
        os.kill(child, signal.SIGKILL)


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    lock = RunLock(path)
    with lock:
        for other in (RunLock(path), lock):
            with pytest.raises(BusyError, match=f"by process {os.getpid()} "), other:
                pass
        with pytest.raises(BusyError), RunLock(path):
            pass
    with lock:
        pass


def test_an_error_inside_releases(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with pytest.raises(ZeroDivisionError), RunLock(path):
        raise ZeroDivisionError
    with RunLock(path):
        pass


def test_a_lock_file_removed_by_hand(tmp_path: Path) -> None:
    """Its holder goes on unharmed, and at release leaves the file of whoever locked the name since."""
    path = tmp_path / "run.lock"
    with RunLock(path):
        path.unlink()
        newer = RunLock(path).__enter__()
    assert path.exists()
    with pytest.raises(BusyError), RunLock(path):
        pass
    newer.__exit__(None, None, None)
    assert not path.exists()


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff"])
def test_a_busy_lock_without_a_readable_note(tmp_path: Path, note: bytes) -> None:
    path = tmp_path / "run.lock"
    with RunLock(path):
        path.write_bytes(note)
        with (
            pytest.raises(BusyError, match="being worked on by another process: wait for it, or stop it"),
            RunLock(path),
        ):
            pass


def test_a_holder_on_another_machine_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with RunLock(path):
        path.write_text('{"host": "far", "pid": 7, "started": "2026-01-01 00:00:00+00:00"}')
        with pytest.raises(BusyError, match=r"by process 7 on far \(since 2026-01-01 00:00:00\+00:00\)"), RunLock(path):
            pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "run.lock", tmp_path / "file" / "deep" / "run.lock"):
        with pytest.raises(DiskError, match="cannot be written, a part of this path is a file"), RunLock(path):
            pass
    with pytest.raises(DiskError, match="cannot be written, a folder is in its place"), RunLock(tmp_path):
        pass
