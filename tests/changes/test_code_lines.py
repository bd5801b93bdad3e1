"""How much code there is: a gauge, not a gate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from changed import PACKAGE, code_lines


@pytest.mark.thorough
def test_lines_of_code_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    rooms: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        room, *inner = path.relative_to(PACKAGE).parts
        rooms[room if inner else "in no room"] += code_lines(path)
    with capsys.disabled():
        print(f"\nlines of code: {rooms.total()}; " + ", ".join(f"{room} {n}" for room, n in rooms.most_common()))
    assert rooms["algos"] > 1000


def test_what_counts_as_a_line_of_code(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    docstring, text = '"""What it is.\n\nMore.\n"""\n\n# why\n', 'x = """a\nb"""  # two\n\n\n'
    path.write_text(f'{docstring}{text}def f() -> None:\n    """Says."""\n    g(\n        1,\n    )\n')
    assert code_lines(path) == 2 + 1 + 3
