"""Threads, device, signals, limits, fingerprint: what surrounds a run.

Nothing here is imported by the mathematics, and nothing here imports torch before it is needed, so that the light
commands (`--help`, `params check`) stay quick.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from evopipe.errors import DiskError, EvopipeError, MissingInputError, ParamsError, ResourceError, UsageError
from evopipe.parallel import signal_at_parent_death
from evopipe.types import Schema

if TYPE_CHECKING:
    import torch


NEUTRAL = frozenset({"checkpoint_seconds", "env_workers", "learners"})  # of the block below: they change no result


class RuntimeConfig(Schema):
    """Where and how a run computes."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: CUDA where present, else CPU")
    threads: int = Field(1, ge=1, le=256, description="torch threads; tracked, for it changes results in the last bits")
    cohorts: Literal["merged", "exact"] = Field(
        "merged", description="`merged`: unlike members may share a padded batch; `exact`: only like members do"
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="`auto`: CUDA graphs on a GPU, nothing on the CPU; `on`: `torch.compile` as well, which changes "
        "the last bits of results; `off`: neither",
    )
    env_workers: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = Field(
        "auto",
        description="processes that step environments; `auto`: by CPUs and environments; 0: none, the trainer steps "
        "them itself; changes no result",
    )
    learners: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto",
        description="processes that divide the members' learning on the CPU; `auto`: by CPUs, members and work; 1: the "
        "trainer alone, as wherever `threads` is more than 1; changes no result",
    )
    checkpoint_seconds: float = Field(30.0, gt=0.0, description="least time between two checkpoints")


# --- threads and device -----------------------------------------------------------------------------------------------


def configure(cfg: RuntimeConfig) -> torch.device:
    """Set torch's threads and determinism for this process, and return the device to compute on.

    Call it in the thread that trains: MKL keeps its thread count per thread. `OMP_NUM_THREADS` and `MKL_NUM_THREADS`
    do not matter afterwards, `runtime.threads` wins over both (and turns off MKL's own choice of fewer threads).
    One thread takes denormal numbers for zero: Adam's moments of units that died decay into them, and they cost a tenth
    of the time and more. With several threads they stay, for the setting is a thread's own and OpenMP's threads do not
    inherit it: results would depend on which thread computed what.

    Raises:
        ParamsError: `runtime.device` is `cuda` and torch sees no CUDA device.
    """
    import torch

    torch.set_num_threads(cfg.threads)
    torch.set_flush_denormal(cfg.threads == 1)
    # Only possible before the first parallel work of the process; evopipe runs no inter-op work, so nothing is lost.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    present = torch.cuda.is_available()
    if cfg.device == "cuda" and not present:
        raise ParamsError(
            "runtime.device: 'cuda' was asked for, but torch sees no CUDA device here; "
            "set it to 'auto' or 'cpu', or install a CUDA build of torch"
        )
    if cfg.device == "cpu" or not present:
        return torch.device("cpu")
    _deterministic_cuda()
    # With its index, so that it compares equal to the device of a tensor that lives there.
    return torch.device("cuda", torch.cuda.current_device())


def _deterministic_cuda() -> None:
    """Choose deterministic kernels where they cost nothing.

    CPU kernels are deterministic at a fixed thread count, so nothing is needed there.
    `use_deterministic_algorithms` stays off: it fills fresh memory with NaN and replaces gathers by sorts.
    """
    import torch

    # Read when cuBLAS makes its first handle; a fixed workspace makes its reductions repeatable.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


# --- signals ----------------------------------------------------------------------------------------------------------

_Handler = Callable[[int, FrameType | None], Any] | int | None


