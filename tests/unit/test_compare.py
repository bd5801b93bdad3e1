"""`evopipe compare`: runs of folders, experiments and revisions, put together by configuration."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import reports
from evopipe.compare import compare
from evopipe.compare import table as lines_of
from evopipe.compare.labels import labels
from evopipe.compare.pictures import draw, draw_curves, draw_parallel, family, scaled, together
from evopipe.errors import MissingInputError
from evopipe.report.family import Family
from evopipe.report.page import compose, without_measured
from evopipe.report.read import read
from evopipe.schema.read import read_yaml
from evopipe.schema.write import dump_yaml
from evopipe.stages.report import _shown
from tiny import Answer, call


def write_run(folder: Path, seed: int, mean: float, lr: float = 0.1, **other: Any) -> Path:
    """What a finished pipeline leaves of a run whose elite scored so; its episodes say [mean - 1, mean + 2]."""
    elite = {"mean": mean, "interval": [mean - 1.0, mean + 2.0], "iqm": mean + 0.5}
    text = json.dumps({"elite": elite, "env": "E-v0", "episodes": 7, "steps": 100}).encode()
    (folder / "reports").mkdir(parents=True, exist_ok=True)
    (folder / "reports/evaluation.json").write_bytes(text)
    params = {"seed": seed, "env.id": "E-v0", "train": {"algo": "a"}, "algos.a": {"lr": lr, **other}}
    scored = [{"path": "reports/evaluation.json", "md5": hashlib.md5(text).hexdigest()}]
    stages = {
        "train": {"params": {"params.yaml": params}, "outs": [{"path": "models/trained", "md5": "1.dir"}]},
        "evaluate": {
            "params": {"params.yaml": {"seed": seed}},
            "deps": [{"path": "models/trained", "md5": "1.dir"}],
            "outs": scored,
        },
    }
    (folder / "dvc.lock").write_text(dump_yaml({"schema": "2.0", "stages": stages}))
    return folder


def table(answer: Answer) -> list[list[str]]:
    assert answer.code == 0, answer
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in answer.out.splitlines()]


def test_runs_of_one_configuration_are_its_seeds(tmp_path: Path) -> None:
    for seed, mean in enumerate((0.0, 10.0, 4.0, 2.0)):
        write_run(tmp_path / f"a{seed}", seed, mean)
    for seed in (3, 4):
        write_run(tmp_path / f"b{seed}", seed, 20.0, lr=0.2)
    answer = call(tmp_path, "compare", "a0", "b3", "a1", "a2", "a3", "b4", "a2")
    header, best, other, _, said = table(answer)
    assert header == ["configuration", "over", "mean", "95 % interval", "IQM"]
    assert said == ["in short: lr is algos.a.lr"]
    assert best == ["lr=0.2", "2 seeds", "20.0", "[20.0, 20.0]", "20.0"]
    # 0, 2, 4, 10: the mean is 4, that of the middle half 3; a resample is 0 four times out of 256, 2.5 % are 6.4.
    assert other[:3] + other[4:] == ["lr=0.1", "4 seeds", "4.0", "3.0"]
    low, high = json.loads(other[3])
    assert 0.0 < low < 2.0
    assert 6.0 < high < 10.0


def test_the_best_is_the_one_of_the_highest_mean(tmp_path: Path) -> None:
    """Whatever its interquartile mean is: one very good seed of five is left out of that."""
    for name, lr, means in (("a", 0.1, (0.0, 0.0, 0.0, 0.0, 90.0)), ("b", 0.2, (5.0, 5.0, 5.0, 5.0, 5.0))):
        for seed, mean in enumerate(means):
            write_run(tmp_path / f"{name}{seed}", seed, mean, lr)
    rows, _ = compare([str(path) for path in tmp_path.iterdir()])
    assert [(row.mean, row.iqm < 5.5) for row in rows] == [(18.0, True), (5.0, True)]
    assert rows[0].iqm < rows[1].iqm


def test_two_seeds_are_the_ends_of_their_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the resamples takes the lower one twice."""
    monkeypatch.chdir(tmp_path)
    names = [str(write_run(tmp_path / str(seed), seed, mean)) for seed, mean in enumerate((3.0, 8.0))]
    ((row,), notes) = compare(names)
    assert (row.mean, row.interval, row.means, notes) == (5.5, (3.0, 8.0), (3.0, 8.0), [])


def test_of_one_configuration_and_seed_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [str(write_run(tmp_path / str(score), 4, score)) for score in (3.0, 8.0)]
    for order in (names, names[::-1]):
        ((row,), _) = compare(order)
        assert (row.over, row.mean) == ("7 episodes of seed 4", float(order[0].rpartition("/")[2]))


def test_one_seed_has_its_episodes(tmp_path: Path) -> None:
    write_run(tmp_path, 5, 10.0)
    _, row = table(call(tmp_path, "compare", "."))
    assert row == ["env.id=E-v0 train.algo=a", "7 episodes of seed 5", "10.0", "[9.0, 12.0]", "10.5"]


