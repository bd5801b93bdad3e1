"""Whole updates of one Q-network by the CPU's own kernels; `algos.dqn`, `cqn` and `rainbow` have the same in torch."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from evopipe.native import build, dense
from evopipe.native.build import at, kernels
from evopipe.native.learn import owned
from evopipe.native.networks import BETA1, BETA2, EPS, Adam, Net
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Learned, Tensor

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
    if not build.serve(batch.obs) or batch.obs.dtype != torch.float32:
        return None
    learned = () if noise is None else (noise.scale, noise.target, noise.adam)
    given = target, adam, updates, batch, *rates, alpha, support, *learned, double, huber, interval, dueling

    def made() -> dense.Job | None:
        members, rows, inputs = batch.obs.shape
        plan, atoms = dense.plan_of(online, inputs), 1 if support is None else len(support)
        if plan is None or plan.members != members or not rows or max(atoms, plan.out // atoms) > MOST:
            return None
        obs, next_obs = map(_by_rows, (batch.obs, batch.next_obs))
        kept: list[Tensor | None] = [obs, next_obs]
        rest = batch.action, batch.reward, batch.discount, batch.weight, batch.next_legal, batch.legal
        kept += [None if x is None else x.contiguous() for x in rest]
        kept += [None if x is None else x.float().contiguous() for x in (*rates, alpha, support)]
        names = "action reward discount weight next_legal legal lr limit tau alpha support"
        job = build.structure("value_job")(
            rows=rows, inputs=inputs, actions=plan.out // atoms - dueling, outputs=plan.out, layers=plan.layers,
            widest=plan.widest, twice=double, huber=huber, interval=interval, atoms=atoms, dueling=dueling,
            keep=plan.room, size=online.structure.size, plan=at(plan.fields), own=at(owned(online.structure)),
            values=at(online.values), stride=online.values.stride(0),
            target=at(target.values), target_stride=target.values.stride(0),
            mean=at(adam.mean), square=at(adam.square), moment_stride=adam.mean.stride(0), steps=at(adam.steps),
            updates=at(updates), obs=at(obs), obs_member=obs.stride(0), obs_row=obs.stride(1),
            next_obs=at(next_obs), next_member=next_obs.stride(0), next_row=next_obs.stride(1),
            beta1=BETA1, beta2=BETA2, eps=EPS, **dict(zip(names.split(), map(at, kept[2:]), strict=True)),
        )  # fmt: skip
        if noise is not None:
            _tell_noise(job, online, noise)
        return dense.Job(job, (batch.obs, batch.next_obs, *rest, *rates, alpha, support), kept)

    found = dense.kept(online, given, made)
    if found is None:
        return None
    job: Any = found.told
    healthy, losses, errors = healthy.clone(), torch.empty_like(rates[0]), torch.empty_like(batch.reward)
    job.losses, job.errors, job.healthy = at(losses), at(errors), at(healthy)
    if noise is not None:
        job.keys, job.step = at(noise.draw.keys), at(noise.draw.step)
    kernels().value_update(ctypes.byref(job), len(losses))
    return Learned(losses, healthy, errors)


def _by_rows(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _tell_noise(job: ctypes.Structure, online: Net, noise: Noise) -> None:
    (scale, target, adam, draw), structure = noise, online.structure
    told = {
        "noisy": structure.behind_latent, "salt": salt(draw.purpose),
        "noise": at(scale.values), "noise_stride": scale.values.stride(0),
        "noise_target": at(target.values), "noise_target_stride": target.values.stride(0),
        "noise_mean": at(adam.mean), "noise_square": at(adam.square), "noise_moment_stride": adam.mean.stride(0),
        "noise_steps": at(adam.steps),
    }  # fmt: skip
    for name, value in told.items():
        setattr(job, name, value)
