"""Make a project of one's own: the root pipeline, adapted to evopipe as an installed package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from string import Template
from typing import Any

from ruamel.yaml import YAML

import evopipe
from evopipe.envs.make import opened
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.errors import EvopipeError, ParamsError, UsageError
from evopipe.schema.blocks import EnvConfig
from evopipe.schema.read import parse_yaml
from evopipe.schema.write import dump_yaml
from evopipe.storage.files import make_folder, write_text

_MODULE, _STUB = "my_env.py", "my_env:Catch-v0"
_REQUIREMENTS = "requirements.txt"
_OWN_CODE = "src/evopipe"
_ENTRY = re.compile(r"(?P<key>\s*[\w-]+): *(?P<value>.*?)(?P<comment>  #.*)?")
_WITHOUT_ENV = frozenset({"buffer"})  # reads the dataset alone

_HEAD = f"""\
The stages of evopipe. {_REQUIREMENTS} stands for the code they run: another version of evopipe reruns them.
If a stage comes to read another file of yours, add it to its deps, and an edit of it reruns the stage.
"""

_STUB_VALUES: Mapping[str, Any] = {
    "env.id": _STUB,
    "env.num_envs": 4,
    "fetch.collect.policies.heuristic": 0.0,
    "fetch.collect.policies.random": 1.0,
    "train.max_steps": 20000,
    "train.evo_steps": 400,
    "train.learning_delay": 200,
    "train.warm_start": 500,
    "train.replay.capacity": 20000,
    "algos.dqn.eps_steps": 1500,
    "algos.dqn.network.encoder": [64],
    "algos.dqn.network.latent": 64,
}
"""What the example environment wants otherwise than the project's own params.yaml."""


def make(folder: Path, env_id: str | None = None) -> str:
    """Write a project, dvc.yaml, params.yaml, an environment, README, and a git and DVC repository; say what was made.

    Args:
        folder: where; it must not exist, or be empty.
        env_id: an environment that is installed; None: an example of one's own, `my_env.py`.

    Raises:
        UsageError: the folder is not empty, or is a file.
        ParamsError: the environment is unknown, or its spaces are not served.
        DiskError: it cannot be written.
        EvopipeError: git or DVC failed; what was written is removed again.
    """
    existed = folder.exists()
    if existed and (folder.is_file() or any(folder.iterdir())):
        what = "is a file" if folder.is_file() else "is not empty"
        raise UsageError(f"new: {folder} {what}; give the name of a new folder")
    if env_id is not None:
        _check_env(env_id)
    files = contents(folder.resolve().name, env_id)
    make_folder(folder)
    try:
        for name, text in files.items():
            write_text(folder / name, text)
        return f"{folder}: a project for {env_id or _STUB}; {_repository(folder)}"
    except BaseException:
        _remove(folder, existed)
        raise


def contents(name: str, env_id: str | None = None) -> dict[str, str]:
    """Return the files of a project: its texts by path.

    Args:
        name: the project's name.
        env_id: as `make`.
    """
    stub = env_id is None
    row = f"| `{_MODULE}` | the environment: replace it by yours; `evopipe env check {_STUB}` tries it |\n"
    readme = Template(_text("README.md")).substitute(name=name, env=env_id or _STUB, environment=row if stub else "")
    files = {
        "README.md": readme,
        _REQUIREMENTS: f"evopipe=={evopipe.__version__}\n",
        "dvc.yaml": dvc_yaml(_text("dvc.yaml"), (_MODULE,) if stub else ()),
        "params.yaml": params_yaml(_text("params.yaml"), _STUB_VALUES if stub else {"env.id": env_id}),
        ".gitignore": _text("gitignore"),
        ".dvcignore": _text("dvcignore"),
    }
    return files | ({_MODULE: _text(_MODULE)} if stub else {})


def _text(name: str) -> str:
    """A template, or a file of the root pipeline: the wheel brings it along, a source tree has it at its top."""
    here = Path(__file__)
    for place in (here.parent / "template", here.parent / "pipeline", here.parents[3]):
        if (place / name).is_file():
            return (place / name).read_text(encoding="utf-8")
    raise EvopipeError(f"{name}: missing in this installation of evopipe; install it again")


