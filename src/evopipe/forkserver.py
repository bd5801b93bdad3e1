"""The fork server: the stages of one `dvc repro` are forks of one process, which imports everything once.

DVC runs each stage as a command of its own, and to import PyTorch takes two seconds of a processor each time. With
`EVOPIPE_FORKS=1`, under DVC, the first command therefore leaves a process behind that imports what stages use and waits
at a socket. That command and every later one asks it for a fork, which runs the stage with the command's own arguments,
environment, folder and output; the command passes signals on, and ends as its fork did. The server ends with DVC, or
when nothing was asked for a while. Whatever is not as it should be, the command runs the stage itself. See
docs/decisions/0043.
"""

from __future__ import annotations

import array
import contextlib
import gc
import hashlib
import json
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from evopipe.layout import STAGES
from evopipe.parallel import can_help, signal_at_parent_death
from evopipe.signals import is_command_shell, is_dvc

SWITCH = "EVOPIPE_FORKS"
"""The environment variable that turns the server on if it is `1`."""
IDLE = 60.0  # seconds that a server waits for the next command
_SLOW = 5.0  # seconds that a command may take to ask
_GRACE = 60.0  # seconds that forks have to save and end, once DVC has ended
_OWN = ("_", "OLDPWD", "PWD", "SHLVL")  # variables that differ between the commands of one DVC, as those of DVC do
_PASSED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGCONT")
_BEGUN = b"+"
_STATUS = struct.Struct("i")
_CREDENTIALS = struct.Struct("3i")  # process, user, group


def run(arguments: Sequence[str]) -> int | None:
    """Have a stage's command run by a fork of the server, and return its exit code; None if this process is to run it:
    it is no stage under DVC, no server can be had, or this process is the fork, whose `sys.argv` is the command's."""
    dvc = _dvc(arguments)
    if dvc is None:
        return None
    address, last = "\0evopipe-" + _key(dvc), STAGES[-1].name in arguments
    try:
        connection = _connected(address)
        if connection is None and not last:  # nothing follows on it that would gain
            with socket.socket(socket.AF_UNIX) as listener:
                if _listens(listener, address) and _fork() == 0:
                    _Server(listener, dvc.pid).fork_for_command()
                    return None
            connection = _connected(address)
        if connection is None:
            return None
        with connection:
            return _followed(connection)
    except (OSError, psutil.Error):
        return None


def _listens(listener: socket.socket, address: str) -> bool:
    """Take an address; return False where another command was faster, whose server is to be asked."""
    try:
        listener.bind(address)
    except OSError:
        return False
    listener.listen()
    return True


def _dvc(arguments: Sequence[str]) -> psutil.Process | None:
    """Return the `dvc` that has started this process, itself or by a shell, for a stage."""
    names = {stage.name for stage in STAGES}
    wanted = os.environ.get("DVC_STAGE") and os.environ.get(SWITCH) == "1" and names & {*arguments}
    if not wanted or not can_help() or not hasattr(os, "pidfd_open"):
        return None
    try:
        above = psutil.Process().parents()[:2]
        if above and is_command_shell(above[0].cmdline()):
            del above[0]
        return above[0] if above and is_dvc(above[0].cmdline()) else None
    except psutil.Error:
        return None


def _key(dvc: psutil.Process) -> str:
    """Return a hash of all that a command's fork has of the server: unlike commands have servers of their own."""
    import resource

    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    environment = {name: text for name, text in os.environ.items() if name not in _OWN and not name.startswith("DVC_")}
    ignored = [name for name in _PASSED if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN]
    flags, words = list(sys.flags), sys.orig_argv[: -len(sys.argv[1:]) or None]
    group = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    processors = [sorted(os.sched_getaffinity(0)), os.nice(0), limits, group]
    who = [dvc.pid, dvc.create_time(), os.getuid(), os.geteuid(), os.getgid(), ignored]
    code = sorted(_stated(Path(__file__).parent))
    found = json.dumps([sys.executable, flags, words, sys.path, environment, processors, who, code], sort_keys=True)
    return hashlib.sha256(found.encode()).hexdigest()


def _stated(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the package's sources, each with its size and time."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _stated(Path(entry.path))
        else:
            found = entry.stat()
            yield entry.path, found.st_size, found.st_mtime_ns


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that NumPy has threads: they are none of Python's, and know of forks
        return os.fork()


# --- the command ------------------------------------------------------------------------------------------------------


def _connected(address: str) -> socket.socket | None:
    """Return a connection to this user's server with that address; None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    if _user_of(connection) != os.getuid():
        connection.close()
        return None
    return connection


def _user_of(connection: socket.socket) -> int:
    """Return the user of the process at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def _followed(connection: socket.socket) -> int | None:
    """Ask for a fork, wait until it has ended and return its exit code; None if there is no fork.

    A fork that a signal has ended ends this process in the same way.
    """
    os.fstat(0), os.fstat(1), os.fstat(2)  # OSError where one is closed
    mask = os.umask(0)
    os.umask(mask)
    told = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "mask": mask}
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    connection.sendmsg([b"\n"], streams)
    connection.sendall(json.dumps(told).encode() + b"\n")
    if connection.recv(1) != _BEGUN:
        return None

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        stop = signum == signal.SIGTSTP
        with contextlib.suppress(OSError):  # it has just ended
            connection.sendall(bytes([signal.SIGSTOP if stop else signum]))
        if stop:
            os.kill(os.getpid(), signal.SIGSTOP)

    for name in _PASSED:
        if signal.getsignal(signum := getattr(signal, name)) is not signal.SIG_IGN:
            signal.signal(signum, pass_on)
    status = connection.recv(_STATUS.size)
    code = -signal.SIGKILL if len(status) < _STATUS.size else _STATUS.unpack(status)[0]  # or the server was killed
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return int(code)


