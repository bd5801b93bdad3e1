"""How far the parameters walk: who follows the stage `train` meets few functions that take all of `params.yaml`.

A stop is a function that is handed all parameters, under whatever name, or a method of theirs that is used on the way.
What a call hands on is followed by name, so that where a call may be one of several functions, all of them are stops.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from changed import PACKAGE, modules, tree

STOPS = 18
"""How many there are today: this may only fall. 25 is the most there may ever be."""
CLASSES = {"RunParams", "Params", "LanguageParams"}
ABOVE = {"agents", "compare", "compat", "face", "new", "sweep", "verify"}
"""Rooms above the stages, which no stage calls; and so are the modules in none, but for those below."""
BELOW = {"machine.py", "own.py", "plugins.py", "layout.py"}
PASSED_ON = {"partial", "Call"}
"""Calls that hand their further arguments to their first."""


class Stop(NamedTuple):
    path: str
    owner: str  # the class whose method it is
    function: ast.FunctionDef

    @property
    def takes(self) -> list[str]:
        """Its arguments in order, but for that of the class or the object."""
        given = self.function.args
        static = any(ast.unparse(each) == "staticmethod" for each in self.function.decorator_list)
        return [each.arg for each in [*given.posonlyargs, *given.args]][bool(self.owner) and not static :]


def below() -> Iterator[tuple[str, ast.Module]]:
    for path, parsed in modules():
        room, inside, _ = path.partition("/")
        if (inside and room not in ABOVE) or path in BELOW:
            yield path, parsed


def functions() -> dict[str, list[Stop]]:
    """All functions by what they are called as: a class's `__init__` by the name of the class."""
    found: dict[str, list[Stop]] = {}
    for path, parsed in below():
        owners = {part: node.name for node in ast.walk(parsed) if isinstance(node, ast.ClassDef) for part in node.body}
        for node in ast.walk(parsed):
            if isinstance(node, ast.FunctionDef):
                owner = owners.get(node, "")
                called = owner if node.name == "__init__" else node.name
                found.setdefault(called, []).append(Stop(path, owner, node))
    return found


def called(stop: Stop, function: ast.expr, known: dict[str, list[Stop]]) -> list[Stop]:
    """Which functions a call may be of: those of the name, fewer where it is clear from which module it is."""
    name = ast.unparse(function).rpartition(".")[2]
    able = known.get(name, [])
    if isinstance(function, ast.Name):
        origin = origins(stop.path).get(name, module_of(stop.path))
        able = [each for each in able if module_of(each.path) == origin]
    return able


def module_of(path: str) -> str:
    return f"evopipe/{path}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def origins(path: str) -> dict[str, str]:
    """From which module a file has each name that it imports."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree(PACKAGE / path))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def steps(stop: Stop, held: set[str], known: dict[str, list[Stop]]) -> Iterator[tuple[Stop, set[str]]]:
    """Where parameters go from a stop that holds them by these names: functions, and by which arguments."""

    def whole(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in held

    for node in ast.walk(stop.function):
        if isinstance(node, ast.Attribute) and whole(node.value):
            yield from ((each, {"self"}) for each in known.get(node.attr, []) if each.owner in CLASSES)
        if not isinstance(node, ast.Call):
            continue
        function, given = node.func, [*node.args]
        if ast.unparse(function).rpartition(".")[2] in PASSED_ON and given:
            function, *given = given
        for each in called(stop, function, known):
            taken = {name for name, value in zip(each.takes, given, strict=False) if whole(value)}
            taken |= {key.arg for key in node.keywords if key.arg and whole(key.value)}
            if taken:
                yield each, taken


def walk() -> dict[Stop, set[str]]:
    """All stops from the stage `train` on, each with the arguments by which it gets the parameters."""
    known = functions()
    (first,) = [each for each in known["run"] if each.path == "stages/train.py"]
    found: dict[Stop, set[str]] = {}
    left = [(first, {"params"})]
    while left:
        stop, held = left.pop()
        if held <= found.get(stop, set()):
            continue
        found[stop] = found.get(stop, set()) | held
        left += steps(stop, found[stop], known)
    return found


def test_stops_of_all_parameters_on_the_way_of_a_training() -> None:
    stops = sorted(f"{stop.path}:{stop.owner}.{stop.function.name}" for stop in walk())
    assert len(stops) == STOPS <= 25, "\n".join(stops)
    assert {"problems/env.py:.problem_of", "problems/text.py:.problem_of", "scale/divide.py:.divided"} <= {*stops}
