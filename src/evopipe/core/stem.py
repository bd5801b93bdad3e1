"""The convolutional stem: turns the images in a network's input into features that its encoder reads.

Every image has its own convolutions, all of the same shape. Their flattened outputs come after the input's other
columns. The weight of a convolution is `[channels in · kernel², channels out]`. The members of a cohort have equal
stems, so that nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from evopipe.core.layers import activate
from evopipe.types import Image, Tensor


class Conv(NamedTuple):
    """One convolution of the stem.

    A mutation of the kernel keeps the size of the output: a kernel larger than the configured one pads its input by
    `padding`; for a smaller one `padding` is negative, and the input is cropped.
    """

    channels: int
    kernel: int
    stride: int
    padding: int = 0

    def describe(self) -> str:
        """Return a short text: `32k3`, or `32k3/2` with a stride of 2."""
        return f"{self.channels}k{self.kernel}" + (f"/{self.stride}" if self.stride > 1 else "")


class Stem(NamedTuple):
    images: tuple[Image, ...] = ()
    convs: tuple[Conv, ...] = ()

    def shapes(self, image: Image) -> list[tuple[int, int, int]]:
        """Return (channels, height, width) of an image, and of the output of each convolution."""
        found = [(image.channels, image.height, image.width)]
        for conv in self.convs:
            height, width = ((side + 2 * conv.padding - conv.kernel) // conv.stride + 1 for side in found[-1][1:])
            found.append((conv.channels, height, width))
        return found

    def misfit(self) -> str | None:
        """Return where an image is smaller than a kernel, as a sentence; None if all kernels fit."""
        for image in self.images:
            for number, ((_, height, width), conv) in enumerate(zip(self.shapes(image), self.convs, strict=False), 1):
                if min(height, width) + 2 * conv.padding < conv.kernel:
                    return (
                        f"convolution {number} has a kernel of {conv.kernel}, larger than the {height} × {width} that "
                        f"reaches it from an image of {image.height} × {image.width}; take smaller kernels or strides, "
                        "fewer convolutions, or [] to read the image as plain numbers"
                    )
        return None

    def parts(self) -> list[tuple[str, int, int]]:
        """Return (name, rows, columns) of every convolution's weight, image by image: `conv.0.0` …"""
        return [
            (f"conv.{i}.{j}", before[0] * conv.kernel**2, conv.channels)
            for i, image in enumerate(self.images)
            for j, (before, conv) in enumerate(zip(self.shapes(image), self.convs, strict=False))
        ]

    def vector(self, inputs: int) -> int:
        """Return how many of the input's columns belong to no image."""
        return inputs - sum(image.size for image in self.images)

    def features(self) -> list[tuple[int, int]]:
        """Return (channels, positions) of the last feature map of every image. An image has channels · positions
        features."""
        return [(c, h * w) for c, h, w in (self.shapes(image)[-1] for image in self.images)]

    def reads(self, inputs: int) -> int:
        """Return how many numbers the encoder reads: the columns that belong to no image, and the features of the
        images. `inputs` is the width of an observation."""
        return self.vector(inputs) + sum(c * places for c, places in self.features())

    def work(self) -> int:
        """Return the multiplications for one input."""
        total = 0
        for image in self.images:
            shapes = self.shapes(image)
            for before, (channels, height, width), conv in zip(shapes, shapes[1:], self.convs, strict=False):
                total += before[0] * conv.kernel**2 * channels * height * width
        return total

    def run(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], runs: Sequence[tuple[str, int, int]]) -> Tensor:
        """Turn inputs `[P, B, inputs]` into what the encoder reads, `[P, B, reads]`.

        Args:
            x: the inputs.
            layers: weight `[P, channels in · kernel², channels out]` and bias `[P, 1, channels out]` of each
                convolution, in the order of `parts`.
            runs: see `activate`.
        """
        vector, found, at = [], [], 0
        for i, image in enumerate(self.images):
            vector.append(x[..., at : image.start])
            at = image.start + image.size
            z = x[..., image.start : at].unflatten(-1, image[1:])  # [P, B, C, height, width]
            for conv, (weight, bias) in zip(self.convs, layers[i * len(self.convs) :], strict=False):
                z = activate(_convolve(z, weight, bias, conv, grouped=x.device.type == "cuda"), runs)
            found.append(z.flatten(2))
        return torch.cat([*vector, x[..., at:], *found], dim=-1)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor, conv: Conv, grouped: bool) -> Tensor:
    """Convolve every row's own batch: `[P, B, C, h, w]` → `[P, B, channels, h′, w′]`. One convolution a row is twice as
    fast on a CPU as all rows in one, `grouped` as channels; on a GPU it is the other way round."""
    if conv.padding < 0:
        x = x[..., -conv.padding : conv.padding, -conv.padding : conv.padding]
    kernels = weight.transpose(1, 2).unflatten(-1, (x.shape[2], conv.kernel, conv.kernel))  # [P, channels, C, k, k]
    how, biases = (conv.stride, max(conv.padding, 0)), bias.flatten(1)
    if not grouped:
        rows = zip(x.unbind(0), kernels.unbind(0), biases.unbind(0), strict=True)
        return torch.stack([torch.nn.functional.conv2d(*row, *how) for row in rows])
    together = x.transpose(0, 1).flatten(1, 2)  # [B, P · C, h, w]
    out = torch.nn.functional.conv2d(together, kernels.flatten(0, 1), biases.flatten(), *how, groups=len(x))
    apart: Tensor = out.unflatten(1, (len(x), -1)).transpose(0, 1)
    return apart
