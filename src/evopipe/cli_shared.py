"""What the commands of the command line share, see `evopipe.cli`: common options, late imports, JSON arguments."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evopipe.errors import EvopipeError, ParamsError

if TYPE_CHECKING:
    from evopipe.params.load import AnyParams


@dataclass(frozen=True)
class Options:
    """The options that every command takes."""

    params: str
    quiet: bool
    more: dict[str, Any] = field(default_factory=dict)  # of one command's own, for its stage

    def load(self) -> AnyParams:
        from evopipe.params.load import load_params

        return load_params(self.params)

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Give a `ParamsError`, of which a line begins with a key's path, the line and column of that key."""
        try:
            yield
        except ParamsError as error:
            from evopipe.schema.read import read_yaml

            lines = str(error).splitlines()
            with suppress(EvopipeError):  # a file that is gone by now gives no place
                document = read_yaml(self.params)
                for i, text in enumerate(lines):
                    keys = tuple(text.partition(":")[0].split("."))
                    if keys[0] in document.data:
                        line, column = document.mark(keys)
                        lines[i] = f"{self.params}:{line}:{column}: {text}"
            raise ParamsError("\n".join(lines)) from error

    def tell(self, sentence: str, err: bool = False) -> None:
        if not self.quiet:
            typer.echo(sentence, err=err)


class _Later(ModuleType):
    """Stands in for a package until one of its names is asked for; then hands out the package's own."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def _load_later(*names: str) -> list[_Later]:
    """Let what is imported from here on load these packages where it first uses them; return their stand-ins. Algorithm
    files say `import torch` at their top, which costs 1.6 s, and often only their `Config` is read: see
    docs/decisions/0015. Nor is it worth the time to look for plugins of pydantic."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    found = [_Later(name) for name in names if name not in sys.modules]
    sys.modules |= {later.__name__: later for later in found}
    return found


@contextmanager
def loading_later(*names: str) -> Iterator[None]:
    """Make imports of these packages lazy inside a `with` block: a package is loaded when it is first used.

    After the block a package that was not used is absent from `sys.modules`, where other libraries look to see whether
    an array could be a tensor of torch.
    """
    found = _load_later(*names)
    try:
        yield
    finally:
        for later in found:
            if sys.modules.get(later.__name__) is later:
                del sys.modules[later.__name__]


def without_torch() -> None:
    """Do without torch and numpy, which these commands never use."""
    _load_later("torch", "numpy")


def json_option(kind: type, called: str, example: str) -> Callable[[str], Any]:
    """Return a reader of an option that is JSON of one kind."""

    def read(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise typer.BadParameter(f"not JSON ({error}): write it like '{example}'") from None
        if not isinstance(value, kind):
            raise typer.BadParameter(f"must be a JSON {called}: write it like '{example}'")
        return value

    return read


Arguments = Annotated[
    dict[str, Any] | None,
    typer.Option(
        "--kwargs",
        metavar="JSON",
        parser=json_option(dict, "object", '{"continuous": false}'),
        help="Keyword arguments of the environment.",
    ),
]
