"""What `evopipe zoo` says of rows whose results are round, word by word, and at which scores it says it."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import operator
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny
from evopipe.errors import DataError, MissingInputError
from evopipe.params.load import parse_params
from evopipe.schema.write import dump_yaml
from evopipe.storage.files import write_json
from evopipe.storage.folders import write_folder
from evopipe.storage.tensors import dump_tensors, load_tensors, note_of
from evopipe.sweep.run import SweptRun
from evopipe.sweep.settings import Setting
from evopipe.zoo import row as zoo
from evopipe.zoo import shown, verify
from evopipe.zoo import train as training
from evopipe.zoo.row import Curve, Entry, Over, Published, Seed
from evopipe.zoo.verify import Compared, judge
from tiny import write_params

CURVE = Curve(env_steps=(10, 20), eval_steps=(1, 2), elite=(1.0, 2.0), seconds=(0.5, 0.25))


def seed_of(mean: float, **others: Any) -> Seed:
    values: dict[str, Any] = {
        "mean": mean, "interval": (mean - 2, mean + 3), "std": 1.0, "iqm": mean + 0.5, "episodes": 100,
        "training_steps": 4000,
        "evaluation_steps": 250, "cpu_seconds": 90.0, "elite": "e1fe" * 16, "params": "p", "code": "c0de" * 8,
        "revision": None,
        "version": "0", "fingerprint": {"cpu": "x", "evopipe": "1"}, "curve": CURVE,
    }  # fmt: skip
    return Seed(**{**values, **others})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows `first`, trained with three seeds and one of other parameters, and `second`, never trained."""
    tmp_path = tmp_path_factory.mktemp("clone")
    rows = {
        "first": {"family": "classic", "tried": "more steps", "published": [
            {"by": "Paper", "score": 8.0, "deviation": 1.5, "steps": 2000000}, {"by": "Zoo", "score": 9.5}]},
        "second": {"family": "games", "published": [{"by": "Zoo", "score": 3.0}]},
    }  # fmt: skip
    (tmp_path / "zoo").mkdir()
    told = {"sources": {"Paper": "https://example.org/a", "Zoo": "https://example.org/b"}, "rows": rows}
    (tmp_path / "zoo/rows.yaml").write_text(dump_yaml(told))
    for name in rows:
        write_params(tmp_path / "pipelines" / name, {})
    row = zoo.find("first", tmp_path)
    seeds = {
        4: seed_of(50.0, params="older"),
        3: seed_of(9.0, cpu_seconds=30.0),
        1: seed_of(10.0),
        2: seed_of(11.0, training_steps=5500),
    }
    stored = {
        str(n): each.model_dump(mode="json") | {"params": each.params if n == 4 else row.key}
        for n, each in seeds.items()
    }
    row.file.write_text(json.dumps({"format": 1, "seeds": stored}))
    return tmp_path


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "clone"))


def test_a_table_of_all_rows(home: Path) -> None:
    # Three seeds: none is left out. The lowest resampled mean of 10,000 is 9, the highest 11; 2.5 % are more than 1/27.
    lines = [[cell for cell in line.split("  ") if cell.strip()] for line in shown.table(home)]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["row", "seeds", "IQM", "95 % interval", "steps", "elite's", "CPU", "published", "0.95 of it"],
        ["first", "3", "10.0", "[9.0, 11.0]", "4,750", "6", "1 min 10 s", "8.0 9.5", "no"],
        ["second", "0", "3.0"],
    ]


