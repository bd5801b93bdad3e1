"""Contextual bandits: labelled data as an environment, and the agents that choose among arms by one network."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.algorithms import _Algorithm
from evopipe.compat.agilerl.buffers import ReplayBuffer
from evopipe.compat.agilerl.environments import config_of, remember
from evopipe.compat.agilerl.evolution import Mutations, TournamentSelection
from evopipe.compat.agilerl.train import Call, Trained, newer_spellings
from evopipe.errors import UsageError
from evopipe.types import Batch, Tensor

_STEPS = 500  # of an episode of an environment, where nothing else is said


class BanditEnv:
    """Labelled data as a contextual bandit. Each label is an arm; the right arm for a row gives the reward 1, any other
    arm 0.

    In every step a row is drawn at random. The context of an arm is a vector with one block of d numbers for each arm.
    The arm's own block holds the row's d features, and all other blocks are 0.

    Args:
        features: `[N, d]`, an array or a data frame: N rows of d features.
        targets: `[N]` or `[N, 1]`, the rows' labels.
        seed: seed of the random draws.

    Attributes:
        arms: the number of arms.
        context_dim: the shape of the context of one arm, `(arms · d,)`.

    Raises:
        UsageError: there are no rows, rows and labels differ in number, or there is only one label.

    Examples:
        >>> from evopipe.compat.agilerl import BanditEnv
        >>> env = BanditEnv([[0.1, 0.2], [0.3, 0.4]], ["no", "yes"])
        >>> env.arms, env.context_dim, env.reset().shape
        (2, (4,), (2, 4))
        >>> context, reward = env.step(0)
        >>> reward in (0.0, 1.0)
        True
    """

    num_envs = 1

    def __init__(self, features: Any, targets: Any, *, seed: int = 1) -> None:
        rows, labels = np.asarray(features, np.float32), np.asarray(targets).reshape(-1)
        if rows.ndim != 2 or not len(rows) or len(rows) != len(labels):
            raise UsageError(f"BanditEnv: features {rows.shape} and targets {labels.shape} must be [N, d] and [N]")
        names, self._labels = np.unique(labels, return_inverse=True)
        if len(names) < 2:
            raise UsageError("BanditEnv: all targets are one label, and there is nothing to choose")
        self._rows, self.arms = rows, len(names)
        self.context_dim = (self.arms * rows.shape[1],)
        self._random, self._now = np.random.default_rng(seed), 0
        remember(self, config_of(_Episodes(self, _STEPS)))

    def _context(self) -> np.ndarray:
        self._now = int(self._random.integers(len(self._rows)))
        found = np.zeros((self.arms, self.arms, self._rows.shape[1]), np.float32)
        found[range(self.arms), range(self.arms)] = self._rows[self._now]
        return found.reshape(self.arms, -1)

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Draw a row of d features, and return the contexts of all arms, `[arms, arms · d]`. A `seed` restarts the
        random draws."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        return self._context()

    def step(self, k: int) -> tuple[np.ndarray, float]:
        """Choose arm `k` for the current row. Return the contexts of all arms for the next row of d features,
        `[arms, arms · d]`, and the reward of the choice."""
        reward = float(self._labels[self._now] == int(k))
        return self._context(), reward


class _Episodes(gymnasium.Env[Any, Any]):
    """A bandit as an environment of Gymnasium that ends after so many steps."""

    def __init__(self, bandit: Any, steps: int) -> None:
        self.bandit, self.steps, self._taken = copy.deepcopy(bandit), steps, 0
        shape = (bandit.arms, *bandit.context_dim)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(bandit.arms)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._taken = 0
        return self.bandit.reset(seed), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        context, reward = self.bandit.step(int(action))
        self._taken += 1
        return context, reward, False, self._taken >= self.steps, {}


class _Bandit(_Algorithm):
    """The base of both: agents that read one context for each arm."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "batch_size": 64, "learn_step": 2, "gamma": 1.0, "lamb": 1.0, "reg": 6.25e-4,
    }  # fmt: skip
    _chosen: int = 0  # arms since the last update

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the arm for contexts `[arms, D]`, or the arms for `[n, arms, D]`, see `Agent.get_action`."""
        action = super().get_action(obs, *args, **kwargs)
        self._chosen += int(np.size(action)) if self.training else 0
        return action

    def _batch(self, experiences: Any, gamma: Tensor) -> Batch:
        """Read contexts of chosen arms `[B, D]` and rewards `[B]`: arms that were not chosen teach nothing."""
        if len(experiences) == 2:
            state, reward = experiences
        else:
            state, reward = experiences[0], experiences[2]
        state, (count, each) = np.asarray(state, np.float32), self.observation_space.shape
        if state.shape[1:] != (each,):
            return super()._batch(experiences, gamma)
        obs = np.zeros((len(state), count, each), np.float32)
        obs[:, 0] = state
        first, ends = np.zeros(len(state), np.int64), np.ones(len(state), bool)
        return super()._batch((obs, first, np.asarray(reward).reshape(-1), obs, ends), gamma)

    def _hyper(self) -> dict[str, Tensor]:
        found = dict(self.live().hyper)
        chosen, self._chosen = self._chosen, 0
        return found | {"learn_step": torch.full_like(found["learn_step"], float(chosen))}


class NeuralUCB(_Bandit):
    """An agent that chooses among arms by a neural network with an upper confidence bound (Zhou et al., 2020).

    The hyper-parameter `gamma` is the weight ν of the confidence width, not a discount. `lamb` is the initial value λ
    of the sums of squared gradients. `reg` is the weight of the squared distance from the initial weights.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import BanditEnv, NeuralUCB
        >>> env = BanditEnv([[0.1, 0.2], [0.3, 0.4]], [0, 1])
        >>> agent = NeuralUCB(gymnasium.spaces.Box(0, 1, env.context_dim), gymnasium.spaces.Discrete(env.arms))
        >>> agent.get_action(env.reset()) in (0, 1)
        True
    """

    ALGO = "neural_ucb"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**_Bandit.DEFAULTS, "lr": 1e-3}


class NeuralTS(_Bandit):
    """An agent that chooses among arms by a neural network with Thompson sampling (Zhang et al., 2021).

    The hyper-parameter `gamma` is the scale ν of the standard deviation with which rewards are drawn, not a discount.
    `lamb` is the initial value λ of the sums of squared gradients. `reg` is the weight of the squared distance from the
    initial weights.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import BanditEnv, NeuralTS
        >>> env = BanditEnv([[0.1, 0.2], [0.3, 0.4]], [0, 1])
        >>> agent = NeuralTS(gymnasium.spaces.Box(0, 1, env.context_dim), gymnasium.spaces.Discrete(env.arms))
        >>> agent.get_action(env.reset()) in (0, 1)
        True
    """

    ALGO = "neural_ts"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**_Bandit.DEFAULTS, "lr": 3e-3}


@newer_spellings
def train_bandits(
    env: Any, env_name: str, algo: str | None = None, pop: Sequence[Agent] = (), memory: ReplayBuffer | None = None,
    INIT_HP: Mapping[str, Any] | None = None, MUT_P: Mapping[str, Any] | None = None, swap_channels: bool = False,
    max_steps: int = 20_000, episode_steps: int = 500, evo_steps: int = 2500, eval_steps: int = 500, eval_loop: int = 1,
    target: float | None = None, tournament: TournamentSelection | None = None, mutation: Mutations | None = None,
    checkpoint: int | None = None, checkpoint_path: str | None = None, overwrite_checkpoints: bool = False,
    save_elite: bool = False, elite_path: str | None = None, wb: bool = False, verbose: bool = True,
    accelerator: Any = None, wandb_api_key: str | None = None, wandb_kwargs: Mapping[str, Any] | None = None,
) -> Trained:  # fmt: skip
    """Train a population of agents on a contextual bandit by NeuralUCB or NeuralTS. Each agent makes one update every
    `learn_step` steps.

    Args:
        env: a `BanditEnv`, or another object with the same `reset`, `step`, `arms` and `context_dim`. The training
            uses copies.
        env_name: the environment's name in files and trackers.
        algo, INIT_HP, MUT_P: are only checked; they must agree with the population and with `mutation`.
        pop: agents, as `create_population` makes them.
        memory: a replay buffer. Only its capacity is used.
        max_steps, evo_steps: steps of each agent, in total and between evolutions.
        episode_steps: steps after which an environment is reset.
        eval_steps, eval_loop: the steps of an evaluation, whose fitness is the sum of the rewards, and the number of
            evaluations for each environment.
        swap_channels: has no effect, because the order of an image's channels is detected.
        target: the mean return that ends training early, once other episodes confirm it; None for no early end.
        tournament, mutation: the selection and the mutation; None for no selection or no mutation.
        checkpoint: environment steps of each agent between two checkpoints; None for no checkpoints.
        checkpoint_path, overwrite_checkpoints: the beginning of the names of the agents' checkpoint folders, and
            whether only the last checkpoints are kept.
        save_elite, elite_path: whether the best agent is written, and to which folder; `evopipe.load` reads it.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        wb, wandb_api_key: whether metrics go to Weights & Biases, and its key.
        wandb_kwargs: settings of Weights & Biases; only `project` is allowed.

    Returns:
        The trained agents by index, and one list of their fitnesses for each generation.

    Raises:
        UsageError: an argument would have no effect, or the environment cannot be copied.
        ParamsError: a value is out of its bounds.
        DivergedError, EnvironmentFailed, Interrupted: see `evopipe.run.session.Session.train`.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import BanditEnv, NeuralUCB, ReplayBuffer, train_bandits
        >>> env = BanditEnv([[0.1, 0.2], [0.3, 0.4]], [0, 1])
        >>> spaces = gymnasium.spaces.Box(0, 1, env.context_dim), gymnasium.spaces.Discrete(env.arms)
        >>> pop = NeuralUCB.population(2, *spaces, net_config={"encoder_config": {"hidden_size": [16]}}, batch_size=8)
        >>> pop, fitnesses = train_bandits(env, "two", "NeuralUCB", pop, ReplayBuffer(100), max_steps=20, evo_steps=10,
        ...                                eval_steps=10, verbose=False)
        >>> len(fitnesses)
        2
    """
    if not all(hasattr(env, name) for name in ("reset", "step", "arms", "context_dim")):
        raise UsageError(f"env: a {type(env).__name__} is no bandit: give a BanditEnv")
    call = Call.of("train_bandits", {**locals(), "env": _Episodes(env, int(episode_steps))})
    if not isinstance(memory, ReplayBuffer):
        raise UsageError("memory: give a ReplayBuffer")
    if len(memory):
        raise UsageError("memory: it holds contexts, which a run cannot begin with: give an empty one")
    call.train["replay"] = {"capacity": memory.memory_size}
    return call.run()
