"""The recorder of training metrics (probe): now and then it makes an extra update of copies of the members.

What an update computes on its way, such as the norm of its gradient, is lost in the kernels that take it as a whole.
The probe lets torch take one in the same state, on a minibatch of its own, and asks the algorithm for its signals. It
draws from a stream of its own and writes nowhere else, so no bit of a run depends on it. See decision 0040.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from evopipe.core import optim
from evopipe.core.cohort import Cohort
from evopipe.core.net import Net
from evopipe.memory.rollout import TERMINATED
from evopipe.native import build
from evopipe.native.dense import watched_units
from evopipe.ops import signals as ops
from evopipe.regimes.told import of_batch, of_each
from evopipe.rng import Stream
from evopipe.run.clock import Clock
from evopipe.run.diagnostics import Diagnostics
from evopipe.run.tally import Tally
from evopipe.types import Batch, Sequences

EVERY, MOST = 1024, 4  # updates to a probe; probes of a member in a generation, one at least
APART, SPARSE = 2, 8  # generations to a probe at most: of replay, and where steps cost next to nothing
RATE, PACE, DORMANT = "charts/learning_rate", "charts/updates_per_step", "charts/dormant"
GRADIENT, CLIPPED, WEIGHTS = "losses/grad_norm", "losses/grad_clipped", "losses/weight_norm"
ERROR, OBSERVED = "losses/td_error", "charts/observation_size"


class Probe:
    """The recorder of training metrics: now and then it makes an extra update of copies of the members, and records its
    metrics.

    The copies are discarded, so the run's results do not depend on them.

    Args:
        spec: the run's configuration.
        clock: the run's clock.
        offline: whether members learn from a dataset alone.
        apart: the number of generations from one extra update to the next, at most. If it is above 1, a generation of
            few updates may have none: an extra update takes as long as some dozens of the kernels' own.

    Attributes:
        diagnostics: the metrics that were recorded in the present generation.
    """

    def __init__(self, spec: Any, clock: Clock, offline: bool = False, apart: int = 1) -> None:
        self._spec, self._clock, self._offline, self._apart = spec, clock, offline, apart
        self.diagnostics = Diagnostics(clock.members, spec.device)

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Begin a generation of these cohorts (groups of members that train together): clear what was recorded for
        their members."""
        for cohort in cohorts:
            self.diagnostics.forget(cohort.slots, getattr(cohort.state, "updates", None))

    def due(self, updates: float, moment: int, moments: int) -> bool:
        """Return whether the extra update of a cohort (group of members computed as one batch) is to be made now.

        A generation is divided into moments, such as ticks, at each of which an extra update can be made. It is made at
        equal intervals, about once in `EVERY` updates but at most `MOST` times in the generation, and always at the
        last moment. Where generations are short, one of several has it: see `apart` of the class.

        Args:
            updates: the number of updates of the cohort in the generation.
            moment: the number of the present moment, from 0.
            moments: the number of moments in the generation.
        """
        return self.ahead(updates, moment, moments) == 1

    def ahead(self, updates: float, moment: int, moments: int) -> int:
        """Return in how many moments the next extra update of a cohort (group of members computed as one batch) is due.

        Moments are the points of a generation at which an extra update can be made, such as its ticks. The present one
        counts: 1 means now, 2 at the next moment. If this generation has no further extra update, the result is larger
        than the number of moments that are left.

        Args:
            updates: the number of the cohort's ordinary updates in the generation; more of them have more extra ones.
            moment: the number of the present moment, from 0.
            moments: the number of moments in the generation at which the extra update can be made.
        """
        if self._clock.generation % min(self._apart, math.ceil(2 * EVERY / max(1.0, updates))):
            return moments - moment + 1
        count = min(MOST, moments, max(1, int(updates) // EVERY))
        return -(-(moment * count // moments + 1) * moments // count) - moment

    def take(
        self, cohort: Cohort, batch: Any, draw: Stream, more: Mapping[str, Tensor],
        hyper: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Make an extra update of copies of a cohort's members, and record the update's metrics.

        Args:
            cohort: the members.
            batch: the minibatch of the update.
            draw: the stream of random numbers.
            more: further metrics to record, by name, `[P]` each for the P members.
            hyper: the hyper-parameters by name, `[P]` each; None for the members' own.
        """
        hyper = cohort.hyper if hyper is None else hyper
        self.note(cohort, {**probe(self._spec, cohort, batch, draw, hyper, self._offline), **more})

    def note(self, cohort: Cohort, values: Mapping[str, Tensor]) -> None:
        """Record the metrics `values` of the P members of a cohort (batch of members): by name, `[P]` each."""
        self.diagnostics.note(cohort.slots, values)

    def end(
        self, cohorts: Sequence[Cohort], more: Callable[[Cohort], Mapping[str, Tensor]] = lambda cohort: {},
        tally: Tally | None = None,
    ) -> None:  # fmt: skip
        """Record those metrics of the members that are known only at the end of a generation.

        These metrics are learning rates, the norm of the weights, and the updates per step.

        Args:
            cohorts: the members.
            more: a function that takes a cohort (batch) of P members, and returns further metrics by name, `[P]` each.
            tally: counts of the episodes that ended, whose metrics are recorded too; None if no episodes are counted.
        """
        for cohort in cohorts:
            if tally is not None:
                tally.into(self.diagnostics, cohort.slots)
            found = {**rates(cohort.hyper), WEIGHTS: _norm(cohort), **more(cohort)}
            updates = getattr(cohort.state, "updates", None)
            if updates is not None:
                begun = self.diagnostics.begun[torch.tensor(cohort.slots, device=updates.device)]
                found[PACE] = (updates.double() - begun) / max(1, self._clock.here * self._clock.envs)
            self.note(cohort, found)


def probe(
    spec: Any, cohort: Cohort, batch: Any, draw: Stream, hyper: Mapping[str, Tensor], offline: bool = False
) -> dict[str, Tensor]:
    """Make an update of copies of P members on a minibatch, and return the update's metrics `[P]` by name.

    Among the metrics are those of `regimes.told.of_batch`, the norm of the gradient, and the mean absolute error of the
    transitions.

    Args:
        spec: the run's configuration.
        cohort: the members.
        batch: the minibatch.
        draw: the stream of random numbers.
        hyper: the hyper-parameters by name, `[P]` each.
        offline: whether members learn from a dataset alone.
    """
    algo, cfg, state = spec.algo, spec.algo_config, cohort.copied_state()
    found: dict[str, Tensor] = {}
    values: Tensor | None = None
    if isinstance(batch, Batch | Sequences):
        found = _observed(spec, batch)
        if spec.spaces.team is None:
            idle, values = _dormant(spec, state, batch)
            found |= idle
        if isinstance(batch, Batch) and "gamma" in hyper:
            ended = (batch.discount == 0).flatten(1) & (hyper["gamma"] > 0)[:, None]
            found[TERMINATED] = ops.mean(of_each(batch).flatten(1), ended)
    with build.by_operators():
        found |= of_batch(spec, state, hyper, batch, draw.part(3), offline, values)
        with optim.watched() as seen:
            turn = getattr(spec, "period", 1) - 1  # the last of unlike updates is of all networks
            learned = algo.update(cfg, state, hyper, batch, cohort.healthy.clone(), draw, turn)
    found |= gradients(seen)
    weight = getattr(batch, "weight", None)
    if learned.errors is not None and weight is not None and learned.errors.shape == weight.shape:
        found[ERROR] = ops.mean(weight, learned.errors.abs())
    return found


def _observed(spec: Any, batch: Any) -> dict[str, Tensor]:
    """Return the mean size of the largest number of an observation as networks read it, images left out."""
    size = batch.obs.double().abs().flatten(1, -2).mean(dim=1)  # [P, O]
    for image in spec.spaces.images:
        size[:, image.start : image.start + image.size] = 0.0
    return {OBSERVED: size.amax(dim=1)}


@torch.no_grad()
def _dormant(spec: Any, state: Any, batch: Any) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the share of idle units in what members act by, nothing of networks without plain hidden layers; and the
    values of all actions that came with it, `[P, B, A]`, None where members do not act by values."""
    algo, values = spec.algo, None
    obs = batch.obs if batch.obs.ndim == 3 else batch.obs.flatten(1, 2)
    with build.by_operators(), watched_units() as units:
        if algo.values is None:
            algo.greedy(spec.algo_config, state, obs, None)
        else:  # they take the best of these: one pass tells of units and of values
            values = algo.values(spec.algo_config, state, obs)
    return {DORMANT: ops.dormant(units)} if units else {}, values


def gradients(seen: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return two metrics of one update of P members, `[P]` each, as a dict by the metric's name.

    They are the norm of all gradients, and whether any gradient was clipped.

    `seen` is the list that `optim.watched` recorded during the update. If it is empty, the result is an empty dict.
    """
    if not seen:
        return {}
    norms, over = (torch.stack(each, dim=1) for each in zip(*seen, strict=True))
    return {GRADIENT: norms.square().sum(dim=1).sqrt(), CLIPPED: over.any(dim=1).double()}


def rates(hyper: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the learning rates among hyper-parameters as metrics `[P]` by name.

    `hyper` holds the hyper-parameters of P members by name.
    """
    return {RATE + name.removeprefix("lr"): value for name, value in hyper.items() if name.split("_")[0] == "lr"}


def _norm(cohort: Cohort) -> Tensor:
    """Return the norm of all parameters that a member learns, `[P]`."""
    values = (getattr(cohort.state, each.name) for each in fields(cohort.state))
    nets = [value for value in values if isinstance(value, Net) and value.trainable]
    squares = [torch.linalg.vector_norm(net.values, dim=1, dtype=torch.float64).square() for net in nets]
    return torch.cat([each.view(len(cohort.members), -1) for each in squares], dim=1).sum(dim=1).sqrt()
