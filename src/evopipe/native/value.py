"""Whole updates of one Q-network by the native kernels; `algos.dqn`, `cqn` and `rainbow` have the same in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evopipe.native import build, dense, update
from evopipe.native.header import at
from evopipe.native.update import Learners, Recipe, Row
from evopipe.rng import Purpose, salt
from evopipe.types import Batch, Tensor

MOST = 1008  # atoms, and actions, that the kernels have room for


def value_recipe(
    of: Learners, rates: Mapping[str, Row], batch: Batch, *, double: bool, huber: bool, dueling: bool = False,
    support: Tensor | None = None,
) -> Recipe | None:  # fmt: skip
    """Return the `Recipe`, which tells the C kernels how to update one Q-network and its target network.

    The result is None if the kernels cannot make this update.

    The noise on a noisy network's weights is drawn from part 1 of the update's stream of random numbers (see
    `Stream.part`), and that on the target network's from part 2.

    Args:
        of: the learners (networks and optimisers).
        rates: numbers by name, each a float or a tensor `[P]` for P members. `lr_critic` is the learning rate, and
            `grad_clip` the limit of gradient norms. At every update the target network moves towards the online network
            by the weight `tau`. If `interval` is given, it instead becomes a copy every `interval` updates. If `alpha`
            is given, it is the weight of `ops.value.conservative_gap` in the loss.
        batch: a minibatch. Transitions of weight 0 at its end are skipped, and their errors are 0.
        double: whether the online network chooses the next action, as in double Q-learning.
        huber: whether the loss is the Huber loss instead of the squared error.
        dueling: whether the network is dueling: its outputs are a state value and advantages.
        support: `[K]`, the returns of the K atoms of a categorical distribution; None if each action has one output.
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
        noisy = of.noise is not None
        job = update.make(
            "value_job", of, settings, members, {"critic": inputs, "critic_target": inputs}, rates, [support],
            support=at(support), salt=salt(Purpose.UPDATE), actions=plan.out // atoms - dueling,
            outputs=plan.out, atoms=atoms, twice=double, huber=huber, dueling=dueling,
            noisy=of.critic.structure.behind_latent if noisy else 0,
        )  # fmt: skip
    return None if job is None or not batch.obs.shape[1] else Recipe("value_update", of, job)
