"""The configuration of a run as values, without state and without an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from evopipe import rng, searchers
from evopipe.algos import Algorithm, misfit, on_policy
from evopipe.core import normalise
from evopipe.core.arch import Arch
from evopipe.core.cohort import Cohort, Grouping, Pace, create, form
from evopipe.core.fit import forms_of_networks, forms_of_rows
from evopipe.core.fit import misfit as misfit_of
from evopipe.core.graphs import Paths
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.module import Module
from evopipe.core.structure import Architecture, Widths, acting_networks
from evopipe.errors import DataError, ParamsError
from evopipe.mutations import NONE, Mutation, Traits, mutate
from evopipe.native import build
from evopipe.params.search import SearchConfig
from evopipe.rng import Purpose
from evopipe.schema.blocks import EnvConfig, MutationConfig, TournamentConfig
from evopipe.schema.declare import evolvable
from evopipe.schema.stored import in_a_sentence
from evopipe.searchers import propose
from evopipe.searchers.contract import About, Bound, Searcher
from evopipe.types import Spaces

if TYPE_CHECKING:
    from evopipe.schema.blocks import TrainConfig

# Parameters of a member, times rows of a batch, over steps from one update to the next: from where on all CPUs learn
# though environments step meanwhile, and from where on these wait.
_SHARED, _LONG = 1e6, 2e6


@dataclass(frozen=True, kw_only=True)
class Spec(ABC):
    """The algorithm and evolution of a run, whether its members act in environments or write text."""

    seed: int
    train: Any
    tournament: TournamentConfig
    mutation: MutationConfig
    search: SearchConfig = field(default_factory=SearchConfig)
    algo: Algorithm
    algo_config: Any
    device: torch.device
    cohorts: Literal["merged", "exact"] = "merged"
    paths: Paths = field(default_factory=Paths, repr=False, compare=False)  # the fast paths that training takes

    @property
    @abstractmethod
    def name(self) -> str:
        """The run's name in lists of runs."""

    @property
    @abstractmethod
    def made_for(self) -> Mapping[str, Any]:
        """What members depend on beside the algorithm, as JSON data: the environment's spaces, or a base."""

    @property
    @abstractmethod
    def broken(self) -> str:
        """The error message for an evaluation in which no member got a score."""

    @property
    @abstractmethod
    def unrewarded(self) -> str:
        """The advice to users if no member has received a reward."""

    @property
    @abstractmethod
    def widths(self) -> Mapping[str, Widths]:
        """The input and output width of every network."""

    @abstractmethod
    def architecture(self) -> Architecture:
        """Return the architecture that members start with.

        Raises:
            ParamsError: it cannot be built.
        """

    @abstractmethod
    def pace(self, member: Member) -> Pace:
        """Return how a member learns. Members of one cohort learn at the same ticks."""

    @abstractmethod
    def misfit(self, member: Member, first: Member) -> str | None:
        """Return how a member's networks differ from the configured ones or from the first member's; None if they fit.

        The text continues the sentence "member 3 …".
        """

    @property
    def racing(self) -> bool:
        """Whether evaluation is a race, in which a member plays only as long as its rank can change a decision (see
        `race`)."""
        return False

    @property
    def sequential(self) -> bool:
        """Whether a confirmation ends as soon as it is clear how it will end."""
        return False

    @property
    def seeds_apart(self) -> bool:
        """Whether each seed of an evaluation can be used alone: what it stands for does not depend on the other
        seeds."""
        return False

    @property
    def learns_from_evaluation(self) -> bool:
        """Whether what members do in evaluation goes into their memories."""
        return False

    @property
    def each(self) -> int:
        """The number of steps by which one tick advances each member."""
        return 1

    @property
    def rates(self) -> list[str]:
        """The names of the learning rates."""
        return [name for name in evolvable(self.algo.Config) if name.startswith("lr")]

    @property
    def kinds(self) -> dict[str, tuple[str, str]]:
        """The kind of each of a member's tensors and the network that it belongs to, by name (see `tensor_kinds`)."""
        return tensor_kinds(self.algo.State, self.widths)

    @property
    def traits(self) -> Traits:
        """What mutation needs to know of the algorithm."""
        fields = self.algo.Config.model_fields
        return Traits(
            widths=self.widths,
            acting=acting_networks(self.algo.POLICY, self.widths),
            kinds=self.kinds,
            evolve=self.algo_config.evolve,
            whole=frozenset(name for name, field in fields.items() if field.annotation is int),
        )

    @property
    def space(self) -> dict[str, Bound]:
        """The search space: the hyper-parameters that may evolve, with their ranges."""
        whole, ranges = self.traits.whole, self.algo_config.evolve
        return {name: propose.bound(each.min, each.max, name in whole) for name, each in sorted(ranges.items())}

    @property
    def configured(self) -> dict[str, float]:
        """The value of each searched hyper-parameter in the algorithm's own block."""
        return {name: getattr(self.algo_config, name) for name in self.space}

    @property
    def strategy(self) -> Any:
        """The module of the search strategy."""
        return searchers.get(self.search.strategy)

    def searcher(self, size: int, target: float | None) -> Searcher:
        """Return the searcher for `size` slots; `target` is the score that ends the run."""
        about = About(
            size, self.train.max_steps, self.train.evo_steps, self.space, self.seed, self.search.budget, target,
            self.search.proposer, self.mutation.mutate_elite, self.configured,
        )  # fmt: skip
        made: Searcher = self.strategy.Search(self.search.config(self.tournament), about)
        return made

    def form(self, members: Sequence[Member]) -> list[Cohort]:
        """Form cohorts of members."""
        return form(members, self.algo.State, self.widths, self.device, self.pace, self.cohorts)

    def form_alone(self, member: Member) -> list[Cohort]:
        """Form a cohort of one member, whose arithmetic depends on itself alone."""
        return form([member], self.algo.State, self.widths, self.device, self.pace, "exact")

    def check(self, members: Sequence[Member]) -> str | None:
        """Return how members that were read from a file differ from this configuration, as a sentence; None if they
        fit."""
        able = set(evolvable(self.algo.Config))
        for i, member in enumerate(members):
            whole = {**dict(self.algo_config), **member.hyper}
            try:
                with in_a_sentence(self.algo.Config, whole):
                    self.algo.Config.model_validate(whole)
            except ValueError as error:
                return f"member {i}: hyper.{error}"
            if member.hyper.keys() != able:
                return f"member {i} has the hyper-parameters {', '.join(member.hyper)}, expected {', '.join(able)}"
            found = self.misfit(member, members[0])
            if found is not None:
                return f"member {i}{found}"
        return None

    def seeds(self, purpose: Purpose, n: int) -> np.ndarray:
        """Return the run's `n` fixed seeds for a purpose, `[n]`, the same for all members."""
        seeds: np.ndarray = rng.seeds(np.full(n, rng.run_key(self.seed)), purpose, np.arange(n))
        return seeds


