"""One way to do a thing: how many places do it, which may only fall; where fewer do, the number here is lowered."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any

import pytest

from changed import PACKAGE, modules
from evopipe import layout

pytestmark = pytest.mark.thorough

BUILD_A_RUN = 1
ASK_WHICH_KIND = 5
ASK_FOR_A_TEAM = 32
LIST_THE_STAGES = 1
NAMES_WITH_TWO_MEANINGS = 3

RUN = ("evopipe.run.run", "Run")
KINDS = {
    "Params", "LanguageParams", "EnvSpec", "TextSpec", "Policy", "TeamPolicy", "LanguagePolicy", "GamePolicy",
}  # fmt: skip
"""Classes of which there is one a kind of problem: who asks for one by `isinstance` asks for the kind."""
QUESTIONS = {"PROBLEM", "PROBLEMS"}
"""Names that say which kind a problem is: who reads one asks."""
ANSWERS = {"env", "text", "games", "language"}
"""Who compares something's `kind` with one of these, looks for it among them or one of them among parameters, or asks a
function named in `BY_KIND` for one, asks too."""
BY_KIND = {"names", "working"}
PARAMETERS = re.compile(r"(?<!info\.)\b(params|data|values|settings)$")
"""What parameters are called where they are a mapping, of which the blocks tell the kind."""
OF_ONE_KIND = {"network", "film", "register_as", "env", "language", "rank", "spaces", "base"}
"""What parameters, specifications or policies of one kind have and others lack: who looks whether it is there, by
`hasattr` or by `getattr` with something in its place, asks for the kind."""


def names_of(tree: ast.Module, module: str, name: str) -> set[str]:
    """What a file calls something of another module: `Run`, `run.Run`, or a name of its own for it."""
    room, _, last = module.rpartition(".")
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            found |= {alias.asname or alias.name for alias in node.names if alias.name == name}
        elif isinstance(node, ast.ImportFrom) and node.module == room:
            found |= {f"{alias.asname or alias.name}.{name}" for alias in node.names if alias.name == last}
    return found


def asks(node: ast.AST) -> bool:
    """Whether an expression asks which kind of problem there is."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "isinstance":
            return bool(KINDS & {part.rpartition(".")[2] for part in re.split(r"[(), |]+", ast.unparse(node.args[1]))})
        if called == "hasattr" or (called == "getattr" and len(node.args) == 3):
            return value_of(node.args[1]) in OF_ONE_KIND and not ast.unparse(node.args[0]).startswith("self.")
        if called == "get" and node.args and "'kind'" in ast.unparse(node.args[0]):  # of a table by kinds
            return ast.unparse(node.func).removesuffix(".get").rpartition(".")[2].isupper()
        return called in BY_KIND and bool(ANSWERS & {value_of(part) for part in node.args})
    if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        return (node.attr if isinstance(node, ast.Attribute) else node.id) in QUESTIONS
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if isinstance(node.ops[0], ast.In | ast.NotIn) and value_of(node.left) in ANSWERS:
            return bool(PARAMETERS.search(ast.unparse(node.comparators[0])))
        parts = {value_of(part) for side in sides for part in (side, *getattr(side, "elts", ()))}
        return bool(ANSWERS & parts) and any("kind" in ast.unparse(side) for side in sides)
    return False


def asks_for_a_team(node: ast.AST) -> bool:
    """Whether an expression asks whether several agents act at once or one: by `team`, where it is compared with None,
    is true or not, or the class of an environment or a policy."""
    if isinstance(node, ast.Compare):
        return any(map(is_team, (node.left, *node.comparators)))
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return is_team(node.test)
    if isinstance(node, ast.BoolOp):
        return any(map(is_team, node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) and is_team(node.operand)
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and "Team" in ast.unparse(node.args[1])


def is_team(node: ast.AST) -> bool:
    name = ast.unparse(node.target if isinstance(node, ast.NamedExpr) else node).rpartition(".")[2]
    return name.strip("_").lower() == "team" or value_of(node) == "team"


def value_of(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def test_places_that_build_a_run() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for called in [names_of(tree, *RUN)]
        for node in (ast.walk(tree) if called else ())
        if isinstance(node, ast.Call) and ast.unparse(node.func) in called
    ]
    assert len(found) == BUILD_A_RUN, found


def test_files_that_ask_which_kind_of_problem() -> None:
    found = [path for path, tree in modules() if any(map(asks, ast.walk(tree)))]
    assert len(found) == ASK_WHICH_KIND, found


def test_files_that_ask_whether_a_team_acts() -> None:
    found = [path for path, tree in modules() if any(map(asks_for_a_team, ast.walk(tree)))]
    assert len(found) == ASK_FOR_A_TEAM, found


@pytest.mark.parametrize(
    "question",
    [
        'where = params["env"]["id"] if "env" in params else params["language"]["task"]',
        'told = about.get("kind") in ("language", "games")',
        'beside = layout.SHOWN_BESIDE.get(str(about.get("kind")), ())',
        'network = getattr(params.algo_config, "network", None)',
        'film = getattr(params.export, "film", False)',
        'schema = LanguageParams if "language" in data else Params',
        "env = isinstance(found, Params)",
    ],
)
def test_what_counts_as_a_question(question: str) -> None:
    assert any(map(asks, ast.walk(ast.parse(question))))


@pytest.mark.parametrize(
    "other", ['left = "language" in info.data', 'own = getattr(self.dynamics, "spaces", None)', "n = params.network"]
)
def test_what_counts_as_none(other: str) -> None:
    assert not any(map(asks, ast.walk(ast.parse(other))))


def test_lists_of_stages() -> None:
    """A display, of names or of calls whose first argument is one, or functions beside each other, that name most
    stages: who adds a stage has to find each of them."""
    stages, found = set(layout.OUTS), []
    for path, tree in modules():
        for node in ast.walk(tree):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
            parts = [part.args[0] if isinstance(part, ast.Call) and part.args else part for part in parts]
            named = {part.value for part in parts if isinstance(part, ast.Constant)}
            if isinstance(node, ast.Module):
                named |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            if len(stages & named) > len(stages) / 2:
                found.append(f"{path}:{getattr(node, 'lineno', 1)}")
    assert len(found) == LIST_THE_STAGES, found


CONTRACTS = {("algos", "Config"), ("algos", "State"), ("searchers", "Config"), ("searchers", "Search")}


def test_stages_are_doors() -> None:
    """A stage is one call of the library with its outs: a module of at most 80 lines."""
    lines = {path.name: len(path.read_text().splitlines()) for path in (PACKAGE / "stages").glob("*.py")}
    assert {f"{stage.name}.py" for stage in layout.STAGES} <= lines.keys()
    assert {name: n for name, n in lines.items() if n > 80} == {}


def test_class_names_with_two_meanings() -> None:
    """But what every file of algorithms, or of search strategies, defines under the same name."""
    found = Counter(
        node.name
        for path, tree in modules()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if (path.partition("/")[0], node.name) not in CONTRACTS
    )
    twice = {name: n for name, n in found.items() if n > 1}
    assert len(twice) == NAMES_WITH_TWO_MEANINGS, twice
