"""What stages hand to trackers: a record that grows with every stage, and a process that is started to deliver it."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

import evopipe
import tiny
from evopipe.track.record import FILES, TrackedRun, TrainingRecord, md5_of

TRACKED = {
    "tracking.backends": ["mlflow"],
    "train.max_steps": 80,
    "train.evo_steps": 40,
    "train.eval_steps": 10,
    "evaluate.steps": 10,
    "runtime.device": "cpu",
    "runtime.env_workers": 0,
}
TRAINED = {"lineage", "fitness", "signals", "timing", "train"}


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for every Python process that was started: none does anything, MLflow would take seconds."""
    note, python = tmp_path / "started", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$2 $3" >> {note}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return note


def deliveries(started: Path, expected: int) -> bool:
    """Whether so many processes that deliver this training were started, and no more."""
    assert tiny.wait_for(lambda: started.exists() and len(started.read_text().splitlines()) >= expected)
    (record,) = TrainingRecord.all(started.parent / "run/.evopipe/train")
    return started.read_text().splitlines() == [f"evopipe.track.outbox {record.folder}"] * expected


def stage(folder: Path, name: str) -> None:
    answer = tiny.call(folder, name, "--quiet")
    assert answer.code == 0, answer.err


def recorded(folder: Path) -> TrackedRun:
    (record,) = TrainingRecord.all(folder / ".evopipe/train")
    run = record.run()
    assert {name: kept.md5 for name, kept in run.files.items()} == {
        name: md5_of(folder / FILES[name]) for name in run.files
    }
    return run


@pytest.mark.thorough
def test_every_stage_adds_what_it_wrote_to_its_trainings_record(tmp_path: Path, started: Path) -> None:
    folder = tmp_path / "run"
    tiny.write_params(folder, TRACKED)
    stage(folder, "population")
    assert not started.exists()
    stage(folder, "train")
    run = recorded(folder)
    with (folder / FILES["fitness"]).open() as file:
        curve = [
            (int(row["generation"]), int(row["env_steps"]), int(row["eval_steps"])) for row in csv.DictReader(file)
        ]
    assert [(event.generation, event.env_steps, event.eval_steps) for _, event in run.generations] == curve
    assert (run.status, run.result, set(run.files)) == ("finished", md5_of(folder / "models/trained"), TRAINED)
    assert run.ended is not None
    assert run.ended[1] == "all steps taken"
    assert deliveries(started, 1)
    stage(folder, "evaluate")
    assert set(recorded(folder).files) == {*TRAINED, "evaluation", "members"}
    assert deliveries(started, 2)
    stage(folder, "evaluate")  # nothing new
    assert deliveries(started, 2)


@pytest.mark.thorough
def test_a_run_from_python_is_recorded_whole(tmp_path: Path, started: Path) -> None:
    evopipe.train(tiny.params(TRACKED), folder=tmp_path / "run")
    assert set(recorded(tmp_path / "run").files) == set(FILES)
    assert deliveries(started, 2)


@pytest.mark.parametrize("how", ["nobody", "off"])
def test_nothing_is_recorded_where_nobody_tracks(
    tmp_path: Path, started: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "off":
        monkeypatch.setenv("EVOPIPE_TRACKING", "off")
    folder = tmp_path / "run"
    tiny.write_params(folder, TRACKED if how == "off" else {**TRACKED, "tracking.backends": []})
    for name in ("population", "train", "evaluate"):
        stage(folder, name)
    assert not TrainingRecord.all(folder / ".evopipe/train")
    assert not started.exists()
    assert list(folder.glob(".evopipe/train/*/events.jsonl"))  # the local log is always written


def test_a_delivery_that_cannot_be_started_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    tiny.write_params(folder, TRACKED)
    monkeypatch.setattr(sys, "executable", os.devnull)
    stage(folder, "population")
    answer = tiny.call(folder, "train", "--quiet")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("warning: tracking: no process could be started (Permission denied); the run goes on")
    answer = tiny.call(folder, "evaluate", "--quiet")
    assert answer.code == 0
    assert answer.err.startswith("warning: tracking: ")
    assert set(recorded(folder).files) == {*TRAINED, "evaluation", "members"}
