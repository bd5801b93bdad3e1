"""Stage `train`: evolve the population."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import evopipe
from evopipe import layout
from evopipe.envs.make import source_of
from evopipe.envs.workers import Workers
from evopipe.errors import translate_failures
from evopipe.evolve.mutate import read_births
from evopipe.keys import content_key, state_folder
from evopipe.machine import configure, fingerprint
from evopipe.run.drive import begin, train
from evopipe.run.learners import learner_count
from evopipe.run.outs import write_results, write_timing
from evopipe.run.run import Champion, Run
from evopipe.run.warm import read_warm
from evopipe.schema.params import AnyParams, Params
from evopipe.stages import shards, tracking
from evopipe.stages.setup import about_spec, describe, make_spec, read_members
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.lock import RunLock


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Train from `models/population` (and `data/transitions.h5`, offline or warm-started) to `models/trained`. A run
    that was stopped or killed goes on from its last checkpoint, bit for bit. Checkpoints are keyed by the content of
    everything the run depends on, so that another run's state is never taken for it."""
    runtime = params.runtime
    if shards.served(runtime.shards):
        return
    spec, described = make_spec(params, configure(runtime)), describe(params)
    learners = learner_count(runtime.learners, runtime.threads, spec.environments_first)
    members, about = read_members(folder, layout.POPULATION, spec)
    births = read_births(about.get("mutations"), len(members))
    warm = read_warm(spec, folder)
    state = state_folder("train", _key(params, folder, warm is not None), folder)
    with (
        alone(state, folder),
        translate_failures(),
        shards.divided(params, len(members), folder) as divided,
        Workers(runtime.env_workers, learners) as workers,
    ):
        store = CheckpointStore(state / divided.checkpoints)
        # Nothing is there to save before the loop is: until then a signal simply ends the process.
        made = divided.begin(spec, members, births) or begin(spec, members, warm, births, workers, learners)
        warm = None  # the memory holds it now, its images as bytes
        try:
            with tracking.watched(params, state, folder, quiet) as (stop, tracker, outbox):
                champion = train(made, store, runtime.checkpoint_seconds, stop, tracker, divided.also(outbox.problems))
                divided.tell(tracker)
                finish(made, champion, params, described, state, folder)
        finally:
            made.close()


@contextmanager
def alone(state: Path, folder: Path) -> Iterator[None]:
    """Be the one writer of a run's state and, whatever its parameters, of the outs in `folder`; else `BusyError`."""
    outputs = state_folder("locks", content_key({"outputs": folder.absolute()}), folder)
    with RunLock(state.with_suffix(".lock")), RunLock(outputs.with_suffix(".lock")):
        yield


def finish(
    made: Run[Any], champion: Champion, params: AnyParams, described: Mapping[str, Any], state: Path, folder: Path
) -> None:
    """Write the outs of a run that has ended, put them into its record, and remove its checkpoints."""
    write_results(made, champion, {**about_spec(made.spec), "policy": described}, folder)
    write_timing(state / tracking.LOG, made.curve, folder)
    tracking.finish(params, state, folder)
    for each in state.glob("checkpoints*"):  # those of another number of shards, too
        CheckpointStore(each).clear()


def _key(params: Params, folder: Path, warm: bool) -> str:
    """Key of a run's checkpoints: the parameters, inputs, code and kernels that its outcome depends on."""
    values = params.tracked("seed", "env", "train", "evolution", "runtime")
    values["kernels"] = fingerprint()["kernels"]  # `auto` takes what this machine has
    values["outside"], sources = params.outside()
    inputs = [folder / layout.POPULATION, *([folder / layout.TRANSITIONS] if warm else []), *sources]
    return content_key(values, [*inputs, Path(evopipe.__file__).parent, *source_of(params.env)])
