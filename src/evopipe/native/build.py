"""Compilation of the kernels for this processor at first use, once a machine, and loading of the library.

A library is loaded only if its digest, stored beside it, matches, and only the user can have written it.
"""

from __future__ import annotations

import _ctypes
import atexit
import contextlib
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from evopipe import rng
from evopipe.native import draws
from evopipe.native.header import declarations, own_declarations
from evopipe.native.sources import FLAGS, MAIN, TARGETS, everything, prebuilt
from evopipe.types import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SECONDS = 120.0  # longest that compiling may take
_NOEXEC = getattr(os, "ST_NOEXEC", 0)  # Python names it on Linux alone


_chosen: Any = None
_wholly = True  # whether whole updates may be theirs


def use(kernels: Any) -> None:
    """Select the C kernels that compute on the CPU from now on, in this process and in its forks.

    `kernels` is the library that `load` returned; None lets torch compute.
    """
    global _chosen
    _chosen = kernels
    rng.use(None if kernels is None else draws.kernel(kernels))


def chosen() -> Any:
    """Return the library of C kernels that `use` selected; None if torch computes."""
    return _chosen


def kernels() -> Any:
    """Return the library of C kernels that the function `use` selected.

    A library must be selected, else an assertion fails. The function `chosen` does the same, but returns None if no
    library is selected.
    """
    assert _chosen is not None
    return _chosen


def compiler() -> str | None:
    """Return the name and version of the compiler that built the kernels in use; None if torch computes without
    kernels."""
    return None if _chosen is None else declarations().string(_chosen.compiled_by()).decode()


def serve(*tensors: Tensor) -> bool:
    """Return whether the C kernels are to compute with these tensors, instead of torch.

    The result is True if the function `use` selected a library, all tensors are on the CPU, and `torch.compile` is not
    compiling now.
    """
    return _chosen is not None and False not in [x.is_cpu for x in tensors] and not torch.compiler.is_compiling()


def serve_wholly(*tensors: Tensor) -> bool:
    """Return whether the C kernels may compute a whole update of these tensors.

    They may do so if the function `serve` returns True for these tensors, and the call is not inside a `with` block of
    `by_operators`.
    """
    return _wholly and serve(*tensors)


@contextlib.contextmanager
def by_operators() -> Iterator[None]:
    """Let torch control updates while the `with` block lasts.

    Within an update, the C kernels then compute only single operators, such as dense layers, instead of the whole
    update.
    """
    global _wholly
    _wholly = False
    try:
        yield
    finally:
        _wholly = True


def done(starved: int) -> None:
    """Raise MemoryError if a C kernel could not allocate memory.

    `starved` is the kernel's return value: 0 if it had enough memory.
    """
    if starved:
        raise MemoryError("the kernels need more for an update than there is")


class NoKernels(Exception):
    """The error that the C kernels, or a user's environment in C, cannot be compiled or loaded; the message says
    why."""


class Unit(NamedTuple):
    """A C source file to compile into one library.

    Attributes:
        main: the path of the file.
        content: the bytes of all files that the library depends on, by which the compiled library is found again in the
            cache.
        name: the library's name in messages.
        of: a function without arguments that returns the declarations of the library's functions, as a `cffi.FFI`.
    """

    main: Path
    content: bytes
    name: str
    of: Callable[[], Any]


@cache
def load(target: str = "native") -> Any:
    """Return the kernels as a library, compiled by the first compiler that works: the one in `CC`, cc, gcc or clang.

    A library that was compiled before is loaded from the cache. `target` is the instruction set: `native` for all that
    this processor has, or `portable`; see `TARGETS`. If no compiler works, the compiled kernels in evopipe's wheel are
    loaded, if it has some. Errors of compilers that fail are printed to stderr, once.

    Raises:
        NoKernels: no compiler works, and the wheel has no kernels; or this processor lacks the instructions.
    """
    if target == "portable" and not _has_instructions():
        raise NoKernels("this processor has no AVX2, for which the portable kernels are made")
    return _first(Unit(MAIN, everything(), "the kernels", declarations), target)


