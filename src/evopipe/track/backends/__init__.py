"""The trackers: one file each, found by its name, which is that of the package it drives.

A tracker's file defines `PACKAGE`, what to install, and `connect(config, root)`, which opens it. It imports its package
where it uses it, for that may be missing.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from evopipe.schema.blocks import TrackingConfig
    from evopipe.track.run import New, Run


class Backend(Protocol):
    """An open tracker. Every method may raise anything; whoever calls tries again later, with a new one."""

    def deliver(self, run: Run) -> New:
        """Bring what the tracker does not hold yet, and return how much that was."""

    def close(self) -> None:
        """Let go."""


class _Tracker(Protocol):
    PACKAGE: str

    def connect(self, config: TrackingConfig, root: Path) -> Backend: ...


def find_tracker(name: str) -> _Tracker:
    """Return a tracker's module."""
    return cast(_Tracker, importlib.import_module(f"{__name__}.{name}"))


def missing_package(name: str) -> str | None:
    """Say what to install where a tracker's package is not there; it is not imported to find out."""
    if find_spec(name) is not None:
        return None
    remedy = f"pip install '{find_tracker(name).PACKAGE}'"
    return f"tracking.backends: {name} is not installed, so nothing goes there: {remedy}"
