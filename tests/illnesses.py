"""Short runs that are ill on purpose, each in one way, and runs that are well, for what the report and doctor say."""

from __future__ import annotations

from typing import Any

NET: dict[str, Any] = {"network": {"encoder": [32], "latent": 32}}
WIDE: dict[str, Any] = {"network": {**NET["network"], "initialisation": {"others": 10.0}}}
CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
LEARNS = {"batch_size": 64, "learn_step": 256}
SHORT, THRICE = {"evo_steps": 512, "max_steps": 2048}, {"evo_steps": 300, "max_steps": 900}
ENDLESS = {"evo_steps": 4096, "max_steps": 12288, "eval_episodes": 1, "eval_steps": 200}
ILL: dict[str, tuple[str, dict[str, Any]]] = {
    "no reward is ever seen": ("no_reward", {
        "algo": "dqn", "env": "FrozenLake-v1", "kwargs": {"map_name": "8x8"}, "config": NET,
        "train": {"evo_steps": 100, "max_steps": 300}}),
    "the learning rate is a hundred times too high, of PPO": ("entropy_gone", {
        "algo": "ppo", "env": CARTPOLE, "config": {**NET, **LEARNS, "lr": 0.3}, "train": SHORT}),
    "the learning rate is a hundred times too high, of DQN": ("units_idle", {
        "algo": "dqn", "env": CARTPOLE, "config": {**NET, "learn_step": 2, "lr": 0.1, "eps_steps": 500},
        "train": {"evo_steps": 500, "max_steps": 2000}}),
    "rewards overflow": ("diverged", {
        "algo": "dqn", "env": "scaled_envs:Rich-v0", "kwargs": {"pays": 1e30}, "config": {**NET, "loss": "mse"},
        "train": {"evo_steps": 200, "max_steps": 400}, "members": 4}),
    "rewards are a million, of DQN": ("reward_scale", {
        "algo": "dqn", "env": "scaled_envs:Rich-v0", "config": NET, "train": THRICE}),
    "rewards are a million, of PPO": ("reward_scale", {
        "algo": "ppo", "env": "scaled_envs:Rich-v0", "config": {**NET, "learn_step": 256}, "train": SHORT}),
    "observations are not scaled": ("observations_unscaled", {
        "algo": "ppo", "env": "scaled_envs:Scaled-v0", "config": {**NET, "learn_step": 256}, "train": SHORT}),
    "values are made of entropy": ("values_too_large", {
        "algo": "sac", "env": PENDULUM, "config": {**NET, "learn_step": 1, "alpha": 100.0, "learn_alpha": False,
                                                   "lr_critic": 1e-2, "tau": 0.1},
        "train": {"evo_steps": 600, "max_steps": 1800, "eval_episodes": 1}}),
    "the support is too narrow": ("support_too_narrow", {
        "algo": "rainbow", "env": CARTPOLE,
        "config": {**NET, "learn_step": 2, "v_min": -1.0, "v_max": 3.0, "atoms": 11, "lr": 1e-3},
        "train": {"evo_steps": 500, "max_steps": 2000}}),
    "the policy begins without deviation": ("entropy_gone", {
        "algo": "ppo", "env": PENDULUM, "config": {**NET, **LEARNS, "std": 0.005}, "train": SHORT}),
    "a rollout moves the policy far": ("steps_too_large", {
        "algo": "ppo", "env": CARTPOLE, "config": {**NET, **LEARNS, "lr": 0.02, "clip": 5.0, "epochs": 10},
        "train": {"evo_steps": 512, "max_steps": 1536}}),
    "values do not learn": ("values_explain_nothing", {
        "algo": "ppo", "env": "envs_for_tests:Countdown-v0",
        "config": {**WIDE, "learn_step": 128, "gae_lambda": 1.0, "vf_coef": 0.0, "lr": 1e-9},
        "train": {"evo_steps": 128, "max_steps": 640}}),
    "gradients are clipped to nothing": ("gradient_clipped", {
        "algo": "ppo", "env": PENDULUM, "config": {**NET, **LEARNS, "grad_clip": 1e-3},
        "train": {"evo_steps": 512, "max_steps": 1536}}),
    "members hardly learn": ("too_few_updates", {
        "algo": "dqn", "env": CARTPOLE, "config": {**NET, "learn_step": 100},
        "train": {"evo_steps": 500, "max_steps": 1500}}),
    "members never learn": ("too_few_updates", {
        "algo": "dqn", "env": CARTPOLE, "config": {**NET, "learn_step": 2},
        "train": {"evo_steps": 500, "max_steps": 1500, "learning_delay": 5000}}),
    "the discount does not reach what is to come": ("discount_too_short", {
        "algo": "td3", "env": PENDULUM, "train": {"evo_steps": 1000, "max_steps": 4000, "eval_episodes": 2},
        "config": {**NET, "learn_step": 1, "gamma": 0.5}}),
    "a time limit is told as an end": ("time_limit_hidden", {
        "algo": "td3", "env": "timed_envs:Timed-v0", "kwargs": {"hidden": True}, "config": {**NET, "learn_step": 1},
        "train": {"evo_steps": 500, "max_steps": 2000, "eval_episodes": 2}}),
    "there is no time limit": ("episodes_never_end", {
        "algo": "td3", "env": "timed_envs:Untimed-v0", "config": {**NET, "learn_step": 16}, "train": ENDLESS}),
    "episodes are cut by the limit of last resort": ("episodes_never_end", {
        "algo": "td3", "env": "timed_envs:Untimed-v0", "config": {**NET, "learn_step": 16},
        "env_config": {"step_limit": 1000}, "train": ENDLESS}),
    "the policy is all noise": ("actions_are_noise", {
        "algo": "ppo", "env": PENDULUM, "num_envs": 8, "config": {**NET, "learn_step": 512, "std": 10.0},
        "train": {"evo_steps": 2048, "max_steps": 8192, "eval_episodes": 2}}),
    "actions have no effect": ("members_alike", {
        "algo": "dqn", "env": "envs_for_tests:Countdown-v0", "config": NET, "train": THRICE}),
    "the learning rate is nothing": ("flat", {
        "algo": "ppo", "env": "Acrobot-v1", "config": {**NET, "lr": 1e-9, "learn_step": 128},
        "train": {"evo_steps": 128, "max_steps": 1280, "eval_steps": 50, "eval_episodes": 1}}),
    "evaluation is most of it": ("evaluation_costs", {
        "algo": "dqn", "env": CARTPOLE, "config": NET,
        "train": {"evo_steps": 100, "max_steps": 400, "eval_episodes": 64}}),
}  # fmt: skip
WELL: dict[str, dict[str, Any]] = {
    "dqn": {
        "algo": "dqn", "env": CARTPOLE, "train": {"evo_steps": 1000, "max_steps": 6000, "learning_delay": 100},
        "config": {**NET, "batch_size": 64, "learn_step": 2, "eps_steps": 1500, "lr": 1e-3}},
    "ppo": {
        "algo": "ppo", "env": CARTPOLE, "train": {"evo_steps": 2048, "max_steps": 12288}, "num_envs": 8,
        "config": {**NET, "batch_size": 64, "learn_step": 512, "epochs": 6, "lr": 3e-3}},
    "sac": {
        "algo": "sac", "env": PENDULUM, "train": {"evo_steps": 1000, "max_steps": 4000, "eval_episodes": 2},
        "config": {**NET, "learn_step": 1, "lr_critic": 1e-3, "lr_actor": 1e-3}},
    "td3": {
        "algo": "td3", "env": PENDULUM, "train": {"evo_steps": 1000, "max_steps": 4000, "eval_episodes": 2},
        "config": {**NET, "learn_step": 1}},
    "td3, with a time limit that is told as such": {
        "algo": "td3", "env": "timed_envs:Timed-v0", "config": {**NET, "learn_step": 1},
        "train": {"evo_steps": 500, "max_steps": 2000, "eval_episodes": 2}},
    "td3, with a time limit": {
        "algo": "td3", "env": PENDULUM, "config": {**NET, "learn_step": 16}, "train": ENDLESS},
    "rainbow": {
        "algo": "rainbow", "env": CARTPOLE, "train": {"evo_steps": 600, "max_steps": 3000},
        "config": {**NET, "learn_step": 2, "v_min": 0.0, "v_max": 100.0, "atoms": 21, "lr": 1e-3}},
}  # fmt: skip
"""Of each run how `advised.facts` makes it; of those that are ill also the rule that is to speak."""
