"""The trackers: one file each, discovered by name, which is also the name of the package that it drives.

A tracker is a module of this package that defines the names of `Tracker`. It imports its package where it uses it, for
the package may be missing: then the run says so once, and `PACKAGE` is what to install.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from evopipe.track.config import TrackingConfig
    from evopipe.track.run import New, Run


class Backend(Protocol):
    """An open tracker. Every method may raise anything; whoever calls tries again later, with a new one."""

    def deliver(self, run: Run) -> New:
        """Bring what the tracker does not hold yet, and return how much that was."""

    def close(self) -> None:
        """Let go."""


class _Module(Protocol):
    """What a module of this package defines."""

    PACKAGE: str

    def connect(self, config: TrackingConfig, root: Path) -> Backend:
        """Open the tracker; what it keeps locally goes below `.evopipe/` in the DVC root."""


def find_tracker(name: str) -> _Module:
    """Return a tracker's module."""
    return cast(_Module, importlib.import_module(f"{__name__}.{name}"))


def missing_package(name: str) -> str | None:
    """Say what to install where a tracker's package is not there; it is not imported to find out."""
    if find_spec(name) is not None:
        return None
    return (
        f"tracking.backends: {name} is not installed, so nothing goes there: pip install '{find_tracker(name).PACKAGE}'"
    )
