"""`dvc.yaml` tracks what a stage computes with: every parameter, and the code of its import closure."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evopipe.algos import names
from evopipe.schema.blocks import NEUTRAL as NEUTRAL_RUNTIME
from evopipe.schema.read import parse_yaml, read_yaml
from evopipe.schema.write import dump_yaml

ROOT = Path(__file__).parents[2]
PARAMS = read_yaml(ROOT / "params.yaml").data
STAGES: dict[str, Any] = read_yaml(ROOT / "dvc.yaml").data["stages"]
# They steer a run or report on it; what it computes does not depend on how they are written.
NEUTRAL = {
    "__init__.py", "algos/_hyper.py", "errors.py", "keys.py", "machine.py", "parallel.py", "signals.py", "types.py",
    "stages/paths.py", "stages/tell.py", "stages/tracking.py", "storage/checkpoint.py", "storage/lock.py",
    "storage/safeio.py",
}  # fmt: skip


def value_at(path: str) -> Any:
    value: Any = PARAMS
    for step in path.split("."):
        value = value[step]
    return value


def expanded(text: str) -> str:
    """Fill in `${key.path}` as DVC does."""
    return re.sub(r"\$\{(.*?)\}", lambda match: str(value_at(match[1])), text)


def tracked(stage: str, section: str) -> list[str]:
    return [
        expanded(entry if isinstance(entry, str) else next(iter(entry))) for entry in STAGES[stage].get(section, [])
    ]


@cache
def imports(file: str) -> frozenset[str]:
    """Files of the package that a file imports at its top."""
    found = set()
    for node in ast.parse((ROOT / "src/evopipe" / file).read_text()).body:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            relative = name.replace(".", "/").removeprefix("evopipe/") + ".py"
            if name.startswith("evopipe.") and (ROOT / "src/evopipe" / relative).is_file():
                found.add(relative)
    return frozenset(found)


def closure(file: str) -> set[str]:
    """A file and all that its results depend on."""
    seen, waiting = set(), [file]
    while waiting:
        current = waiting.pop()
        if current not in seen and current not in NEUTRAL and not current.startswith(("schema/", "track/")):
            seen.add(current)
            waiting.extend(imports(current))
    return seen


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_the_code_it_computes_with(stage: str) -> None:
    deps = tracked(stage, "deps")
    covered = [dep.removeprefix("src/evopipe/") for dep in deps if dep.startswith("src/evopipe/")]
    needed = closure(f"stages/{stage}.py")
    if stage != "population" and any(dep.startswith("algos/") for dep in covered):  # loaded by name
        needed |= {
            file for name in names() for file in imports(f"algos/{name}.py") if file.startswith("algos/_")
        } - NEUTRAL
    missing = {file for file in needed if not any(file == dep or file.startswith(f"{dep}/") for dep in covered)}
    assert not missing
    assert all((ROOT / "src/evopipe" / dep).exists() for dep in covered)
    # The tree as a whole would retrain for every edit.
    assert not {"src", "src/evopipe"} & set(deps)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_what_an_earlier_one_writes(stage: str) -> None:
    earlier: set[str] = set()
    for other in STAGES:
        if other == stage:
            break
        for section in ("outs", "metrics", "plots"):
            earlier.update(tracked(other, section))
    assert {dep for dep in tracked(stage, "deps") if not dep.startswith("src/")} <= earlier


def test_every_parameter_is_tracked_by_a_stage() -> None:
    paths = {path for stage in STAGES for path in tracked(stage, "params")}
    for path in paths:
        value_at(path)

    def untracked(value: Any, path: str) -> list[str]:
        if path in paths:
            return []
        if (isinstance(value, dict) and any(other.startswith(f"{path}.") for other in paths)) or not path:
            return [leaf for key in value for leaf in untracked(value[key], f"{path}.{key}".lstrip("."))]
        return [path]

    source = PARAMS["fetch"]["source"]
    unused = {f"fetch.{other}" for other in PARAMS["fetch"] if other not in ("source", source)}
    unused |= {f"algos.{other}" for other in PARAMS["algos"] if other != PARAMS["train"]["algo"]}
    free = {f"runtime.{key}" for key in NEUTRAL_RUNTIME} | {"tracking"}
    assert set(untracked(PARAMS, "")) == unused | free


def test_the_fitness_plot_names_columns_of_the_file() -> None:
    from evopipe.stages.train import CURVE

    (plot,) = read_yaml(ROOT / "dvc.yaml").data["plots"]
    assert {plot["fitness"]["x"], *plot["fitness"]["y"]["reports/fitness.csv"]} <= set(CURVE)


@pytest.mark.parametrize(
    "params", sorted((ROOT / "pipelines").glob("*/params.yaml")), ids=lambda path: path.parent.name
)
def test_every_algorithm_of_a_pipeline_can_be_chosen(params: Path, tmp_path: Path) -> None:
    """As by `dvc exp run -S train.algo=...`: its block is as complete as that of the pipeline's own."""
    from evopipe.schema.params import load_params

    data = read_yaml(params).data
    for algo in data["algos"]:
        chosen = {**data, "train": {**data["train"], "algo": algo}}
        (tmp_path / "params.yaml").write_text(dump_yaml(chosen))
        assert load_params(tmp_path / "params.yaml").train.algo == algo


def test_every_pipeline_folder_can_be_run_as_it_is() -> None:
    from evopipe.schema.params import load_params

    for params in (ROOT / "pipelines").glob("*/params.yaml"):
        load_params(params)
        assert parse_yaml((params.parent / "dvc.yaml").read_text(), "dvc.yaml").data["stages"]
