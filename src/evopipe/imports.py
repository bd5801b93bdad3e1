"""Imports without the garbage collector, which looks through all that is there again and again while modules load."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no reference cycles inside a `with` block that imports large libraries, such as torch.

    What a module holds stays until the process ends, so collecting while it loads finds nothing: torch alone takes a
    fifth longer to import with it. After the block cycles are collected as before.
    """
    if not gc.isenabled():  # a block inside another, or a caller who wants none
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def frozen() -> Iterator[None]:
    """Leave all objects that exist at the start of a `with` block out of the searches for reference cycles inside it.

    A search looks through every object, with torch a million of them, and holds Python's lock for a tenth of a second
    meanwhile. Work that makes many objects is searched often. After the block all objects are searched as before.
    """
    if gc.get_freeze_count():  # a block inside another
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def leave_at_once() -> None:
    """Let this process end without a last search for reference cycles in all that it imported.

    With torch that search takes half a second. Functions that are registered with `atexit` run as always. Only objects
    that are part of a cycle are not finalised, and the operating system frees them.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
