"""Reads the file of training signals, `reports/signals.csv`."""

from __future__ import annotations

import csv
from pathlib import Path

from evopipe.errors import DataError
from evopipe.layout import LAST


def read_signals(path: Path) -> dict[tuple[int, int], dict[str, tuple[float, float]]]:
    """Read `reports/signals.csv`: the training signals by name, for each (generation, slot), each as (mean, last
    value). A slot is a member's place in the population.

    Empty cells are left out.

    Raises:
        DataError: the file is damaged.
    """
    found: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                key = int(row.pop("generation")), int(row.pop("slot"))
                names = [name for name in row if not name.endswith(LAST)]
                found[key] = {n: (float(row[n]), float(row[n + LAST])) for n in names if row[n] != ""}
    except (KeyError, TypeError, ValueError, csv.Error, AttributeError) as error:
        raise DataError(f"{path}: is not what `evopipe train` writes ({error}); run it again") from None
    return found
