"""Reading and checking of `params.yaml`, for runs in environments and for language models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import Field, ValidationError, create_model

from evopipe import algos as registry
from evopipe.errors import ParamsError
from evopipe.params.base import RunParams
from evopipe.params.env import Params as Params
from evopipe.params.text import LanguageParams as LanguageParams
from evopipe.schema.declare import COMPLETE, Problem, Schema, explain, line_of, parsed, refusal
from evopipe.schema.read import read_yaml
from evopipe.schema.write import block, completed, entries

AnyParams: TypeAlias = Params | LanguageParams
_LACKS = ("missing key (default", "missing block:")  # what is said of a key that has a default
_FEW = 3  # missing keys that are named one by one


def any_params(given: str | os.PathLike[str] | AnyParams | Mapping[str, Any]) -> AnyParams:
    """Return checked parameters from a params file or from a mapping in its layout; return `Params` objects unchanged.

    Raises:
        ParamsError, MissingInputError: see `load_params` and `parse_params`.
    """
    if isinstance(given, RunParams):
        return given
    return parse_params(given) if isinstance(given, Mapping) else load_params(given)


def env_params(given: str | os.PathLike[str] | AnyParams | Mapping[str, Any], otherwise: Exception) -> Params:
    """Return the checked parameters of a run in an environment, from a params file, a mapping or `Params`.

    The exception `otherwise` is raised if the parameters are those of language models.

    Raises:
        ParamsError, MissingInputError: see `load_params` and `parse_params`.
    """
    found = any_params(given)
    if not isinstance(found, Params):
        raise otherwise
    return found


def load_params(path: str | os.PathLike[str] = "params.yaml") -> AnyParams:
    """Read and check a params file. The file must have every key, because DVC does not see defaults in code.

    Raises:
        MissingInputError: there is no such file, or it may not be read.
        ParamsError: the file cannot be used; the message has one line for each problem: file, line, column, key, what
            is wrong and what to do.

    Examples:
        >>> import evopipe
        >>> evopipe.load_params("no/params.yaml")
        Traceback (most recent call last):
        evopipe.errors.MissingInputError: ...
    """
    document = read_yaml(path)
    schema = _schema_of(document.data)
    try:
        return schema.model_validate(document.data, context=COMPLETE)
    except ValidationError as error:
        found = explain(error, schema, document.data)
    lacking = [".".join(map(str, keys)) for keys, sentence in found if sentence.startswith(_LACKS)]
    few = len(lacking) <= _FEW
    kept = [(keys, sentence) for keys, sentence in found if few or not sentence.startswith(_LACKS)]
    lines = _placed(kept, document)
    raise refusal(lines if few else [*lines, f"{document.name}: {_fill(lacking, document.name)}"])


def filled(path: str | os.PathLike[str] = "params.yaml") -> tuple[str, list[str]]:
    """Return the text of a params file with its missing keys added at their defaults, and the names of the added keys.

    The file's own lines and comments are unchanged.

    Raises:
        MissingInputError, ParamsError: see `load_params`; a missing key is no error here.
    """
    document = read_yaml(path)
    if "agents" in document.data:
        raise ParamsError(
            f"{path}: has a block `agents`: `evopipe agent train` reads it, and what it lacks has its default"
        )
    schema = _schema_of(document.data)
    try:
        params = schema.model_validate(document.data)
    except ValidationError as error:
        raise refusal(_placed(explain(error, schema, document.data), document)) from None
    chosen = block(params.train.algo, params.algo_config)
    defaults = "\n".join((*entries(params, but=("algos",)), "algos:", chosen))
    text, added = completed(Path(path).read_text(encoding="utf-8-sig"), defaults)
    settings = params.search.config(None)  # None of a tournament's, which stand in `evolution`
    if settings is None or not type(settings).model_fields:
        return text, added
    text, more = completed(text, f"search:\n{block(params.search.strategy, settings)}")
    return text, [*added, *more]


def _placed(found: Iterable[Problem], document: Any) -> list[str]:
    """Return problems as lines in the order of a file, each with its place there."""
    placed = sorted((document.mark(keys), line_of(keys, sentence)) for keys, sentence in found)
    return [f"{document.name}:{line}:{column}: {text}" for (line, column), text in placed]


def _fill(lacking: list[str], name: str) -> str:
    """Say how to complete a file in which many keys are missing."""
    option = "" if name == "params.yaml" else f"--params {name} "
    first = ", ".join(lacking[:_FEW])
    return (
        f"{len(lacking)} keys are missing ({first}, …), and DVC sees no defaults in code: "
        f"`evopipe {option}params fill` adds them"
    )


def parse_params(data: Mapping[str, Any]) -> AnyParams:
    """Check a mapping in the layout of `params.yaml`, and return it as parameters. Missing keys take their defaults.

    Raises:
        ParamsError: a value cannot be used; the message has a line for each problem.

    Examples:
        >>> from evopipe import parse_params
        >>> parse_params({"population": {"size": 8}}).population.size
        8
        >>> parse_params({"population": {"sise": 8}})
        Traceback (most recent call last):
        evopipe.errors.ParamsError: population.sise: unknown key, did you mean 'size'?
    """
    return parsed(_schema_of(data), data)


def _schema_of(data: Mapping[str, Any]) -> type[Params] | type[LanguageParams]:
    return LanguageParams if "language" in data else Params


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of `params.yaml`, including every algorithm's block."""
    configs = {name: registry.get(name).Config for name in registry.working()}
    blocks: dict[str, Any] = {name: (config, Field(default_factory=config)) for name, config in configs.items()}
    algos = create_model("Algos", __base__=Schema, __doc__="One block an algorithm.", **blocks)
    described = Field(description=Params.model_fields["algos"].description)
    whole = create_model("Params", __base__=Params, __doc__=Params.__doc__, algos=(algos, described))
    return whole.model_json_schema()