def test_all_of_one_row(home: Path) -> None:
    row = zoo.find("first", home)
    head, stale, titles, *rest = shown.described(row, zoo.sources(home))
    assert head == f"first: classic, parameters in {home}/pipelines/first/params.yaml"
    assert stale == "of other parameters than the pipeline's: seeds 4; train them again"
    assert titles.split() == ["seed", "mean", "95", "%", "interval", "episodes", "steps", "CPU", "elite", "code"]
    assert [" ".join(line.split()) for line in rest] == [
        "1 10.0 [8.0, 13.0] 100 4,250 1 min 30 s e1fee1fee1fe c0dec0dec0de",
        "2 11.0 [9.0, 14.0] 100 5,750 1 min 30 s e1fee1fee1fe c0dec0dec0de",
        "3 9.0 [7.0, 12.0] 100 4,250 30 s e1fee1fee1fe c0dec0dec0de",
        "4 50.0 [48.0, 53.0] 100 4,250 1 min 30 s e1fee1fee1fe c0dec0dec0de",
        "interquartile mean over 3 seeds: 10.0, 95 % interval [9.0, 11.0]",
        "its elites were trained for 6 environment steps each",
        "Paper: 8.0 ± 1.5 in 2,000,000 steps (https://example.org/a)",
        "Zoo: 9.5 (https://example.org/b)",
        "the interval's lower end does not reach 0.95 of what was published",
        "tried: more steps",
        "rebuild it: evopipe zoo verify first",
    ]
    assert [*shown.described(zoo.find("second", home), zoo.sources(home))] == [
        f"second: games, parameters in {home}/pipelines/second/params.yaml", "Zoo: 3.0 (https://example.org/b)",
        "rebuild it: evopipe zoo verify second",
    ]  # fmt: skip


def test_the_files_of_a_curve_have_its_columns() -> None:
    from evopipe import layout

    assert shown._file(CURVE, layout.FITNESS).decode().split() == ["env_steps,eval_steps,elite", "10,1,1.0", "20,2,2.0"]
    assert shown._file(CURVE, layout.TIMING).decode().split() == ["seconds", "0.5", "0.25"]


@pytest.mark.parametrize(
    ("scores", "low", "reached"),
    [((100.0,), 95.0, True), ((100.0,), 94.9, False), ((100.0, 50.0), 95.0, True), ((50.0, 100.0), 90.0, False),
     ((-100.0,), -105.0, True), ((-100.0,), -105.1, False), ((), 1.0, None)],
)  # fmt: skip
def test_every_published_score_is_to_be_reached_by_the_lower_end(
    scores: tuple[float, ...], low: float, reached: bool
) -> None:
    entry = Entry(family="x", published=tuple(Published(by="x", score=each) for each in scores))
    assert entry.reached(Over(3, 200.0, (low, 300.0), 1.0, 1.0, 1.0)) is reached
    assert entry.reached(None) is None


@pytest.mark.parametrize(
    ("published", "steps", "low", "said"),
    [([(100.0, 500)], 500.0, 95.0, "yes"), ([(100.0, 500)], 500.5, 95.0, "in more steps"),
     ([(100.0, 500)], 900.0, 94.0, "no"), ([(100.0, None)], 9e9, 95.0, "yes"), ([], 9e9, 95.0, ""),
     ([(90.0, 10), (100.0, 500)], 500.0, 95.0, "yes"), ([(100.0, 10), (100.0, 500)], 500.0, 95.0, "yes")],
)  # fmt: skip
def test_no_more_steps_than_the_best_published_score_took(
    home: Path, published: list[tuple[float, int | None]], steps: float, low: float, said: str
) -> None:
    entry = Entry(family="x", published=tuple(Published(by="x", score=each, steps=n) for each, n in published))
    over = Over(3, 200.0, (low, 300.0), 1.0, steps, 1.0)
    assert shown.answer(zoo.ZooRow("x", entry, home), over) == said
    assert entry.reached(over) is {"": None, "yes": True}.get(said, False)


@pytest.mark.parametrize(
    ("size", "strategy", "elites", "own"),
    [(1, "tournament", (1, 2, 3, 4, 9), 500), (2, "tournament", (1, 2, 3, 4, 9), 250),
     (1, "random", (1, 2, 3, 4, 4), 400), (1, "random", (1, 2, 3, 4, 9), 100),
     (1, "random", (1, 2, 1, 2, 2), 400), (1, "random", (7, 7, 7, 7, 7), 100)],
)  # fmt: skip
def test_the_steps_of_the_elite_itself(size: int, strategy: str, elites: tuple[float, ...], own: int) -> None:
    """A generation has 100 steps, a trial lives 400; what comes after the elite was found is none of its steps."""
    settings = {"population.size": size, "search.strategy": strategy, "train.max_steps": 400, "train.evo_steps": 100}
    row = zoo.ZooRow("x", Entry(family="x"), Path())
    row.__dict__["params"] = parse_params(tiny.params({**settings, "search.budget": 2000}))
    curve = Curve(env_steps=(100, 200, 300, 400, 500), eval_steps=(1,) * 5, elite=elites, seconds=(1.0,) * 5)
    assert row.agent_steps(seed_of(1.0, curve=curve)) == own


