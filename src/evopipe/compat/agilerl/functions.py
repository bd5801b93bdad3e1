"""`train_off_policy` and the other training functions. Each returns the trained population and the fitnesses of every
generation."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.buffers import MultiStepReplayBuffer, ReplayBuffer
from evopipe.compat.agilerl.environments import config_of
from evopipe.compat.agilerl.evolution import Mutations, TournamentSelection
from evopipe.compat.agilerl.team_buffer import MultiAgentReplayBuffer
from evopipe.compat.agilerl.train import Call, Trained, newer_spellings
from evopipe.data.transitions import Transitions
from evopipe.errors import UsageError
from evopipe.memory.replay import Replay
from evopipe.types import Batch


@newer_spellings
def train_off_policy(
    env: Any, env_name: str, algo: str | None = None, pop: Sequence[Agent] = (), memory: ReplayBuffer | None = None,
    INIT_HP: Mapping[str, Any] | None = None, MUT_P: Mapping[str, Any] | None = None, swap_channels: bool = False,
    max_steps: int = 1_000_000, evo_steps: int = 10_000, eval_steps: int | None = None, eval_loop: int = 1,
    learning_delay: int = 0, eps_start: float = 1.0, eps_end: float = 0.1, eps_decay: float = 0.995,
    target: float | None = None, n_step: bool = False, per: bool = False,
    n_step_memory: MultiStepReplayBuffer | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, checkpoint: int | None = None, checkpoint_path: str | None = None,
    overwrite_checkpoints: bool = False, save_elite: bool = False, elite_path: str | None = None, wb: bool = False,
    verbose: bool = True, accelerator: Any = None, wandb_api_key: str | None = None,
    wandb_kwargs: Mapping[str, Any] | None = None,
) -> Trained:  # fmt: skip
    """Train a population of agents that share one replay buffer, by an off-policy algorithm: DQN, Rainbow, DDPG, TD3 or
    SAC.

    Args:
        env: a vector from `make_vect_envs`, or an environment or a vector of Gymnasium, wrappers included. The training
            uses copies, not `env` itself.
        env_name: the environment's name in files and trackers.
        algo: is only checked; it must be the population's algorithm.
        pop: agents, as `create_population` makes them.
        memory: the replay buffer. Its capacity, n-step length and prioritisation are used. Agents also learn from the
            transitions that it already holds, and at the end it holds the population's transitions.
        INIT_HP, MUT_P: are only checked; they must agree with the settings of the population and of `mutation`.
        swap_channels: has no effect, because the order of an image's channels is detected.
        max_steps: environment steps of each agent.
        evo_steps: environment steps of each agent between evolutions.
        eval_steps: the most steps of an evaluation episode; None for no limit.
        eval_loop: the number of evaluation episodes for each environment of `env`.
        learning_delay: environment steps of each agent before it learns.
        eps_start, eps_end, eps_decay: the probability of a random action at the start, its lower bound, and the factor
            by which it is multiplied at every step of the vector.
        target: the mean return that ends training early, once other episodes confirm it; None for no early end.
        n_step: whether transitions span several steps, whose number `n_step_memory` or `memory` says.
        per: whether sampling is prioritised; not needed with a `PrioritizedReplayBuffer`.
        n_step_memory: a buffer of n-step transitions. Only its `n_step` is used; `memory` stores the transitions.
        tournament: the selection; None for no selection.
        mutation: the mutation; None for no mutation.
        checkpoint: environment steps of each agent between two checkpoints, in which each agent is written to a folder;
            None for no checkpoints.
        checkpoint_path: the beginning of the folders' names.
        overwrite_checkpoints: whether only the last checkpoints are kept.
        save_elite: whether the best agent is written to `elite_path`; `evopipe.load` reads it.
        elite_path: where the best agent is written.
        wb: whether metrics go to Weights & Biases.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        wandb_api_key: key of Weights & Biases.
        wandb_kwargs: only `project` is allowed.

    Returns:
        The trained agents by index, and one list of their fitnesses for each generation.

    Raises:
        UsageError: an argument would have no effect, or the environment cannot be copied.
        ParamsError: a value is out of its bounds.
        DivergedError, EnvironmentFailed, Interrupted: see `evopipe.run.session.Session.train`.

    Examples:
        >>> from evopipe import train_off_policy
        >>> from evopipe import Mutations, ReplayBuffer, TournamentSelection, create_population, make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=2)
        >>> hp = {"BATCH_SIZE": 16, "LEARN_STEP": 4}
        >>> pop = create_population("DQN", env.single_observation_space, env.single_action_space, None, hp,
        ...                         population_size=2, num_envs=2)
        >>> pop, fitnesses = train_off_policy(env, "CartPole-v1", "DQN", pop, ReplayBuffer(1000), max_steps=80,
        ...                                   evo_steps=40, tournament=TournamentSelection(2, True, 2),
        ...                                   mutation=Mutations(), verbose=False)
        >>> len(fitnesses), pop[0].steps
        (2, [80])
    """
    call = Call.of("train_off_policy", locals())
    if not isinstance(memory, ReplayBuffer):
        raise UsageError("memory: give a ReplayBuffer, MultiStepReplayBuffer or PrioritizedReplayBuffer")
    config = call.pop[0].breed.params.algo_config
    call.train["replay"] = _replay_of(memory, n_step, per, n_step_memory)
    call.block |= _epsilon_of(call.name, config, config_of(env).num_envs, eps_start, eps_end, eps_decay)
    warm = None
    if len(memory):
        if memory.steps > 1:
            raise UsageError("memory: it holds transitions over several steps, which a run cannot begin with: empty it")
        warm = _held(memory, call.pop[0])
        call.train["warm_start"] = len(memory)

    def adopt(regime: Any) -> None:
        memory.counter += len(call.pop) * regime.clock.step
        _fill(memory, regime.learning.replay, call.pop[0])

    return call.run(warm, adopt=adopt)


def _replay_of(
    memory: ReplayBuffer, n_step: bool, per: bool, n_step_memory: MultiStepReplayBuffer | None
) -> dict[str, Any]:
    """Return the block `train.replay` of a script's memories. Raises UsageError if the flags say otherwise than the
    memories."""
    steps = memory.steps
    if n_step_memory is not None:
        if not n_step:
            raise UsageError("n_step_memory: it would be without effect: set n_step=True")
        if steps not in (1, n_step_memory.steps):
            raise UsageError(f"n_step_memory: its n_step is {n_step_memory.steps}, memory's is {steps}: give one")
        steps = n_step_memory.steps
    if n_step and steps == 1:
        raise UsageError("n_step: give a MultiStepReplayBuffer, as n_step_memory or as memory")
    if per and memory.alpha is None:
        raise UsageError("per: give a PrioritizedReplayBuffer as memory")
    block: dict[str, Any] = {"capacity": memory.memory_size, "n_step": steps, "prioritised": memory.alpha is not None}
    return block | ({} if memory.alpha is None else {"alpha": float(memory.alpha)})


def _all_of(replay: Replay) -> Batch:
    """Return everything that a memory's first ring holds, the oldest first, with discounts of 1 but at ends."""
    size = int(replay.size[0])
    at = (int(replay.position[0]) - size + torch.arange(size)) % replay.capacity
    return replay.layout.unpack(replay.rows[0].cpu()[at][None], torch.ones(1, size), torch.ones(1))


