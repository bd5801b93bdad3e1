"""`evopipe zoo`: rows, scores over seeds, training that goes on, rebuilding; and the rows of the repository."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evopipe
import tiny
from evopipe.cli_zoo import seeds_of
from evopipe.errors import DataError, MissingInputError, UsageError
from evopipe.schema.write import dump_yaml
from evopipe.storage.files import read_json
from evopipe.storage.tensors import dump_tensors, load_tensors
from evopipe.zoo import row as zoo
from evopipe.zoo import train as training
from evopipe.zoo.row import Curve, Entry, Published, Seed, ZooRow
from evopipe.zoo.verify import Compared, judge
from tiny import ROOT, environment, wait_for, write_params

CURVE = Curve(env_steps=(10, 20), eval_steps=(1, 2), elite=(1.0, 2.0), seconds=(0.1, 0.1))
RECORDED = sorted(path.stem for path in (ROOT / "zoo").glob("*.json"))
TINY = {"train.max_steps": 800, "population.size": 2}


def call(*words: str) -> tiny.Answer:
    return tiny.call(Path(), *words)


def seed_of(mean: float, **others: Any) -> Seed:
    """A result, of whose values a test names those that count."""
    values: dict[str, Any] = {
        "mean": mean, "interval": (mean - 5, mean + 5), "std": 1.0, "iqm": mean, "episodes": 100, "training_steps": 100,
        "evaluation_steps": 20, "cpu_seconds": 3.0, "elite": "e", "params": "p", "code": "c", "revision": None,
        "version": "0", "fingerprint": {"cpu": "x"}, "curve": CURVE,
    }  # fmt: skip
    return Seed(**{**values, **others})


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with a zoo of one row, `small`."""
    write_params(tmp_path / "pipelines/small", TINY)
    write_rows(tmp_path, {"small": {"family": "tests", "published": [{"by": "others", "score": 10.0}]}})
    return tmp_path


def write_rows(home: Path, rows: Mapping[str, Any]) -> None:
    (home / "zoo").mkdir(exist_ok=True)
    (home / "zoo/rows.yaml").write_text(dump_yaml({"sources": {"others": "https://example.org"}, "rows": rows}))


# --- statistics -------------------------------------------------------------------------------------------------------


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end() -> None:
    iqm, (low, high) = zoo.iqm_over_runs(np.array([[0.0], [10.0], [20.0], [30.0], [1000.0]]))
    assert iqm == 20.0  # one of five at either end
    assert low < iqm < high
    assert zoo.iqm_over_runs(np.full((3, 1), 7.0)) == (7.0, (7.0, 7.0))
    one, interval = zoo.iqm_over_runs(np.array([[4.0]]))
    assert (one, interval) == (4.0, (4.0, 4.0))


def test_tasks_are_strata() -> None:
    """Were runs drawn over tasks, the drawn means would spread as far as the tasks are apart."""
    _, (low, high) = zoo.iqm_over_runs(np.array([[0.0, 100.0]] * 4))
    assert (low, high) == (50.0, 50.0)


def test_the_interval_is_scipys() -> None:
    """For one task the strata are one: the percentile bootstrap of the trimmed mean."""
    from scipy.stats import bootstrap, trim_mean

    x = np.random.default_rng(3).normal(100.0, 20.0, 12)
    drawn = bootstrap(
        (x,), lambda each, axis: trim_mean(each, 0.25, axis), n_resamples=20_000, method="percentile",
        rng=np.random.default_rng(1),
    )  # fmt: skip
    _, found = zoo.iqm_over_runs(x[:, None], 20_000)
    assert found == pytest.approx(drawn.confidence_interval, abs=0.4)  # two draws of 20,000; it is 25 wide


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 11])
def test_the_trimmed_mean_is_scipys(n: int) -> None:
    from scipy.stats import trim_mean

    x = np.random.default_rng(n).normal(size=(n, 1))
    assert zoo.iqm_over_runs(x, 10)[0] == pytest.approx(trim_mean(x, 0.25, axis=None), rel=1e-12)


@pytest.mark.parametrize(("score", "bar"), [(500.0, 475.0), (-100.0, -105.0), (0.0, 0.0)])
def test_a_published_score_is_reached_within_a_twentieth(score: float, bar: float) -> None:
    assert Published(by="x", score=score).bar == pytest.approx(bar)


@pytest.mark.parametrize(("means", "reached"), [((9.6, 9.7), True), ((9.4, 20.0), False), ((), None)])
def test_the_intervals_lower_end_counts(clone: Path, means: tuple[float, ...], reached: bool | None) -> None:
    row = zoo.find("small", clone)
    for seed, mean in enumerate(means):
        row.record(seed, seed_of(mean, params=row.key), b"")
    assert row.reached() is reached


