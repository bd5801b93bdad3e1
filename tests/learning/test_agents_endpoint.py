"""An agent that asks over HTTP learns from random weights: the script in `examples`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")
pytest.importorskip("openai")

from tiny import ROOT

TRAINED = """
import json, runpy, sys
trainer = runpy.run_path(sys.argv[1])["make"](sys.argv[2:])
before, found = trainer.evaluate()["mean"], trainer.train()
rewards = [row["reward"] for row in found.measures]
print(json.dumps({"before": before, "after": found.score, "rewards": rewards, "drift": found.measures[-1]["drift"]}))
"""


@pytest.mark.slow
def test_the_script_learns_to_use_a_calculator() -> None:
    """In a process of its own, for the client keeps its connections as long as the process lasts."""
    command = [sys.executable, "-c", TRAINED, str(ROOT / "examples/openai_agent.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    print(found)
    assert found["before"] <= 0.3
    assert found["after"] >= 0.9
    assert found["drift"] < 1e-4
