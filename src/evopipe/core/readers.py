"""How architectures are read again, by the `kind` that their JSON data names: each room adds its own.

The module imports nothing, so that the package can name those of language models before anything else is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Any]] = {}
"""From what `Architecture.to_json` returned to the architecture; ValueError where it is another thing."""
