"""The schema of `params.yaml`, composed from the blocks that live beside the code they steer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, create_model, field_validator, model_validator

from evopipe import algos as registry
from evopipe.envs.make import EnvConfig
from evopipe.errors import ParamsError, did_you_mean
from evopipe.evolve.mutate import MutationConfig
from evopipe.evolve.select import TournamentConfig
from evopipe.run.config import TrainConfig
from evopipe.runtime import RuntimeConfig
from evopipe.schema_errors import Problem, explain, located, missing_keys
from evopipe.storage.yamlio import read_yaml
from evopipe.track.config import TrackingConfig
from evopipe.types import Schema, Spaces, evolvable

MAX_PROBLEMS = 50
MAX_ENVIRONMENTS = 65_536


POLICIES = ("heuristic", "medium", "random", "policy")


class CollectConfig(Schema):
    """`fetch.source: collect`: roll behaviour policies in the environment."""

    episodes: int = Field(60, ge=1, le=10**6, description="episodes to roll")
    policies: dict[str, Annotated[float, Field(ge=0.0)]] = Field(
        default_factory=lambda: {"heuristic": 0.5, "random": 0.5},
        description="weights of `heuristic` (a good rule), `medium` (a poor one with random actions in between), "
        "`random` and `policy`; an episode follows one of them",
    )
    policy_path: str | None = Field(None, description="an exported policy's folder, for the weight `policy`")
    max_steps: int | None = Field(None, ge=1, description="step cap of an episode; null: until it ends")

    @model_validator(mode="after")
    def _policies_usable(self) -> Self:
        problems = [
            Problem(("policies", name), f"unknown policy{did_you_mean(name, POLICIES) or _known(POLICIES)}")
            for name in self.policies
            if name not in POLICIES
        ]
        if not any(self.policies.values()):
            problems.append(Problem(("policies",), "all weights are 0: give at least one policy a positive weight"))
        if self.policies.get("policy", 0.0) > 0 and self.policy_path is None:
            problems.append(
                Problem(
                    ("policy_path",), "the policy `policy` has a weight: name the exported folder it is loaded from"
                )
            )
        if problems:
            raise located(problems)
        return self


class MinariConfig(Schema):
    """`fetch.source: minari`: a Minari dataset."""

    dataset: str = Field("data/minari", description="a local folder, or a remote dataset id")


class Hdf5Config(Schema):
    """`fetch.source: hdf5`: a D4RL or AgileRL file (observations, actions, rewards, terminals[, timeouts])."""

    path: str = Field("data/dataset.hdf5", description="the file")


class FetchConfig(Schema):
    """Where the dataset comes from."""

    source: Literal["collect", "minari", "hdf5"] = Field("collect", description="which of the blocks below is used")
    collect: CollectConfig = Field(default_factory=CollectConfig)
    minari: MinariConfig = Field(default_factory=MinariConfig)
    hdf5: Hdf5Config = Field(default_factory=Hdf5Config)


class PopulationConfig(Schema):
    """The initial population."""

    size: int = Field(4, ge=1, le=4096, description="members")
    start: str | None = Field(
        None, description="a folder of trained members to begin with in place of fresh ones: a copy of models/trained"
    )


class EvolutionConfig(Schema):
    """Selection and mutation."""

    tournament: TournamentConfig = Field(default_factory=TournamentConfig)
    mutation: MutationConfig = Field(default_factory=MutationConfig)


class EvaluateConfig(Schema):
    """The held-out evaluation."""

    episodes: int = Field(100, ge=1, le=10**6, description="episodes of each member, on seeds no training run uses")
    steps: int | None = Field(None, ge=1, description="step cap of an episode; null: until it ends")
    bootstrap: int = Field(2_000, ge=100, le=10**5, description="resamples of the bootstrap interval")


class ExportConfig(Schema):
    """The exported elite."""

    program: bool = Field(True, description="also write a `torch.export` program that runs with torch alone")


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
        if env is not None and population.size * env.num_envs > MAX_ENVIRONMENTS:
            raise located(
                [
                    Problem(
                        ("size",),
                        f"{population.size} members with {env.num_envs} environments each (env.num_envs) are "
                        f"{population.size * env.num_envs} environments, at most {MAX_ENVIRONMENTS} are possible",
                    )
                ]
            )
        return population

    @field_validator("train")
    @classmethod
    def _train_fits(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        problems = []
        if train.algo not in registry.names():
            guess = did_you_mean(train.algo, registry.names()) or _known(registry.names())
            problems.append(Problem(("algo",), f"unknown algorithm {train.algo!r}{guess}"))
        elif train.mode == "online" and registry.get(train.algo).OFFLINE_ONLY:
            problems.append(Problem(("mode",), f"{train.algo} only learns from a dataset: set it to offline"))
        elif train.mode == "offline" and registry.on_policy(registry.get(train.algo)):
            problems.append(Problem(("mode",), f"{train.algo} only learns from its own steps: set it to online"))
        elif train.normalise.rewards and not registry.on_policy(registry.get(train.algo)):
            problems.append(
                Problem(
                    ("normalise", "rewards"),
                    f"{train.algo} learns from a memory, and the scale of its values would move under its targets: set "
                    "it to false, or take an on-policy algorithm",
                )
            )
        env = info.data.get("env")
        if env is not None and train.evo_steps < env.num_envs:
            problems.append(
                Problem(
                    ("evo_steps",),
                    f"must be at least env.num_envs ({env.num_envs}), for one step of all environments counts as "
                    f"that many, got {train.evo_steps}",
                )
            )
        if problems:
            raise located(problems)
        if registry.on_policy(registry.get(train.algo)) and "warm_start" not in train.model_fields_set:
            return train.model_copy(update={"warm_start": 0})  # the default is for a memory, which it has not
        return train

    @field_validator("algos", mode="plain")
    @classmethod
    def _algos_parsed(cls, blocks: Any, info: ValidationInfo) -> dict[str, Schema]:
        parsed = dict(_algos_schema().model_validate(blocks))
        given = {name: parsed[name] for name in parsed if name in blocks}
        train = info.data.get("train")
        if train is not None and train.algo not in given:
            given[train.algo] = registry.get(train.algo).Config()
        problems = [problem for name, config in given.items() for problem in _not_evolvable(name, config)]
        problems += [problem for name, config in given.items() for problem in _batch_above_rollout(name, config)]
        problems += [problem for name, config in given.items() for problem in _unfit(name, config)]
        if problems:
            raise located(problems)
        return given


def load_params(path: str | os.PathLike[str] = "params.yaml") -> Params:
    """Read and check a params file. It must be complete, for DVC does not see defaults that live in code.

    Raises:
        MissingInputError: the file is not there or may not be read.
        ParamsError: the file cannot be used; the message has one line for each problem: file, line, column, key,
            what is wrong and what to do.
    """
    document = read_yaml(path)
    params, problems = _validate(document.data)
    found = {problem.path: problem for problem in (*_incomplete(document.data), *problems)}
    if not found and params is not None:
        return params
    placed = sorted((document.mark(problem.path), str(problem)) for problem in found.values())
    raise ParamsError(_listed(f"{document.name}:{line}:{column}: {text}" for (line, column), text in placed))


def parse_params(data: Mapping[str, Any]) -> Params:
    """Check a mapping in the layout of `params.yaml`; keys that are not given take their defaults.

    Raises:
        ParamsError: the mapping cannot be used; the message has one line for each problem.
    """
    params, problems = _validate(data)
    if params is None:
        raise ParamsError(_listed(map(str, problems)))
    return params


def json_schema() -> dict[str, Any]:
    """The JSON schema of `params.yaml`, every algorithm's block included."""
    return _whole_schema().model_json_schema()