def test_a_score_that_is_not_of_the_parameters_does_not_count(tmp_path: Path) -> None:
    """As after a stage that failed, or an edit by hand."""
    write_run(tmp_path / "a", 1, 10.0)
    (tmp_path / "a/reports/evaluation.json").write_text(
        '{"elite": {"mean": 1, "interval": [0, 1], "iqm": 1}, "episodes": 1}'
    )
    said = "a: reports/evaluation.json is not of the run in dvc.lock; run `dvc repro` there\n"
    assert call(tmp_path, "compare", "a") == (65, "", f"error: {said}")
    write_run(tmp_path / "b", 1, 10.0)
    lock = (tmp_path / "b/dvc.lock").read_text()
    (tmp_path / "b/dvc.lock").write_text(lock.replace("1.dir", "2.dir", 1))
    assert call(tmp_path, "compare", "b").code == 65
    (tmp_path / "b/dvc.lock").write_text("stages: [1]\n")
    assert "is of no pipeline of evopipe" in call(tmp_path, "compare", "b").err


def test_what_is_no_run_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert call(tmp_path, "compare", "a") == (
        66,
        "",
        "error: a: has no run (a/dvc.lock: not there); compare reads what `dvc repro` and `evopipe sweep` left, not "
        "folders that evopipe.train wrote in Python\n",
    )
    assert call(tmp_path, "compare").code == 66
    assert call(tmp_path, "compare", "no-such-name").code == 64


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
    run = subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "run")
    return git(folder, "rev-parse", "HEAD")


def test_experiments_and_revisions(tmp_path: Path) -> None:
    """As DVC keeps them: `refs/exps/<commit they began from>/<name>`."""
    git(tmp_path, "init", "-q")
    first = commit(write_run(tmp_path, 1, 10.0))
    experiment = commit(write_run(tmp_path, 2, 20.0))
    git(tmp_path, "update-ref", f"refs/exps/{first[:2]}/{first[2:]}/warm-hill", experiment)
    git(tmp_path, "update-ref", "refs/exps/exec/EXEC_HEAD", first)
    git(tmp_path, "reset", "-q", "--hard", first)
    assert table(call(tmp_path, "compare"))[1][1:3] == ["2 seeds", "15.0"]
    assert table(call(tmp_path, "compare", "warm-hill"))[1][1:3] == ["7 episodes of seed 2", "20.0"]
    assert table(call(tmp_path, "compare", "HEAD", first[:9]))[1][1:3] == ["7 episodes of seed 1", "10.0"]
    commit(write_run(tmp_path, 3, 90.0))  # an experiment of the commit before is none of HEAD's
    assert table(call(tmp_path, "compare"))[1][1:3] == ["7 episodes of seed 3", "90.0"]
    assert table(call(tmp_path, "compare", "--all"))[1][1:3] == ["2 seeds", "55.0"]


def test_a_head_from_before_the_first_run_is_no_news(tmp_path: Path) -> None:
    """As in a new project: no warning; a HEAD with a score that cannot be used still has one."""
    git(tmp_path, "init", "-q")
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    commit(tmp_path)
    write_run(tmp_path, 1, 10.0)
    answer = call(tmp_path, "compare")
    assert (answer.code, answer.err) == (0, "")
    kept = (tmp_path / "dvc.lock").read_text()
    (tmp_path / "dvc.lock").write_text(kept.replace("1.dir", "2.dir", 1))
    commit(tmp_path)
    (tmp_path / "dvc.lock").write_text(kept)
    assert "warning: HEAD: reports/evaluation.json is not of the run" in call(tmp_path, "compare").err


def test_the_picture(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1, 10.0, lr=0.5)
    write_run(tmp_path / "b", 1, 20.0, lr=0.25)
    for name in ("one.svg", "two.svg", "three.png"):
        answer = call(tmp_path, "compare", "a", "b", "--picture", name)
        assert answer.out.endswith(f"written: {name}\n"), answer
    drawn = (tmp_path / "one.svg").read_text()
    assert drawn.index("lr=0.5") > 0
    assert drawn.index("lr=0.25") > 0
    assert drawn == (tmp_path / "two.svg").read_text()
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")
    assert call(tmp_path, "compare", "a", "--picture", "x.doc").code == 64


# --- numbers ----------------------------------------------------------------------------------------------------------

