"""Whether a computation gives the same again: a pipeline in another clone, an algorithm on another device."""

from __future__ import annotations

from evopipe.errors import EvopipeError


class Differs(EvopipeError):
    """What should be the same twice is not."""

    exit_code = 65
