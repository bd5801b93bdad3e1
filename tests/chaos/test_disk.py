"""Disks that are full or read-only: exit 74 and a sentence, and what was saved before is still there."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from tiny import call, checkpoints, digests, environment

SHORT = {"train.max_steps": 800, "runtime.checkpoint_seconds": 1e-3}
EVOPIPE = f"{sys.executable} -m evopipe"


def prepared(folder: Path, overrides: dict[str, Any] | None = None) -> Path:
    return tiny.prepared(folder, SHORT | (overrides or {}))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the run writes where there is space enough."""
    folder = prepared(tmp_path_factory.mktemp("enough"))
    assert call(folder, "train").code == 0
    return digests(folder)


def shell(script: str, folder: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*wrapper, "sh", "-c", script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def mounted(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a mount namespace that vanishes with it; skip where mounting is not permitted."""
    if shutil.which("unshare") is None:
        pytest.skip("mounting needs unshare")
    wrapper = ("unshare", "--mount", "--map-root-user")
    if shell("mount -t tmpfs tmpfs .", folder, *wrapper).returncode:
        pytest.skip("mounting is not permitted here")
    return shell(script, folder, *wrapper)


@pytest.mark.thorough
def test_the_disk_is_full_while_saving(tmp_path: Path, expected: dict[str, str]) -> None:
    """The replay memory grows until a checkpoint does not fit. With more space the run goes on from the one before."""
    (tmp_path / "disk").mkdir()
    prepared(tmp_path / "home")
    script = f"""
    mount -t tmpfs -o size=230k tmpfs disk && cp -r home/. disk && cd disk
    {EVOPIPE} train
    echo "exit $?"
    ls .evopipe/train/*/checkpoints
    cp -r . ../home
    """
    done = mounted(script, tmp_path)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:2] == ["exit", "74"], done.stderr
    assert words[2:]
    assert all(word.startswith("step-") for word in words[2:]), "a half-written checkpoint was left"
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert ": cannot be written, the disk is full (No space left on device): free some space and run again" in error
    answer = call(tmp_path / "home", "train")
    assert answer.code == 0, answer.err
    assert "goes on at step" in answer.err
    assert digests(tmp_path / "home") == expected


@pytest.mark.thorough
def test_the_file_size_limit_is_reached_while_saving(tmp_path: Path, expected: dict[str, str]) -> None:
    prepared(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, limits[1]))
    try:
        answer = call(tmp_path, "train")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert answer.code == 74
    assert "cannot be written, the file would exceed the size limit" in answer.err
    assert "raise the limit (`ulimit -f`) and run again; what was saved before is unchanged" in answer.err
    assert checkpoints(tmp_path)
    answer = call(tmp_path, "train")
    assert answer.code == 0, answer.err
    assert "goes on at step" in answer.err
    assert digests(tmp_path) == expected


@pytest.mark.thorough
def test_outs_do_not_fit(tmp_path: Path, expected: dict[str, str]) -> None:
    """Nothing is lost between training and its outs: the checkpoint goes only when they are written."""
    prepared(tmp_path, {"runtime.checkpoint_seconds": 60.0})
    for out in ("models/trained", "reports"):
        (tmp_path / out).write_text("in the way")
        answer = call(tmp_path, "train")
        assert answer.code == 74
        assert "cannot be written, a part of this path is a file" in answer.err
        (tmp_path / out).unlink()
    answer = call(tmp_path, "train")
    assert answer.code == 0
    assert "goes on at step 800\n" in answer.err
    assert digests(tmp_path) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("population", marks=pytest.mark.slow),
        "train",
        pytest.param("evaluate", marks=pytest.mark.slow),
        pytest.param("export", marks=pytest.mark.slow),
    ],
)
def test_the_folder_is_read_only(tmp_path: Path, stage: str) -> None:
    folder = prepared(tmp_path / "home", {"train.max_steps": 400})
    (tmp_path / "disk").mkdir()
    if stage in ("evaluate", "export"):
        assert call(folder, "train").code == 0
    if stage == "export":
        assert call(folder, "evaluate").code == 0
    script = f"""
    mount -t tmpfs tmpfs disk && cp -r home/. disk && mount -o remount,ro disk && cd disk || exit 1
    {EVOPIPE} {stage}
    """
    done = mounted(script, tmp_path)
    assert done.returncode == 74, done.stderr
    assert "ead-only file system" in done.stderr
    assert "Traceback" not in done.stderr