@cache
def load_environment(source: Path, content: bytes) -> Any:
    """Return the library of a user's environment in C, compiled as the kernels are.

    `source` is the path of the C file, and `content` its bytes.

    Raises:
        NoKernels: the file does not compile or does not define `the_environment`; also for the reasons in `load`.
    """
    return _first(Unit(source, content + everything(), str(source), own_declarations), "native")


def _first(unit: Unit, target: str) -> Any:
    """Return a library, from the first compiler that works."""
    if fcntl is None or not hasattr(_ctypes, "dlopen"):
        raise NoKernels("kernels are compiled on Linux and macOS alone")
    faults: list[str] = []
    for compiler in _compilers(faults):
        try:
            found = _loaded(unit, compiler, target)
        except NoKernels as error:
            faults.append(str(error))
            continue
        for fault in faults:
            print(f"note: {fault}; {compiler[0]} compiles {unit.name} instead", file=sys.stderr)
        return found
    if unit.main == MAIN and (found := _brought(unit)):
        for fault in faults:
            print(f"note: {fault}; those that came with the package are used instead", file=sys.stderr)
        return found
    if unit.main != MAIN:  # of a user's own mistake one compiler's word is enough
        faults = faults[-1:]
    raise NoKernels("; ".join(faults) or "no C compiler was found; install gcc or clang, or name one in CC")


