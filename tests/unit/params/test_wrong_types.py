"""Every key of either kind of params file, and of the agents' configuration, given what it is not: one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import words
from evopipe import algos
from evopipe.errors import EvopipeError, ParamsError
from evopipe.params.load import Params, parse_params
from evopipe.schema.write import dump_yaml
from tiny import call

WRONG: list[Any] = [0.5, -1, 10**30, True, "word", "", [], [1, "a"], [[]], None, {}, {"no such key": 1}, {"": {}}]


@cache
def whole(kind: str) -> dict[str, Any]:
    """A params file of a kind, with the chosen algorithm's block."""
    data: dict[str, Any] = Params().model_dump(mode="json") if kind == "env" else words.small_params()
    chosen = data["train"]["algo"]
    return {**data, "algos": {chosen: algos.get(chosen).Config().model_dump(mode="json")}}


def paths(data: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in data.items() if isinstance(data, dict) else ():
        yield (*before, key)
        yield from paths(value, (*before, key))


def at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def replaced(data: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy with another value at a path."""
    return value if not path else {**data, path[0]: replaced(data[path[0]], path[1:], value)}


def refused_or_taken(data: dict[str, Any], path: tuple[str, ...], values: list[Any]) -> None:
    is_block = isinstance(at(data, path), dict) and "kwargs" not in path
    for value in [value for value in values if not (is_block and isinstance(value, dict))]:
        try:
            parse_params(replaced(data, path, value))
        except ParamsError as error:
            lines = str(error).splitlines()
            assert all(lines), (path, value)
            assert not any("Traceback" in line or "object has no" in line for line in lines), (path, value, lines)
            if is_block:
                assert any(line.startswith(".".join(path)) for line in lines), (path, value, lines)
        else:
            assert not is_block, (path, value)


@pytest.mark.parametrize("kind", ["env", pytest.param("language", marks=pytest.mark.thorough)])
def test_whatever_stands_at_a_key_is_taken_or_refused_by_a_sentence(kind: str) -> None:
    every = list(paths(whole(kind)))
    assert len(every) > 100
    for path in every:
        refused_or_taken(whole(kind), path, WRONG)


@pytest.mark.thorough
@pytest.mark.parametrize("name", algos.names(None))
def test_so_is_whatever_stands_in_an_algorithms_block(name: str) -> None:
    data, draws = whole("env" if name in algos.names() else "language"), np.random.default_rng(1)
    data = {**data, "algos": {name: algos.get(name).Config().model_dump(mode="json")}}
    every = list(paths({"algos": data["algos"]}))
    for i in draws.choice(len(every), min(12, len(every)), replace=False):
        refused_or_taken(data, every[i], WRONG)


@pytest.mark.parametrize("kind", ["env", "language"])
def test_the_command_line_says_it_with_line_and_column_and_no_traceback(kind: str, tmp_path: Path) -> None:
    data, draws = whole(kind), np.random.default_rng(2)
    every = [path for path in paths(data) if isinstance(at(data, path), dict) and at(data, path) and path[0] != "algos"]
    for i in draws.choice(len(every), 6, replace=False):
        path, value = every[i], WRONG[int(draws.choice([0, 4, 7, 9]))]
        (tmp_path / "params.yaml").write_text(dump_yaml(replaced(data, path, value)))
        answer = call(tmp_path, "params", "check")
        assert answer.code == 65, (path, value, answer)
        assert f": {'.'.join(path)}: must be a block of keys, got" in answer.err, (path, value, answer)
        assert answer.err.startswith("error: params.yaml:"), answer
        assert "Traceback" not in answer.err
        assert "internal error" not in answer.err


def agents(config: Any, population: Any = None) -> None:
    from evopipe.compat.rllm.config import resolve

    resolve(config, population, 4, "Game")


def test_whatever_the_agents_are_configured_by_is_taken_or_refused_by_a_sentence() -> None:
    from evopipe.compat.rllm.config import resolve

    params = resolve(None, 2, 4, "Game").params.model_dump(mode="json", exclude={"algos"})
    every, draws = list(paths(params)), np.random.default_rng(4)
    for path in [every[i] for i in draws.choice(len(every), 25, replace=False)]:
        key = ".".join(path)
        for value in [WRONG[i] for i in draws.choice(len(WRONG), 4, replace=False)]:
            for config in ({key: value}, replaced(params, path, value), {key: value, f"{key}.more": 1}):
                with contextlib.suppress(EvopipeError):
                    agents(config)
    for block in ("tournament", "mutation", "evolve", "size", "start", "other"):
        for value in WRONG:
            with contextlib.suppress(EvopipeError):
                agents(None, {block: value})
    for value in [*WRONG[:9], ()]:
        with contextlib.suppress(EvopipeError):
            agents(None, value)
        with contextlib.suppress(EvopipeError):
            agents(value)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "data: &d\n  more: *d\n",
        "data: &d [*d]\n",
        "data: !!python/object/apply:os.system ['true']\n",
        f"data: {'[' * 400}\n",
        f"data: {'{a: ' * 400}\n",
        "data: {a: 1\n",
        "? [1, 2]\n: 3\n",
        "- 1\n",
        "",
    ],
    ids=["laughs", "itself", "list of itself", "tag", "deep list", "deep mapping", "open", "odd key", "list", "empty"],
)
def test_a_yaml_file_of_agents_that_expands_for_ever_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    for config in (path, str(path), [str(path)]):
        with pytest.raises(EvopipeError) as refused:
            agents(config)
        assert refused.value.exit_code == 65
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["&a [*a]", "[1", "{a: &b {c: *b}}", "!!set {a}", "[" * 400, "2001-99-99", "\t@"])
def test_an_override_that_is_no_plain_value_is_one_sentence(value: str) -> None:
    with pytest.raises(ParamsError) as refused:
        agents([f"data.train_batch_size={value}"])
    assert str(refused.value).startswith("config: data.train_batch_size=")
    assert "\n" not in str(refused.value)


def test_a_mapping_that_holds_itself_is_one_sentence() -> None:
    own: dict[str, Any] = {"data": {}}
    own["data"]["more"] = own
    several: list[Any] = []
    several.append(several)
    for config in (own, {"data.seed": several}, {"agents": own}):
        with pytest.raises(ParamsError, match=r"^config: a value holds itself"):
            agents(config)
