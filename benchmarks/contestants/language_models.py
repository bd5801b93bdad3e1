"""evopipe's language models, and what their users would write without it: PEFT models in a loop, a prompt at a time."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from common import timed
from tiny_llama import pairs, prompts, reward, saved

from evopipe.language.base import Base, load_base, stacked
from evopipe.language.generate import Sampling, generate
from evopipe.language.tokens import Corpus, tokenise
from evopipe.machine import configure
from evopipe.params.text import LanguageParams
from evopipe.problems.text import make_spec
from evopipe.problems.text_data import form_of
from evopipe.regimes.dialogue import Dialogue
from evopipe.regimes.text import TextRows, TextSource
from evopipe.run.clock import Clock
from evopipe.run.run import Run
from evopipe.run.spec import first_members
from evopipe.run.text import TextSpec

Settings = Mapping[str, Any]


def _params(s: Settings, algo: str, folder: str) -> LanguageParams:
    block: dict[str, Any] = {"lr": s["lr"], "beta": s["beta"], "evolve": {}}
    if algo == "grpo":
        rows = s["prompts"] * s["group"]
        block |= {"rows": rows, "group_size": s["group"], "batch_size": rows}
    else:
        block |= {"batch_size": s["pairs"], "nll_alpha": 0.0}
    completion = s["tokens"] if algo == "grpo" else s["tokens"] - s["prompt_tokens"]
    return LanguageParams.model_validate({
        "seed": s["seed"],
        "language": {
            "model": saved(s, folder), "rank": s["rank"], "max_prompt": s["prompt_tokens"],
            "max_completion": completion,
        },
        "train": {"algo": algo, "max_steps": 10**9, "evo_steps": 10**9},
        "runtime": {"threads": s["threads"], "device": s["device"]},
        "algos": {algo: block},
    })  # fmt: skip


def _judge(rows: Any, completions: Any) -> tuple[np.ndarray, int]:
    return np.array(reward(completions)), 0


def run_of(s: Settings, algo: str, members: int, folder: str) -> Run[TextSpec]:
    """Return a run of which `advance` is one step of all members, as the stage `train` takes it."""
    params = _params(s, algo, folder)
    spec = make_spec(params, configure(params.runtime))
    form = form_of(spec.algo)
    rows: list[dict[str, Any]] = [{"prompt": text, "answer": ""} for text in prompts(s, 64 * s["prompts"])]
    if algo == "dpo":
        rows = list(pairs(s))
    corpus: Corpus = tokenise(rows, form, spec.base, spec.language, params.fetch, s["seed"])
    clock = Clock.of(spec, members)
    of_text = spec.algo.REGIME == "text"
    regime: Any = TextRows(spec, clock, TextSource(spec, corpus)) if of_text else Dialogue(spec, clock, corpus, _judge)
    return Run(spec, regime, clock, first_members(spec, members)[0])


def step(s: Settings, algo: str) -> dict[str, Any]:
    """Time one step of so many members: completions, rewards and an update, or an update on pairs."""
    torch.set_num_threads(s["threads"])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in s["sizes"]:
            if s.get("way") == "loop":
                alone = [_alone(s, algo, folder) for _ in range(size)]
                call: Callable[[], object] = lambda steps=alone: [one() for one in steps]  # noqa: E731
            else:
                call = run_of(s, algo, size, folder).advance
            found[str(size)] = {"step": timed(call, s["part_seconds"])}
    return found


def completions(s: Settings) -> dict[str, Any]:
    """Time completions of so many prompts, so many of each."""
    torch.set_num_threads(s["threads"])
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(_params(s, "grpo", folder).language, s["seed"])
        ids, real = stacked([base.encode(text) for text in prompts(s, s["prompts"])], base.pad, left=True)
        if s.get("way") == "prompt":
            call: Callable[[], object] = lambda: [_written(base.model, base, s, one[None]) for one in ids]  # noqa: E731
        else:
            one = torch.ones(1)
            how, key = Sampling(one, one.long() * 0, one), torch.ones(1, dtype=torch.int64)
            call = lambda: generate(base, nullcontext, ids[None], real[None], s["group"], s["tokens"], how, key, 0)  # noqa: E731
        return {"1": {"step": timed(call, s["part_seconds"])}}


# --- without evopipe: a PEFT model a member -------------------------------------------------------------------------


def _written(model: Any, base: Base, s: Settings, ids: torch.Tensor) -> torch.Tensor:
    """Let `transformers` write the completions of prompts `[n, L]`: whole rows `[n · group, L + T]`."""
    with torch.no_grad():
        found: torch.Tensor = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=s["tokens"],
            num_return_sequences=s["group"], pad_token_id=base.pad,
        )  # fmt: skip
    return found


def _alone(s: Settings, algo: str, folder: str) -> Callable[[], object]:
    """Return a step of one member as it is written with PEFT and `transformers` alone."""
    from peft import LoraConfig, get_peft_model

    base = load_base(_params(s, algo, folder).language, s["seed"])
    config = LoraConfig(r=s["rank"], lora_alpha=2 * s["rank"], target_modules="all-linear")
    model: Any = get_peft_model(base.model, config)
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=s["lr"])
    data = prompts(s, 64 * s["prompts"]) if algo == "grpo" else pairs(s)
    turn = itertools.count()

    def part(each: int) -> list[Any]:
        start = next(turn) * each % len(data)
        return list(data[start : start + each])

    def log_probs(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`[n, T]` of the last tokens, 0 where the mask is."""
        width = mask.shape[1]
        logits = model(ids, use_cache=False, logits_to_keep=width + 1).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, -width:, None])[..., 0] * mask

    def descend(loss: torch.Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()

    def grpo() -> None:
        ids, _ = stacked([base.encode(text) for text in part(s["prompts"])], base.pad, left=True)
        rows = _written(model, base, s, ids)
        told = rows[:, ids.shape[1] :]
        ended = (told == base.ends[0]).long()
        mask = (ended.cumsum(1) - ended) == 0
        texts = [base.decode(row[keep].tolist()) for row, keep in zip(told, mask, strict=True)]
        rewards = torch.tensor(reward(texts)).view(-1, s["group"])
        advantage = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        now = log_probs(rows, mask)
        descend(-((now - now.detach()).exp() * advantage * mask).sum() / mask.sum())

    def dpo() -> None:
        drawn = part(s["pairs"])
        prompt = [base.encode(each["prompt"]) for each in drawn] * 2
        answers = [[*base.encode(each[name]), base.ends[0]] for name in ("chosen", "rejected") for each in drawn]
        ids, _ = stacked([[*a, *b] for a, b in zip(prompt, answers, strict=True)], base.pad, left=True)
        mask = torch.ones(len(answers), len(answers[0]))
        with torch.no_grad(), model.disable_adapter():
            reference = log_probs(ids, mask).sum(1)
        chosen, rejected = (log_probs(ids, mask).sum(1) - reference).chunk(2)
        descend(-torch.nn.functional.logsigmoid(s["beta"] * (chosen - rejected)).mean())

    return grpo if algo == "grpo" else dpo
