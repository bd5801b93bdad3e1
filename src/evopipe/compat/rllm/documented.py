"""rLLM's documented keys of a configuration: which key of `params.yaml` each is, and why some have no meaning here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from evopipe import algos
from evopipe.agents.types import TerminationReason
from evopipe.errors import ParamsError, suggestion

Values = dict[str, Any]
_TRACKERS = ("mlflow", "wandb", "tensorboard")
TRAIN = "algos.*"  # stands for the block of the algorithm in use


class _To(NamedTuple):
    """Where a documented key goes."""

    key: str
    change: Callable[[Any], Any] = lambda value: value


def truth(value: Any) -> bool:
    """Convert a value of a configuration to a bool. A text is True if it is `true`, `1` or `yes`, in upper or lower
    case."""
    return value if isinstance(value, bool) else str(value).lower() in ("true", "1", "yes")


def _mean(value: str) -> str:
    known = {"token-mean": "token", "seq-mean-token-mean": "sequence"}
    if value not in known:
        raise ParamsError(
            f"actor_rollout_ref.actor.loss_agg_mode: {value!r} is not known here{suggestion(str(value), known)}"
        )
    return known[value]


SAME: dict[str, _To] = {
    "data.max_prompt_length": _To("language.max_prompt"),
    "data.max_response_length": _To("language.max_completion"),
    "data.seed": _To("seed"),
    "actor_rollout_ref.model.path": _To("language.model"),
    "actor_rollout_ref.model.lora_rank": _To("language.rank"),
    "actor_rollout_ref.actor.optim.lr": _To(f"{TRAIN}.lr", float),
    "actor_rollout_ref.actor.ppo_epochs": _To(f"{TRAIN}.epochs"),
    "actor_rollout_ref.actor.kl_loss_coef": _To(f"{TRAIN}.beta", float),
    "actor_rollout_ref.actor.clip_ratio_low": _To(f"{TRAIN}.clip_low", float),
    "actor_rollout_ref.actor.clip_ratio_high": _To(f"{TRAIN}.clip_high", float),
    "actor_rollout_ref.actor.entropy_coeff": _To(f"{TRAIN}.ent_coef", float),
    "actor_rollout_ref.actor.grad_clip": _To(f"{TRAIN}.grad_clip", float),
    "actor_rollout_ref.actor.loss_agg_mode": _To(f"{TRAIN}.mean", _mean),
    "actor_rollout_ref.rollout.temperature": _To(f"{TRAIN}.temperature", float),
    "actor_rollout_ref.rollout.top_p": _To(f"{TRAIN}.top_p", float),
    "actor_rollout_ref.rollout.top_k": _To(f"{TRAIN}.top_k", lambda value: max(0, int(value))),
    "actor_rollout_ref.rollout.val_kwargs.n": _To("agents.samples"),
    "actor_rollout_ref.rollout.val_kwargs.temperature": _To("agents.temperature", float),
    "algorithm.gamma": _To("agents.gamma", float),
    "algorithm.norm_adv_by_std_in_grpo": _To(f"{TRAIN}.dr", lambda value: not truth(value)),
    "trainer.total_training_steps": _To("train.max_steps"),
    "trainer.test_freq": _To("train.evo_steps"),
    "trainer.val_before_train": _To("agents.first", truth),
    "trainer.experiment_name": _To("tracking.experiment"),
    "rllm.agent.max_steps": _To("agents.max_steps"),
    "rllm.agent.trajectory_timeout": _To("agents.episode_seconds", float),
    "rllm.agent.engine_args.retry_limit": _To("agents.retries"),
    "rllm.agent.engine_args.max_workers": _To("agents.workers"),
    "rllm.agent.engine_args.n_parallel_agents": _To("agents.at_once"),
    "rllm.workflow.n_parallel_tasks": _To("agents.at_once"),
    "rllm.workflow.retry_limit": _To("agents.retries"),
    "rllm.stepwise_advantage.gamma": _To("agents.gamma", float),
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
BLOCKS_OF_ARGUMENTS = ("rllm.agent.agent_args", "rllm.env.env_args", "rllm.workflow.workflow_args", "ray_init")
FILTERS = {f"rllm.compact_filtering.mask_{reason.value}": reason.value for reason in TerminationReason}
WITHOUT: dict[str, str] = {
    "data.val_batch_size": "all tasks of a validation are played at once, see `agents.at_once`",
    "data.gen_batch_size": "all tasks of a step are played at once, see `agents.at_once`",
    "data.shuffle": "tasks are drawn in an order that the seed fixes, each once before any comes again",
    "data": "all tasks of a step are played at once",
    "actor_rollout_ref.hybrid_engine": "one process generates and learns",
    "actor_rollout_ref.actor": "the model learns in this process, in float32 and without shards",
    "actor_rollout_ref.ref": "the reference is the base, which is there",
    "actor_rollout_ref.rollout": "completions are decoded in this process",
    "actor_rollout_ref.model": "a base is loaded as it is",
    "algorithm.use_kl_in_reward": "the divergence from the base is where the algorithm has it, see its `beta`",
    "algorithm.kl_ctrl": "the divergence from the base has a weight that stays, see the algorithm's `beta`",
    "algorithm": "the algorithm's own block below `algos` has what it needs",
    "critic": "no critic but `ppo_language`'s value head, see `algos.ppo_language`",
    "reward_model": "rewards come from environments, workflows and reward functions",
    "custom_reward_function": "pass reward_fn",
    "trainer.n_gpus_per_node": "one device, see `runtime.device`",
    "trainer.nnodes": "one machine",
    "trainer.save_freq": "a run is saved by time, see `runtime.checkpoint_seconds`",
    "trainer.default_hdfs_dir": "a run is kept in a folder, see `trainer.default_local_dir`",
    "trainer": "nothing here asks for it",
    "rllm.agent.name": "pass agent_class",
    "rllm.env.name": "pass env_class",
    "rllm.workflow.name": "pass workflow_class",
    "rllm.agent.engine_args.api_retries": "a completion that takes longer than `agents.model_seconds` is asked again",
    "rllm.disable_thinking": "a chat's template is used as it is",
    "rllm.accumulate_reasoning": "a chat goes on with the tokens that were written, all of them",
    "rllm.rejection_sample.multiplier": "no tasks are drawn in the place of groups without spread",
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


def changed(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Convert the value of one of rLLM's documented keys to the value of the corresponding key of `params.yaml`, and
    return it.

    Args:
        key: rLLM's key, for error messages.
        value: its value.
        change: a function that converts the value, such as `int`.

    Raises:
        ParamsError: `change` raises a TypeError, ValueError or OverflowError, for example because the value is no
            number.
    """
    try:
        return change(value)
    except (TypeError, ValueError, OverflowError):
        raise ParamsError(f"config: {key}: {value!r} is no number") from None


