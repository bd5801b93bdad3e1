"""A sweep: three learning rates by two seeds, side by side, and a table of what they reached."""

import json
import subprocess
from pathlib import Path

import evopipe

params = evopipe.parse_params(
    {
        "env": {"id": "CartPole-v1", "num_envs": 8},
        "population": {"size": 1},
        "train": {"algo": "ppo", "max_steps": 8192, "evo_steps": 4096, "target": None},
        "algos": {"ppo": {"learn_step": 512}},
    }
)
Path("params.yaml").write_text(json.dumps(params.model_dump(mode="json")))  # JSON is YAML
sweep = ["evopipe", "sweep", "rates", "--set", "lr=0.0003,0.001,0.003", "--set", "seed=1,2", "--no-experiments"]
subprocess.run(sweep, check=True)
subprocess.run(["evopipe", "compare", "sweeps/rates"], check=True)
