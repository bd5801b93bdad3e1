"""What a sweep says of its runs, by the files that they left: order, numbers, and why some failed."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evopipe import stages
from evopipe.errors import DataError, DiskError, ResourceError
from evopipe.layout import EVALUATION, FETCHED, STAGES, TRANSITIONS
from evopipe.params.load import load_params
from evopipe.searchers.contract import Bound
from evopipe.storage.files import write_json
from evopipe.sweep.experiments import _RECORD, _is_saved
from evopipe.sweep.run import (
    _TAIL,
    DONE,
    LOG,
    PARAMS,
    SweptRun,
    _alone,
    _failure,
    _is_done,
    _Runs,
    _spent,
    _stages,
    sweep,
    table,
)
from evopipe.sweep.settings import Setting, _drawn, _rounded, _short, settings_of
from tiny import write_params


@pytest.fixture
def settings(tmp_path: Path) -> list[Setting]:
    write_params(tmp_path)
    return settings_of(str(tmp_path / "params.yaml"), ["seed=1,2,3,4"], (), None, "random", False)


def left(top: Path, setting: Setting, mean: float, seconds: dict[str, float] | None = None) -> Path:
    """What a run that has ended leaves."""
    folder = top / setting.name
    elite = {"mean": mean, "interval": [mean - 1.5, mean + 2.5]}
    write_json(folder / EVALUATION, {"elite": elite, "episodes": 4})
    write_json(folder / DONE, {"stages": seconds or {stage.name: 1.25 for stage in STAGES}})
    return folder


def test_a_run_says_what_its_evaluation_and_its_stages_say(tmp_path: Path, settings: list[Setting]) -> None:
    folder = left(tmp_path, settings[1], 40.0, {"train": 100.0, "evaluate": 20.5})
    found = SweptRun.read(settings[1], folder)
    assert (found.mean, found.interval, found.seconds) == (40.0, (38.5, 42.5), 120.5)
    assert found.cells == ("seed=2", "40.0", "[38.5, 42.5]", "2 min 00 s", str(folder))
    lines = table([found, SweptRun.read(settings[0], left(tmp_path, settings[0], -7.0))])
    assert [line.split()[0] for line in lines] == ["setting", "seed=2", "seed=1"]
    assert lines[0].split("  ")[0] == "setting"
    assert len({line.index("[") for line in lines[1:]}) == 1, "columns are aligned"
    for damaged in ({"elite": {"mean": 1.0}}, {"elite": {"mean": 1.0, "interval": [1.0]}}, [], {"elite": None}):
        write_json(folder / EVALUATION, damaged)
        with pytest.raises(DataError, match=rf"is of no run; delete {folder} to run it again"):
            SweptRun.read(settings[1], folder)


def test_a_run_is_done_with_its_last_stage(tmp_path: Path, settings: list[Setting]) -> None:
    names = [stage.name for stage in STAGES]
    for count in range(len(names) + 1):
        folder = left(tmp_path, settings[0], 1.0, dict.fromkeys(names[:count], 1.0) or {"other": 1.0})
        assert _is_done(folder) == (count == len(names))
    assert not _is_done(tmp_path / "nowhere")


def test_a_report_that_cannot_be_drawn_is_told_once(
    tmp_path: Path, settings: list[Setting], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two runs, whose stages are done but for the report: by the sweep, and not by each run again."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = {stage.name: 1.25 for stage in stages.WITHOUT_REPORT}
    folders = [left(tmp_path, setting, 1.0, done) for setting in settings[:2]]
    said: list[str] = []
    assert len(sweep(settings[:2], tmp_path, 1, True, lambda line: None, said.append)) == 2
    _stages(settings[0].params, folders[0], dataset=True, one_of_many=False)
    assert (said, capfd.readouterr().err) == ([stages.NO_REPORT], "")


@pytest.mark.parametrize("dataset", [True, False])
def test_stages_that_make_a_dataset_are_run_where_it_is_read(dataset: bool, tmp_path: Path) -> None:
    names = {stage.name: stage.dataset for stage in STAGES}
    write_params(tmp_path)
    write_json(tmp_path / DONE, {"stages": {name: 1.25 for name, makes in names.items() if not makes}})
    _stages(load_params(tmp_path / PARAMS), tmp_path, dataset, one_of_many=False)
    assert (tmp_path / TRANSITIONS).exists() == dataset
    assert _is_done(tmp_path)
    assert _spent(tmp_path)[0].keys() == {name for name, makes in names.items() if dataset or not makes}


def test_each_stage_is_run_once_and_its_cpu_seconds_add_up(tmp_path: Path) -> None:
    """A stage that failed is not done, and what it took counts when it has gone on."""
    write_params(tmp_path)
    params, others = load_params(tmp_path / PARAMS), [stage.name for stage in STAGES if not stage.dataset]
    cpu = {"population": 6.0, "fetch": 100.0, "buffer": 50.0}
    write_json(tmp_path / DONE, {"stages": dict.fromkeys(others, 7.0), "cpu": cpu})
    (tmp_path / TRANSITIONS).mkdir(parents=True)  # in the way of the file that `buffer` writes
    with pytest.raises(DiskError, match="a folder is in its place"):
        _stages(params, tmp_path, dataset=True, one_of_many=False)
    done, first = _spent(tmp_path)
    assert done.keys() == {*others, "fetch"}
    assert {done[name] for name in others} == {7.0}
    assert 0.0 < done["fetch"] < 60.0
    assert first["population"] == 6.0
    assert 100.0 < first["fetch"] < 101.0
    assert 50.0 < first["buffer"] < 51.0
    (tmp_path / TRANSITIONS).rmdir()
    fetched = (tmp_path / FETCHED).stat().st_mtime_ns
    _stages(params, tmp_path, dataset=True, one_of_many=False)
    again, last = _spent(tmp_path)
    assert again.keys() == {*done, "buffer"}
    assert (tmp_path / TRANSITIONS).is_file()
    assert (tmp_path / FETCHED).stat().st_mtime_ns == fetched
    assert {name: last[name] for name in ("population", "fetch")} == {
        name: first[name] for name in ("population", "fetch")
    }
    assert first["buffer"] < last["buffer"] < first["buffer"] + 1.0
    before = (tmp_path / DONE).stat().st_mtime_ns
    _stages(params, tmp_path, dataset=True, one_of_many=False)
    assert (tmp_path / DONE).stat().st_mtime_ns == before, "nothing is left to do"


def test_one_of_many_leaves_the_other_cpus_to_its_neighbours(tmp_path: Path) -> None:
    """What was set stays, and so does every other parameter."""
    for changes, expected in (
        ({}, (0, 1)),
        ({"runtime.env_workers": 3}, (3, 1)),
        ({"runtime.learners": 2}, (0, 2)),
    ):
        write_params(tmp_path, {"runtime.env_workers": "auto", "runtime.learners": "auto", **changes})
        whole = load_params(tmp_path / PARAMS)
        found = _alone(whole)
        assert (found.runtime.env_workers, found.runtime.learners) == expected
        back = {"env_workers": whole.runtime.env_workers, "learners": whole.runtime.learners}
        assert found.model_copy(update={"runtime": found.runtime.model_copy(update=back)}) == whole


def test_a_run_is_an_experiment_of_the_commit_that_its_record_names(tmp_path: Path, settings: list[Setting]) -> None:
    one = SweptRun.read(settings[0], left(tmp_path, settings[0], 1.0))
    assert not _is_saved(one, "a" * 40)
    write_json(one.folder / _RECORD, {"name": "mine", "baseline": "a" * 40})
    assert _is_saved(one, "a" * 40)
    assert not _is_saved(one, "b" * 40), "of an earlier commit"


def test_runs_are_counted_as_they_end_and_stand_with_the_best_first(tmp_path: Path, settings: list[Setting]) -> None:
    """What was there is said to be; of equal ones the first by name is first; failed ones count among those done."""
    told: list[str] = []
    warned: list[str] = []
    for setting, mean in zip(settings, (5.0, 9.0, 5.0, -math.inf), strict=True):
        if math.isfinite(mean):
            left(tmp_path, setting, mean)
    runs = _Runs(settings, tmp_path, 2, False, told.append, warned.append)
    last = settings[3]
    (tmp_path / last.name).mkdir()
    (tmp_path / last.name / LOG).write_text("epoch 1\nerror: the first\nerror: no room\nlater\n")

    class Ended:
        exitcode = 72
        joined: list[str] = []  # noqa: RUF012

        def join(self) -> None:
            self.joined.append("join")

        def close(self) -> None:
            self.joined.append("close")

    process: Any = Ended()
    runs._begin(settings[2])
    runs._take(process, last, stopping=True)
    for setting in settings[:2]:
        runs._begin(setting)
    assert process.joined == ["join", "close"]
    assert [line.partition(": elite")[0] for line in told] == ["1 of 4: seed=3", "3 of 4: seed=1", "4 of 4: seed=2"]
    assert all(line.endswith(", was there") for line in told)
    assert "elite 5.0 [3.5, 7.5]" in told[0]
    assert warned == [f"seed=4: no room ({tmp_path / last.name / LOG})"]
    assert runs.ended[0].setting.label == "seed=2"
    tied = [each.setting for each in runs.ended[1:]]
    assert [each.name for each in tied] == sorted(each.name for each in (settings[0], settings[2]))
    assert (runs.failed[last].exit_code, runs.going) == (72, {})


@pytest.mark.parametrize("code", [-15, -2, 143, 130])
def test_a_run_that_was_asked_to_end_has_not_failed(code: int, tmp_path: Path, settings: list[Setting]) -> None:
    """But one that is ended by a signal which nobody here sent has; as has one that fails meanwhile."""
    runs = _Runs(settings, tmp_path, 1, False, print, print)

    def ended(exitcode: int) -> Any:
        return type("Ended", (), {"exitcode": exitcode, "join": lambda self: None, "close": lambda self: None})()

    (tmp_path / settings[0].name).mkdir()
    (tmp_path / settings[0].name / LOG).write_text("error: of its own\n")
    runs._take(ended(code), settings[0], stopping=True)
    assert runs.failed == {}
    runs._take(ended(code), settings[0], stopping=False)
    assert runs.failed.keys() == {settings[0]}
    runs.failed.clear()
    runs._take(ended(66), settings[0], stopping=True)
    assert runs.failed.keys() == {settings[0]}


def test_why_a_run_failed_is_its_last_error_or_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / LOG
    for text, said in (
        ("error: one\nerror: two\n", "two"), ("line\nlast line\n", "last line"), ("", ""),
        ("not an error: so\nerror: told\nafter\n", "told"),
    ):  # fmt: skip
        log.write_text(text)
        failure = _failure(tmp_path, 66)
        assert (str(failure), failure.exit_code) == (said, 66)
    log.write_text("error: old\n" + "x" * _TAIL + "\nerror: new\n")
    assert str(_failure(tmp_path, 1)) == "new"
    log.write_text("error: old\n" + "x" * _TAIL + "\nend\n")
    assert str(_failure(tmp_path, 1)) == "end", "it is looked for in the tail alone"
    killed, ended = _failure(tmp_path, -9), _failure(tmp_path, -11)
    assert isinstance(killed, ResourceError)
    assert str(killed) == "its process was ended by SIGKILL: memory may have run out, lower --jobs"
    assert str(ended) == "its process was ended by SIGSEGV"


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        (["algos.dqn.lr", "seed"], ["lr", "seed"]),
        (["algos.dqn.lr", "algos.ppo.lr"], ["dqn.lr", "ppo.lr"]),
        (["a.x.lr", "b.x.lr", "c.lr"], ["a.x.lr", "b.x.lr", "c.lr"]),
        (["seed", "fetch.seed"], ["seed", "fetch.seed"]),
        (["a.b.c.size", "a.d.c.size", "a.d.e.size"], ["b.c.size", "d.c.size", "e.size"]),
    ],
)
def test_keys_are_shown_by_as_many_words_as_tell_them_apart(keys: list[str], short: list[str]) -> None:
    assert _short({key: number for number, key in enumerate(keys)}) == {key: number for number, key in enumerate(short)}


def test_drawn_numbers_have_four_digits_and_stay_in_their_range() -> None:
    rates = Bound(1.2345678e-4, 0.98765432, log=True)
    assert _rounded(rates, 0.012345678) == 0.01235
    assert _rounded(rates, 123456.0) == 0.98765432
    assert _rounded(Bound(1.23456e-4, 1.0, log=True), 1.23444e-4) == 1.23456e-4, "it would be rounded below"
    whole = _rounded(Bound(1, 200_000, whole=True), 123_456.0)
    assert (whole, type(whole)) == (123_456, int)


@pytest.mark.parametrize("sampler", ["random", "sobol"])
def test_draws_are_of_the_seed_and_of_each_trials_number(sampler: Any) -> None:
    samples = {"a": "loguniform(1e-4,1e-2)", "b": "integers(16,1024)"}
    three, other = list(_drawn(samples, 3, sampler, 1)), list(_drawn(samples, 3, sampler, 2))
    assert len({str(each) for each in three}) == 3
    assert list(_drawn(samples, 2, sampler, 1)) == three[:2]
    assert not [each for each in other if each in three]


@pytest.mark.parametrize("sampler", ["random", "sobol"])
def test_draws_are_spread_over_their_range_as_it_says(sampler: Any) -> None:
    """Powers of ten as often, whole numbers with both ends, each choice."""
    given = {"a": "loguniform(1e-4, 1)", "b": "integers(1, 4)", "c": "choice(x, [8, 8], null)", "d": "uniform(-2, 2)"}
    drawn = list(_drawn(given, 400, sampler, 3))
    assert drawn == list(_drawn(given, 900, sampler, 3))[:400]
    assert drawn != list(_drawn(given, 400, sampler, 4))
    powers = Counter(math.floor(math.log10(each["a"])) for each in drawn)
    assert {*powers} <= {-4, -3, -2, -1, 0}
    assert all(60 <= powers[power] <= 140 for power in (-4, -3, -2, -1))
    assert {each["b"]: 400 for each in drawn}.keys() == {1, 2, 3, 4}
    assert all(60 <= sum(each["b"] == n for each in drawn) <= 140 for n in (1, 2, 3, 4))
    kinds = Counter(repr(each["c"]) for each in drawn)
    assert {*kinds} == {"'x'", "[8, 8]", "None"}
    assert min(kinds.values()) >= 90
    assert sum(each["d"] < 0 for each in drawn) == pytest.approx(200, abs=40)
    assert (min(each["d"] for each in drawn), max(each["d"] for each in drawn)) == pytest.approx((-2, 2), abs=0.1)
