"""Code that stands on pages: fenced blocks, and all Python of a page as one program."""

from __future__ import annotations

import re
from pathlib import Path


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def in_order(page: Path) -> str:
    """All Python blocks of a page as one program whose line numbers are the page's."""
    lines, inside = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)
