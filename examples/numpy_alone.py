"""Deployed with NumPy alone: two files of the elite act in a process that has neither torch nor evopipe."""

import subprocess
import sys

import evopipe

params = {
    "env": {"id": "CartPole-v1", "num_envs": 8},
    "population": {"size": 2},
    "train": {"algo": "ppo", "max_steps": 8192, "evo_steps": 4096},
    "algos": {"ppo": {"learn_step": 512}},
    "tracking": {"backends": []},
}
policy = evopipe.train(params, folder="run").policy
observation = [0.01, -0.02, 0.03, -0.04]

program = f"""
import sys
sys.modules["torch"] = sys.modules["evopipe"] = None  # whoever imports them fails
import numpy_policy
print(numpy_policy.Policy("policy.npz").act({observation}))
"""
told = subprocess.run([sys.executable, "-c", program], cwd="run/models/elite", capture_output=True, check=True)
print(f"NumPy alone chooses {told.stdout.decode().strip()}, evopipe {policy.act(observation)}")
