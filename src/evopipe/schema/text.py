"""The whole `params.yaml` of a run of language models, in which `language` replaces `env`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from evopipe import algos as registry
from evopipe import plugins, searchers
from evopipe.errors import suggestion
from evopipe.schema.blocks import (
    NEUTRAL,
    ArchitectureBounds,
    MutationConfig,
    PopulationConfig,
    TournamentConfig,
    TrackingConfig,
)
from evopipe.schema.declare import COMPLETE, Problem, Schema, evolvable, explain, located
from evopipe.schema.language import LanguageConfig, TextFetch, TextMutation, TextRuntime, TextTrain
from evopipe.schema.search import SearchConfig


class RunParams(Schema):
    """What every `params.yaml` has, for members in environments and for language models."""

    PROBLEM: ClassVar[str]  # one of `algos.PROBLEMS`

    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of everything random")

    @field_validator("search", check_fields=False)
    @classmethod
    def _search_fits(cls, search: SearchConfig, info: ValidationInfo) -> SearchConfig:
        about = info.data
        if {"train", "population", "evolution"} <= about.keys():
            size, tournament = about["population"].size, about["evolution"].tournament
            if problems := list(search.problems(about["train"], size, tournament)):
                raise located(problems)
        return search

    @field_validator("runtime", check_fields=False)
    @classmethod
    def _shards_fit(cls, runtime: Any, info: ValidationInfo) -> Any:
        if runtime.shards.engine != "none" and "search" in info.data:
            strategy, fitness = info.data["search"].strategy, info.data["search"].fitness
            found = searchers.get(strategy)
            if fitness == "training":
                sentence = "search.fitness: training counts the episodes of one process: set it to none"
                raise located([(("shards", "engine"), sentence)])
            if getattr(getattr(info.data.get("train"), "replay", None), "evaluation", False):
                sentence = "train.replay.evaluation fills the memory of one process: set it to none"
                raise located([(("shards", "engine"), sentence)])
            if found.PAUSES or found.RENEWS:
                what = "lets members wait" if found.PAUSES else "begins new trials"
                sentence = (
                    f"search.strategy {strategy} {what}, and shards train all members all the time: set it to none"
                )
                raise located([(("shards", "engine"), sentence)])
        return runtime

    @property
    def algo_config(self) -> Any:
        """The chosen algorithm's `Config`."""
        own: Any = self
        return own.algos[own.train.algo]

    def tracked(self, *blocks: str) -> dict[str, Any]:
        """Return what results depend on as JSON data: the chosen algorithm's block as `algo`, and the named blocks; or
        all."""
        neutral = {"env": {"step_seconds"}, "runtime": set(NEUTRAL)}
        values = self.model_dump(mode="json", exclude={"algos": True, "tracking": True, **neutral})
        kept = {name: values[name] for name in blocks or values}
        return {**kept, "algo": self.algo_config.model_dump(mode="json")}

    @property
    def needs_dataset(self) -> bool:
        """Whether training reads what `fetch` and `buffer` write."""
        return True

    def points(self) -> list[plugins.Plugin | None]:
        """Return the entry points of what a run is made of; None for what is evopipe's own."""
        own: Any = self
        key, chances = "evolution.mutation.probabilities", own.evolution.mutation.probabilities.model_extra or {}
        kinds = [plugins.find(plugins.MUTATIONS, kind, key) for kind, weight in chances.items() if weight]
        return [registry.plugin(own.train.algo), *kinds, searchers.plugin(own.search.strategy)]

    def outside(self) -> tuple[list[str], list[Path]]:
        """Return what of other packages a result depends on, for `storage.keys.content_key`: entry points with versions
        of their packages, then what all source files are called; and these files. Trackers change no result."""
        points = [point for point in self.points() if point is not None]
        network = getattr(getattr(self.algo_config, "network", None), "module", None)
        modules = [point.module for point in points] + ([network.partition(":")[0]] if network else [])
        named, files = plugins.sources(modules)
        return [f"{point} {point.version}" for point in points] + named, files


