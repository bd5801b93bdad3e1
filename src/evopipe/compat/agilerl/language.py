"""Agents that are language models: views of members over one base, which all agents of a population share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch

from evopipe import rng
from evopipe.algos import get
from evopipe.compat.agilerl.breed import device_of, one_process
from evopipe.compat.agilerl.gyms import PreferenceGym, ReasoningGym
from evopipe.compat.agilerl.settings import HyperparameterConfig, LanguageSettings, RLParameter, language_block
from evopipe.compat.agilerl.view import View
from evopipe.errors import DataError, UsageError
from evopipe.language.base import Base, base_of, digest_of, load_base
from evopipe.language.tokens import tokenise
from evopipe.machine import configure
from evopipe.mutations import NONE
from evopipe.ops.statistics import mean_of_finite
from evopipe.params.text import LanguageParams
from evopipe.problems.text import describe, spec_of
from evopipe.problems.text_data import form_of
from evopipe.regimes.dialogue import Dialogue
from evopipe.regimes.text import TextRows, TextSource
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.problem import Problem
from evopipe.run.regime import Regime
from evopipe.run.spec import first_members
from evopipe.run.text import LESS, TextSpec
from evopipe.schema.declare import parsed
from evopipe.schema.language import LanguageConfig, TextRuntime
from evopipe.storage import members as stored

Gym: TypeAlias = "ReasoningGym | PreferenceGym"
_FORMAT, _REMEDY = "language agent 1", "save the agent again"
_LONG = 1 << 20  # tokens: no limit
_HELD_OUT = 64  # rows that score an agent, at most


@dataclass(frozen=True, eq=False)
class LanguageBreed:
    """The model, the algorithm and the settings that all agents of a population of language models share.

    Attributes:
        algo: the algorithm's name.
        model: the model of `transformers`, whose weights do not change.
        tokenizer: the population's tokenizer; None if an environment brings it.
        pad: the id of the padding token; None for that of the tokenizer.
        settings: the hyper-parameters that were given.
        ranges: the ranges of hyper-parameters that may mutate; None for the algorithm's own ranges.
        language: the block `language` of `params.yaml`. Its token limits are replaced by those of an environment.
        seed: the seed of first weights and random draws.
        device: the value of `runtime.device`.
    """

    algo: str
    model: Any
    tokenizer: Any
    pad: int | None
    settings: Mapping[str, Any]
    ranges: Mapping[str, RLParameter] | None
    language: Mapping[str, Any]
    seed: int
    device: str

    @cached_property
    def base(self) -> Base:
        """The frozen model that all agents adapt, as evopipe's `Base`, without a tokenizer."""
        return base_of(self.language["model"], self.model, None, digest_of(self.model, ""), self._configured())

    def _configured(self) -> torch.device:
        return configure(TextRuntime.model_validate({"device": self.device}))

    def params(self, changes: Mapping[str, Any], env: Gym | None = None) -> LanguageParams:
        """Return the parameters of a run that trains the agents of the population.

        Args:
            changes: blocks of `params.yaml` by name, such as `train`. Each replaces the block that follows from the
                population's settings, as a whole.
            env: the environment, whose batch size and context length are used; None for the defaults.

        Raises:
            ParamsError: a value is out of its bounds.
        """
        language, prompts = dict(self.language), None
        if env is not None:
            prompts = env.data_batch_size
            language["max_prompt"] = env.max_context_length or _LONG
            if env.form == "preference":
                language["max_completion"] = env.max_context_length or _LONG
        block = language_block(self.algo, self.settings, self.ranges, prompts)
        runtime = {"device": self.device}
        base = {"seed": self.seed, "language": language, "train": {"algo": self.algo}, "runtime": runtime,
                "tracking": {"backends": []}, "algos": {self.algo: block}}  # fmt: skip
        return parsed(LanguageParams, {**base, **changes})

    @cached_property
    def spec(self) -> TextSpec:
        """The run configuration of the agents, with the tokenizer in the attribute `tokenizer`, if there is one."""
        return self.spec_at(self.params({}), None)

    def spec_at(self, params: LanguageParams, env: Gym | None) -> TextSpec:
        """Return the run configuration for these parameters, with the tokenizer of `env` if that is given.

        Raises:
            DataError: model and tokenizer do not belong together.
        """
        self._configured()
        tokenizer = self.tokenizer if env is None else env.tokenizer
        base = self.base if tokenizer is None else self.base.with_tokenizer(tokenizer)
        return spec_of(params, base if self.pad is None else replace(base, pad=self.pad), self.base.device)


