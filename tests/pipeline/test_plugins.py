"""A package installed beside evopipe: its algorithm, mutation, strategy, tracker and environments serve as our own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import outside
import tiny
from evopipe import plugins
from evopipe.schema.read import parse_yaml
from evopipe.schema.write import dump_yaml

CHANCES = {"none": 0.2, "architecture": 0.2, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.2, "swap_rows": 0.6}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return outside.example(tmp_path_factory.mktemp("site"))


def params(site: Path, folder: Path, **changes: Any) -> Path:
    """Write the params of a small run by what the package brings; `train__max_steps` is `train.max_steps`."""
    block = outside.evopipe(site, folder, "params", "block", "expected_sarsa")
    assert block.returncode == 0, block.stderr
    data = tiny.params({"train.algo": "expected_sarsa", **{k.replace("__", "."): v for k, v in changes.items()}})
    data["algos"] = parse_yaml("algos:\n" + block.stdout, "block").data["algos"]
    data["algos"]["expected_sarsa"] |= {"batch_size": 32, "learn_step": 4}
    data["evolution"]["mutation"]["probabilities"] = dict(CHANCES)
    path = folder / "params.yaml"
    path.write_text(dump_yaml(data))
    return path


def ok(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.thorough
def test_the_command_line_knows_an_algorithm_of_another_package(site: Path, tmp_path: Path) -> None:
    listed = ok(outside.evopipe(site, tmp_path, "algos"))
    assert "expected_sarsa Expected SARSA with a replay memory." in listed
    assert "(own-package 0.1)" in listed
    path = params(site, tmp_path)
    assert ok(outside.evopipe(site, tmp_path, "params", "check")) == "params.yaml: ok\n"
    schema = json.loads(ok(outside.evopipe(site, tmp_path, "params", "schema")))
    assert "expected_sarsa" in json.dumps(schema)

    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "epsilon:" in line)
    lines[at] = lines[at].replace("epsilon:", "epsilom:")
    path.write_text("\n".join(lines))
    refused = outside.evopipe(site, tmp_path, "params", "check")
    assert refused.returncode == 65
    assert (
        f"params.yaml:{at + 1}:5: algos.expected_sarsa.epsilom: unknown key, did you mean 'epsilon'?" in refused.stderr
    )


@pytest.mark.slow
def test_what_a_package_brings_runs_from_the_population_to_the_report(site: Path, tmp_path: Path) -> None:
    changes = {"env.id": "own_package.slope:Slope", "env.backend": "slope", "tracking.backends": ["jsonlines"],
               "tracking.finish_seconds": 60.0, "export.program": True}  # fmt: skip
    path = params(site, tmp_path, **changes)
    data = parse_yaml(path.read_text(), "params.yaml").data
    data["algos"]["expected_sarsa"]["network"] |= {"module": "own_package.network:Gated", "kwargs": {"hidden": 32}}
    path.write_text(dump_yaml(data))
    for stage in ("population", "train", "evaluate", "export", "report"):
        ok(outside.evopipe(site, tmp_path, stage))
    lineage = [json.loads(line) for line in (tmp_path / "reports/lineage.jsonl").read_text().splitlines()]
    assert '"kind": "swap_rows"' in json.dumps(lineage)
    assert '"what": "add units"' in json.dumps(lineage)
    (log,) = (tmp_path / ".evopipe/jsonlines").glob("*.jsonl")
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["generation"] for line in told] == [1, 2, 3, 4, 5]
    about = json.loads((tmp_path / "models/elite/policy.json").read_text())
    assert about["algo"] == "expected_sarsa"
    acts = "import evopipe; print(evopipe.load('models/elite', trust=True).act([0.1]) in (0, 1))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tiny.ROOT / "src"), str(site)])}
    ran = subprocess.run([sys.executable, "-c", acts], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ok(ran) == "True\n"
    # Without the package the policy cannot be had, and a sentence says why.
    env["PYTHONPATH"] = str(tiny.ROOT / "src")
    ran = subprocess.run([sys.executable, "-c", acts], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "no algorithm 'expected_sarsa'" in ran.stderr


@pytest.mark.thorough
def test_a_run_searches_by_another_package_s_strategy(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    data = tiny.params({"train.max_steps": 1200})
    data["algos"] = {"dqn": data["algos"]["dqn"]}
    path.write_text(dump_yaml({**data, "search": {**data["search"], "strategy": "comma"}}))
    refused = outside.evopipe(site, tmp_path, "params", "check")
    assert refused.returncode == 65
    assert "search.comma: missing block: add it, the defaults are {sigma: 0.1}" in refused.stderr
    search = {**data["search"], "strategy": "comma", "comma": {"sigma": 0.0}}
    path.write_text(dump_yaml({**data, "search": search}))
    refused = outside.evopipe(site, tmp_path, "params", "check")
    at = next(i for i, line in enumerate(path.read_text().splitlines(), 1) if line.strip().startswith("sigma:"))
    assert f"params.yaml:{at}:5: search.comma.sigma: must be above 0, got 0.0" in refused.stderr
    search["comma"] = {"sigma": 0.2}
    path.write_text(dump_yaml({**data, "search": search}))
    for stage in ("population", "train"):
        ok(outside.evopipe(site, tmp_path, stage))
    first, second, *_ = (json.loads(line) for line in (tmp_path / "reports/lineage.jsonl").read_text().splitlines())
    assert len({child["hyper"]["lr"] for child in first["children"]}) == 3
    best = max(second["members"], key=lambda member: member["fitness"])
    assert [child["parent_slot"] for child in second["children"]] == [best["slot"]] * 3
    assert {child["why"] for child in second["children"]} == {"a child of the fittest"}
    # Where the package is not installed, a sentence says which strategies there are.
    lacking = outside.evopipe(tmp_path, tmp_path, "params", "check")
    assert lacking.returncode == 65
    assert "search.strategy: there is no strategy 'comma'" in lacking.stderr


def checkpoints(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob(".evopipe/train/*/checkpoints*")}


@pytest.mark.slow
def test_another_source_is_another_run(tmp_path: Path) -> None:
    """Checkpoints of a run that was killed are taken up by the same algorithm alone: its package's files and version
    are part of what a run depends on."""
    site = outside.example(tmp_path / "site")
    folder = tmp_path / "project"
    folder.mkdir()
    params(site, folder, train__max_steps=10**7, runtime__checkpoint_seconds=0.01)
    ok(outside.evopipe(site, folder, "population"))

    def stopped() -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(outside.ROOT / "src"), str(site)])}
        before = {path: path.stat().st_mtime_ns for path in folder.glob(".evopipe/train/*/checkpoints/*")}
        run = subprocess.Popen([sys.executable, "-m", "evopipe", "-q", "train"], cwd=folder, env=env)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            now = {path: path.stat().st_mtime_ns for path in folder.glob(".evopipe/train/*/checkpoints/*")}
            if now.items() - before.items():
                break
            time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130

    stopped()
    (first,) = checkpoints(folder)
    stopped()
    assert checkpoints(folder) == {first}
    helper = site / "own_package/mutations.py"  # not the algorithm's own file: any of the package may serve it
    helper.write_text(helper.read_text() + "\n# another\n")
    stopped()
    assert len(checkpoints(folder)) == 2
    info = site / "own_package-0.1.dist-info/METADATA"
    info.write_text(info.read_text().replace("0.1", "0.2"))
    stopped()
    assert len(checkpoints(folder)) == 3


# ------------------------------------------------------------------------------------------------ what goes wrong


BROKEN = {
    "raises": "raise RuntimeError('a bad day')",
    "lacks": "REGIME = 'off_policy'",
    "needs": "import no_such_package",
    "other": "REGIME = 'by_night'",
    "config": "from own_package.expected_sarsa import *\nclass Config: ...",
    "short": "from own_package.expected_sarsa import *\nfrom evopipe.schema.declare import AlgoConfig\n"
    "class Config(AlgoConfig):\n    evolve: dict = {}",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = outside.example(tmp_path_factory.mktemp("broken"))
    points = {}
    for name, text in BROKEN.items():
        (site / f"bad_{name}.py").write_text(text)
        points[name] = f"bad_{name}"
    points |= {"ddpg": "bad_raises", "gone": "no_such_module", "form": "not a module", "value": "bad_lacks:REGIME"}
    trackers, mutations = {"mlflow": "x", "bad": "bad_lacks"}, {"architecture": "x:y", "twice": "x:y"}
    outside.lay(site, "broken", {"evopipe.algos": points, "evopipe.trackers": trackers, "evopipe.mutations": mutations})
    return outside.lay(site, "other", {"evopipe.algos": {"expected_sarsa": "x"}, "evopipe.mutations": {"twice": "z:y"}})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "the package 'broken' (entry point 'raises' of 'evopipe.algos', bad_raises) cannot be imported: "
                   "RuntimeError: a bad day; mend or uninstall it"),
        ("lacks", "(entry point 'lacks' of 'evopipe.algos', bad_lacks) does not define 'PAPER' (the paper's link)"),
        ("needs", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("other", "bad_other): REGIME is 'by_night', there are "),
        ("config", "Config is no subclass of evopipe.schema.declare.AlgoConfig; mend or uninstall it"),
        ("short", "Config lacks batch_size, learn_step, network, which every run of 'off_policy' reads"),
        ("ddpg", "'ddpg' is evopipe's own, and the package 'broken' (entry point 'ddpg' of 'evopipe.algos', "
                 "bad_raises) offers it too: rename or uninstall that one"),
        ("gone", "No module named 'no_such_module'"),
        ("form", "names neither a module nor a module's name: mend its metadata"),
        ("value", "names no module but a str: mend its metadata"),
        ("expected_sarsa", "'expected_sarsa' is offered twice, by the package 'other' (entry point 'expected_sarsa' of "
                           "'evopipe.algos', x) and by the package 'own-package'"),
        ("expected_sarse", "unknown algorithm 'expected_sarse', did you mean 'expected_sarsa'?"),
    ],
)  # fmt: skip
def test_a_bad_algorithm_gives_one_sentence(broken: Path, tmp_path: Path, name: str, said: str) -> None:
    path, data = tmp_path / "params.yaml", tiny.params({"train.algo": name})
    path.write_text(dump_yaml({**data, "algos": {"dqn": data["algos"]["dqn"]}}))
    refused = outside.evopipe(broken, tmp_path, "params", "check")
    assert refused.returncode == 65, refused.stderr
    (line,) = refused.stderr.splitlines()
    at = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("  algo:"))
    assert line.startswith(f"error: params.yaml:{at}:3: train.algo: "), line
    assert said in line


@pytest.mark.thorough
def test_broken_packages_harm_nobody_else(broken: Path, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    data = tiny.params()
    path.write_text(dump_yaml({**data, "algos": {"dqn": data["algos"]["dqn"]}}))
    assert ok(outside.evopipe(broken, tmp_path, "params", "check")) == "params.yaml: ok\n"
    listed = outside.evopipe(broken, tmp_path, "algos")
    assert "dqn " in ok(listed)
    assert "warning: raises: the package 'broken' (entry point 'raises'" in listed.stderr
    ok(outside.evopipe(broken, tmp_path, "params", "schema"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("evolution.mutation.probabilities.twice", 0.5, "'twice' is offered twice, by the package 'broken'"),
        ("evolution.mutation.probabilities.swap_row", 0.5, "unknown key, did you mean 'swap_rows'?"),
        ("evolution.mutation.probabilities.swap_rows", -1.0, "must be at least 0, got -1.0"),
        ("tracking.backends", ["mlflow"], "'mlflow' is evopipe's own, and the package 'broken'"),
        ("tracking.backends", ["mlfow"], "got \"mlfow\""),
        ("env.backend", "slop", "must be 'c', 'envpool', 'sync' or 'torch', got 'slop'"),
    ],
)  # fmt: skip
def test_a_bad_name_gives_one_sentence_and_its_place(
    broken: Path, tmp_path: Path, key: str, value: Any, said: str
) -> None:
    data = tiny.params()
    data["algos"] = {"dqn": data["algos"]["dqn"]}
    *blocks, name = key.split(".")
    place = data
    for block in blocks:
        place = place[block]
    place[name] = value
    (tmp_path / "params.yaml").write_text(dump_yaml(data))
    refused = outside.evopipe(broken, tmp_path, "params", "check")
    assert refused.returncode == 65
    (line,) = refused.stderr.splitlines()
    assert said.replace('"', "'") in line.replace('"', "'"), line
    assert key in line


def test_help_looks_for_no_entry_points(site: Path, tmp_path: Path) -> None:
    program = """
import sys
from evopipe.__main__ import main
sys.argv = ["evopipe", "--help"]
main()
assert "evopipe.plugins" not in sys.modules, "--help pays for entry points"
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(outside.ROOT / "src"), str(site)])}
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    ok(ran)


def test_the_files_of_a_package_are_all_of_its_sources(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    named, files = plugins.sources(["own_package.expected_sarsa", "own_package.mutations"])
    modules = ("__init__", "comma", "expected_sarsa", "jsonlines", "mutations", "network", "slope")
    assert named == [f"own_package/{name}.py" for name in modules]
    assert [file.name for file in files] == [name.partition("/")[2] for name in named]
    assert plugins.sources(["no_such_module", "no_such.module"]) == ([], [])
