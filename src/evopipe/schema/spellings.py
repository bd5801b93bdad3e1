"""Names that Stable-Baselines3, CleanRL, RLlib and AgileRL give to parameters, and what they are named here."""

from __future__ import annotations

from collections.abc import Container

# The first name that a block has is meant; one with a dot stands in another block.
_OURS: dict[str, tuple[str, ...]] = {
    "actor_lr": ("lr_actor", "lr"),
    "algo": ("train.algo",),
    "algorithm": ("train.algo",),
    "anneal_lr": ("decay_steps",),
    "buffer_size": ("train.replay.capacity",),
    "clip_coef": ("clip",),
    "clip_param": ("clip",),
    "clip_range": ("clip",),
    "clip_range_vf": ("clip_value",),
    "clip_vloss": ("clip_value",),
    "critic_lr": ("lr_critic", "lr"),
    "device": ("runtime.device",),
    "discount": ("gamma",),
    "ent_coeff": ("ent_coef", "alpha"),
    "entropy_coef": ("ent_coef", "alpha"),
    "entropy_coeff": ("ent_coef", "alpha"),
    "env_id": ("env.id",),
    "environment": ("env.id",),
    "episodes": ("train.max_steps",),
    "exploration_final_eps": ("eps_end",),
    "exploration_fraction": ("eps_steps",),
    "exploration_initial_eps": ("eps_start",),
    "final_epsilon": ("eps_end",),
    "gae_coef": ("gae_lambda",),
    "hidden_size": ("network.encoder", "encoder"),
    "hidden_sizes": ("network.encoder", "encoder"),
    "initial_epsilon": ("eps_start",),
    "lam": ("gae_lambda",),
    "lambda": ("gae_lambda",),
    "lambda_": ("gae_lambda",),
    "learning_rate": ("lr", "lr_actor"),
    "learning_starts": ("random_steps", "train.learning_delay"),
    "log_std_init": ("std",),
    "max_grad_norm": ("grad_clip",),
    "memory_size": ("train.replay.capacity",),
    "minibatch_size": ("batch_size",),
    "n_envs": ("num_envs", "env.num_envs"),
    "n_epochs": ("epochs",),
    "n_step_returns": ("train.replay.n_step",),
    "n_steps": ("learn_step",),
    "net_arch": ("network.encoder",),
    "norm_adv": ("normalise_advantage",),
    "normalize": ("normalise", "train.normalise"),
    "normalize_advantage": ("normalise_advantage",),
    "num_epochs": ("epochs",),
    "num_sgd_iter": ("epochs",),
    "num_steps": ("learn_step",),
    "optimize_memory_usage": ("train.replay.sharing",),
    "policy_kwargs": ("network",),
    "pop_size": ("size", "population.size"),
    "population_size": ("size", "population.size"),
    "q_lr": ("lr_critic",),
    "policy_lr": ("lr_actor",),
    "replay_buffer_size": ("train.replay.capacity",),
    "rollout_length": ("learn_step",),
    "sgd_minibatch_size": ("batch_size",),
    "start_e": ("eps_start",),
    "end_e": ("eps_end",),
    "target_network_frequency": ("target_interval", "tau"),
    "target_update_interval": ("target_interval", "tau"),
    "total_timesteps": ("max_steps", "train.max_steps"),
    "max_timesteps": ("max_steps", "train.max_steps"),
    "train_batch_size": ("learn_step", "batch_size"),
    "train_freq": ("learn_step",),
    "train_frequency": ("learn_step",),
    "training_steps": ("max_steps", "train.max_steps"),
    "update_epochs": ("epochs",),
    "use_sde": ("std",),
    "value_loss_coef": ("vf_coef",),
    "vf_loss_coeff": ("vf_coef",),
}


def here(word: str, known: Container[str]) -> str:
    """Return the end of an error message about the unknown key `word`.

    If `word` is the name of a parameter in another library, the result says how evopipe names this parameter; if not,
    the result is empty. `known` are the keys of the block in which `word` was found. Only these keys, and dotted keys
    of other blocks, are suggested.
    """
    names = _OURS.get(word.casefold(), ())
    return next((f": it is named `{name}` here" for name in names if name in known or "." in name), "")
