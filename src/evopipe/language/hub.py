"""Access to the Hugging Face hub, with a time limit and without progress bars.

Without a network, the hub's library would try for minutes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

REACH_SECONDS = 8.0


def reach(ask: Callable[[], object], seconds: float = REACH_SECONDS) -> str | None:
    """Call `ask`, which sends a request to the hub, in a thread with a time limit of `seconds`. Return None if it
    succeeded, else why it failed."""
    said: list[str | None] = [f"no answer within {seconds:g} s"]

    def run() -> None:
        try:
            ask()
            said.append(None)
        except Exception as error:
            said.append(first_line(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return said[-1]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters; the error's type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextlib.contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Silence a library's progress bars and warnings while the context is open. `logging` is the library's module
    `utils.logging`."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
