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
from evopipe.run.run import Run
from evopipe.schema.text import LanguageParams
from evopipe.stages import shards, tracking
from evopipe.stages.language.describe import describe
from evopipe.stages.language.setup import corpus_of, form_of, make_spec, regime_of
from evopipe.stages.setup import read_members
from evopipe.stages.train import alone, finish
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.files import write_csv


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Train from `models/population` and `data/tokens` to `models/trained`; see `stages.train.run`."""
    runtime = params.runtime
    if shards.served(runtime.shards):
        return
    spec, learners = make_spec(params, configure(runtime)), learner_count(runtime.learners, runtime.threads)
    corpus = corpus_of(folder, spec, form_of(params))
    members, about = read_members(folder, layout.POPULATION, spec)
    births = read_births(about.get("mutations"), len(members))
    state = state_folder("train", _key(params, folder), folder)
    with alone(state, folder), translate_failures(LESS), shards.divided(params, len(members), folder) as divided:
        store = CheckpointStore(state / divided.checkpoints)
        made: Run[LanguageSpec] | None = divided.begin(spec, members, births)
        if made is None:
            clock = Clock.of(spec, len(members))
            made = Run(spec, regime_of(spec, clock, corpus, learners), clock, members, births)
        regime: Any = made.regime
        with tracking.watched(params, state, folder, quiet) as (stop, tracker, outbox):
            champion = train(made, store, runtime.checkpoint_seconds, stop, tracker, divided.also(outbox.problems))
            divided.tell(tracker)
            write_csv(folder / layout.MEASURES, ["generation", "slot", *regime.measures.names], regime.measures.rows())
            finish(made, champion, params, describe(params, spec), state, folder)


def _key(params: LanguageParams, folder: Path) -> str:
    """Key of a run's checkpoints: the parameters, inputs and code that its outcome depends on."""
    values = params.tracked("seed", "language", "train", "evolution", "runtime")
    judge = params.language.reward_model  # that it is missing is said where it is read
    inputs = [folder / layout.POPULATION, folder / layout.TOKENS, *([judge] if judge and judge.exists() else [])]
    values["outside"], sources = params.outside()
    return content_key(values, [*inputs, *sources, Path(evopipe.__file__).parent])
