"""Four lamps in a row, at a server that speaks OpenEnv's messages until its input ends: `python server.py PORT`.

Who presses a lamp's switch toggles the lamp and those beside it. A session is an episode of at most three presses. A
press earns the share of the presses that were needed at first by which it brings the end nearer, and loses it where it
leads away, or is none, so that an episode is worth 1 if no lamp is on at its end.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from functools import reduce
from itertools import combinations
from typing import Any

from websockets.sync.server import ServerConnection, serve

LAMPS, PRESSES = 4, 3
SWITCHES = [str(place) for place in range(LAMPS)]


def pressed(lamps: int, place: int) -> int:
    """Return the lamps, as the bits of a number, after a press of a switch."""
    mask = 0b111 << place >> 1
    return lamps ^ (mask & (1 << LAMPS) - 1)


def needed(lamps: int) -> int:
    """Return how many presses turn all lamps off: each switch is pressed once or never, and the order is all one."""
    for presses in range(LAMPS + 1):
        for places in combinations(range(LAMPS), presses):
            if reduce(pressed, places, lamps) == 0:
                return presses
    raise ValueError(f"no presses turn off {lamps:b}")


def drawn(seed: int) -> int:
    """Return lamps of which at least one is on, and which three presses, or fewer, turn off."""
    chance, lamps = random.Random(seed), 0
    for place in chance.sample(range(LAMPS), chance.randint(1, PRESSES)):
        lamps = pressed(lamps, place)
    return lamps


class Session:
    """The lamps of one episode."""

    def __init__(self) -> None:
        self.lamps, self.left, self.need = 0, 0, 0

    @property
    def needed(self) -> list[str]:
        """The switches whose press brings the end nearer."""
        nearer = needed(self.lamps) - 1
        return [switch for place, switch in enumerate(SWITCHES) if needed(pressed(self.lamps, place)) == nearer]

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what a message of a client is answered with."""
        kind, data = message["type"], message["data"]
        if kind == "reset":
            self.lamps, self.left = drawn(int(data["seed"])), PRESSES
            self.need = needed(self.lamps)
            return self._told(None)
        if kind != "step":
            return {"type": "error", "data": {"message": f"{kind!r:.40} is neither reset nor step"}}
        before, self.left = needed(self.lamps), self.left - 1
        if (place := data.get("message")) not in SWITCHES:
            return self._told(-1 / self.need)  # as what leads away, or it would be the safest that one can say
        self.lamps = pressed(self.lamps, SWITCHES.index(place))
        return self._told((before - needed(self.lamps)) / self.need)

    def _told(self, reward: float | None) -> dict[str, Any]:
        shown = {"lamps": f"{self.lamps:0{LAMPS}b}"[::-1]}
        done = reward is not None and (not self.lamps or not self.left)
        return {"type": "observation", "data": {"observation": shown, "reward": reward, "done": done}}


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
