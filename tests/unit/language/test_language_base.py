"""Bases: made in a moment, loaded from folders, and refused with a sentence where a file would not do."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import words
from evopipe import errors
from evopipe.errors import DataError, MissingInputError
from evopipe.language import base as bases
from evopipe.language import peft
from evopipe.language.adapters import LoRA
from evopipe.language.base import load_base, stacked, tiny_tokenizer


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, as an export writes it."""
    folder: Path = tmp_path_factory.mktemp("base")
    base = words.base()
    for name, data in peft.merged_files(base, LoRA(2), words.row(LoRA(2), 0, base)).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(exported, tmp_path / "model"))


def load(model: Path | str) -> Any:
    return load_base(words.config(model=str(model)), 1)


def test_equal_seeds_make_equal_bases_and_others_others() -> None:
    before = torch.get_rng_state()
    one, two, other = (load_base(words.config(), seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.digest == two.digest != other.digest
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name])
    assert not any(parameter.requires_grad for parameter in one.model.parameters())


def test_a_tiny_base_of_the_default_size_has_some_hundred_thousand_weights() -> None:
    base = load_base(bases.LanguageConfig(), 1)
    assert 1e5 < sum(parameter.numel() for parameter in base.model.parameters()) < 2e5


def test_names_of_special_tokens_act_if_the_settings_say_so() -> None:
    plain, acting = load_base(words.config(), 1), load_base(words.config(special_tokens=True), 1)
    end = plain.tokenizer.eos_token
    assert plain.encoder.continuation(plain.data(end)) != [plain.tokenizer.eos_token_id]
    assert acting.encoder.continuation(acting.data(end)) == [plain.tokenizer.eos_token_id]


@pytest.mark.parametrize("text", ["12=ab", "", "0" * 50])
def test_characters_come_back_from_their_tokens(text: str) -> None:
    base = words.base()
    assert len(base.encode(text)) == len(text)
    assert base.decode(base.encode(text)) == text


def test_bytes_come_back_from_their_tokens_whatever_the_text() -> None:
    tokenizer = tiny_tokenizer("")
    text = "Ω ≠ 漢字\n\t\x01 🙂 <|end|"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_what_a_tokenizer_does_not_know_is_one_token_and_ends_nothing() -> None:
    base = words.base()
    (unknown,) = base.encode("Ω")
    assert unknown not in base.ends
    assert base.encode("Ψ") == [unknown]


def test_messages_go_through_the_chat_template() -> None:
    base = words.base()
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]
    tokens = base.tokenizer.convert_ids_to_tokens(base.prompt(chat, True, "0"))
    assert " ".join(tokens) == (
        "<|system|> 0 <|end|> <|user|> 1 <|end|> <|assistant|> 2 <|end|> <|user|> 3 <|end|> <|assistant|>"
    )
    assert base.prompt("1", True, None) == base.prompt([{"role": "user", "content": "1"}], True, None)
    assert base.decode(base.prompt("1=", False, "0")) == "01="
    assert base.prompt("", False, None) == [base.ends[0]]  # a completion follows something


def test_rows_are_padded_on_the_side_that_is_asked_for() -> None:
    ids, real = stacked([[1, 2], [3], []], 9, left=True)
    assert ids.tolist() == [[1, 2], [9, 3], [9, 9]]
    assert real.tolist() == [[True, True], [False, True], [False, False]]
    ids, real = stacked([[1, 2], [3]], 9, left=False)
    assert ids.tolist() == [[1, 2], [3, 9]]


def test_a_folder_is_the_model_that_was_written(exported: Path) -> None:
    one, two = load(exported), load(exported)
    assert one.digest == two.digest != words.base().digest
    assert one.words == words.base().words


def spoil(folder: Path, name: str, change: Any) -> None:
    data = json.loads((folder / name).read_text())
    change(data)
    (folder / name).write_text(json.dumps(data))


def test_a_folder_without_a_file_that_it_needs_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MissingInputError, match=r"has no tokenizer \(tokenizer.json\)"):
        load(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"in pytorch_model.bin, a pickle, which is never read"):
        load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(MissingInputError, match=r"has no \*.safetensors"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(MissingInputError, match=r"has no config.json"):
        load(folder)


def test_code_of_a_repository_is_never_run(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('it ran')")
    spoil(folder, "config.json", lambda data: data.update(auto_map={"AutoModelForCausalLM": "own.Model"}))
    with pytest.raises(DataError, match="brings code of its own"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 200, -8])
def test_broken_weights_are_refused(folder: Path, keep: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cannot be read \(.*\): fetch or write it anew"):
        load(folder)


def test_weights_that_lack_a_tensor_are_refused_and_not_drawn(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].replace(b"model.norm.weight", b"model.norm.wrong_")
    weights.write_bytes(data[:8] + header + data[8 + length :])
    with pytest.raises(DataError, match=r"lack 'model.norm.weight', 1 tensors in all"):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_broken_description_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"config.json"):
        load(folder)


def test_an_unknown_architecture_and_a_broken_tokenizer_are_refused(folder: Path) -> None:
    spoil(folder, "config.json", lambda data: data.update(model_type="no_such_model"))
    with pytest.raises(DataError, match=r"cannot be read"):
        load(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"cannot be read"):
        load(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path) -> None:
    base = load_base(
        words.config(tiny={"characters": words.CHARACTERS + "xyz", "hidden": 16, "layers": 1, "heads": 2}), 1
    )
    base.tokenizer.save_pretrained(folder)
    with pytest.raises(DataError, match=r"a tokenizer of 24 tokens and a model of 21"):
        load(folder)


def test_what_is_no_folder_is_told_so_at_once() -> None:
    for name in ("./nowhere", "/no/such/model", "a/b/c", "../models/elite/merged"):
        with pytest.raises(MissingInputError, match="is no folder; run what writes it"):
            load(name)


def test_an_id_of_the_hub_without_a_network_is_one_sentence_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("the network is down")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    began = time.perf_counter()
    with pytest.raises(MissingInputError, match=r"is no folder here, and the hub does not give it \(.+\): correct"):
        load("nobody/no-such-model")
    assert time.perf_counter() - began < 10


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingInputError, match=r"pip install 'evopipe\[language\]'"):
        load("tiny")
