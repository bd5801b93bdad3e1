"""The training page's functions for language models, called as it documents them, on a base and data made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evopipe import (
    HyperparameterConfig,
    Mutations,
    PreferenceGym,
    ReasoningGym,
    RLParameter,
    TournamentSelection,
    create_population,
    finetune_llm_preference,
    finetune_llm_reasoning,
)


def symbols(seed: int, rows: int) -> list[dict[str, str]]:
    """Three digits as a question; reversed they are the answer, as they were and sorted they are not."""
    draws = np.random.default_rng(seed)
    found: dict[str, dict[str, str]] = {}
    while len(found) < rows:
        text = "".join(map(str, draws.integers(0, 10, 3)))
        if text != text[::-1]:
            found[text] = {
                "question": f"{text}=", "answer": text[::-1],
                "prompt": f"{text}=", "chosen": text[::-1], "rejected": text,
            }  # fmt: skip
    return list(found.values())


def reward(completion: str, answer: str, question: str) -> float:
    return float(completion == answer)


def reasoning(
    model: Any, tokenizer: Any, algo: str = "GRPO", size: int = 4, rows: int = 400, batch: int = 16, group: int = 8,
    max_steps: int = 1280, evo_steps: int = 10, folder: Path | None = None, **more: Any,
) -> list[Any]:  # fmt: skip
    """A population that evolves, rewarded for the right one of three things that the base may do."""
    data = symbols(1, rows)
    init_hp = {"LR": 3e-3, "GROUP_SIZE": group, "TEMPERATURE": 1.0, "MAX_OUTPUT_TOKENS": 4, "POP_SIZE": size}
    hp_config = HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2), temperature=RLParameter(min=0.5, max=1.5))
    env = ReasoningGym(
        train_dataset=data[: 3 * rows // 4], test_dataset=data[3 * rows // 4 :], tokenizer=tokenizer, reward_fn=reward,
        data_batch_size_per_gpu=batch,
    )  # fmt: skip
    pop = create_population(
        algo=algo, INIT_HP=init_hp, hp_config=hp_config, population_size=size, actor_network=model,
        pad_token_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token, lora_config={"r": 4, "lora_alpha": 8},
    )  # fmt: skip
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=size, eval_loop=1)
    mutations = Mutations(
        no_mutation=0.1, architecture=0, new_layer_prob=0, parameters=0, activation=0, rl_hp=0.6, rand_seed=1
    )
    saved = {} if folder is None else {"save_elite": True, "elite_path": str(folder / "elite")}
    return list(
        finetune_llm_reasoning(
            pop=pop, env=env, init_hp=init_hp, evaluation_interval=evo_steps, evo_steps=evo_steps, max_reward=1,
            tournament=tournament, mutation=mutations, max_steps=max_steps, verbose=False, **saved, **more,
        )
    )  # fmt: skip


def preference(
    model: Any, tokenizer: Any, size: int = 2, rows: int = 400, batch: int = 32, num_epochs: int = 6,
    evo_steps: int = 20, folder: Path | None = None, **more: Any,
) -> list[Any]:  # fmt: skip
    """The same base, by pairs of which the reversed digits are preferred."""
    data = symbols(1, rows)
    env = PreferenceGym(data[: 3 * rows // 4], data[3 * rows // 4 :], tokenizer, data_batch_size_per_gpu=batch)
    pop = create_population(
        algo="DPO", INIT_HP={"LR": 2e-3, "BETA": 0.1, "NLL_ALPHA": 1.0}, population_size=size, actor_network=model,
        pad_token_id=tokenizer.pad_token_id, lora_config={"r": 4, "lora_alpha": 8},
    )  # fmt: skip
    saved = {} if folder is None else {"save_elite": True, "elite_path": str(folder / "elite")}
    return list(
        finetune_llm_preference(
            pop, env, evo_steps=evo_steps, tournament=TournamentSelection(2, True, size),
            mutation=Mutations(architecture=0, parameters=0, rand_seed=1), num_epochs=num_epochs, verbose=False,
            **saved, **more,
        )
    )  # fmt: skip
