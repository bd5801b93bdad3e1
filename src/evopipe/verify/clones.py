"""`evopipe verify`: git clones HEAD, DVC runs every stage in the clones, and their outs are compared."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.errors import DataError, EvopipeError, Interrupted, MissingInputError, UsageError, need_package
from evopipe.formats import columns
from evopipe.schema.read import read_yaml
from evopipe.schema.runtime import RuntimeConfig
from evopipe.signals import StopSignal
from evopipe.verify.bits import SEARCH, promise
from evopipe.verify.compare import ComparedOut, compare
from evopipe.version import SOURCE

_Tell = Callable[[str], None]
_STAGE = re.compile(r"(?:Running stage|failed to reproduce) '([^']+)'")
_DVC = (sys.executable, "-m", "dvc")
_POLL, _GRACE, _TAIL = 0.2, 15.0, 20  # seconds between looks, seconds to end in, last lines to show
_CONFIG = """[cache]
    dir = {}
[core]
    autostage = false
    analytics = false
    check_update = false
"""


@dataclass(frozen=True)
class _Origin:
    """What is to be cloned: a git repository's top folder, the pipeline's folder below it, and HEAD's commit."""

    root: Path
    project: Path
    revision: str
    changed: int  # files that differ from HEAD or are not tracked

    @classmethod
    def of(cls, pipeline: Path) -> _Origin:
        """Look at the repository that a pipeline's folder belongs to."""
        folder, file = pipeline.resolve(), pipeline / "dvc.yaml"
        if not file.is_file():
            raise MissingInputError(f"{file}: not there; run where it is, or name its folder: --pipeline")
        root = Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
        revision = _git(root, "rev-parse", "--verify", "HEAD^{commit}").strip()
        if not _git(folder, "ls-tree", "--name-only", revision, "dvc.yaml"):
            raise MissingInputError(f"{file}: not committed; verify looks at HEAD: `git add` and commit")
        changed = _git(root, "status", "--porcelain", "--no-renames").splitlines()
        return cls(root, folder.relative_to(root), revision, len(changed))


@dataclass(frozen=True)
class _Clone:
    """One clone of an origin, in the folder `root`."""

    origin: _Origin
    root: Path

    @property
    def project(self) -> Path:
        """Its pipeline's folder."""
        return self.root / self.origin.project

    def beside(self, what: str) -> Path:
        """Return a place outside of it that goes with it: its cache, its temporary files, its log."""
        return self.root.with_name(f"{self.root.name}-{what}")

    def make(self) -> _Clone:
        """Clone HEAD, with a DVC cache of its own whatever the configuration says, and bring what `.dvc` files name."""
        _git(self.origin.root, "clone", "--quiet", "--no-checkout", "--", str(self.origin.root), str(self.root))
        _git(self.root, "checkout", "--quiet", "--detach", self.origin.revision)
        self.beside("tmp").mkdir()
        upwards = [self.project, *self.project.parents][: len(self.origin.project.parts) + 1]
        settings = next((folder / ".dvc" for folder in upwards if (folder / ".dvc").is_dir()), None)
        if settings is None:
            raise MissingInputError(
                "verify: no committed .dvc folder at or above the pipeline; run `dvc init` and commit it"
            )
        (settings / "config.local").write_text(_CONFIG.format(self.beside("cache")), encoding="utf-8")
        files = _git(self.project, "ls-files", "-z", "--", ":/*.dvc").split("\0")[:-1]
        if files and (pulled := self.pull(*files)).returncode:
            raise MissingInputError(
                f"verify: data that {', '.join(files)} name is not in the cache: `dvc fetch` it "
                f"({' '.join(pulled.stderr.split())})"
            )
        return self

    def pull(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Bring outs from the origin's cache."""
        there = self.origin.root / self.origin.project
        cache = _run((*_DVC, "cache", "dir"), there, os.environ)
        if cache.returncode:
            raise UsageError(f"verify: `dvc cache dir` failed: {cache.stderr.strip()}")
        self.dvc("remote", "add", "--local", "--default", "--force", "origin", str(there / cache.stdout.strip()))
        return self.dvc("pull", "--quiet", *words)

    def dvc(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of DVC in the pipeline's folder."""
        return _run((*_DVC, *words), self.project, self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands: this Python, the clone's own code, nothing of this run's DVC. An entry of
        PYTHONPATH inside the origin becomes the same folder in the clone; where the clone holds no evopipe, the one
        that runs now is found last."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "EVOPIPE_", "GIT_"))}
        path = [Path(entry).resolve() for entry in kept.get("PYTHONPATH", "").split(os.pathsep) if entry]
        path.append(Path(SOURCE).resolve())
        top = self.origin.root
        path = [self.root / p.relative_to(top) if p.is_relative_to(top) else p for p in path]
        return kept | {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath))),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, (self.root / "src", *path)))),
            "DVC_NO_ANALYTICS": "1",
            "EVOPIPE_TRACKING": "off",  # what is repeated is no run that anybody wants to see
            "DVC_SITE_CACHE_DIR": str(self.beside("site")),
            "TMPDIR": str(self.beside("tmp")),
        }

    def elite(self) -> dict[str, Any]:
        """Return what its elite says of itself, such as the machine that made it; nothing where there is no elite."""
        file = self.project / layout.ELITE / "policy.json"
        return dict(json.loads(file.read_bytes())) if file.is_file() else {}


