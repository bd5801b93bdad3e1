"""Whole updates of one Q-network by the CPU's own kernels; `algos.dqn`, `cqn` and `rainbow` have the same in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evopipe.native import build, dense, update
from evopipe.native.header import at
from evopipe.native.update import Learners, Row
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Learned, Tensor

MOST = 1008  # atoms, and actions, that the kernels have room for


def value_update(
    of: Learners, rates: Mapping[str, Row], batch: Batch, healthy: Tensor, *, double: bool, huber: bool,
    dueling: bool = False, support: Tensor | None = None, draw: Stream | None = None,
) -> Learned | None:  # fmt: skip
    """Take one step in place, and mix the target; None where torch must.

    Rates `[P]` are `lr_critic`, `grad_clip` and `tau`, the share that the target takes over; with `interval` it takes
    over all after so many updates; `alpha` weighs the conservative term. Support `[K]` are the returns that the
    outputs' atoms stand for; without it an action has one output. Noise on the weights is drawn from `part(1)` of
    `draw`, the target's from `part(2)`. Rows of weight 0 at a batch's end are not looked at: their errors are 0.
    """
    if not build.serve(batch.obs) or batch.obs.dtype != torch.float32:
        return None
    settings = *rates.values(), double, huber, dueling, support, batch.obs.shape[2]
    job = update.known(of, settings)
    if job is None:
        members, rows, inputs = batch.obs.shape
        plan, atoms = dense.plan_of(of.critic, inputs), 1 if support is None else len(support)
        if plan is None or plan.members != members or not rows or max(atoms, plan.out // atoms) > MOST:
            return None
        noisy = of.noise is not None and draw is not None
        job = update.make(
            "value_job", of, settings, members, {"critic": inputs, "critic_target": inputs}, rates, [support],
            support=at(support), salt=salt(draw.purpose) if noisy and draw else 0, actions=plan.out // atoms - dueling,
            outputs=plan.out, atoms=atoms, twice=double, huber=huber, dueling=dueling,
            noisy=of.critic.structure.behind_latent if noisy else 0,
        )  # fmt: skip
    if job is None or not batch.obs.shape[1]:
        return None
    return update.learn("value_update", of, job, batch, healthy, draw=draw if of.noise is not None else None)