def test_the_archive_is_of_the_first_of_the_best_seeds_and_results_of_one_seed_are_replaced(home: Path) -> None:
    row = zoo.find("second", home)
    for seed, mean in ((1, 5.0), (2, 5.0), (3, 4.0)):
        row.record(seed, seed_of(mean, params=row.key), str(seed).encode())
    assert row.archive.read_bytes() == b"1", "a seed that is as good replaces nothing"
    row.record(1, seed_of(6.0, params=row.key), b"again")
    assert row.archive.read_bytes() == b"again"
    assert {seed: each.mean for seed, each in row.trained().items()} == {1: 6.0, 2: 5.0, 3: 4.0}
    row.record(4, seed_of(6.5, params=row.key), b"best")
    assert row.archive.read_bytes() == b"best"


def test_results_are_of_all_parameters_that_a_score_depends_on() -> None:
    data = tiny.params()

    def key(name: str, value: Any) -> str:
        other = copy.deepcopy(data)
        *blocks, last = name.split(".")
        functools.reduce(operator.getitem, blocks, other)[last] = value
        row = zoo.ZooRow("x", Entry(family="x"), Path())
        row.__dict__["params"] = parse_params(other)
        return row.key

    own = key("seed", 1)
    others = {"evaluate.episodes": 7, "population.size": 5, "env.num_envs": 3, "evolution.tournament.size": 3,
              "train.max_steps": 900, "algos.dqn.lr": 0.01, "fetch.collect.episodes": 9}  # fmt: skip
    assert len({own, *(key(name, value) for name, value in others.items())}) == 1 + len(others)
    for name, value in {"seed": 9, "algos.ppo": {"lr": 0.5}, "export.film": False, "runtime.learners": 1,
                        "tracking.backends": ["mlflow"]}.items():  # fmt: skip
        assert key(name, value) == own


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_seed_that_was_trained_again_is_compared_in_a_line() -> None:
    there = seed_of(5.0)
    assert Compared(7, there, seed_of(6.0)).line() == "seed 7: elite e1fee1fee1fe, as recorded: the same bits"
    other = seed_of(6.0, elite="ab12" * 16)
    assert Compared(7, there, other).line() == (
        "seed 7: elite ab12ab12ab12, recorded e1fee1fee1fe, of the same code and a like machine; "
        "score 6.0 [4.0, 9.0], recorded 5.0 [3.0, 8.0]"
    )
    far = seed_of(6.0, elite="ab12" * 16, code="new", fingerprint={"torch": "3", "cpu": "x", "evopipe": "2"})
    assert Compared(7, there, far).others == ["code", "torch"], "evopipe's version is no reason"
    assert "recorded e1fee1fee1fe, which differ in code, torch; " in Compared(7, there, far).line()


@pytest.mark.parametrize(
    ("mean", "interval", "fits"),
    [(120.0, (101.0, 130.0), False), (120.0, (100.0, 130.0), True), (110.0, (105.0, 115.0), True), (110.1, (105.0,
    115.0), False),
     (80.0, (70.0, 89.0), False), (80.0, (70.0, 90.0), True), (90.0, (85.0, 89.0), True), (89.9, (85.0, 89.0), False)],
)  # fmt: skip
def test_scores_agree_where_intervals_meet_or_means_differ_by_a_tenth(
    mean: float, interval: tuple[float, float], fits: bool
) -> None:
    there = seed_of(100.0, interval=(90.0, 100.0))
    here = seed_of(mean, interval=interval, elite="other", code="new")
    if fits:
        assert judge("row", [Compared(1, there, here)], {1: there}).startswith(
            "row: reproduced by its score, not to the bit (code differ): "
        )
    else:
        with pytest.raises(DataError, match=r"other bits were to be expected \(code\), not that"):
            judge("row", [Compared(1, there, here)], {1: there})


