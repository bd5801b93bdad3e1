"""The names in AgileRL's documentation, and what each is in evopipe, if anything: the table of
`docs/coming-from-agilerl.md`."""

from __future__ import annotations

HERE: dict[str, tuple[str, str]] = {
    "CQN": ("algorithms", "The conservative term is that of the paper."),
    "DDPG": ("algorithms", "`get_action` gives the environment's units; `rescale_action` is not needed."),
    "DQN": ("algorithms", "Huber loss; `agent.steps` is a list and counts as its last number."),
    "IPPO": ("algorithms", "All agents have one architecture."),
    "MADDPG": ("algorithms", "`get_action` gives the same actions twice: to step with, and to save."),
    "MATD3": ("algorithms", "As `MADDPG`, with noise on target actions."),
    "NeuralTS": ("algorithms", "Widths by all parameters' gradients, of the last layer there."),
    "NeuralUCB": ("algorithms", "Widths by all parameters' gradients, of the last layer there."),
    "PPO": ("algorithms", "`action_std_init` is a standard deviation; `recurrent=True` for a memory."),
    "RainbowDQN": ("algorithms", "`learn` has set the priorities that it returns."),
    "TD3": ("algorithms", "As `DDPG`."),
    "GRPO": ("algorithms", ""),
    "LLMPPO": ("algorithms", ""),
    "LLMREINFORCE": ("algorithms", ""),
    "DPO": ("algorithms", ""),
    "HyperparameterConfig": ("algorithms.core.registry", ""),
    "RLParameter": ("algorithms.core.registry", "`dtype` is the hyper-parameter's own."),
    "Transition": ("components.data", "`to_tensordict` returns a `TensorDict` of evopipe's."),
    "MultiAgentTransition": ("components.data", "For `MultiAgentReplayBuffer`."),
    "ReplayDataset": ("components.data", ""),
    "ReplayBuffer": ("components.replay_buffer", "`learn` writes nothing into it; steps that only reset are left out."),
    "MultiStepReplayBuffer": ("components.replay_buffer", "`add` returns what a step completed, for another memory."),
    "PrioritizedReplayBuffer": (
        "components.replay_buffer",
        "Holds the transitions over several steps that it is given.",
    ),
    "MultiAgentReplayBuffer": ("components.multi_agent_replay_buffer", ""),
    "RolloutBuffer": ("components.rollout_buffer", "`agent.learn()` empties it."),
    "Sampler": ("components.sampler", "Of one process."),
    "Mutations": ("hpo.mutation", "See [below](#mutations)."),
    "TournamentSelection": ("hpo.tournament", "See [below](#tournamentselection)."),
    "DummyEvolvable": ("modules.dummy", "For DQN, CQN and PPO."),
    "collect_rollouts": ("rollouts.on_policy", "Returns the scores, then the arguments of the next call."),
    "collect_rollouts_recurrent": ("rollouts.on_policy", "As `collect_rollouts`."),
    "train_bandits": ("training.train_bandits", "One update in every `learn_step` steps."),
    "train_multi_agent_off_policy": ("training.train_multi_agent_off_policy", ""),
    "train_multi_agent_on_policy": ("training.train_multi_agent_on_policy", ""),
    "train_off_policy": ("training.train_off_policy", "See [below](#train_off_policy)."),
    "train_offline": ("training.train_offline", "See [below](#train_offline)."),
    "train_on_policy": ("training.train_on_policy", "See [below](#train_on_policy)."),
    "finetune_llm_preference": ("training.train_llm", ""),
    "finetune_llm_reasoning": ("training.train_llm", ""),
    "BPTTSequenceType": ("typing", "`MAXIMUM` is read as overlapping sequences."),
    "create_population": ("utils.utils", "Returns agents of the algorithms' classes."),
    "default_progress_bar": ("utils.utils", ""),
    "make_multi_agent_vect_envs": ("utils.utils", "Steps in this process."),
    "make_vect_envs": ("utils.utils", "Steps in this process; observations know what led to them."),
    "observation_space_channels_to_first": ("utils.utils", "Not needed."),
    "plot_population_score": ("utils.utils", "Returns the figure too."),
    "print_hyperparams": ("utils.utils", ""),
    "save_population_checkpoint": ("utils.utils", "A folder for each agent."),
    "tournament_selection_and_mutation": ("utils.utils", ""),
    "PreferenceGym": ("utils.llm_utils", ""),
    "ReasoningGym": ("utils.llm_utils", ""),
    "AsyncPettingZooVecEnv": ("vector.pz_async_vec_env", "Steps in this process; who is gone is zeros, not NaN."),
    "AgentWrapper": ("wrappers.agent", "For loops of one's own."),
    "RSNorm": ("wrappers.agent", "Turns the member's own statistics on; runs train it as it is."),
    "BanditEnv": ("wrappers.learning", "Has a seed."),
}
"""Names of AgileRL's that are here: the module below `agilerl` that has them there, and what differs."""

OURS = ("Agent", "Experiences", "LanguageAgent", "TensorDict", "train_from_config")
"""Names of this package that are no names of AgileRL's."""