# --- the server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Forked:
    """A fork: its process, and the connection to its command."""

    pid: int
    ended: int  # a descriptor that can be read when it has ended
    connection: socket.socket


@dataclass(frozen=True)
class _Request:
    """What a command asks for: to be run with these streams, arguments and so on."""

    connection: socket.socket
    streams: list[int]
    told: Mapping[str, Any]


class _Server:
    """The server of one `dvc`."""

    def __init__(self, listener: socket.socket, dvc: int) -> None:
        self._listener, self._dvc, self._forks = listener, dvc, dict[int, _Forked]()
        self._closing = False

    def fork_for_command(self) -> None:
        """Serve commands; return in each fork, as the command that it is to run. The server itself ends here."""
        try:
            self._settle()
            request = self._serve()
            signal_at_parent_death(signal.SIGTERM)
            _become(request)
        except BaseException:  # nobody reads what it says; its command runs the stage itself
            os._exit(1)

    def _settle(self) -> None:
        """Leave the terminal and the output of the first command, and import what stages use."""
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.close(null)
        for name in ("cli", "track.tracking", "problems.env", *(f"stages.{stage.name}" for stage in STAGES)):
            import_module(f"evopipe.{name}")
        gc.collect()
        gc.freeze()  # what was imported is not looked at again, nor copied, in a fork

    def _serve(self) -> _Request:
        """Return what is asked for in every fork."""
        owner = os.pidfd_open(self._dvc)
        while True:
            watched = [owner] * (not self._closing) + [self._listener.fileno(), *self._descriptors()]
            poll = select.poll()
            for each in watched:
                poll.register(each, select.POLLIN)
            seconds = _GRACE if self._closing else None if self._forks else IDLE
            ready = {descriptor for descriptor, _ in poll.poll(seconds and 1000 * seconds)}
            if not ready:
                self._signal_all(signal.SIGKILL)
            if owner in ready:
                self._closing = True
                self._signal_all(signal.SIGTERM)
            for fork in [*self._forks.values()]:
                self._attend(fork, ready)
            if not self._forks and (self._closing or not ready):
                self._end()
            if self._listener.fileno() in ready and not self._closing:
                request = self._accept()
                if request is not None:
                    os.close(owner)
                    return request

    def _descriptors(self) -> Iterator[int]:
        for fork in self._forks.values():
            yield fork.ended
            if fork.connection.fileno() >= 0:
                yield fork.connection.fileno()

    def _attend(self, fork: _Forked, ready: set[int]) -> None:
        """Pass signals to a fork, kill it if its command was killed, and tell its command when it has ended."""
        connection = fork.connection
        if fork.ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
            with contextlib.suppress(OSError):
                connection.sendall(_STATUS.pack(code))
            connection.close()
            os.close(fork.ended)
            del self._forks[fork.pid]
        elif connection.fileno() in ready:
            try:
                signals = connection.recv(64)
            except OSError:
                signals = b""
            for signum in signals or [signal.SIGKILL]:
                os.kill(fork.pid, signum)
            if not signals:
                connection.close()

    def _accept(self) -> _Request | None:
        """Fork for the next command; return what it asks for in the fork."""
        try:
            connection, _ = self._listener.accept()
            connection.settimeout(_SLOW)
            request = _read(connection) if _user_of(connection) == os.getuid() else None
            connection.settimeout(None)
        except (OSError, ValueError):  # it is gone again, or no command of ours
            return None
        if request is None:
            connection.close()
            return None
        pid = _fork()
        if pid == 0:
            self._listener.close()
            for other in self._forks.values():
                other.connection.close()
                os.close(other.ended)
            return request
        for stream in request.streams:
            os.close(stream)
        self._forks[pid] = _Forked(pid, os.pidfd_open(pid), connection)
        return None

    def _signal_all(self, signum: int) -> None:
        for fork in self._forks.values():
            os.kill(fork.pid, signum)

    def _end(self) -> NoReturn:
        os._exit(0)


def _read(connection: socket.socket) -> _Request:
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as file:
        return _Request(connection, streams, json.loads(file.readline()))


def _become(request: _Request) -> None:
    """Become the command at the other end: its output, folder, environment and arguments."""
    told = request.told
    for stream, given in enumerate(request.streams):
        os.dup2(given, stream)
        os.close(given)
    os.environ.clear()
    os.environ.update({**told["environment"], SWITCH: "0"})  # what a stage starts, such as shards, is no command of DVC
    os.chdir(told["folder"])
    os.umask(told["mask"])
    sys.argv[1:] = told["arguments"]
    for written in (sys.stdout, sys.stderr):
        written.reconfigure(line_buffering=written is sys.stderr or written.isatty())  # type: ignore[union-attr]
    with request.connection as connection:
        connection.sendall(_BEGUN)
