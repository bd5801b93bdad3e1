"""How much faster 64 agents over HTTP are at once than one by one: `python benchmarks/endpoint.py`."""

from __future__ import annotations

import time
from typing import Any

from openai import AsyncOpenAI

import evopipe

SESSIONS, TOKENS = 64, 64
shared = AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="-")


async def writes(task: dict[str, Any], connection: Any) -> float:
    client = shared.with_options(base_url=connection.base_url, api_key=connection.api_key)
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    await client.chat.completions.create(model=connection.model, messages=messages, temperature=1.0)
    return 0.0


def seconds(at_once: int) -> float:
    """Return how long the episodes take, so many at a time."""
    config = {"data.max_response_length": TOKENS, "language.full": True, "agents.at_once": at_once}
    tasks = [{"question": f"What is {n}?"} for n in range(SESSIONS)]
    trainer = evopipe.AgentTrainer(flow=writes, endpoint=True, config=config, train_dataset=tasks)
    began = time.perf_counter()
    assert all("error" not in episode["info"] for episode in trainer.play())
    return time.perf_counter() - began


if __name__ == "__main__":
    seconds(SESSIONS)  # what is imported and made once
    alone, together = seconds(1), seconds(SESSIONS)
    print(
        f"{SESSIONS} sessions one by one {alone:.2f} s, at once {together:.2f} s: {alone / together:.1f} times as fast"
    )
