"""What is kept of a round to be read, by hand: pieces of text with the numbers of their tokens, and a run's state."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

import words
from evopipe.regimes.samples import Samples, episodes_of
from evopipe.types import Text


def texts() -> tuple[Text, Text]:
    """Two rows of a member, behind prompts of one and two tokens: one of three tokens, of which the second is shown;
    and one without any that was written. With them the same after an update."""
    ids = torch.tensor([[words.special("01203"), words.special("12000")]])
    real = torch.tensor([[[False, True, True, True, True], [True, True, False, False, False]]])
    mask = torch.tensor([[[True, False, True], [False, False, False]]])
    log_prob = torch.tensor([[[-1.0, 0.0, -2.0], [0.0, 0.0, 0.0]]])
    text = Text(
        ids, real, mask, torch.zeros_like(mask, dtype=torch.int64), log_prob=log_prob,
        reward=torch.tensor([[1.0, 0.25]]), advantage=torch.tensor([[[0.5, 0.5, math.nan], [-0.5, -0.5, -0.5]]]),
        keep=torch.tensor([[True, False]]),
    )  # fmt: skip
    return text, replace(text, log_prob=log_prob / 2)


def values(text: Text) -> list[Any]:
    """All that a text holds, in order."""
    return [getattr(text, each.name) for each in fields(text)]


def told(slot: int = 3, most: float | None = 1.0) -> list[dict[str, Any]]:
    text, now = texts()
    tasks, ended = [[{"prompt": "1"}, {"prompt": "12"}]], torch.tensor([[True, False]])
    return episodes_of(words.base(), [slot], text, now, tasks, ["0:0", "1:0"], ended, most)


def test_a_row_is_told_in_pieces_and_each_written_token_with_its_numbers() -> None:
    one, other = told()
    assert [one[name] for name in ("slot", "id", "task", "counts", "is_correct", "termination_reason")] == [
        3, "0:0", {"prompt": "1"}, True, True, "ended",
    ]  # fmt: skip
    (trajectory,) = one["trajectories"]
    assert trajectory["reward"] == 1.0
    assert trajectory["steps"][0]["model_output"] == {"completion_ids": words.special("2") + words.special("3")}
    assert trajectory["rows"] == [[
        {"text": "1", "written": False, "step": 0},
        {"text": "2", "written": True, "step": 0, "tokens": ["2"], "log_prob": [-1.0], "new_log_prob": [-0.5],
         "advantage": [0.5]},
        {"text": "0", "written": False, "step": 0},
        {"text": "3", "written": True, "step": 0, "tokens": ["3"], "log_prob": [-2.0], "new_log_prob": [-1.0],
         "advantage": [None]},
    ]]  # fmt: skip
    assert (other["counts"], other["is_correct"], other["termination_reason"]) == (
        False, False, "max_response_length_exceeded",
    )  # fmt: skip
    assert other["trajectories"][0]["rows"] == []
    assert not any(each["is_correct"] for each in told(most=None))


def test_each_member_is_told_with_its_own_numbers() -> None:
    """A second member, of which the other row counts and is right, and whose tokens have other chances."""
    (text, now), told = texts(), []
    assert text.keep is not None
    assert text.reward is not None
    for each in (text, now):
        assert each.log_prob is not None
        other = replace(each, log_prob=each.log_prob / 8 - 1e-5, keep=~text.keep, reward=text.reward.flip(1))
        told.append(
            Text(*(None if a is None else torch.cat((a, b)) for a, b in zip(values(each), values(other), strict=True)))
        )
    tasks, ended = [[{"prompt": "1"}, {"prompt": "12"}], [2, 3]], torch.tensor([[True, False], [False, True]])
    found = episodes_of(words.base(), [3, 1], *told, tasks, ["0:0", "1:0"], ended, 1.0)
    assert [(e["slot"], e["task"], e["counts"], e["is_correct"], e["termination_reason"]) for e in found[2:]] == [
        (1, 2, False, False, "max_response_length_exceeded"), (1, 3, True, True, "ended"),
    ]  # fmt: skip
    assert [e["trajectories"][0]["reward"] for e in found] == [1.0, 0.25, 0.25, 1.0]
    written = [piece for piece in found[2]["trajectories"][0]["rows"][0] if piece["written"]]
    assert [(p["log_prob"], p["new_log_prob"]) for p in written] == [
        ([-0.12501], [-0.06251]), ([-0.25001], [-0.12501]),
    ]  # fmt: skip


def test_the_latest_three_generations_are_kept_and_go_through_a_checkpoint() -> None:
    samples = Samples()
    assert list(samples.rows()) == []
    for generation in range(4):
        samples.note(generation, told(1))
        samples.note(generation, told(0))
    rows = list(samples.rows())
    assert [(row["round"], row["slot"], row["id"]) for row in rows] == [
        (generation, slot, name) for generation in (2, 3, 4) for slot in (0, 1) for name in ("0:0", "1:0")
    ]
    again = Samples()
    again.restore(samples.state())
    assert list(again.rows()) == rows
    again.note(4, told(0))
    assert {row["round"] for row in again.rows()} == {3, 4, 5}


def test_parts_of_a_population_are_put_together_by_their_places_in_the_whole() -> None:
    parts = [Samples(), Samples()]
    for part in parts:
        part.note(0, told(0))
    parts[0].note(0, told(1))
    whole = Samples()
    whole.add(parts[1].state(), 2)
    whole.add(parts[0].state(), 0)
    assert [(row["slot"], row["id"]) for row in whole.rows()] == [
        (slot, name) for slot in range(3) for name in ("0:0", "1:0")
    ]
