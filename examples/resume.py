"""A run that is killed: the same call goes on from its checkpoint, to the bits of one that was left alone."""

import hashlib
import multiprocessing
import time
from pathlib import Path

import evopipe

PARAMS = {
    "env": {"id": "CartPole-v1", "num_envs": 8},
    "population": {"size": 2},
    "train": {"algo": "ppo", "max_steps": 16384, "evo_steps": 4096, "target": None, "eval_episodes": 4},
    "algos": {"ppo": {"learn_step": 512}},
    "runtime": {"checkpoint_seconds": 0.1},
    "export": {"film": False, "program": False},
    "tracking": {"backends": []},
}


def train(folder):
    evopipe.train(PARAMS, folder=folder)


def weights(folder):
    """The digest of all that was learned."""
    files = sorted((Path(folder) / "models/trained").rglob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


if __name__ == "__main__":
    train("undisturbed")
    victim = multiprocessing.get_context("spawn").Process(target=train, args=("killed",))
    victim.start()
    while not any(Path("killed").glob(".evopipe/train/*/checkpoints/step-*")):
        time.sleep(0.01)
    victim.kill()
    victim.join()
    train("killed")
    print(f"undisturbed {weights('undisturbed')}, killed and continued {weights('killed')}")
