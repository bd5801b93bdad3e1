"""Stage `report` of language models: what happened, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evopipe.errors import DataError, translate_failures
from evopipe.layout import ELITE, REPORT
from evopipe.machine import configure
from evopipe.report.page import compose
from evopipe.report.read import read
from evopipe.schema.text import LanguageParams
from evopipe.stages.tell import tell
from evopipe.storage.files import write_text

_INSTEAD = "What the elite writes stands below, beside what the base does."


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `reports/report.html` from the files in `reports/` and from `models/elite`.

    Raises:
        MissingInputError: an upstream output is not there.
        DataError: one of them is damaged, or of another run.
    """
    configure(params.runtime)
    with translate_failures():
        found = read(folder)
        if found.policy["algo"] != params.train.algo:
            raise DataError(
                f"{folder / ELITE}: written for algo {found.policy['algo']!r}, params.yaml says {params.train.algo!r}; "
                "run `evopipe export` or `dvc repro export` again"
            )
        games = found.told is not None and found.told.games
        text = compose(found, _shown(params), "Games that the elite played stand below." if games else _INSTEAD)
        write_text(folder / REPORT, text)
    tell(f"{REPORT}: {len(text.encode()) / 1e6:.1f} MB, opens in any browser, without a network", quiet)


def _shown(params: LanguageParams) -> dict[str, Any]:
    """Return the parameters that the page shows: those that a run depends on."""
    shown, source = params.tracked(), params.fetch.source
    shown["algos"] = {params.train.algo: shown.pop("algo")}
    shown["fetch"] = {"source": source, source: shown["fetch"][source]}
    return shown
