"""Stage `report`: shows the run as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evopipe.errors import need_package, translate_failures
from evopipe.imports import uncollected
from evopipe.layout import REPORT
from evopipe.params.load import AnyParams
from evopipe.report.family import Family
from evopipe.report.page import page
from evopipe.stages.tell import tell
from evopipe.storage.files import write_text


def run(params: AnyParams, quiet: bool = False, folder: Path = Path(), family: Family | None = None) -> None:
    """Run the stage `report`: write the page `reports/report.html` from the files in `reports/` and `models/elite`.

    `family`, a comparison with other runs, becomes a section of the page. Inputs and outputs are below `folder`.
    `quiet` suppresses messages.

    Raises:
        MissingInputError: the package matplotlib is not installed, or the stages before have not written their files.
        DataError: a file is damaged.
    """
    need_package("matplotlib", "report", "the report")
    if params.films:  # the elite acts
        with uncollected():
            from evopipe.machine import configure
            from evopipe.own import import_network

            configure(params.runtime)
        import_network(params.network, params.train.algo)
    with translate_failures():
        with uncollected():  # Matplotlib is imported
            text = page(folder, _shown(params), family)
        write_text(folder / REPORT, text)
    tell(f"{REPORT}: {len(text.encode()) / 1e6:.1f} MB, opens in any browser, without a network", quiet)


def _shown(params: AnyParams) -> dict[str, Any]:
    """Return the parameters that the page shows: those that a run depends on, which `dvc.yaml` tracks too."""
    shown, source = params.tracked(), params.fetch.source
    shown["algos"] = {params.train.algo: shown.pop("algo")}
    shown["fetch"] = {"source": source, source: shown["fetch"][source]}
    if not params.needs_dataset:
        del shown["fetch"]
    return shown
