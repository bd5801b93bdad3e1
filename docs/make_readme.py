"""Writes build/README.md: the README with whole addresses, for an index that shows it without the repository.

python docs/make_readme.py --base https://example.org/evopipe/blob/v1.0.0/
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def absolute(text: str, base: str) -> str:
    """Return Markdown whose relative links and pictures lead below the address `base`; code blocks stay."""
    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(lambda link: f"]({base.rstrip('/')}/{link[1]})", part) for part in parts[::2]]
    return "".join(parts)


def main(words: Sequence[str] | None = None) -> int:
    """Write the file, and print where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", required=True, help="address of the repository's files at the release's tag")
    parser.add_argument("--out", type=Path, default=ROOT / "build/README.md")
    asked = parser.parse_args(words)
    if not re.match(r"https?://[^\s/]", asked.base):
        parser.error(f"--base: {asked.base!r} is no address: it begins with https://")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(absolute((ROOT / "README.md").read_text(encoding="utf-8"), asked.base), encoding="utf-8")
    print(asked.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
