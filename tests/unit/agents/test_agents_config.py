"""Configurations of agents: rLLM's documented keys, forms of other libraries, and what is said of the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("transformers")

from omegaconf import OmegaConf

from evopipe.compat.rllm.config import read, resolve
from evopipe.compat.rllm.documented import BLOCKS_OF_ARGUMENTS, FILTERS, OWN, SAME, WITHOUT
from evopipe.errors import ParamsError

VALUES = {
    "data.max_prompt_length": 64, "data.max_response_length": 8, "data.seed": 3, "data.train_batch_size": 4,
    "data.train_files": "a.jsonl", "data.val_files": "b.jsonl", "actor_rollout_ref.model.path": "tiny",
    "actor_rollout_ref.model.lora_rank": 4, "actor_rollout_ref.actor.optim.lr": 1e-4,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 2, "actor_rollout_ref.actor.ppo_epochs": 2,
    "actor_rollout_ref.actor.use_kl_loss": False, "actor_rollout_ref.actor.kl_loss_coef": 0.01,
    "actor_rollout_ref.actor.clip_ratio": 0.2, "actor_rollout_ref.actor.clip_ratio_low": 0.2,
    "actor_rollout_ref.actor.clip_ratio_high": 0.3, "actor_rollout_ref.actor.entropy_coeff": 0.01,
    "actor_rollout_ref.actor.grad_clip": 1.0, "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.rollout.n": 4, "actor_rollout_ref.rollout.temperature": 0.7,
    "actor_rollout_ref.rollout.top_p": 0.9, "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.rollout.val_kwargs.n": 2, "actor_rollout_ref.rollout.val_kwargs.temperature": 0.6,
    "algorithm.adv_estimator": "rloo", "algorithm.gamma": 0.5, "algorithm.lam": 0.9,
    "algorithm.norm_adv_by_std_in_grpo": False, "trainer.total_epochs": 2, "trainer.total_training_steps": 6,
    "trainer.test_freq": 3, "trainer.val_before_train": True, "trainer.val_only": True, "trainer.project_name": "p",
    "trainer.experiment_name": "e", "trainer.logger": ["console", "swanlab"], "trainer.default_local_dir": "out",
    "rllm.agent.max_steps": 4, "rllm.agent.trajectory_timeout": 10, "rllm.agent.overlong_filter": True,
    "rllm.agent.engine_args.retry_limit": 2, "rllm.agent.engine_args.max_workers": 2,
    "rllm.agent.engine_args.n_parallel_agents": 2, "rllm.workflow.use_workflow": True,
    "rllm.workflow.n_parallel_tasks": 3, "rllm.workflow.retry_limit": 1, "rllm.mask_truncated_samples": True,
    "rllm.stepwise_advantage.enable": True, "rllm.stepwise_advantage.mode": "per_step",
    "rllm.stepwise_advantage.normalize_by_steps": True, "rllm.stepwise_advantage.gamma": 0.1,
    "rllm.compact_filtering.enable": True, "rllm.rejection_sample.enable": True,
    **dict.fromkeys(FILTERS, True), **{name: {"a": 1} for name in BLOCKS_OF_ARGUMENTS}, **dict.fromkeys(WITHOUT, 1),
}  # fmt: skip
NEEDS = {"rllm.compact_filtering.enable": {"rllm.compact_filtering.mask_timeout": True}}
EVERY = sorted({*SAME, *OWN, *FILTERS, *BLOCKS_OF_ARGUMENTS, *(key for key in WITHOUT if "." in key)})


@pytest.mark.parametrize("key", EVERY)
def test_no_documented_key_is_ignored_silently(key: str) -> None:
    plain = resolve(None, None, 10, "x")
    found = resolve({key: VALUES[key], **NEEDS.get(key, {})}, None, 10, "x")
    assert found != plain
    assert found.notes == [] or found.notes[0].startswith((f"{key}: has no meaning here: ", f"{key}.a: has no meaning"))


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce", "gae"])
def test_the_documented_keys_together_are_a_configuration_of_every_estimator(estimator: str) -> None:
    given = {key: VALUES[key] for key in EVERY} | {"algorithm.adv_estimator": estimator}
    notes = resolve(given, None, 10, "x").notes
    assert len(set(notes)) == len(notes)
    spoken = " ".join(notes)
    assert ("algorithm.norm_adv_by_std_in_grpo: has no meaning" in spoken) == (estimator != "grpo")
    assert ("algorithm.lam: has no meaning" in spoken) == (estimator != "gae")


def test_gamma_is_of_tokens_where_values_are_learned_and_of_turns_elsewhere() -> None:
    gae = resolve({"algorithm.gamma": 0.5, "algorithm.adv_estimator": "gae"}, None, 10, "x")
    assert gae.params.algo_config.gamma == 0.5
    assert resolve({"algorithm.gamma": 0.5}, None, 10, "x").agents.gamma == 0.5


@pytest.mark.parametrize(
    "config",
    [
        {"ray_init.num_cpus": 3, "ray_init.address": None, "ray_init.runtime_env": {"env_vars": {"A": "1"}}},
        {"ray_init": {"num_cpus": 3, "address": None, "runtime_env": {"env_vars": {"A": "1"}}}},
    ],
)
def test_settings_of_ray_reach_it_where_it_is_the_engine_and_are_said_to_be_idle_elsewhere(config: Any) -> None:
    there, here = resolve(config, None, 10, "x", "ray"), resolve(config, None, 10, "x")
    assert there.arguments["ray_init"] == {"num_cpus": 3, "runtime_env": {"env_vars": {"A": "1"}}}
    assert there.notes == []
    told = "ray_init.num_cpus, ray_init.runtime_env: have no meaning here: nothing starts Ray with engine='local'"
    assert here.notes == [told]
    assert resolve({"ray_init": {"num_cpus": None}}, None, 10, "x").notes == []  # as rLLM's own file has it
    with pytest.raises(ParamsError, match="config: ray_init: of type int, expected a mapping of arguments"):
        resolve({"ray_init": 4}, None, 10, "x", "ray")


@dataclass
class Data:
    train_batch_size: int = 8


@dataclass
class Own:
    data: Data = field(default_factory=Data)


def test_configurations_of_omegaconf_are_read_with_what_they_refer_to() -> None:
    config = OmegaConf.create({
        "size": 8, "data": {"train_batch_size": "${size}"}, "trainer": {"logger": ["console"], "n_gpus_per_node": None},
        "rllm": {"agent": {"max_steps": "${oc.decode:${oc.env:NO_SUCH_NAME,7}}", "agent_args": {"name": "${size}"}}},
    })  # fmt: skip
    found = resolve(config, None, 10, "x")
    assert (found.agents.max_steps, found.params.algo_config.rows) == (7, 64)
    assert found.arguments["agent_args"] == {"name": 8}
    assert type(found.arguments["agent_args"]) is dict
    assert found.notes == ["size: has no meaning here: it is unknown"]
    assert read(OmegaConf.structured(Own)) == read(Own()) == ({"data.train_batch_size": 8}, True)
    merged = OmegaConf.merge(config, OmegaConf.from_dotlist(["data.train_batch_size=2"]))
    assert resolve(merged, None, 10, "x").params.algo_config.rows == 16


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"data": {"train_batch_size": "???"}}, "Missing mandatory value: data.train_batch_size"),
        ({"data": {"train_batch_size": "${no}"}}, "Interpolation key 'no' not found"),
        ({"data": {"train_batch_size": "${no.such:1}"}}, "Unsupported interpolation type no.such"),
    ],
)
def test_what_omegaconf_cannot_find_is_said(config: Any, says: str) -> None:
    with pytest.raises(ParamsError, match=f"^config: {re.escape(says)}$"):
        resolve(OmegaConf.create(config), None, 10, "x")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"actor_rollout_ref.actor.optim.lr": "fast"}, "actor_rollout_ref.actor.optim.lr: 'fast' is no number"),
        ({"data.train_batch_size": "all"}, "data.train_batch_size: 'all' is no number"),
        ({"data.train_batch_size": 0}, "data.train_batch_size: must be at least 1, got 0"),
        ({"actor_rollout_ref.rollout.n": 0}, "rollout.n: must be at least 1, got 0"),
        ({"actor_rollout_ref.actor.clip_ratio": "x"}, "clip_ratio: 'x' is no number"),
        ({"rllm.stepwise_advantage.enable": True, "rllm.stepwise_advantage.mode": "all"}, "must be 'broadcast' or"),
        ({"algorithm.adv_estimator": "grop"}, "did you mean 'grpo'"),
        ({"agents.estimators": {"judge": "ppo_language"}}, "'ppo_language' compares no rewards"),
        ({"runtime.shards.engine": "ray"}, "runtime.shards.engine: agents play in one process"),
        (["data.train_batch_size"], "is not of the form 'key=value'"),
        (7, "config: of type int"),
    ],
)
def test_values_that_cannot_be_used_are_said(config: Any, says: str) -> None:
    with pytest.raises(ParamsError, match=re.escape(says)):
        resolve(config, None, 10, "x")
