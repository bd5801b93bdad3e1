"""`evopipe track ui`: the MLflow pages of this project, on this machine only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path

from evopipe.errors import MissingInputError, UsageError
from evopipe.track.backends import missing_package
from evopipe.track.backends.mlflow import DEFAULTS, home, tracking_uri
from evopipe.track.run import TrackerError

_HOST = "127.0.0.1"
_START_SECONDS = 60.0


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
    uri, place = tracking_uri(root), home(root)
    if uri.startswith(("http://", "https://")):
        tell(f"MLFLOW_TRACKING_URI names a server that has its own pages: {uri}")
        if browser:
            webbrowser.open(uri)
        return
    if (missing := missing_package("mlflow")) is not None:
        raise MissingInputError(missing)
    if uri.startswith(f"sqlite:///{place}") and not (place / "mlflow.db").exists():
        raise MissingInputError(
            f"{place}: nothing was tracked yet; train with `tracking.backends: [mlflow]`, or bring what was trained "
            "with `evopipe track sync`"
        )
    try:
        socket.create_server((_HOST, port)).close()
    except OSError as error:
        raise UsageError(
            f"track ui: port {port} cannot be used ({error.strerror}): choose another, such as --port {port + 1}"
        ) from None
    words = ["--backend-store-uri", uri, "--host", _HOST, "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *words],
        cwd=place if place.exists() else root,
        env={**DEFAULTS, **os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours: the server is then stopped as a whole
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it like Ctrl-C
    try:
        _attend(server, f"http://{_HOST}:{port}", browser, tell)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not leave the server behind
    finally:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(server.pid, signum)  # its workers too
                server.communicate(timeout=5.0)


def _attend(server: subprocess.Popen[bytes], address: str, browser: bool, tell: Callable[[str], None]) -> None:
    until = time.monotonic() + _START_SECONDS
    while server.poll() is None and not _answers(address):
        if time.monotonic() > until:
            raise TrackerError(f"the MLflow server did not answer within {_START_SECONDS:.0f} s at {address}")
        time.sleep(0.1)
    if server.poll() is None:
        tell(f"{address} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)
    _, said = server.communicate()
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    raise TrackerError(f"the MLflow server ended by itself ({last or server.returncode}); try another --port")


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=1) as answer:
        return bool(answer.status == 200)
    return False
