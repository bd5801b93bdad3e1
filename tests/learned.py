"""Runs of committed params files for the learning tests: the same file, another seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import evopipe
from evopipe.schema.read import parse_yaml, read_yaml
from tiny import ROOT

SEEDS = (1, 2, 3)


def run(path: str, seed: int, settings: Sequence[tuple[str, str]] = (), folder: Path | None = None) -> evopipe.Result:
    """Run a committed params file with another seed, and with settings as `dvc exp run -S` takes them.

    What the stages write goes to `folder`, where one is given.
    """
    data: dict[str, Any] = {**read_yaml(ROOT / path).data, "seed": seed}
    for key, value in settings:
        *blocks, name = key.split(".")
        reduce(dict.__getitem__, blocks, data)[name] = parse_yaml(f"value: {value}", "README.md").data["value"]
    return evopipe.train(data, folder)
