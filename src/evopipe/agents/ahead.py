"""Rounds of episodes that are played ahead of learning: environments work while members learn.

Which weights play a round is a matter of counting, and no clock decides it: whoever waits for whom, equal runs give
equal bits. A round that a stop interrupts is played again, by the same weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evopipe.agents.engine import Done
from evopipe.core.cohort import Cohort
from evopipe.core.net import Net
from evopipe.run.evaluate import Stopped
from evopipe.types import Tensor

_ASK = 0.25  # seconds between two looks at whether to stop
_ENDING = 15.0  # seconds that a round has to close its environments, once nobody waits for it
_PREFIX = "ahead"

Play = Callable[[Sequence[Cohort], int, Callable[[], bool]], list[Done]]
"""(members, tick, whether to stop) → the episodes of the tick's round."""


@dataclass
class _Round:
    """A round that is played, or is to be."""

    cohorts: Sequence[Cohort]  # the members, with the weights that play it
    version: int | None  # the tick at which they had these weights; None: an earlier one
    ended: threading.Event = field(default_factory=threading.Event)
    unwanted: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    done: list[Done] | None = None
    error: BaseException | None = None


class Ahead:
    """The rounds of episodes that threads play while members still learn from earlier rounds. In a round every member
    plays its episodes once. The number of a round is called tick.

    Args:
        play: a function (members, tick, stop) that plays a round and returns its episodes. The function `stop` returns
            whether to give up the round. Each call of `play` runs in a thread of its own.
        network: the name of the network that writes the completions. It is an attribute of a cohort's state. A cohort
            is a group of members that train as one batch of tensors.
    """

    def __init__(self, play: Play, network: str) -> None:
        self._play, self._network = play, network
        self._rounds: dict[int, _Round] = {}

    def ensure(self, ticks: range, cohorts: Sequence[Cohort], now: int) -> None:
        """Start the rounds of these ticks that have not started yet.

        A new round is played with a copy of the members' present weights. A round that `restore` prepared is played
        with the restored weights.

        Args:
            ticks: the ticks of the rounds.
            cohorts: all members, in groups that are computed as one batch.
            now: the present tick, at which the members have the weights that are copied.
        """
        missing = [tick for tick in ticks if tick not in self._rounds]
        if missing:
            held = [self._held(cohort, getattr(cohort.state, self._network).copy()) for cohort in cohorts]
            for tick in missing:
                self._rounds[tick] = _Round(held, now)
        for tick in ticks:
            if self._rounds[tick].thread is None:
                self._begin(tick)

    def take(self, tick: int, stopped: Callable[[], bool]) -> tuple[list[Done], bool]:
        """Wait until the round of a tick has been played; return its episodes, and whether they were played by weights
        of an earlier tick.

        `stopped` is a function that is called repeatedly while waiting; it returns whether to stop.

        Raises:
            Stopped: `stopped` returned True. All rounds are then stopped, and a later call of `ensure` plays them from
                the beginning.
        """
        this = self._rounds[tick]
        while not this.ended.wait(_ASK):
            if stopped():
                self._give_up()
                raise Stopped
        if isinstance(this.error, Stopped):
            self._give_up()
            raise this.error
        if this.error is not None:
            raise this.error
        assert this.done is not None
        return this.done, this.version != tick

    def forget(self, tick: int) -> None:
        """Remove the round of a tick, after members have learned from it."""
        del self._rounds[tick]

    def drop(self) -> None:
        """Stop all rounds, and remove them."""
        self._give_up()
        self._rounds.clear()

    def state(self, now: int) -> dict[str, Tensor]:
        """Return, for a checkpoint, the weights that are needed to play all open rounds again.

        A round is open until members have learned from it. `now` is the present tick. Rounds with the weights of this
        tick are left out, because the checkpoint has these weights already.

        A key is `ahead.<tick>.<slot>`, where the slot is the member's index in the population. The value is a vector of
        all the member's weights.
        """
        found: dict[str, Tensor] = {}
        for tick, each in self._rounds.items():
            if each.version == now:
                continue
            for cohort in each.cohorts:
                net: Net = getattr(cohort.state, self._network)
                rows = net.structure.unpack(net.values.cpu())
                found |= {f"{_PREFIX}.{tick}.{slot}": row.clone() for slot, row in zip(cohort.slots, rows, strict=True)}
        return found

    def restore(self, tensors: Mapping[str, Tensor], cohorts: Sequence[Cohort]) -> None:
        """Prepare the rounds that were open when a checkpoint was written. They start when `ensure` is called.

        They are played with the weights from the checkpoint, not with the members' present weights. All other rounds
        are stopped and removed.

        Args:
            tensors: the weights, as the method `state` returned them for the checkpoint.
            cohorts: all members, in groups that are computed as one batch.
        """
        self.drop()
        names = [name.split(".") for name in tensors if name.startswith(f"{_PREFIX}.")]
        for tick in sorted({int(tick) for _, tick, _ in names}):
            held = []
            for cohort in cohorts:
                net: Net = getattr(cohort.state, self._network)
                rows = [tensors[f"{_PREFIX}.{tick}.{slot}"] for slot in cohort.slots]
                held.append(self._held(cohort, replace(net, values=net.structure.pack(rows), trainable=False)))
            self._rounds[tick] = _Round(held, None)

    def _held(self, cohort: Cohort, net: Net) -> Cohort:
        return replace(cohort, state=replace(cohort.state, **{self._network: net}))

    def _begin(self, tick: int) -> None:
        this = self._rounds[tick]

        def run() -> None:
            try:
                this.done = self._play(this.cohorts, tick, this.unwanted.is_set)
            except BaseException as error:
                this.error = error
            this.ended.set()

        this.thread = threading.Thread(target=run, name="evopipe-round", daemon=True)
        this.thread.start()

    def _give_up(self) -> None:
        for this in self._rounds.values():
            this.unwanted.set()
        for tick, this in self._rounds.items():
            if this.thread is not None:
                this.thread.join(_ENDING)
                self._rounds[tick] = _Round(this.cohorts, this.version)
