"""`dvc.yaml` tracks what a stage computes with: every parameter, and the code of its import closure."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from evopipe import layout
from evopipe.agents.settings import Agents
from evopipe.algos import get, on_policy
from evopipe.params.load import load_params
from evopipe.params.text import LanguageParams
from evopipe.schema.read import parse_yaml, read_yaml
from evopipe.schema.runtime import NEUTRAL as NEUTRAL_RUNTIME
from evopipe.schema.write import dump_yaml

ROOT = Path(__file__).parents[3]
PARAMS = read_yaml(ROOT / "params.yaml").data
STAGES: dict[str, Any] = read_yaml(ROOT / "dvc.yaml").data["stages"]
# Rooms, and modules that are in none, that steer a run or report on it: no result depends on how they are written, but
# for what of them a stage names.
NEUTRAL = (
    "params/", "schema/", "stages/", "storage/", "track/",
    "__init__.py", "__main__.py", "cli.py", "cli_agent.py", "cli_env.py", "cli_params.py", "cli_shared.py",
    "cli_zoo.py", "errors.py", "formats.py", "imports.py", "layout.py", "own.py", "parallel.py",
    "plugins.py", "signals.py", "version.py", "watchdog.py",
)  # fmt: skip


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


def code_of(stage: str) -> list[str]:
    """What of the package a stage depends on, folders and files."""
    return [dep.removeprefix("src/evopipe/") for dep in tracked(stage, "deps") if dep.startswith("src/evopipe/")]


def below(file: str, deps: list[str]) -> bool:
    return any(file == dep or file.startswith(f"{dep}/") for dep in deps)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_whole_folders(stage: str) -> None:
    """But where all else in a folder is of other stages; the tree as a whole would retrain for every edit."""
    deps = code_of(stage)
    for dep in deps:
        assert (ROOT / "src/evopipe" / dep).exists(), dep
        own = (f"stages/{stage}.py", "storage/members.py", "searchers/__init__.py")
        assert "/" not in dep or dep in own
    assert {"algos", "machine.py", f"stages/{stage}.py"} <= {*deps}
    assert not {"src", "src/evopipe"} & {*tracked(stage, "deps")}


_TRACED = """
import atexit, json, sys
from evopipe.__main__ import main
sys.argv = ["evopipe", sys.argv[1]]
code = main()
files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "evopipe"]
open("imported.json", "w").write(json.dumps(files))
sys.exit(code)
"""
ALGORITHMS = {
    "dqn": {"train.warm_start": 100},
    "ppo": {"algos.ppo.learn_step": 128, "train.mode": "online"},
    "matd3": {"env.id": "teams_for_tests:Relay", "env.kwargs": {"kind": "continuous"}},
}


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_stage_depends_on_all_that_it_imports_and_on_nothing_else(algo: str, tmp_path: Path) -> None:
    """The modules that a tiny run of each stage holds when it ends, beside what dvc.yaml names."""
    block = get(algo).Config.model_validate({"learn_step": 128} if algo == "ppo" else {}).model_dump(mode="json")
    tiny.write_params(
        tmp_path, {"train.max_steps": 400, "train.algo": algo, f"algos.{algo}": block, **ALGORITHMS[algo]}
    )
    for stage in list(STAGES) if algo == "dqn" else list(STAGES)[2:]:
        words = [sys.executable, "-c", _TRACED, stage]
        ran = subprocess.run(words, cwd=tmp_path, env=tiny.environment(), capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (stage, ran.stderr)
        top, deps = ROOT / "src/evopipe", code_of(stage)
        found = json.loads((tmp_path / "imported.json").read_text())
        files = {Path(file).relative_to(top).as_posix() for file in found}
        assert {file for file in files if not below(file, deps) and not file.startswith(NEUTRAL)} == set(), stage
        code = [dep for dep in deps if (top / dep).is_dir() or dep.endswith(".py")]
        idle = {dep for dep in code if not any(below(file, [dep]) for file in files)}
        assert idle == set(), stage


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_what_an_earlier_one_writes(stage: str) -> None:
    earlier: set[str] = set()
    for other in STAGES:
        if other == stage:
            break
        for section in ("outs", "metrics", "plots"):
            earlier.update(tracked(other, section))
    assert {dep for dep in tracked(stage, "deps") if not dep.startswith("src/")} <= earlier


def test_the_outs_of_a_stage_lie_where_the_layout_says() -> None:
    assert list(STAGES) == list(layout.OUTS)
    for stage, outs in layout.OUTS.items():
        written = {path for section in ("outs", "metrics", "plots") for path in tracked(stage, section)}
        assert written == {out.as_posix() for out in outs}, stage


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
    free = {f"runtime.{key}" for key in NEUTRAL_RUNTIME & PARAMS["runtime"].keys()} | {"tracking", "env.step_seconds"}
    assert set(untracked(PARAMS, "")) == unused | free


def test_the_fitness_plot_names_columns_of_the_file() -> None:
    from evopipe.run.outs import CURVE

    (plot,) = read_yaml(ROOT / "dvc.yaml").data["plots"]
    assert {plot["fitness"]["x"], *plot["fitness"]["y"]["reports/fitness.csv"]} <= set(CURVE)


def has_block(params: Path, name: str) -> bool:
    """Whether a params file has a block of this name; to parse every file would take seconds of each collection."""
    return f"\n{name}:" in params.read_text()


OF_STAGES, OF_AGENTS = (
    sorted(path for path in (ROOT / "pipelines").glob("**/params.yaml") if has_block(path, "agents") == agents)
    for agents in (False, True)
)
"""Parameters of the seven stages, and configurations of `AgentTrainer`."""
OF_ENVIRONMENTS = [path for path in OF_STAGES if path.parent.parent.name == "pipelines" and has_block(path, "env")]


@pytest.mark.parametrize("path", OF_ENVIRONMENTS, ids=lambda path: path.parent.name)
@pytest.mark.thorough
def test_no_shipped_pipeline_sets_what_is_not_used(path: Path) -> None:
    params = load_params(path)
    if on_policy(get(params.train.algo)):
        assert (params.train.warm_start, params.train.replay.n_step, params.train.replay.prioritised) == (0, 1, False)


@pytest.mark.thorough
@pytest.mark.parametrize("params", OF_STAGES, ids=lambda path: path.parent.name)
def test_every_algorithm_of_a_pipeline_can_be_chosen(params: Path, tmp_path: Path) -> None:
    """As by `dvc exp run -S train.algo=...`: its block is as complete as that of the pipeline's own."""
    data = read_yaml(params).data
    for algo in data["algos"]:
        chosen = {**data, "train": {**data["train"], "algo": algo}}
        (tmp_path / "params.yaml").write_text(dump_yaml(chosen))
        assert load_params(tmp_path / "params.yaml").train.algo == algo


