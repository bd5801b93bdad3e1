"""Offline, from a data frame: somebody balanced a pole badly, and a policy learns from what was recorded."""

import gymnasium
import numpy as np
import pandas as pd

import evopipe

env, random, rows = gymnasium.make("CartPole-v1"), np.random.default_rng(1), []
for episode in range(200):
    obs, _ = env.reset(seed=episode)
    over = False
    while not over:
        careful = int(obs[2] + 0.5 * obs[3] > 0.0)  # push to where the pole falls
        action = int(random.integers(2)) if random.random() < 0.6 else careful
        after, reward, end, cut, _ = env.step(action)
        rows.append([episode, *obs, action, reward, end])
        obs, over = after, end or cut
names = ["episode", "obs0", "obs1", "obs2", "obs3", "action", "reward", "terminated"]
frame = pd.DataFrame(rows, columns=names)
print(f"{len(frame)} steps, mean return {frame.groupby('episode').reward.sum().mean():.1f}")

path = evopipe.Dataset.from_frame(frame, episodes="episode").save("recorded.hdf5")
params = {
    "env": {"id": "CartPole-v1"},  # for evaluation alone
    "fetch": {"source": "hdf5", "hdf5": {"path": str(path)}},
    "population": {"size": 2},
    "train": {"algo": "cqn", "mode": "offline", "max_steps": 4000, "evo_steps": 1000},
}
with evopipe.Population(params) as population:
    population.train()
    print(f"mean return learned {population.evaluate(episodes=20).mean(axis=1).max():.1f}")
