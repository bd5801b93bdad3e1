"""Users' own code: modules of installed packages or of the working folder, and how they are run."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, did_you_mean, said
from evopipe.watchdog import Hung, Watchdog

NAME = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
"""What code of one's own is named by."""


@contextlib.contextmanager
def foreign(what: str, watched: Watchdog | None = None) -> Iterator[None]:
    """Convert every failure of a user's code inside a `with` block to one type of error.

    Args:
        what: a text that names the code, with which the message begins.
        watched: a watchdog that limits the code's time; None for no limit.

    Raises:
        EnvironmentFailed: the code raised an exception, called `sys.exit`, or hung.
    """
    try:
        with watched or contextlib.nullcontext():
            yield
    except EvopipeError:
        raise
    except Hung as hung:
        raise EnvironmentFailed(f"{what} {hung}") from None
    except (Exception, SystemExit) as error:
        raise EnvironmentFailed(f"{what} raised {said(error)}") from error


def import_module(module: str, key: str) -> ModuleType:
    """Import and return the module `module`, which may be a file in the working folder or part of an installed package.

    `key` is the parameter that names the module; it begins error messages. The working folder is appended to
    `sys.path`.

    Raises:
        ParamsError: no module has that name, or the module needs a package that is not installed.
        EnvironmentFailed: importing the module raised an exception.
    """
    folder = os.getcwd()
    if folder not in sys.path:  # stays there: the module's functions may import from its project too
        sys.path.append(folder)  # last: a file there takes the place of no package
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(missing + "."):
            raise ParamsError(f"{key}: no module named {missing!r} in {folder} or among the packages") from error
        raise ParamsError(f"{key}: module {module!r} needs the package {missing!r}; install it") from error
    except (Exception, SystemExit) as error:
        raise EnvironmentFailed(f"{key}: importing {module!r} raised {said(error)}") from error


def well_formed(written: str, kind: str = "function") -> str:
    """Return a text if it has the form `module:name`; nothing is imported. `kind` is what the name should refer to.

    Raises:
        ValueError: the text has another form; the message says `module:` and the kind.
    """
    if not NAME.fullmatch(written):
        raise ValueError(f"{written!r:.80} is not of the form 'module:{kind}'")
    return written


def import_name(written: str, key: str) -> Any:
    """Import and return a class or function that is written as `module:name`.

    `key` is the parameter that holds the text; it begins error messages.

    Raises:
        ParamsError: the text has another form, or the name does not exist or cannot be called.
        EnvironmentFailed: importing the module raised an exception.
    """
    parts = NAME.fullmatch(written)
    if parts is None:
        raise ParamsError(f"{key}: {written!r} is not of the form 'module:name'")
    module = import_module(parts["module"], key)
    found = getattr(module, parts["name"], None)
    if found is None:
        near = did_you_mean(parts["name"], vars(module))
        raise ParamsError(f"{key}: the module {parts['module']!r} has no {parts['name']!r}{near}")
    if not callable(found):
        raise ParamsError(f"{key}: {written!r} is of type {type(found).__name__}, and cannot be called")
    return found


def import_network(module: str | None, algo: str) -> None:
    """Import the module of a user's own network, so that policies with that network can be loaded; do nothing if
    `module` is None.

    `module` is the value of the parameter `algos.ALGO.network.module`, written as `module:name`, and `algo` is ALGO.
    The errors are those of `import_name`.
    """
    if module is not None:
        import_name(module, f"algos.{algo}.network.module")
