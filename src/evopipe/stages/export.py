"""Stage `export`: writes the elite as files that run anywhere."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.errors import DataError
from evopipe.formats import score
from evopipe.machine import configure, fingerprint, git_revision
from evopipe.params.load import AnyParams
from evopipe.problems import part_of
from evopipe.run.population import read_members
from evopipe.searchers import packages
from evopipe.searchers.history import descent, read_lineage
from evopipe.stages.tell import tell
from evopipe.storage.files import read_bytes, read_json
from evopipe.storage.keys import CODE, content_key
from evopipe.version import __version__


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Run the stage `export`: write the elite (the best member) to `models/elite`, with its weights, description,
    provenance and a model card.

    Inputs and outputs are below `folder`. `quiet` suppresses messages.
    """
    configure(params.runtime)
    part = part_of(params, "export")
    spec = part.spec_of(params)
    (*_, elite), trained = read_members(folder, layout.TRAINED, spec)
    scores = scored(folder, part.SCORES)
    about = {
        "hyper": dict(elite.hyper),
        "training": trained.get("elite"),
        "lineage": descent(read_lineage(read_bytes(folder / layout.LINEAGE), str(layout.LINEAGE)), elite.id),
        "provenance": provenance(params, folder),
    }
    part.write(folder / layout.ELITE, params, spec, elite, about, scores)
    tell(f"{layout.ELITE}: {elite.arch.describe()}, held-out mean {score(scores['elite']['mean'])}", quiet)


def provenance(params: AnyParams, folder: Path) -> dict[str, Any]:
    """Return the provenance of an elite (best member) as JSON data: versions, git commit, hashes of code and
    parameters, and machine.

    `params` are the run's parameters, and `folder` is a folder of the git repository.
    """
    return {
        "evopipe": __version__,
        "git_revision": git_revision(folder.absolute()),
        "code_hash": content_key({}, [*params.outside()[1], CODE]),
        "params_hash": content_key(params.tracked()),
        "fingerprint": fingerprint(packages=packages(params.search)),
    }


def scored(folder: Path, needed: Collection[str]) -> dict[str, Any]:
    """Read `reports/evaluation.json`, which has the held-out scores of the elite (the best member) and facts about the
    evaluation.

    Raises:
        MissingInputError: the file does not exist.
        DataError: the elite lacks one of the scores named in `needed`.
    """
    report = read_json(path := layout.need(folder, layout.EVALUATION))
    scores = report.get("elite") if isinstance(report, dict) else None
    if not isinstance(scores, dict) or not scores.keys() >= {*needed}:
        raise DataError(f"{path}: has no scores of the elite; run `evopipe evaluate` or `dvc repro evaluate` again")
    return dict(report)
