"""Bases and members over them, by hand: first weights, scales, bounds and mutations of adapters and of small GPTs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

import words
from evopipe import rng
from evopipe.core.net import Net, score
from evopipe.core.structure import Widths
from evopipe.errors import DataError
from evopipe.language import hooks
from evopipe.language.adapters import Adapted, Full, LoRA
from evopipe.language.base import _digest_of_files, digest_of, load_base, tiny_tokenizer, tokens_alone
from evopipe.language.gpt import GPT, TransformerLayer
from evopipe.native.networks import LINE
from evopipe.rng import Purpose
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.schema.language import LanguageConfig


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


# --- bases ------------------------------------------------------------------------------------------------------------


def test_a_tiny_bases_matrices_are_drawn_by_name_and_its_sizes_are_those_asked_for() -> None:
    base = load_base(words.config(), 9)
    config = base.model.config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (32, 128, 2)
    assert (config.num_attention_heads, config.max_position_embeddings, base.places) == (2, 2048, 2048)
    draws = rng.host(rng.run_key(9), Purpose.INIT)
    for name, weight in sorted(base.model.named_parameters()):
        if weight.ndim == 2:
            drawn = 0.02 * draws.standard_normal(tuple(weight.shape), dtype=np.float32)
            assert np.array_equal(weight.numpy(), drawn.astype(np.float32)), name
        else:
            assert bool((weight == 1).all())
    assert base.words.hidden == 32
    assert base.words.vocabulary == len(base.tokenizer) == base.model.get_input_embeddings().weight.shape[0]


def test_characters_are_tokens_in_their_order_once_each() -> None:
    made = tiny_tokenizer("ba=b0a")
    ids = [made.convert_tokens_to_ids(c) for c in "ba=0"]
    assert ids == [*range(ids[0], ids[0] + 4)]
    assert len(made) == ids[-1] + 1


def test_a_base_ends_texts_by_all_tokens_that_it_names_and_pads_by_the_first_where_it_has_none() -> None:
    base = words.base()
    (end,) = base.ends
    assert base.with_tokenizer(base.tokenizer).pad == base.tokenizer.pad_token_id != end
    bare = tiny_tokenizer(words.CHARACTERS)
    bare.pad_token = None
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[9, end, 12]))
    found = replace(base, model=model).with_tokenizer(bare)
    assert (found.ends, found.pad) == ((end, 9, 12), end)
    model.generation_config.eos_token_id = len(base.tokenizer) - 1
    assert replace(base, model=model).with_tokenizer(bare).ends == (end, len(base.tokenizer) - 1)
    model.generation_config.eos_token_id = len(base.tokenizer)
    with pytest.raises(DataError, match="ends a text by the token"):
        replace(base, model=model).with_tokenizer(bare)
    with pytest.raises(DataError, match="do not belong together"):
        base.with_tokenizer(tiny_tokenizer(words.CHARACTERS + "x"))


def test_bases_are_told_apart_by_every_name_number_and_token(tmp_path: Path) -> None:
    def of(tokenizer: str = "t", **tensors: float) -> str:
        held = {name: torch.tensor([value]) for name, value in tensors.items()}
        return digest_of(SimpleNamespace(state_dict=lambda: held), tokenizer)

    told = [of(a=1.0, b=2.0), of(a=2.0, b=1.0), of(a=1.0, c=2.0), of("u", a=1.0, b=2.0), of(a=1.0)]
    assert len(set(told)) == 5
    assert of(b=2.0, a=1.0) == told[0]
    alone = [tokens_alone(tokens, length, 16).digest for tokens in (("p", "a"), ("p", "b")) for length in (3, 4)]
    assert len(set(alone)) == 4
    assert tokens_alone(("p", "a"), 3, 32).digest == alone[0]
    made = tokens_alone(("p", "a", "b"), 7, 32)
    assert (made.words.vocabulary, made.words.hidden, made.length, made.pad, made.places) == (3, 32, 7, 0, None)
    folders = []
    for one, two in (("a", "b"), ("b", "a"), ("a", "a")):
        folder = tmp_path / (one + two)
        folder.mkdir()
        (folder / "x.json").write_text(one)
        (folder / "y.json").write_text(two)
        folders.append(_digest_of_files(folder))
    (tmp_path / "ab" / "note.md").write_text("no file of a model")
    assert _digest_of_files(tmp_path / "ab") == folders[0]
    (tmp_path / "ab" / "x.json").rename(tmp_path / "ab" / "z.json")
    assert len({*folders, _digest_of_files(tmp_path / "ab")}) == 4


def test_the_changes_that_are_active_are_the_last_ones_and_those_before_come_back() -> None:
    base, ids = words.base(), torch.tensor([[7, 8, 9]])
    one, two = words.net([LoRA(2)], base, first=1), words.net([LoRA(2)], base, first=2)

    def logits() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = base.model(input_ids=ids).logits
        return found

    plain = logits()
    with one.structure.active(one.views):  # type: ignore[attr-defined]
        first = logits()
        with two.structure.active(two.views):  # type: ignore[attr-defined]
            second = logits()
            with hooks.adapting(base, {}):
                assert torch.equal(logits(), plain)
        assert torch.equal(logits(), first)
    assert torch.equal(logits(), plain)
    assert len({float(x.sum()) for x in (plain, first, second)}) == 3


# --- small GPTs -------------------------------------------------------------------------------------------------------


def test_a_small_gpt_begins_with_the_layers_of_its_settings_and_draws_of_their_deviations() -> None:
    cfg = LanguageConfig.Gpt(hidden=64, layers=2, heads=3, head=32, feedforward=256)
    arch, widths = GPT.start(cfg, 40), Widths(50, 48)
    assert arch == GPT((TransformerLayer(3, 256),) * 2, 64, 32, 40)
    shapes = arch.shapes(widths)
    assert (shapes["tokens"], shapes["places"], shapes["output"]) == ((50, 64), (40, 64), (64, 48))
    assert (shapes["layers.1.attend"], shapes["layers.1.collect"]) == ((64, 3 * 96), (96, 64))
    row = arch.initialise(widths, np.random.default_rng(0))
    told = {name: float(part.std()) for name, part in arch.named(widths, row).items()}
    wanted = {"tokens": 0.5, "places": 0.5, "output": 0.02}
    for i in (0, 1):
        wanted |= {f"layers.{i}.attend": 1 / 8, f"layers.{i}.up": 1 / 8}
        wanted |= {f"layers.{i}.collect": 96**-0.5 / 2, f"layers.{i}.down": 256**-0.5 / 2}
    assert told == pytest.approx(wanted, rel=0.06)


def test_layers_heads_and_nodes_change_by_a_step_within_their_bounds() -> None:
    arch = GPT((TransformerLayer(2, 32), TransformerLayer(4, 64)), 64, 16, 20)
    bounds = ArchitectureBounds(min_layers=2, max_layers=3, min_channels=1, max_channels=4, channel_steps=(1, 2),
                                min_nodes=32, max_nodes=64, node_steps=(16, 32))  # fmt: skip
    told = [(kind, what, had, has) for kind, what, had, has, _ in arch.options(bounds, ())]
    assert told == [
        ("add_layer", "layers", 2, 3),
        ("add_heads", "layers.0 heads", 2, 3), ("remove_heads", "layers.0 heads", 2, 1),
        ("add_heads", "layers.0 heads", 2, 4),
        ("add_nodes", "layers.0 nodes", 32, 48), ("add_nodes", "layers.0 nodes", 32, 64),
        ("remove_heads", "layers.1 heads", 4, 3), ("remove_heads", "layers.1 heads", 4, 2),
        ("remove_nodes", "layers.1 nodes", 64, 48), ("remove_nodes", "layers.1 nodes", 64, 32),
    ]  # fmt: skip
    new = [arch for *_, arch in arch.options(bounds, ())]
    assert new[0].layers == (*arch.layers, TransformerLayer(4, 64))
    assert new[1].layers == (TransformerLayer(3, 32), TransformerLayer(4, 64))
    assert new[-1].layers == (TransformerLayer(2, 32), TransformerLayer(4, 32))
    fewer = next(iter(arch.options(bounds.model_copy(update={"min_layers": 1, "max_layers": 2}), ())))
    assert (fewer[0], fewer[-1].layers) == ("remove_layer", arch.layers[:1])
