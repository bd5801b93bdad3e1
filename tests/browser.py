"""A real browser for tests: headless Chromium, driven over its debugging pipe, with the network taken note of."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser on PATH, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One Chromium with one page. Collects what the page's console says and every address it asks for."""

    def __init__(self, program: str, profile: Path) -> None:
        (their_in, out), (inp, their_out) = os.pipe(), os.pipe()
        # The browser reads from 3 and writes to 4; ours must not be these when they are put there.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (their_in, their_out)]
        os.close(their_in), os.close(their_out)
        null = os.open(os.devnull, os.O_RDWR)
        self._pid = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            os.environ,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)),
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
            ],
            setpgroup=0,
        )
        for fd in (*high, null):
            os.close(fd)
        self._in, self._out, self._rest, self._count = inp, out, b"", 0
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session: str | None = self.call("Target.attachToTarget", targetId=target, flatten=True, session=None)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, session: str | None = "page", seconds: float = 60, **params: Any) -> Any:
        """Send a command and return its result; what happens meanwhile is noted."""
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(seconds)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, page: Path, width: int, height: int = 900, dark: bool = False, still: bool = False) -> None:
        """Load a file in a window of that size."""
        self.console.clear(), self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        features += [{"name": "prefers-reduced-motion", "value": "reduce"}] if still else []
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + 60
        while self.run("document.readyState") != "complete":
            if time.monotonic() > until:
                raise TimeoutError(f"{page} did not load")
            time.sleep(0.02)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def picture(self, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def close(self) -> None:
        """End the browser and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in), os.close(self._out)

    def _next(self, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 16)
            if not data:
                raise ConnectionError("the browser is gone")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append(f"{params['type']}: {params['args']}")
        elif method == "Runtime.exceptionThrown":
            self.console.append(f"exception: {params['exceptionDetails']}")
        elif method == "Log.entryAdded":
            self.console.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextlib.contextmanager
def opened(program: str) -> Iterator[Browser]:
    """A browser that goes with the block, and its profile too."""
    with tempfile.TemporaryDirectory(prefix="evopipe-browser-", ignore_cleanup_errors=True) as profile:
        browser = Browser(program, Path(profile))
        try:
            yield browser
        finally:
            browser.close()
