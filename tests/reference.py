"""Independent references, one member at a time with plain torch, for what the library computes with padded batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional as F

from evopipe.core.networks import Arch, Block, Widths, initialise, layer_names, named

ACTIVATIONS = {
    "ReLU": torch.relu,
    "ELU": F.elu,
    "GELU": F.gelu,
    "Tanh": torch.tanh,
    "LeakyReLU": F.leaky_relu,
    "SiLU": F.silu,
    "Softsign": F.softsign,
    "Sigmoid": torch.sigmoid,
    "Softplus": F.softplus,
    "Identity": lambda x: x,
}


def network(arch: Arch, parts: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """One member's network without pads: `[B, inputs]` → `[B, outputs]`; of an encoder `[B, latent]`.

    A layer whose parameters are not among the parts is not in this network.
    """
    for name, block in zip(layer_names(len(arch.encoder), len(arch.head)), arch.hidden, strict=True):
        if f"{name}.weight" not in parts:
            continue
        f = x @ parts[f"{name}.weight"] + parts[f"{name}.bias"]
        if arch.layer_norm:
            centred = f - f.mean(dim=1, keepdim=True)
            f = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
            f = f * parts[f"{name}.gain"] + parts[f"{name}.shift"]
        f = ACTIVATIONS[arch.activation](f)
        if block.blend:
            width = max(x.shape[1], f.shape[1])
            x, f = (F.pad(t, (0, width - t.shape[1])) for t in (x, f))
            f = x + parts[f"{name}.alpha"] * (f - x)
        x = f
    return x @ parts["output.weight"] + parts["output.bias"] if "output.weight" in parts else x


def function(arch: Arch, widths: Widths, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same from a flat row."""
    return network(arch, named(arch, widths, row), x)


def random_row(arch: Arch, widths: Widths, rng: np.random.Generator) -> torch.Tensor:
    """Parameters as training may leave them: no bias 0, no gain 1, no blend 0."""
    row = initialise(arch, widths, rng)
    for name, part in named(arch, widths, row).items():
        if name.endswith("alpha"):
            part.copy_(torch.from_numpy(rng.uniform(-0.3, 1.3, part.shape)))
        else:
            part.add_(torch.from_numpy(0.2 * rng.standard_normal(tuple(part.shape))).float())
    return row


def random_arch(rng: np.random.Generator, activation: str, norm: bool, narrowest: int = 1, widest: int = 70) -> Arch:
    """Any architecture: depths 0 to 3, widths that are no multiple of 16, blends."""

    def blocks() -> tuple[Block, ...]:
        return tuple(
            Block(int(rng.integers(narrowest, widest)), bool(rng.random() < 0.5)) for _ in range(rng.integers(4))
        )

    return Arch(blocks(), int(rng.integers(narrowest, widest)), blocks(), activation, norm)