def idle(documented: Values, algo: str) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each documented key of rLLM that has no effect.

    `documented` has the values of the documented keys that were given, and `algo` is the algorithm; an effect may
    depend on both.
    """
    if "algorithm.lam" in documented and algo != "ppo_language":
        yield "algorithm.lam", "it is of adv_estimator=gae alone"
    for start, among in (("rllm.stepwise_advantage", OWN), ("rllm.compact_filtering", FILTERS)):
        if not truth(documented.get(f"{start}.enable", False)):
            for key in documented:
                if key in among and key.startswith(start) and not key.endswith(".enable"):
                    yield key, f"{start}.enable is not true"
    if "rllm.workflow.use_workflow" in documented:
        yield "rllm.workflow.use_workflow", "passing workflow_class says it"
    if "rllm.rejection_sample.enable" in documented:
        yield "rllm.rejection_sample.enable", "groups without spread are always left out, and counted"
    loggers = _loggers(documented)
    if left := [name for name in loggers if name not in (*_TRACKERS, "console")]:
        yield "trainer.logger", f"{', '.join(left)}: trackers are {', '.join(_TRACKERS)}"
    if "trainer.total_epochs" in documented and "trainer.total_training_steps" in documented:
        yield "trainer.total_epochs", "trainer.total_training_steps wins"


def shape(documented: Values, put: Callable[..., None], algo: str, tasks: int, overrides: Values) -> None:
    """Set the keys of `params.yaml` that say how much is trained: the tasks in a step, the rollouts of a task, and the
    steps of the run.

    Args:
        documented: values of rLLM's documented keys.
        put: a function (key, value, source) that sets a key of `params.yaml`. `source` is a text that says where the
            value comes from.
        algo: the algorithm.
        tasks: the number of training tasks.
        overrides: all overrides that the user gave, by dotted keys.
    """
    block = algos.get(algo).Config()

    def number(key: str, default: Any = None) -> Any:
        value = documented.get(key, default)
        found = None if value is None else changed(key, value, int)
        if found is not None and found < 1:
            raise ParamsError(f"config: {key}: must be at least 1, got {value!r}")
        return found

    group = number("actor_rollout_ref.rollout.n", overrides.get(f"algos.{algo}.group_size", block.group_size))
    batch = number("data.train_batch_size")
    if "actor_rollout_ref.rollout.n" in documented:
        put(f"{TRAIN}.group_size", group, f"actor_rollout_ref.rollout.n={group}")
    rows = overrides.get(f"algos.{algo}.rows", block.rows)
    if batch is not None or "actor_rollout_ref.rollout.n" in documented:
        of_each = batch if batch is not None else max(1, block.rows // group)
        rows = of_each * group
        put(f"{TRAIN}.rows", rows, f"data.train_batch_size={of_each} × actor_rollout_ref.rollout.n={group}")
        put(f"{TRAIN}.batch_size", rows, "all of a step's rollouts")
    mini = number("actor_rollout_ref.actor.ppo_mini_batch_size")
    if mini is not None:
        source = f"actor_rollout_ref.actor.ppo_mini_batch_size={mini} × actor_rollout_ref.rollout.n={group}"
        put(f"{TRAIN}.batch_size", min(mini * group, rows), source)
    epochs = number("trainer.total_epochs")
    if epochs is not None and "trainer.total_training_steps" not in documented:
        steps = max(1, math.ceil(epochs * tasks * group / max(1, rows)))
        put("train.max_steps", steps, f"trainer.total_epochs={epochs} × {tasks} tasks")


def others(documented: Values, put: Callable[..., None], algo: str, overrides: Values) -> None:
    """Set the keys of `params.yaml` whose values are computed from rLLM's documented keys, instead of copied from one
    of them.

    Args:
        documented: values of rLLM's documented keys.
        put: a function (key, value, source) that sets a key of `params.yaml`. `source` is a text that says where the
            value comes from.
        algo: the algorithm.
        overrides: all overrides that the user gave, by dotted keys.
    """
    if not truth(documented.get("actor_rollout_ref.actor.use_kl_loss", True)):
        put(f"{TRAIN}.beta", 0.0, "actor_rollout_ref.actor.use_kl_loss=False")
    if (clip := documented.get("actor_rollout_ref.actor.clip_ratio")) is not None:
        for end in ("low", "high"):
            if f"actor_rollout_ref.actor.clip_ratio_{end}" not in documented:
                put(f"{TRAIN}.clip_{end}", changed("actor_rollout_ref.actor.clip_ratio", clip, float),
                    f"actor_rollout_ref.actor.clip_ratio={clip}")  # fmt: skip
    if algo == "ppo_language":
        for key, own in (("lam", "gae_lambda"), ("gamma", "gamma")):
            if (value := documented.get(f"algorithm.{key}")) is not None:
                put(f"{TRAIN}.{own}", changed(f"algorithm.{key}", value, float), f"algorithm.{key}={value}")
    if truth(documented.get("rllm.stepwise_advantage.enable", False)):
        mode = documented.get("rllm.stepwise_advantage.mode", "broadcast")
        level = {"broadcast": "trajectory", "per_step": "turn"}.get(mode)
        if level is None:
            raise ParamsError(f"rllm.stepwise_advantage.mode: {mode!r}: must be 'broadcast' or 'per_step'")
        if level == "trajectory" and truth(documented.get("rllm.stepwise_advantage.normalize_by_steps", False)):
            level = "step"
        put("agents.advantage", level, f"rllm.stepwise_advantage.mode={mode}")
    if "trainer.logger" in documented:
        kept = [name for name in _loggers(documented) if name in _TRACKERS]
        put("tracking.backends", kept, f"trainer.logger={documented['trainer.logger']}")
    elif "tracking.backends" not in overrides:
        put("tracking.backends", [], "default")
    if "trainer.project_name" in documented and "trainer.experiment_name" not in documented:
        put("tracking.experiment", documented["trainer.project_name"], "trainer.project_name")


def _loggers(documented: Values) -> list[str]:
    loggers = documented.get("trainer.logger", [])
    return [loggers] if isinstance(loggers, str) else [str(each) for each in loggers]


def masks(documented: Values) -> list[str]:
    """Return the termination reasons of episodes from which members do not learn, according to rLLM's
    documented keys."""
    found = []
    if truth(documented.get("rllm.compact_filtering.enable", False)):
        found = [name for key, name in FILTERS.items() if truth(documented.get(key, False))]
    long = ["max_prompt_length_exceeded", "max_response_length_exceeded"]
    if truth(documented.get("rllm.agent.overlong_filter", False)):
        found += [*long, "max_turns_exceeded"]
    if truth(documented.get("rllm.mask_truncated_samples", False)):
        found += long
    return list(dict.fromkeys(found))
