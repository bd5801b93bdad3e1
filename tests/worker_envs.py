"""Chains that do to their process what no environment should; importing this module registers them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from envs_for_tests import Chain
from evopipe.errors import DataError


class Segfault(Chain):
    """Crashes in C."""

    def reward(self, value: float) -> Any:
        if self.now:
            faulthandler.disable()  # pytest's, which would print the stack
            ctypes.string_at(0)
        return value


class Exit(Chain):
    """Ends its process in C, without a word."""

    def reward(self, value: float) -> Any:
        if self.now:
            ctypes.CDLL(None)._exit(3)
        return value


class Leaves(Chain):
    """Ends its process without a word: what Python's `os` offers for that."""

    def reward(self, value: float) -> Any:
        if self.now:
            os._exit(0)
        return value


class Mute(Chain):
    """Raises an error that cannot be shown."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def reward(self, value: float) -> Any:
        if self.now:
            raise self.Unspeakable
        return value


class Googol(Chain):
    """Pays a whole number that no float holds."""

    def reward(self, value: float) -> Any:
        return 10**400 if self.now else value


class Moves(Chain):
    """Changes its process's working folder wherever it can, and cannot be closed."""

    def __init__(self) -> None:
        os.chdir("/")
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        os.chdir("/")
        return super().reset(seed=seed)

    def reward(self, value: float) -> Any:
        os.chdir("/")
        return value

    def close(self) -> None:
        os.chdir("/")
        sys.exit("not yet")


class Moody(Chain):
    """Pays what no seed governs."""

    def reward(self, value: float) -> Any:
        return int.from_bytes(os.urandom(4), "little")


class SysExit(Chain):
    """Asks Python to exit."""

    def reward(self, value: float) -> Any:
        if self.now:
            sys.exit("enough")
        return value


class Typed(Chain):
    """Raises an error of evopipe's own."""

    def reward(self, value: float) -> Any:
        if self.now:
            raise DataError("level 3 is damaged")
        return value


class Hangs(Chain):
    """Never returns from its step, and holds Python's lock where `lock` says so."""

    def __init__(self, lock: bool = False, when: int = 1) -> None:
        super().__init__(when=when)
        self.lock = lock

    def reward(self, value: float) -> Any:
        if self.now and self.lock:
            ctypes.PyDLL(None).sleep(100)
        elif self.now:
            time.sleep(100)
        return value


class Slow(Chain):
    """Takes half a millisecond a step."""

    def reward(self, value: float) -> Any:
        time.sleep(5e-4)
        return value


class Deaf(Chain):
    """Never returns from its step, holds Python's lock and hears no alarm: for a worker process."""

    def reward(self, value: float) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.PyDLL(None).sleep(100)
        return value


class Shouts(Chain):
    """Raises an error of many lines, in colour, longer than any sentence."""

    def reward(self, value: float) -> Any:
        raise RuntimeError("\x1b[31mthe motor\nbroke\x1b[0m\r\n" + "and broke\n" * 20_000 + "\udc80")


class Fiddles(Chain):
    """Uses the alarm for itself, and then never returns from its step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def reward(self, value: float) -> Any:
        if self.how == "cancels":
            signal.alarm(0)
        elif self.how == "ignores":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 1000.0)
        time.sleep(100)
        return value


class Widens(Chain):
    """Sets what torch makes of numbers, and whether it follows them, wherever it can."""

    def __init__(self, where: str = "") -> None:
        super().__init__()
        self.where = where
        self.set("made")

    def set(self, where: str) -> None:
        if self.where == where:
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.set("reset")
        return super().reset(seed=seed)

    def reward(self, value: float) -> Any:
        self.set("step")
        return value

    def close(self) -> None:
        self.set("closed")


class Closes(Chain):
    """Leaves a file named by its process when it is closed."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def close(self) -> None:
        Path(self.folder, str(os.getpid())).touch()


class Clings(Closes):
    """Leaves a file of its own when it is closed, and the first one never returns from that, or none does."""

    closed = 0

    def __init__(self, folder: str, every: bool = False) -> None:
        super().__init__(folder)
        self.every = every

    def close(self) -> None:
        Clings.closed += 1
        Path(self.folder, f"{os.getpid()}-{Clings.closed}").touch()
        if Clings.closed == 1 or self.every:
            time.sleep(100)


class Rings(Chain):
    """Lets the alarm ring so many times a step."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def reward(self, value: float) -> Any:
        for _ in range(self.times):
            signal.raise_signal(signal.SIGALRM)
        return value


class SecondReset(Chain):
    """Cannot be reset a second time, but a third."""

    played = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.played += 1
        if self.played == 2:
            raise RuntimeError("out of track")
        return super().reset(seed=seed)


class Denormal(Chain):
    """Pays whether the product of two small numbers is 0, which depends on how its thread treats denormal numbers."""

    def reward(self, value: float) -> Any:
        small = np.full(4, 1e-160)
        return float((small * small).sum() == 0.0)


class Process(Chain):
    """Pays the number of its process, and sees its folder's file `level`."""

    def reward(self, value: float) -> Any:
        return float(os.getpid() % 2**20)

    def seen(self) -> Any:
        level = float(Path("level").read_text()) if Path("level").exists() else 0.0
        return np.full(4, level, np.float32)


class OnlyIn(Chain):
    """Can be constructed in one process."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        if os.getpid() != pid:
            raise RuntimeError("not in this process")


class Threaded(Chain):
    """Has a thread from its construction on."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        threading.Thread(target=self.over.wait, daemon=True).start()

    def close(self) -> None:
        self.over.set()


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """A wrapper: pays twice as much."""

    def reward(self, reward: Any) -> Any:
        return 2 * reward


def Refuses(env: Any) -> Any:  # noqa: N802
    """A wrapper that is not to be had."""
    sys.exit("never")


for _env in (
    Closes, OnlyIn, Shouts, Fiddles, Widens, Clings, Threaded,
    Leaves, Mute, Googol, Moves, Moody,
    Segfault, Exit, SysExit, Typed, Hangs, Slow, Deaf, Rings, SecondReset, Denormal, Process,
):  # fmt: skip
    if f"{_env.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"{_env.__name__}-v0", entry_point=_env, max_episode_steps=10)
