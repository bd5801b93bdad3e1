"""What a person sees of a run: a live view on a terminal, plain lines elsewhere, warnings only when asked to be quiet.

All of it goes to stderr, so that stdout stays free for results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from evopipe.track.base import End, Event, Generation, Message, Progress, Sink, Start
from evopipe.track.words import clean, duration, ending, members, score


def console_sink(quiet: bool = False, stream: TextIO | None = None) -> Sink:
    """Return the sink that suits where the output goes.

    A terminal gets the live view (`NO_COLOR` is respected); a pipe, a file, a dumb terminal or a CI job (`CI` is set)
    gets one line at the start, one a generation, the messages, and one at the end.

    Args:
        quiet: write nothing but warnings.
        stream: where to write; stderr by default.
    """
    out = stream or sys.stderr
    if out is None:  # a process without a stderr: nobody listens
        return Silence()
    if quiet:
        return WarningSink(out)
    if _is_live(out, os.environ):
        from evopipe.track.view import LiveSink

        return LiveSink(out)
    return PlainSink(out)


def _is_live(stream: TextIO, env: Mapping[str, str]) -> bool:
    in_ci = env.get("CI", "").lower() not in ("", "0", "false")
    return stream.isatty() and not in_ci and env.get("TERM", "") not in ("", "dumb")


class Silence:
    """Writes nothing."""

    def emit(self, event: Event) -> None:
        """Forget the event."""

    def close(self) -> None:
        """Nothing to let go."""


class WarningSink:
    """Writes warnings, and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def emit(self, event: Event) -> None:
        """Write the event where it is a warning."""
        if isinstance(event, Message) and event.level == "warning":
            _write(self._stream, f"warning: {event.text}")

    def close(self) -> None:
        """Nothing to let go: the stream is the caller's."""


class PlainSink:
    """Writes one line for each event that matters in a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = "run"
        self._latest: Progress | None = None

    def emit(self, event: Event) -> None:
        """Write one event; of `Progress` only the latest is kept, for the line of the next generation."""
        match event:
            case Progress():
                self._latest = event
            case Start():
                self._stage = event.stage
                _write(self._stream, f"{event.stage}: {_start(event)}")
            case Generation():
                _write(self._stream, f"{self._stage}: {_generation(event, self._latest)}")
            case Message():
                _write(self._stream, f"{'warning' if event.level == 'warning' else self._stage}: {event.text}")
            case End():
                _write(self._stream, f"{self._stage}: {ending(event)}")

    def close(self) -> None:
        """Nothing to let go: the stream is the caller's."""


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    line = clean(text).encode(encoding, errors="replace").decode(encoding)
    stream.write(line + "\n")
    stream.flush()


def _start(event: Start) -> str:
    text = f"{event.env}, {event.algo}, {members(event.members)}, {event.max_steps:,} steps each"
    return text if event.resumed_step is None else f"{text}, goes on at step {event.resumed_step:,}"


def _generation(event: Generation, latest: Progress | None) -> str:
    parts = [
        f"generation {event.generation}",
        f"step {event.step:,}" + (f" of {latest.max_steps:,}" if latest else ""),
        f"best {score(event.best)}",
        f"mean {score(event.mean)}",
        f"elite {score(event.elite)} (id {event.elite_id})",
    ]
    if latest:
        parts.append(f"{latest.steps_per_second:,.0f} steps/s")
        if latest.seconds_left is not None:
            parts.append(f"{duration(latest.seconds_left)} left")
    return ", ".join(parts)
