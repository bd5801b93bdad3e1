"""Members over a base, by hand: first weights, scales, bounds and mutations of adapters, and of small GPTs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

import words
from evopipe.core.net import Net, score
from evopipe.language.adapters import Adapted, Full, LoRA
from evopipe.native.networks import LINE
from evopipe.schema.evolution import ArchitectureBounds


def test_first_weights_are_uniform_by_the_width_that_they_read_and_add_nothing() -> None:
    base, arch = words.base(), LoRA(8)
    row = arch.initialise(Adapted.of(base), np.random.default_rng(0))
    for name, part in arch.named(Adapted.of(base), row).items():
        if name.endswith(".b"):
            assert not part.any()
            continue
        bound = len(part) ** -0.5
        assert part.shape[1] == 8
        assert 0.9 * bound < float(part.abs().max()) <= bound
        assert float(part.std()) == pytest.approx(bound / 3**0.5, rel=0.15)
    assert not Full().initialise(Adapted.of(base), np.random.default_rng(0)).any()


def test_an_adapters_term_is_scaled_by_its_own_factor() -> None:
    """Half the factor is half of B; of unlike factors no batch is formed."""
    base, text = words.base(), words.text(1, 3, 6, 4)

    def told(scale: float, of_b: float) -> torch.Tensor:
        arch = LoRA(3, scale)
        row = words.row(arch, 1, base)
        for name, part in arch.named(Adapted.of(base), row).items():
            if name.endswith(".b"):
                part *= of_b
        structure: Any = arch.stack([arch], Adapted.of(base), words.CPU)
        with torch.no_grad():
            return score(Net(structure, structure.pack([row])), text).log_prob

    torch.testing.assert_close(told(0.5, 1.0), told(1.0, 0.5), atol=1e-6, rtol=0)
    assert float((told(0.5, 1.0) - told(2.0, 1.0)).abs().max()) > 1e-3
    assert LoRA(2, 0.5).family == LoRA(4, 0.5).family != LoRA(2, 1.0).family


@pytest.mark.parametrize(("most", "ranks"), [(16, [6, 7, 9]), (9, [6, 7, 9]), (8, [6, 7]), (6, [6]), (5, [])])
def test_a_rank_grows_by_one_two_or_four_up_to_its_limit(most: int, ranks: list[int]) -> None:
    found = list(LoRA(5, 0.5).options(ArchitectureBounds(max_nodes=most, min_nodes=1), ()))
    assert [(kind, what, had, has) for kind, what, had, has, _ in found] == [
        ("add_rank", "rank", 5, rank) for rank in ranks
    ]
    assert [arch for *_, arch in found] == [LoRA(rank, 0.5) for rank in ranks]


@pytest.mark.parametrize(
    ("rank", "scale", "fits"),
    [(1, 0.001, True), (4096, 1000, True), (0, 1.0, False), (4097, 1.0, False), (2, 0.0, False), (2, 1000.1, False),
     (2.0, 1.0, False), (2, "1", False)],
)  # fmt: skip
def test_stored_ranks_and_factors_have_their_bounds(rank: Any, scale: Any, fits: bool) -> None:
    told = {"kind": "lora", "rank": rank, "scale": scale}
    if fits:
        assert LoRA.from_json(told) == LoRA(rank, float(scale))
        assert LoRA.from_json(LoRA(rank, float(scale)).to_json()) == LoRA(rank, float(scale))
    else:
        with pytest.raises(ValueError, match=r"rank: must be|scale: must be"):
            LoRA.from_json(told)


def test_members_rows_begin_at_lines_of_the_cache_and_an_adapters_widths_are_the_bases() -> None:
    base = words.base()
    widths = Adapted.of(base)
    assert (widths.inputs, widths.outputs) == (base.words.hidden, base.words.vocabulary)
    for archs in ([LoRA(3), LoRA(5)], [Full()]):
        structure: Any = archs[0].stack(archs, widths, words.CPU)
        longest = max(arch.size(widths) for arch in archs)
        assert structure.size % LINE == 0
        assert longest <= structure.size < longest + LINE
