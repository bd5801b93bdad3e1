"""The forward pass of all rows at once: plain, residual, recurrent, convolutional and noisy networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from evopipe.core import lstm, stem
from evopipe.core.arch import LINE, own_layout
from evopipe.core.layers import activate, layer_norm, mix
from evopipe.core.net import Net, Views
from evopipe.core.structure import Structure
from evopipe.rng import Stream


def forward(net: Net, x: torch.Tensor, views: Sequence[Views] | None = None) -> torch.Tensor:
    """Run every row's network on its own batch: `[P, B, inputs]` → `[P, B, outputs]`, of an encoder `[P, B, latent]`.

    One with a memory takes one step from an empty one.

    Args:
        net: the networks.
        x: inputs.
        views: parameters to use in the place of the network's own, for example `noisy` ones.
    """
    s, views = net.structure, views or net.views
    x = _stem(net, x)
    if s.residual:
        x = _residual_encoder(s, views[: s.residual], x)
    if s.recurrent:
        x, _ = _lstm_step(s, views, x, x.new_zeros(*x.shape[:2], s.memory))
    return _dense(s, views, x)


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
        memory: `[P, B, M]`, what the step before returned; zeros where an episode begins. See `Structure.memory`.

    Returns:
        `[P, B, outputs]`, and the memory `[P, B, M]` after the step.
    """
    if net is None or not net.structure.memory:
        return encode(net, x), memory
    x, memory = _lstm_step(net.structure, net.views, _stem(net, x), memory)
    return _dense(net.structure, net.views, x), memory


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
    s = net.structure
    if not s.memory:
        out: torch.Tensor = forward(net, x.flatten(1, 2)).unflatten(1, x.shape[1:3])
        return out
    x, begins = x.transpose(1, 2), begins.transpose(1, 2)  # [P, L, B, …]: a step's rows lie together
    shape = x.shape[1:3]
    x = _lstm_sequence(s, net.views, _stem(net, x.flatten(1, 2)), memory, begins)
    y: torch.Tensor = _dense(s, net.views, x).unflatten(1, shape)
    return y.transpose(1, 2)


def _stem(net: Net, x: torch.Tensor) -> torch.Tensor:
    """What the encoder reads."""
    s = net.structure
    return stem.run(s.stem, x, net.convolutions, s.runs) if s.stem.convs else x


