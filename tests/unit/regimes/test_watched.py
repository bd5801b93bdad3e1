"""What members do in evaluation, as transitions for their memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.envs.rows import RowStep
from evopipe.memory.replay import Replay, RowLayout
from evopipe.regimes.watched import Watched
from evopipe.run.episodes import Stopped
from populations import close_generation, equal_states

ROWS, ACTIONS = 4, 2
SLOTS = np.array([0, 0, 2, 2])
"""Two rows each play for the members in slots 0 and 2."""


def note(watched: Watched, rows: list[int], at: int, cut: bool = False, broken: tuple[int, ...] = ()) -> None:
    """Take step `at` in some rows: what is seen is the row and the step, a step pays its number."""
    index, n = np.array(rows), len(rows)
    seen = [np.stack((index, np.full(n, at + i)), axis=1).astype(np.float32) for i in (0, 1)]
    ends = np.zeros(n, bool), np.full(n, cut)
    step = RowStep(seen[1], np.full(n, at, np.float32), *ends, np.isin(index, broken), np.ones((n, ACTIONS), bool))
    watched.note(SLOTS[index], index, index % 2, seen[0], step.mask, np.zeros(n, np.int64), step)


def held(watched: Watched, layout: RowLayout) -> list[list[tuple[int, ...]]]:
    """What each of three members' own memory gets, in order: row, step, row and step that it leads to."""
    replay = Replay(layout, 3, 50, torch.device("cpu"))
    watched.into(replay)
    return [[tuple(row) for row in replay.rows[m, : replay.size[m], :4].int().tolist()] for m in range(3)]


def test_each_memory_gets_its_own_members_steps_episode_by_episode() -> None:
    """In this order, whatever was played side by side, and an evaluation's after those of the one before."""
    layout = RowLayout(obs=2, actions=ACTIONS, masked=False)
    watched = Watched(layout, ROWS)
    for at in range(3):
        note(watched, [0, 1, 2, 3] if at else [2, 0], at)
    assert held(watched, layout) == [
        [(0, 0, 0, 1), (0, 1, 0, 2), (0, 2, 0, 3), (1, 1, 1, 2), (1, 2, 1, 3)],
        [],
        [(2, 0, 2, 1), (2, 1, 2, 2), (2, 2, 2, 3), (3, 1, 3, 2), (3, 2, 3, 3)],
    ]
    for at, rows in ((0, [1]), (5, [0])):
        note(watched, rows, at)
        watched.begin()
    assert held(watched, layout)[0] == [(1, 0, 1, 1), (0, 5, 0, 6)]
    assert held(watched, layout) == [[], [], []], "each once"


def test_a_memory_that_members_share_gets_their_steps_member_by_member() -> None:
    """And of each episode by episode: who was evaluated beside whom says nothing of the order."""
    layout = RowLayout(obs=2, actions=ACTIONS, masked=False)
    for order in ([3, 1, 2, 0], [0, 2, 1, 3]):
        watched, replay = Watched(layout, ROWS), Replay(layout, 1, 50, torch.device("cpu"), each=3)
        for row in order:
            note(watched, [row], 0)
        watched.into(replay)
        assert replay.rows[0, : replay.size[0], 0].int().tolist() == [0, 1, 2, 3]


def test_nothing_is_learned_from_a_broken_step() -> None:
    """Though all its numbers are finite: nothing was legal after it."""
    layout = RowLayout(obs=2, actions=ACTIONS, masked=False)
    watched = Watched(layout, ROWS)
    note(watched, [0, 2], 0, broken=(2,))
    assert held(watched, layout) == [[(0, 0, 0, 1)], [], []]


def test_no_transition_leads_from_one_evaluation_into_another() -> None:
    layout = RowLayout(obs=2, actions=ACTIONS, masked=False, steps=3)
    watched = Watched(layout, ROWS)
    for at in (0, 1):
        note(watched, [0, 2], at)
    watched.begin()
    for at in (5, 6, 7):
        note(watched, [0], at, cut=at == 7)
    assert held(watched, layout) == [[(0, 5, 0, 8), (0, 6, 0, 8), (0, 7, 0, 8)], [], []]


@pytest.mark.parametrize("steps", [1, 3])
def test_an_evaluation_that_was_stopped_leaves_nothing_behind(steps: int, run: Callable[..., Any]) -> None:
    """Whoever evaluates again, in the same process, has what an evaluation at one go has."""
    replay = {"capacity": 5000, "sharing": "own", "evaluation": True, "n_step": steps}
    p = populations.problem("CartPole-v1", train={"replay": replay, "evo_steps": 100})
    whole, stopped = run(p), run(p)
    for loop in (whole, stopped):
        while not loop.clock.generation_over:
            loop.advance()
    asked = iter([False] * 7 + [True])
    with pytest.raises(Stopped):
        stopped.close_generation(lambda: next(asked))
    for loop in (whole, stopped):
        close_generation(loop)
    assert whole.clock.eval_steps > 0
    assert equal_states(whole.state(), stopped.state()) == []
