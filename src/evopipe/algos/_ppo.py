"""What PPO and its forms for teams have in common: hyper-parameters, what a step adds to the loss, and the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch

from evopipe.algos import _hyper
from evopipe.core import optim
from evopipe.core.net import Net
from evopipe.schema.declare import hyper
from evopipe.schema.network import InitialisationConfig, NetworkConfig
from evopipe.types import Hyper, Learned, Sequences, Tensor

BatchSize = Annotated[int, hyper(doc="steps in a minibatch, at most `learn_step`", raising="fewer, steadier updates",
    evolvable=True, ge=1, le=1 << 20)]  # fmt: skip
LearnStep = Annotated[int, hyper(
    doc="steps of a rollout, over all environments of a member; rounded up to a multiple of `num_envs`",
    unit="environment steps", raising="steadier but fewer updates", evolvable=True, ge=1, le=1 << 24)]  # fmt: skip
Epochs = Annotated[int, hyper(doc="passes over the data of each rollout",
    raising="learns more from each rollout, less on-policy", evolvable=True, ge=1, le=100)]  # fmt: skip
Lambda = Annotated[float, hyper(doc="λ of generalised advantage estimation", raising="less bias, more variance",
    evolvable=True, ge=0, le=1)]  # fmt: skip
Clip = Annotated[float, hyper(doc="ε; the probability ratio is clipped to 1 ± ε", raising="larger steps of the policy",
    evolvable=True, gt=0)]  # fmt: skip
ClipValue = Annotated[bool, hyper(doc="whether values are clipped to the old values ± ε")]
ValueWeight = Annotated[float, hyper(doc="weight of value losses", raising="values learn faster", evolvable=True, ge=0)]
EntropyWeight = Annotated[float, hyper(doc="weight of the entropy term", raising="explores more", evolvable=True, ge=0)]
GradientClip = Annotated[float, hyper(doc="norm to which gradients are clipped, of all networks together",
    raising="allows larger steps", evolvable=True, gt=0)]  # fmt: skip
TargetDistance = Annotated[float, hyper(
    doc="KL divergence from the old policy at which the epochs of a rollout end early; 0: never", unit="nats",
    raising="stops later", evolvable=True, ge=0)]  # fmt: skip
DecaySteps = Annotated[int, hyper(unit="environment steps", raising="decays more slowly", ge=0, le=10**12,
    doc="steps of a member until learning rate and clip reach `lr_end`, `clip_end`; 0: they are constant")]  # fmt: skip
RateEnd = Annotated[float, hyper(doc="final learning rate, as a share of `lr`", raising="learns more late", ge=0, le=1)]
ClipEnd = Annotated[float, hyper(doc="final clip, as a share of `clip`", raising="larger steps late", ge=0, le=1)]
Deviation = Annotated[float, hyper(doc="initial standard deviation of continuous actions",
    raising="explores more", gt=0)]  # fmt: skip
Squash = Annotated[bool, hyper(
    doc="whether tanh squashes continuous actions; else they are clipped to the environment's bounds")]  # fmt: skip
Longest = Annotated[int, hyper(doc="longest sequence in a minibatch of a recurrent network", unit="steps",
    raising="gradients reach further back", ge=1, le=1 << 16)]  # fmt: skip
Cut = Annotated[Literal["chunked", "overlapping", "whole"], hyper(
    doc="sequences of recurrent networks: `chunked` at `max_seq_len`, `overlapping` by half, or `whole`")]  # fmt: skip
# The policy begins near uniform, the value at its own scale (Andrychowicz et al., "What matters in on-policy
# reinforcement learning?", 2021; decision 0032).
NETWORK = NetworkConfig(initialisation=InitialisationConfig(biases="auto", acting=0.01, others=1.0))
RANGES = _hyper.ranges(
    lr=(1e-4, 1e-2), batch_size=(32, 1024), learn_step=(256, 8192), ent_coef=(1e-3, 0.1), epochs=(1, 10)
)


def schedule(cfg: Any, step: int) -> dict[str, float]:
    """Return the factors of the hyper-parameters `lr` and `clip`, by name, after `step` environment steps of a member.

    `cfg` is the algorithm's configuration, with the fields `lr_end`, `clip_end` and `decay_steps`. The factors go
    linearly from 1 to `lr_end` and `clip_end` over `decay_steps` steps. If `decay_steps` is 0, they are always 1.
    """
    done = min(1.0, step / cfg.decay_steps) if cfg.decay_steps else 0.0
    return {"lr": 1.0 + done * (cfg.lr_end - 1.0), "clip": 1.0 + done * (cfg.clip_end - 1.0)}


def descend(
    loss: tuple[Tensor, Tensor], log_std: Tensor, pairs: Sequence[tuple[Net | None, optim.Adam | None]], cfg: Any,
    state: Any, hp: Hyper, batch: Sequences, healthy: Tensor, turn: int,
) -> Learned:  # fmt: skip
    """Take one gradient step on a minibatch of a rollout, in place.

    Return the losses, and which members are still healthy (all their numbers are finite). A member whose policy is
    further than `target_kl` from the old policy, which collected the rollout, makes no more updates until its next
    rollout.

    Args:
        loss: the members' losses, and the distances of their policies from the old policies, `[P]` each.
        log_std: the logarithms of the standard deviations of actions, as a leaf of autograd that shares memory with the
            state, see `optim.leaf`. They are trained only if actions are continuous.
        pairs: the networks with their Adam moments; pairs with None are skipped.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: the minibatch.
        healthy: `[P]` bool, the members that learn.
        turn: 0 for the first minibatch of the rollout, else 1.
    """
    learners = [(net, adam) for net, adam in pairs if net is not None and adam is not None]
    losses, distance = loss
    assert log_std.grad is not None
    optim.backward(losses, *(net for net, _ in learners))
    norms = optim.clip_together([*(net.grad for net, _ in learners), log_std.grad], hp["grad_clip"])
    given = batch.weight.flatten(1, 2).sum(dim=1) > 0
    far = given & (hp["target_kl"] > 0) & (distance > hp["target_kl"])
    state.resting.copy_(far if turn == 0 else torch.maximum(state.resting, far.float()))
    learning = given & (state.resting == 0)
    healthy = torch.where(learning, healthy & ((losses + norms).abs() < torch.inf), healthy)
    learning = learning & healthy
    for net, adam in learners:
        optim.step(net, adam, hp["lr"], learning)
    if cfg.spaces.numbers:
        optim.ScalarAdam.step(state.log_std, state.log_std_adam, log_std.grad, hp["lr"][:, None], learning[:, None])
    state.updates.add_(learning)
    return Learned(losses.detach(), healthy)
