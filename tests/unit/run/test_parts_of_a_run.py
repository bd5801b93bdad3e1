"""Parts of a run by hand: who a run starts with, in which order members act, and where states
are saved."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe import layout
from evopipe.errors import DataError, MissingInputError
from evopipe.run import drive
from evopipe.run.act import EVERYONE, by_row, gather, places_of
from evopipe.run.outs import write_results
from evopipe.run.population import about_spec, read_start
from evopipe.run.session import Home
from evopipe.run.spec import first_members
from evopipe.storage import members as stored


def test_a_run_starts_with_the_elite_and_with_those_that_did_not_diverge(tmp_path: Path) -> None:
    p = populations.problem()
    made = [replace(member, id=10 + i, healthy=i != 1) for i, member in enumerate(first_members(p, 4)[0])]
    about = about_spec(p)
    stored.write(tmp_path / "a", made, about)
    assert [each.id for each in read_start(tmp_path / "a", p, "mend it")] == [10, 12, 13]
    stored.write(tmp_path / "b", made, {**about, "elite": {"id": 13}})
    assert [each.id for each in read_start(tmp_path / "b", p, "mend it")] == [13, 10, 12]
    stored.write(tmp_path / "c", [replace(made[1], slot=0)], about)
    with pytest.raises(DataError, match="c: every member has diverged; mend it"):
        read_start(tmp_path / "c", p, "mend it")
    with pytest.raises(MissingInputError, match="d: not there; mend it"):
        read_start(tmp_path / "d", p, "mend it")
    assert about["algo"] == p.train.algo
    assert about["env"] == p.name


def test_actions_stand_in_the_order_of_slots_whoever_is_computed_together() -> None:
    p = populations.problem()
    made = [replace(member, slot=slot) for member, slot in zip(first_members(p, 4)[0], (7, 2, 5, 3), strict=True)]
    cohorts = [*p.form(made[:2]), *p.form(made[2:])]
    slots = [list(cohort.slots) for cohort in cohorts]
    order = sorted(slot for each in slots for slot in each)
    assert places_of(cohorts) == [[order.index(slot) for slot in each] for each in slots]
    chosen = [torch.tensor([[70], [20]]), torch.tensor([[50], [30]])]
    assert gather(chosen, [[3, 0], [2, 1]]).tolist() == [[20], [30], [50], [70]]
    assert gather(chosen, [[0, 1], [2, 3]]).tolist() == [[70], [20], [50], [30]]
    assert gather(chosen[:1], EVERYONE).tolist() == [[70], [20]]
    assert by_row(p, np.arange(6).reshape(2, 3)).tolist() == [0, 1, 2, 3, 4, 5]
    assert by_row(p, np.arange(12).reshape(2, 3, 2)).shape == (6, 2)


def test_a_divided_run_has_a_store_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "state", 1.0)
    assert [home.store(parts).folder.name for parts in (0, 1, 3)] == ["checkpoints", "checkpoints-1", "checkpoints-3"]
    assert home.store(2).folder.parent == tmp_path / "state"
    assert replace(home, checkpoints=tmp_path / "x").store(2).folder == tmp_path / "x"


def test_what_is_left_is_told_by_the_share_that_this_process_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(drive.time, "perf_counter", lambda: now[0])
    clock = SimpleNamespace(generation=2, step=40, total=25, envs=4, env_steps=100, eval_steps=7)
    run: Any = SimpleNamespace(clock=clock, share=0.2, target=3.0)
    watch = drive._Stopwatch(run)
    assert watch.progress("learning").seconds_left is None  # nothing is done yet
    now[0], run.share, clock.env_steps = 60.0, 0.4, 150
    told = watch.progress("learning")
    assert (told.steps_per_second, told.seconds_left) == (5.0, pytest.approx(30.0))
    assert (told.generation, told.step, told.max_steps, told.env_steps, told.eval_steps) == (2, 40, 100, 150, 7)
    assert (told.phase, told.target) == ("learning", 3.0)
    assert [watch.lap(), watch.due(), watch.due()] == [10.0, True, False]
    now[0] += 0.24
    assert not watch.due()
    now[0] += 0.01
    assert watch.due()
    assert watch.lap() == pytest.approx(0.25)


def test_what_is_written_of_a_run_is_what_it_was(tmp_path: Path) -> None:
    """Two generations of 4 ticks of 2 environments: their curve, their signals by member, and the run in all."""
    train = {"max_steps": 16, "evo_steps": 8, "learning_delay": 4, "eval_steps": 5, "target": 1e9}
    run = populations.started(populations.problem(num_envs=2, train=train), 3)
    populations.finish(run)
    champion, clock = run.champion, run.clock
    write_results(run, champion, {"algo": "dqn"}, tmp_path)
    run.close()
    assert (clock.env_steps, clock.generation) == (48, 2)
    elite = {"id": champion.member.id, "generation": champion.generation, "score": champion.score,
             "standard_error": champion.error, "confirmed": champion.confirmed}  # fmt: skip
    last = run.lineage[-1].members
    assert json.loads((tmp_path / layout.TRAIN).read_text()) == {
        "reason": "max_steps", "generations": 2, "broken_transitions": 0, "elite": elite, "target": 1e9,
        "steps": {"each_member": 16, "training": 48, "evaluation": clock.eval_steps, "all": 48 + clock.eval_steps},
        "best_fitness": max(each.fitness for each in last), "warm_start": 0,
        "mean_fitness": pytest.approx(sum(each.fitness for each in last) / 3),
    }  # fmt: skip
    with (tmp_path / layout.FITNESS).open() as stream:
        curve = list(csv.DictReader(stream))
    assert [[int(row[name]) for name in ("generation", "step", "env_steps")] for row in curve] == [
        [1, 8, 24],
        [2, 16, 48],
    ]
    assert int(curve[-1]["eval_steps"]) == clock.eval_steps > int(curve[0]["eval_steps"]) > 0
    assert float(curve[-1]["elite"]) == champion.score
    with (tmp_path / layout.SIGNALS).open() as stream:
        head, *rows = list(csv.reader(stream))
    for row, kept in zip(rows, run.signals, strict=True):
        told = dict(zip(head, row, strict=True))
        assert [told["generation"], told["slot"]] == [str(each) for each in kept[:2]]
        for i, name in enumerate(run.signal_names):
            some = [*kept[2:], *[""] * len(head)][2 * i : 2 * i + 2]
            assert [told[name], told[f"{name}.last"]] == [str(each) for each in some], name
