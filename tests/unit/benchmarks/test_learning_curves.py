"""Learning curves in the documentation: a run is added whole, drawn to equal bytes, and a stale picture is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The modules, which write below `tmp_path`."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import add_curve
    import learning_curves
    import make_algorithms

    monkeypatch.setattr(learning_curves, "FOLDER", tmp_path / "curves")
    monkeypatch.setattr(make_algorithms, "FOLDER", tmp_path / "algorithms")
    return SimpleNamespace(add=add_curve, curves=learning_curves, pages=make_algorithms, folder=tmp_path)


def run(folder: Path, seed: int = 1, algo: str = "ddpg", mean: float = -150.0, **changes: str) -> Path:
    """A folder as a run of `pipelines/ddpg-pendulum` leaves it."""
    params = (ROOT / "pipelines/ddpg-pendulum/params.yaml").read_text()
    for old, new in {"seed: 1 ": f"seed: {seed} ", "algo: ddpg ": f"algo: {algo} ", **changes}.items():
        assert old in params
        params = params.replace(old, new)
    (folder / "reports").mkdir(parents=True)
    (folder / "params.yaml").write_text(params)
    curve = (
        "generation,step,env_steps,eval_steps,best,mean,elite\n1,2500,10000,9,-300.126,,\n2,5000,20000,9,,-9,-150.0\n"
    )
    (folder / "reports/fitness.csv").write_text(curve)
    (folder / "reports/evaluation.json").write_text(json.dumps({"elite": {"mean": mean}}))
    return folder


@pytest.mark.thorough
def test_a_run_is_added_to_its_algorithms_data_picture_and_page(scripts: Any) -> None:
    for seed, mean in ((2, -160.0), (1, -150.0), (2, -170.5)):  # the last one replaces the first
        folder = run(scripts.folder / f"{seed}{mean}", seed, "td3", mean)
        assert scripts.add.main([str(folder), "--pipeline", "ddpg-pendulum"]) == 0
    assert (scripts.folder / "curves/td3.csv").read_text().splitlines() == [
        "pipeline,env,mode,seed,member_steps,population_steps,best,champion,held_out",
        "ddpg-pendulum,Pendulum-v1,online,1,2500,10000,-300.13,,",
        "ddpg-pendulum,Pendulum-v1,online,1,5000,20000,,-150.00,-150.00",
        "ddpg-pendulum,Pendulum-v1,online,2,2500,10000,-300.13,,",
        "ddpg-pendulum,Pendulum-v1,online,2,5000,20000,,-150.00,-170.50",
    ]
    page = (scripts.folder / "algorithms/td3.md").read_text()
    assert "`dvc exp run -S train.algo=td3` there" in page
    assert "| 2 | 5,000 | 20,000 | -170.5 |" in page
    [picture] = re.findall(r"\]\((\.\./curves/.*?)\)", page)
    drawn = (scripts.folder / "algorithms" / picture).read_bytes()
    assert b"<svg" in drawn
    assert b"seed 2" in drawn
    assert list(scripts.curves.pictures("td3").values()) == [drawn]


def test_a_run_of_language_models_in_a_folder_of_several_pipelines_is_added(scripts: Any) -> None:
    folder = run(scripts.folder / "run", mean=-2.6)
    (folder / "params.yaml").write_text((ROOT / "pipelines/wordle/bc-wordle/params.yaml").read_text())
    assert scripts.add.main([str(folder), "--pipeline", "wordle/bc-wordle"]) == 0
    lines = (scripts.folder / "curves/bc_language.csv").read_text().splitlines()
    assert lines[-1] == "wordle/bc-wordle,wordle,offline,1,5000,20000,,-150.00,-2.60"
    assert "(../curves/bc_language.bc-wordle.svg)" in (scripts.folder / "algorithms/bc_language.md").read_text()
    assert (scripts.folder / "curves/bc_language.bc-wordle.svg").exists()


def test_the_folders_own_name_is_the_pipelines(scripts: Any) -> None:
    assert scripts.add.main([str(run(scripts.folder / "ddpg-pendulum"))]) == 0
    assert "`dvc repro` there" in (scripts.folder / "algorithms/ddpg.md").read_text()


def test_a_run_of_other_settings_is_no_run_of_the_pipeline(scripts: Any) -> None:
    folder = run(scripts.folder / "run", **{"tau: 0.005": "tau: 6.0e-3"})
    with pytest.raises(ValueError, match="differs from pipelines/ddpg-pendulum"):
        scripts.add.main([str(folder), "--pipeline", "ddpg-pendulum"])
    assert not (scripts.folder / "curves").exists()


def test_a_picture_of_other_data_is_told_and_drawn_anew(scripts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    scripts.add.main([str(run(scripts.folder / "ddpg-pendulum"))])
    data = scripts.folder / "curves/ddpg.csv"
    data.write_text(data.read_text().replace("-300.13", "-301.00"))
    assert scripts.pages.main(["--check"]) == 1
    assert "ddpg.ddpg-pendulum.svg: stale" in capsys.readouterr().err
    assert scripts.pages.main([]) == 0
    assert scripts.pages.main(["--check"]) == 0


def test_an_algorithm_without_a_run_has_no_section(scripts: Any) -> None:
    assert "Learning curves" not in scripts.pages.render("ddpg")
    assert scripts.curves.pictures("ddpg") == {}


def test_other_columns_are_refused(scripts: Any) -> None:
    (scripts.folder / "curves").mkdir()
    (scripts.folder / "curves/ddpg.csv").write_text("seed,best\n1,2\n")
    with pytest.raises(ValueError, match="its columns are seed, best"):
        scripts.curves.read("ddpg")


def test_what_a_page_says_of_a_learning_test_is_what_the_test_asks(scripts: Any) -> None:
    for (algo, pipeline), (asked, named) in scripts.curves.TESTS.items():
        file, _, name = named.partition("::")
        source = (ROOT / f"tests/learning/test_{file}.py").read_text()
        body = re.split(r"\n(?=def |@)", source.partition(f"def {name}(")[2])[0]
        assert body, named
        assert f"pipelines/{pipeline}" in body, named
        asserted = {float(number) for number in re.findall(r"(?:[<>]=? (?:cloned \+ )?)(-?[\d.]+)", body)}
        said = {float(number) for number in re.findall(r"(?<!\w)-?\d+(?:\.\d+)?", asked)}
        assert said <= asserted, (algo, pipeline)
        assert len(asserted - said) == 0 or algo == "bc", (algo, pipeline)


def test_mean_and_band_hold_a_runs_last_score_and_begin_where_all_have_one(scripts: Any) -> None:
    lines = [[(10, 0.0), (30, 6.0)], [(20, 3.0), (40, 9.0)], [(10, 6.0)]]
    assert scripts.curves.summary(lines) == ([20, 30, 40], [3.0, 5.0, 7.0], [0.0, 3.0, 6.0], [6.0, 6.0, 9.0])


def test_several_seeds_have_a_mean_in_picture_and_table(scripts: Any) -> None:
    for seed in (1, 2):
        assert scripts.add.main([str(run(scripts.folder / str(seed), seed)), "--pipeline", "ddpg-pendulum"]) == 0
        [drawn] = scripts.curves.pictures("ddpg").values()
        page = (scripts.folder / "algorithms/ddpg.md").read_text()
        told = [b">mean<" in drawn, b"lowest to highest" in drawn, "| mean | | | -150.0 |" in page, "the band" in page]
        assert told == [seed == 2] * 4
