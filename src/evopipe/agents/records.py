"""Episodes as files: one JSON object a line, with the text of each row's tokens, and who wrote them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from evopipe.agents.engine import Done
from evopipe.agents.learned import TokenValues
from evopipe.agents.rows import TokenRow, rows_of
from evopipe.formats import score
from evopipe.language.base import Base
from evopipe.regimes.samples import rounded, token_texts
from evopipe.report.episodes import episodes_page, read_episodes, reward_of
from evopipe.storage.files import write_text

Values = Mapping[int, Sequence[TokenValues]]
"""Of trajectories, by their `id()`: the values of each of their rows."""


def record(done: Done, base: Base, masked: Collection[str], values: Values | None = None) -> dict[str, Any]:
    """Return an episode as JSON data: `Episode.to_dict` with the member's slot (place in the population), the number of
    attempts, and the text of each trajectory's rows of tokens (see `TokenRow`). `base` has the tokenizer.

    The text of a row is a list of pieces. A piece is a mapping: `text`, `written` (whether the model wrote it), and
    `step` (the number of the step that it belongs to).

    The episode's entry `counts` says whether members learn from it. They do not if its termination reason is among
    `masked`.

    `values` maps the `id()` of a trajectory to the advantages and new log-probabilities of its tokens, see
    `agents.learned.token_values`. If it has the trajectory, each piece that the model wrote has four more lists, with
    one entry a token: `tokens` (the texts of the tokens), `log_prob` (when the token was drawn), `new_log_prob` (after
    the update), and `advantage`.
    """
    told = done.episode.to_dict()
    for trajectory, each in zip(done.episode.trajectories, told["trajectories"], strict=True):
        rows, known = rows_of(trajectory), (values or {}).get(id(trajectory))
        of_rows: Sequence[TokenValues | None] = known if known else [None] * len(rows)
        each["rows"] = [_pieces(row, base, own) for row, own in zip(rows, of_rows, strict=True)]
    return {"slot": done.job.slot, "attempts": done.attempts, "counts": reason(done) not in masked, **told}


def reason(done: Done) -> str:
    found = done.episode.termination_reason
    return found.value if found is not None else "unknown"


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence that summarises recorded episodes: their number, tasks, mean reward, right answers, and how
    they ended."""
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
    """Write an HTML page of recorded episodes with the title `title` to the path `page`.

    `files` maps headings to the JSON-lines files of the episodes. Missing files are skipped; if all are missing, no
    page is written.
    """
    there = {name: read_episodes(path) for name, path in files.items() if path.exists()}
    if there:
        write_text(page, episodes_page(title, there))


def files_of(folder: Path, last: int | None = None) -> dict[str, Path]:
    """Return the episode files in a run's folder that its page shows, keyed by their headings on the page.

    The first file is `elite.jsonl`, the validation of the best member. If it does not exist yet, the first file is the
    last validation, if there is one. The other files are the last 3 rounds of training, the newest first. Rounds after
    the round `last` are left out; None leaves out none.
    """
    validations, rounds = (sorted(folder.glob(f"{kind}-*.jsonl")) for kind in ("validation", "train"))
    if last is not None:
        rounds = [path for path in rounds if path.stem <= f"train-{last:06d}"]
    found = {"Validation of the elite": folder / "elite.jsonl"}
    if not found["Validation of the elite"].exists():
        found = {f"Validation {_number(path)}": path for path in validations[-1:]}
    for path in reversed(rounds[-_ROUNDS:]):
        found["Last round of training" if path == rounds[-1] else f"Round {_number(path)} of training"] = path
    return found


def thin(folder: Path, last: int, kept: int) -> None:
    """Delete files of old training rounds in `folder`: of the rounds with numbers up to `last`, only the newest `kept`
    files stay. Files of later rounds stay, too."""
    rounds = [path for path in sorted(folder.glob("train-*.jsonl")) if path.stem <= f"train-{last:06d}"]
    for path in rounds[:-kept]:
        path.unlink()


_ROUNDS = 3  # that a page shows


def _number(path: Path) -> str:
    return path.stem.rpartition("-")[2].lstrip("0")


def _pieces(row: TokenRow, base: Base, values: TokenValues | None = None) -> list[dict[str, Any]]:
    first = row.turn[0] if row.turn else 0
    marked = [(False, first, token, -1) for token in row.prompt]
    marked += zip(row.mask, row.turn, row.ids, range(len(row.ids)), strict=True)
    found = []
    for (written, step), group in groupby(marked, key=lambda each: each[:2]):
        ids, places = zip(*((token, place) for _, _, token, place in group), strict=True)
        piece = {"text": base.show(ids), "written": written, "step": step}
        if written and values is not None:
            told = {"log_prob": row.log_prob, "new_log_prob": values.log_prob, "advantage": values.advantage}
            piece["tokens"] = token_texts(base, ids)
            piece |= {name: [rounded(each[place]) for place in places] for name, each in told.items()}
        found.append(piece)
    return found


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    write_text(path, "\n".join([*(json.dumps(each, sort_keys=True) for each in records), ""]))
