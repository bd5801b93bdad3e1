"""Everything that a terminal and MLflow are told of a small run whose numbers are round: as `told/` has it.

`PYTHONPATH=src:tests python tests/unit/track/test_track_told.py` writes those files anew. What changes there has to be
true of the run below: look at each line before it is committed.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from evopipe.mutations import NONE, Mutation
from evopipe.schema.tracking import TrackingConfig
from evopipe.searchers.history import Best, Record, Scored
from evopipe.track.backends.mlflow import _database, _Mlflow, _tracking_uri
from evopipe.track.console import RunView, _columns, _spark
from evopipe.track.events import End, Event, Generation, MemberRow, Message, Met, Progress, Start
from evopipe.track.locks import Locked
from evopipe.track.outbox import _keep
from evopipe.track.record import FILES, Kept, New, TrackedRun, TrainingRecord, md5_of
from lineages import ARCH

TOLD = Path(__file__).parent / "told"
FRAMES, MLFLOW = TOLD / "frames.txt", TOLD / "mlflow.txt"

# --- events -----------------------------------------------------------------------------------------------------------

CHAMPION = Best(4, 9.0)
FASTER = Mutation("rl_hp", "lr", 1e-3, 2e-3)
SIGNALS = {0: {"losses/entropy": (0.5, 0.25)}, 2: {"losses/entropy": (math.nan, 0.75)}}


def scored(slot: int, id: int, fitness: float | None, parent: int | None = None, steps: int | None = None) -> Scored:
    hyper = {"lr": 1e-3 * (1 + slot), "gamma": 0.9, "batch_size": 32}
    return Scored(
        slot, id, parent, 7, ARCH, hyper, fitness is not None, -math.inf if fitness is None else fitness, steps
    )


def event(*members: Scored, champion: Best | None = CHAMPION, **more: Any) -> Generation:
    births = {0: NONE, 1: FASTER, 2: Mutation("architecture", "encoder", [8], [8, 16])}
    return Generation.of(Record(3, 300, members, champion), births, ["lr", "batch_size"], 2.5, (900, 60), **more)


def test_a_generation_tells_each_members_own_numbers_and_those_of_all() -> None:
    told = event(scored(0, 4, 8.0), scored(1, 5, None, parent=4), scored(2, 6, 2.0, parent=3), losses=[0.1, 0.2, 0.3],
                 signals=SIGNALS)  # fmt: skip
    assert told.members == (
        MemberRow(0, 4, None, 8.0, "none", "", "8|8", "ReLU", {"batch_size": 32, "lr": 1e-3}, True, 0.1, None,
        SIGNALS[0]),
        MemberRow(1, 5, 4, -math.inf, "rl_hp", "lr 1e-3 → 2e-3", "8|8", "ReLU", {"batch_size": 32, "lr": 2e-3}, False,
        0.2),
        MemberRow(2, 6, 3, 2.0, "architecture", "encoder [8] → [8, 16]", "8|8", "ReLU", {"batch_size": 32,
        "lr": 3e-3}, True,
                  0.3, None, told.members[2].signals),
    )  # fmt: skip
    assert list(told.members[0].hyper) == ["batch_size", "lr"]
    assert told.metrics() == {
        "fitness/best": 8.0, "fitness/mean": 5.0, "fitness/elite": 9.0, "population/generation": 3.0,
        "population/healthy": 2.0, "population/elite_id": 4.0, "steps/each_member": 300.0, "steps/evaluation": 60.0,
        "time/generation_seconds": 2.5,
    }  # fmt: skip
    assert told.members[0].metrics() == {
        "losses/entropy": 0.5, "fitness": 8.0, "loss": 0.1, "healthy": 1.0, "id": 4.0, "hyper/batch_size": 32.0,
        "hyper/lr": 1e-3,
    }  # fmt: skip
    assert told.members[1].metrics() == {
        "loss": 0.2, "healthy": 0.0, "id": 5.0, "parent": 4.0, "hyper/batch_size": 32.0, "hyper/lr": 2e-3,
    }  # fmt: skip
    assert math.isnan(told.members[2].metrics()["losses/entropy"])


def test_of_a_generation_in_which_some_waited_the_living_are_counted_and_their_own_steps_told() -> None:
    told = event(scored(1, 5, None, steps=70), champion=None)
    assert told.metrics() == {
        "population/generation": 3.0, "population/healthy": 0.0, "population/elite_id": -1.0, "population/living": 1.0,
        "steps/evaluation": 60.0, "time/generation_seconds": 2.5,
    }  # fmt: skip
    (row,) = told.members
    assert row.metrics() == {"healthy": 0.0, "id": 5.0, "steps": 70.0, "hyper/batch_size": 32.0, "hyper/lr": 2e-3}
    late = event(scored(1, 5, 1.0, steps=70), scored(2, 6, 2.0, steps=90), losses=[0.1, 0.2, 0.3])
    assert [row.loss for row in late.members] == [0.2, 0.3], "of its own slot, whoever waits in another"
    assert "time/generation_seconds" not in replace(told, seconds=0.0).metrics(), "none was measured"


def test_training_signals_are_of_the_members_own_slot_and_self_plays_of_the_healthy() -> None:
    """Slot 0 waits, slot 2 diverged, and slot 3 was told nothing."""
    signals = {slot: {"charts/episodic_return": (10.0 * slot, 0.0)} for slot in range(3)}
    births = dict.fromkeys(range(5), NONE)
    members = [scored(1, 5, 1.0), scored(2, 6, None), scored(3, 7, 2.0), scored(4, 8, 3.0)]
    signals[4] = {"charts/episodic_return": (40.0, 0.0)}
    told = Generation.of(Record(3, 300, members, CHAMPION), births, [], 2.5, (900, 60), signals=signals)
    assert [row.signals for row in told.members] == [signals[1], signals[2], {}, signals[4]]
    assert not any(name.startswith("self_play") for name in told.metrics())
    met = Met(7, 1, "a"), Met(8, 2, "b")
    found = replace(told, opponents=met).metrics()
    own = {name: value for name, value in found.items() if name.startswith("self_play")}
    assert own == {"self_play/opponents": 2, "self_play/newest_generation": 2, "self_play/training_return": 25.0}
    none = {name for name in replace(told, opponents=()).metrics() if name.startswith("self_play")}
    assert none == {"self_play/opponents", "self_play/training_return"}


# --- the terminal -----------------------------------------------------------------------------------------------------

START = Start("train", "Acrobot-v1", "sac", 4, 2000)


def row(slot: int, id: int, parent: int | None, fitness: float, mutation: str, change: str, **more: Any) -> MemberRow:
    hyper = {"lr": 1e-3 * (1 + slot), "batch_size": 32.0, "batch_norm": 1.0, "tau": 5e-3}
    made = (
        mutation,
        change,
        "64+64|32 · head 128 128",
        "ReLU",
        hyper,
        math.isfinite(fitness),
        0.25 if slot else math.nan,
    )
    return MemberRow(slot, id, parent, fitness, *made, **more)


FIRST = Generation(1, 500, 2000, 100, 3.0, (
    row(0, 0, None, 10.0, "none", ""), row(1, 1, None, 30.0, "none", ""), row(2, 2, None, -math.inf, "none", ""),
    row(3, 3, None, 20.0, "none", ""),
), 30.0, 20.0, 30.0, 1)  # fmt: skip
SECOND = Generation(2, 1000, 4000, 200, 3.0, (
    row(0, 1, 1, 24.0, "none", ""), row(1, 4, 1, 45.0, "rl_hp", "lr 1e-3 → 2e-3"),
    row(2, 5, 3, -math.inf, "swap", "two layers of its network"), row(3, 6, 0, 17.0, "architecture",
    "encoder.0 64 → 96"),
), 45.0, 28.6667, 41.5, 4)  # fmt: skip
PACE = Progress(2, 1000, 2000, 4000, 200, "evolving", 1234.5, 61.0)


def frame(width: int, height: int | None, *events: Event) -> list[str]:
    shown = RunView()
    for each in events:
        shown.apply(each)
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(shown.frame(width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


LIVED = replace(SECOND, generation=3, members=(row(2, 7, None, 50.0, "none", "", steps=100),), best=50.0, mean=50.0,
elite=50.0,
                elite_id=7)  # fmt: skip
MESSAGES = (Message("warning", "look " * 30), Message("info", "fine"))


def frames() -> str:
    views: list[tuple[int, int | None, tuple[Event, ...]]] = [
        (width, None, (START, FIRST, SECOND, PACE, *MESSAGES)) for width in (170, 100, 60, 30)
    ]
    views += [
        (100, 14, (START, FIRST, SECOND, PACE, *MESSAGES)),
        (100, 11, (START, FIRST, SECOND, PACE)),
        (110, None, (START, FIRST, SECOND, LIVED, End("budget spent", 75.0, 9000, 300))),
        (80, None, (replace(START, resumed_step=500, resumed_env_steps=2000, budget=10_000),)),
        (80, None, (replace(START, resumed_step=500),)),
        (80, None, (START,)),
        (80, None, (replace(START, budget=10_000), replace(PACE, seconds_left=None), FIRST)),
        (80, None, (FIRST,)),
    ]
    lines = []
    for width, height, events in views:
        lines += [f"== {width} columns, {height or 'all'} lines", *frame(width, height, *events)]
    return "\n".join(lines) + "\n"


def test_a_terminal_shows_what_it_did_when_someone_looked() -> None:
    assert frames().split("\n") == FRAMES.read_text(encoding="utf-8").split("\n")


def test_where_there_is_no_room_the_slot_stands_alone_with_the_fitness() -> None:
    empty = dict.fromkeys(("what changed", "id", "network", "trend", "act", "from", "loss", "mutation"), Text())
    rows = [{"slot": Text("3"), "fitness": Text("-1234.5"), **empty, "id": Text("7")}]
    for width, titles in ((1, ["slot"]), (7, ["slot"]), (13, ["slot", "fitness"]), (17, ["slot", "fitness", "id"])):
        assert [str(column.header) for column in _columns(rows, width).columns] == titles, width


def test_members_are_ranked_healthy_first_and_their_trend_is_of_the_last_generations() -> None:
    """The elite first, and one that diverged last, whatever fitness it had."""
    ill = replace(row(2, 2, None, 99.0, "none", ""), healthy=False)
    members = (
        row(0, 0, None, 10.0, "none", ""),
        row(1, 1, None, 30.0, "none", ""),
        ill,
        row(3, 3, None, 20.0, "none", ""),
    )
    seen = set()
    for height in range(6, 16):
        lines = [
            line.replace("★", "").split()
            for line in frame(170, height, START, replace(FIRST, members=members, elite_id=3))
        ]
        shown = {words[0] for words in lines if len(words) > 5 and words[0] in "0123"}
        assert shown == {*["3", "1", "0", "2"][: len(shown)]}
        seen.add(len(shown))
    assert seen >= {1, 2, 4}
    view = RunView()
    for number in range(30):
        view.apply(replace(FIRST, generation=number, members=(row(0, 0, None, float(number), "none", ""),)))
    (kept,) = view._lineage.values()
    assert kept[-1] == 29.0
    assert list(kept) == [float(number) for number in range(30)][-len(kept) :]
    assert 1 < len(kept) < 30


@pytest.mark.parametrize(
    ("values", "among", "bars"),
    [([0, 7, 3.4, 3.6], [0, 7], "▁█▄▅"), ([5, 5], [5], "▁▁"), ([math.nan, 1.0], [0.0, 1.0, math.inf], " █"), ([], [],
    "")],
)  # fmt: skip
def test_bars_are_as_high_as_their_values_among_others(values: list[float], among: list[float], bars: str) -> None:
    assert _spark(values, among) == bars


# --- a run, as trackers ask for it ------------------------------------------------------------------------------------

PARAMS = {
    "seed": 3,
    "env": {"id": "Acrobot-v1", "kwargs": {}},
    "train": {"algo": "sac", "target": None, "sizes": [8, 16]},
    "algos": {"sac": {"lr": 1e-3}, "dqn": {"lr": 1.0}},
    "fetch": {"source": "minari", "minari": {"dataset": "a/b"}, "collect": {"episodes": 4}, "path": None},
    "tracking": {"backends": ["mlflow"]},
}  # fmt: skip


def tracked(folder: Path, **other: Any) -> TrackedRun:
    """Two generations, and files whose contents are their names."""
    files = {}
    for place, name in enumerate(FILES):
        path = folder / name / Path(FILES[name]).name
        path.parent.mkdir(parents=True)
        path.mkdir() if name == "elite" else path.write_text("{}")
        files[name] = Kept(path, f"md5 of {name}", 2000.0 + place)
    files["evaluation"].path.write_text(json.dumps({"elite": {"mean": 42.0, "interval": [40.0, 45.0]}}))
    files["train"].path.write_text(json.dumps({"warm_start": 9}))
    run = {
        "key": "0123456789abcdef" * 2, "params": PARAMS, "started": 1000.5, "status": "finished", "result": "r.dir",
        "generations": [(1003.25, FIRST), (1006.5, SECOND)], "ended": (1008.0, "all steps taken"), "files": files,
        "transitions": "md5 of data", "experiment": None, "revision": "c0ffee", "version": "9.8",
    }  # fmt: skip
    return TrackedRun(**{**run, **other})


def test_what_a_run_says_of_itself(tmp_path: Path) -> None:
    run = tracked(tmp_path)
    assert (run.env, run.algo, run.name, run.last) == ("Acrobot-v1", "sac", "sac-01234567", (1006.5, 4000))
    assert replace(run, key="dvc-fedcba9876").name == "sac-fedcba98"
    assert replace(run, experiment="mine").name == "mine"
    assert replace(run, generations=[]).last == (1000.5, 0)
    assert [(clock, each.generation) for clock, each in run.after(1)] == [(1006.5, 2)]
    assert len(run.after(0)) == 2
    assert run.scores() == {"evaluation/mean": 42.0, "evaluation/interval_low": 40.0, "evaluation/interval_high": 45.0}
    assert replace(run, files={}).scores() == {}
    assert run.flat_params() == {
        "seed": "3", "env.id": "Acrobot-v1", "env.kwargs": "{}", "train.algo": "sac", "train.target": "null",
        "train.sizes": "[8, 16]", "algos.sac.lr": "0.001", "fetch.source": "minari", "fetch.minari.dataset": "a/b",
        "fetch.path": "null",
    }  # fmt: skip
    held = {"report": "md5 of report", "train": "older", "elite": "md5 of elite"}
    assert [*run.missing_files(held, ["report", "train", "lineage", "nothing"])] == ["train", "lineage"]
    assert [*replace(run, replace=False).missing_files(held, ["report", "train", "lineage"])] == ["lineage"]
    assert [*run.missing_files({name: f"md5 of {name}" for name in FILES})] == []
    for changed in (
        replace(run, status="killed"), replace(run, result=None), replace(run, generations=run.generations[:1]),
        replace(run, files={**run.files, "report": replace(run.files["report"], md5="new")}), replace(run, key="other"),
    ):  # fmt: skip
        assert changed.snapshot_key() != run.snapshot_key()
    assert replace(run, version="1").snapshot_key() == run.snapshot_key()


@pytest.mark.parametrize(
    ("fetch", "name"),
    [({"source": "minari", "minari": {"dataset": "a/b"}}, "a/b"), ({"source": "hdf5", "hdf5": {"path": "x.h5"}},
    "x.h5"),
     ({"source": "collect", "collect": {}}, "Acrobot-v1/collect")],
)  # fmt: skip
def test_a_dataset_is_named_by_its_source(fetch: dict[str, Any], name: str, tmp_path: Path) -> None:
    run = tracked(tmp_path, params={**PARAMS, "fetch": fetch})
    assert run.dataset() == (name, "md5 of data")
    assert replace(run, transitions=None).dataset() is None
    run.files["train"].path.write_text('{"warm_start": 0}')
    assert run.dataset() is None, "it learned nothing from it"


@pytest.mark.parametrize(
    ("new", "words"),
    [(New(), "0 new"), (New(run=1, generation=0, file=2), "1 new run, 2 new files"), (New(generation=1200),
    "1,200 new generations")],
)  # fmt: skip
def test_what_is_new_is_counted_in_words(new: New, words: str) -> None:
    assert str(new) == words


def test_of_the_workspace_a_record_takes_what_is_as_its_lock_says(tmp_path: Path) -> None:
    """The rest is another training's, or of none."""
    home, record = tmp_path / "home", TrainingRecord(tmp_path / "home/one")
    record.begin(PARAMS, revision=None, experiment=None, version="1")
    about = record.folder / "run.json"
    about.write_text(about.read_text().replace('"result": null', '"result": "a.dir"'))
    (tmp_path / "reports").mkdir()
    for name in ("lineage", "train", "fitness"):
        (tmp_path / FILES[name]).write_text(name)
    outs = {FILES["lineage"]: md5_of(tmp_path / FILES["lineage"]), FILES["train"]: "other", FILES["members"]: "x"}
    lock = Locked("workspace", "a.dir", outs, {}, lambda name: b"", 0.0, tmp_path, folder=tmp_path)
    for other in (replace(lock, folder=None), replace(lock, result="b.dir")):
        _keep(other, home)
        assert record.run().files == {}
    _keep(lock, home)
    assert {name: kept.path.read_text() for name, kept in record.run().files.items()} == {"lineage": "lineage"}


