"""Bases that a user may come with and that would not do: the sentence names the thing and the remedy, at once."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import words
from evopipe.errors import DataError
from evopipe.language import peft
from evopipe.language.adapters import LoRA
from evopipe.language.base import load_base

UP, NORM = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: hidden 32, two layers, 21 tokens."""
    folder: Path = tmp_path_factory.mktemp("base")
    base = words.base()
    for name, data in peft.merged_files(base, LoRA(2), words.row(LoRA(2), 0, base)).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "model"))


def load(folder: Path, **changes: Any) -> Any:
    return load_base(words.config(model=str(folder), **changes), 1)


def refusal(folder: Path, **changes: Any) -> str:
    began = time.perf_counter()
    with pytest.raises(DataError) as refused:
        load(folder, **changes)
    assert time.perf_counter() - began < 5
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("language.model: ")
    return str(refused.value)


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change(folder: Path, spoil: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    spoil(weights)
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000, and its files hold 20 tensors"),
        ("num_hidden_layers", 21, "num_hidden_layers is 21, and its files hold 20 tensors"),
        ("n_layer", 10**9, "n_layer is 1000000000, and its files hold 20 tensors"),
        ("text_config", {"num_hidden_layers": 10**9}, "text_config.num_hidden_layers is 1000000000, and its files"),
        ("num_hidden_layers", -1, "num_hidden_layers is -1: it must be a whole number of at least 1"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0: it must be"),
        ("num_hidden_layers", 1.5, "num_hidden_layers is 1.5: it must be"),
        ("num_hidden_layers", "two", "num_hidden_layers is 'two': it must be"),
        ("num_hidden_layers", True, "num_hidden_layers is True: it must be"),
        ("hidden_size", 10**9, "hidden_size is 1000000000, and its files hold"),
        ("hidden_size", -32, "hidden_size is -32: it must be"),
        ("vocab_size", 10**12, "vocab_size is 1000000000000, and its files hold"),
        ("vocab_size", -5, "vocab_size is -5: it must be"),
        ("intermediate_size", 10**11, "intermediate_size is 100000000000, and its files hold"),
        ("num_attention_heads", 0, "num_attention_heads is 0: it must be"),
        ("num_attention_heads", 10**9, "num_attention_heads is 1000000000, and its files hold"),
        ("num_experts", 10**9, "num_experts is 1000000000, and its files hold"),
        ("max_position_embeddings", -3, "max_position_embeddings is -3: it must be"),
    ],
)
def test_numbers_that_its_weights_deny_are_refused_before_a_model_is_built(
    folder: Path, key: str, value: Any, said: str
) -> None:
    configure(folder, **{key: value})
    text = refusal(folder)
    assert f"config.json: {said}" in text
    assert text.endswith("fetch or write it anew")


@pytest.mark.parametrize(("key", "value"), [("hidden_size", [3]), ("vocab_size", None), ("layer_types", ["x"] * 3)])
def test_a_configuration_that_transformers_refuses_is_not_blamed_on_the_tokenizer(
    folder: Path, key: str, value: Any
) -> None:
    configure(folder, **{key: value})
    text = refusal(folder)
    assert "/config.json cannot be read (" in text
    assert key in text
    assert "tokenizer" not in text


def test_whatever_number_stands_in_a_configuration_loading_ends(folder: Path) -> None:
    config, draws = json.loads((folder / "config.json").read_text()), np.random.default_rng(7)
    keys = [key for key, value in config.items() if type(value) is int]
    assert len(keys) >= 6
    for _ in range(8):
        key = keys[int(draws.integers(len(keys)))]
        sign, size = int(draws.choice([-1, 1])), int(10 ** draws.uniform(3, 15))
        configure(folder, **{**config, key: sign * size})
        began = time.perf_counter()
        with contextlib.suppress(DataError):  # the only one of all errors
            load(folder)
        assert time.perf_counter() - began < 5, (key, sign * size)


def test_a_folder_of_several_files_of_weights_is_counted_over_all(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    halves = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, own in halves.items():
        save_file({name: weights[name] for name in own}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    places = {name: file for file, own in halves.items() for name in own}
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load(folder).words == words.base().words
    configure(folder, num_hidden_layers=21)
    assert "its files hold 20 tensors" in refusal(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [UP, NORM])
def test_weights_that_are_not_finite_are_named(folder: Path, name: str, number: float) -> None:
    change(folder, lambda weights: weights[name].view(-1)[3:4].fill_(number))
    assert f"{name} holds numbers that are not finite: fetch or train it anew" in refusal(folder)


def test_weights_too_large_for_short_numbers_name_the_parameter(folder: Path) -> None:
    change(folder, lambda weights: weights[UP][0, :1].fill_(1e6))
    assert torch.isfinite(load(folder, dtype="bfloat16").model.get_parameter(UP)).all()
    assert f"{UP} holds numbers that are not finite as float16: set language.dtype" in refusal(folder, dtype="float16")


def test_a_tensor_of_another_shape_is_named_with_both(folder: Path) -> None:
    change(folder, lambda weights: weights.update({UP: torch.zeros(3, 5)}))
    text = refusal(folder)
    assert f"{UP} has the shape [3, 5] in its files, and its config.json asks for [128, 32]" in text
    assert text.endswith("fetch or write it anew")


def test_a_configuration_of_another_width_is_named_by_a_tensor(folder: Path) -> None:
    configure(folder, intermediate_size=96)
    assert "in its files, and its config.json asks for [" in refusal(folder)


def test_tensors_that_the_model_has_no_place_for_are_told_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(folder)
    assert capsys.readouterr().err == ""
    configure(folder, num_hidden_layers=1)
    load(folder)
    said = capsys.readouterr().err
    assert said.startswith("warning: language.model: ")
    assert "its config.json has no place for 9 of its tensors, such as model.layers.1.input_layernorm.weight" in said


@pytest.mark.parametrize(
    "config", [{"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "gptq", "bits": 4}, {"x": 1}, 3]
)
def test_a_quantised_base_is_refused(folder: Path, config: Any) -> None:
    configure(folder, quantization_config=config)
    text = refusal(folder)
    assert "is quantised (quantization_config in config.json), and members adapt plain weights" in text
    assert text.endswith("take the model that it was made of, or save it dequantised")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_of_quantised_numbers_are_refused_without_a_word_in_the_configuration(
    folder: Path, dtype: torch.dtype
) -> None:
    change(folder, lambda weights: weights.update({UP: torch.ones(128, 32).to(dtype)}))
    text = refusal(folder)
    assert f"its weight {UP} is of quantised numbers (" in text
    assert text.endswith("take the model that it was made of, or save it dequantised")


@pytest.mark.parametrize("token", [21, 10**9, -1])
def test_an_end_that_is_no_token_of_the_vocabulary_is_refused(folder: Path, token: int) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [1, token]}))
    assert f"ends a text by the token {token}, and its vocabulary has 21: correct eos_token_id" in refusal(folder)
