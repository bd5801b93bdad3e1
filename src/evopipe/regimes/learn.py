"""Learning from a replay buffer: which updates are due at a tick, and the updates themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evopipe.algos import by_kernels
from evopipe.core import normalise
from evopipe.core.cohort import Cohort
from evopipe.core.graphs import Body, upload
from evopipe.core.member import Member
from evopipe.memory.priorities import Priorities
from evopipe.memory.replay import Replay, RowLayout
from evopipe.native import build
from evopipe.native.ticks import Updates
from evopipe.ops import signals as ops
from evopipe.regimes.learners import LearnerPool, Share
from evopipe.regimes.probe import Probe
from evopipe.rng import Purpose, Stream
from evopipe.run.regime import Setup
from evopipe.run.spec import EnvSpec
from evopipe.types import Image

UPDATES_PER_TICK = 1 << 13  # more than any member can take: keeps the replay draws of different ticks apart


def updates_due(cohort: Cohort, tick: int, envs: int) -> int:
    """Return the number of updates that a cohort makes at a tick of its generation.

    A cohort is a group of members with equal `learn_step`: each makes one update every `learn_step` of its environment
    steps. A tick, counted from 0, is one step in each of a member's `envs` environments.
    """
    return _due(_learn_step(cohort), tick, envs)


def _due(every: int, tick: int, envs: int) -> int:
    return (tick + 1) * envs // every - tick * envs // every


def _learn_step(cohort: Cohort) -> int:
    return int(cohort.members[0].hyper.get("learn_step", 1))


def discount_rate(cohort: Cohort) -> Tensor:
    """Return the discount γ of each of the P members of a cohort (batch), `[P]`; 1 if the algorithm has no discount."""
    gamma = cohort.hyper.get("gamma")
    return torch.ones_like(cohort.weight[:, 0]) if gamma is None else gamma


def learn(spec: EnvSpec, cohort: Cohort, replay: Replay, tick: int, updates: int, turn: int = 0) -> Tensor:
    """Make updates of P members in place, each on a new minibatch from the replay buffer; return the members' last
    losses `[P]`.

    Every member's replay buffer must hold at least one transition. The tick and the members' keys determine the random
    draws.

    Args:
        spec: the run's configuration.
        cohort: the members.
        replay: the replay buffers.
        tick: the number of the run's present tick. A tick is one step of every environment; offline, it is one step
            of learning.
        updates: the number of updates, at least 1.
        turn: the position of the first update in the algorithm's period, from 0. The period is the number of updates
            after which their pattern repeats, such as 2 for TD3, which updates its actor at every second update.
    """
    _ready(spec, cohort, replay, tick, updates, turn, replay.filled(cohort.slots))()
    return cohort.losses


class ReplayLearning:
    """The replay buffer of a regime (training loop), and the updates from it. The buffer is empty at first.

    Args:
        setup: the configuration, clock, random keys, dataset and helper processes of the run, see `Setup`.
        layout: the layout of a transition in a row.
        memories: the number of replay buffers, among which the members are divided.
        capacity: the number of rows of each buffer.
        images: the images in an observation that are stored as bytes, see `off_policy.byte_images`.
    """

    def __init__(self, setup: Setup, layout: RowLayout, memories: int, capacity: int, images: Sequence[Image]) -> None:
        spec, cfg = setup.spec, setup.spec.train.replay
        self._spec, self._clock, self._members = spec, setup.clock, len(setup.keys)
        self._seen = setup.warm.obs if setup.warm else None  # what members saw before they were born
        trees = Priorities(self._members, capacity, cfg.alpha, spec.device) if cfg.prioritised else None
        each = self._members // memories
        self.replay = Replay(layout, memories, capacity, spec.device, trees, images, each)
        self.learners = LearnerPool(spec, setup.learners, partial(_of_share, spec, self.replay), spec.compiled)
        places = [] if self.replay.frames is None else [self.replay.frames.places]  # the images are shared as they are
        self.learners.share([self.replay.rows, *places, *([] if trees is None else trees.tensors())])
        self._learn: list[tuple[int, np.ndarray]] = []  # each cohort's learn step, and its members' memories
        self._cohorts: Sequence[Cohort] = ()
        self._bound, self._by = False, build.chosen()  # whether, and for which kernels, `_lessons` were made
        self._lessons: list[Updates] | None = None

    def first(self, member: Member) -> Member:
        """Return a member of the first generation whose observation statistics include the transitions that the run
        starts with.

        If the run starts without transitions, or observations are not normalised, the member is returned unchanged.
        """
        if self._seen is None or not self._spec.train.normalise.observations:
            return member
        equipped = self._spec.equip(member).tensors
        return replace(member, tensors=normalise.after(equipped, torch.from_numpy(self._seen)))

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        self._learn = [(_learn_step(cohort), self.replay.memory_of(cohort.slots)) for cohort in cohorts]
        if not self._spec.strategy.RENEWS:
            self._seen = None  # no member is born any more that has seen nothing
        self.learners.adopt(cohorts, [1.0 / _learn_step(cohort) for cohort in cohorts])
        self._cohorts, self._bound = cohorts, False

    def updates(self) -> Iterator[Callable[[], Any]]:
        """Yield the updates that are due at this tick, as functions without arguments that change the members in place.

        The caller must call each function. A member learns as soon as its replay buffer holds one transition: the
        buffer need not hold a full batch.

        Raises:
            ResourceError: a learner process died.
        """
        clock, lessons = self._clock, self.lessons()
        if lessons is None:
            yield from self._one_by_one()
            return
        tick, envs, each = clock.here, clock.envs, self._spec.train.replay.at_once(clock.living)
        for (every, _), lesson in zip(self._learn, lessons, strict=True):
            if updates := _due(every, tick, envs) * each:
                turn = tick * envs // every * each % self._spec.period
                step, beta = clock.tick * UPDATES_PER_TICK, self.beta(clock.tick)
                yield partial(lesson, step, turn, updates, beta, self.replay.filled_at)

    def beta(self, tick: int) -> float:
        """Return the exponent β of importance sampling at a tick: it rises linearly from the configured value to 1."""
        return _beta(self._spec, tick)

    @property
    def every(self) -> list[int]:
        """For each cohort (group of members that train as one batch), the number of a member's environment steps from
        one update to the next."""
        return [every for every, _ in self._learn]

    def lessons(self) -> list[Updates] | None:
        """Return for each cohort (group of members that train as one batch) an object that makes the cohort's updates
        by the C kernels.

        The result is None if the kernels cannot make the updates of every cohort. It is also None if learner processes
        make some of the updates.
        """
        kernels = build.chosen()
        if not self._bound or kernels is not self._by:
            self._bound, self._by, made = True, kernels, []
            for cohort, (_, memories) in zip(self._cohorts, self._learn, strict=True):
                made.append(_lessons(self._spec, cohort, self.replay, memories) if self.learners.alone else None)
            found = [each for each in made if each is not None]
            self._lessons = found if len(found) == len(made) else None
        return self._lessons

    def inherit(self, parents: Sequence[int] | None) -> None:
        """Set the priorities of new members, if sampling uses priorities.

        A child gets a copy of its parent's priorities if both share a replay buffer. Any other new member gets equal
        priorities for all rows: it has no parent, or its parent's priorities are those of another buffer's rows.

        Args:
            parents: `[P]`, for each of the P new members the slot (place in the population) of its parent; −1 for a
                member that begins a new trial, without a parent. None if all members were replaced after they diverged.
        """
        trees, each = self.replay.priorities, self._members // self.replay.memories
        if trees is None:
            return
        of = [-1] * self._members if parents is None else parents
        heirs = [slot for slot, parent in enumerate(of) if parent != slot and parent // each == slot // each]
        others = [slot for slot, parent in enumerate(of) if parent // each != slot // each]
        if heirs:
            trees.inherit(self._on_device(heirs), self._on_device([of[slot] for slot in heirs]))
        if others:
            trees.forget(self._on_device(others))

    def _on_device(self, slots: Sequence[int]) -> Tensor:
        return upload(torch.tensor(slots, dtype=torch.int64), self.replay.device)

    def _one_by_one(self) -> Iterator[Callable[[], Any]]:
        """Yield the updates that are due, without kernels for all of them."""
        tick, due = self._clock.tick, self.due()
        if all(filled for _, _, *sizes in due for filled in sizes):
            yield from self.learners.share_of(tick, due)
            return
        for i, (cohort, numbers) in enumerate(zip(self._cohorts, due, strict=True)):
            updates, _, *sizes = numbers
            for row, filled in enumerate(sizes if updates else ()):
                if filled:  # nobody waits for a neighbour that has not begun
                    own = cohort.part(row, row + 1)
                    yield _of_share(self._spec, self.replay, Share(i, row, row + 1), own, tick, numbers)

    def probe(self, probe: Probe) -> None:
        """Record training metrics with `probe`, for each cohort whose metrics are due now (see `Probe.due`).

        The method is called after each tick (training step). A cohort is a group of members that are computed as one
        batch. Unless training is offline, the age of the sampled transitions is one of the metrics.
        """
        clock, replay, spec = self._clock, self.replay, self._spec
        for cohort in self._cohorts:
            if not probe.due(self._paced(cohort), clock.here - 1, clock.generation_ticks):
                continue
            filled = replay.filled(cohort.slots)
            if not filled.min():
                continue
            draw = Stream(cohort.keys, Purpose.PROBE, self._on_device([clock.tick]))
            beta = upload(torch.tensor(_beta(spec, clock.tick)), replay.device)
            drawn = *replay.places(tuple(cohort.slots)), self._on_device(filled.tolist()), cohort.weight
            batch, index = replay.batch(draw, *drawn, beta, discount_rate(cohort))
            if cohort.normaliser is not None:
                batch = replace(batch, obs=cohort.normalised(batch.obs), next_obs=cohort.normalised(batch.next_obs))
            more = {}
            if spec.train.mode != "offline":
                newest = self._on_device(replay.position[replay.memory_of(cohort.slots)].tolist())[:, None]
                age = (newest - 1 - index) % replay.capacity  # rows that came later
                more = {"replay/age": ops.mean(cohort.weight, age / (self._members // replay.memories))}
            probe.take(cohort, batch, draw, more)

    def _paced(self, cohort: Cohort) -> float:
        """Return how many updates a member of a cohort makes in this generation."""
        clock, each = self._clock, self._spec.train.replay.at_once(self._clock.living)
        return clock.generation_ticks * clock.envs * each / _learn_step(cohort)

    def ahead(self, probe: Probe) -> int:
        """Return after how many ticks from now metrics are recorded next; 1 means after the next tick.

        Each cohort (group of members computed as one batch) has a time of its own; the result is the earliest of these
        times. `probe` is the recorder of metrics.
        """
        here, ticks = self._clock.here, self._clock.generation_ticks
        return min(probe.ahead(self._paced(cohort), here, ticks) for cohort in self._cohorts)

    def size(self, cohort: Cohort) -> dict[str, Tensor]:
        """Return the number of transitions in the replay buffer of each of the P members of a cohort (batch), as a
        metric `[P]` with its name."""
        return {"replay/size": self._on_device(self.replay.filled(cohort.slots).tolist())}

    def due(self) -> list[list[int]]:
        """Return the updates that each cohort (group of members that train as one batch) has to make at this tick: for
        a cohort of P members, a list of 2 + P numbers.

        The first number is how many updates are due. The second is the position of the first of them in the
        algorithm's period, from 0. (A period is the number of updates after which their pattern repeats, for example 2
        if every second update leaves out the policy.) The other P numbers count the transitions in each member's
        replay buffer.
        """
        tick, envs = self._clock.here, self._clock.envs
        each, period, size = self._spec.train.replay.at_once(self._clock.living), self._spec.period, self.replay.size
        return [
            [_due(every, tick, envs) * each, tick * envs // every * each % period, *size[memories].tolist()]
            for every, memories in self._learn
        ]


def _lessons(spec: EnvSpec, cohort: Cohort, replay: Replay, memories: np.ndarray) -> Updates | None:
    """Return a cohort's updates by the kernels; None where torch must make them."""
    recipe = by_kernels(spec.algo, "recipe")
    if recipe is None or cohort.normaliser is not None or spec.paths.capture != "none":
        return None
    if not build.serve(replay.rows, cohort.keys) or replay.frames is not None:
        return None
    draw = Stream(cohort.keys, Purpose.REPLAY, cohort.keys[:1])
    batches = replay.batches(draw, *replay.places(tuple(cohort.slots)), cohort.weight, discount_rate(cohort))
    how = recipe(spec.algo_config, cohort.state, cohort.hyper, batches.batch)
    if how is None or not Updates.serves(how, batches):
        return None
    priorities = None if replay.priorities is None else replay.priorities.native
    memory, own = torch.from_numpy(memories), (cohort.keys, cohort.healthy, cohort.losses)
    return Updates(how, batches, spec.period, *own, memory, priorities)


