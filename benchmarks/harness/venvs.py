"""The environments of the contestants: ours is the project's, each peer has one of its own."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import venv
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
VENVS = BENCHMARKS / ".venvs"
PEERS = ("agilerl", "d3rlpy", "sb3", "skrl", "trl", "tuners")


def python_of(environment: str) -> Path:
    """Return the interpreter of `ours` or of a peer."""
    return Path(sys.executable) if environment == "ours" else VENVS / environment / "bin" / "python"


def ready(peer: str) -> bool:
    """Whether a peer's environment is there and as its requirements say."""
    mark = VENVS / peer / ".ready"
    return mark.exists() and mark.read_text() == _key(peer)


def make(peer: str) -> None:
    """Make a peer's environment, where it is not there yet.

    Raises:
        SystemExit: pip failed.
    """
    if ready(peer):
        return
    print(f"{peer}: making its environment (minutes, once)", file=sys.stderr, flush=True)
    folder = VENVS / peer
    venv.create(folder, with_pip=True)
    # Every pin is a constraint as well, so that no dependency brings another build of torch.
    pins = folder / "constraints.txt"
    pins.write_text(re.sub(r"\[.*?\]", "", "\n".join(_requirements(peer)) + "\n"))
    pip = [str(python_of(peer)), "-m", "pip", "install", "--quiet", "-c", str(pins), "-r", str(_file(peer))]
    if subprocess.run(pip, check=False).returncode:
        raise SystemExit(f"{peer}: pip could not install {_file(peer)}; without it: --contestants evopipe")
    (folder / ".ready").write_text(_key(peer))


def make_games() -> None:
    """Put environments that all sides read into a folder of their own, where they are not there yet.

    Raises:
        SystemExit: pip failed.
    """
    if ready("games"):
        return
    folder = VENVS / "games"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    if subprocess.run([*pip, "-r", str(_file("games"))], check=False).returncode:
        raise SystemExit(f"games: pip could not install {_file('games')}")
    (folder / ".ready").write_text(_key("games"))


def version(peer: str, package: str) -> str:
    """Return the version of a package that a peer's requirements name."""
    (found,) = (line.partition("==")[2] for line in _requirements(peer) if re.match(rf"{package}\b.*==", line))
    return found


def _file(peer: str) -> Path:
    return BENCHMARKS / "peers" / f"{peer}.txt"


def _requirements(peer: str) -> list[str]:
    return [line for line in _file(peer).read_text().splitlines() if line and not line.startswith("#")]


def _key(peer: str) -> str:
    return hashlib.sha256("\n".join([sys.version, *_requirements(peer)]).encode()).hexdigest()
