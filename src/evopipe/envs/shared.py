"""What a pool and its worker processes share: arrays in memory of both, and how their messages look."""

from __future__ import annotations

import json
import mmap
import os
import select
import struct
import sys
import tempfile
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from evopipe.errors import EnvironmentFailed
from evopipe.types import Spaces

if TYPE_CHECKING:
    import socket

    import numpy.typing as npt

_HEAD = struct.Struct("<BIIII")  # what, number of the request, pool, count of rows, length of what follows
AWAKE = 1_000_000  # ns that whoever waits stays awake: waking on an idle virtual CPU costs 200 000, acting takes less
_ALIGN = 64  # no two arrays share a cache line


class Op(IntEnum):
    """What a message asks for, or answers."""

    OPEN = 1
    RESET = 2
    STEP = 3
    CLOSE = 4
    DONE = 5
    FAULT = 6  # an environment's: what follows says which row and what


class Message:
    """One message. `count` rows of the worker's share of `SharedArrays.rows` are meant, all of its rows where -1."""

    __slots__ = ("body", "count", "number", "op", "pool")

    def __init__(self, op: Op, number: int, pool: int, count: int = 0, body: Any = None) -> None:
        self.op, self.number, self.pool, self.count, self.body = op, number, pool, count, body

    def pack(self) -> bytes:
        """The message as bytes: a fixed head, then JSON where there is anything to say."""
        body = b"" if self.body is None else json.dumps(self.body).encode()
        return _HEAD.pack(self.op, self.number, self.pool, self.count & 0xFFFFFFFF, len(body)) + body


def read_message(channel: socket.socket, fds: list[int] | None = None) -> Message | None:
    """Wait for a message; None where the other side is gone. File descriptors that come with it go into `fds`."""
    head = _read(channel, _HEAD.size, fds)
    if head is None:
        return None
    op, number, pool, count, length = _HEAD.unpack(head)
    body = _read(channel, length, fds) if length else b""
    if body is None:
        return None
    return Message(Op(op), number, pool, -1 if count == 0xFFFFFFFF else count, json.loads(body) if body else None)


def _read(channel: socket.socket, length: int, fds: list[int] | None) -> bytes | None:
    import socket

    parts, missing = [], length
    while missing:
        try:
            if fds is None:
                part = channel.recv(missing)
            else:
                part, received, _, _ = socket.recv_fds(channel, missing, 1)
                fds.extend(received)
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class Bell:
    """Tells another process that a message lies in its socket; does nothing where the system has no such thing.

    A write to a socket makes Linux move its reader to the writer's CPU, where it then waits for the writer to finish:
    the opposite of working at the same time. An eventfd does not.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._there = hasattr(os, "eventfd")
        if fd is None:
            fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC | os.EFD_NONBLOCK) if self._there else -1
        self.fd = fd

    def ring(self) -> None:
        """Announce one message."""
        if self._there:
            os.eventfd_write(self.fd, 1)

    def wait(self, channel: socket.socket | int | None = None) -> bool:
        """Wait for one message, or until the other end of `channel` is gone; return whether there is a message."""
        if not self._there:
            return True
        end = time.perf_counter_ns() + AWAKE
        while not self._rung():
            if time.perf_counter_ns() < end:
                os.sched_yield()
                continue
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            if channel is not None:
                poll.register(channel, 0)  # a hang-up is always reported, and nothing else is
            if not any(fd == self.fd for fd, _ in poll.poll()):
                return False
        return True

    def _rung(self) -> bool:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let it go."""
        if self._there:
            os.close(self.fd)


class SharedArrays:
    """The arrays of one pool of `R` rows, indexed by row unless stated otherwise.

    Attributes:
        rows: `[R]`, the rows that a request is about. A worker reads its own, in the places of its first rows.
        action: `[R]` or `[R, D]` indices, or `[R, A]` in [-1, 1].
        seed: `[R]`, of the episodes to begin.
        next_seed: `[R]`, of the episode that is begun where a step ends one; -1: none.
        obs, reward, terminated, truncated, mask: what the last step or reset gave.
        next_obs, next_mask: the first observation and mask of the episode that was begun ahead,
        begun: `[R]`, the seed that it was begun from; -1: none was.
        spent, stepped: nanoseconds that a worker has spent stepping, and steps, both in the place of its first row.
    """

    def __init__(self, rows: int, spaces: Spaces, fd: int | None = None) -> None:
        obs_size, actions = spaces.observations, spaces.actions
        kinds: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
            "rows": ((rows,), np.int64),
            "action": ((rows, *spaces.action_shape), np.float32 if spaces.continuous else np.int64),
            "seed": ((rows,), np.int64),
            "next_seed": ((rows,), np.int64),
            "begun": ((rows,), np.int64),
            "spent": ((rows,), np.int64),
            "stepped": ((rows,), np.int64),
            "obs": ((rows, obs_size), np.float32),
            "next_obs": ((rows, obs_size), np.float32),
            "reward": ((rows,), np.float32),
            "terminated": ((rows,), np.bool_),
            "truncated": ((rows,), np.bool_),
            "mask": ((rows, actions), np.bool_),
            "next_mask": ((rows, actions), np.bool_),
        }
        places, end = {}, 0
        for name, (shape, kind) in kinds.items():
            places[name] = end
            end += -(-int(np.prod(shape)) * np.dtype(kind).itemsize // _ALIGN) * _ALIGN
        self.fd = _memory(end) if fd is None else fd
        memory = mmap.mmap(self.fd, end)
        view = {name: np.ndarray(shape, kind, memory, places[name]) for name, (shape, kind) in kinds.items()}
        self.rows: npt.NDArray[np.int64] = view["rows"]
        self.action: npt.NDArray[Any] = view["action"]
        self.seed: npt.NDArray[np.int64] = view["seed"]
        self.next_seed: npt.NDArray[np.int64] = view["next_seed"]
        self.begun: npt.NDArray[np.int64] = view["begun"]
        self.spent: npt.NDArray[np.int64] = view["spent"]
        self.stepped: npt.NDArray[np.int64] = view["stepped"]
        self.obs: npt.NDArray[np.float32] = view["obs"]
        self.next_obs: npt.NDArray[np.float32] = view["next_obs"]
        self.reward: npt.NDArray[np.float32] = view["reward"]
        self.terminated: npt.NDArray[np.bool_] = view["terminated"]
        self.truncated: npt.NDArray[np.bool_] = view["truncated"]
        self.mask: npt.NDArray[np.bool_] = view["mask"]
        self.next_mask: npt.NDArray[np.bool_] = view["next_mask"]
        if fd is None:
            self.next_seed[:] = self.begun[:] = -1


def _memory(size: int) -> int:
    """Return a file descriptor of memory that has no name, so that nothing is left whatever dies."""
    try:
        if sys.platform.startswith("linux"):
            fd = os.memfd_create("evopipe")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
    except OSError as error:
        raise EnvironmentFailed(
            f"no shared memory for the environments' worker processes ({error.strerror}); set runtime.env_workers: 0"
        ) from error
    return fd
