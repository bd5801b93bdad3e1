"""Four lamps at a server of OpenEnv's: what to imitate first, the server that this machine runs, and the trainer."""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from server import Session

import evopipe
from evopipe.errors import EnvironmentFailed

PORT = 8765  # always the same: a run that was stopped goes on if all that it was given is as it was


class Demonstrations:
    """Chats of somebody who sometimes presses the switch that is needed, but mostly that of the first lamp that is on.

    Args:
        attentive: how often the switch is one that is needed.
    """

    characters = "0123"

    def __init__(self, attentive: float = 0.4) -> None:
        self.attentive = attentive

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make chats, none of a seed that is validated on."""
        return [{"messages": self.chat(int(rng.integers(10**9, 2 * 10**9)), rng)} for _ in range(n)]

    def chat(self, seed: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Return the chat of the session that a seed begins."""
        session, chat = Session(), list[dict[str, Any]]()
        told = session.answer({"type": "reset", "data": {"seed": seed}})["data"]
        while not told["done"]:
            lamps = told["observation"]["lamps"]
            switch = session.needed[0] if rng.random() < self.attentive else str(lamps.index("1"))
            chat += [{"role": "user", "content": lamps}, {"role": "assistant", "content": switch}]
            told = session.answer({"type": "step", "data": {"message": switch}})["data"]
        return chat

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a first completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])


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
    """Make the trainer; `config` is what the command line gives. Tasks are seeds, of which those of validation are
    others than those of training; but lamps have only fourteen beginnings."""
    return evopipe.AgentTrainer(env_class=begun(port), config=config)
