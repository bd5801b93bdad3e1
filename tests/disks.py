"""Scripts in processes of their own, on disks that refuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import environment


def run_script(script: str, *arguments: str, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with this project importable."""
    command = [*wrapper, sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=60, check=False
    )


def mounted(mount: str, folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script after a shell line has mounted `$0`, `folder`, in a namespace that vanishes with it; skip where that
    is not permitted."""
    wrapper = ("unshare", "--mount", "--map-root-user", "sh", "-c", f'{mount} && exec "$@"', str(folder))
    if shutil.which("unshare") is None:
        pytest.skip("mounting needs unshare")
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    return run_script(script, *arguments, wrapper=wrapper)
