"""Stage `train`: evolve the population."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evopipe
from evopipe.algos import on_policy
from evopipe.data.transitions import Transitions, read_transitions
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
from evopipe.machine import configure
from evopipe.run.drive import begin, drive
from evopipe.run.learners import learner_count
from evopipe.run.run import Champion, Run
from evopipe.run.spec import Spec
from evopipe.schema.blocks import NEUTRAL
from evopipe.schema.params import Params
from evopipe.signals import StopSignal
from evopipe.stages import paths, tracking
from evopipe.stages.setup import about_spec, make_spec, read_members, write_members
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.files import dump_json, write_bytes, write_csv, write_json
from evopipe.storage.lock import RunLock
from evopipe.track.console import console_sink
from evopipe.track.events import End, Generation, JsonlSink, Message, Start, Tracker, read_events
from evopipe.track.outbox import Outbox

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
    spec = make_spec(params, device)
    learners = learner_count(params.runtime.learners, params.runtime.threads)
    members, about = read_members(folder / paths.POPULATION, spec, "population")
    births = [Mutation(**mutation) for mutation in about["mutations"]]
    warm = _transitions(params, spec, folder)
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
        made = begin(spec, members, warm, births, crew, learners)
        warm = None  # the memory holds it now, its images as bytes
        try:
            with (
                StopSignal() as stop,
                Tracker([console_sink(quiet), JsonlSink(state / "events.jsonl")]) as tracker,
                tracking.outbox(params, state, folder) as outbox,
            ):
                champion = _train(made, params, store, stop, tracker, outbox)
                _write_outputs(made, champion, params, folder)
                _write_timing(state / "events.jsonl", made.curve, folder)
                tracking.finish(params, state, folder)
        finally:
            made.close()
        store.clear()


def _transitions(params: Params, spec: Spec, folder: Path) -> Transitions | None:
    """Read the transitions that fill the replay first, offline all there are; refuse those of another environment."""
    limit = None if params.train.mode == "offline" else params.train.warm_start
    if limit == 0 or on_policy(spec.algo):
        return None
    path = folder / paths.TRANSITIONS
    if not path.exists():
        raise MissingInputError(f"{path}: not there; run `evopipe buffer` or `dvc repro buffer` first")
    found = read_transitions(path, limit)
    if not len(found):
        raise DataError(f"{path}: holds no transition; fetch at least one episode, then `dvc repro fetch buffer`")
    vectors, remedy = found.action.ndim == 2, "run `dvc repro fetch buffer` again"
    if vectors != spec.spaces.continuous:
        kind = "continuous" if vectors else "discrete"
        raise DataError(f"{path}: holds {kind} actions, {spec.env.id} has {spec.spaces.kind} ones; {remedy}")
    observations = found.obs.shape[1]
    actions = found.action.shape[1] if vectors else int(found.action.max()) + 1
    if observations != spec.observations or actions > spec.actions or (vectors and actions < spec.actions):
        what = "actions" if not vectors else "numbers in an action"
        raise DataError(
            f"{path}: holds observations of length {observations} and {actions} {what}, {spec.env.id} has "
            f"{spec.observations} and {spec.actions}; {remedy}"
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
    run: Run,
    params: Params,
    store: CheckpointStore,
    stop: StopSignal,
    tracker: Tracker,
    outbox: Outbox,
) -> Champion:
    """Resume where there is a checkpoint, train to the end, save in between; return the champion."""
    began = time.perf_counter()
    resumed = _resume(run, store, tracker)
    tracker.emit(
        Start("train", params.env.id, params.train.algo, run.clock.members, run.clock.total * run.clock.envs, resumed)
    )
    for sentence in run.regime.remarks:
        tracker.emit(Message("warning", sentence))
    saver = _Saver(run, store, params.runtime.checkpoint_seconds)

    def between() -> None:
        saver()
        for sentence in outbox.problems():
            tracker.emit(Message("warning", sentence))

    try:
        drive(run, tracker, lambda: stop.signum is not None, between)
    except EnvironmentFailed:
        if run.regime.whole:
            run.clock.broken_here = 0  # a mended environment starts with a clean slate
            with contextlib.suppress(DiskError):  # the environment's failure is the news
                saver.save()
        raise
    if stop.signum is not None and not run.reason:
        saver.save()
        raise Interrupted(
            stop.signum,
            f"stopped at step {run.clock.step} of each member; saved, the same command continues from there",
        )
    if run.champion is None:
        raise DivergedError("no generation had a healthy member, so there is no elite: lower the learning rate")
    saver.save()  # whatever happens while the outs are written, training is not lost
    tracker.emit(End(ENDINGS[run.reason], time.perf_counter() - began, run.clock.env_steps, run.clock.eval_steps))
    return run.champion


def _resume(run: Run, store: CheckpointStore, tracker: Tracker) -> int | None:
    loaded = store.load()
    if loaded is None:
        return None
    for sentence in loaded.warnings:
        tracker.emit(Message("warning", sentence))
    lost = run.restore(loaded.tensors, loaded.meta)
    if lost:
        tracker.emit(
            Message(
                "warning",
                f"{lost} environments did not return to where they were: {run.spec.env.id} is not a function of "
                "its seed and actions. They begin new episodes; the run goes on, but not bit for bit",
            )
        )
    return run.clock.step


class _Saver:
    """Saves every so many seconds, and never more often than a hundredth of wall time allows."""

    def __init__(self, run: Run, store: CheckpointStore, seconds: float) -> None:
        self.run, self.store, self.seconds = run, store, seconds
        self.last, self.cost = time.perf_counter(), 0.0

    def __call__(self) -> None:
        """Save where it is time."""
        if time.perf_counter() - self.last >= max(self.seconds, self.cost / SAVE_SHARE):
            self.save()

    def save(self) -> None:
        """Save now."""
        began = time.perf_counter()
        tensors, meta = self.run.state()
        self.store.save(self.run.clock.tick + self.run.clock.generation, tensors, meta)
        self.last = time.perf_counter()
        self.cost = self.last - began


def _write_outputs(run: Run, champion: Champion, params: Params, folder: Path) -> None:
    """Write `models/trained` and the reports; no clock in any of them, so that equal runs give equal bytes."""
    about: dict[str, Any] = {
        **about_spec(run.spec),
        "elite": {
            "id": champion.member.id,
            "generation": champion.generation,
            "score": champion.score,
            "standard_error": champion.error,
            "confirmed": champion.confirmed,
        },
    }
    write_members(folder / paths.TRAINED, [*run.members, champion.member], about)
    lines = b"".join(dump_json(record.to_json(), str(paths.LINEAGE)) for record in run.lineage)
    write_bytes(folder / paths.LINEAGE, lines)
    write_csv(folder / paths.FITNESS, CURVE, [["" if x is None else x for x in row] for row in run.curve])
    summary = {
        "reason": run.reason,
        "generations": run.clock.generation,
        "steps": {
            "each_member": run.clock.step,
            "training": run.clock.env_steps,
            "evaluation": run.clock.eval_steps,
            "all": run.clock.env_steps + run.clock.eval_steps,
        },
        "broken_transitions": run.clock.broken,
        "elite": about["elite"],
        "best_fitness": run.curve[-1][4],
        "mean_fitness": run.curve[-1][5],
        "target": run.target,
        "warm_start": run.regime.warm,
        **({"remarks": run.regime.remarks} if run.regime.remarks else {}),
    }
    write_json(folder / paths.TRAIN, summary)


def _write_timing(log: Path, curve: Sequence[Sequence[Any]], folder: Path) -> None:
    """Write how long each generation took: the one out that holds a clock, a measurement and no result.

    A run that was killed repeats what came after its last checkpoint, so the last word on a generation counts. A
    generation that began in one process and ended in another has the seconds and the steps of its last part only, so
    that its speed is right. Rows that the log has lost (a full disk) are left out.
    """
    rows: dict[int, tuple[int, float, int, int]] = {}
    ends: dict[int, Sequence[Any]] = {int(row[0]): row for row in curve}
    began = 0  # step of each member at which the measured seconds begin
    with contextlib.suppress(OSError):  # a log that cannot be read costs the measurement, not the run
        for _, event in read_events(log):
            if isinstance(event, Start):
                began = event.resumed_step or 0
            elif isinstance(event, Generation) and event.generation in ends:
                rows[event.generation] = _timing(event, began, ends)
                began = event.step
    write_csv(folder / paths.TIMING, TIMING, [rows[generation] for generation in sorted(rows)])


def _timing(event: Generation, began: int, ends: dict[int, Sequence[Any]]) -> tuple[int, float, int, int]:
    """Return a row of `timing.csv`: the seconds, and the steps of the population that were taken in them."""
    _, start, training, evaluation, *_ = ends.get(event.generation - 1, (0, 0, 0, 0))
    share = (event.step - max(start, began)) / max(1, event.step - start)
    steps = round((event.env_steps - training) * min(1.0, max(0.0, share)))
    return event.generation, round(event.seconds, 3), steps, event.eval_steps - evaluation
