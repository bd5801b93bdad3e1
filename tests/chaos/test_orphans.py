"""`dvc repro` killed at any instant leaves no orphan: real DVC, real process trees, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the watch works on Linux")

STAGE = """\
import os, sys, time
from pathlib import Path
from evopipe.signals import StopSignal, watch_ancestors

with StopSignal() as stop:
    watch_ancestors()
    Path("pid").write_text(str(os.getpid()))
    Path("beating").touch()
    until = time.monotonic() + float(sys.argv[1])
    while stop.signum is None and time.monotonic() < until:
        time.sleep(0.01)
    Path("seen").write_text(str(stop.signum))
Path("out").write_text("done")
sys.exit(0 if stop.signum is None else 128 + stop.signum)
"""

# A shell that becomes the command, and one that stays in between because there is more to do after it.
COMMANDS = ["{python} stage.py {seconds}", "{python} stage.py {seconds} && echo after"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    source = Path(__file__).resolve().parents[2] / "src"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DVC")}
    return {**kept, "PYTHONPATH": str(source), "DVC_NO_ANALYTICS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def repository(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[[str, float], Path]]:
    def make(command: str, seconds: float) -> Path:
        dvc(tmp_path, environment, "init", "--no-scm", "-q").wait(60)
        (tmp_path / "stage.py").write_text(STAGE)
        cmd = command.format(python=sys.executable, seconds=seconds)
        (tmp_path / "dvc.yaml").write_text(f"stages:\n  loop:\n    cmd: {cmd}\n    outs: [out]\n")
        return tmp_path

    yield make
    pid = _number(tmp_path / "pid")
    if pid is not None and _runs(pid):  # The test failed: do not leave behind what it was looking for.
        os.kill(pid, signal.SIGKILL)


def dvc(folder: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _number(path: Path) -> int | None:
    text = path.read_text() if path.exists() else ""
    return int(text) if text.isdigit() else None


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("command", COMMANDS, ids=["direct", "shell"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.thorough
def test_the_stage_stops_when_dvc_is_killed(
    repository: Callable[[str, float], Path], environment: dict[str, str], command: str, signum: signal.Signals
) -> None:
    folder = repository(command, 30)
    repro = dvc(folder, environment, "repro")
    assert _wait((folder / "beating").exists, 60)
    pid = _number(folder / "pid")
    assert pid is not None
    time.sleep(0.1)
    assert not (folder / "seen").exists()  # Nothing fires while all is well.
    repro.send_signal(signum)
    repro.wait(10)
    assert _wait(lambda: not _runs(pid), 3), "the stage outlived dvc"
    assert (folder / "seen").read_text() == str(int(signal.SIGTERM))


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS, ids=["direct", "shell"])
def test_the_stage_ends_by_itself_when_dvc_lives(
    repository: Callable[[str, float], Path], environment: dict[str, str], command: str
) -> None:
    folder = repository(command, 0.7)
    assert dvc(folder, environment, "repro").wait(60) == 0
    assert (folder / "seen").read_text() == "None"
    assert (folder / "out").read_text() == "done"


@pytest.mark.thorough
def test_dvc_killed_while_the_stage_is_starting(
    repository: Callable[[str, float], Path], environment: dict[str, str]
) -> None:
    """The instant before anything is watched: Python is still importing when its parents are gone already."""
    folder = repository("touch spawned && {python} stage.py {seconds} && echo after", 30)
    repro = dvc(folder, environment, "repro")
    assert _wait((folder / "spawned").exists, 60)
    repro.kill()
    repro.wait(10)
    # Either it never came up, or it stopped as soon as it had.
    _wait((folder / "beating").exists, 3)
    pid = _number(folder / "pid")
    assert pid is None or _wait(lambda: not _runs(pid), 3), "the stage outlived dvc"
