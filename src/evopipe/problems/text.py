"""The problem of language models, which learn from rows of text, from rewards or from games."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evopipe import layout
from evopipe.algos import get
from evopipe.errors import DataError
from evopipe.language import tasks
from evopipe.language.base import Base
from evopipe.language.policy import LanguagePolicy, load_reward
from evopipe.language.tasks import rewards
from evopipe.language.tokens import Corpus, read_corpus
from evopipe.machine import configure
from evopipe.params.text import LanguageParams
from evopipe.problems.text_data import base_of, form_of, need_places, settled, task_of
from evopipe.regimes.dialogue import Completer, Dialogue, Judge
from evopipe.regimes.games import GameSource, play
from evopipe.regimes.learners import learner_count
from evopipe.regimes.order import held_out
from evopipe.regimes.text import References, TextRows, TextSource, evaluate_rows, figures
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, HeldOut
from evopipe.run.problem import RANKS, Problem
from evopipe.run.regime import Regime
from evopipe.run.text import LESS, TextSpec
from evopipe.schema.language import LanguageConfig, TextRuntime


def problem_of(
    params: LanguageParams, folder: Path = Path(), alone: bool = False, together: Any = None
) -> Problem[TextSpec]:
    """Return the `Problem` of a run of language models: its configuration, training loop and final evaluation.

    Args:
        params: the parameters.
        folder: the project's folder, which has the outputs of earlier stages.
        alone: whether this process is a shard (a process with a part of the population) that has a single CPU. If so,
            it starts no processes that compute updates.
        together: a `language.together.Together`, if several processes form one shard; else None.

    Raises:
        ParamsError: the base model cannot be used.
        MissingInputError, DataError: the base model is missing or damaged.
    """
    runtime, judge = params.runtime, params.language.reward_model
    outside, sources = params.outside()
    spec = make_spec(params, configure(runtime))
    if together is not None:
        spec = replace(spec, base=replace(spec.base, together=together))

    def live(clock: Clock, keys: np.ndarray) -> Regime:
        learners = 1 if alone else learner_count(runtime.learners, runtime.threads)
        return regime_of(spec, clock, corpus_of(folder, spec), learners)

    def inputs() -> list[Path]:
        corpus_of(folder, spec)  # tokens of another base are refused before members are
        return [folder / layout.TOKENS, *([judge] if judge and judge.exists() else []), *sources]

    return Problem(
        spec, live, lambda members, rows: held_out_of(spec, folder, params.evaluate.episodes), partial(describe, spec),
        {**params.tracked("seed", "language", "train", "evolution", "search", "runtime"), "outside": outside},
        # That a judge is missing is said where it is read.
        inputs, LESS, undivided=_undivided(params.language, runtime),
    )  # fmt: skip


def _undivided(cfg: LanguageConfig, runtime: TextRuntime) -> str | None:
    """Say why members cannot be computed apart, or rows of a shard by several processes."""
    shards = runtime.shards
    if shards.ranks > 1 and shards.engine != "accelerate":
        return RANKS
    if cfg.engine != "transformers":
        return "runtime.shards: needs language.engine: transformers"
    if shards.ranks > 1 and (runtime.rows_at_once is None or cfg.model == "gpt"):
        return (
            "runtime.shards.ranks: they divide rows over a base, in parts; set runtime.rows_at_once to the rows of "
            "a part, or ranks to 1"
        )
    return None


def describe(spec: TextSpec) -> dict[str, Any]:
    """Return algorithm, configuration and base model as JSON data: the part of `policy.json` that is equal for all
    members.

    `language.policy` reads these data.
    """
    return {
        "kind": "games" if spec.base.length else "language",
        "algo": spec.train.algo,
        "config": spec.algo_config.model_dump(mode="json"),
        "env": {"id": spec.name},
        "language": spec.language.model_dump(mode="json"),
        "seed": spec.seed,
        "base": spec.base.digest,
        **({"tokens": list(spec.base.tokenizer)} if spec.base.length else {}),
    }


def regime_of(spec: TextSpec, clock: Clock, corpus: Corpus, learners: int = 1) -> Dialogue | TextRows:
    """Return the regime for the corpus: a training loop over dialogues, rows of text, or games.

    `clock` has the run's counters. At most `learners` processes compute the updates of small GPTs; other models are
    updated in this process.
    """
    if corpus.form == "reasoning":
        return Dialogue(spec, clock, corpus, _judge_of(spec.language, spec.device), _truth_of(spec.language))
    if corpus.form == "games":
        return TextRows(spec, clock, GameSource(spec, corpus, task_of(spec.language)), learners)
    return TextRows(spec, clock, TextSource(spec, corpus))


def completer_of(spec: TextSpec, folder: Path, episodes: int) -> tuple[Completer, np.ndarray]:
    """Return an object that completes prompts and scores the completions, and the indices `[n]` of the rows for the
    final evaluation.

    `episodes` rows are drawn from the test split of the corpus below `folder`. If the split has no more rows than that,
    all are taken.

    Raises:
        MissingInputError: the corpus does not exist.
        DataError: the corpus is damaged, or was made for another base model or kind of algorithm.
        ParamsError: the rows are too long for the base model.
    """
    corpus = corpus_of(folder, spec)
    rows = corpus.splits["test"]
    index = rows[held_out(spec.seeds(Purpose.HELD_OUT, episodes), len(rows))]
    return Completer(spec, corpus, _judge_of(spec.language, spec.device), truth=_truth_of(spec.language)), index


def held_out_of(spec: TextSpec, folder: Path, episodes: int, of: tuple[Completer, np.ndarray] | None = None) -> HeldOut:
    """Return the object that scores members in the final evaluation: in games, or on rows of the test split.

    The object returns `Episodes`, whose attribute `more` has further figures by name:

    - for games: `won`, whether each game was won;
    - for completions that a reward model scores: `task`, the mean score by the task itself;
    - for algorithms that learn from rows, such as DPO: the algorithm's own statistics.

    Args:
        spec: the configuration.
        folder: the project's folder.
        episodes: the number of rows that are evaluated.
        of: the result of `completer_of`, if the caller has it already. If None, this function calls `completer_of`.
            Games do not need it.
    """
    if form_of(spec.algo) == "games":

        def games(cohorts: Any, seeds: np.ndarray, stopped: Any) -> Episodes:
            told = play(spec, task_of(spec.language), cohorts, seeds, stopped)
            return replace(told.episodes, more={"won": told.won})

        return HeldOut(games)
    completer, index = of or completer_of(spec, folder, episodes)

    def dialogues(cohorts: Any, seeds: np.ndarray, stopped: Any) -> Episodes:
        played = completer.evaluate(cohorts, index, stopped)
        if completer.truth is None:
            return played
        means = replace(completer, judge=completer.truth).evaluate(cohorts, index, stopped).returns.mean(axis=1)
        return replace(played, more={"task": means})

    def rows(cohorts: Any, seeds: np.ndarray, stopped: Any) -> Episodes:
        asks = "reference" in spec.algo.asks(spec.algo_config)
        references = References(spec, completer.corpus, index) if asks else None
        played = evaluate_rows(spec, completer.corpus, cohorts, index, references, stopped)
        return replace(played, more=figures(spec, completer.corpus, cohorts, index, references))

    return HeldOut(dialogues if completer.corpus.form == "reasoning" else rows)


def make_spec(params: LanguageParams, device: torch.device | None = None) -> TextSpec:
    """Load the base model, and return the configuration of a run of language models. `device` is the device of the
    tensors, by default the CPU.

    Raises:
        ParamsError: members are small GPTs, but the task has no games.
        MissingInputError: the base model or the extra `language` is missing.
        DataError: the base model is damaged.
    """
    device, cfg = device or torch.device("cpu"), settled(params.language, params.fetch.source)
    base = replace(base_of(cfg, params.seed, device), rows_at_once=params.runtime.rows_at_once)
    return spec_of(params, base, device, cfg)


def spec_of(params: LanguageParams, base: Base, device: torch.device, cfg: LanguageConfig | None = None) -> TextSpec:
    """Return the configuration of a run of language models.

    `base` is the loaded base model, and `device` the device of the tensors. `cfg`, if given, replaces the block
    `language` of the parameters.
    """
    return TextSpec(
        seed=params.seed,
        language=cfg or params.language,
        train=params.train,
        tournament=params.evolution.tournament,
        search=params.search,
        mutation=params.mutation,
        algo=get(params.train.algo),
        algo_config=params.algo_config,
        base=replace(base, exact=params.runtime.cohorts == "exact"),
        device=device,
        cohorts=params.runtime.cohorts,
    )


def _judge_of(cfg: LanguageConfig, device: torch.device | None = None) -> Judge:
    """Return the function that rewards completions. If it fails, the run continues.

    For errors see `language.tasks.score_of` and `language.policy.load_reward`.
    """
    if cfg.reward_model is not None:
        return _modelled(load_reward(cfg.reward_model, device))
    return _guarded(cfg, cfg.reward)


def _truth_of(cfg: LanguageConfig) -> Judge | None:
    """Return the task's own score where a reward model stands in its place, of which the faults may be learned."""
    return None if cfg.reward_model is None else _guarded(cfg, None)


