"""`signals.py`: stopping at a good moment; whole process trees are in tests/chaos/test_orphans.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from evopipe import signals
from evopipe.signals import StopSignal, watch_ancestors
from tiny import wait_for

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_only_sets_the_flag(signum: signal.Signals) -> None:
    with StopSignal() as stop:
        assert stop.signum is None
        signal.raise_signal(signum)
        assert stop.signum == signum
        signal.raise_signal(signal.SIGTERM)
        assert stop.signum == signum  # The first one decides on the exit code.


def test_second_sigint_raises() -> None:
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stop.signum == signal.SIGTERM


def test_handlers_are_restored_also_after_an_error() -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(signum) for signum in signals]
    with pytest.raises(RuntimeError), StopSignal():
        assert [signal.getsignal(signum) for signum in signals] != before
        raise RuntimeError
    assert [signal.getsignal(signum) for signum in signals] == before


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.signum is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_inert_in_another_thread() -> None:
    seen: list[object] = []

    def work() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopSignal() as stop:
            seen.extend([signal.getsignal(signal.SIGTERM) is before, stop.signum])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, None]


# --- no orphans


@pytest.mark.parametrize(
    "argv",
    [
        ("/venv/bin/python", "/venv/bin/dvc", "repro"),
        ("python3.11", "-m", "dvc", "repro"),
        ("python", "-X", "dev", "/venv/bin/dvc", "exp", "run"),
        ("python", "/site-packages/dvc/__main__.py", "repro"),
        ("/usr/bin/dvc", "repro"),
    ],
)
def test_what_is_dvc(argv: tuple[str, ...]) -> None:
    assert signals.is_dvc(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("/bin/bash", "--noprofile", "--norc", "-c", "dvc repro && echo dvc"),
        ("make", "dvc"),
        ("python", "/home/ann/dvc/tool.py"),
        ("uv", "run", "dvc", "repro"),
        ("vim", "dvc.yaml"),
        (),
    ],
)
def test_what_is_not_dvc(argv: tuple[str, ...]) -> None:
    assert not signals.is_dvc(argv)


def test_command_shells() -> None:
    assert signals.is_command_shell(("/bin/bash", "--noprofile", "--norc", "-c", "python -m evopipe train"))
    assert signals.is_command_shell(("sh", "-c", "x"))
    assert not signals.is_command_shell(("-bash",))
    assert not signals.is_command_shell(("python", "-c", "x"))


@linux
def test_the_end_of_a_process_is_noticed() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = psutil.Process(child.pid)
    assert signals._lives(process)
    child.kill()  # A zombie until it is waited for: dead all the same.
    assert wait_for(lambda: not signals._lives(process), 5)
    child.wait()
    assert not signals._lives(process)


@linux
def test_nothing_is_watched_without_dvc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    watch_ancestors()
    assert not any(thread.name == "evopipe-watch-dvc" for thread in threading.enumerate())


WATCHING = "import time, evopipe.signals as s; s.watch_ancestors(); print('alive', flush=True); time.sleep({})"


def _environment() -> dict[str, str]:
    return {**os.environ, "DVC_STAGE": "train"}


@linux
@pytest.mark.parametrize("own_group", [False, True])
def test_a_variable_set_by_hand_does_no_harm(own_group: bool) -> None:
    """From a script (the program that started it is watched) and from an interactive shell (own process group)."""
    run = subprocess.run(
        [sys.executable, "-c", WATCHING.format(0.3)],
        env=_environment(),
        process_group=0 if own_group else None,
        capture_output=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (0, b"alive\n")


@linux
def test_a_process_that_is_an_orphan_already_stops_at_once() -> None:
    """The shell is in a session of its own and gone before Python has started: as when DVC is killed right away."""
    program = WATCHING.format(20)
    script = f"(sleep 0.2; exec '{sys.executable}' -c \"{program}\" >&2) &"
    shell = subprocess.run(
        ["sh", "-c", script], env=_environment(), start_new_session=True, capture_output=True, timeout=60
    )
    # The orphan holds the pipe, so the call above returned when it was gone: before it could say a word.
    assert shell.stderr == b""
