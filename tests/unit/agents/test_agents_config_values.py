"""What becomes of rLLM's documented keys, by hand: which parameter each is, with which value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from evopipe import AgentTrainer, algos
from evopipe.agents import ChatAgent, CopyGame
from evopipe.agents.workflow import CumulativeWorkflow, Workflow
from evopipe.compat.rllm.arguments import check_arguments, parameters_of
from evopipe.compat.rllm.config import resolve
from evopipe.compat.rllm.documented import FILTERS, SAME

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GRPO = algos.get("grpo").Config()
SINGLE = [
    ("data.max_prompt_length", 64, "language.max_prompt", 64),
    ("data.max_response_length", 8, "language.max_completion", 8),
    ("data.seed", 3, "seed", 3),
    ("actor_rollout_ref.model.path", "models/base", "language.model", "models/base"),
    ("actor_rollout_ref.model.lora_rank", 5, "language.rank", 5),
    ("actor_rollout_ref.model.lora_rank", 0, "language.full", True),
    (f"{ACTOR}.optim.lr", "1e-4", "algo.lr", 1e-4),
    (f"{ACTOR}.ppo_epochs", 3, "algo.epochs", 3),
    (f"{ACTOR}.kl_loss_coef", 0.25, "algo.beta", 0.25),
    (f"{ACTOR}.use_kl_loss", False, "algo.beta", 0.0),
    (f"{ACTOR}.use_kl_loss", "False", "algo.beta", 0.0),
    (f"{ACTOR}.use_kl_loss", True, "algo.beta", GRPO.beta),
    (f"{ACTOR}.clip_ratio_low", 0.125, "algo.clip_low", 0.125),
    (f"{ACTOR}.clip_ratio_high", 0.375, "algo.clip_high", 0.375),
    (f"{ACTOR}.clip_ratio", 0.25, "algo.clip_low", 0.25),
    (f"{ACTOR}.clip_ratio", 0.25, "algo.clip_high", 0.25),
    (f"{ACTOR}.entropy_coeff", 0.0625, "algo.ent_coef", 0.0625),
    (f"{ACTOR}.grad_clip", 0.75, "algo.grad_clip", 0.75),
    (f"{ACTOR}.loss_agg_mode", "token-mean", "algo.mean", "token"),
    (f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean", "algo.mean", "sequence"),
    (f"{ROLLOUT}.temperature", 0.7, "algo.temperature", 0.7),
    (f"{ROLLOUT}.top_p", 0.9, "algo.top_p", 0.9),
    (f"{ROLLOUT}.top_k", -1, "algo.top_k", 0),
    (f"{ROLLOUT}.top_k", 12, "algo.top_k", 12),
    (f"{ROLLOUT}.val_kwargs.n", 6, "agents.samples", 6),
    (f"{ROLLOUT}.val_kwargs.temperature", 0.6, "agents.temperature", 0.6),
    ("algorithm.gamma", 0.5, "agents.gamma", 0.5),
    ("algorithm.norm_adv_by_std_in_grpo", False, "algo.dr", True),
    ("algorithm.norm_adv_by_std_in_grpo", True, "algo.dr", False),
    ("trainer.total_training_steps", 60, "train.max_steps", 60),
    ("trainer.test_freq", 7, "train.evo_steps", 7),
    ("trainer.val_before_train", "true", "agents.first", True),
    ("trainer.val_before_train", False, "agents.first", False),
    ("trainer.experiment_name", "mine", "tracking.experiment", "mine"),
    ("trainer.project_name", "ours", "tracking.experiment", "ours"),
    ("trainer.logger", ["console", "wandb", "tensorboard"], "tracking.backends", ("wandb", "tensorboard")),
    ("trainer.logger", "mlflow", "tracking.backends", ("mlflow",)),
    ("trainer.logger", "console", "tracking.backends", ()),
    ("rllm.agent.max_steps", 4, "agents.max_steps", 4),
    ("rllm.agent.trajectory_timeout", 11, "agents.episode_seconds", 11.0),
    ("rllm.agent.engine_args.retry_limit", 2, "agents.retries", 2),
    ("rllm.agent.engine_args.max_workers", 3, "agents.workers", 3),
    ("rllm.agent.engine_args.n_parallel_agents", 5, "agents.at_once", 5),
    ("rllm.workflow.n_parallel_tasks", 6, "agents.at_once", 6),
    ("rllm.workflow.retry_limit", 1, "agents.retries", 1),
    ("rllm.stepwise_advantage.gamma", 0.3, "agents.gamma", 0.3),
]  # fmt: skip


def at(found: Any, place: str) -> Any:
    """A value of what a configuration became, by its dotted key; `algo` is the algorithm's block."""
    block, *names = place.split(".")
    here = found.agents if block == "agents" else found.params.algo_config if block == "algo" else found.params
    for name in names if block in ("agents", "algo") else (block, *names):
        here = getattr(here, name)
    return here


