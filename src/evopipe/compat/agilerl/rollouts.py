"""Collection of rollouts by one agent, for users' own loops."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from evopipe.algos import on_policy
from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.learning import RecordedStep
from evopipe.compat.agilerl.vect import marks_of
from evopipe.errors import UsageError
from evopipe.run.act import step

Collected = tuple[list[float], Any, np.ndarray, np.ndarray, Any]


def collect_rollouts(
    agent: Agent, env: Any, n_steps: int | None = None, *, last_obs: Any = None, last_done: Any = None,
    last_scores: Any = None, last_info: Any = None,
) -> Collected:  # fmt: skip
    """Step an agent in a vector of environments, and save the steps in its `rollout_buffer`, from which `agent.learn()`
    learns.

    Args:
        agent: an agent that learns from rollouts.
        env: a vector environment of Gymnasium.
        n_steps: steps of every environment; None for the agent's `learn_step` divided by the number of environments,
            rounded up.
        last_obs, last_done, last_scores, last_info: the values that the previous call returned, to continue its
            episodes; None to reset the environments.

    Returns:
        The returns of the episodes that ended, then the arguments of the next call: observations `[n, …]`, dones `[n]`,
        returns so far of the running episodes `[n]`, infos.

    Raises:
        UsageError: the agent does not learn from rollouts, is recurrent, or a shape does not fit.

    Examples:
        >>> from evopipe import collect_rollouts
        >>> from evopipe import create_population, make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=2)
        >>> (agent,) = create_population("PPO", env.single_observation_space, env.single_action_space, num_envs=2)
        >>> returns, obs, done, scores, info = collect_rollouts(agent, env, n_steps=64)
        >>> loss = agent.learn()
        >>> obs.shape, loss == loss
        ((2, 4), True)
    """
    if agent.recurrent:
        raise UsageError("collect_rollouts: the agent has a memory: call collect_rollouts_recurrent")
    return _collect(agent, env, n_steps, last_obs, last_done, last_scores, last_info)


def collect_rollouts_recurrent(
    agent: Agent, env: Any, n_steps: int | None = None, *, last_obs: Any = None, last_done: Any = None,
    last_scores: Any = None, last_info: Any = None,
) -> Collected:  # fmt: skip
    """Step a recurrent agent in a vector of environments, and save the steps in its `rollout_buffer`. The agent's
    hidden state is kept from call to call, and cleared when an episode begins.

    For the arguments, the result and other errors see `collect_rollouts`.

    Raises:
        UsageError: the agent is not recurrent.

    Examples:
        >>> from evopipe import collect_rollouts_recurrent
        >>> from evopipe import create_population, make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=2)
        >>> (agent,) = create_population("PPO", env.single_observation_space, env.single_action_space, None,
        ...                              {"RECURRENT": True}, num_envs=2)
        >>> _ = collect_rollouts_recurrent(agent, env, n_steps=64)
        >>> agent.recurrent, agent.learn() > 0 or True
        (True, True)
    """
    if not agent.recurrent:
        raise UsageError("collect_rollouts_recurrent: the agent has no memory: call collect_rollouts")
    return _collect(agent, env, n_steps, last_obs, last_done, last_scores, last_info)


def _collect(agent: Agent, env: Any, n_steps: int | None, obs: Any, done: Any, scores: Any, info: Any) -> Collected:
    spec, cohort = agent.breed.spec, agent.live()
    if not on_policy(spec.algo) or agent.breed.actions is None:
        raise UsageError(f"collect_rollouts: {agent.algo} is no agent that learns from rollouts by itself")
    n = env.num_envs
    steps = -(-agent.learn_step // n) if n_steps is None else n_steps
    fresh = obs is None
    if fresh:
        obs, info = env.reset()
        agent.rollout_buffer.cut()
    scores = np.zeros(n) if scores is None else np.array(scores, float)
    begins, memory = np.ones(n, bool), torch.zeros(n, cohort.memory)
    if agent.carried is not None and agent.carried[1].shape == memory.shape:
        begins, memory = (begins if fresh else agent.carried[0]), agent.carried[1]
    if not fresh and (known := marks_of(obs, n)) is not None:
        begins = known.began
    next_step = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP) == AutoresetMode.NEXT_STEP
    legal, finished = np.ones((n, spec.actions), bool), []
    ended = np.zeros(n, bool) if fresh or done is None else np.asarray(done, bool)
    for _ in range(steps):
        rows = agent.breed.rows(obs)[0]
        agent.take_note(rows)
        rows = agent.normalised(rows)
        seen, may, first = (torch.from_numpy(np.array(x))[None].to(spec.device) for x in (rows, legal, begins))
        took = step(spec, cohort, seen, may, first, memory[None].to(spec.device), agent.tick())
        action = took.action[0].cpu()
        following, reward, terminated, truncated, info = env.step(agent.breed.actions.own(action.numpy()))
        idle = ended if next_step else np.zeros(n, bool)
        after = agent.breed.rows(following)[0]
        if "final_obs" in info:  # of vectors that reset in the same step
            after = after.copy()
            for i in np.flatnonzero(terminated | truncated):
                after[i] = agent.breed.rows(info["final_obs"][i])[0][0]
        after = agent.normalised(after)
        log_prob, value = (x[0].cpu().numpy() for x in (took.log_prob, took.value))
        gain = np.asarray(reward, np.float32)
        remembered = took.memory[0].cpu()
        agent.rollout_buffer.add(
            RecordedStep(
                rows, action, log_prob, value, gain, after, begins, terminated, truncated, idle, memory, remembered
            )
        )
        memory = remembered
        scores += np.where(idle, 0.0, reward)
        ended = terminated | truncated
        for i in np.flatnonzero(ended):
            finished.append(float(scores[i]))
            scores[i] = 0.0
        obs, begins = following, (idle if next_step else ended)
    agent.carried = begins, memory
    agent.scores += finished
    return finished, obs, ended, scores, info


class _ProgressBar:
    """Steps done of `total`; `write` prints above it. On no terminal only what is written shows."""

    def __init__(self, total: int) -> None:
        console = Console(file=sys.stderr)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("steps", total=total)
        self._bar.start()

    def update(self, steps: int = 1) -> None:
        self._bar.advance(self._task, steps)

    def write(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


def default_progress_bar(max_steps: int, accelerator: Any = None) -> _ProgressBar:
    """Return a progress bar of `max_steps` steps, which is shown only if standard error is a terminal. `accelerator`
    has no effect.

    Examples:
        >>> from evopipe import default_progress_bar
        >>> bar = default_progress_bar(100)
        >>> bar.update(50)
        >>> bar.close()
    """
    return _ProgressBar(max_steps)
