"""Neural bandits learn: their regret on labelled data of rings beside that of a linear bandit, and its bound.

Thresholds are never lowered to get green.
"""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest

from evopipe.compat.agilerl import BanditEnv, NeuralTS, NeuralUCB, ReplayBuffer, TensorDict
from learned import SEEDS

pytestmark = [pytest.mark.slow]
STEPS, ROWS, FEATURES, ARMS = 1500, 600, 4, 3


def rings(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features whose label is how far they are from the middle, which no linear function of them tells."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, FEATURES))
    x *= random.choice([0.3, 1.0, 1.7], size=ROWS)[:, None] / np.linalg.norm(x, axis=1, keepdims=True)
    x += 0.05 * random.normal(size=x.shape)
    return x.astype(np.float32), np.digitize(np.linalg.norm(x, axis=1), [0.65, 1.35])


def linear(env: BanditEnv, steps: int, width: float = 0.5) -> float:
    """The regret of LinUCB (Li et al., 2010) on the same contexts."""
    context = env.reset(seed=1)
    inverse, seen, regret = np.eye(context.shape[1]), np.zeros(context.shape[1]), 0.0
    for _ in range(steps):
        bound = context @ (inverse @ seen) + width * np.sqrt(np.einsum("ad,de,ae->a", context, inverse, context))
        x = context[int(bound.argmax())]
        context, reward = env.step(int(bound.argmax()))
        inverse -= np.outer(inverse @ x, x @ inverse) / (1 + x @ inverse @ x)  # Sherman & Morrison
        seen, regret = seen + reward * x, regret + 1 - reward
    return regret


def linear_bound(steps: int, dimensions: int, noise: float = 0.5, delta: float = 0.05) -> float:
    """What a linear bandit's regret stays below where the reward is linear (Abbasi-Yadkori et al., 2011, theorem 3),
    with ridge 1, contexts of size at most 2 and a parameter of size 1."""
    grows = dimensions * math.log(1 + steps * 4 / dimensions)
    return 4 * math.sqrt(steps * grows) * (1 + noise * math.sqrt(2 * math.log(1 / delta) + grows))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "most"), [(NeuralUCB, 300), (NeuralTS, 400)])
def test_rings(kind: type[NeuralUCB | NeuralTS], most: float, seed: int) -> None:
    env = BanditEnv(*rings(seed))
    agent = kind(
        gymnasium.spaces.Box(-3, 3, env.context_dim), gymnasium.spaces.Discrete(env.arms), lr=3e-3, gamma=0.1,
        net_config={"encoder_config": {"hidden_size": [32]}, "latent_dim": 32}, seed=seed,
    )  # fmt: skip
    memory, context, regret = ReplayBuffer(max_size=10_000), env.reset(seed=1), [0.0]
    for _ in range(STEPS):
        arm = agent.get_action(context)
        chosen = context[arm]
        context, reward = env.step(arm)
        memory.add(TensorDict({"obs": chosen, "reward": reward}).float().unsqueeze(0))
        regret.append(regret[-1] + 1 - reward)
        if len(memory) >= agent.batch_size:
            for _ in range(2):
                agent.learn(memory.sample(agent.batch_size))
    assert regret[-1] <= most
    assert regret[-1] <= 0.5 * linear(BanditEnv(*rings(seed)), STEPS)
    assert regret[-1] <= linear_bound(STEPS, FEATURES * ARMS)
    assert regret[-1] - regret[STEPS // 2] <= 0.1 * STEPS / 2, "it goes on to choose wrong"
    assert agent.test(env, max_steps=300) >= 0.95 * 300
