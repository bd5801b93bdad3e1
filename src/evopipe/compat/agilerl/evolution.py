"""Tournament selection and mutation of agents, as `evopipe.evolve` has them, by AgileRL's names and arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evopipe import rng
from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.breed import one_process
from evopipe.compat.agilerl.settings import RLParameter, evolve_of, own_names
from evopipe.compat.agilerl.wrappers import inside, rewrapped
from evopipe.errors import ParamsError, UsageError, suggestion
from evopipe.mutations import mutate
from evopipe.params.load import parse_params
from evopipe.rng import Purpose
from evopipe.schema.declare import Evolve
from evopipe.schema.evolution import MutationConfig, TournamentConfig
from evopipe.searchers.apply import evolve
from evopipe.searchers.tournament import windowed


class TournamentSelection:
    """Settings of a tournament selection. Each child's parent is the fittest of some agents that are drawn at random.

    Args:
        tournament_size: the number of agents drawn, with replacement, for each tournament.
        elitism: whether the fittest agent always survives, at index 0.
        population_size: the number of agents, which stays the same; it is only checked. None for any.
        eval_loop: the number of an agent's last tests whose mean is its fitness; None for 1.
        evo_step: the older name of `eval_loop`.

    Examples:
        >>> from evopipe import TournamentSelection
        >>> import gymnasium
        >>> from evopipe import create_population
        >>> env = gymnasium.make("CartPole-v1")
        >>> pop = create_population("DQN", env.observation_space, env.action_space, population_size=3)
        >>> for agent, fitness in zip(pop, (10.0, 30.0, 20.0)):
        ...     agent.fitness.append(fitness)
        >>> elite, children = TournamentSelection(tournament_size=2, elitism=True, population_size=3).select(pop)
        >>> elite.index, [child.index for child in children], children[0].fitness
        (1, [0, 1, 2], [30.0])
    """

    def __init__(
        self, tournament_size: int = 2, elitism: bool = True, population_size: int | None = None,
        eval_loop: int | None = None, *, evo_step: int | None = None,
    ) -> None:  # fmt: skip
        if eval_loop is not None and evo_step is not None:
            raise UsageError("TournamentSelection: eval_loop and evo_step are the same: give one")
        self.population_size, self.generation = population_size, 0
        window = eval_loop or evo_step or 1
        self.config: TournamentConfig = _checked(
            "tournament", {"size": tournament_size, "elitism": elitism, "window": window}
        )

    def check(self, size: int) -> None:
        """Check that a population has the right number of agents.

        Raises:
            UsageError: `size` differs from the `population_size` of the constructor.
        """
        if self.population_size not in (None, size):
            raise UsageError(
                f"TournamentSelection: population_size is {self.population_size}, and there are {size} agents: a "
                "population keeps its size"
            )

    def select(self, population: Sequence[Agent]) -> tuple[Agent, list[Agent]]:
        """Return a copy of the fittest agent, and the agents of the next generation, which share no tensors with their
        parents.

        Raises:
            UsageError: no agent was tested.
        """
        self.check(len(population))
        wrapped, population = population, [inside(agent) for agent in population]
        if not any(agent.fitness for agent in population):
            raise UsageError("select: no agent has a fitness: call agent.test(env) for each first")
        self.generation += 1
        breed, members = population[0].breed, [agent.member for agent in population]
        fitness = np.array([windowed(agent.fitness, self.config.window) for agent in population])
        fitness = np.where([member.healthy for member in members], fitness, -np.inf)
        next_id, nothing = 1 + max(member.id for member in members), unmutated().config
        born = evolve(
            self.config, nothing, breed.spec.traits, members, fitness, breed.seed, self.generation, next_id
        )  # fmt: skip
        children = []
        for slot, (member, parent) in enumerate(zip(born.members, born.parents, strict=True)):
            spared = self.config.elitism and slot == 0 and fitness.max() > -np.inf
            child = type(population[parent]).viewing(breed, member, spared=bool(spared))
            child.go_on_from(population[parent], population[slot])
            children.append(rewrapped(wrapped[parent], child))
        best = int(fitness.argmax())
        return rewrapped(wrapped[best], population[best].clone()), children


class Mutations:
    """Settings of mutation: the kinds of mutation, each with a relative weight, and their ranges.

    Args:
        no_mutation: weight of no mutation.
        architecture: weight of a change of architecture, which adds or removes layers or units.
        new_layer_prob: probability that a change of architecture concerns layers, not units, 0 to 1.
        parameters: weight of noise on some weights of the policy network.
        activation: weight of a change of the activation function.
        rl_hp: weight of a change of a hyper-parameter.
        mutation_sd: standard deviation of the noise, relative to each weight.
        activation_selection: activations to choose from; None for ReLU, ELU and GELU.
        mutate_elite: whether the fittest agent, at index 0, mutates too.
        rand_seed: seed of a run of `train_off_policy` and the other training functions; None for the population's seed.
            The method `mutation` does not use it: its draws depend on the agents' random keys.
        rl_hp_selection: names of the hyper-parameters that mutate. None for those in the population's `hp_config`, or
            for those of the algorithm if the population has no `hp_config`.
        min_lr, max_lr, min_learn_step, max_learn_step, min_batch_size, max_batch_size: the bounds of these
            hyper-parameters; None keeps the bounds of `hp_config` or of the algorithm.
        algo, arch, agent_ids: not needed, because they follow from the agents. If `algo` is given, it must be the
            agents' algorithm.
        device, accelerator: not needed.

    Examples:
        >>> from evopipe import Mutations
        >>> import gymnasium
        >>> from evopipe import create_population
        >>> env = gymnasium.make("CartPole-v1")
        >>> pop = create_population("DQN", env.observation_space, env.action_space, population_size=2)
        >>> pop = Mutations(no_mutation=0, architecture=1, parameters=0, rl_hp=0).mutation(pop)
        >>> all(agent.mut != "None" for agent in pop)
        True
    """

    def __init__(
        self, no_mutation: float = 0.4, architecture: float = 0.2, new_layer_prob: float = 0.2, parameters: float = 0.2,
        activation: float = 0.0, rl_hp: float = 0.2, mutation_sd: float = 0.1,
        activation_selection: Sequence[str] | None = None, mutate_elite: bool = False, rand_seed: int | None = None,
        device: Any = None, accelerator: Any = None, *, algo: str | None = None,
        rl_hp_selection: Sequence[str] | None = None, min_lr: float | None = None, max_lr: float | None = None,
        min_learn_step: int | None = None, max_learn_step: int | None = None, min_batch_size: int | None = None,
        max_batch_size: int | None = None, agent_ids: Sequence[Any] | None = None, arch: str | None = None,
    ) -> None:  # fmt: skip
        one_process(accelerator)
        self.rand_seed, self.algo, self.generation = rand_seed, algo, 0
        self.selection = None if rl_hp_selection is None else [*rl_hp_selection]
        self.ends = {"lr": (min_lr, max_lr), "learn_step": (min_learn_step, max_learn_step),
                     "batch_size": (min_batch_size, max_batch_size)}  # fmt: skip
        weights = {"none": no_mutation, "architecture": architecture, "parameters": parameters,
                   "activation": activation, "rl_hp": rl_hp}  # fmt: skip
        block: dict[str, Any] = {
            "probabilities": {kind: float(weight) for kind, weight in weights.items()},
            "new_layer_prob": float(new_layer_prob),
            "sd": float(mutation_sd),
            "mutate_elite": mutate_elite,
        }
        if activation_selection is not None:
            block["activations"] = [*activation_selection]
        self.config: MutationConfig = _checked("mutation", block)

    def ranges(self, algo: str, known: Mapping[str, Evolve]) -> dict[str, Evolve]:
        """Return the ranges of the hyper-parameters that may mutate, by name.

        Args:
            algo: evopipe's name of the algorithm.
            known: the ranges of the population, from which the settings select.

        Raises:
            UsageError: a selected hyper-parameter has no range, or does not exist in the algorithm.
        """
        found = dict(known)
        if self.selection is not None:
            chosen = {name: own_names(algo, name) for name in self.selection}
            for name, names in chosen.items():
                if not names:
                    raise UsageError(
                        f"rl_hp_selection: {algo} has no {name!r} that can mutate{suggestion(name, known)}"
                    )
            kept = [name for names in chosen.values() for name in names]
            found = {name: known[name] for name in kept if name in known}
            if missing := [name for name in kept if name not in known and not self._has_both_ends(algo, name)]:
                raise UsageError(f"rl_hp_selection: {missing[0]} has no range: give hp_config one for it")
            found |= {name: Evolve(min=0.0, max=0.0) for name in kept if name not in known}
        for name, (low, high) in self.ends.items():
            for own in own_names(algo, name):
                if own in found and (low is not None or high is not None):
                    old = found[own]
                    ends = RLParameter(old.min if low is None else low, old.max if high is None else high,
                                       old.shrink, old.grow)  # fmt: skip
                    found[own] = Evolve(**evolve_of(algo, {own: ends})[own])
        return found

    def evolve(self, algo: str, known: Mapping[str, Evolve]) -> dict[str, dict[str, float]]:
        """Return the ranges of the hyper-parameters that may mutate, in the form of the block `algos.<name>.evolve` of
        `params.yaml`.

        The arguments are those of the method `ranges`: `algo` is evopipe's name of the algorithm, and `known` has the
        ranges of the population.
        """
        return {name: each.model_dump() for name, each in self.ranges(algo, known).items()}

    def _has_both_ends(self, algo: str, own: str) -> bool:
        """Whether both ends of a range are set here."""
        return any(own in own_names(algo, name) and None not in ends for name, ends in self.ends.items())

    def mutation(self, population: Sequence[Agent], pre_training_mut: bool = False) -> list[Agent]:
        """Return the agents of a population after mutation. `agent.mut` says what changed in each agent.

        Args:
            population: agents, for example those that `TournamentSelection.select` returned.
            pre_training_mut: whether every agent mutates, including the fittest one. If False, an agent may by chance
                stay unchanged, and the fittest one stays unchanged unless `mutate_elite` is set.
        """
        self.generation += 1
        found = []
        for given in population:
            agent = inside(given)
            if agent.spared and not self.config.mutate_elite and not pre_training_mut:
                found.append(given)
                continue
            spec, member = agent.breed.spec, agent.member
            traits = replace(spec.traits, evolve=self.ranges(agent.algo, spec.traits.evolve))
            draws = rng.host(member.key, Purpose.MUTATE, self.generation)
            child, mutation = mutate(self.config, traits, member, draws, allow_none=not pre_training_mut)
            made = type(agent).viewing(agent.breed, child, mutation, agent.spared)
            made.go_on_from(agent, agent)
            found.append(rewrapped(given, made))
        return found


def unmutated() -> Mutations:
    """Return settings of mutation with which no agent changes."""
    return Mutations(1.0, 0.0, parameters=0.0, rl_hp=0.0)


def _checked(block: str, values: dict[str, Any]) -> Any:
    try:
        return getattr(parse_params({"evolution": {block: values}}).evolution, block)
    except ParamsError as error:
        name = "TournamentSelection" if block == "tournament" else "Mutations"
        raise ParamsError(str(error).replace(f"evolution.{block}", name)) from None
