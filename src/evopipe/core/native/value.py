"""Whole updates of one Q-network by the CPU's own kernels; `algos.dqn`, `cqn` and `rainbow` have the same in torch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from evopipe.core.native import build, dense
from evopipe.core.native.build import at, kernels
from evopipe.core.optim import BETA1, BETA2, EPS, Adam
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Learned, Tensor

if TYPE_CHECKING:
    from evopipe.core.net import Net
    from evopipe.core.padded import Padded

MOST = 1008  # atoms, and actions, that the kernels have room for


class Noise(NamedTuple):
    """Learned noise on the weights behind the latent, see `core.padded.noisy`: its scales, those of the target, their
    moments, and what it is drawn from: `part(1)` is the network's, `part(2)` the target's."""

    scale: Net
    target: Net
    adam: Adam
    draw: Stream


def update(
    online: Net, target: Net, adam: Adam, updates: Tensor, batch: Batch, healthy: Tensor, rates: tuple[Tensor, ...],
    *, double: bool, huber: bool, interval: int = 0, alpha: Tensor | None = None, dueling: bool = False,
    support: Tensor | None = None, noise: Noise | None = None,
) -> Learned | None:  # fmt: skip
    """Take one step in place, and mix the target; None where torch must.

    Rates are the learning rate, the limit of the gradient's norm and the share that the target takes over, `[P]` each;
    where `interval` is not 0 the target takes over all after so many updates. Alpha `[P]` weighs the conservative term.
    Support `[K]` are the returns that the outputs' atoms stand for; without it an action has one output. Rows of weight
    0 at a batch's end are not looked at: their errors are 0.
    """
    others = () if noise is None else (noise.scale, noise.target)
    plan = dense.whole(batch.obs, online, target, *others)
    atoms = 1 if support is None else len(support)
    if plan is None or max(atoms, plan.out // atoms) > MOST:
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
    job = build.structure("value_job")(
        rows=rows, inputs=inputs, actions=plan.out // atoms - dueling, outputs=plan.out, layers=plan.layers,
        widest=plan.widest, twice=double, huber=huber, interval=interval, atoms=atoms, dueling=dueling,
        keep=plan.room, size=online.structure.size, plan=at(plan.fields),
        values=at(online.values), stride=online.values.stride(0),
        target=at(target.values), target_stride=target.values.stride(0),
        mean=at(adam.mean), square=at(adam.square), moment_stride=adam.mean.stride(0), steps=at(adam.steps),
        updates=at(updates), losses=at(losses), errors=at(errors), healthy=at(healthy),
        obs=at(obs), obs_member=obs.stride(0), obs_row=obs.stride(1),
        next_obs=at(next_obs), next_member=next_obs.stride(0), next_row=next_obs.stride(1),
        action=at(action), reward=at(reward), discount=at(discount), weight=at(weight),
        next_legal=at(next_legal), legal=at(legal), lr=at(lr), limit=at(limit), tau=at(tau), alpha=at(alpha),
        support=at(support), beta1=BETA1, beta2=BETA2, eps=EPS,
    )  # fmt: skip
    if noise is not None:
        _tell_noise(job, online, noise)
    kernels().value_update(members, ctypes.byref(job))
    return Learned(losses, healthy, errors)


def _tell_noise(job: ctypes.Structure, online: Net, noise: Noise) -> None:
    (scale, target, adam, draw), structure = noise, cast("Padded", online.structure)
    told = {
        "noisy": structure.behind_latent, "salt": salt(draw.purpose),
        "keys": at(draw.keys), "step": at(draw.step),
        "noise": at(scale.values), "noise_stride": scale.values.stride(0),
        "noise_target": at(target.values), "noise_target_stride": target.values.stride(0),
        "noise_mean": at(adam.mean), "noise_square": at(adam.square), "noise_moment_stride": adam.mean.stride(0),
        "noise_steps": at(adam.steps),
    }  # fmt: skip
    for name, value in told.items():
        setattr(job, name, value)
