"""Changes that people make, each in a copy of the package: the files that it touches, and the tests that pass then.

Nothing else had to know of it. Each is the whole of what one writes, beside the sentences that explain it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changed import PACKAGE, Copy
from evopipe.schema.read import parse_yaml
from tiny import ROOT, wait_for, write_params

pytestmark = pytest.mark.thorough

TRACKER = '''"""Lines of CSV: a file a run."""

from __future__ import annotations

from pathlib import Path

from evopipe.schema.tracking import TrackingConfig
from evopipe.storage.files import make_folder
from evopipe.track.backends import Appending
from evopipe.track.events import Generation
from evopipe.track.record import TrackedRun

PACKAGE = "csv"


def connect(config: TrackingConfig, root: Path) -> Appending:
    home = root / ".evopipe" / "csv"
    return Appending(home / "delivered", [], lambda run: _Writer(home, run))


class _Writer:
    def __init__(self, home: Path, run: TrackedRun) -> None:
        import csv

        make_folder(home)
        self.sent = 0
        self._file = (home / f"{run.key}.csv").open("w", newline="")
        self._rows = csv.writer(self._file)

    def write(self, clock: float, event: Generation) -> None:
        self._rows.writerow([event.generation, event.env_steps])

    def finish(self, run: TrackedRun) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
'''


BACKEND = '''"""Gymnasium's environments, one after the other."""

from __future__ import annotations

import sys

import numpy as np

from evopipe.envs.make import close, make_env
from evopipe.envs.rows import Actions, Begun, Ints, RowStep, Upcoming
from evopipe.envs.spaces import ActionSpace
from evopipe.schema.env import EnvConfig
from evopipe.types import Spaces


class Plain:
    def __init__(self, cfg: EnvConfig, rows: int) -> None:
        self._envs = [make_env(cfg) for _ in range(rows)]
        self._actions = ActionSpace.of(self._envs[0].action_space)

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        each = zip(rows.tolist(), seeds.tolist(), strict=True)
        return Begun(np.stack([self._envs[row].reset(seed=seed)[0] for row, seed in each]).astype(np.float32), None)

    def send(self, rows: Ints, actions: Actions) -> None:
        pass

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        own = self._actions.own(actions).tolist()
        each = [self._envs[row].step(action)[:4] for row, action in zip(rows.tolist(), own, strict=True)]
        obs, reward, terminated, truncated = map(np.array, zip(*each, strict=True))
        return RowStep.of(
            self._actions, obs.astype(np.float32), reward.astype(np.float32), terminated, truncated, None
        )

    def close(self) -> None:
        close(*self._envs)
        print(f"plain: {len(self._envs)} environments closed", file=sys.stderr)


def rows(cfg: EnvConfig, rows: int, spaces: Spaces, threads: int) -> Plain:
    return Plain(cfg, rows)
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

    def generations() -> list[str]:
        files = (folder / ".evopipe/csv").glob("*.csv")
        return [line.split(",")[0] for path in files for line in path.read_text().splitlines()]

    # A process of its own brings them, and may do so after the stage has ended.
    assert wait_for(lambda: generations() == ["1", "2"]), generations()
    assert copy.files == ["track/backends/csv.py"]


def test_an_environment_backend(copy: Copy, tmp_path: Path) -> None:
    """Its name is one that `env.backend` takes; what it steps as Gymnasium does, members learn from to the same bit."""
    copy.write("envs/backends/plain.py", BACKEND)
    found = []
    for backend in ("plain", "sync"):
        folder = tmp_path / backend
        write_params(folder, {"train.max_steps": 400, "train.evo_steps": 200, "env.backend": backend})
        for stage in ("population", "train"):
            done = copy.python("-m", "evopipe", stage, cwd=folder)
            assert done.returncode == 0, done.stderr
        assert ("plain: 12 environments closed" in done.stderr) == (backend == "plain")
        found.append([(folder / name).read_bytes() for name in ("reports/lineage.jsonl", "reports/fitness.csv")])
    assert found[0] == found[1]
    assert copy.files == ["envs/backends/plain.py"]


