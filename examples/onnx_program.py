"""As an ONNX program: for any runtime, compared here with the policy that it was made of."""

import subprocess

import numpy as np
import onnxruntime

import evopipe

params = {
    "env": {"id": "Pendulum-v1", "num_envs": 8},
    "population": {"size": 2},
    "train": {"algo": "ppo", "max_steps": 8192, "evo_steps": 4096},
    "algos": {"ppo": {"learn_step": 1024}},
    "tracking": {"backends": []},
}
policy = evopipe.train(params, folder="run").policy
subprocess.run(["evopipe", "onnx", "run/models/elite", "--out", "."], check=True)  # extra `onnx`

session = onnxruntime.InferenceSession("policy.onnx")
observations = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
(actions, *_) = session.run(None, {"observation": observations})
print(f"largest difference of 100 actions: {np.abs(actions - policy.act(observations)).max():.1e}")