# --- rows and results -------------------------------------------------------------------------------------------------


def test_seeds_are_kept_one_by_one_and_the_archive_is_the_bests(clone: Path) -> None:
    row = zoo.find("small", clone)
    for seed, mean in ((2, 5.0), (1, 9.0), (3, 7.0)):
        row.record(seed, seed_of(mean, params=row.key), f"of {seed}".encode())
    assert [*row.trained()] == [1, 2, 3]
    assert row.archive.read_bytes() == b"of 1"
    over = row.over()
    assert over is not None
    assert (over.seeds, over.iqm, over.steps, over.cpu_seconds) == (3, 7.0, 120.0, 3.0)


def test_results_of_other_parameters_do_not_count(clone: Path) -> None:
    zoo.find("small", clone).record(1, seed_of(5.0, params="others"), b"old")
    row = zoo.find("small", clone)
    assert ([*row.seeds()], row.trained(), row.over()) == ([1], {}, None)
    row.record(2, seed_of(1.0, params=row.key), b"new")
    assert ([*row.seeds()], row.archive.read_bytes()) == ([2], b"new")


def test_the_key_is_of_what_differs_from_the_defaults(clone: Path) -> None:
    before = zoo.find("small", clone).key
    params = clone / "pipelines/small"
    write_params(params, {**TINY, "seed": 9, "export.film": False, "runtime.env_workers": 0})
    assert zoo.find("small", clone).key == before
    write_params(params, {**TINY, "algos.dqn.lr": 0.003})
    assert zoo.find("small", clone).key != before


def test_bad_input_is_a_sentence(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    assert call("zoo", "show", "smal") == (64, "", "error: zoo: there is no row 'smal', did you mean 'small'?\n")
    code, _, said = call("zoo", "verify", "small")
    assert (code, said.count("\n")) == (66, 1)
    assert "evopipe zoo train small" in said
    for named in ({"extra": "no_such_package"}, {"extra": "games", "package": "no_such_package"}):
        write_rows(clone, {"small": {"family": "tests", **named}})
        assert call("zoo", "train", "small")[::2] == (
            66, "error: zoo: small needs no_such_package, which is not installed: "
            f"pip install 'evopipe[{named['extra']}]'\n"
        )  # fmt: skip
    write_rows(clone, {"small": {"family": "tests", "published": [{"by": "nobody", "score": 1.0}]}})
    code, _, said = call("zoo", "list")
    assert code == 65
    assert said.endswith("published by nobody, of which there is no source\n")
    (clone / "zoo/rows.yaml").write_text("sources: {}\nrows: {small: {families: x}}\n")
    assert call("zoo", "list")[0] == 65
    with pytest.raises(MissingInputError, match="an installed package holds none"):
        zoo.rows(tmp_path / "nowhere")
    write_rows(clone, {"small": {"family": "tests"}})
    with pytest.raises(MissingInputError, match="small was not trained yet"):
        evopipe.zoo.load("small", clone)


def test_damaged_results_are_told(clone: Path) -> None:
    row = zoo.find("small", clone)
    row.record(1, seed_of(5.0), b"x" * 100)
    with pytest.raises(DataError, match=r"small\.safetensors"):
        evopipe.zoo.load("small", clone)
    row.file.write_text(row.file.read_text().replace('"mean"', '"means"'))
    with pytest.raises(DataError, match=r"small\.json: seeds\.1\.mean: missing key"):
        row.seeds()


@pytest.mark.parametrize(
    ("text", "seeds"), [("1-5", [1, 2, 3, 4, 5]), ("3", [3]), ("1,4-5", [1, 4, 5]), (" 2 , 2-3", [2, 3])]
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "5-1", "1-", "-3", "1;2", "1-100000", "1.5"])
def test_what_are_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no seeds"):
        seeds_of(text)


# --- verify -----------------------------------------------------------------------------------------------------------


def judged(there: Seed, here: Seed, others: Mapping[int, Seed] | None = None) -> str:
    return judge("row", [Compared(1, there, here)], {1: there, **(others or {})})


def test_equal_hashes_settle_it() -> None:
    assert judged(seed_of(5.0), seed_of(5.0, code="other")) == "row: reproduced to the bit"


def test_other_bits_of_the_same_code_and_machine_are_a_failure() -> None:
    with pytest.raises(DataError, match="not reproduced: seed 1 has other bits"):
        judged(seed_of(5.0), seed_of(5.0, elite="other"))


