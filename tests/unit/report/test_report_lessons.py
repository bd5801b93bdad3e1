"""What a curriculum taught: as records of the lineage tell it, on the report's page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evopipe.report.page import compose
from evopipe.report.read import read
from evopipe.searchers.history import read_lineage
from reports import write_run


def page_of(folder: Path, taught: dict[int, Any], key: str = "curriculum") -> tuple[Any, str]:
    """Return a run whose generations were taught so, and its page as one line of text without tags."""
    params = write_run(folder, 2, 5, episodes=3)
    lineage = folder / "reports/lineage.jsonl"
    records = [json.loads(line) for line in lineage.read_text().splitlines()]
    for record in records:
        if record["generation"] in taught:
            record[key] = taught[record["generation"]]
    lineage.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert len(read_lineage(lineage.read_bytes(), "lineage")) == 6
    run = read(folder)
    return run, " ".join(re.sub("<[^>]*>", " ", compose(run, params.model_dump(mode="json"), "No film.")).split())


@pytest.mark.thorough
def test_a_page_tells_the_lessons_from_the_first_to_the_last(tmp_path: Path) -> None:
    starts = {1: 12, 2: 12, 3: 4, 4: 4, 5: 0}
    run, text = page_of(tmp_path, {at: {"digits": 13, "start": start} for at, start in starts.items()})
    assert run.lessons == ((1, {"start": 12}), (3, {"start": 4}), (5, {"start": 0}))
    assert "by a curriculum: 3 lessons, from start 12 in generation 1 to start 0 in generation 5." in text
    assert "from generation training environments have 1 start 12 3 start 4 5 start 0" in text


def test_an_argument_that_only_some_lessons_have_is_none_in_the_others(tmp_path: Path) -> None:
    run, text = page_of(tmp_path, {1: {"gaps": [1, 2]}, 2: {"gaps": [1, 2]}, 3: {}, 4: {}, 5: {}})
    assert run.lessons == ((1, {"gaps": [1, 2]}), (3, {"gaps": None}))
    assert "2 lessons, from gaps 1, 2 in generation 1 to gaps none in generation 3." in text


@pytest.mark.parametrize(("taught", "words"), [({}, None), ({at: {"a": 1} for at in range(1, 6)}, "changed nothing")])
@pytest.mark.thorough
def test_a_run_without_lessons_tells_none(tmp_path: Path, taught: dict[int, Any], words: str | None) -> None:
    run, text = page_of(tmp_path, taught)
    assert [arguments for _, arguments in run.lessons] == ([] if words is None else [{}])
    assert ("by a curriculum: it " + str(words) in text) == (words is not None)
    assert ("curriculum:" in text) == (words is not None)


@pytest.mark.thorough
def test_a_page_tells_whom_each_generation_of_self_play_met(tmp_path: Path) -> None:
    met = [[], [1], [1, 2], [2, 3], [3, 4]]
    leagues = {
        at: [{"id": each, "generation": each, "arrays": f"{each:x}" * 32} for each in league]
        for at, league in enumerate(met, 1)
    }
    run, text = page_of(tmp_path, leagues, "opponents")
    assert [[one.generation for one in each.opponents] for each in run.met] == met
    assert "3 2 (22222222), 3 (33333333)" not in text
    assert "4 2 (22222222), 3 (33333333)" in text
    assert "1 none: only the opponent of env.kwargs" in text
    assert "Members trained by self-play" in text
    assert "Members trained by self-play" not in page_of(tmp_path / "without", {})[1]