RELU6 = "case RELU6: return choose(z > all(6.0f), all(6.0f), rectified(z));"
ITS_SLOPE = "case RELU6: return choose((y > all(0.0f)) & (y < all(6.0f)), all(1.0f), all(0.0f));"


def test_a_native_layer(copy: Copy) -> None:
    """Torch has an activation by its class's name; the kernels compute it and its slope, without a warning."""
    name, identity = '"Softplus", "Identity"]', "default: DO(IDENTITY);"
    value, slope = "    default: return z;\n", "    default: return all(1.0f);\n"
    copy.edit("schema/network.py", name=(name, name.replace(" ", ' "ReLU6", ')))
    copy.edit(
        "native/functions.h",
        kind=("SOFTPLUS, IDENTITY }", "SOFTPLUS, RELU6, IDENTITY }"),
        value=(value, f"    {RELU6}\n{value}"),
        slope=(slope, f"    {ITS_SLOPE}\n{slope}"),
        case=(identity, f"case RELU6: DO(RELU6); break; {identity}"),
    )
    copy.contract("tests/unit/native/test_native.py", "-k", "those_of_torch and ReLU6 or every_activation")
    assert copy.files == ["schema/network.py", "native/functions.h"]


FIGURE = """

@section("Spread", "The best and the worst fitness of each generation.")
def spread(run: FinishedRun, width: int, label: Markup) -> Markup:
    plot = Plot(f"spread.{width}", width, 200, (52, 16, 28, 44), "mean return")
    for bound in (min, max):
        ends = [(row.generation, [n.fitness for n in run.nodes.values() if n.key[0] == row.generation])
                for row in run.generations]
        plot.line([(x, bound(scores)) for x, scores in ends], "member", 1.4)
    return plot.svg(label)
"""
SHOWN = """
import sys
from pathlib import Path
import reports
from evopipe.report.page import compose
from evopipe.report.read import read
folder = Path(sys.argv[1])
reports.write_run(folder, members=2, generations=3, diverge=0.0, episodes=4)
(folder / "page.html").write_text(compose(read(folder), {}, "No film."))
"""


def test_a_figure_of_the_report(copy: Copy, tmp_path: Path) -> None:
    """A function that says what its section is called: the page shows it twice, and names it among its sections."""
    was = (PACKAGE / "report/figures.py").read_text(encoding="utf-8")
    copy.write("report/figures.py", was + FIGURE)
    done = copy.python("-c", SHOWN, str(tmp_path))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text()
    assert text.count('class="plot spread"') == 2
    assert '<a href="#spread">Spread</a>' in text
    assert '<section id="spread" aria-labelledby="spread-title">' in text
    copy.contract("tests/unit/report/test_report.py", "-k", "loads_nothing or ids_are_unique or colours")
    assert copy.files == ["report/figures.py"]


SEARCHER = '''"""Truncation selection: the better half goes on, and the others become mutated children of it.

Paper: https://arxiv.org/abs/1711.09846
"""

from __future__ import annotations

from evopipe.schema.declare import Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Plan, Stateless

RENEWS = PAUSES = DRAWS = False


class Config(Schema):
    """It has no settings."""


class Search(Stateless):
    def __init__(self, config: Config, about: About) -> None:
        self.about = about

    def plan(self, history: History, draw: Draw) -> Plan:
        return Plan(tuple(range(self.about.size)), self.about.generation)

    def step(self, history: History, draw: Draw) -> list[Fate] | None:
        ranked = sorted(history.members, key=lambda member: -member.score)
        kept = [member.slot for member in ranked[: (self.about.size + 1) // 2] if member.healthy]
        if not kept:
            return None
        return [
            Keep("among the better half") if slot in kept else Child(kept[slot % len(kept)], why="the worse half")
            for slot in range(self.about.size)
        ]
'''


