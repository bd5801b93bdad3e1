"""Changes that people make, each in a copy of the package: the files that it touches, and the tests that pass then.

Nothing else had to know of it. Each is the whole of what one writes, beside the sentences that explain it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changed import PACKAGE, Copy
from tiny import write_params

pytestmark = pytest.mark.thorough

TRACKER = '''"""Lines of CSV: a file a run."""

from __future__ import annotations

from pathlib import Path

from evopipe.schema.blocks import TrackingConfig
from evopipe.storage.files import make_folder
from evopipe.track.backends import Appending
from evopipe.track.events import Generation
from evopipe.track.record import Run

PACKAGE = "csv"


def connect(config: TrackingConfig, root: Path) -> Appending:
    home = root / ".evopipe" / "csv"
    return Appending(home / "delivered", [], lambda run: _Writer(home, run))


class _Writer:
    def __init__(self, home: Path, run: Run) -> None:
        import csv

        make_folder(home)
        self.sent = 0
        self._file = (home / f"{run.key}.csv").open("w", newline="")
        self._rows = csv.writer(self._file)

    def write(self, clock: float, event: Generation) -> None:
        self._rows.writerow([event.generation, event.env_steps])

    def finish(self, run: Run) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
'''


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def algorithm(name: str) -> str:
    return (PACKAGE / f"algos/{name}.py").read_text(encoding="utf-8")


def test_an_algorithm(copy: Copy) -> None:
    """Of one file: its block in params.yaml, its evolution and all contracts follow."""
    copy.write("algos/planted.py", algorithm("dqn").replace("lr: _hyper.Rate = 5e-4", "lr: _hyper.Rate = 3e-4"))
    copy.contract("tests/contract/test_algorithms.py", "-k", "planted")
    assert copy.files == ["algos/planted.py"]


def test_an_algorithm_for_language_models(copy: Copy) -> None:
    copy.write("algos/planted.py", algorithm("sft"))
    copy.contract("tests/contract/test_language_runs.py", "-m", "thorough", "-k", "planted and same_bits")
    assert copy.files == ["algos/planted.py"]


def test_an_algorithm_for_teams(copy: Copy) -> None:
    """Of its file, and one of helpers."""
    copy.write("algos/_planted.py", algorithm("_central"))
    copy.write("algos/planted.py", algorithm("maddpg").replace("_central", "_planted"))
    copy.contract("tests/contract/test_team_algorithms.py", "--slow", "-k", "planted and asks_the_host")
    assert set(copy.files) == {"algos/_planted.py", "algos/planted.py"}


def test_a_tracker(copy: Copy, tmp_path: Path) -> None:
    """Its name is one that `tracking.backends` takes, and a run's generations reach it."""
    copy.write("track/backends/csv.py", TRACKER)
    folder = tmp_path / "run"
    write_params(folder, {"train.max_steps": 400, "train.evo_steps": 200, "tracking.backends": ["csv"]})
    (folder / ".dvc").mkdir()
    for stage in ("population", "train"):
        done = copy.python("-m", "evopipe", stage, cwd=folder)
        assert done.returncode == 0, done.stderr
    (written,) = (folder / ".evopipe/csv").glob("*.csv")
    assert [line.split(",")[0] for line in written.read_text().splitlines()] == ["1", "2"]
    assert copy.files == ["track/backends/csv.py"]


def test_a_strategy_of_search(copy: Copy) -> None:
    """Of one file: its block in params.yaml and all contracts follow."""
    copy.write("searchers/planted.py", (PACKAGE / "searchers/pbt.py").read_text(encoding="utf-8"))
    copy.contract("tests/contract/test_searchers.py", "-k", "planted")
    assert copy.files == ["searchers/planted.py"]


EVOLVES = """
import json, numpy as np
import populations
from evopipe.searchers.apply import evolve
from evopipe.run.spec import first_members
hyper = {"probabilities": {"none": 0.0, "architecture": 0.0, "parameters": 0.0, "activation": 0.0, "rl_hp": 1.0}}
config = {"evolve": {"sharpness": {"min": 0.1, "max": 4.0}}}
p = populations.problem(algo="dqn", mutation={"mutate_elite": True, **hyper}, config=config)
born = evolve(p.tournament, p.mutation, p.traits, first_members(p, 3)[0], np.array([1.0, 3.0, 2.0]), p.seed, 1, 10)
print(json.dumps([member.hyper["sharpness"] for member in born.members]))
"""


def test_a_hyper_parameter_that_evolves(copy: Copy) -> None:
    """A field of the algorithm's own, read as a row `[P]`: the mutation finds it."""
    before, after = "    double: _hyper.DoubleQ = True\n", "    return losses, (q_tm1 - y).detach()\n"
    field = '    sharpness: float = hyper(1.0, doc="factor of the loss", evolvable=True, gt=0, le=10)\n'
    copy.edit(
        "algos/dqn.py", field=(before, before + field), use=(after, after.replace("losses", 'hp["sharpness"] * losses'))
    )
    done = copy.python("-c", EVOLVES)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(0.1 <= value <= 4.0 and value != 1.0 for value in found)
    copy.contract("tests/contract/test_algorithms.py", "-k", "dqn")
    assert copy.files == ["algos/dqn.py"]
