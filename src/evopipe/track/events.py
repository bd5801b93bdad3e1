"""Events of a run, and their way to console, log and trackers. They never raise an error into the run or delay it.

The training loop makes *events*. A `Tracker` passes each to its *sinks*: the console, and the log, from which the
outbox (`track.outbox`) feeds the experiment trackers. A sink that fails is dropped after one line on stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

from pydantic import BeforeValidator, TypeAdapter
from pydantic_core import to_json

if TYPE_CHECKING:
    from evopipe.mutations import Mutation
    from evopipe.searchers.history import Record

_RETURN = "charts/episodic_return"  # the signal with the mean return of training episodes
# JSON knows no NaN and no infinity: the log has null there.
_Float = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


@dataclass(frozen=True, slots=True)
class Start:
    """The event sent when a run starts or resumes.

    Attributes:
        stage: the name of the stage.
        env: the environment's id, or the task of language models.
        algo: the algorithm's name.
        members: the number of members.
        max_steps: environment steps of each member, in total.
        resumed_step: environment steps of each member at which a saved run continues; None for a new run.
        resumed_env_steps: the population's training steps until then; None for a new run.
        budget: the most steps that the population may take, in training and evaluation together. The run ends early
            when they are spent. None if there is no budget.
    """

    stage: str
    env: str
    algo: str
    members: int
    max_steps: int  # environment steps of each member
    resumed_step: int | None = None  # the step of each member at which a saved run goes on; None for a fresh one
    resumed_env_steps: int | None = None  # training steps of the whole population by then
    budget: int | None = None  # steps of the whole population, of training and evaluation, that end the run earlier


@dataclass(frozen=True, slots=True)
class Progress:
    """The event that reports a run's progress within a generation; it may come thousands of times a second.

    Attributes:
        generation: the generation's number.
        step, max_steps: environment steps of each member so far, and in total.
        env_steps, eval_steps: the population's steps so far, of training and of evaluation.
        phase: one word for what the run does, such as `learning` or `evaluating`.
        steps_per_second: training steps of the population per second.
        seconds_left: an estimate of the time until `max_steps`; None if there is none yet.
        target: the score that ends the run earlier; None if there is none.
    """

    generation: int
    step: int  # environment steps of each member, and how many it will be
    max_steps: int
    env_steps: int  # training steps of the whole population, and its evaluation steps
    eval_steps: int
    phase: str  # what is being done, one word: `learning`, `evaluating`, ...
    steps_per_second: _Float  # training steps of the whole population
    seconds_left: float | None  # estimate until `max_steps`; None where there is none yet
    target: float | None = None  # the score that ends the run earlier, if one does


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Leave out numbers that are not there, or not finite: no tracker could draw them."""
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class MemberRow:
    """The part of a `Generation` event about one member.

    Attributes:
        slot: the member's place in the population.
        id, parent: the id of the member, and that of its parent; None for a member with initial weights.
        fitness: the fitness; −∞ if the member diverged.
        mutation: the kind of the mutation that made the member, such as `rl_hp`.
        change: what the mutation changed, as text; empty if nothing changed.
        architecture: a short text with the network, such as `128+128|64`.
        activation: the activation function.
        hyper: the hyper-parameters that may mutate, by name.
        healthy: False if the member diverged.
        loss: the last loss; NaN before the member has learned.
        steps: environment steps that the member has trained for; None if all members have trained equally long.
        signals: the training signals by name, each as a pair (mean over the generation, last value).
    """

    slot: int
    id: int  # its name in the lineage, and of the member that it descends from
    parent: int | None
    fitness: _Float  # minus infinity if it is unhealthy
    mutation: str  # how it was made: `none`, `architecture`, `parameters`, `activation`, `rl_hp`
    change: str  # what that changed, from what to what; empty for `none`
    architecture: str  # its network in short, for example `128+128|64`
    activation: str
    hyper: dict[str, _Float]  # those that evolve
    healthy: bool
    loss: _Float  # its last one; NaN before it learned
    steps: int | None = None  # that it has lived, where others have lived more or less
    signals: dict[str, tuple[_Float, _Float]] = field(default_factory=dict)  # by name, mean and last of the generation

    def metrics(self) -> dict[str, float]:
        """Return the member's numbers by the names that trackers show.

        These are its finite numbers, such as `fitness` and `hyper/lr`, and the means of all its training signals.
        """
        own = {"fitness": self.fitness, "loss": self.loss, "healthy": self.healthy, "id": self.id}
        hyper = {f"hyper/{name}": value for name, value in self.hyper.items()}
        means = {name: mean for name, (mean, _) in self.signals.items()}  # a NaN says that something went wrong
        return {**means, **_finite({**own, "parent": self.parent, "steps": self.steps, **hyper})}


