"""d3rlpy's offline learners, on the file that evopipe reads too."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import d3rlpy  # noqa: E402
import gymnasium  # noqa: E402
import h5py  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import held_out_seeds, main, play_episodes  # noqa: E402
from d3rlpy.algos.qlearning.torch.cql_impl import DiscreteCQLImpl  # noqa: E402
from d3rlpy.models import VectorEncoderFactory  # noqa: E402
from d3rlpy.preprocessing import MinMaxActionScaler  # noqa: E402
from d3rlpy.torch_utility import soft_sync  # noqa: E402

Settings = Mapping[str, Any]
DATASETS = Path(__file__).parents[1] / ".data"


def dataset_of(s: Settings) -> d3rlpy.dataset.MDPDataset:
    """Return the file's episodes. Of an episode that was cut it never draws the last step, for want of what came next:
    so such an episode gets its last observation as one more step, and all steps of the file are drawn."""
    with h5py.File(DATASETS / f"{s['data']}.h5") as file:
        columns = {name: file[name][:] for name in file}
    ends = np.flatnonzero(columns["terminals"] | columns["timeouts"])
    cut = ends[~columns["terminals"][ends]]
    rows = np.insert(np.arange(len(columns["rewards"])), cut + 1, -1)  # -1: the added steps
    added, before = rows < 0, np.maximum(rows, 0)
    observations = columns["observations"][before]
    observations[added] = columns["next_observations"][cut]
    timeouts = np.zeros(len(rows), np.float32)
    timeouts[added] = 1.0
    terminals = np.where(added, 0.0, columns["terminals"][before]).astype(np.float32)
    actions = columns["actions"].reshape(len(columns["rewards"]), -1)[before]
    return d3rlpy.dataset.MDPDataset(
        observations, actions, columns["rewards"][before][:, None], terminals, timeouts,
        action_space=d3rlpy.ActionSpace.DISCRETE if s["algo"] == "cqn" else d3rlpy.ActionSpace.CONTINUOUS,
    )  # fmt: skip


def learner_of(s: Settings) -> Any:
    """Return a row's learner; all that the row does not name is d3rlpy's default."""
    own: dict[str, Any] = {"gamma": s["gamma"], "batch_size": s["batch_size"]}
    encoder = VectorEncoderFactory(hidden_units=list(s["widths"]), activation=s["activation"].lower())
    if s["algo"] == "cqn":
        # Its targets are copies; ours follow softly. So its targets are asked to, at every update.
        DiscreteCQLImpl.update_target = lambda self: soft_sync(  # type: ignore[method-assign]
            self._modules.targ_q_funcs, self._modules.q_funcs, s["tau"]
        )
        config = d3rlpy.algos.DiscreteCQLConfig(
            **own, learning_rate=s["lr"], alpha=s["alpha"], target_update_interval=1, encoder_factory=encoder
        )
        return config.create(device="cpu:0" if s["device"] == "cpu" else "cuda:0")
    env = gymnasium.make(s["env"])
    own |= {
        "actor_learning_rate": s["lr"], "critic_learning_rate": s["lr"], "tau": s["tau"],
        "actor_encoder_factory": encoder, "critic_encoder_factory": encoder,
        "action_scaler": MinMaxActionScaler(minimum=env.action_space.low, maximum=env.action_space.high),
    }  # fmt: skip
    if s["algo"] == "iql":
        config = d3rlpy.algos.IQLConfig(
            **own, value_encoder_factory=encoder, expectile=s["expectile"], weight_temp=s["beta"]
        )
    else:
        config = d3rlpy.algos.TD3PlusBCConfig(**own, alpha=s["alpha"])
    return config.create(device="cpu:0" if s["device"] == "cpu" else "cuda:0")


def per_step(s: Settings) -> dict[str, Any]:
    """Train one learner, and evaluate it after every stretch of `every` updates."""
    torch.set_num_threads(s["threads"])
    d3rlpy.seed(s["seed"])
    learner, data, seeds = learner_of(s), dataset_of(s), held_out_seeds(s["seed"], 0, s["episodes"])
    held = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(s["env"])] * s["episodes"])
    found: dict[str, Any] = {"steps": [], "greedy": [], "sampled": None}
    quiet = {
        "show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory(),
        "experiment_name": "per_step", "with_timestamp": False,
    }  # fmt: skip
    for epoch, _ in learner.fitter(data, n_steps=s["steps"], n_steps_per_epoch=s["every"], **quiet):
        found["steps"].append(epoch * s["every"])
        found["greedy"].append(float(play_episodes(held, learner.predict, seeds).mean()))
    return found


if __name__ == "__main__":
    main({"per-step": per_step})
