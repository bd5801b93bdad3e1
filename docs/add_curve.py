"""Add a run to an algorithm's learning curves: `python docs/add_curve.py pipelines/ddpg-pendulum`.

Reads the folder's params.yaml and reports/ as `dvc repro` left them, writes docs/curves/<algorithm>.csv, and makes the
picture and the page in docs/algorithms/ anew. A run replaces an older one of the same pipeline and seed.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

import learning_curves
import make_algorithms

from evopipe.params.load import AnyParams, parse_params
from evopipe.params.text import LanguageParams
from evopipe.schema.read import read_yaml

PIPELINES = Path(__file__).parents[1] / "pipelines"


def rows(folder: Path, pipeline: str) -> tuple[str, list[learning_curves.Row]]:
    """Return a run's algorithm and its generations.

    Raises:
        ValueError: its params are not the pipeline's, beside the seed, the algorithm and the runtime.
    """
    params = parse_params(read_yaml(folder / "params.yaml").data)  # a key that is newer than the run has its default
    own = parse_params(read_yaml(PIPELINES / pipeline / "params.yaml").data)
    if _settings(params, params.train.algo) != _settings(own, params.train.algo):
        raise ValueError(f"{folder}/params.yaml differs from pipelines/{pipeline}: run the pipeline as it is")
    with (folder / "reports" / "fitness.csv").open(encoding="utf-8") as file:
        generations = list(csv.DictReader(file))
    evaluation = json.loads((folder / "reports" / "evaluation.json").read_text(encoding="utf-8"))
    held_out = ["" for _ in generations[1:]] + [_short(evaluation["elite"]["mean"])]
    of_text = isinstance(params, LanguageParams)
    what = (params.language.task, "offline") if of_text else (params.env.id, params.train.mode)
    about = (pipeline, *what, str(params.seed))
    return params.train.algo, [
        learning_curves.Row(*about, g["step"], g["env_steps"], _short(g["best"]), _short(g["elite"]), score)
        for g, score in zip(generations, held_out, strict=True)
    ]


def _settings(params: AnyParams, algo: str) -> dict[str, Any]:
    """What decides a curve, but for the seed."""
    content = params.model_dump(mode="json")
    content["train"].pop("algo")
    names = ("env", "language", "population", "train", "evolution", "evaluate")
    kept = {name: content[name] for name in names if name in content}
    if isinstance(params, LanguageParams) or params.train.mode == "offline":
        kept["fetch"] = content["fetch"]
    return {**kept, "algo": content["algos"].get(algo)}


def _short(value: Any) -> str:
    """A score with two decimals; nothing where there is none."""
    return "" if value in ("", None) else f"{float(value):.2f}"


def main(arguments: list[str] | None = None) -> int:
    """Read the arguments, add the run, write its algorithm's page and pictures."""
    parser = argparse.ArgumentParser(description="Add a run to an algorithm's learning curves.")
    parser.add_argument("folder", type=Path, help="where the run's params.yaml and reports/ are")
    parser.add_argument("--pipeline", help="the pipeline that it ran, where the folder is a copy of it")
    given = parser.parse_args(arguments)
    algo, found = rows(given.folder, given.pipeline or given.folder.resolve().name)
    kept = [row for row in learning_curves.read(algo) if row.run != found[0].run]
    learning_curves.FOLDER.mkdir(exist_ok=True)
    (learning_curves.FOLDER / f"{algo}.csv").write_text(learning_curves.text([*kept, *found]), encoding="utf-8")
    return make_algorithms.main([])


if __name__ == "__main__":
    sys.exit(main())
