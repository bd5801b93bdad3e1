"""The results of searches, kept run by run."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evopipe.storage.files import dump_json, read_json, write_bytes
from harness import curves, machine, search
from harness.search import Ours, Outcome


class Kept:
    """A results file, which is written after every run.

    Raises:
        SystemExit: it holds runs of another target, life or budget, or of a strategy that was set otherwise.
    """

    def __init__(self, folder: Path, task: str, kind: str, lives: int, confirmation: str = "full") -> None:
        name, options = f"search_{task}_{kind}", ""
        about = asdict(replace(curves.TASKS[task], confirmation=confirmation))
        if confirmation == "full":
            del about["confirmation"], about["lowest"]
        else:
            name, options = f"{name}_{confirmation}", f" --confirm {confirmation}"
        self.path = folder / f"{name}.json"
        settings = {"task": task, "space": kind, "lives": lives, **about}
        self.data: dict[str, Any] = {
            "measurement": name,
            "command": f"python benchmarks/search.py {task} --space {kind}{options}",
            "lanes": 1,
            "settings": settings,
            "contestants": [],
            "machine": {},
            "runs": [],
        }
        if self.path.exists():
            self.data = read_json(self.path)
            if self.data["settings"] != settings:
                raise SystemExit(f"{self.path}: holds runs of other settings; take it away to begin anew")
        else:
            self.data["machine"] = machine.fingerprint([machine.able()[:1]], "cpu")
        self._source = machine.source_key()

    def has(self, name: str, seed: int) -> bool:
        """Whether this run was made."""
        return any(run["turn"] == seed and run["contestant"] == name for run in self.data["runs"])

    def add(self, name: str, seed: int, outcome: Outcome) -> None:
        """Keep a run, with a key of the code that made it."""
        about = {"name": name, **_set(name)}
        known = {each["name"]: each for each in self.data["contestants"]}
        if known.setdefault(name, about) != about:
            raise SystemExit(f"{self.path}: {name} was set otherwise; take its runs away to begin anew")
        self.data["contestants"] = [known[each] for each in search.CONTESTANTS if each in known]
        result = {**outcome.to_json(), "source": self._source}
        run = {"turn": seed, "contestant": name, "load": round(machine.load(), 2), "result": result}
        self.data["runs"].append(run)
        self.data["runs"].sort(key=lambda each: (each["turn"], list(search.CONTESTANTS).index(each["contestant"])))
        write_bytes(self.path, dump_json(self.data, str(self.path), indent=1))


def _set(name: str) -> dict[str, Any]:
    """Return how a contestant is set."""
    contestant = search.CONTESTANTS[name]
    return asdict(contestant) if isinstance(contestant, Ours) else {"told": contestant.told}
