"""The site of the pages: built without a warning, read without a network, and with every public name in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="an extra of its own: pip install 'evopipe[docs]'")

import evopipe
from tiny import ROOT

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


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).with_suffix(".md").as_posix() for path in tmp_path.rglob("*.html")}
    assert pages >= {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert (tmp_path / "searchindex.js").exists()
    assert 'id="evopipe.train_off_policy"' in (tmp_path / "api.html").read_text()
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]+)', page.read_text()
        )
        assert not fetched, page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", style.read_text()), style