def _git(folder: Path, *words: str) -> str:
    """Run git and return what it said."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        run = _run(("git", *words), folder, env | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"})
    except FileNotFoundError:
        raise UsageError("verify: git was not found; install it") from None
    if run.returncode:
        said = run.stderr.strip().replace("fatal: ", "").partition("\n")[0]
        raise UsageError(f"verify: `git {words[0]}` failed in {folder}: {said}; verify needs a repository with HEAD")
    return run.stdout


def _run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


def verify(
    pipeline: Path, lock: bool, jobs: int, tolerance: float, keep: bool, show: _Tell, tell: _Tell, warn: _Tell
) -> None:
    """Check that the pipeline is reproducible: run HEAD in two clean git clones, and compare every out.

    With `lock`, HEAD runs in one clone, which is compared with the committed dvc.lock.

    Args:
        pipeline: the folder of dvc.yaml.
        lock: whether to compare with the committed dvc.lock.
        jobs: the number of jobs that run at the same time.
        tolerance: with `lock`, how much the elite's score may differ, as a share of the committed score.
        keep: whether to keep the clones, and print where they are.
        show: a function that is called with the table of results.
        tell: a function that is called with sentences on the progress.
        warn: a function that is called with warnings.

    Raises:
        UsageError: there is no git repository, or nothing is committed.
        MissingInputError: DVC, dvc.yaml, dvc.lock, the committed score, or data that a `.dvc` file names is missing.
        DataError: outs differ, or dvc.lock was made from other code or parameters than HEAD's.
        EvopipeError: a stage failed; the exit code is the stage's if DVC reports it.
        Interrupted: a signal asked the process to stop.
    """
    need_package("dvc", "pipeline", "verify")
    origin = _Origin.of(pipeline)
    if origin.changed:
        files = "1 file is" if origin.changed == 1 else f"{origin.changed} files are"
        warn(f"{files} not as committed: verify looks at HEAD ({origin.revision[:12]}) alone")
    with contextlib.ExitStack() as ending:
        home = Path(tempfile.mkdtemp(prefix="evopipe-verify-")).resolve()
        if keep:
            ending.callback(warn, f"the clones are kept in {home}")
        else:
            ending.callback(shutil.rmtree, home, ignore_errors=True)
        one = _Clone(origin, home / "A").make()
        if lock:
            title, names, between = "dvc.lock of", ("lock", "here"), "dvc.lock and this machine"
            _refuse_stale(one)
            two, one = one, _Clone(origin, home / "committed").make()
            one.pull("--allow-missing")  # as far as git and the cache have it
            machines = _machines(one)
            tell(machines[0])
            _reproduce([two], 1, tell)
        else:
            title, names, between = "two clean clones of", ("A", "B"), "the clones"
            # Folders of different names and depths, so that an out that depends on its place is found out.
            two = _Clone(origin, home / "deeper/B").make()
            _reproduce([one, two], jobs, tell)
        rows = compare(one.project, two.project, tolerance if lock else None)
        lines = [f"{title} {origin.revision[:12]}", "", *_table(rows, names)]
        if lock:
            lines += ["", *machines]
    show("\n".join(lines))
    wrong = [row.path for row in rows if row.fails]
    if wrong:
        causes = dict.fromkeys(row.stage for row in rows if row.fails and not row.deps & set(wrong))
        begin = f"; begin with {' and '.join(causes)}, whose inputs are the same" if causes else ""
        raise DataError(f"not reproduced: {', '.join(wrong)} differ{'s' * (len(wrong) == 1)} between {between}{begin}")


def _refuse_stale(clone: _Clone) -> None:
    """Refuse a dvc.lock that does not fit the clone's code, parameters or commands."""
    if not (lock := clone.project / "dvc.lock").is_file():
        raise MissingInputError(f"{lock}: not there; run `dvc repro` and commit dvc.lock")
    plan = clone.dvc("repro", "--allow-missing", "--dry")
    said = plan.stdout + plan.stderr
    stale = list(dict.fromkeys(_STAGE.findall(said)))  # a stale stage whose inputs are missing ends DVC's plan
    if stale:
        raise DataError(
            f"dvc.lock was made from other code, data or parameters than HEAD's (stale: {', '.join(stale)}); "
            "run `dvc repro`, and commit dvc.lock and reports/"
        )
    if plan.returncode:
        raise EvopipeError(f"verify: `dvc repro --dry` failed: {' '.join(said.split())}")


