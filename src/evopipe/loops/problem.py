"""What a run is about: configuration only, no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from evopipe import rng
from evopipe.algos import Algorithm, get, names
from evopipe.core import normalise, population
from evopipe.core.graphs import Paths
from evopipe.core.networks import Arch, initialise
from evopipe.core.population import Cohort, Member, Widths
from evopipe.envs.make import ActionSpace, EnvConfig, make_env
from evopipe.envs.observations import ObservationSpace
from evopipe.errors import ParamsError
from evopipe.evolve.mutate import NONE, Mutation, MutationConfig, Traits, mutate
from evopipe.evolve.select import TournamentConfig
from evopipe.rng import Purpose
from evopipe.types import Spaces, evolvable

if TYPE_CHECKING:
    from evopipe.loops.config import TrainConfig


@dataclass(frozen=True)
class Problem:
    """Environment, algorithm and evolution of a run.

    Attributes:
        spaces: what the algorithm knows of the environment's.
        paths: the fast paths that training takes.
    """

    seed: int
    env: EnvConfig
    train: TrainConfig
    tournament: TournamentConfig
    mutation: MutationConfig
    algo: Algorithm
    algo_config: Any
    spaces: Spaces
    device: torch.device
    cohorts: Literal["merged", "exact"] = "merged"
    paths: Paths = field(default_factory=Paths, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "algo_config", self.algo_config.at(self.spaces))
        _check_memory(self.train.algo, self.algo_config.network.encoder_kind)
        if len(self.algo_config.network.head) < population.least_head(self.widths.values()):
            raise ParamsError(
                f"algos.{self.train.algo}.network.head: with share_encoder the critics read the action behind the "
                "encoder, and need a hidden layer there; give at least one width"
            )

    @property
    def widths(self) -> dict[str, Widths]:
        """Input and output width of every network."""
        return dict(self.algo.networks(self.algo_config, self.spaces))

    @property
    def observations(self) -> int:
        """`O`, length of an observation."""
        return self.spaces.observations

    @property
    def actions(self) -> int:
        """`A`, number of actions, or dimensions of a continuous one."""
        return self.spaces.actions

    @property
    def period(self) -> int:
        """After how many updates the pattern of the algorithm's updates repeats."""
        period = getattr(self.algo, "period", None)
        return int(period(self.algo_config)) if period else 1

    @property
    def rates(self) -> list[str]:
        """Names of the algorithm's learning rates."""
        return [name for name in evolvable(self.algo.Config) if name.startswith("lr")]

    @property
    def traits(self) -> Traits:
        """What mutation must know of the algorithm."""
        fields = self.algo.Config.model_fields
        return Traits(
            widths=self.widths,
            acting=population.acting_networks(self.algo.POLICY, self.widths),
            kinds=population.tensor_kinds(self.algo.State, self.widths) | normalise.KINDS,
            evolve=self.algo_config.evolve,
            whole=frozenset(name for name, field in fields.items() if field.annotation is int),
        )

    def form(self, members: Sequence[Member]) -> list[Cohort]:
        """Form cohorts, in which members train."""
        members = [self.equip(member) for member in members]
        return population.form(members, self.algo.State, self.widths, self.device, self.cohorts, self.paths)

    def form_alone(self, member: Member) -> list[Cohort]:
        """Form the cohort of one member, whatever its slot."""
        return population.form([self.equip(member)], self.algo.State, self.widths, self.device, "exact")

    def equip(self, member: Member) -> Member:
        """Return a member that normalises what it sees as `train.normalise` says: one that has seen nothing begins."""
        begun = normalise.start(self.train.normalise, self.spaces)
        return replace(member, tensors={**begun, **member.tensors}) if begun else member

    def seeds(self, purpose: Purpose, n: int) -> np.ndarray:
        """Return the run's `[n]` fixed episode seeds for a purpose, the same for all members."""
        seeds: np.ndarray = rng.seeds(np.full(n, rng.run_key(self.seed)), purpose, np.arange(n))
        return seeds


def _check_memory(algo: str, encoder: str) -> None:
    """Refuse a network with a memory where the algorithm would never give it back.

    Raises:
        ParamsError: so it is.
    """
    if encoder == "lstm" and not getattr(get(algo), "RECURRENT", False):
        able = [f"train.algo: {name}" for name in names() if getattr(get(name), "RECURRENT", False)]
        raise ParamsError(
            f"algos.{algo}.network.encoder_kind: {algo} keeps no memory between steps; take mlp, simba or resnet"
            + (f", or {' or '.join(able)}" if able else "")
        )


def spaces_of(env_config: EnvConfig, algo: str) -> Spaces:
    """Return what an algorithm needs to know of an environment's spaces.

    Raises:
        ParamsError: the environment is unknown, its spaces are not served, or not by this algorithm.
    """
    env = make_env(env_config)
    try:
        spaces = ActionSpace.of(env.action_space).spaces(ObservationSpace.of(env.observation_space))
    finally:
        env.close()
    if spaces.kind not in get(algo).ACTIONS:
        able = [name for name in names() if spaces.kind in get(name).ACTIONS]
        raise ParamsError(
            f"train.algo: {algo} serves {' and '.join(get(algo).ACTIONS)} actions, {env_config.id} has "
            f"{spaces.kind} ones ({env.action_space}); " + (f"take {', '.join(able)}" if able else "none can yet")
        )
    return spaces


def first_members(problem: Problem, size: int) -> tuple[list[Member], list[Mutation]]:
    """Make the initial population, mutated once where `evolution.mutation.before_training` says so.

    Args:
        problem: configuration.
        size: members.

    Returns:
        Members, and what each one's mutation was.
    """
    keys = [int(key) for key in rng.member_keys(problem.seed, range(size))]
    try:
        arch = Arch.start(problem.algo_config.network, problem.spaces.images)
    except ParamsError as error:
        raise ParamsError(f"algos.{problem.train.algo}.{error}") from None
    hyper = {name: getattr(problem.algo_config, name) for name in evolvable(problem.algo.Config)}
    bare = [Member(slot, slot, None, key, arch, dict(hyper), {}) for slot, key in enumerate(keys)]
    rows: dict[str, list[torch.Tensor]] = {}
    for i, (network, widths) in enumerate(sorted(problem.widths.items())):
        rows[network] = [initialise(arch, widths, rng.host(key, Purpose.INIT, i)) for key in keys]
    members = population.create(bare, partial(problem.algo.init, problem.algo_config), rows, problem.widths)
    if not problem.mutation.before_training:
        return members, [NONE] * size
    born = [
        mutate(problem.mutation, problem.traits, member, rng.host(member.key, Purpose.MUTATE), allow_none=False)
        for member in members
    ]
    return [member for member, _ in born], [mutation for _, mutation in born]