def _fill(memory: ReplayBuffer, replay: Replay, agent: Agent) -> None:
    """Put what a run's memory holds into a caller's, where it can be said in the environment's own terms."""
    seen, actions = agent.breed.observations, agent.breed.actions
    if not int(replay.size[0]) or not seen.plain or replay.layout.steps > 1 or replay.layout.masked:
        return
    batch = _all_of(replay)
    action, obs, after, reward = (x[0].numpy() for x in (batch.action, batch.obs, batch.next_obs, batch.reward))
    done = batch.discount[0].numpy() == 0.0
    memory.fill({"state": obs, "action": actions.own(action), "reward": reward, "next_state": after, "done": done})


def _held(memory: ReplayBuffer, agent: Agent) -> Transitions:
    """Return what a caller's memory holds as transitions to begin with."""
    breed, form, batch = agent.breed, memory.form, _all_of(memory.replay)
    seen, after = (breed.rows(form.back(part[0].numpy()))[0] for part in (batch.obs, batch.next_obs))
    own, done = breed.actions.relative(form.own(batch.action[0].numpy())), batch.discount[0].numpy() == 0.0
    n = len(seen)
    return Transitions(seen, own, batch.reward[0].numpy(), done, np.ones(n, bool), after, np.arange(n))


@newer_spellings
def train_on_policy(
    env: Any, env_name: str, algo: str | None = None, pop: Sequence[Agent] = (),
    INIT_HP: Mapping[str, Any] | None = None, MUT_P: Mapping[str, Any] | None = None, swap_channels: bool = False,
    max_steps: int = 1_000_000, evo_steps: int = 10_000, eval_steps: int | None = None, eval_loop: int = 1,
    target: float | None = None, tournament: TournamentSelection | None = None, mutation: Mutations | None = None,
    checkpoint: int | None = None, checkpoint_path: str | None = None, overwrite_checkpoints: bool = False,
    save_elite: bool = False, elite_path: str | None = None, wb: bool = False, verbose: bool = True,
    accelerator: Any = None, wandb_api_key: str | None = None, wandb_kwargs: Mapping[str, Any] | None = None,
    collect_rollouts_fn: Callable[..., Any] | None = None,
) -> Trained:  # fmt: skip
    """Train a population of agents that learn from their own rollouts, by PPO. Their networks may be recurrent.

    Args:
        env: a vector from `make_vect_envs`, or an environment or a vector of Gymnasium. The training uses copies.
        env_name: the environment's name in files and trackers.
        algo, INIT_HP, MUT_P: are only checked; they must agree with the population and with `mutation`.
        pop: agents, as `create_population` makes them.
        max_steps, evo_steps: environment steps of each agent, in total and between evolutions.
        eval_steps, eval_loop: the most steps of an evaluation episode (None for no limit), and the number of evaluation
            episodes for each environment of `env`.
        swap_channels: has no effect, because the order of an image's channels is detected.
        target: the mean return that ends training early, once other episodes confirm it; None for no early end.
        tournament, mutation: the selection and the mutation; None for no selection or no mutation.
        checkpoint, checkpoint_path, overwrite_checkpoints: environment steps between two checkpoints (None for no
            checkpoints), the beginning of the names of their folders, and whether only the last ones are kept.
        save_elite, elite_path: whether the best agent is written, and to which folder; `evopipe.load` reads it.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        wb, wandb_api_key: whether metrics go to Weights & Biases, and its key.
        wandb_kwargs: settings of Weights & Biases; only `project` is allowed.
        collect_rollouts_fn: None, `collect_rollouts` or `collect_rollouts_recurrent` for evopipe's own collection of
            rollouts. Any other function is called with (regime, ticks), where `regime` is the training loop. The
            function must step the environments of all agents `ticks` times, and pass each step's results to
            `regime.record`; see `evopipe.parts.OnPolicy`.

    The result is the trained agents by index, and one list of their fitnesses for each generation. The errors are those
    of `train_off_policy`.

    Examples:
        >>> from evopipe import train_on_policy
        >>> from evopipe import create_population, make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=2)
        >>> pop = create_population("PPO", env.single_observation_space, env.single_action_space, None,
        ...                         {"LEARN_STEP": 64, "BATCH_SIZE": 32}, population_size=2, num_envs=2)
        >>> pop, fitnesses = train_on_policy(env, "CartPole-v1", "PPO", pop, max_steps=128, evo_steps=64,
        ...                                  verbose=False)
        >>> len(fitnesses), pop[0].steps
        (2, [128])
    """
    call = Call.of("train_on_policy", locals())
    return call.run(collect=_own_function(collect_rollouts_fn))


