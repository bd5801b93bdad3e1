"""`evopipe track ui`: the MLflow pages of this project, on this machine only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path

from evopipe.errors import MissingInputError, UsageError
from evopipe.track.mlflow import DEFAULTS, home, tracking_uri
from evopipe.track.run import TrackerError, missing_package

HOST = "127.0.0.1"
START_SECONDS = 60.0


def serve(root: Path, port: int, browser: bool, tell: Callable[[str], None]) -> None:
    """Serve the pages until SIGINT or SIGTERM; return then.

    Args:
        root: the DVC root.
        port: where; nobody but this machine can reach it.
        browser: whether to open one.
        tell: takes the address, when it answers.

    Raises:
        MissingInputError: nothing was tracked yet, or MLflow is not installed.
        UsageError: the port is taken.
        TrackerError: the server ended by itself.
    """
    uri = tracking_uri(root)
    if uri.startswith(("http://", "https://")):
        tell(f"MLFLOW_TRACKING_URI names a server that has its own pages: {uri}")
        if browser:
            webbrowser.open(uri)
        return
    if (missing := missing_package("mlflow")) is not None:
        raise MissingInputError(missing)
    if uri.startswith(f"sqlite:///{home(root)}") and not (home(root) / "mlflow.db").exists():
        raise MissingInputError(
            f"{home(root)}: nothing was tracked yet; train with `tracking.backends: [mlflow]`, or bring what was "
            "trained with `evopipe track sync`"
        )
    _refuse_taken(port)
    words = ["server", "--backend-store-uri", uri, "--host", HOST, "--port", str(port), "--workers", "1"]
    env = {**DEFAULTS, **os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *words],
        cwd=home(root) if home(root).exists() else root,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours: the server is then stopped as a whole
    )
    old = {signum: signal.signal(signum, _stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        _attend(server, f"http://{HOST}:{port}", browser, tell)
    except _Stopped:
        pass
    finally:
        for signum in old:
            signal.signal(signum, signal.SIG_IGN)  # a second Ctrl-C must not leave the server behind
        _end(server)
        for signum, handler in old.items():
            signal.signal(signum, handler)


class _Stopped(Exception):
    """A signal came."""


def _stop(signum: int, frame: object) -> None:
    raise _Stopped


def _attend(server: subprocess.Popen[bytes], address: str, browser: bool, tell: Callable[[str], None]) -> None:
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and not _answers(address):
        if time.monotonic() > until:
            raise TrackerError(f"the MLflow server did not answer within {START_SECONDS:.0f} s at {address}")
        time.sleep(0.1)
    if server.poll() is None:
        tell(f"{address} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)
    assert server.stderr is not None
    said = b""
    while chunk := server.stderr.read1(65536):  # type: ignore[attr-defined]
        said = (said + chunk)[-2000:]
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    raise TrackerError(f"the MLflow server ended by itself ({last or server.wait()}); try another --port")


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UsageError(
                f"track ui: port {port} cannot be used ({error.strerror}): choose another, such as --port {port + 1}"
            ) from None


def _end(server: subprocess.Popen[bytes]) -> None:
    """Stop the server and its workers."""
    for signum, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(server.pid, signum)
            server.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    if server.stderr is not None:
        server.stderr.close()