def _validate(data: Mapping[str, Any]) -> tuple[Params | None, list[Problem]]:
    try:
        return Params.model_validate(data), []
    except ValidationError as error:
        return None, explain(error, _whole_schema(), data)


def _incomplete(data: Mapping[str, Any]) -> Iterable[Problem]:
    """Every key that a params file should have and has not."""
    yield from (problem for problem in missing_keys(Params, data) if problem.path != ("algos",))
    train, blocks = data.get("train"), data.get("algos", {})
    chosen = train.get("algo") if isinstance(train, Mapping) else None
    if chosen not in registry.names() or not isinstance(blocks, Mapping):
        return
    config = registry.get(chosen).Config
    if chosen not in blocks:
        yield Problem(
            ("algos", chosen), f"missing block: put what `evopipe params block {chosen}` prints below `algos:`"
        )
    elif isinstance(blocks[chosen], Mapping):
        yield from missing_keys(config, blocks[chosen], ("algos", chosen))


@cache
def _algos_schema() -> type[Schema]:
    """A block for each algorithm, none of them required."""
    absent = Field(None, json_schema_extra=_without_default)
    fields: dict[str, Any] = {name: (registry.get(name).Config, absent) for name in registry.names()}
    return create_model("Algos", __base__=Schema, __doc__="One block an algorithm.", **fields)


