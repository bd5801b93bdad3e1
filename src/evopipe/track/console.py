"""What a person sees of a run: a live view on a terminal, plain lines elsewhere, warnings only when asked to be quiet.

All of it goes to stderr, so that stdout stays free for results.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from evopipe.track.events import End, Event, Generation, Message, Progress, Sink, Start
from evopipe.track.formats import duration, score


def console_sink(quiet: bool = False, stream: TextIO | None = None) -> Sink:
    """Return the sink that suits where the output goes.

    A terminal gets the live view (`NO_COLOR` is respected); a pipe, a file, a CI job (`CI` is set) and a terminal that
    is dumb or knows ASCII only get one line at the start, one a generation, the messages, and one at the end.

    Args:
        quiet: write nothing but warnings.
        stream: where to write; stderr by default.
    """
    out = stream or sys.stderr  # None in a process without a stderr
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    if out is None or quiet or in_ci or os.environ.get("TERM", "") in ("", "dumb") or not out.isatty():
        return PlainSink(out, quiet)
    if not out.encoding.lower().startswith("utf"):
        return PlainSink(out)
    from evopipe.track.view import LiveSink

    return LiveSink(out)


class PlainSink:
    """Writes one line for each event that matters in a log.

    Args:
        stream: where to; None: nobody listens. It is the caller's, and stays open.
        quiet: write warnings only.
    """

    def __init__(self, stream: TextIO | None, quiet: bool = False) -> None:
        self._stream, self._quiet = stream, quiet
        self._stage = "run"
        self._latest: Progress | None = None

    def emit(self, event: Event) -> None:
        """Write one event; of `Progress` only the latest is kept, for the line of the next generation."""
        if isinstance(event, Progress):
            self._latest = event
        elif isinstance(event, Message) and event.level == "warning":
            self._write(f"warning: {event.text}")
        elif not self._quiet:
            self._stage = event.stage if isinstance(event, Start) else self._stage
            self._write(f"{self._stage}: {self._sentence(event)}")

    def close(self) -> None:
        """Nothing is held open."""

    def _write(self, text: str) -> None:
        if self._stream is not None:
            encoding = self._stream.encoding or "utf-8"
            self._stream.write(clean(text).encode(encoding, errors="replace").decode(encoding) + "\n")
            self._stream.flush()

    def _sentence(self, event: Start | Generation | Message | End) -> str:
        match event:
            case Start():
                text = f"{event.env}, {event.algo}, {members(event.members)}, {event.max_steps:,} steps each"
                return text if event.resumed_step is None else f"{text}, goes on at step {event.resumed_step:,}"
            case Generation():
                step = f"step {event.step:,}" + (f" of {self._latest.max_steps:,}" if self._latest else "")
                scores = f"best {score(event.best)}, mean {score(event.mean)}, elite {score(event.elite)}"
                text = f"generation {event.generation}, {step}, {scores} (id {event.elite_id})"
                return ", ".join([text, *pace(self._latest)])
            case Message():
                return event.text
            case End():
                return ending(event)


def members(count: int) -> str:
    """Return "1 member", "8 members"."""
    return f"{count} member{'' if count == 1 else 's'}"


def pace(event: Progress | None) -> list[str]:
    """Return how fast a run is, and how long it will take, where that is known."""
    if event is None:
        return []
    left = [] if event.seconds_left is None else [f"{duration(event.seconds_left)} left"]
    return [f"{event.steps_per_second:,.0f} steps/s", *left]


def ending(event: End) -> str:
    """Return the last sentence of a run."""
    steps = f"{event.env_steps:,} training and {event.eval_steps:,} evaluation steps"
    return f"finished: {event.reason}, {duration(event.seconds)}, {steps}"


def clean(text: str) -> str:
    """Return a text on one line and without control characters, which could move a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)
