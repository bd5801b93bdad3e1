"""The pages for those who come from other libraries: our blocks run, and every argument of theirs has its line.

Blocks of theirs are fenced as `py`, ours as `python`. Ours run as they stand, but for budgets.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pages import blocks, in_order
from tiny import ROOT

DOCS = ROOT / "docs"
OF_TRL = {
    "GRPOConfig": """learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout
        cast_lm_head_to_fp32 remove_unused_columns num_generations num_generations_eval max_completion_length
        ds3_gather_for_generation shuffle_dataset pad_to_multiple_of generation_batch_size steps_per_generation
        temperature top_p top_k min_p generation_kwargs chat_template_kwargs repetition_penalty cache_implementation
        use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url
        vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
        vllm_max_model_length vllm_tensor_parallel_size beta num_iterations epsilon delta epsilon_high
        sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
        importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type
        mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile
        entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
        max_tool_calling_iterations vllm_importance_sampling_correction vllm_importance_sampling_mode
        vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min off_policy_mask_threshold
        use_bias_correction_kl log_completions log_multimodal num_completions_to_print log_unique_prompts
        log_completions_hub_repo use_transformers_continuous_batching transformers_continuous_batching_config
        use_transformers_paged vllm_importance_sampling_cap""",
    "SFTConfig": """learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef chat_template_path
        dataset_text_field dataset_kwargs dataset_num_proc eos_token max_length truncation_mode shuffle_dataset packing
        packing_strategy padding_free pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss loss_type
        activation_offloading pad_token""",
    "RewardConfig": """learning_rate model_init_kwargs trust_remote_code chat_template_path disable_dropout
        dataset_num_proc eos_token max_length pad_to_multiple_of center_rewards_coefficient activation_offloading
        pad_token""",
    "DPOConfig": """learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout
        dataset_num_proc max_length truncation_mode padding_free pad_to_multiple_of precompute_ref_log_probs
        precompute_ref_batch_size loss_type loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef
        label_smoothing beta use_weighting discopop_tau activation_offloading sync_ref_model ref_model_mixup_alpha
        ref_model_sync_steps pad_token""",
}
"""Fields that TRL 1.16 declares in the configurations of its trainers."""
OF_TRAINERS = """model ref_model args train_dataset eval_dataset processing_class peft_config reward_funcs tools
    environment_factory rollout_func formatting_func optimizers optimizer_cls_and_kwargs quantization_config
    reward_processing_classes data_collator compute_metrics compute_loss_func preprocess_logits_for_metrics callbacks"""
OFF_POLICY = """learning_rate batch_size gamma policy env policy_kwargs seed device tensorboard_log verbose
    stats_window_size _init_setup_model buffer_size learning_starts tau train_freq gradient_steps n_steps
    replay_buffer_class replay_buffer_kwargs optimize_memory_usage"""
OF_SB3 = {
    "PPO": """policy env learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_vf
        normalize_advantage ent_coef vf_coef max_grad_norm use_sde sde_sample_freq rollout_buffer_class
        rollout_buffer_kwargs target_kl stats_window_size tensorboard_log policy_kwargs verbose seed device
        _init_setup_model""",
    "DQN": OFF_POLICY + " target_update_interval exploration_fraction exploration_initial_eps exploration_final_eps"
    " max_grad_norm",
    "SAC": OFF_POLICY + " action_noise ent_coef target_update_interval target_entropy use_sde sde_sample_freq"
    " use_sde_at_warmup",
    "TD3": OFF_POLICY + " action_noise policy_delay target_policy_noise target_noise_clip",
}
"""Arguments of the constructors of Stable-Baselines3 2.9."""
OF_CLEANRL = {
    "every script": """exp_name seed torch_deterministic cuda track wandb_project_name wandb_entity capture_video env_id
        total_timesteps num_envs save_model upload_model hf_entity""",
    "`ppo.py`": """learning_rate num_steps anneal_lr gamma gae_lambda num_minibatches update_epochs norm_adv clip_coef
        clip_vloss ent_coef vf_coef max_grad_norm target_kl""",
    "`dqn.py`": """learning_rate buffer_size gamma tau target_network_frequency batch_size start_e end_e
        exploration_fraction learning_starts train_frequency""",
}
"""Arguments of CleanRL's scripts, of which `dqn.py` alone has the last three that every script is said to have."""
SHORT = {
    "max_steps": 512, "evo_steps": 256, "learn_step": 256, "budget": 2000, "episodes": 2, "eval_episodes": 2,
    '"target"': "None", "rows": 8, '"batch_size"': 8,
}  # fmt: skip
"""What budgets become, wherever a block gives one."""


