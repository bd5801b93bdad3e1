"""Stage `buffer` of language models: `data/text.jsonl` as tokens, split, without what is too long."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evopipe import layout
from evopipe.algos import get
from evopipe.language import data
from evopipe.language.tokens import games, tokenise, write_corpus
from evopipe.problems.text import base_of, form_of, need_places, settled, task_of
from evopipe.schema.text import LanguageParams
from evopipe.stages.tell import tell
from evopipe.storage.files import write_json


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `data/tokens` and `reports/buffer.json`."""
    cfg, form = settled(params), form_of(params)
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
    write_json(folder / layout.BUFFERED, stats)
    counts = ", ".join(f"{len(index)} {name}" for name, index in corpus.splits.items())
    tell(f"{layout.TOKENS}: {len(corpus.rows)} rows ({counts}), {corpus.left_out} too long and left out", quiet)
