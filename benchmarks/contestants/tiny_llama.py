"""The base, the rows and the reward that all contestants of language models share: they need `transformers` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

CHARACTERS = "0123456789="
PAD, END = "<pad>", "<|end|>"


def saved(s: Mapping[str, Any], folder: str) -> str:
    """Write a tiny Llama with random weights and its tokenizer of characters below a folder; return where."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    known = {token: i for i, token in enumerate([PAD, END, "<unk>", *CHARACTERS])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=END, unk_token="<unk>", padding_side="left"
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=s["hidden"], intermediate_size=4 * s["hidden"],
        num_hidden_layers=s["layers"], num_attention_heads=4, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=known[END], pad_token_id=known[PAD],
    ))  # fmt: skip
    path = Path(folder) / "base"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def _digits(draw: np.random.Generator, n: int) -> str:
    return "".join(str(digit) for digit in draw.integers(10, size=n))


def prompts(s: Mapping[str, Any], n: int) -> list[str]:
    """Make prompts of one length."""
    draw = np.random.default_rng(s["seed"])
    return [_digits(draw, s["prompt_tokens"] - 1) + "=" for _ in range(n)]


def pairs(s: Mapping[str, Any]) -> list[dict[str, str]]:
    """Make pairs, prompt and completion together so many tokens with the one that ends it."""
    draw = np.random.default_rng(s["seed"])
    width = s["tokens"] - s["prompt_tokens"] - 1
    return [
        {"prompt": prompt, "chosen": _digits(draw, width), "rejected": _digits(draw, width)}
        for prompt in prompts(s, 8 * s["pairs"])
    ]


def reward(completions: Sequence[str]) -> list[float]:
    """Score completions by their share of one digit."""
    return [text.count("7") / max(len(text), 1) for text in completions]