@dataclass(frozen=True, slots=True)
class Met:
    """The part of a `Generation` event about one opponent of self-play.

    Attributes:
        id: the id of the member that the opponent is.
        generation: the generation after which it joined the league.
        arrays: the hash by which the opponent's file is named.
    """

    id: int
    generation: int
    arrays: str


@dataclass(frozen=True, slots=True)
class Generation:
    """The event sent when a generation was trained and evaluated.

    Attributes:
        generation: the generation's number.
        step: environment steps so far of a single member that trained in the generation.
        env_steps, eval_steps: environment steps of the whole population so far: those of training, and those of
            evaluations.
        seconds: the duration of the generation.
        members: the members that trained in the generation.
        best, mean: the highest and the mean fitness of the generation. The mean leaves out members that diverged.
        elite, elite_id: the score of the best member of the run so far, and the member's id.
        curriculum: the keyword arguments of the environments in which members trained; None without a curriculum.
        opponents: the earlier members against whom members trained, the oldest first; None without self-play.
    """

    generation: int
    step: int  # environment steps of each member, or of those who lived last
    env_steps: int  # training steps of the whole population, and its evaluation steps
    eval_steps: int
    seconds: _Float  # wall-clock time of this generation
    members: tuple[MemberRow, ...]  # who lived in it: all, or some of them while others waited
    best: _Float  # highest fitness of this generation, and the mean over its healthy members
    mean: _Float
    elite: _Float  # the best score so far, and whose it is
    elite_id: int
    curriculum: dict[str, Any] | None = None
    opponents: tuple[Met, ...] | None = None

    @classmethod
    def of(
        cls,
        record: Record,
        births: Mapping[int, Mutation],
        evolve: Collection[str],
        seconds: float,
        steps: tuple[int, int],
        losses: Sequence[float] = (),
        signals: Mapping[int, Mapping[str, tuple[float, float]]] | None = None,
    ) -> Generation:
        """Return the event of a generation, made from the generation's record in the lineage.

        Args:
            record: the generation's record in the lineage.
            births: the mutations that made the members, by slot (place in the population).
            evolve: names of the hyper-parameters to report.
            seconds: the duration of the generation.
            steps: the population's environment steps so far, of training and of evaluation.
            losses: the members' losses by slot; empty if they are not known.
            signals: the members' training signals by slot and name, each as a pair (mean over the generation, last
                value); None if they are not known.
        """
        rows = []
        for m in record.members:
            born, loss = births[m.slot], losses[m.slot] if losses else math.nan
            hyper = {name: m.hyper[name] for name in sorted(evolve)}
            made = born.kind, born.describe(), m.arch.describe(), m.arch.activation
            told = dict((signals or {}).get(m.slot, {}))
            rows.append(MemberRow(m.slot, m.id, m.parent, m.fitness, *made, hyper, m.healthy, loss, m.steps, told))
        scores = [m.fitness for m in record.members if math.isfinite(m.fitness)]
        best, mean = (max(scores), sum(scores) / len(scores)) if scores else (math.nan, math.nan)
        elite, elite_id = (record.champion.score, record.champion.id) if record.champion else (math.nan, -1)
        env_steps, eval_steps = steps
        met = None if record.opponents is None else tuple(Met(**dataclasses.asdict(each)) for each in record.opponents)
        return cls(
            record.generation, record.step, env_steps, eval_steps, seconds, tuple(rows), best, mean, elite, elite_id,
            record.curriculum, met,
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """Return the numbers that trackers show of the population, by their names there, such as `fitness/best`.

        Numbers that are not finite are left out.
        """
        apart = any(row.steps is not None for row in self.members)
        taught = {f"curriculum/{k}": v for k, v in (self.curriculum or {}).items() if isinstance(v, int | float)}
        named = {
            "fitness/best": self.best,
            "fitness/mean": self.mean,
            "fitness/elite": self.elite,
            "population/generation": self.generation,
            "population/healthy": sum(row.healthy for row in self.members),
            "population/elite_id": self.elite_id,
            "population/living": len(self.members) if apart else None,
            "steps/each_member": None if apart else self.step,
            "steps/evaluation": self.eval_steps,
            "time/generation_seconds": self.seconds or None,
            **taught,
            **self._self_play(),
        }
        return _finite(named)

    def _self_play(self) -> dict[str, float | None]:
        """Return how members did in training, against the league and the fixed opponent; empty without self-play."""
        if self.opponents is None:
            return {}
        returns = [row.signals[_RETURN][0] for row in self.members if row.healthy and _RETURN in row.signals]
        return {
            "self_play/opponents": len(self.opponents),
            "self_play/newest_generation": self.opponents[-1].generation if self.opponents else None,
            "self_play/training_return": sum(returns) / len(returns) if returns else None,
        }


@dataclass(frozen=True, slots=True)
class Message:
    """The event that carries a sentence for the user.

    Attributes:
        level: whether the sentence is information or a warning.
        text: the sentence.
    """

    level: Literal["info", "warning"]
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The event sent when a run has ended.

    Attributes:
        reason: the reason, in words that follow "finished:".
        seconds: the duration of this process's part of the run.
        env_steps, eval_steps: the population's steps, of training and of evaluation.
    """

    reason: str  # why, in words that follow "finished:"
    seconds: _Float  # wall-clock time of this process's part
    env_steps: int  # training steps of the whole population, and its evaluation steps
    eval_steps: int


Event = Start | Progress | Generation | Message | End
_KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__.lower(): TypeAdapter(kind) for kind in (Start, Progress, Generation, Message, End)
}


class _Sink(Protocol):
    """Where events go. `emit` may raise: the sink is then dropped. `close` is called once, at the end."""

    def emit(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Tracker:
    """An object that passes a run's events to sinks: console and log.

    The methods never raise an `Exception`, because a failing sink must not end a run. A call takes as much time as the
    sinks take.

    Args:
        sinks: the sinks, objects with the methods `emit` and `close`.
    """

    def __init__(self, sinks: Iterable[_Sink] = ()) -> None:
        self._sinks = list(sinks)

    def emit(self, event: Event) -> None:
        """Pass an event to every sink. A sink that raises is closed and gets no further events."""
        for sink in list(self._sinks):
            try:
                sink.emit(event)
            except Exception as error:
                _warn(sink, "is off for the rest of this run", error)
                self._sinks.remove(sink)
                with contextlib.suppress(Exception):
                    sink.close()

    def close(self) -> None:
        """Close all sinks; later events are ignored."""
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            try:
                sink.close()
            except Exception as error:
                _warn(sink, "could not be closed", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _warn(sink: _Sink, what: str, error: Exception) -> None:
    with contextlib.suppress(Exception):  # stderr itself may be closed.
        text = f"warning: {type(sink).__name__} {what} ({type(error).__name__}: {error})"
        print(text, file=sys.stderr, flush=True)


class JsonlSink:
    """A sink that appends events to the log file `path`, one JSON object per line.

    Each JSON object has `event`, `time` (seconds since 1970), and the event's fields. Numbers that are not finite
    become null. A `Progress` event less than `progress_seconds` after the one before is left out. If the disk is full,
    lines are lost, but the run continues, and writing continues once there is space.
    """

    def __init__(self, path: Path, progress_seconds: float = 1.0) -> None:
        self._path, self._every = path, progress_seconds
        self._file: io.FileIO | None = None
        self._torn = False  # the file ends within a line
        self._next_progress = -math.inf

    def emit(self, event: Event) -> None:
        if isinstance(event, Progress):
            if time.monotonic() < self._next_progress:
                return
            self._next_progress = time.monotonic() + self._every
        if self._file is None:
            self._file = self._open()
        fields = {"event": type(event).__name__.lower(), "time": round(time.time(), 3), **dataclasses.asdict(event)}
        line = b"\n" * self._torn + to_json(fields, inf_nan_mode="null") + b"\n"
        self._torn = True
        with contextlib.suppress(OSError):
            self._torn = self._file.write(line) < len(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> io.FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered bytes: a buffer would keep a line that did not fit and fail again at every later write.
        file = io.FileIO(self._path, "a+")
        if file.seek(0, os.SEEK_END):  # A killed run may have left half a line.
            file.seek(-1, os.SEEK_END)
            self._torn = file.read(1) != b"\n"
        return file


def read_events(path: Path) -> Iterator[tuple[float, Event]]:
    """Yield the events of a log file as (seconds since 1970, event), without lines that `read_event` cannot read."""
    with path.open("rb") as stream:
        yield from filter(None, map(read_event, stream))


def read_event(line: bytes) -> tuple[float, Event] | None:
    """Parse one line of a log as (seconds since 1970, event). A number that was not finite becomes NaN.

    The result is None if the line is incomplete, because the disk was full or the process killed, or if another version
    wrote it.
    """
    try:
        fields: Any = json.loads(line)
        return float(fields.pop("time")), _KINDS[fields.pop("event")].validate_python(fields)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
