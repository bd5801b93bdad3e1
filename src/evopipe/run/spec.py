"""The configuration of a run as values, without state and without an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
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
from evopipe.core.frozen import arrays_of
from evopipe.core.graphs import Paths
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.module import Module
from evopipe.core.structure import Architecture, Widths, acting_networks
from evopipe.envs.spaces import ActionSpace
from evopipe.errors import DataError, ParamsError
from evopipe.mutations import NONE, Mutation, Traits, mutate
from evopipe.native import build
from evopipe.params.search import SearchConfig
from evopipe.rng import Purpose
from evopipe.run.curriculum import Curriculum
from evopipe.run.league import League
from evopipe.schema.declare import evolvable
from evopipe.schema.env import EnvConfig
from evopipe.schema.evolution import MutationConfig, TournamentConfig
from evopipe.schema.stored import in_a_sentence
from evopipe.searchers import propose
from evopipe.searchers.contract import About, Bound, Searcher
from evopipe.searchers.outside import PluginSearch
from evopipe.types import Spaces

if TYPE_CHECKING:
    from evopipe.schema.train import TrainConfig

# Parameters of a member, times rows of a batch, over steps from one update to the next: from where on all CPUs learn
# though environments step meanwhile, and from where on these wait.
_SHARED, _LONG = 1e6, 2e6


@dataclass(frozen=True, kw_only=True)
class Spec(ABC):
    """The configuration of a run: algorithm, search, selection and mutation. Subclasses add the environment or base
    model.

    Attributes:
        seed: the run's seed.
        train: the block `train` of the parameters.
        tournament, mutation, search: the settings of selection, of mutation and of the search strategy.
        algo: the module of the algorithm.
        algo_config: the algorithm's block of the parameters.
        device: the device of the members' tensors.
        cohorts: the setting `runtime.cohorts`: whether the networks of unlike members, for example of other widths, may
            be computed as one padded batch (`merged`) or not (`exact`).
        paths: which fast implementations training uses.
    """

    seed: int
    train: Any
    tournament: TournamentConfig
    mutation: MutationConfig
    search: SearchConfig = field(default_factory=SearchConfig)
    algo: Algorithm
    algo_config: Any
    device: torch.device
    cohorts: Literal["merged", "exact"] = "merged"
    paths: Paths = field(default_factory=Paths, repr=False, compare=False)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the run's environment or task, which lists of runs show."""

    @property
    @abstractmethod
    def made_for(self) -> Mapping[str, Any]:
        """The environment's spaces, or an identifier of the base model, as JSON data.

        The data is stored with members. A run can read stored members only if their data equals the run's data.
        """

    @property
    @abstractmethod
    def broken(self) -> str:
        """The message of the error that ends a run if no member got a score in an evaluation."""

    @property
    @abstractmethod
    def unrewarded(self) -> str:
        """Advice for users on what to change if no member has received a reward. It is a part of a sentence."""

    @property
    @abstractmethod
    def widths(self) -> Mapping[str, Widths]:
        """The input and output width of every network, by the network's name."""

    @abstractmethod
    def architecture(self) -> Architecture:
        """Return the architecture that initial members have.

        Raises:
            ParamsError: the configured architecture cannot be built.
        """

    @abstractmethod
    def pace(self, member: Member) -> Pace:
        """Return a member's batch size and the interval between its updates.

        Only members with equal intervals can be in one cohort, a group whose networks are computed as one batch.
        """

    @abstractmethod
    def misfit(self, member: Member, first: Member) -> str | None:
        """Return how the networks of `member` differ from the configured networks, or from those of `first`.

        `first` is the first member of the population. The result is None if the networks fit. Otherwise it is the part
        of an error message that comes directly after the member's number, as in "member 3: …".
        """

    @property
    def racing(self) -> bool:
        """Whether evaluation is a race, see `run.race`. In a race, a member stops playing as soon as further
        episodes can hardly change who is the best member and who wins each tournament."""
        return False

    @property
    def sequential(self) -> bool:
        """Whether a confirmation, the second and longer evaluation of a new best member, ends as soon as its outcome is
        clear."""
        return False

    @property
    def seeds_apart(self) -> bool:
        """Whether the seed of an evaluation episode determines the whole episode.

        If so, several processes can share the seeds, and the results stay the same. The default is False.
        """
        return False

    @property
    def learns_from_evaluation(self) -> bool:
        """Whether the transitions of evaluation episodes are added to the replay buffers."""
        return False

    @property
    def curriculum(self) -> Curriculum | None:
        """What changes the training environments from generation to generation, as a new object; None if nothing does.

        Raises:
            ParamsError, EnvironmentFailed: the user's function (`train.curriculum`) cannot be imported.
        """
        return None

    def league(self, folder: Path | None) -> League | None:
        """Return the opponents' files of self-play, as a new object; None without self-play.

        `folder` is the folder of the files; None makes a temporary one.
        """
        return None

    @property
    def each(self) -> int:
        """The number of steps by which a member advances in one tick of the training loop."""
        return 1

    @property
    def rates(self) -> list[str]:
        """The names of the hyper-parameters that are learning rates."""
        return [name for name in evolvable(self.algo.Config) if name.startswith("lr")]

    @property
    def kinds(self) -> dict[str, tuple[str, str]]:
        """What each tensor of a member is, as a dict: the tensor's name → (kind, network), see `tensor_kinds`.

        The network is the name of the network that the tensor belongs to. The kind says how the tensor depends on this
        network's architecture, for example that it holds the network's parameters.
        """
        return tensor_kinds(self.algo.State, self.widths)

    @property
    def traits(self) -> Traits:
        """The facts about the algorithm that mutation operators need, such as the ranges of hyper-parameters."""
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
        """The search space: the ranges of the hyper-parameters that may evolve, by name."""
        whole, ranges = self.traits.whole, self.algo_config.evolve
        return {name: propose.bound(each.min, each.max, name in whole) for name, each in sorted(ranges.items())}

    @property
    def configured(self) -> dict[str, float]:
        """The configured values of the hyper-parameters in the search space, from the algorithm's block of the
        parameters."""
        return {name: getattr(self.algo_config, name) for name in self.space}

    @property
    def strategy(self) -> Any:
        """The module of `searchers` that implements the configured search strategy."""
        return searchers.get(self.search.strategy)

    def searcher(self, size: int, target: float | None) -> Searcher:
        """Return the search strategy as an object, for `size` slots (places in the population). `target` is the score
        that ends the run; None if no score ends it."""
        about = About(
            size, self.train.max_steps, self.train.evo_steps, self.space, self.seed, self.search.budget, target,
            self.search.proposer, self.mutation.mutate_elite, self.configured,
        )  # fmt: skip
        plugin, config = searchers.plugin(self.search.strategy), self.search.config(self.tournament)
        make: Callable[[], Searcher] = partial(self.strategy.Search, config, about)
        return make() if plugin is None else PluginSearch.of(make, plugin, size)

    def form(self, members: Sequence[Member]) -> list[Cohort]:
        """Group members into cohorts, whose networks are computed as one padded batch of tensors; return the
        cohorts."""
        return form(members, self.algo.State, self.widths, self.device, self.pace, self.cohorts)

    def form_alone(self, member: Member) -> list[Cohort]:
        """Return a list with one cohort (batch of members) that has only this member, so that no other member changes
        the bits of its results."""
        return form([member], self.algo.State, self.widths, self.device, self.pace, "exact")

    def check(self, members: Sequence[Member]) -> str | None:
        """Check members that were read from a file; return a sentence that says how the members differ from this
        configuration.

        The result is None if the members fit.
        """
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
        """Return `n` environment seeds `[n]` for a purpose, such as evaluation.

        They depend only on the run's seed and the purpose, so they are equal for all members.
        """
        seeds: np.ndarray = rng.seeds(np.full(n, rng.run_key(self.seed)), purpose, np.arange(n))
        return seeds


