"""The site of the pages: built without a warning, read without a network, and with every public name in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="an extra of its own: pip install 'evopipe[docs]'")

import browser
import evopipe
from tiny import ROOT, wait_for

ONE_KIND = {"GRPO", "LLMPPO", "LLMREINFORCE", "DPO"}  # instances of `LanguageAlgorithm`


def test_the_reference_names_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: evopipe\.(\w+)$", page, re.MULTILINE))
    assert named == {*evopipe.__all__} - {"__version__"} - ONE_KIND
    assert all(f"`{name}`" in page for name in ONE_KIND)


def test_every_page_is_in_the_navigation() -> None:
    told = set(re.findall(r"^([\w/-]+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE))
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= told, "put it into a toctree of docs/index.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built beside those of two other versions."""
    folder, older = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("older")
    for name in ("0.1.0", "0.10.0", evopipe.__version__):
        (older / name).mkdir()
        (older / name / "index.html").write_text(f"<p>the site of {name}</p>")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(folder)]
    given = {**os.environ, "OLDER_SITES": str(older)}
    built = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning_and_needs_no_network(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert pages >= {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert (site / "searchindex.js").exists()
    assert 'id="evopipe.train_off_policy"' in (site / "api.html").read_text()
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]+)', page.read_text()
        )
        assert not fetched, page
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", style.read_text()), style


@pytest.mark.thorough
def test_the_site_says_its_version_and_has_the_others_below_it(site: Path) -> None:
    assert f"evopipe {evopipe.__version__}" in (site / "index.html").read_text()
    named = re.findall(r'href="versions/([\d.]+)/index.html"', (site / "versions.html").read_text())
    assert named == ["0.10.0", "0.1.0"]
    assert "the site of 0.1.0" in (site / "versions/0.1.0/index.html").read_text()


SEARCHED = {
    "learning rate": "Learning rate",
    "entropy": "Entropy",
    "reproducibility": "Reproducibility",
    "cuda": "CUDA, GPU, device",
    "cluster": "Cluster, several machines, several GPUs",
    "docker": "Docker, containers",
    "resume": "Resume, checkpoints",
}
FOUND = """[...document.querySelectorAll('ul.search li')].slice(0, 3).map(found => [
  found.querySelector('a').textContent, found.querySelector('p.context')?.textContent ?? ''])"""


@pytest.mark.thorough
def test_the_search_finds_the_page_of_a_word_first_with_an_excerpt_from_disk(site: Path) -> None:
    program = browser.find()
    if program is None:
        pytest.skip("no browser on PATH")
    with browser.opened(program) as page:
        for words, title in SEARCHED.items():
            page.open(site / "search.html", 1280)
            page.call("Page.navigate", url=f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
            assert wait_for(lambda: all(text for _, text in page.run(FOUND) or [("", "")]), 20), words
            (first, excerpt), *_ = page.run(FOUND)
            assert first == title
            assert words.split()[0] in excerpt.lower()
            assert not [line for line in page.console if line.startswith(("error", "exception"))]
        for width in (1280, 390):
            for name in ("index", "algorithms/dqn", "add/algorithm", "settings/learning-rate"):
                page.open(site / f"{name}.html", width)
                assert page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
                assert not [line for line in page.console if line.startswith(("error", "exception"))], name
