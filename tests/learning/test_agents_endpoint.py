"""An agent that asks over HTTP learns from random weights: the script in `examples`."""

from __future__ import annotations

import runpy

import pytest

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")
pytest.importorskip("openai")

from tiny import ROOT


# The script's client keeps its connections, which end with the loop of each round.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_the_script_learns_to_use_a_calculator() -> None:
    trainer = runpy.run_path(str(ROOT / "examples/openai_agent.py"))["make"]([])
    before = trainer.evaluate()["mean"]
    found = trainer.train()
    print(f"before {before:.3f}, rewards {[row['reward'] for row in found.measures]}, after {found.score:.3f}")
    assert before <= 0.3
    assert found.score >= 0.9
    assert found.measures[-1]["drift"] < 1e-4