# --- dvc.yaml and params.yaml -----------------------------------------------------------------------------------------


def dvc_yaml(root: str, modules: tuple[str, ...]) -> str:
    """Adapt the root pipeline's dvc.yaml: no stage depends on evopipe's source, each on its version and on `modules`.

    Args:
        root: its text.
        modules: the user's own code that environments are made of.
    """
    yaml = YAML()  # keeps comments
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    data = yaml.load(root)
    data.yaml_set_start_comment(_HEAD)
    for name, stage in data["stages"].items():
        kept = [dep for dep in stage["deps"] if not str(dep).startswith(_OWN_CODE)]
        stage["deps"] = [*kept, _REQUIREMENTS, *(() if name in _WITHOUT_ENV else modules)]
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def params_yaml(root: str, values: Mapping[str, Any]) -> str:
    """Return the root pipeline's params.yaml with other values; `values` are dotted keys. All else stays as it is."""
    parsed = parse_yaml(root, "params.yaml")
    lines = root.splitlines()
    for key, value in values.items():
        number = parsed.mark(tuple(key.split(".")))[0] - 1
        found = _ENTRY.fullmatch(lines[number])
        if found is None or found["key"].strip() != key.rpartition(".")[2]:
            raise EvopipeError(f"params.yaml of this installation has no {key!r}; install evopipe again")
        lines[number] = f"{found['key']}: {dump_yaml(value, on_one_line=True).strip()}{found['comment'] or ''}"
    return "\n".join(lines) + "\n"


# --- checks, git and DVC ----------------------------------------------------------------------------------------------


def _check_env(env_id: str) -> None:
    with opened(EnvConfig(id=env_id)) as env:
        ObservationSpace.of(env.observation_space)
        kind = ActionSpace.of(env.action_space).kind
    if kind != "discrete":
        raise ParamsError(
            f"new: {env_id} has {kind} actions, and a new project begins with DQN, which serves discrete ones; "
            "make it without --env and take the blocks `train` and `algos` of evopipe's own pipelines/sac-pendulum"
        )


def _remove(folder: Path, existed: bool) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
    if not existed:
        folder.rmdir()


def _repository(folder: Path) -> str:
    """Make the folder a git and DVC repository, or join the ones that it lies in; say which."""
    above = folder.resolve().parents
    git = next((place for place in above if (place / ".git").exists()), None)
    if git is not None and _run(folder, "git", "check-ignore", "-q", ".", may_fail=True):
        git = None  # what an outer repository ignores is none of its own
    if git is not None:
        dvc = next((place for place in above if (place / ".dvc").is_dir() and place.is_relative_to(git)), None)
        if dvc is not None:
            return f"it belongs to the git and DVC repository {dvc}"
        _dvc_init(folder, "--subdir")
        return f"it is a DVC project inside the git repository {git}"
    if shutil.which("git") is None:
        _dvc_init(folder, "--no-scm")
        return "git was not found: a DVC project without it, so without experiments and `evopipe verify`"
    _run(folder, "git", "init", "--quiet")
    _dvc_init(folder)
    _run(folder, "git", "add", "--all")
    return "it is a git and DVC repository"


def _dvc_init(folder: Path, *words: str) -> None:
    _run(folder, sys.executable, "-m", "dvc", "init", "--quiet", *words)
    no_scm = "    no_scm = True\n" if "--no-scm" in words else ""
    write_text(folder / ".dvc/config", "[core]\n    analytics = false\n    check_update = false\n" + no_scm)


def _run(folder: Path, *words: str, may_fail: bool = False) -> bool:
    """Run a command that nothing of a surrounding git or DVC process leads elsewhere; say whether it succeeded."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "GIT_"))}
    env |= {"DVC_NO_ANALYTICS": "1"}
    run = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if run.returncode and not may_fail:
        what = " ".join(word for word in words if word not in (sys.executable, "-m", "--quiet"))
        said = " ".join((run.stderr or run.stdout).split())
        raise EvopipeError(f"new: `{what}` failed: {said}; nothing was left behind")
    return run.returncode == 0