def test_a_search_strategy(copy: Copy, tmp_path: Path) -> None:
    """Its name is one that `search.strategy` takes; of three members two go on, one is their child."""
    copy.write("searchers/truncation.py", SEARCHER)
    folder = tmp_path / "run"
    write_params(folder, {"train.max_steps": 400, "train.evo_steps": 200, "search.strategy": "truncation"})
    for stage in ("population", "train"):
        done = copy.python("-m", "evopipe", stage, cwd=folder)
        assert done.returncode == 0, done.stderr
    record = json.loads((folder / "reports/lineage.jsonl").read_text().splitlines()[1])
    score = {member["id"]: member["fitness"] for member in record["members"]}
    stayed = [child["id"] for child in record["children"] if child["why"] == "among the better half"]
    (born,) = (child for child in record["children"] if child["why"] == "the worse half")
    assert sorted(map(score.__getitem__, stayed)) == sorted(score.values())[1:]
    assert born["parent"] in stayed
    copy.contract("tests/contract/test_searchers.py", "-k", "truncation")
    assert copy.files == ["searchers/truncation.py"]


STAGE = '''"""Stage `tally`: how many generations a run had."""

from __future__ import annotations

from pathlib import Path

from evopipe.layout import TALLY, TRAIN, need
from evopipe.params.load import AnyParams
from evopipe.stages.tell import tell
from evopipe.storage.files import read_json, write_json


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    generations = read_json(need(folder, TRAIN))["generations"]
    write_json(folder / TALLY, {"generations": generations})
    tell(f"{TALLY}: {generations} generations", quiet)
'''
ROW = """    Stage(
        "tally", "Count generations", code=("storage",),
        env=Files(("seed",), (TRAIN,), (TALLY,)), text=Files(("seed",), (TRAIN,), (TALLY,)),
    ),
"""


def test_a_stage(copy: Copy, tmp_path: Path) -> None:
    """Its module, and its row in the table: a command, a part of `evopipe.train`, and dvc.yaml follow."""
    copy.write("stages/tally.py", STAGE)
    out, report = 'REPORT = Path("reports/report.html")\n', '    Stage(\n        "report", '
    copy.edit("layout.py", out=(out, f'{out}TALLY = Path("reports/tally.json")\n'), row=(report, ROW + report))
    write_params(tmp_path / "run", {"train.max_steps": 400, "train.evo_steps": 200})
    trains = copy.python("-c", "import evopipe; evopipe.train('params.yaml', folder='.')", cwd=tmp_path / "run")
    assert trains.returncode == 0, trains.stderr
    written = tmp_path / "run/reports/tally.json"
    assert json.loads(written.read_text()) == {"generations": 2}
    written.unlink()
    done = copy.python("-m", "evopipe", "tally", cwd=tmp_path / "run")
    assert (done.returncode, done.stdout) == (0, "reports/tally.json: 2 generations\n"), done.stderr
    assert json.loads(written.read_text()) == {"generations": 2}
    (tmp_path / "run/reports/train.json").unlink()
    early = copy.python("-m", "evopipe", "tally", cwd=tmp_path / "run")
    assert (early.returncode, early.stderr.count("\n")) == (66, 1), early.stderr
    stale = copy.python(str(ROOT / "pipelines/make.py"), "--check")
    assert stale.returncode == 1
    assert {"dvc.yaml", "src/evopipe/new/template/stages.yaml", "pipelines/dqn-cartpole/dvc.yaml"} <= {
        line.partition(":")[0] for line in stale.stderr.splitlines()
    }
    made = copy.python("-c", "import sys; sys.path.insert(0, 'pipelines'); import make; print(make.render_root())")
    stages = parse_yaml(made.stdout, "dvc.yaml").data["stages"]
    assert list(stages)[-2:] == ["tally", "report"]
    assert stages["tally"]["outs"] == ["reports/tally.json"]
    assert {"reports/train.json", "src/evopipe/stages/tally.py", "src/evopipe/storage"} <= {*stages["tally"]["deps"]}
    assert copy.files == ["stages/tally.py", "layout.py"]


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
