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
    """One convolution of the stem, the convolutional part of a network.

    Attributes:
        channels: the number of output channels.
        kernel: the width and height of the kernel.
        stride: the stride.
        padding: the rows and columns of zeros added at each side. A mutation of the kernel keeps the output size, so a
            kernel larger than the configured one has padding above 0. For a smaller kernel it is negative, and the
            input is cropped.
    """

    channels: int
    kernel: int
    stride: int
    padding: int = 0

    def describe(self) -> str:
        """Return a short text with the channels, the kernel size and the stride if it is above 1, such as `32k3` or
        `32k3/2`."""
        return f"{self.channels}k{self.kernel}" + (f"/{self.stride}" if self.stride > 1 else "")


class Stem(NamedTuple):
    """The convolutional part of a network: each image of the input goes through all convolutions, one after the other.

    Attributes:
        images: the places of the images in the input.
        convs: the convolutions.
    """

    images: tuple[Image, ...] = ()
    convs: tuple[Conv, ...] = ()

    def shapes(self, image: Image) -> list[tuple[int, int, int]]:
        """Return the shapes (channels, height, width) of an image and of the outputs of all convolutions, in order."""
        found = [(image.channels, image.height, image.width)]
        for conv in self.convs:
            height, width = ((side + 2 * conv.padding - conv.kernel) // conv.stride + 1 for side in found[-1][1:])
            found.append((conv.channels, height, width))
        return found

    def misfit(self) -> str | None:
        """Return why the convolutions do not fit the images, as a sentence; None if they fit.

        A convolution does not fit if its kernel is larger than what it reads: an image, or the output of the
        convolution before it.
        """
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
        """Return (name, rows, columns) of the weight matrix of every convolution of every image, image by image.

        The name `conv.0.1` stands for image 0 and convolution 1. `rows` is the number of input channels times kernel²,
        and `columns` the number of output channels.
        """
        return [
            (f"conv.{i}.{j}", before[0] * conv.kernel**2, conv.channels)
            for i, image in enumerate(self.images)
            for j, (before, conv) in enumerate(zip(self.shapes(image), self.convs, strict=False))
        ]

    def vector(self, inputs: int) -> int:
        """Return the number of columns that belong to no image, in a network's input with `inputs` columns."""
        return inputs - sum(image.size for image in self.images)

    def features(self) -> list[tuple[int, int]]:
        """Return for every image the size of its last feature map, as a pair (channels, height · width).

        The product of both numbers of a pair is the number of the image's features.
        """
        return [(c, h * w) for c, h, w in (self.shapes(image)[-1] for image in self.images)]

    def reads(self, inputs: int) -> int:
        """Return the number of inputs of the encoder behind the stem, for observations with `inputs` columns.

        The encoder reads the columns that belong to no image, and the features that the convolutions compute of the
        images.
        """
        return self.vector(inputs) + sum(c * places for c, places in self.features())

    def work(self) -> int:
        """Return the number of multiplications of all convolutions for one input."""
        total = 0
        for image in self.images:
            shapes = self.shapes(image)
            for before, (channels, height, width), conv in zip(shapes, shapes[1:], self.convs, strict=False):
                total += before[0] * conv.kernel**2 * channels * height * width
        return total

    def run(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], runs: Sequence[tuple[str, int, int]]) -> Tensor:
        """Compute the convolutions of all images in the inputs; return the inputs with features in place of images.

        The result is `[P, B, n]`: first the numbers that belong to no image, then the features. The method `reads`
        gives n.

        Args:
            x: `[P, B, inputs]`, B inputs of each of P members.
            layers: weight `[P, channels in · kernel², channels out]` and bias `[P, 1, channels out]` of each
                convolution, in the order in which the method `parts` lists them.
            runs: a triple (activation, first, end) for each activation: the members `first` to `end` (exclusive) use
                it.
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
