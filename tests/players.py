"""Runs of a second whose members are whole small GPTs that play games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evopipe.params.text import LanguageParams

WORDS = {"words": ["ab", "ba", "aa", "bb"], "tries": 3}
SMALL = {"hidden": 16, "layers": 1, "heads": 2, "head": 16, "feedforward": 16}


def small_params(algo: str, start: Path | None = None, **language: Any) -> dict[str, Any]:
    """A whole `params.yaml`; `start` is an exported player to go on from."""
    small = LanguageParams.model_validate({
        "language": {"model": "gpt", "task": "wordle", "kwargs": WORDS, "gpt": SMALL, **language},
        "fetch": {"generate": {"rows": 60}},
        "population": {"size": 3, "start": None if start is None else str(start)},
        "train": {"algo": algo, "max_steps": 6, "evo_steps": 3, "eval_episodes": 5, "confirm_episodes": 5},
        "evaluate": {"episodes": 6, "bootstrap": 100},
        "evolution": {"mutation": {"probabilities": {"none": 0.0, "architecture": 1.0, "rl_hp": 1.0}}},
        "tracking": {"backends": []},
        "algos": {algo: {"batch_size": 8}},
    })  # fmt: skip
    data: dict[str, Any] = small.model_dump(mode="json")
    return data
