"""The table of signals in docs/tracking.md has all that runs tell, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evopipe import algos
from evopipe.run.run import Run
from populations import env_for, finish, problem, started

PAGE = (Path(__file__).parents[3] / "docs/tracking.md").read_text()
TABLE = PAGE.partition("\n## Signals\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| `")]
KNOWN = {name for row in ROWS for name in re.findall(r"`([a-z_/<>]+)`", row[0])}
OFFLINE = ("cqn", "iql", "td3bc")
SMALL: dict[str, Any] = {"network": {"encoder": [16], "latent": 16}, "batch_size": 16}


def told(algo: str) -> set[str]:
    """What a short run of an algorithm tells."""
    learn_step = 64 if algos.on_policy(algos.get(algo)) else 4
    train = {"evo_steps": 160, "max_steps": 160, "learning_delay": 16, "eval_episodes": 1, "target": None}
    run: Run[Any] = started(problem(env_for(algo), algo, config={**SMALL, "learn_step": learn_step}, train=train), 1)
    finish(run)
    run.close()
    names = {re.sub("(learning_rate)_.*", r"\1", name) for name in run.signal_names}
    return {re.sub("^agents/[^/]+/", "agents/<agent>/", name) for name in names}


def test_every_row_says_what_is_healthy_and_what_if_not() -> None:
    assert len(KNOWN) >= 30
    for name, _, what, healthy, otherwise in ROWS:
        assert what, name
        assert healthy, name
        assert otherwise or name.startswith("`replay/"), name


@pytest.mark.parametrize("algo", algos.names())
@pytest.mark.thorough
def test_what_a_run_tells_is_in_the_table(algo: str) -> None:
    found = told(algo)
    assert len(found) >= 8
    assert found <= KNOWN


def test_what_is_in_the_table_is_told() -> None:
    """By source: names of the signals of language models, and of those that need a special case, too."""
    source = "".join(path.read_text() for path in (Path(__file__).parents[3] / "src/evopipe").rglob("*.py"))
    own = {name.rpartition("/")[2] for name in KNOWN if name.startswith("agents/")}
    assert own == {"episodic_return", "q_values", "entropy"}, "each is told by a run of the test above"
    assert not [name for name in KNOWN if f'"{name}"' not in source and not name.startswith("agents/")]