@cache
def _whole_schema() -> type[Schema]:
    """`Params` with the type of every algorithm's block written out."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in Params.model_fields.items()}
    fields["algos"] = (_algos_schema(), Field(description="one block an algorithm: its own `Config`"))
    return create_model("Params", __base__=Schema, __doc__=Params.__doc__, **fields)


def _without_default(schema: dict[str, Any]) -> None:
    """A block that is not given has no value, null included."""
    schema.pop("default", None)


def _not_evolvable(algo: str, config: Any) -> Iterable[Problem]:
    """Entries of an algorithm's `evolve` block that name no hyper-parameter that may evolve."""
    able = evolvable(type(config))
    for name in getattr(config, "evolve", {}):
        if name not in able:
            guess = did_you_mean(name, able) or _known(able)
            yield Problem((algo, "evolve", name), f"no hyper-parameter of that name can evolve{guess}")
        else:
            yield from _out_of_bounds(algo, config, name)


def _out_of_bounds(algo: str, config: Any, name: str) -> Iterable[Problem]:
    """Ends of a hyper-parameter's range that it could not be set to by hand."""
    whole = type(config).model_fields[name].annotation is int
    for end in ("min", "max"):
        value = getattr(config.evolve[name], end)
        path = (algo, "evolve", name, end)
        if whole and not float(value).is_integer():
            yield Problem(path, f"{name} is a whole number, got {value}")
            continue
        try:
            type(config).model_validate({**config.model_dump(), name: int(value) if whole else value})
        except ValidationError as error:
            yield Problem(path, f"{name} cannot be {value:g}: {error.errors()[0]['msg'].lower()}")


def _batch_above_rollout(algo: str, config: Any) -> Iterable[Problem]:
    """A minibatch that an on-policy algorithm's rollout cannot fill."""
    if registry.on_policy(registry.get(algo)) and config.batch_size > config.learn_step:
        yield Problem(
            (algo, "batch_size"),
            f"{config.batch_size} steps are more than a rollout has ({algo}.learn_step: {config.learn_step}); lower "
            "it, or raise learn_step",
        )


def _unfit(algo: str, config: Any) -> Iterable[Problem]:
    """A network that the algorithm can do nothing with, whichever of the actions it serves an environment has."""
    kinds = [Spaces(1, 1, kind == "continuous", kind=kind) for kind in registry.get(algo).ACTIONS]
    found = [registry.misfit(algo, config, spaces) for spaces in kinds]
    if found[0] is not None and all(found):
        key, sentence = found[0]
        yield Problem((algo, *key.split(".")), sentence)


def _known(words: Iterable[str]) -> str:
    return f", known are: {', '.join(words)}"


def _listed(lines: Iterable[str]) -> str:
    """One line a problem, cut short where a broken file has hundreds."""
    lines = list(lines)
    more = [f"… and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
    return "\n".join(lines[:MAX_PROBLEMS] + more)
