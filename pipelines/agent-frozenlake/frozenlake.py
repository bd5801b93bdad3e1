"""A slippery lake as text: what to imitate first, what to learn from rewards then, and what the best policy gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import evopipe
from evopipe.agents import ChatAgent, FrozenLake

SLIP, TURNS = 0.1, 20
LOOKS = 0.25  # how often those who are imitated look for holes
Place = tuple[int, int]


class Walker(ChatAgent):
    """Sees the lake as it is now, and nothing of before."""

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        self.messages.clear()
        super().update_from_env(observation, reward, done, info)


class Demonstrations:
    """What to start from: steps of somebody who looks for holes now and then, and else goes down, and then right."""

    characters = "SFHGP\nudlr"

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make examples of a step each, from every place that is ice."""
        # With all turns left the best policy waits for slips that are safer than steps: one who sees no turns would
        # wait for ever. With half of them it goes.
        found, policy = [], best()[TURNS // 2]
        for _ in range(n):
            env = FrozenLake()
            ice = [(r, c) for r, row in enumerate(env.map) for c, here in enumerate(row) if here in "SF"]
            env.place = ice[rng.integers(len(ice))]
            straight = "d" if env.place[0] < len(env.map) - 1 else "r"
            said = policy[env.place] if rng.random() < LOOKS else straight
            chat = [{"role": "user", "content": env.shown()}, {"role": "assistant", "content": said}]
            found.append({"messages": chat})
        return found

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])


def best() -> list[dict[Place, str]]:
    """Return the best policy by value iteration: of each turn, what to do at each place."""
    env = FrozenLake()
    value = {(r, c): float(here == "G") for r, row in enumerate(env.map) for c, here in enumerate(row)}
    ice = [(r, c) for (r, c) in value if env.map[r][c] in "SF"]
    policy: list[dict[Place, str]] = []
    for _ in range(TURNS):
        worth = {place: {word: _worth(env, value, place, move) for word, move in env.MOVES.items()} for place in ice}
        value = {place: max(worth[place].values()) if place in worth else value[place] for place in value}
        policy.insert(0, {place: max(each, key=lambda word: each[word]) for place, each in worth.items()})
    return policy


def _worth(env: FrozenLake, value: Mapping[Place, float], place: Place, move: Place) -> float:
    ahead = (1 - SLIP) * value[env.moved(place, move)]
    sides = (value[env.moved(place, (side * move[1], side * move[0]))] for side in (-1, 1))
    return ahead + SLIP / 2 * sum(sides)


def best_return(tasks: list[dict[str, Any]]) -> float:
    """Return what the best policy gets in the mean, on the same slips."""
    policy, total = best(), 0.0
    for task in tasks:
        env, over = FrozenLake(task, SLIP, TURNS), False
        env.reset()
        while not over:
            _, reward, over, _ = env.step(policy[env.turn][env.place])
            total += reward
    return total / len(tasks)


def held_out() -> list[dict[str, Any]]:
    """Return the tasks of validation: the slips of other seeds."""
    return [{"seed": seed} for seed in range(1_000_000, 1_000_200)]


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives."""
    return evopipe.AgentTrainer(
        agent_class=Walker,
        env_class=FrozenLake,
        env_args={"slip": SLIP, "max_turns": TURNS},
        config=config,
        train_dataset=[{"seed": seed} for seed in range(4000)],
        val_dataset=held_out(),
    )
