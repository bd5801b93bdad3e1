"""A function of the kernels is seen whole: 40 lines at most, a family's losses too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from changed import PACKAGE

MOST = 40
NAME = re.compile(r"(\w+)\(")


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Every function that a source defines, as .clang-format has it: its name, and its lines from the first word to the
    bracket that closes it at a line's beginning."""
    lines = text.splitlines()
    begun: int | None = None
    for n, line in enumerate(lines):
        if begun is None and re.match(r"(?!typedef|struct|union|enum)\w.*\(", line):
            begun = n
        if begun is not None and (line == "}" or (n == begun and line.endswith("}"))):
            found = NAME.search("\n".join(lines[begun : n + 1]).replace("__attribute__((", ""))
            assert found is not None
            yield found[1], n + 1 - begun
            begun = None
        elif begun is not None and line.endswith(";") and not line.startswith(" "):
            begun = None  # a declaration


def sources() -> list[Path]:
    return sorted(path for path in (PACKAGE / "native").rglob("*.[ch]") if path.name != "kernels.h")


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_functions_are_short(path: Path) -> None:
    long = {name: lines for name, lines in functions(path.read_text(encoding="utf-8")) if lines > MOST}
    assert not long, f"native/{path.name}: longer than {MOST} lines: {long}"


def test_how_functions_are_counted() -> None:
    text = "static int two(int a,\n  int b) {\n  return a + b;\n}\nint one(void) { return 1; }\nint no(void);\n"
    assert [*functions(text)] == [("two", 4), ("one", 1)]
    found = {name for path in sources() for name, _ in functions(path.read_text(encoding="utf-8"))}
    assert {"draw_by", "critic_loss", "value_loss", "own_loss", "lose", "backward_gated", "exponential"} <= found
    assert len(found) > 150
