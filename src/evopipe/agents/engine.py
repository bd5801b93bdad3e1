"""Episodes at once: they run until all of them wait for the model, then one wave of completions answers them all.

What a wave holds does not depend on the order in which coroutines or threads come to an end, so that equal runs give
equal bits, unless an episode is so late (`wave_seconds`) that the others go on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from evopipe.agents.blocking import Processes, Threads
from evopipe.agents.model import Limits, Model, Reply, Request, Sampled, Tokens, back_off
from evopipe.agents.settings import Agents
from evopipe.agents.types import Episode, ModelOutput, TerminationEvent, TerminationReason
from evopipe.agents.workflow import Runner, Workflow, number
from evopipe.parallel import available_cpus

_ASK = 0.25  # seconds between two looks at whether to stop
_CLOSING = 60.0  # seconds that a workflow may take to close
_ROUNDS = 3  # of the event loop, for calls that one episode makes together
_MODEL_RETRIES = 2  # of a completion that took too long
FAILED = (TerminationReason.ERROR, TerminationReason.TIMEOUT)


class Cancelled(Exception):
    """The caller asked to stop; every environment is closed."""


@dataclass(frozen=True)
class Job:
    """One rollout of a task by a member; `place` is unique in its round and fixes the draws."""

    slot: int
    place: int
    uid: str
    task: dict[str, Any]
    how: Sampled


@dataclass
class Done:
    """An episode, and the entropies of its completions by the identity of their outputs."""

    job: Job
    episode: Episode
    attempts: int
    entropies: dict[int, list[float]]


class Engine:
    """Runs episodes as `agents` say, how many at once and how long things may take: `make` makes the workflow of one
    from its model and runner, `decode` answers requests, in order. Who made the processes closes them (None: one a
    CPU); what is given up has `grace` seconds to end by itself."""

    def __init__(
        self, make: Callable[..., Workflow], tokens: Tokens, limits: Limits,
        decode: Callable[[Sequence[Request]], Sequence[Reply]], agents: Agents, processes: Processes | None = None,
        grace: float = 5.0,
    ) -> None:  # fmt: skip
        self.make, self.tokens, self.limits, self.decode = make, tokens, limits, decode
        self.agents, self.grace = agents, grace
        self.processes = processes or Processes(available_cpus())
        self.waves = 0

    def run(self, jobs: Sequence[Job], stopped: Callable[[], bool] = lambda: False) -> list[Done]:
        """Run all jobs; return their episodes in the jobs' order. What fails is an episode with its reason. Raises
        Cancelled if `stopped` said so; it is asked before each wave, and again and again while there is none."""
        self.jobs, self.stopped, self.queue = jobs, stopped, deque(range(len(jobs)))
        self.done: dict[int, Done] = {}
        self.pending: list[Request] = []
        self.waiting: Counter[int] = Counter()  # by place: calls of the model that are open
        self.asked: Counter[int] = Counter()  # by place: completions so far
        self.runners: dict[int, Runner] = {}  # of those that are live
        self.live: dict[int, asyncio.Task[None]] = {}
        return _run_here(self._play())

    async def _play(self) -> list[Done]:
        self.changed, self.threads = asyncio.Event(), Threads(self.agents.workers, self.processes)
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
            self.threads.close()
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
            self.live[i] = asyncio.create_task(self._episode(i))

    async def _all_wait(self) -> bool:
        """Wait until every episode waits for the model, or the latest has taken too long; False if none asks any
        more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.agents.wave_seconds
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        while any(not self.waiting[i] or self.runners[i].running for i in self.live):
            if not await self._change(until):
                break
            self._admit()
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
        return bool(self.pending)

    def _wave(self) -> None:
        if self.stopped():
            raise Cancelled
        # Which of an episode's calls came first may be chance, where it has several open: its prompts are not.
        wave = sorted(self.pending, key=lambda r: (r.slot, r.job, r.ids, r.call))
        self.pending = []
        wave = [request for request in wave if not request.reply.done()]
        for request in wave:
            request.call = self.asked[request.place]
            self.asked[request.place] += 1
        for request, reply in zip(wave, self.decode(wave), strict=True):
            if not request.reply.done():
                request.reply.set_result(reply)
        self.waves += 1

    async def _submit(self, place: int, request: Request) -> Reply:
        request.place = place
        self.pending.append(request)
        self.waiting[place] += 1
        self.changed.set()
        try:
            return await request.reply
        finally:
            self.waiting[place] -= 1
            if not request.reply.done() or request.reply.cancelled():
                self.pending = [each for each in self.pending if each is not request]

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
            self.changed.set()

    async def _attempt(self, i: int, job: Job, attempt: int) -> Done:
        agents = self.agents
        model = Model(
            self.tokens, lambda request: self._submit(i, request), job.slot, job.place, job.how, self.limits,
            agents.model_seconds, _MODEL_RETRIES,
        )  # fmt: skip
        self.asked[i] = attempt << 16  # another attempt draws anew
        self.runners[i] = Runner(self.threads, agents.env_seconds, self.grace, self.lock, self.changed.set)
        workflow: Workflow | None = None
        reason, late = TerminationReason.UNKNOWN, None
        wrong: BaseException | None = None
        try:
            workflow = self.make(rollout_engine=model, executor=self.runners[i])
            workflow.reset(job.task, job.uid)
            limit = min((s for s in (agents.episode_seconds, workflow.timeout) if s is not None), default=None)
            found, raised = await _alone(partial(workflow.run, job.task, job.uid), limit, self.grace)
            if isinstance(raised, TerminationEvent):
                reason = raised.reason
            elif isinstance(raised, TimeoutError):
                reason, wrong = TerminationReason.TIMEOUT, raised
            elif raised is not None:
                raise raised if isinstance(raised, (Exception, SystemExit)) else RuntimeError(repr(raised))
            if found is not None and not isinstance(found, Episode):
                raise TypeError(f"{type(workflow).__name__}.run returned {type(found).__name__}, expected an Episode")
            episode = workflow.postprocess_episode(found, job.task, job.uid, reason)
            _check(episode, workflow)
            _know_outputs(episode, model.log)
            for place, trajectory in enumerate(episode.trajectories):
                trajectory.uid = f"{job.uid}:{place}"  # equal runs write equal bytes
        except (Exception, SystemExit) as error:  # whatever user code raises is this episode's alone
            reason, wrong = TerminationReason.ERROR, error
            episode = Episode(job.uid, job.task, reason)
        finally:
            if workflow is not None:
                if type(workflow).close is Workflow.close:  # whose calls are all limited
                    late = await workflow.close()
                else:
                    told, raised = await _alone(workflow.close, _CLOSING, self.grace)
                    late = f"close: {type(raised).__name__}: {raised}" if raised is not None else told
        if late is not None:
            episode.info["close"] = late
        if wrong is not None:
            trace = "".join(traceback.format_exception(wrong)[-3:])
            text = str(wrong) or ("it took too long" if isinstance(wrong, TimeoutError) else type(wrong).__name__)
            episode.info["error"] = {"error_type": type(wrong).__name__, "error_message": text, "traceback": trace}
        return Done(job, episode, attempt + 1, model.entropies)


