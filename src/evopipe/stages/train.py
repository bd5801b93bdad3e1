"""Stage `train`: evolve the population."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evopipe
from evopipe.algos import on_policy
from evopipe.envs.make import source_of
from evopipe.envs.workers import Crew
from evopipe.errors import (
    DataError,
    DiskError,
    DivergedError,
    EnvironmentFailed,
    Interrupted,
    MissingInputError,
    translate_failures,
)
from evopipe.evolve.mutate import Mutation
from evopipe.keys import content_key, state_folder
from evopipe.loops.base import Champion, Loop
from evopipe.loops.learners import learner_count
from evopipe.loops.problem import Problem
from evopipe.loops.run import begin
from evopipe.loops.run import run as run_loop
from evopipe.machine import configure
from evopipe.schema.blocks import NEUTRAL
from evopipe.schema.params import Params
from evopipe.signals import StopSignal
from evopipe.stages import paths, tracking
from evopipe.stages.setup import about_problem, make_problem, read_members, write_members
from evopipe.storage import safeio
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.dataset import Transitions, read_transitions
from evopipe.storage.lock import RunLock
from evopipe.track.base import End, Generation, Message, Start, Tracker
from evopipe.track.console import console_sink
from evopipe.track.courier import Courier
from evopipe.track.files import JsonlSink, read_events

SAVE_SHARE = 0.01  # of wall time that saving may take
ENDINGS = {"target": "target reached", "max_steps": "all steps taken"}
CURVE = ("generation", "step", "env_steps", "eval_steps", "best", "mean", "elite")
TIMING = ("generation", "seconds", "env_steps", "eval_steps")


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Train from `models/population` (and `data/transitions.h5`, offline or warm-started) to `models/trained`.

    A run that was stopped or killed goes on from its last checkpoint, bit for bit. Checkpoints are keyed by the content
    of everything the run depends on, so that another run's state is never taken for it.

    Raises:
        MissingInputError: an upstream output is not there.
        DataError: an upstream output is damaged, or every checkpoint is.
        BusyError: another process trains the same run.
        DivergedError: all members diverged, again and again.
        EnvironmentFailed: the environment raised or broke its contract.
        Interrupted: a signal came; the state was saved.
    """
    device = configure(params.runtime)
    problem = make_problem(params, device)
    learners = learner_count(params.runtime.learners, params.runtime.threads)
    members, about = read_members(folder / paths.POPULATION, problem, "population")
    births = [Mutation(**mutation) for mutation in about["mutations"]]
    warm = _transitions(params, problem, folder)
    state = state_folder("train", _key(params, folder, warm is not None), folder)
    outputs = state_folder("locks", content_key({"outputs": folder.absolute()}), folder)
    with (
        RunLock(state.with_suffix(".lock")),  # one writer of this state,
        RunLock(outputs.with_suffix(".lock")),  # and, whatever the parameters, one of these outputs
        translate_failures(),
        Crew(params.runtime.env_workers, learners) as crew,
    ):
        store = CheckpointStore(state / "checkpoints")
        # Nothing is there to save before the loop is: until then a signal simply ends the process.
        loop = begin(problem, members, warm, births, crew, learners)
        warm = None  # the memory holds it now, its images as bytes
        try:
            with (
                StopSignal() as stop,
                Tracker([console_sink(quiet), JsonlSink(state / "events.jsonl")]) as tracker,
                tracking.courier(params, state, folder) as courier,
            ):
                champion = _train(loop, params, store, stop, tracker, courier)
                _write_outputs(loop, champion, params, folder)
                _write_timing(state / "events.jsonl", loop.curve, folder)
                tracking.finish(params, state, folder)
        finally:
            loop.close()
        store.clear()


