"""What a population of adapters takes beside its base: measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import words
from tiny import environment

assert words  # skips where the extra is not installed

SCRIPT = """
import gc, json
import numpy as np, psutil, torch
from transformers import LlamaConfig, LlamaForCausalLM
from evopipe.core import optim
from evopipe.core.net import Net, score
from evopipe.language.adapters import Adapted, LoRA
from evopipe.language.base import Base, tiny_tokenizer
from evopipe.language.generate import Sampling, generate
from evopipe.machine import configure
from evopipe.schema.language import TextRuntime
from evopipe.types import Text, Words

configure(TextRuntime(device="cpu"))  # as a run does: it keeps some of what it freed

def held():
    gc.collect()
    return psutil.Process().memory_info().rss

def trained(hidden, layers, members, rank):
    config = LlamaConfig(vocab_size=4000, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, tie_word_embeddings=True)
    before = held()
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    base = Base("random", model, tiny_tokenizer("01"), "", Words(4000, hidden), (1,), 0, torch.device("cpu"))
    alone, widths = held() - before, Adapted.of(base)
    archs = [LoRA(rank)] * members
    structure = LoRA.stack(archs, widths, base.device)
    draws = np.random.default_rng(0)
    net = Net(structure, structure.pack([arch.initialise(widths, draws) for arch in archs]), True)
    adam, _ = optim.start(net)
    ids = torch.randint(10, 4000, (members, 1, 4))
    real, ones = torch.ones_like(ids, dtype=torch.bool), torch.ones(members)
    how = Sampling(ones, ones.long() * 0, ones)
    written = generate(base, lambda: structure.active(net.frozen.views), ids, real, 1, 2, how, torch.arange(members), 0)
    text = Text(torch.cat((ids, written.ids), -1), torch.cat((real, written.mask), -1), written.mask, written.ids * 0)
    losses = -(score(net, text).log_prob * text.mask).sum((1, 2))
    optim.descend(losses, ones.bool(), ones, (net, adam, ones * 1e-3))
    del losses, text, written
    return sum(p.numel() for p in model.parameters()), alone, held() - before

trained(64, 1, 2, 2)  # libraries are loaded, buffers made
print(json.dumps(trained(2048, 2, 8, 8)))
"""


@pytest.mark.slow
def test_eight_adapters_of_rank_eight_take_less_than_a_third_of_their_base() -> None:
    """With their gradients and the optimiser's moments, after a round: over a base of 1.4 · 10⁸ numbers."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment(), capture_output=True, text=True, timeout=300, check=True
    )
    numbers, alone, whole = json.loads(done.stdout.splitlines()[-1])
    assert numbers > 1e8
    assert alone > 3.9 * numbers
    print(f"base {alone / 1e6:.0f} MB, with 8 adapters {whole / 1e6:.0f} MB: {whole / alone:.2f} of it")
    assert whole <= 1.3 * alone
