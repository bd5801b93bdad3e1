"""The page of a run's episodes, for `evopipe agent show`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.agents import records
from evopipe.errors import MissingInputError
from evopipe.report.episodes import episodes_page, read_episodes
from evopipe.storage.files import write_text


def page_of(where: Path, page: Path | None = None) -> Path:
    """Write an HTML page of recorded episodes, and return its path.

    Episodes are those of agents or, if the run has none, the completions and rows of a dataset that the stage `train`
    of a language model kept.

    Args:
        where: the folder of a run, or one file of episodes.
        page: the path of the page. None writes `reports/episodes.html` in the folder of the run; for a file of
            episodes, None writes a page beside it, with the same name and the ending `.html`.

    Raises:
        MissingInputError: there are no episodes.
        DataError: a line of a file is no episode.
    """
    if where.is_file():
        files, title, place = {"Episodes": where}, where.name, where.with_suffix(".html")
    else:
        files = records.files_of(where / layout.EPISODES_FOLDER)
        title, place = _title(where), where / layout.EPISODES_PAGE
    page, samples = page or place, where / layout.SAMPLES
    if where.is_dir() and not any(path.exists() for path in files.values()) and samples.exists():
        parts = _by_round(read_episodes(samples))
        if not parts:
            raise MissingInputError(
                f"{samples}: holds no completions; runs of games keep none, look at {layout.REPORT} instead"
            )
        write_text(page, episodes_page(title, parts))
        return page
    if not any(path.exists() for path in files.values()):
        raise MissingInputError(
            f"{where}: holds no episodes; give the folder of a run of agents (trainer.default_local_dir), which has "
            f"{layout.EPISODES_FOLDER}/ unless `agents.record` is none, that of a trained language model, which has "
            f"{layout.SAMPLES}, or a file that `evopipe agent run` wrote"
        )
    records.show(title, files, page)
    return page


def _by_round(episodes: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return what was kept of each generation's last round, the newest generation first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in sorted(episodes, key=lambda episode: -int(episode.get("round", 0))):
        found.setdefault(f"Generation {each.get('round', 0)}, last round of training", []).append(each)
    return found


def _title(folder: Path) -> str:
    """Return what a run was scored on; the folder's name, before it was."""
    try:
        return str(json.loads((folder / layout.EVALUATION).read_text(encoding="utf-8"))["env"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.resolve().name
