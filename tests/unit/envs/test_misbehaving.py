"""Environments that do to their process what none should: a sentence that names the row, wherever they live."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import worker_envs
from evopipe import parallel, watchdog
from evopipe.envs import make
from evopipe.envs.check import check
from evopipe.envs.make import make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed
from evopipe.parallel import can_help
from evopipe.schema.env import EnvConfig
from evopipe.signals import StopSignal
from evopipe.watchdog import Hung, Watchdog

LEFT = 0


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.skipif(not can_help(), reason="needs fork and eventfd"))])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with Workers(request.param) as made:
        yield made


def odd(name: str, seconds: float = 600.0, **kwargs: Any) -> EnvConfig:
    values = {"id": f"worker_envs:{name}-v0", "kwargs": kwargs, "step_seconds": seconds}
    return EnvConfig.model_validate(values)


def started(cfg: EnvConfig, workers: Workers | None = None, rows: int = 2) -> EnvPool:
    pool = EnvPool(cfg, rows, workers=workers)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SysExit", "step() raised SystemExit: enough"),
        ("Leaves", "step() raised SystemExit: os._exit(0)"),
        ("Mute", "step() raised Unspeakable: its text cannot be read, for __str__ raised RuntimeError"),
    ],
)
def test_one_that_exits_or_cannot_be_quoted_is_told_with_its_row(name: str, said: str, workers: Workers) -> None:
    pool = started(odd(name, when=1), workers)
    with pytest.raises(EnvironmentFailed) as failed:
        pool.step([LEFT] * 2)
    where = f"training environment 'worker_envs:{name}-v0' (row 0, episode seed 0, step 1): "
    assert str(failed.value) == where + said


def test_a_reward_that_no_float_holds_is_a_broken_row(workers: Workers) -> None:
    step = started(odd("Googol", when=1), workers).step([LEFT] * 2)
    assert step.broken.tolist() == [True, True]
    assert step.reward.tolist() == [np.inf, np.inf]


def test_the_working_folder_stays_and_a_failing_close_harms_nothing(tmp_path: Path, workers: Workers) -> None:
    os.chdir(tmp_path)
    pool = started(odd("Moves"), workers)
    pool.step([LEFT] * 2)
    pool.close()
    assert Path.cwd() == tmp_path


def test_an_import_that_exits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, line in (("exits_early", "import sys; sys.exit(0)"), ("leaves_early", "import os; os._exit(0)")):
        (tmp_path / f"{name}.py").write_text(line)
        with pytest.raises(EnvironmentFailed, match=f"env.id: importing '{name}' raised SystemExit: "):
            make_env(EnvConfig(id=f"{name}:X-v0"))


def test_one_that_hangs_is_ended(workers: Workers) -> None:
    pool, began = started(odd("Hangs", seconds=0.1), workers), time.monotonic()
    with pytest.raises(EnvironmentFailed) as failed:
        pool.step([LEFT] * 2)
    assert str(failed.value).endswith(
        "(row 0, episode seed 0, step 1): step() did not return within 0.1 seconds (env.step_seconds)"
    )
    assert time.monotonic() - began < 10


@pytest.mark.skipif(not can_help(), reason="needs fork and eventfd")
def test_a_worker_that_holds_pythons_lock_for_ever_is_ended() -> None:
    with Workers(1) as workers:
        pool = started(odd("Deaf", seconds=0.1), workers)
        pid = pool._home.helpers[0].pid  # type: ignore[union-attr]
        with pytest.raises(EnvironmentFailed, match=rf"worker process {pid} did not return within 0.15 seconds"):
            pool.step([LEFT] * 2)


def test_many_slow_ones_are_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is one environment's step: eight steps of 60 seconds are 480, and each is less than 100."""
    clock = itertools.count(0, 60)
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    started(odd("Rings", seconds=100.0, times=1), rows=8).step([LEFT] * 8)
    with pytest.raises(EnvironmentFailed, match=r"row 0, .* did not return within 100 seconds"):
        started(odd("Rings", seconds=100.0, times=3), rows=8).step([LEFT] * 8)


@pytest.mark.thorough
def test_after_a_signal_little_time_is_left(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "GRACE", 0.1)
    pool = started(odd("Hangs"), workers)
    with StopSignal() as stop:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(EnvironmentFailed, match=r"did not return within 0.1 seconds after a signal asked to stop"):
            pool.step([LEFT] * 2)
        assert stop.signum == signal.SIGTERM
    with Watchdog(600.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0.5  # another run begins with all its time


@pytest.mark.thorough
def test_what_makes_progress_has_its_time_from_there() -> None:
    """However long it takes in all."""
    done: list[int] = []
    with Watchdog(1.0, progress=lambda: len(done)):
        for i in range(30):
            time.sleep(0.05)
            done.append(i)
    assert len(done) == 30


def test_an_alarm_that_rings_as_a_context_begins_finds_its_own_time() -> None:
    """The timer of the context before may still run."""

    class Rung(Watchdog):
        def begin(self) -> None:
            signal.raise_signal(watchdog._timer.signum)
            super().begin()

    with Watchdog(1.0):
        pass  # which leaves a timer and its handler
    with Rung(1.0):
        pass


def test_a_hang_passes_the_excepts_of_foreign_code() -> None:
    with pytest.raises(Hung, match=r"did not return within 0.05 seconds$"), Watchdog(0.05):
        try:
            time.sleep(60)
        except Exception:
            pytest.fail("an ordinary except caught it")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_alarm_of_ones_own_still_rings() -> None:
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda signum, _: rang.append(signum))
    try:
        with Watchdog(600.0):
            pass
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rang == [signal.SIGALRM]


