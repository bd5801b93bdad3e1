"""Members as NumPy arrays, which no longer change: what `core.numpy_policy` acts by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from evopipe.core.arch import Arch
from evopipe.core.member import Member
from evopipe.core.normalise import Normaliser
from evopipe.core.structure import Widths, acting_networks


def arrays_of(algo: Any, cfg: Any, member: Member, widths: Mapping[str, Widths], space: Any) -> dict[str, np.ndarray]:
    """Return the greedy policy of a member as arrays by name, in the form that `core.numpy_policy` reads.

    Args:
        algo: the algorithm, an `algos.Algorithm`.
        cfg: the algorithm's configuration.
        member: the member.
        widths: the input and output width of every network, by the network's name.
        space: the environment's action space, an `envs.spaces.ActionSpace`.

    Raises:
        ValueError: actions are mixed, or the network is no plain perceptron with an output for each action; the message
            says why.
    """
    if space.parts:
        raise ValueError("its actions are mixed")
    arch, acting = member.arch, acting_networks(algo.POLICY, widths)
    if not isinstance(arch, Arch) or arch.kind != "mlp" or arch.stem.convs:
        raise ValueError("its network is more than a plain perceptron")
    outputs = widths[acting[-1]].outputs
    if outputs != space.size and not (space.continuous and outputs == 2 * space.size):
        raise ValueError("its network gives other numbers than one for each action")
    tensors: dict[str, torch.Tensor] = {}
    for name in acting:
        tensors |= arch.named(widths[name], member.tensors[name])
    for part in ("output.weight", "output.bias"):  # behind the means may be standard deviations
        tensors[part] = tensors[part][..., : space.size]
    normaliser = Normaliser.stack([member.tensors], torch.device("cpu"))
    if normaliser is not None and normaliser.observations is not None and normaliser.columns is not None:
        seen = normaliser.observations
        tensors |= {"mean": seen.mean[0].float(), "scale": seen.scale()[0]}
        tensors |= {"clip": normaliser.clip[0], "columns": normaliser.columns}
    arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    if space.bounds is not None:
        arrays["low"], arrays["high"] = space.bounds
        arrays["squash"] = getattr(cfg, "squash", True)
    else:
        arrays |= {"choices": space.choices, "starts": space.starts}
    arrays |= {"kind": space.kind, "shape": np.array(space.shape, np.int64), "observations": widths[acting[0]].inputs}
    arrays["layers"] = [name for name in arch.layers if f"{name}.weight" in tensors]
    arrays |= {"activation": arch.activation, "values": algo.values is not None}
    return {name: np.asarray(value) for name, value in arrays.items()}