def _reproduce(clones: Sequence[_Clone], jobs: int, tell: _Tell) -> None:
    """Run every stage of each clone, `jobs` clones at a time, and tell each stage that begins."""
    waiting, running, told = list(clones), dict[_Clone, subprocess.Popen[bytes]](), set[str]()
    with StopSignal() as stop, contextlib.ExitStack() as ending:
        ending.callback(_end, running)
        while waiting or running:
            while waiting and len(running) < jobs:
                clone = waiting.pop(0)
                running[clone] = _start(clone)
            time.sleep(_POLL)
            if stop.signum is not None:
                raise Interrupted(stop.signum, "verify: stopped; nothing was compared")
            for clone, process in list(running.items()):
                code, name = process.poll(), clone.root.name
                said = clone.beside("log").read_text(encoding="utf-8", errors="replace")
                for line in (f"clone {name}: {stage}" for stage in _STAGE.findall(said)):
                    if line not in told:
                        tell(line)
                        told.add(line)
                if code is not None:
                    del running[clone]
                if code:
                    last = "\n".join(said.splitlines()[-_TAIL:])
                    error = EvopipeError(f"verify: the pipeline failed in clone {name}; it said last:\n{last}")
                    for number in re.findall(r"exited with (\d+)", said):  # the last is the failed stage's
                        error.exit_code = int(number)
                    raise error


def _start(clone: _Clone) -> subprocess.Popen[bytes]:
    """Start DVC in a process group of its own, so that it can be ended with all that it started."""
    words = (*_DVC, "repro", "--force", "--no-run-cache", "--no-commit")
    with clone.beside("log").open("wb") as log:
        return subprocess.Popen(
            words, cwd=clone.project, env=clone.environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def _end(running: Mapping[_Clone, subprocess.Popen[bytes]]) -> None:
    """See to it that nothing runs on: ask first, insist after some seconds."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for process in running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signum)
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)


def _table(rows: Sequence[ComparedOut], names: tuple[str, str]) -> list[str]:
    """Return a line an out, below it its notes, and at the end how many had which verdict."""
    cells = [(row.path, row.stage, row.a[:12] or "-", row.b[:12] or "-", row.verdict) for row in rows]
    head, *lines = columns([("out", "stage", *names, ""), *cells])
    shown = [head]
    for line, row in zip(lines, rows, strict=True):
        shown += [line, *(f"    {note}" for note in row.notes)]
    counts = Counter[str](row.verdict for row in rows)
    order = ("same", "close", "learned anew", "measured", "DIFFERENT", "missing")
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in order if counts[verdict])
    return [*shown, "", f"{len(rows)} outs: {told}"]


def _machines(clone: _Clone) -> list[str]:
    """Return the lock's machine and this one side by side, and whether this one can repeat what was learned."""
    from evopipe.machine import configure, fingerprint  # with torch, which nothing else here needs

    train = read_yaml(clone.project / "dvc.lock").data["stages"].get("train", {})
    told = train.get("params", {}).get("params.yaml", {})
    runtime = {name: told[f"runtime.{name}"] for name in ("kernels", "device", "threads") if f"runtime.{name}" in told}
    elite = clone.elite()
    there = elite["provenance"]["fingerprint"] if elite else {}
    device = configure(RuntimeConfig.model_validate({"kernels": "torch", **runtime}))
    here = fingerprint(device, [name for name in SEARCH if name in there])
    pairs = {name: (str(there.get(name, "-")), str(here.get(name, "-"))) for name in dict.fromkeys((*there, *here))}
    marked = [(name, a, b, "" if a == b else "*") for name, (a, b) in pairs.items()]
    said = [promise(runtime.get("kernels", "torch"), elite, here), ""] if train else []
    return [*said, *columns([("machine", "lock", "here", ""), *marked])]