def _of_share(
    spec: EnvSpec, replay: Replay, share: Share, cohort: Cohort, tick: int, due: Sequence[int]
) -> Callable[[], Any]:
    """Return the learning of a share, given as a cohort of its own, ready to be called."""
    updates, turn, *filled = due
    return _ready(spec, cohort, replay, tick, updates, turn, filled[share.first : share.end])


def _ready(
    spec: EnvSpec,
    cohort: Cohort,
    replay: Replay,
    tick: int,
    updates: int,
    turn: int,
    filled: Sequence[int] | np.ndarray,
) -> Callable[[], Any]:
    """Return `learn`, ready to be called; filled `[P]` is how many rows each member's memory holds."""
    now = torch.tensor([tick * UPDATES_PER_TICK, *filled])  # [1 + P]

    def make(compiled: Callable[[Any], Any]) -> Body:
        memory = replay, *replay.places(tuple(cohort.slots))
        return partial(_updates, spec, compiled(spec.algo.update), cohort.without_runner, memory, updates, turn)

    def bound() -> list[Tensor]:
        return [*replay.tensors(), cohort.keys, cohort.weight, *cohort.hyper.values(), *cohort.normaliser_tensors()]

    def written() -> list[Tensor]:
        trees = [] if replay.priorities is None else replay.priorities.tensors()
        return [*cohort.tensors(), cohort.healthy, cohort.losses, *trees]

    inputs = [now, torch.tensor(_beta(spec, tick))]
    return cohort.runner.ready(("learn", updates, turn), make, inputs, spec.device, bound, written)


