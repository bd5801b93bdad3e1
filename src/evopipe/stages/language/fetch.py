"""Stage `fetch` of language models: rows of text into `data/text.jsonl`, whatever `fetch.source` is."""

from __future__ import annotations

from pathlib import Path

from evopipe.language import data
from evopipe.layout import FETCHED, TEXT
from evopipe.problems.text import form_of, task_of
from evopipe.schema.text import LanguageParams
from evopipe.stages.tell import tell
from evopipe.storage.files import write_json


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `data/text.jsonl` and `reports/fetch.json`. Paths in `params` are the working folder's."""
    cfg, source, form = params.language, params.fetch.source, form_of(params)
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
    data.write_rows(folder / TEXT, rows)
    write_json(folder / FETCHED, {"task": cfg.task, "source": source, "form": form, "rows": len(rows)})
    tell(f"{TEXT}: {len(rows)} {form} rows from {source}", quiet)