@pytest.mark.thorough
def test_every_pipeline_folder_can_be_run_as_it_is() -> None:
    for params in OF_STAGES:
        load_params(params)
        assert parse_yaml((params.parent / "dvc.yaml").read_text(), "dvc.yaml").data["stages"]


@pytest.mark.parametrize("params", OF_AGENTS, ids=lambda path: path.parent.relative_to(ROOT / "pipelines").as_posix())
def test_a_pipeline_of_agents_is_a_configuration_of_its_trainer(params: Path) -> None:
    pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
    from evopipe.compat.rllm.config import resolve

    found, data = resolve([str(params), "seed=7"], None, 100, "other"), read_yaml(params).data
    assert found.params.seed == 7
    assert found.params.language.task == data["language"]["task"]
    assert found.agents.max_steps == data["agents"]["max_steps"]
    assert found.notes == []


# --- Files that pipelines/make.py writes ------------------------------------------------------------------------------


def names_of(file: str) -> list[str]:
    """The folders, below pipelines, that hold such a file: some build on each other and share one."""
    found = [path.parent for pattern in ("*", "*/*") for path in (ROOT / "pipelines").glob(f"{pattern}/{file}")]
    return sorted(path.relative_to(ROOT / "pipelines").as_posix() for path in found)


WORKLOADS = names_of("changes.yaml")
OF_TEXT = {name for name in WORKLOADS if has_block(ROOT / "pipelines" / name / "params.yaml", "language")}
WITH_AGENTS = {path.parent.relative_to(ROOT / "pipelines").as_posix() for path in OF_AGENTS}


