"""Training with worker processes and with envpool: the same outs however many, killed wherever, and nothing is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiny import (
    TRAINED,
    Run,
    Starter,
    call,
    checkpoints,
    digests,
    prepared,
    starter,
    wait_for,
    write_params,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

FAST = {"runtime.checkpoint_seconds": 1e-3, "runtime.env_workers": 0, "runtime.learners": 1}
BOTH = 4  # processes at `runtime.env_workers: 2`: the training pool's and the evaluation pool's


@pytest.fixture(scope="module")
def start() -> Iterator[Starter]:
    with starter() as made:
        yield made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What training without workers writes."""
    return trained(prepared(tmp_path_factory.mktemp("alone"), FAST))


def trained(folder: Path) -> dict[str, str]:
    answer = call(folder, "train")
    assert answer.code == 0, answer.err
    assert not checkpoints(folder)
    return digests(folder, TRAINED)


def workers_of(pid: int) -> list[int]:
    """The processes that a process has forked and that run: here its environments' workers alone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
            if int(parent) == pid and state not in "ZX":
                found.append(int(entry.name))
    return found


def gone(pids: list[int]) -> bool:
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if stat[stat.rindex(")") + 2] not in "ZX":
            return False
    return True


def in_the_middle(run: Run, folder: Path, count: int) -> list[int]:
    """Wait until a run has saved; return its workers."""
    assert wait_for(lambda: bool(checkpoints(folder)) and len(workers_of(run.pid)) == count), run.log
    return workers_of(run.pid)


@pytest.mark.parametrize("count", [2, pytest.param("auto", marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_no_result_depends_on_the_number_of_workers(tmp_path: Path, expected: dict[str, str], count: Any) -> None:
    assert trained(prepared(tmp_path, FAST | {"runtime.env_workers": count})) == expected


@pytest.mark.thorough
def test_a_run_killed_with_workers_goes_on_without(tmp_path: Path, start: Starter, expected: dict[str, str]) -> None:
    folder = prepared(tmp_path, FAST | {"runtime.env_workers": 2})
    run = start.start(folder, "train")
    workers = in_the_middle(run, folder, BOTH)
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert wait_for(lambda: gone(workers), 5), "a worker outlived its trainer"
    write_params(folder, FAST)  # another number is no other run
    again = call(folder, "train")
    assert again.code == 0
    assert "goes on at step" in again.err
    assert digests(folder, TRAINED) == expected


@pytest.mark.thorough
def test_a_worker_is_killed(tmp_path: Path, start: Starter, expected: dict[str, str]) -> None:
    folder = prepared(tmp_path, FAST | {"runtime.env_workers": 2})
    run = start.start(folder, "train")
    workers = in_the_middle(run, folder, BOTH)
    os.kill(workers[0], signal.SIGKILL)
    assert run.wait() == 71
    assert f"worker process {workers[0]} was ended by SIGKILL" in " ".join(run.log.split())
    assert gone(workers)
    assert checkpoints(folder)
    assert trained(folder) == expected


@pytest.mark.thorough
def test_ctrl_c_saves_before_anything_else(tmp_path: Path, start: Starter, expected: dict[str, str]) -> None:
    """Whoever hears SIGINT besides the trainer: the workers must go on until it has saved."""
    folder = prepared(tmp_path, FAST | {"runtime.env_workers": 2})
    run = start.start(folder, "train")
    workers = in_the_middle(run, folder, BOTH)
    for pid in (*workers, run.pid):
        os.kill(pid, signal.SIGINT)
    assert run.wait() == 130, run.log
    assert gone(workers)
    assert trained(folder) == expected


@pytest.mark.thorough
def test_sigterm_ends_a_run_whose_environment_hangs(tmp_path: Path, start: Starter) -> None:
    trigger = tmp_path / "trigger"
    hangs = {"env.id": "breaking_envs:Breakable-v0", "env.kwargs": {"trigger": str(trigger), "how": "hangs"}}
    folder = prepared(tmp_path / "a", FAST | hangs | {"train.max_steps": 800})
    trigger.touch()
    run = start.start(folder, "train")
    assert wait_for(trigger.with_suffix(".hung").exists), run.log
    run.send(signal.SIGTERM)
    assert run.wait() == 143, run.log
    said = " ".join(run.log.split())
    assert "did not return within 0.5 seconds after a signal asked to stop" in said
    assert "the same command continues from there" in said
    trigger.unlink()
    write_params(folder, FAST | hangs | {"train.max_steps": 800, "env.step_seconds": 60.0})
    answer = call(folder, "train")  # another limit is no other run
    assert answer.code == 0, answer.err
    assert "goes on at step" in answer.err


@pytest.mark.slow
def test_training_with_envpool_goes_on_bit_for_bit(tmp_path: Path, start: Starter, expected: dict[str, str]) -> None:
    pool = FAST | {"env.backend": "envpool"}
    straight = trained(prepared(tmp_path / "straight", pool))
    assert straight != expected  # another build: it must never be taken silently
    folder = prepared(tmp_path / "killed", pool)
    for _ in range(2):
        run = start.start(folder, "train")
        in_the_middle(run, folder, 0)
        run.send(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
    assert trained(folder) == straight
