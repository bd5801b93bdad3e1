"""The runs of a sweep as DVC experiments of the project, which `dvc exp show`, `apply` and `push` know.

DVC makes an experiment of a workspace. Here that is a clone of the project's commit, with the changes that its tracked
files have, a run's params.yaml and outs, and the project's own cache; only the finished experiment comes back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.errors import EvopipeError, text_of
from evopipe.schema.read import read_yaml
from evopipe.storage.files import read_json, write_json
from evopipe.sweep.run import PARAMS, SweptRun

_RECORD = "experiment.json"
_OFF = {"DVC_NO_ANALYTICS": "1", "DVC_STUDIO_OFFLINE": "true"}


def unfit(project: Path) -> str | None:
    """Return a clause that says why a sweep's runs cannot become DVC experiments of this project; None if they can."""
    if not (project / "dvc.yaml").is_file():
        return "there is no dvc.yaml here"
    try:
        import dvc  # noqa: F401
    except ImportError:
        return "DVC is not installed: pip install 'evopipe[pipeline]'"
    if _git(project, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") is None:
        return "DVC's experiments need a git repository with a commit"
    if _git(project, "ls-files", "--error-unmatch", "dvc.yaml", "params.yaml") is None:
        return "dvc.yaml and params.yaml are not in git: `git add` and commit them"
    return None


def save(project: Path, name: str, runs: Sequence[SweptRun]) -> list[str]:
    """Make a DVC experiment of each run of a sweep; return the names of the new experiments.

    An experiment is named `<name>-<folder>`, after the sweep and the run's folder. A run that already is an experiment
    of the current commit is skipped.

    Args:
        project: the root of the project.
        name: the sweep's name.
        runs: the finished runs.

    Raises:
        EvopipeError: git or DVC failed; the runs stay in their folders.
    """
    revision = (_git(project, "rev-parse", "HEAD") or "").strip()
    left = [run for run in runs if not _is_saved(run, revision)]
    if not left:
        return []
    names = []
    try:
        with _clone(project, revision) as clone:
            for run in left:
                names.append(_save(project, clone, f"{name}-{run.folder.name}", run))
                write_json(run.folder / _RECORD, {"name": names[-1], "baseline": revision})
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or text_of(error)
        raise EvopipeError(f"sweep: no DVC experiment could be made ({' '.join(said.split())[:300]})") from error
    return names


def _is_saved(run: SweptRun, revision: str) -> bool:
    path = run.folder / _RECORD
    return path.exists() and bool(read_json(path).get("baseline") == revision)


def _save(project: Path, clone: Path, name: str, run: SweptRun) -> str:
    """Put a run into the clone, let DVC make an experiment of it there, and bring that into the project."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    shutil.copy2(run.folder / PARAMS, clone / PARAMS)
    for out in _outs(clone):
        there, here = run.folder / out, clone / out
        shutil.rmtree(here) if here.is_dir() else here.unlink(missing_ok=True)
        here.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(there, here) if there.is_dir() else shutil.copy2(there, here)
    with contextlib.chdir(clone):
        try:
            with contextlib.closing(Repo()) as repo:
                repo.commit("dvc.yaml", force=True)
                new = _checked(clone, "ls-files", "--others", "--exclude-standard", "-z").split("\0")[:-1]
                made = [str(clone / path) for path in new]  # dvc.lock, and outs that git keeps, if HEAD has none yet
                commit = repo.experiments.save(targets=["dvc.yaml"], name=name, force=True, include_untracked=made)
        except DvcException as error:
            raise EvopipeError(f"sweep: no DVC experiment could be made of {run.folder} ({text_of(error)})") from error
    refs = _checked(clone, "for-each-ref", "--format=%(refname)", "--contains", str(commit), "refs/exps").split()
    (ref,) = (each for each in refs if each.endswith(f"/{name}"))
    _checked(project, "fetch", "--quiet", "--no-tags", str(_top(clone)), f"+{ref}:{ref}")
    return name


def _outs(clone: Path) -> Iterator[Path]:
    """Yield the outs of the pipeline's stages."""
    stages = read_yaml(clone / "dvc.yaml").data.get("stages") or {}
    for stage in layout.STAGES:
        made: Any = stages.get(stage.name) or {}
        for kind in ("outs", "metrics", "plots"):
            yield from (Path(next(iter(out)) if isinstance(out, dict) else out) for out in made.get(kind) or ())


@contextlib.contextmanager
def _clone(project: Path, revision: str) -> Iterator[Path]:
    """Clone the project's repository for as long as the block lasts; yield the project's folder in it."""
    from dvc.repo import Repo

    before = {key: os.environ.get(key) for key in _OFF}
    os.environ.update(_OFF)
    with contextlib.ExitStack() as stack:
        log = logging.getLogger("dvc")  # which tells of every dvc.lock that it writes
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)
        stack.callback(lambda: [os.environ.pop(key, None) for key, value in before.items() if value is None])
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evopipe-sweep-")))
        top, root = _top(project), scratch / "clone"
        _checked(top, "clone", "--quiet", "--shared", "--no-checkout", "--", str(top), str(root))
        _checked(root, "checkout", "--quiet", "--detach", revision)
        if changed := _checked(top, "stash", "create").strip():  # what tracked files have beyond the commit
            _checked(root, "checkout", "--quiet", changed, "--", ".")
            _checked(root, "reset", "--quiet")
        with contextlib.chdir(project), contextlib.closing(Repo()) as repo:
            cache, shared = Path(repo.cache.local.path).resolve().parents[1], Path(repo.root_dir)
        settings = root / shared.resolve().relative_to(top) / ".dvc"
        text = f"[cache]\n    dir = {cache}\n[core]\n    autostage = false\n    analytics = false\n"
        (settings / "config.local").write_text(text, encoding="utf-8")
        for name in ("user.name", "user.email"):
            _checked(root, "config", name, (_git(top, "config", name) or "").strip() or "evopipe@localhost")
        yield root / project.resolve().relative_to(top)


def _top(folder: Path) -> Path:
    return Path(_checked(folder, "rev-parse", "--show-toplevel").strip()).resolve()


def _git(folder: Path, *words: str) -> str | None:
    """Return what a command of git says; None if it fails."""
    try:
        return _checked(folder, *words)
    except (OSError, subprocess.CalledProcessError):
        return None


def _checked(folder: Path, *words: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    run = subprocess.run(("git", *words), cwd=folder, env=env, capture_output=True, text=True, check=True)
    return run.stdout
