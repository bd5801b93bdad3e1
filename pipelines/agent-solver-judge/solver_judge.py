"""Two roles of one model: a solver that is to name the largest digit of four, and a judge of what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import evopipe
from evopipe.agents import Step, Trajectory, Workflow


class SolverAndJudge(Workflow):
    """The solver answers; the judge is asked about its answer and about another one, of which just one is right.

    A role's reward is 1 for each time that it is right, whatever the other does.
    """

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
        said = await self.ask("solver", task["digits"], lambda answer: answer == task["answer"])
        other = task["other"] if said == task["answer"] else task["answer"]
        for answer in (said, other):
            right = "y" if answer == task["answer"] else "n"
            await self.ask("judge", f"{task['digits']}?{answer}", lambda verdict, right=right: verdict == right)

    async def ask(self, role: str, text: str, right: Callable[[str], bool]) -> str:
        """Let a role write a completion, and reward it; return the completion."""
        messages = [{"role": "user", "content": text}]
        out = await self.rollout_engine.get_model_response(messages)
        step = Step.from_model_output(out, messages)
        step.reward = float(right(out.content))
        self.commit(role, trajectory=Trajectory(steps=[step]))
        return out.content


class Demonstrations:
    """What to start from: a solver that mostly says the first digit, and a judge that mostly does not look."""

    characters = "0123456789?yn"

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make examples of both roles, none of a task that is validated on."""
        held = {task["digits"] for task in held_out()}
        tasks = [task for task in draw(n, rng) if task["digits"] not in held]
        return [{"messages": chat} for task in tasks for chat in (self.solver(task, rng), self.judge(task, rng))]

    def solver(self, task: Mapping[str, str], rng: np.random.Generator) -> list[dict[str, str]]:
        """Return the chat of a solver who is right three times of ten, and by luck."""
        return _chat(task["digits"], task["answer"] if rng.random() < 0.3 else task["digits"][0])

    def judge(self, task: Mapping[str, str], rng: np.random.Generator) -> list[dict[str, str]]:
        """Return the chat of a judge who is right three times of ten, and by luck, and likes to agree."""
        shown = task["answer"] if rng.random() < 0.5 else task["other"]
        right = "y" if shown == task["answer"] else "n"
        return _chat(f"{task['digits']}?{shown}", right if rng.random() < 0.3 else rng.choice(["y", "n"], p=[0.6, 0.4]))

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])


def _chat(asked: str, said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": str(said)}]


def draw(n: int, rng: np.random.Generator) -> list[dict[str, str]]:
    """Return so many tasks: four digits, the largest of them, and another one of them."""
    found = []
    for _ in range(n):
        digits = rng.permutation(10)[:4].tolist()
        others = [digit for digit in digits if digit != max(digits)]
        told = {"digits": "".join(map(str, digits)), "answer": str(max(digits)), "other": str(rng.choice(others))}
        found.append(told)
    return found


def held_out() -> list[dict[str, str]]:
    """Return the tasks of validation."""
    return draw(200, np.random.default_rng(2))


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives."""
    held = {task["digits"] for task in held_out()}
    return evopipe.AgentTrainer(
        workflow_class=SolverAndJudge,
        config=config,
        train_dataset=[task for task in draw(4000, np.random.default_rng(1)) if task["digits"] not in held],
        val_dataset=held_out(),
    )