def test_several_seeds_are_judged_by_the_mean_of_their_middle_half() -> None:
    recorded = {seed: seed_of(mean) for seed, mean in enumerate((0.0, 8.0, 12.0, 100.0))}
    here = [seed_of(mean, elite="other", code="new") for mean in (9.0, 9.0)]
    said = judge("row", [Compared(seed, recorded[seed], each) for seed, each in enumerate(here)], recorded)
    assert "differ): 9.0 [9.0, 9.0] here, 10.0 [" in said
    one = Compared(0, recorded[0], recorded[0])
    bits = Compared(1, recorded[1], seed_of(8.0, elite="other"))
    with pytest.raises(DataError, match="row: not reproduced: seed 1 has other bits, though"):
        judge("row", [one, bits], recorded)


def test_the_best_recorded_seed_is_trained_again_unless_others_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, asked, said = zoo.find("first", home), [], list[str]()
    monkeypatch.setattr(verify, "run", lambda row, seeds, top, jobs, warn: asked.append([*seeds]) or [
        SimpleNamespace(setting=SimpleNamespace(params=SimpleNamespace(seed=seed))) for seed
        in reversed(seeds)])  # fmt: skip
    monkeypatch.setattr(verify, "result", lambda row, ended: (row.trained()[ended.setting.params.seed], b""))
    row.file.write_text(row.file.read_text().replace('"iqm": 9.5', '"iqm": 99.0'))
    for seeds in (None, [3, 1]):
        verify.verify(row, seeds, 1, said.append, said.append, said.append)
    assert asked == [[2], [3, 1]]
    same = "elite e1fee1fee1fe, as recorded: the same bits"
    assert said == [
        "first: seed 2 anew", f"seed 2: {same}", "first: reproduced to the bit",
        "first: seed 3, 1 anew", f"seed 3: {same}", f"seed 1: {same}", "first: reproduced to the bit",
    ]  # fmt: skip
    with pytest.raises(MissingInputError, match="first was not trained with seed 4: it has 1, 2, 3"):
        verify.verify(row, [1, 4], 1, said.append, said.append, said.append)
    with pytest.raises(MissingInputError, match="second has no results of its parameters: `evopipe zoo train second`"):
        verify.verify(zoo.find("second", home), None, 1, said.append, said.append, said.append)


# --- training ---------------------------------------------------------------------------------------------------------


def test_a_runs_curve_is_of_its_reports(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/fitness.csv").write_text(
        "generation,step,env_steps,eval_steps,best,mean,elite\n1,5,10,1,9,8,7.5\n2,10,20,3,9,8,8.5\n"
    )
    (tmp_path / "reports/timing.csv").write_text("generation,seconds,env_steps,eval_steps\n1,0.5,99,98\n2,0.25,97,96\n")
    assert training._curve(tmp_path) == Curve(
        env_steps=(10, 20), eval_steps=(1, 3), elite=(7.5, 8.5), seconds=(0.5, 0.25)
    )


def ended(home: Path, seed: int = 7) -> SweptRun:
    """A run of the row `second` that has ended, with round numbers in its files."""
    folder = home / "runs" / str(seed)
    about = {
        "algo": "dqn",
        "provenance": {"evopipe": "9.8", "git_revision": "abc", "fingerprint": {"cpu": "z"}, "code_hash": "older"},
    }
    files = {"policy.json": json.dumps(about).encode(), "policy.safetensors": dump_tensors({"q": torch.ones(3)})}
    write_folder(folder / "models/elite", {**files, "README.md": b"# a card"})
    elite = {"mean": 20.0, "interval": [18.0, 23.0], "std": 4.0, "iqm": 19.0, "agents": {}}
    write_json(folder / "reports/evaluation.json", {"elite": elite, "episodes": 50, "steps": 999})
    write_json(folder / "reports/train.json", {"steps": {"training": 4000, "evaluation": 300}, "reason": "target"})
    head = "generation,step,env_steps,eval_steps,best,mean,elite\n"
    (folder / "reports/fitness.csv").write_text(f"{head}1,5,10,1,9,8,7.5\n2,10,20,3,9,8,8.5\n")
    (folder / "reports/timing.csv").write_text("generation,seconds,env_steps,eval_steps\n1,0.5,99,98\n2,0.25,97,96\n")
    params = zoo.find("second", home).params
    setting = Setting({}, params.model_copy(update={"seed": seed}), "", str(seed))
    return SweptRun(setting, folder, 20.0, (18.0, 23.0), 70.0, 123.36)


