"""The package as text: its modules, what they import, their lines of code; and copies of it with a change."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tiny import ROOT, environment

PACKAGE = ROOT / "src/evopipe"


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package: its path below it, and its tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), tree(path)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node."""
    for field in ("body", "orelse", "finalbody", "handlers"):
        parts = getattr(node, field, ())
        for part in parts if isinstance(parts, list) else ():
            yield part
            yield from statements(part)


def code_lines(path: Path) -> int:
    """Lines with code: neither blank, nor a comment alone, nor of a text that stands as a statement, as a docstring."""
    text = path.read_text(encoding="utf-8").splitlines()
    lines = {n for n, line in enumerate(text, 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in statements(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def imported(path: Path) -> set[str]:
    """The dotted names that a module imports, with and without what is taken from them."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


class Copy:
    """The package once more, to be changed; `files` are what was written into it, by path below the package."""

    def __init__(self, home: Path) -> None:
        self.source = home / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))
        self.files: list[str] = []

    def write(self, path: str, text: str) -> None:
        """Write a file, a new one or in another one's place."""
        (self.source / "evopipe" / path).write_text(text, encoding="utf-8")
        self.files.append(path)

    def edit(self, path: str, **places: tuple[str, str]) -> None:
        """Put new text where an old one stands, once, in a file; `places` have (old, new), each under a word for it."""
        text = (self.source / "evopipe" / path).read_text(encoding="utf-8")
        for what, (old, new) in places.items():
            assert text.count(old) == 1, f"{path}: {what}: {old!r} stands there {text.count(old)} times"
            text = text.replace(old, new)
        self.write(path, text)

    def python(self, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run Python with the copy in the place of the package."""
        paths = os.pathsep.join((str(self.source), str(ROOT / "tests")))
        return subprocess.run(
            [sys.executable, *words], cwd=cwd, env=environment(PYTHONPATH=paths), capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    def contract(self, *words: str) -> None:
        """Run tests of this tree against the copy; it is an error if one fails, or none is found."""
        ini = f"pythonpath={self.source} {ROOT / 'tests'}"
        done = self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", ini, *words)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