def differing(a: Any, b: Any) -> set[str]:
    """Where two configurations differ, by dotted keys."""

    def leaves(value: Any, before: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for key, each in value.items() for k, v in leaves(each, f"{before}.{key}").items()}
        return {before: value}

    both = [
        leaves(x.params.model_dump(), "params") | leaves(x.params.algo_config.model_dump(), "algo")
        | leaves(x.agents.model_dump(), "agents") for x in (a, b)
    ]  # fmt: skip
    return {key for key in both[0].keys() | both[1].keys() if repr(both[0].get(key)) != repr(both[1].get(key))}


def test_every_key_that_goes_to_one_place_is_among_those_that_are_tried() -> None:
    assert {*SAME} <= {key for key, *_ in SINGLE}


@pytest.mark.parametrize(("key", "given", "place", "value"), SINGLE)
def test_a_documented_key_is_the_parameter_that_means_the_same_and_no_other(
    key: str, given: Any, place: str, value: Any
) -> None:
    plain, found = resolve(None, None, 10, "x"), resolve({key: given}, None, 10, "x")
    assert at(found, place) == value
    assert type(at(found, place)) is type(value)
    others = {"clip_ratio": "clip_", "lora_rank": "language."}.get(key.rpartition(".")[2], place.rpartition(".")[2])
    assert all(others in each for each in differing(plain, found)), "nothing else changes"
    said = [source for name, source in found.origin.items() if name.rpartition(".")[2] == place.rpartition(".")[2]]
    assert [each for each in said if key in each] or value in (GRPO.beta, ()), "`explain` says where it comes from"


