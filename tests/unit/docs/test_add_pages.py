"""The pages "How to add …": every example on them runs, as its reader would run it.

Blocks that begin with the name of a file are that file. A block of TOML names entry points, as an installed package
does. Blocks of `python` without a name run in their order, in a process of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import outside
from evopipe.params.load import parse_params
from evopipe.schema.read import parse_yaml
from pages import blocks
from tiny import ROOT

ADD = ROOT / "docs/add"
PAGES = sorted(path.stem for path in ADD.glob("*.md") if path.stem != "index")
_FILE = re.compile(r"(?:#|//) (\w+\.(?:py|c))\n")


def lay(page: Path, folder: Path) -> str:
    """Write the files of a page into a folder, as a package where it names entry points; return its program."""
    program = []
    for code in [*blocks(page, "python"), *blocks(page, "c")]:
        if (named := _FILE.match(code)) is not None:
            (folder / named[1]).write_text(code)
        else:
            program.append(code)
    for text in blocks(page, "toml"):
        outside.lay(folder, f"of-{page.stem}", tomllib.loads(text)["project"]["entry-points"])
    return "\n".join(program)


def test_every_page_is_on_the_list_and_has_an_example() -> None:
    listed = re.findall(r"\]\(([\w-]+)\.md\)", (ADD / "index.md").read_text())
    assert sorted(listed) == PAGES
    for name in PAGES:
        assert len(blocks(ADD / f"{name}.md", "python")) + len(blocks(ADD / f"{name}.md", "c")) >= 1


@pytest.mark.parametrize("name", PAGES)
def test_parameters_on_a_page_are_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evopipe import plugins

    lay(ADD / f"{name}.md", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    plugins.forget()
    try:
        for text in blocks(ADD / f"{name}.md", "yaml"):
            parse_params(parse_yaml(text, name).data)
    finally:
        plugins.forget()


def test_the_rule_speaks_of_the_run_that_is_ill_alone(capsys: pytest.CaptureFixture[str]) -> None:
    exec("\n".join(blocks(ADD / "rule.md", "python")), {"__name__": "rule_page"})
    assert capsys.readouterr().out.startswith("Evaluation took 5,000 environment steps, training 100: lower")


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAGES)
def test_the_example_on_a_page_runs(name: str, tmp_path: Path) -> None:
    if name == "c-environment" and not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("no C compiler")
    program = lay(ADD / f"{name}.md", tmp_path)
    if name == "tracker":
        program = """import evopipe
evopipe.train(
    {
        "env": {"id": "CartPole-v1"}, "tracking": {"backends": ["table"]}, "population": {"size": 2},
        "train": {"max_steps": 400, "evo_steps": 200, "eval_episodes": 2, "warm_start": 0},
    },
    folder="run",
)"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)])}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert name == "tracker" or ran.stdout.strip()
    if name == "opponent":
        told = outside.evopipe(tmp_path, tmp_path, "play", "run/models/elite", "--trust", "--opponent", "players:left")
        assert told.returncode == 0, told.stderr
        assert re.search(r"^\|+$", told.stdout, re.MULTILINE)
        assert "the policy is player " in told.stdout
    if name == "tracker":
        (table,) = tmp_path.rglob(".evopipe/table/*.csv")
        header, *rows = table.read_text().splitlines()
        assert header == "generation,fitness/best,fitness/mean"
        assert [row.partition(",")[0] for row in rows] == ["1", "2"]
