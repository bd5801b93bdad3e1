"""Learning from rollouts: advantages, then epochs of minibatches, with each member's own sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from evopipe import rng
from evopipe.core.cohort import BATCH_MULTIPLE, Cohort
from evopipe.core.graphs import Body, upload
from evopipe.core.padded import round_up
from evopipe.memory.rollout import Rollout
from evopipe.native.policy import Lessons
from evopipe.regimes.learn import UPDATES_PER_TICK
from evopipe.regimes.probe import Probe
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import EnvSpec


@dataclass(frozen=True)
class _Plan:
    """How a cohort goes through rollouts of one length: constants of its members' hyper-parameters.

    A minibatch has room for `width` sequences. For members of one batch bucket it depends on nothing else, so that a
    member's sums run over as many numbers beside any neighbours; and its steps fill whole vectors.
    """

    stretches: list[tuple[int, int]]  # (first tick, end) of a rollout's sequences; single ticks without recurrence
    envs: int  # E
    batches: list[int]  # each member's minibatches in an epoch
    sizes: list[int]  # sequences in each of them
    width: int
    epochs: list[int]  # each member's
    device: torch.device  # where index tensors live

    @classmethod
    def of(cls, spec: EnvSpec, cohort: Cohort, rollout: Rollout, ticks: int) -> _Plan:
        cfg, envs = spec.algo_config, rollout.rows.shape[2] // spec.spaces.agents
        recurrent = rollout.memory.shape[-1] > 0
        stretches = _windows(ticks, cfg.max_seq_len if recurrent else 1, cfg.sequences if recurrent else "chunked")
        longest, count = max(end - first for first, end in stretches), len(stretches) * envs
        asked = [int(member.hyper["batch_size"]) for member in cohort.members]
        *batches, _ = divided = [-(-count // min(max(1, steps // longest), count)) for steps in (*asked, cohort.batch)]
        *sizes, widest = [-(-count // n) for n in divided]
        width = round_up(widest, BATCH_MULTIPLE // math.gcd(longest, BATCH_MULTIPLE))
        epochs = [int(member.hyper["epochs"]) for member in cohort.members]
        return cls(stretches, envs, batches, sizes, width, epochs, spec.device)

    @property
    def count(self) -> int:
        return len(self.stretches) * self.envs

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Places in a shuffled epoch `[P, U, B]` of each minibatch's sequences, and which there are."""
        update, j = torch.arange(max(self.batches))[None, :, None], torch.arange(self.width)
        sizes = torch.tensor(self.sizes)[:, None, None]
        place = update * sizes + j
        given = (j < sizes) & (place < self.count) & (update < torch.tensor(self.batches)[:, None, None])
        return upload(place.clamp(max=self.count - 1), self.device), upload(given, self.device)

    @cached_property
    def ticks(self) -> tuple[Tensor, Tensor]:
        """Ticks of every stretch `[W, L]`, and which of them are no pads."""
        return _ticks_of(tuple(self.stretches), self.device)

    @cached_property
    def epoch_given(self) -> Tensor:
        """Whether a member takes part in an epoch, `[epochs, P]`."""
        return upload(torch.arange(max(self.epochs))[:, None] < torch.tensor(self.epochs), self.device)


def _windows(ticks: int, longest: int, cut: Literal["chunked", "overlapping", "whole"]) -> list[tuple[int, int]]:
    """Return the stretches (first tick, end) of at most `longest` ticks that a rollout is cut into.

    `chunked`: one after another; `overlapping`: each begins in the middle of the one before; `whole`: all is one.
    """
    if cut == "whole" or longest >= ticks:
        return [(0, ticks)]
    stride = longest if cut == "chunked" else longest - longest // 2
    last = ticks - longest if cut == "overlapping" else ticks - 1
    return [(first, min(first + longest, ticks)) for first in range(0, last + stride, stride) if first < ticks]


