"""Helper processes: they do what they are told, report what went wrong, and end when they should."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evopipe import parallel
from evopipe.errors import DataError
from evopipe.parallel import Died, Helper, can_help, shared_memory

pytestmark = pytest.mark.skipif(not can_help(), reason="needs fork and eventfd")


@pytest.fixture
def helper() -> Iterator[Callable[..., Helper]]:
    made: list[Helper] = []

    def make(*args: Any) -> Helper:
        made.append(Helper(*args))
        return made[-1]

    yield make
    for one in made:
        one.dismiss()


def numbers(count: int) -> np.ndarray:
    return np.frombuffer(shared_memory([8 * count])[0], np.int64, count)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_pieces_of_shared_memory_are_zeros_that_share_no_cache_line() -> None:
    pieces = shared_memory([1, 64, 0, 65])
    assert [len(piece) for piece in pieces] == [64, 64, 64, 128]
    assert not any(map(any, pieces))
    places = [np.frombuffer(piece, np.uint8).ctypes.data for piece in pieces]
    assert [place - places[0] for place in places] == [0, 64, 128, 192]


def test_it_works_once_each_time_it_is_told(helper: Callable[..., Helper]) -> None:
    seen = numbers(3)

    def work() -> None:
        seen[:2] += seen[2], os.getpid()

    one = helper(work)
    for amount in (1, 10, 100):
        seen[2] = amount
        one.tell()
        assert one.wait() is None
    assert seen[:2].tolist() == [111, 3 * one.pid]


def test_what_its_work_raises_comes_back_as_it_is_and_it_goes_on(helper: Callable[..., Helper]) -> None:
    which = numbers(1)

    class Local(Exception):
        """One that no other process can read."""

    def work() -> None:
        raise (DataError("level 3"), SystemExit("enough"), Local("strange"), ValueError("x" * 10**6))[which[0]]

    one, found = helper(work), []
    for which[0] in range(4):
        one.tell()
        error = one.wait()
        found.append((type(error), str(error)[:16]))
    assert found == [
        (DataError, "level 3"),
        (SystemExit, "enough"),
        (RuntimeError, "Local: strange"),
        (RuntimeError, "ValueError: xxxx"),
    ]
    which[0] = 0
    one.tell()
    error = one.wait()
    assert error is not None
    assert "in work" in error.__notes__[0], "where it was raised"


@pytest.mark.parametrize(
    ("end", "text", "killed"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL", True),
        (lambda: os.kill(os.getpid(), signal.SIGUSR1), "was ended by SIGUSR1", False),
        (lambda: os._exit(3), "ended with exit code 3", False),
    ],
)
def test_one_that_dies_is_told_each_time(
    helper: Callable[..., Helper], end: Callable[[], None], text: str, killed: bool
) -> None:
    one = helper(end)
    for _ in range(2):
        one.tell()
        with pytest.raises(Died) as death:
            one.wait()
        assert (str(death.value), death.value.killed) == (f"process {one.pid} {text}", killed)


def test_one_that_is_stopped_is_waited_for_a_while(
    helper: Callable[..., Helper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_LOOK", 0.02)
    one = helper(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    one.tell()
    threading.Timer(0.1, os.kill, (one.pid, signal.SIGCONT)).start()
    assert one.wait() is None
    monkeypatch.setattr(parallel, "STOPPED", 0.05)
    one.tell()
    with pytest.raises(Died) as death:
        one.wait()
    assert str(death.value) == f"process {one.pid} was stopped by a signal and nobody continued it"


def test_an_idle_one_does_its_last_work_when_dismissed_and_a_busy_one_does_not(helper: Callable[..., Helper]) -> None:
    ended = numbers(2)

    def last(i: int) -> Callable[[], None]:
        return lambda: ended.__setitem__(i, 1)

    idle, busy = helper(lambda: None, last(0)), helper(lambda: time.sleep(100), last(1))
    idle.tell()
    busy.tell()
    assert idle.wait() is None
    began = time.monotonic()
    for one in (idle, busy, busy):  # twice is once
        one.dismiss()
    assert time.monotonic() - began < 4
    assert ended.tolist() == [1, 0]
    assert not runs(idle.pid)
    assert not runs(busy.pid)


@pytest.mark.thorough
def test_it_ends_with_its_last_reference() -> None:
    one = Helper(lambda: None)
    pid = one.pid
    del one
    gc.collect()
    assert not runs(pid)


def test_a_later_fork_neither_ends_an_older_helper_nor_keeps_it(helper: Callable[..., Helper]) -> None:
    seen = numbers(1)
    older = helper(lambda: seen.__setitem__(0, seen[0] + 1))
    younger = helper(older.dismiss)  # it has a copy of the reference, which is not its own
    younger.tell()
    assert younger.wait() is None
    older.tell()
    assert older.wait() is None
    older.dismiss()
    assert seen[0] == 1
    assert not runs(older.pid)
    assert runs(younger.pid)


def test_it_is_deaf_to_signals_that_ask_to_stop(helper: Callable[..., Helper]) -> None:
    one = helper(lambda: None)
    one.tell()
    assert one.wait() is None
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(one.pid, signum)
    one.tell()
    assert one.wait() is None
    assert os.getsid(one.pid) == one.pid


def test_it_reads_nothing_of_what_is_typed(helper: Callable[..., Helper]) -> None:
    left = numbers(1)
    one = helper(lambda: left.__setitem__(0, len(os.read(0, 1))))
    left[0] = -1
    one.tell()
    assert one.wait() is None
    assert left[0] == 0


def test_what_waits_to_be_written_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        print("before")
        one = Helper(lambda: print("within"))
        one.tell()
        assert one.wait() is None
        one.dismiss()
    assert (tmp_path / "out").read_text() == "before\nwithin\n"


def test_torch_computes_with_several_threads_in_a_fork_of_one_that_did(helper: Callable[..., Helper]) -> None:
    """OpenMP's team does not survive a fork: work in the thread that forked would wait for it forever."""
    before, piece = torch.get_num_threads(), shared_memory([4])[0]
    total = torch.frombuffer(piece, dtype=torch.float32)[:1]
    x = torch.arange(1.0, 2e6)
    try:
        torch.set_num_threads(2)
        expected = x.sqrt().sum()
        one = helper(lambda: total.copy_(x.sqrt().sum()))
        one.tell()
        assert one.wait() is None
    finally:
        torch.set_num_threads(before)
    assert total.item() == expected.item()


def test_it_outlives_the_thread_that_forked_it(helper: Callable[..., Helper]) -> None:
    made: list[Helper] = []
    thread = threading.Thread(target=lambda: made.append(helper(lambda: None)))
    thread.start()
    thread.join()
    time.sleep(0.05)
    made[0].tell()
    assert made[0].wait() is None
