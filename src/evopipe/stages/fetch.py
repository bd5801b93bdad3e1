"""Stage `fetch`: obtains the dataset to learn from."""

from __future__ import annotations

from pathlib import Path

from evopipe.params.load import AnyParams
from evopipe.problems import part_of
from evopipe.stages.tell import tell


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write a dataset, or rows of text, and `reports/fetch.json`. Paths in `params` are relative to the working
    folder."""
    for sentence in part_of(params, "data").fetch(params, folder):
        tell(sentence, quiet)
