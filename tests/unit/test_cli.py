"""The command line: commands, exit codes, speed, and the code that runs under DVC."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import evopipe
from evopipe import layout
from evopipe.__main__ import _globals_first, _report, main
from evopipe.errors import BusyError, Interrupted, ParamsError
from evopipe.params.load import Params
from evopipe.schema.read import parse_yaml
from tiny import call, environment, write_params

ROOT = Path(__file__).parents[2]
STAGES = ("fetch", "buffer", "population", "train", "evaluate", "export")


def run(
    *arguments: str, cwd: Path = ROOT, source: Path = ROOT / "src", flags: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m evopipe` as a user would."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "EVOPIPE_"))}
    return subprocess.run(
        [sys.executable, *flags, "-m", "evopipe", *arguments],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(source), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def outcome(result: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    assert result.stdout == ""
    return result.returncode, result.stderr


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


# --- what the light commands print ------------------------------------------------------------------------------------


def test_help_names_every_command() -> None:
    result = run("--help")
    assert (result.returncode, result.stderr) == (0, "")
    for command in (*STAGES, "play", "compare", "verify", "new", "params", "env", "algos"):
        assert f"\n  {command} " in result.stdout
    assert run().stdout == result.stdout
    assert run("train", "-h").returncode == 0


def test_version() -> None:
    assert run("--version").stdout == f"evopipe {evopipe.__version__}\n"


def test_params_check_says_ok(workspace: Path) -> None:
    assert run("params", "check", cwd=workspace).stdout == "params.yaml: ok\n"
    assert run("params", "check", "--quiet", cwd=workspace).stdout == ""
    (workspace / "params.yaml").rename(workspace / "other.yaml")
    assert run("--params", "other.yaml", "params", "check", cwd=workspace).stdout == "other.yaml: ok\n"
    assert run("params", "check", "--params=other.yaml", cwd=workspace).stdout == "other.yaml: ok\n"


def test_params_check_lists_every_problem_and_exits_65(workspace: Path) -> None:
    path = workspace / "params.yaml"
    path.write_text(path.read_text().replace("seed: 1", "seed: x").replace("  dqn:\n", "  dqn:\n    lrr: 1\n"))
    code, message = outcome(run("params", "check", cwd=workspace))
    assert code == 65
    first, second = message.splitlines()
    assert first.startswith("error: params.yaml:")
    assert first.endswith(": seed: must be a whole number, got 'x'")
    assert second.endswith(": algos.dqn.lrr: unknown key, did you mean 'lr'?")


def test_params_show_prints_what_is_in_effect(workspace: Path) -> None:
    shown = parse_yaml(run("params", "show", cwd=workspace).stdout, "shown").data
    original = parse_yaml((workspace / "params.yaml").read_text(), "params.yaml").data
    assert shown["runtime"].pop("shards")["engine"] == "none"  # a block that may be left out
    assert shown == original


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("env.num_envs", "16"),
        ("train.algo", "dqn"),
        ("evaluate.steps", "null"),
        ("export.program", "true"),
        ("algos.dqn.network.encoder.0", "128"),
        ("evolution.tournament", "size: 2\nelitism: true\nwindow: 1"),
    ],
)
@pytest.mark.thorough
def test_params_show_one_value(workspace: Path, key: str, shown: str) -> None:
    path = workspace / "params.yaml"
    path.write_text(path.read_text().replace("encoder: [64]", "encoder: [128]"))
    assert run("params", "show", key, cwd=workspace).stdout == f"{shown}\n"


@pytest.mark.thorough
def test_params_show_of_an_unknown_key(workspace: Path) -> None:
    assert outcome(run("params", "show", "train.algi", cwd=workspace)) == (
        64,
        "error: params show: no key 'algi' in train.algi, did you mean 'algo'?\n",
    )
    assert outcome(run("params", "show", "seed.x", cwd=workspace)) == (
        64,
        "error: params show: no key 'x' in seed.x, there are no keys there\n",
    )


@pytest.mark.thorough
def test_params_block_prints_what_a_params_file_lacks(workspace: Path) -> None:
    path = workspace / "params.yaml"
    path.write_text(path.read_text().replace("algo: dqn", "algo: ppo"))
    code, message = outcome(run("params", "check", cwd=workspace))
    assert code == 65
    assert message.endswith("algos.ppo: missing block: put what `evopipe params block ppo` prints below `algos:`\n")
    with path.open("a") as file:
        file.write(run("params", "block", "ppo").stdout)
    assert run("params", "check", cwd=workspace).stdout == "params.yaml: ok\n"


def test_params_block_of_an_unknown_algorithm() -> None:
    code, message = outcome(run("params", "block", "dqm"))
    assert (code, message) == (
        64,
        "error: params block: no algorithm 'dqm', did you mean 'dqn'?\n",
    )


@pytest.mark.thorough
def test_params_schema_is_json() -> None:
    assert "dqn" in json.loads(run("params", "schema").stdout)["$defs"]["Algos"]["properties"]


def test_algos_lists_name_line_and_paper() -> None:
    rows = run("algos").stdout.splitlines()
    assert any(row.startswith("dqn ") and row.endswith("https://doi.org/10.1038/nature14236") for row in rows)


@pytest.mark.thorough
def test_env_check() -> None:
    result = run("env", "check", "CartPole-v1")
    assert (result.returncode, result.stdout) == (0, "CartPole-v1: ok\n")
    code, _, message = call(ROOT, "env", "check", "CartPol-v1")
    assert code == 65
    assert message == "error: env.id: unknown environment 'CartPol-v1', did you mean 'CartPole-v1'?\n"


def test_env_check_of_an_environment_that_cannot_be_used() -> None:
    code, _, message = call(ROOT / "tests", "env", "check", "envs_for_tests:Text-v0")
    assert code == 71
    assert message.splitlines()[-1].startswith("error: envs_for_tests:Text-v0: ")
    assert "is not served" in message


@pytest.mark.parametrize(("kwargs", "what"), [("{", "not JSON ("), ("[1]", "must be a JSON object: write it like ")])
def test_env_check_with_bad_arguments(kwargs: str, what: str) -> None:
    code, message = outcome(run("env", "check", "CartPole-v1", "--kwargs", kwargs))
    assert code == 64
    assert message.startswith(f"error: Invalid value for '--kwargs': {what}")


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "error: No such command 'trian'. Did you mean 'train', 'track'? (see evopipe --help)\n"),
        (["train", "--foo"], "error: No such option: --foo (see evopipe train --help)\n"),
        (["env", "check"], "error: Missing argument 'ID' (see evopipe env check --help)\n"),
        (["params", "check", "--params"], "error: --params needs the name of a file: --params FILE\n"),
    ],
)
def test_wrong_usage_exits_64(arguments: list[str], message: str) -> None:
    assert outcome(run(*arguments)) == (64, message)


def test_a_group_without_command_shows_its_help_and_exits_64() -> None:
    code, message = outcome(run("params"))
    assert code == 64
    assert message.startswith("Usage: evopipe params [OPTIONS] COMMAND [ARGS]...\n")


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_without_params_file_exits_66(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["evopipe", stage])
    assert main() == 66
    assert capsys.readouterr() == (
        "",
        f"error: params.yaml: there is no such file (in {tmp_path}): run where it is, or name it with --params\n",
    )


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BusyError("a: busy"), 75, "error: a: busy\n"),
        (ParamsError("a: wrong\nb: wrong"), 65, "error: a: wrong\nerror: b: wrong\n"),
        (Interrupted(15, "saved"), 143, "error: saved\n"),
        (MemoryError("no"), 72, "error: memory ran out (no); lower "),
        (OSError(errno.ENOSPC, "full", "x"), 74, "error: x: a file could not be written (full); free some space "),
        (
            ValueError("odd\nstate"),
            1,
            "error: internal error: ValueError: odd state; this is a bug in evopipe: re-run with ",
        ),
        (
            KeyError(),
            1,
            "error: internal error: KeyError; this is a bug in evopipe: re-run with --debug and report it\n",
        ),
    ],
)
def test_every_failure_becomes_a_sentence_and_an_exit_code(
    error: Exception, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _report(error) == code
    assert capsys.readouterr().err.startswith(message)


def copy_tree(target: Path) -> None:
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.thorough
def test_an_interrupted_stage_exits_130(workspace: Path) -> None:
    copy_tree(workspace)
    (workspace / "src/evopipe/stages/fetch.py").write_text(
        "import os, signal\n\ndef run(params, *, quiet):\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    found = outcome(run("fetch", cwd=workspace, source=workspace / "src"))
    assert found == (130, "error: interrupted\n")


@pytest.fixture
def odd_stage(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run `fetch` in, which has a bug."""

    def run(params: Params, quiet: bool) -> None:
        raise ValueError("odd")

    monkeypatch.setattr("evopipe.stages.fetch.run", run)
    return workspace


