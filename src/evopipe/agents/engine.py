"""Runs many episodes at once: when all of them wait for the model, one wave of completions answers them.

What a wave holds does not depend on the order in which coroutines or threads finish, so that equal runs give equal
bits. The exception is an episode so slow (`wave_seconds`) that the others continue without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from evopipe.agents.blocking import IdleThreads, Processes, Threads, here
from evopipe.agents.model import Limits, Model, Reply, Request, Sampled, Tokens, back_off
from evopipe.agents.settings import Agents
from evopipe.agents.tasks import alone, stop, task_of
from evopipe.agents.types import Episode, ModelOutput, TerminationEvent, TerminationReason
from evopipe.agents.workflow import EpisodeRunner, Workflow, number
from evopipe.errors import EnvironmentFailed, said, text_of
from evopipe.parallel import available_cpus
from evopipe.watchdog import Hung, Watchdog

_ASK = 0.25  # seconds between two looks at whether to stop
_STOPPING = 2.0  # seconds that all coroutines have, once the caller asked to stop, to come to an `await`
_FOREVER = 1e9  # seconds
_CLOSING = 60.0  # seconds that a workflow may take to close
# Seconds of one step of a coroutine, and share of its episode's time, that are not the others', for it held them up.
_LONG, _SHARE = 1.0, 0.1
_LEAST = 0.02  # seconds that users' code may take whatever was before
_ROUNDS = 3  # of the event loop, for calls that one episode makes together
_MODEL_RETRIES = 2  # of a completion that took too long
FAILED = (TerminationReason.ERROR, TerminationReason.TIMEOUT)


class Cancelled(Exception):
    """Raised by `RolloutEngine.run` when its caller asked to stop. All environments have been closed before."""


@dataclass(frozen=True)
class EpisodeJob:
    """An episode to run: one rollout of a task by one member.

    Attributes:
        slot: the member's index in the population.
        place: the number of the episode among the member's episodes of the round; it fixes the random draws.
        uid: the episode's name.
        task: the task.
        how: the settings by which completions are sampled.
    """

    slot: int
    place: int
    uid: str
    task: dict[str, Any]
    how: Sampled


@dataclass
class Done:
    """An episode that the engine has run, with its job (see `EpisodeJob`).

    Attributes:
        job: the job.
        episode: the episode, which may have failed.
        attempts: the number of attempts.
        entropies: for each completion, the entropies of its tokens. The key is the `id()` of the completion's
            `ModelOutput`.
    """

    job: EpisodeJob
    episode: Episode
    attempts: int
    entropies: dict[int, list[float]]


class _Turns:
    """A context for users' code in the thread of the event loop, entered for each step of an episode's coroutines: code
    that blocks there holds all episodes up, and is ended by `Hung` where that can be. `seconds` is what the episode may
    take, None: any."""

    def __init__(self, engine: RolloutEngine, seconds: float | None) -> None:
        self.engine, self.seconds = engine, seconds
        self._began, self._own = time.monotonic(), 0.0
        self._others, self._entered = engine.blocked, 0.0
        self._watch = Watchdog(_FOREVER, "agents.episode_seconds", grace=_STOPPING)

    def left(self) -> float | None:
        """Return the seconds that the episode has: those in which others held it up are given to it again."""
        if self.seconds is None:
            return None
        given = self.engine.blocked - self._others - self._own
        return self.seconds + given - (time.monotonic() - self._began)

    def __enter__(self) -> None:
        self._entered, engine = time.monotonic(), self.engine
        longest = _FOREVER
        if self.seconds is not None:
            longest = max(min(_LONG, self.seconds), self.seconds - (self._entered - self._began))
        if engine.stopped():
            engine.stopping = engine.stopping or self._entered
            longest = min(longest, max(_LEAST, engine.stopping + _STOPPING - self._entered))
        self._watch.seconds = longest
        engine.overdue = self._entered + longest
        self._watch.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)
        engine, took = self.engine, time.monotonic() - self._entered
        engine.overdue = None
        if took > min(_LONG, _FOREVER if self.seconds is None else _SHARE * self.seconds):
            engine.blocked, self._own = engine.blocked + took, self._own + took
        if engine.stopped():
            engine.stopping = engine.stopping or self._entered


class Outside(Protocol):
    """The interface of a server for agents that run outside the engine's own coroutines and call the model over HTTP.

    The requests of such agents arrive one after another. The engine therefore waits for a pause before it decodes a
    batch of requests.

    Attributes:
        settle: the length of the pause, seconds without a new request.
        loop: the event loop in which the engine runs.
    """

    settle: float
    loop: asyncio.AbstractEventLoop

    def serving(self) -> AbstractAsyncContextManager[Any]:
        """Return a context manager that opens the server, if it is not open yet.

        The engine runs episodes inside the context manager's `async with` block, in the engine's event loop.
        """

    def close(self) -> None: ...


class RolloutEngine:
    """An engine that runs many episodes at once, within the limits of the settings `agents`.

    Args:
        make: a function that returns the workflow of an episode. It is called with the keyword arguments
            `rollout_engine`, the episode's `Model`, and `executor`, its `EpisodeRunner`.
        tokens: the converter of chats to tokens.
        limits: the limits on tokens, for every completion.
        decode: a function that completes a list of requests, and returns the replies in the same order.
        agents: the settings: how many episodes run at once, and the time limits.
        processes: the pool of processes for blocking code; None for one process for each CPU. The caller closes a pool
            that it passes.
        idle: threads for blocking code, which the caller closes; None for threads that end with each `run`.
        grace: seconds that cancelled code has to end by itself.
        outside: the server for agents that call the model over HTTP; None if there are no such agents.
    """

    def __init__(
        self, make: Callable[..., Workflow], tokens: Tokens, limits: Limits,
        decode: Callable[[Sequence[Request]], Sequence[Reply]], agents: Agents, processes: Processes | None = None,
        grace: float = 5.0, outside: Outside | None = None, idle: IdleThreads | None = None,
    ) -> None:  # fmt: skip
        self.make, self.tokens, self.limits, self.decode = make, tokens, limits, decode
        self.agents, self.grace, self.outside = agents, grace, outside
        self.processes, self.idle = processes or Processes(available_cpus()), idle
        self.waves = 0
        self.late = 0  # episodes without which a batch began, for they asked nothing in time; the most of any batch
        self.blocked = 0.0  # seconds in which an episode's coroutine held all others up
        self.overdue: float | None = None  # when users' code that holds the loop now will have taken too long
        self.stopping: float | None = None  # when it was seen that the caller asked to stop

    def run(self, jobs: Sequence[EpisodeJob], stopped: Callable[[], bool] = lambda: False) -> list[Done]:
        """Run the episodes of all jobs; return the results in the order of the jobs.

        A job that fails returns an episode whose `termination_reason` says so. `stopped` is a function that the engine
        calls before each batch of completions, and repeatedly while it waits.

        Raises:
            Cancelled: `stopped` returned True.
            EnvironmentFailed: users' code blocked the engine's thread for too long, and could not be interrupted.
        """
        self.jobs, self.stopped, self.queue = jobs, stopped, deque(range(len(jobs)))
        self.done: dict[int, Done] = {}
        self.pending: list[Request] = []
        self.waiting: Counter[int] = Counter()  # by place: calls of the model that are open
        self.asked: Counter[int] = Counter()  # by place: completions so far
        self.runners: dict[int, EpisodeRunner] = {}  # of those that are live
        self.away: set[int] = set()  # live episodes that do not wait for the model
        self.live: dict[int, asyncio.Task[None]] = {}
        self.blocked, self.overdue, self.stopping = 0.0, None, None
        return _run_here(self._play(), self)

    async def _play(self) -> list[Done]:
        async with contextlib.nullcontext() if self.outside is None else self.outside.serving():
            return await self._played()

    async def _played(self) -> list[Done]:
        idle = self.idle or IdleThreads()
        self.changed, self.threads = asyncio.Event(), Threads(self.agents.workers, idle, self.processes)
        self.lock = asyncio.Lock()  # of environments that are not to run beside each other
        try:
            self._admit()
            while self.live:
                await self._change(None)
                self._admit()
                if self.pending and await self._all_wait():
                    self._wave()
        finally:
            for task in self.live.values():
                task.cancel()
            await asyncio.gather(*self.live.values(), return_exceptions=True)
            if self.idle is None:
                idle.close()
        if len(self.done) < len(self.jobs):  # who was asked to stop begins no episode
            raise Cancelled
        return [self.done[i] for i in range(len(self.jobs))]

    async def _change(self, until: float | None) -> bool:
        """Wait until something has changed; return whether it has before that time. Raises Cancelled if the caller
        asked to stop."""
        loop = asyncio.get_running_loop()
        while not self.changed.is_set():
            left = _ASK if until is None else min(_ASK, until - loop.time())
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.changed.wait()
            if self.stopped():
                raise Cancelled
        self.changed.clear()
        return True

    def _admit(self) -> None:
        while self.queue and len(self.live) < self.agents.at_once:
            i = self.queue.popleft()
            self.away.add(i)
            self.live[i] = asyncio.create_task(self._episode(i))

    async def _all_wait(self) -> bool:
        """Wait until every episode waits for the model, or the latest has taken too long; False if none asks any
        more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.agents.wave_seconds
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        while self.away:
            if not await self._change(until):
                self.late = max(self.late, len(self.away))
                break
            self._admit()
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
        asked = -1
        while self.outside is not None and len(self.pending) > asked:
            asked = len(self.pending)
            await asyncio.sleep(self.outside.settle)
        return bool(self.pending)

    def _wave(self) -> None:
        if self.stopped():
            raise Cancelled
        # Which of an episode's calls came first may be chance, where it has several open: its prompts are not.
        wave = sorted(self.pending, key=lambda r: (r.slot, r.job, r.ids, r.call))
        self.pending = []
        wave = [request for request in wave if not request.reply.done()]
        for request in wave:
            request.call = self.asked[request.place] if request.draw is None else request.draw
            self.asked[request.place] += 1
        for request, reply in zip(wave, self.decode(wave), strict=True):
            if not request.reply.done():
                request.reply.set_result(reply)
        self.waves += 1

    async def _submit(self, place: int, request: Request) -> Reply:
        request.place = place
        self.pending.append(request)
        self.waiting[place] += 1
        if len(self.pending) == 1:  # from now on a batch waits for the others, not for ever
            self.changed.set()
        self._look(place)
        try:
            return await request.reply
        finally:
            self.waiting[place] -= 1
            self._look(place)
            if not request.reply.done() or request.reply.cancelled():
                self.pending = [each for each in self.pending if each is not request]

    def _look(self, place: int) -> None:
        """Note whether an episode waits for the model. Who waits for all to do so is told when the last one does, and
        not for every episode, for there are many."""
        if place in self.live and (not self.waiting[place] or self.runners[place].running):
            self.away.add(place)
        else:
            self.away.discard(place)
        if not self.away:
            self.changed.set()

    async def _episode(self, i: int) -> None:
        job, retries = self.jobs[i], self.agents.retries
        try:
            for attempt in range(retries + 1):
                done = await self._attempt(i, job, attempt)
                if done.episode.termination_reason is not TerminationReason.ERROR or attempt == retries:
                    break
                await asyncio.sleep(back_off(attempt))
            self.done[i] = done
        finally:
            del self.live[i]
            self._look(i)
            if self.queue:
                self.changed.set()

    async def _attempt(self, i: int, job: EpisodeJob, attempt: int) -> Done:
        agents = self.agents
        model = Model(
            self.tokens, lambda request: self._submit(i, request), job.slot, job.place, job.how, self.limits,
            agents.model_seconds, _MODEL_RETRIES,
        )  # fmt: skip
        self.asked[i] = attempt << 16  # another attempt draws anew
        self.runners[i] = EpisodeRunner(self.threads, agents.env_seconds, self.grace, self.lock, partial(self._look, i))
        workflow: Workflow | None = None
        reason, late = TerminationReason.UNKNOWN, None
        wrong: Exception | None = None
        turns = _Turns(self, agents.episode_seconds)
        try:
            with turns:
                workflow = here(partial(self.make, rollout_engine=model, executor=self.runners[i]))
                here(workflow.reset, job.task, job.uid)
            limits = [s for s in (agents.episode_seconds, workflow.timeout) if s is not None]
            turns.seconds = min(limits, default=None)
            found, raised = await alone(partial(workflow.run, job.task, job.uid), turns, self.grace)
            if isinstance(raised, TerminationEvent):
                reason = raised.reason
            elif isinstance(raised, (TimeoutError, Hung)):
                reason, wrong = TerminationReason.TIMEOUT, _late(raised)
            elif raised is not None:
                raise raised
            if found is not None and not isinstance(found, Episode):
                raise TypeError(f"{type(workflow).__name__}.run returned {type(found).__name__}, expected an Episode")
            with turns:
                episode = here(workflow.postprocess_episode, found, job.task, job.uid, reason)
            _check(episode, workflow)
            _know_outputs(episode, model.log)
            for place, trajectory in enumerate(episode.trajectories):
                trajectory.uid = f"{job.uid}:{place}"  # equal runs write equal bytes
        except (Exception, Hung) as error:  # whatever users' code raises is this episode's alone
            reason = TerminationReason.TIMEOUT if isinstance(error, Hung) else TerminationReason.ERROR
            wrong, episode = _late(error), Episode(job.uid, job.task, reason)
        finally:
            if workflow is not None:
                told, raised = await alone(workflow.close, _Turns(self, _CLOSING), self.grace)
                late = f"close: {said(raised)}" if raised is not None else told
        if late is not None:
            episode.info["close"] = late
        if wrong is not None:
            trace = "".join(traceback.format_exception(wrong)[-3:])
            text = text_of(wrong) or ("it took too long" if isinstance(wrong, TimeoutError) else type(wrong).__name__)
            episode.info["error"] = {"error_type": type(wrong).__name__, "error_message": text, "traceback": trace}
        return Done(job, episode, attempt + 1, model.entropies)