@newer_spellings
def train_offline(
    env: Any, env_name: str, dataset: Any = None, algo: str | None = None, pop: Sequence[Agent] = (),
    memory: ReplayBuffer | None = None, INIT_HP: Mapping[str, Any] | None = None,
    MUT_P: Mapping[str, Any] | None = None, swap_channels: bool = False, max_steps: int = 1_000_000,
    evo_steps: int = 10_000, eval_steps: int | None = None, eval_loop: int = 1, target: float | None = None,
    tournament: TournamentSelection | None = None, mutation: Mutations | None = None, checkpoint: int | None = None,
    checkpoint_path: str | None = None, overwrite_checkpoints: bool = False, save_elite: bool = False,
    elite_path: str | None = None, wb: bool = False, verbose: bool = True, accelerator: Any = None,
    minari_dataset_id: str | None = None, remote: bool = False, wandb_api_key: str | None = None,
) -> Trained:  # fmt: skip
    """Train a population of agents on a dataset, by CQN, IQL, TD3+BC or BC. The environment serves for evaluation only.

    Args:
        env: a vector from `make_vect_envs`, or an environment or a vector of Gymnasium. The evaluation uses copies.
        env_name: the environment's name in files and trackers.
        algo, INIT_HP, MUT_P: are only checked; they must agree with the population and with `mutation`.
        pop: agents, as `create_population` makes them.
        dataset: an open `h5py.File`, the path of such a file, or a mapping of arrays: `observations`, `actions`,
            `rewards`, `terminals` and, if there are any, `timeouts` and `next_observations`. None if
            `minari_dataset_id` is given.
        memory: an empty replay buffer, whose capacity is the number of the dataset's last transitions that are used.
        max_steps, evo_steps: steps of each agent, in total and between evolutions. An agent with a learn step of n
            makes an update in every n-th step.
        eval_steps, eval_loop: the most steps of an evaluation episode (None for no limit), and the number of evaluation
            episodes for each environment of `env`.
        swap_channels: has no effect, because the order of an image's channels is detected.
        target: the mean return that ends training early, once other episodes confirm it; None for no early end.
        tournament, mutation: the selection and the mutation; None for no selection or no mutation.
        checkpoint, checkpoint_path, overwrite_checkpoints: environment steps between two checkpoints (None for no
            checkpoints), the beginning of the names of their folders, and whether only the last ones are kept.
        save_elite, elite_path: whether the best agent is written, and to which folder; `evopipe.load` reads it.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        wb, wandb_api_key: whether metrics go to Weights & Biases, and its key.
        minari_dataset_id: a Minari dataset, a folder or an id.
        remote: whether Minari may download the dataset.

    The result is the trained agents by index, and one list of their fitnesses for each generation. The errors are those
    of `train_off_policy`.

    Examples:
        >>> from evopipe import train_offline
        >>> import gymnasium, numpy
        >>> from evopipe import ReplayBuffer, create_population
        >>> env, random = gymnasium.make("CartPole-v1"), numpy.random.default_rng(1)
        >>> dataset = {"observations": random.normal(size=(64, 4)), "actions": random.integers(0, 2, 64),
        ...            "rewards": numpy.ones(64), "terminals": random.random(64) < 0.1}
        >>> pop = create_population("CQN", env.observation_space, env.action_space, None, {"BATCH_SIZE": 16},
        ...                         population_size=2)
        >>> pop, fitnesses = train_offline(env, "CartPole-v1", dataset, "CQN", pop, ReplayBuffer(1000), max_steps=20,
        ...                                evo_steps=10, verbose=False)
        >>> len(fitnesses)
        2
    """
    from evopipe.compat.agilerl.datasets import transitions_from

    call = Call.of("train_offline", locals())
    if not isinstance(memory, ReplayBuffer):
        raise UsageError("memory: give a ReplayBuffer")
    if len(memory):
        raise UsageError("memory: it holds transitions, and the dataset is what is learned from: give an empty one")
    call.train |= {"mode": "offline", "replay": _replay_of(memory, False, False, None)}
    limit = memory.memory_size
    return call.run(transitions_from(config_of(env), dataset, minari_dataset_id, remote, limit))


