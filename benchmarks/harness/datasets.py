"""The datasets that both sides of an offline row read: episodes that evopipe collects, as a file in D4RL's layout."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / ".data"
_SEED = 1
# By name: environment, episodes, weights of the policies that play them.
_CONTENTS = {
    "pendulum": ("Pendulum-v1", 100, {"heuristic": 0.3, "random": 0.7}),
    "cartpole": ("CartPole-v1", 150, {"medium": 0.5, "random": 0.5}),
}


def make(name: str) -> None:
    """Write a dataset, where it is not there yet: a function of its name, wherever that is."""
    path = FOLDER / f"{name}.h5"
    if path.exists():
        return
    import h5py

    from evopipe.data.collect import collect
    from evopipe.envs.pool import EnvPool
    from evopipe.schema.env import EnvConfig
    from evopipe.schema.fetch import CollectConfig

    env, count, policies = _CONTENTS[name]
    with closing(EnvPool(EnvConfig(id=env), 1, what="behaviour")) as pool:
        episodes, _ = collect(CollectConfig(episodes=count, policies=policies), pool, env, _SEED)
    columns = {
        "observations": [each.obs[:-1] for each in episodes], "next_observations": [each.obs[1:] for each in episodes],
        "actions": [each.action for each in episodes], "rewards": [each.reward for each in episodes],
        "terminals": [each.terminated for each in episodes], "timeouts": [each.truncated for each in episodes],
    }  # fmt: skip
    FOLDER.mkdir(exist_ok=True)
    with h5py.File(path.with_suffix(".part"), "w") as file:
        for column, parts in columns.items():
            file[column] = np.concatenate(parts)
    path.with_suffix(".part").rename(path)
    returns = [float(each.reward.sum()) for each in episodes]
    print(f"{path}: {count} episodes of {env}, mean return {np.mean(returns):.0f}", file=sys.stderr, flush=True)