@pytest.mark.parametrize(
    ("given", "group", "rows", "batch"),
    [
        ({"data.train_batch_size": 4, f"{ROLLOUT}.n": 3}, 3, 12, 12),
        ({"data.train_batch_size": 4, f"{ROLLOUT}.n": 3, f"{ACTOR}.ppo_mini_batch_size": 2}, 3, 12, 6),
        ({"data.train_batch_size": 4, f"{ROLLOUT}.n": 3, f"{ACTOR}.ppo_mini_batch_size": 9}, 3, 12, 12),
        ({"data.train_batch_size": 4}, GRPO.group_size, 4 * GRPO.group_size, 4 * GRPO.group_size),
        ({f"{ROLLOUT}.n": 4}, 4, GRPO.rows // 4 * 4, GRPO.rows // 4 * 4),
        ({f"{ROLLOUT}.n": 2 * GRPO.rows}, 2 * GRPO.rows, 2 * GRPO.rows, 2 * GRPO.rows),
        ({"algos.grpo.group_size": 2, "data.train_batch_size": 5}, 2, 10, 10),
    ],
)
def test_a_step_has_all_rollouts_of_its_tasks_and_an_update_those_of_a_minibatch(
    given: dict[str, Any], group: int, rows: int, batch: int
) -> None:
    block = resolve(given, None, 10, "x").params.algo_config
    assert (block.group_size, block.rows, block.batch_size) == (group, rows, batch)


@pytest.mark.parametrize(
    ("epochs", "tasks", "steps"), [(1, 10, 3), (2, 10, 5), (2, 12, 6), (1, 1, 1), (3, 4, 3), ("2", 13, 7)]
)
def test_epochs_are_as_many_steps_as_show_every_task_so_often(epochs: Any, tasks: int, steps: int) -> None:
    """Of four tasks each, with three rollouts; a number of steps wins."""
    given = {"data.train_batch_size": 4, f"{ROLLOUT}.n": 3, "trainer.total_epochs": epochs}
    assert resolve(given, None, tasks, "x").params.train.max_steps == steps
    found = resolve(given | {"trainer.total_training_steps": 99}, None, tasks, "x")
    assert found.params.train.max_steps == 99
    assert found.notes == ["trainer.total_epochs: has no meaning here: trainer.total_training_steps wins"]


def test_of_two_keys_for_one_thing_the_narrower_wins() -> None:
    block = resolve({f"{ACTOR}.clip_ratio": 0.25, f"{ACTOR}.clip_ratio_low": 0.125}, None, 10, "x").params.algo_config
    assert (block.clip_low, block.clip_high) == (0.125, 0.25)
    block = resolve({f"{ACTOR}.clip_ratio": 0.25, f"{ACTOR}.clip_ratio_high": 0.5}, None, 10, "x").params.algo_config
    assert (block.clip_low, block.clip_high) == (0.25, 0.5)
    both = resolve({"trainer.project_name": "ours", "trainer.experiment_name": "mine"}, None, 10, "x")
    assert both.params.tracking.experiment == "mine"
    assert resolve(None, None, 10, "x").params.tracking.backends == (), "nobody is told unless it is asked for"
    kept = resolve({"tracking.backends": ["tensorboard"]}, None, 10, "x")
    assert kept.params.tracking.backends == ("tensorboard",)


@pytest.mark.parametrize(
    ("estimator", "algo", "baseline"),
    [
        ("grpo", "grpo", None), ("rloo", "reinforce", "rloo"), ("reinforce", "reinforce", None),
        ("reinforce_plus_plus", "reinforce", None), ("reinforce_plus_plus_baseline", "reinforce", None),
        ("gae", "ppo_language", None),
    ],
)  # fmt: skip
def test_an_estimator_is_an_algorithm(estimator: str, algo: str, baseline: str | None) -> None:
    given = {"algorithm.adv_estimator": estimator, "algorithm.gamma": 0.5, "algorithm.lam": 0.75}
    found = resolve(given, None, 10, "x")
    assert found.params.train.algo == algo
    usual = algos.get(algo).Config()
    assert getattr(found.params.algo_config, "baseline", None) == (baseline or getattr(usual, "baseline", None))
    if algo == "ppo_language":
        assert (found.params.algo_config.gamma, found.params.algo_config.gae_lambda) == (0.5, 0.75)
    assert resolve({**given, "train.algo": "grpo"}, None, 10, "x").params.train.algo == "grpo"


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"mode": "broadcast"}, "trajectory"), ({}, "trajectory"), ({"mode": "per_step"}, "turn"),
        ({"mode": "broadcast", "normalize_by_steps": True}, "step"), ({"normalize_by_steps": "true"}, "step"),
        ({"mode": "per_step", "normalize_by_steps": True}, "turn"),
    ],
)  # fmt: skip
def test_a_stepwise_advantage_is_of_trajectories_of_steps_or_of_turns(given: dict[str, Any], level: str) -> None:
    start = "rllm.stepwise_advantage"
    asked = {f"{start}.enable": True, **{f"{start}.{key}": value for key, value in given.items()}}
    assert resolve(asked, None, 10, "x").agents.advantage == level
    usual = resolve(None, None, 10, "x").agents.advantage
    idle = resolve(asked | {f"{start}.enable": False}, None, 10, "x")
    assert idle.agents.advantage == usual
    assert len(idle.notes) == min(1, len(given))


LONG = ["max_prompt_length_exceeded", "max_response_length_exceeded"]