@newer_spellings
def train_multi_agent_off_policy(
    env: Any, env_name: str, algo: str | None = None, pop: Sequence[Agent] = (),
    memory: MultiAgentReplayBuffer | None = None, sum_scores: bool = True, INIT_HP: Mapping[str, Any] | None = None,
    MUT_P: Mapping[str, Any] | None = None, swap_channels: bool = False, max_steps: int = 50_000, evo_steps: int = 25,
    eval_steps: int | None = None, eval_loop: int = 1, learning_delay: int = 0, target: float | None = None,
    tournament: TournamentSelection | None = None, mutation: Mutations | None = None, checkpoint: int | None = None,
    checkpoint_path: str | None = None, overwrite_checkpoints: bool = False, save_elite: bool = False,
    elite_path: str | None = None, wb: bool = False, verbose: bool = True, accelerator: Any = None,
    wandb_api_key: str | None = None,
) -> Trained:  # fmt: skip
    """Train a population of teams of agents that share one replay buffer, by MADDPG or MATD3.

    Args:
        env: a parallel environment of PettingZoo, which is copied, or the object that `make_vect_envs` returned for a
            team.
        env_name: the environment's name in files and trackers.
        algo, INIT_HP, MUT_P: are only checked; they must agree with the population and with `mutation`.
        pop: teams, each an `Agent`, as `create_population` makes them.
        memory: an empty replay buffer. Only its capacity is used; its agents must be those of the environment.
        sum_scores: whether a team's fitness is the sum of its agents' returns (True) or their mean (False).
        max_steps, evo_steps: environment steps of each team, in total and between evolutions.
        eval_steps, eval_loop: the most steps of an evaluation episode (None for no limit), and the number of evaluation
            episodes for each environment of `env`.
        learning_delay: environment steps of each team before it learns.
        swap_channels: has no effect, because the order of an image's channels is detected.
        target: the mean return that ends training early, once other episodes confirm it; None for no early end.
        tournament, mutation: the selection and the mutation; None for no selection or no mutation.
        checkpoint, checkpoint_path, overwrite_checkpoints: environment steps between two checkpoints (None for no
            checkpoints), the beginning of the names of their folders, and whether only the last ones are kept.
        save_elite, elite_path: whether the best team is written, and to which folder; `evopipe.load` reads it.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        wb, wandb_api_key: whether metrics go to Weights & Biases, and its key.

    The result is the trained teams by index, and one list of their fitnesses for each generation. The errors are those
    of `train_off_policy`.

    Examples:
        >>> from evopipe import train_multi_agent_off_policy
        >>> from mpe2 import simple_speaker_listener_v4
        >>> from evopipe import MultiAgentReplayBuffer, create_population
        >>> env = simple_speaker_listener_v4.parallel_env(max_cycles=5, continuous_actions=True)
        >>> spaces = [{name: of(name) for name in env.possible_agents}
        ...           for of in (env.observation_space, env.action_space)]
        >>> pop = create_population("MADDPG", *spaces, None, {"BATCH_SIZE": 8}, population_size=2)
        >>> memory = MultiAgentReplayBuffer(1000, agent_ids=env.possible_agents)
        >>> pop, fitnesses = train_multi_agent_off_policy(env, "speaker", "MADDPG", pop, memory, max_steps=20,
        ...                                               evo_steps=10, verbose=False)
        >>> len(fitnesses)
        2
    """
    call = Call.of("train_multi_agent_off_policy", locals())
    if not isinstance(memory, MultiAgentReplayBuffer):
        raise UsageError("memory: give a MultiAgentReplayBuffer")
    if len(memory):
        raise UsageError("memory: it holds transitions, which a team's run cannot begin with: give an empty one")
    team = call.pop[0].breed.team
    if team is not None and memory.agent_ids is not None and {*map(str, memory.agent_ids)} != {*team.agents}:
        raise UsageError(f"memory: its agents are {memory.agent_ids}, the population's {[*team.ids]}")
    call.train["replay"] = {"capacity": memory.memory_size}
    call.block["score"] = "sum" if sum_scores else "mean"
    return call.run()


