"""All of `params.yaml`: its blocks, the rules between them, and the messages of a file that breaks one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, create_model, field_validator

from evopipe import algos as registry
from evopipe.errors import ParamsError
from evopipe.schema.blocks import (
    EnvConfig,
    EvaluateConfig,
    EvolutionConfig,
    ExportConfig,
    FetchConfig,
    PopulationConfig,
    RuntimeConfig,
    TrackingConfig,
    TrainConfig,
)
from evopipe.schema.declare import COMPLETE, Schema, evolvable
from evopipe.schema.explain import Problem, explain, located, suggestion, unknown_key
from evopipe.schema.read import read_yaml
from evopipe.types import Spaces

MAX_PROBLEMS = 50
_MAX_ENVIRONMENTS = 65_536


class Params(Schema):
    """All of `params.yaml`."""

    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of everything random")
    env: EnvConfig = Field(default_factory=EnvConfig)
    fetch: FetchConfig = Field(default_factory=FetchConfig)
    population: PopulationConfig = Field(default_factory=PopulationConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evolution: EvolutionConfig = Field(default_factory=EvolutionConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    export: ExportConfig = Field(default_factory=ExportConfig)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    algos: dict[str, Any] = Field(
        default_factory=dict, validate_default=True, description="one block an algorithm: its own `Config`"
    )

    @property
    def algo_config(self) -> Any:
        """The chosen algorithm's `Config`."""
        return self.algos[self.train.algo]

    @field_validator("population")
    @classmethod
    def _population_fits(cls, population: PopulationConfig, info: ValidationInfo) -> PopulationConfig:
        env = info.data.get("env")
        if env is not None and population.size * env.num_envs > _MAX_ENVIRONMENTS:
            sentence = (
                f"{population.size} members with {env.num_envs} environments each (env.num_envs) are "
                f"{population.size * env.num_envs} environments, at most {_MAX_ENVIRONMENTS} are possible"
            )
            raise located([Problem(("size",), sentence)])
        return population

    @field_validator("train")
    @classmethod
    def _train_fits(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        problems = list(_train_problems(train, info.data.get("env")))
        if problems:
            raise located(problems)
        if registry.on_policy(registry.get(train.algo)) and "warm_start" not in train.model_fields_set:
            return train.model_copy(update={"warm_start": 0})  # the default is for a memory, which it has not
        return train

    @field_validator("algos")
    @classmethod
    def _algos_parsed(cls, blocks: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        chosen = info.data["train"].algo if "train" in info.data else None
        parsed: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, block in blocks.items():
            if name not in registry.names():
                problems.append(Problem((name,), unknown_key(name, registry.names())))
                continue
            schema = registry.get(name).Config
            try:
                parsed[name] = schema.model_validate(block, context=info.context if name == chosen else None)
                found = list(_algo_problems(name, parsed[name]))
            except ValidationError as error:
                found = explain(error, schema, block)
            problems += [Problem((name, *problem.path), problem.sentence) for problem in found]
        if chosen is not None and chosen not in blocks:
            parsed[chosen] = registry.get(chosen).Config()
            if info.context == COMPLETE:
                sentence = f"missing block: put what `evopipe params block {chosen}` prints below `algos:`"
                problems.append(Problem((chosen,), sentence))
        if problems:
            raise located(problems)
        return parsed


def load_params(path: str | os.PathLike[str] = "params.yaml") -> Params:
    """Read and check a params file. It must be complete, for DVC does not see defaults that live in code.

    Raises:
        MissingInputError: the file is not there or may not be read.
        ParamsError: the file cannot be used; the message has one line for each problem: file, line, column, key,
            what is wrong and what to do.
    """
    document = read_yaml(path)
    try:
        return Params.model_validate(document.data, context=COMPLETE)
    except ValidationError as error:
        placed = sorted((document.mark(p.path), str(p)) for p in explain(error, Params, document.data))
    raise ParamsError(_listed(f"{document.name}:{line}:{column}: {text}" for (line, column), text in placed))


def parse_params(data: Mapping[str, Any]) -> Params:
    """Check a mapping in the layout of `params.yaml`; keys that are not given take their defaults.

    Raises:
        ParamsError: the mapping cannot be used; the message has one line for each problem.
    """
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        problems = explain(error, Params, data)
    raise ParamsError(_listed(map(str, problems)))


def json_schema() -> dict[str, Any]:
    """The JSON schema of `params.yaml`, every algorithm's block included."""
    blocks: dict[str, Any] = {
        name: (registry.get(name).Config, Field(None, json_schema_extra=_without_default)) for name in registry.names()
    }
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in Params.model_fields.items()}
    whole = create_model("Algos", __base__=Schema, __doc__="One block an algorithm.", **blocks)
    fields["algos"] = (whole, Field(description=Params.model_fields["algos"].description))
    return create_model("Params", __base__=Schema, __doc__=Params.__doc__, **fields).model_json_schema()


def _without_default(schema: dict[str, Any]) -> None:
    """A block that is not given has no value, null included."""
    schema.pop("default", None)


def _train_problems(train: TrainConfig, env: EnvConfig | None) -> Iterator[Problem]:
    """What the chosen algorithm or the environments refuse in the block `train`."""
    if env is not None and train.evo_steps < env.num_envs:
        sentence = (
            f"must be at least env.num_envs ({env.num_envs}), for one step of all environments counts as that many, "
            f"got {train.evo_steps}"
        )
        yield Problem(("evo_steps",), sentence)
    if train.algo not in registry.names():
        yield Problem(("algo",), f"unknown algorithm {train.algo!r}{suggestion(train.algo, registry.names())}")
        return
    algo = registry.get(train.algo)
    if train.mode == "online" and getattr(algo, "OFFLINE_ONLY", False):
        yield Problem(("mode",), f"{train.algo} only learns from a dataset: set it to offline")
    elif train.mode == "offline" and registry.on_policy(algo):
        yield Problem(("mode",), f"{train.algo} only learns from its own steps: set it to online")
    elif train.normalise.rewards and not registry.on_policy(algo):
        sentence = (
            f"{train.algo} learns from a memory, and the scale of its values would move under its targets: set it to "
            "false, or take an on-policy algorithm"
        )
        yield Problem(("normalise", "rewards"), sentence)


def _algo_problems(algo: str, config: Any) -> Iterator[Problem]:
    """What an algorithm can do nothing with in its own block."""
    able = evolvable(type(config))
    for name in config.evolve:
        if name in able:
            yield from _out_of_bounds(config, name)
        else:
            sentence = f"no hyper-parameter of that name can evolve{suggestion(name, able)}"
            yield Problem(("evolve", name), sentence)
    if registry.on_policy(registry.get(algo)) and config.batch_size > config.learn_step:
        sentence = (
            f"{config.batch_size} steps are more than a rollout has ({algo}.learn_step: {config.learn_step}); lower "
            "it, or raise learn_step"
        )
        yield Problem(("batch_size",), sentence)
    # A network that it never serves, whichever of the actions it serves an environment has.
    kinds = [Spaces(1, 1, kind == "continuous", kind=kind) for kind in registry.get(algo).ACTIONS]
    misfits = [registry.misfit(algo, config, spaces) for spaces in kinds]
    if misfits[0] is not None and all(misfits):
        key, sentence = misfits[0]
        yield Problem(tuple(key.split(".")), sentence)


def _out_of_bounds(config: Any, name: str) -> Iterator[Problem]:
    """Ends of a hyper-parameter's range that it could not be set to by hand."""
    whole = type(config).model_fields[name].annotation is int
    for end in ("min", "max"):
        value = getattr(config.evolve[name], end)
        if whole and not value.is_integer():
            yield Problem(("evolve", name, end), f"{name} is a whole number, got {value}")
            continue
        try:
            type(config).model_validate({**dict(config), name: int(value) if whole else value})
        except ValidationError as error:
            yield Problem(("evolve", name, end), f"{name} cannot be {value:g}: {error.errors()[0]['msg']}")


def _listed(lines: Iterable[str]) -> str:
    """One line a problem, cut short where a broken file has hundreds."""
    lines = list(lines)
    more = [f"… and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
    return "\n".join(lines[:MAX_PROBLEMS] + more)