class LanguageAgent(View):
    """An agent of a population of language models: a view of one member, which is an adapter over the model that all
    agents share. `GRPO`, `LLMPPO`, `LLMREINFORCE`, `DPO` and `create_population` make such agents;
    `finetune_llm_reasoning` and `finetune_llm_preference` train them.

    Attributes:
        breed: the model, algorithm and settings that all agents of the population share.
        fitness: the scores of tests and of evaluations in training, oldest first.
        scores: a list of numbers that only the script's own loop fills.
        steps: the number of prompts so far, as a list whose last entry is the current number.
        mutation: the last mutation.

    Examples:
        >>> from evopipe import GRPO
        >>> from evopipe.language.base import load_base
        >>> from evopipe.schema.language import LanguageConfig
        >>> model = load_base(LanguageConfig(), seed=1).model  # or AutoModelForCausalLM.from_pretrained(...)
        >>> agent = GRPO(actor_network=model, lr=1e-4)
        >>> agent.clone(2).index, agent.hp["lr"], agent.mut
        (2, 0.0001, 'None')
    """

    breed: LanguageBreed

    def test(self, env: Gym, loop: int = 1) -> float:
        """Return the agent's mean score on held-out rows of an environment, without exploration, and append it to
        `fitness`.

        Args:
            env: the environment. The rows are drawn from its test set, the same for all agents.
            loop: the score is the mean over `loop` times 64 different rows, or over the whole test set if that is
                smaller.

        Raises:
            UsageError: the environment is for other algorithms.
        """
        problem, member = problem_of(self.breed, self.breed.params({}, env), env), replace(self.member, slot=0)
        spec, regime = problem.spec, problem.live(Clock.of(problem.spec, 1), np.array([member.key]))
        cohorts = spec.form([member])
        played = regime.evaluate(cohorts, spec.seeds(Purpose.EVALUATE, loop * _HELD_OUT), lambda: False)
        self.fitness.append(mean_of_finite(played.returns[0]))
        return self.fitness[-1]

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the adapter, optimiser and counters to a folder of safetensors and JSON files with checksums. The
        shared model is not written.

        Raises:
            DiskError: the folder cannot be written.
        """
        wanted = {"format": _FORMAT, "algo": self.algo, "model": self.breed.base.digest}
        more = {"index": self.index, "steps": [*map(int, self.steps)], "scores": [*map(float, self.scores)]}
        stored.write(Path(path), [replace(self.member, slot=0)], {**wanted, **more})

    def load_checkpoint(self, path: str | Path) -> None:
        """Replace this agent's state by the state in a folder that `save_checkpoint` wrote for the same model.

        Raises:
            MissingInputError: the folder does not exist.
            DataError: the folder is damaged, or its agent has another algorithm or model.
        """
        wanted = {"format": _FORMAT, "algo": self.algo, "model": self.breed.base.digest}
        (member, *_), about = stored.read(Path(path), wanted, _REMEDY, self.breed.spec.check)
        try:
            self.steps, self.scores = [*about["steps"]], [*about["scores"]]
            self._member = replace(member, slot=int(about["index"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: is no agent of this version ({error}); {_REMEDY}") from error
        self.fitness, self.mutation = [*member.fitness], NONE


def problem_of(breed: LanguageBreed, params: LanguageParams, env: Gym, most: float | None = None) -> Problem[TextSpec]:
    """Return a `run.problem.Problem`: the description of a run that trains the agents on the rows of an environment.

    Args:
        breed: what the agents share.
        params: the parameters of the run.
        env: the environment.
        most: the reward of a completion that is completely right; None if `accuracy` is not to be reported.

    Raises:
        UsageError: the agents' algorithm cannot learn in this kind of environment.
        DataError: no row of a dataset is short enough.
    """
    if (wanted := form_of(get(breed.algo))) != env.form:
        gym = "ReasoningGym" if wanted == "reasoning" else "PreferenceGym"
        raise UsageError(f"env: {breed.algo} learns in a {gym}, got a {type(env).__name__}")
    spec = breed.spec_at(params, env)
    order = rng.host(rng.run_key(env.seed), Purpose.PROMPT).permutation(len(env.train))
    rows = [*(env.train[int(i)] for i in order), *env.test]
    corpus = tokenise(rows, env.form, spec.base, spec.language, params.fetch, params.seed, held_out=len(order))

    def live(clock: Clock, keys: np.ndarray) -> Regime:
        if isinstance(env, ReasoningGym):
            return Dialogue(spec, clock, corpus, env.judge, most=most)
        return TextRows(spec, clock, TextSource(spec, corpus))

    return Problem(spec, live, described=partial(describe, spec), less=LESS)


def language_agents(
    algo: str, size: int, actor_network: Any, tokenizer: Any = None, pad_token_id: int | None = None,
    pad_token: str | None = None, hp_config: HyperparameterConfig | None = None, lora_config: Any = None,
    full: bool = False, seed: int = 1, device: Any = None, accelerator: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> list[LanguageAgent]:  # fmt: skip
    """Return `size` new agents that are adapters over one model.

    Args:
        algo: evopipe's name of the algorithm.
        size: the number of agents.
        actor_network: a causal language model of `transformers`, or a folder that holds one.
        tokenizer: the model's tokenizer; None for that of the environment.
        pad_token_id: the id of the padding token; None for that of the tokenizer.
        pad_token: the text of that token; it has no effect, but needs `pad_token_id`.
        hp_config: the ranges of the hyper-parameters that may mutate; None for the algorithm's own ranges.
        lora_config: an object or mapping with the adapters' `r` and `lora_alpha`; None for 8 and 16.
        full: whether agents train every weight instead of adapters; meant for tiny models.
        seed: seed of the adapters' first weights and of all random draws.
        device: `cpu` or `cuda`; None for `cuda` if it is available.
        accelerator: has no effect, but one with several processes is refused.
        settings: hyper-parameters by name, see `LanguageSettings`; those not given have the algorithm's defaults.

    Raises:
        UsageError: an argument cannot be used, or would have no effect.
        ParamsError: a value is out of its bounds.
    """
    one_process(accelerator)
    if isinstance(actor_network, (str, Path)):
        found = load_base(LanguageConfig(model=str(actor_network)), 1)
        actor_network, tokenizer = found.model, tokenizer or found.tokenizer
    if actor_network is None or not hasattr(actor_network, "get_output_embeddings"):
        raise UsageError(
            "actor_network: give a causal language model of transformers (AutoModelForCausalLM.from_pretrained), or a "
            f"folder that holds one, got {type(actor_network).__name__}"
        )
    if hasattr(actor_network, "peft_config"):
        raise UsageError("actor_network: it has adapters already, and agents bring their own: give the model below")
    if pad_token is not None and pad_token_id is None:
        raise UsageError("pad_token: give pad_token_id too, the token's number")
    lowered = {key.lower(): value for key, value in (settings or {}).items()}
    language = {
        "model": str(getattr(actor_network.config, "_name_or_path", "") or "given"), "task": "finetune", "full": full,
        **_adapter(lora_config, full), "max_completion": int(lowered.get("max_output_tokens") or 1024),
    }  # fmt: skip
    breed = LanguageBreed(algo, actor_network, tokenizer, pad_token_id, lowered, hp_config, language, seed,
                          device_of(device))  # fmt: skip
    members, births = first_members(breed.spec, size)
    return [LanguageAgent(breed, member, birth) for member, birth in zip(members, births, strict=True)]


def _adapter(config: Any, full: bool) -> dict[str, Any]:
    """Return rank and scale of what PEFT calls a LoraConfig, or of a mapping with its names."""
    if config is None:
        return {}
    if full:
        raise UsageError("lora_config: with full=True every weight is trained, and there is no adapter: give one")
    wanted: Mapping[str, Any] = config if isinstance(config, Mapping) else vars(config)
    rank, modules = int(wanted.get("r", 8)), wanted.get("target_modules")
    if modules is not None and modules != "all-linear":
        raise UsageError("lora_config: adapters are on every linear layer: set target_modules='all-linear'")
    for name, plain in (("lora_dropout", 0.0), ("bias", "none"), ("use_dora", False), ("use_rslora", False)):
        if wanted.get(name, plain) != plain:
            raise UsageError(f"lora_config: {name} is {wanted[name]!r}, and there is {plain!r} alone: leave it out")
    return {"rank": rank, "scale": float(wanted.get("lora_alpha", 2 * rank)) / rank}


class LanguageAlgorithm:
    """An algorithm for language models, such as `GRPO`. A call of the object returns a new agent.

    Args:
        name: evopipe's name of the algorithm.
        about: the object's docstring.

    Examples:
        >>> from evopipe import DPO, GRPO, LLMPPO, LLMREINFORCE
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
        """Return a new agent.

        Args:
            actor_network: a causal language model of `transformers`, whose weights stay as they are, or a folder that
                holds one.
            pad_token_id: the id of the padding token; None for that of the tokenizer.
            pad_token: the text of that token; it has no effect, but needs `pad_token_id`.
            hp_config: the ranges of the hyper-parameters that may mutate; None for the algorithm's own ranges.
            index: the agent's index in a population, which seeds its random draws.
            tokenizer: the model's tokenizer; None for that of the environment.
            lora_config: the adapters' `r` and `lora_alpha`, as PEFT's `LoraConfig` or a mapping with these names;
                None for 8 and 16. Every linear layer has an adapter.
            full: whether agents train every weight instead of adapters; meant for tiny models.
            seed: seed of the adapters' first weights and of all random draws.
            device: `cpu` or `cuda`; None for `cuda` if it is available.
            accelerator: has no effect, but one with several processes is refused.
            **settings: hyper-parameters, see `LanguageSettings`. Those that are not given have the defaults that
                `evopipe params block` prints.

        Raises:
            UsageError: an argument cannot be used, or would have no effect.
            ParamsError: a value is out of its bounds.
            MissingInputError, DataError: the folder does not exist, or holds no model.
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
        """Return `size` new agents over one model.

        Args:
            size: the number of agents.
            actor_network: a causal language model of `transformers`, or a folder that holds one.
            pad_token_id: the id of the padding token; None for that of the tokenizer.
            pad_token: the text of that token; it has no effect, but needs `pad_token_id`.
            hp_config: the ranges of the hyper-parameters that may mutate; None for the algorithm's own ranges.
            tokenizer: the model's tokenizer; None for that of the environment.
            lora_config: an object or mapping with the adapters' `r` and `lora_alpha`; None for 8 and 16.
            full: whether agents train every weight instead of adapters; meant for tiny models.
            seed: seed of the adapters' first weights and of all random draws.
            device: `cpu` or `cuda`; None for `cuda` if it is available.
            accelerator: has no effect, but one with several processes is refused.
            settings: hyper-parameters by name, see `LanguageSettings`.

        Raises:
            UsageError: an argument cannot be used, or would have no effect.
            ParamsError: a value is out of its bounds.
        """
        return language_agents(
            self.name, size, actor_network, tokenizer, pad_token_id, pad_token, hp_config, lora_config, full, seed,
            device, accelerator, settings,
        )  # fmt: skip

    def load(self, path: str | Path, actor_network: Any, **arguments: Any) -> LanguageAgent:
        """Return an agent from a folder that `save_checkpoint` wrote.

        Args:
            path: the folder.
            actor_network: the model that the saved agent adapted.
            arguments: the other arguments with which the saved agent was made.

        Raises:
            MissingInputError: the folder does not exist.
            DataError: the folder is damaged, or has an agent of another algorithm or model.
        """
        agent = self(actor_network, **arguments)
        agent.load_checkpoint(path)
        return agent


GRPO = LanguageAlgorithm("grpo", "Rewards, compared within the completions of a prompt.")
LLMPPO = LanguageAlgorithm("ppo_language", "Rewards, and a learned value of every token.")
LLMREINFORCE = LanguageAlgorithm("reinforce", "Rewards, compared with those of all completions.")
DPO = LanguageAlgorithm("dpo", "Which of two completions is preferred.")
