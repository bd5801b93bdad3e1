"""Tensors as bytes: to the bit, in the format's own terms."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import safetensors.torch
import torch

from evopipe.errors import DataError
from evopipe.storage.tensors import dump_tensors, load_tensors, tensor_pieces


def sample_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    flat = torch.randn(4, 6, generator=generator)
    types = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8]
    types += [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]
    tensors = {f"as {dtype}": (flat * 3).abs().to(dtype) for dtype in types}
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45])
    views = {"row": flat[1], "turned": flat.T, "whole": flat, "same": flat, "scalar": flat[0, 0], "none": flat[:0]}
    return {**tensors, **views, "special": special, "grad": flat.clone().requires_grad_(), "ü": flat[:, ::2]}


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    left, right = left.detach().contiguous(), right.contiguous()
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


def test_tensors_round_trip_to_the_bit() -> None:
    tensors = sample_tensors()
    data = dump_tensors(tensors)
    back = load_tensors(data)
    assert list(back) == sorted(tensors)
    assert all(same_bits(tensors[name], back[name]) for name in tensors)
    back["row"].add_(1.0)
    assert not torch.equal(back["row"], back["whole"][1])


def test_tensor_bytes_do_not_depend_on_the_order_of_names() -> None:
    tensors = sample_tensors()
    assert dump_tensors(dict(reversed(tensors.items()))) == dump_tensors(tensors)


def test_tensor_bytes_are_what_the_format_says(tmp_path: Path) -> None:
    tensors = sample_tensors()
    (tmp_path / "x.safetensors").write_bytes(dump_tensors(tensors))
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() is None
        assert set(file.keys()) == set(tensors)
        assert all(same_bits(tensors[name], file.get_tensor(name)) for name in tensors)
    assert load_tensors(dump_tensors({})) == {}
    assert same_bits(load_tensors(safetensors.torch.save({"a": tensors["row"]}))["a"], tensors["row"])


def test_contiguous_tensors_are_not_copied() -> None:
    tensor = torch.zeros(3)
    piece = tensor_pieces({"a": tensor})[1]
    tensor.fill_(1.0)
    assert bytes(piece) == dump_tensors({"a": tensor})[-12:]


def test_tensors_the_format_cannot_hold() -> None:
    with pytest.raises(
        DataError, match=r"^tensor 'a': torch.complex64 with layout torch.strided cannot be saved: make"
    ):
        dump_tensors({"a": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(DataError, match=r"^tensor 'a': torch.float32 with layout torch.sparse_coo cannot be saved"):
        dump_tensors({"a": torch.eye(2).to_sparse()})
    with pytest.raises(DataError, match=r"^tensor '__metadata__': the name is reserved"):
        dump_tensors({"__metadata__": torch.zeros(1)})


@pytest.mark.parametrize("cut", [0, 7, 8, 30, -1])
def test_cut_tensor_bytes(cut: int) -> None:
    data = dump_tensors({"a": torch.arange(9)})[:cut]
    with pytest.raises(DataError, match=r"^elite: is not a valid safetensors file \("):
        load_tensors(data, "elite")
