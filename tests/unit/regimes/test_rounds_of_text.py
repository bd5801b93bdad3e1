"""Rounds of completions, by hand: what is measured, how groups are replaced, and how texts are padded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

from evopipe.language.generate import Written
from evopipe.regimes.dialogue import _Played, _refilled, _wider, of_round
from evopipe.types import Text

PAD = 9


def test_a_round_is_measured_by_groups() -> None:
    reward = torch.tensor([[1.0, 3.0, 2.0, 2.0], [0.0, 0.0, 4.0, 4.0]])
    names = ("reward", "length", "entropy", "kl", "ended")
    every = {name: torch.tensor([i + 0.25, i + 0.5]) for i, name in enumerate(names)}
    found = {name: value.tolist() for name, value in of_round(reward, 2, every).items()}
    assert found == {
        "charts/episodic_return": [0.25, 0.5],
        "charts/episodic_length": [1.25, 1.5],
        "losses/entropy": [2.25, 2.5],
        "losses/kl": [3.25, 3.5],
        "completions/reward_std": [0.5, 0.0],
        "completions/silent": [0.5, 1.0],
        "completions/cut": [1.0 - 4.25, 1.0 - 4.5],
    }
    assert of_round(reward, 2, {**every, "cut": torch.tensor([0.125, 0.5])})["completions/cut"].tolist() == [0.125, 0.5]
    some, none = torch.tensor([1.0, torch.nan]), torch.full((2,), torch.nan)
    assert "losses/kl" in of_round(reward, 2, {**every, "kl": some})
    assert "losses/kl" not in of_round(reward, 2, {**every, "kl": none})


def played(first: int, reward: list[float], prompt: int, width: int, failed: int) -> _Played:
    """Completions of one member, the tokens of which are their own number, from this one on."""
    n = len(reward)
    own = torch.arange(first, first + n)[None, :, None]
    written = Written(
        own.expand(1, n, width), torch.ones(1, n, width, dtype=torch.bool), -own.expand(1, n, width).float(),
        0.5 * own.expand(1, n, width), (own % 2 == 0)[..., 0],
    )  # fmt: skip
    ids = torch.cat((100 + own.expand(1, n, prompt), written.ids), dim=-1)
    text = Text(ids, torch.ones_like(ids, dtype=torch.bool), written.mask, torch.zeros_like(written.ids),
                log_prob=written.log_prob)  # fmt: skip
    value = torch.tensor([reward])
    return _Played(text, written, value, value + 0.5, value.long() + first, failed)


def test_a_group_without_spread_gives_way_to_the_first_of_the_next_wave_that_has_some() -> None:
    before = played(1, [0.0, 0.0, 1.0, 2.0, 3.0, 3.0], 2, 2, failed=1)
    after = played(11, [5.0, 5.0, 6.0, 7.0, 8.0, 8.0], 2, 3, failed=4)
    found, redrawn = _refilled(before, after, 2, PAD)
    # of three groups the first and the last are without spread, and the second of the others alone has some
    assert redrawn.tolist() == [1]
    assert found.reward.tolist() == [[6.0, 7.0, 1.0, 2.0, 3.0, 3.0]]
    assert found.told.tolist() == [[6.5, 7.5, 1.5, 2.5, 3.5, 3.5]]
    assert found.row.tolist() == [[17, 18, 2, 3, 4, 4]]
    assert found.failed == 5
    assert found.written.ids[0].tolist() == [[13] * 3, [14] * 3, *([n, n, PAD] for n in (3, 4, 5, 6))]
    assert found.written.lengths.tolist() == [[3, 3, 2, 2, 2, 2]]
    assert found.written.ended.tolist() == [[False, True, False, True, False, True]]
    assert found.written.entropy[0, :, -1].tolist() == [6.5, 7.0, 0.0, 0.0, 0.0, 0.0]
    assert found.text.ids[0, 0].tolist() == [113, 113, 13, 13, 13]
    assert found.text.ids[0, 2].tolist() == [103, 103, 3, 3, PAD]
    assert found.text.real[0, :, -1].tolist() == found.text.mask[0, :, -1].tolist() == [True] * 2 + [False] * 4
    assert found.text.log_prob is not None
    assert found.text.log_prob[0, 3].tolist() == [-4.0, -4.0, 0.0]
    assert found.text.reference is None


@pytest.mark.parametrize(
    ("prompt", "width", "ids"), [(3, 3, [9, 101, 101, 1, 1, 9]), (2, 1, [101, 101, 1, 1]), (0, 3, [101, 101, 1, 1, 9])]
)
def test_prompts_are_padded_on_the_left_and_completions_on_the_right(prompt: int, width: int, ids: list[int]) -> None:
    text = replace(played(1, [0.0], 2, 2, 0).text, reward=torch.zeros(1, 1))
    found: Any = _wider(text, prompt, width, PAD)
    assert found.ids[0, 0].tolist() == ids
    assert found.real[0, 0].tolist() == [each != PAD for each in ids]
    assert found.mask.shape[-1] == found.turn.shape[-1] == found.log_prob.shape[-1] == max(2, width)
    assert found.mask[0, 0].tolist() == [True, True, False][: max(2, width)]
    assert found.reward.shape == (1, 1)
