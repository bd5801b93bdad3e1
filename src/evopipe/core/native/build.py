"""Compile the kernels for this processor at first use, once a machine, and load them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from evopipe.types import Tensor

SOURCES = sorted(Path(__file__).parent.glob("*.c"))  # one library, of which `kernels.c` includes the others
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-pthread", "-w")
TARGETS = {"native": ("-march=native",), "portable": ("-mavx2", "-mfma")}
"""Instruction sets by name. All give the same bits: `portable` for a processor of which the compiler knows nothing."""
SIGNATURES = {
    "share_among": "i",
    "dense_forward": "piiiiippnpnpp",
    "dense_backward": "piiiiippnpnpnppppn",
    "clip": "iippnppp",
    "adam": "iippnpnppnpppddd",
    "polyak": "iippnpnp",
    "uniform": "iipnpp",
    "normals": "iipnpp",
    "gumbels": "iipnpp",
    "draw_batch": "p",
    "tree_add_up": "pipp",
    "tree_add_up_all": "pi",
    "tree_draw": "piipppppi",
    "importances": "iippfpp",
    "tree_update": "piipppfffpp",
    "next_episodes": "nppppnppp",
    "rollout_enter": "nnnnnpnppipppp",
    "rollout_finish": "nnnpnpnnppppp",
}
"""What each function takes: p a pointer, i an int, n a ptrdiff_t, f a float, d a double."""
UPDATES = {"value_update": "pi", "climb": "pi", "soften": "pi", "policy_learn": "pp", "policy_act": "pp"}
"""The same of those that take memory, and raise MemoryError where there is none."""
_WORDS = {"int": "i", "ptrdiff_t": "n", "float": "f", "double": "d"}
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "n": ctypes.c_ssize_t, "f": ctypes.c_float, "d": ctypes.c_double}
SECONDS = 120.0  # longest that compiling may take


_chosen: ctypes.CDLL | None = None


def use(kernels: ctypes.CDLL | None) -> None:
    """Let what lies on the CPU be computed by these kernels from now on, in this process and those that it forks; None:
    by torch."""
    global _chosen
    _chosen = kernels


def chosen() -> ctypes.CDLL | None:
    """Return the kernels in use; None where torch computes."""
    return _chosen


def kernels() -> ctypes.CDLL:
    """Return the kernels in use, of which there must be some."""
    assert _chosen is not None
    return _chosen


def serve(*tensors: Tensor) -> bool:
    """Whether the kernels are in use, and these lie where they can read them."""
    return _chosen is not None and all(x.device.type == "cpu" for x in tensors) and not torch.compiler.is_compiling()


def at(tensor: Tensor | None) -> int | None:
    """Return where a tensor's numbers begin; None stands for C's NULL."""
    return None if tensor is None else tensor.data_ptr()


@cache
def structure(name: str) -> type[ctypes.Structure]:
    """Return a struct of the source, for functions that take many numbers, to be made with its fields by name."""
    source = re.sub("//.*", "", "".join(source.read_text() for source in SOURCES))
    found = re.search(rf"typedef struct {{([^}}]*)}} {name};", source)
    assert found is not None, name
    fields: list[tuple[str, Any]] = []
    for word, names in re.findall(r"(?:const )?(\w+) ([^;]+);", found[1]):
        for stars, field, count in re.findall(r"(\**)(\w+)(?:\[(\d+)\])?", names):
            kind = _TYPES["p"] if stars else _TYPES[_WORDS[word]] if word in _WORDS else structure(word)
            fields.append((field, kind * int(count) if count else kind))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


class NoKernels(Exception):
    """The kernels cannot be had here; the message says why."""


@cache
def load(target: str = "native") -> ctypes.CDLL:
    """Return the compiled kernels.

    Raises:
        NoKernels: there is no compiler, it failed, or what it made cannot be loaded.
    """
    compiler = _compiler()
    sources = (source.read_text() for source in SOURCES)
    key = hashlib.sha256("\n".join((*sources, compiler, _about(compiler), _processor(), *FLAGS)).encode())
    made = _folder() / f"{target}-{key.hexdigest()[:32]}.so"
    if not made.exists():
        _compile(compiler, (*FLAGS, *TARGETS[target]), made)
    try:
        kernels = ctypes.CDLL(str(made))  # whose calls release the interpreter's lock
    except OSError as error:
        raise NoKernels(f"{made} cannot be loaded: {error}") from error
    for name, signature in (SIGNATURES | UPDATES).items():
        function = getattr(kernels, name)
        function.argtypes = [_TYPES[letter] for letter in signature]
        function.restype = _done if name in UPDATES else None
    return kernels


def _done(starved: int) -> None:
    if starved:
        raise MemoryError("the kernels need more for an update than there is")


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NoKernels("no C compiler was found; install gcc or clang, or name one in CC")


def _about(compiler: str) -> str:
    run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=SECONDS)
    return run.stdout


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return sys.platform
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evopipe"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    except OSError:
        pass
    return _private()


@cache
def _private() -> Path:
    """A folder for this process alone, where the user has no cache that can be written."""
    return Path(tempfile.mkdtemp(prefix="evopipe-kernels-"))


def _compile(compiler: str, flags: tuple[str, ...], made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent, prefix="compile-") as name:
        fresh = Path(name) / made.name
        try:
            command = [compiler, *flags, "-o", str(fresh), str(Path(__file__).with_name("kernels.c")), "-lm"]
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoKernels(f"{compiler} could not be run: {error}") from error
        if run.returncode:
            why = (run.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise NoKernels(f"{compiler} could not compile the kernels: {why}")
        fresh.replace(made)
