"""Members as changes of one base: what each computes, learns and becomes, against PEFT and against the base itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import words
from evopipe.core.net import Net, score
from evopipe.core.optim import backward
from evopipe.core.structure import Widths
from evopipe.errors import DataError
from evopipe.language import hooks, peft
from evopipe.language.adapters import Adapted, Full, LoRA, read_adapter
from evopipe.language.base import load_base
from evopipe.language.policy import CHANGE, read_change
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.storage.folders import write_folder
from evopipe.storage.tensors import dump_tensors

RANKS = (2, 5, 3)
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks


def plain_scores(model: Any, text: Any, member: int) -> torch.Tensor:
    """What a plain model says of one member's rows."""
    ids, real = text.ids[member], text.real[member]
    width = text.mask.shape[-1]
    out = model(input_ids=ids, attention_mask=real.long(), position_ids=hooks.positions(real)).logits
    told: torch.Tensor = out[:, -width - 1 : -1].log_softmax(-1).gather(-1, ids[:, -width:, None])[..., 0]
    return told


def test_members_of_unlike_ranks_are_each_peft_s_own_adapter_in_values_and_gradients() -> None:
    pytest.importorskip("peft")
    from peft import LoraConfig, get_peft_model

    base, archs = words.base(), [LoRA(rank) for rank in RANKS]
    net, text = words.net(archs, base, trainable=True), words.text(3, 3, 6, 4)
    now = score(net, text)
    backward((now.log_prob * text.mask).sum(dim=(1, 2)), net)
    structure: Any = net.structure
    grads = structure.unpack(net.grad)
    for p, arch in enumerate(archs):
        alone = load_base(words.config(), 1)
        model = get_peft_model(
            alone.model, LoraConfig(r=arch.rank, lora_alpha=2 * arch.rank, target_modules="all-linear")
        )
        modules = dict(model.base_model.model.named_modules())
        named = arch.named(Adapted.of(base), words.row(arch, p, base))
        with torch.no_grad():
            for layer in base.linear:
                modules[layer.name].lora_A.default.weight.copy_(named[f"{layer.name}.a"].T)
                modules[layer.name].lora_B.default.weight.copy_(named[f"{layer.name}.b"].T)
        told = plain_scores(model, text, p)
        torch.testing.assert_close(now.log_prob[p][text.mask[p]], told[text.mask[p]], atol=1e-6, rtol=1e-6)
        (told * text.mask[p]).sum().backward()
        own = arch.named(Adapted.of(base), grads[p])
        for layer in base.linear:
            for part, weight in (("a", modules[layer.name].lora_A), ("b", modules[layer.name].lora_B)):
                found = own[f"{layer.name}.{part}"]
                torch.testing.assert_close(found, weight.default.weight.grad.T, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("arch", [LoRA(3), Full()])
def test_so_many_rows_at_once_give_the_same_values_and_gradients(arch: LoRA | Full) -> None:
    base, text = words.base(), words.text(2, 5, 6, 4)
    seen: list[int] = []
    hook = base.model.register_forward_pre_hook(
        lambda module, args, given: seen.append(len(given["input_ids"])), with_kwargs=True
    )
    told = {}
    for rows in (None, 2):
        some = replace(base, rows_at_once=rows)
        net = words.net([arch] * 2, some, trainable=True)
        now = score(net, text, entropy=True)
        backward(((now.log_prob + now.entropy) * text.mask).sum(dim=(1, 2)), net)
        told[rows] = [x[text.mask] for x in (now.log_prob, now.entropy)], net.grad
    hook.remove()
    assert seen == [10, 2, 4, 4, 2, 4, 4]  # of both members; to learn, again
    for one, two in zip(*(found[0] for found in told.values()), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    torch.testing.assert_close(told[2][1], told[None][1], atol=1e-5, rtol=1e-5)
    assert bool((told[None][1] != 0).any())


def test_pads_and_rows_that_do_not_count_are_not_computed_and_change_nothing() -> None:
    base, text = words.base(), words.text(2, 40, 4, 20)
    lengths = torch.tensor([1, 20] * 20)
    text.mask[:] = torch.arange(20) < torch.stack((lengths, lengths.flip(0)))[..., None]
    text = replace(text, keep=torch.ones(2, 40, dtype=torch.bool))
    text.keep[:, :4] = False
    counts = text.mask & text.keep[..., None]
    seen: list[int] = []
    hook = base.model.register_forward_pre_hook(
        lambda module, args, given: seen.append(given["input_ids"].numel()), with_kwargs=True
    )
    told = []
    for exact in (True, False):
        net = words.net([LoRA(2), LoRA(3)], replace(base, exact=exact), trainable=True)
        now = score(net, text, entropy=True)
        backward(((now.log_prob + now.entropy) * counts).sum(dim=(1, 2)), net)
        told.append((now.log_prob[counts], now.entropy[counts], net.grad))
    hook.remove()
    whole, parts = seen[0], seen[1:]
    assert whole == 80 * 24
    assert sum(parts) < 0.7 * whole
    for one, other in zip(*told, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_changes_of_every_weight_are_each_a_model_of_its_own() -> None:
    base = words.base()
    net, text = words.net([Full(), Full()], base, trainable=True), words.text(2, 3, 6, 4)
    now = score(net, text)
    backward((now.log_prob * text.mask).sum(dim=(1, 2)), net)
    structure: Any = net.structure
    for p, grad in enumerate(structure.unpack(net.grad)):
        alone = load_base(words.config(), 1).model.requires_grad_(True)
        change, own = (Full().named(Adapted.of(base), each) for each in (words.row(Full(), p, base), grad))
        with torch.no_grad():
            for name, weight in alone.named_parameters():
                weight.add_(change[name])
        told = plain_scores(alone, text, p)
        torch.testing.assert_close(now.log_prob[p][text.mask[p]], told[text.mask[p]], atol=1e-5, rtol=1e-5)
        (told * text.mask[p]).sum().backward()
        for name, weight in alone.named_parameters():
            torch.testing.assert_close(own[name], weight.grad, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("arch", [LoRA(3), Full()])
def test_a_member_begins_as_the_base_and_the_base_stays_what_it_is(arch: LoRA | Full) -> None:
    base, text = words.base(), words.text(1, 3, 6, 4)
    own = arch.initialise(Adapted.of(base), np.random.default_rng(0))
    structure: Any = arch.stack([arch], Adapted.of(base), words.CPU)  # type: ignore[list-item]
    with torch.no_grad():
        now = score(Net(structure, structure.pack([own])), text)
    told = now.log_prob.masked_fill(~text.mask, 0.0)
    assert torch.equal(told, hooks.reference(base, text))
    plain = plain_scores(base.model, text, 0).masked_fill(~text.mask[0], 0.0)
    torch.testing.assert_close(told[0], plain, atol=1e-6, rtol=1e-6)  # another place in memory, other last bits


def test_rows_of_unlike_ranks_come_back_to_the_bit() -> None:
    archs = [LoRA(rank) for rank in RANKS]
    net = words.net(archs, words.base())
    structure: Any = net.structure
    for i, (arch, found) in enumerate(zip(archs, structure.unpack(net.values), strict=True)):
        assert torch.equal(found, words.row(arch, i, words.base()))
    part = structure.part(1, 3)
    assert torch.equal(part.pack(structure.unpack(net.values)[1:]), net.values[1:])


def test_a_rank_that_grows_leaves_a_member_what_it_is() -> None:
    base, old, text = words.base(), LoRA(3), words.text(1, 3, 6, 4)
    widths, own = Adapted.of(base), words.row(old, 0, base)
    _, what, before, after, new = list(old.options(ArchitectureBounds(max_nodes=5, min_nodes=1), [widths]))[-1]
    assert (what, before, after, new) == ("rank", 3, 5, LoRA(5))
    grown = old.carry(new, widths, "parameters", own, np.random.default_rng(0))
    moments = old.carry(new, widths, "moments", own, np.random.default_rng(0))

    def said(arch: LoRA, row: torch.Tensor) -> torch.Tensor:
        structure = arch.stack([arch], widths, words.CPU)
        with torch.no_grad():
            return score(Net(structure, structure.pack([row])), text).log_prob

    torch.testing.assert_close(said(new, grown), said(old, own), atol=1e-6, rtol=1e-6)
    assert new.named(widths, grown)["model.layers.0.self_attn.q_proj.a"][:, 3:].all()
    assert not new.named(widths, moments)["model.layers.0.self_attn.q_proj.a"][:, 3:].any()
    assert not list(LoRA(5).options(ArchitectureBounds(max_nodes=5, min_nodes=1), [widths]))


def test_peft_reads_an_adapter_and_what_peft_wrote_is_read(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from peft import PeftModel

    base, arch, text = words.base(), LoRA(3, 1.5), words.text(1, 3, 6, 4)
    own = words.row(arch, 4, base)
    for name, data in peft.adapter_files(base, arch, own).items():
        (tmp_path / name).write_bytes(data)
    theirs = PeftModel.from_pretrained(load_base(words.config(), 1).model, str(tmp_path))
    structure = arch.stack([arch], Adapted.of(base), words.CPU)
    with torch.no_grad():
        now = score(Net(structure, structure.pack([own])), text).log_prob[text.mask]
        told = plain_scores(theirs, text, 0)[text.mask[0]]
    torch.testing.assert_close(now, told, atol=1e-6, rtol=1e-6)
    theirs.save_pretrained(str(tmp_path / "again"), save_embedding_layers=False)
    found, row = peft.read_adapter(tmp_path / "again", base)
    assert found == arch
    assert torch.equal(row, own)


@pytest.mark.parametrize("arch", [LoRA(3), Full()])
def test_a_merged_model_is_one_that_transformers_and_evopipe_load(arch: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base, text = words.base(), words.text(1, 3, 6, 4)
    own = words.row(arch, 4, base)
    for name, data in peft.merged_files(base, arch, own).items():
        (tmp_path / name).write_bytes(data)
    structure = arch.stack([arch], Adapted.of(base), words.CPU)
    with torch.no_grad():
        now = score(Net(structure, structure.pack([own])), text).log_prob[text.mask]
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(plain_scores(model, text, 0)[text.mask[0]], now, atol=1e-5, rtol=1e-5)
        again = load_base(words.config(model=str(tmp_path)), 1)
        assert torch.equal(plain_scores(again.model, text, 0), plain_scores(model, text, 0))
    assert again.encode("12=") == base.encode("12=")
    assert again.ends == base.ends
    assert peft.merged_files(base, arch, own) == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A model whose linear layers are the other way round, with biases, as a folder."""
    from transformers import GPT2Config, GPT2LMHeadModel

    base = words.base()
    with torch.random.fork_rng(devices=[]):
        config = GPT2Config(
            vocab_size=21, n_embd=16, n_layer=1, n_head=2, n_positions=32, eos_token_id=1, bos_token_id=1
        )
        GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    base.tokenizer.save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def test_layers_that_are_the_other_way_round_are_adapted_as_peft_does(gpt2: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from peft import PeftModel

    base, arch, text = load_base(words.config(model=str(gpt2)), 1), LoRA(3), words.text(2, 3, 6, 4)
    assert {layer.kind for layer in base.linear} == {"conv"}
    net = words.net([LoRA(2), arch], base)
    for name, data in peft.adapter_files(base, arch, words.row(arch, 1, base)).items():
        (tmp_path / name).write_bytes(data)
    theirs = PeftModel.from_pretrained(load_base(words.config(model=str(gpt2)), 1).model, str(tmp_path))
    with torch.no_grad():
        now, told = score(net, text).log_prob[1], plain_scores(theirs, text, 1)
    torch.testing.assert_close(now[text.mask[1]], told[text.mask[1]], atol=1e-6, rtol=1e-6)


def test_every_weight_of_such_a_base_can_change_and_of_one_that_hides_some_none(gpt2: Path) -> None:
    base, text = load_base(words.config(model=str(gpt2)), 1), words.text(1, 3, 6, 4)
    assert {layer.kind for layer in base.weights} == {"embedding", "conv", "bias", "scale"}
    own = words.row(Full(), 3, base)
    structure: Any = Full().stack([Full()], Adapted.of(base), words.CPU)
    with torch.no_grad():
        now = score(Net(structure, structure.pack([own])), text).log_prob[0]
        change = Full().named(Adapted.of(base), own)
        for name, weight in base.model.named_parameters():
            weight.add_(change[name])
        told = plain_scores(base.model, text, 0)
    torch.testing.assert_close(now[text.mask[0]], told[text.mask[0]], atol=1e-5, rtol=1e-5)
    base = load_base(words.config(model=str(gpt2)), 1)
    base.model.transformer.ln_f.weight.data[0] = 0.0
    with pytest.raises(
        DataError, match=r"has the weight transformer.ln_f.weight, of a LayerNorm, which members cannot"
    ):
        _ = base.weights


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    base, arch = words.base(), LoRA(2)
    for name, data in peft.adapter_files(base, arch, words.row(arch, 0, base)).items():
        (tmp_path / name).write_bytes(data)
    wider = load_base(words.config(tiny={"characters": "01", "hidden": 16, "layers": 1, "heads": 2}), 1)
    with pytest.raises(DataError, match="it was made for another base"):
        peft.read_adapter(tmp_path, wider)


def test_a_change_that_lacks_a_weight_or_has_another_shape_is_refused(tmp_path: Path) -> None:
    """Also one that could be stretched to the weight's shape."""
    base = words.base()
    named = Full().named(Adapted.of(base), words.row(Full(), 3, base))
    write_folder(tmp_path, {CHANGE: dump_tensors({name: part.contiguous() for name, part in named.items()})})
    assert torch.equal(read_change(tmp_path, base), words.row(Full(), 3, base))
    name, part = next((name, part) for name, part in named.items() if part.ndim == 2)
    for other in ({}, {name: part[:1].contiguous()}, {name: part.mT.contiguous()}):
        write_folder(
            tmp_path, {CHANGE: dump_tensors({n: x.contiguous() for n, x in named.items() if n != name} | other)}
        )
        with pytest.raises(DataError, match=rf"does not fit its base at '{name}'; export it again"):
            read_change(tmp_path, base)


def test_an_architecture_is_read_as_it_was_written_and_no_other() -> None:
    for arch in (LoRA(7, 0.5), Full()):
        assert read_adapter(arch.to_json()) == arch
    for wrong in (
        {"kind": "lora"},
        {"kind": "lora", "rank": 0, "scale": 1.0},
        {"kind": "lora", "rank": 2, "scale": -1},
    ):
        with pytest.raises(ValueError, match="must be"):
            read_adapter(wrong)


def test_a_member_that_is_not_finite_leaves_its_neighbours_bits_alone() -> None:
    base, archs = words.base(), [LoRA(3)] * 3
    net, text = words.net(archs, base, trainable=True), words.text(3, 3, 6, 4)
    other = Net(net.structure, net.values.clone(), trainable=True)
    other.values[1] = torch.nan
    for each in (net, other):
        backward((score(each, text).log_prob * text.mask).sum(dim=(1, 2)), each)
    assert other.grad[1].isnan().any()
    for p in (0, 2):
        assert torch.equal(net.grad[p], other.grad[p])
    assert torch.equal(replace(other, trainable=False).finite, torch.tensor([True, False, True]))


def test_a_heads_values_do_not_depend_on_how_many_rows_are_valued_at_once() -> None:
    """To the bit where there is one output; they are products and bias in any case."""
    for outputs in (1, 3):
        head = LoRA(2).stack([LoRA(2)] * 2, Widths(97, outputs), torch.device("cpu"))
        draw = torch.Generator().manual_seed(outputs)
        weight, bias, x = (torch.randn(2, *shape, generator=draw) for shape in ((97, outputs), (1, outputs), (7, 97)))
        whole = head.forward([weight, bias], x)
        torch.testing.assert_close(whole, torch.baddbmm(bias, x, weight))
        if outputs == 1:
            alone = [head.forward([weight, bias], x[:, i : i + 1]) for i in range(7)]
            assert torch.equal(torch.cat(alone, dim=1), whole)
