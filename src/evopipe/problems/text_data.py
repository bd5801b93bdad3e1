"""The stages `fetch` and `buffer` for language models: rows of text, then the same rows as tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from evopipe import layout
from evopipe.algos import Algorithm, get
from evopipe.errors import ParamsError
from evopipe.language import data, tasks
from evopipe.language.base import Base, load_base, tokens_alone
from evopipe.language.tokens import games, seen, tokenise, write_corpus
from evopipe.params.text import LanguageParams
from evopipe.schema.language import Form, LanguageConfig
from evopipe.storage.files import write_json


def fetch(params: LanguageParams, folder: Path) -> list[str]:
    """Run the stage `fetch`: write rows of text to `data/text.jsonl`, and `reports/fetch.json`.

    `folder` is the project's folder. The result is a list of remarks for the user.
    """
    cfg, source, form = params.language, params.fetch.source, form_of(get(params.train.algo))
    if source == "generate":
        rows = data.generate(task_of(cfg), cfg.task, params.seed, params.fetch.generate.rows, form)
    elif source == "jsonl":
        check = task_of(cfg).check if form == "games" else None
        rows = data.read_jsonl(Path(params.fetch.jsonl.path), form, check)
    else:
        asked = params.fetch.datasets
        rows = data.read_datasets(asked.name, asked.split, asked.columns, form, asked.subset)
        if form == "games":
            task_of(cfg).encode(rows, f"fetch.datasets: {asked.name}")
    rows = data.unpaired(rows) if form == "labelled" else rows
    data.write_rows(folder / layout.TEXT, rows)
    write_json(folder / layout.FETCHED, {"task": cfg.task, "source": source, "form": form, "rows": len(rows)})
    return [f"{layout.TEXT}: {len(rows)} {form} rows from {source}"]


def buffer(params: LanguageParams, folder: Path) -> list[str]:
    """Run the stage `buffer`: tokenise `data/text.jsonl`, split it, and write `data/tokens` and `reports/buffer.json`.

    Rows that are too long are left out. `folder` is the project's folder. The result is a list of remarks for the user.
    """
    cfg, form = settled(params.language, params.fetch.source), form_of(get(params.train.algo))
    path = layout.need(folder, layout.TEXT)
    rows, base = data.read_jsonl(path, form), base_of(cfg, params.seed)
    need_places(cfg, get(params.train.algo), params.algo_config, base)
    if form == "games":
        corpus = games(rows, task_of(cfg).encode(rows, str(path)), base, params.fetch, params.seed)
    else:
        corpus = tokenise(rows, form, base, cfg, params.fetch, params.seed)
    write_corpus(folder / layout.TOKENS, corpus)
    lengths = np.array([len(corpus.prompts[i]) for i in range(len(corpus.prompts))])
    answers = [len(answer[i]) for answer in corpus.answers for i in range(len(answer))]
    stats = {
        "form": form,
        "rows": len(corpus.rows),
        "left_out": corpus.left_out,
        "splits": {name: len(index) for name, index in corpus.splits.items()},
        **({} if form == "games" else {"prompt_tokens": {"mean": float(lengths.mean()), "max": int(lengths.max())}}),
        **({"answer_tokens": {"mean": float(np.mean(answers)), "max": max(answers)}} if answers else {}),
    }
    counts = ", ".join(f"{len(index)} {name}" for name, index in corpus.splits.items())
    told = [f"{layout.TOKENS}: {len(corpus.rows)} rows ({counts}), {corpus.left_out} too long and left out"]
    if form != "games":
        both = {name: len(index) for name, index in seen(corpus.rows, corpus.splits).items()}
        stats["seen"] = both
        if any(both.values()):
            told.append(
                f"{both['validation']} validation and {both['test']} test rows have a prompt that is learned from; "
                "fetch.overlap: leave_out leaves them out"
            )
    write_json(folder / layout.BUFFERED, stats)
    return told


def form_of(algo: Algorithm) -> Form:
    """Return the name of the format of rows from which an algorithm learns.

    The formats are `reasoning`, `games`, `preference` (pairs of completions), `labelled` (good or bad completions) and
    `supervised`.
    """
    if algo.REGIME != "text":
        return "reasoning" if algo.REGIME == "dialogue" else "games"
    return "preference" if algo.PAIRS else "labelled" if algo.LABELS else "supervised"


def task_of(cfg: LanguageConfig) -> Any:
    """Return the task that `language.task` names.

    Raises:
        ParamsError: there is no such task, or it does not take the configured arguments.
        MissingInputError: the task needs a package that is not installed.
        EnvironmentFailed: a user's module or class raised an exception, or ran for more than 60 seconds.
    """
    return tasks.get(cfg.task, cfg.kwargs)


def settled(cfg: LanguageConfig, source: str) -> LanguageConfig:
    """Return the block `language` (`cfg`) with the alphabet of the `tiny` model's tokenizer filled in from the task.

    The block is returned unchanged if it names another model, if it has an alphabet, or if the task does not generate
    the rows. The task generates them if `source`, the setting `fetch.source`, is `generate`.
    """
    if cfg.model != "tiny" or cfg.tiny.characters or source != "generate":
        return cfg
    known = getattr(task_of(cfg), "characters", "")
    return cfg.model_copy(update={"tiny": cfg.tiny.model_copy(update={"characters": known})})


def base_of(cfg: LanguageConfig, seed: int, device: torch.device | None = None) -> Base:
    """Load and return the base model that the block `language` (`cfg`) names.

    `seed` is the seed of the random weights with `language.model: tiny`. With `language.model: gpt`, members are small
    GPTs and have no base model. The result then has no weights, and holds only the tokens of the task's games.

    Raises:
        ParamsError: members are small GPTs, but the task has no games.
        MissingInputError: the base model or the extra `language` is missing.
        DataError: a file of the base model is damaged.
    """
    if cfg.model != "gpt":
        return load_base(cfg, seed, device)
    task = task_of(cfg)
    if not hasattr(task, "play"):
        raise ParamsError(f"language.task: {cfg.task!r} has no games, which language.model gpt plays: take wordle")
    return tokens_alone(task.tokens, task.length, cfg.gpt.hidden, device)


def need_places(cfg: LanguageConfig, algo: Algorithm, config: Any, base: Base) -> None:
    """Check that the longest row of prompt and completion fits into the context of the base model.

    One more token must fit if the algorithm has a head that reads the end of a row, as a reward model has.

    Args:
        cfg: the block `language`, with the largest lengths of prompts and completions.
        algo, config: the algorithm and its configuration.
        base: the base model.

    Raises:
        ParamsError: the row would be too long.
    """
    if base.places is None:
        return
    head = "end" in algo.asks(config)  # a head judges behind the last token
    if cfg.max_prompt + cfg.max_completion + head > base.places:
        raise ParamsError(
            f"language.max_completion: prompts of {cfg.max_prompt} tokens (language.max_prompt) and completions of "
            f"{cfg.max_completion}{', and the token that a head reads,' * head} are too long, {base.name} has places "
            f"for {base.places} tokens; lower one of them"
        )
