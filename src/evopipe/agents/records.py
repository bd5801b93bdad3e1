"""Episodes as files: one JSON object a line, with the text of each row's tokens, and who wrote them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from evopipe.agents.engine import Done
from evopipe.agents.rows import TokenRow, rows_of
from evopipe.formats import score
from evopipe.language.base import Base
from evopipe.report.episodes import episodes_page, read_episodes, reward_of
from evopipe.storage.files import write_text


def record(done: Done, base: Base, masked: Collection[str]) -> dict[str, Any]:
    """Return an episode as JSON data, with its member's slot and the rows of its trajectories.

    A row is a list of pieces: `text`, whether the model has `written` it, and the `step` that it belongs to. `counts`
    says whether anything is learned from the episode: not if its reason is among `masked`.
    """
    told = done.episode.to_dict()
    for trajectory, each in zip(done.episode.trajectories, told["trajectories"], strict=True):
        each["rows"] = [_pieces(row, base) for row in rows_of(trajectory)]
    return {"slot": done.job.slot, "attempts": done.attempts, "counts": reason(done) not in masked, **told}


def reason(done: Done) -> str:
    found = done.episode.termination_reason
    return found.value if found is not None else "unknown"


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """Summarise episodes in one sentence."""
    endings = Counter(str(each["termination_reason"]) for each in records)
    tasks = len({each["id"].rpartition(":")[0] for each in records})
    mean = sum(map(reward_of, records)) / max(1, len(records))
    right = sum(each["is_correct"] for each in records)
    told = ", ".join(f"{name} {n}" for name, n in endings.most_common())
    whole = f"{_many(len(records), 'episode')} of {_many(tasks, 'task')}"
    return f"{whole}, mean reward {score(mean)}, {right} right; ended: {told}"


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def show(title: str, files: Mapping[str, Path], page: Path) -> None:
    """Write an HTML page of the episodes in these files, by purpose. Missing files are skipped."""
    there = {name: read_episodes(path) for name, path in files.items() if path.exists()}
    if there:
        write_text(page, episodes_page(title, there))


def _pieces(row: TokenRow, base: Base) -> list[dict[str, Any]]:
    first = row.turn[0] if row.turn else 0
    marked = [(False, first, token) for token in row.prompt]
    marked += zip(row.mask, row.turn, row.ids, strict=True)
    return [
        {"text": base.show([token for _, _, token in group]), "written": written, "step": step}
        for (written, step), group in groupby(marked, key=lambda each: each[:2])
    ]


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    write_text(path, "\n".join([*(json.dumps(each, sort_keys=True) for each in records), ""]))
