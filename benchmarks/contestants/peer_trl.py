"""TRL: GRPO and DPO over a tiny Llama with an adapter, one run a member, one after another."""

from __future__ import annotations

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from common import main
from datasets import Dataset
from peft import LoraConfig
from tiny_llama import pairs, prompts, reward, saved
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

Settings = Mapping[str, Any]


class Laps(TrainerCallback):
    """Takes note of when a step begins and ends."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.perf_counter() - self.began)


def _common(s: Settings, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": s["warm_steps"] + s["steps"], "learning_rate": s["lr"], "use_cpu": True,
        "report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "bf16": False,
        "gradient_checkpointing": False, "gradient_accumulation_steps": 1, "seed": s["seed"], "max_grad_norm": 1.0,
        "lr_scheduler_type": "constant", "beta": s["beta"],
    }  # fmt: skip


def _lora(s: Settings) -> LoraConfig:
    return LoraConfig(r=s["rank"], lora_alpha=2 * s["rank"], target_modules="all-linear")


def grpo_trainer(s: Settings, folder: str, laps: Laps) -> Any:
    """Return a trainer of which a step is so many prompts with so many completions each."""
    base = saved(s, folder)
    args = GRPOConfig(
        **_common(s, folder), per_device_train_batch_size=s["prompts"] * s["group"], num_generations=s["group"],
        max_completion_length=s["tokens"], temperature=1.0,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": text} for text in prompts(s, 64 * s["prompts"])])
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base), reward_funcs=lambda completions, **_: reward(completions),
        args=args, train_dataset=data, processing_class=AutoTokenizer.from_pretrained(base), peft_config=_lora(s),
        callbacks=[laps],
    )  # fmt: skip


def dpo_trainer(s: Settings, folder: str, laps: Laps) -> Any:
    """Return a trainer of which a step is so many pairs; the base's log-probabilities are had once, before."""
    base = saved(s, folder)
    args = DPOConfig(
        **_common(s, folder), per_device_train_batch_size=s["pairs"], precompute_ref_log_probs=True, max_length=None
    )
    return DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base), args=args, train_dataset=Dataset.from_list(pairs(s)),
        processing_class=AutoTokenizer.from_pretrained(base), peft_config=_lora(s), callbacks=[laps],
    )  # fmt: skip


def _timed(make: Any, s: Settings) -> dict[str, Any]:
    torch.set_num_threads(s["threads"])
    laps = Laps()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(s, folder, laps).train()
    seconds = statistics.median(laps.times[s["warm_steps"] :])
    return {str(size): {"step": 1e6 * size * seconds} for size in s["sizes"]}  # members are runs, one after another


if __name__ == "__main__":
    main({"grpo": lambda s: _timed(grpo_trainer, s), "dpo": lambda s: _timed(dpo_trainer, s)})
