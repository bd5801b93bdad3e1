"""The version of the package, and where its code lies."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"

SOURCE = Path(__file__).absolute().parents[1]
"""The folder to put on `PYTHONPATH` for another process to import this same package."""