def _late(raised: Exception | Hung) -> Exception:
    """Return the exception with which to answer a coroutine that blocked too long; any other exception unchanged."""
    if isinstance(raised, Hung):
        return TimeoutError(f"it {raised}, and held all episodes up: await what takes time, or use run_in_executor")
    return raised


def _check(episode: Any, workflow: Workflow) -> None:
    """Refuse what is no episode. One reward that is no finite number would spoil all that is learned with it."""
    if not isinstance(episode, Episode):
        raise TypeError(f"{type(workflow).__name__}.postprocess_episode returned {type(episode).__name__}")
    episode.is_correct = bool(episode.is_correct)
    episode.termination_reason = TerminationReason(episode.termination_reason)
    episode.metrics = {str(name): number(value, workflow) for name, value in episode.metrics.items()}
    for trajectory in episode.trajectories:
        trajectory.name = str(trajectory.name)
        trajectory.reward = number(trajectory.reward, workflow)
        for step in trajectory.steps:
            step.reward = number(step.reward, workflow)


def _know_outputs(episode: Episode, log: Sequence[ModelOutput]) -> None:
    """Let steps that a workflow made from texts alone know the completions that these were. Raises ValueError if a step
    has tokens that the episode's model did not write: nothing could be learned from them."""
    steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
    free = list(log)
    for step in steps:
        if (out := step.model_output) is None or not out.completion_ids:
            continue
        if not any(out.completion_ids == each.completion_ids and out.prompt_ids == each.prompt_ids
                   and out.logprobs == each.logprobs for each in log):  # fmt: skip
            raise ValueError(
                "a step's model_output has tokens that this episode's model did not write; leave completion_ids "
                "empty where a text comes from elsewhere"
            )
        free = [each for each in free if each != out]
    for step in steps:
        if step.model_output is None:
            step.model_output = next((out for out in free if out.text == step.model_response), None)
            free = [out for out in free if out is not step.model_output]


