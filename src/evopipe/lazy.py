"""Heavy packages that light commands name and never use.

Algorithm files say `import torch` at their top, as readers expect, and that costs 1.6 s; checking a params file reads
their `Config` only. `defer("torch")` puts a stand-in in place of the package, which becomes the package itself when an
attribute is first asked for. `importlib.util.LazyLoader` does not serve: its stand-in loads at the second `import`.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """A module that loads when an attribute is first asked for. Imports see its spec, so they do not load it."""

    def __getattr__(self, name: str) -> Any:
        spec: ModuleSpec = self.__dict__["__spec__"]
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert spec.loader is not None
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer(*names: str) -> None:
    """Make the next imports of these top-level packages load nothing until they are used.

    Packages that are loaded already, or not installed, stay as they are.
    """
    for name in names:
        spec = None if name in sys.modules else importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            continue
        module = _Deferred(name)
        # No __path__: importing a submodule asks for it, and so loads the package first, as it must.
        module.__dict__.update(
            __spec__=spec, __loader__=spec.loader, __package__=name, __file__=spec.origin, __builtins__=__builtins__
        )
        sys.modules[name] = module


def is_deferred(name: str) -> bool:
    """Whether the package is in place and has not been loaded yet."""
    return isinstance(sys.modules.get(name), _Deferred)
