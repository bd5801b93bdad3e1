"""The conda recipe and the CI of other systems say what pyproject.toml says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from evopipe.version import __version__
from tiny import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What conda calls otherwise, and an extra as its packages.
CONDA = {"torch": ("pytorch",), "gymnasium[classic-control]": ("gymnasium", "pygame")}


def split(requirement: str) -> tuple[str, str]:
    """Return a requirement's name and its least version."""
    found = re.fullmatch(r"([\w.\[\]-]+) *((?:>=[\d.]+)?)", requirement)
    assert found, requirement
    return found[1], found[2]


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe: Any = YAML(typ="safe").load(ROOT / "recipe/recipe.yaml")
    project = PROJECT["project"]
    wanted = {"python": project["requires-python"]}
    for name, version in map(split, project["dependencies"]):
        first, *more = CONDA.get(name, (name,))
        wanted |= {first: version, **dict.fromkeys(more, "")}
    assert dict(map(split, recipe["requirements"]["run"])) == wanted
    host = dict(map(split, recipe["requirements"]["host"]))
    assert host == {"python": wanted["python"], "pip": "", **dict(map(split, PROJECT["build-system"]["requires"]))}


def test_the_recipe_describes_this_version_of_this_package() -> None:
    recipe: Any = YAML(typ="safe").load(ROOT / "recipe/recipe.yaml")
    project = PROJECT["project"]
    assert recipe["context"]["version"] == __version__
    assert recipe["package"]["name"] == project["name"]
    assert recipe["about"]["summary"] == project["description"]
    assert recipe["about"]["license"] == project["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()
    scripts = [f"{name} = {target}" for name, target in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert "url" not in recipe["source"], "where it is published is not known"


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_ci_of_other_systems_installs_extras_and_runs_files_that_are_there(system: str) -> None:
    text = (ROOT / f".github/workflows/{system}.yml").read_text()
    workflow: Any = YAML(typ="safe").load(ROOT / f".github/workflows/{system}.yml")
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] == f"{system}-latest"
    for extras in re.findall(r"\.\[([\w,-]+)\]", text):
        assert set(extras.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()
    files = re.findall(r"\b(?:tests|examples)/[\w/]+(?:\.py)?", text)
    assert len(files) > 5
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert set(job["strategy"]["matrix"]["python"]) == {"3.11", "3.13"}


def test_the_readme_of_an_index_has_whole_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_readme

    own, made = (ROOT / "README.md").read_text(), tmp_path / "new/README.md"
    assert make_readme.main(["--base", "https://a.example/b/", "--out", str(made)]) == 0
    links = re.findall(r"\]\(([^)\s]+)\)", own)
    told = {link if re.match("https?:|#", link) else f"https://a.example/b/{link}" for link in links}
    assert set(re.findall(r"\]\(([^)\s]+)\)", made.read_text())) == told
    assert "![The report of a run](https://a.example/b/docs/images/report.png)" in made.read_text()
    assert made.read_text().replace("https://a.example/b/", "") == own
    assert make_readme.absolute("```\n[a](b)\n```\n[a](#b) [a](b#c)", "https://d") == (
        "```\n[a](b)\n```\n[a](#b) [a](https://d/b#c)"
    )
    with pytest.raises(SystemExit):
        make_readme.main(["--base", "docs"])
    assert "--base: 'docs' is no address" in capsys.readouterr().err
