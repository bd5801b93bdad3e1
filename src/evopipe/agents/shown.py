"""The page of a run's episodes, for `evopipe agent show`."""

from __future__ import annotations

import json
from pathlib import Path

from evopipe import layout
from evopipe.agents import records
from evopipe.errors import MissingInputError


def page_of(where: Path, page: Path | None = None) -> Path:
    """Write an HTML page of recorded episodes, and return its path.

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
    page = page or place
    if not any(path.exists() for path in files.values()):
        raise MissingInputError(
            f"{where}: holds no episodes; give the folder of a run of agents (trainer.default_local_dir), which has "
            f"{layout.EPISODES_FOLDER}/ unless `agents.record` is none, or a file that `evopipe agent run` wrote"
        )
    records.show(title, files, page)
    return page


def _title(folder: Path) -> str:
    """Return what a run was scored on; the folder's name, before it was."""
    try:
        return str(json.loads((folder / layout.EVALUATION).read_text(encoding="utf-8"))["env"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.resolve().name
