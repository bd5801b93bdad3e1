"""The table of `docs/scripts.md` names every block of the pages, and every test of this folder."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tiny import ROOT

# Blocks of code as they were counted in the pages. Of the readme 7 are for a shell and 21 are Python.
BLOCKS = {"Training": 6, "Off-policy training": 6, "Agent trainer": 3, "On-policy training": 5, "Readme": 28}
ROW = re.compile(r"^\| (\w[\w -]*?)(?:, [\w-]+)? \| (\d+) \| .+ \| (`tests/.+`) \|$", re.MULTILINE)


def rows() -> list[tuple[str, int, str]]:
    """Page, blocks and tests of each line of the table."""
    _, title, table = (ROOT / "docs/scripts.md").read_text().partition("| Page | Blocks | What | Test |\n")
    assert title
    table = table.partition("\n\n")[0] + "\n"
    lines = [line for line in table.splitlines()[1:] if line]
    found = [(page, int(count), tests) for page, count, tests in ROW.findall(table)]
    assert len(found) == len(lines), "a line of the table lacks its number of blocks, or its tests"
    return found


def test_every_block_of_the_pages_has_a_line_with_its_test() -> None:
    counted: Counter[str] = Counter()
    for page, count, _ in rows():
        counted[page] += count
    assert counted == BLOCKS


def test_every_test_of_a_script_is_in_the_table() -> None:
    named = {name for *_, tests in rows() for name in re.findall(r"tests/spec/(\w+\.py::\w+)", tests)}
    _, title, patterns = (ROOT / "docs/scripts.md").read_text().partition("| Pattern | What | Test |\n")
    assert title
    named |= {*re.findall(r"tests/spec/(\w+\.py::\w+)", patterns)}
    scripts = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    there = {
        f"{path.name}::{node.name}"
        for path in scripts
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert there - named == {
        "test_readme.py::test_an_older_spelling_says_what_it_is_called_now",
        "test_tutorials.py::test_only_import_lines_change",
    }
