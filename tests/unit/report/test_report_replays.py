"""The elite's replays on the page, and what figures do with a target: against the files' own numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from evopipe.report import draw, figures
from evopipe.report.draw import Plot
from evopipe.report.page import compose, without_measured
from evopipe.report.read import FinishedRun, read
from reports import write_run

REPLAYS = [
    {"seed": 3, "mean": 40.0, "interval": [35.0, 45.0]}, {"seed": 4, "mean": None, "interval": None},
    {"seed": 9, "mean": 60.0, "interval": [58.0, 61.0]},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, members=2, generations=3, diverge=0.0, episodes=5)
    return folder


def with_replays(folder: Path, monkeypatch: pytest.MonkeyPatch, **other: Any) -> FinishedRun:
    elite = json.loads((folder / "reports/train.json").read_text())["elite"]
    told = {
        "elite": elite, "steps": 1200, "replays": REPLAYS, "mean": 50.0, "interval": [41.0, 59.0], "not_followed": [],
        "schedule": [{"steps": 600, "values": {"lr": 0.5}}], **other,
    }  # fmt: skip
    (folder / "reports/replay.json").write_text(json.dumps(told))
    try:
        return read(folder)
    finally:
        (folder / "reports/replay.json").unlink()


def drawn(figure: Any, run: FinishedRun, width: int, monkeypatch: pytest.MonkeyPatch) -> Plot:
    found: list[Plot] = []
    plain = Plot.svg

    def kept(plot: Plot, label: Markup) -> Markup:
        found.append(plot)
        return plain(plot, label)

    monkeypatch.setattr(Plot, "svg", kept)
    with draw.style():
        figure(run, width, Markup("x"))
    return found[0]


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


@pytest.mark.parametrize("wide", [True, False])
def test_the_elite_and_each_replay_stand_with_their_own_intervals(
    wide: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_replays(folder, monkeypatch)
    plot = drawn(figures.replays, run, 1000 if wide else 358, monkeypatch)
    rows = [(run.elite.mean, run.elite.interval), (50.0, (41.0, 59.0)), (40.0, (35.0, 45.0)), (60.0, (58.0, 61.0))]
    places = (0, 1, 2, 4)
    bars = [points(line) for line in plot.axes.lines if len(line.get_xydata()) == 2]
    dots = [points(line) for line in plot.axes.lines if len(line.get_xydata()) == 1]
    assert bars == [[(end, place) for end in ends] for place, (_, ends) in zip(places, rows, strict=True)]
    assert dots == [[(mean, place)] for place, (mean, _) in zip(places, rows, strict=True)]
    texts = [note.get_text() for note in plot.axes.texts]
    assert texts[::2] == ["elite", "replays", "seed 3", "seed 4", "seed 9"]
    assert texts[3::2] == (
        ["50.0   [41.0 to 59.0]", "40.0   [35.0 to 45.0]", "diverged", "60.0   [58.0 to 61.0]"] if wide
        else ["50.0", "40.0", "diverged", "60.0"]
    )  # fmt: skip


@pytest.mark.thorough
def test_the_page_says_whether_the_schedule_or_the_elite_is_better(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(**other: Any) -> str:
        return compose(with_replays(folder, monkeypatch, **other), {}, "No film.")

    def said(text: str) -> str:
        return " ".join(text.partition('<section id="replays"')[2].partition("</section>")[0].split())

    alone = read(folder)
    low, high = alone.elite.interval
    shown = page(not_followed=["a", "b"])
    assert "with 3 other seeds: mean 50.0, 95 % interval 41.0 to 59.0; the elite has " in said(shown)
    assert "over the elite's 1.2k steps" in said(shown)
    assert "Not followed: a; b." in said(shown)
    assert without_measured(shown) == without_measured(compose(alone, {}, "No film."))
    assert "The schedule is better than the elite." in said(page(interval=[high + 0.1, high + 9]))
    assert "The elite was luck in part" in said(page(interval=[low - 9, low - 0.1]))
    for ends in ([low - 9, low], [high, high + 9]):
        assert "The intervals overlap" in said(page(interval=ends))
    assert "all diverged." in said(page(mean=None, interval=None))
    elite = json.loads((folder / "reports/train.json").read_text())["elite"]
    for name in ("id", "generation", "score"):
        other = with_replays(folder, monkeypatch, elite={**elite, name: elite[name] + 1})
        assert other.replays is None, f"of another elite, by its {name}"


def test_a_target_near_the_returns_is_drawn_and_one_far_from_them_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read(folder)
    returns = [x for member in (run.elite, *run.members) for x in member.returns]
    low, high = min(returns), max(returns)
    for target, seen in ((high + 0.29 * (high - low), True), (high + 0.31 * (high - low), False), (low - 1.0, False)):
        aimed = replace(run, summary=replace(run.summary, target=target))
        plot = drawn(figures.evaluation, aimed, 1000, monkeypatch)
        lines = [line for line in plot.axes.lines if [*line.get_xdata()] == [target, target]]
        assert len(lines) == seen, target
        assert not seen or plot.axes.get_xlim()[1] >= target


@pytest.mark.parametrize("gap", [0.0, 0.01, -0.01, 5.0])
def test_names_of_the_target_and_of_the_elites_score_stand_apart_in_their_order(
    gap: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read(folder)
    best = run.generations[-1].elite
    plot = drawn(figures.fitness, replace(run, summary=replace(run.summary, target=best + gap)), 1000, monkeypatch)
    notes = {note.get_text().split()[0]: note for note in plot.axes.texts}
    target, elite = (float(notes[name].xy[1]) for name in ("target", "elite"))
    low, high = plot.axes.get_ylim()
    least = 0.055 * (high - low)
    assert (target + elite) / 2 == pytest.approx(best + gap / 2)
    assert not gap or (target > elite) == (gap > 0)
    assert abs(target - elite) == pytest.approx(max(least, abs(gap)))
