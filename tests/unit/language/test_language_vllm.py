"""vLLM as the engine: what is asked of it and what becomes of its answers, by a stand-in of the same interface.

vLLM itself needs a CUDA device and runs nowhere in these tests.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import words
from evopipe import errors
from evopipe.errors import MissingInputError, ParamsError
from evopipe.language import vllm as engine
from evopipe.language.adapters import LoRA
from evopipe.language.generate import Sampling
from evopipe.params.load import parse_params


@dataclass
class Request:
    name: str
    number: int
    path: str


class StandIn:
    """Answers each prompt with its member's number, its last token and the end."""

    def __init__(self, **made: Any) -> None:
        self.made, self.asked = made, []

    def generate(self, prompts: list[Any], params: list[Any], lora_request: list[Request], use_tqdm: bool) -> list[Any]:
        self.asked.append((prompts, params, lora_request))
        told = []
        for prompt, param, request in zip(prompts, params, lora_request, strict=True):
            rank = json.loads((Path(request.path) / "adapter_config.json").read_text())["r"]
            tokens = [rank, prompt["prompt_token_ids"][-1], 1]
            chances = [{token: SimpleNamespace(logprob=-0.5 * (i + 1))} for i, token in enumerate(tokens)]
            said = SimpleNamespace(token_ids=tokens, logprobs=chances, finish_reason="stop" if param.stop else "length")
            told.append(SimpleNamespace(outputs=[said] * param.n))
        return told


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm, lora, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    vllm.LLM, vllm.SamplingParams, request.LoRARequest = StandIn, SimpleNamespace, Request  # type: ignore[attr-defined]
    for name, module in (("vllm", vllm), ("vllm.lora", lora), ("vllm.lora.request", request)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(engine, "need_package", lambda *_: None)


def on_cuda() -> Any:
    """A base as it would be on a device, as far as an engine looks."""
    base = words.base()
    return SimpleNamespace(
        name="folder", device=SimpleNamespace(type="cuda"), model=base.model, pad=base.pad, ends=base.ends,
        linear=base.linear, words=base.words,
    )  # fmt: skip


def test_one_call_asks_for_all_members_each_with_its_own_adapter(installed: None) -> None:
    made = engine.VLLMEngine(on_cuda(), 2, 4)
    assert made._engine.made["max_loras"] == 2
    assert not made._engine.made["trust_remote_code"]
    ids = torch.tensor([[[0, 9], [8, 7]], [[0, 12], [11, 10]]])
    real = ids != 0
    how = Sampling(torch.tensor([1.0, 0.5]), torch.tensor([0, 3]), torch.tensor([1.0, 0.9]))
    own = [(LoRA(rank), words.row(LoRA(rank), rank, words.base())) for rank in (2, 4)]
    told = made.generate(own, ids, real, 2, 4, how, torch.tensor([5, 6]), 3)
    ((prompts, params, requests),) = made._engine.asked
    assert [each["prompt_token_ids"] for each in prompts] == [[9], [8, 7], [12], [11, 10]]
    assert [(each.n, each.max_tokens, each.temperature, each.top_k) for each in params] == [
        (2, 4, 1.0, 0), (2, 4, 1.0, 0), (2, 4, 0.5, 3), (2, 4, 0.5, 3),
    ]  # fmt: skip
    assert [each.top_p for each in params] == pytest.approx([1.0, 1.0, 0.9, 0.9])
    assert [each.number for each in requests] == [1, 1, 2, 2]
    assert len({each.seed for each in params}) == 4
    assert told.ids.tolist() == [
        [[2, 9, 1, 0], [2, 9, 1, 0], [2, 7, 1, 0], [2, 7, 1, 0]],
        [[4, 12, 1, 0], [4, 12, 1, 0], [4, 10, 1, 0], [4, 10, 1, 0]],
    ]
    assert told.mask.sum(dim=-1).tolist() == [[3] * 4] * 2
    assert told.log_prob[0, 0].tolist() == [-0.5, -1.0, -1.5, 0.0]
    assert not told.ended.any()
    stop = [("a", "b"), (), ("c",), ()]
    told = made.generate(own, ids, real, 2, 4, how, torch.tensor([5, 6]), 4, stop)
    assert [each.stop for each in made._engine.asked[1][1]] == [["a", "b"], [], ["c"], []]
    assert told.ended.tolist() == [[True, True, False, False]] * 2
    assert [each.number for each in made._engine.asked[1][2]] == [3, 3, 4, 4]  # they learned since


def test_where_it_cannot_run_a_sentence_says_so(installed: None) -> None:
    with pytest.raises(ParamsError, match=r"language.engine: vllm runs on a CUDA device"):
        engine.VLLMEngine(words.base(), 1, 2)
    tiny = on_cuda()
    tiny.name = "tiny"
    with pytest.raises(ParamsError, match=r"language.engine: vllm reads a model's folder"):
        engine.VLLMEngine(tiny, 1, 2)
    with pytest.raises(ParamsError, match=r"language.engine: vllm serves adapters alone"):
        parse_params({"language": {"engine": "vllm", "full": True}})


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    base = words.base()
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingInputError, match=r"pip install 'evopipe\[vllm\]'"):
        engine.VLLMEngine(base, 1, 2)
