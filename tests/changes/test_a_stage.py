"""Another stage: its module and its row in the table, in a copy of the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changed import Copy
from tiny import ROOT, write_params

pytestmark = pytest.mark.thorough

MODULE = '''"""Stage `count`: how many members were trained."""

from __future__ import annotations

from pathlib import Path

from evopipe import layout
from evopipe.params.load import AnyParams
from evopipe.storage.files import read_json, write_json


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `reports/count.json`."""
    layout.need(folder, layout.TRAIN)
    write_json(folder / layout.COUNT, {"members": params.population.size})
'''
OUT = (
    'REPORT = Path("reports/report.html")\n',
    'COUNT = Path("reports/count.json")\nREPORT = Path("reports/report.html")\n',
)
ROW = (
    '    Stage(\n        "export",',
    '    Stage(\n        "count", "Count the members", env=Files(("population.size",), (TRAIN,), (COUNT,)),\n'
    '        text=Files(("population.size",), (TRAIN,), (COUNT,)),\n    ),\n    Stage(\n        "export",',
)


def test_a_stage(tmp_path: Path) -> None:
    """The command line, `evopipe.train` and every dvc.yaml follow from the table."""
    copy = Copy(tmp_path)
    copy.write("stages/count.py", MODULE)
    copy.edit("layout.py", out=OUT, row=ROW)
    helped = copy.python("-m", "evopipe", "--help")
    assert "Count the members: reports/count.json." in helped.stdout, helped.stderr
    folder = tmp_path / "run"
    write_params(folder, {"train.max_steps": 200, "train.evo_steps": 100, "train.warm_start": 0})
    done = copy.python("-c", f"import evopipe; evopipe.train('params.yaml', {str(folder)!r})", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "reports/count.json").read_text()) == {"members": 3}
    (folder / "reports/train.json").unlink()
    early = copy.python("-m", "evopipe", "count", cwd=folder)
    assert (early.returncode, early.stderr.count("\n")) == (66, 1), early.stderr
    made = copy.python(str(ROOT / "pipelines/make.py"), "--check")
    assert made.returncode == 1
    assert {"dvc.yaml", "src/evopipe/new/template/stages.yaml", "pipelines/dqn-cartpole/dvc.yaml"} <= {
        line.partition(":")[0] for line in made.stderr.splitlines()
    }
    assert sorted(copy.files) == ["layout.py", "stages/count.py"]
