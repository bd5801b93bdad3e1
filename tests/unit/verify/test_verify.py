"""What verify compares, and how: locks, files, numbers, scores, clones."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from evopipe.errors import DataError, MissingInputError, UsageError
from evopipe.report.page import without_measured
from evopipe.schema.read import read_yaml
from evopipe.schema.write import dump_yaml
from evopipe.storage.tensors import dump_tensors
from evopipe.verify import clones, compare
from evopipe.verify.clones import _Clone, _Origin
from evopipe.verify.compare import ComparedOut
from tiny import ROOT, call

GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
STAGES = {
    "fetch": ([], ["data/set"]),
    "train": (["data/set"], ["models/trained", "reports/fitness.csv", "reports/timing.csv"]),
    "evaluate": (["models/trained"], ["reports/evaluation.json"]),
    "report": (["reports/evaluation.json"], ["reports/report.html"]),
}


def run_of(folder: Path, **files: str) -> Path:
    """A folder after a run: its outs, and a lock whose hashes are the contents' own. `a__b_c` is the file a/b.c."""
    contents = {
        "data/set/0.bin": "\0\1",
        "models/trained/members.json": "[1.0]",
        "reports/fitness.csv": "best\n1.0\n",
        "reports/timing.csv": f"seconds\n{folder}\n",
        "reports/evaluation.json": score(100.0),
        "reports/report.html": page("1"),
    }
    contents |= {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    entries = {
        stage: {
            "deps": [{"path": path, "md5": "0"} for path in deps],
            "outs": [{"path": path, "md5": f"x{hash_of(folder / path)}"} for path in outs],
        }
        for stage, (deps, outs) in STAGES.items()
    }
    (folder / "dvc.lock").write_text(dump_yaml({"schema": "2.0", "stages": entries}))
    return folder


def hash_of(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return f"{hash(tuple(file.read_bytes() for file in files if file.is_file())) & 0xFFFFFFFF:08x}"


def score(mean: float, spread: float = 5.0) -> str:
    return json.dumps({"elite": {"mean": mean, "interval": [mean - spread, mean + spread]}})


def page(number: str, seconds: str = "3") -> str:
    return f"<p>{number}</p>\n<!-- measured -->\n<p>{seconds} s</p>\n<!-- /measured -->\n<p>end</p>\n"


def verdicts(rows: list[ComparedOut]) -> dict[str, str]:
    return {row.path: row.verdict for row in rows if row.verdict not in ("same", "measured")}


# --- two clones -------------------------------------------------------------------------------------------------------


def test_equal_runs(tmp_path: Path) -> None:
    rows = compare.compare(run_of(tmp_path / "a"), run_of(tmp_path / "b"))
    assert [row.path for row in rows] == [path for _, outs in STAGES.values() for path in outs]
    assert {row.path: row.verdict for row in rows} == {
        path: "measured" if path == "reports/timing.csv" else "same" for _, outs in STAGES.values() for path in outs
    }
    assert not any(row.fails for row in rows)


def test_a_difference_is_named_and_traced_to_its_stage(tmp_path: Path) -> None:
    one = run_of(tmp_path / "a")
    two = run_of(
        tmp_path / "b", models__trained__members_json="[2.0]", reports__evaluation_json=score(101.0), extra_txt=""
    )
    rows = compare.compare(one, two)
    assert verdicts(rows) == {"models/trained": "DIFFERENT", "reports/evaluation.json": "DIFFERENT"}
    (row,) = (row for row in rows if row.path == "models/trained")
    assert row.notes == ("members.json: line 1: [1.0] | [2.0]",)
    lines = clones._table(rows, ("A", "B"))
    assert lines[0].split() == ["out", "stage", "A", "B"]
    assert any(line.startswith("models/trained") and line.endswith("DIFFERENT") for line in lines)
    assert "    members.json: line 1: [1.0] | [2.0]" in lines


def test_files_that_only_one_has_and_bytes(tmp_path: Path) -> None:
    one = run_of(tmp_path / "a", data__set__more_bin="x")
    two = run_of(tmp_path / "b")
    (one / "data/set/0.bin").write_bytes(b"\xff\0\0")
    (two / "data/set/0.bin").write_bytes(b"\xff\0\1\2")
    assert compare._differences(one / "data/set", two / "data/set") == [
        "0.bin: differs from byte 2 on (3 and 4 bytes)",
        "more.bin: only in A",
    ]
    for number in range(20):
        (one / f"data/set/{number}.txt").write_text("a\n")
        (two / f"data/set/{number}.txt").write_text("a\nb\n")
    told = compare._differences(one / "data/set", two / "data/set")
    assert told[-1] == "and 14 more files"
    assert told[1] == "0.txt: line 2:  | b"


def test_the_report_is_compared_without_its_measured_section(tmp_path: Path) -> None:
    assert "3 s" not in without_measured(page("1"))
    one = run_of(tmp_path / "a", reports__report_html=page("1", "3"))
    slower = run_of(tmp_path / "b", reports__report_html=page("1", "4"))
    other = run_of(tmp_path / "c", reports__report_html=page("2", "3"))
    rows = compare.compare(one, slower)
    assert verdicts(rows) == {}
    assert rows[-1].notes == ("compared without its measured section",)
    assert rows[-1].a == rows[-1].b
    assert verdicts(compare.compare(one, other)) == {"reports/report.html": "DIFFERENT"}


def test_an_out_that_one_lacks(tmp_path: Path) -> None:
    one, two = run_of(tmp_path / "a"), run_of(tmp_path / "b")
    text = (two / "dvc.lock").read_text()
    (two / "dvc.lock").write_text(text.replace("reports/fitness.csv", "reports/other.csv"))
    rows = compare.compare(one, two)
    assert verdicts(rows) == {"reports/fitness.csv": "missing", "reports/other.csv": "missing"}
    assert all(row.fails for row in rows if row.verdict == "missing")


def test_locks_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"dvc\.lock: not there; run `dvc repro` and commit"):
        clones._refuse_stale(_Clone(_Origin(tmp_path, Path(), "", 0), tmp_path))
    (tmp_path / "dvc.lock").write_text("stages: [1]\n")
    with pytest.raises(DataError, match="is not a lock that DVC 3 wrote"):
        compare._read_lock(tmp_path)


# --- against a lock ---------------------------------------------------------------------------------------------------


def against(
    tmp_path: Path, there: Mapping[str, str], here: Mapping[str, str], tolerance: float = 0.1
) -> list[ComparedOut]:
    """Compare two runs as with a committed lock whose outs are all at hand."""
    return compare.compare(run_of(tmp_path / "there", **there), run_of(tmp_path / "here", **here), tolerance)


def test_what_depends_on_training_is_learned(tmp_path: Path) -> None:
    learned = compare._learned(compare._read_lock(run_of(tmp_path)))
    outs = {path for stage, (_, outs) in STAGES.items() if stage != "fetch" for path in outs}
    assert learned == outs - {"reports/timing.csv"}


def test_what_another_pipelines_elite_went_into_is_learned(tmp_path: Path) -> None:
    text = (run_of(tmp_path) / "dvc.lock").read_text()
    assert "data/set" not in compare._learned(compare._read_lock(tmp_path))
    for base in ("../sft/models/elite/merged", "../../deep/models/elite", "../sft/data/set"):
        lock = text.replace("deps: []", f"deps:\n    - {{path: {base}, md5: '0'}}", 1)
        (tmp_path / "dvc.lock").write_text(lock)
        assert ("data/set" in compare._learned(compare._read_lock(tmp_path))) == ("models/elite" in base)


def test_learned_outs_may_differ_where_the_scores_agree(tmp_path: Path) -> None:
    rows = against(
        tmp_path,
        {},
        {
            "models__trained__members_json": "[1.0000001]",
            "reports__fitness_csv": "best\n7.0\n",
            "reports__evaluation_json": score(109.0),
            "reports__report_html": page("2"),
        },
    )
    assert verdicts(rows) == {
        "models/trained": "close",
        "reports/fitness.csv": "learned anew",
        "reports/evaluation.json": "close",
        "reports/report.html": "learned anew",
    }
    assert not any(row.fails for row in rows)
    assert (
        "elite 100.0 [95.0, 105.0] in the lock, 109.0 [104.0, 114.0] here" in clones._table(rows, ("lock", "here"))[-4]
    )


@pytest.mark.parametrize(
    ("mean", "spread", "tolerance", "agrees"),
    [
        (109.0, 5.0, 0.0, True),  # the intervals meet
        (112.0, 5.0, 0.1, False),
        (112.0, 5.0, 0.12, True),
        (88.0, 1.0, 0.1, False),
        (91.0, 1.0, 0.1, True),
    ],
)
def test_scores_agree_by_interval_or_tolerance(
    tmp_path: Path, mean: float, spread: float, tolerance: float, agrees: bool
) -> None:
    rows = against(tmp_path, {}, {"reports__evaluation_json": score(mean, spread)}, tolerance)
    assert verdicts(rows) == {"reports/evaluation.json": "close" if agrees else "DIFFERENT"}


def test_a_share_of_a_score_below_0_is_as_wide(tmp_path: Path) -> None:
    one, two = ({"reports__evaluation_json": score(mean, 1.0)} for mean in (-100.0, -109.0))
    assert verdicts(against(tmp_path, one, two)) == {"reports/evaluation.json": "close"}


def test_an_out_of_one_lock_alone_is_missing_and_without_a_committed_score_nothing_is_judged(tmp_path: Path) -> None:
    one, two = run_of(tmp_path / "one"), run_of(tmp_path / "two", reports__fitness_csv="best\n7.0\n")
    lock = read_yaml(one / "dvc.lock").data
    timed = lock["stages"]["train"]["outs"].pop()
    (one / "dvc.lock").write_text(dump_yaml(lock))
    assert timed["path"] == "reports/timing.csv"
    assert verdicts(compare.compare(one, two, 0.1)) == {
        "reports/fitness.csv": "learned anew", "reports/timing.csv": "missing",
    }  # fmt: skip
    del lock["stages"]["evaluate"]
    (one / "dvc.lock").write_text(dump_yaml(lock))
    with pytest.raises(MissingInputError, match="what was learned has no score"):
        compare.compare(one, two, 0.1)


def test_outs_before_training_must_be_the_same(tmp_path: Path) -> None:
    rows = against(tmp_path, {}, {"data__set__1_txt": "x"})
    assert verdicts(rows) == {"data/set": "DIFFERENT"}
    assert rows[0].notes == ("1.txt: only in B",)


def test_a_committed_score_that_is_not_to_be_had(tmp_path: Path) -> None:
    committed = run_of(tmp_path / "there")
    fresh = run_of(tmp_path / "here", reports__evaluation_json=score(101.0))
    (fresh / "reports/evaluation.json").write_text("{}")
    with pytest.raises(DataError, match="has no score of the elite"):
        compare.compare(committed, fresh, 0.1)
    (committed / "reports/evaluation.json").unlink()
    with pytest.raises(MissingInputError, match="neither in git nor in the cache: `dvc fetch` it"):
        compare.compare(committed, fresh, 0.1)


def test_numbers_are_close_within_a_thousandth(tmp_path: Path) -> None:
    def close(name: str, one: bytes, two: bytes) -> bool:
        paths = [tmp_path / side / name for side in ("a", "b")]
        for path, data in zip(paths, (one, two), strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        return compare._close(*paths)

    assert close("x.json", b'{"a": [1.0, true, NaN]}', b'{"a": [1.0009, true, NaN]}')
    assert not close("x.json", b'{"a": [1.0, true]}', b'{"a": [1.0011, true]}')
    assert not close("x.json", b'{"a": 1.0}', b'{"a": NaN}')
    assert close("x.json", b'{"a": 1e-9}', b'{"a": 2e-9}')  # next to nothing
    assert not close("x.json", b'{"a": 1}', b'{"b": 1}')
    assert not close("x.json", b'{"a": "x"}', b'{"a": "y"}')
    assert close("x.json", b'{"provenance": "x"}', b'{"provenance": "y"}')
    assert close("x.csv", b"a,b\n1,2\n", b"a,b\n1,2.001\n")
    assert not close("x.csv", b"a,b\n1,2\n", b"a,b\n1,2.01\n")
    assert not close("x.jsonl", b'{"a": 1}\n', b'{"a": 1}\n{"a": 1}\n')
    tensors = [dump_tensors({"w": torch.tensor([1.0, value])}) for value in (2.0, 2.0001, 2.1)]
    assert close("x.safetensors", tensors[0], tensors[1])
    assert not close("x.safetensors", tensors[0], tensors[2])
    assert not close("x.safetensors", tensors[0], b"damaged")
    assert not close("x.bin", b"a", b"b")
    assert close("x.bin", b"a", b"a")
    assert not compare._close(tmp_path / "a" / "none", tmp_path / "b" / "none")
    for side in ("a", "b"):
        (tmp_path / side / "folder").mkdir()
        (tmp_path / side / "folder/x.txt").write_text(side)
    assert not compare._close(tmp_path / "a/folder", tmp_path / "b/folder"), "no numbers are not close"


# --- what is cloned ---------------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run([*GIT, *words], cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "dvc.yaml").write_text("stages: {}\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_the_origin_is_the_repository_at_head(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    below = top / "pipelines/small"
    below.mkdir(parents=True)
    (below / "dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(MissingInputError, match="not committed; verify looks at HEAD"):
        _Origin.of(below)
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "second")
    found = _Origin.of(below)
    assert (found.root, found.project, found.changed) == (top.resolve(), Path("pipelines/small"), 0)
    assert found.revision == git(top, "rev-parse", "HEAD").strip()
    (top / "new file").write_text("")
    (top / "dvc.yaml").write_text("stages: {a: {cmd: b}}\n")
    assert _Origin.of(top).changed == 2


def test_what_cannot_be_cloned(tmp_path: Path) -> None:
    assert call(tmp_path, "verify").code == 66
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    answer = call(tmp_path, "verify")
    assert answer.code == 64
    assert "not a git repository" in answer.err
    git(tmp_path, "init", "-q")
    with pytest.raises(UsageError, match="rev-parse"):
        _Origin.of(tmp_path)
    top = repository(tmp_path / "no dvc")
    assert call(top, "verify") == (
        66,
        "",
        "error: verify: no committed .dvc folder at or above the pipeline; run `dvc init` and commit it\n",
    )


def test_a_clone_runs_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of PYTHONPATH inside the repository become the clone's; others stay; the running evopipe comes last."""
    origin = _Origin(tmp_path / "top", Path(), "0" * 40, 0)
    root = tmp_path / "clone"
    for folder in ("top/src", "top/lib", "top/untracked", "elsewhere", "clone/src/evopipe", "clone/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (root / "src/evopipe/__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path / "top/lib", tmp_path / "elsewhere", "src"))))
    monkeypatch.setenv("DVC_ROOT", "/x")
    monkeypatch.chdir(tmp_path / "top")
    env = _Clone(origin, root).environment
    assert env["PYTHONPATH"].split(os.pathsep) == [
        str(path) for path in (root / "src", root / "lib", tmp_path / "elsewhere", ROOT / "src")
    ]
    assert "DVC_ROOT" not in env
