"""What a run tells about itself, and how it leaves: sideways, without ever raising into the run or holding it up.

The loop makes *events*, a `Tracker` hands each one to its *sinks* (console, files, experiment trackers). A sink that
fails is dropped after one line on stderr; a sink that is slow is wrapped in `Threaded`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

# Seconds that closing may take, so that a stuck sink cannot keep a finished run from ending.
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Start:
    """A run begins, or goes on.

    Attributes:
        max_steps: environment steps of each member.
        resumed_step: the step of each member at which a saved run goes on; None for a fresh one.
    """

    stage: str
    env: str
    algo: str
    members: int
    max_steps: int
    resumed_step: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run is; may come thousands of times a second.

    Attributes:
        step: environment steps of each member.
        env_steps: training steps of the whole population.
        eval_steps: evaluation steps of the whole population.
        phase: what is being done, one word: `learning`, `evaluating`, ...
        steps_per_second: training steps of the whole population per second.
        seconds_left: estimate until `max_steps`; None where there is none yet.
    """

    generation: int
    step: int
    max_steps: int
    env_steps: int
    eval_steps: int
    phase: str
    steps_per_second: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member at the end of a generation, as it was evaluated.

    Attributes:
        id: its name in the lineage; `parent` is the id it descends from.
        fitness: its score; minus infinity where it is unhealthy.
        mutation: how it was made from its parent: `none`, `architecture`, `parameters`, `activation`, `rl_hp`.
        change: what that changed, from what to what; empty for `none`.
        architecture: its network in short, for example `128-128 · 64`.
        hyper: its RL hyper-parameters.
        loss: its last loss; NaN before it learned.
    """

    slot: int
    id: int
    parent: int | None
    fitness: float
    mutation: str
    change: str
    architecture: str
    activation: str
    hyper: dict[str, float]
    healthy: bool
    loss: float


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation was trained and evaluated.

    Attributes:
        step: environment steps of each member; `env_steps` and `eval_steps` are totals of the population.
        seconds: wall-clock time of this generation.
        best: highest fitness of this generation; `mean`: the mean over its healthy members.
        elite: the best confirmed score so far; `elite_id`: whose it is.
    """

    generation: int
    step: int
    env_steps: int
    eval_steps: int
    seconds: float
    members: tuple[MemberRow, ...]
    best: float
    mean: float
    elite: float
    elite_id: int


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence for the person who watches."""

    level: Literal["info", "warning"]
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The run is over.

    Attributes:
        reason: why, in words that follow "finished:".
        seconds: wall-clock time of this process's part.
        env_steps: training steps of the whole population; `eval_steps`: its evaluation steps.
    """

    reason: str
    seconds: float
    env_steps: int
    eval_steps: int


Event = Start | Progress | Generation | Message | End


class Sink(Protocol):
    """Where events go."""

    def emit(self, event: Event) -> None:
        """Take one event. May raise: the sink is then dropped."""

    def close(self) -> None:
        """Flush and let go. Called once; no event follows."""


class Tracker:
    """Hands events to sinks. Neither method ever raises an `Exception`, nor blocks longer than its sinks do."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = list(sinks)

    def emit(self, event: Event) -> None:
        """Hand one event to every sink that still works."""
        self._sinks = [sink for sink in self._sinks if _attempt(sink, event)]

    def close(self) -> None:
        """Close all sinks; further events go nowhere."""
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            try:
                sink.close()
            except Exception as error:
                _warn(f"{_name(sink)} could not be closed ({_reason(error)})")

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Threaded:
    """Runs a slow sink in a daemon thread behind a bounded queue.

    A full queue drops its oldest event, so `emit` never waits. Closing waits at most a second for what is queued.

    Args:
        sink: the sink; it is used by the thread only.
        size: events that may wait.
    """

    def __init__(self, sink: Sink, size: int = 1_000) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        self.dropped = 0
        self._sink = sink
        self._queue: deque[Event] = deque()
        self._size = size
        self._closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"evopipe-{_name(sink)}", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Queue one event, at the cost of the oldest where the queue is full."""
        with self._wake:
            if len(self._queue) >= self._size:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(event)
            self._wake.notify()

    def close(self) -> None:
        """Let the thread finish, for at most a second; tell on stderr what was lost."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(_CLOSE_SECONDS)
        lost = self.dropped + len(self._queue)
        if lost:
            _warn(f"{_name(self._sink)} was too slow and missed {lost} events")

    def _work(self) -> None:
        while (event := self._next()) is not None:
            if not _attempt(self._sink, event):
                self._discard()
                return
        try:
            self._sink.close()
        except Exception as error:
            _warn(f"{_name(self._sink)} could not be closed ({_reason(error)})")

    def _next(self) -> Event | None:
        with self._wake:
            while not self._queue and not self._closing:
                self._wake.wait()
            return self._queue.popleft() if self._queue else None

    def _discard(self) -> None:
        with self._wake:  # Nobody reads any more: what comes now is forgotten.
            self._queue = deque(maxlen=0)


def _attempt(sink: Sink, event: Event) -> bool:
    try:
        sink.emit(event)
    except Exception as error:
        _warn(f"{_name(sink)} is off for the rest of this run ({_reason(error)})")
        with contextlib.suppress(Exception):
            sink.close()
        return False
    return True


def _name(sink: Sink) -> str:
    return type(sink).__name__


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _warn(text: str) -> None:
    with contextlib.suppress(Exception):  # stderr itself may be closed.
        print(f"warning: {text}", file=sys.stderr, flush=True)