def _dense(s: Structure, views: Sequence[Views], x: torch.Tensor) -> torch.Tensor:
    """Plain hidden layers, which stand behind residual or recurrent ones, and the output layer where there is one."""
    first, end = s.residual + s.recurrent, len(s.masks)
    for i, layer in enumerate(views[first:end], first):
        f = torch.baddbmm(layer.bias, x, layer.weight)  # [P, B, H]
        if layer.gain is not None and layer.shift is not None:
            f = layer_norm(f, layer.gain, layer.shift, s.masks[i])
        x = _leave(s, i, layer, x, activate(f, s.runs))
    if not s.outputs:
        return x
    # A member's outputs begin a cache line: from elsewhere a product has other last bits on some processors.
    rows, columns = x.shape[1], views[end].weight.shape[-1]
    spare = 0 if torch.compiler.is_compiling() else -rows % (LINE // math.gcd(columns, LINE))
    out = torch.baddbmm(
        views[end].bias, torch.nn.functional.pad(x, (0, 0, 0, spare)) if spare else x, views[end].weight
    )
    return out if out.shape[1:] == (rows, s.outputs) else out[:, :rows, : s.outputs]


def _leave(s: Structure, i: int, layer: Views, x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """What leaves hidden layer `i`, which made f of x: masked, and blended with x, as its rows need."""
    mask, blend = s.mask_after[i], s.blends[i]
    if mask is not None:
        f = f * mask
    return f if blend is None else mix(x, f, blend, layer.alpha, s.layout.hidden[i].out)


def _lstm_step(
    s: Structure, views: Sequence[Views], x: torch.Tensor, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of all LSTM layers: x `[P, B, inputs]`, memory `[P, B, M]` → `[P, B, H]` and the memory after it."""
    pieces = memory.split(s.memory_widths, dim=-1)
    kept: list[torch.Tensor] = []
    for i, layer in enumerate(views[: s.recurrent]):
        assert layer.recurrent is not None
        sums = torch.baddbmm(layer.bias, x, layer.weight)
        h, c = lstm.cell(torch.baddbmm(sums, pieces[2 * i], layer.recurrent), pieces[2 * i + 1])
        kept += (h, c)
        x = _leave(s, i, layer, x, h)
    return x, torch.cat(kept, dim=-1)


def _lstm_sequence(
    s: Structure, views: Sequence[Views], x: torch.Tensor, memory: torch.Tensor, begins: torch.Tensor
) -> torch.Tensor:
    """Steps of all LSTM layers: x `[P, L · B, inputs]`, memory `[P, B, M]`, begins `[P, L, B]` → `[P, L · B, H]`."""
    pieces = memory.split(s.memory_widths, dim=-1)
    for i, layer in enumerate(views[: s.recurrent]):
        assert layer.recurrent is not None
        sums = torch.baddbmm(layer.bias, x, layer.weight).unflatten(1, begins.shape[1:])
        h = lstm.sequence(sums, layer.recurrent, pieces[2 * i], pieces[2 * i + 1], begins)
        x = _leave(s, i, layer, x, h.flatten(1, 2))
    return x


def _residual_encoder(s: Structure, views: Sequence[Views], x: torch.Tensor) -> torch.Tensor:
    """x₀ = W s + b, xᵢ = xᵢ₋₁ + back(act(out(pre(xᵢ₋₁)))), then pre(x) once more: `[P, B, inputs]` → `[P, B, latent]`.

    pre is a normalisation (SimBa, Lee et al., 2025) or the activation (ResNet, He et al., 2016).
    """
    latent, *blocks = views
    x = torch.baddbmm(latent.bias, x, latent.weight)
    inner = slice(1, s.residual)
    for block, mask, mask_after in zip(blocks, s.masks[inner], s.mask_after[inner], strict=True):
        f = torch.baddbmm(block.bias, _before(s, block, x), block.weight)
        f = activate(f, s.runs)
        if mask_after is not None:
            f = f * mask_after
        assert block.back is not None
        assert block.back_bias is not None
        # Where a member lacks the block its first unit is a pad, and its bias must not learn.
        bias = block.back_bias if mask is None else block.back_bias * mask[..., :1]
        x = x + torch.baddbmm(bias, f, block.back)
    return _before(s, latent, x)


def _before(s: Structure, block: Views, x: torch.Tensor) -> torch.Tensor:
    """What stands before a residual block: `[P, B, latent]` of the same shape."""
    if block.gain is not None and block.shift is not None:
        x = layer_norm(x, block.gain, block.shift, s.masks[0])
    else:
        x = activate(x.clone(), s.runs)
    return x if s.mask_after[0] is None else x * s.mask_after[0]


def noisy(net: Net, scale: Net, draw: Stream) -> list[Views]:
    """Return parameters with factorised Gaussian noise behind the latent (Fortunato et al., 2018, § 3.1 b).

    w + σ f(ε_in) f(ε_out), b + σ f(ε_out), f(x) = sign(x) √|x|; one draw a member, the same for its whole batch.

    Args:
        net: means.
        scale: σ of every parameter, a network of the same structure; of it only weights and biases are used.
        draw: the members' draws.
    """
    first = 1 + max(len(arch.encoder) for arch in net.structure.archs) if net.structure.widths.role == "whole" else 0
    found, layers = list(net.views[:first]), net.views[first:]
    most = max(max(layer.weight.shape[1:]) for layer in layers)
    drawn = draw.parts(len(layers)).normal(2 * most).view(len(layers), -1, most, 2)  # in pairs: pads shift nothing
    noise = drawn.sign() * drawn.abs().sqrt()
    for layer, sigma, own in zip(layers, scale.views[first:], noise, strict=True):
        rows, columns = layer.weight.shape[1:]
        into, out = own[:, :rows, 0], own[:, :columns, 1]
        weight = torch.addcmul(layer.weight, sigma.weight, into[:, :, None] * out[:, None, :])
        found.append(layer._replace(weight=weight, bias=torch.addcmul(layer.bias, sigma.bias, out[:, None, :])))
    return found


def noise_scale(structure: Structure, sigma: float) -> torch.Tensor:
    """Return the scales `[P, N]` that noisy networks begin with: σ / √(inputs) for weights and biases, 0 on pads."""
    rows = []
    for arch in structure.archs:
        own = own_layout(arch, structure.widths)
        row = torch.zeros(own.size)
        for layer in own.layers:
            for part in (layer.weight, layer.bias):
                row[part.start : part.start + part.rows * part.columns] = sigma * layer.weight.rows**-0.5
        rows.append(row)
    return structure.pack(rows)


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