@newer_spellings
def train_multi_agent_on_policy(
    env: Any, env_name: str, algo: str | None = None, pop: Sequence[Agent] = (), sum_scores: bool = True,
    INIT_HP: Mapping[str, Any] | None = None, MUT_P: Mapping[str, Any] | None = None, swap_channels: bool = False,
    max_steps: int = 50_000, evo_steps: int = 25, eval_steps: int | None = None, eval_loop: int = 1,
    target: float | None = None, tournament: TournamentSelection | None = None, mutation: Mutations | None = None,
    checkpoint: int | None = None, checkpoint_path: str | None = None, overwrite_checkpoints: bool = False,
    save_elite: bool = False, elite_path: str | None = None, wb: bool = False, verbose: bool = True,
    accelerator: Any = None, wandb_api_key: str | None = None,
) -> Trained:  # fmt: skip
    """Train a population of teams of agents that learn from their own rollouts, by IPPO or MAPPO.

    Args:
        env: a parallel environment of PettingZoo, which is copied, or the object that `make_vect_envs` returned for a
            team.
        env_name: the environment's name in files and trackers.
        algo, INIT_HP, MUT_P: are only checked; they must agree with the population and with `mutation`.
        pop: teams, each an `Agent`, as `create_population` makes them.
        sum_scores: whether a team's fitness is the sum of its agents' returns (True) or their mean (False).
        max_steps, evo_steps: environment steps of each team, in total and between evolutions.
        eval_steps, eval_loop: the most steps of an evaluation episode (None for no limit), and the number of evaluation
            episodes for each environment of `env`.
        swap_channels: has no effect, because the order of an image's channels is detected.
        target: the mean return that ends training early, once other episodes confirm it; None for no early end.
        tournament, mutation: the selection and the mutation; None for no selection or no mutation.
        checkpoint, checkpoint_path, overwrite_checkpoints: environment steps between two checkpoints (None for no
            checkpoints), the beginning of the names of their folders, and whether only the last ones are kept.
        save_elite, elite_path: whether the best team is written, and to which folder; `evopipe.load` reads it.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        wb, wandb_api_key: whether metrics go to Weights & Biases, and its key.

    The result is the trained teams by index, and one list of their fitnesses for each generation. The errors are those
    of `train_off_policy`.

    Examples:
        >>> from evopipe import train_multi_agent_on_policy
        >>> from mpe2 import simple_spread_v3
        >>> from evopipe import create_population
        >>> env = simple_spread_v3.parallel_env(max_cycles=5)
        >>> spaces = [{name: of(name) for name in env.possible_agents}
        ...           for of in (env.observation_space, env.action_space)]
        >>> pop = create_population("IPPO", *spaces, None, {"LEARN_STEP": 8, "BATCH_SIZE": 8}, population_size=2)
        >>> pop, fitnesses = train_multi_agent_on_policy(env, "spread", "IPPO", pop, max_steps=16, evo_steps=8,
        ...                                              verbose=False)
        >>> len(fitnesses)
        2
    """
    call = Call.of("train_multi_agent_on_policy", locals())
    call.block["score"] = "sum" if sum_scores else "mean"
    return call.run()


