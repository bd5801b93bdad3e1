"""An agent written for OpenAI's API, trained as it is: it presses the key of a calculator, and reads the result.

It begins with random weights. Run it: `python examples/openai_agent.py`.
"""

from __future__ import annotations

import operator
from typing import Any

from openai import AsyncOpenAI

import evopipe

KEYS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
shared = AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="-")  # its connections serve all episodes


async def calculates(task: dict[str, Any], connection: Any) -> list[float]:
    client = shared.with_options(base_url=connection.base_url, api_key=connection.api_key)
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    first = await client.chat.completions.create(model=connection.model, messages=messages)
    key = first.choices[0].message.content
    shown = str(KEYS.get(key or "", lambda a, b: b)(*task["numbers"]) % 5)  # it shows one digit, of five
    messages += [first.choices[0].message, {"role": "user", "content": shown}]
    last = await client.chat.completions.create(model=connection.model, messages=messages)
    answer = last.choices[0].message.content or ""
    return [0.5 * (key == task["key"]), 0.1 * answer.isdigit() + 0.4 * (answer == shown)]


def make(config: Any) -> evopipe.AgentTrainer:
    every = [(a, b, key) for a in range(5) for b in range(5) for key in KEYS]
    tasks = [{"question": f"{a}{key}{b}", "numbers": [a, b], "key": key} for a, b, key in every]
    usual = [
        "language.tiny.characters='01234+-*'", "language.full=true", "data.max_response_length=1",
        "data.train_batch_size=8", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.ppo_epochs=3", "actor_rollout_ref.actor.entropy_coeff=0.02",
        "actor_rollout_ref.actor.use_kl_loss=false", "trainer.total_training_steps=120", "trainer.test_freq=60",
        "agents.advantage=turn", "agents.gamma=0.0", "train.eval_episodes=32",
        "agents.at_once=16",  # the client looks at each of its connections at each request
    ]  # fmt: skip
    train, held = [t for i, t in enumerate(tasks) if i % 7], tasks[::7]
    return evopipe.AgentTrainer(
        flow=calculates, endpoint=True, config=[*usual, *config], train_dataset=train, val_dataset=held
    )


if __name__ == "__main__":
    trainer = make([])
    before, after = trainer.evaluate()["mean"], trainer.train(quiet=False).score
    print(f"before {before:.2f}, after {after:.2f}")
