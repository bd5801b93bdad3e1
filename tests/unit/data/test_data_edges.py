"""Edges of what is read as a dataset: what is just accepted, what is just refused, and what is said of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from evopipe.data.collect import _behaviours
from evopipe.data.d4rl import read_d4rl
from evopipe.data.episodes import EpisodeDataset, RecordedEpisode, check_fits
from evopipe.data.hdf5 import StoredArray, Unusable
from evopipe.data.minari import _episode
from evopipe.data.observations import compare, read_rows
from evopipe.data.rlds import _split
from evopipe.data.table import _named
from evopipe.envs.pool import EnvPool
from evopipe.errors import DataError, ParamsError
from evopipe.schema.env import EnvConfig
from evopipe.schema.fetch import CollectConfig


def test_what_has_no_weight_is_neither_played_nor_missed() -> None:
    with closing(EnvPool(EnvConfig(id="Acrobot-v1"), 1)) as pool:
        for asked, missed in (
            ({"random": 1.0, "medium": 0.0, "heuristic": 0.0}, 0),
            ({"random": 1.0, "medium": 0.5, "heuristic": 0.5}, 2),
            ({"random": 0.5, "heuristic": 0.5}, 1),
        ):
            behaviours, notes = _behaviours(CollectConfig(policies=asked), pool, "None-v0", None)
            assert (list(behaviours), len(notes)) == (["random"], missed)
        with pytest.raises(ParamsError, match="no medium and no heuristic;"):
            _behaviours(CollectConfig(policies={"random": 0.0, "medium": 1.0, "heuristic": 1.0}), pool, "None-v0", None)


def stored(path: Path, **arrays: Any) -> h5py.File:
    file = h5py.File(path, "w")
    for name, array in arrays.items():
        file[name] = array
    return file


def test_dropped_steps_of_every_file_are_counted(tmp_path: Path) -> None:
    """Each file is cut in its last episode, which shows no state after its last step."""
    for name, steps in (("a.h5", 5), ("b.hdf5", 4), ("c.txt", 3)):
        numbers = np.arange(steps)
        with stored(tmp_path / name, observations=np.zeros((steps, 2), np.float32), actions=numbers,
                    rewards=numbers + 1.0, terminals=numbers == 1, timeouts=numbers == steps):  # fmt: skip
            pass
    alone = [read_d4rl(tmp_path / name) for name in ("a.h5", "b.hdf5")]
    both = read_d4rl(tmp_path)
    assert [each.dropped for each in alone] == [1, 1]
    assert both.dropped == 2
    assert [each.reward.tolist() for each in both.episodes] == [[1, 2], [3, 4], [1, 2], [3]]
    assert both.notes == tuple(dict.fromkeys(alone[0].notes + alone[1].notes))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-10.0, 0.0), (0.0, 2.0)])
def test_actions_may_leave_the_box_by_a_ten_thousandth_of_its_width(low: float, high: float) -> None:
    space, width = spaces.Box(low, high, (2,), np.float32), high - low
    for beyond, fits in ((0.5e-4, True), (1.5e-4, False)):
        for value in (low - beyond * width, high + beyond * width):
            action = np.array([[low, high], [high, value]], np.float32)
            ends = np.array([False, True])
            episode = RecordedEpisode(
                np.zeros((3, 4), np.float32), action, np.zeros(2, np.float32), ends, ~ends & ends, 0
            )
            dataset = EpisodeDataset([episode], "here")
            if fits:
                check_fits(dataset, 4, space)
            else:
                with pytest.raises(DataError, match=r"here: episode 0 took action .* at step 1, env's go from"):
                    check_fits(dataset, 4, space)


def test_flags_and_indices_are_read_as_such_or_refused(tmp_path: Path) -> None:
    with stored(tmp_path / "a.h5", flags=np.array([0.0, 1.0]), two=[0, 2], half=[0.5, 1.0], under=[0, -1],
                whole=[[3.0], [1.0]], endless=[1.0, np.inf], parts=[1.0, 1.5], wide=[[1.0, 2.0]]) as file:  # fmt: skip
        file.create_dataset("never", (5,), np.int8)  # nothing of it is stored
        file.create_dataset("vast", (2**24,), np.int8)
        read = {name: StoredArray(file, name) for name in file}
        assert read["flags"].flags().tolist() == [False, True]
        assert read["never"].flags().tolist() == [False] * 5
        for name in ("two", "half", "under"):
            with pytest.raises(Unusable, match="expected 0 or 1"):
                read[name].flags()
        with pytest.raises(Unusable, match="declares 16777216 bytes and holds 0"):
            read["vast"].flags()
        found = read["whole"].actions(discrete=True)
        assert (found.dtype, found.tolist()) == (np.int64, [3, 1])
        for name, discrete, expected in (
            ("whole", False, [[3.0], [1.0]]), ("parts", True, [[1.0], [1.5]]), ("wide", True, [[1.0, 2.0]]),
        ):  # fmt: skip
            found = read[name].actions(discrete=discrete)
            assert (found.dtype, found.tolist()) == (np.float32, expected)
        with pytest.raises(Unusable):
            read["endless"].actions(discrete=True)


@pytest.mark.parametrize(
    ("rows", "terminations", "truncations", "said"),
    [
        (4, [0, 0, 1], [0, 0, 0], None),
        (4, [0, 0, 0], [0, 0, 0], None),
        (3, [0, 0, 1], [0, 0, 0], "has 3 rows for 3 steps, expected 4"),
        (5, [0, 0, 1], [0, 0, 0], "has 5 rows for 3 steps, expected 4"),
        (4, [0, 1, 0], [0, 0, 0], "ends at step 1 and goes on"),
        (4, [0, 0, 1], [0, 1, 0], "ends at step 1 and goes on"),
        (4, [1, 0, 1], [0, 0, 0], "ends at step 0 and goes on"),
    ],
)
def test_an_episode_of_minari_ends_at_its_last_step(
    rows: int, terminations: list[int], truncations: list[int], said: str | None, tmp_path: Path
) -> None:
    with stored(tmp_path / "a.h5") as file:
        group = file.create_group("episode_0")
        group["observations"], group["actions"] = np.zeros((rows, 2), np.float32), np.arange(3)
        group["rewards"], group["terminations"], group["truncations"] = np.zeros(3), terminations, truncations
        if said is None:
            found = _episode(file, "episode_0", None, None)
            assert found.terminated.tolist() == [False, False, bool(terminations[-1])]
            assert found.truncated.tolist() == [False, False, not terminations[-1]]
        else:
            with pytest.raises(Unusable, match=said):
                _episode(file, "episode_0", None, None)


def test_nested_observations_hold_the_spaces_parts_and_no_other(tmp_path: Path) -> None:
    low = spaces.Box(-9.0, 9.0, (2,), np.float32)
    space = spaces.Dict({"a": low, "b": spaces.Dict({"n": spaces.Discrete(3, start=1)})})
    with stored(tmp_path / "a.h5") as file:
        file["o/a"], file["o/b/n"] = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0], [3.0]])
        assert read_rows(StoredArray(file, "o"), None, space).tolist() == [[1, 2, 1, 0, 0], [3, 4, 0, 0, 1]]
        file["o/b/more"] = np.zeros(2)
        with pytest.raises(Unusable, match="holds 'more', which the observation space does not"):
            read_rows(StoredArray(file, "o"), None, space)
        del file["o/b/more"], file["o/b/n"]
        file["o/b/n"] = np.array([1.0])
        with pytest.raises(Unusable, match="of 1 steps beside others of 2"):
            read_rows(StoredArray(file, "o"), None, space)


def test_recorded_spaces_of_other_parts_are_refused() -> None:
    box = spaces.Box(-9.0, 9.0, (2,), np.float32)
    env = spaces.Dict({"a": box, "b": spaces.Discrete(3)})
    compare(spaces.Dict({"b": spaces.Discrete(3), "a": box}), env)
    for other in (
        spaces.Dict({"a": box, "b": spaces.Discrete(4)}),
        spaces.Dict({"a": box, "b": spaces.Discrete(3, start=1)}),
        spaces.Dict({"a": spaces.Box(-9.0, 9.0, (3,), np.float32), "b": spaces.Discrete(3)}),
        spaces.Dict({"a": box}),
        spaces.Dict({"a": box, "b": spaces.Discrete(3), "c": box}),
    ):
        with pytest.raises(Unusable, match="env's"):
            compare(other, env)


@pytest.mark.parametrize(
    ("first", "last", "terminal", "said"),
    [
        ([1, 0, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 1, 0, 0], None),
        ([1, 0, 0, 1, 0], [0, 0, 1, 0, 1], [0, 1, 0, 0, 0], "step 1 is terminal"),
        ([1, 0, 0, 1, 0], [0, 0, 1, 0, 1], [1, 0, 1, 0, 1], "step 0 is terminal"),
        ([1, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0], "step 3 follows the last of an episode"),
    ],
)
def test_only_the_last_step_of_an_rlds_episode_is_terminal(
    first: list[int], last: list[int], terminal: list[int], said: str | None
) -> None:
    columns = {name: np.array(flags, np.bool_) for name, flags in
               (("is_first", first), ("is_last", last), ("is_terminal", terminal), ("bound", [0] * 5))}  # fmt: skip
    rows, numbers = np.arange(5, dtype=np.float32)[:, None], np.arange(5)
    if said is None:
        found = _split(columns, rows, numbers, numbers.astype(np.float32), Path("x"))
        assert [each.obs[:, 0].tolist() for each in found.episodes] == [[0, 1, 2], [3, 4]]
        assert [each.terminated.tolist() for each in found.episodes] == [[False, True], [False]]
        assert [each.truncated.tolist() for each in found.episodes] == [[False, False], [True]]
    else:
        with pytest.raises(DataError, match=said):
            _split(columns, rows, numbers, numbers.astype(np.float32), Path("x"))


def test_a_star_means_the_columns_that_begin_so() -> None:
    there = ["obs_b", "xobs_a", "obs", "obs_a", "ob"]
    for wanted, found in (
        (["obs_*"], ["obs_b", "obs_a"]), (["obs*"], ["obs_b", "obs", "obs_a"]), (["obs"], ["obs"]),
        (["obs_a", "ob"], ["obs_a", "ob"]), (["x*", "obs_b"], ["xobs_a", "obs_b"]),
    ):  # fmt: skip
        assert _named(there, wanted, "observations", "t.csv") == found
    with pytest.raises(DataError, match=r"has no column 'bs\*' \(fetch.table.observations\)"):
        _named(there, ["bs*"], "observations", "t.csv")