class LanguageParams(RunParams):
    """All of `params.yaml` of a population of language models."""

    PROBLEM: ClassVar[str] = "text"

    class Evolution(Schema):
        """Selection and mutation."""

        tournament: TournamentConfig = Field(default_factory=TournamentConfig)
        mutation: TextMutation = Field(default_factory=TextMutation)

    class Evaluate(Schema):
        """The held-out evaluation."""

        episodes: int = Field(256, ge=1, le=10**6, description="rows of the test split that score each member")
        samples: int = Field(0, ge=0, le=1024, description="completions drawn of each for pass@k; 0: greedy ones alone")
        bootstrap: int = Field(2_000, ge=100, le=10**5, description="resamples of the bootstrap interval")

    class Export(Schema):
        """What the stage `export` writes."""

        merged: bool = Field(
            True, description="also write the base with the elite's adapter merged into it, a folder that can be a base"
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
        default_factory=dict, validate_default=True, description="one block an algorithm: its own `Config`"
    )

    @property
    def mutation(self) -> MutationConfig:
        """How children mutate, in the form that `evolve` reads."""
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
        if isinstance(data, dict) and "env" in data:
            sentence = "a run has either an environment or a language model: delete this block, or `language`"
            raise located([(("env",), sentence)])
        return data

    @field_validator("train")
    @classmethod
    def _train_fits(cls, train: TextTrain, info: ValidationInfo) -> TextTrain:
        if train.algo not in (known := registry.names("text")):
            sentence = f"unknown algorithm {train.algo!r}{suggestion(train.algo, known)}"
            if train.algo in registry.names():
                sentence = f"{train.algo} serves environments: put `env` in the place of `language`, or take "
                sentence += ", ".join(known)
            raise located([(("algo",), sentence)])
        if (wrong := registry.refused(train.algo)) is not None:
            raise located([(("algo",), wrong)])
        whole = "language" in info.data and info.data["language"].model == "gpt"
        able = [name for name in known if (registry.regime_name(name) == "games") == whole]
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
        return parse_blocks(blocks, info, cls.PROBLEM, lambda name, config, chosen: _algo_problems(config))


def parse_blocks(
    blocks: Mapping[str, Any], info: ValidationInfo, kind: str,
    problems_of: Callable[[str, Any, bool], Iterable[Problem]],
) -> dict[str, Any]:  # fmt: skip
    """Return the blocks of `algos` as their `Config`s, including that of the chosen algorithm.

    `problems_of(name, block, chosen)` returns what is wrong with a block beyond its own schema.

    Raises:
        ValidationError: a block cannot be used, or the chosen one is missing in a file that must be complete.
    """
    chosen = info.data["train"].algo if "train" in info.data else None
    parsed: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, block in blocks.items():
        if name not in (known := registry.names(kind)):
            problems.append(((name,), f"unknown key{suggestion(name, known)}"))
            continue
        if (refused := registry.refused(name)) is not None:
            if chosen is not None:  # else `train` says so
                problems.append(((name,), refused))
            continue
        schema = registry.get(name).Config
        try:
            parsed[name] = schema.model_validate(block, context=info.context if name == chosen else None)
            found = list(problems_of(name, parsed[name], name == chosen))
        except ValidationError as error:
            found = explain(error, schema, block)
        problems += [((name, *path), sentence) for path, sentence in found]
    if chosen in parsed and "search" in info.data and not parsed[chosen].evolve:
        strategy = info.data["search"].strategy
        if searchers.get(strategy).DRAWS:
            nothing = f"search.strategy {strategy} draws values from these ranges, and there are none"
            problems.append(((chosen, "evolve"), f"{nothing}: give at least one hyper-parameter a range"))
    if chosen is not None and chosen not in blocks:
        parsed[chosen] = registry.get(chosen).Config()
        problems += [((chosen, *path), sentence) for path, sentence in problems_of(chosen, parsed[chosen], True)]
        if info.context == COMPLETE:
            sentence = f"missing block: put what `evopipe params block {chosen}` prints below `algos:`"
            problems.append(((chosen,), sentence))
    if problems:
        raise located(problems)
    return parsed


def evolve_problems(config: Any) -> Iterator[Problem]:
    """Yield what is wrong with a block's `evolve`: hyper-parameters that cannot evolve, or not within these bounds."""
    able = evolvable(type(config))
    for hyper in config.evolve:
        if hyper in able:
            yield from _out_of_bounds(config, hyper)
        else:
            yield ("evolve", hyper), f"no hyper-parameter of that name can evolve{suggestion(hyper, able)}"


def _out_of_bounds(config: Any, name: str) -> Iterator[Problem]:
    """Tell ends of a hyper-parameter's range that it could not be set to by hand."""
    whole = type(config).model_fields[name].annotation is int
    for end in ("min", "max"):
        value = getattr(config.evolve[name], end)
        if whole and not value.is_integer():
            yield ("evolve", name, end), f"{name} is a whole number, got {value}"
            continue
        try:
            type(config).model_validate({**dict(config), name: int(value) if whole else value})
        except ValidationError as error:
            yield ("evolve", name, end), f"{name} cannot be {value:g}: {error.errors()[0]['msg']}"


def _algo_problems(config: Any) -> Iterator[Problem]:
    """What an algorithm can do nothing with in its own block."""
    yield from evolve_problems(config)
    rows = getattr(config, "rows", None)
    if rows is not None and config.batch_size > rows:
        yield ("batch_size",), f"{config.batch_size} are more than the completions of a step (rows: {rows}); lower it"
