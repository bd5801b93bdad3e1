"""`python -m evopipe`: runs the right copy of the code, and turns every failure into a sentence and an exit code."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))  # the working folder, which `-m` puts first: a file there is no package's stand-in

import gc
import os
from itertools import islice
from pathlib import Path

from evopipe.errors import EvopipeError, Interrupted, UsageError, redacted, said, translate_failures
from evopipe.imports import leave_at_once, uncollected

_REEXECUTED = "EVOPIPE_REEXECUTED"


def main() -> int:
    """Run the command line with the arguments in `sys.argv`, and return its exit code.

    An error of evopipe is printed as one sentence, and the code is the error's own (see `evopipe.errors`). Other codes
    are 64 for wrong usage, 130 for Ctrl-C, and 1 for a bug in evopipe.
    """
    arguments = sys.argv[1:]
    try:
        _run_code_of_this_tree()
        leave_at_once()
        with uncollected():
            from evopipe.cli import app

        code = app(args=_globals_first(arguments), prog_name="evopipe", standalone_mode=False)
        # Typer turns KeyboardInterrupt into this code, and says nothing.
        return _complain("interrupted", 130) if code == 130 else code or 0
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except (Exception, Interrupted) as error:
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        return _report(error)
    finally:
        gc.unfreeze()  # for whoever calls this function and lives on


def _globals_first(arguments: list[str]) -> list[str]:
    """Move the options that every command takes to the front, so that they may stand after the command too; a
    `--params` that is the last word is a UsageError."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in ("--quiet", "-q", "--debug") or word.startswith("--params="):
            front.append(word)
        elif word == "--params":
            front += [word, *islice(words, 1)]
            if front[-1] == word:
                raise UsageError("--params needs the name of a file: --params FILE")
        else:
            rest.append(word)
    return front + rest


def _report(error: Exception | Interrupted) -> int:
    """Print what went wrong and return the exit code."""
    if isinstance(error, Interrupted):
        return _complain(str(error), error.exit_code)
    try:
        with translate_failures():
            raise error
    except EvopipeError as known:
        return _complain(str(known), known.exit_code)
    except Exception:
        pass
    import typer

    if isinstance(error, typer.Abort):
        return _complain("interrupted", 130)
    # Typer brings its own copy of click in some versions: this is the UsageError of the one in use.
    if isinstance(error, typer.BadParameter.__mro__[1]):
        context, message = error.ctx, error.format_message()  # type: ignore[attr-defined]
        if context is not None and type(error).__name__ == "NoArgsIsHelpError":
            print(context.get_help(), file=sys.stderr)
            return 64
        command = context.command_path if context else "evopipe"
        return _complain(f"{message.rstrip('.')} (see {command} --help)", 64)
    what = said(error).rstrip(": ").partition("\n")[0]
    return _complain(f"internal error: {what}; this is a bug in evopipe: re-run with --debug and report it", 1)


def _complain(message: str, code: int) -> int:
    for line in message.splitlines() or [message]:
        print(f"error: {redacted(line)}", file=sys.stderr)
    return code


def _run_code_of_this_tree() -> None:
    """Under DVC, re-execute with the package of the tree that the stage runs in. `dvc exp run --queue` checks a
    revision out into a folder of its own. With an editable install, `python -m evopipe` there would run the workspace's
    code and DVC would record the result under the revision's name. `EvopipeError` if the tree's code does not run even
    so (`python -I` ignores PYTHONPATH)."""
    if not os.environ.get("DVC_STAGE"):
        return
    here = Path.cwd()
    tree = next((folder for folder in (here, *here.parents) if (folder / "src/evopipe/__init__.py").is_file()), None)
    running = Path(__file__).resolve().parent
    if tree is None or (tree / "src/evopipe").resolve() == running:
        return
    source = str((tree / "src").resolve())
    if os.environ.get(_REEXECUTED) == source:
        raise EvopipeError(
            f"{source} holds the code of this stage, but {running} runs: put {source} first on PYTHONPATH"
        )
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONPATH": path, _REEXECUTED: source}
    )


if __name__ == "__main__":
    sys.exit(main())
