"""The whole `params.yaml` of a run of language models, in which `language` replaces `env`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from evopipe import algos as registry
from evopipe.params.base import RunParams, evolve_problems
from evopipe.params.search import SearchConfig
from evopipe.schema.declare import Problem, Schema, located
from evopipe.schema.evolution import ArchitectureBounds, MutationConfig, PopulationConfig, TournamentConfig
from evopipe.schema.language import LanguageConfig, TextFetch, TextMutation, TextRuntime, TextTrain
from evopipe.schema.tracking import TrackingConfig


class LanguageParams(RunParams):
    """The content of a `params.yaml` for a population of language models.

    Attributes:
        PROBLEM: the kind of members, see `RunParams`.
        ELSEWHERE: a part of the error message for an algorithm that trains other members, see `RunParams`.
        OF_OTHERS: names of blocks that only other kinds of runs have. The value is the error message if such a block is
            in this file.
    """

    PROBLEM: ClassVar[str] = "text"
    ELSEWHERE: ClassVar[str] = "serves environments: put `env` in the place of `language`, or take "

    OF_OTHERS: ClassVar[Mapping[str, str]] = {
        "env": "a run has either an environment or a language model: delete this block, or `language`"
    }
    """Blocks that stand elsewhere, each with what is said of it here."""

    class Evolution(Schema):
        """Settings of evolution: the selection of parents, and the mutation of their children."""

        tournament: TournamentConfig = Field(default_factory=TournamentConfig)
        mutation: TextMutation = Field(default_factory=TextMutation)

    class Evaluate(Schema):
        """Settings of the final evaluation on held-out rows or games."""

        episodes: int = Field(
            256,
            ge=1,
            le=10**6,
            description="rows of the test split on which each member is scored; in a task of games: number of games",
        )
        samples: int = Field(
            0,
            ge=0,
            le=1024,
            description="sampled completions of each row for pass@k, beside the greedy one that gives the score; 0: no "
            "pass@k",
        )
        bootstrap: int = Field(
            2_000,
            ge=100,
            le=10**5,
            description="resamples of the bootstrap that gives the confidence interval of a score",
        )

    class Export(Schema):
        """Settings of the stage `export`, which writes the elite (the best member) as files."""

        merged: bool = Field(
            True,
            description="true: the base model with the best member's adapter merged in is written too, as a folder for "
            "`language.model`",
        )

    language: LanguageConfig = Field(default_factory=LanguageConfig)
    fetch: TextFetch = Field(default_factory=TextFetch)
    population: PopulationConfig = Field(default_factory=PopulationConfig)
    train: TextTrain = Field(default_factory=TextTrain)
    evolution: Evolution = Field(default_factory=Evolution)
    search: SearchConfig = Field(default_factory=SearchConfig)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    export: Export = Field(default_factory=Export)
    runtime: TextRuntime = Field(default_factory=TextRuntime)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    algos: dict[str, Any] = Field(
        default_factory=dict,
        validate_default=True,
        description="hyper-parameters of each algorithm, in a block with the algorithm's name",
    )

    @property
    def mutation(self) -> MutationConfig:
        """The settings of mutation, converted to the `MutationConfig` that `mutations.mutate` takes."""
        cfg, whole, gpt = self.evolution.mutation, self.language.model == "gpt", self.evolution.mutation.gpt
        changes = cfg.probabilities.architecture if whole else cfg.probabilities.rank
        bounds = ArchitectureBounds(min_nodes=1, max_nodes=cfg.max_rank)
        if whole:  # a layer's heads are what an image's channels are
            bounds = ArchitectureBounds(
                min_layers=gpt.min_layers, max_layers=gpt.max_layers, min_nodes=gpt.min_nodes, max_nodes=gpt.max_nodes,
                min_channels=gpt.min_heads, max_channels=gpt.max_heads, channel_steps=(1,),
            )  # fmt: skip
        return MutationConfig(
            probabilities=MutationConfig.Probabilities(
                none=cfg.probabilities.none, architecture=changes, parameters=0.0, activation=0.0,
                rl_hp=cfg.probabilities.rl_hp,
            ),
            new_layer_prob=0.2 if whole else 0.0, mutate_elite=cfg.mutate_elite, before_training=cfg.before_training,
            architecture=bounds,
        )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, data: Any) -> Any:
        if isinstance(data, dict) and (known := cls.OF_OTHERS.keys() & data.keys()):
            raise located([((name,), cls.OF_OTHERS[name]) for name in sorted(known)])
        return data

    @field_validator("train")
    @classmethod
    def _train_fits(cls, train: TextTrain, info: ValidationInfo) -> TextTrain:
        if (wrong := cls.refused(train.algo)) is not None:
            raise located([(("algo",), wrong)])
        whole = "language" in info.data and info.data["language"].model == "gpt"
        able = [name for name in cls.known() if (registry.regime_name(name) == "games") == whole]
        if "language" in info.data and train.algo not in able:
            sentence = f"{train.algo} learns from games, by models of its own: set language.model to gpt"
            if whole:
                sentence = f"{train.algo} adapts a base, language.model gpt has none: take {', '.join(able)}"
            raise located([(("algo",), sentence)])
        return train

    @field_validator("evolution")
    @classmethod
    def _form_may_change(cls, evolution: Evolution, info: ValidationInfo) -> Evolution:
        if "language" in info.data:
            whole = info.data["language"].model == "gpt"
            for name, fits in (("architecture", whole), ("rank", not whole)):
                if getattr(evolution.mutation.probabilities, name) and not fits:
                    are = "are GPTs, and `architecture` changes them" if whole else "adapt a base whose form they share"
                    raise located([(("mutation", "probabilities", name), f"members {are}: set it to 0")])
        return evolution

    @field_validator("algos")
    @classmethod
    def _algos_parsed(cls, blocks: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return cls.parse_blocks(blocks, info, lambda name, config, chosen: _algo_problems(config))


def _algo_problems(config: Any) -> Iterator[Problem]:
    """What an algorithm can do nothing with in its own block."""
    yield from evolve_problems(config)
    rows = getattr(config, "rows", None)
    if rows is not None and config.batch_size > rows:
        yield ("batch_size",), f"{config.batch_size} are more than the completions of a step (rows: {rows}); lower it"
