"""Clean clones of HEAD, and DVC in them: every stage forced, nothing taken from a cache."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import evopipe
from evopipe.errors import EvopipeError, Interrupted, MissingInputError, UsageError
from evopipe.signals import StopSignal
from evopipe.storage.files import write_text

_STAGE = re.compile(r"(?:Running stage|failed to reproduce) '([^']+)'")
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
        changed: how many files differ from HEAD or are not tracked.
    """

    root: Path
    project: Path
    revision: str
    changed: int


@dataclass(frozen=True)
class Clone:
    """One clone: its name, its top folder, and its pipeline's folder."""

    name: str
    root: Path
    project: Path

    def beside(self, what: str) -> Path:
        """Return a place outside of it that goes with it: its cache, its temporary files, its log."""
        return self.root.parent / f"{self.name}-{what}"


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
    if not _git(folder, "ls-tree", "--name-only", revision, "dvc.yaml"):
        raise MissingInputError(f"{pipeline / 'dvc.yaml'}: not committed; verify looks at HEAD: `git add` and commit")
    changed = _git(root, "status", "--porcelain", "--no-renames").splitlines()
    return Origin(root, folder.relative_to(root), revision, len(changed))


def make_clone(origin: Origin, name: str, home: Path, cache: Path | None = None) -> Clone:
    """Clone HEAD into `home/<name>`, and bring the data that `.dvc` files name.

    Args:
        origin: what to clone.
        name: of the clone.
        home: where.
        cache: of DVC; None: the clone's own, whatever the user's or the repository's configuration says.

    Raises:
        UsageError: git cannot clone it.
        MissingInputError: data that a `.dvc` file names is not in the cache here, or no .dvc folder is committed.
    """
    clone = Clone(name, home / name, home / name / origin.project)
    _git(home, "clone", "--quiet", "--no-checkout", "--", str(origin.root), str(clone.root))
    _git(clone.root, "checkout", "--quiet", "--detach", origin.revision)
    clone.beside("tmp").mkdir()
    upwards = [clone.project, *clone.project.parents][: len(origin.project.parts) + 1]
    settings = next((folder / ".dvc" for folder in upwards if (folder / ".dvc").is_dir()), None)
    if settings is None:
        raise MissingInputError(
            "verify: no committed .dvc folder at or above the pipeline; run `dvc init` and commit it"
        )
    write_text(
        settings / "config.local",
        f"[cache]\n    dir = {cache or clone.beside('cache')}\n"
        "[core]\n    autostage = false\n    analytics = false\n    check_update = false\n    remote = origin\n"
        f"['remote \"origin\"']\n    url = {cache_of(origin)}\n",
    )
    files = _git(clone.project, "ls-files", "-z", "--", ":/*.dvc").split("\0")[:-1]
    if files:  # input: no stage makes it
        pulled = dvc(clone, origin, "pull", "--quiet", *files)
        if pulled.returncode:
            raise MissingInputError(
                f"verify: data that {', '.join(files)} name is not in the cache: `dvc fetch` it "
                f"({' '.join(pulled.stderr.split())})"
            )
    return clone


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


@functools.cache
def cache_of(origin: Origin) -> Path:
    """Return the folder of DVC's cache in the origin."""
    words = [sys.executable, "-m", "dvc", "cache", "dir"]
    run = subprocess.run(words, cwd=origin.root / origin.project, capture_output=True, text=True, check=False)
    if run.returncode:
        raise UsageError(f"verify: `dvc cache dir` failed: {run.stderr.strip()}")
    return Path(origin.root, origin.project, run.stdout.strip())


def dvc(clone: Clone, origin: Origin, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of DVC in a clone's pipeline folder."""
    words, env = (sys.executable, "-m", "dvc", *words), environment(clone, origin)
    return subprocess.run(words, cwd=clone.project, env=env, capture_output=True, text=True, check=False)


def environment(clone: Clone, origin: Origin) -> dict[str, str]:
    """Return the environment of a command in the clone: this Python, the clone's own code, nothing of this run's DVC.

    An entry of PYTHONPATH inside the origin becomes the same folder in the clone; where the clone holds no evopipe, the
    one that runs now is found last.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "EVOPIPE_", "GIT_"))}
    path = [Path(entry).resolve() for entry in kept.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path.append(Path(evopipe.__file__).resolve().parents[1])
    path = [clone.root / p.relative_to(origin.root) if p.is_relative_to(origin.root) else p for p in path]
    return kept | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, (clone.root / "src", *path)))),
        "DVC_NO_ANALYTICS": "1",
        "EVOPIPE_TRACKING": "off",  # what is repeated is no run that anybody wants to see
        "DVC_SITE_CACHE_DIR": str(clone.beside("site")),
        "TMPDIR": str(clone.beside("tmp")),
    }


def stale(clone: Clone, origin: Origin) -> list[str]:
    """Return the stages that dvc.lock does not fit: another code, parameter or command than the clone's.

    Raises:
        PipelineFailed: DVC cannot read the pipeline.
    """
    run = dvc(clone, origin, "repro", "--allow-missing", "--dry")
    said = run.stdout + run.stderr
    found = list(dict.fromkeys(_STAGE.findall(said)))  # a stale stage whose inputs are missing ends DVC's plan
    if run.returncode and not found:
        raise PipelineFailed(f"verify: `dvc repro --dry` failed: {' '.join(said.split())}")
    return found


def reproduce(clones: Sequence[Clone], origin: Origin, jobs: int, tell: Callable[[str], None]) -> None:
    """Run every stage of each clone, `jobs` clones at a time, and tell each stage that begins.

    Raises:
        PipelineFailed: a stage failed; its last lines are in the message.
        Interrupted: a signal asked to stop.
    """
    waiting, running, told = list(clones), dict[Clone, subprocess.Popen[bytes]](), set[str]()
    with StopSignal() as stop, contextlib.ExitStack() as ending:
        ending.callback(lambda: _end(running.values()))
        while waiting or running:
            while waiting and len(running) < jobs:
                clone = waiting.pop(0)
                running[clone] = _start(clone, origin)
            time.sleep(_POLL)
            if stop.signum is not None:
                raise Interrupted(stop.signum, "verify: stopped; nothing was compared")
            for clone, process in list(running.items()):
                code = process.poll()
                said = clone.beside("log").read_text(encoding="utf-8", errors="replace")
                for line in dict.fromkeys(f"clone {clone.name}: {stage}" for stage in _STAGE.findall(said)):
                    if line not in told:
                        tell(line)
                        told.add(line)
                if code is not None:
                    del running[clone]
                if code:
                    raise _failure(clone, said)


def _start(clone: Clone, origin: Origin) -> subprocess.Popen[bytes]:
    """Start DVC in a process group of its own, so that it can be ended with all that it started."""
    words = ["-m", "dvc", "repro", "--force", "--no-run-cache", "--no-commit"]
    with clone.beside("log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=clone.project,
            env=environment(clone, origin),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _failure(clone: Clone, said: str) -> PipelineFailed:
    last = said.splitlines()[-_TAIL:]
    error = PipelineFailed("\n".join([f"verify: the pipeline failed in clone {clone.name}; it said last:", *last]))
    exited = re.findall(r"exited with (\d+)", said)
    error.exit_code = int(exited[-1]) if exited else PipelineFailed.exit_code
    return error


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """See to it that nothing runs on: ask first, insist after some seconds."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signum)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
