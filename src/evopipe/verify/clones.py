"""Clean clones of HEAD, and DVC in them: every stage forced, nothing taken from a cache."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import evopipe
from evopipe.errors import EvopipeError, Interrupted, MissingInputError, UsageError
from evopipe.signals import StopSignal
from evopipe.storage import safeio

_RUNNING = re.compile(r"Running stage '([^']+)'")
_FAILED = re.compile(r"failed to reproduce '([^']+)'")
_EXITED = re.compile(r"exited with (\d+)")
_POLL, _GRACE, _TAIL = 0.2, 15.0, 20


class PipelineFailed(EvopipeError):
    """A stage failed in a clone; the exit code is the stage's where DVC tells it."""


@dataclass(frozen=True)
class Origin:
    """What is to be cloned.

    Attributes:
        root: the git repository's top folder.
        project: the pipeline's folder, relative to `root`.
        revision: HEAD's commit.
        changed: tracked files that differ from HEAD and untracked ones, as git lists them.
    """

    root: Path
    project: Path
    revision: str
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Clone:
    """One clone: its name, its top folder, its pipeline's folder, and the log of its run."""

    name: str
    root: Path
    project: Path
    log: Path


def find_origin(pipeline: Path) -> Origin:
    """Look at the repository that a pipeline's folder belongs to.

    Raises:
        UsageError: git is missing, there is no repository, or nothing is committed yet.
        MissingInputError: the folder holds no committed dvc.yaml.
    """
    folder = pipeline.resolve()
    if not (folder / "dvc.yaml").is_file():
        raise MissingInputError(f"{pipeline / 'dvc.yaml'}: not there; run where it is, or name its folder: --pipeline")
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
    revision = _git(root, "rev-parse", "--verify", "HEAD^{commit}").strip()
    project = folder.relative_to(root)
    committed = _git(root, "ls-tree", "-z", "--name-only", revision, "--", (project / "dvc.yaml").as_posix())
    if not committed:
        raise MissingInputError(f"{pipeline / 'dvc.yaml'}: not committed; verify looks at HEAD: `git add` and commit")
    changed = _git(root, "status", "--porcelain", "-z").split("\0")
    return Origin(root, project, revision, tuple(entry for entry in changed if entry))


def make_clone(origin: Origin, name: str, home: Path) -> Clone:
    """Clone HEAD into `home/<name>` with a DVC cache of its own, and bring the data that `.dvc` files name.

    Raises:
        UsageError: git cannot clone it.
        MissingInputError: data that a `.dvc` file names is not in the cache here.
    """
    root = home / name
    _git(home, "clone", "--quiet", "--no-checkout", "--", str(origin.root), str(root))
    _git(root, "checkout", "--quiet", "--detach", origin.revision)
    clone = Clone(name, root, root / origin.project, home / f"{name}.log")
    _beside(clone, "tmp").mkdir()
    _configure(clone, origin)
    _bring_data(clone, origin)
    return clone


def _beside(clone: Clone, what: str) -> Path:
    """What the clone's processes keep outside of it, and goes with it."""
    return clone.root.parent / f"{clone.name}-{what}"


def _git(folder: Path, *words: str) -> str:
    """Run git and return what it said."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        run = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("verify: git was not found; install it") from None
    if run.returncode:
        said = run.stderr.strip().replace("fatal: ", "").partition("\n")[0]
        raise UsageError(
            f"verify: `git {words[0]}` failed in {folder}: {said}; verify needs a git repository with HEAD"
        )
    return run.stdout


def _configure(clone: Clone, origin: Origin) -> None:
    """Give the clone a cache of its own, whatever the user's or the repository's configuration says."""
    upwards = (clone.project, *clone.project.parents)
    place = next(
        (folder for folder in upwards if folder.is_relative_to(clone.root) and (folder / ".dvc").is_dir()), None
    )
    if place is None:
        raise MissingInputError(
            "verify: no committed .dvc folder at or above the pipeline; run `dvc init` and commit it"
        )
    lines = ["[cache]", f"    dir = {_beside(clone, 'cache')}", "[core]", "    autostage = false"]
    lines += ["    analytics = false", "    check_update = false", "    remote = origin"]
    lines += ["['remote \"origin\"']", f"    url = {cache_of(origin)}"]
    safeio.write_text(place / ".dvc/config.local", "\n".join(lines) + "\n")


def cache_of(origin: Origin) -> Path:
    """Return the folder of DVC's cache in the origin."""
    run = _dvc(origin.root / origin.project, os.environ, "cache", "dir")
    if run.returncode:
        raise UsageError(f"verify: `dvc cache dir` failed: {run.stderr.strip()}")
    return Path(origin.root, origin.project, run.stdout.strip())