# --- MLflow -----------------------------------------------------------------------------------------------------------


class Store:
    """MLflow's client, as far as it is called; it keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.runs: list[Any] = []

    def search_experiments(self, *_: Any, page_token: str | None) -> Any:
        class Page(list[Any]):
            token = None if page_token else "more"

        return Page([SimpleNamespace(experiment_id="second" if page_token else "first")])

    def search_runs(self, experiments: list[str], text: str, kind: int, most: int, order: list[str]) -> list[Any]:
        assert experiments in (["first", "second"], ["made"]), "on every page"
        wanted = dict(part.removeprefix("tags.").split(" = ") for part in text.split(" and "))
        return [
            run
            for run in self.runs
            if all(run.data.tags.get(tag.strip("`")) == value.strip("'") for tag, value in wanted.items())
        ]

    def create_run(self, experiment: str, start: int, tags: dict[str, str], name: str) -> Any:
        info = SimpleNamespace(run_id=f"run{len(self.runs)}", experiment_id=experiment, lifecycle_stage="active",
                               status="RUNNING", artifact_uri="there")  # fmt: skip
        self.runs.append(SimpleNamespace(info=info, data=SimpleNamespace(tags=dict(tags), params={})))
        self.told.append(f"create_run {experiment} at {start} {name!r} {tags}")
        return self.runs[-1]

    def get_experiment_by_name(self, name: str) -> Any:
        self.told.append(f"experiment {name}")
        return SimpleNamespace(lifecycle_stage="active", experiment_id="made")

    def of(self, run_id: str) -> Any:
        (run,) = (run for run in self.runs if run.info.run_id == run_id)
        return run

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        self.told.append(f"log_batch {run_id}")
        self.told += [f"  {m.key} = {m.value:g} at {m.timestamp}, step {m.step}" for m in metrics]
        self.told += [f"  param {p.key} = {p.value}" for p in params] + [f"  tag {t.key} = {t.value}" for t in tags]
        self.of(run_id).data.params |= {p.key: p.value for p in params}

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        self.told.append(f"set_tag {run_id} {name} = {value}")
        self.of(run_id).data.tags[name] = value

    def log_artifact(self, run_id: str, path: str) -> None:
        self.told.append(f"log_artifact {run_id} {Path(path).name}")

    def log_artifacts(self, run_id: str, path: str, name: str) -> None:
        self.told.append(f"log_artifacts {run_id} {Path(path).name} as {name}")

    def log_inputs(self, run_id: str, inputs: Any) -> None:
        for each in inputs:
            tags = [(tag.key, tag.value) for tag in each.tags]
            data = each.dataset
            self.told.append(f"log_inputs {run_id} {data.name} {data.digest} {data.source_type} {data.source} {tags}")

    def update_run(self, run_id: str, status: str) -> None:
        self.told.append(f"update_run {run_id} {status}")
        self.of(run_id).info.status = status

    def set_terminated(self, run_id: str, status: str, end: int) -> None:
        self.told.append(f"set_terminated {run_id} {status} at {end}")
        self.of(run_id).info.status = status


def told_mlflow(folder: Path) -> str:
    """A run that trains, one that is over, the same once more, and a killed one of an experiment of DVC's."""
    store = Store()
    mlflow = _Mlflow(TrackingConfig(), store, None)
    run = tracked(folder)
    half = replace(run, generations=run.generations[:1], status="running", result=None, ended=None, files={})
    waited = replace(LIVED, generation=3, env_steps=4100)
    later = replace(run, generations=[*run.generations, (1007.0, waited)])
    other = replace(
        half, key="f" * 32, status="killed", experiment="mine", revision=None, files={"report": run.files["report"]}
    )
    for what, each in (
        ("running", half), ("over", later), ("again", later), ("another name", replace(later, experiment="b")),
        ("one more", replace(later, experiment="a")), ("the first once more", replace(later, experiment="b")),
        ("goes on", replace(half, result="r.dir")), ("killed", other),
    ):  # fmt: skip
        store.told.append(f"== {what}")
        store.told.append(f"new: {mlflow.deliver(each)}")
    store.runs[0].info.lifecycle_stage = "deleted"
    store.told += ["== deleted", f"new: {mlflow.deliver(later)}"]
    return "\n".join(store.told) + "\n"