def _guarded(cfg: LanguageConfig, own: str | None) -> Judge:
    score, told = tasks.score_of(task_of(cfg), own), False

    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        nonlocal told
        found = rewards(score, rows, completions, cfg.reward_seconds)
        if found.why is not None and not told:
            told = True
            print(
                f"note: a completion's score {found.why}: it counts as 0, and so will others like it", file=sys.stderr
            )
        return found.values, found.failed

    return judge


def _modelled(model: LanguagePolicy) -> Judge:
    def judge(rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        found = np.array(model.reward([row["prompt"] for row in rows], completions))
        bad = ~np.isfinite(found)
        return np.where(bad, 0.0, found), int(bad.sum())

    return judge


def corpus_of(folder: Path, spec: TextSpec) -> Corpus:
    """Read the tokenised rows that the stage `buffer` wrote below `folder`.

    Raises:
        MissingInputError: the rows do not exist.
        DataError: the rows are damaged, or were made for another base model or kind of algorithm.
        ParamsError: the rows are too long for the base model.
    """
    corpus, form = read_corpus(layout.need(folder, layout.TOKENS)), form_of(spec.algo)
    if corpus.digest != spec.base.digest or corpus.form != form:
        wrong = "another base" if corpus.digest != spec.base.digest else f"{corpus.form} rows"
        raise DataError(f"{folder / layout.TOKENS}: holds tokens of {wrong}; run `dvc repro buffer` again")
    need_places(spec.language, spec.algo, spec.algo_config, spec.base)
    return corpus
