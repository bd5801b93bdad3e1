"""A film of the elite at play, and the returns of ten episodes that no training run has seen."""

import subprocess

import evopipe

params = {
    "env": {"id": "CartPole-v1", "num_envs": 8},
    "population": {"size": 4},
    "train": {"algo": "ppo", "max_steps": 32768, "evo_steps": 4096},
    "algos": {"ppo": {"learn_step": 512}},
    "tracking": {"backends": []},
}
result = evopipe.train(params, folder="run")  # run/reports/report.html has all of it on one page
print(evopipe.evaluate(result.policy, episodes=10, seed=1000))
subprocess.run(["evopipe", "play", "run/models/elite", "--gif", "elite.gif", "--seed", "7"], check=True)
