"""LoRA adapters in PEFT's file format, and models into which an adapter is merged."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evopipe.core.member import Member
from evopipe.errors import DataError, MissingInputError
from evopipe.language.adapters import Adapted, Full, LoRA
from evopipe.language.base import Base
from evopipe.language.hub import quiet
from evopipe.storage.files import dump_json, parse_json, read_bytes
from evopipe.storage.tensors import dump_tensors, load_tensors
from evopipe.types import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


def adapter_files(base: Base, arch: LoRA, row: Tensor) -> dict[str, bytes]:
    """Convert a LoRA adapter to PEFT's two files; return the files' contents by name.

    Args:
        base: the base model.
        arch: the adapter's architecture.
        row: the adapter's flat row, a vector of all its weights.
    """
    tensors = {}
    for name, part in arch.named(Adapted.of(base), row).items():
        layer, _, which = name.rpartition(".")
        tensors[f"{_PREFIX}{layer}.lora_{which.upper()}.weight"] = part.T.contiguous()
    config = {
        "base_model_name_or_path": None if base.name == "tiny" else base.name,
        "bias": "none",
        "fan_in_fan_out": any(layer.kind == "conv" for layer in base.linear),
        "inference_mode": True,
        "lora_alpha": arch.scale * arch.rank,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": arch.rank,
        "target_modules": [layer.name for layer in base.linear],
        "task_type": "CAUSAL_LM",
    }
    return {CONFIG: dump_json(config, CONFIG, indent=2), WEIGHTS: dump_tensors(tensors)}


def read_adapter(folder: Path, base: Base) -> tuple[LoRA, Tensor]:
    """Read a LoRA adapter for this base from a folder that PEFT wrote; return its architecture, and its weights as one
    vector, a flat row.

    Raises:
        MissingInputError: one of its files is missing.
        DataError: the adapter is damaged, of another kind than LoRA, or made for another base.
    """
    where = str(folder / CONFIG)
    config = parse_json(read_bytes(folder / CONFIG), where)
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise DataError(f"{where}: is no adapter of the kind LORA; other kinds are not read")
    for name, plain in (("use_dora", False), ("use_rslora", False), ("modules_to_save", None), ("bias", "none")):
        if config.get(name, plain) not in (plain, [], {}, ""):
            raise DataError(f"{where}: {name} is {config[name]!r:.40}, which is not read; save it without")
    if config.get("rank_pattern") or config.get("alpha_pattern"):
        raise DataError(f"{where}: its layers have unlike ranks, which are not read")
    try:
        rank = int(config["r"])
        arch = LoRA.from_json({"rank": rank, "scale": float(config["lora_alpha"]) / rank})
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"{where}: has no rank or scale ({error}); write it anew") from None
    if not (folder / WEIGHTS).exists():
        raise MissingInputError(f"{folder / WEIGHTS}: not there; an adapter without safetensors is never read")
    tensors = load_tensors(read_bytes(folder / WEIGHTS), str(folder / WEIGHTS))
    row = torch.zeros(arch.size(Adapted.of(base)))
    for name, part in arch.named(Adapted.of(base), row).items():
        layer, _, which = name.rpartition(".")
        found = tensors.pop(f"{_PREFIX}{layer}.lora_{which.upper()}.weight", None)
        if found is None:
            part.zero_()  # a layer that it does not adapt
        elif found.T.shape != part.shape:
            raise DataError(
                f"{folder / WEIGHTS}: {name} has the shape {list(found.T.shape)}, "
                f"{base.name} wants {list(part.shape)}: "
                "it was made for another base"
            )
        else:
            part.copy_(found.T)
    if tensors:
        raise DataError(f"{folder / WEIGHTS}: {base.name} has no place for {next(iter(tensors))!r}: another base's?")
    return arch, row


def member_of(folder: Path, base: Base, fresh: Member, network: str) -> Member:
    """Return a copy of a new member in which an adapter from a folder of PEFT replaces the member's adapter.

    The moments of the copy's optimiser are 0.

    Args:
        folder: the folder that PEFT wrote.
        base: the base model.
        fresh: the new member.
        network: the name of the member's tensor that holds the adapter.

    Raises:
        MissingInputError: one of the adapter's files is missing.
        DataError: the adapter is damaged, of another kind than LoRA, or made for another base. Or the member has no
            LoRA adapter, because it trains every weight of the base (`language.full`).
    """
    arch, row = read_adapter(folder, base)
    if not isinstance(fresh.arch, LoRA):
        raise DataError(f"{folder}: an adapter begins no run with language.full: set it to false")
    tensors = {name: tensor.new_zeros(row.shape) if tensor.shape == fresh.tensors[network].shape else tensor
               for name, tensor in fresh.tensors.items()}  # fmt: skip
    return replace(fresh, arch=arch, tensors={**tensors, network: row})


def doubt(folder: Path, base: Base) -> str | None:
    """Return a warning that the adapter in `folder` may belong to another base model than `base`; None if the adapter's
    configuration names `base`. Equal shapes do not prove that they belong together."""
    named = parse_json(read_bytes(folder / CONFIG), str(folder / CONFIG)).get("base_model_name_or_path")
    if isinstance(named, str) and named and Path(named).resolve() == Path(base.name).resolve():
        return None
    over = f"was trained over {named!r:.200}" if isinstance(named, str) and named else "does not say over which base"
    return (
        f"{folder / CONFIG}: {over}, and members begin over {base.name}; PEFT's files do not tell whether these are "
        "the same weights: make sure that they are"
    )


def _merged_weights(base: Base, arch: LoRA | Full, row: Tensor) -> dict[str, Tensor]:
    """Return the base's weights with a member's change in them, by name."""
    found = {name: tensor.detach().cpu().clone() for name, tensor in base.model.state_dict().items()}
    named = arch.named(Adapted.of(base), row)
    if isinstance(arch, Full):
        for layer in base.weights:
            for module, kind in layer.modules:
                part = "bias" if kind == "bias" else "weight"
                key = f"{module}.{part}"
                if key in found:
                    found[key] = (found[key].float() + named[layer.name]).to(found[key].dtype)
        return found
    for layer in base.linear:
        change = arch.scale * (named[f"{layer.name}.a"] @ named[f"{layer.name}.b"])  # [in, out]
        key = f"{layer.name}.weight"
        change = change.T if layer.kind == "linear" else change
        found[key] = (found[key].float() + change).to(found[key].dtype)
    return found


def merged_files(base: Base, arch: LoRA | Full, row: Tensor) -> dict[str, bytes]:
    """Return the contents of a model folder, file contents by name: the base with a member's change merged into its
    weights, and the tokenizer.

    The base's own weights are overwritten while `transformers` writes the files, and restored afterwards. `row` is the
    flat row of the change, a vector of all its weights, and `arch` its architecture.
    """
    weights: Mapping[str, Tensor] = _merged_weights(base, arch, row)
    plain = {name: tensor.detach().clone() for name, tensor in base.model.state_dict().items()}
    from transformers.utils import logging

    with tempfile.TemporaryDirectory(prefix="evopipe-") as temporary, quiet(logging):
        try:
            _load(base, weights)
            base.model.save_pretrained(temporary)
        finally:
            _load(base, plain)
        base.tokenizer.save_pretrained(temporary)
        return {path.name: _plain(path) for path in sorted(Path(temporary).iterdir()) if path.is_file()}


def _load(base: Base, weights: Mapping[str, Tensor]) -> None:
    held: dict[str, Any] = base.model.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            held[name].copy_(tensor)


def _plain(path: Path) -> bytes:
    """Return a file's bytes; of a tokenizer's configuration without the folder that it was read from."""
    data = path.read_bytes()
    if path.name != "tokenizer_config.json":
        return data
    config = json.loads(data)
    config.pop("name_or_path", None)
    return dump_json(config, path.name, indent=2)
