"""What the report advises: every rule on a short run that is ill in this way, and silence on runs that are well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import tiny
import words as language
from advised import facts
from evopipe.native import build
from evopipe.report.advice import MOST, RULES, Facts, advise
from evopipe.report.page import compose
from evopipe.report.read import read
from evopipe.stages.report import _shown
from evopipe.track.signals import read_signals
from illnesses import CARTPOLE, ILL, NET, WELL
from reports import write_run


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    before = build.chosen()
    build.use(build.load())
    yield
    build.use(before)


def rules(found: Facts) -> list[str]:
    return [advice.rule for advice in advise(found)]


@pytest.mark.thorough
@pytest.mark.parametrize("illness", ILL)
def test_an_ill_run_is_told_of_its_illness(illness: str) -> None:
    rule, how = ILL[illness]
    found = facts(**how)
    advised = {advice.rule: advice for advice in advise(found)}
    assert rule in advised, (list(advised), found.signals[max(found.signals)])
    told = advised[rule]
    assert told.text.endswith(".")
    assert any(letter.isdigit() for letter in told.text), "a sentence has its figures"
    assert told.section or found.each(told.signal), "there is something to see"


@pytest.mark.thorough
@pytest.mark.parametrize("name", WELL)
def test_a_run_that_is_well_is_told_nothing(name: str) -> None:
    found = facts(**WELL[name])
    assert rules(found) == []


def test_every_rule_has_a_run_that_is_ill() -> None:
    """Or a test of its own below."""
    own = {"at_a_bound", "lead_is_luck", "groups_silent"}
    assert {rule for rule, _ in ILL.values()} | own == {getattr(rule, "__name__", "") for rule in RULES}


def test_a_run_that_reached_its_target_needs_no_advice() -> None:
    _, how = ILL["no reward is ever seen"]
    assert rules(replace(facts(**how), solved=True)) == []


def test_at_most_five_sentences() -> None:
    assert MOST == 5
    found = facts(**ILL["observations are not scaled"][1])
    more = replace(found, evaluation=10**9, chosen=1e9, interval=(0.0, 1.0))
    assert len(rules(more)) == 5


@pytest.mark.thorough
def test_leaders_at_a_bound_are_told_of_it() -> None:
    """Every change of the rate ends at a bound: some generations later the best are all at one of them."""
    evolve = {"lr": {"min": 1e-3, "max": 1.2e-3, "grow": 2.0, "shrink": 0.5}}
    how: dict[str, Any] = {
        "algo": "dqn", "env": CARTPOLE, "config": {**NET, "lr": 1.1e-3, "evolve": evolve}, "members": 4,
        "train": {"evo_steps": 200, "max_steps": 1600},
        "mutation": {"probabilities": dict.fromkeys(("none", "architecture", "parameters", "activation"), 0.0)},
    }  # fmt: skip
    for seed in range(8):
        found = facts(**how, seed=seed)
        last = max(generation for generation, _ in found.fitness)
        ranked = sorted((x, key) for key, x in found.fitness.items() if key[0] == last)
        leaders = {found.hyper[key]["lr"] for _, key in ranked[2:]}
        told = [advice.text for advice in advise(found) if advice.rule == "at_a_bound"]
        assert bool(told) == (len(leaders) == 1), seed
        if told:
            word, end = ("raise", "max") if leaders == {1.2e-3} else ("lower", "min")
            assert f"{word} algos.dqn.evolve.lr.{end}" in told[0]
            return
    raise AssertionError("no seed brought the leaders to one bound")


@pytest.mark.thorough
def test_groups_that_say_nothing_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(language.small_params()))
    for stage in ("fetch", "buffer", "population", "train"):
        assert tiny.call(tmp_path, stage).code == 0
    found = read_signals(tmp_path / "reports/signals.csv")
    signals = {key: {name: mean for name, (mean, _) in own.items()} for key, own in found.items()}
    silent = all(own["completions/silent"] == 1.0 for own in signals.values())
    told = rules(Facts(signals, dict.fromkeys(signals, 0.5)))
    assert ("groups_silent" in told) == silent
    assert silent


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("written")
    return folder, _shown(write_run(folder, members=3, generations=4, diverge=0.0, episodes=20))


@pytest.mark.thorough
def test_a_lead_that_was_luck(written: tuple[Path, dict[str, Any]]) -> None:
    folder, params = written
    run = read(folder)
    lucky = replace(run, summary=replace(run.summary, elite=replace(run.summary.elite, score=1e4)))
    assert "its lead was noise" in compose(lucky, params, "No film.")
    assert "its lead was noise" not in compose(run, params, "No film.")


@pytest.mark.thorough
def test_the_page_shows_what_a_sentence_goes_by(written: tuple[Path, dict[str, Any]]) -> None:
    folder, params = written
    run = read(folder)
    ill = {key: {"charts/observation_size": 4000.0 + key[1]} for key in run.nodes}
    text = compose(replace(run, signals=ill), params, "No film.")
    section = text.partition('<section id="next"')[2].partition("</section>")[0]
    assert "A number of the observations is 4001 in size on average" in section
    assert 'href="#next-observations_unscaled"' in section
    assert 'id="next-observations_unscaled"' in section
    assert section.count("<svg") == 1
    assert "Nothing stands out" in compose(replace(run, signals={(1, 0): {}}), params, "No film.")
    solved = replace(run, signals=ill, summary=replace(run.summary, reason="target"))
    assert "The target was reached." in compose(solved, params, "No film.")
