"""The readme's `run_bc_lm.py` and `run_ilql.py`: Wordle cloned from games, then played better than in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evopipe


def settings(algo: str, folder: Path | None, rows: int, max_steps: int, generations: int, episodes: int) -> Any:
    """What `configs/wordle` says there; `folder`, there `model: load:`, is where members begin."""
    return {
        "language": {"model": "gpt", "task": "wordle"},
        "fetch": {"generate": {"rows": rows}},
        "population": {"size": 2, "start": None if folder is None else str(folder)},
        "train": {"algo": algo, "max_steps": max_steps, "evo_steps": max_steps // generations,
                  "eval_episodes": episodes // 4, "confirm_episodes": episodes // 2},
        "evolution": {"mutation": {"probabilities": {"architecture": 0.2}}},
        "evaluate": {"episodes": episodes},
    }  # fmt: skip


def run_bc_lm(folder: Path, rows: int = 16_000, max_steps: int = 1500, episodes: int = 2000) -> evopipe.Result:
    """`python run_bc_lm.py`: behaviour cloning, from nothing."""
    params = settings("bc_language", None, rows, max_steps, 5, episodes)
    return evopipe.train({**params, "algos": {"bc_language": {"temperature": 0.9}}}, folder)


def run_ilql(
    folder: Path, cloned: Path, rows: int = 16_000, max_steps: int = 600, episodes: int = 2000
) -> evopipe.Result:
    """`python run_ilql.py`: implicit language Q-learning from the same games, begun with the clone."""
    return evopipe.train(settings("ilql", cloned / "models/elite", rows, max_steps, 3, episodes), folder)
