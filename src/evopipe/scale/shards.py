"""The regime (training loop) of a population in shards. Each shard trains some members, in a process of its own.

In a generation, members are sent out, every shard acts and learns, fitness and members return, and the run evolves
them. Nothing else is exchanged. A shard whose members all wait is told so, and takes no step. A member's random draws
depend on its own key alone, so no bit depends on the number of shards. See `docs/decisions/0030-shards.md`.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

import evopipe.errors
from evopipe.core.cohort import Cohort, dissolve
from evopipe.core.member import Member
from evopipe.errors import ResourceError
from evopipe.regimes.measures import Measures
from evopipe.regimes.samples import Samples
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.spec import Spec
from evopipe.scale.changes import fold
from evopipe.scale.shard import Make, Shard, pack, split_message, state_of, unpack
from evopipe.storage import members as stored
from evopipe.storage.tensors import dump_tensors, load_tensors

_LAP = 1.0  # seconds that shards go on before the driver looks at signals and shows how far they are
_LOOK = 0.1  # seconds that it listens to one shard at a time
_LATE = 3.0  # times as long as the median for a generation: a shard that is so late is told of, once
_LONG = 5.0  # seconds of a generation below which nobody minds
_DEATHS = 3  # of one shard in a generation: then it dies of what it does
_FOLDS = 16  # states of a shard that the driver holds as what changed from one to the next


class Lost(Exception):
    """The exception raised when a shard's process has ended; its text says how the process ended."""


class ShardEngine(Protocol):
    """The protocol of an engine, which runs one process for each shard, sends messages to the shards and receives the
    answers.

    `scale.shard.Shard` executes the messages.
    """

    @property
    def room(self) -> int:
        """The number of shards for which the engine has resources."""

    def start(self, shard: int) -> None:
        """Start a shard's process, or replace one that has ended.

        Raises:
            Lost: the process cannot be started.
        """

    def send(self, shard: int, message: bytes) -> None:
        """Send a message to a shard. The next call of `receive` for the shard returns the answer."""

    def receive(self, shard: int, seconds: float, stopped: Callable[[], bool]) -> bytes | None:
        """Return a shard's answer; None if it has not arrived after `seconds`.

        If the engine runs the shard in this process, it passes `stopped` to the shard. The shard raises `Stopped` when
        this function returns True. Shards in other processes do not use `stopped`.

        Raises:
            Lost: the shard's process has ended, so that no answer will arrive.
        """

    def close(self) -> None:
        """End the processes of all shards."""


class InProcess:
    """The engine that runs all shards in this process, one after another.

    This engine can be used to vary the number of shards on one machine, and so to check that no result depends on that
    number. `make` is a function that makes a shard's configuration, regime (training loop) and clock from the first
    message to this shard.
    """

    room = 1

    def __init__(self, make: Make) -> None:
        self._make = make
        self._shards: dict[int, Shard] = {}
        self._told: dict[int, bytes] = {}

    def start(self, shard: int) -> None:
        self._shards[shard] = Shard(self._make)

    def send(self, shard: int, message: bytes) -> None:
        self._told[shard] = message

    def receive(self, shard: int, seconds: float, stopped: Callable[[], bool]) -> bytes | None:
        return self._shards[shard].answer(self._told.pop(shard), stopped)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


