"""An endpoint for tests, over a tiny base whose tokens are digits and calls of a tool, and clients of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evopipe import AgentTrainer
from evopipe.language.base import tiny_tokenizer

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 8, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.hidden": 16, "language.tiny.layers": 1, "language.tiny.heads": 2, "language.full": True,
    "trainer.total_training_steps": 2, "trainer.test_freq": 1, "train.eval_episodes": 4, "train.confirm_episodes": 4,
    "evaluate.bootstrap": 100,
}  # fmt: skip
TASKS = [{"digits": f"{n:02d}"} for n in range(0, 100, 7)]
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up what a key stands for.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}},
            "required": ["key"],
            "additionalProperties": False,
        },
    },
}
TEMPLATE = (
    "{% if tools %}{{ '<|system|>' }}{% for t in tools %}{{ t.function.name }}{% endfor %}{{ '<|end|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% for call in m.tool_calls %}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def call_of(key: str) -> str:
    return f'<tool_call>{{"name": "lookup", "arguments": {{"key": "{key}"}}}}</tool_call>'


def tool_base(folder: Path, hidden: int = 16, layers: int = 1) -> Path:
    """Write a base that knows digits, and one token for each call of the tool with a digit."""
    tokenizer = tiny_tokenizer("0123456789")
    tokenizer.add_tokens([call_of(str(digit)) for digit in range(10)])
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=2, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.02,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: Any = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def _idle(task: dict[str, Any], connection: Any) -> float:
    return 0.0


class Served:
    """A running endpoint: where it is, and its episodes once it has stopped."""

    def __init__(self, **config: Any) -> None:
        self.trainer = AgentTrainer(
            flow=_idle, endpoint=True, config={**SMALL, **config}, train_dataset=TASKS, val_dataset=TASKS[:4]
        )
        self.connection: Any = None
        self.episodes: list[dict[str, Any]] = []
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.episodes = self.trainer.serve(0, self._begun, self._stop.is_set)
        finally:
            self._ready.set()

    def _begun(self, connection: Any) -> None:
        self.connection = connection
        self._ready.set()

    @property
    def root(self) -> str:
        return str(self.connection.base_url.removesuffix("/v1"))

    def url(self, session: str) -> str:
        return f"{self.root}/s/{session}/v1"

    def start(self) -> Served:
        self._thread.start()
        self._ready.wait()
        assert self.connection is not None
        return self

    def stop(self) -> list[dict[str, Any]]:
        self._stop.set()
        self._thread.join()
        return self.episodes


@contextmanager
def serving(**config: Any) -> Iterator[Served]:
    served = Served(**config).start()
    try:
        yield served
    finally:
        served.stop()
