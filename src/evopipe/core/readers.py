"""Readers of architectures from JSON data, by the `kind` in the data; each package adds its own readers.

The module imports nothing, so that the package can name those of language models before anything else is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Any]] = {}
"""From what `Architecture.to_json` returned to the architecture; ValueError where it is another thing."""
