"""evopipe: train populations of reinforcement-learning agents that tune themselves while they learn.

`evopipe.train(...)` runs everything, `evopipe.load(...)` brings a trained policy back. Names are imported when first
used, so that `import evopipe` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evopipe.api import Result
    from evopipe.api import run as train
    from evopipe.errors import EvopipeError
    from evopipe.loading import load
    from evopipe.policy import Policy
    from evopipe.schema.params import Params, load_params, parse_params

__version__ = "0.1.0"
__all__ = ["EvopipeError", "Params", "Policy", "Result", "__version__", "load", "load_params", "parse_params", "train"]

_MODULES = {
    "EvopipeError": ("evopipe.errors", "EvopipeError"),
    "Params": ("evopipe.schema.params", "Params"),
    "Policy": ("evopipe.policy", "Policy"),
    "Result": ("evopipe.api", "Result"),
    "load": ("evopipe.loading", "load"),
    "load_params": ("evopipe.schema.params", "load_params"),
    "parse_params": ("evopipe.schema.params", "parse_params"),
    "train": ("evopipe.api", "run"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'evopipe' has no attribute {name!r}")
    module, attribute = _MODULES[name]
    return getattr(import_module(module), attribute)
