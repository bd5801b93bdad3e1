"""Workflows: what happens in one episode of a task, with any number of agents, environments and calls of the model."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, NoReturn, cast

from evopipe.agents.agent import BaseAgent
from evopipe.agents.blocking import Blocking, Threads, step_apart
from evopipe.agents.environment import BaseEnv
from evopipe.agents.model import Model
from evopipe.agents.types import Action, Episode, Step, TerminationEvent, TerminationReason, Trajectory
from evopipe.errors import said


class EpisodeRunner:
    """A runner of one episode's calls that may block: it runs them in threads or processes, with time limits.

    The engine is the object that plays all episodes.

    Args:
        threads: the engine's pool of threads.
        env_seconds: time limit of an environment's call; None for no limit.
        close_seconds: time limit of an environment's `close`.
        lock: a lock that is held during calls of environments that are not thread-safe.
        told: a function without arguments that tells the engine that a call has begun or ended. It is called at both.
    """

    def __init__(
        self, threads: Threads, env_seconds: float | None, close_seconds: float, lock: asyncio.Lock,
        told: Callable[[], None],
    ) -> None:  # fmt: skip
        self.threads, self.env_seconds, self.close_seconds = threads, env_seconds, close_seconds
        self.running = 0  # calls that are not over
        self._lock, self._told = lock, told

    async def call(self, function: Callable[..., Any], *args: Any, safe: bool = True, **how: Any) -> Any:
        """Call a function in a thread or process, and return its result.

        Args:
            function: the function.
            *args: its arguments.
            safe: whether the function is thread-safe. If not, the call waits until no other unsafe call runs, in any
                episode.
            **how: further arguments of `Threads.call`: `blocking` (thread or process), `seconds` (the time limit), and
                `undo` (what to call with a result that comes too late).
        """
        self.running += 1
        self._told()
        try:
            async with contextlib.nullcontext() if safe else self._lock:
                return await self.threads.call(function, *args, **how)
        finally:
            self.running -= 1
            self._told()


class Workflow(ABC):
    """The base class of workflows. A subclass defines in `run` what happens in one episode.

    The episode's trajectories are those of the `Episode` that `run` returns. If `run` returns None, the episode has the
    committed trajectories (those that `commit` stored), and those of every agent that is an attribute of the workflow.

    Args:
        rollout_engine: the episode's model.
        executor: the runner of blocking calls, for `run_in_executor` and for environments.
        timeout: the most seconds of an episode.
        gamma: discount factor of the returns that replace the steps' rewards; 0 keeps the rewards.
        reward_bonus_coeff: weight of a bonus that is added to each step's reward: the step's reward minus the previous
            step's.
        **kwargs: not used.
    """

    def __init__(
        self, rollout_engine: Model, executor: EpisodeRunner, timeout: float = 1e6, gamma: float = 0.0,
        reward_bonus_coeff: float = 0.0, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.rollout_engine, self.executor, self.timeout = rollout_engine, executor, timeout
        self.gamma, self.reward_bonus_coeff = gamma, reward_bonus_coeff
        self._committed: list[Trajectory] = []
        self._told: set[str] = set()

    @abstractmethod
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode | None:
        """Play one episode of a task, and return the episode.

        If the result is None, the episode is made of the workflow's trajectories, see the class. To end the episode
        early, raise a `TerminationEvent`, which holds the reason. `uid` is the episode's id, `"<task>:<rollout>"`;
        evopipe passes no `kwargs`.
        """

    def reset(self, task: dict[str, Any] | None = None, uid: str | None = None) -> None:
        """Prepare for a new episode: reset all agents, and discard the committed trajectories.

        `task` and `uid` are the new episode's task and id, for subclasses; this method does not use them.
        """
        self._committed, self._told = [], set()
        for agent in self._own(BaseAgent):
            agent.reset()

    async def run_in_executor(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking function, and return its result. The time limit is that of an environment's call,
        `agents.env_seconds`.

        The function runs in a process if its attribute `blocking`, or that of its attribute `reward_fn`, is
        `"process"`. Otherwise it runs in a thread.
        """
        how = _blocks(function)
        return await self.executor.call(function, *args, blocking=how or True, seconds=self.executor.env_seconds)

    async def made(self, env_cls: type[Any], task: Mapping[str, Any]) -> Any:
        """Make the environment of a task from the class `env_cls`.

        The class attribute `blocking` says where this runs: in a thread, in a process, or in the thread of the event
        loop (see `BaseEnv`). An environment that is made after the time limit is closed again.

        Raises:
            TimeoutError: making the environment takes longer than `agents.env_seconds`.
        """
        return await self.executor.call(
            env_cls.from_dict, task, safe=_safe(env_cls), blocking=_blocks(env_cls),
            seconds=self.executor.env_seconds, undo=_close_quietly,
        )  # fmt: skip

    async def on_env(self, env: BaseEnv, method: str, *args: Any) -> Any:
        """Call an environment's method, and return its result.

        The environment's attribute `blocking` says where the method runs: in a thread, in a process, or in the thread
        of the event loop (see `BaseEnv`).

        Raises:
            TimeoutError: the call takes longer than `agents.env_seconds`.
        """
        return await self._on_env(env, method, args, self.executor.env_seconds)

    async def _on_env(self, env: BaseEnv, method: str, args: tuple[Any, ...], seconds: float | None) -> Any:
        function, how = getattr(env, method), _blocks(env)
        if how == "process" and not inspect.iscoroutinefunction(function):
            found, now = await self.executor.call(step_apart, env, method, args, blocking=how, seconds=seconds)
            vars(env).clear()
            vars(env).update(now)
            return found
        return await self.executor.call(function, *args, safe=_safe(env), blocking=how, seconds=seconds)

    def commit(
        self, name: str | None = None, agent: BaseAgent | None = None, trajectory: Trajectory | None = None,
        reset: bool = False,
    ) -> None:  # fmt: skip
        """Store a copy of a trajectory as a part of the episode. Give either the trajectory, or the agent that has it.

        A trajectory without steps is not stored.

        Args:
            name: the name of the copy; None keeps the trajectory's name.
            agent: the agent whose trajectory is stored; None if `trajectory` is given.
            trajectory: the trajectory; None if `agent` is given.
            reset: whether to reset `agent` afterwards; without effect if `trajectory` is given.

        Raises:
            ValueError: not exactly one of `agent` and `trajectory` is given.
        """
        if (agent is None) == (trajectory is None):
            raise ValueError("commit: give either agent or trajectory")
        held = agent.trajectory if agent is not None else trajectory
        assert held is not None
        if held.steps:
            self._told.add(held.uid)
            kept = copy.deepcopy(held)
            kept.name = name or kept.name
            self._committed.append(kept)
        if agent is not None and reset:
            agent.reset()

    def collect_trajectories(self) -> list[Trajectory]:
        """Return the committed trajectories, then the trajectories of the workflow's agents that were not committed.
        A trajectory without steps is left out."""
        rest = [agent.trajectory for agent in self._own(BaseAgent)]
        return [*self._committed, *(each for each in rest if each.steps and each.uid not in self._told)]

    def postprocess_episode(
        self, episode: Episode | None, task: dict[str, Any], uid: str, reason: TerminationReason | None
    ) -> Episode:
        """Set an episode's id, task, rewards, metrics and termination reason after `run`; return the episode.

        `uid` becomes the episode's id. If `episode` is None, the episode is made of the collected trajectories. If the
        episode has no termination reason yet, it gets `reason`, or UNKNOWN if `reason` is None.
        """
        if episode is None:
            episode = Episode(trajectories=self.collect_trajectories())
        episode.id, episode.task = uid, task
        for trajectory in episode.trajectories:
            if trajectory.steps and not trajectory.steps[-1].chat_completions and not trajectory.steps[-1].model_output:
                trajectory.steps.pop()
            trajectory.task = trajectory.task if trajectory.task is not None else task
            self.compute_trajectory_reward(trajectory)
            self.adjust_step_rewards(trajectory)
        episode.is_correct = episode.is_correct or sum(each.reward for each in episode.trajectories) > 0
        for name in {each.name for each in episode.trajectories}:
            own = [each.reward for each in episode.trajectories if each.name == name]
            episode.metrics.setdefault(f"{name}_acc", sum(own) / len(own))
        episode.termination_reason = episode.termination_reason or reason or TerminationReason.UNKNOWN
        return episode

    def compute_trajectory_reward(self, trajectory: Trajectory) -> None:
        """Set a trajectory's reward to the sum of its steps' rewards. If all steps have the reward 0, the trajectory
        keeps the reward that it has."""
        if any(step.reward for step in trajectory.steps):
            trajectory.reward = float(sum(step.reward for step in trajectory.steps))

    def adjust_step_rewards(self, trajectory: Trajectory) -> None:
        """Adjust the rewards of a trajectory's steps, in place.

        From the second step on, a bonus is added: `self.reward_bonus_coeff` times the difference between the step's
        reward and that of the step before. If `self.gamma` is above 0, discounted returns then replace the rewards.
        """
        steps = trajectory.steps
        if len(steps) < 2:
            return
        if self.reward_bonus_coeff:
            raw = [step.reward for step in steps]
            for before, now, step in zip(raw, raw[1:], steps[1:], strict=False):
                step.reward += self.reward_bonus_coeff * (now - before)
        if self.gamma > 0:
            for step, later in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
                step.reward += self.gamma * later.reward

    def is_multithread_safe(self) -> bool:
        return all(env.is_multithread_safe() for env in self._own(BaseEnv))

    async def close(self) -> str | None:
        """Close every environment that is an attribute of the workflow. Return a message of the last error; None if
        there was none."""
        wrong = None
        for env in self._own(BaseEnv):
            if type(env).close is BaseEnv.close:  # nothing to let go
                continue
            try:
                await self._on_env(env, "close", (), self.executor.close_seconds)
            except Exception as error:
                wrong = f"{type(env).__name__}.close: {said(error)}"
        return wrong

    def _own(self, kind: type[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        for value in vars(self).values():
            each = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            found |= {id(one): one for one in each if _is(cast("Hashable", type(one)), cast("Hashable", kind))}
        return list(found.values())


@lru_cache(1024)
def _is(cls: Hashable, kind: Hashable) -> bool:
    """Like `issubclass`, which of abstract classes runs Python code: this is asked of every attribute of an episode."""
    return issubclass(cast("type[Any]", cls), cast("type[Any]", kind))


def _blocks(thing: Any) -> Blocking:
    """Return how a class, its instance or a function blocks, as its `blocking` says, or that of its `reward_fn`."""
    how = getattr(thing, "blocking", True)
    if how and getattr(getattr(thing, "reward_fn", None), "blocking", None) == "process":
        return "process"
    if isinstance(how, str) and how != "process":
        name = getattr(thing, "__name__", type(thing).__name__)
        raise ValueError(f"{name}.blocking is {how!r}: say False, True (in a thread) or 'process'")
    return "process" if how == "process" else bool(how)


def _safe(env: Any) -> bool:
    """Return whether calls of an environment may run beside those of others."""
    return _blocks(env) == "process" or not hasattr(env, "is_multithread_safe") or bool(env.is_multithread_safe())


def _close_quietly(env: Any) -> None:
    with contextlib.suppress(BaseException):
        env.close()


class MultiTurnWorkflow(Workflow):
    """A workflow of one agent in one environment. The episode ends when the environment is done, or after `max_steps`
    completions.

    Args:
        agent_cls: the class of the agent.
        env_cls: the class of the environment, which is made by its method `from_dict`.
        agent_args: arguments of the agent's constructor.
        env_args: arguments of the environment, which are added to those of the task.
        max_steps: the most completions.
        **kwargs: the arguments of `Workflow`.
    """

    cumulative = False

    def __init__(
        self, agent_cls: type[Any], env_cls: type[Any], agent_args: Mapping[str, Any] | None = None,
        env_args: Mapping[str, Any] | None = None, max_steps: int = 5, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.agent: Any = agent_cls(**dict(agent_args or {}))
        self.env: Any = None
        self.env_cls, self.env_args, self.max_steps = env_cls, dict(env_args or {}), max_steps

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode | None:
        self.env = await self.made(self.env_cls, {**task, **self.env_args})
        self.env.idx = uid
        begun = await self.on_env(self.env, "reset")
        if not (isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict)):
            raise TypeError(f"{type(self.env).__name__}.reset returned {begun!r:.60}, expected (observation, info)")
        observation, info = begun
        self.agent.update_from_env(observation, 0.0, False, info)
        try:
            await self._turns()
        except TerminationEvent:
            step = self.agent.get_current_state()
            if step is not None and not step.done and getattr(self.env, "scores_cut", False):
                await self._final(step)
            raise

    async def _turns(self) -> NoReturn:
        """Play until the environment is done, or the agent has written all its completions."""
        first = None
        for _ in range(self.max_steps):
            tools = list(getattr(self.agent, "offered", ()))
            how: dict[str, Any] = {"tools": tools} if tools else {}
            if self.cumulative:
                length = self.rollout_engine.prompt_length(self.agent.chat_completions, tools)
                first = length if first is None else first
                left = self.rollout_engine.limits.response - (length - first)
                if left <= 0:
                    raise TerminationEvent(TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED)
                how["max_tokens"] = left
            out = await self.rollout_engine.get_model_response(self.agent.chat_completions, **how)
            action = self.agent.update_from_model(out.text)
            step: Step | None = self.agent.get_current_state()
            if step is None:
                raise TypeError(f"{type(self.agent).__name__}.update_from_model added no step to its trajectory")
            step.model_output = out
            taken = await self.on_env(self.env, "step", action.action if isinstance(action, Action) else action)
            observation, reward, done, info = _stepped(taken, self.env)
            step.reward, step.done = reward, done
            step.info.update(info)
            self.agent.update_from_env(observation, reward, done, info)
            if done:
                await self._final(step)
                raise TerminationEvent(TerminationReason.ENV_DONE)
            if self.cumulative and out.finish_reason == "length":
                raise TerminationEvent(TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED)
        raise TerminationEvent(TerminationReason.MAX_TURNS_EXCEEDED)

    async def _final(self, step: Step) -> None:
        if hasattr(self.env, "compute_final_reward"):
            step.reward = number(await self.on_env(self.env, "compute_final_reward"), self.env)


class CumulativeWorkflow(MultiTurnWorkflow):
    """A workflow of one agent in one environment, with one limit on the tokens of the whole episode.

    In other workflows, the limit `response` (see `Limits`) holds for each completion. Here it limits all completions
    and observations of the episode together. The first prompt is not counted.
    """

    cumulative = True


class SingleTurnWorkflow(MultiTurnWorkflow):
    """A workflow of one agent that writes a single completion in one environment.

    Args:
        agent_cls: the class of the agent.
        env_cls: the class of the environment.
        **kwargs: further arguments of `MultiTurnWorkflow`, except `max_steps`, which is 1.
    """

    def __init__(self, agent_cls: type[Any], env_cls: type[Any], **kwargs: Any) -> None:
        super().__init__(agent_cls, env_cls, **{**kwargs, "max_steps": 1})


class FlowWorkflow(Workflow):
    """A workflow made of a coroutine function, `async def flow(task, model)`. The function's calls of the model are the
    steps of one trajectory.

    The function returns a reward, a list of one reward for each call, a `Trajectory` or an `Episode`. If there is a
    `reward_fn`, the function may also return a text. `reward_fn` is then called with the task and the text, and returns
    the reward. The other arguments are those of `Workflow`.
    """

    def __init__(self, flow: Callable[..., Any], reward_fn: Callable[..., Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.flow, self.reward_fn = flow, reward_fn

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode | None:
        found = await self.flow(task, self.rollout_engine)
        if isinstance(found, str) and self.reward_fn is not None:
            found = await self.run_in_executor(self.reward_fn, task, found)
        return episode_of(found, [Step.from_model_output(out) for out in self.rollout_engine.log], task, self.flow)


def episode_of(found: Any, steps: list[Step], task: dict[str, Any], flow: Any) -> Episode:
    """Convert what a flow returned to an episode. A flow is a user's function that plays one episode of a task.

    Args:
        found: what the flow returned. An `Episode` is returned unchanged. A `Trajectory` becomes the only trajectory of
            a new episode. A number is the reward of a trajectory of `steps`. A list has a reward for each of `steps`.
        steps: the flow's calls of the model, as steps.
        task: the task.
        flow: the flow, which is named in error messages.

    Raises:
        TypeError: the list has more or fewer rewards than there are steps.
        ValueError: a reward is no number, not finite, or beyond ±1e16.
    """
    if isinstance(found, Episode):
        return found
    if isinstance(found, Trajectory):
        return Episode(trajectories=[found])
    trajectory = Trajectory(task=task, steps=steps)
    if isinstance(found, (list, tuple)):
        if len(found) != len(steps):
            raise TypeError(f"the flow returned {len(found)} rewards for {len(steps)} calls of the model")
        for step, reward in zip(steps, found, strict=True):
            step.reward = number(reward, flow)
    else:
        trajectory.reward = number(found, flow)
    return Episode(trajectories=[trajectory], termination_reason=TerminationReason.ENV_DONE)


def _stepped(found: Any, env: Any) -> tuple[Any, float, bool, dict[str, Any]]:
    """Check what `step` returned; Gymnasium's five values are taken, too."""
    if isinstance(found, tuple) and len(found) == 5:
        found = (found[0], found[1], bool(found[2]) or bool(found[3]), found[4])
    if not isinstance(found, tuple) or len(found) != 4:
        raise TypeError(f"{type(env).__name__}.step returned {found!r:.60}, expected (observation, reward, done, info)")
    info = found[3]
    return found[0], number(found[1], env), bool(found[2]), dict(info) if isinstance(info, Mapping) else {}


_LARGEST = 1e16
"""Of rewards: learning squares and adds them up, in float32, whose largest number is 3e38."""


def number(found: Any, whose: Any) -> float:
    """Convert the reward `found` to a float. `whose` is the object that computed the reward, for the error message.

    Raises:
        ValueError: the reward is no number, not finite, or beyond ±1e16.
    """
    if type(found) is float and abs(found) <= _LARGEST:  # most are
        return found
    value = found
    with contextlib.suppress(Exception):
        value = found.item() if hasattr(found, "item") else getattr(found, "reward", found)
    name = getattr(whose, "__name__", type(whose).__name__)
    if isinstance(value, numbers.Real):
        size = abs(float(value)) if not isinstance(value, int) or abs(value) <= _LARGEST else 2 * _LARGEST
        if size <= _LARGEST:
            return float(value)
        if math.isfinite(size):
            raise ValueError(f"{name} gave the reward {found!r:.60}, which is beyond ±{_LARGEST:g}: scale rewards down")
    raise ValueError(f"{name} gave the reward {found!r:.60}, which is no finite number")
