"""Independent references, one member at a time with plain torch, for what the library computes with padded batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.structure import Widths

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


def by_running(name: str, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """x `[B, n]` normalised by a layer's running statistics; `norm` has gains, shifts, means and variances."""
    gain, shift, mean, variance = norm.view(4, -1)
    return gain * (x - mean) / (variance + 1e-3).sqrt() + shift


Normalise = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]


def network(
    arch: Arch, parts: Mapping[str, torch.Tensor], x: torch.Tensor, normalise: Normalise = by_running
) -> torch.Tensor:
    """One member's network without pads: `[B, inputs]` → `[B, outputs]`; of an encoder `[B, latent]`.

    A layer whose parameters are not among the parts is not in this network. `normalise` is how inputs are read of
    layers that normalise them by batches.
    """

    def read(name: str, x: torch.Tensor) -> torch.Tensor:
        return normalise(name, x, parts[f"{name}.norm"]) if f"{name}.norm" in parts else x

    for name, block in arch.layers.items():
        if f"{name}.weight" not in parts:
            continue
        f = read(name, x) @ parts[f"{name}.weight"] + parts[f"{name}.bias"]
        if f"{name}.gain" in parts:
            centred = f - f.mean(dim=1, keepdim=True)
            f = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
            f = f * parts[f"{name}.gain"] + parts[f"{name}.shift"]
        f = ACTIVATIONS[arch.activation](f)
        if block.blend:
            width = max(x.shape[1], f.shape[1])
            x, f = (F.pad(t, (0, width - t.shape[1])) for t in (x, f))
            f = x + parts[f"{name}.alpha"] * (f - x)
        x = f
    return read("output", x) @ parts["output.weight"] + parts["output.bias"] if "output.weight" in parts else x


def function(
    arch: Arch, widths: Widths, row: torch.Tensor, x: torch.Tensor, normalise: Normalise = by_running
) -> torch.Tensor:
    """The same from a flat row."""
    return network(arch, arch.named(widths, row), x, normalise)


def random_row(arch: Arch, widths: Widths, rng: np.random.Generator) -> torch.Tensor:
    """Parameters as training may leave them: no bias 0, no gain 1, no blend 0."""
    row = arch.initialise(widths, rng)
    for name, part in arch.named(widths, row).items():
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


ROUNDINGS = 32
"""So many roundings of every number given may lie between two right ways to compute one thing."""


class Known(NamedTuple):
    """What a function computes of some numbers, and how well that can be known.

    Attributes:
        results: in float64.
        limits: how far each result moves if every number given moves by `ROUNDINGS` of its own type, up or down. No
            processor's order of sums, and no other formula, is held to more. (A normalisation over two units that lie
            close together knows little.)
    """

    results: list[torch.Tensor]
    limits: list[float]

    def agrees(self, *found: torch.Tensor) -> bool:
        """Whether these are the results, as far as rounding lets know."""
        return all(
            result.shape == right.shape and float((result - right).detach().abs().max()) <= limit
            for result, right, limit in zip(found, self.results, self.limits, strict=True)
        )


def known(function: Callable[..., Sequence[torch.Tensor]], *given: torch.Tensor) -> Known:
    """Return what `function` computes of tensors in float64, and how well it is known from numbers of their type."""
    generator, step = torch.Generator().manual_seed(0), ROUNDINGS * torch.finfo(given[0].dtype).eps
    exact = [tensor.double() for tensor in given]
    results = [result.detach() for result in function(*exact)]
    limits = [step * float(result.abs().max()) for result in results]
    signs = [2.0 * torch.randint(2, x.shape, generator=generator).double() - 1.0 for x in exact]
    for way in (step, -step):
        moved = function(*(x * (1.0 + way * sign) for x, sign in zip(exact, signs, strict=True)))
        distances = [float((a - b).detach().abs().max()) for a, b in zip(moved, results, strict=True)]
        limits = [max(pair) for pair in zip(limits, distances, strict=True)]
    return Known(results, limits)