@lru_cache(maxsize=16)
def _ticks_of(stretches: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """See `_Plan.ticks`. All rollouts but a generation's last have the same length: they are kept, never written."""
    first, end = torch.tensor(stretches).T[:, :, None]
    tick = first + torch.arange(int((end - first).max()))
    return upload(torch.minimum(tick, end - 1), device), upload(tick < end, device)


def learn_from_rollout(spec: EnvSpec, cohort: Cohort, rollout: Rollout, ticks: int, tick: int) -> Tensor:
    """Update P members in place from a rollout; return the losses `[P]` of their last minibatches.

    The tick and the members' keys determine the random draws.

    Args:
        spec: the run's configuration.
        cohort: the members.
        rollout: the rollout.
        ticks: members learn from the first `ticks` ticks (environment steps) of the rollout.
        tick: the number of the present tick of the run.
    """
    ready(spec, cohort, rollout, ticks, tick)()
    return cohort.losses


def ready(spec: EnvSpec, cohort: Cohort, rollout: Rollout, ticks: int, tick: int) -> Callable[[], Any]:
    """Return a function without arguments that lets members learn from a rollout, as `learn_from_rollout` does.

    The returned function updates the members and their losses in place. Its return value has no meaning.

    Args:
        spec: the run's configuration.
        cohort: the members.
        rollout: the rollout.
        ticks: members learn from the first `ticks` ticks (environment steps) of the rollout.
        tick: the number of the present tick of the run.
    """
    factors = spec.algo.schedule(spec.algo_config, tick * spec.env.num_envs)

    def make(compiled: Callable[[Any], Any]) -> Body:
        plan = _Plan.of(spec, cohort, rollout, ticks)
        return partial(_epochs, spec, compiled(spec.algo.update), cohort.without_runner, rollout, plan, list(factors))

    def bound() -> list[Tensor]:
        return [*rollout.tensors(), cohort.keys, *cohort.hyper.values()]

    def written() -> list[Tensor]:
        return [*cohort.tensors(), cohort.healthy, cohort.losses]

    inputs = [torch.tensor([tick * UPDATES_PER_TICK]), torch.tensor(list(factors.values()))]
    return cohort.runner.ready(("learn", ticks), make, inputs, spec.device, bound, written)


def probe_rollout(spec: EnvSpec, cohort: Cohort, rollout: Rollout, ticks: int, tick: int, probe: Probe) -> None:
    """Record training metrics of a cohort, which has just learned from a rollout. To do so, make an extra update on a
    minibatch of this rollout.

    Args:
        spec: the run's configuration.
        cohort: the members.
        rollout: the rollout.
        ticks: the members learned from the first `ticks` ticks (environment steps) of the rollout.
        tick: the number of the present tick, counted in the run.
        probe: the recorder of metrics, which makes the update on copies of the members.
    """
    plan, when = _Plan.of(spec, cohort, rollout, ticks), upload(torch.tensor([tick]), spec.device)
    hyper = {**cohort.hyper}
    for name, factor in spec.algo.schedule(spec.algo_config, tick * spec.env.num_envs).items():
        hyper[name] = hyper[name] * factor
    (place, given), (stretch_ticks, within) = plan.places, plan.ticks
    order = rng.shuffled(cohort.keys, Purpose.PROBE, when, plan.count)[:, 0]
    chosen = order.gather(1, place[:, 0])  # [P, B]
    stretch, env = chosen // plan.envs, chosen % plan.envs
    weight = (within[stretch] & given[:, 0, :, None]).float()
    batch = rollout.sequences(stretch_ticks[stretch], env, weight)
    probe.take(cohort, batch, Stream(cohort.keys, Purpose.PROBE, when), rollout.signals(ticks), hyper)


def _epochs(
    spec: EnvSpec,
    update: Any,
    cohort: Cohort,
    rollout: Rollout,
    plan: _Plan,
    names: Sequence[str],
    when: Tensor,
    factors: Tensor,
) -> tuple[()]:
    """Estimate advantages, then go through all minibatches, on the device, in place. `factors` are what the
    hyper-parameters `names` are multiplied by at this tick."""
    hyper = {**cohort.hyper, **{n: cohort.hyper[n] * f for n, f in zip(names, factors.unbind(), strict=True)}}
    healthy, ticks = cohort.healthy, plan.stretches[-1][1]
    next_value = spec.algo.value(spec.algo_config, cohort.state, *rollout.following(ticks))
    rollout.estimate(ticks, next_value, hyper["gamma"], hyper["gae_lambda"])
    if spec.algo.learn is not None and update is spec.algo.update:

        def orders() -> Tensor:
            steps = when + torch.arange(max(plan.epochs))
            return rng.shuffled(cohort.keys, Purpose.REPLAY, steps, plan.count)

        lessons = Lessons(rollout.rows, rollout.memory, orders, *plan.ticks, plan.batches, plan.sizes, plan.epochs)
        learned = spec.algo.learn(spec.algo_config, cohort.state, hyper, lessons, healthy)
        if learned is not None:
            cohort.healthy.copy_(learned.healthy)
            cohort.losses.copy_(learned.losses)
            return ()
    losses = torch.full_like(healthy, torch.nan, dtype=torch.float32)
    (place, given), (tick, within) = plan.places, plan.ticks
    for epoch in range(max(plan.epochs)):
        now = when + epoch
        order = rng.shuffled(cohort.keys, Purpose.REPLAY, now, plan.count)[:, 0]
        chosen = order.gather(1, place.flatten(1)).view_as(place)  # [P, U, B], which sequence
        stretch, env = chosen // plan.envs, chosen % plan.envs
        taken = given & plan.epoch_given[epoch][:, None, None]
        for i in range(max(plan.batches)):
            weight = (within[stretch[:, i]] & taken[:, i, :, None]).float()
            batch = rollout.sequences(tick[stretch[:, i]], env[:, i], weight)
            draw = Stream(cohort.keys, Purpose.UPDATE, now)
            turn = int(epoch > 0 or i > 0)  # a compiler makes code for each number that it sees
            last, healthy, _ = update(spec.algo_config, cohort.state, hyper, batch, healthy, draw, turn)
            losses = torch.where(taken[:, i, 0], last, losses)
    cohort.healthy.copy_(healthy)
    cohort.losses.copy_(losses.detach())
    return ()
