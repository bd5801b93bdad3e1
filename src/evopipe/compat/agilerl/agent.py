"""`Agent`: a view of one member of a population, which acts, learns and is tested by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch

from evopipe.algos import on_policy
from evopipe.compat.agilerl import stored_agent
from evopipe.compat.agilerl.breed import ActionScaling, Breed, one_process
from evopipe.compat.agilerl.environments import config_of, evaluation_pool
from evopipe.compat.agilerl.learning import RecordedStep, RolloutBuffer, batch_of, rollout_of, steps_of
from evopipe.compat.agilerl.settings import documented
from evopipe.compat.agilerl.team_vect import situation_of
from evopipe.compat.agilerl.view import View
from evopipe.core.cohort import Cohort, dissolve
from evopipe.core.member import Member
from evopipe.envs.team import TeamSpace
from evopipe.errors import DataError, UsageError
from evopipe.mutations import NONE, Mutation
from evopipe.ops.statistics import mean_of_finite
from evopipe.regimes.learn import discount_rate
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.rng import Purpose, Stream
from evopipe.run.act import choose, step, take_note
from evopipe.run.evaluate import evaluate
from evopipe.types import Batch

_POOL = 16  # environments in which an agent is tested at once, at most


class Agent(View):
    """An agent of a population, with the methods that AgileRL's scripts call. It is a view of one member.

    `learn` makes the same updates as a training of the whole population does. `train_off_policy` and the other training
    functions train all agents in one call, many times faster.

    Args:
        breed: the algorithm, settings and spaces that all agents of the population share.
        member: the weights, hyper-parameters and counters of the agent.
        mutation: the mutation that made the agent.
        spared: whether the agent is the fittest of its generation, which `Mutations` leaves unchanged by default.

    Attributes:
        ALGO: evopipe's name of the algorithm, in classes such as `DQN`; else empty.
        index: the agent's index in the population.
        fitness: the results of `test`, oldest first.
        scores: returns of finished episodes. `collect_rollouts` adds to this list, and so may the script's own loop.
        steps: environment steps, as a list whose last entry is the current count. Loops and training functions update
            it.
        mut: a text that describes the last mutation; `"None"` if nothing changed.
        rollout_buffer: for on-policy algorithms, the steps since the agent last learned.
        training: whether the agent explores.

    Examples:
        >>> import gymnasium
        >>> from evopipe import create_population
        >>> env = gymnasium.make("CartPole-v1")
        >>> (agent,) = create_population("DQN", env.observation_space, env.action_space)
        >>> agent.get_action(env.reset(seed=1)[0], epsilon=0.1) in (0, 1)
        True
        >>> agent.test(env, max_steps=20, loop=2) == agent.fitness[-1]
        True
    """

    ALGO: ClassVar[str] = ""
    """The algorithm that a class is for; empty: any."""

    def __init__(self, breed: Breed, member: Member, mutation: Mutation = NONE, spared: bool = False) -> None:
        super().__init__(breed, member, mutation)
        self._cohort: Cohort | None = None
        self.spared, self.training = spared, True
        self.rollout_buffer = RolloutBuffer()
        self._acted = self._learned = 0
        self.errors: np.ndarray | None = None  # `[B]`, of the last batch learned from, if the algorithm tells them
        # Between two rollouts: where the next step begins an episode `[n]`, and what it remembers `[n, M]`.
        self.carried: tuple[np.ndarray, torch.Tensor] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.ALGO:
            _CLASSES.setdefault(cls.ALGO, cls)

    @classmethod
    def viewing(cls, breed: Breed, member: Member, mutation: Mutation = NONE, spared: bool = False) -> Self:
        """Return an agent that is a view of the member `member`.

        The arguments are those of the constructor of `Agent`, also if this method is called on a subclass. The
        constructors of subclasses such as `DQN` take other arguments.
        """
        found = cls.__new__(cls)
        Agent.__init__(found, breed, member, mutation, spared)
        return found

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def member(self) -> Member:
        """The agent's member (weights, hyper-parameters, fitness) in its current state."""
        if self._cohort is not None:
            (self._member,) = dissolve([self._cohort])
        return super().member

    @property
    def batch_size(self) -> int:
        """The number of transitions in an update; for on-policy algorithms, the number of steps in a minibatch."""
        return int(self._setting("batch_size"))

    @property
    def learn_step(self) -> int:
        """The number of environment steps between two updates; for on-policy algorithms, the number of steps in a
        rollout."""
        return int(self._setting("learn_step"))

    def _setting(self, name: str) -> float:
        return float(self._member.hyper.get(name, getattr(self.breed.params.algo_config, name)))

    def __getattr__(self, name: str) -> Any:
        breed = self.__dict__.get("breed")
        own = None if breed is None or name.startswith("_") else documented(breed.algo, name)
        if own is None or breed is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self._member.hyper.get(own, getattr(breed.params.algo_config, own))

    @property
    def device(self) -> Any:
        """The torch device of the agent's tensors."""
        return self.breed.spec.device

    @property
    def observation_space(self) -> Any:
        """The environment's observation space, of Gymnasium; for a team, a dictionary of spaces by agent."""
        return self.breed.observation_space

    @property
    def action_space(self) -> Any:
        """The environment's action space, of Gymnasium; for a team, a dictionary of spaces by agent."""
        return self.breed.action_space

    @property
    def recurrent(self) -> bool:
        """Whether the agent's network is recurrent, and carries a hidden state from step to step."""
        return self.live().memory > 0

    @property
    def actor(self) -> ActionScaling:
        """An object with the method `scale_action`, which scales actions in [-1, 1] to the environment's bounds."""
        return ActionScaling(self.breed)

    def set_training_mode(self, training: bool) -> None:
        """Set whether the agent explores (True) or chooses greedy actions (False). Only an exploring agent's
        observations enter its running statistics."""
        self.training = bool(training)

    def reset_action_noise(self, indices: Any = None) -> None:
        """Do nothing, because exploration noise has no state: it depends only on the agent's random key and its count
        of actions. `indices` has no effect."""

    def unwrap_models(self) -> None:
        """Do nothing, because evopipe never wraps a model for distributed training. AgileRL's scripts call this method
        around checkpoints."""

    wrap_models = unwrap_models

    def live(self) -> Cohort:
        """Return the tensors with which the agent acts and learns, as a cohort (a group of members that train as one
        batch) of this one member. Acting and learning change the tensors in place."""
        if self._cohort is None:
            (self._cohort,) = self.breed.spec.form([self._member])
        return self._cohort

    def tick(self) -> int:
        """Increase the count of calls that choose actions, and return it. The count seeds the call's random draws."""
        self._acted += 1
        return self._acted

    # --- acting -------------------------------------------------------------------------------------------------------

    def get_action(
        self, obs: Any, epsilon: Any = 0.0, action_mask: Any = None, hidden_state: Any = None, *, infos: Any = None,
        training: bool | None = None,
    ) -> Any:  # fmt: skip
        """Return the actions for one observation, or for a batch of n observations. While `training` is True, the agent
        explores as its algorithm does.

        Args:
            obs: an observation as the environment returns it, or a batch of them; for a team, a dictionary by agent.
            epsilon: probability of a random legal action, 0 to 1. For a team, a mapping given here is taken as `infos`.
            action_mask: whether each of the A discrete actions is legal, `[A]` or `[n, A]`; None if all are legal. For
                a team, a dictionary by agent.
            hidden_state: for a recurrent agent, the hidden state of M numbers that the previous call returned, `[n,
                M]`, or `[n, K, M]` for a team of K agents; None at the beginning of episodes.
            infos: for a team, what the environment says of each agent: `action_mask`, and `env_defined_actions`, which
                replace the agent's own actions.
            training: whether the agent explores; None for what `set_training_mode` set.

        Returns:
            Actions as the environment takes them, `[n, …]`, or a single action for a single observation. For a team,
            two dictionaries by agent, the actions to step with and the actions to save; both have the same actions.
            Algorithms that learn from rollouts return (action, log-probability, entropy, value), `[n]` each; a
            recurrent agent also returns its new hidden state. The continuous actions of these algorithms
            are not clipped: clip them to the environment's bounds.

        Raises:
            UsageError: a shape does not fit.
        """
        if training is not None and training != self.training:
            self.training, before = bool(training), self.training
            try:
                return self.get_action(obs, epsilon, action_mask, hidden_state, infos=infos)
            finally:
                self.training = before
        if self.breed.team is not None:
            epsilon, infos = (0.0, epsilon) if isinstance(epsilon, Mapping) else (epsilon, infos)
            return self._act_as_team(self.breed.team, obs, epsilon, infos or {}, action_mask, hidden_state)
        rows, single = self.breed.rows(obs)
        n, spec, cohort = len(rows), self.breed.spec, self.live()
        legal = np.ones((n, spec.actions), bool)
        if action_mask is not None:
            try:
                legal[:] = np.asarray(self.breed.actions.flat_mask(action_mask)).astype(bool)
            except ValueError as error:
                raise UsageError(f"action_mask is {error}") from error
        tick = self.tick()
        self.take_note(rows)
        if on_policy(spec.algo):
            action, memory, *numbers = self._step(rows, legal, hidden_state, tick)
            found = [x[0] if single else x for x in (self.breed.undrawn(action), *numbers)]
            return (*found, memory) if memory.shape[-1] else (*found,)
        explore = (float(epsilon), tick) if self.training else None
        (chosen,) = choose(spec, cohort, rows[None], legal[None], explore).cpu().numpy()
        own = self.breed.actions.own(chosen)
        return own[0] if single else own

    def take_note(self, obs: np.ndarray, alive: np.ndarray | None = None) -> None:
        """Add n observations to the running statistics that normalise observations.

        Nothing happens if the agent has no such statistics, or if it does not explore (`training` is False).

        Args:
            obs: `[n, O]`, observations of O numbers; `[n, K, O]` for a team of K agents.
            alive: for a team, `[n, K]` bool: only observations whose entry is True count. None if all count.
        """
        if self.training:
            take_note([self.live()], obs, alive, places=[[0]])

    def _step(self, rows: np.ndarray, legal: np.ndarray, hidden: Any, tick: int) -> tuple[Any, ...]:
        """Return actions as drawn, what is remembered after them, log-probabilities, entropies and values of rows
        `[n, O]`."""
        spec, cohort, n = self.breed.spec, self.live(), len(rows)
        memory = torch.zeros(n, cohort.memory) if hidden is None else torch.as_tensor(hidden).reshape(n, cohort.memory)
        begins = torch.zeros(n, dtype=torch.bool)
        inputs = (torch.from_numpy(rows), torch.from_numpy(legal), begins, memory)
        seen, may, begins, memory = (x[None].to(spec.device) for x in inputs)
        seen = cohort.normalised(seen)
        took = step(spec, cohort, seen, may, begins, memory, tick if self.training else None)
        chances = cast("Any", spec.algo).answers(spec.algo_config).chances
        entropy = chances(spec.algo_config, cohort.state, seen, may, memory).entropy()
        numbers = (x[0].cpu().numpy() for x in (took.log_prob, entropy, took.value))
        return took.action[0].cpu(), took.memory[0].cpu(), *numbers

    def _act_as_team(
        self, team: TeamSpace, obs: Mapping[Any, Any], epsilon: float, infos: Mapping[Any, Any], masks: Any, hidden: Any
    ) -> Any:
        """Choose every agent's action, by agent: one observation of each, or a batch."""
        spec, tick = self.breed.spec, self.tick()
        said = {key: each for key, each in infos.items() if isinstance(each, Mapping) and key in obs}
        told = {key: each["action_mask"] for key, each in said.items() if each.get("action_mask") is not None}
        now = situation_of(team, obs, masks or told)
        shape = now.alive.shape
        self.take_note(now.obs, now.alive)
        rows, legal = (x.reshape(-1, x.shape[-1]) for x in (now.obs, now.legal))

        def by_agent(each: Sequence[Any]) -> dict[Any, Any]:
            named = dict(zip(team.ids, each, strict=True))
            return {key: named[team.agent(key)][0] if now.single else np.asarray(named[team.agent(key)]) for key in obs}

        if on_policy(spec.algo):
            action, memory, *numbers = self._step(rows, legal, hidden, tick)
            drawn = action.unflatten(0, shape).unbind(dim=1)
            own = [self.breed.undrawn(each, space) for each, space in zip(drawn, team.actions, strict=True)]
            found = (by_agent(own), *(by_agent([*each.reshape(shape).T]) for each in numbers))
            after = memory.unflatten(0, shape).masked_fill(~torch.from_numpy(now.alive)[..., None], 0.0)
            return (*found, after) if memory.shape[-1] else found
        explore = (float(epsilon), tick) if self.training else None
        chosen = choose(spec, self.live(), rows[None], legal[None], explore)[0].cpu().numpy()
        acts = by_agent(team.own_each(chosen.reshape(*shape, *chosen.shape[1:])))
        for key, each in said.items():
            if (forced := each.get("env_defined_actions")) is not None:
                given, kind = np.asarray(forced, float), np.asarray(acts[key]).dtype
                acts[key] = np.where(np.isnan(given), acts[key], given).astype(kind)
        return acts, acts

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(self, experiences: Any = None, *, n_experiences: Any = None, n_step: Any = None, per: Any = None) -> Any:
        """Learn from a batch of transitions by one update, or from a rollout by all its epochs; return the loss.

        Args:
            experiences: for algorithms with a replay buffer, a batch that `memory.sample` or `sampler.sample` returned,
                or arrays (state, action, reward, next_state, done) of B transitions, `[B, …]`. For algorithms that
                learn from rollouts, a tuple (observations, actions, log_probs, rewards, dones, values, next_obs): six
                lists with one entry for each step, and the observation after the last step. An entry of `dones` says
                whether its step ended an episode. If each entry says instead whether the step before ended an episode,
                add an eighth part: `next_done`, which says it of the last step. If `experiences` is None, the agent
                learns from the steps in its `rollout_buffer`. For a team, each entry is a dictionary by agent, or each
                list is a dictionary of equally long lists by agent. An agent that is missing from a step's observation
                is absent in that step.
            n_experiences: n-step transitions that `MultiStepReplayBuffer.sample_from_indices` returned for the indices
                of `experiences`. The agent then learns from these, with the weights and priorities of `experiences`.
            n_step, per: not needed: they follow from the batches.

        Returns:
            The loss; NaN after the agent has diverged.

        Raises:
            UsageError: there is nothing to learn from, or a shape does not fit.
        """
        if on_policy(self.breed.spec.algo):
            taken = self.rollout_buffer.taken if experiences is None else self._told(experiences)
            self.rollout_buffer.reset()
            rollout = rollout_of(self.breed.spec, self.live(), taken)
            self._learned += 1
            learn_from_rollout(self.breed.spec, self.live(), rollout, len(taken), self._learned)
            return float(self.live().losses[0])
        if experiences is None:
            raise UsageError(f"learn: {self.algo} learns from a batch: agent.learn(memory.sample(agent.batch_size))")
        if n_experiences is not None:
            n_experiences.memory, n_experiences.places = experiences.memory, experiences.places
            n_experiences.weight, experiences = experiences.weight, n_experiences
        return self._update(experiences)

    def _told(self, experiences: Any) -> list[RecordedStep]:
        """Return the steps of a rollout that a script collected, with observations as the networks read them."""
        found, live = steps_of(self.breed, experiences), self.live()
        if live.normaliser is None:
            return found
        return [replace(each, obs=self.normalised(each.obs), next_obs=self.normalised(each.next_obs)) for each in found]

    def normalised(self, obs: np.ndarray) -> np.ndarray:
        """Return n observations of O numbers, `[n, O]`, as the agent's networks read them: normalised by the agent's
        running statistics, if it has some."""
        live = self.live()
        if live.normaliser is None:
            return obs
        return np.asarray(live.normalised(torch.from_numpy(obs)[None].to(live.keys.device))[0].cpu())

    def _batch(self, experiences: Any, gamma: torch.Tensor) -> Batch:
        return batch_of(self.breed, experiences, gamma)

    def _hyper(self) -> Mapping[str, torch.Tensor]:
        return self.live().hyper

    def _update(self, experiences: Any) -> float:
        spec, cohort = self.breed.spec, self.live()
        batch = self._batch(experiences, discount_rate(cohort))
        if cohort.normaliser is not None:
            batch = replace(batch, obs=cohort.normalised(batch.obs), next_obs=cohort.normalised(batch.next_obs))
        draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([self._learned], device=spec.device))
        learned = spec.algo.update(
            spec.algo_config, cohort.state, self._hyper(), batch, cohort.healthy, draw, self._learned % spec.period
        )
        self._learned += 1
        cohort.healthy.copy_(learned.healthy)
        cohort.losses.copy_(learned.losses.detach())
        self.errors = None if learned.errors is None else learned.errors.detach().abs()[0].cpu().numpy()
        index = getattr(experiences, "places", None)
        if index is not None and learned.errors is not None:
            trees = experiences.memory.replay.priorities
            trees.update(torch.zeros(1, dtype=torch.int64), index, learned.errors.detach().cpu())
        return float(cohort.losses[0])

    # --- testing and keeping ------------------------------------------------------------------------------------------

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Play greedy episodes; return their mean undiscounted return, and append it to `fitness`.

        Args:
            env: the environment, as for the training functions. The agent plays in copies; `env` itself is not changed.
            swap_channels: has no effect, because the order of an image's channels is detected.
            max_steps: the most steps of an episode; None for no limit.
            loop: episodes for each environment of `env`. Their seeds are the same for all agents and in every test.

        Raises:
            UsageError: the environment cannot be copied.
        """
        config = config_of(env)
        episodes = loop * config.num_envs
        pool = evaluation_pool(env, min(episodes, _POOL))
        seeds = self.breed.spec.seeds(Purpose.EVALUATE, episodes)
        played = evaluate(self.breed.spec, [self.live()], pool, seeds, max_steps)
        self.fitness.append(mean_of_finite(played.returns[0]))
        return self.fitness[-1]

    def go_on_from(self, parent: Self, slot: Self) -> None:
        """Continue with the counters of the agent `parent` and the random draws of the agent `slot`.

        Args:
            parent: the agent whose scores, steps and fitness are copied.
            slot: the agent that this agent replaces in the population, whose random draws continue.
        """
        super().go_on_from(parent, slot)
        self._acted, self._learned, self.training = slot._acted, slot._learned, parent.training

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the agent to a folder of safetensors and JSON files with checksums. An existing folder is replaced.

        Raises:
            DiskError: the folder cannot be written.
        """
        counters: dict[str, Any] = {"acted": self._acted, "learned": self._learned, "steps": [*map(int, self.steps)]}
        counters["scores"] = [*map(float, self.scores)]
        stored_agent.write(Path(path), self.breed, self.member, counters)

    def load_checkpoint(self, path: str | Path) -> None:
        """Replace this agent's state by the state in a folder that `save_checkpoint` wrote.

        Raises:
            MissingInputError: the folder does not exist.
            DataError: the folder is damaged, or its agent has another algorithm or other spaces.
        """
        found = kind_of("").load(path)
        if found.algo != self.algo or found.breed.spec.spaces != self.breed.spec.spaces:
            raise DataError(f"{path}: is an agent of {found.algo} for other spaces, or another algorithm's")
        self.breed, self._member, self._cohort = found.breed, found._member, None
        self.fitness, self.steps, self.scores = found.fitness, found.steps, found.scores
        self._acted, self._learned, self.mutation = found._acted, found._learned, NONE

    @classmethod
    def load(cls, path: str | Path, device: Any = None, accelerator: Any = None) -> Agent:
        """Return an agent from a folder that `save_checkpoint` wrote.

        Args:
            path: the folder.
            device: `cpu` or `cuda`; None for the device of the saved agent.
            accelerator: has no effect, but one with several processes is refused.

        Raises:
            MissingInputError: the folder does not exist.
            DataError: the folder is damaged, or holds an agent of another algorithm.
        """
        one_process(accelerator)
        member, breed, counters = stored_agent.read(Path(path), device)
        if cls.ALGO not in ("", breed.algo):
            raise DataError(f"{path}: is an agent of {breed.algo}, not of {cls.ALGO}: load it by that one's class")
        found = (cls if cls.ALGO else kind_of(breed.algo)).viewing(breed, member)
        found._acted, found._learned = int(counters["acted"]), int(counters["learned"])
        found.steps, found.scores = [*counters["steps"]], [*counters["scores"]]
        return found


_CLASSES: dict[str, type[Agent]] = {}


def kind_of(algo: str) -> type[Agent]:
    """Return the class of an algorithm's agents, such as `DQN`; `Agent` for an algorithm without a class of its own.

    `algo` is evopipe's name of the algorithm.
    """
    return _CLASSES.get(algo, Agent)
