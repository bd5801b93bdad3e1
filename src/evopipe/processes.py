"""What processes that serve another process have in common."""

from __future__ import annotations

import contextlib
import signal

_PR_SET_PDEATHSIG = 1


def ignore_stop_signals() -> None:
    """Be deaf to what Ctrl-C and schedulers send to everyone: the process that is served decides, and saves first."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def signal_at_parent_death(signum: int) -> None:
    """Ask the kernel for a signal when the thread that started this process dies. Nothing where it cannot (not Linux).

    The parent may have died before: compare `os.getppid()` with what it was.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
