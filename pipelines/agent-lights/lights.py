"""The trainer of agent-lights, and the server that it plays at."""

from __future__ import annotations

import atexit
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import evopipe
from evopipe.errors import EnvironmentFailed

PORT = 8765  # always the same: a run that was stopped goes on if all that it was given is as it was


@cache
def begun(port: int) -> str:
    """Begin a server, unless this process has one, which ends with this process; return its name as an environment.

    Raises:
        EnvironmentFailed: it does not begin.
    """
    command = [sys.executable, str(Path(__file__).with_name("server.py")), str(port)]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    atexit.register(ended, server)
    assert server.stdout is not None
    assert server.stderr is not None
    if server.stdout.readline() != "ready\n":
        told = server.stderr.read().strip().splitlines() or ["it said nothing"]
        raise EnvironmentFailed(f"server.py does not begin at port {port}: {told[-1]}; free the port, or change PORT")
    return f"openenv:ws://127.0.0.1:{port}"


def ended(server: subprocess.Popen[str]) -> None:
    """End a server."""
    server.kill()
    server.communicate()


def make(config: Any, port: int = PORT) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives. Tasks are seeds, and those of validation
    are others than those of training; but there are only 720 of three lamps in a row."""
    return evopipe.AgentTrainer(env_class=begun(port), config=config)