def test_elsewhere_the_interval_counts_and_what_differs_is_said() -> None:
    here = seed_of(12.0, elite="other", fingerprint={"cpu": "y"})
    assert judged(seed_of(5.0), here).startswith("row: reproduced by its score, not to the bit (cpu differ)")
    with pytest.raises(DataError, match=r"other bits were to be expected \(code\)"):
        judged(seed_of(5.0), seed_of(50.0, elite="other", code="new"))
    spread = {seed: seed_of(mean) for seed, mean in ((2, 45.0), (3, 60.0))}  # seeds differ that far here
    assert "reproduced by its score" in judged(seed_of(5.0), seed_of(50.0, elite="other", code="new"), spread)


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_row_is_trained_shown_loaded_and_rebuilt(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    code, said, wrong = call("zoo", "train", "small", "--seeds", "1-2", "--jobs", "1")
    assert code == 0
    assert wrong == "warning: zoo: code or pipelines are not as committed: what is recorded names no revision\n"
    assert said.splitlines()[0] == "small: seeds 1, 2"
    row = zoo.find("small")
    first, second = row.trained().values()
    assert first.elite != second.elite
    assert first.cpu_seconds > 0
    assert first.revision is None  # this clone is none of git's
    assert call("zoo", "train", "small", "--seeds", "1-2")[1] == "small: was trained with all of these seeds\n"
    assert call("zoo", "list")[1].splitlines()[1].split()[:2] == ["small", "2"]
    code, shown, _ = call("zoo", "show", "small", "--picture", "curve.svg", "--gif", "film.gif")
    assert code == 0
    assert first.elite[:12] in shown
    assert (clone / "curve.svg").read_text().startswith("<?xml")
    assert (clone / "film.gif").read_bytes().startswith(b"GIF89a")
    assert evopipe.zoo.load("small").act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
    code, found, _ = call("zoo", "verify", "small", "--seeds", "1-2")
    assert code == 0
    assert found.splitlines()[-1] == "small: reproduced to the bit"
    changed = read_json(row.file)
    changed["seeds"]["2"]["elite"] = "0" * 64
    row.file.write_text(json.dumps(changed))
    code, _, wrong = call("zoo", "verify", "small", "--seeds", "2")
    assert code == 65
    assert "not reproduced: seed 2 has other bits" in wrong


@pytest.mark.thorough
def test_training_that_was_stopped_goes_on(clone: Path) -> None:
    """The first seed is recorded before the second has ended; the second goes on from its checkpoint."""
    long = {
        "train.max_steps": 6_000,
        "train.evo_steps": 1000,
        "population.size": 2,
        "runtime.checkpoint_seconds": 0.05,
    }
    write_params(clone / "pipelines/small", long)
    words = [sys.executable, "-m", "evopipe", "zoo", "train", "small", "--seeds", "1-2", "--jobs", "1"]
    process = subprocess.Popen(
        words, cwd=clone, env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        assert wait_for((clone / "zoo/small.json").exists, 240)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    (kept,) = zoo.find("small", clone).trained()
    assert kept == 1
    again = subprocess.run(words, cwd=clone, env=environment(), capture_output=True, text=True, check=True)
    assert again.stdout.startswith("small: seeds 2\n")
    assert [*zoo.find("small", clone).trained()] == [1, 2]


def test_code_that_is_not_as_committed_has_no_revision(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    (tmp_path / "src/evopipe").mkdir(parents=True)
    (tmp_path / "src/evopipe/x.py").write_text("1")
    assert not training.committed(tmp_path)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})
    assert training.committed(tmp_path)
    (tmp_path / "src/evopipe/x.py").write_text("2")
    assert not training.committed(tmp_path)


# --- the repository's own ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_row_is_a_pipeline() -> None:
    rows = zoo.rows(ROOT)
    assert {*RECORDED} <= rows.keys()
    for row in rows.values():
        assert row.params.evaluate.episodes >= 100, row.name


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.thorough
def test_a_recorded_row_is_whole(name: str) -> None:
    row: ZooRow = zoo.find(name, ROOT)
    seeds, data = row.seeds(), row.archive.read_bytes()
    best = max(seeds.values(), key=lambda each: each.mean)
    assert len(data) < 1_000_000
    assert hashlib.sha256(dump_tensors(load_tensors(data))).hexdigest() in {
        each.elite for each in seeds.values() if each.mean == best.mean
    }
    assert all(each.episodes >= 100 and each.revision for each in seeds.values())
    assert evopipe.zoo.load(name, ROOT).about["algo"] == row.params.train.algo


@pytest.mark.thorough
def test_the_readme_counts_rows_as_they_are() -> None:
    found = [row for row in zoo.rows(ROOT).values() if len(row.trained()) >= 5]
    published = [reached for row in found if (reached := row.reached()) is not None]
    sentence = f"{len(found)} rows; {sum(published)} of the {len(published)} with a published score reach it"
    assert sentence in (ROOT / "README.md").read_text(encoding="utf-8")


def test_an_entry_has_no_unknown_key() -> None:
    with pytest.raises(ValueError, match="minutes"):
        Entry.model_validate({"family": "x", "minutes": 3})
