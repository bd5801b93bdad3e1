"""Environments that break in the middle of a run: a sentence, exit 71, and nothing that was learned is lost."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import tiny
from tiny import call, checkpoints, digests, write_params

SHORT = {"train.max_steps": 800, "env.id": "breaking_envs:Breakable-v0"}


def prepared(folder: Path, trigger: Path, how: str, overrides: dict[str, Any] | None = None) -> Path:
    """A folder that is ready to train in, with an environment that breaks while `trigger` exists."""
    return tiny.prepared(folder, SHORT | {"env.kwargs": {"trigger": str(trigger), "how": how}} | (overrides or {}))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("raises", "step() raised RuntimeError: the motor broke"),
        ("leaves", "step() raised SystemExit: os._exit(0)"),
        ("reset raises", "reset() raised RuntimeError: the gearbox broke"),
    ],
)
@pytest.mark.thorough
def test_it_breaks_and_is_mended(tmp_path: Path, how: str, sentence: str) -> None:
    trigger = tmp_path / "trigger"
    folder, other = (prepared(tmp_path / name, trigger, how) for name in "ab")
    assert call(other, "train").code == 0
    trigger.touch()
    for _ in range(2):  # The second try goes on from the first, and meets the same fault.
        answer = call(folder, "train")
        assert answer.code == 71
        where = r"error: training environment 'breaking_envs:Breakable-v0' \(row \d+, episode seed \d+, step \d+\): "
        assert re.fullmatch(where + re.escape(sentence), answer.err.splitlines()[-1])
        assert not (folder / "models/trained").exists()
    trigger.unlink()
    answer = call(folder, "train")
    assert answer.code == 0, answer.err
    # A step breaks before anything changed, and the state is saved; a reset breaks when half of a tick is done, so the
    # run goes on from the checkpoint before, and here there is none yet.
    assert ("goes on at step" in answer.err) == (how != "reset raises")
    assert digests(folder) == digests(other)


@pytest.mark.parametrize("how", ["nan obs", pytest.param("nan reward", marks=pytest.mark.thorough)])
def test_never_finite_again(tmp_path: Path, how: str) -> None:
    trigger = tmp_path / "trigger"
    folder = prepared(tmp_path / "a", trigger, how)
    trigger.touch()
    answer = call(folder, "train")
    assert answer.code == 71
    assert answer.err.endswith("steps: mend it; `evopipe env check breaking_envs:Breakable-v0` may show where\n")
    assert "returned non-finite observations or rewards (or no legal action) in 132 of its last " in answer.err
    assert len(checkpoints(folder)) == 1
    trigger.unlink()
    answer = call(folder, "train")
    assert answer.code == 0, answer.err
    assert "goes on at step" in answer.err


@pytest.mark.thorough
def test_not_finite_in_evaluation_only(tmp_path: Path) -> None:
    """Training ends before any of its environments breaks; the evaluation's break."""
    trigger = tmp_path / "trigger"
    folder = prepared(tmp_path / "a", trigger, "nan obs", {"env.kwargs.when": 1})
    trigger.touch()
    answer = call(folder, "evaluate")
    assert answer.code == 66
    trigger.unlink()
    assert call(folder, "train").code == 0
    trigger.touch()
    answer = call(folder, "evaluate")
    assert (answer.code, answer.err) == (
        71,
        "error: environment 'breaking_envs:Breakable-v0' returned non-finite observations or rewards in 16 of 16 "
        "episodes: mend it, then run `evopipe evaluate` or `dvc repro` again\n",
    )
    assert not (folder / "reports/evaluation.json").exists()


@pytest.mark.thorough
def test_now_and_then_not_finite(tmp_path: Path) -> None:
    """A few broken transitions are left out, with a warning, and the run ends well."""
    more = {"env.id": "breaking_envs:Flickering-v0", "train.max_steps": 2000, "train.eval_episodes": 32}
    write_params(tmp_path, more | {"evaluate.episodes": 100})
    for stage in ("population", "train", "evaluate", "export"):
        answer = call(tmp_path, stage)
        assert answer.code == 0, answer.err
        if stage == "train":
            assert "broken transitions of the environment were left out" in answer.err
            assert "warning: " in answer.err
        if stage == "evaluate":
            assert "of 400 episodes; they are left out of the scores" in answer.err
    summary = json.loads((tmp_path / "reports/train.json").read_text())
    assert 0 < summary["broken_transitions"] < 60
    assert math.isfinite(summary["elite"]["score"])
    rows = (tmp_path / "reports/episodes.csv").read_text().splitlines()
    assert 300 < len(rows) - 1 < 400
    assert "nan" not in "".join(rows)


@pytest.mark.thorough
def test_all_members_diverge(tmp_path: Path) -> None:
    """Rewards whose squares overflow: the loss of every member is infinite, generation after generation."""
    trigger = tmp_path / "trigger"
    folder = prepared(
        tmp_path / "a", trigger, "huge reward", {"train.max_steps": 2000, "algos.dqn.loss": "mse", "env.kwargs.when": 1}
    )
    trigger.touch()
    answer = call(folder, "train")
    assert answer.code == 70
    assert answer.err.endswith(
        "error: every member diverged in 3 generations in a row (generation 3, step 1200), no elite was written: lower "
        "algos.dqn.lr, tighten grad_clip, or narrow evolve.lr.max\n"
    )
    assert not (folder / "models/trained").exists()
    assert call(folder, "export").code == 66


def test_the_last_generation_diverges(tmp_path: Path) -> None:
    """Divergence in the very first and only generation: there is no elite, and none is written."""
    trigger = tmp_path / "trigger"
    folder = prepared(
        tmp_path / "a", trigger, "huge reward", {"train.max_steps": 400, "algos.dqn.loss": "mse", "env.kwargs.when": 1}
    )
    trigger.touch()
    answer = call(folder, "train")
    assert answer.code == 70
    assert "no generation had a healthy member, so there is no elite" in answer.err
    assert not (folder / "models/trained").exists()
