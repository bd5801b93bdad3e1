"""Completions by vLLM on a GPU: one call for all members, each with its adapter as a LoRA request.

The log-probabilities that vLLM reports are those it sampled with. Learning uses the policy's own, from
`core.net.score`. The caller corrects for the difference by `ops.language.importance`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evopipe import rng
from evopipe.errors import ParamsError, need_package
from evopipe.language import peft
from evopipe.language.adapters import LoRA
from evopipe.language.base import Base
from evopipe.language.generate import Sampling, Stops, Written
from evopipe.rng import Purpose
from evopipe.types import Tensor


class VLLMEngine:
    """A vLLM engine that generates completions with a base model and up to `members` LoRA adapters, whose rank is at
    most `rank`.

    Raises:
        MissingInputError: the extra `vllm` is not installed.
        ParamsError: there is no CUDA device, or the base is `tiny`, which has no model folder.
    """

    def __init__(self, base: Base, members: int, rank: int) -> None:
        need_package("vllm", "vllm", "language.engine: vllm")
        if base.device.type != "cuda":
            raise ParamsError("language.engine: vllm runs on a CUDA device, and this run has none; set transformers")
        if base.name == "tiny":
            raise ParamsError("language.engine: vllm reads a model's folder, and `tiny` has none; set transformers")
        import vllm

        make: Any = vllm.LLM
        self._base, self._calls = base, 0
        self._engine = make(
            model=base.name, enable_lora=True, max_loras=members, max_lora_rank=max(8, rank), trust_remote_code=False,
            dtype=str(next(base.model.parameters()).dtype).removeprefix("torch."),
        )  # fmt: skip

    def generate(
        self, adapters: Sequence[tuple[LoRA, Tensor]], ids: Tensor, real: Tensor, group: int, limit: int,
        how: Sampling, keys: Tensor, when: int, stop: Stops = (),
    ) -> Written:  # fmt: skip
        """Complete `B` prompts of each of `P` members with the member's adapter. Entropies in the result are 0.

        Args:
            adapters: the architecture and the flat row (all weights as one vector) of each member's adapter.
            ids: the prompts' tokens `[P, B, L]`, padded on the left to L tokens.
            real: `[P, B, L]` bool, False for pads.
            group: completions of each prompt.
            limit: the most tokens of a completion.
            how: settings of sampling, `[P]`.
            keys: random keys of the members, `[P]`.
            when: a number, such as that of the training step, that fixes the random draws together with `keys`.
            stop: for each of the P · B prompts, the texts that end its completions; empty for none.
        """
        import vllm
        from vllm.lora.request import LoRARequest

        members, prompts, _ = ids.shape
        asked, params, requests = [], [], []
        seeds = rng.seeds(keys.cpu(), Purpose.GENERATE, torch.full_like(keys.cpu(), when))
        with tempfile.TemporaryDirectory(prefix="evopipe-") as temporary:
            for p, (arch, row) in enumerate(adapters):
                self._calls += 1
                folder = Path(temporary) / str(self._calls)
                folder.mkdir()
                for name, data in peft.adapter_files(self._base, arch, row).items():
                    (folder / name).write_bytes(data)
                request = LoRARequest(f"member-{self._calls}", self._calls, str(folder))
                for b in range(prompts):
                    asked.append({"prompt_token_ids": ids[p, b][real[p, b]].tolist()})
                    params.append(vllm.SamplingParams(
                        n=group, max_tokens=limit, seed=int(seeds[p]) + b, logprobs=0,
                        temperature=float(how.temperature[p]), top_k=int(how.top_k[p]), top_p=float(how.top_p[p]),
                        stop_token_ids=list(self._base.ends), stop=list(stop[p * prompts + b]) if stop else None,
                    ))  # fmt: skip
                    requests.append(request)
            told = self._engine.generate(asked, params, lora_request=requests, use_tqdm=False)
        written = torch.full((members, prompts * group, limit), self._base.pad, dtype=torch.int64)
        log_probs = torch.zeros(written.shape)
        for i, each in enumerate(told):
            for g, said in enumerate(each.outputs):
                p, r = i // prompts, i % prompts * group + g
                tokens = list(said.token_ids)[:limit]
                written[p, r, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
                chances = [found[token].logprob for found, token in zip(said.logprobs, tokens, strict=False)]
                log_probs[p, r, : len(tokens)] = torch.tensor(chances)
        lengths = torch.tensor([[min(len(said.token_ids), limit) for said in each.outputs] for each in told])
        mask = torch.arange(limit) < lengths.view(members, -1, 1)
        ended = torch.tensor([[said.finish_reason == "stop" for said in each.outputs] for each in told])
        found = written, mask, log_probs, torch.zeros_like(log_probs), ended.view(members, -1)
        return Written(*(x.to(ids.device) for x in found))