def _dvc(folder: Path, env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dvc", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def _bring_data(clone: Clone, origin: Origin) -> None:
    """Pull what `dvc add` tracks from the origin's cache: it is input, no stage makes it."""
    files = [name for name in _git(clone.root, "ls-files", "-z", "--", "*.dvc").split("\0") if name]
    if not files:
        return
    run = _dvc(clone.root, environment(clone, origin), "pull", "--quiet", *files)
    if run.returncode:
        said = " ".join(run.stderr.split())
        raise MissingInputError(
            f"verify: data that {', '.join(files)} name is not in the cache: `dvc fetch` it ({said})"
        )


def environment(clone: Clone, origin: Origin) -> dict[str, str]:
    """The environment of a command in the clone: this Python, the clone's own code, nothing of this run's DVC.

    An entry of PYTHONPATH inside the origin becomes the same folder in the clone; where the clone holds no evopipe, the
    one that runs now is found last.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "EVOPIPE_", "GIT_"))}
    path = [str(clone.root / "src")] if (clone.root / "src/evopipe/__init__.py").is_file() else []
    given = [Path(entry).resolve() for entry in kept.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for entry in (*given, Path(evopipe.__file__).resolve().parents[1]):
        inside = entry.is_relative_to(origin.root)
        place = clone.root / entry.relative_to(origin.root) if inside else entry
        if str(place) not in path and not (inside and not place.is_dir()):
            path.append(str(place))
    return kept | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join(path),
        "DVC_NO_ANALYTICS": "1",
        "EVOPIPE_TRACKING": "off",  # what is repeated is no run that anybody wants to see
        "DVC_SITE_CACHE_DIR": str(_beside(clone, "site")),
        "TMPDIR": str(_beside(clone, "tmp")),
    }


def stale(clone: Clone, origin: Origin) -> list[str]:
    """Return the stages that dvc.lock does not fit: another code, parameter or command than the clone's.

    Raises:
        PipelineFailed: DVC cannot read the pipeline.
    """
    run = _dvc(clone.project, environment(clone, origin), "repro", "--allow-missing", "--dry")
    said = run.stdout + run.stderr
    # A stale stage whose inputs are missing, as in a clone they are, ends DVC's plan.
    found = [*_RUNNING.findall(said), *(_FAILED.findall(said) if run.returncode else ())]
    if run.returncode and not found:
        raise PipelineFailed(f"verify: `dvc repro --dry` failed: {' '.join(said.split())}")
    return list(dict.fromkeys(found))


# --- running ----------------------------------------------------------------------------------------------------------


def reproduce(clones: Sequence[Clone], origin: Origin, jobs: int, tell: Callable[[str], None]) -> None:
    """Run every stage of each clone, `jobs` clones at a time.

    Raises:
        PipelineFailed: a stage failed; its last lines are in the message.
        Interrupted: a signal asked to stop.
    """
    waiting, running = list(clones), dict[str, tuple[Clone, subprocess.Popen[bytes]]]()
    with StopSignal() as stop, _ended(running):
        told: dict[str, int] = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                clone = waiting.pop(0)
                running[clone.name] = (clone, _start(clone, origin))
            time.sleep(_POLL)
            if stop.signum is not None:
                raise Interrupted(stop.signum, "verify: stopped; nothing was compared")
            for name, (clone, process) in list(running.items()):
                code = process.poll()
                told[name] = _tell_stages(clone, told.get(name, 0), tell)
                if code is not None:
                    del running[name]
                    _check(clone, code)


def _start(clone: Clone, origin: Origin) -> subprocess.Popen[bytes]:
    """Start DVC in a process group of its own, so that it can be ended with all that it started."""
    words = ["-m", "dvc", "repro", "--force", "--no-run-cache", "--no-commit"]
    with clone.log.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=clone.project,
            env=environment(clone, origin),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _tell_stages(clone: Clone, known: int, tell: Callable[[str], None]) -> int:
    """Tell the stages that began since `known` ones were told."""
    stages = _RUNNING.findall(clone.log.read_text(encoding="utf-8", errors="replace"))
    for stage in stages[known:]:
        tell(f"clone {clone.name}: {stage}")
    return len(stages)


def _check(clone: Clone, code: int) -> None:
    if not code:
        return
    said = clone.log.read_text(encoding="utf-8", errors="replace")
    error = PipelineFailed(
        "\n".join([f"verify: the pipeline failed in clone {clone.name}; it said last:", *said.splitlines()[-_TAIL:]])
    )
    exited = _EXITED.findall(said)
    error.exit_code = int(exited[-1]) if exited else PipelineFailed.exit_code
    raise error


@contextlib.contextmanager
def _ended(running: Mapping[str, tuple[Clone, subprocess.Popen[bytes]]]) -> Iterator[None]:
    """See to it that nothing runs on: ask first, insist after some seconds."""
    try:
        yield
    finally:
        for _, process in running.values():
            _signal_group(process, signal.SIGTERM)
        until = time.monotonic() + _GRACE
        for _, process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)
