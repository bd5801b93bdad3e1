"""What it costs and brings to play rounds of agents by earlier weights: `python benchmarks/staleness.py`.

An agent presses the key of a calculator that it is asked for, and says what the display shows; each of its two steps
takes the environment 50 ms. It learns by rounds of its own weights, and by rounds of weights that are four rounds old,
without and with importance correction, from several seeds. Printed are the scores on held-out tasks, and how much
longer the rounds of a run's own weights take.
"""

from __future__ import annotations

import argparse
import operator
import time
from typing import Any, NamedTuple

import evopipe
from evopipe.agents import ChatAgent, MultiTurnEnvironment

KEYS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SECONDS = 0.05
WAYS: dict[str, dict[str, Any]] = {
    "own weights": {"agents.staleness": 0},
    "four rounds old": {"agents.staleness": 4, "algos.grpo.correction": "none"},
    "four rounds old, corrected": {"agents.staleness": 4, "algos.grpo.correction": "token_truncate"},
}


class Result(NamedTuple):
    """What a run came to: its score, its seconds, and the largest change of a token's log-probability between when it
    was drawn and when it was learned from."""

    score: float
    seconds: float
    drift: float


class Calculator(MultiTurnEnvironment):
    """Press the key that is asked for, then say what the display shows: the last digit, of five, of the result."""

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task, max_turns=2)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        self.shown = ""
        return self.task["key"], {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        time.sleep(SECONDS)
        if self.current_turn:
            return 0.5 * (action == self.shown), ""
        self.shown = str(KEYS.get(str(action), lambda a, b: b)(*task["numbers"]) % 5)
        return 0.5 * (action == task["key"]), self.shown


def run(seed: int, steps: int, rate: float, way: str) -> Result:
    """Let an agent learn from random weights in one of `WAYS`."""
    tasks = [{"numbers": [a, b], "key": key} for a in range(5) for b in range(5) for key in KEYS]
    config = {
        "seed": seed, "language.tiny.characters": "01234+-*", "language.tiny.hidden": 32, "language.tiny.layers": 1,
        "language.tiny.heads": 2, "language.full": True, "data.max_response_length": 1,
        "algos.grpo.lr": rate, "algos.grpo.beta": 0.0, "algos.grpo.evolve": {}, "agents.advantage": "turn",
        "agents.gamma": 0.0, "trainer.total_training_steps": steps, "trainer.test_freq": steps,
        "train.eval_episodes": len(tasks[::7]), **WAYS[way],
    }  # fmt: skip
    began = time.perf_counter()
    found = evopipe.AgentTrainer(
        agent_class=ChatAgent, env_class=Calculator, config=config,
        train_dataset=[task for i, task in enumerate(tasks) if i % 7], val_dataset=tasks[::7],
    ).train()  # fmt: skip
    return Result(found.score, time.perf_counter() - began, found.measures[-1]["drift"])


def summary(results: dict[str, list[Result]]) -> str:
    """Return a table: for each way the score of every seed, the mean over the mean of the first way, how many times the
    seconds of that way are its own, and the mean drift."""
    first, *_ = results.values()
    lines = []
    for way, own in results.items():
        scores = " ".join(f"{each.score:.2f}" for each in own)
        share = sum(each.score for each in own) / sum(each.score for each in first)
        faster = sum(each.seconds for each in first) / sum(each.seconds for each in own)
        drift = sum(each.drift for each in own) / len(own)
        lines.append(f"{way:28} scores {scores}  share {share:.2f}  faster {faster:.2f} x  drift {drift:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare rounds of own and of earlier weights.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--rate", type=float, default=7e-3, help="learning rate")
    given = parser.parse_args()
    results: dict[str, list[Result]] = {way: [] for way in WAYS}
    for seed in given.seeds:
        for way, own in results.items():
            own.append(run(seed, given.steps, given.rate, way))
            print(f"seed {seed}, {way}: {own[-1]}", flush=True)
    print(summary(results))
