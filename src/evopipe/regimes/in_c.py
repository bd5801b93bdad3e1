"""Several ticks of an off-policy run in one call of the C kernels, with the same bits as tick by tick."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from evopipe.core.cohort import Cohort
from evopipe.native import build
from evopipe.native.ticks import ManyTicks
from evopipe.regimes.learn import UPDATES_PER_TICK, ReplayLearning
from evopipe.run.act import choosers, places_of
from evopipe.run.clock import Clock
from evopipe.run.pace import next_count
from evopipe.run.spec import EnvSpec
from evopipe.run.world import TensorWorld

_SECONDS = 0.005  # that a call takes, about: signals are handled, and progress is shown, between two of them


class WholeTicks:
    """An object that takes several ticks of an off-policy run in one call of the C kernels.

    A tick is one step in every environment, and the updates that are due. The kernels must be able to compute
    the environments, the choice of actions, and the updates.

    Args:
        spec: the run's configuration.
        clock: the run's clock.
        world: the environments in which members act.
        learning: the replay buffer, and the updates from it.
    """

    def __init__(self, spec: EnvSpec, clock: Clock, world: TensorWorld, learning: ReplayLearning) -> None:
        self._spec, self._clock, self._world, self._learning = spec, clock, world, learning
        self._bound, self._by = False, build.chosen()  # whether, and for which kernels, `_ticks` were made
        self._ticks: ManyTicks | None = None
        self._cohorts: Sequence[Cohort] = ()
        self._most = 1

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Set the members that act from now on, in groups (cohorts) that are computed as one batch.

        The method must also be called after the environments' state was replaced, as by a restored checkpoint.
        """
        self._cohorts, self._bound = cohorts, False

    def take(self, most: int) -> bool:
        """Take 1 to `most` ticks by the C kernels, none beyond the end of the generation, and return True.

        If the kernels cannot take ticks now, take none and return False.
        """
        clock, spec, ticks = self._clock, self._spec, self._in_c()
        if ticks is None or self._world.pending is not None:
            return False
        count = max(1, min(most, self._most, clock.each - clock.here, clock.total - clock.tick))
        began, at = time.perf_counter(), range(clock.tick, clock.tick + count)
        epsilon = [spec.algo.explore(spec.algo_config, tick * clock.envs) for tick in at]
        beta = [self._learning.beta(tick) for tick in at] if self._learning.replay.priorities else [1.0] * count
        obs = self._world.observed()[0]
        ticks.obs.copy_(obs.view_as(ticks.obs))
        self._world.tally.settle()
        taken, broken = ticks(clock.tick, clock.here, epsilon, beta)
        self._world.took(taken, broken)
        self._most = next_count(taken, time.perf_counter() - began, _SECONDS)
        return True

    def _in_c(self) -> ManyTicks | None:
        """Return what takes ticks with the cohorts as they are; None where Python must."""
        kernels = build.chosen()
        if not self._bound or kernels is not self._by:
            self._bound, self._by = True, kernels
            self._ticks = None if kernels is None else self._make()
        return self._ticks

    def _make(self) -> ManyTicks | None:
        spec, clock, world, learning = self._spec, self._clock, self._world, self._learning
        held, lessons = world.in_c(self._cohorts[0]), learning.lessons()
        if held is None or lessons is None:
            return None
        first = np.arange(clock.living) * clock.envs
        choose = choosers(spec, self._cohorts, first, places_of(self._cohorts))
        incoming = learning.replay.incoming(world.pool.rows, world.rows)
        if choose is None or incoming is None:
            return None
        obs, legal, _ = world.observed()
        rows = obs.flatten(0, 1).clone(memory_format=torch.contiguous_format)
        kind = torch.float32 if spec.spaces.continuous else torch.int64
        actions = torch.zeros(len(rows), *spec.spaces.action_shape, dtype=kind)
        stepping = None if world.rows is None else torch.from_numpy(world.rows)
        return ManyTicks(
            choose, lessons, learning.every, held["pool"], stepping, held["episodes"], held["returns"], incoming.kernel,
            rows, legal.contiguous(), actions, clock.envs, spec.train.learning_delay,
            spec.train.replay.at_once(clock.living), UPDATES_PER_TICK,
            learning.replay.each == 1 and held["broken"] is None,
        )  # fmt: skip
