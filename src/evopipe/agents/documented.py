"""rLLM's documented keys of a configuration: where each goes here, and what those that go nowhere meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from evopipe.errors import ParamsError, suggestion

BLOCKS = ("language", "population", "train", "evolution", "evaluate", "export", "runtime", "tracking", "algos")
TRAIN = "algos.*"  # stands for the block of the algorithm in use


class To(NamedTuple):
    """Where a documented key goes."""

    key: str
    change: Callable[[Any], Any] = lambda value: value


def truth(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("true", "1", "yes")


def _mean(value: str) -> str:
    known = {"token-mean": "token", "seq-mean-token-mean": "sequence"}
    if value not in known:
        raise ParamsError(
            f"actor_rollout_ref.actor.loss_agg_mode: {value!r} is not known here{suggestion(str(value), known)}"
        )
    return known[value]


SAME: dict[str, To] = {
    "data.max_prompt_length": To("language.max_prompt"),
    "data.max_response_length": To("language.max_completion"),
    "data.seed": To("seed"),
    "actor_rollout_ref.model.path": To("language.model"),
    "actor_rollout_ref.model.lora_rank": To("language.rank"),
    "actor_rollout_ref.actor.optim.lr": To(f"{TRAIN}.lr", float),
    "actor_rollout_ref.actor.ppo_epochs": To(f"{TRAIN}.epochs"),
    "actor_rollout_ref.actor.kl_loss_coef": To(f"{TRAIN}.beta", float),
    "actor_rollout_ref.actor.clip_ratio_low": To(f"{TRAIN}.clip_low", float),
    "actor_rollout_ref.actor.clip_ratio_high": To(f"{TRAIN}.clip_high", float),
    "actor_rollout_ref.actor.entropy_coeff": To(f"{TRAIN}.ent_coef", float),
    "actor_rollout_ref.actor.grad_clip": To(f"{TRAIN}.grad_clip", float),
    "actor_rollout_ref.actor.loss_agg_mode": To(f"{TRAIN}.mean", _mean),
    "actor_rollout_ref.rollout.temperature": To(f"{TRAIN}.temperature", float),
    "actor_rollout_ref.rollout.top_p": To(f"{TRAIN}.top_p", float),
    "actor_rollout_ref.rollout.top_k": To(f"{TRAIN}.top_k", lambda value: max(0, int(value))),
    "actor_rollout_ref.rollout.val_kwargs.n": To("agents.samples"),
    "actor_rollout_ref.rollout.val_kwargs.temperature": To("agents.temperature", float),
    "algorithm.gamma": To("agents.gamma", float),
    "algorithm.norm_adv_by_std_in_grpo": To(f"{TRAIN}.dr", lambda value: not truth(value)),
    "trainer.total_training_steps": To("train.max_steps"),
    "trainer.test_freq": To("train.evo_steps"),
    "trainer.val_before_train": To("agents.first", truth),
    "trainer.experiment_name": To("tracking.experiment"),
    "rllm.agent.max_steps": To("agents.max_steps"),
    "rllm.agent.trajectory_timeout": To("agents.episode_seconds", float),
    "rllm.agent.engine_args.retry_limit": To("agents.retries"),
    "rllm.agent.engine_args.max_workers": To("agents.workers"),
    "rllm.agent.engine_args.n_parallel_agents": To("agents.at_once"),
    "rllm.workflow.n_parallel_tasks": To("agents.at_once"),
    "rllm.workflow.retry_limit": To("agents.retries"),
    "rllm.stepwise_advantage.gamma": To("agents.gamma", float),
}
OWN = {
    "data.train_batch_size", "data.train_files", "data.val_files", "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.clip_ratio", "algorithm.adv_estimator", "algorithm.lam", "trainer.total_epochs",
    "trainer.project_name", "trainer.logger", "trainer.default_local_dir", "trainer.val_only",
    "rllm.workflow.use_workflow", "rllm.stepwise_advantage.enable", "rllm.stepwise_advantage.mode",
    "rllm.stepwise_advantage.normalize_by_steps", "rllm.compact_filtering.enable", "rllm.agent.overlong_filter",
    "rllm.mask_truncated_samples", "rllm.rejection_sample.enable",
}  # fmt: skip
BLOCKS_OF_ARGUMENTS = ("rllm.agent.agent_args", "rllm.env.env_args", "rllm.workflow.workflow_args")
FILTERS = {
    f"rllm.compact_filtering.mask_{name}": name
    for name in (
        "max_prompt_length_exceeded", "max_response_length_exceeded", "env_done", "max_turns_exceeded", "timeout",
        "unknown", "error",
    )
}  # fmt: skip
WITHOUT: dict[str, str] = {
    "data": "all tasks of a step are played at once",
    "actor_rollout_ref.hybrid_engine": "one process generates and learns",
    "actor_rollout_ref.actor": "the model learns in this process, in float32 and without shards",
    "actor_rollout_ref.ref": "the reference is the base, which is there",
    "actor_rollout_ref.rollout": "completions are decoded in this process",
    "actor_rollout_ref.model": "a base is loaded as it is",
    "algorithm": "the algorithm's own block below `algos` has what it needs",
    "critic": "no critic but `ppo_language`'s value head, see `algos.ppo_language`",
    "reward_model": "rewards come from environments, workflows and reward functions",
    "custom_reward_function": "pass reward_fn",
    "trainer.n_gpus_per_node": "one device, see `runtime.device`",
    "trainer.nnodes": "one machine",
    "trainer.save_freq": "a run is saved by time, see `runtime.checkpoint_seconds`",
    "trainer": "nothing here asks for it",
    "ray_init": "nothing starts Ray with engine='local'",
    "rllm.agent.name": "pass agent_class",
    "rllm.env.name": "pass env_class",
    "rllm.workflow.name": "pass workflow_class",
    "rllm": "nothing here asks for it",
}
ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "rloo": ("reinforce", {"baseline": "rloo"}),
    "reinforce": ("reinforce", {}),
    "reinforce_plus_plus": ("reinforce", {}),
    "reinforce_plus_plus_baseline": ("reinforce", {}),
    "gae": ("ppo_language", {}),
}