def test_a_bug_shows_one_sentence(odd_stage: Path) -> None:
    code, _, text = call(odd_stage, "fetch")
    assert code == 1
    assert text == (
        "error: internal error: ValueError: odd; this is a bug in evopipe: re-run with --debug and report it\n"
    )


def test_debug_adds_the_traceback(odd_stage: Path) -> None:
    code, _, text = call(odd_stage, "fetch", "--debug")
    assert code == 1
    assert text.startswith("Traceback (most recent call last):\n")
    assert "ValueError: odd\nerror: internal error: ValueError: odd; " in text


def test_common_options_may_stand_after_the_command() -> None:
    assert _globals_first(["train", "--quiet", "--params", "x", "--debug"]) == [
        "--quiet",
        "--params",
        "x",
        "--debug",
        "train",
    ]
    assert _globals_first(["params", "show", "--params=x", "a"]) == ["--params=x", "params", "show", "a"]
    assert _globals_first(["params", "show", "--", "--quiet"]) == ["params", "show", "--", "--quiet"]


# --- speed ------------------------------------------------------------------------------------------------------------


def processor_seconds(cache: Path, *words: str) -> float:
    """The least processor time of five runs of Python, which keep byte code in `cache`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONPYCACHEPREFIX": str(cache)}
    costs = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs)


@pytest.mark.thorough
def test_light_commands_answer_at_once(tmp_path: Path) -> None:
    """A small multiple of what their three libraries take to load; torch alone would be twelve times that."""
    libraries = processor_seconds(tmp_path, "-c", "import ruamel.yaml, typer; from pydantic import BaseModel, Field")
    for words, most in (("--help", 1.2), ("params check", 2.7), ("algos", 2.8)):
        assert processor_seconds(tmp_path, "-m", "evopipe", *words.split()) < most * libraries, words


@pytest.mark.parametrize(
    "arguments",
    [["params", "check"], ["params", "show"], ["params", "schema"], ["params", "block", "ppo"], ["algos"]],
)
@pytest.mark.thorough
def test_light_commands_load_no_heavy_package(arguments: list[str]) -> None:
    program = f"""
