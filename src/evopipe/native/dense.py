"""Dense layers of several members by the native kernels; `core.padded` has the same in torch.

Both compute the same function: products, normalisation, activation and blending of each member's own units.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, get_args

import torch

from evopipe.native import build, header
from evopipe.native.header import at
from evopipe.native.networks import Net
from evopipe.schema.network import Activation
from evopipe.types import Tensor

ACTIVATIONS = get_args(Activation)  # `functions.h` counts them in the same order
_KEEP_INPUT = frozenset({"GELU", "SiLU"})
MOST = 64  # layers
PANEL = 32  # columns of a packed panel, at most
_NO_WAY_BACK = (0,) * 6


_units: list[tuple[Tensor, Tensor | None]] | None = None


@contextlib.contextmanager
def watched_units() -> Iterator[list[tuple[Tensor, Tensor | None]]]:
    """Record the mean activity of hidden units while the `with` block lasts, in the list that the context manager
    yields.

    Each forward pass through hidden layers adds a pair for its L layers, or a pair for each layer. The first entry of a
    pair, `[P, L, H]`, is the mean absolute output of each unit over the batch, for P members and H units with padding.
    The second entry is a mask `[P, L, H]`, which is above 0 for the units that a member has; it is None if all members
    have all units. Residual and LSTM layers add nothing.
    """
    global _units
    found: list[tuple[Tensor, Tensor | None]] = []
    _units = found
    try:
        yield found
    finally:
        _units = None


def saw(outputs: Tensor, mask: Tensor | None) -> None:
    """Record the outputs `[P, B, H]` of one hidden layer, if `watched_units` asks for them.

    `mask` `[P, 1, H]` is above 0 for the units that a member has; None if all members have all H units.
    """
    if _units is not None:
        _units.append((outputs.detach().abs().mean(dim=1, keepdim=True), mask))


@dataclass(frozen=True)
class LayerPlan:
    """The layout of the dense layers of several members' networks, in the form that the C kernels read.

    Attributes:
        fields: `[P, layers, 10]` int32, for each member and layer: its widths, the places of its parameters in the
            member's flat row of parameters, and its activation.
        members: P, the number of members.
        layers: the number of layers.
        start: the index in a flat row of parameters at which the first layer's weights begin.
        hidden: how many of the layers are hidden; the others are the output layer.
        room: the number of float32 numbers that the largest network keeps for the backward pass, for each input of a
            batch.
        widest: the largest width of any layer or input.
        out: the width of the output.
    """

    fields: Tensor
    members: int
    layers: int
    hidden: int
    start: int
    room: int
    widest: int
    out: int

    @cached_property
    def there(self) -> Tensor:
        """The mask of the hidden layers' units, `[P, layers, widest]` bool: true for the units that a member has."""
        hidden = self.fields[:, : self.hidden]
        return torch.arange(self.widest) < (hidden[..., 0] * (hidden[..., -1] == 0))[..., None]

    @classmethod
    def of(cls, structure: Any, first: int, inputs: int) -> LayerPlan:
        """Return the plan of the layers from one hidden layer to the output layer.

        Args:
            structure: the network's structure, see `core.padded.Padded`.
            first: the index of the first hidden layer of the plan.
            inputs: the number of inputs of that hidden layer.
        """
        hidden = list(enumerate(structure.layout.hidden))[first:]
        rows, room, widest = [], 0, inputs
        for arch in structure.archs:
            width, kept, found = inputs, 0, []
            for i, layer in hidden:
                block = arch.layers.get(structure.names[i])
                if block is None:
                    found.append([0] * 9 + [1])
                    continue
                n, parts = block.width, (layer.gain, layer.shift, layer.alpha if block.blend else None)
                spots = [part.start if part else -1 for part in (layer.weight, layer.bias, *parts)]
                found.append([n, layer.weight.columns, *spots, ACTIVATIONS.index(arch.activation), int(block.blend), 0])
                kept += n * (1 + (layer.gain is not None) + (arch.activation in _KEEP_INPUT)) + 1
                width = max(width, n) if block.blend else n
                kept += width * block.blend
                widest = max(widest, width)
            for layer in structure.layout.output:
                n, spots = structure.widths.outputs, [layer.weight.start, layer.bias.start, -1, -1, -1]
                found.append([n, layer.weight.columns, *spots, ACTIVATIONS.index("Identity"), 0, 0])
                kept, widest = kept + n, max(widest, n)
            rows.append(found)
            room = max(room, kept)
        every = [layer for _, layer in hidden] + [*structure.layout.output]
        out = structure.widths.outputs or (structure.layout.hidden[-1].out if hidden else inputs)
        fields = torch.tensor(rows, dtype=torch.int32).view(len(rows), len(every), 10)
        start = every[0].weight.start if every else 0
        return cls(fields, len(rows), len(every), len(hidden), start, room, widest, out)