def _beta(spec: EnvSpec, tick: int) -> float:
    """How much importance weights correct by now: from `beta` to 1 over the run."""
    done = min(1.0, tick * spec.env.num_envs / spec.train.max_steps)
    beta = spec.train.replay.beta
    return beta + done * (1.0 - beta)


def _updates(
    spec: EnvSpec,
    update: Any,
    cohort: Cohort,
    memory: tuple[Replay, Tensor, Tensor],
    updates: int,
    turn: int,
    now: Tensor,
    beta: Tensor,
) -> tuple[()]:
    """Draw, sample and update on the device, in place.

    `memory` is the replay memory, the members' slots, and where each one's memory begins, `[P]`; `now` `[1 + P]` is the
    counter of the first draw, then the rows filled.
    """
    replay, slots, first = memory
    healthy, gamma = cohort.healthy, discount_rate(cohort)
    for i in range(updates):  # one after the other: an update changes what the next one draws by priority
        draw = Stream(cohort.keys, Purpose.REPLAY, now[:1] + i if i else now[:1])
        batch, index = replay.batch(draw, slots, first, now[1:], cohort.weight, beta, gamma)
        if cohort.normaliser is not None:  # the memory holds what the environments gave
            batch = replace(batch, obs=cohort.normalised(batch.obs), next_obs=cohort.normalised(batch.next_obs))
        draw = Stream(cohort.keys, Purpose.UPDATE, draw.step)
        losses, healthy, errors = update(
            spec.algo_config, cohort.state, cohort.hyper, batch, healthy, draw, (turn + i) % spec.period
        )
        if replay.priorities is not None and errors is not None:
            errors = torch.where(healthy[:, None], errors, torch.nan)  # a diverged member's tell nothing
            # A member's batch may be smaller than the padded one: where it saw nothing, its first row stands again.
            index, errors = (torch.where(cohort.weight > 0, x, x[:, :1]) for x in (index, errors))
            replay.priorities.update(slots, index, errors)
    cohort.healthy.copy_(healthy)
    cohort.losses.copy_(losses.detach())
    return ()
