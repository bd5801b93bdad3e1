"""A file lock for one writer per run. The system releases it when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import weakref
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from evopipe.errors import BusyError
from evopipe.storage.files import make_folder, translating

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NOTE_LIMIT = 4096


class RunLock:
    """A context manager that holds an exclusive lock on the file `path`, and never waits for the lock.

    The file names the process that holds the lock, and is removed at release. If that process was killed, the lock is
    free, and the next process takes over the file. The file must be outside any folder that the process removes.

    Raises:
        BusyError: another process, or another lock in this process, holds the lock.
        DiskError: the file cannot be created or locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._beside: Any = None  # the lock that counts on a system without fcntl; the file only has the note

    def __enter__(self) -> Self:
        if self._handle is not None:
            raise self._busy()
        make_folder(self.path.parent)
        with translating(self.path):
            self._handle = self._acquire_beside() if fcntl is None else self._acquire()
            _held.add(self)
            try:
                started = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
                note = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
                os.ftruncate(self._handle, 0)
                os.lseek(self._handle, 0, os.SEEK_SET)
                os.write(self._handle, (json.dumps(note) + "\n").encode())
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        # Removed while still held: who opened it before sees at once that it is not the file of this name any more.
        with contextlib.suppress(OSError):
            if self._handle is not None and self._is_current(self._handle):
                self.path.unlink()
        self._drop()

    def _acquire(self) -> int:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current(handle):
                    return handle
            except OSError as error:
                os.close(handle)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise self._busy() from None
                raise
            os.close(handle)  # its holder released and removed it between our open and our lock

    def _acquire_beside(self) -> int:
        """Lock a file beside this one: what Windows locks nobody else can read, and the note is for others."""
        lock = FileLock(f"{self.path}.held", blocking=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise self._busy() from None
        self._beside = lock
        return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _drop(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            _held.discard(self)
        if self._beside is not None:
            with contextlib.suppress(OSError):  # Windows removes no file that is open
                self.path.unlink()
            self._beside.release()
            self._beside = None

    def _busy(self) -> BusyError:
        """Name the holder; its note may be missing for the instant between locking and signing."""
        holder = "another process"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(self.path, "rb") as file:
            note = json.loads(file.read(_NOTE_LIMIT))
            place = "" if note["host"] == socket.gethostname() else f" on {note['host']}"
            holder = f"process {note['pid']}{place} (since {note['started']})"
        return BusyError(f"{self.path}: this run is being worked on by {holder}: wait for it, or stop it")


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _drop_all() -> None:
    for lock in list(_held):
        lock._drop()


# A forked child shares the lock: without this an orphaned environment worker would keep a dead run's lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)
