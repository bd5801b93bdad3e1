"""The machine: which processors, which versions, how busy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUSY = 0.5  # load average, above the lanes' own, at which a warning is due


def fingerprint(cores: list[list[int]], device: str) -> dict[str, Any]:
    """Describe the machine and the code: processor, cores used (a list a lane), versions, git revision, load.

    Raises:
        SystemExit: there is no such device.
    """
    import torch

    from evopipe.machine import fingerprint

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"--device cuda: torch {torch.__version__} sees no CUDA device here")
    about = fingerprint(torch.device("cuda", 0) if device == "cuda" else None)
    del about["threads"], about["kernels"]  # of this process; each run's are in its settings and its result
    return {
        **about,
        "processors": os.cpu_count(),
        "cores": cores,
        "revision": revision(),
        "source": source_key(),
        "load_before": round(load(), 2),
    }


def revision() -> str:
    """Return the git revision, with `+` where the source differs from it; `unknown` without git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        return head + ("+" if _git("status", "--porcelain", "--", "src").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def source_key() -> str:
    """Return a key of the code that is measured: of `src/evopipe`."""
    from evopipe.storage.keys import content_key

    return content_key({}, [ROOT / "src" / "evopipe"])[:16]


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def warn_if_busy(lanes: int = 0) -> None:
    """Say so where other work runs beside the benchmark."""
    now = load()
    if now - lanes > BUSY:
        print(f"warning: load average {now:.1f}: other work runs here, so times are noisy", file=sys.stderr)


def lanes_of(count: int, cores: int) -> list[list[int]]:
    """Return the processors of each lane, disjoint.

    Raises:
        SystemExit: there are not so many.
    """
    here = able()
    if count * cores > len(here):
        raise SystemExit(f"{count} lanes of {cores} cores need {count * cores} cores, {len(here)} are here: take fewer")
    return [here[i * cores : (i + 1) * cores] for i in range(count)]


def able() -> list[int]:
    """Return the processors that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
