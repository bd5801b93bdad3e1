"""What a stage that was killed left half written goes with the next run of it, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evopipe.storage import files
from tiny import Starter, environment, starter, write_params


@pytest.fixture(scope="module")
def start() -> Iterator[Starter]:
    with starter("evopipe.stages.fetch") as made:
        yield made


def left(folder: Path) -> list[Path]:
    return [*folder.glob("data/.tmp-*"), *folder.glob("models/.tmp-*"), *folder.glob("reports/.tmp-*")]


def killed_while_writing(start: Starter, folder: Path, stage: str) -> list[Path]:
    """Kill a stage as soon as something half written can be seen, until something stays."""
    for _ in range(50):
        run = start.start(folder, stage)
        while os.path.exists(f"/proc/{run.pid}") and not left(folder):
            pass
        run.send(signal.SIGKILL)
        if run.wait() == -signal.SIGKILL and left(folder):
            return left(folder)
    raise AssertionError("no kill came in time")


@pytest.mark.parametrize("stage", ["fetch", "population"])
@pytest.mark.thorough
def test_what_a_killed_stage_left_goes_with_its_next_run(start: Starter, tmp_path: Path, stage: str) -> None:
    write_params(tmp_path, {"population.size": 24})
    assert killed_while_writing(start, tmp_path, stage)
    again = start.start(tmp_path, stage)
    assert again.wait() == 0, again.log
    assert left(tmp_path) == []


def test_what_may_be_of_a_living_writer_or_of_nobody_stays(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        living = files.temporary_beside(tmp_path / "x").name.replace(f"-{os.getpid()}-", f"-{sleeper.pid}-")
        kept = [living, files.temporary_beside(tmp_path / "x").name, ".tmp-mine", ".tmp-1-ab", ".tmp-0000000000-1-ab"]
        for name in kept:
            (tmp_path / name).mkdir()
        script = "from sys import argv; from pathlib import Path; from evopipe.storage import files; "
        script += "print(files.temporary_beside(Path(argv[1])))"
        ran = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "x")],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        dead = Path(ran.stdout.strip())
        dead.write_bytes(b"half")
        files.write_bytes(tmp_path / "out", b"whole")
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "out"])
        sleeper.kill()