class StopSignal:
    """Turns SIGINT, SIGTERM and SIGHUP into a flag that a loop asks for between two updates.

    The first signal sets `signum` and nothing else: the loop finishes its update, saves its state and raises
    `errors.Interrupted(stop.signum, ...)`. Further SIGTERM and SIGHUP change nothing. A second SIGINT raises
    `KeyboardInterrupt` at once, for people in a hurry. A SIGHUP that the caller ignores (`nohup`) stays ignored.

    Python delivers signals to the main thread only; in any other thread the context is inert, `signum` stays None.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._interrupts = 0
        self._old: dict[int, _Handler] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for signum in self._signals():
                self._old[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        while self._old:
            signum, handler = self._old.popitem()
            # None: the old handler was installed from C, and Python cannot put it back.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    @staticmethod
    def _signals() -> list[int]:
        hangup = getattr(signal, "SIGHUP", None)
        wanted = [signal.SIGINT, signal.SIGTERM]
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            wanted.append(hangup)
        return [int(signum) for signum in wanted]

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum
        self._interrupts += signum == signal.SIGINT
        if signum == signal.SIGINT and self._interrupts > 1:
            raise KeyboardInterrupt


# --- no orphans under DVC ---------------------------------------------------------------------------------------------

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 60.0
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ash", "ksh", "busybox"})


def watch_ancestors() -> None:
    """Make this process stop when the `dvc` that started it is gone, whatever killed it.

    `dvc repro` that dies by a signal leaves the stage's command running, and the next `dvc repro` would start a second
    writer beside it. So under DVC (`DVC_STAGE` is set) this process asks the kernel for SIGTERM at its parent's death,
    and a daemon thread waits for the nearest `dvc` ancestor, for the shell in between may outlive it. The SIGTERM is
    an ordinary one: a `StopSignal` turns it into save and exit. A process that has not gone a minute later is hung in
    foreign code; it is killed, which costs no more than the progress since its last checkpoint.

    Without `DVC_STAGE`, and on other systems than Linux, it does nothing.
    """
    if not os.environ.get("DVC_STAGE") or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    signal_at_parent_death(signal.SIGTERM)  # where that is not possible the watching thread is left
    dvc = _find_dvc()
    if os.getppid() != parent or dvc == "gone":
        os.kill(os.getpid(), signal.SIGTERM)
    elif isinstance(dvc, _Process):
        threading.Thread(target=_stop_after, args=(dvc,), name="evopipe-watch-dvc", daemon=True).start()


@dataclass(frozen=True)
class _Process:
    """One row of /proc. `start` (clock ticks since boot) tells a process from a later one with the same number."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int
    argv: tuple[str, ...]

    @property
    def is_dvc(self) -> bool:
        if not self.argv:
            return False
        if PurePath(self.argv[0]).name == "dvc":
            return True
        # `python .../bin/dvc`, `python -m dvc`, `python .../dvc/__main__.py`, each perhaps after some flags.
        words = [PurePath(word) for word in self.argv[1:4]]
        return self.is_python and any(word.name == "dvc" or word.match("dvc/__main__.py") for word in words)

    @property
    def is_python(self) -> bool:
        return bool(self.argv) and PurePath(self.argv[0]).name.startswith(("python", "pypy"))

    @property
    def is_command_shell(self) -> bool:
        """Whether this is a shell that runs one given command, as DVC starts them: `sh -c '...'`."""
        return bool(self.argv) and PurePath(self.argv[0]).name in _SHELLS and "-c" in self.argv[1:4]


