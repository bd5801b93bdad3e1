"""The wheel and the source distribution of this tree, built without a network, and the wheel installed elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tiny import ROOT, Answer, environment


def build(kind: str, folder: Path, tree: Path = ROOT, **more: str) -> Path:
    """Build `wheel` or `sdist` of a source tree with the hatchling that is installed; return the file."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(words, cwd=tree, env=environment(**more), check=True, capture_output=True, timeout=60)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


class Installed:
    """The wheel in a virtual environment of its own, which finds in this one what evopipe depends on, and no evopipe.

    This environment's packages are read through a `.pth` file: unlike a site folder, a path that such a file names has
    its own `.pth` files left unread, so that the editable installation of this tree is not found.
    """

    def __init__(self, home: Path, **more: str) -> None:
        self.home, place = home, home / "venv"
        venv.create(place, symlinks=True, with_pip=False)
        self.python = place / "bin/python"
        (self.site,) = (place / "lib").glob("python*/site-packages")
        (self.site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", str(self.python)]
        wheel = build("wheel", home / "wheel", **more)
        subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)

    def run(self, folder: Path, *words: str, **more: str) -> Answer:
        """Run a program of the environment, with nothing of this tree."""
        kept = {name: value for name, value in environment().items() if not name.startswith(("GIT_", "PYTHONPATH"))}
        path = os.pathsep.join((str(self.python.parent), str(Path(sys.executable).parent), kept["PATH"]))
        run = subprocess.run(
            [str(self.python.parent / words[0]), *words[1:]],
            cwd=folder,
            env=kept | {"PATH": path, "DVC_NO_ANALYTICS": "1", "TMPDIR": str(self.home)} | more,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        return Answer(run.returncode, run.stdout, run.stderr)
