"""Folders of the models that people have: their adapters are found by architecture, and PEFT reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
import transformers
from peft import PeftModel

import words
from evopipe.core.net import Net, score
from evopipe.language import peft
from evopipe.language.adapters import Adapted, LoRA
from evopipe.language.base import load_base

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
GATED = {"gate_proj", "up_proj", "down_proj"}
SMALL = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "eos_token_id": 1, "bos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
MAMBA = {
    "vocab_size": 32, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "eos_token_id": 1,
    "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
FOLDERS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "llama": ("LlamaConfig", SMALL, ATTENTION | GATED),
    "qwen2": ("Qwen2Config", SMALL, ATTENTION | GATED),
    "qwen3": ("Qwen3Config", SMALL, ATTENTION | GATED),
    "gemma2": ("Gemma2Config", {**SMALL, "bos_token_id": 1}, ATTENTION | GATED),
    "gemma3": ("Gemma3TextConfig", {**SMALL, "bos_token_id": 1}, ATTENTION | GATED),
    "mamba": ("MambaConfig", MAMBA, {"in_proj", "x_proj", "dt_proj"}),
}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks
def test_adapters_over_a_folder_are_those_that_peft_reads(name: str, tmp_path: Path) -> None:
    config, values, wanted = FOLDERS[name]
    folder = tmp_path / "base"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: Any = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**values))
    model.save_pretrained(folder)
    words.base().tokenizer.save_pretrained(folder)
    base, arch = load_base(words.config(model=str(folder)), 1), LoRA(3)
    assert {layer.name.rpartition(".")[2] for layer in base.linear} == wanted
    own = words.row(arch, 1, base)
    for file, data in peft.adapter_files(base, arch, own).items():
        (tmp_path / file).write_bytes(data)
    again = transformers.AutoModelForCausalLM.from_pretrained(folder)
    theirs = PeftModel.from_pretrained(again, str(tmp_path))
    text = words.text(1, 3, 6, 4)
    text.real[:] = True  # a state-space model has no way to skip a pad on the left
    structure = arch.stack([arch], Adapted.of(base), words.CPU)
    with torch.no_grad():
        now = score(Net(structure, structure.pack([own])), text).log_prob[0]
        ids = text.ids[0]
        plain = theirs(input_ids=ids).logits[:, -5:-1].log_softmax(-1).gather(-1, ids[:, -4:, None])[..., 0]
    torch.testing.assert_close(now[text.mask[0]], plain[text.mask[0]], atol=1e-5, rtol=1e-5)
