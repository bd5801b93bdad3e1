"""A password in a tracker's address stands in no process list, no sentence, no log and no file."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import tiny
from evopipe.errors import redacted
from evopipe.schema.tracking import TrackingConfig
from evopipe.track.backends import mlflow as backend
from evopipe.track.events import JsonlSink, Start, Tracker
from evopipe.track.outbox import Outbox
from evopipe.track.record import TrainingRecord

SECRET = "s3cr3t-Wort"
MLFLOW = TrackingConfig(backends=("mlflow",), finish_seconds=40.0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def lines_of(process: psutil.Process) -> Iterator[str]:
    """Command lines of a process and of all that it started, as `ps` shows them."""
    try:
        there = [process, *process.children(recursive=True)]
    except psutil.Error:  # it has ended
        return
    for one in there:
        with contextlib.suppress(psutil.Error):  # this one has ended, or waits to be reaped
            yield " ".join(one.cmdline())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"http://me:{SECRET}@host:5000/x", "http://***@host:5000/x"),
        (f"postgresql+psycopg2://me:{SECRET}@host/db failed", "postgresql+psycopg2://***@host/db failed"),
        (f"(https://{SECRET}@host)", "(https://***@host)"),
        (f"s3://k:{SECRET}/with@and:slash@bucket/a and http://b:{SECRET}@c", "s3://***@bucket/a and http://***@c"),
        (f"mysql://host/db?user=me&password={SECRET}&x=1", "mysql://host/db?user=me&password=***&x=1"),
        (f"https://host/?access_token={SECRET}", "https://host/?access_token=***"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("mail me@host, or see http://host/page", "mail me@host, or see http://host/page"),
    ],
)
def test_addresses_are_shown_without_who_and_password(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


def test_the_pages_of_a_server_are_named_and_opened_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser's command line is in the process list as well."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@tracker.example:5000")
    told: list[str] = []
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    backend.serve(tmp_path, 5000, True, told.append)
    assert told == [
        "MLFLOW_TRACKING_URI names a server that has its own pages: http://tracker.example:5000/#/experiments"
    ]
    assert opened == ["http://tracker.example:5000/#/experiments"]


@pytest.mark.thorough
def test_a_databases_password_is_on_no_command_line_and_in_no_sentence(tmp_path: Path) -> None:
    """MLflow's own server really starts, and ends, for nobody listens where the database should be."""
    uri = f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/runs"
    words = [sys.executable, "-m", "evopipe", "track", "ui", "--no-browser", "--port", str(free_port())]
    pages = subprocess.Popen(
        words, cwd=tmp_path, env=tiny.environment(MLFLOW_TRACKING_URI=uri),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    seen, until = set[str](), time.monotonic() + 90
    while pages.poll() is None and time.monotonic() < until:
        seen.update(lines_of(psutil.Process(pages.pid)))
        time.sleep(0.05)
    said = pages.communicate(timeout=5)[0]
    assert any("mlflow server" in line for line in seen), seen
    assert not [line for line in seen if SECRET in line]
    assert SECRET not in said
    assert pages.returncode == 75
    assert "the MLflow server ended by itself" in said


def recorded(root: Path) -> Path:
    folder = root / ".evopipe/train" / ("0" * 32)
    TrainingRecord(folder).begin(tiny.params(), revision="f" * 40, experiment=None, version="0.1")
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(Start("train", "CartPole-v1", "dqn", 2, 300))
    return folder


def files_with(secret: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.thorough
def test_a_server_that_refuses_is_told_of_without_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:{free_port()}")
    folder, seen, said = recorded(tmp_path), set[str](), list[str]()
    with Outbox(folder, tmp_path, MLFLOW) as outbox:
        until = time.monotonic() + 60
        while not said and time.monotonic() < until:
            seen.update(lines_of(psutil.Process(os.getpid())))
            said += outbox.problems()
            time.sleep(0.1)
    assert any("evopipe.track.outbox" in line for line in seen)
    assert not [line for line in seen if SECRET in line]
    assert len(said) == 1
    assert said[0].startswith("tracking: mlflow: ")
    assert SECRET not in said[0]
    assert files_with(SECRET, tmp_path) == []


@pytest.mark.slow
def test_a_real_server_takes_a_delivery_and_keeps_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, home = free_port(), tmp_path / "server"
    home.mkdir()
    words = ["--backend-store-uri", f"sqlite:///{home}/m.db", "--artifacts-destination", str(home / "artifacts")]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *words, "--port", str(port), "--workers", "1"],
        cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:{port}")
        project = tmp_path / "project"
        recorded(project)
        tiny.write_params(project, {"tracking.backends": ["mlflow"]})
        answer = tiny.call(project, "track", "sync")
        until = time.monotonic() + 90
        while answer.code and time.monotonic() < until:
            time.sleep(2)
            assert SECRET not in answer.err
            answer = tiny.call(project, "track", "sync")
        assert answer.code == 0, answer
        assert SECRET not in answer.out + answer.err
        assert files_with(SECRET, tmp_path) == []
    finally:
        os.killpg(server.pid, 9)
        server.wait(10)


def test_errors_of_the_command_line_are_redacted_wherever_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address in a file name, as people paste it in the wrong place."""
    answer = tiny.call(tmp_path, "--params", f"http://me:{SECRET}@host/params.yaml", "params", "check")
    assert answer.code == 66
    assert "http://***@host/params.yaml" in answer.err
    assert SECRET not in answer.err
