"""Stage `train` of language models: evolve the population."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evopipe
from evopipe import layout
from evopipe.errors import translate_failures
from evopipe.evolve.mutate import read_births
from evopipe.keys import content_key, state_folder
from evopipe.machine import configure
from evopipe.run.clock import Clock
from evopipe.run.drive import train
from evopipe.run.language import LESS, LanguageSpec
from evopipe.run.learners import learner_count
from evopipe.run.outs import write_results, write_timing
from evopipe.run.run import Run
from evopipe.schema.text import LanguageParams
from evopipe.signals import StopSignal
from evopipe.stages import shards, tracking
from evopipe.stages.language.describe import describe
from evopipe.stages.language.setup import about_spec, corpus_of, form_of, make_spec, read_members, regime_of
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.files import write_csv
from evopipe.storage.lock import RunLock
from evopipe.track.console import console_sink
from evopipe.track.events import JsonlSink, Tracker


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Train from `models/population` and `data/tokens` to `models/trained`.

    A run that was stopped or killed goes on from its last checkpoint, bit for bit.

    Raises:
        MissingInputError: an upstream output is not there.
        DataError: an upstream output is damaged, or every checkpoint is.
        BusyError: another process trains the same run.
        DivergedError, Interrupted: see `run.drive.train`.
    """
    runtime = params.runtime
    if shards.served(runtime.shards):
        return
    spec, learners = make_spec(params, configure(runtime)), learner_count(runtime.learners, runtime.threads)
    corpus = corpus_of(folder, spec, form_of(params))
    members, about = read_members(folder, layout.POPULATION, spec)
    births = read_births(about.get("mutations"), len(members))
    state = state_folder("train", _key(params, folder), folder)
    outputs = state_folder("locks", content_key({"outputs": folder.absolute()}), folder)
    with (
        RunLock(state.with_suffix(".lock")),
        RunLock(outputs.with_suffix(".lock")),
        translate_failures(LESS),
        shards.divided(params, len(members), folder) as divided,
    ):
        store, log = CheckpointStore(state / divided.checkpoints), state / "events.jsonl"
        made: Run[LanguageSpec] | None = divided.begin(spec, members, births)
        if made is None:
            clock = Clock.of(spec, len(members))
            made = Run(spec, regime_of(spec, clock, corpus, learners), clock, members, births)
        regime: Any = made.regime
        with (
            StopSignal() as stop,
            Tracker([console_sink(quiet), JsonlSink(log)]) as tracker,
            tracking.outbox(params, state, folder) as outbox,
        ):
            champion = train(made, store, runtime.checkpoint_seconds, stop, tracker, divided.also(outbox.problems))
            divided.tell(tracker)
            write_results(made, champion, {**about_spec(spec), "policy": describe(params, spec)}, folder)
            write_csv(folder / layout.MEASURES, ["generation", "slot", *regime.measures.names], regime.measures.rows())
            write_timing(log, made.curve, folder)
            tracking.finish(params, state, folder)
        for each in state.glob("checkpoints*"):  # those of another number of shards, too
            CheckpointStore(each).clear()


def _key(params: LanguageParams, folder: Path) -> str:
    """Key of a run's checkpoints: the parameters, inputs and code that its outcome depends on."""
    values = params.tracked("seed", "language", "train", "evolution", "runtime")
    inputs = [folder / layout.POPULATION, folder / layout.TOKENS, *_reward_model(params)]
    return content_key(values, [*inputs, Path(evopipe.__file__).parent])


def _reward_model(params: LanguageParams) -> list[Path]:
    """The folder that rewards come from, where one does; that it is missing is said where it is read."""
    folder = params.language.reward_model
    return [folder] if folder is not None and folder.exists() else []
