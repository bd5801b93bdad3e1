"""The machine that a run computes on: its threads, its device, and a fingerprint of it that goes with results."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from evopipe.errors import ParamsError
from evopipe.native import build
from evopipe.schema.language import TextRuntime
from evopipe.schema.runtime import RuntimeConfig

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt
_PACKAGES = ("evopipe", "torch", "numpy", "gymnasium")


def configure(cfg: RuntimeConfig | TextRuntime) -> torch.device:
    """Set torch's threads and determinism for this process, choose the kernels, and return the device to compute on.

    The kernels compute networks on the CPU; language models do not use them. Call this function in the thread that
    trains, because MKL keeps its thread count per thread. `runtime.threads` overrides `OMP_NUM_THREADS` and
    `MKL_NUM_THREADS`.

    With one thread, denormal numbers are flushed to zero: Adam's moments of dead units decay into denormal numbers,
    which slow training by a tenth and more. With several threads denormal numbers are kept, because OpenMP's threads do
    not inherit the setting, and results would depend on which thread computed what.

    Raises:
        ParamsError: `runtime.device` is `cuda` and torch finds no CUDA device, or `runtime.kernels` cannot be compiled.
    """
    if isinstance(cfg, RuntimeConfig):  # language models are torch's, and leave the choice as it is
        _choose_kernels(cfg.kernels)
    _keep_memory()
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
    # Deterministic kernels where they cost nothing; the CPU's are at a fixed thread count.
    # `use_deterministic_algorithms` stays off: it fills fresh memory with NaN and replaces gathers by sorts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS makes its first handle
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # With its index, so that it compares equal to the device of a tensor that lives there.
    return torch.device("cuda", torch.cuda.current_device())


def _keep_memory() -> None:
    """Let the process keep up to 1 GiB that it freed: the next update takes it again, and fresh pages cost a large one
    a fifth of its time. Elsewhere than with glibc nothing is changed."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP, 32 << 20)  # the most that it takes
        libc.mallopt(_TRIM, 1 << 30)


def _choose_kernels(asked: str) -> None:
    try:
        build.use(None if asked == "torch" else build.load("portable" if asked == "portable" else "native"))
    except build.NoKernels as error:
        if asked != "auto":
            raise ParamsError(f"runtime.kernels: {error}; or set it to 'torch'") from error
        say_once(f"networks are computed by torch: {error}")
        build.use(None)


@cache
def say_once(text: str) -> None:
    """Print a note for the user to stderr; a repeated text is printed only once in a process."""
    print(f"note: {text}", file=sys.stderr)


def fingerprint(device: torch.device | None = None, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the properties of machine and libraries on which the last bits of a result depend, as a JSON-like dict.

    These are versions of libraries, processor, number of threads, kernels, compiler and device. Host name and time are
    not among them. `packages` are further packages whose versions are added.
    """
    on_cuda = device is not None and device.type == "cuda"
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in (*_PACKAGES, *packages)},
        "platform": "-".join(filter(None, (platform.system(), platform.machine(), *platform.libc_ver()))),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "kernels": "native" if build.chosen() else "torch",
        "compiler": build.compiler(),
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "cuda": torch.version.cuda if on_cuda else None,
    }


def git_revision(folder: Path) -> str | None:
    """Return the hash of the commit that is checked out in a folder's git repository.

    The result is None if there is no commit, no repository or no git.
    """
    return _git(folder, 5.0, "rev-parse", "--quiet", "--verify", "HEAD") or None


def committed(folder: Path, *paths: str) -> bool:
    """Return whether these paths of a folder's git repository have no uncommitted changes; False if git cannot tell."""
    return _git(folder, None, "status", "--porcelain", "--", *paths) == ""


def _git(folder: Path, seconds: float | None, *words: str) -> str | None:
    """Return what git says in a folder; None if it fails, or takes longer."""
    # git refuses a repository of another user, which is the usual case in a container, unless it is told not to.
    command = ["git", "-c", "safe.directory=*", *words]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if run.returncode else run.stdout.strip()


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
