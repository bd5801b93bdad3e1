"""What a plain `pip install evopipe` can do, and what it says of the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import evopipe
from evopipe.schema.read import read_yaml
from tiny import ROOT, environment, params

# What the extras bring along, most of the size of a full installation that is not torch: none of it can be imported.
_WITHOUT = """
import json, sys
for name in ("mlflow", "dvc", "pandas", "pyarrow", "scipy", "sklearn", "optuna", "matplotlib", "minari", "Box2D",
             "mpe2", "pettingzoo", "huggingface_hub"):
    sys.modules[name] = None
"""
_TRAINS = """
import evopipe
told = json.load(sys.stdin)
evopipe.train(told, folder="before")
result = evopipe.train(told, folder="out")
print(result.summary["generations"], evopipe.load("out/models/elite").about["algo"])
"""
_ASKS = """
from evopipe.__main__ import main
for words in (["new", "mine"], ["verify"], ["track", "sync"], ["track", "ui"], ["report"],
              ["env", "check", "LunarLander-v3"], ["env", "check", "simple_spread_v3"]):
    sys.argv = ["evopipe", *words]
    print(words, main(), file=sys.stderr)
"""


def child(folder: Path, script: str, told: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", _WITHOUT + script]
    return subprocess.run(
        words, cwd=folder, env=environment(), input=told, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.thorough
def test_training_from_python_needs_no_extra(tmp_path: Path) -> None:
    short = {"train.max_steps": 80, "train.evo_steps": 40, "train.eval_steps": 10, "evaluate.steps": 10}
    done = child(tmp_path, _TRAINS, json.dumps(params(short)))
    assert done.stdout == "2 dqn\n", done.stderr
    without = "it needs matplotlib, which is not installed: pip install 'evopipe[report]'"
    assert done.stderr.splitlines().count(f"warning: no report was written: {without}") == 1, "of two trainings"
    assert (tmp_path / "out/reports/evaluation.json").exists()
    assert not (tmp_path / "out/reports/report.html").exists()


@pytest.mark.thorough
def test_what_needs_an_extra_names_its_command(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    said = child(tmp_path, _ASKS).stderr.splitlines()
    assert said == [
        "error: new needs dvc, which is not installed: pip install 'evopipe[pipeline]'",
        "['new', 'mine'] 66",
        "error: verify needs dvc, which is not installed: pip install 'evopipe[pipeline]'",
        "['verify'] 66",
        "error: track sync in a DVC repository needs dvc, which is not installed: pip install 'evopipe[pipeline]'",
        "['track', 'sync'] 66",
        "error: track ui needs mlflow, which is not installed: pip install 'evopipe[mlflow]'",
        "['track', 'ui'] 66",
        "error: the report needs matplotlib, which is not installed: pip install 'evopipe[report]'",
        "['report'] 66",
        "error: env.id: 'LunarLander-v3' needs a package that is not installed: pip install 'evopipe[box2d]'",
        "['env', 'check', 'LunarLander-v3'] 65",
        "error: env.id: unknown environment 'simple_spread_v3'; teams need PettingZoo, which is not installed: "
        "pip install 'evopipe[teams]'",
        "['env', 'check', 'simple_spread_v3'] 65",
    ]
    assert not (tmp_path / "mine").exists()


def test_the_repository_installs_every_extra() -> None:
    """But those that need more than a wheel, a GPU (vLLM) or a build (packages of reasoning-gym's and textarena's), and
    those that rows of the zoo alone need."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (all_of_them,) = (entry for entry in extras["dev"] if entry.startswith("evopipe["))
    left_out = {"vllm", "reasoning", "textarena", "highway", "foraging"}
    named = set(all_of_them.removeprefix("evopipe[").removesuffix("]").split(","))
    assert named == set(extras) - {"dev"} - left_out


HEAVY = {"box2d", "minari", "matplotlib", "mpe2", "pettingzoo", "scipy", "dvc", "mlflow", "transformers"}


def test_without_extras_little_is_installed() -> None:
    """What everybody gets is all that training, loading and playing need; the rest is asked for by name."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert not HEAVY & brought([Requirement(each) for each in named])


def wanted() -> set[str]:
    """Everything that `pip install -e '.[dev]'` brings along here, by normalised name."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [named["dependencies"], *named["optional-dependencies"].values()]
    left = [Requirement(each) for each in chain(*lists)]
    return brought([each for each in left if each.name not in ("vllm", "reasoning-gym", "textarena", "evopipe")])


def brought(left: list[Requirement]) -> set[str]:
    """Everything that these bring along here, by normalised name."""
    found: set[str] = set()
    seen = set()
    while left:
        needed = left.pop()
        name = canonicalize_name(needed.name)
        if (name, *sorted(needed.extras)) in seen:
            continue
        seen.add((name, *sorted(needed.extras)))
        try:
            more = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        found.add(name)
        for extra in ("", *needed.extras):
            left += [each for each in more if not each.marker or each.marker.evaluate({"extra": extra})]
    return found


def test_whatever_the_set_up_installs_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    here = {name: importlib.metadata.version(name).partition("+")[0] for name in wanted()}
    assert len(here) > 150
    assert {name: version for name, version in here.items() if pins.get(name) != version} == {}
    assert lines == sorted(lines, key=lambda line: canonicalize_name(line.partition("==")[0]))


def test_the_citation_is_of_this_version_and_hooks_fetch_nothing() -> None:
    cited = read_yaml(ROOT / "CITATION.cff").data
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", evopipe.__version__)
    (hooks,) = read_yaml(ROOT / ".pre-commit-config.yaml").data["repos"]
    assert hooks["repo"] == "local"
    for hook in hooks["hooks"]:
        assert hook["language"] == "system"
        program = Path(hook["entry"].split()[0])
        assert program.parent == Path(".venv/bin")
        assert importlib.util.find_spec(program.name) is not None
