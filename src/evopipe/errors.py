"""Typed errors and the exit codes they carry.

Every error that a user can cause says *what* went wrong, *where*, and *what to do*. The command line prints
`str(error)` and exits with `error.exit_code`; a traceback appears only with `--debug`.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO})
_LONGEST = 600  # characters of a foreign error's text that are told
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
# HDF5 and safetensors report a failed write in words, in errors of their own.
_DISK_WORDS = ("No space left on device", "Disk quota exceeded", "Read-only file system")
_MEMORY_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "OutOfMemoryError: ",  # torch's, which need not be imported for that
)

_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"<>]*@")  # to the last @: passwords may hold others, and slashes
_SECRET = re.compile(r"(?i)([?&][^=&\s]*(?:password|passwd|pwd|token|secret|key)=)[^&\s'\"]+")


class EvopipeError(Exception):
    """Base class of every error that evopipe raises on purpose; `exit_code` is the exit code of the command line.

    Examples:
        >>> import evopipe
        >>> try:
        ...     evopipe.load("nowhere")
        ... except evopipe.EvopipeError as error:
        ...     print(error.exit_code > 0, "nowhere" in str(error))
        True True
    """

    exit_code = 1

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = cls.exit_code if exit_code is None else exit_code


class UsageError(EvopipeError, exit_code=64):
    """The error raised when the command line or a Python function is called with wrong arguments."""


class ParamsError(EvopipeError, exit_code=65):
    """The error raised when `params.yaml`, or a value passed in its place, cannot be used."""


class DataError(EvopipeError, exit_code=65):
    """The error raised when the content of a file or dataset cannot be used (truncated, ragged, corrupted, unsafe)."""


class MissingInputError(EvopipeError, exit_code=66):
    """The error raised when a file, a dataset, an output of an earlier stage or an optional package does not exist."""


class DivergedError(EvopipeError, exit_code=70):
    """The error raised when every member of the population diverged and no healthy generation is left to return to."""


class EnvironmentFailed(EvopipeError, exit_code=71):
    """The error raised when an environment, or other code of the user's, raised, hung or broke its contract."""


class ResourceError(EvopipeError, exit_code=72):
    """The error raised when memory runs out or a configured limit is exceeded."""


class DiskError(EvopipeError, exit_code=74):
    """The error raised when a file cannot be written or used: disk full, folder read-only, permission missing."""


class BusyError(EvopipeError, exit_code=75):
    """The error raised when another process works on the same state."""


class TrackerError(EvopipeError, exit_code=75):
    """The error raised when a tracker (MLflow, Weights & Biases, TensorBoard) does not accept what is sent to it."""


class HubError(EvopipeError, exit_code=75):
    """The error raised when the Hugging Face hub cannot be reached, or refuses a request."""


class Interrupted(SystemExit):
    """The exit of a run that a signal stopped. The run saves its state first.

    This is a `SystemExit`, no ordinary `Exception`. A script that does not catch the exit ends with one sentence and
    without a traceback. The exit code of a script or command is 128 + `signum`: 130 for SIGINT, 143 for SIGTERM.

    Args:
        signum: the number of the signal.
        message: the sentence.
    """

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum
        self._said = False

    @property
    def code(self) -> int:  # type: ignore[override]
        """The exit code, 128 + `signum`.

        The first read also prints the message to stderr. If nothing catches the exit, Python reads this property.
        Python itself prints no message then, because the code is a number.
        """
        if not self._said and sys.stderr is not None:
            self._said = True
            with contextlib.suppress(OSError):
                print(self, file=sys.stderr)
        return self.exit_code


def need_package(name: str, extra: str, what: str) -> None:
    """Check that the package `name`, which the extra `extra` of evopipe installs, is there.

    `what` is the subject of the error's sentence: the feature that needs the package.

    Raises:
        MissingInputError: the package is not installed; the message has the command that installs it.
    """
    if importlib.util.find_spec(name) is None:
        raise MissingInputError(f"{what} needs {name}, which is not installed: pip install 'evopipe[{extra}]'")


def said(error: BaseException) -> str:
    """Return an error's type and text in one line, such as `ValueError: negative size`; the text is made by
    `text_of`."""
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Return an error's text in one line of at most `_LONGEST` (600) characters.

    This function never raises. For an error whose `__str__` raises, the line says so.
    """
    try:
        text = str(error)
    except Exception as broken:
        return f"its text cannot be read, for __str__ raised {type(broken).__name__}"
    return one_line(text)


def one_line(text: str) -> str:
    """Return a text in one line of at most `_LONGEST` (600) characters, with control characters escaped.

    A longer text is cut and ends with `...`.
    """
    words = " ".join(text[: 4 * _LONGEST].split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    return shown if len(shown) <= _LONGEST and len(text) <= 4 * _LONGEST else shown[: _LONGEST - 3] + "..."


def redacted(text: str) -> str:
    """Return a text in which user names, passwords and secret query parameters of its URLs are replaced by `***`."""
    return _SECRET.sub(r"\1***", _USER.sub(r"\1***@", text))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `", did you mean 'x'?"` with the known word that is most similar to `word`, or an empty string if none is
    similar.

    A known word that differs only in upper and lower case is preferred.
    """
    known = list(known)
    same = [other for other in known if other.casefold() == word.casefold()]
    near = same or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: the most similar known word as a question, else all known
    words."""
    known = list(known)
    return did_you_mean(word, known) or f", known are: {', '.join(known)}"


@contextlib.contextmanager
def translate_failures(less: str = "train.replay.capacity, population.size or env.num_envs") -> Iterator[None]:
    """Convert failures of the machine in a `with` block to errors that say what to do.

    `less` names the parameters that the user should lower when memory runs out. Errors of evopipe and all other errors
    pass unchanged.

    Raises:
        ResourceError: the memory of the host or of the device ran out.
        DiskError: a file could not be written: disk full, quota, read-only, no permission.
    """
    try:
        yield
    except EvopipeError:
        raise
    except Exception as error:
        said = (str(getattr(error, "strerror", None) or error).strip() or type(error).__name__).splitlines()[0][:200]
        code, file = (error.errno, error.filename) if isinstance(error, OSError) else (None, None)
        place = f"{file}: " if file else ""
        if isinstance(error, MemoryError) or code == errno.ENOMEM or _says(error, _MEMORY_WORDS):
            raise ResourceError(f"memory ran out ({said}); lower {less}") from error
        if code in _DISK or _says(error, _DISK_WORDS):
            remedy = "free some space or make the folder writable, then run again: training continues from its last"
            raise DiskError(f"{place}a file could not be written ({said}); {remedy} checkpoint") from error
        if code in _FORBIDDEN and file:
            remedy = "change its permissions, or run as the user who owns it"
            raise DiskError(f"{place}this process may not use that file ({said}); {remedy}") from error
        raise


def _says(error: Exception, words: Iterable[str]) -> bool:
    text = f"{type(error).__name__}: {error}"
    return any(word in text for word in words)
