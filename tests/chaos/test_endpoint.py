"""A thousand requests, most of them ill: each is answered or gone, and nothing of them is left."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")

from endpoints import Served, tool_base

REQUESTS = 1000
LARGE = 10_000_000
# What a client does, and the status that it hears; None: it goes away before it could.
KINDS = {
    "right": 200, "streamed": 200, "another model": 404, "half a request": None, "a large body": 413,
    "an unknown tool": 400, "closes in mid-stream": None, "never comes back": None, "a wrong token": 401,
    "no JSON": 400,
}  # fmt: skip


class Client:
    """A client on a socket of its own, so that it can do what a library does not."""

    def __init__(self, served: Served) -> None:
        self.port, self.key = int(served.root.rpartition(":")[2]), served.connection.api_key

    def send(self, number: int, kind: str) -> int | None:
        """Send a request; return the status of its answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as link:
            body = {"model": "policy", "messages": [{"role": "user", "content": str(number)}], "temperature": 1.0}
            if kind == "another model":
                body["model"] = "gpt-4o"
            if kind == "an unknown tool":
                body["tools"] = [{"type": "web_search"}]
            if kind in ("streamed", "closes in mid-stream"):
                body["stream"] = True
            data = b"{" if kind == "no JSON" else json.dumps(body).encode()
            if kind == "a large body":
                data = b"x" * LARGE
            key = "wrong" if kind == "a wrong token" else self.key
            head = (
                f"POST /s/{number}/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                f"Authorization: Bearer {key}\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            if kind == "half a request":
                link.sendall(head.encode() + data[: len(data) // 2])
                return None
            try:
                link.sendall(head.encode() + data)
            except ConnectionError:  # a body that nobody wants to the end
                assert kind == "a large body"
            if kind == "never comes back":
                return None
            found = link.recv(64 if kind == "closes in mid-stream" else 1 << 20)
            while kind == "streamed" and (more := link.recv(1 << 20)):
                found += more
            if kind == "closes in mid-stream":
                return None
            assert kind != "streamed" or b"data: [DONE]" in found
            return int(found.split()[1])


@pytest.mark.slow
def test_a_thousand_requests_with_faults_leave_nothing_behind(tmp_path: Path) -> None:
    base = tool_base(tmp_path / "base")
    process, threads = psutil.Process(), set(threading.enumerate())
    sockets = len(process.net_connections())
    served = Served(**{"language.model": str(base)}).start()
    client, names = Client(served), list(KINDS)
    asked = [names[number % len(names)] for number in range(REQUESTS)]
    with ThreadPoolExecutor(32) as pool:
        heard = list(pool.map(client.send, range(REQUESTS), asked))
    for kind, status in zip(asked, heard, strict=True):
        assert status == KINDS[kind], kind
    assert client.send(REQUESTS, "right") == 200  # it serves as before
    counts = Counter(status for status in heard if status is not None)
    assert counts == {200: 200, 404: 100, 413: 100, 400: 200, 401: 100}
    began = time.monotonic()
    episodes = served.stop()
    assert time.monotonic() - began < 60
    by_session = {each["id"].partition(":")[0]: each["info"]["endpoint"] for each in episodes}
    for number, kind in enumerate(asked):
        if KINDS[kind] == 200:
            assert by_session[str(number)] == {"completions": 1, "edited": 0}, (number, kind)
        elif KINDS[kind] is not None and str(number) in by_session:
            assert "completions" not in by_session[str(number)]
    deadline = time.monotonic() + 60
    while set(threading.enumerate()) - threads and time.monotonic() < deadline:
        time.sleep(0.05)  # a thread of the loop's own pool ends with it
    assert set(threading.enumerate()) - threads == set()
    assert len(process.net_connections()) <= sockets
