"""What is distributed: the source distribution, the wheel, and the wheel at work where nothing of this tree is near."""

from __future__ import annotations

import os
import re
import shutil
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
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "hatch_build.py",
    "pyproject.toml",
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
KERNELS = """
from evopipe.native import build
try:
    kernels = build.load()
    build.use(kernels)
    print(build.compiler())
except build.NoKernels as error:
    print("none:", error)
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


@pytest.fixture(scope="module")
def with_kernels(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel of a platform, as `[tool.cibuildwheel]` has it built."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    return Installed(tmp_path_factory.mktemp("platform"), EVOPIPE_PREBUILT="1")


@pytest.mark.thorough
def test_a_platforms_wheel_brings_kernels_that_need_no_compiler(with_kernels: Installed, tmp_path: Path) -> None:
    """They train, and to the bits of those that are compiled here; where a compiler is, it is used."""
    (wheel,) = (with_kernels.home / "wheel").glob("*.whl")
    assert re.fullmatch(r"evopipe-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    write_params(tmp_path, {"train.max_steps": 400, "train.evo_steps": 200})
    (tmp_path / "train.py").write_text(TRAINS)
    models = []
    for name, path in (("brought", str(with_kernels.python.parent)), ("compiled", os.environ["PATH"])):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(tmp_path / "params.yaml", folder)
        (folder / "train.py").write_text(TRAINS)
        cache = folder / "cache"
        done = with_kernels.run(folder, "python", "train.py", XDG_CACHE_HOME=str(cache), PATH=path, CC="")
        assert done.code == 0, done
        (library,) = (cache / "evopipe").glob("*.so")
        assert library.name.startswith("wheel-") == (name == "brought")
        models.append((folder / "models/trained/members.safetensors").read_bytes())
    assert models[0] == models[1]


@pytest.mark.thorough
def test_kernels_that_a_wheel_brought_are_used_only_if_they_are_whole(with_kernels: Installed, tmp_path: Path) -> None:
    (library,) = (with_kernels.site / "evopipe/native/prebuilt").glob("*.so")
    (tmp_path / "kernels.py").write_text(KERNELS)
    alone = {"PATH": str(with_kernels.python.parent), "CC": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    whole = library.read_bytes()
    assert with_kernels.run(tmp_path, "python", "kernels.py", **alone).out.startswith(("GCC", "clang", "Clang"))
    (kept,) = (tmp_path / "cache/evopipe").glob("*.so")
    try:
        kept.write_bytes(whole[:-1])  # what was kept is damaged: it is made anew of what the wheel brought
        assert not with_kernels.run(tmp_path, "python", "kernels.py", **alone).out.startswith("none")
        assert kept.read_bytes() == whole
        for damaged in (whole[: len(whole) // 2], whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:]):
            library.write_bytes(damaged)
            told = with_kernels.run(tmp_path, "python", "kernels.py", **alone).out
            assert told.startswith("none: no C compiler was found")
        library.write_bytes(whole)
        source = with_kernels.site / "evopipe/native/value.c"
        text = source.read_bytes()
        source.write_bytes(text + b"\n")  # other sources than those that they were made of
        assert with_kernels.run(tmp_path, "python", "kernels.py", **alone).out.startswith("none: no C compiler")
        source.write_bytes(text)
    finally:
        library.write_bytes(whole)


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
