"""Algorithms for language models by the names that scripts have for them: each makes agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from evopipe.face.language import LanguageAgent, language_agents
from evopipe.face.language_settings import LanguageSettings
from evopipe.face.settings import HyperparameterConfig


class LanguageAlgorithm:
    """An algorithm for language models: called, it returns an agent.

    Examples:
        >>> from evopipe.language.base import load_base
        >>> from evopipe.schema.language import LanguageConfig
        >>> model = load_base(LanguageConfig(), seed=1).model  # or AutoModelForCausalLM.from_pretrained(...)
        >>> agent = GRPO(actor_network=model, lr=1e-4, group_size=8, lora_config={"r": 4, "lora_alpha": 8})
        >>> agent.hp["group_size"], agent.hp["lr"]
        (8, 0.0001)
        >>> DPO(actor_network=model, beta=0.2)
        <LanguageAgent 0 of dpo: adapters of rank 8, fitness none>
        >>> len(LLMPPO.population(3, model)), len(LLMREINFORCE.population(2, model))
        (3, 2)
    """

    def __init__(self, name: str, about: str) -> None:
        self.name, self.__doc__ = name, about

    def __call__(
        self, actor_network: Any = None, pad_token_id: int | None = None, pad_token: str | None = None,
        hp_config: HyperparameterConfig | None = None, index: int = 0, *, tokenizer: Any = None,
        lora_config: Any = None, full: bool = False, seed: int = 1, device: Any = None, accelerator: Any = None,
        **settings: Unpack[LanguageSettings],
    ) -> LanguageAgent:  # fmt: skip
        """Return an agent.

        Args:
            actor_network: a causal language model of `transformers`, whose weights stay as they are, or a folder that
                holds one.
            pad_token_id: the token of pads; None for the tokenizer's.
            pad_token: the same as a text; checked, no more.
            hp_config: which hyper-parameters may mutate and between which ends; None for the algorithm's own ranges.
            index: its place in a population.
            tokenizer: the model's own; None for the environment's.
            lora_config: rank and scale of the adapters, PEFT's `LoraConfig` or a mapping of `r` and `lora_alpha`; None
                for 8 and 16. They are on every linear layer.
            full: whether every weight is trained, for tiny models.
            seed: seed of the adapters and of every draw.
            device: cpu or cuda; None for what is there.
            accelerator: an Accelerator of one process.
            **settings: hyper-parameters, see `LanguageSettings`; others have the defaults of `evopipe params block`.

        Raises:
            UsageError: an argument cannot be used, or would be without effect.
            ParamsError: a value is out of its bounds.
            MissingInputError, DataError: the folder is not there, or holds no model.
        """
        found = language_agents(
            self.name, index + 1, actor_network, tokenizer, pad_token_id, pad_token, hp_config, lora_config, full, seed,
            device, accelerator, settings,
        )  # fmt: skip
        return found[index]

    def population(
        self, size: int, actor_network: Any = None, pad_token_id: int | None = None, pad_token: str | None = None,
        hp_config: HyperparameterConfig | None = None, *, tokenizer: Any = None, lora_config: Any = None,
        full: bool = False, seed: int = 1, device: Any = None, accelerator: Any = None,
        **settings: Unpack[LanguageSettings],
    ) -> list[LanguageAgent]:  # fmt: skip
        """Return so many agents over one model, see `__call__`."""
        return language_agents(
            self.name, size, actor_network, tokenizer, pad_token_id, pad_token, hp_config, lora_config, full, seed,
            device, accelerator, settings,
        )  # fmt: skip

    def load(self, path: str | Path, actor_network: Any, **given: Any) -> LanguageAgent:
        """Return what `save_checkpoint` wrote of an agent over this model; `given` as it was made with.

        Raises:
            MissingInputError, DataError: it is not there, is damaged, or is of another algorithm or model.
        """
        agent = self(actor_network, **given)
        agent.load_checkpoint(path)
        return agent


GRPO = LanguageAlgorithm("grpo", "Rewards, compared within the completions of a prompt.")
LLMPPO = LanguageAlgorithm("ppo_language", "Rewards, and a learned value of every token.")
LLMREINFORCE = LanguageAlgorithm("reinforce", "Rewards, compared with those of all completions.")
DPO = LanguageAlgorithm("dpo", "Which of two completions is preferred.")