@pytest.mark.parametrize(
    ("given", "masked"),
    [
        ({}, []),
        ({"rllm.mask_truncated_samples": True}, LONG),
        ({"rllm.agent.overlong_filter": True}, [*LONG, "max_turns_exceeded"]),
        ({"rllm.agent.overlong_filter": True, "rllm.mask_truncated_samples": "yes"}, [*LONG, "max_turns_exceeded"]),
        ({"rllm.compact_filtering.enable": True}, []),
        (
            {"rllm.compact_filtering.enable": True, "rllm.compact_filtering.mask_timeout": True,
             "rllm.compact_filtering.mask_error": False, "rllm.mask_truncated_samples": True},
            ["timeout", *LONG],
        ),
        ({"rllm.compact_filtering.enable": False, "rllm.compact_filtering.mask_timeout": True}, []),
    ],
)  # fmt: skip
def test_episodes_that_ended_for_these_reasons_teach_nothing(given: dict[str, Any], masked: list[str]) -> None:
    assert [str(getattr(each, "value", each)) for each in resolve(given, None, 10, "x").agents.mask] == masked


def test_every_reason_has_a_filter_of_its_own_name() -> None:
    for key, reason in FILTERS.items():
        assert key == f"rllm.compact_filtering.mask_{reason}"
        found = resolve({"rllm.compact_filtering.enable": True, key: True}, None, 10, "x").agents.mask
        assert [str(getattr(each, "value", each)) for each in found] == [reason]


def test_one_member_is_no_population_and_never_mutates() -> None:
    alone, three = resolve(None, None, 10, "x").params, resolve(None, 3, 10, "x").params
    assert (alone.population.size, three.population.size) == (1, 3)
    assert (alone.evolution.mutation.probabilities.none, alone.evolution.mutation.probabilities.rl_hp) == (1.0, 0.0)
    assert three.evolution.mutation.probabilities.rl_hp > 0.0
    assert dict(alone.algo_config.evolve) == {}
    assert {*three.algo_config.evolve} == {*GRPO.evolve} - {"group_size"}
    asked = {
        "size": 4, "evolve": {"lr": {"min": 1e-6, "max": 1e-3}}, "tournament": {"size": 3},
        "mutation": {"probabilities": {"none": 0.25}},
    }  # fmt: skip
    made = resolve(None, asked, 10, "x").params
    assert (made.population.size, made.evolution.tournament.size) == (4, 3)
    assert made.evolution.mutation.probabilities.none == 0.25
    assert {*made.algo_config.evolve} == {"lr"}
    assert (made.algo_config.evolve["lr"].min, made.algo_config.evolve["lr"].max) == (1e-6, 1e-3)


def test_files_folder_and_whether_anything_is_trained() -> None:
    given = {
        "data.train_files": "a.jsonl", "data.val_files": "b.jsonl", "trainer.default_local_dir": "out/here",
        "trainer.val_only": "True", "rllm.agent.agent_args.size": 3, "rllm.env.env_args": {"width": 4},
        "rllm.workflow.workflow_args.deep.inner": 5,
    }  # fmt: skip
    found, plain = resolve(given, None, 10, "x"), resolve(None, None, 10, "x")
    assert (found.files, found.folder, found.val_only) == (
        {"train": "a.jsonl", "val": "b.jsonl"},
        Path("out/here"),
        True,
    )
    assert (plain.files, plain.folder, plain.val_only) == ({}, None, False)
    assert found.arguments == {
        "agent_args": {"size": 3}, "env_args": {"width": 4}, "workflow_args": {"deep.inner": 5}, "ray_init": {},
    }  # fmt: skip
    assert (plain.params.language.task, plain.params.fetch.source, plain.params.export.merged) == ("x", "jsonl", False)


TASKS = [{"question": str(n), "answer": str(n)} for n in range(6)]


async def flow(task: Any, model: Any) -> float:
    return 0.0


async def another(task: Any, model: Any) -> float:
    return 1.0


def reward(task: Any, text: str) -> float:
    return 0.5


