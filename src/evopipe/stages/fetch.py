"""Stage `fetch`: obtains the dataset to learn from."""

from __future__ import annotations

from pathlib import Path

from evopipe.params.load import AnyParams
from evopipe.problems import part_of
from evopipe.stages.tell import tell


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Run the stage `fetch`: write the dataset, or rows of text, and `reports/fetch.json`.

    Outputs are below `folder`; relative paths in `params` start at the working folder. `quiet` suppresses messages.
    """
    for sentence in part_of(params, "data").fetch(params, folder):
        tell(sentence, quiet)
