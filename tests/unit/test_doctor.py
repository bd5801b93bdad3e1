"""`evopipe doctor`: what a run that goes on, was killed, or has ended is told, by the rules of the report."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from evopipe.doctor import examine, facts_of_events, told
from evopipe.errors import DataError, MissingInputError
from evopipe.track.events import End, Event, Generation, JsonlSink, MemberRow, Start
from reports import write_run
from tiny import call, write_params

ILL = {
    "env.id": "scaled_envs:Rich-v0", "train.max_steps": 1200, "train.evo_steps": 300, "train.target": None,
}  # fmt: skip


def trained(folder: Path, overrides: dict[str, Any], stages: tuple[str, ...] = ("population", "train")) -> Path:
    write_params(folder, overrides)
    (folder / ".dvc").mkdir()
    for stage in stages:
        answer = call(folder, stage)
        assert answer.code == 0, answer.err
    return folder


@pytest.mark.thorough
def test_a_run_is_told_what_its_report_says(tmp_path: Path) -> None:
    """Once it was trained, before any other stage, and from outside its folder."""
    trained(tmp_path, ILL)
    answer = call(tmp_path.parent, "doctor", str(tmp_path))
    assert (answer.code, answer.err) == (0, "")
    head, first, *_ = answer.out.splitlines()
    assert head.startswith("dqn on scaled_envs:Rich-v0: generation 4, ")
    assert head.endswith(" evaluation steps, ended: all steps taken")
    assert first.startswith("  1. A step is rewarded by ")
    # Once it was evaluated, and has ended: the elite's interval, which is far below what it was chosen by.
    (tmp_path / "reports/evaluation.json").write_text('{"elite": {"interval": [-9e9, -8e9]}}')
    _, found = examine(tmp_path)
    assert [advice.text for advice in found if "its held-out mean lies in −9G to −8G: " in advice.text]
    (tmp_path / "reports/evaluation.json").write_text('{"elite": {"interval": [8e9, 9e9]}}')
    assert "lead_is_luck" not in [advice.rule for advice in examine(tmp_path)[1]]


@pytest.mark.thorough
def test_a_run_that_was_killed_is_told_as_far_as_it_came(tmp_path: Path) -> None:
    trained(tmp_path, ILL)
    (record,) = (tmp_path / ".evopipe/train").iterdir()
    log = record / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    whole = tmp_path / ".evopipe/train/older"
    shutil.copytree(record, whole)
    os.utime(whole / "events.jsonl", (1.0, 1.0))  # it went further, and is not the last one
    third = [i for i, line in enumerate(lines) if json.loads(line)["event"] == "generation"][2]
    log.write_text("".join(lines[:third]) + lines[third][:40])
    head, found = examine(tmp_path)
    assert head.startswith("dqn on scaled_envs:Rich-v0: generation 2, ")
    assert head.endswith("goes on, or was stopped")
    assert [advice.rule for advice in found][:1] == ["reward_scale"]
    (tmp_path / "reports/evaluation.json").write_text('{"elite": {"interval": [-9e9, -8e9]}}')
    assert examine(tmp_path)[1] == found, "results that lie there are another run's"
    assert told("x", []) == ["x", "  nothing stands out"]
    assert told("x", found)[:2] == ["x", f"  1. {found[0].text}"]


def test_what_a_log_says_is_each_members_own_and_nothing_of_who_is_ill() -> None:
    """A generation that was repeated counts once."""

    def row(slot: int, fitness: float, healthy: bool = True) -> MemberRow:
        signals = {"entropy": (float(slot), 9.0)}
        made = (slot, slot, None, fitness, "none", "", "8", "ReLU")
        return MemberRow(*made, {"lr": 0.1 + slot}, healthy, 0.5, None, signals)

    def generation(number: int, *rows: MemberRow) -> Event:
        return Generation(number, 10 * number, 20 * number, 5 * number, 1.0, rows, 3.0, 2.0, 7.0 + number, 0)

    log = [generation(1, row(0, 3.0), row(1, -math.inf, False)), generation(2, row(0, 1.0), row(1, 2.0))]
    facts = facts_of_events([*log, log[1]], {"train": {"algo": "ppo"}})
    assert facts.fitness == pytest.approx({(1, 0): 3.0, (1, 1): math.nan, (2, 0): 1.0, (2, 1): 2.0}, nan_ok=True)
    assert {key: each["entropy"] for key, each in facts.signals.items()} == {(g, s): float(s) for g, s in facts.fitness}
    assert {key: each["lr"] for key, each in facts.hyper.items()} == {(g, s): 0.1 + s for g, s in facts.fitness}
    assert (facts.training, facts.evaluation, facts.chosen, facts.solved) == (40, 10, 9.0, False)


def test_the_newest_log_with_a_generation_is_looked_at_and_the_interval_only_of_what_has_ended(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/evaluation.json").write_text('{"elite": {"interval": [1.0, 2.0]}}')
    row = MemberRow(0, 0, None, 50.0, "none", "", "8", "ReLU", {}, True, 0.5)

    def log(name: str, algo: str, time: float, *events: Event) -> None:
        folder = tmp_path / ".evopipe/train" / name
        sink = JsonlSink(folder / "events.jsonl")
        for event in (Start("train", "E-v0", algo, 1, 100), *events):
            sink.emit(event)
        sink.close()
        (folder / "run.json").write_text(json.dumps({"params": {"env": {"id": "E-v0"}, "train": {"algo": algo}}}))
        os.utime(folder / "events.jsonl", (time, time))

    def generation(number: int) -> Event:
        return Generation(number, 10 * number, 1000 * number, 2000 * number, 1.0, (row,), 50.0, 50.0, 60.0, 0)

    log("c", "sac", 1.0, generation(1))
    log("b", "ppo", 2.0, generation(1), generation(3), End("all steps taken", 1.0, 1, 1))
    log("a", "dqn", 3.0)  # it has not come so far
    head, found = examine(tmp_path)
    assert head == "ppo on E-v0: generation 3, 3,000 training and 6,000 evaluation steps, ended: all steps taken"
    assert [advice.rule for advice in found] == ["lead_is_luck"]
    assert found[0].text.startswith("The elite was chosen by 60 and its held-out mean lies in 1 to 2: ")
    log("a", "dqn", 3.0, generation(2))
    head, found = examine(tmp_path)
    assert head == "dqn on E-v0: generation 2, 2,000 training and 4,000 evaluation steps, goes on, or was stopped"
    assert found == [], "what was evaluated is another run"


@pytest.mark.thorough
def test_of_results_without_a_record_the_report_is_read(tmp_path: Path) -> None:
    """As in a fresh clone, which has what DVC and git bring."""
    write_run(tmp_path)
    write_params(tmp_path, {})
    head, found = examine(tmp_path)
    assert head.startswith("dqn: 50 generations, ")
    assert told(head, [])[1:] == ["  nothing stands out"]
    assert all(advice.text for advice in found)


def test_where_there_is_no_run_a_sentence_says_so(tmp_path: Path) -> None:
    answer = call(tmp_path, "doctor")
    assert (answer.code, answer.err.count("\n")) == (66, 1)
    assert answer.err.startswith("error: doctor: . has no run whose first generation has ended (")
    with pytest.raises((MissingInputError, DataError)):
        examine(tmp_path / "nowhere")
