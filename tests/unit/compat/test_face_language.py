"""Agents that are language models: what is refused, what is kept, and what a run makes of them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

import words
from evopipe import (
    DPO,
    GRPO,
    LLMPPO,
    HyperparameterConfig,
    LanguageAgent,
    Mutations,
    PreferenceGym,
    ReasoningGym,
    RLParameter,
    TournamentSelection,
    create_population,
    finetune_llm_preference,
    finetune_llm_reasoning,
    load,
)
from evopipe.compat.agilerl.settings import language_block
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError, UsageError
from evopipe.formats import score
from evopipe.language.policy import LanguagePolicy

ROWS = [{"question": f"{n}=", "answer": str(n)} for n in range(10)]
PAIRS = [{"prompt": f"{n}=", "chosen": str(n), "rejected": "a"} for n in range(10)]


def first_digit(completion: str, answer: str, question: str) -> float:
    return float(completion[:1] == answer)


def gym(**more: Any) -> ReasoningGym:
    given = {"reward_fn": first_digit, "data_batch_size_per_gpu": 4, **more}
    return ReasoningGym(ROWS[:8], ROWS[8:], words.base().tokenizer, **given)


def agents(size: int = 2, **more: Any) -> list[LanguageAgent]:
    given = {"group_size": 2, "max_output_tokens": 2, "lora_config": {"r": 2}, "full": False, **more}
    return GRPO.population(size, words.base().model, **given)


def trained(pop: list[LanguageAgent], env: ReasoningGym | None = None, **more: Any) -> list[LanguageAgent]:
    return finetune_llm_reasoning(pop, env or gym(), verbose=False, **more)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_what_scripts_call_hyper_parameters_is_what_the_block_has() -> None:
    block = language_block("grpo", {"LR": 1, "CLIP_COEF": 0.1, "GROUP_SIZE": 4, "BATCH_SIZE": 6, "POP_SIZE": 3,
                                    "loss_type": "gspo", "adv_norm": "mean_only", "beta": None}, None, 3)  # fmt: skip
    assert block.pop("evolve").keys() == {"lr", "beta", "clip_high", "temperature"}
    assert block == {"lr": 1.0, "clip_low": 0.1, "clip_high": 0.1, "group_size": 4, "level": "sequence", "cispo": False,
                     "dr": True, "rows": 12, "batch_size": 6}  # fmt: skip
    critic = language_block("ppo_language", {"lr_actor": 0.1, "lr_critic": 0.2, "clip_coef": (0.1, 0.3)}, None, 4)
    assert [critic[name] for name in ("lr", "lr_value", "clip_low", "clip_high", "rows")] == [0.1, 0.2, 0.1, 0.3, 4]
    ranges = HyperparameterConfig(lr_critic=RLParameter(min=0.1, max=0.2), clip_coef=RLParameter(min=0.1, max=0.3))
    assert language_block("ppo_language", {}, ranges, 4)["evolve"].keys() == {"lr_value", "clip_low", "clip_high"}
    assert language_block("dpo", {"batch_size": 16}, None, 8)["batch_size"] == 8


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"learning_rate": 1e-3}, "grpo: nobody reads 'learning_rate'"),
        ({"gamma": 0.9}, "grpo: it has no 'gamma': leave it out"),
        ({"loss_type": "sapo"}, "grpo: loss_type is not of it"),
        ({"lora_config": {"r": 2, "lora_dropout": 0.1}}, "lora_config: lora_dropout is 0.1"),
        ({"lora_config": {"target_modules": ["q_proj"]}}, "lora_config: adapters are on every linear layer"),
        ({"full": True}, "lora_config: with full=True every weight is trained"),
        ({"pad_token": "<pad>"}, "pad_token: give pad_token_id too"),
    ],
)
def test_what_an_agent_cannot_be_made_of_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        agents(**given)


def test_a_model_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="actor_network: give a causal language model"):
        GRPO()
    with pytest.raises(UsageError, match="net_config: DPO adapts a model"):
        create_population("DPO", net_config={}, actor_network=words.base().model)
    with pytest.raises(UsageError, match="actor_network, lora_config: DQN learns networks of its own"):
        create_population("DQN", actor_network=words.base().model)
    words.base().model.save_pretrained(tmp_path)
    words.base().tokenizer.save_pretrained(tmp_path)
    read = LLMPPO(str(tmp_path))
    assert read.breed.base.digest == LLMPPO(words.base().model).breed.base.digest


# --- environments -----------------------------------------------------------------------------------------------------


def test_a_template_is_filled_in_and_its_last_word_gone_on_with() -> None:
    template = [{"role": "user", "content": "{question} ({answer}) {x}"}, {"role": "assistant", "content": "so"}]
    env = gym(conversation_template=template)
    assert env.train[3]["prompt"][0]["content"] == "3= (3) {x}"
    base = words.base()
    tokens = base.prompt(env.train[3]["prompt"], False, None, go_on=True)
    assert base.tokenizer.decode(tokens).endswith("<|assistant|><unk><unk>")  # s and o; no end, and no second beginning
    template[1]["content"] = ""
    assert [message["role"] for message in gym(conversation_template=template).train[0]["prompt"]] == ["user"]
    template[1] = {"role": "user", "content": ""}
    assert len(gym(conversation_template=template).train[0]["prompt"]) == 2, "what a user says is said, be it nothing"


def test_a_reward_that_never_works_is_told_at_once() -> None:
    with pytest.raises(EnvironmentFailed, match="reward_fn: it rewards nothing: it raised TypeError"):
        trained(agents(), gym(reward_fn=lambda completion: 1.0))


def test_a_reward_that_has_worked_may_fail_for_all_completions_of_a_later_step() -> None:
    env = gym(reward_fn=lambda completion, answer, question: float(completion))
    rows = env.train[:2]
    told = [env.judge(rows, texts) for texts in (["1", "x"], ["y", "z"])]
    assert [(values.tolist(), failed) for values, failed in told] == [([1.0, 0.0], 1), ([0.0, 0.0], 2)]


def test_datasets_are_checked() -> None:
    with pytest.raises(DataError, match="test_dataset: row 1: has no field 'answer'"):
        ReasoningGym(ROWS, [{"question": "1="}], None, first_digit)
    with pytest.raises(DataError, match="train_dataset: holds no row"):
        PreferenceGym([], PAIRS, None)


# --- runs -------------------------------------------------------------------------------------------------------------

STILL = {"no_mutation": 0.5, "architecture": 0, "parameters": 0, "rl_hp": 0.5}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"env_fn": gym}, "env: give either env or env_fn"),
        ({"evo_steps": 2}, "evo_steps: it would be without effect: give tournament or mutation too"),
        ({"tournament": TournamentSelection()}, "tournament: it would be without effect: give evo_steps too"),
        ({"mutation": Mutations(), "evo_steps": 2}, "mutation: architecture changes what agents share"),
        ({"elite_path": "x"}, "elite_path: it would be without effect"),
        ({"wandb_entity": "we"}, "wandb_entity: it would be without effect: give wb too"),
        ({"max_steps": 0}, "max_steps: must be a whole number of at least 1, got 0"),
        (
            {"init_hp": {"GROUP_SIZE": 8}},
            "init_hp: it says that group_size is 8, and the population was created with 2",
        ),
    ],
)
def test_an_argument_without_effect_is_an_error(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        trained(agents(), **more)


def test_environments_and_agents_go_together() -> None:
    pairs = PreferenceGym(PAIRS[:8], PAIRS[8:], words.base().tokenizer, data_batch_size_per_gpu=4)
    with pytest.raises(UsageError, match="env: give a ReasoningGym, got a PreferenceGym"):
        finetune_llm_reasoning(agents(), pairs)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="env: dpo learns in a PreferenceGym, got a ReasoningGym"):
        trained([DPO(words.base().model)])
    with pytest.raises(UsageError, match="pop: its agents were made one by one"):
        trained([*agents(1), *agents(1)])
    with pytest.raises(UsageError, match="dpo: a step is one update from 4 pairs, and batch_size is 2"):
        finetune_llm_preference([DPO(words.base().model, batch_size=2)], pairs)


def test_what_a_run_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Five steps of four questions, evolved after two and four; scored after each, and kept after three."""
    monkeypatch.chdir(tmp_path)
    evolves = {"tournament": TournamentSelection(2, True, 2), "mutation": Mutations(**STILL), "evo_steps": 2}
    pop = finetune_llm_reasoning(
        agents(), gym(), max_steps=17, max_reward=1, evaluation_interval=1, checkpoint_steps=3, log_csv=True, **evolves
    )
    assert [agent.steps for agent in pop] == [[20], [20]]
    assert [agent.index for agent in pop] == [0, 1]
    assert capsys.readouterr().err.count("agents score") == 2  # after 1 and 3: evolution scores after 2, 4 and 5
    rows = list(csv.DictReader((tmp_path / "grpo.csv").read_text().splitlines()))
    assert [(row["generation"], row["agent"]) for row in rows] == [(str(g), str(a)) for g in (1, 2, 3) for a in (0, 1)]
    assert all(float(row["accuracy"]) == pytest.approx(float(row["reward"])) for row in rows)
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith("grpo"))
    assert kept == ["grpo_0_3", "grpo_1_3"]
    read = GRPO.load("grpo_1_3", words.base().model, group_size=2, lora_config={"r": 2})
    assert (read.index, read.steps) == (1, [12])