def _process(pid: int) -> _Process | None:
    """Read one process from /proc; None where it does not exist (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may itself hold spaces and parentheses: count fields from the last one on.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    parent, group, session = (int(field) for field in fields[:3])
    return _Process(pid, state, parent, group, session, int(fields[18]), tuple(line.rstrip("\0").split("\0")))


def _find_dvc() -> _Process | Literal["gone"] | None:
    """Find the process to watch: the nearest `dvc`, or the program that runs DVC through its Python interface.

    Returns:
        the process; "gone" where it died before we could look; None where `DVC_STAGE` was set by hand.
    """
    top = here = _process(os.getpid())
    while here is not None and here.parent > 0:
        above = _process(here.parent)
        if above is not None and above.is_dvc:
            return above
        if above is not None and above.is_command_shell and here is top:
            top = above
        here = above
    if top is None or top.group == top.pid:  # DVC starts no process groups; an interactive shell does.
        return None
    owner = _process(top.parent)
    # A session is inherited at birth: a parent of another session is one that adopted us.
    adopted = owner is None or owner.session != top.session or (owner.pid == 1 and not owner.is_python)
    return "gone" if adopted else owner


def _stop_after(process: _Process) -> None:
    """Wait until a process is gone, then stop this one: ask first, and insist after a minute."""
    _wait_for_end(process)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_end(process: _Process) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # An old kernel, a sandbox that forbids it, or a process that is gone already.
        while _lives(process):
            time.sleep(_POLL_SECONDS)
        return
    try:
        if _lives(process):  # The handle is of the process we meant, not of a later one with its number.
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll()
    finally:
        os.close(handle)


def _lives(process: _Process) -> bool:
    now = _process(process.pid)
    return now is not None and now.start == process.start and now.state not in "ZX"


# --- folders and keys -------------------------------------------------------------------------------------------------


def dvc_root(folder: Path = Path()) -> Path:
    """Return the root of the DVC repository that a folder belongs to, an absolute path.

    For the working folder it is `DVC_ROOT` where DVC set it (the main repository even in queued and temporary runs),
    else the nearest folder upwards that holds `.dvc`, else the folder itself.
    """
    named, here = os.environ.get("DVC_ROOT"), folder.absolute()
    if named and here == Path.cwd():
        return Path(named).absolute()
    return next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here)


def state_folder(stage: str, key: str, where: Path = Path()) -> Path:
    """Return `<dvc_root>/.evopipe/<stage>/<key>`, made where it is missing, and kept out of git.

    Args:
        stage: a stage's name.
        key: what the state depends on, see `content_key`.
        where: the folder that the stage works in.

    Raises:
        DiskError: the folder cannot be made.
    """
    home = dvc_root(where) / ".evopipe"
    folder = home / stage / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ignore = home / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise DiskError(
            f"{folder}: cannot make this folder for the run's state ({error.strerror or error}); "
            "make its parent writable, or free some space"
        ) from error
    return folder


def content_key(values: Mapping[str, Any], files: Sequence[Path] = ()) -> str:
    """Return a key of 32 hex digits that changes with any of the values and any byte of the files.

    Folders count with all that is in them (bytecode caches excepted), by relative name. Modification times, the order
    of keys and where the files lie do not count; the order of `files` does.

    Args:
        values: JSON-like values, pydantic models and paths.
        files: files and folders.

    Raises:
        UsageError: a value has no JSON form.
        MissingInputError: one of the files does not exist, or cannot be read.
    """
    digest = hashlib.sha256()
    _feed(digest, "values", _canonical(values))
    for number, path in enumerate(files):
        try:
            for name, file in _tree(Path(path), str(number)):
                with file.open("rb") as stream:
                    _feed(digest, name, hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise MissingInputError(
                f"{error.filename or path}: cannot be read ({error.strerror or error}); "
                "run the stage that makes it, for example with `dvc repro`"
            ) from error
    return digest.hexdigest()[:32]


def _canonical(values: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(dict(values), sort_keys=True, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError) as error:
        raise UsageError(f"content_key: a value has no JSON form ({error}); pass plain values") from error
    return text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return value.as_posix()
    raise TypeError(f"{type(value).__name__} {value!r:.60}")


def _feed(digest: hashlib._Hash, name: str, content: bytes) -> None:
    """Add one named part, with its lengths, so that no two lists of parts give the same bytes."""
    label = os.fsencode(name)
    digest.update(len(label).to_bytes(8, "little") + label + len(content).to_bytes(8, "little") + content)


def _tree(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield (relative name, file) for a file, or for all files of a folder in the order of their names."""
    if not path.is_dir():
        yield name, path
        return
    for child in sorted(path.iterdir(), key=lambda child: os.fsencode(child.name)):
        if child.name != "__pycache__":
            yield from _tree(child, f"{name}/{child.name}")


