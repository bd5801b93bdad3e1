"""Two algorithms compared: mean and band over three seeds, by steps and by seconds, in one picture."""

import json
import subprocess
from pathlib import Path

import evopipe

params = evopipe.parse_params(
    {
        "env": {"id": "CartPole-v1", "num_envs": 8},
        "population": {"size": 1},
        "train": {"max_steps": 8192, "evo_steps": 2048, "warm_start": 0, "target": None},
        "algos": {"ppo": {"learn_step": 512}, "dqn": {"learn_step": 4}},
    }
)
Path("params.yaml").write_text(json.dumps(params.model_dump(mode="json")))  # JSON is YAML
sweep = ["evopipe", "sweep", "two", "--set", "train.algo=ppo,dqn", "--set", "seed=1,2,3", "--no-experiments"]
subprocess.run(sweep, check=True)
subprocess.run(["evopipe", "compare", "sweeps/two", "--curves", "curves.svg"], check=True)
print("curves.svg")
