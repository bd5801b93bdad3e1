"""The whole `params.yaml` of a run in an environment: its blocks, and the rules between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from evopipe import algos as registry
from evopipe import plugins
from evopipe.params.base import RunParams, evolve_problems
from evopipe.params.search import SearchConfig
from evopipe.schema.declare import Problem, Schema, located
from evopipe.schema.env import BACKENDS, EnvConfig
from evopipe.schema.evolution import MutationConfig, PopulationConfig, TournamentConfig
from evopipe.schema.fetch import FetchConfig
from evopipe.schema.runtime import RuntimeConfig
from evopipe.schema.tracking import TrackingConfig
from evopipe.schema.train import TrainConfig
from evopipe.types import Spaces

_MAX_ENVIRONMENTS = 65_536
_UPDATES = 1 << 13  # of a tick, whose draws are counted so far: `regimes.learn`


class Params(RunParams):
    """The content of a `params.yaml` for members that act in environments.

    Examples:
        >>> from evopipe import Params, parse_params
        >>> params = parse_params({"env": {"id": "CartPole-v1"}, "train": {"algo": "ppo"}})
        >>> isinstance(params, Params), params.train.algo, params.algo_config.gamma
        (True, 'ppo', 0.99)
    """

    PROBLEM: ClassVar[str] = "env"
    ELSEWHERE: ClassVar[str] = "trains language models: put `language` in the place of `env`, or take "

    class Evolution(Schema):
        """Settings of evolution: tournament selection, and the mutation of children."""

        tournament: TournamentConfig = Field(default_factory=TournamentConfig)
        mutation: MutationConfig = Field(default_factory=MutationConfig)

    class Evaluate(Schema):
        """Settings of the final evaluation on held-out seeds."""

        episodes: int = Field(
            100, ge=1, le=10**6, description="evaluation episodes of each member, on seeds no training run uses"
        )
        steps: int | None = Field(
            None, ge=1, description="environment steps after which an episode is cut; null: never"
        )
        bootstrap: int = Field(2_000, ge=100, le=10**5, description="bootstrap resamples for the confidence interval")

    class Export(Schema):
        """Settings of the stage `export`, which writes the elite's policy."""

        program: bool = Field(
            True, description="whether to write a `torch.export` program too, which needs torch alone"
        )
        critic: bool = Field(
            True,
            description="whether to export critics too, which `Policy.value` and `Policy.q_values` need; acting does "
            "not",
        )
        film: bool = Field(True, description="whether to film the elite at play, for the report")

    env: EnvConfig = Field(default_factory=EnvConfig)
    fetch: FetchConfig = Field(default_factory=FetchConfig)
    population: PopulationConfig = Field(default_factory=PopulationConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evolution: Evolution = Field(default_factory=Evolution)
    search: SearchConfig = Field(default_factory=SearchConfig)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    export: Export = Field(default_factory=Export)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    algos: dict[str, Any] = Field(
        default_factory=dict,
        validate_default=True,
        description="hyper-parameters of algorithms, one block each, by name",
    )

    @field_validator("population")
    @classmethod
    def _population_fits(cls, population: PopulationConfig, info: ValidationInfo) -> PopulationConfig:
        env = info.data.get("env")
        if env is not None and population.size * env.num_envs > _MAX_ENVIRONMENTS:
            made = f"{population.size} members with {env.num_envs} environments each (env.num_envs) are"
            sentence = f"{made} {population.size * env.num_envs} environments, at most {_MAX_ENVIRONMENTS} are possible"
            raise located([(("size",), sentence)])
        return population

    @field_validator("train")
    @classmethod
    def _train_fits(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        problems = list(_train_problems(train, info.data.get("env")))
        size, sharing = getattr(info.data.get("population"), "size", 0), train.replay.sharing
        if isinstance(sharing, int) and size % sharing:
            sentence = f"{size} members (population.size) cannot be divided among memories of {sharing} each"
            problems.append((("replay", "sharing"), sentence))
        if problems:
            raise located(problems)
        algo = registry.get(train.algo)
        if (algo.TEAM or registry.on_policy(algo)) and "warm_start" not in train.model_fields_set:
            return train.model_copy(update={"warm_start": 0})  # the default is for a memory that a dataset may begin
        return train

    @field_validator("tracking")
    @classmethod
    def _tracking_fits(cls, tracking: TrackingConfig, info: ValidationInfo) -> TrackingConfig:
        export = info.data.get("export")
        if tracking.register_as and export is not None and not export.program:
            raise located([(("register_as",), "MLflow serves the elite's program: set export.program to true")])
        return tracking

    @field_validator("algos")
    @classmethod
    def _algos_parsed(cls, blocks: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        def problems(name: str, config: Any, chosen: bool) -> Iterator[Problem]:
            yield from _algo_problems(name, config)
            if chosen:
                yield from _run_problems(name, config, info.data["train"])

        return cls.parse_blocks(blocks, info, problems)

    @property
    def network(self) -> str | None:
        """The name of the user's own network, as `module:name`; None if members use evopipe's networks."""
        named: str | None = self.algo_config.network.module
        return named

    @property
    def films(self) -> bool:
        """Whether the report contains a film of the elite playing."""
        return self.export.film

    @property
    def needs_dataset(self) -> bool:
        """Whether training reads the outputs of the stages `fetch` and `buffer`.

        Off-policy algorithms do so in offline mode or with a warm start; on-policy algorithms never do.
        """
        train = self.train
        return not registry.on_policy(registry.get(train.algo)) and (train.mode == "offline" or train.warm_start > 0)

    def points(self) -> list[plugins.Plugin | None]:
        """Return the entry points of other packages that the run uses: algorithm, mutations, search strategy,
        environment backend.

        An element is None for a part that belongs to evopipe itself.
        """
        return [*super().points(), plugins.find(plugins.BACKENDS, self.env.backend, "env.backend", BACKENDS)]


# --- rules between keys -----------------------------------------------------------------------------------------------


def _train_problems(train: TrainConfig, env: EnvConfig | None) -> Iterator[Problem]:
    """What the chosen algorithm or the environments refuse in the block `train`."""
    if env is not None and train.evo_steps < env.num_envs:
        least = f"must be at least env.num_envs ({env.num_envs}), for one step of all environments counts as that many"
        yield ("evo_steps",), f"{least}, got {train.evo_steps}"
    if env is not None and env.num_envs * train.replay.at_once(1) > _UPDATES:
        most = f"must be at most {_UPDATES // env.num_envs} with {env.num_envs} environments (env.num_envs)"
        yield ("replay", "updates"), f"{most}, got {train.replay.updates}"
    if train.replay.updates == "pooled" and train.replay.sharing != "shared":
        yield ("replay", "updates"), "pooled counts the steps of one memory: set train.replay.sharing to shared"
    if train.curriculum is not None and env is not None and env.backend != "sync":
        sentence = f"env.backend {env.backend} cannot make environments anew: set it to sync, or this to null"
        yield ("curriculum",), sentence
    if train.curriculum is not None and train.mode == "offline":
        yield ("curriculum",), "members learn from a dataset, not in environments: set it to null"
    yield from _self_play_problems(train, env)
    if (wrong := Params.refused(train.algo)) is not None:
        yield ("algo",), wrong
        return
    algo = registry.get(train.algo)
    memory = train.mode == "online" and not registry.on_policy(algo)
    if train.replay.evaluation and (algo.TEAM or not memory):
        what = "is for teams" if algo.TEAM else "fills no memory"
        yield ("replay", "evaluation"), f"{train.algo} {what}, and evaluation's steps go into one: set it to false"
    if train.replay.hindsight is not None:
        for sentence in _no_hindsight(train, env, memory, algo.TEAM):
            yield ("replay", "hindsight"), f"{sentence}, or this to null"
    if memory and train.replay.n_step > train.replay.capacity:
        holds = f"a memory of {train.replay.capacity} transitions (train.replay.capacity) never holds one that long"
        yield ("replay", "n_step"), f"{holds}; lower it, or raise train.replay.capacity; got {train.replay.n_step}"
    if train.mode == "online" and algo.OFFLINE_ONLY:
        yield ("mode",), f"{train.algo} only learns from a dataset: set it to offline"
    elif train.mode == "offline" and (registry.on_policy(algo) or algo.TEAM):
        why = "is for teams, and datasets are of one agent" if algo.TEAM else "only learns from its own steps"
        yield ("mode",), f"{train.algo} {why}: set it to online"
    elif train.normalise.rewards and not registry.on_policy(algo):
        why = f"{train.algo} learns from a memory, and the scale of its values would move under its targets"
        yield ("normalise", "rewards"), f"{why}: set it to false, or take an on-policy algorithm"


def _self_play_problems(train: TrainConfig, env: EnvConfig | None) -> Iterator[Problem]:
    """What self-play does not go with."""
    if not train.self_play.every:
        return
    if env is not None and env.backend != "sync":
        sentence = f"env.backend {env.backend} cannot make environments anew: set it to sync, or this to 0"
        yield ("self_play", "every"), sentence
    if train.mode == "offline":
        yield ("self_play", "every"), "members learn from a dataset, not in environments: set it to 0"
    elif not Params.refused(train.algo) and not _names_choices(algo := registry.get(train.algo)):
        kind = "trains teams" if algo.TEAM else "has neither logits nor action values"
        yield ("self_play", "every"), f"{train.algo} {kind}, so its members cannot be opponents: set it to 0"


def _names_choices(algo: Any) -> bool:
    """Whether an algorithm's network gives a logit or a value for each action."""
    return not algo.TEAM and "discrete" in algo.ACTIONS and (registry.on_policy(algo) or algo.values is not None)


def _no_hindsight(train: TrainConfig, env: EnvConfig | None, memory: bool, team: bool) -> Iterator[str]:
    """Say why transitions cannot be stored again with other goals, and what to set."""
    if team or not memory:
        why = "is for teams" if team else "fills no memory from its own steps"
        yield f"{train.algo} with train.mode {train.mode} {why}: set train.algo to an off-policy one of single agents"
    if train.replay.n_step > 1:
        yield f"the rewards of {train.replay.n_step} steps at once are not relabelled: set train.replay.n_step to 1"
    if train.replay.evaluation:
        yield "evaluation episodes are not relabelled: set train.replay.evaluation to false"
    if env is not None and env.backend != "sync":
        yield f"env.backend {env.backend} has no environments with goals: set it to sync"


def _algo_problems(name: str, config: Any) -> Iterator[Problem]:
    """What an algorithm can do nothing with in its own block."""
    algo = registry.get(name)
    yield from evolve_problems(config)
    if registry.on_policy(algo) and config.batch_size > config.learn_step:
        steps = f"{config.batch_size} steps are more than a rollout has ({name}.learn_step: {config.learn_step})"
        yield ("batch_size",), f"{steps}; lower it, or raise learn_step"
    # A network that it never serves, whichever of the actions it serves an environment has.
    kinds = [Spaces(1, 1, kind == "continuous", kind=kind) for kind in algo.ACTIONS]
    misfits = [registry.misfit(name, config, spaces) for spaces in kinds]
    if misfits[0] is not None and all(misfits):
        key, sentence = misfits[0]
        yield tuple(key.split(".")), sentence


def _run_problems(name: str, config: Any, train: TrainConfig) -> Iterator[Problem]:
    """What the chosen algorithm could not do in the run that `train` describes."""
    if config.learn_step > train.max_steps:
        run = f"it would never learn in a run of {train.max_steps} steps (train.max_steps)"
        yield ("learn_step",), f"{run}; lower it to at most that, or raise train.max_steps; got {config.learn_step}"
    memory = train.mode == "online" and not registry.on_policy(registry.get(name))
    if memory and config.batch_size > train.replay.capacity:
        holds = f"a memory of {train.replay.capacity} transitions (train.replay.capacity) cannot hold so many"
        yield ("batch_size",), f"{holds}; lower it, or raise train.replay.capacity; got {config.batch_size}"
