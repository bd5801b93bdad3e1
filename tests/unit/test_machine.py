"""`machine.py`: threads, device, and what results depend on."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from evopipe import searchers
from evopipe.errors import ParamsError
from evopipe.machine import configure, fingerprint, git_revision
from evopipe.native import build
from evopipe.params.search import SearchConfig
from evopipe.schema.runtime import RuntimeConfig


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_configure_sets_threads_whatever_the_environment_says(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert configure(RuntimeConfig(device="cpu", threads=2)) == torch.device("cpu")
    assert torch.get_num_threads() == 2
    configure(RuntimeConfig(device="cpu", threads=1))  # Again, after work was done: no error.
    assert torch.get_num_threads() == 1


def test_configure_auto_takes_what_is_there(threads: None) -> None:
    device = configure(RuntimeConfig(device="auto"))
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert torch.empty(1, device=device).device == device


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_configure_refuses_a_device_that_is_not_there(threads: None) -> None:
    with pytest.raises(ParamsError, match=r"^runtime\.device: 'cuda' was asked for, but torch sees no CUDA") as caught:
        configure(RuntimeConfig(device="cuda"))
    assert caught.value.exit_code == 65


def test_fingerprint_is_stable_and_tells_no_host() -> None:
    told = fingerprint()
    assert told == fingerprint()
    assert told["torch"] == torch.__version__ or told["torch"] in torch.__version__
    assert told["threads"] == torch.get_num_threads()
    assert told["device"] == "cpu"
    assert {"python", "numpy", "gymnasium", "platform", "cpu", "cpu_capability"} <= told.keys()
    assert os.uname().release not in str(told)


def test_fingerprint_names_the_packages_that_a_search_computes_with() -> None:
    """Of those that it uses alone: another version of them may choose other values."""
    pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    used = {
        ("tournament", "tpe"): (),
        ("halving", "random"): (),
        ("halving", "tpe"): ("optuna",),
        ("random", "gp"): ("optuna", "scipy"),
        ("pb2", "tpe"): ("scikit-learn", "scipy"),
    }
    for (strategy, proposer), packages in used.items():
        search = SearchConfig(strategy=strategy, proposer=proposer, budget=10**6)
        assert searchers.packages(search) == packages
        told = fingerprint(packages=packages)
        assert {name: told[name] for name in packages} == {name: version(name) for name in packages}
        assert told.keys() - fingerprint().keys() == {*packages}


def test_fingerprint_names_what_compiled_the_kernels() -> None:
    """Another compiler, or version of one, may round otherwise."""
    assert fingerprint()["compiler"] is None
    build.use(build.load())
    told = fingerprint()
    assert told["kernels"] == "native"
    assert re.fullmatch(r"(GCC|.*[Cc]lang) \d+\.\d+.*", told["compiler"])


def _git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_git_revision_of_a_real_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_revision(tmp_path) is None
    _git(tmp_path, "init", "-q")
    assert git_revision(tmp_path) is None  # No commit yet.
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_text("x")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    head = _git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "sub" / "file").write_text("dirty")
    assert git_revision(tmp_path / "sub") == head
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert git_revision(tmp_path) == head, "the repository is another user's, as in a container"


def test_there_is_no_revision_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_revision(Path(__file__).parent) is None