def test_what_is_recorded_of_a_run_is_of_its_files(home: Path) -> None:
    """And its archive is the elite without what lies beside it: a policy that says where it comes from."""
    row, swept = zoo.find("second", home), ended(home)
    found, archive = training.result(row, swept)
    content = (swept.folder / "models/elite/policy.safetensors").read_bytes()
    assert found.model_dump() == {
        "mean": 20.0, "interval": (18.0, 23.0), "std": 4.0, "iqm": 19.0, "episodes": 50,
        "training_steps": 4000, "evaluation_steps": 300, "cpu_seconds": 123.4,
        "elite": hashlib.sha256(content).hexdigest(), "params": row.key, "code": zoo.code(),
        "revision": None, "version": "9.8", "fingerprint": {"cpu": "z"},
        "curve": {"env_steps": (10, 20), "eval_steps": (1, 3), "elite": (7.5, 8.5), "seconds": (0.5, 0.25)},
    }  # fmt: skip
    assert load_tensors(archive)["q"].tolist() == [1.0] * 3
    assert json.loads(note_of(archive, "it")) == json.loads((swept.folder / "models/elite/policy.json").read_bytes())
    said: list[str] = []
    training._record(row, said.append, swept)
    assert said == ["second: seed 7: 20.0 [18.0, 23.0], 4,300 steps, 123 CPU seconds"]
    assert (row.trained(), row.archive.read_bytes()) == ({7: found}, archive)
    with pytest.raises(DataError, match=r"its header does not say what its tensors are"):
        note_of(content, "it")
    write_json(swept.folder / "reports/train.json", {"steps": {"training": 4000}})
    with pytest.raises(DataError, match=rf"^{swept.folder}: is of no run that ended \(KeyError\('evaluation'\)\)"):
        training.result(row, swept)


def test_rows_are_trained_with_the_seeds_that_they_lack_and_one_that_fails_stops_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def run(row: Any, seeds: Any, top: Path, jobs: Any, warn: Any, keep: Any) -> None:
        asked.append((row.name, [*seeds], jobs, top.name))
        if row.name == "first":
            raise MissingInputError("no memory")
        keep(ended(home))

    monkeypatch.setattr(training, "run", run)
    monkeypatch.setattr(training, "committed", lambda home: True)
    rows, said, warned = [*zoo.rows(home).values()], list[str](), list[str]()
    with pytest.raises(MissingInputError, match=r"^1 of 2 rows failed, the first was first: no memory$"):
        training.train(rows, [1, 5, 2, 4], 3, said.append, warned.append)
    code = zoo.code()[:12]
    assert asked == [("first", [5, 4], 3, f"first-{code}"), ("second", [1, 5, 2, 4], 3, f"second-{code}")]
    assert said == [
        "first: seeds 5, 4", "second: seeds 1, 5, 2, 4",
        "second: seed 7: 20.0 [18.0, 23.0], 4,300 steps, 123 CPU seconds",
    ]  # fmt: skip
    assert warned == ["first: no memory"]
    said.clear()
    training.train(rows[1:], [7], None, said.append, warned.append)
    training.train(rows[:1], [3, 1], None, said.append, warned.append)
    assert said == ["second: was trained with all of these seeds", "first: was trained with all of these seeds"]
    with pytest.raises(MissingInputError, match=r"^no memory$"):
        training.train(rows[:1], [6], None, said.append, warned.append)
    assert len(asked) == 3
    monkeypatch.setattr(training, "committed", lambda home: False)
    training.train(rows[1:], [8], None, said.append, warned.append)
    assert warned[1:] == ["zoo: code or pipelines are not as committed: what is recorded names no revision"]
