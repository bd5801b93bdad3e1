"""A system that is not Linux, for code that is imported later: without what of modules and names Windows lacks.

It is no Windows: paths, processes and files are still those of this machine.
"""

from __future__ import annotations

import importlib
import importlib.abc
import os
import platform
import select
import signal
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
# What `os` has of them where the system is POSIX, but for what the standard library looked up as it was imported.
SYSTEM = (
    "CLD_EXITED CLD_STOPPED EFD_CLOEXEC EFD_NONBLOCK O_CLOEXEC O_DIRECTORY O_NOFOLLOW P_PID RTLD_NOW ST_NOEXEC "
    "WEXITED WNOWAIT WSTOPPED chown eventfd eventfd_read eventfd_write fchmod fchown fork forkpty getegid geteuid "
    "getgid getgroups getloadavg getpgid getpgrp getpriority getsid getuid killpg lockf memfd_create mkfifo nice pipe2 "
    "posix_fadvise posix_fallocate pread preadv pwrite pwritev register_at_fork sched_getaffinity sched_setaffinity "
    "sched_yield set_blocking setpgid setsid statvfs sync uname wait waitid"
).split()
SIGNALS = (
    "ITIMER_REAL SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGRTMAX SIGRTMIN SIGSTOP SIGTSTP SIGUSR1 "
    "SIGUSR2 alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait"
).split()
# They look at the system as they are imported, and are the Linux builds of this machine.
BUILDS = (
    "ctypes", "gymnasium", "h5py", "numpy", "PIL.Image", "psutil", "pydantic", "pygame", "rich.console",
    "safetensors", "shutil", "subprocess", "tempfile", "torch", "typer",
)  # fmt: skip


class _Absent(importlib.abc.MetaPathFinder):
    """Finds nothing of what Windows has not."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def hide(builds: Sequence[str] = BUILDS) -> None:
    """Make this process one of such a system, where the packages `builds` are there."""
    for name in builds:
        importlib.import_module(name)
    platform.uname()  # both remember what they found
    sysconfig.get_config_vars()
    for name in [each for each in sys.modules if each.partition(".")[0] in (*MODULES, "filelock")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Absent())
    for module, names in ((os, SYSTEM), (signal, SIGNALS), (select, ("epoll", "poll"))):
        for name in names:
            vars(module).pop(name, None)
    if "_ctypes" in sys.modules:
        vars(sys.modules["_ctypes"]).pop("dlopen", None)
    sys.platform = "elsewhere"
