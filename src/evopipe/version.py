"""The version of the package, and where its code lies."""

from __future__ import annotations

import os.path  # not pathlib: under `python -m evopipe` a file of that name in the working folder would be taken

__version__ = "0.2.0"

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder to put on `PYTHONPATH` for another process to import this same package."""
