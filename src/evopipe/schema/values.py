"""Types of values that several blocks of `params.yaml` have, and checks of them. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidatorFunctionWrapHandler, WrapValidator

from evopipe import plugins
from evopipe.errors import ParamsError


def or_of_a_package(group: str, key: str, own: tuple[str, ...]) -> WrapValidator:
    """Return a validator that also accepts names which other packages add to evopipe's own names.

    Args:
        group: the group of entry points in which other packages add names, such as `evopipe.trackers`.
        key: the parameter that holds the name, for error messages.
        own: evopipe's own names.
    """

    def check(name: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(name, str):
            return handler(name)
        try:
            found = plugins.find(group, name, key, own)
        except ParamsError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return name if found is not None else handler(name)

    return WrapValidator(check)


def files_of(folder: str) -> tuple[str, ...]:
    """Names of the modules in a folder of the package; none is imported."""
    return tuple(sorted(found.name for found in iter_modules([str(Path(__file__).parents[1] / folder)])))


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(f"a name stands twice ({', '.join(names)}): give each once")
    return names


Width = Annotated[int, Field(ge=1, le=4096)]
Weight = Annotated[float, Field(ge=0.0)]
_T = TypeVar("_T")
Names = Annotated[tuple[_T, ...], Field(strict=False), AfterValidator(_each_once)]


def _keys(value: Any) -> Iterator[str]:
    """All keys of nested mappings and lists."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(inner)


def tracked(instead: str) -> AfterValidator:
    """Return a pydantic validator that refuses keyword arguments that DVC would not track.

    Its error message ends with `instead`, which says what to do instead.
    """

    def check(kwargs: dict[str, Any]) -> dict[str, Any]:
        if overlooked := [name for name in _keys(kwargs) if name in ("size", "nfiles")]:
            what = f"DVC's run cache overlooks keys named {overlooked[0]!r} inside a mapping"
            raise ValueError(f"{what}, so that a change could go unnoticed; {instead}")
        return kwargs

    return AfterValidator(check)