def _check(episode: Any, workflow: Workflow) -> None:
    """Refuse rewards that are no finite numbers: one of them would spoil all that is learned with it."""
    if not isinstance(episode, Episode):
        raise TypeError(f"{type(workflow).__name__}.postprocess_episode returned {type(episode).__name__}")
    for trajectory in episode.trajectories:
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
_brood: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("evopipe_brood", default=None)


def _made(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
    """Make a task, and note it for the coroutine that begins it."""
    task = asyncio.Task(work, loop=loop, **how)
    if (brood := _brood.get()) is not None:
        brood.add(task)
        task.add_done_callback(brood.discard)
    return task


async def _alone(
    work: Callable[[], Coroutine[Any, Any, _T]], seconds: float | None, grace: float
) -> tuple[_T | None, BaseException | None]:
    """Run a coroutine function for at most so many seconds; return its result, or what it raised: TimeoutError if late.
    Tasks that it has begun and not waited for are cancelled when it is over. What does not end within `grace` seconds
    of being cancelled is left behind."""
    brood: set[asyncio.Task[Any]] = set()
    token = _brood.set(brood)
    try:
        main = asyncio.create_task(_outcome(work))
    finally:
        _brood.reset(token)
    try:
        await asyncio.wait([main], timeout=seconds)
        return main.result() if main.done() else (None, TimeoutError())
    finally:
        await _stop(brood, grace)


async def _outcome(work: Callable[[], Coroutine[Any, Any, _T]]) -> tuple[_T | None, BaseException | None]:
    try:
        return await work(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a SystemExit of a task would end the loop
        return None, error


async def _stop(tasks: Iterable[asyncio.Task[Any]], grace: float) -> None:
    rest = [task for task in tasks if not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        done, _ = await asyncio.wait(rest, timeout=grace)
        for task in done:
            if not task.cancelled():
                task.exception()  # nobody else asks for it


def _run_here(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end, in another thread where this one has a loop that runs, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work)
    another = ThreadPoolExecutor(1, "evopipe-agents")
    try:
        return another.submit(_run, work).result()
    finally:
        another.shutdown(wait=False)


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """Like `asyncio.run`, which waits for ever for a task that will not be cancelled, and for threads that hang."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(_made)
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
        try:
            loop.run_until_complete(_stop(asyncio.all_tasks(loop), _GRACE))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