import sys
from evopipe.__main__ import main
sys.argv = ["evopipe", *{arguments!r}]
code = main()
heavy = {{"torch.nn", "numpy.core", "gymnasium", "h5py", "safetensors", "minari"}}
sys.exit(f"loaded: {{heavy & set(sys.modules)}}" if heavy & set(sys.modules) else code)
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
                            env={**os.environ, "PYTHONPATH": str(ROOT / "src")})  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.thorough
def test_stages_that_compute_nothing_with_torch_do_not_load_it(tmp_path: Path) -> None:
    write_params(tmp_path, {"train.warm_start": 100, "export.film": False})
    program = """
import sys
from evopipe.__main__ import main
sys.argv = ["evopipe", STAGE]
code = main()
sys.exit(f"{STAGE} loaded torch" if "torch.nn" in sys.modules else code)
"""
    for stage in layout.STAGES:
        words = [sys.executable, "-c", program.replace("STAGE", repr(stage.name))]
        run = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
        light = stage.name in ("fetch", "buffer", "report")
        assert (stage.light, run.returncode, "loaded torch" in run.stderr) == (light, int(not light), not light), stage


@pytest.mark.thorough
def test_torch_works_when_a_light_command_uses_it_after_all() -> None:
    program = """
import sys
from evopipe.cli_shared import without_torch
without_torch()
import torch, numpy as np
import torch as again
assert again is torch and "torch.nn" not in sys.modules and "numpy.core" not in sys.modules
import torch.nn.functional as functional
assert functional.relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
assert isinstance(sys.modules["torch"].zeros(1), torch.Tensor)
assert np.zeros(2).sum() == 0
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
                            env={**os.environ, "PYTHONPATH": str(ROOT / "src")})  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


# --- the right code ---------------------------------------------------------------------------------------------------


@pytest.fixture
def other_tree(tmp_path: Path) -> Path:
    """A copy of the tree, as a queued experiment's folder holds one, with a version of its own."""
    copy_tree(tmp_path)
    init = tmp_path / "src/evopipe/version.py"
    init.write_text(init.read_text().replace(evopipe.__version__, "9.9.9"))
    return tmp_path


def test_under_dvc_the_code_of_the_tree_runs(other_tree: Path) -> None:
    below = other_tree / "pipelines/small"
    below.mkdir(parents=True)
    for folder in (other_tree, below):
        assert run("--version", cwd=folder, DVC_STAGE="train").stdout == "evopipe 9.9.9\n"


def test_under_dvc_exit_codes_and_arguments_pass_through(other_tree: Path) -> None:
    code, message = outcome(run("params", "check", "--params", "no.yaml", cwd=other_tree, DVC_STAGE="train"))
    assert code == 66
    assert message.startswith("error: no.yaml: there is no such file ")


def test_a_stage_inside_a_stage_of_another_tree_runs_its_own_code(other_tree: Path) -> None:
    result = run("--version", cwd=other_tree, DVC_STAGE="train", EVOPIPE_REEXECUTED=str(ROOT / "src"))
    assert result.stdout == "evopipe 9.9.9\n"


def test_without_dvc_the_installed_code_runs(other_tree: Path) -> None:
    assert run("--version", cwd=other_tree).stdout == f"evopipe {evopipe.__version__}\n"


def test_under_dvc_a_project_without_the_source_uses_the_installed_code(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path, DVC_STAGE="train").stdout == f"evopipe {evopipe.__version__}\n"


def test_the_tree_reached_by_a_link_is_the_same_tree(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    result = run("--version", cwd=tmp_path / "link", DVC_STAGE="train", EVOPIPE_REEXECUTED=str(ROOT / "src"))
    assert result.stdout == f"evopipe {evopipe.__version__}\n"


def test_where_the_trees_code_cannot_run_the_stage_stops(other_tree: Path) -> None:
    source = other_tree / "src"
    code, message = outcome(run("--version", cwd=other_tree, DVC_STAGE="train", EVOPIPE_REEXECUTED=str(source)))
    assert code == 1
    assert message == (
        f"error: {source} holds the code of this stage, but {ROOT / 'src/evopipe'} runs: "
        f"put {source} first on PYTHONPATH\n"
    )
