"""Blocking code of users in processes: what keeps a CPU busy runs beside the rest, and what hangs is killed.

What a call needs travels with it, both ways, so that any process can take any call, and one that dies takes no other
episode along.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

BEGINNING = 120.0  # seconds that a process may take to begin, and to import what its first call needs


class Process:
    """A process that takes one call at a time, and ends with its last reference, or with this process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads of this process hold
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="evopipe-agent", daemon=True)
        self._process.start()
        theirs.close()
        self.begun = False

    def begin(self, data: bytes) -> None:
        """Wait until it has begun, and has imported what this call needs."""
        try:
            self._told(data)
        except RuntimeError as error:
            text = f"{error} before it began: a script must start its run below `if __name__ == '__main__':`"
            raise RuntimeError(text) from None
        self.begun = True

    def ask(self, data: bytes) -> tuple[Any, Exception | None]:
        """Have a call done that `packed` made; return its result, or what it raised."""
        found: tuple[Any, Exception | None] = pickle.loads(self._told(data))
        return found

    def _told(self, data: bytes) -> bytes:
        """Return the process's answer; RuntimeError if it died."""
        try:
            self._pipe.send_bytes(data)
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise RuntimeError("the process that this ran in died") from None

    def kill(self) -> None:
        """End it, whatever it does. Who waits for its answer is told that it died."""
        self._process.kill()
        self._process.join()


class Processes:
    """Processes that are begun when there are calls for them, and kept until `close`, at most `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._idle: list[Process] = []

    def take(self) -> Process:
        return self._idle.pop() if self._idle else Process()

    def give(self, process: Process) -> None:
        self._idle.append(process)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().kill()


def packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return a call as bytes. Raises TypeError if something of it cannot be pickled."""
    try:
        return pickle.dumps((function, args))
    except Exception as error:
        raise TypeError(
            f"what says blocking = 'process' travels to another one by pickle, and this cannot ({error}): let it be "
            "defined in a module, hold nothing that is open, or say True"
        ) from None


def step(env: Any, method: str, args: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """Call an environment's method, there; return its result, and what the environment has become."""
    return getattr(env, method)(*args), vars(env)


def _serve(pipe: Connection) -> None:
    """What the other process does: calls, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the process that asks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        with contextlib.suppress(Exception):  # it is told of when the call itself comes
            pickle.loads(pipe.recv_bytes())
        pipe.send_bytes(b"")
        while True:
            pipe.send_bytes(_done(pipe.recv_bytes()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _done(data: bytes) -> bytes:
    """Do a call; return its result and None, or None and what it raised: as it is, if it can travel."""
    try:
        function, args = pickle.loads(data)
        return pickle.dumps((function(*args), None))
    except BaseException as raised:  # a SystemExit of user code, too, is its caller's
        text = RuntimeError(f"{type(raised).__name__}: {raised}")
        if not isinstance(raised, Exception):
            return pickle.dumps((None, text))
        with contextlib.suppress(Exception):
            told = pickle.dumps((None, raised))
            pickle.loads(told)
            return told
        return pickle.dumps((None, text))
