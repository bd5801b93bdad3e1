"""The rows of the learning curves by environment step: values of both sides, who the peer is, how many seeds.

`floor` is what a policy scores that learned nothing: an area counts from there. `target` is the score of a first solved
evaluation. `vf_coef` weighs the squared error, as SB3 has it; evopipe and AgileRL weigh half of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Values = dict[str, Any]

SB3, CONTRIB, AGILERL, D3RLPY, SKRL = "SB3", "sb3-contrib", "AgileRL", "d3rlpy", "skrl"
ENVIRONMENTS = {SB3: "sb3", CONTRIB: "sb3", AGILERL: "agilerl", D3RLPY: "d3rlpy", SKRL: "skrl"}
PACKAGES = {SB3: "stable-baselines3", CONTRIB: "sb3-contrib", AGILERL: "agilerl", D3RLPY: "d3rlpy", SKRL: "skrl"}


class Row(NamedTuple):
    """A row.

    Attributes:
        values: of both sides.
        unlike: what is not equal, and cannot be made so by a value: keys of `UNLIKE`.
        peer: whose learner it is compared with.
        repeats: seeds: 10 where both sides of one take up to some three minutes, 5 where they take longer: fewer
            decide nothing.
    """

    values: Values
    unlike: tuple[str, ...]
    peer: str = SB3
    repeats: int = 10


UNLIKE = {
    "ppo": "SB3 divides advantages by their unbiased deviation, and has an ε of 1e-5 in Adam, ours is 1e-8 "
           "(decision 0033).",
    "first weights": "The peer's layers begin uniform as torch's do, ours orthogonal, the outputs' with a gain of .1.",
    "lstm": "sb3-contrib's LSTMs begin uniform as torch's do, ours orthogonal; its minibatches are stretches of a "
            "rollout from a random place, ours whole environments' rollouts.",
    "copies": "SB3 copies its target by steps since the first, ours by updates since the first.",
    "random noise": "SB3 adds its noise to the first, random actions too.",
    "rainbow": "AgileRL has a hidden layer for the value and one for the advantages, ours one for both; it keeps its "
               "noise between two updates, ours draws it for every step; its weights of priorities are averaged over "
               "the batch, their exponent nears 1 much sooner, priorities are losses, ours divergences; it stores the "
               "reset of an episode as a step, and begins a new episode after every evaluation.",
    "expectiles": "d3rlpy learns a deviation of IQL's policy, ours is fixed, and its actor learns after the value, "
                  "ours beside it.",
    "soft copies": "d3rlpy copies its target; for this row it is made to follow softly, as ours does.",
    "team": "AgileRL's agents are not told apart in the networks that they share, ours by a number each; its "
            "environments give the first observation of the next episode as the one after an episode's last step, and "
            "it begins new episodes after every evaluation.",
    "central": "AgileRL's shared networks take three steps an update, one for each agent, ours one on their sum; its "
               "critic reads actions after its first layer, ours before it.",
    "independent": "AgileRL does not cut advantages where an episode ends, and clips actor's and critic's gradients "
                   "apart, ours together.",
    "mappo": "skrl normalises advantages over the rollout, ours over the minibatch, and clips each agent's gradients "
             "apart, ours together.",
}  # fmt: skip


_PPO: Values = {
    "algo": "ppo", "widths": [64, 64], "activation": "Tanh", "num_envs": 8, "lr": 3e-4, "learn_step": 2048,
    "batch_size": 64, "epochs": 10, "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2, "ent_coef": 0.0, "vf_coef": 0.5,
    "grad_clip": 0.5, "std": 1.0,
}  # fmt: skip
_OFF: Values = {
    "widths": [64, 64], "activation": "ReLU", "num_envs": 1, "lr": 1e-3, "learn_step": 1, "batch_size": 100,
    "gamma": 0.99, "tau": 0.005, "capacity": 100_000, "random_steps": 1_000, "noise_sd": 0.1,
}  # fmt: skip
_DQN: Values = {**_OFF, "algo": "dqn", "target_interval": 250, "grad_clip": 10.0}
# Offline steps are updates, of which one needs one environment, played in only to be evaluated.
_OFFLINE: Values = {
    "widths": [64, 64], "activation": "ReLU", "num_envs": 1, "lr": 1e-3, "learn_step": 1, "batch_size": 128,
    "gamma": 0.98, "tau": 0.005, "steps": 10_000, "every": 1_000,
}  # fmt: skip
_TEAM: Values = {
    "team": True, "env": "simple_spread_v3", "widths": [64, 64], "head": [64], "activation": "ReLU", "num_envs": 8,
    "steps": 98_304, "every": 8_192, "floor": -79.0, "target": -45.0,
}  # fmt: skip
_CARTPOLE: Values = {"env": "CartPole-v1", "floor": 20.0, "target": 475.0}
_PENDULUM: Values = {"env": "Pendulum-v1", "steps": 10_000, "every": 1_000, "floor": -1250.0, "target": -200.0}
_LANDER: Values = {
    "env": "LunarLanderContinuous-v3", "steps": 40_960, "every": 4_096, "floor": -200.0, "target": 200.0,
    "widths": [128, 128],
}  # fmt: skip
_CHEETAH: Values = {
    "env": "HalfCheetah-v5", "steps": 100_000, "every": 10_000, "floor": -280.0, "target": 3_000.0, "episodes": 5,
    "widths": [128, 128], "batch_size": 128, "random_steps": 5_000,
}  # fmt: skip


def _unlike(algo: str) -> tuple[str, ...]:
    """Return what is not equal in continuous control."""
    return ("first weights",) if algo == "sac" else ("first weights", "random noise")


ROWS: dict[str, Row] = {
    "per_step_ppo_cartpole": Row({**_PPO, **_CARTPOLE, "steps": 49_152, "every": 4_096}, ("ppo",)),
    "per_step_ppo_acrobot": Row({
        **_PPO, "env": "Acrobot-v1", "steps": 65_536, "every": 4_096, "floor": -500.0, "target": -100.0,
    }, ("ppo",)),
    "per_step_ppo_lunarlander": Row({
        **_PPO, "env": "LunarLander-v3", "steps": 245_760, "every": 16_384, "floor": -200.0, "target": 200.0,
        "num_envs": 16, "lr": 1e-3, "learn_step": 4_096, "epochs": 4, "batch_size": 128, "gamma": 0.999,
        "gae_lambda": 0.98, "ent_coef": 0.01,
    }, ("ppo",)),
    # SB3's deviation is in the environment's units, ours in shares of its bounds: here these are the same.
    "per_step_ppo_pendulum": Row({
        **_PPO, **_PENDULUM, "env": "curve_envs:RelativePendulum-v0", "steps": 98_304, "every": 8_192, "num_envs": 4,
        "lr": 1e-3, "learn_step": 4_096, "gamma": 0.9, "std": 0.5,
    }, ("ppo",)),
    # Nothing but noise finds the goal, so it begins with much. Full power one way scores -100, the least there is, and
    # standing still 0, which is no floor for an area.
    "per_step_ppo_mountaincar": Row({
        **_PPO, "env": "MountainCarContinuous-v0", "steps": 163_840, "every": 16_384, "floor": -100.0, "target": 90.0,
        "gamma": 0.999, "std": 3.0, "learn_step": 8_192, "batch_size": 256,
    }, ("ppo",)),
    "per_step_ppo_halfcheetah": Row({
        **_PPO, "env": "HalfCheetah-v5", "steps": 204_800, "every": 20_480, "floor": -280.0, "target": 1_000.0,
        "episodes": 5,
    }, ("ppo",), repeats=5),
    "per_step_ppo_doorkey": Row({
        **_PPO, "env": "curve_envs:DoorKey-v0", "steps": 131_072, "every": 16_384, "floor": 0.0, "target": 0.9,
        "lr": 1e-3, "epochs": 4, "batch_size": 256, "ent_coef": 0.01,
    }, ("ppo",)),
    "per_step_ppo_masked_cartpole": Row({
        **_PPO, **_CARTPOLE, "env": "curve_envs:MaskedCartPole-v0", "recurrent": True, "steps": 98_304, "every": 8_192,
        "lr": 1e-3, "learn_step": 1_024, "batch_size": 256,
    }, ("ppo", "lstm"), CONTRIB, 5),
    "per_step_dqn_cartpole": Row({
        **_DQN, **_CARTPOLE, "steps": 40_960, "every": 4_096, "widths": [128, 128], "lr": 5e-4, "batch_size": 64,
        "random_steps": 500, "eps_end": 0.04, "eps_steps": 8_000,
    }, ("first weights", "copies")),
    "per_step_dqn_lunarlander": Row({
        **_DQN, "env": "LunarLander-v3", "steps": 98_304, "every": 8_192, "floor": -200.0, "target": 200.0,
        "widths": [128, 128], "lr": 5e-4, "batch_size": 64, "eps_end": 0.1, "eps_steps": 12_000,
    }, ("first weights", "copies"), repeats=5),
    # The network and most values of Young and Tian's own (2019), but for an update in four steps, and Adam.
    "per_step_dqn_breakout": Row({
        **_DQN, "env": "curve_envs:MinAtarBreakout-v0", "steps": 500_000, "every": 50_000, "floor": 0.5, "target": 10.0,
        "conv": [{"channels": 16, "kernel": 3, "stride": 1}], "widths": [128], "lr": 2.5e-4, "batch_size": 32,
        "learn_step": 4, "target_interval": 1_000, "random_steps": 5_000, "eps_end": 0.1, "eps_steps": 100_000,
    }, ("first weights", "copies"), repeats=5),
    "per_step_rainbow_cartpole": Row({
        **_OFF, **_CARTPOLE, "algo": "rainbow", "steps": 20_480, "every": 2_048, "head": [128], "batch_size": 64,
        "widths": [128, 64], "lr": 5e-4, "random_steps": 500, "grad_clip": 10.0, "atoms": 51, "v_min": 0.0,
        "v_max": 100.0, "noisy_sigma": 0.5, "n_step": 3, "alpha": 0.6, "beta": 0.4, "layer_norm": True,
    }, ("first weights", "rainbow"), AGILERL, 5),
    "per_step_sac_pendulum": Row({**_OFF, **_PENDULUM, "algo": "sac"}, _unlike("sac")),
    "per_step_td3_pendulum": Row({**_OFF, **_PENDULUM, "algo": "td3"}, _unlike("td3")),
    "per_step_ddpg_pendulum": Row({**_OFF, **_PENDULUM, "algo": "ddpg"}, _unlike("ddpg")),
    **{f"per_step_{algo}_lunarlander": Row({**_OFF, **_LANDER, "algo": algo}, _unlike(algo), repeats=5)
       for algo in ("sac", "td3", "ddpg")},
    **{f"per_step_{algo}_halfcheetah": Row({**_OFF, **_CHEETAH, "algo": algo}, _unlike(algo), repeats=5)
       for algo in ("sac", "td3", "ddpg")},
    "per_step_iql_pendulum": Row({
        **_OFFLINE, **_PENDULUM, "algo": "iql", "data": "pendulum", "expectile": 0.9, "beta": 1.0, "tau": 0.01,
    }, ("first weights", "expectiles"), D3RLPY),
    "per_step_td3bc_pendulum": Row({
        **_OFFLINE, **_PENDULUM, "algo": "td3bc", "data": "pendulum", "alpha": 40.0, "tau": 0.01,
    }, ("first weights",), D3RLPY),
    "per_step_cqn_cartpole": Row({
        **_OFFLINE, **_CARTPOLE, "algo": "cqn", "data": "cartpole", "alpha": 1.0,
    }, ("first weights", "soft copies"), D3RLPY),
    "per_step_maddpg_spread": Row({
        **_OFF, **_TEAM, "algo": "maddpg", "kwargs": {"continuous_actions": True}, "learn_step": 16,
        "batch_size": 256, "tau": 0.01, "gamma": 0.95, "random_steps": 0,
    }, ("first weights", "team", "central"), AGILERL, 5),
    "per_step_ippo_spread": Row({
        **_PPO, **_TEAM, "algo": "ippo", "kwargs": {"continuous_actions": False}, "lr": 1e-3, "batch_size": 256,
        "ent_coef": 0.01,
    }, ("first weights", "team", "independent"), AGILERL, 5),
    "per_step_mappo_spread": Row({
        **_PPO, **_TEAM, "algo": "mappo", "kwargs": {"continuous_actions": False}, "lr": 1e-3, "batch_size": 256,
        "ent_coef": 0.01,
    }, ("first weights", "mappo"), SKRL, 5),
}  # fmt: skip


def settings(name: str, quick: bool, device: str, threads: int) -> Values:
    """Return a row's settings; `quick` takes two short stretches."""
    row = ROWS[name].values
    every, steps = row["every"], row["steps"]
    if quick:
        every = row["learn_step"] if "epochs" in row else min(every, 1_024)
        steps = 2 * every
        row = {**row, **({"random_steps": min(row["random_steps"], 512)} if "random_steps" in row else {})}
    episodes = 4 if quick else row.get("episodes", 20)
    return {**row, "steps": steps, "every": every, "episodes": episodes, "device": device, "threads": threads}
