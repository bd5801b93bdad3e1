"""What is noted of a generation: means and last values by slot, and episodes that ended."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from evopipe.run.diagnostics import Diagnostics
from evopipe.run.tally import Tally

CPU = torch.device("cpu")


def test_a_signal_has_its_mean_and_its_last_value_of_the_generation() -> None:
    found = Diagnostics(3, CPU)
    found.note([2, 0], {"a": torch.tensor([1.0, 10.0])})
    found.note([0], {"b": torch.tensor([7.0]), "a": torch.tensor([20.0])})
    assert found.told([0, 1, 2]) == [{"a": (15.0, 20.0), "b": (7.0, 7.0)}, {}, {"a": (1.0, 1.0)}]
    again = Diagnostics(3, CPU)
    again.restore(found.state())
    again.note([2], {"a": torch.tensor([3.0])})
    assert again.told([2]) == [{"a": (2.0, 3.0)}]
    found.forget([0])
    assert found.told([0, 2]) == [{}, {"a": (1.0, 1.0)}]


def test_what_is_not_finite_stays_so() -> None:
    found = Diagnostics(1, CPU)
    for value in (1.0, math.nan, 2.0):
        found.note([0], {"a": torch.tensor([value]), "b": torch.tensor([math.inf])})
    mean, last = found.told([0])[0]["a"]
    assert math.isnan(mean)
    assert last == 2.0
    assert found.told([0])[0]["b"] == (math.inf, math.inf)


def test_six_digits_are_kept() -> None:
    found = Diagnostics(1, CPU)
    found.note([0], {"a": torch.tensor([1.0 / 3.0], dtype=torch.float64)})
    assert found.told([0]) == [{"a": (0.333333, 0.333333)}]


@pytest.mark.parametrize("living", [None, [0, 1, 4, 5]])  # all three members, or the first and the last
@pytest.mark.parametrize("ticks", [7, 200])
def test_episodes_on_a_device_are_those_that_a_loop_finds(living: list[int] | None, ticks: int) -> None:
    rng = np.random.default_rng(ticks)
    rows = list(range(6)) if living is None else living
    tally, again = Tally(3, 6, CPU), Tally(3, 6, CPU)
    tally.adopt(range(3), None if living is None else torch.tensor(living))
    running, sums = np.zeros((6, 2)), np.zeros((3, 3))
    for tick in range(ticks):
        reward, over = rng.normal(size=len(rows)).astype(np.float32), rng.random(len(rows)) < 0.05
        tally.add(torch.from_numpy(reward), torch.from_numpy(over))
        for place, row in enumerate(rows):
            running[row] += (reward[place], 1.0)
            if over[place]:
                sums[row // 2] += (*running[row], 1.0)
                running[row] = 0.0
        if tick == 4:  # killed and resumed
            again.restore(tally.state())
            again.adopt([], None if living is None else torch.tensor(living))
            tally = again
    found = Diagnostics(3, CPU)
    tally.into(found, [0, 1, 2])
    for slot, told in enumerate(found.told([0, 1, 2])):
        assert told["charts/episodes"][0] == sums[slot, 2]
        assert ("charts/episodic_return" in told) == bool(sums[slot, 2])
        if sums[slot, 2]:
            returns, lengths, count = sums[slot]
            assert told["charts/episodic_return"][0] == pytest.approx(returns / count, rel=1e-5)
            assert told["charts/episodic_length"][0] == pytest.approx(lengths / count, rel=1e-5)


def test_a_broken_episode_does_not_count_and_the_next_begins_at_nothing() -> None:
    tally, found = Tally(1, 2, CPU), Diagnostics(1, CPU)
    never, first = torch.tensor([False, False]), torch.tensor([True, False])
    tally.add(torch.tensor([1.0, 5.0]), never, never)
    tally.add(torch.tensor([math.nan, 5.0]), never, first)
    tally.add(torch.tensor([3.0, 5.0]), torch.tensor([True, True]), never)
    tally.into(found, [0])
    assert found.told([0])[0]["charts/episodic_return"][0] == (3.0 + 15.0) / 2
    assert found.told([0])[0]["charts/episodic_length"][0] == 2.0


@pytest.mark.parametrize(("score", "expected"), [("sum", 6.0), ("mean", 3.0)])
def test_a_team_has_its_score(score: str, expected: float) -> None:
    tally, found = Tally(1, 1, CPU), Diagnostics(1, CPU)
    tally.score = score  # type: ignore[assignment]
    tally.add(torch.tensor([[2.0, 4.0]]), torch.tensor([True]))
    tally.into(found, [0])
    assert found.told([0])[0]["charts/episodic_return"][0] == expected


@pytest.mark.parametrize("living", [None, [0, 1, 4, 5]])  # all three members, or the first and the last
def test_each_agent_has_its_own_returns(living: list[int] | None) -> None:
    """On a device as on the host, where whole episodes are told of; after a kill too."""
    rng = np.random.default_rng(7)
    rows, names = list(range(6)) if living is None else living, ("red_0", "blue_0")
    tally, host = Tally(3, 6, CPU, names), Tally(3, 0, CPU, names)
    place = None if living is None else torch.tensor(living)
    tally.adopt(range(3), place)
    running = np.zeros((6, 2))
    for tick in range(50):
        reward, over = rng.integers(0, 9, (len(rows), 2)).astype(np.float32), rng.random(len(rows)) < 0.2
        tally.add(torch.from_numpy(reward), torch.from_numpy(over))
        running[rows] += reward
        ended = np.array(rows)[over]
        host.ended(ended // 2, running[ended].sum(axis=1), np.ones(len(ended)), *running[ended].T)
        running[ended] = 0.0
        if tick == 20:
            again = Tally(3, 6, CPU, names)
            again.restore(tally.state())
            again.adopt([], place)
            tally = again
    told = []
    for each in (tally, host):
        found = Diagnostics(3, CPU)
        each.into(found, [0, 1, 2])
        told.append(found.told([0, 1, 2]))
    slots = (0, 1, 2) if living is None else (0, 2)
    for slot in slots:
        on_device, on_host = (each[slot] for each in told)
        own = [f"agents/{name}/episodic_return" for name in names]
        for name in (*own, "charts/episodic_return", "charts/episodes"):
            assert on_device[name] == on_host[name], name
        total = sum(on_device[name][0] for name in own)
        assert on_device["charts/episodic_return"][0] == pytest.approx(total, rel=1e-5)


def test_names_are_told_in_one_order_whatever_a_checkpoint_keeps() -> None:
    """A run that was stopped before its first record writes the same columns."""
    noted = Diagnostics(2, torch.device("cpu"))
    for name in ("losses/b", "charts/c", "losses/a"):
        noted.note([0, 1], {name: torch.tensor([1.0, 2.0])})
    restored = Diagnostics(2, torch.device("cpu"))
    restored.restore(dict(sorted(noted.state().items())))
    order = [[*told] for told in noted.told([0, 1])]
    assert order == [[*told] for told in restored.told([0, 1])]
    assert order == [["charts/c", "losses/a", "losses/b"]] * 2