@pytest.fixture
def make() -> Any:
    """`pipelines/make.py`, as a module."""
    spec = importlib.util.spec_from_file_location("make_pipelines", ROOT / "pipelines/make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAPPINGS = ("env.kwargs", "language.kwargs", "agents.estimators")


def leaves(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Every value that is not a block, by its dotted key; each of `MAPPINGS` is one value."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        here = f"{path}.{key}".lstrip(".")
        blocks = isinstance(value, dict) and value and here not in MAPPINGS
        found |= leaves(value, here) if blocks else {here: value}
    return found


@pytest.mark.thorough
def test_every_pipelines_files_are_made_and_fresh(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert names_of("dvc.yaml") == WORKLOADS
    assert make.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.thorough
def test_a_pipeline_is_the_root_and_the_blocks_defaults_with_its_changes(name: str) -> None:
    made = read_yaml(ROOT / "pipelines" / name / "params.yaml").data
    changes = read_yaml(ROOT / "pipelines" / name / "changes.yaml").data
    whole = LanguageParams().model_dump(mode="json") if name in OF_TEXT else PARAMS
    root = {key: value for key, value in whole.items() if key != "algos"}
    if name in WITH_AGENTS:
        del root["fetch"]
        root["agents"] = Agents().model_dump(mode="json")
    root["runtime"] = {key: value for key, value in root["runtime"].items() if key != "shards"}  # may be left out
    blocks = made.pop("algos")
    assert leaves(made) == leaves(root) | leaves(changes["params"])
    assert list(blocks) == list(changes["algos"])
    for algo, block in blocks.items():
        defaults = get(algo).Config().model_dump(mode="json")
        assert leaves(block) == leaves(defaults) | leaves(changes["algos"][algo])


@pytest.mark.parametrize("name", sorted(WITH_AGENTS))
def test_a_pipeline_of_agents_depends_on_its_base_and_on_who_makes_its_trainer(name: str) -> None:
    data = read_yaml(ROOT / "pipelines" / name / "dvc.yaml").data
    base = read_yaml(ROOT / "pipelines" / name / "params.yaml").data["language"]["model"]
    own = sorted(path.name for path in (ROOT / "pipelines" / name).glob("*.py"))
    (stage,) = data["stages"].values()
    assert stage["deps"] == ["src/evopipe", *own, *([base] if base != "tiny" else [])]
    assert stage["cmd"].split()[5] == f"{Path(own[0]).stem}:make"
    if base == "tiny":  # of random weights
        return
    upstream = ROOT / "pipelines" / name / Path(base).parents[2] / "dvc.yaml"
    assert "models/elite" in read_yaml(upstream).data["stages"]["export"]["outs"]


@pytest.mark.parametrize("name", sorted({*WORKLOADS} - WITH_AGENTS))
@pytest.mark.thorough
def test_a_pipelines_stages_are_its_shapes_and_depend_on_its_own_files(name: str) -> None:
    data = read_yaml(ROOT / "pipelines" / name / "dvc.yaml").data
    params, text = read_yaml(ROOT / "pipelines" / name / "params.yaml").data, name in OF_TEXT
    offline = text or params["train"]["mode"] == "offline"
    own = sorted(path.name for path in (ROOT / "pipelines" / name).glob("*.py"))
    assert list(data["stages"]) == list(STAGES)[0 if offline else 2 :]
    for stage in data["stages"].values():
        assert [dep for dep in stage["deps"] if dep.endswith(".py")] == own
    assert {dep for stage in data["stages"].values() for dep in stage["deps"]} >= {"src/evopipe", "models/elite"}
    assert ("data/transitions.h5" in data["stages"]["train"]["deps"]) == (offline and not text)
    assert ("data/tokens" in data["stages"]["train"]["deps"]) == text
    base = params["language"]["model"] if text else "tiny"
    for stage in ("buffer", "population", "train", "evaluate", "export"):
        assert base in ("tiny", "gpt") or base in data["stages"][stage]["deps"]
    start = params["population"]["start"]
    assert start is None or start in data["stages"]["population"]["deps"]


def test_the_root_speaks_of_its_own_stages_alone(tmp_path: Path) -> None:
    """`dvc exp run` of a fresh clone warns of every out that has no hash in a dvc.lock; each pipeline is a project."""
    from dvc.repo import Repo

    for name in ("dvc.yaml", "dvc.lock", "params.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    hidden = shutil.ignore_patterns("data", "models", "reports", ".evopipe", "tmp", "cache", "dvc.lock")
    shutil.copytree(ROOT / "pipelines", tmp_path / "pipelines", symlinks=True, ignore=hidden)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    with Repo(str(tmp_path)) as repo:
        outs = [out for out in repo.index.outs if out.use_cache]
        assert {Path(out.stage.path_in_repo).as_posix() for out in outs} == {"dvc.yaml"}
        assert [str(out) for out in outs if not out.hash_info] == []
    for name in WORKLOADS:
        assert (ROOT / "pipelines" / name / "src").resolve() == (ROOT / "src").resolve()


def one_pipeline(make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str) -> Path:
    """A copy of pipelines/dqn-cartpole alone, with `new` for `old` in its changes."""
    folder = tmp_path / "pipelines"
    shutil.copytree(ROOT / "pipelines/dqn-cartpole", folder / "dqn-cartpole", symlinks=True)
    shutil.copytree(ROOT / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache"))
    shutil.copy(ROOT / "pipelines/shapes.yaml", folder)
    shutil.copy(ROOT / "pipelines/new.yaml", folder)
    shutil.copy(ROOT / ".dvcignore", tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    shutil.copytree(ROOT / make.TEMPLATE, tmp_path / make.TEMPLATE)
    changes = folder / "dqn-cartpole/changes.yaml"
    text = changes.read_text()
    assert text.count(old) == 1
    changes.write_text(text.replace(old, new))
    monkeypatch.setattr(make, "FOLDER", folder)
    return folder / "dqn-cartpole"


@pytest.mark.thorough
def test_a_stale_file_is_named_with_the_command_and_made_anew(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = one_pipeline(make, monkeypatch, tmp_path, "num_envs: 8", "num_envs: 6  # a few")
    before = (folder / "dvc.yaml").read_text()
    assert make.main(["--check"]) == 1
    assert capsys.readouterr().err == ("pipelines/dqn-cartpole/params.yaml: stale, run `python pipelines/make.py`\n")
    assert make.main([]) == 0
    assert "  num_envs: 6  # a few\n  backend: sync  # sync |" in (folder / "params.yaml").read_text()
    assert (folder / "dvc.yaml").read_text() == before
    assert make.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_envs: 8", "num_envs: 16", "num_envs: 16 is what it is"),
        ("params:\n", "file: []\nparams:\n", "called file"),
    ],
)
def test_changes_that_change_nothing_or_are_unknown_are_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, said: str
) -> None:
    one_pipeline(make, monkeypatch, tmp_path, old, new)
    with pytest.raises(SystemExit, match=said):
        make.main(["--check"])