def test_each_generation_has_its_own_fitness_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = gym(reward_fn=lambda completion, answer, question: sum(map(ord, completion)) % 17)
    pop = trained(agents(lr=0.3), env, max_steps=12, evaluation_interval=1, log_csv=True)
    rows = list(csv.DictReader((tmp_path / "grpo.csv").read_text().splitlines()))
    found = [[float(row["fitness"]) for row in rows if row["agent"] == str(slot)] for slot in (0, 1)]
    assert found == [pytest.approx(agent.fitness) for agent in pop]
    assert any(len(set(each)) > 1 for each in found)


@pytest.mark.parametrize(
    ("lora", "rank", "scale"), [(None, 8, 2.0), ({"r": 4}, 4, 2.0), ({"r": 8, "lora_alpha": 4}, 8, 0.5)]
)
def test_an_adapter_is_scaled_by_alpha_over_rank(lora: Any, rank: int, scale: float) -> None:
    """As PEFT's, whose default of twice the rank here stands in for none."""
    (agent,) = agents(1, lora_config=lora)
    assert (agent.member.arch.rank, agent.breed.spec.language.scale) == (rank, scale)


def test_the_interval_of_a_saved_elite_is_the_95_percent_one(tmp_path: Path) -> None:
    """By plain code from the score of each held-out row, under the elite's own greedy completions."""
    env = gym(reward_fn=lambda completion, answer, question: len(completion) + 7.0 * (answer == "9"))
    trained(agents(), env, max_steps=8, save_elite=True, elite_path=str(tmp_path / "elite"))
    about = json.loads((tmp_path / "elite/policy.json").read_text())
    elite = load(tmp_path / "elite")
    assert isinstance(elite, LanguagePolicy)
    written = elite.generate([row["question"] for row in ROWS[8:]], max_tokens=2)
    scores = [len(text) + 7.0 * (row["answer"] == "9") for text, row in zip(written, ROWS[8:], strict=True)]
    error = stdev(scores) / math.sqrt(len(scores))
    assert about["training"]["standard_error"] == pytest.approx(error)
    low, high = mean(scores) - 1.96 * error, mean(scores) + 1.96 * error
    assert about["evaluation"] == {"mean": pytest.approx(mean(scores)), "interval": pytest.approx([low, high])}
    assert f"95 % interval [{score(low)}, {score(high)}]" in (tmp_path / "elite/README.md").read_text()


