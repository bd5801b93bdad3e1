"""A server that speaks OpenEnv's messages on loopback, and misbehaves where a seed says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

FAULTS = ("dies", "garbage", "silent", "error", "wrong_type", "list", "no_data", "binary", "endless")


class Sessions:
    """Echoes a digit that the seed draws; three turns an episode."""

    def __init__(self) -> None:
        self.open, self.closed, self.asked = 0, 0, 0
        self.stopped = threading.Event()

    def handle(self, socket: ServerConnection) -> None:
        self.open += 1
        try:
            self._session(socket)
        except ConnectionClosed:
            pass
        finally:
            self.closed += 1

    def _session(self, socket: ServerConnection) -> None:
        seed, turns = 0, 0
        for raw in socket:
            self.asked += 1
            message = json.loads(raw)
            if message["type"] == "close":
                return
            if message["type"] == "reset":
                seed, turns = int(message["data"]["seed"]), 0
                earned, fault = None, message["data"].get("fault")
            else:
                turns += 1
                if set(message["data"]) != {"message"}:
                    socket.send(
                        json.dumps({"type": "error", "data": {"message": "Invalid", "code": "VALIDATION_ERROR"}})
                    )
                    continue
                earned = float(message["data"]["message"] == str((seed + turns - 1) % 10))
                if fault is not None and self._fail(socket, fault):
                    return
            shown = {"prompt": str((seed + turns) % 10), "metadata": {"turn": turns}}
            self._tell(socket, {"observation": shown, "reward": earned, "done": turns == 3})

    def _tell(self, socket: ServerConnection, data: dict[str, Any]) -> None:
        socket.send(json.dumps({"type": "observation", "data": data}))

    def _fail(self, socket: ServerConnection, fault: str) -> bool:
        texts: dict[str, Any] = {
            "garbage": "\x00<html>oh\nno", "error": json.dumps({"type": "error", "data": {"message": "boom"}}),
            "wrong_type": json.dumps({"type": "state", "data": {}}), "list": "[1, 2]",
            "no_data": '{"type": "observation"}', "binary": b"\xff\xfe", "endless": "x" * 5_000_000,
        }  # fmt: skip
        if fault == "dies":
            socket.socket.close()
        elif fault == "silent":
            self.stopped.wait(30)
        else:
            socket.send(texts[fault])
        return True


@contextmanager
def serving() -> Iterator[tuple[str, Sessions]]:
    """Serve in a thread; give the address, and what is counted."""
    sessions = Sessions()
    with serve(sessions.handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"openenv:ws://127.0.0.1:{server.socket.getsockname()[1]}", sessions
        finally:
            sessions.stopped.set()
            server.shutdown()
            thread.join()
