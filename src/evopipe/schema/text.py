"""All of a `params.yaml` whose members are language models: `language` stands in the place of `env`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from evopipe import algos as registry
from evopipe.errors import suggestion
from evopipe.schema.blocks import ArchitectureBounds, MutationConfig, TournamentConfig, TrackingConfig
from evopipe.schema.declare import COMPLETE, Problem, Schema, evolvable, explain, located, out_of_bounds
from evopipe.schema.language import (
    LanguageConfig,
    TextEvaluate,
    TextExport,
    TextFetch,
    TextMutation,
    TextRuntime,
    TextTrain,
)

NEUTRAL = {"checkpoint_seconds", "shards"}
"""Keys of `runtime` that change no result."""


class LanguageParams(Schema):
    """All of `params.yaml` of a population of language models."""

    of_text: ClassVar[bool] = True

    class Population(Schema):
        """The initial population."""

        size: int = Field(4, ge=1, le=4096, description="members")
        start: str | None = Field(
            None,
            description="a folder of trained members to begin with in place of fresh ones: a copy of models/trained",
        )

    class Evolution(Schema):
        """Selection and mutation."""

        tournament: TournamentConfig = Field(default_factory=TournamentConfig)
        mutation: TextMutation = Field(default_factory=TextMutation)

    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of everything random")
    language: LanguageConfig = Field(default_factory=LanguageConfig)
    fetch: TextFetch = Field(default_factory=TextFetch)
    population: Population = Field(default_factory=Population)
    train: TextTrain = Field(default_factory=TextTrain)
    evolution: Evolution = Field(default_factory=Evolution)
    evaluate: TextEvaluate = Field(default_factory=TextEvaluate)
    export: TextExport = Field(default_factory=TextExport)
    runtime: TextRuntime = Field(default_factory=TextRuntime)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    algos: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="one block an algorithm: its own `Config`"
    )

    @property
    def algo_config(self) -> Any:
        """The chosen algorithm's `Config`."""
        return self.algos[self.train.algo]

    @property
    def mutation(self) -> MutationConfig:
        """How children change, in the terms of `evolve`."""
        cfg = self.evolution.mutation
        return MutationConfig(
            probabilities=MutationConfig.Probabilities(
                none=cfg.probabilities.none, architecture=cfg.probabilities.rank, parameters=0.0, activation=0.0,
                rl_hp=cfg.probabilities.rl_hp,
            ),
            new_layer_prob=0.0, mutate_elite=cfg.mutate_elite, before_training=cfg.before_training,
            architecture=ArchitectureBounds(min_nodes=1, max_nodes=cfg.max_rank),
        )  # fmt: skip

    def tracked(self, *blocks: str) -> dict[str, Any]:
        """Return what results depend on as JSON data: the chosen algorithm's block as `algo`, and these; or all."""
        values = self.model_dump(mode="json", exclude={"algos": True, "tracking": True, "runtime": NEUTRAL})
        kept = {name: values[name] for name in blocks or values}
        return {**kept, "algo": self.algo_config.model_dump(mode="json")}

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, data: Any) -> Any:
        if isinstance(data, dict) and "env" in data:
            sentence = "a run has either an environment or a language model: delete this block, or `language`"
            raise located([(("env",), sentence)])
        return data

    @field_validator("train")
    @classmethod
    def _train_fits(cls, train: TextTrain) -> TextTrain:
        if train.algo not in (known := registry.names(of_text=True)):
            sentence = f"unknown algorithm {train.algo!r}{suggestion(train.algo, known)}"
            if train.algo in registry.names():
                sentence = f"{train.algo} serves environments: put `env` in the place of `language`, or take "
                sentence += ", ".join(known)
            raise located([(("algo",), sentence)])
        return train

    @field_validator("algos")
    @classmethod
    def _algos_parsed(cls, blocks: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        chosen = info.data["train"].algo if "train" in info.data else None
        parsed: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, block in blocks.items():
            if name not in (known := registry.names(of_text=True)):
                problems.append(((name,), f"unknown key{suggestion(name, known)}"))
                continue
            schema = registry.get(name).Config
            try:
                parsed[name] = schema.model_validate(block, context=info.context if name == chosen else None)
                found = list(_algo_problems(parsed[name]))
            except ValidationError as error:
                found = explain(error, schema, block)
            problems += [((name, *path), sentence) for path, sentence in found]
        if chosen is not None and chosen not in blocks:
            parsed[chosen] = registry.get(chosen).Config()
            if info.context == COMPLETE:
                sentence = f"missing block: put what `evopipe params block {chosen}` prints below `algos:`"
                problems.append(((chosen,), sentence))
        if problems:
            raise located(problems)
        return parsed


def _algo_problems(config: Any) -> Iterator[Problem]:
    """What an algorithm can do nothing with in its own block."""
    able = evolvable(type(config))
    for hyper in config.evolve:
        if hyper in able:
            yield from out_of_bounds(config, hyper)
        else:
            yield ("evolve", hyper), f"no hyper-parameter of that name can evolve{suggestion(hyper, able)}"
    rows = getattr(config, "rows", None)
    if rows is not None and config.batch_size > rows:
        yield ("batch_size",), f"{config.batch_size} are more than the completions of a step (rows: {rows}); lower it"