# --- where results come from ------------------------------------------------------------------------------------------

_PACKAGES = ("evopipe", "torch", "numpy", "gymnasium")


def fingerprint(device: torch.device | None = None) -> dict[str, Any]:
    """Describe what the last bits of a result depend on: versions, processor, threads, device. No host, no clock.

    Args:
        device: where the run computes; the CPU where it is not given.
    """
    import torch

    on_cuda = device is not None and device.type == "cuda"
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "platform": "-".join(filter(None, (platform.system(), platform.machine(), *platform.libc_ver()))),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "cuda": torch.version.cuda if on_cuda else None,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None  # Run from a source tree.


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_revision(folder: Path) -> str | None:
    """Return the commit (40 or 64 hex digits) that is checked out in a folder's repository, None without one.

    Uncommitted changes are not told; hash the code beside it (`content_key`) to notice them.
    """
    start = Path(folder).absolute()
    dot_git = next((place / ".git" for place in (start, *start.parents) if (place / ".git").exists()), None)
    if dot_git is None:
        return None
    # git refuses a repository of another user, which is the usual case in a container; its files can still be read.
    with contextlib.suppress(OSError, ValueError):
        return _head_from_files(dot_git)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"], cwd=start, capture_output=True, text=True, timeout=5, check=True
        )
        return _commit(run.stdout)
    return None


def _head_from_files(dot_git: Path) -> str:
    """Resolve HEAD by the files of a repository or worktree. Raises OSError or ValueError where that fails."""
    if dot_git.is_file():  # A worktree or submodule: "gitdir: <path>".
        dot_git = dot_git.parent / dot_git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    common = dot_git / "commondir"
    shared = dot_git / common.read_text(encoding="utf-8").strip() if common.is_file() else dot_git
    head = (dot_git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return _commit(head)
    ref = head.removeprefix("ref:").strip()
    for place in (dot_git / ref, shared / ref):
        if place.is_file():
            return _commit(place.read_text(encoding="utf-8"))
    for line in (shared / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return _commit(commit)
    raise ValueError(f"{ref} is not known")


def _commit(text: str) -> str:
    commit = text.strip()
    if len(commit) not in (40, 64):
        raise ValueError(f"{commit!r:.80} is no commit")
    int(commit, 16)
    return commit


# --- failures of the machine ------------------------------------------------------------------------------------------

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
# HDF5 and safetensors report a failed write in words, in errors of their own.
_DISK_WORDS = ("No space left on device", "Disk quota exceeded", "Read-only file system")
_MEMORY_WORDS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


@contextlib.contextmanager
def translate_failures() -> Iterator[None]:
    """Give failures of the machine a sentence that says what to do. Errors that already have one pass.

    Raises:
        ResourceError: memory ran out, of the host or of the device.
        DiskError: a file could not be written: disk full, quota, read-only, no permission.
    """
    try:
        yield
    except EvopipeError:
        raise
    except Exception as error:
        if _is_memory(error):
            raise ResourceError(
                f"memory ran out ({_first_line(error)}); lower train.replay.capacity, population.size or env.num_envs"
            ) from error
        if _is_disk(error):
            where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
            raise DiskError(
                f"{where}a file could not be written ({_first_line(error)}); free some space or make the folder "
                "writable, then run again: training continues from its last checkpoint"
            ) from error
        if isinstance(error, OSError) and error.errno in _FORBIDDEN and error.filename:
            raise DiskError(
                f"{error.filename}: this process may not use that file ({_first_line(error)}); change its permissions, "
                "or run as the user who owns it"
            ) from error
        raise


def _is_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    torch = sys.modules.get("torch")  # Not imported: then no error is torch's.
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_WORDS)


def _is_disk(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _DISK:
        return True
    return any(words in str(error) for words in _DISK_WORDS)


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