def test_forks_and_threads_of_foreign_code_exit_as_they_wish() -> None:
    with Watchdog(600.0):
        pid = os.fork()
        if pid == 0:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_reward_that_no_seed_governs_is_noticed() -> None:
    pool = started(odd("Moody"))
    pool.step([LEFT] * 2)
    state = pool.state()
    assert started(odd("Moody")).restore(state).tolist() == [True, True]
    assert any("differ at step 1" in finding for finding in check("worker_envs:Moody-v0", {}))


def test_an_error_of_many_lines_is_told_in_one_with_its_place(workers: Workers) -> None:
    """However long, and whatever it would do to a terminal."""
    pool = started(odd("Shouts"), workers)
    with pytest.raises(EnvironmentFailed) as failed:
        pool.step([LEFT] * 2)
    text = str(failed.value)
    where = "training environment 'worker_envs:Shouts-v0' (row 0, episode seed 0, step 1): step() raised RuntimeError: "
    assert text.startswith(where + "\\x1b[31mthe motor broke\\x1b[0m and broke and broke")
    assert text.isprintable()
    assert len(text) < 1000


@pytest.mark.parametrize("how", ["cancels", "ignores", "takes"])
@pytest.mark.thorough
def test_one_that_hangs_is_ended_whatever_it_does_to_the_alarm(how: str) -> None:
    before = signal.getsignal(signal.SIGALRM)
    for _ in range(2):
        pool, began = started(odd("Fiddles", seconds=0.2, how=how)), time.monotonic()
        with pytest.raises(
            EnvironmentFailed, match=r"row 0, .* did not return within 0.2 seconds \(env.step_seconds\)"
        ):
            pool.step([LEFT] * 2)
        assert time.monotonic() - began < 10
    signal.signal(signal.SIGALRM, before)
    with pytest.raises(Hung), Watchdog(0.05):
        time.sleep(60)


@pytest.mark.parametrize("where", ["made", "reset", "step", "closed"])
def test_what_an_environment_does_to_torch_is_undone(where: str) -> None:
    try:
        pool = started(odd("Widens", where=where))
        pool.step([LEFT] * 2)
        pool.close()
        assert torch.get_default_dtype() == torch.float32
        assert torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


@pytest.mark.thorough
def test_environments_that_cling_are_closed_in_one_time_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the first hangs, and all others are closed, or every one."""
    monkeypatch.setattr(make, "_CLOSING", 1.0)
    for every in (False, True):
        monkeypatch.setattr(worker_envs.Clings, "closed", 0)
        folder = tmp_path / str(every)
        folder.mkdir()
        pool, began = started(odd("Clings", folder=str(folder), every=every), rows=40), time.monotonic()
        pool.close()
        assert time.monotonic() - began < 4
        assert every or len([*folder.iterdir()]) == 40


@pytest.mark.skipif(not can_help(), reason="needs fork and eventfd")
@pytest.mark.thorough
def test_workers_whose_environments_cling_end_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_PATIENCE", 700)
    with Workers(6) as workers:
        pool = EnvPool(odd("Clings", folder=str(tmp_path), every=True), 6, workers=workers)
        monkeypatch.setattr(make, "_CLOSING", 0.2)  # of the pool's own first one, here
        pool.reset(np.arange(6), np.arange(6))
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began < 3
    assert len({file.name.split("-")[0] for file in tmp_path.iterdir()}) == 6 + 1


@pytest.mark.thorough
def test_a_signal_that_another_thread_gets_ends_a_sleep() -> None:
    """The system gives a process's signal to any thread that takes it, and does not wake the main thread by it."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
    try:
        began = time.monotonic()
        with StopSignal() as stop, pytest.raises(Hung), Watchdog(60.0, grace=0.5):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        assert stop.signum == signal.SIGTERM
        assert time.monotonic() - began < 10
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGALRM})
        over.set()
        other.join()


def test_what_was_ended_may_clean_up_before_it_is_ended_again() -> None:
    with Watchdog(0.2):
        for _ in range(3):
            with pytest.raises(Hung):
                time.sleep(60)
            until = time.monotonic() + 0.5 * watchdog._UNWIND
            while time.monotonic() < until:
                pass
