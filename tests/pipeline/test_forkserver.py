"""The fork server: stages under DVC are forks of one process; what they write, say and end with is as without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from evopipe import forkserver
from tiny import TRAINED, checkpoints, digests, environment, wait_for, write_params

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has what it needs"),
    pytest.mark.thorough,
]

DVC = """\
import json, os, signal, subprocess, sys, time

signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC does while a stage runs
told = []
for stage in sys.argv[1:]:
    process = subprocess.Popen(
        f"{sys.executable} -m evopipe {stage}", shell=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "DVC_STAGE": stage}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    open("command.pid", "w").write(str(process.pid))
    out, err = process.communicate()
    told.append([process.returncode, out, err])
open("told.json", "w").write(json.dumps(told))
"""
"""Runs stages as DVC does: itself by this name, and each by a shell."""
LONG: dict[str, Any] = {"train.max_steps": 60_000, "train.evo_steps": 1000, "runtime.checkpoint_seconds": 0.05}


def dvc(folder: Path, stages: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
    """Begin what stands for DVC in a folder."""
    (folder / "dvc").write_text(DVC)
    return subprocess.Popen(
        [sys.executable, str(folder / "dvc"), *stages], cwd=folder, env=environment(**{"EVOPIPE_FORKS": "1", **more})
    )


def ran(folder: Path, stages: Sequence[str], **more: str) -> list[tuple[int, str, str]]:
    """Return the exit code of each stage, and what it said."""
    assert dvc(folder, stages, **more).wait(300) == 0
    return [tuple(each) for each in json.loads((folder / "told.json").read_text())]


def servers(folder: Path) -> list[psutil.Process]:
    """Return the servers whose first command was run in a folder and has ended: processes there that lead a session and
    are no helpers of another one there."""
    found = []
    for process in psutil.process_iter():
        try:
            parent = process.parent()
            adopted = parent is None or Path(parent.cwd()) != folder
            if Path(process.cwd()) == folder and os.getsid(process.pid) == process.pid and adopted:
                found.append(process)
        except (psutil.Error, OSError):
            pass
    return found


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def trained_by_a_fork(folder: Path) -> tuple[subprocess.Popen[bytes], int, psutil.Process]:
    """Begin a long training; return DVC, the command and the server once there is a checkpoint."""
    write_params(folder, LONG)
    (folder / ".dvc").mkdir(exist_ok=True)
    running = dvc(folder, ["population", "train"])
    assert wait_for(lambda: bool(checkpoints(folder)), 120)
    (server,) = servers(folder)
    return running, int((folder / "command.pid").read_text()), server


def test_stages_are_those_that_run_alone(tmp_path: Path) -> None:
    """The same files, words and exit codes; the server is one, and ends with DVC."""
    found = {}
    for forks in ("1", "0"):
        folder = tmp_path / forks
        folder.mkdir()
        write_params(folder)
        # `export` lacks an input: evaluation comes later here.
        stages = ["population", "-q train", "export", "evaluate", "export", "-q report", "nothing"]
        found[forks] = ran(folder, stages, EVOPIPE_FORKS=forks)
        assert wait_for(lambda folder=folder: not servers(folder), 10)
    assert [code for code, _, _ in found["1"]] == [0, 0, 66, 0, 0, 0, 64]
    assert found["1"] == found["0"]
    assert found["1"][2][2].startswith("error: reports/evaluation.json: not there")
    outs = (*TRAINED, "reports/evaluation.json", "reports/report.html", "models/elite/policy.safetensors")
    assert digests(tmp_path / "1", outs) == digests(tmp_path / "0", outs)


def test_a_fork_does_the_work_and_has_the_commands_arguments(tmp_path: Path) -> None:
    running, command, server = trained_by_a_fork(tmp_path)
    (fork,) = server.children()
    assert fork.pid != command
    assert psutil.Process(command).cpu_times().user < 1.0
    assert server.cmdline()[-1] == "population"  # whose command began it
    os.kill(command, signal.SIGTERM)
    assert running.wait(60) == 0
    (population, _, _), (train, _, said) = json.loads((tmp_path / "told.json").read_text())
    assert (population, train) == (0, 143)
    assert "saved" in said
    assert wait_for(lambda: is_gone(fork.pid) and is_gone(server.pid), 10)


def test_a_second_interrupt_is_passed_on_too(tmp_path: Path) -> None:
    running, command, _ = trained_by_a_fork(tmp_path)
    os.kill(command, signal.SIGINT)
    assert running.wait(60) == 0
    assert json.loads((tmp_path / "told.json").read_text())[1][0] == 130


def test_a_command_that_is_killed_takes_its_fork_along(tmp_path: Path) -> None:
    """At once: the next command is not refused because another one writes."""
    running, command, server = trained_by_a_fork(tmp_path)
    (fork,) = server.children()
    os.kill(command, signal.SIGKILL)
    assert running.wait(60) == 0
    assert wait_for(lambda: is_gone(fork.pid), 10)
    assert json.loads((tmp_path / "told.json").read_text())[1][0] == -signal.SIGKILL


def test_dvc_that_is_killed_takes_all_along(tmp_path: Path) -> None:
    """The fork saves first."""
    running, command, server = trained_by_a_fork(tmp_path)
    (fork,) = server.children()
    running.kill()
    running.wait(60)
    assert wait_for(lambda: all(map(is_gone, (command, fork.pid, server.pid))), 30)


def test_a_fork_that_is_killed_ends_its_command_in_the_same_way(tmp_path: Path) -> None:
    running, _, server = trained_by_a_fork(tmp_path)
    (fork,) = server.children()
    fork.kill()
    assert running.wait(60) == 0
    assert json.loads((tmp_path / "told.json").read_text())[1][0] == -signal.SIGKILL


def test_without_dvc_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_STAGE", "train")
    monkeypatch.setenv("EVOPIPE_FORKS", "1")
    assert forkserver.run(["train"]) is None  # pytest is its parent, or a shell
    monkeypatch.delenv("DVC_STAGE")
    assert forkserver.run(["train"]) is None


def test_other_code_or_another_environment_has_a_server_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = psutil.Process()
    key = forkserver._key(here)
    monkeypatch.setenv("DVC_EXP_NAME", "another")
    assert forkserver._key(here) == key
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert forkserver._key(here) != key
    (tmp_path / "module.py").write_text("")
    stated = list(forkserver._stated(tmp_path))
    (tmp_path / "module.py").write_text("x = 1")
    assert list(forkserver._stated(tmp_path)) != stated
