"""The page on what is said of ill runs is the script's, and promises are kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import diagnosis
from evopipe.report.advice import RULES
from illnesses import ILL, WELL


def _rows(title: str) -> list[list[str]]:
    """The cells of the table below a title."""
    text = diagnosis.PAGE.read_text(encoding="utf-8").partition(f"{title}\n")[2]
    table = text.partition("|---")[2].partition("\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]


def test_the_page_is_of_all_illnesses_and_enough_are_named() -> None:
    rows = _rows("# Diagnosis: does it find what is wrong?")
    assert [row[0] for row in rows] == [*ILL]
    assert len(rows) >= 20
    assert sum(row[1] == "yes" for row in rows) >= diagnosis.NAMED * len(rows) / 20
    known = {getattr(rule, "__name__", "") for rule in RULES}
    assert {rule for row in rows for rule in re.findall(r"`(\w+)`", row[4])} <= known


def test_the_page_is_of_thirty_runs_that_are_well_and_none_is_told_anything() -> None:
    rows = _rows("## False alarms")
    assert [row[0] for row in rows] == [*diagnosis.SHORT, *WELL]
    cells = [cell for row in rows for cell in row[1:]]
    assert len(cells) >= 30
    assert {*cells} == {"nothing"}


@pytest.mark.thorough
def test_a_row_is_what_its_run_is_told(tmp_path: Path) -> None:
    name = "rewards are a million, of DQN"
    found = diagnosis.ill(name, tmp_path)
    row = next(row for row in _rows("# Diagnosis: does it find what is wrong?") if row[0] == name)
    assert row[1:4] == ["yes", "1", found.texts[0]]
    assert found.page == found.texts
