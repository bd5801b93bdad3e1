"""Checks of a model's folder by the headers of its files, before a model of its configuration is built.

A configuration can ask for more layers than any memory holds, and building them would hang. The stored tensors bound
all of its numbers: a layer has at least one tensor, and no width exceeds the numbers of all tensors together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from evopipe.errors import DataError
from evopipe.language.hub import first_line

_LAYERS = "num_hidden_layers n_layer n_layers num_layers num_decoder_layers decoder_layers".split()
_SIZES = (
    "vocab_size hidden_size n_embd d_model intermediate_size n_inner ffn_dim num_attention_heads n_head n_heads "
    "num_heads num_key_value_heads head_dim"
).split()
_EXPERTS = "num_experts num_local_experts n_routed_experts".split()  # none is 0
_PLACES = "max_position_embeddings n_positions".split()
_PLAIN = ("F64", "F32", "F16", "BF16")
ANEW, UNQUANTISED = "fetch or write it anew", "take the model that it was made of, or save it dequantised"


class Header(NamedTuple):
    """The shape and data type of a tensor in a safetensors file."""

    shape: tuple[int, ...]
    dtype: str  # in safetensors' words, such as BF16


def headers(folder: Path, where: str) -> dict[str, Header]:
    """Return the shapes and types of all tensors in a folder's safetensors files, by the tensor's name. Error messages
    begin with `where`.

    Raises:
        DataError: a file is damaged.
    """
    from safetensors import safe_open

    found: dict[str, Header] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                found |= {name: Header(tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
        except Exception as error:
            raise DataError(f"{where}: {path.name} cannot be read ({first_line(error)}): {ANEW}") from None
    return found


def check_config(config: Mapping[str, Any], held: Mapping[str, Header], where: str) -> None:
    """Check a model's `config.json` against the stored tensors `held`, before a model of that size is built. Error
    messages begin with `where`.

    Raises:
        DataError: the model is quantised, or its configuration asks for more layers or numbers than are stored.
    """
    if config.get("quantization_config") is not None:
        what = "is quantised (quantization_config in config.json), and members adapt plain weights"
        raise DataError(f"{where} {what}: {UNQUANTISED}")
    tensors, numbers = len(held), sum(math.prod(header.shape) for header in held.values())
    limits = {
        **dict.fromkeys(_LAYERS, (1, tensors, f"{tensors} tensors")),
        **dict.fromkeys(_SIZES, (1, numbers, f"{numbers} numbers")),
        **dict.fromkeys(_EXPERTS, (0, numbers, f"{numbers} numbers")),
        **dict.fromkeys(_PLACES, (1, None, "")),
    }
    for name, key, value in _told(config):
        least, most, there = limits.get(key, (0, None, ""))
        if key in limits and (type(value) is not int or value < least):
            wrong = f"{name} is {value!r:.40}: it must be a whole number of at least {least}"
            raise DataError(f"{where}/config.json: {wrong}; {ANEW}")
        if most is not None and value > most:
            raise DataError(f"{where}/config.json: {name} is {value!r:.40}, and its files hold {there}: {ANEW}")


def _told(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield what is said at each key, of a list every item, with its name; what is null stands for a default."""
    for key, value in config.items():
        if key == "text_config" and isinstance(value, Mapping):
            yield from _told(value, f"{key}.")
            continue
        yield from ((f"{before}{key}", key, each) for each in (value if isinstance(value, list) else [value])
                    if each is not None)  # fmt: skip


def misfit(config: Any, held: Mapping[str, Header]) -> str | None:
    """Return a message that names the first stored tensor with a wrong shape; None if all shapes are right.

    The right shapes follow from `config`, a configuration of `transformers`. `held` has the shapes of the stored
    tensors. No memory is allocated for the model.
    """
    from transformers import AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = make(config)
    for name, wanted in model.state_dict().items():
        if name in held and held[name].shape != tuple(wanted.shape):
            shapes = f"{list(held[name].shape)} in its files, and its config.json asks for {list(wanted.shape)}"
            return f"{name} has the shape {shapes}"
    return None


def check_model(model: nn.Module, held: Mapping[str, Header], dtype: str, where: str) -> None:
    """Check the weights of a loaded model. `held` has the shapes and types of the stored tensors, and `dtype` is the
    type to which they were converted in loading. Error messages begin with `where`.

    Raises:
        DataError: a weight is quantised or not finite.
    """
    for name, weight in model.named_parameters():
        if name in held and held[name].dtype not in _PLAIN:
            what = f"its weight {name} is of quantised numbers ({held[name].dtype}), and members adapt plain ones"
            raise DataError(f"{where}: {what}: {UNQUANTISED}")
        if not bool(torch.isfinite(weight).all()):
            short = f" as {dtype}: set language.dtype to float32, or" if dtype != "float32" else ":"
            raise DataError(
                f"{where}: its weight {name} holds numbers that are not finite{short} fetch or train it anew"
            )
