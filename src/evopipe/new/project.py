"""Makes a user's own project: evopipe's pipeline, with evopipe as an installed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Literal, NamedTuple

from evopipe.envs.make import opened
from evopipe.envs.names import extra_of
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamEnv
from evopipe.errors import EvopipeError, ParamsError, UsageError, need_package
from evopipe.schema.env import EnvConfig
from evopipe.storage.files import make_folder, write_text
from evopipe.version import __version__

_MODULE, _STUB = "my_env.py", "my_env:Catch-v0"
_REQUIREMENTS = "requirements.txt"

Example = Literal["environment", "language", "agent"]


class _TextProject(NamedTuple):
    """What a project of language models has of its own: an example, and files of the template by their paths."""

    example: str
    files: Mapping[str, str]
    ignored: str = ""  # by git, beside what it ignores in every project


_OF_TEXT: dict[Example, _TextProject] = {
    "language": _TextProject(
        "my_task:Backwards",
        {"dvc.yaml": "stages-language.yaml", "params.yaml": "params-language.yaml", "my_task.py": "my_task.py"},
    ),
    "agent": _TextProject(
        "my_agent:make",
        {
            "dvc.yaml": "stages-agent.yaml", "params.yaml": "params-agent.yaml", "my_agent.py": "my_agent.py",
            "start/dvc.yaml": "stages-start.yaml", "start/params.yaml": "params-start.yaml",
            "start/demonstrations.py": "demonstrations.py",
        },
        "/episodes/\n/start/data/\n/start/models/\n",
    ),
}  # fmt: skip


def make(folder: Path, env_id: str | None = None, example: Example = "environment") -> str:
    """Write the folder of a new project, and return a sentence that says what was made.

    The project has dvc.yaml, params.yaml, an example, a README, and a git and DVC repository. With `env_id`, the id of
    an installed environment, the project trains in that environment and has no example of its own. Otherwise `example`
    says which example is written: an environment (`my_env.py`), the task of a language model (`my_task.py`) or an agent
    (`my_agent.py`). After an error, everything that was written is removed.

    Raises:
        UsageError: the folder is not empty, or `env_id` is given with the example of a language model or agent.
        MissingInputError: DVC, or what language models need, is not installed.
        ParamsError: the environment is unknown or not supported.
        DiskError: a file cannot be written.
        EvopipeError: git or DVC failed.
    """
    need_package("dvc", "pipeline", "new")
    of_text = _OF_TEXT.get(example)
    if of_text is not None:
        need_package("transformers", "language", f"new --{example}")
        if env_id is not None:
            raise UsageError(f"new: --env is for environments: leave out either it or --{example}")
    existed = folder.exists()
    if existed and (folder.is_file() or any(folder.iterdir())):
        what = "is a file" if folder.is_file() else "is not empty"
        raise UsageError(f"new: {folder} {what}; give the name of a new folder")
    if env_id is not None:
        _check_env(env_id)
    files = contents(folder.resolve().name, env_id, example)
    make_folder(folder)
    try:
        for name, text in files.items():
            write_text(folder / name, text)
        named = env_id or (_STUB if of_text is None else of_text.example)
        return f"{folder}: a project for {named}; {_repository(folder)}"
    except BaseException:
        _remove(folder, existed)
        raise


def contents(name: str, env_id: str | None = None, example: Example = "environment") -> dict[str, str]:
    """Return the files of a new project, as a dict of text by path.

    Args:
        name: the project's name.
        env_id: the id of an installed environment; None for an example of its own.
        example: which example is written: of an environment, a language model or an agent.
    """
    if (of_text := _OF_TEXT.get(example)) is not None:
        return {
            "README.md": Template(_text(f"README-{example}.md")).substitute(name=name),
            _REQUIREMENTS: f"evopipe[pipeline,mlflow,language]=={__version__}\n",
            ".gitignore": _text("gitignore") + of_text.ignored,
            ".dvcignore": _text("dvcignore"),
            **{path: _text(file) for path, file in of_text.files.items()},
        }
    stub = env_id is None
    extras = ["pipeline", "mlflow", *filter(None, [env_id and extra_of(env_id)])]
    row = f"| `{_MODULE}` | the environment: replace it by yours; `evopipe env check {_STUB}` tries it |\n"
    readme = Template(_text("README.md")).substitute(name=name, env=env_id or _STUB, environment=row if stub else "")
    dvc, params = _text("stages.yaml"), _text("params.yaml" if stub else "params-installed.yaml")
    files = {
        "README.md": readme,
        _REQUIREMENTS: f"evopipe[{','.join(extras)}]=={__version__}\n",
        "dvc.yaml": dvc if stub else dvc.replace(f"      - {_MODULE}\n", ""),
        "params.yaml": params.replace("ENV_ID", env_id or ""),
        ".gitignore": _text("gitignore"),
        ".dvcignore": _text("dvcignore"),
    }
    return files | ({_MODULE: _text(_MODULE)} if stub else {})


def _text(name: str) -> str:
    """A file of the package; `pipelines/make.py` makes the stages and both params.yaml of the root's."""
    return Path(__file__).with_name("template").joinpath(name).read_text(encoding="utf-8")


# --- checks, git and DVC ----------------------------------------------------------------------------------------------


def _check_env(env_id: str) -> None:
    with opened(EnvConfig(id=env_id)) as env:
        if isinstance(env, TeamEnv):
            raise ParamsError(
                f"new: {env_id} is a team of agents, and a new project begins with DQN, which serves one; make it "
                "without --env and take the blocks `train` and `algos` of a pipeline that trains a team"
            )
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