def first_column(page: str, heading: str) -> list[str]:
    """Names in backticks in the first column of the tables below a heading, or of the one whose head names it."""
    text = (DOCS / page).read_text()
    part = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    table = part or re.search(rf"^\| [^|\n]*{re.escape(heading)} \|[^\n]*\n(.*?)(?=^$)", text, re.DOTALL | re.MULTILINE)
    assert table, heading
    return re.findall(r"`([a-z_0-9]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table[1], re.MULTILINE)))


@pytest.mark.parametrize("algo", OF_SB3)
def test_every_argument_of_stable_baselines3_has_its_line(algo: str) -> None:
    page = "coming-from-sb3.md"
    told = first_column(page, "All four")
    if algo == "PPO":
        told += first_column(page, "`PPO`")
    else:
        text = (DOCS / page).read_text().partition("### `DQN`, `SAC`, `TD3`")[2].partition("\n| Argument of")[0]
        told += re.findall(r"`([a-z_]+)`", " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)))
        told += first_column(page, f"Argument of `{algo}`")
    assert sorted(told) == sorted(OF_SB3[algo].split())


@pytest.mark.parametrize("name", OF_CLEANRL)
def test_every_argument_of_cleanrls_scripts_has_its_line(name: str) -> None:
    assert sorted(first_column("coming-from-cleanrl.md", name)) == sorted(OF_CLEANRL[name].split())


@pytest.mark.parametrize("name", OF_TRL)
def test_every_argument_of_trls_trainers_has_its_line(name: str) -> None:
    assert sorted(first_column("coming-from-trl.md", f"`{name}`")) == sorted(OF_TRL[name].split())


def test_every_argument_of_trls_constructors_has_its_line() -> None:
    told = first_column("coming-from-trl.md", "Arguments of all trainers")
    assert set(OF_TRAINERS.split()) <= set(told)


UNTRACKED = '"tracking": {"backends": []}, "population": {"size": 1}'
UNFILMED = UNTRACKED + ', "export": {"film": False, "program": False}, "evaluate": {"episodes": 4}'


def small(code: str) -> str:
    """A page's code with budgets of a test, without trackers."""
    for name, value in SHORT.items():
        code = re.sub(rf"({name}\"?[:=] ?)[\d_]+(\.\d+)?", rf"\g<1>{value}", code)
    code = code.replace('"population": {"size": 1}', UNFILMED)
    return code.replace('"evo_steps": 256', '"evo_steps": 256, "warm_start": 0, "confirm_episodes": 2')


def run(code: str, page: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, page, "exec"), names)
    return names


def test_the_first_block_of_stable_baselines3_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, *_ = blocks(DOCS / "coming-from-sb3.md", "python")
    names = run(small(first).replace('evopipe.train(params, folder="run")', "evopipe.Population(params)"), "first")
    with names["result"] as population:
        assert len(population.train()) == 2
    assert population.params.algo_config.learn_step == 256


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["coming-from-sb3.md", "coming-from-cleanrl.md", "coming-from-rllib.md"])
def test_our_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(small(in_order(DOCS / page)), page)
    assert names["policy"].act([[0.0, 0.1, 0.0, -0.1]]).shape == (1,)
    assert capsys.readouterr().out


@pytest.mark.slow
def test_our_blocks_of_language_models_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = DOCS / "coming-from-trl.md"
    (rewards,) = (block for block in blocks(page, "python") if block.startswith("# rewards.py\n"))
    (tmp_path / "rewards.py").write_text(rewards)
    code = in_order(page).replace('"max_steps": 100, "evo_steps": 25', '"max_steps": 2, "evo_steps": 1')
    run(code.replace('"population": {"size": 1}', UNTRACKED), "trl")
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} >= {"run", "sft", "dpo", "reward_model"}


@pytest.mark.thorough
def test_our_blocks_of_agents_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
    monkeypatch.chdir(tmp_path)
    code = in_order(DOCS / "coming-from-rllm.md").replace("steps=100", "steps=4").replace("test_freq=50", "test_freq=2")
    names = run(code, "rllm")
    mean, (written,) = capsys.readouterr().out.splitlines()[-2:], names["policy"].generate(["042"])
    assert float(mean[0]) == names["result"].evaluation["elite"]["mean"]
    assert len(written) == 1


PROGRAMS = {"evopipe", "dvc", "cp", "pip", "git"}


def test_commands_on_the_pages_are_those_that_there_are() -> None:
    """Each line of a shell block: ours by its command and its options, theirs not."""
    import typer

    from evopipe.cli import app

    group: Any = typer.main.get_command(app)
    seen = []
    for page in sorted(DOCS.glob("coming-from-*.md")):
        lines = [
            line for kind in ("sh", "bash", "console") for text in blocks(page, kind) for line in text.splitlines()
        ]
        for call in (part.split() for line in lines for part in line.partition(" #")[0].split(" && ")):
            if call[:1] != ["evopipe"]:
                assert not call or call[0] in PROGRAMS | {"python"}, f"{page.name}: {call}"
                continue
            command, words = group, call[1:]
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            options = {name for each in command.params for name in each.opts}
            told = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert told <= options, f"{page.name}: {call}"
            seen.append(call)
    assert len(seen) >= 2
