"""Episodes at once: they run until all of them wait for the model, then one wave of completions answers them all.

What a wave holds does not depend on the order in which coroutines or threads come to an end, so that equal runs give
equal bits, unless an episode is so late (`wave_seconds`) that the others go on without it.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from evopipe.agents.model import Limits, Model, Reply, Request, Sampled, Tokens, back_off
from evopipe.agents.threads import Threads
from evopipe.agents.types import Episode, ModelOutput, TerminationEvent, TerminationReason
from evopipe.agents.workflow import Runner, Workflow

_ROUNDS = 3  # of the event loop, for calls that one episode makes together
FAILED = (TerminationReason.ERROR, TerminationReason.TIMEOUT)


class Cancelled(Exception):
    """The caller asked to stop; every environment is closed."""


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds, and how often they are tried again.

    Attributes:
        model: one completion, waiting included.
        env: one call of an environment.
        episode: all of an episode.
        wave: that episodes wait for one that does something else than ask the model.
        retries: of an episode that ended in an error.
        model_retries: of a completion that took too long.
    """

    model: float | None = None
    env: float | None = 60.0
    episode: float | None = 600.0
    wave: float = 120.0
    retries: int = 0
    model_retries: int = 2


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
    """Runs episodes.

    Args:
        make: makes the workflow of one episode from its model and runner.
        tokens: of the base.
        limits: of prompts and responses.
        decode: answers requests, in order.
        patience: time-outs and retries.
        at_once: episodes at a time; the others have not begun.
        workers: threads of blocking code.
    """

    def __init__(
        self,
        make: Callable[[Model, Runner], Workflow],
        tokens: Tokens,
        limits: Limits,
        decode: Callable[[Sequence[Request]], Sequence[Reply]],
        patience: Patience,
        at_once: int = 256,
        workers: int = 64,
    ) -> None:
        self.make, self.tokens, self.limits, self.decode = make, tokens, limits, decode
        self.patience, self.at_once, self.workers = patience, at_once, workers
        self.waves = self.abandoned = 0

    def run(self, jobs: Sequence[Job], stopped: Callable[[], bool] = lambda: False) -> list[Done]:
        """Run all jobs; return their episodes in the jobs' order. What fails is an episode with its reason.

        Raises:
            Cancelled: `stopped` said so; it is asked before each wave.
        """
        return _in_a_loop(_Round(self, jobs, stopped).run())


