"""The forward pass of all rows at once, and the readings of it that algorithms share."""

from __future__ import annotations

from typing import Any

import torch

from evopipe.core.net import Net


def forward(net: Net, x: torch.Tensor, views: Any = None) -> torch.Tensor:
    """Run every row's network on its own batch: `[P, B, inputs]` → `[P, B, outputs]`, of an encoder `[P, B, latent]`.

    One with a memory takes one step from an empty one.

    Args:
        net: the networks.
        x: inputs.
        views: parameters to use in the place of the network's own, for example noisy ones.
    """
    return net.structure.forward(net.views if views is None else views, x)


def encode(encoder: Net | None, obs: torch.Tensor) -> torch.Tensor:
    """Return what networks read: `[P, B, O]` → features `[P, B, latent]` of the encoder that they share, or, where they
    are whole and there is none, the observations."""
    return obs if encoder is None else forward(encoder, obs)


def interleave(*nets: Net) -> Net:
    """Return K like networks of every member as one whose rows are a member's next to each other: `[P · K, N]`."""
    values = torch.stack([net.values for net in nets], dim=1).flatten(0, 1)
    return Net(nets[0].structure.repeat(len(nets)), values, nets[0].trainable)


def forward_each(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Run a member's K networks on its one batch: `[P, B, inputs]` → `[P, K, B, outputs]`."""
    each = len(net.values) // len(x)
    out: torch.Tensor = forward(net, x.repeat_interleave(each, dim=0)).unflatten(0, (len(x), each))
    return out


def remember(net: Net | None, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one step with a memory.

    Args:
        net: the networks; None for a shared encoder where there is none: then x passes.
        x: `[P, B, inputs]`.
        memory: `[P, B, M]`, what the step before returned; zeros where an episode begins.

    Returns:
        `[P, B, outputs]`, and the memory `[P, B, M]` after the step.
    """
    if net is None or not net.structure.memory:
        return encode(net, x), memory
    return net.structure.remember(net.views, x, memory)


def unroll(net: Net | None, x: torch.Tensor, memory: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Take `L` steps with a memory; gradients flow back through all of them.

    Args:
        net: the networks; None for a shared encoder where there is none: then x passes.
        x: `[P, B, L, inputs]`.
        memory: `[P, B, M]` before the first step.
        begins: `[P, B, L]` bool: an episode begins at this step, so its memory is empty; no gradient passes.

    Returns:
        `[P, B, L, outputs]`.
    """
    if net is None:
        return x
    if net.structure.memory:
        return net.structure.unroll(net.views, x, memory, begins)
    out: torch.Tensor = forward(net, x.flatten(1, 2)).unflatten(1, x.shape[1:3])
    return out


def mu(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Return a deterministic actor's action, tanh(·): `[P, B, …]`, see `encode` → `[P, B, A]` in [−1, 1]."""
    return torch.tanh(forward(net, x))


def action_value(net: Net, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return Q(s, a) of a network that reads both: x `[P, B, …]`, see `encode`, action `[P, B, A]` → `[P, B]`."""
    return forward(net, _with_action(net, x, action)).squeeze(-1)


def action_values(net: Net, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return Q(s, a) of a member's K networks that read both, see `action_value`: `[P, K, B]`."""
    return forward_each(net, _with_action(net, x, action)).squeeze(-1)


def _with_action(net: Net, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """What a network reads: a head's own inputs stand before the latent, so that members' latents may differ."""
    return torch.cat((action, x) if net.structure.widths.role == "head" else (x, action), dim=-1)
