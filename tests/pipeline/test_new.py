"""`evopipe new`: a project of one's own, from the installed package, offline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import evopipe
from evopipe.new import project
from evopipe.new.project import contents
from evopipe.params.load import load_params
from evopipe.schema.read import parse_yaml
from installed import Installed
from tiny import ROOT, call, environment

ROOT_STAGES: dict[str, Any] = parse_yaml((ROOT / "dvc.yaml").read_text(), "dvc.yaml").data["stages"]
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
FILES = {".dvcignore", ".gitignore", "README.md", "dvc.yaml", "my_env.py", "params.yaml", "requirements.txt"}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def git(folder: Path, *words: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run([*GIT, *words], cwd=folder, env=kept, capture_output=True, text=True, check=True).stdout


# --- what is written --------------------------------------------------------------------------------------------------


def test_a_new_project(tmp_path: Path) -> None:
    answer = call(tmp_path, "new", "my first project")
    assert answer == (
        0,
        "my first project: a project for my_env:Catch-v0; it is a git and DVC repository\n"
        "next: cd 'my first project' && dvc repro\n",
        "",
    )
    folder = tmp_path / "my first project"
    assert files(folder) == FILES
    assert (folder / "README.md").read_text().startswith("# my first project\n")
    assert (folder / "requirements.txt").read_text() == f"evopipe[pipeline,mlflow]=={evopipe.__version__}\n"
    assert set(git(folder, "diff", "--cached", "--name-only").split()) >= FILES
    assert git(folder, "status", "--porcelain", "--untracked-files").count("??") == 0
    assert load_params(str(folder / "params.yaml")).env.id == "my_env:Catch-v0"  # it is complete, or this would raise
    for text in contents("x").values():
        assert "$" not in text.replace("${", "")
        assert str(ROOT) not in text


@pytest.mark.thorough
def test_its_example_passes_the_check(tmp_path: Path) -> None:
    assert call(tmp_path, "new", "p").code == 0
    run = subprocess.run(
        [sys.executable, "-m", "evopipe", "env", "check", "my_env:Catch-v0"],
        cwd=tmp_path / "p",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "my_env:Catch-v0: ok\n", "")


def test_its_pipeline_is_the_root_pipeline() -> None:
    """Stage by stage, but for what stands for the code."""
    made: dict[str, Any] = parse_yaml(contents("x")["dvc.yaml"], "dvc.yaml").data
    assert list(made["stages"]) == list(ROOT_STAGES)
    for name, stage in made["stages"].items():
        root = ROOT_STAGES[name]
        assert {key: value for key, value in stage.items() if key != "deps"} == {
            key: value for key, value in root.items() if key != "deps"
        }
        code = [dep for dep in root["deps"] if dep.startswith("src/evopipe")]
        own = ["requirements.txt"] + ["my_env.py"] * (name != "buffer")
        assert stage["deps"] == [dep for dep in root["deps"] if dep not in code] + own
        # What steps an environment at the root depends on the module of one here.
        makes = any(dep.startswith("src/evopipe/envs") or dep == "src/evopipe/policies/play.py" for dep in code)
        assert makes or name == "buffer"
    assert "src/" not in contents("x")["dvc.yaml"]
    assert made["plots"] == parse_yaml((ROOT / "dvc.yaml").read_text(), "dvc.yaml").data["plots"]


def test_parameters_keep_their_comments_and_places() -> None:
    root = (ROOT / "params.yaml").read_text()
    made = contents("x")["params.yaml"]
    assert len(made.splitlines()) == len(root.splitlines())
    for a, b in zip(root.splitlines(), made.splitlines(), strict=True):
        assert a.partition(":")[0] == b.partition(":")[0]
        assert a.partition("  #")[2] == b.partition("  #")[2]


def test_it_is_the_packages_own_whatever_the_working_tree_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dvc exp run -S` rewrites params.yaml of the tree that evopipe is installed from."""
    before = contents("x"), contents("x", "CartPole-v1")
    package = tmp_path / "src/evopipe/new"
    shutil.copytree(Path(project.__file__).parent, package)
    (tmp_path / "params.yaml").write_text("env: {id: Other-v0}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.setattr(project, "__file__", str(package / "project.py"))
    assert (contents("x"), contents("x", "CartPole-v1")) == before


@pytest.mark.thorough
def test_an_installed_environment_needs_no_module(tmp_path: Path) -> None:
    assert call(tmp_path, "new", "p", "--env", "CartPole-v1", "--quiet") == (0, "", "")
    assert files(tmp_path / "p") == FILES - {"my_env.py"}
    assert load_params(str(tmp_path / "p/params.yaml")).env.id == "CartPole-v1"
    assert not [name for name, text in contents("x", "CartPole-v1").items() if "my_env" in text]
    needs = f"evopipe[pipeline,mlflow,box2d]=={evopipe.__version__}\n"
    assert contents("x", "LunarLander-v3")["requirements.txt"] == needs


TEXT = {
    "language": {".dvcignore", ".gitignore", "README.md", "dvc.yaml", "my_task.py", "params.yaml", "requirements.txt"},
    "agent": {".dvcignore", ".gitignore", "README.md", "dvc.yaml", "my_agent.py", "params.yaml", "requirements.txt",
              "start/demonstrations.py", "start/dvc.yaml", "start/params.yaml"},
}  # fmt: skip


@pytest.mark.parametrize("kind", TEXT)
@pytest.mark.thorough
def test_a_new_project_of_a_language_model(kind: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    example = {"language": "my_task:Backwards", "agent": "my_agent:make"}[kind]
    answer = call(tmp_path, "new", "p", f"--{kind}")
    assert answer == (
        0, f"p: a project for {example}; it is a git and DVC repository\nnext: cd p && dvc repro\n", ""
    )  # fmt: skip
    folder = tmp_path / "p"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - TEXT[kind] <= {
        str(path.relative_to(folder)) for hidden in (".git", ".dvc") for path in (folder / hidden).rglob("*")
    }
    assert all((folder / name).is_file() for name in TEXT[kind])
    extras = f"evopipe[pipeline,mlflow,language]=={evopipe.__version__}\n"
    assert (folder / "requirements.txt").read_text() == extras
    for text in contents("x", example=kind).values():
        assert "$" not in text.replace("${", "")
        assert "src/" not in text
        assert str(ROOT) not in text
    if kind == "language":
        assert load_params(str(folder / "params.yaml")).language.task == example
        made: dict[str, Any] = parse_yaml((folder / "dvc.yaml").read_text(), "dvc.yaml").data
        assert list(made["stages"]) == list(ROOT_STAGES)
        for name, stage in made["stages"].items():
            assert ("my_task.py" in stage["deps"]) == (name != "report")
            assert "requirements.txt" in stage["deps"]
    else:
        assert load_params(str(folder / "start/params.yaml")).language.task == "demonstrations:Demonstrations"


def test_kinds_of_projects_exclude_each_other(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    both = call(tmp_path, "new", "p", "--language", "--agent")
    assert both == (64, "", "error: new: --language and --agent are two kinds of project: give one of them\n")
    env = call(tmp_path, "new", "p", "--agent", "--env", "CartPole-v1")
    assert env == (64, "", "error: new: --env is for environments: leave out either it or --agent\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEXT)
def test_a_project_of_a_language_model_learns(kind: Any, tmp_path: Path) -> None:
    """By `dvc repro`, without a network, from the installed package; a second time nothing runs."""
    pytest.importorskip("transformers")
    package = Installed(tmp_path / "package")
    assert package.run(tmp_path, "evopipe", "new", "p", f"--{kind}").code == 0
    folder, offline = (
        tmp_path / "p",
        {"HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9", "OMP_NUM_THREADS": "1"},
    )
    answer = package.run(folder, "python", "-m", "dvc", "repro", **offline)
    assert answer.code == 0, answer
    evaluation = json.loads((folder / "reports/evaluation.json").read_text())
    if kind == "language":
        assert evaluation["base"]["chance"] <= 0.01
        assert evaluation["elite"]["chance"] >= 0.5
        assert (folder / "reports/report.html").exists()
    else:
        assert evaluation["base"]["mean"] <= 0.7
        assert evaluation["elite"]["mean"] >= 0.9
        shown = package.run(folder, "evopipe", "agent", "show", "--no-open")
        assert shown == (0, "reports/episodes.html: written\n", "")
        assert "by-advantage" in (folder / "reports/episodes.html").read_text()
    again = package.run(folder, "python", "-m", "dvc", "repro", **offline)
    assert again.code == 0
    assert "Running stage" not in again.out


# --- where it is put --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_empty_folder_will_do_and_a_full_one_will_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    assert call(tmp_path / "empty", "new", ".").code == 0
    assert (tmp_path / "empty/README.md").read_text().startswith("# empty\n")
    refused = "error: new: full is not empty; give the name of a new folder\n"
    assert call(tmp_path, "new", "full") == (64, "", refused)
    assert call(tmp_path, "new", "file") == (64, "", "error: new: file is a file; give the name of a new folder\n")
    assert files(tmp_path / "full") == {"x"}


def test_an_environment_that_cannot_be_used_leaves_nothing(tmp_path: Path) -> None:
    assert call(tmp_path, "new", "p", "--env", "CartPol-v1").code == 65
    assert call(tmp_path, "new", "p", "--env", "Pendulum-v1").code == 65
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_inside_other_repositories(tmp_path: Path) -> None:
    """It joins a git repository, and a DVC repository; what the outer one ignores is on its own."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("/build\n")
    answer = call(tmp_path, "new", "p")
    assert answer.out.startswith(
        f"p: a project for my_env:Catch-v0; it is a DVC project inside the git repository {tmp_path}"
    )
    assert (tmp_path / "p/.dvc/config").is_file()
    assert not (tmp_path / "p/.git").exists()
    assert "it belongs to the git and DVC repository" in call(tmp_path / "p", "new", "q").out
    assert not (tmp_path / "p/q/.dvc").exists()
    assert "it is a git and DVC repository" in call(tmp_path, "new", "build/p").out


@pytest.mark.thorough
def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = call(tmp_path, "new", "p")
    assert answer.code == 0, answer
    assert "git was not found" in answer.out
    assert "no_scm" in (tmp_path / "p/.dvc/config").read_text()


def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin/git"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'no luck' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}{os.pathsep}{os.environ['PATH']}")
    answer = call(tmp_path, "new", "p")
    assert answer == (1, "", "error: new: `git init` failed: no luck; nothing was left behind\n")
    assert not (tmp_path / "p").exists()


# --- as a package -----------------------------------------------------------------------------------------------------


def ran(package: Installed, folder: Path) -> list[str]:
    """Run `dvc repro`; return the stages whose commands ran."""
    answer = package.run(folder, "python", "-m", "dvc", "repro")
    assert answer.code == 0, answer
    return [stage for stage in ROOT_STAGES if f"Running stage '{stage}'" in answer.out]


@pytest.mark.slow
def test_a_project_with_the_installed_package(tmp_path: Path) -> None:
    """From the wheel to a verified commit: it learns, reruns what an edit affects, plays, and gives the same again."""
    package = Installed(tmp_path / "package")
    where = package.run(tmp_path, "evopipe", "new", "my project")
    assert where.code == 0, where
    folder = tmp_path / "my project"
    assert package.run(folder, "evopipe", "env", "check", "my_env:Catch-v0").out == "my_env:Catch-v0: ok\n"
    assert ran(package, folder) == list(ROOT_STAGES)
    assert ran(package, folder) == []
    evaluation = json.loads((folder / "reports/evaluation.json").read_text())
    assert evaluation["elite"]["mean"] >= 19.0  # of 20: the example is learned
    assert "git" not in git(folder, "status", "--porcelain", "--", "data", "models")

    played = package.run(folder, "evopipe", "play", "--trust", "--gif", "elite.gif", "--seed", "3")
    assert played.code == 0, played
    assert "my_env:Catch-v0: mean return " in played.out
    assert (folder / "elite.gif").read_bytes().startswith(b"GIF89a")

    module = folder / "my_env.py"
    module.write_text(module.read_text() + "\n# an edit that changes nothing\n")
    # Their outs are the same again, so that nothing that depends on those alone reruns.
    assert ran(package, folder) == [name for name in ROOT_STAGES if name != "buffer"]
    version = (folder / "requirements.txt").read_text()
    (folder / "requirements.txt").write_text("evopipe==0\n")
    assert ran(package, folder) == list(ROOT_STAGES)
    (folder / "requirements.txt").write_text(version)
    assert ran(package, folder) == []  # DVC's run cache knows it

    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first results")
    verified = package.run(folder, "evopipe", "verify", "--jobs", "2")
    assert verified.code == 0, verified