INSTEAD: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("EvolvableMLP", "EvolvableCNN", "EvolvableLSTM", "EvolvableMultiInput", "EvolvableResNet", "EvolvableSimBa"),
        ("modules", "give the algorithm `net_config` (`encoder_config`, `head_config`, `latent_dim`, `simba`), which "
         "makes networks that mutate"),
    ),
    **dict.fromkeys(
        ("QNetwork", "RainbowQNetwork", "ContinuousQNetwork", "ValueNetwork", "StochasticActor", "EvolvableNetwork",
         "EvolvableModule", "MlpNetConfig", "CnnNetConfig"),
        ("networks", "give the algorithm `net_config`, or a `torch.nn.Module` as `actor_network` (DQN, CQN, PPO)"),
    ),
    "DeterministicActor": ("networks.actors", "leave `rescale_action` out: `get_action` gives the environment's units"),
    **dict.fromkeys(
        ("MutationType", "mutation"),
        ("modules.base", "give a module's class a static function `mutations(kwargs)` and name it `network.module`"),
    ),
    "MakeEvolvable": ("wrappers.make_evolvable", "give the module, or a `DummyEvolvable` of it, as `actor_network`"),
    "EvolvableGPT": ("modules.gpt", "set `language.model: gpt` in params.yaml"),
    "EvolvableBERT": ("modules.bert", "fine-tune a model of transformers: `GRPO`, `DPO`"),
    "RecurrentPPO": ("algorithms", "write `PPO(..., recurrent=True)`"),
    "Population": ("population", "keep a list of agents, and call `tournament_selection_and_mutation`"),
    "init_loggers": ("utils.utils", "hand `wb=True` to a training function, or log what the loop has"),
    **dict.fromkeys(
        ("StdOutLogger", "WandbLogger", "CSVLogger", "TensorboardLogger"),
        ("logger", "name `tracking.backends` in params.yaml"),
    ),
    "init_wandb": ("utils.utils", "hand `wb=True` to a training function"),
    "LocalTrainer": ("training.trainer", "call `train_from_config` with the manifest"),
    **dict.fromkeys(("ArenaTrainer", "ArenaClient"), ("arena", "train here: `train_from_config`, or `dvc repro`")),
    "TrainingManifest": ("models.manifest", "call `train_from_config` with the file"),
    "MultiFrequencySelection": ("hpo.multi_frequency", "name a `search.strategy` of params.yaml"),
    **dict.fromkeys(
        ("Skill", "make_skill_vect_envs"),
        ("wrappers.learning", "write a wrapper of Gymnasium and hand it to `make_vect_envs(extra_wrappers=[...])`"),
    ),
    "AsyncAgentsWrapper": ("wrappers.agent", "leave it out: agents may come, go and wait their turn"),
    "PettingZooAutoResetParallelWrapper": ("wrappers.pettingzoo_wrappers", "leave it out: the vector begins anew"),
    "PettingZooVectorizationParallelWrapper": ("wrappers.pettingzoo_wrappers", "call `make_multi_agent_vect_envs`"),
    "obs_channels_to_first": ("utils.algo_utils", "leave it out: networks accept images of either order"),
    "calculate_vectorized_scores": ("utils.utils", "count returns in the loop, or read `agent.scores`"),
    "aggregate_metrics_across_gpus": ("utils.utils", "leave it out: all members train in one process"),
    "gather_tensor": ("utils.utils", "leave it out: all members train in one process"),
    **dict.fromkeys(("ILQL", "BC_LM"), ("algorithms", "set `train.algo` to `ilql` or `bc_language` in params.yaml")),
    **dict.fromkeys(
        ("SFT", "GSPO", "CISPO"),
        ("algorithms", "set `train.algo` to `sft` in params.yaml, or call `GRPO(loss_type='gspo')`, `'cispo'`"),
    ),
    **dict.fromkeys(
        ("SFTGym", "finetune_llm_sft", "finetune_llm_multiturn", "train_llm_rollout", "train_llm_dataset"),
        ("training", "set `train.algo` in params.yaml, or use `evopipe.agents` for conversations of several turns"),
    ),
    **dict.fromkeys(
        ("check_q_learning_with_probe_env", "check_policy_q_learning_with_probe_env",
         "check_policy_on_policy_with_probe_env"),
        ("utils.probe_envs", "run `evopipe env check` on an environment; evopipe's own tests probe its algorithms"),
    ),
    **dict.fromkeys(
        ("RLAlgorithm", "MultiAgentRLAlgorithm", "EvolvableAlgorithm", "OptimizerWrapper", "NetworkGroup"),
        ("algorithms.core", "write an algorithm as one file: docs/your-own-project.md#another-algorithm"),
    ),
}  # fmt: skip
"""Names of AgileRL's that are not here: the module below `agilerl` that has them there, and what to write instead."""


def table() -> str:
    """Return, as a Markdown table, the names in AgileRL's documentation and what each is in evopipe."""
    lines = ["| AgileRL | Here | What differs, or what to write instead |", "| --- | --- | --- |"]
    found = {(home, name): ("the same name", note) for name, (home, note) in HERE.items()}
    found |= {(home, name): ("none", f"{note[0].upper()}{note[1:]}.") for name, (home, note) in INSTEAD.items()}
    lines += [f"| `agilerl.{home}.{name}` | {here} | {note} |" for (home, name), (here, note) in sorted(found.items())]
    return "\n".join(lines)
