"""The examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import ROOT, environment

LOOP = ROOT / "examples/custom_loop.py"


def generations(script: Path) -> list[float]:
    """Run a script; return the best fitness of each generation that it printed."""
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"generation \d+: fitness \[(.*)\]", done.stdout)
    return [max(map(float, line.replace(".", ". ").split())) for line in printed]


@pytest.mark.thorough
def test_a_loop_of_ones_own_fits_in_40_lines(tmp_path: Path) -> None:
    text = LOOP.read_text()
    assert len(text.splitlines()) <= 40
    short = text.replace("range(1, 7)", "range(1, 4)").replace("range(300)", "range(40)")
    assert short.count("range(1, 4)") == short.count("range(40)") == 1
    script = tmp_path / "short.py"
    script.write_text(short)
    assert len(generations(script)) == 3


@pytest.mark.slow
def test_a_loop_of_ones_own_learns() -> None:
    """A policy that does nothing useful keeps the pole up for 9 to 30 steps."""
    fitness = generations(LOOP)
    assert len(fitness) == 6
    assert max(fitness) >= 195