def test_equal_runs_are_equal_and_their_questions_ordered_by_the_environments_seed() -> None:
    adapters = []
    for seed in (1, 1, 2):
        (agent,) = trained(agents(1, lr=0.1), gym(seed=seed, reward_fn=lambda c, a, q: float(len(c))), num_epochs=1)
        adapters.append(agent.member.tensors["policy"].numpy())
    assert np.array_equal(adapters[0], adapters[1])
    assert not np.array_equal(adapters[0], adapters[2])


def test_epochs_say_how_long_training_is_where_steps_do_too() -> None:
    (both,), (epoch,), (steps,) = (
        trained(agents(1), gym(), **given)
        for given in ({"num_epochs": 1, "max_steps": 4}, {"num_epochs": 1}, {"max_steps": 4})
    )
    assert both.steps == epoch.steps == [8]
    assert steps.steps == [4]


def test_an_agent_is_kept_copied_and_tested(tmp_path: Path) -> None:
    (agent,) = trained(agents(1))
    score = agent.test(gym())
    assert score == agent.fitness[-2]  # as the run found it, on the same rows
    agent.save_checkpoint(tmp_path / "agent")
    copy = agent.clone(3)
    assert (copy.index, copy.fitness) == (3, agent.fitness)
    (fresh,) = agents(1)
    fresh.load_checkpoint(tmp_path / "agent")
    assert np.array_equal(fresh.member.tensors["policy"], agent.member.tensors["policy"])
    assert (fresh.steps, fresh.fitness) == (agent.steps, agent.fitness)
    other = DPO(words.base().model, lora_config={"r": 2})
    with pytest.raises(EvopipeError):
        other.load_checkpoint(tmp_path / "agent")
