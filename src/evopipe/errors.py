"""Typed errors and the exit codes they carry.

Every error that a user can cause says *what* went wrong, *where*, and *what to do*. The command line prints
`str(error)` and exits with `error.exit_code`; a traceback appears only with `--debug`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EvopipeError(Exception):
    """Base of every error that evopipe raises on purpose."""

    exit_code = 1


class UsageError(EvopipeError):
    """The command line or a function was called wrongly."""

    exit_code = 64


class ParamsError(EvopipeError):
    """`params.yaml` (or a value passed in its place) cannot be used."""

    exit_code = 65


class DataError(EvopipeError):
    """A file or dataset is readable but its content cannot be used (truncated, ragged, corrupted, unsafe)."""

    exit_code = 65


class MissingInputError(EvopipeError):
    """A file, dataset or upstream stage output is not there."""

    exit_code = 66


class DivergedError(EvopipeError):
    """Every member of the population became non-finite and no healthy generation is left to return to."""

    exit_code = 70


class EnvironmentFailed(EvopipeError):
    """An environment raised, or returned something that breaks its own contract."""

    exit_code = 71


class ResourceError(EvopipeError):
    """Memory or a configured limit was exceeded."""

    exit_code = 72


class DiskError(EvopipeError):
    """A file could not be written: disk full, folder read-only."""

    exit_code = 74


class BusyError(EvopipeError):
    """Another process works on the same state."""

    exit_code = 75


class Interrupted(EvopipeError):
    """A signal asked the run to stop; its state was saved first.

    Args:
        signum: the signal's number; the exit code is 128 + signum (130 for SIGINT, 143 for SIGTERM).
        message: what was saved, and how to continue.
    """

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `", did you mean 'x'?"` for the nearest known word, or an empty string where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""
