"""Converts batches and rollouts of scripts to the form that algorithms learn from, for one agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from evopipe.compat.agilerl.breed import Breed
from evopipe.compat.agilerl.buffers import Experiences
from evopipe.compat.agilerl.team_buffer import TeamExperiences
from evopipe.compat.agilerl.team_vect import ends_of, situation_of
from evopipe.compat.agilerl.vect import Marks, marks_of
from evopipe.core.cohort import Cohort
from evopipe.envs.team import Situation, TeamSpace
from evopipe.errors import UsageError
from evopipe.memory.replay import RowLayout
from evopipe.memory.rollout import Rollout, StepLayout
from evopipe.run.spec import EnvSpec
from evopipe.types import ACTS, CUT, GONE, Batch, Chosen, Tensor


@dataclass(frozen=True)
class RecordedStep:
    """A step of `E` environments in the algorithm's encoding, with `O` numbers in an observation, `M` in a recurrent
    state, and `A` discrete actions. For a team, `E` is the number of environments times the number of agents.

    Attributes:
        obs: `[E, O]` float32, the observations before the step.
        action: `[E, …]`, the actions, see `Batch.action`.
        log_prob: `[E]`, the log-probabilities of the actions.
        value: `[E]`, the values of the observations.
        reward: `[E]`, the rewards.
        next_obs: `[E, O]` float32, the observations after the step; at the end of an episode its last one.
        begins: `[E]`, whether `obs` is the first observation of an episode.
        terminated, truncated: `[E]`, whether the step terminated or truncated the episode.
        idle: `[E]`, whether there was no step, only a reset.
        memory: `[E, M]`, the recurrent state before the step, which counts as 0 where an episode begins; None for an
            agent that is not recurrent.
        remembered: `[E, M]`, the recurrent state after the step; None for an agent that is not recurrent.
        legal: `[E, A]`, whether each action is legal; None if all are legal.
        next_alive: `[E]`, for a team each agent's status after the step: `GONE` (takes no part in the next step),
            `ACTS` (acts next) or `CUT` (was truncated); else None.
    """

    obs: np.ndarray
    action: torch.Tensor
    log_prob: np.ndarray
    value: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    begins: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    idle: np.ndarray
    memory: torch.Tensor | None = None
    remembered: torch.Tensor | None = None
    legal: np.ndarray | None = None
    next_alive: np.ndarray | None = None


class RolloutBuffer:
    """A buffer of the steps that one agent has taken since it last learned. `agent.learn()` learns from these
    steps and empties the buffer.

    Every on-policy agent has such a buffer, `agent.rollout_buffer`, which `collect_rollouts` fills.

    Args:
        capacity: the most steps of every environment; None for no limit.
        num_envs, observation_space, action_space, device: have no effect; they follow from the steps that are added.

    Examples:
        >>> from evopipe import RolloutBuffer
        >>> from evopipe import collect_rollouts, create_population, make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=2)
        >>> (agent,) = create_population("PPO", env.single_observation_space, env.single_action_space, num_envs=2)
        >>> _ = collect_rollouts(agent, env, n_steps=4)
        >>> isinstance(agent.rollout_buffer, RolloutBuffer), len(agent.rollout_buffer.taken)
        (True, 4)
    """

    def __init__(
        self, capacity: int | None = None, num_envs: int | None = None, observation_space: Any = None,
        action_space: Any = None, device: Any = None,
    ) -> None:  # fmt: skip
        self.capacity, self.taken = capacity, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        """Steps of every environment that are there."""
        return len(self.taken)

    def add(self, step: RecordedStep) -> None:
        """Append one step of all environments.

        Raises:
            UsageError: the buffer is full.
        """
        if len(self.taken) == self.capacity:
            raise UsageError(f"RolloutBuffer: it is full ({self.capacity} steps): call agent.learn() or reset() first")
        self.taken.append(step)

    def cut(self) -> None:
        """Mark running episodes as truncated after the last step, because the environments are reset before the next
        step."""
        if self.taken:
            last = self.taken[-1]
            self.taken[-1] = replace(last, truncated=last.truncated | ~(last.terminated | last.idle))

    def reset(self) -> None:
        """Remove all steps."""
        self.taken = []


def _flags(value: Any, count: int, name: str) -> np.ndarray:
    """Return flags `[E]`; UsageError where they are none."""
    try:
        found = np.asarray(value)
        if found.dtype.kind in "biuf":
            return np.broadcast_to(found.reshape(-1).astype(bool), (count,))
    except (TypeError, ValueError, RecursionError):
        pass
    raise UsageError(
        f"learn: {name} holds what is no array of {count} flags; append what the environment said of each step (and "
        "not the list to itself)"
    )


def _ends_of(
    observations: Sequence[Any], dones: Sequence[Any], next_done: Any, counts: Sequence[int]
) -> list[tuple[np.ndarray, Marks]]:
    """Return of each of `T` steps where an episode begins, and what led to the observation after it, by `T + 1`
    observations and `T` flags for each of `counts` environments: after each step; with `next_done`, which is after the
    last one, before each. Observations of `make_vect_envs` know all this themselves: of them `dones` is not read."""
    steps, count = len(observations) - 1, counts[0]
    known = [marks_of(obs, count) for obs in observations]
    nothing = np.zeros(count, bool)
    if any(marks is None for marks in known[1:]):
        after = [*dones[1:], next_done] if next_done is not None else [*dones]
        ended = [_flags(done, count, "dones") for done in after]
        marks = [Marks(nothing, done, nothing) for done in ended]
        return [(~nothing if t == 0 else ended[t - 1], marks[t]) for t in range(steps)]
    first = ~nothing if known[0] is None else known[0].began
    found = []
    for t in range(steps):
        after_step, before = known[t + 1], known[t]
        assert after_step is not None
        found.append((first if t == 0 or before is None else before.began, after_step))
    return found


def batch_of(breed: Breed, experiences: Any, gamma: Tensor) -> Batch:
    """Convert B transitions to a batch `[1, B, …]` for the update of one agent.

    Args:
        breed: the spaces and the algorithm of the agent.
        experiences: the result of a replay buffer's `sample`, or arrays (state, action, reward, next_state, done) `[B,
            …]`.
        gamma: the agent's discount, `[1]`.

    Raises:
        UsageError: `experiences` has neither of these two forms.
    """
    if breed.team is not None:
        return _batch_of_team(breed, breed.team, experiences, gamma)
    device = breed.spec.device
    if isinstance(experiences, Experiences):
        memory, rows = experiences.memory, experiences.rows.to(device)
        weight = torch.full(rows.shape[:2], 1.0 / rows.shape[1], device=device)
        if experiences.weight is not None:
            weight = weight * experiences.weight.to(device)
        batch = memory.replay.layout.unpack(rows, weight, gamma)
        if not breed.observations.plain:
            seen = [breed.rows(memory.form.back(part[0].cpu().numpy()))[0] for part in (batch.obs, batch.next_obs)]
            obs, after = (torch.from_numpy(part)[None].to(device) for part in seen)
            batch = replace(batch, obs=obs, next_obs=after)
        if breed.actions.kind != "discrete" or breed.actions.start:
            own = memory.form.own(batch.action[0].cpu().numpy())
            batch = replace(batch, action=torch.from_numpy(breed.actions.relative(own))[None].to(device))
        return batch
    try:
        state, action, reward, following, done = experiences[:5]
    except (TypeError, ValueError):
        raise UsageError("learn: a batch is (state, action, reward, next_state, done)") from None
    obs, after = (torch.from_numpy(breed.rows(part)[0])[None].to(device) for part in (state, following))
    own = np.asarray(action).reshape(obs.shape[1], *breed.actions.shape)
    acts = torch.from_numpy(breed.actions.relative(own))[None].to(device)
    gains, ends = (
        torch.as_tensor(np.asarray(x), dtype=torch.float32).reshape(1, -1).to(device) for x in (reward, done)
    )
    weight = torch.full_like(gains, 1.0 / gains.shape[1])
    return Batch(obs, acts, gains, gamma[:, None] * (1.0 - ends), after, None, weight)


def _batch_of_team(breed: Breed, team: TeamSpace, experiences: Any, gamma: Tensor) -> Batch:
    if not isinstance(experiences, TeamExperiences):
        raise UsageError("learn: a team learns from what MultiAgentReplayBuffer.sample gave")
    state, action, reward, following, done = experiences
    spec, k, n = breed.spec, len(team.ids), len(next(iter(experiences.alive.values())))
    layout = RowLayout.of(spec.spaces, team.masked, legal=spec.algo.MASKED_LOSS)
    seen, after = (np.zeros((n, k, spec.observations), np.float32) for _ in range(2))
    taken = np.zeros((n, k, spec.actions) if layout.continuous else (n, k), np.float32)
    rewards, (ends, alive, goes_on, cut) = np.zeros((n, k), np.float32), np.zeros((4, n, k), bool)
    for place, agent in enumerate(team.ids):
        if agent not in state:
            continue
        alive[:, place] = experiences.alive[agent]
        for rows, obs in ((seen, state[agent]), (after, following.get(agent, state[agent]))):
            own = team.observations[place].read(obs)[0]
            rows[:, place, : own.shape[1]] = own
        acts = team.actions[place].relative(action[agent])
        if layout.continuous:
            taken[:, place, : acts.shape[1]] = acts
        else:
            taken[:, place] = acts
        ends[:, place] = np.asarray(done[agent], bool).reshape(-1) | ~experiences.next_alive[agent]
        goes_on[:, place] = experiences.next_alive[agent] & ~(ends[:, place] & alive[:, place])
        cut[:, place] = goes_on[:, place] & experiences.cut[agent]
        rewards[:, place] = reward[agent]
    then, now = ((team.legal(x) if team.masked else None) for x in (goes_on, alive))
    leaves = np.where(cut, CUT, np.where(goes_on, ACTS, GONE))
    packed = layout.pack(seen, taken, rewards, ends, after, then, legal=now, alive=alive, next_alive=leaves)
    weight = torch.full((1, n), 1.0 / n, device=spec.device)
    return layout.unpack(torch.from_numpy(packed)[None].to(spec.device), weight, gamma)


def steps_of(breed: Breed, experiences: Any) -> list[RecordedStep]:
    """Convert a rollout that a script collected to recorded steps.

    Args:
        breed: the spaces and the algorithm of the agent.
        experiences: a tuple (observations, actions, log-probabilities, rewards, dones, values, next observation). The
            first six are lists with one entry for each step. For other forms see `Agent.learn`.

    Raises:
        UsageError: `experiences` is no rollout, or a shape does not fit.
    """
    if not isinstance(experiences, tuple | list) or len(experiences) not in (7, 8):
        raise UsageError(
            "learn: a rollout is (observations, actions, log_probs, rewards, dones, values, next_obs[, next_done])"
        )
    if breed.team is not None:
        return _steps_of_team(breed, breed.team, *experiences)
    observations, actions, log_probs, rewards, dones, values, following, *rest = experiences
    seen = [*observations, following]
    rows = [breed.rows(obs)[0] for obs in seen]
    n = len(rows[0])
    found = []
    for t, (begins, marks) in enumerate(_ends_of(seen, dones, rest[0] if rest else None, [n])):
        log_prob, value, reward = (np.asarray(x[t], np.float32).reshape(n) for x in (log_probs, values, rewards))
        found.append(
            RecordedStep(rows[t], breed.drawn(actions[t], n), log_prob, value, reward, rows[t + 1], begins,
                  marks.terminated, marks.truncated, marks.began)
        )  # fmt: skip
    return found


def _steps_of_team(
    breed: Breed, team: TeamSpace, observations: Any, actions: Any, log_probs: Any, rewards: Any, dones: Any,
    values: Any, following: Any, next_done: Any = None,
) -> list[RecordedStep]:  # fmt: skip
    spec = breed.spec
    if spec.algo_config.network.encoder_kind == "lstm":
        raise UsageError("learn: a team with a memory is trained whole: train_multi_agent_on_policy")
    parts = [_by_step(x) for x in (observations, actions, log_probs, rewards, dones, values)]
    if len({len(part) for part in parts}) != 1 or not parts[0]:
        raise UsageError(f"learn: the parts of a rollout have unlike lengths {[len(part) for part in parts]}, or none")
    situations = [situation_of(team, obs) for obs in parts[0]]
    known = [ends_of(obs) for obs in (*parts[0][1:], following)]
    shape = situations[0].alive.shape
    absent = Situation(np.zeros_like(situations[0].obs), np.zeros(shape, bool), situations[0].legal, False)
    situations.append(situation_of(team, following) if following else absent)
    if len({each.alive.shape for each in situations}) != 1:
        raise UsageError("learn: the observations are of unlike numbers of environments")

    def numbers(part: Mapping[Any, Any], dtype: Any) -> np.ndarray:
        found = np.zeros(shape, dtype)
        for key, value in part.items():
            found[:, team.agents.index(str(team.agent(key)))] = np.asarray(value).reshape(-1)
        return found

    def each_agents(flags: Mapping[Any, Any]) -> np.ndarray:
        return numbers(flags, bool)

    def drawn(part: Mapping[Any, Any]) -> Tensor:
        found = torch.from_numpy(team.action.empty(*shape))
        for key, value in part.items():
            place = team.agents.index(str(team.agent(key)))
            own = breed.drawn(value, shape[0], team.actions[place])
            (found[:, place, : own.shape[1]] if team.action.continuous else found[:, place])[:] = own
        return found.flatten(0, 1)

    ended = [numbers(each, bool) for each in ([*parts[4][1:], next_done] if next_done is not None else parts[4])]
    found, begins = [], np.ones(shape, bool)
    for t, (_, action, log_prob, reward, _, value) in enumerate(zip(*parts, strict=True)):
        now, after, ends, cut = situations[t], situations[t + 1], known[t], np.zeros(shape, bool)
        if ends is not None:  # of vectors that know it `dones` is not read, nor what a new episode shows
            after, ended[t], cut = (situation_of(team, ends.obs), *map(each_agents, (ends.terminated, ends.truncated)))
        over = ended[t] | ~after.alive
        cut &= ~over
        # Who acts next is known but for the last step, after which one that has just ended may still be shown.
        stays = t + 1 < len(parts[0]) and ends is None
        acts = after.alive if stays else after.alive & ~(ended[t] & now.alive)
        given = [numbers(x, np.float32) for x in (log_prob, value, reward)]
        flat = [x.reshape(-1) for x in (*given, begins, over, cut)]
        own_log_prob, own_value, own_reward, first, last, ended_by_time = flat
        obs, next_obs, legal = (x.reshape(-1, x.shape[-1]) for x in (now.obs, after.obs, now.legal))
        found.append(
            RecordedStep(obs, drawn(action), own_log_prob, own_value, own_reward, next_obs, first, last, ended_by_time,
                  ~now.alive.reshape(-1), legal=legal if team.masked else None,
                  next_alive=np.where(cut, CUT, np.where(acts, ACTS, GONE)).reshape(-1))
        )  # fmt: skip
        begins = over | cut | ~now.alive
    return found


def _by_step(part: Any) -> list[Any]:
    """Return dictionaries by agent, one a step, also of a dictionary of every agent's steps."""
    if isinstance(part, Mapping):
        return [dict(zip(part, each, strict=True)) for each in zip(*part.values(), strict=True)]
    return [*part]


def rollout_of(spec: EnvSpec, cohort: Cohort, taken: Sequence[RecordedStep]) -> Rollout:
    """Convert recorded steps to a rollout of one member, from which the algorithm learns.

    Args:
        spec: the run configuration.
        cohort: the member, as a cohort of one. A cohort is a group of members that train as one batch.
        taken: the recorded steps in order.

    Raises:
        UsageError: there are no steps.
    """
    if not taken:
        raise UsageError("learn: there is no step to learn from: collect_rollouts(agent, env) first")
    n, device = len(taken[0].obs), spec.device
    masked, free = taken[0].legal is not None, np.ones((n, spec.actions), bool)
    rollout = Rollout(StepLayout(spec.spaces, masked), 1, len(taken), n, cohort.memory, device)
    for t, each in enumerate(taken):
        own = [torch.from_numpy(np.array(x))[None].to(device) for x in (
            each.obs, each.begins, each.log_prob, each.value, each.next_obs, each.reward, each.terminated,
            each.truncated, each.idle, free if each.legal is None else each.legal)]  # fmt: skip
        obs, begins, log_prob, value, after, reward, terminated, truncated, idle, legal = own
        memory = torch.zeros(1, n, cohort.memory) if each.memory is None else each.memory[None]
        kept = memory if each.remembered is None else each.remembered[None]
        chosen = Chosen(each.action[None].to(device), log_prob.float(), value.float(), kept.to(device))
        rollout.enter(t, obs, legal, begins, memory.to(device), chosen)
        there = [] if each.next_alive is None else [torch.from_numpy(each.next_alive)[None].float().to(device)]
        rollout.finish(t, after, reward.float(), terminated, truncated, idle, *there)
    return rollout
