"""Ten lamps, at a server that speaks OpenEnv's messages until its input ends: `python server.py PORT`.

Three lamps are on, whose numbers are shown. Who presses the switch of one that is on turns it off, which earns
a third; a session is an episode of three presses.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any

from websockets.sync.server import ServerConnection, serve

LAMPS, ON = 10, 3


class Session:
    """The lamps of one episode."""

    def __init__(self) -> None:
        self.on: list[str] = []
        self.left = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what a message of a client is answered with."""
        kind, data = message["type"], message["data"]
        if kind == "reset":
            self.on = [str(lamp) for lamp in random.Random(int(data["seed"])).sample(range(LAMPS), ON)]
            self.left = ON
            return self._told(None)
        if kind != "step":
            return {"type": "error", "data": {"message": f"{kind!r:.40} is neither reset nor step"}}
        self.left -= 1
        earned = 0.0
        if (lamp := data.get("message")) in self.on:
            self.on.remove(lamp)
            earned = 1 / ON
        return self._told(earned)

    def _told(self, reward: float | None) -> dict[str, Any]:
        data = {"observation": {"on": "".join(self.on)}, "reward": reward, "done": not self.left}
        return {"type": "observation", "data": data}


def handle(socket: ServerConnection) -> None:
    """Serve one session."""
    session = Session()
    for raw in socket:
        message = json.loads(raw)
        if message["type"] == "close":
            return
        socket.send(json.dumps(session.answer(message)))


if __name__ == "__main__":
    with serve(handle, "127.0.0.1", int(sys.argv[1])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()  # it ends with the process that began it, however that ends
