"""The trainer of agent-lights, with the server that it plays at."""

from __future__ import annotations

import atexit
import subprocess
import sys
from pathlib import Path
from typing import Any

import evopipe
from evopipe.errors import EnvironmentFailed

PORT = 8765


def begun(port: int) -> str:
    """Begin a server, which ends with this process; return its name as an environment.

    Raises:
        EnvironmentFailed: it does not begin.
    """
    command = [sys.executable, str(Path(__file__).with_name("server.py")), str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    """Make the trainer; `config` is what the command line gives. Tasks are seeds, and those of validation nobody
    trained on."""
    return evopipe.AgentTrainer(env_class=begun(port), config=config)
