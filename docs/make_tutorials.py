"""Run the tutorials as they stand on their pages, and keep their pictures: `python docs/make_tutorials.py NAME ...`, or
all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

TUTORIALS = Path(__file__).parent / "tutorials"


def names() -> list[str]:
    """The tutorials, by their pages' names."""
    return sorted(page.stem for page in TUTORIALS.glob("*.md") if page.stem != "index")


def run(name: str, folder: Path, shorter: Mapping[str, str] | None = None) -> None:
    """Run a page's blocks in order in a folder, with these pieces of text in the places of others.

    Raises:
        KeyError: a piece is not on the page.
        subprocess.CalledProcessError: a block failed.
    """
    text = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    for old, new in (shorter or {}).items():
        if old not in text:
            raise KeyError(f"{name}.md has no {old!r}")
        text = text.replace(old, new)
    python = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    bash = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    source, programs = TUTORIALS.parents[1] / "src", Path(sys.executable).parent
    env = {**os.environ, "PYTHONPATH": str(source), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    if python:
        (folder / "tutorial.py").write_text("\n".join(python), encoding="utf-8")
        subprocess.run([sys.executable, "tutorial.py"], cwd=folder, env=env, check=True)
    for block in bash:
        subprocess.run(["bash", "-e", "-c", block], cwd=folder, env=env, check=True)


def main() -> None:
    for name in sys.argv[1:] or names():
        with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
            run(name, Path(folder))
            shutil.copy(Path(folder) / f"{name}.png", TUTORIALS / f"{name}.png")


if __name__ == "__main__":
    main()
