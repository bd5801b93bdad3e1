"""Write the table of AgileRL's names in `docs/coming-from-agilerl.md`: `python docs/make_names.py`.

`--check` compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evopipe.compat.agilerl.names import table

PAGE = Path(__file__).parent / "coming-from-agilerl.md"
FIRST, LAST = "<!-- Made by docs/make_names.py: do not edit. -->", "<!-- Until here. -->"


def render() -> str:
    """Return the page with the table as the package has it."""
    before, first, rest = PAGE.read_text(encoding="utf-8").partition(FIRST)
    _, last, after = rest.partition(LAST)
    if not first or not last:
        raise SystemExit(f"{PAGE}: lacks {FIRST!r} or {LAST!r}, between which the table stands")
    return f"{before}{first}\n\n{table()}\n\n{last}{after}"


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        PAGE.write_text(render(), encoding="utf-8")
        return 0
    stale = render() != PAGE.read_text(encoding="utf-8")
    if stale:
        print(f"{PAGE}: stale, run `python docs/make_names.py`", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
