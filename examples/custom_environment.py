"""An environment of one's own: a class in this file, registered, checked, learned in seconds."""

import gymnasium
import numpy as np

import evopipe
from evopipe.envs.check import check


class Target(gymnasium.Env):
    """A number is shown; the action nearest to it earns most."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random: draw from it, and from nothing else
        self.shown = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.shown, {}

    def step(self, action):
        reward = 1.0 - abs(float(self.shown[0]) - np.linspace(-1.0, 1.0, 5)[action])
        self.shown = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.shown, reward, False, False, {}


if "Target-v0" not in gymnasium.registry:
    gymnasium.register("Target-v0", entry_point=Target, max_episode_steps=20)

if __name__ == "__main__":
    print("faults:", check("custom_environment:Target-v0", {}))
    params = {
        "env": {"id": "custom_environment:Target-v0", "num_envs": 8},
        "train": {"algo": "ppo", "max_steps": 8000, "evo_steps": 2000},
        "algos": {"ppo": {"learn_step": 256, "batch_size": 64, "network": {"encoder": [32], "latent": 32}}},
    }
    with evopipe.Population(params) as population:
        population.train()
        print(f"best mean return of 20 steps: {population.evaluate(episodes=20).mean(axis=1).max():.1f}")