def _transitions(params: Params, problem: Problem, folder: Path) -> Transitions | None:
    """Read the transitions that fill the replay first, offline all there are; refuse those of another environment."""
    limit = None if params.train.mode == "offline" else params.train.warm_start
    if limit == 0 or on_policy(problem.algo):
        return None
    path = folder / paths.TRANSITIONS
    if not path.exists():
        raise MissingInputError(f"{path}: not there; run `evopipe buffer` or `dvc repro buffer` first")
    found = read_transitions(path, limit)
    if not len(found):
        raise DataError(f"{path}: holds no transition; fetch at least one episode, then `dvc repro fetch buffer`")
    vectors, remedy = found.action.ndim == 2, "run `dvc repro fetch buffer` again"
    if vectors != problem.spaces.continuous:
        kind = "continuous" if vectors else "discrete"
        raise DataError(f"{path}: holds {kind} actions, {problem.env.id} has {problem.spaces.kind} ones; {remedy}")
    observations = found.obs.shape[1]
    actions = found.action.shape[1] if vectors else int(found.action.max()) + 1
    if observations != problem.observations or actions > problem.actions or (vectors and actions < problem.actions):
        what = "actions" if not vectors else "numbers in an action"
        raise DataError(
            f"{path}: holds observations of length {observations} and {actions} {what}, {problem.env.id} has "
            f"{problem.observations} and {problem.actions}; {remedy}"
        )
    return found


def _key(params: Params, folder: Path, warm: bool) -> str:
    """Key of a run's checkpoints: the parameters, inputs and code that its outcome depends on."""
    values = params.model_dump(
        mode="json", include={"seed": True, "env": True, "train": True, "evolution": True, "runtime": True}
    )
    values["runtime"] = {key: value for key, value in values["runtime"].items() if key not in NEUTRAL}
    values["algo"] = params.algo_config.model_dump(mode="json")
    inputs = [folder / paths.POPULATION, *([folder / paths.TRANSITIONS] if warm else [])]
    code = [Path(evopipe.__file__).parent, *source_of(params.env)]
    return content_key(values, [*inputs, *code])


def _train(
    loop: Loop,
    params: Params,
    store: CheckpointStore,
    stop: StopSignal,
    tracker: Tracker,
    courier: Courier,
) -> Champion:
    """Resume where there is a checkpoint, train to the end, save in between; return the champion."""
    began = time.perf_counter()
    resumed = _resume(loop, store, tracker)
    size = len(loop.keys)
    tracker.emit(
        Start("train", params.env.id, params.train.algo, size, loop.total_ticks * params.env.num_envs, resumed)
    )
    for sentence in loop.remarks:
        tracker.emit(Message("warning", sentence))
    saver = _Saver(loop, store, params.runtime.checkpoint_seconds)

    def between() -> None:
        saver()
        for sentence in courier.problems():
            tracker.emit(Message("warning", sentence))

    try:
        run_loop(loop, tracker, lambda: stop.signum is not None, between)
    except EnvironmentFailed:
        if loop.whole:
            loop.broken_here = 0  # a mended environment starts with a clean slate
            with contextlib.suppress(DiskError):  # the environment's failure is the news
                saver.save()
        raise
    if stop.signum is not None and not loop.reason:
        saver.save()
        raise Interrupted(
            stop.signum, f"stopped at step {loop.step} of each member; saved, the same command continues from there"
        )
    if loop.champion is None:
        raise DivergedError("no generation had a healthy member, so there is no elite: lower the learning rate")
    saver.save()  # whatever happens while the outs are written, training is not lost
    tracker.emit(End(ENDINGS[loop.reason], time.perf_counter() - began, loop.env_steps, loop.eval_steps))
    return loop.champion


def _resume(loop: Loop, store: CheckpointStore, tracker: Tracker) -> int | None:
    loaded = store.load()
    if loaded is None:
        return None
    for sentence in loaded.warnings:
        tracker.emit(Message("warning", sentence))
    lost = loop.restore(loaded.tensors, loaded.meta)
    if lost:
        tracker.emit(
            Message(
                "warning",
                f"{lost} environments did not return to where they were: {loop.problem.env.id} is not a function of "
                "its seed and actions. They begin new episodes; the run goes on, but not bit for bit",
            )
        )
    return loop.step


