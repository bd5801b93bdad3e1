"""Sources and compiler flags of the kernels, for `build` on the user's machine and `hatch_build.py` for wheels.

It imports nothing but the standard library, for wheels are built where nothing else is installed.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.rglob("*.[ch]"))
MAIN = Path(__file__).with_name("kernels.c")  # which includes the others
FLAGS = (
    "-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread",
    "-Wall", "-Wextra", "-Wno-psabi", "-Wno-unused-command-line-argument",
)  # fmt: skip
_ARM = platform.machine() in ("aarch64", "arm64")
TARGETS = {
    "native": ("-mcpu=native" if _ARM else "-march=native",),  # as clang spells it, too
    "portable": ("-march=armv8-a",) if _ARM else ("-mavx2", "-mfma"),
}
"""Instruction sets by name. All give the same bits: `portable` for a processor of which the compiler knows nothing."""


def everything() -> bytes:
    """Return the bytes of all C source files and headers of the kernels, joined in a fixed order."""
    return b"\n".join(source.read_bytes() for source in SOURCES)


def prebuilt() -> Path:
    """Return the path at which a wheel holds the portable kernels that were compiled from these sources with these
    flags.

    The file need not exist. Its SHA-256 lies beside it.
    """
    about = b"\n".join((everything(), *(flag.encode() for flag in (*FLAGS, *TARGETS["portable"]))))
    machine = platform.machine().lower()
    return MAIN.with_name("prebuilt") / f"portable-{machine}-{hashlib.sha256(about).hexdigest()[:32]}.so"