class Shards:
    """The regime (see `Regime`) of a run whose members are divided into shards, each in a process of its own.

    One call of `advance` lets every shard take several ticks (steps of all environments).

    Args:
        spec: the run's configuration.
        clock: the run's clock.
        slots: the range of slots (places in the population) of each shard, in order.
        begin: the first message to each shard.
        engine: the engine that runs the shards' processes.

    Raises:
        ResourceError: a shard died several times.
        EvopipeError: a shard could not make its regime.
    """

    def __init__(
        self,
        spec: Spec,
        clock: Clock,
        slots: Sequence[range],
        begin: Sequence[Mapping[str, Any]],
        engine: ShardEngine,
    ) -> None:
        self.spec, self.clock, self.slots, self.engine, self.whole = spec, clock, list(slots), engine, True
        self.said: list[str] = []  # what happened to shards, to be shown once
        self._bytes = 0  # to and fro
        self._busy, self._idle, self._asking = 0.0, 0.0, 0.0  # seconds of the slowest, of waiting for it, and of both
        self._began, self._generation = 0.0, 0  # when members first went out or were restored, and in which generation
        self.cohorts: Sequence[Cohort] = []
        self._begin = [pack({"do": "begin", **about}) for about in begin]
        self._kept = [b"" for _ in self.slots]  # what each one was when it last told, as a message without its state
        self._states: list[list[bytes]] = [[] for _ in self.slots]  # that state, as changes that follow each other
        self._told = [0] * len(self.slots)  # how often each one has told it
        self._since: list[list[bytes]] = [[] for _ in self.slots]  # what it was told after that
        self._parents: list[int] | None = None  # of members that have not gone out yet; empty: all were replaced
        self._new: list[int] = []  # slots of those among them that are new trials
        self._waiting = False  # whether there are such members
        self._living: list[list[int]] = [[] for _ in self.slots]  # each one's slots of members that live
        # Slots of members who have told nothing of this generation yet: it may have no tick for them.
        self._silent: set[int] = set()
        self._clocks = [Clock.of(spec, len(own)) for own in self.slots]  # each one's, when it last answered
        self._torn: set[int] = set()  # of those who may have taken note of an evaluation that was given up
        self._deaths: Counter[int] = Counter()
        self._ticks = 1  # of a lap
        self._took = [0.0] * len(self.slots)  # seconds of each for this generation
        self._told_late: set[int] = set()
        for shard in range(len(self.slots)):
            engine.start(shard)
        told = self._ask(dict(enumerate(self._begin)))
        about = told[0][0]
        self.warm, self.threshold, self.remarks = about["warm"], about["threshold"], about["remarks"]
        self._measured, self._sampled = about["measured"], about["sampled"]

    @property
    def measures(self) -> Measures | None:
        """The means of every member in each generation, such as its mean loss, collected from the shards.

        The value is None if the shards' regimes have no attribute `measures`.
        """
        if self._measured is None:
            return None
        found = Measures(self.clock.members, self._measured)
        self._tell_all()
        tensors = [state_of(self._restoring(shard))["measures"] for shard in range(len(self.slots))]
        rows = max(len(tensor) for tensor in tensors)
        padded = [torch.cat((t, t.new_zeros(rows - len(t), *t.shape[1:]))) for t in tensors]
        found.restore({"measures": torch.cat(padded, dim=1)})
        return found

    @property
    def samples(self) -> Samples | None:
        """The completions that are kept to be read, collected from the shards; None if the shards' regimes keep
        none."""
        if not self._sampled:
            return None
        found = Samples()
        self._tell_all()
        for shard, own in enumerate(self.slots):
            found.add(state_of(self._restoring(shard)), own.start)
        return found

    def first(self, member: Member) -> Member:
        shard = self._shard_of(member.slot)
        about, tensors = self._ask({shard: self._message(shard, {"do": "first"}, [member])})[shard]
        return self._back(shard, about, tensors)[0]

    def inherit(self, parents: Sequence[int] | None) -> None:
        self._parents = [] if parents is None else list(parents)

    def renew(self, slots: Sequence[int]) -> None:
        self._new = list(slots)

    def ended(self) -> np.ndarray:
        """Return, for each of the P slots (places in the population), the mean return of the training episodes that
        ended in this generation, `[P]`.

        The value is NaN for a slot without such an episode.
        """
        self._let_begin()
        told = self._ask({shard: pack({"do": "ended"}) for shard in range(len(self.slots))})
        means = np.concatenate([tensors["means"].numpy() for _, (_, tensors) in sorted(told.items())])
        means[list(self._silent)] = np.nan  # their shard still has those of a generation before
        return means

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        """Return, for each of these slots (places in the population), the training signals of this generation by name,
        each as a pair (mean over the generation, last value).

        The shards sent the signals with their states at the end of the generation.
        """
        told: list[dict[str, Any]] = []
        for own, kept in zip(self.slots, self._kept, strict=True):
            told += unpack(kept)[0]["signals"] if kept else [{}] * len(own)
        heard = ({} if slot in self._silent else told[slot] for slot in slots)
        return [{name: (float(mean), float(last)) for name, (mean, last) in each.items()} for each in heard]

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        self.cohorts, self._waiting = cohorts, True
        living = {slot for cohort in cohorts for slot in cohort.slots}
        self._living = [[slot for slot in own if slot in living] for own in self.slots]
        self._silent |= living

    def advance(self, most: int = 1) -> None:
        """Let every shard train for about a second, but not beyond the end of the generation. `most` has no effect.

        The number of ticks (steps of all environments) for the next call is estimated from the time that this call
        took.
        """
        clock, began = self.clock, time.perf_counter()
        left = clock.generation_ticks - clock.here
        ticks = min(left, self._ticks)
        with self._counted():
            self._go_on(clock.tick + ticks, state=ticks == left)
        seconds = (time.perf_counter() - began) / ticks
        self._ticks = max(1, min(2 * ticks, int(_LAP / max(seconds, 1e-9))))

    def _go_on(self, tick: int, state: bool, everybody: bool = False) -> None:
        """Let members live up to a tick, those of the last `adopt`, and tell their shards' state.

        `everybody`: the other shards tell theirs too, if anything has changed there.
        """
        messages, members, clock = {}, self._going_out(), self.clock
        if not clock.broken_here:  # it is another generation; or too much was broken, and was mended
            for each in self._clocks:
                each.broken_here = 0
        for shard, (own, living) in enumerate(zip(self.slots, self._living, strict=True)):
            asked = state and (bool(living) or everybody)
            if not (self._waiting or living or (asked and self._since[shard])):
                continue
            about: dict[str, Any] = {"do": "go on", "tick": tick if living else 0}
            about |= {"broken": self._clocks[shard].broken_here, "after": self._told[shard] if asked else None}
            if self._waiting:
                known = {name: getattr(clock, name) for name in ("generation", "tick", "here", "each")}
                about |= {"clock": {**known, "living": len(living)}, "members": [], "parents": None}
                if self._parents is not None:  # a parent elsewhere is nobody here
                    about["parents"] = [p - own.start if p in own else -1 for p in self._parents[own.start : own.stop]]
                about["new"] = [slot - own.start for slot in self._new if slot in own]
            messages[shard] = self._message(shard, about, [members[slot] for slot in living if slot in members])
        if not messages:
            return
        told = self._ask(messages, record=True, refuse=False)
        self._waiting, self._parents, self._new = False, None, []
        lives = [clock for clock, living in zip(self._clocks, self._living, strict=True) if living]
        # Where a shard's environment failed it stands before the others, and catches up when it goes on.
        before, clock.tick, clock.here = clock.tick, min(c.tick for c in lives), min(c.here for c in lives)
        clock.ticks += clock.tick - before
        for name in ("env_steps", "broken", "broken_here"):
            setattr(clock, name, sum(getattr(c, name) for c in self._clocks))
        clock.rewarded = any(c.rewarded for c in self._clocks)
        self.whole = all(about["whole"] for about, _ in told.values())
        for about, _ in told.values():
            _raise(about)
        if state:
            self._take({shard: each for shard, each in told.items() if self._living[shard]})
            self._silent.difference_update(*(self._living[shard] for shard in told))
        for shard, (about, _) in told.items():
            self._took[shard] += about["seconds"]
        if clock.generation_over:
            everybody_lives = sum(map(len, self._living)) == clock.members  # else shards have unlike work
            for shard, sentence in slow_shards(self._took).items() if everybody_lives else ():
                if shard not in self._told_late:
                    self._told_late.add(shard)
                    self.said.append(sentence)
            self._took = [0.0] * len(self.slots)

    def _let_begin(self) -> None:
        """Send out members that are still to go out, before any tick of theirs."""
        if self._waiting:
            self._go_on(self.clock.tick, state=False)

    def _tell_all(self) -> None:
        """Let all shards tell their state that have changed since they last did."""
        if self._waiting or any(self._since):
            self._go_on(self.clock.tick, state=True, everybody=True)

    def _take(self, told: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Tensor]]]) -> None:
        """Bring the run's cohorts, in place, to where the shards' members are."""
        members = [m for shard, (about, tensors) in sorted(told.items()) for m in self._back(shard, about, tensors)]
        losses = torch.cat([tensors["losses"] for _, (_, tensors) in sorted(told.items())])
        places = {member.slot: place for place, member in enumerate(sorted(members, key=lambda member: member.slot))}
        for held, found in zip(self.cohorts, self.spec.form(members), strict=True):
            pairs = zip(
                [*held.tensors(), *held.normaliser_tensors(), held.healthy],
                [*found.tensors(), *found.normaliser_tensors(), found.healthy],
                strict=True,
            )  # fmt: skip
            for place, tensor in pairs:
                place.copy_(tensor)
            held.losses.copy_(losses[[places[slot] for slot in held.slots]])

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score all members of `cohorts` on the same n seeds `[n]`; every shard evaluates its own members. `stopped` is
        a function that returns whether to stop.

        If there is only one member to score, its episodes are divided among all shards.

        Raises:
            Stopped: `stopped` returned True.
        """
        with self._counted():
            self._let_begin()
            slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
            alone = len(slots) == 1 and self.spec.seeds_apart  # else what seeds stand for depends on all of them
            parts = np.array_split(seeds, len(self.slots)) if alone else [seeds] * len(self.slots)
            members, asked = {member.slot: member for member in dissolve(cohorts)}, {}
            for shard, (own, living, part) in enumerate(zip(self.slots, self._living, parts, strict=True)):
                mine = [slot for slot in slots if slot in own]
                if len(part) and (alone or mine):
                    about = {"do": "evaluate", "slots": [slot - own.start for slot in mine], "alone": alone}
                    # Those who live are there; others, who lived before them in this generation, are sent along.
                    sent = slots if alone else [] if set(mine) <= {*living} else mine
                    tensors = {"seeds": torch.from_numpy(part.copy())}
                    about["torn"] = shard in self._torn
                    asked[shard] = self._message(shard, about, [members[slot] for slot in sent], tensors)
            try:
                told = sorted(self._ask(asked, record=self.spec.learns_from_evaluation, stopped=stopped).items())
            except BaseException:
                self._torn = {*range(len(self.slots))}
                raise
            self._torn -= asked.keys()
        every = {name: [tensors[name].numpy() for _, (_, tensors) in told] for name in told[0][1][1]}
        found = {name: np.concatenate(each, axis=1 if alone else 0) for name, each in every.items()}
        steps, cut = (sum(about[name] for _, (about, _) in told) for name in ("steps", "cut"))
        return Episodes(found.pop("returns"), found.pop("lengths"), steps, found, cut)

    def state(self) -> dict[str, Tensor]:
        self._tell_all()
        messages = [self._restoring(shard) for shard in range(len(self.slots))]
        silent = torch.tensor(sorted(self._silent), dtype=torch.int64)
        told = {f"shard.{i}": torch.frombuffer(bytearray(each), dtype=torch.uint8) for i, each in enumerate(messages)}
        return {**told, "silent": silent}

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        self._waiting, self._parents, self._new, self._torn = False, None, [], set()
        self._silent = {*tensors["silent"].tolist()}
        messages = {shard: tensors[f"shard.{shard}"].numpy().tobytes() for shard in range(len(self.slots))}
        for shard, message in messages.items():
            self._kept[shard], state = split_message(message)
            self._states[shard], self._since[shard], self._told[shard] = [state], [], 0
        lost: int = sum(about["lost"] for about, _ in self._ask(messages).values())
        self._open_books()
        return lost

    @property
    def account(self) -> str | None:
        """A sentence about the overhead of the shards so far; None if the shards run in this process.

        The overhead is the work that one process would not have: to pack, send and unpack messages, and to form members
        and states from messages. Evolution, records and checkpoints are not counted, because a run in one process does
        this work too.
        """
        if isinstance(self.engine, InProcess):
            return None
        seconds = max(time.perf_counter() - self._began, 1e-9)
        generations = max(1, self.clock.generation - self._generation)
        return (
            f"{len(self.slots)} shards: {self._bytes / generations / 1e6:,.1f} MB to and fro a generation; exchange "
            f"took {(self._asking - self._busy) / seconds:.1%} of the time, evolution and checkpoints "
            f"{1 - self._asking / seconds:.1%}, and shards waited {self._idle / seconds:.1%} of it for the slowest"
        )

    def close(self) -> None:
        self.engine.close()

    def _shard_of(self, slot: int) -> int:
        return next(shard for shard, own in enumerate(self.slots) if slot in own)

    def _message(
        self,
        shard: int,
        about: Mapping[str, Any],
        members: Sequence[Member] = (),
        tensors: Mapping[str, Tensor] | None = None,
    ) -> bytes:
        """Return a message to a shard, with members, if any."""
        if not members:
            return pack(about, tensors)
        first = self.slots[shard].start
        packed, described = stored.pack([replace(m, slot=max(0, m.slot - first)) for m in members], "members")
        return pack({**about, "members": described}, {**packed, **(tensors or {})})

    def _back(self, shard: int, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[Member]:
        found = stored.unpack(tensors, about["members"], "members")
        return [replace(member, slot=member.slot + self.slots[shard].start) for member in found]

    def _going_out(self) -> dict[int, Member]:
        """Return the members that live next by their slots, if they are still to go out."""
        if not self._waiting:
            return {}
        if not self._began:
            self._open_books()
        return {member.slot: member for cohort in self.cohorts for member in cohort.members}  # nothing has changed them

    def _open_books(self) -> None:
        """Count what `account` tells from here on."""
        self._bytes, self._busy, self._idle, self._asking = 0, 0.0, 0.0, 0.0
        self._began, self._generation = time.perf_counter(), self.clock.generation

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._asking += time.perf_counter() - began

    def _restoring(self, shard: int) -> bytes:
        """Return the message that restores a shard to its last reported state; nothing if it never reported."""
        states = self._states[shard]
        if len(states) > 1:
            states[:] = [dump_tensors(fold(load_tensors(each, "message") for each in states))]
        return b"".join([self._kept[shard], *states])

    def _ask(
        self,
        messages: Mapping[int, bytes],
        record: bool = False,
        refuse: bool = True,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[int, tuple[dict[str, Any], dict[str, Tensor]]]:
        """Send a message to each of several shards; return their answers.

        A shard whose process dies is restarted, and gets its message again. `record`: the message changes the shard,
        and is repeated if the shard is restarted. `refuse`: raise the errors that answers report.
        """
        for shard, message in messages.items():
            self.engine.send(shard, message)
        told: dict[int, tuple[dict[str, Any], dict[str, Tensor]]] = {}
        while len(told) < len(messages):
            for shard in sorted(messages.keys() - told.keys()):
                try:
                    answer = self.engine.receive(shard, _LOOK, stopped)
                except Lost as lost:
                    self._make_anew(shard, lost)
                    self.engine.send(shard, messages[shard])
                    continue
                if answer is not None:
                    told[shard] = unpack(answer)
                    self._note(shard, messages[shard], answer, told[shard][0], record)
            if len(told) < len(messages) and stopped():
                raise Stopped
        busy = [about["seconds"] for about, _ in told.values()]
        self._busy += max(busy)
        self._idle += max(busy) - sum(busy) / len(busy)
        if refuse:
            for about, _ in told.values():
                _raise(about)
        return told

    def _note(self, shard: int, message: bytes, answer: bytes, about: Mapping[str, Any], record: bool) -> None:
        self._bytes += len(message) + len(answer)
        if "clock" in about:
            self._clocks[shard] = Clock(**about["clock"])
        if about.get("do") == "restore":
            self._kept[shard], state = split_message(answer)
            self._told[shard], self._since[shard], self._deaths[shard] = about["number"], [], 0
            if not about["after"]:  # it is no change of what was told before, but all
                self._states[shard].clear()
            self._states[shard].append(state)
            if len(self._states[shard]) > _FOLDS:
                self._restoring(shard)
        elif record:
            self._since[shard].append(message)

    def _make_anew(self, shard: int, lost: Lost) -> None:
        while True:
            self._deaths[shard] += 1
            if self._deaths[shard] > _DEATHS:
                raise ResourceError(
                    f"shard {shard} died {_DEATHS + 1} times in one generation, at last because {lost}: give it more "
                    "memory, or fewer members (runtime.shards.count); the same command continues from the last "
                    "checkpoint"
                )
            self.said.append(f"shard {shard} is made anew from generation {self.clock.generation}: {lost}")
            try:
                self.engine.start(shard)
                for message in (self._begin[shard], self._restoring(shard), *self._since[shard]):
                    if message:
                        self.engine.send(shard, message)
                        while self.engine.receive(shard, _LOOK, lambda: False) is None:
                            pass
                return
            except Lost as again:
                lost = again


def slow_shards(seconds: Sequence[float]) -> dict[int, str]:
    """Return a warning for each shard that took much longer for a generation than the median shard, by the shard's
    number.

    `seconds` are the times of all shards.
    """
    usual = float(np.median(seconds))
    return {
        shard: f"shard {shard} took {took:.0f} s for a generation, half of them at most {usual:.0f} s, and all "
        "wait for it: give it a faster machine or fewer neighbours"
        for shard, took in enumerate(seconds)
        if took > max(_LATE * usual, _LONG)
    }


def _raise(about: Mapping[str, Any]) -> None:
    """Raise what an answer says went wrong."""
    if "error" in about:
        kind = getattr(evopipe.errors, about["error"], RuntimeError)
        raise kind(about["text"])
