"""Whole small GPTs as members: against a plain transformer, by themselves and among others, grown and shrunk."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from evopipe.core.member import read_architecture
from evopipe.core.net import Net, forward
from evopipe.core.optim import backward
from evopipe.core.structure import Option, Widths
from evopipe.language.gpt import GPT, Cache, TransformerLayer
from evopipe.schema.evolution import ArchitectureBounds

WIDTHS = Widths(11, 7)  # neither is a multiple of anything
BOUNDS = ArchitectureBounds(
    max_layers=3, min_nodes=16, max_nodes=64, node_steps=(16,), min_channels=1, max_channels=4, channel_steps=(1,)
)
UNLIKE = (
    (TransformerLayer(2, 32), TransformerLayer(1, 48)),
    (TransformerLayer(1, 16),),
    (TransformerLayer(3, 16), TransformerLayer(1, 16), TransformerLayer(2, 32)),
)


def gpt(*layers: TransformerLayer) -> GPT:
    return GPT(layers or (TransformerLayer(2, 32), TransformerLayer(1, 48)), hidden=32, head=16, length=9)


def row(arch: GPT, seed: int = 0) -> torch.Tensor:
    """A row in which no number is 0 and no layer is negligible."""
    rng = np.random.default_rng(seed)
    own = arch.initialise(WIDTHS, rng)
    return own + 0.1 * torch.from_numpy(rng.standard_normal(len(own))).float()


def net(archs: Sequence[GPT], rows: Sequence[torch.Tensor], trainable: bool = False) -> Net:
    structure: Any = archs[0].stack(archs, WIDTHS, torch.device("cpu"))
    return Net(structure, structure.pack(rows), trainable)


def tokens(members: int, rows: int = 4, length: int = 9, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, WIDTHS.inputs, (members, rows, length), generator=torch.Generator().manual_seed(seed))


def losses(made: Net, ids: torch.Tensor) -> torch.Tensor:
    return forward(made, ids).square().flatten(1).sum(dim=1)


def plainly(arch: GPT, own: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The outputs `[L, O]` of one row, a token and a head at a time, in float64."""
    m = {name: part.double() for name, part in arch.named(WIDTHS, own).items()}

    def normal(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()

    x = m["tokens"][ids] + m["places"][: len(ids)]
    for i, (heads, _) in enumerate(arch.layers):
        seen, packed = torch.zeros(len(ids), heads * arch.head, dtype=torch.double), normal(x) @ m[f"layers.{i}.attend"]
        for h in range(heads):
            q, k, v = packed[:, 3 * h * arch.head : 3 * (h + 1) * arch.head].chunk(3, dim=-1)
            for t in range(len(ids)):
                share = (k[: t + 1] @ q[t] / math.sqrt(arch.head)).softmax(dim=0)
                seen[t, h * arch.head : (h + 1) * arch.head] = share @ v[: t + 1]
        x = x + seen @ m[f"layers.{i}.collect"]
        x = x + torch.nn.functional.gelu(normal(x) @ m[f"layers.{i}.up"]) @ m[f"layers.{i}.down"]
    return normal(x) @ m["output"]


def options(arch: GPT) -> list[Option]:
    return list(arch.options(BOUNDS, [WIDTHS]))


def test_unlike_members_compute_in_one_batch_what_a_plain_transformer_does() -> None:
    archs, ids = [gpt(*layers) for layers in UNLIKE], tokens(3)
    rows = [row(arch, i) for i, arch in enumerate(archs)]
    found = forward(net(archs, rows), ids)
    assert found.shape == (3, 4, 9, 7)
    for p, (arch, own) in enumerate(zip(archs, rows, strict=True)):
        for b in (0, 3):
            torch.testing.assert_close(found[p, b].double(), plainly(arch, own, ids[p, b]), atol=1e-5, rtol=1e-4)


def test_pads_have_no_gradient_and_a_row_comes_back_to_the_bit() -> None:
    archs = [gpt(*layers) for layers in UNLIKE]
    made = net(archs, [row(arch, i) for i, arch in enumerate(archs)], trainable=True)
    structure: Any = made.structure
    for own, back in zip([row(arch, i) for i, arch in enumerate(archs)], structure.unpack(made.values), strict=True):
        assert torch.equal(own, back)
    backward(losses(made, tokens(3)), made)
    own = structure.pack(structure.unpack(torch.ones_like(made.values)))
    assert (own == 0).any()
    assert not made.grad[own == 0].any()
    assert made.grad[own == 1].count_nonzero() > 0.9 * int(own.sum())


@pytest.mark.parametrize("signature", UNLIKE)
def test_among_members_of_its_own_form_a_member_has_the_bits_that_it_has_alone(
    signature: tuple[TransformerLayer, ...],
) -> None:
    archs, ids = [gpt(*signature)] * 3, tokens(3)
    rows = [row(arch, i) for i, arch in enumerate(archs)]
    many = net(archs, rows, trainable=True)
    backward(losses(many, ids), many)
    for p in range(3):
        one = net(archs[:1], rows[p : p + 1], trainable=True)
        backward(losses(one, ids[p : p + 1]), one)
        assert torch.equal(one.grad[0], many.grad[p])


@pytest.mark.parametrize("signature", UNLIKE)
def test_an_addition_leaves_the_function_as_it_was_and_learns_from_there(
    signature: tuple[TransformerLayer, ...],
) -> None:
    arch, ids = gpt(*signature), tokens(1)
    own = row(arch)
    before, added = forward(net([arch], [own]), ids), [o for o in options(arch) if o[0].startswith("add")]
    assert {o[0] for o in added} >= {"add_heads", "add_nodes"}
    for _, _, _, _, new in added:
        carried = arch.carry(new, WIDTHS, "parameters", own, np.random.default_rng(5))
        grown = net([new], [carried], trainable=True)
        torch.testing.assert_close(forward(grown, ids), before, atol=1e-5, rtol=0.0)
        backward(losses(grown, ids), grown)
        structure: Any = grown.structure
        (gradient,) = structure.unpack(grown.grad)
        fresh = new.carry(new, WIDTHS, "moments", torch.ones_like(carried), None)
        for name, part in new.named(WIDTHS, fresh).items():
            held = arch.named(WIDTHS, own).get(name)
            if held is not None:
                part[: held.shape[0], : held.shape[1]] = 0.0
        outgoing = [n for n in new.named(WIDTHS, fresh) if n.endswith((".collect", ".down"))]
        for name in outgoing:
            learns = new.named(WIDTHS, gradient)[name][new.named(WIDTHS, fresh)[name] == 1.0]
            assert bool((learns != 0).all()), name


@pytest.mark.parametrize("kind", ["parameters", "moments"])
def test_what_survives_a_mutation_keeps_its_numbers_and_new_moments_are_zero(kind: str) -> None:
    arch = gpt(*UNLIKE[2])
    own = row(arch)
    for method, _, _, _, new in options(arch):
        carried = arch.carry(new, WIDTHS, kind, own, np.random.default_rng(5))
        old = arch.named(WIDTHS, own)
        for name, part in new.named(WIDTHS, carried).items():
            rows, columns = (min(a, b) for a, b in zip(part.shape, old[name].shape, strict=True))
            assert torch.equal(part[:rows, :columns], old[name][:rows, :columns]), (method, name)
            if kind == "moments":
                assert not part[rows:].any()
                assert not part[:, columns:].any()


def test_online_and_target_receive_the_same_fresh_weights() -> None:
    arch = gpt()
    own, (*_, new) = row(arch), options(arch)[0]
    one, two = (arch.carry(new, WIDTHS, "parameters", own, np.random.default_rng(5)) for _ in range(2))
    assert torch.equal(one, two)


def test_mutations_keep_to_their_bounds() -> None:
    one, most = gpt(TransformerLayer(1, 16)), gpt(*(TransformerLayer(4, 64),) * 3)
    assert [o[0] for o in options(one)] == ["add_layer", "add_heads", "add_nodes"]
    assert {o[0] for o in options(most)} == {"remove_layer", "remove_heads", "remove_nodes"}
    assert [o[1:4] for o in options(one)] == [("layers", 1, 2), ("layers.0 heads", 1, 2), ("layers.0 nodes", 16, 32)]


@pytest.mark.parametrize("steps", [[1] * 9, [3, 1, 4, 1], [9]])
def test_tokens_read_bit_by_bit_give_the_outputs_of_all_at_once(steps: list[int]) -> None:
    archs, ids = [gpt(*layers) for layers in UNLIKE], tokens(3)
    made = net(archs, [row(arch, i) for i, arch in enumerate(archs)])
    structure: Any = made.structure
    cache, found, at = Cache(), [], 0
    for n in steps:
        found.append(structure.forward(made.views, ids[..., at : at + n], cache))
        at += n
    torch.testing.assert_close(torch.cat(found, dim=2), forward(made, ids), atol=1e-5, rtol=1e-5)


def test_a_token_never_sees_what_comes_after_it() -> None:
    arch, ids = gpt(), tokens(1)
    made = net([arch], [row(arch)])
    before = forward(made, ids)
    for t in range(1, 9):
        other = ids.clone()
        other[..., t:] = (other[..., t:] + 1) % WIDTHS.inputs
        after = forward(made, other)
        assert torch.equal(after[..., :t, :], before[..., :t, :])
        assert bool((after[..., t:, :] != before[..., t:, :]).any(dim=-1).all())


def test_an_architecture_is_written_and_read_again() -> None:
    arch = gpt()
    back: Any = read_architecture(json.loads(json.dumps(arch.to_json())))
    assert back == arch
    assert arch.describe() == "gpt 32: 2h 32, 1h 48"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": []}, "layers: must have at least 1 item"),
        ({"layers": 5}, "layers: must be a list, got 5"),
        ({"layers": [[1]]}, "layers.0.1: missing key"),
        ({"layers": [[1, 17]]}, "layers.0.1: must be a multiple of 16, got 17"),
        ({"layers": [[0, 16]]}, "layers.0.0: must be at least 1, got 0"),
        ({"layers": [[1, 1 << 17]]}, "layers.0.1: must be at most 65536, got 131072"),
        ({"hidden": 24}, "hidden: must be a multiple of 16, got 24"),
        ({"head": True}, "head: must be a whole number, got true"),
        ({"length": None}, "length: must be a whole number, got null"),
    ],
)
def test_what_is_no_architecture_is_told(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        read_architecture({**gpt().to_json(), **change})