def _compilers(faults: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield the commands of the compilers that are there; append a sentence if what CC names is not."""
    known = set()
    for given in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        try:
            name, *more = shlex.split(given) or [""]
        except ValueError:  # a quotation mark alone
            name, more = given, []
        command = (shutil.which(name) or "", *more)
        if command[0] and command not in known:
            known.add(command)
            yield command
        elif name and not known and given == os.environ.get("CC"):
            faults.append(f"{given!r}, which CC names, was not found")


def _loaded(unit: Unit, compiler: tuple[str, ...], target: str) -> Any:
    """Load the library that was kept, or else make it."""
    # In tests alone: a compiler that is newer than these may warn of more.
    strict = ("-Werror",) if os.environ.get("EVOPIPE_KERNELS_STRICT") and unit.main == MAIN else ()
    flags = (*FLAGS, *strict, *TARGETS[target], *(() if unit.main == MAIN else (f"-I{MAIN.parent}",)))
    words = (_processor(), *compiler, *flags)
    said = _said((*compiler, "--version")).stdout
    about = b"\n".join((unit.content, said, *map(os.fsencode, words)))
    name = f"{target}-{hashlib.sha256(about).hexdigest()[:32]}.so"

    def compiled(fresh: Path) -> None:
        run = _said((*compiler, *flags, "-o", str(fresh), str(unit.main), "-lm"), TMPDIR=str(fresh.parent))
        if run.returncode or not fresh.is_file():
            said = run.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            why = next((line for line in said if "error" in line), said[-1])
            raise NoKernels(f"{compiler[0]} could not compile {unit.name}: {why.strip()}")

    return _kept(unit, compiler[0], name, compiled)


def _brought(unit: Unit) -> Any:
    """Load the kernels that came with the wheel, from a copy of the user's own; None if there are none for here."""
    library = prebuilt()
    try:
        content, digest = library.read_bytes(), library.with_suffix(".sha256").read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest().encode() != digest or not _has_instructions():
        return None
    return _kept(unit, "the builder of the wheel", f"wheel-{digest.decode()[:32]}.so", partial(_write, content))


def _write(content: bytes, fresh: Path) -> None:
    fresh.write_bytes(content)


def _has_instructions() -> bool:
    """Return whether this processor has those that the portable kernels are made of, as far as it tells."""
    return "flags" not in _processor() or {"avx2", "fma"} <= {*_processor().split()}


def _kept(unit: Unit, maker: str, name: str, make: Callable[[Path], None]) -> Any:
    """Load the library that was kept by this name, or else make it at a path, load it and keep it."""
    for folder in _folders():
        if not _own_folder(folder):
            continue
        with _alone(folder):
            if _is_whole(folder / name):
                return _declared(unit, folder / name, maker)
            for left in folder.glob("compile-*"):  # by a process that was killed: who compiles is alone
                shutil.rmtree(left, ignore_errors=True)
            return _made(unit, maker, make, folder, name)
    raise NoKernels(
        "the kernels can be kept nowhere, for neither the user's cache nor the folder for temporary files can be "
        "written; name a folder in XDG_CACHE_HOME"
    )


def _declared(unit: Unit, library: Path, maker: str) -> Any:
    try:
        handle = _ctypes.dlopen(str(library), os.RTLD_NOW)  # where this fails cffi has a shell look for another library
        found = unit.of().dlopen(str(library))  # whose calls release the interpreter's lock
        _ctypes.dlclose(handle)
        for name in dir(found):
            getattr(found, name)
    except (OSError, AttributeError, KeyError) as error:
        why = str(error.args[-1]).rpartition(f"{library}: ")[2]
        raise NoKernels(f"what {maker} made of {unit.name} cannot be loaded: {why}") from error
    return found


def _said(command: tuple[str, ...], **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a compiler, which is to speak English."""
    env = {**os.environ, "LC_ALL": "C", **more}
    try:
        return subprocess.run(command, capture_output=True, env=env, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NoKernels(
            f"{command[0]} took longer than {SECONDS:g} seconds, as on a machine that is overloaded"
        ) from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoKernels(f"{command[0]} could not be run: {error}") from error


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return sys.platform
    told = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))


def _folders() -> Iterator[Path]:
    """Where the kernels may be kept: in the user's cache, else among temporary files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with contextlib.suppress(RuntimeError):  # no HOME, and a user without a name
        yield (cache if cache.is_absolute() else Path.home() / ".cache") / "evopipe"
    with contextlib.suppress(FileNotFoundError):
        yield Path(tempfile.gettempdir()) / f"evopipe-{os.geteuid()}"
        yield _private()


@cache
def _private() -> Path:
    """A folder for this process alone, where others hold the name of the user's own."""
    folder = tempfile.TemporaryDirectory(prefix="evopipe-kernels-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _own_folder(folder: Path) -> bool:
    """Make a folder that is its user's alone; return whether it is one, and libraries can be written and run there."""
    try:
        for each in (*reversed(folder.parents), folder):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        link, info = folder.lstat(), folder.stat()
        if {link.st_uid, info.st_uid} != {os.geteuid()} or not stat.S_ISDIR(info.st_mode):
            return False
        if stat.S_IMODE(info.st_mode) != 0o700:
            folder.chmod(0o700)
        return os.access(folder, os.W_OK) and not os.statvfs(folder).f_flag & _NOEXEC
    except OSError:
        return False


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process compiles into a folder; where a folder cannot be locked, twice is the worst."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_whole(library: Path) -> bool:
    """Return whether a library is there as it was made, and only the user can have written it."""
    content, digest = _own_bytes(library), _own_bytes(library.with_suffix(".sha256"))
    return content is not None and hashlib.sha256(content).hexdigest().encode() == digest


def _own_bytes(path: Path) -> bytes | None:
    """Return what is in a file of the user's own, None where it is not: a link may lead to what others chose."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            info = os.fstat(file.fileno())
            own = stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == os.geteuid()
            return file.read() if own and not info.st_mode & 0o022 else None
    except OSError:
        return None


def _made(unit: Unit, maker: str, make: Callable[[Path], None], folder: Path, name: str) -> Any:
    """Make, load, and only then keep, beside what was there before."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="compile-") as beside:
            fresh = Path(beside) / name
            make(fresh)
            found = _declared(unit, fresh, maker)
            fresh.chmod(0o600)
            digest = fresh.with_suffix(".sha256")
            digest.touch(mode=0o600)
            digest.write_text(hashlib.sha256(fresh.read_bytes()).hexdigest())
            for file in (fresh, digest):
                file.replace(folder / file.name)
    except OSError as error:
        raise NoKernels(f"the kernels cannot be kept in {folder}: {error.strerror or error}") from error
    return found