def _epsilon_of(algo: str, config: Any, envs: int, start: float, end: float, decay: float) -> dict[str, Any]:
    """Return ε as an algorithm's block has it: multiplied by `decay` at every step of the vector, down to `end`. Raises
    UsageError if it is out of bounds, or the algorithm explores otherwise, and it is not the default."""
    if not 0.0 <= end <= start <= 1.0 or not 0.0 < decay <= 1.0:
        raise UsageError(
            f"eps_start, eps_end, eps_decay: 0 ≤ end ≤ start ≤ 1 and 0 < decay ≤ 1, got {start}, {end}, {decay}"
        )
    if not hasattr(config, "eps_schedule"):
        if (start, end, decay) != (1.0, 0.1, 0.995):
            raise UsageError(f"eps_start, eps_end, eps_decay: {algo} explores by noise of its own, and has no ε")
        return {}
    if decay == 1.0 or start <= end:
        return {"eps_start": start, "eps_end": start, "eps_schedule": "exponential", "eps_steps": 1}
    steps = max(1, round(envs * math.log(max(end, 1e-8) / max(start, 1e-8)) / math.log(decay)))
    return {"eps_start": float(start), "eps_end": float(end), "eps_schedule": "exponential", "eps_steps": steps}


def _own_function(collect_rollouts_fn: Any) -> Any:
    """Return a caller's way to collect rollouts; None where it is the one that there is. Raises UsageError if it takes
    an agent and an environment, and all members are stepped together."""
    from evopipe.compat.agilerl.rollouts import collect_rollouts, collect_rollouts_recurrent

    if collect_rollouts_fn in (None, collect_rollouts, collect_rollouts_recurrent):
        return None
    needed = [
        each for each in inspect.signature(collect_rollouts_fn).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    if len(needed) != 2:
        raise UsageError(
            "collect_rollouts_fn: all members are stepped together here: give a function of (regime, ticks) that calls "
            "regime.choose(), regime.pool.step(...) and regime.record(step) so many times, see docs/python.md"
        )
    return collect_rollouts_fn
