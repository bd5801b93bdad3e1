"""No module reaches a higher room, by `importlib` either, which import-linter does not see."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

import pytest

from changed import modules
from tiny import ROOT

CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
LEVELS = {
    room: len(CONTRACT["layers"]) - place
    for place, layer in enumerate(CONTRACT["layers"])
    for room in layer.split(" | ")
}
"""Of each room how high it lies."""
ALLOWED = {tuple(pair.split(" -> ")) for pair in CONTRACT["ignore_imports"]}


def level_of(module: str) -> int | None:
    """How high a module lies: as the room with the longest name above it."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((LEVELS[name] for name in names if name in LEVELS), None)


def imported(tree: ast.Module, module: str) -> Iterator[tuple[int, str]]:
    """Lines, and modules of the package that are imported there by name, as far as the text tells."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        if ast.unparse(node.func).rpartition(".")[2] not in ("import_module", "__import__"):
            continue
        parts = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else [node.args[0]]
        text = ""
        for part in parts:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            elif isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == "__name__":
                text += module
            else:
                break
        if text.split(".")[0] == "evopipe":
            yield node.lineno, text.rstrip(".")


def reaching_up(path: str, tree: ast.Module) -> list[str]:
    """The imports by name of a module that lead to a higher room than its own."""
    module = ".".join(["evopipe", *path.removesuffix(".py").removesuffix("__init__").strip("/").split("/")]).rstrip(".")
    own = level_of(module)
    if own is None:  # the package itself, whose names are imported when first used
        return []
    return [
        f"{path}:{line}: {name}"
        for line, name in imported(tree, module)
        if (level_of(name) or 0) > own and (module, name) not in ALLOWED
    ]


@pytest.mark.thorough
def test_no_import_by_name_leads_to_a_higher_room() -> None:
    found = [each for path, tree in modules() for each in reaching_up(path, tree)]
    assert found == []


@pytest.mark.parametrize(
    "text", ['import_module("evopipe.language.gpt")', 'importlib.import_module(f"evopipe.problems.{name}_{stage}")']
)
def test_one_that_does_is_found(text: str) -> None:
    assert len(reaching_up("core/member.py", ast.parse(text))) == 1
    assert reaching_up("cli.py", ast.parse(text)) == []
