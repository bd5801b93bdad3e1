"""Stage `export`: the elite as files that run anywhere."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import evopipe
from evopipe import layout, policy
from evopipe.card import card
from evopipe.core import normalise
from evopipe.errors import DataError
from evopipe.evolve.lineage import descent, read_lineage
from evopipe.keys import CODE, content_key
from evopipe.machine import configure, fingerprint, git_revision
from evopipe.problems.specs import describe, make_spec
from evopipe.run.population import read_members
from evopipe.schema.params import AnyParams, Params
from evopipe.stages.tell import tell
from evopipe.storage.files import read_bytes, read_json
from evopipe.track.formats import score


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/elite`: policy.safetensors, policy.json, policy.pt2, policy.npz with numpy_policy.py, and a model
    card."""
    configure(params.runtime)
    spec = make_spec(params)
    (*_, elite), trained = read_members(folder, layout.TRAINED, spec)
    scores = scored(folder, {"mean", "interval", "std", "median", "iqm"})["elite"]
    about = {
        **describe(params),
        "preprocessing": normalise.describe(elite.tensors),
        "hyper": dict(elite.hyper),
        "training": trained.get("elite"),
        "evaluation": scores,
        "lineage": descent(read_lineage(read_bytes(folder / layout.LINEAGE), str(layout.LINEAGE)), elite.id),
        "provenance": provenance(params, folder),
    }
    text = card(policy.kind_of(about)(spec.algo, params.algo_config, elite, about), params.evaluate.episodes)
    chosen = params.export
    policy.save(folder / layout.ELITE, params.train.algo, elite, about, chosen.program, text, chosen.critic)
    tell(f"{layout.ELITE}: {elite.arch.describe()}, held-out mean {score(scores['mean'])}", quiet)


def provenance(params: AnyParams, folder: Path) -> dict[str, Any]:
    """Return what an elite comes from: versions, code, parameters, machine."""
    return {
        "evopipe": evopipe.__version__,
        "git_revision": git_revision(folder.absolute()),
        "code_hash": content_key({}, [*params.outside()[1], CODE]),
        "params_hash": content_key(params.tracked()),
        "fingerprint": fingerprint(),
    }


def scored(folder: Path, needed: Set[str]) -> dict[str, Any]:
    """Read the held-out evaluation; `DataError` if the elite lacks one of the scores that are `needed`."""
    report = read_json(path := layout.need(folder, layout.EVALUATION))
    scores = report.get("elite") if isinstance(report, dict) else None
    if not isinstance(scores, dict) or not scores.keys() >= needed:
        raise DataError(f"{path}: has no scores of the elite; run `evopipe evaluate` or `dvc repro evaluate` again")
    return dict(report)
