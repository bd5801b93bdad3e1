"""Whole updates of one Q-network by the native kernels; `algos.dqn`, `cqn` and `rainbow` have the same in torch."""

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
    """Make one update in place, and update the target network; return None if torch must do it.

    Args:
        of: the learners.
        rates: rows `[P]`: `lr_critic`, `grad_clip`, and `tau`, the weight with which the target follows; or `interval`,
            after how many updates the target is replaced. `alpha` weighs the conservative term.
        batch: the minibatch; rows of weight 0 at its end are skipped, and their errors are 0.
        healthy: `[P]`.
        double, huber, dueling: see the algorithms.
        support: `[K]`, the returns that the outputs' atoms stand for; without it each action has one output.
        draw: draws noise on the weights from `part(1)`, and the target's from `part(2)`.
    """
    if not build.serve_wholly(batch.obs) or batch.obs.dtype != torch.float32:
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