class _Saver:
    """Saves every so many seconds, and never more often than a hundredth of wall time allows."""

    def __init__(self, loop: Loop, store: CheckpointStore, seconds: float) -> None:
        self.loop, self.store, self.seconds = loop, store, seconds
        self.last, self.cost = time.perf_counter(), 0.0

    def __call__(self) -> None:
        """Save where it is time."""
        if time.perf_counter() - self.last >= max(self.seconds, self.cost / SAVE_SHARE):
            self.save()

    def save(self) -> None:
        """Save now."""
        began = time.perf_counter()
        tensors, meta = self.loop.state()
        self.store.save(self.loop.tick + self.loop.generation, tensors, meta)
        self.last = time.perf_counter()
        self.cost = self.last - began


def _write_outputs(loop: Loop, champion: Champion, params: Params, folder: Path) -> None:
    """Write `models/trained` and the reports; no clock in any of them, so that equal runs give equal bytes."""
    about: dict[str, Any] = {
        **about_problem(loop.problem),
        "elite": {
            "id": champion.member.id,
            "generation": champion.generation,
            "score": champion.score,
            "standard_error": champion.error,
            "confirmed": champion.confirmed,
        },
    }
    write_members(folder / paths.TRAINED, [*loop.members, champion.member], about)
    lines = b"".join(safeio.dump_json(record, str(paths.LINEAGE)) for record in loop.lineage)
    safeio.write_bytes(folder / paths.LINEAGE, lines)
    safeio.write_csv(folder / paths.FITNESS, CURVE, [["" if x is None else x for x in row] for row in loop.curve])
    summary = {
        "reason": loop.reason,
        "generations": loop.generation,
        "steps": {
            "each_member": loop.step,
            "training": loop.env_steps,
            "evaluation": loop.eval_steps,
            "all": loop.env_steps + loop.eval_steps,
        },
        "broken_transitions": loop.broken_rows,
        "elite": about["elite"],
        "best_fitness": loop.curve[-1][4],
        "mean_fitness": loop.curve[-1][5],
        "target": loop.target,
        "warm_start": loop.warm,
        **({"remarks": loop.remarks} if loop.remarks else {}),
    }
    safeio.write_json(folder / paths.TRAIN, summary)


def _write_timing(log: Path, curve: Sequence[Sequence[Any]], folder: Path) -> None:
    """Write how long each generation took: the one out that holds a clock, a measurement and no result.

    A run that was killed repeats what came after its last checkpoint, so the last word on a generation counts. A
    generation that began in one process and ended in another has the seconds and the steps of its last part only, so
    that its speed is right. Rows that the log has lost (a full disk) are left out.
    """
    rows: dict[int, tuple[int, float, int, int]] = {}
    ends: dict[int, Sequence[Any]] = {int(row[0]): row for row in curve}
    began = 0  # step of each member at which the measured seconds begin
    with contextlib.suppress(OSError, DataError):  # a log that cannot be read costs the measurement, not the run
        for _, event in read_events(log):
            if isinstance(event, Start):
                began = event.resumed_step or 0
            elif isinstance(event, Generation) and event.generation in ends:
                rows[event.generation] = _timing(event, began, ends)
                began = event.step
    safeio.write_csv(folder / paths.TIMING, TIMING, [rows[generation] for generation in sorted(rows)])


def _timing(event: Generation, began: int, ends: dict[int, Sequence[Any]]) -> tuple[int, float, int, int]:
    """Return a row of `timing.csv`: the seconds, and the steps of the population that were taken in them."""
    _, start, training, evaluation, *_ = ends.get(event.generation - 1, (0, 0, 0, 0))
    share = (event.step - max(start, began)) / max(1, event.step - start)
    steps = round((event.env_steps - training) * min(1.0, max(0.0, share)))
    return event.generation, round(event.seconds, 3), steps, event.eval_steps - evaluation