_T = TypeVar("_T")
_GRACE = 0.25  # seconds that tasks have to end at a loop's end


def _run_here(work: Coroutine[Any, Any, _T], engine: RolloutEngine) -> _T:
    """Run an engine's coroutine to its end: in another thread where this one has a loop that runs, as in a notebook, or
    where alarms cannot end what blocks it. Raises EnvironmentFailed if users' code blocks that thread for too long."""
    loop = None if engine.outside is None else engine.outside.loop
    if _can_ring():
        return _run(work, loop)
    over = threading.Event()
    found: list[tuple[_T, None] | tuple[None, BaseException]] = []

    def run() -> None:
        try:
            found.append((_run(work, loop), None))
        except BaseException as error:
            found.append((None, error))
        over.set()

    threading.Thread(target=run, name="evopipe-agents", daemon=True).start()
    asked, began = engine.stopped, None
    try:
        while not over.wait(_ASK):
            now, overdue = time.monotonic(), engine.overdue
            began = began or (now if asked() else None)
            if overdue is not None and began is not None and now > began + _STOPPING:
                raise Cancelled
            if overdue is not None and now > overdue + _GRACE:
                raise EnvironmentFailed(
                    "a coroutine of an episode blocks its thread, and holds all episodes up for longer than "
                    "agents.episode_seconds: await what takes time, or use run_in_executor"
                )
    except BaseException:
        engine.stopped = lambda: True  # as soon as that thread can, it closes all environments
        raise
    ((result, error),) = found
    if error is not None:
        raise error
    return cast("_T", result)


def _can_ring() -> bool:
    """Whether an alarm ends what blocks this thread, and no loop runs in it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    return False


def _run(work: Coroutine[Any, Any, _T], lasting: asyncio.AbstractEventLoop | None = None) -> _T:
    """Like `asyncio.run`, which waits for ever for a task that will not be cancelled, and for threads that hang. A loop
    that is `lasting` stays open, with what else runs in it."""
    loop = lasting or asyncio.new_event_loop()
    loop.set_task_factory(task_of)
    main = loop.create_task(work)
    try:
        return loop.run_until_complete(main)
    except BaseException:
        if not main.done():  # interrupted: let it clean up
            main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(main)
        raise
    finally:
        if lasting is None:
            try:
                loop.run_until_complete(stop(asyncio.all_tasks(loop), _GRACE))
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                loop.close()