def plan_of(net: Net, inputs: int, lstm: bool = False) -> LayerPlan | None:
    """Return the `LayerPlan` of a network's dense layers; None if the kernels cannot compute them.

    Args:
        net: the network.
        inputs: the number of the network's inputs.
        lstm: whether the network may begin with LSTM layers. If True, the plan begins after them. If False, the result
            is None for a network with LSTM layers.
    """
    structure: Any = getattr(net.structure, "inner", net.structure)
    if not build.serve(net.values) or net.values.dtype != torch.float32 or net.values.stride(1) != 1:
        return None
    if getattr(structure, "residual", True) or structure.layout.stem or structure.widths.renorm:
        return None
    if structure.recurrent and not lstm:
        return None
    first = structure.recurrent
    key = first, structure.layout.hidden[first - 1].out if first else inputs
    plan: LayerPlan = structure.plans.get(key) or structure.plans.setdefault(key, LayerPlan.of(structure, *key))
    return plan if plan.layers <= MOST else None


def run(structure: Any, first: int, layers: Sequence[Any], x: Tensor) -> Tensor | None:
    """Run a structure's dense layers on x `[P, B, inputs]`; return `[P, B, outputs]`, for B inputs of P members.

    If the kernels do not support the structure or the tensors, return None; the caller then uses torch.

    Args:
        structure: the structure, see `core.padded.Padded`.
        first: the index of the first hidden layer to run; the following layers up to the output layer are run too.
        layers: the parameter tensors of these layers.
        x: the inputs of the layer `first`.
    """
    if not layers or not build.serve(x):
        return None
    if not x.dtype == layers[0].weight.dtype == torch.float32:
        return None
    key = first, x.shape[-1]
    plan = structure.plans.get(key)
    if plan is None:
        plan = structure.plans[key] = LayerPlan.of(structure, *key)
    if plan.layers > MOST or not x.shape[1]:
        return None
    ends = id(layers[0]), id(layers[-1])
    if ends not in structure.served:
        if not _in_place(structure, first, plan, layers):
            return None
        if len(structure.served) >= MOST:
            structure.served.clear()
        structure.served[ends] = layers[0], layers[-1]  # kept, so that no others come to have their ids
    anchor = layers[0].weight
    if torch.is_grad_enabled() and (anchor.requires_grad or x.requires_grad):
        out: Tensor = _dense().apply(x, anchor, plan)
        return out
    return _forward(x.contiguous(), anchor, plan)[0]


def _in_place(structure: Any, first: int, plan: LayerPlan, layers: Sequence[Any]) -> bool:
    """Whether parameters lie where the flat row has them: noisy ones, for example, do not."""
    base = layers[0].weight.data_ptr() - 4 * plan.start
    parts = (*structure.layout.hidden[first:], *structure.layout.output)
    return all(
        (view.weight.data_ptr(), view.bias.data_ptr()) == (base + 4 * part.weight.start, base + 4 * part.bias.start)
        for view, part in zip(layers, parts, strict=True)
    )


def _forward(x: Tensor, anchor: Tensor, plan: LayerPlan) -> tuple[Tensor, Tensor]:
    members, rows, inputs = x.shape
    assert members == plan.members
    out, saved = x.new_empty(members, rows, plan.out), x.new_empty(members, rows * plan.room)
    packed = x.new_empty(max(plan.widest, rows) * PANEL)
    activity = None if _units is None else x.new_zeros(members, plan.layers, plan.widest)
    build.kernels().dense_forward(header.of("dense_call")(
        at(plan.fields), plan.layers, members, rows, inputs, plan.out, at(x), _values(anchor, plan),
        anchor.stride(0), at(saved), rows * plan.room, at(packed), at(out), at(activity), plan.widest, *_NO_WAY_BACK,
    ))  # fmt: skip
    if _units is not None and activity is not None and plan.hidden:
        _units.append((activity[:, : plan.hidden], plan.there))
    return out, saved


@cache
def _dense() -> Any:
    """The layers with their way back. Made at first use: commands that compute nothing do not load torch."""

    class _Dense(torch.autograd.Function):
        """Gradients of parameters are added to where their views have them; `anchor`, the first weights, stands for all
        of them in torch's graph."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, anchor: Tensor, plan: LayerPlan) -> Tensor:
            x = x.contiguous()
            out, saved = _forward(x, anchor, plan)
            ctx.save_for_backward(x, saved)
            ctx.anchor, ctx.plan = anchor, plan
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            (x, saved), anchor, plan = ctx.saved_tensors, ctx.anchor, ctx.plan
            members, rows, inputs = x.shape
            out_grad = grads[0].contiguous()
            x_grad = torch.empty_like(x) if ctx.needs_input_grad[0] else None
            room = rows * plan.widest
            packed, scratch = x.new_empty(max(plan.widest, rows) * PANEL), x.new_empty(3 * room)
            learns = ctx.needs_input_grad[1]
            build.kernels().dense_backward(header.of("dense_call")(
                at(plan.fields), plan.layers, members, rows, inputs, plan.out, at(x), _values(anchor, plan),
                anchor.stride(0), at(saved), rows * plan.room, at(packed), 0, 0, 0, at(out_grad),
                _values(anchor.grad, plan) if learns else 0, anchor.grad.stride(0) if learns else 0, at(x_grad),
                at(scratch), room,
            ))  # fmt: skip
            return x_grad, None, None

    return _Dense


def _values(view: Tensor, plan: LayerPlan) -> int:
    """Where the first member's row begins, of which this is the first layer's weights."""
    return view.data_ptr() - 4 * plan.start