JobT = TypeVar("JobT", bound=Spec)


@dataclass(frozen=True, kw_only=True)
class EnvSpec(Spec):
    """Environment, algorithm and evolution of a run."""

    env: EnvConfig
    train: TrainConfig
    spaces: Spaces  # what the algorithm knows of the environment's

    def __post_init__(self) -> None:
        object.__setattr__(self, "algo_config", self.algo_config.at(self.spaces))
        found = misfit(self.train.algo, self.algo_config, self.spaces)
        if found is not None:
            raise ParamsError(f"algos.{self.train.algo}.{found[0]}: {found[1]}")
        arch = self.architecture() if self.algo_config.network.module is not None else None
        if isinstance(arch, Module):
            arch.check(self.widths, f"algos.{self.train.algo}.network.module")
        # The pattern of unlike updates begins anew with every generation.
        evolving = self.algo_config.evolve.get("learn_step")
        every = max(getattr(self.algo_config, "learn_step", 1), evolving.max if evolving else 1)
        updates = int(self.train.evo_steps // every) * self.train.replay.at_once(1)
        if 1 <= updates < self.period:
            raise ParamsError(
                f"algos.{self.train.algo}.policy_delay: {self.period} is more than the {updates} updates that a "
                f"generation may hold (train.evo_steps {self.train.evo_steps}, an update every {every:g} steps): the "
                "policy would never move; lower it, or raise train.evo_steps"
            )

    @property
    def name(self) -> str:
        """The run's name in lists of runs."""
        return self.env.id

    @property
    def made_for(self) -> Mapping[str, Any]:
        """What members depend on in the environment, as JSON data."""
        return self.spaces.to_json()

    @property
    def broken(self) -> str:
        """The error message for an evaluation in which no member got a score."""
        return (
            f"environment {self.name!r} returned non-finite observations or rewards in every evaluation episode: mend "
            f"it; `evopipe env check {self.name}` may show where"
        )

    @property
    def overlapped(self) -> bool:
        """Whether environments step while members learn.

        They do not for on-policy algorithms, nor if an update takes so long that every process should learn.
        """
        return self._learns_from_memory and self._work < _LONG

    @property
    def environments_first(self) -> bool:
        """Whether half of the CPUs are better used by environments than by more learners, because updates are short."""
        return self._learns_from_memory and self._work < _SHARED

    @property
    def _learns_from_memory(self) -> bool:
        return self.train.mode != "offline" and not on_policy(self.algo)

    @property
    def _work(self) -> float:
        arch, cfg = self.architecture(), self.algo_config
        size = sum(arch.size(widths) for widths in self.widths.values())
        return float(size * cfg.batch_size / cfg.learn_step)

    @property
    def compiled(self) -> bool:
        """Whether the native CPU kernels compute all updates."""
        arch = self.architecture()
        dense = isinstance(arch, Arch) and not (arch.residual or arch.stem.convs)
        return build.chosen() is not None and self.device.type == "cpu" and self.algo.COMPILED and dense

    @property
    def racing(self) -> bool:
        """Whether evaluation is a race, in which a member plays only as long as its rank can change a decision (see
        `race`)."""
        return self.train.evaluation == "race"

    @property
    def sequential(self) -> bool:
        """Whether a confirmation ends as soon as it is clear how it will end."""
        return self.train.confirmation == "sequential"

    @property
    def seeds_apart(self) -> bool:
        """Whether each seed of an evaluation can be used alone. A seed begins an episode; it can, unless all of a
        member's episodes go into its memory."""
        return not self.learns_from_evaluation

    @property
    def learns_from_evaluation(self) -> bool:
        return self.train.replay.evaluation

    @property
    def unrewarded(self) -> str:
        """The advice to users if no member has received a reward."""
        return (
            "let them explore more, let episodes last longer (train.eval_steps cuts those of evaluation), begin from "
            "data (train.warm_start), or reward steps on the way"
        )

    @property
    def each(self) -> int:
        """The number of environment steps by which one tick advances each member."""
        return self.env.num_envs

    def architecture(self) -> Architecture:
        """Return the architecture that members start with.

        Raises:
            ParamsError: it cannot be built.
        """
        network = self.algo_config.network
        if network.module is not None:
            return Module.start(network.module, network.kwargs, f"algos.{self.train.algo}.network.module")
        try:
            return Arch.start(self.algo_config.network, self.spaces.images)
        except ParamsError as error:
            raise ParamsError(f"algos.{self.train.algo}.{error}") from None

    @property
    def widths(self) -> dict[str, Widths]:
        start, acts = self.algo_config.network.initialisation, self.algo.POLICY
        return {
            name: widths._replace(gain=start.acting if name == acts else start.others, biases=start.biases)
            for name, widths in self.algo.networks(self.algo_config, self.spaces).items()
        }

    @property
    def observations(self) -> int:
        """`O`, the width of an observation."""
        return self.spaces.observations

    @property
    def actions(self) -> int:
        """`A`, the number of actions, or the dimensions of a continuous action."""
        return self.spaces.actions

    @cached_property
    def period(self) -> int:
        """After how many updates the pattern of updates repeats, such as 2 for a policy that learns at every second
        one."""
        return self.algo.period(self.algo_config)

    @property
    def kinds(self) -> dict[str, tuple[str, str]]:
        return super().kinds | normalise.KINDS

    @staticmethod
    def pace(member: Member) -> Pace:
        """Return how a member learns: from `batch_size` rows, once in every `learn_step` of its steps."""
        return Pace(int(member.hyper.get("batch_size", 1)), member.hyper.get("learn_step"))

    def form(self, members: Sequence[Member]) -> list[Cohort]:
        members = [self.equip(member) for member in members]
        mode: Grouping = "whole" if self.compiled and self.cohorts == "merged" else self.cohorts
        return form(members, self.algo.State, self.widths, self.device, self.pace, mode, self.paths)

    def form_alone(self, member: Member) -> list[Cohort]:
        return form([self.equip(member)], self.algo.State, self.widths, self.device, self.pace, "exact")

    def equip(self, member: Member) -> Member:
        """Return the member with the normaliser that `train.normalise` asks for; a member that has seen nothing gets a
        new one."""
        begun = normalise.start(self.train.normalise, self.spaces)
        return replace(member, tensors={**begun, **member.tensors}) if begun else member

    def misfit(self, member: Member, first: Member) -> str | None:
        rows = forms_of_rows(self.algo.State, partial(self.algo.init, self.algo_config), self.widths, self.spaces)
        forms = forms_of_networks(self.algo.State, member.arch, self.widths) | rows
        found = misfit_of(member.tensors, forms, member.arch, self.spaces, self.algo.RECURRENT)
        if found is None and self.equip(member).tensors.keys() != self.equip(first).tensors.keys():
            found = "its tensors have other names than the first one's"
        return None if found is None else f": {found}"

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The indices of the agents in each group of a team."""
        return self.spaces.who.groups(self.algo_config.groups)

    def score(self, returns: np.ndarray) -> np.ndarray:
        """Return the score of episodes, `[…]`, from the agents' returns `[…, K]`."""
        if not self.spaces.by_agent:
            return returns[..., 0]
        scores: np.ndarray = returns.sum(axis=-1) if self.algo_config.score == "sum" else returns.mean(axis=-1)
        return scores

    def of_agents(self, returns: np.ndarray) -> dict[str, np.ndarray]:
        """Return what is told of episodes beside their score: of a team its agents' returns `[…, K]`."""
        return {"agents": returns} if self.spaces.by_agent else {}


def fresh(
    spec: Spec, slots: Sequence[int], ids: Sequence[int], keys: Sequence[int], values: Sequence[Mapping[str, float]],
    arch: Architecture | None = None,
) -> list[Member]:  # fmt: skip
    """Return new members with initial weights drawn by their keys.

    `values` holds, for each member, the hyper-parameters that differ from the configuration. `arch` replaces the
    configured architecture.
    """
    arch = arch or spec.architecture()
    hyper = {name: getattr(spec.algo_config, name) for name in evolvable(spec.algo.Config)}
    given = zip(slots, ids, keys, values, strict=True)
    bare = [Member(slot, id, None, key, arch, {**hyper, **own}, {}) for slot, id, key, own in given]
    rows: dict[str, list[Tensor]] = {}
    for i, (network, widths) in enumerate(sorted(spec.widths.items())):
        rows[network] = [arch.initialise(widths, rng.host(key, Purpose.INIT, i)) for key in keys]
    return create(bare, partial(spec.algo.init, spec.algo_config), rows, spec.widths)


def first_members(spec: Spec, size: int) -> tuple[list[Member], list[Mutation]]:
    """Make the initial population, and the mutations that made it: none unless `evolution.mutation.before_training` is
    True.

    Some search strategies draw the members' hyper-parameters from the search space, but for those of the first member
    (`search.first`).
    """
    keys = [int(key) for key in rng.member_keys(spec.seed, range(size))]
    values: list[dict[str, float]] = [{} for _ in keys]
    if spec.strategy.DRAWS:
        draws = [rng.host(key, Purpose.PROPOSE) for key in keys]
        search = spec.search
        values = propose.first_values(search.proposer, spec.space, spec.seed, draws, spec.configured, search.first)
    members = fresh(spec, range(size), range(size), keys, values)
    if not spec.mutation.before_training:
        return members, [NONE] * size
    born = [
        mutate(spec.mutation, spec.traits, member, rng.host(member.key, Purpose.MUTATE), allow_none=False)
        for member in members
    ]
    return [member for member, _ in born], [mutation for _, mutation in born]


def go_on(spec: Spec, trained: Sequence[Member], fresh: Sequence[Member]) -> tuple[list[Member], list[Mutation]]:
    """Replace fresh members by trained ones, in order. If there are fewer trained members, they are used again from the
    first.

    Raises:
        DataError: they hold other networks than the configuration asks for.
    """
    kinds = spec.traits.kinds
    for member in trained:
        if set(member.tensors) - kinds.keys() or set(fresh[0].tensors) - set(member.tensors):
            raise DataError(
                f"population.start: its members hold {', '.join(sorted(member.tensors))}; algos.{spec.train.algo} "
                f"asks for {', '.join(sorted(fresh[0].tensors))}"
            )
    wrong = spec.check(trained)
    if wrong is not None:
        raise DataError(f"population.start: {wrong}; name a copy of models/trained as it was written")
    taken = [trained[i % len(trained)] for i in range(len(fresh))]
    heirs = [old.clone(new.slot, new.id, new.key) for old, new in zip(taken, fresh, strict=True)]
    begun = [replace(heir, parent=None, fitness=()) for heir in heirs]
    return begun, [NONE] * len(begun)