JobT = TypeVar("JobT", bound=Spec)


@dataclass(frozen=True, kw_only=True)
class EnvSpec(Spec):
    """The configuration of a run in an environment: environment, spaces, algorithm, search, selection and mutation.

    Attributes:
        env: the block `env` of the parameters.
        train: the block `train` of the parameters.
        spaces: the environment's spaces, as far as the algorithm needs them.
    """

    env: EnvConfig
    train: TrainConfig
    spaces: Spaces

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
        """The id of the environment, which lists of runs show."""
        return self.env.id

    @property
    def made_for(self) -> Mapping[str, Any]:
        """The environment's spaces as JSON data.

        The data is stored with members. A run can read stored members only if their data equals the run's data.
        """
        return self.spaces.to_json()

    @property
    def broken(self) -> str:
        """The message of the error that ends a run if no member got a score in an evaluation."""
        return (
            f"environment {self.name!r} returned non-finite observations or rewards in every evaluation episode: mend "
            f"it; `evopipe env check {self.name}` may show where"
        )

    @property
    def overlapped(self) -> bool:
        """Whether worker processes step the environments while this process computes updates.

        The value is False for on-policy algorithms, and if an update takes so long that every process should compute
        updates.
        """
        return self._learns_from_memory and self._work < _LONG

    @property
    def environments_first(self) -> bool:
        """Whether updates are so short that they should use only half of the CPUs. The other half is then left to the
        processes that step environments.

        The value is False for on-policy algorithms and for offline training.
        """
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
        return (
            build.chosen() is not None
            and self.device.type == "cpu"
            and self.algo.COMPILED
            and dense
            and self.spaces.kind != "mixed"
        )

    @property
    def racing(self) -> bool:
        """Whether evaluation is a race, see `run.race`. In a race, a member stops playing as soon as further
        episodes can hardly change who is the best member and who wins each tournament."""
        return self.train.evaluation == "race"

    @property
    def sequential(self) -> bool:
        """Whether a confirmation, the second and longer evaluation of a new best member, ends as soon as its outcome is
        clear."""
        return self.train.confirmation == "sequential"

    @property
    def seeds_apart(self) -> bool:
        """Whether several processes can share the seeds of an evaluation without a change of results.

        Usually they can, because the seed of an episode determines the whole episode. The value is False only if
        evaluation episodes are added to the replay buffers.
        """
        return not self.learns_from_evaluation

    @property
    def learns_from_evaluation(self) -> bool:
        return self.train.replay.evaluation

    @property
    def curriculum(self) -> Curriculum | None:
        name = self.train.curriculum
        return None if name is None else Curriculum(name, self.env.kwargs)

    def league(self, folder: Path | None) -> League | None:
        if not self.train.self_play.every:
            return None
        space = ActionSpace("discrete", (), self.spaces.choices, (0,))

        def arrays(member: Member) -> dict[str, np.ndarray]:
            return arrays_of(self.algo, self.algo_config, member, self.widths, space)

        return League(self.train.self_play, arrays, self.env.kwargs, folder)

    @property
    def unrewarded(self) -> str:
        """Advice for users on what to change if no member has received a reward. It is a part of a sentence."""
        return (
            "let them explore more, let episodes last longer (train.eval_steps cuts those of evaluation), begin from "
            "data (train.warm_start), or reward steps on the way"
        )

    @property
    def each(self) -> int:
        """The number of environment steps that a member takes in one tick of the training loop: one in each of its
        environments."""
        return self.env.num_envs

    def architecture(self) -> Architecture:
        """Return the architecture that initial members have, by `algos.NAME.network`.

        Raises:
            ParamsError: the configured network cannot be built.
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
        """`O`, the number of values in an observation."""
        return self.spaces.observations

    @property
    def actions(self) -> int:
        """`A`: the number of discrete actions, or the number of values in a continuous action."""
        return self.spaces.actions

    @cached_property
    def period(self) -> int:
        """The number of updates after which the pattern of updates repeats.

        This is 2 for an algorithm that updates its policy at every second update of the critic.
        """
        return self.algo.period(self.algo_config)

    @property
    def kinds(self) -> dict[str, tuple[str, str]]:
        return super().kinds | normalise.KINDS

    @staticmethod
    def pace(member: Member) -> Pace:
        """Return a member's hyper-parameters `batch_size` and `learn_step`, which say how much and how often the member
        learns."""
        return Pace(int(member.hyper.get("batch_size", 1)), member.hyper.get("learn_step"))

    def form(self, members: Sequence[Member]) -> list[Cohort]:
        members = [self.equip(member) for member in members]
        mode: Grouping = "whole" if self.compiled and self.cohorts == "merged" else self.cohorts
        return form(members, self.algo.State, self.widths, self.device, self.pace, mode, self.paths)

    def form_alone(self, member: Member) -> list[Cohort]:
        return form([self.equip(member)], self.algo.State, self.widths, self.device, self.pace, "exact")

    def equip(self, member: Member) -> Member:
        """Return the member with an observation and reward normaliser, if `train.normalise` asks for one.

        The statistics of a member that already has a normaliser are unchanged.
        """
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
        """The indices of the agents in each group of a team, by the group's name; agents of a group share weights."""
        return self.spaces.who.groups(self.algo_config.groups)

    def score(self, returns: np.ndarray) -> np.ndarray:
        """Return the scores of episodes, `[…]`, from the agents' returns `[…, K]`.

        A team's score is the sum or the mean of its agents' returns, as the algorithm's parameter `score` says. An
        environment without a team has one agent, K = 1.
        """
        if not self.spaces.by_agent:
            return returns[..., 0]
        scores: np.ndarray = returns.sum(axis=-1) if self.algo_config.score == "sum" else returns.mean(axis=-1)
        return scores

    def of_agents(self, returns: np.ndarray) -> dict[str, np.ndarray]:
        """Return the results that an evaluation has in addition to scores, by name.

        For a team this is the key `agents` with `returns`, the returns of the K agents `[…, K]`. For a single agent the
        dict is empty.
        """
        return {"agents": returns} if self.spaces.by_agent else {}


def fresh(
    spec: Spec, slots: Sequence[int], ids: Sequence[int], keys: Sequence[int], values: Sequence[Mapping[str, float]],
    arch: Architecture | None = None,
) -> list[Member]:  # fmt: skip
    """Return new members, one for each slot, with initial weights drawn from their keys.

    Args:
        spec: the run's configuration.
        slots: the members' slots (places in the population).
        ids: the members' ids, which differ within a run.
        keys: the members' random keys.
        values: for each member, the hyper-parameters that differ from the configuration, by name.
        arch: the architecture; None for the configured one.
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
    """Return the initial population of `size` members, and the mutation that made each member.

    Members are mutated only if `evolution.mutation.before_training` is True; else the mutation is `NONE`. Some search
    strategies draw hyper-parameters. With such a strategy, the members' values are drawn from the search space. If the
    parameter `search.first` is `configured`, the first member has the configured values instead.
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
    """Return a population that continues from trained members, and its mutations (all `NONE`).

    Each new member in `fresh` is replaced by a copy of a trained member. The copy gets the slot (place in the
    population), the id and the random key of the new member. Trained members are used in order. If there are too few,
    they are used again from the first.

    Raises:
        DataError: the trained members have other networks than the configuration asks for.
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
