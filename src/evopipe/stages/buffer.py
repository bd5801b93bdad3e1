"""Stage `buffer`: converts the dataset to the form from which members learn."""

from __future__ import annotations

from pathlib import Path

from evopipe.params.load import AnyParams
from evopipe.problems import part_of
from evopipe.stages.tell import tell


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Run the stage `buffer`: convert the dataset to packed transitions, or text to tokens, and write
    `reports/buffer.json`.

    Inputs and outputs are below `folder`; relative paths in `params` start at the working folder. `quiet` suppresses
    messages.
    """
    for sentence in part_of(params, "data").buffer(params, folder):
        tell(sentence, quiet)