@pytest.mark.thorough
def test_mlflow_is_told_what_it_was_when_someone_looked(tmp_path: Path) -> None:
    assert told_mlflow(tmp_path).split("\n") == MLFLOW.read_text(encoding="utf-8").split("\n")


@pytest.mark.thorough
def test_long_texts_are_cut_to_what_mlflow_takes(tmp_path: Path) -> None:
    store = Store()
    told = replace(FIRST, members=(row(0, 0, None, 1.0, "none", "c" * 9000),))
    run = tracked(tmp_path, generations=[(1.0, told)], files={}, params={**PARAMS, "seed": "s" * 9000})
    _Mlflow(TrackingConfig(), store, None).deliver(run)
    assert sorted(len(line) for line in store.told)[-2:] == [
        len("  tag change = ") + 5000,
        len("  param seed = ") + 6000,
    ]


@pytest.mark.parametrize(
    ("given", "uri", "database"),
    [(None, "sqlite:////root/.evopipe/mlflow/mlflow.db", "/root/.evopipe/mlflow/mlflow.db"),
     ("sqlite:///mine.db?x=1", "sqlite:////root/mine.db?x=1", "/root/mine.db"), ("sqlite:////a/b.db",
     "sqlite:////a/b.db", "/a/b.db"),
     ("sqlite:///:memory:", "sqlite:///:memory:", None), ("https://host:5000", "https://host:5000", None)],
)  # fmt: skip
def test_the_store_is_the_one_that_is_named_else_the_projects_own(
    given: str | None, uri: str, database: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if given is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert _tracking_uri(Path("/root")) == uri
    assert _database(uri) == (None if database is None else Path(database))


if __name__ == "__main__":
    import tempfile

    FRAMES.parent.mkdir(exist_ok=True)
    FRAMES.write_text(frames(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as temporary:
        MLFLOW.write_text(told_mlflow(Path(temporary)), encoding="utf-8")
