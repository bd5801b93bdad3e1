"""Packages from elsewhere: laid out as installed ones, so that `importlib.metadata` finds their entry points."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/own_package"


def lay(site: Path, name: str, points: Mapping[str, Mapping[str, str]], version: str = "0.1") -> Path:
    """Write a package's metadata into `site`, a folder for the path: group → name → value of its entry points."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in named.items()) for group, named in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return site


def example(site: Path) -> Path:
    """Install the package of `examples/` into a folder for the path, as its pyproject.toml describes it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "own_package", site / "own_package", ignore=shutil.ignore_patterns("__pycache__"))
    return lay(site, project["name"], project["entry-points"], project["version"])


def evopipe(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, in which the packages of `site` are installed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])}
    return subprocess.run(
        [sys.executable, "-m", "evopipe", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
