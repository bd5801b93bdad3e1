"""Stage `report`: what happened, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evopipe.errors import translate_failures
from evopipe.machine import configure
from evopipe.report.page import page
from evopipe.schema.blocks import NEUTRAL, RuntimeConfig
from evopipe.schema.params import Params
from evopipe.stages import paths
from evopipe.stages.tell import tell
from evopipe.storage.files import write_text


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `reports/report.html` from the files in `reports/` and from `models/elite`.

    Raises:
        MissingInputError: an upstream output is not there.
        DataError: one of them is damaged.
    """
    configure(params.runtime)
    with translate_failures():
        text = page(folder, shown(params))
        write_text(folder / paths.REPORT, text)
    tell(f"{paths.REPORT}: {len(text.encode()) / 1e6:.1f} MB, opens in any browser, without a network", quiet)


def shown(params: Params) -> dict[str, Any]:
    """Return the parameters that the page shows: those that a run depends on, which `dvc.yaml` tracks too."""
    blocks: dict[str, Any] = params.model_dump(
        mode="json",
        include={
            "seed": True,
            "env": True,
            "fetch": {"source", params.fetch.source},
            "population": True,
            "train": True,
            "evolution": True,
            "evaluate": True,
            "export": True,
            "runtime": set(RuntimeConfig.model_fields) - NEUTRAL,
        },
    )
    if not params.train.warm_start:
        del blocks["fetch"]  # no dataset is used
    return {**blocks, "algos": {params.train.algo: params.algo_config.model_dump(mode="json")}}