def test_checkpoints_are_of_all_that_a_run_depends_on_and_of_nothing_else() -> None:
    usual: dict[str, Any] = {
        "flow": flow, "config": {"trainer.total_training_steps": 4}, "train_dataset": TASKS[:4],
        "val_dataset": TASKS[4:], "test_dataset": [{"question": "9", "answer": "9"}], "reward_fn": reward,
    }  # fmt: skip
    first = AgentTrainer(**usual)._key()
    assert AgentTrainer(**usual)._key() == first
    others = [
        {"flow": another}, {"train_dataset": TASKS[:3]}, {"train_dataset": TASKS[3::-1]}, {"val_dataset": TASKS[5:]},
        {"test_dataset": None}, {"test_dataset": [{"question": "9", "answer": "8"}]}, {"reward_fn": None},
        {"config": {"trainer.total_training_steps": 5}}, {"population": 2},
        *({"config": {**usual["config"], key: value}} for key, value in (
            ("data.seed", 7), ("actor_rollout_ref.actor.optim.lr", 1e-4), ("agents.max_error_fraction", 0.25),
            ("actor_rollout_ref.rollout.temperature", 0.5), ("data.max_response_length", 3),
        )),
    ]  # fmt: skip
    keys = [AgentTrainer(**{**usual, **changed})._key() for changed in others]
    assert len({first, *keys}) == len(others) + 1
    for same in ({"trainer.logger": ["tensorboard"]}, {"trainer.experiment_name": "mine"}):
        assert AgentTrainer(**{**usual, "config": {**usual["config"], **same}})._key() == first


@pytest.mark.parametrize("cumulative", [False, True])
def test_agents_and_environments_make_episodes_of_so_many_steps(cumulative: bool) -> None:
    config = {"agents.cumulative": cumulative, "rllm.agent.max_steps": 3}
    arguments = {"agent_args": {"system": "Say it."}} if "system" in parameters_of(ChatAgent) else {}
    made: Any = AgentTrainer(agent_class=ChatAgent, env_class=CopyGame, config=config, train_dataset=TASKS, **arguments)
    episode = made.make()
    assert issubclass(episode.func, CumulativeWorkflow) == cumulative
    assert (episode.keywords["max_steps"], episode.keywords["agent_cls"], episode.keywords["env_cls"]) == (
        3, ChatAgent, CopyGame,
    )  # fmt: skip
    assert episode.keywords["agent_args"] == arguments.get("agent_args", {})


def test_what_a_configuration_became_is_explained_key_by_key() -> None:
    config = {"actor_rollout_ref.actor.optim.lr": 1e-4, "data.train_batch_size": 2, "trainer.nnodes": 4, "data.seed": 5}
    said = AgentTrainer(flow=flow, config=config, train_dataset=TASKS).explain().splitlines()
    group = GRPO.group_size
    for line in (
        "seed = 5  (data.seed=5)",
        "algos.grpo.lr = 0.0001  (actor_rollout_ref.actor.optim.lr=0.0001)",
        f"algos.grpo.rows = {2 * group}  (data.train_batch_size=2 × actor_rollout_ref.rollout.n={group})",
        f"algos.grpo.clip_low = {GRPO.clip_low}  (default)",
        "population.size = 1  (population)",
        "trainer.nnodes: has no meaning here: one machine",
    ):
        assert line in said
    assert not any(line.startswith(("algos.dpo", "fetch.", "export.", "evaluate.")) for line in said)


def test_a_workflow_takes_the_arguments_that_it_names_though_it_hands_others_on() -> None:
    """An environment that takes any argument reads them itself."""

    class Played(Workflow):
        def __init__(self, depth: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None: ...

    class Anything:
        def __init__(self, **kwargs: Any) -> None: ...

    check_arguments(Played, {"depth": 3, "timeout": 2.0}, "workflow_args")
    with pytest.raises(ValueError, match=r"^workflow_args: Played takes no argument 'dept', did you mean 'depth'"):
        check_arguments(Played, {"dept": 3}, "workflow_args")
    check_arguments(Anything, {"dept": 3}, "env_args")
