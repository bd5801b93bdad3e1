"""What a base can hold: numbers of every kind, and no more tokens than it has places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import words
from evopipe.core.net import score
from evopipe.core.optim import backward
from evopipe.language.adapters import Full, LoRA
from evopipe.language.base import load_base
from tiny import call

SMALL = {"hidden": 16, "layers": 1, "heads": 2}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 12 places, each of which is a weight, and layers of every kind."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder: Path = tmp_path_factory.mktemp("gpt2")
    over = load_base(words.config(tiny={"characters": "012=", **SMALL}), 1)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12}
    with torch.random.fork_rng(devices=[]):
        GPT2LMHeadModel(GPT2Config(vocab_size=11, eos_token_id=1, bos_token_id=1, **sizes)).save_pretrained(folder)
    over.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", ["tiny", "gpt2"])
def test_members_over_short_numbers_are_what_they_are_over_long_ones(dtype: str, model: str, gpt2: Path) -> None:
    named = "tiny" if model == "tiny" else str(gpt2)
    cfg = words.config(model=named, tiny={"characters": "012=", **SMALL})
    long, short = load_base(cfg, 1), load_base(cfg.model_copy(update={"dtype": dtype}), 1)
    assert next(short.model.parameters()).dtype == getattr(torch, dtype)
    text = words.text(2, 3, 6, 4)
    text.ids.remainder_(long.words.vocabulary)
    for arch in (LoRA(2), Full()):
        told = []
        for base in (long, short):
            net = words.net([arch, arch], base, trainable=True)
            found = score(net, text).log_prob
            backward((found * text.mask).sum(dim=(1, 2)), net)
            assert found.dtype == net.grad.dtype == torch.float32
            told.append((found.detach()[text.mask], net.grad.clone()))
        for exact, near in zip(*told, strict=True):
            torch.testing.assert_close(near, exact, atol=0.05 * float(exact.abs().max()), rtol=0.05)


@pytest.mark.parametrize("algo", ["grpo", "reward_model"])
@pytest.mark.thorough
def test_all_weights_of_a_base_of_short_numbers_learn(algo: str, tmp_path: Path) -> None:
    words.project(tmp_path, language__full=True, language__dtype="bfloat16", train__algo=algo, train__max_steps=3,
            evolution__mutation__probabilities__rank=0.0)  # fmt: skip
    for stage in ("fetch", "buffer", "population", "train"):
        answer = call(tmp_path, "--quiet", stage)
        assert answer.code == 0, answer.err


@pytest.mark.thorough
def test_more_tokens_than_the_base_has_places_for_are_refused_with_the_line(gpt2: Path, tmp_path: Path) -> None:
    draws = np.random.default_rng(3)
    cases = [(8, 5), (1, 12), (4, 8), *draws.integers(1, 13, (2, 2)).tolist()]
    words.project(tmp_path, language__model=str(gpt2))
    assert call(tmp_path, "--quiet", "fetch").code == 0
    for prompt, completion in cases:
        path = words.project(
            tmp_path, language__model=str(gpt2), language__max_prompt=prompt, language__max_completion=completion
        )
        answer = call(tmp_path, "--quiet", "buffer")
        if prompt + completion <= 12:
            assert "places" not in answer.err
            continue
        line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "max_completion:" in text)
        assert answer.code == 65, (prompt, completion, answer)
        assert answer.err.startswith(f"error: params.yaml:{line}:3: language.max_completion: "), answer.err
        assert (
            f"prompts of {prompt} tokens (language.max_prompt) and completions of {completion} are too long"
            in answer.err
        )
        assert f"{gpt2} has places for 12" in answer.err
        assert answer.err.count("\n") == 1


@pytest.mark.thorough
def test_places_are_counted_where_tokens_were_made_for_fewer(gpt2: Path, tmp_path: Path) -> None:
    words.project(tmp_path, language__model=str(gpt2), language__max_prompt=4, language__max_completion=8)
    for stage in ("fetch", "buffer", "population"):
        assert call(tmp_path, "--quiet", stage).code == 0
    words.project(tmp_path, language__model=str(gpt2), language__max_prompt=4, language__max_completion=9)
    answer = call(tmp_path, "--quiet", "train")
    assert answer.code == 65
    assert "language.max_completion: prompts of 4 tokens" in answer.err


@pytest.mark.thorough
def test_a_row_that_a_head_judges_needs_one_place_more(gpt2: Path, tmp_path: Path) -> None:
    for completion, code in ((8, 65), (7, 0)):
        words.project(
            tmp_path, language__model=str(gpt2), language__max_prompt=4, language__max_completion=completion,
            train__algo="reward_model",
        )  # fmt: skip
        assert call(tmp_path, "--quiet", "fetch").code == 0
        answer = call(tmp_path, "--quiet", "buffer")
        assert answer.code == code, answer
    assert call(tmp_path, "--quiet", "population").code == 0
    assert call(tmp_path, "--quiet", "train").code == 0


def test_an_exported_model_is_asked_for_no_more_tokens_than_it_has_places(gpt2: Path) -> None:
    from evopipe.errors import UsageError
    from evopipe.language.policy import LanguagePolicy

    cfg = words.config(model=str(gpt2))
    policy = LanguagePolicy(load_base(cfg, 1), cfg, {}, None)
    assert isinstance(policy.generate("01=", max_tokens=9), str)
    for prompt, most in (("01=", 10), ("0" * 13, 1)):
        with pytest.raises(UsageError, match=r"generate: a prompt of \d+ tokens and max_tokens=\d+ are more than"):
            policy.generate(prompt, max_tokens=most)