A, B, C = {1: -3.5, 2: 0.0, 3: 12.0, 4: 5.0, 5: 4.25}, {9: 30.0, 2: 41.0, 5: 33.5}, {7: 17.0}


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Three configurations of five, three and one seeds, of which none are named in order."""
    found = []
    for lr, scores in ((0.3, C), (0.1, A), (0.2, B)):
        found += [str(write_run(tmp_path / f"{lr}-{seed}", seed, score, lr)) for seed, score in scores.items()]
    return [*found[::2], *found[1::2]]


def interval(values: list[float]) -> tuple[float, float]:
    """The ends of the middle 95 % of all resamples there are."""
    means = sorted(fmean(each) for each in itertools.product(values, repeat=len(values)))
    out = math.ceil(0.025 * len(means))
    return means[out - 1], means[-out]


def test_the_table_is_computed_from_the_seeds_means(names: list[str]) -> None:
    rows, notes = compare(names)
    assert notes == []
    assert [row.label for row in rows] == [f"lr={lr}" for lr in (0.2, 0.3, 0.1)], "the best mean first"
    assert [row.over for row in rows] == ["3 seeds", "7 episodes of seed 7", "5 seeds"]
    assert [sorted(row.means) for row in rows] == [sorted(each.values()) for each in (B, C, A)]
    assert [row.mean for row in rows] == pytest.approx([fmean(each.values()) for each in (B, C, A)])
    for row, scores in ((rows[0], B), (rows[2], A)):
        low, high = interval([*scores.values()])
        spread = max(scores.values()) - min(scores.values())
        assert row.interval == (pytest.approx(low, abs=0.03 * spread), pytest.approx(high, abs=0.03 * spread))
    # Each of three has a third, of which the middle half covers a twelfth of the outer ones; of five each has a fifth.
    low, middle, high = sorted(B.values())
    assert rows[0].iqm == pytest.approx(((1 / 3 - 0.25) * (low + high) + middle / 3) / 0.5)
    ordered = sorted(A.values())
    assert rows[2].iqm == pytest.approx((0.15 * (ordered[1] + ordered[3]) + 0.2 * ordered[2]) / 0.5)
    assert (rows[1].interval, rows[1].iqm) == ((16.0, 19.0), 17.5)
    lines = [re.split(r"\s{2,}", line) for line in lines_of(rows).splitlines()]
    assert lines[0] == ["configuration", "over", "mean", "95 % interval", "IQM"]
    assert lines[-2:] == [[""], ["in short: lr is algos.a.lr"]]
    for cells, row in zip(lines[1:-2], rows, strict=True):
        low, high = row.interval
        numbers = (row.mean, row.iqm, low, high)
        mean, iqm, *ends = (f"{x:.1f}" if x == int(x) else f"{x:.4g}" for x in numbers)
        assert cells == [row.label, row.over, mean, f"[{', '.join(ends)}]", iqm]


def places(group: ElementTree.Element) -> list[tuple[float, float]]:
    """Where marks of a drawn line are."""
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in group.iter("{http://www.w3.org/2000/svg}use")]


def test_the_picture_has_the_tables_numbers_at_its_axes_own_places(names: list[str], tmp_path: Path) -> None:
    """From the written file alone: ticks say where which number is."""
    rows, _ = compare(names)
    draw(rows, tmp_path / "x.svg")
    root = ElementTree.fromstring((tmp_path / "x.svg").read_text())
    groups = [each for each in root.iter("{http://www.w3.org/2000/svg}g") if "id" in each.attrib]
    ticks = {}
    for group in groups:
        if re.fullmatch(r"xtick_\d+", group.attrib["id"]):
            text = "".join(group.itertext()).strip().replace("−", "-")
            line = next(group.iter("{http://www.w3.org/2000/svg}path"))
            ticks[float(text)] = float(line.attrib["d"].split()[1])
    values, pixels = zip(*sorted(ticks.items()), strict=True)
    scale, first = np.polyfit(values, pixels, 1)
    assert np.allclose(first + scale * np.array(values), pixels, atol=0.01)
    labels = ["".join(group.itertext()).strip() for group in groups if re.fullmatch(r"ytick_\d+", group.attrib["id"])]
    assert labels == [row.label for row in rows]

    def drawn(gid: str) -> list[list[float]]:
        return [[(x - first) / scale for x, _ in places(group)] for group in groups if group.attrib["id"] == gid]

    assert drawn("runs") == [pytest.approx(list(row.means), abs=0.05) for row in rows]
    assert drawn("mean") == [[pytest.approx(row.mean, abs=0.05)] for row in rows]
    assert drawn("iqm") == [[pytest.approx(row.iqm, abs=0.05)] for row in rows]
    shown = (tmp_path / "x.svg").read_text()
    lines = re.findall(r'd="M ([\d.]+) ([\d.]+) \s*L ([\d.]+) ([\d.]+)\s*"[^>]*stroke: #cf4a1f', shown)
    ends = [tuple((float(line[i]) - first) / scale for i in (0, 2)) for line in lines]
    assert ends == [pytest.approx(row.interval, abs=0.05) for row in rows]


# --- curves and parallel coordinates ----------------------------------------------------------------------------------


def write_curve(folder: Path, steps: list[int], elite: list[float]) -> None:
    """`reports/fitness.csv` and `timing.csv` of generations that took 2 s each."""
    head = "generation,step,env_steps,eval_steps,best,mean,elite"
    rows = [f"{i},{n},{n},{10 * (i + 1)},0,0,{y}" for i, (n, y) in enumerate(zip(steps, elite, strict=True))]
    (folder / "reports/fitness.csv").write_text("\n".join([head, *rows]) + "\n")
    seconds = [f"{i},2.0,{n},10" for i, n in enumerate(steps)]
    (folder / "reports/timing.csv").write_text("\n".join(["generation,seconds,env_steps,eval_steps", *seconds]) + "\n")


def test_curves_of_runs_whose_generations_end_elsewhere_are_put_together() -> None:
    """At each of their points, from where all have begun to where the first has ended; straight lines between."""
    one = (np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0, 3.0]))
    other = (np.array([15.0, 25.0, 60.0]), np.array([5.0, 6.0, 7.0]))
    x, y = together([one, other])
    assert x.tolist() == [15.0, 20.0, 25.0, 30.0]
    assert y[0].tolist() == pytest.approx([1.5, 2.0, 2.5, 3.0])
    assert y[1].tolist() == pytest.approx([5.0, 5.5, 6.0, 6.0 + 5 / 35])
    apart = (np.array([40.0, 50.0]), np.array([9.0, 9.5]))
    x, y = together([one, apart])
    assert (x.tolist(), y.tolist()) == ([40.0], [[3.0], [9.0]])


def test_values_lie_on_an_axis_by_size_by_logarithm_or_by_name() -> None:
    places, labels = scaled([2, 4, 3, 2])
    assert places.tolist() == [0.0, 1.0, 0.5, 0.0]
    assert labels == [(0.0, "2"), (0.5, "3"), (1.0, "4")]
    assert scaled([1e-4, 1e-2, 1e-3])[0].tolist() == pytest.approx([0.0, 1.0, 0.5])
    places, labels = scaled(["ppo", "dqn", "ppo", "sac"])
    assert places.tolist() == [0.5, 0.0, 0.5, 1.0]
    assert labels == [(0.0, "dqn"), (0.5, "ppo"), (1.0, "sac")]
    assert scaled([True, False])[0].tolist() == [1.0, 0.0]
    assert scaled([7.0, 7.0])[0].tolist() == [0.5, 0.5]
    assert len(scaled(list(range(100)))[1]) == 2, "many values: their ends"


def test_curves_and_parallel_coordinates_are_drawn(tmp_path: Path) -> None:
    for seed in range(3):
        for lr in (0.1, 0.2):
            folder = write_run(tmp_path / f"{lr}-{seed}", seed, 10.0 * lr + seed, lr)
            write_curve(folder, [100, 200 + seed, 300], [0.0, lr * 10, 20.0 + seed])
    names = sorted(path.name for path in tmp_path.iterdir())
    answer = call(tmp_path, "compare", *names, "--curves", "curves.svg", "--parallel", "parallel.png")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith("written: curves.svg\nwritten: parallel.png\n")
    text = (tmp_path / "curves.svg").read_text()
    for shown in ("lr=0.1 (3 seeds)", "lr=0.2 (3 seeds)", "in short: lr is algos.a.lr", "seconds", "environment steps"):
        assert shown in text
    ElementTree.fromstring(text)
    assert (tmp_path / "parallel.png").read_bytes().startswith(b"\x89PNG")


def test_axes_change_their_kind_where_they_should() -> None:
    """Logarithms beyond a factor of 20, every value up to eight of them, names in their order."""
    assert scaled([1.0, 20.0, 10.5])[0].tolist() == [0.0, 1.0, 0.5]
    assert scaled([1.0, 25.0, 5.0])[0].tolist() == pytest.approx([0.0, 1.0, 0.5])
    assert scaled([0.0, 100.0, 50.0])[0].tolist() == [0.0, 1.0, 0.5], "0 has no logarithm"
    assert scaled([*range(8)])[1] == [(place / 7, str(place)) for place in range(8)]
    assert scaled([*range(1, 10)])[1] == [(0.0, "1.0"), (1.0, "9.0")]
    names = [f"{letter} {letter}{'z' * 30}" for letter in "fbhdagce"]
    places, labels = scaled(names)
    assert places.tolist() == pytest.approx(["abcdefgh".index(name[0]) / 7 for name in names])
    assert labels[2] == (pytest.approx(2 / 7), "c [...]")
    assert scaled(["one", "one"])[0].tolist() == [0.0, 0.0]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is written, as matplotlib has it."""
    from matplotlib.figure import Figure

    found: list[Any] = []
    plain = Figure.savefig

    def kept(figure: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(figure)
        return plain(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", kept)
    return found


@pytest.mark.thorough
def test_curves_are_means_over_runs_with_the_ends_of_their_bands(tmp_path: Path, figures: list[Any]) -> None:
    """Of two runs a quarter of the resamples takes the lower one twice: the band's ends are the runs."""
    for seed, elite in enumerate(([0.0, 5.0], [2.0, 9.0])):
        write_curve(write_run(tmp_path / f"a{seed}", seed, 30.0 + seed, 0.1), [100, 200], elite)
    write_curve(write_run(tmp_path / "b", 7, 10.0, 0.2), [50, 150, 250], [1.0, 2.0, 3.0])
    rows, _ = compare([str(tmp_path / name) for name in ("a0", "b", "a1")])
    draw_curves(rows, tmp_path / "x.png")
    (figure,) = figures
    expected = [([[110.0, 1.0], [220.0, 7.0]], [[60.0, 1.0], [170.0, 2.0], [280.0, 3.0]]),
                ([[2.0, 1.0], [4.0, 7.0]], [[2.0, 1.0], [4.0, 2.0], [6.0, 3.0]])]  # fmt: skip
    assert [tuple(line.get_xydata().tolist() for line in axes.lines) for axes in figure.axes] == expected
    assert [axes.get_xlabel() for axes in figure.axes] == ["environment steps, evaluation too", "seconds"]
    assert figure.axes[0].get_ylabel() == "the elite's fitness"
    words = ["lr=0.1 (2 seeds)", "lr=0.2 (7 episodes of seed 7)"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == words
    for axes, (first, last) in zip(figure.axes, ((110.0, 220.0), (2.0, 4.0)), strict=True):
        colours = [line.get_color() for line in axes.lines]
        assert len({*colours}) == 2
        (band,) = axes.collections  # of the configuration with two runs
        assert band.get_facecolor()[0][:3] == pytest.approx([int(colours[0][i : i + 2], 16) / 255 for i in (1, 3, 5)])
        corners = {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}
        assert corners == {(first, 0.0), (first, 2.0), (last, 5.0), (last, 9.0)}


@pytest.mark.thorough
def test_lines_of_parallel_coordinates_go_through_a_runs_values_to_its_score(
    tmp_path: Path, figures: list[Any]
) -> None:
    """The best is drawn last, on top of the others."""
    for name, seed, mean, lr, size in (("a", 1, 4.0, 0.1, 64), ("b", 2, 8.0, 0.1, 64), ("c", 1, 0.0, 0.3, 32)):
        write_run(tmp_path / name, seed, mean, lr, batch_size=size)
    rows, _ = compare([str(tmp_path / name) for name in "abc"])
    draw_parallel(rows, tmp_path / "x.png")
    ((axes,),) = (figure.axes for figure in figures)
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert [[float(y) for y in line.get_ydata()] for line in lines] == [[1, 0, 0], [0, 1, 0.5], [0, 1, 1]]
    assert len({str(line.get_color()) for line in lines}) == 3
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "lr", "batch_size", "held-out return"
    ]  # fmt: skip
    shown = [(note.get_text(), *map(float, note.xy)) for note in axes.texts]
    assert shown == [("0.1", 0, 0), ("0.3", 0, 1), ("32", 1, 0), ("64", 1, 1), ("0", 2, 0), ("4", 2, 0.5), ("8", 2, 1)]


@pytest.mark.thorough
def test_curves_of_an_experiment_come_from_the_cache_of_dvc(tmp_path: Path) -> None:
    """As in a project, where git has scores and dvc.lock, and DVC the curves."""
    git(tmp_path, "init", "-q")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=tmp_path, check=True)
    write_curve(write_run(tmp_path, 1, 10.0), [100, 200], [0.0, 5.0])
    lock = read_yaml(tmp_path / "dvc.lock").data
    for name in ("fitness.csv", "timing.csv"):
        text = (tmp_path / "reports" / name).read_bytes()
        md5 = hashlib.md5(text).hexdigest()
        kept = tmp_path / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
        kept.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reports" / name).rename(kept)
        lock["stages"]["train"]["outs"].append({"path": f"reports/{name}", "md5": md5})
    (tmp_path / "dvc.lock").write_text(dump_yaml(lock))
    commit(tmp_path)
    answer = call(tmp_path, "compare", "HEAD", "--curves", "curves.svg")
    assert (answer.code, answer.err) == (0, ""), answer
    assert answer.out.endswith("written: curves.svg\n")
    for kept in (tmp_path / ".dvc/cache/files/md5").glob("*/*"):
        kept.unlink()
    answer = call(tmp_path, "compare", "HEAD", "--curves", "curves.svg")
    assert (answer.code, answer.err.count("\n")) == (66, 1)
    assert answer.err.startswith("error: HEAD: has no reports/fitness.csv; `dvc pull`")


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", 0, 1.0)
    answer = call(tmp_path, "compare", "a", "--curves", "x.svg")
    assert (answer.code, answer.err.count("\n")) == (66, 1)
    assert answer.err.startswith("error: a: has no reports/fitness.csv; ")
    write_curve(folder, [100], [1.0])
    (folder / "reports/timing.csv").write_text("generation,seconds\n1,soon\n")
    answer = call(tmp_path, "compare", "a", "--curves", "x.svg")
    assert (answer.code, answer.err.partition(" (")[0]) == (
        65, "error: a: reports/timing.csv has no row of numbers for each generation",
    )  # fmt: skip
    answer = call(tmp_path, "compare", "a", "--parallel", "x.svg")
    assert (answer.code, answer.err) == (
        64, "error: compare: --parallel: there is nothing in which these runs differ but their seeds\n",
    )  # fmt: skip


def test_scores_of_several_environments_come_with_a_word(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 0, 1.0)
    other = write_run(tmp_path / "b", 0, 2.0)
    (other / "dvc.lock").write_text((other / "dvc.lock").read_text().replace("E-v0", "F-v0"))
    answer = call(tmp_path, "compare", "a", "b")
    assert answer.code == 0
    assert "warning: these runs are of several environments (E-v0, F-v0): scores of one say nothing" in answer.err


def test_what_the_report_shows_of_several_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of the terminal, and the pictures of `--curves` and `--parallel`; without what cannot be drawn."""
    monkeypatch.chdir(tmp_path)
    for lr in (0.1, 0.2):
        write_run(tmp_path / f"{lr}", 0, 10.0 * lr, lr)
    names = ["0.1", "0.2"]
    rows, notes = compare(names)
    found = family(rows, notes)
    shown = " ".join(" ".join(line) for line in (found.head, *found.rows))
    assert lines_of(rows).split() == f"{shown} in short: lr is algos.a.lr".split()
    assert found.notes == [*notes, "in short: lr is algos.a.lr"]
    assert [about.partition(":")[0] for about, _ in found.pictures] == ["Parallel coordinates"], "no run has a curve"
    for lr in (0.1, 0.2):
        write_curve(tmp_path / f"{lr}", [100, 200], [0.0, lr])
    assert call(tmp_path, "compare", *names, "--curves", "x.svg").code == 0
    found = family(rows, notes)
    assert found.pictures[0][1] == (tmp_path / "x.svg").read_bytes()
    assert len(found.pictures) == 2
    assert len(family(rows[:1], notes).pictures) == 1, "nothing differs"


def write_swept(folder: Path, mean: float, stages: tuple[str, ...], **settings: Any) -> None:
    """What a sweep leaves of a run: no lock, its parameters and the stages that it has done."""
    made = {"seed": 1, "env": {"id": "E-v0"}, "train": {"algo": "dqn"}, "algos": {"dqn": {"lr": 0.1}, "ppo": {"lr": 9}},
            "tracking": {"backends": []}}  # fmt: skip
    for key, value in settings.items():
        if key == "lr":
            made["algos"]["dqn"]["lr"] = value  # type: ignore[index]
        else:
            made[key] = value
    (folder / "reports").mkdir(parents=True)
    elite = {"mean": mean, "interval": [mean - 1.0, mean + 2.0], "iqm": mean}
    (folder / "reports/evaluation.json").write_text(json.dumps({"elite": elite, "episodes": 7}))
    (folder / "params.yaml").write_text(dump_yaml(made))
    (folder / "sweep.json").write_text(json.dumps({"stages": dict.fromkeys(stages, 1.0), "cpu": {}}))


def test_a_sweeps_runs_are_grouped_by_what_their_scores_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ("population", "train", "evaluate")
    write_swept(tmp_path / "s/a", 10.0, done)
    write_swept(tmp_path / "s/b", 20.0, done, seed=2, tracking={"backends": ["mlflow"]})
    write_swept(tmp_path / "s/c", 40.0, done, seed=2, lr=0.2)
    (tmp_path / "s/later").mkdir()
    (tmp_path / "s/later/sweep.json").write_text('{"stages": {"train": 1.0}}')  # goes on: not scored yet
    rows, notes = compare(["s"])
    assert [(row.label, row.over, row.mean) for row in rows] == [
        ("lr=0.2", "7 episodes of seed 2", 40.0), ("lr=0.1", "2 seeds", 15.0),
    ]  # fmt: skip
    assert notes == []
    settings = rows[0].runs[0].settings
    assert settings["algos.dqn.lr"] == 0.2
    assert not [key for key in settings if key.startswith(("seed", "tracking", "algos.ppo"))]
    write_swept(tmp_path / "other", 1.0, ("population", "train"))
    with pytest.raises(MissingInputError, match="other: has no score yet"):
        compare(["other"])


@pytest.mark.thorough
def test_a_report_has_a_section_on_other_runs_if_asked(tmp_path: Path) -> None:
    params = _shown(reports.write_run(tmp_path, members=2, generations=3, episodes=20))
    run = read(tmp_path)
    rows = [("lr=1", "3 seeds", "12", "[10, 14]", "12")]
    shown = Family(
        ("configuration", "over", "mean", "95 % interval", "IQM"), rows, ["they differ"], [("A curve.", b"<svg/>")]
    )
    with_others, alone = compose(run, params, "No film.", shown), compose(run, params, "No film.")
    section = with_others.partition('<section id="family"')[2].partition("</section>")[0]
    for text in ("They differ.", "lr=1", "[10, 14]", 'src="data:image/svg+xml;base64,PHN2Zy8+"', 'alt="A curve."'):
        assert text in section
    assert 'href="#family"' in with_others
    assert 'id="family"' not in alone
    assert without_measured(with_others) == without_measured(alone), "no stage wrote it"


@pytest.mark.thorough
def test_the_command_writes_that_section_and_else_none(tmp_path: Path) -> None:
    """Two runs of one configuration: this folder's and that of another seed."""
    for seed, folder in enumerate((tmp_path, tmp_path / "other")):
        folder.mkdir(exist_ok=True)
        params = reports.write_run(folder, members=2, generations=3, episodes=4, overrides={"seed": seed})
        (folder / "params.yaml").write_text(dump_yaml(params.model_dump(mode="json")))
        text = (folder / "reports/evaluation.json").read_bytes()
        written = write_run(tmp_path / f"lock-{seed}", seed, 1.0) / "dvc.lock"
        fake = hashlib.md5((written.parent / "reports/evaluation.json").read_bytes()).hexdigest()
        (folder / "dvc.lock").write_text(written.read_text().replace(fake, hashlib.md5(text).hexdigest()))
    answer = call(tmp_path, "--quiet", "report", "--with", "other")
    assert (answer.code, answer.err) == (0, "")
    page = (tmp_path / "reports/report.html").read_text()
    section = page.partition('<section id="family"')[2].partition("</section>")[0]
    assert "2 seeds" in section
    assert section.count("<img") == 1, "curves; nothing differs but the seeds"
    assert call(tmp_path, "--quiet", "report").code == 0
    assert 'id="family"' not in (tmp_path / "reports/report.html").read_text()
    answer = call(tmp_path, "report", "--with", "nowhere")
    assert (answer.code, answer.err.count("\n")) == (64, 1)
    assert answer.err.startswith("error: compare: nowhere is no folder, no experiment and no git revision")


def axis(within: ElementTree.Element, which: str) -> tuple[float, float]:
    """Pixels of one, and of 0, by the ticks of an axis."""
    ticks = {}
    for group in within.iter("{http://www.w3.org/2000/svg}g"):
        if re.fullmatch(rf"{which}tick_\d+", group.attrib.get("id", "")):
            text = "".join(group.itertext()).strip().replace("−", "-").replace(",", "")
            grid = next(group.iter("{http://www.w3.org/2000/svg}path"))
            ticks[float(text)] = float(grid.attrib["d"].split()[1 if which == "x" else 2])
    scale, first = np.polyfit([*ticks], [*ticks.values()], 1)
    return float(scale), float(first)


def path_of(element: ElementTree.Element) -> np.ndarray:
    (path,) = element.iter("{http://www.w3.org/2000/svg}path")
    return np.array(re.findall(r"[ML] (\S+) (\S+)", path.attrib["d"]), np.float64)


def parts(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    every = root.iter("{http://www.w3.org/2000/svg}g")
    return [group for group in every if re.fullmatch(rf"{name}_\d+", group.attrib.get("id", ""))]


def test_curves_are_the_elites_over_all_steps_and_the_seconds_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each configuration the mean over its runs, within a band that two of them span; as it is written."""
    monkeypatch.chdir(tmp_path)
    elites = {("a", 0): [1.0, 3.0, 4.0], ("a", 1): [5.0, 6.0, 12.0], ("b", 0): [0.0, 1.0, 2.0]}
    for (lr, seed), elite in elites.items():
        folder = write_run(tmp_path / f"{lr}{seed}", seed, elite[-1], lr=float(lr == "a"))
        write_curve(folder, [1000, 2000, 3000], elite)
    rows, _ = compare(["a0", "a1", "b0"])
    draw_curves(rows, tmp_path / "x.svg")
    root = ElementTree.fromstring((tmp_path / "x.svg").read_text())
    steps, seconds = parts(root, "axes")
    up, bottom = axis(steps, "y")
    # What write_curve writes: 10 more steps of evaluation with each generation, which takes 2 s.
    for axes, places in ((steps, [1010, 2020, 3030]), (seconds, [2, 4, 6])):
        right, left = axis(axes, "x")

        def at(points: np.ndarray, right: float = right, left: float = left) -> list[tuple[float, float]]:
            return [(x, y) for x, y in ((points - (left, bottom)) / (right, up)).round(2).tolist()]

        lines = [each for each in axes if each in parts(axes, "line2d")]
        assert [at(path_of(each)) for each in lines] == [
            [*zip(places, [3.0, 4.5, 8.0], strict=True)], [*zip(places, [0.0, 1.0, 2.0], strict=True)],
        ]  # fmt: skip
        every = [path.attrib["d"] for path in axes.iter("{http://www.w3.org/2000/svg}path")]
        (band,) = [path for path in every if path.count("L") > 4]
        (use,) = [use for use in axes.iter("{http://www.w3.org/2000/svg}use") if "0.18" in use.attrib.get("style", "")]
        shift = [float(use.attrib[name]) for name in "xy"]
        edges = at(np.array(re.findall(r"[ML] (\S+) (\S+)", band), np.float64) + shift)
        both = [[elites["a", seed][i] for seed in (0, 1)] for i in range(3)]
        assert {*edges} == {(x, y) for x, ends in zip(places, both, strict=True) for y in ends}


def test_parallel_lines_go_through_each_runs_own_values_to_its_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [(0.1, 64, 5.0), (0.2, 16, 20.0), (0.4, 32, 10.0)]
    for i, (lr, batch, mean) in enumerate(runs):
        write_run(tmp_path / str(i), i, mean, lr, batch=batch)
    write_run(tmp_path / "3", 9, 15.0, 0.2, batch=16)  # another seed of the second
    rows, _ = compare(["0", "1", "2", "3"])
    draw_parallel(rows, tmp_path / "x.svg")
    (axes,) = parts(ElementTree.fromstring((tmp_path / "x.svg").read_text()), "axes")
    lines = [path_of(each) for each in axes if each in parts(axes, "line2d")]
    columns = sorted(each[0, 0] for each in lines if len({*each[:, 0]}) == 1)  # the axes
    runs_lines = [each for each in lines if len({*each[:, 0]}) > 1]
    assert all(each[:, 0].tolist() == pytest.approx(columns) for each in runs_lines)
    assert len(columns) == 3, "two settings and the score"
    high, low = (end(y for each in runs_lines for y in each[:, 1]) for end in (min, max))
    drawn = [((low - each[:, 1]) / (low - high)).round(2).tolist() for each in runs_lines]
    assert drawn == [[0.0, 1.0, 0.0], [1.0, 0.33, 0.33], [0.33, 0.0, 0.67], [0.33, 0.0, 1.0]], "the best on top"
    texts = ["".join(group.itertext()).strip() for group in parts(axes, "xtick")]
    assert texts == ["lr", "batch", "held-out return"]


def test_labels_name_what_differs_and_the_legend_what_they_leave_out() -> None:
    """A parameter of one algorithm differs among its runs alone; what all runs share is in no label."""
    small, large = {"env.id": "E-v0", "population.size": 4}, {"env.id": "E-v0", "population.size": 8}
    dqn = {"train.algo": "dqn", "algos.dqn.lr": 0.1, "algos.dqn.network.encoder": [64, 64]}
    ppo = {"train.algo": "ppo", "algos.ppo.lr": 0.3}
    assert labels([small, large], ["a", "b"]) == (["population.size=4", "population.size=8"], [])
    assert labels([small], ["a"]) == (["env.id=E-v0 train.algo=null"], [])
    told, legend = labels([dqn, dqn | {"algos.dqn.lr": 0.00025}, ppo], ["a", "b", "c"])
    assert told == ["train.algo=dqn lr=0.1", "train.algo=dqn lr=2.5e-4", "train.algo=ppo"]
    assert legend == ["in short: lr is algos.dqn.lr"]
    told, legend = labels([dqn, dqn | {"algos.dqn.lr": 0.2}, ppo, ppo | {"algos.ppo.lr": 0.1}], [*"abcd"])
    assert told[1:3] == ["train.algo=dqn dqn.lr=0.2", "train.algo=ppo ppo.lr=0.3"]
    older = {key: value for key, value in large.items() if key != "env.id"}
    assert labels([small, large, older], ["a", "b", "c d"])[0] == [
        "population.size=4", "population.size=8 of b", "population.size=8 of c d",
    ]  # fmt: skip


def test_a_label_that_is_too_long_is_cut_and_numbered_and_the_legend_has_all_of_it() -> None:
    many = {f"algos.a.number_{letter}": 1 for letter in "abc"} | {"algos.a.encoder": [128, 128, 128, 128, 128]}
    told, legend = labels([many, dict.fromkeys(many, 2)], ["a", "b"])
    assert told == ["1: number_a=1 number_b=1 number_c=1 …", "number_a=2 number_b=2 number_c=2 encoder=2"]
    whole = "algos.a.number_a=1, algos.a.number_b=1, algos.a.number_c=1, algos.a.encoder=[128, 128, 128, 128, 128]"
    assert legend[1:] == [f"configuration 1: {whole}"]
    (long, plain), legend = labels([{"algos.a.encoder": [256] * 9}, {"algos.a.encoder": 1}], ["a", "b"])
    assert (long, plain) == ("1: encoder=[256, 256, 256, 256…", "encoder=1")
    assert legend == ["in short: encoder is algos.a.encoder", f"configuration 1: algos.a.encoder={[256] * 9}"]


@pytest.mark.thorough
def test_a_picture_has_room_for_its_legend(tmp_path: Path, figures: list[Any]) -> None:
    """Its lines lie below the axes and within the figure."""
    for index, name in enumerate("ab"):
        write_run(tmp_path / name, 0, 1.0, **{f"number_{letter}": index for letter in "abcdefghijk"})
        write_curve(tmp_path / name, [100, 200], [0.0, 1.0])
    rows, _ = compare([str(tmp_path / name) for name in "ab"])
    for draw_it in (draw, draw_curves):
        draw_it(rows, tmp_path / "x.png")
        figure = figures[-1]
        (text,) = [each for each in figure.texts if "configuration 1:" in each.get_text()]
        box, whole = text.get_window_extent(), figure.bbox
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert whole.y0 <= box.y0
        assert all(box.y1 <= axes.get_tightbbox().y0 + 1 for axes in figure.axes)
        assert all(box.y1 <= each.get_window_extent().y0 + 1 for each in figure.legends)
