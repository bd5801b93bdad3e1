"""evopipe's language models, and what their users would write without it: PEFT models in a loop, a prompt at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from common import timed
from tiny_llama import pairs, prompts, reward, saved

from evopipe.core.net import Net
from evopipe.language.adapters import Adapted, LoRA
from evopipe.language.base import Base, load_base, stacked
from evopipe.language.generate import Sampling, generate
from evopipe.language.tokens import Corpus, tokenise
from evopipe.run.clock import Clock
from evopipe.run.dialogue import Dialogue
from evopipe.run.language import LanguageSpec
from evopipe.run.run import Run
from evopipe.run.spec import first_members
from evopipe.run.text import TextRows
from evopipe.schema.text import LanguageParams
from evopipe.stages.language.setup import form_of, make_spec

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


def run_of(s: Settings, algo: str, members: int, folder: str) -> Run[LanguageSpec]:
    """Return a run of which `advance` is one step of all members, as the stage `train` takes it."""
    params = _params(s, algo, folder)
    spec, form = make_spec(params, torch.device(s["device"])), form_of(params)
    rows: list[dict[str, Any]] = [{"prompt": text, "answer": ""} for text in prompts(s, 64 * s["prompts"])]
    if algo == "dpo":
        rows = list(pairs(s))
    corpus: Corpus = tokenise(rows, form, spec.base, spec.language, params.fetch, s["seed"])
    clock = Clock.of(spec, members)
    of_text = spec.algo.REGIME == "text"
    regime: Any = TextRows(spec, clock, corpus) if of_text else Dialogue(spec, clock, corpus, _judge)
    return Run(spec, regime, clock, first_members(spec, members)[0])


def step(s: Settings, algo: str) -> dict[str, Any]:
    """Time one step of so many members: completions, rewards and an update, or an update on pairs."""
    torch.set_num_threads(s["threads"])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in s["sizes"]:
            if s.get("way") == "loop":
                alone = [run_of(s, algo, 1, folder) for _ in range(size)]
                call: Callable[[], object] = lambda runs=alone: [run.advance() for run in runs]  # noqa: E731
            else:
                call = run_of(s, algo, size, folder).advance
            found[str(size)] = {"step": timed(call, s["part_seconds"])}
    return found
