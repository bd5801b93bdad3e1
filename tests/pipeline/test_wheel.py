"""What is distributed: the source distribution, the wheel, and the wheel at work where nothing of this tree is near."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import evopipe
from installed import Installed, build
from tiny import ROOT, environment, write_params

DOCUMENTS = {
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml",
}  # fmt: skip
"""What of the root a source distribution has beside the package and what is made for it (`PKG-INFO`)."""
TRAINS = """
import evopipe
from evopipe.native import build
assert build.load() is not None
print(evopipe.train("params.yaml", folder=".").summary["generations"])
policy = evopipe.load("models/elite")
print(policy.act([0.0, 0.1, 0.0, -0.1]) in (0, 1), evopipe.__file__)
"""
USES = """
import evopipe
reveal_type(evopipe.train("params.yaml"))
reveal_type(evopipe.load("models/elite"))
evopipe.load(3)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("package"))


def of_git(folder: str) -> set[str]:
    """Files under a folder of this tree that git knows, or would if they were added."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


@pytest.mark.thorough
def test_what_is_distributed(tmp_path: Path) -> None:
    """The package and the documents: no data, no models, no tests, no measurements; a wheel made of the source
    distribution is that of this tree."""
    with tarfile.open(build("sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "tree", filter="data")
    (tree,) = (tmp_path / "tree").iterdir()
    held = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    source = of_git("src/evopipe")
    assert len(source) > 250
    assert "src/evopipe/py.typed" in source
    assert held == source | DOCUMENTS | {"PKG-INFO", ".gitignore"}
    wheels = [build("wheel", tmp_path / name, of) for name, of in (("here", ROOT), ("again", tree))]
    with zipfile.ZipFile(wheels[0]) as here, zipfile.ZipFile(wheels[1]) as again:
        names = set(here.namelist())
        assert {name: here.read(name) for name in names} == {name: again.read(name) for name in again.namelist()}
    code = {name for name in names if PurePosixPath(name).parts[0] == "evopipe"}
    assert code == {name.removeprefix("src/") for name in source}
    assert {PurePosixPath(name).parts[0] for name in names - code} == {f"evopipe-{evopipe.__version__}.dist-info"}


def test_documents_tell_the_packages_version() -> None:
    """The newest version of the changelog, below what is not released yet, with the date that CITATION.cff has."""
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(.+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    version, date = released[0]
    assert version == evopipe.__version__
    assert f"\nversion: {version}\n" in cited
    assert f'\ndate-released: "{date}"\n' in cited


@pytest.mark.thorough
def test_the_wheel_at_work(package: Installed, tmp_path: Path) -> None:
    """It trains with kernels that it compiles itself, its policy loads, and it makes a project."""
    assert package.run(tmp_path, "evopipe", "--version") == (0, f"evopipe {evopipe.__version__}\n", "")
    write_params(tmp_path, {"train.max_steps": 400, "train.evo_steps": 200, "runtime.kernels": "native"})
    (tmp_path / "train.py").write_text(TRAINS)
    done = package.run(tmp_path, "python", "train.py", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.code == 0, done
    generations, acts, where = done.out.split()
    assert (generations, acts) == ("2", "True")
    assert Path(where).is_relative_to(package.site)
    assert [*(tmp_path / "cache/evopipe").rglob("*.so")]
    made = package.run(tmp_path, "evopipe", "new", "mine")
    assert made.code == 0, made
    assert (tmp_path / "mine/requirements.txt").read_text() == f"evopipe[pipeline,mlflow]=={evopipe.__version__}\n"
    assert package.run(tmp_path / "mine", "evopipe", "env", "check", "my_env:Catch-v0").out == "my_env:Catch-v0: ok\n"


@pytest.mark.thorough
def test_a_script_that_uses_the_wheel_is_checked_against_its_types(package: Installed, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(USES)
    words = ["-m", "mypy", "--strict", "--python-executable", str(package.python), "script.py"]
    told: dict[str, Any] = {"cwd": tmp_path, "env": environment(PYTHONPATH=""), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words], check=False, **told)
    result, policy, wrong, _ = (re.sub(r"evopipe\.[a-z_.]+\.(?=[A-Z])", "", line) for line in done.stdout.splitlines())
    assert result == 'script.py:3: note: Revealed type is "Result"'
    assert policy == ('script.py:4: note: Revealed type is "Policy | TeamPolicy | LanguagePolicy | GamePolicy"')
    assert wrong == (
        'script.py:5: error: Argument 1 to "load" has incompatible type "int"; expected "str | Path"  [arg-type]'
    )
