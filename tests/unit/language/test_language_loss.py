"""A loss over a real base, against the one that its library computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import words
from evopipe import algos
from evopipe.core.net import score
from evopipe.language import hooks
from evopipe.language.adapters import LoRA


@pytest.mark.parametrize("prompts", [True, False])
def test_the_loss_of_supervised_learning_is_the_librarys_own(prompts: bool) -> None:
    """`transformers` takes labels, −100 where a token is not to be learned, and gives the mean cross-entropy."""
    base, algo = words.base(), algos.get("sft")
    net, text = words.net([LoRA(4)], base, trainable=True), words.text(1, 4, 6, 5)
    text = replace(text, mask=text.real[..., -5:].clone())
    if not prompts:  # learn from the first token on, but for that which nothing comes before
        text = replace(text, mask=text.real[..., 1:] & text.real[..., :-1], turn=torch.zeros_like(text.ids[..., 1:]))
    labels = text.ids[0].masked_fill(~torch.nn.functional.pad(text.mask[0], (11 - text.mask.shape[-1], 0)), -100)
    structure: Any = net.structure
    with structure.active(net.frozen.views) as model, torch.no_grad():
        told = model(
            input_ids=text.ids[0], attention_mask=text.real[0].long(), position_ids=hooks.positions(text.real[0]),
            labels=labels,
        ).loss  # fmt: skip
    cfg = algo.Config.model_validate({"evolve": {}})
    torch.testing.assert_close(algo.loss(cfg, {}, score(net, text), text)[0], told, atol=1e-6, rtol=1e-6)
