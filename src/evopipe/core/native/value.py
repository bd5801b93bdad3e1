"""Whole updates of one Q-network by the CPU's own kernels; `algos.dqn` and `algos.cqn` have the same in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evopipe.core.native import dense
from evopipe.core.native.build import at, kernels
from evopipe.core.optim import BETA1, BETA2, EPS, Adam
from evopipe.types import Batch, Learned, Tensor

if TYPE_CHECKING:
    from evopipe.core.net import Net


def update(
    online: Net, target: Net, adam: Adam, updates: Tensor, batch: Batch, healthy: Tensor, rates: tuple[Tensor, ...],
    *, double: bool, huber: bool, interval: int = 0, alpha: Tensor | None = None,
) -> Learned | None:  # fmt: skip
    """Take one step in place, and mix the target; None where torch must.

    Rates are the learning rate, the limit of the gradient's norm and the share that the target takes over, `[P]` each;
    where `interval` is not 0 the target takes over all after so many updates. Alpha `[P]` weighs the conservative term.
    Rows of weight 0 at a batch's end are not looked at: their errors are 0.
    """
    plan = dense.whole(batch.obs, online, target)
    if plan is None:
        return None
    members, rows, inputs = batch.obs.shape
    obs, next_obs = (x if x.stride(2) == 1 else x.contiguous() for x in (batch.obs, batch.next_obs))
    action, reward, discount, weight = (
        x.contiguous() for x in (batch.action, batch.reward, batch.discount, batch.weight)
    )
    next_legal, legal = (None if x is None else x.contiguous() for x in (batch.next_legal, batch.legal))
    lr, limit, tau = (x.float().contiguous() for x in rates)
    alpha = None if alpha is None else alpha.float().contiguous()
    healthy, losses, errors = healthy.clone(), torch.empty_like(lr), torch.empty_like(reward)
    kernels().value_update(
        at(plan.fields), plan.layers, members, rows, inputs, plan.out, plan.room, plan.widest, online.structure.size,
        at(online.values), online.values.stride(0), at(target.values), target.values.stride(0),
        at(adam.mean), at(adam.square), adam.mean.stride(0), at(adam.steps),
        at(obs), obs.stride(0), obs.stride(1), at(next_obs), next_obs.stride(0), next_obs.stride(1),
        at(action), at(reward), at(discount), at(next_legal), at(legal), at(weight), at(lr), at(limit), at(tau),
        at(alpha), double, huber, interval, BETA1, BETA2, EPS, at(updates), at(losses), at(healthy), at(errors),
    )  # fmt: skip
    return Learned(losses, healthy, errors)