def _in_a_loop(work: Coroutine[Any, Any, list[Done]]) -> list[Done]:
    """Run a coroutine to its end, in another thread where this one has a loop that runs, as in a notebook."""
    if not _loop_runs():
        return asyncio.run(work)
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, name="evopipe-agents")
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    done: list[Done] = found[0]
    return done


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Round:
    """One call of `Engine.run`."""

    def __init__(self, engine: Engine, jobs: Sequence[Job], stopped: Callable[[], bool]) -> None:
        self.engine, self.jobs, self.stopped = engine, jobs, stopped
        self.queue = deque(range(len(jobs)))
        self.done: dict[int, Done] = {}
        self.pending: list[Request] = []
        self.waiting: dict[int, int] = {}  # by place: calls of the model that are open
        self.live: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> list[Done]:
        self.changed, threads = asyncio.Event(), Threads(self.engine.workers)
        self.runner = Runner(threads, self.engine.patience.env)
        try:
            self._admit()
            while self.live:
                await self.changed.wait()
                self.changed.clear()
                self._admit()
                if self.pending and await self._all_wait():
                    self._wave()
        finally:
            for task in self.live.values():
                task.cancel()
            await asyncio.gather(*self.live.values(), return_exceptions=True)
            threads.close()
            self.engine.abandoned += threads.abandoned
        return [self.done[i] for i in range(len(self.jobs))]

    def _admit(self) -> None:
        while self.queue and len(self.live) < self.engine.at_once:
            i = self.queue.popleft()
            self.live[i] = asyncio.create_task(self._episode(i))

    async def _all_wait(self) -> bool:
        """Wait until every episode waits for the model, or the latest has taken too long; False if none asks any
        more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.engine.patience.wave
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        while self.live and any(not self.waiting.get(i) for i in self.live):
            self.changed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self.changed.wait()
            except TimeoutError:
                break
            self._admit()
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
        return bool(self.pending)

    def _wave(self) -> None:
        if self.stopped():
            raise Cancelled
        wave = sorted(self.pending, key=lambda r: (r.slot, r.job, r.call))
        self.pending = []
        wave = [request for request in wave if not request.reply.done()]
        for request, reply in zip(wave, self.engine.decode(wave), strict=True):
            request.reply.set_result(reply)
        self.engine.waves += 1

    async def _submit(self, place: int, request: Request) -> Reply:
        self.pending.append(request)
        self.waiting[place] = self.waiting.get(place, 0) + 1
        self.changed.set()
        try:
            return await request.reply
        finally:
            self.waiting[place] -= 1
            if not request.reply.done() or request.reply.cancelled():
                self.pending = [each for each in self.pending if each is not request]

    async def _episode(self, i: int) -> None:
        job, patience = self.jobs[i], self.engine.patience
        try:
            for attempt in range(patience.retries + 1):
                done = await self._attempt(i, job, attempt)
                if done.episode.termination_reason is not TerminationReason.ERROR or attempt == patience.retries:
                    break
                await asyncio.sleep(back_off(attempt))
            self.done[i] = done
        finally:
            del self.live[i]
            self.waiting.pop(i, None)
            self.changed.set()

    async def _attempt(self, i: int, job: Job, attempt: int) -> Done:
        engine, patience = self.engine, self.engine.patience
        model = Model(
            engine.tokens, lambda request: self._submit(i, request), job.slot, job.place, job.how, engine.limits,
            patience.model, patience.model_retries,
        )  # fmt: skip
        model._calls = attempt << 16  # another attempt draws anew
        workflow: Workflow | None = None
        found: Episode | None = None
        reason, late = TerminationReason.UNKNOWN, None
        wrong: BaseException | None = None
        try:
            workflow = engine.make(model, self.runner)
            workflow.reset(job.task, job.uid)
            limit = min((s for s in (patience.episode, workflow.timeout) if s is not None), default=None)
            try:
                async with asyncio.timeout(limit):
                    found = await workflow.run(job.task, job.uid)
            except TerminationEvent as event:
                reason = event.reason
            except TimeoutError as error:
                reason, wrong = TerminationReason.TIMEOUT, error
            if found is not None and not isinstance(found, Episode):
                raise TypeError(f"{type(workflow).__name__}.run returned {type(found).__name__}, expected an Episode")
            episode = workflow.postprocess_episode(found, job.task, job.uid, reason)
            _know_outputs(episode, model.log)
            for place, trajectory in enumerate(episode.trajectories):
                trajectory.uid = f"{job.uid}:{place}"  # equal runs write equal bytes
        except (Exception, SystemExit) as error:  # whatever user code raises is this episode's alone
            reason, wrong = TerminationReason.ERROR, error
            episode = Episode(job.uid, job.task, reason)
        finally:
            if workflow is not None:
                late = await workflow.close()
        if late is not None:
            episode.info["close"] = late
        if wrong is not None:
            trace = "".join(traceback.format_exception(wrong)[-3:])
            text = str(wrong) or "it took too long"
            episode.info["error"] = {"error_type": type(wrong).__name__, "error_message": text, "traceback": trace}
        return Done(job, episode, attempt + 1, model.entropies)


def _know_outputs(episode: Episode, log: Sequence[ModelOutput]) -> None:
    """Let steps that a workflow made from texts alone know the completions that these were."""
    steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
    known = {id(step.model_output) for step in steps}
    free = [out for out in log if id(out) not in known]
    for step in steps:
        if step.model_output is None:
            step.model_output = next((out for out in free if out.text == step.model_response), None)
            free = [out for out in free if out is not step.model_output]
