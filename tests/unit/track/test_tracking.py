"""How a run and its trackers meet: what its record is told, what goes into it when, and how the outbox is started."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evopipe.errors import DataError
from evopipe.schema.tracking import TrackingConfig
from evopipe.track import outbox, tracking
from evopipe.track.backends import tensorboard
from evopipe.track.outbox import ADVICE, Outbox, _Redacted
from evopipe.track.record import FILES, TRAINED, New, TrackedRun, TrainingRecord, _link, md5_of
from evopipe.version import SOURCE, __version__

ON = TrackingConfig(backends=("tensorboard",))
PARAMS = {"env": {"id": "E-v1"}, "train": {"algo": "dqn"}}
KEY = "0123456789abcdef0123456789abcdef"


class Started:
    """A process that was asked for, as far as it is looked at."""

    def __init__(self, words: list[str], **how: Any) -> None:
        self.words, self.how = words, how
        self.stdin, self.stdout = io.BytesIO(), None
        if how["stdout"] == subprocess.PIPE:
            end, self.says = os.pipe()
            self.stdout = os.fdopen(end, "rb", buffering=0)

    def poll(self) -> None:
        return None


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """The processes that the outbox wants, none of which runs."""
    found: list[Started] = []
    popen = lambda words, **how: found.append(Started(words, **how)) or found[-1]  # noqa: E731
    monkeypatch.setattr(outbox, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))
    monkeypatch.setattr(outbox, "_started", [])
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    monkeypatch.delenv("EVOPIPE_TRACKING", raising=False)
    monkeypatch.delenv("DVC_EXP_NAME", raising=False)
    return found


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which every stage has written something."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (tmp_path / ".dvc").mkdir()
    for path in (*FILES.values(), TRAINED):
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix:
            place.write_text(f"of {path}")
        else:
            place.mkdir()
            (place / "a.json").write_text(f"of {path}")
    return tmp_path


def kept(record: TrainingRecord) -> dict[str, str]:
    places = {name: kept.path for name, kept in record.run().files.items()}
    return {name: (p / "a.json" if p.is_dir() else p).read_text() for name, p in places.items()}


def test_a_record_begins_where_a_tracker_is_wanted(
    work: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = work / ".evopipe/train" / KEY
    for config, wanted in ((TrackingConfig(backends=()), None), (ON, "off")):
        if wanted:
            monkeypatch.setenv("EVOPIPE_TRACKING", wanted)
        with tracking._outbox(tracking.Tracked(config, PARAMS), state, work, "mine"):
            assert (state.exists(), started) == (False, [])
    monkeypatch.setenv("EVOPIPE_TRACKING", "on")
    monkeypatch.setenv("DVC_EXP_NAME", "of-dvc")
    for name, experiment in (("mine", "mine"), (None, "of-dvc")):
        record = TrainingRecord(work / ".evopipe/train" / f"{experiment:0<32}")
        with tracking._outbox(tracking.Tracked(ON, PARAMS), record.folder, work, name):
            os.close(started[-1].says)
        run = record.run()
        assert (run.params, run.experiment, run.version, run.revision) == (PARAMS, experiment, __version__, None)
        assert started[-1].words[3:5] == [str(record.folder), str(work)]
        assert started[-1].stdin.closed, "it hears that no more comes"


def test_what_a_training_wrote_is_kept_when_it_ends_and_what_later_stages_wrote_then(
    work: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = TrainingRecord(work / ".evopipe/train" / KEY)
    record.begin(PARAMS, revision=None, experiment=None, version="1")
    tracking.finish(TrackingConfig(backends=()), record.folder, work)
    assert (kept(record), record.run().result) == ({}, None)
    tracking.finish(ON, record.folder, work)
    of_train = {"lineage", "fitness", "signals", "timing", "train"}
    assert kept(record) == {name: f"of {FILES[name]}" for name in of_train}
    assert record.run().result == md5_of(work / TRAINED)
    tracking.attach(TrackingConfig(backends=()), ["evaluate"], work)
    (work / FILES["fitness"]).unlink()  # as stages do: the record holds a link to the old one
    (work / FILES["fitness"]).write_text("of a training that goes on")
    tracking.attach(ON, ["train", "population"], work)
    assert started == [], "nothing of theirs is to be shown"
    tracking.attach(ON, ["evaluate", "train"], work)
    assert kept(record)["fitness"] == f"of {FILES['fitness']}", "`finish` alone takes what a training wrote"
    assert set(kept(record)) == of_train | {"evaluation", "members"}
    assert [process.words[3:5] for process in started] == [[str(record.folder), str(work)]]
    tracking.attach(ON, ["evaluate"], work)
    assert len(started) == 1, "nothing new"
    (work / TRAINED / "a.json").write_text("of another training")
    tracking.attach(ON, ["report", "export"], work)
    assert set(kept(record)) == of_train | {"evaluation", "members"}
    (work / TRAINED / "a.json").write_text(f"of {TRAINED}")
    tracking.attach(ON, ["report", "export"], work)
    assert set(kept(record)) == {*FILES}
    assert len(started) == 2


def test_what_goes_wrong_is_a_warning(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracking.finish(ON, work / "nowhere", work)
    told = capsys.readouterr().err
    assert told.startswith(f"warning: tracking: {work / 'nowhere/run.json'}")
    assert told.endswith(f"; {ADVICE}\n")
    (work / "odd").mkdir()
    (work / "odd/run.json").write_text('{"key": 1}')
    with pytest.raises(DataError, match="is not the description of a run; remove it"):
        TrainingRecord(work / "odd").run()


def test_the_process_that_delivers_has_its_own_session_and_its_own_streams(
    work: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "relative", "/else"]))
    record = work / ".evopipe/train" / KEY
    record.mkdir(parents=True)
    config = TrackingConfig(backends=("tensorboard", "wandb"))
    with Outbox(record, work, config) as following:
        (process,) = started
        folder, root, block, writer = process.words[3:]
        assert process.words[:3] == [sys.executable, "-m", "evopipe.track.outbox"]
        assert (folder, root, int(writer)) == (str(record), str(work), os.getpid())
        assert TrackingConfig.model_validate_json(block).backends == ("tensorboard",), "what is installed"
        lacks = "tracking.backends: wandb is not installed, so nothing goes there: pip install 'evopipe[wandb]'"
        assert following.problems() == [f"{lacks}; {ADVICE}"]
        assert following.problems() == []
        os.write(process.says, b"mlflow: full\nmlflow: still\n")
        assert following.problems() == [f"tracking: mlflow: {word}; {ADVICE}" for word in ("full", "still")]
        os.close(process.says)
    how = process.how
    assert (how["stdin"], how["stdout"]) == (subprocess.PIPE, subprocess.PIPE)
    assert (how["cwd"], how["start_new_session"], how["stderr"].name) == (work, True, str(record / "track.log"))
    assert how["env"]["PYTHONPATH"].split(os.pathsep) == [str(SOURCE), os.path.abspath("relative"), "/else"]
    assert {how["env"][f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"1"}
    assert process.stdin.closed
    Outbox(record, work, ON).deliver()
    how = started[1].how
    assert (how["stdin"], how["stdout"].name) == (subprocess.DEVNULL, str(record / "track.log"))
    for none in (Outbox(None, work, ON), Outbox(record, work, TrackingConfig(backends=("wandb",)))):
        none.deliver()
        assert len(started) == 2
    assert Outbox(None, work, TrackingConfig(backends=("wandb",))).problems() == [], "nobody would deliver"


def test_a_process_that_cannot_be_started_is_a_sentence(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(11, "no more processes")

    monkeypatch.setattr(outbox, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": fails}))
    with Outbox(work, work, ON) as following:
        assert following.problems() == [f"tracking: no process could be started (no more processes); {ADVICE}"]


def test_lines_of_others_hold_no_password_however_they_come() -> None:
    stream = io.StringIO()
    told = _Redacted(stream)
    for text in ("to http://me:pass", "word@host\nand ", "http://you:word@there"):
        assert told.write(text) == len(text)
    assert stream.getvalue() == "to http://***@host\n"
    told.flush()
    told.flush()
    assert stream.getvalue() == "to http://***@host\nand http://***@there"
    assert told.getvalue() == stream.getvalue(), "all else is the stream's own"


def test_a_copy_is_made_where_no_link_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    _link(str(tmp_path / "link"), str(tmp_path / "hard"))
    assert (tmp_path / "hard").samefile(tmp_path / "a")
    assert not (tmp_path / "hard").is_symlink()

    def fails(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", fails)
    _link(str(tmp_path / "link"), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert not (tmp_path / "copy").samefile(tmp_path / "a")


def test_what_was_appended_under_one_key_is_known_by_its_result_too(tmp_path: Path) -> None:
    """As a training is that DVC restored: nothing of it is appended a second time."""
    tracker = tensorboard.connect(ON, tmp_path)
    run = TrackedRun(KEY, PARAMS, 1.0, "finished", "abc.dir")
    assert tracker.deliver(run) == New(run=1)
    for again in (run, TrackedRun("dvc-abc", PARAMS, 2.0, "finished", "abc.dir")):
        assert tracker.deliver(again) == New()
    assert tracker.deliver(TrackedRun("dvc-abd", PARAMS, 2.0, "finished", "abd.dir")) == New(run=1)
