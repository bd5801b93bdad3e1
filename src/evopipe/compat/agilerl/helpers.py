"""Small functions that scripts put around a population: print it, plot it, evolve it, save it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.breed import one_process
from evopipe.compat.agilerl.evolution import Mutations, TournamentSelection
from evopipe.compat.agilerl.wrappers import inside
from evopipe.errors import UsageError, need_package
from evopipe.formats import score

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def print_hyperparams(pop: Sequence[Any]) -> None:
    """Print a line for each agent: the mean of its last 5 fitnesses, its last mutation, architecture and
    hyper-parameters.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import DQN, print_hyperparams
        >>> env = gymnasium.make("CartPole-v1")
        >>> print_hyperparams(DQN.population(1, env.observation_space, env.action_space, lr=0.001))
        agent 0: fitness none, mutation None, 128|128, batch_size 64, ... learn_step 5, lr 0.001, tau 0.001
    """
    for agent in pop:
        mean = score(float(np.mean(agent.fitness[-5:]))) if agent.fitness else "none"
        hyper = ", ".join(f"{name} {value:g}" for name, value in sorted(agent.hp.items()))
        architecture = inside(agent).member.arch.describe()
        print(f"agent {agent.index}: fitness {mean}, mutation {agent.mut}, {architecture}, {hyper}")


def plot_population_score(pop: Sequence[Any]) -> Figure:
    """Plot each agent's fitness over its environment steps, and return matplotlib's figure.

    The figure is also shown if there is a screen.

    Raises:
        MissingInputError: matplotlib is not installed.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import DQN, plot_population_score
        >>> env = gymnasium.make("CartPole-v1")
        >>> pop = DQN.population(2, env.observation_space, env.action_space)
        >>> len(plot_population_score(pop).axes[0].lines)
        2
    """
    need_package("matplotlib", "report", "plot_population_score")
    import matplotlib.pyplot as plt
    from matplotlib import backends

    figure, axes = plt.subplots()
    for agent in pop:
        fitness, steps = [*agent.fitness], [*agent.steps]
        at = steps[: len(fitness)] if len(steps) >= len(fitness) else range(1, 1 + len(fitness))
        axes.plot(at, fitness, label=f"agent {agent.index}")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("fitness")
    axes.legend()
    registry: Any = backends.backend_registry  # type: ignore[attr-defined]
    if plt.get_backend().lower() in registry.list_builtin(backends.BackendFilter.INTERACTIVE):  # type: ignore[attr-defined]
        plt.show()
    plt.close(figure)
    return figure


def tournament_selection_and_mutation(
    population: Sequence[Any], tournament: TournamentSelection, mutation: Mutations, env_name: str,
    algo: str | None = None, elite_path: str | None = None, save_elite: bool = False, accelerator: Any = None,
    language_model: bool = False,
) -> list[Any]:  # fmt: skip
    """Return the next generation of agents: selected by `tournament.select`, then mutated by `mutation.mutation`.

    Args:
        population: agents that were tested.
        tournament, mutation: the selection and the mutations.
        env_name, algo: the environment and the algorithm, which name the elite's folder if `elite_path` is None.
        elite_path: the folder to which the elite is written.
        save_elite: whether the elite is written, as `Agent.load` reads it.
        accelerator: has no effect, but one with several processes is refused.
        language_model: must be False, because agents of language models are trained by the finetuning functions.

    Raises:
        UsageError: no agent was tested, or an argument would have no effect.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import (
        ...     DQN, Mutations, TournamentSelection, tournament_selection_and_mutation)
        >>> env = gymnasium.make("CartPole-v1")
        >>> pop = DQN.population(2, env.observation_space, env.action_space)
        >>> fitnesses = [agent.test(env, max_steps=20) for agent in pop]
        >>> len(tournament_selection_and_mutation(pop, TournamentSelection(2, True, 2), Mutations(), "CartPole-v1"))
        2
    """
    one_process(accelerator)
    if language_model:
        raise UsageError("language_model: agents of language models are trained whole: finetune_llm_reasoning")
    if elite_path is not None and not save_elite:
        raise UsageError("elite_path: it would be without effect: give save_elite too")
    elite, children = tournament.select(population)
    if save_elite:
        inside(elite).save_checkpoint(elite_path or f"{env_name}-elite_{algo or inside(elite).algo}".replace("/", "_"))
    return mutation.mutation(children)


def save_population_checkpoint(
    population: Sequence[Agent], save_path: str, overwrite_checkpoints: bool, accelerator: Any = None
) -> None:
    """Write every agent to a folder of its own: `<save_path>_<index>_<steps>`, or `<save_path>_<index>` with
    `overwrite_checkpoints`.

    `accelerator` has no effect; an Accelerator must have one process.

    Raises:
        DiskError: a folder cannot be written.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import DQN, save_population_checkpoint
        >>> env = gymnasium.make("CartPole-v1")
        >>> save_population_checkpoint(DQN.population(1, env.observation_space, env.action_space), "saved", True)
        >>> DQN.load("saved_0").index
        0
    """
    one_process(accelerator)
    for agent in population:
        folder = f"{save_path}_{agent.index}"
        inside(agent).save_checkpoint(folder if overwrite_checkpoints else f"{folder}_{agent.steps[-1]}")
