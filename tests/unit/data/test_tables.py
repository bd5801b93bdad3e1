"""Datasets as tables: every row of CSV and Parquet files, arrays and frames becomes the step that it says."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import pytest
from gymnasium import spaces
from pyarrow import parquet

from evopipe import Dataset
from evopipe.data.d4rl import read_d4rl
from evopipe.data.episodes import EpisodeDataset
from evopipe.data.table import read_table
from evopipe.errors import DataError, MissingInputError, ParamsError
from evopipe.schema.fetch import FetchConfig

Columns = dict[str, Any]
NAMES: dict[str, Any] = {"timeouts": "cut", "next_observations": ("then_*",)}


def drawn(seed: int, continuous: bool = False) -> tuple[Columns, list[int]]:
    """A table of episodes of drawn lengths, and these; its columns are in no order."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, size=int(rng.integers(2, 6))).tolist()
    steps = sum(lengths)
    last = np.cumsum(lengths) - 1
    terminated = np.zeros(steps, np.int64)
    terminated[last] = rng.integers(2, size=len(last))
    ends = np.isin(np.arange(steps), last)
    obs, then = rng.integers(100, size=(2, steps, 3)) / 4
    then[:-1][~ends[:-1]] = obs[1:][~ends[:-1]]
    table: Columns = {
        "obs_b": obs[:, 0], "then_b": then[:, 0], "reward": rng.integers(-9, 9, size=steps) / 8, "obs_a": obs[:, 1],
        "terminated": terminated, "cut": (ends & (terminated == 0)).astype(np.int64), "then_a": then[:, 1],
        "episode": np.repeat(np.arange(len(lengths)) + 5, lengths), "obs_c": obs[:, 2], "then_c": then[:, 2],
    }  # fmt: skip
    if continuous:
        table |= {"action_1": rng.integers(8, size=steps) / 8, "action_0": rng.integers(8, size=steps) / 8}
    else:
        table["action"] = rng.integers(4, size=steps)
    return table, lengths


def written(path: Path, table: Columns) -> str:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*(np.asarray(each).tolist() for each in table.values()), strict=True))
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({name: np.asarray(each) for name, each in table.items()}), path)
    return str(path)


def config(path: str, **columns: Any) -> FetchConfig.Table:
    return FetchConfig.Table(path=path, **columns)


def assert_steps(found: EpisodeDataset, table: Columns, lengths: list[int], whole: bool = True) -> None:
    """Every step is there; without what followed all but the last of an episode that was cut."""
    start = 0
    episodes = iter(found.episodes)
    dropped = 0
    for length in lengths:
        rows = slice(start, start + length)
        start += length
        terminated = bool(table["terminated"][rows][-1])
        kept = length - (not whole and not terminated)
        dropped += length - kept
        if not kept:
            continue
        one = next(episodes)
        obs = np.stack([table[f"obs_{name}"][rows] for name in "bac"], axis=1)
        last = np.stack([table[f"then_{name}"][rows] for name in "bac"], axis=1)[-1:]
        shown = np.concatenate((obs, last if whole else obs[-1:])) if whole or terminated else obs
        assert one.obs.tolist() == shown.tolist()
        assert one.reward.tolist() == table["reward"][rows][:kept].tolist()
        if "action" in table:
            assert (one.action.dtype, one.action.tolist()) == (np.int64, table["action"][rows][:kept].tolist())
        else:
            action = np.stack([table["action_1"][rows], table["action_0"][rows]], axis=1)
            assert (one.action.dtype, one.action.tolist()) == (np.float32, action[:kept].tolist())
        assert one.terminated.tolist() == [False] * (kept - 1) + [terminated]
        assert one.truncated.tolist() == [False] * (kept - 1) + [not terminated]
    assert next(episodes, None) is None
    assert found.dropped == dropped


@pytest.mark.parametrize("kind", ["csv", "parquet", "pq", "CSV"])
def test_rows_of_a_file_are_steps_in_order_and_columns_are_in_the_files_order(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    for seed in range(3):
        table, lengths = drawn(seed, continuous=seed == 1)
        if kind == "CSV":
            written(path.with_suffix(".csv"), table).replace("csv", "CSV")
            path.with_suffix(".csv").rename(path)
        else:
            written(path, table)
        shows = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        found = read_table(config(str(path), **NAMES), shows, discrete=seed != 1)
        assert found.where == str(path)
        assert_steps(found, table, lengths)


@pytest.mark.parametrize("seed", range(6))
def test_a_frame_a_file_and_the_arrays_are_the_same_episodes(seed: int, tmp_path: Path) -> None:
    table, lengths = drawn(seed, continuous=bool(seed % 2))
    frame = Dataset.from_frame(table, **NAMES)
    assert len(frame) == sum(lengths)
    assert_steps(frame.episodes("x"), table, lengths)
    actions = table["action"] if "action" in table else np.stack([table["action_1"], table["action_0"]], axis=1)
    obs, then = (np.stack([table[f"{begin}_{name}"] for name in "bac"], axis=1) for begin in ("obs", "then"))
    arrays = Dataset.from_arrays(obs, actions, table["reward"], table["terminated"], table["cut"], then)
    assert_steps(arrays.episodes("x"), table, lengths)
    saved = arrays.save(tmp_path / "new" / "a.hdf5")
    assert saved == tmp_path / "new" / "a.hdf5"
    assert_steps(read_d4rl(saved), table, lengths)
    twice = arrays.save(tmp_path / "b.hdf5")
    assert twice.read_bytes() == saved.read_bytes(), "no clock is in a file"
    without = Dataset.from_arrays(obs, actions, table["reward"], table["terminated"], table["cut"])
    assert_steps(without.episodes("x"), table, lengths, whole=False)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("texts", [False, True])
def test_a_change_in_the_column_of_episodes_cuts_what_has_not_come_to_its_own_end(seed: int, texts: bool) -> None:
    table, lengths = drawn(seed)
    if texts:
        table["episode"] = np.array([f"run {number}" for number in table["episode"]])
    found = Dataset.from_frame(table, episodes="episode")
    assert np.flatnonzero(found.columns["timeouts"]).tolist() == np.flatnonzero(table["cut"]).tolist()
    assert_steps(found.episodes("x"), table, lengths, whole=False)
    # What a column says was cut within an episode counts beside it.
    early = np.zeros(len(found), np.int64)
    early[0] = 1
    both = Dataset.from_frame({**table, "cut": early}, episodes="episode", timeouts="cut").columns["timeouts"]
    assert np.flatnonzero(both).tolist() == sorted({0, *np.flatnonzero(table["cut"]).tolist()})


def test_where_nothing_says_that_an_episode_was_cut_a_sentence_does() -> None:
    table, _ = drawn(0)
    (note,) = Dataset.from_frame({**table, "terminated": np.ones_like(table["terminated"])}).episodes("x").notes
    assert note.startswith("the file has no timeouts")
    assert Dataset.from_frame(table, **NAMES).episodes("x").notes == ()


def test_names_mean_one_column_or_all_that_begin_so() -> None:
    table, _ = drawn(3)
    more = {**table, "observer": table["obs_a"] + 1}
    assert Dataset.from_frame(more).columns["observations"].shape[1] == 4
    only = Dataset.from_frame(more, observations=("obs_c", "obs_a")).columns["observations"]
    assert only.tolist() == np.stack([table["obs_c"], table["obs_a"]], axis=1).tolist(), (
        "in the order that is asked for"
    )
    exact = Dataset.from_frame({**table, "obs": table["obs_a"]}, observations=("obs",))
    assert exact.columns["observations"].tolist() == [[x] for x in table["obs_a"].tolist()]
    renamed = {{"reward": "r", "terminated": "over"}.get(name, name): each for name, each in table.items()}
    found = Dataset.from_frame(renamed, rewards="r", terminals="over")
    assert found.columns["rewards"].tolist() == table["reward"].tolist()
    assert found.columns["terminals"].tolist() == table["terminated"].tolist()


def test_what_cannot_be_used_is_named_by_column_and_row(tmp_path: Path) -> None:
    table, _ = drawn(1)
    bad: list[tuple[Columns, str]] = [
        (
            {"reward": np.where(np.arange(len(table["reward"])) == 2, np.nan, 1.0)},
            "column 'reward' holds nan in row 2,",
        ),
        ({"obs_a": np.array([f"x{i}" for i in range(len(table["reward"]))])}, "column 'obs_a' holds no numbers but"),
        ({"terminated": np.full(len(table["reward"]), 2)}, "dataset 'terminals' holds 2 at index 0, expected 0 or 1"),
    ]
    for changes, said in bad:
        with pytest.raises(DataError, match=said):
            Dataset.from_frame({**table, **changes}).episodes("x")
        with pytest.raises(DataError, match=said):
            read_table(config(written(tmp_path / "a.parquet", {**table, **changes})), None, True)
    without = {name: each for name, each in table.items() if name != "reward"}
    with pytest.raises(DataError, match=r"the frame: has no column 'reward' \(fetch.table.rewards\)"):
        Dataset.from_frame(without)
    with pytest.raises(DataError, match=r"has no column 'obs_d' \(fetch.table.observations\).*obs_"):
        Dataset.from_frame(table, observations=("obs_a", "obs_d"))
    with pytest.raises(ParamsError, match="reward"):
        Dataset.from_frame(table, reward="reward")
    with pytest.raises(DataError, match="the dataset: ragged"):
        Dataset.from_arrays(np.zeros((3, 2)), np.zeros(2, int), np.zeros(3), np.zeros(3))
    with pytest.raises(DataError, match="rewards: they are object, no numbers"):
        Dataset.from_arrays(np.zeros((3, 2)), np.zeros(3, int), np.array([None] * 3), np.zeros(3))


def test_a_file_without_a_value_is_damaged_missing_or_of_another_kind(tmp_path: Path) -> None:
    table, _ = drawn(2)
    lines = Path(written(tmp_path / "a.csv", table)).read_text().splitlines()
    head = lines[0].split(",")
    cells = lines[2].split(",")
    cells[head.index("reward")] = ""
    (tmp_path / "a.csv").write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:], ""]))
    with pytest.raises(DataError, match=r"a\.csv: column 'reward' has no value in row 1 \(counted from 0"):
        read_table(config(str(tmp_path / "a.csv")), None, True)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"b\.parquet: is damaged, or no Parquet file"):
        read_table(config(str(tmp_path / "b.parquet")), None, True)
    with pytest.raises(MissingInputError):
        read_table(config(str(tmp_path / "c.csv")), None, True)
    with pytest.raises(ParamsError, match=r"fetch.table.path: '.*a\.txt' ends in none of \.csv, \.parquet"):
        read_table(config(str(tmp_path / "a.txt")), None, True)


def test_a_row_that_does_not_follow_in_one_number_begins_an_episode() -> None:
    """Whatever the flags say: a step leads to what was seen after it."""
    obs = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    then = np.array([[1.0, 0.0], [2.0, 0.5], [3.0, 0.0], [4.0, 0.0]])
    found = Dataset.from_arrays(obs, np.zeros(4, int), np.arange(4.0), np.zeros(4), None, then).episodes("x")
    assert [one.obs.tolist() for one in found.episodes] == [
        [[0.0, 0.0], [1.0, 0.0], [2.0, 0.5]], [[2.0, 0.0], [3.0, 0.0], [4.0, 0.0]],
    ]  # fmt: skip
    assert [one.truncated.tolist() for one in found.episodes] == [[False, True]] * 2


def test_a_step_that_ended_and_was_cut_at_once_is_both() -> None:
    rows, ends, cut = np.arange(6.0)[:, None], [0, 0, 1, 0, 0, 1], [0, 0, 1, 0, 1, 0]
    found = Dataset.from_arrays(rows, np.zeros(6, int), np.ones(6), ends, cut).episodes("it")
    assert [one.terminated.tolist() for one in found.episodes] == [[False, False, True], [False], [True]]
    assert [one.truncated.tolist() for one in found.episodes] == [[False, False, True], [True], [False]]


# --- tables of other packages -----------------------------------------------------------------------------------------


def listed(table: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """The table with one column of lists in the place of the observation's three."""
    obs, then = (np.stack([table[f"{begin}_{name}"] for name in "bac"], axis=1) for begin in ("obs", "then"))
    kept = {name: column.tolist() for name, column in table.items() if not name.startswith(("obs", "then"))}
    return {**kept, "obs": obs.tolist(), "then": then.tolist()}


@pytest.mark.parametrize("kind", ["datasets", "arrow", "pandas", "parquet"])
def test_a_column_of_lists_is_a_column_of_vectors(kind: str, tmp_path: Path) -> None:
    table, lengths = drawn(2, continuous=False)
    values = listed(table)
    names = {"observations": ["obs"], "next_observations": ["then"], "timeouts": "cut"}
    if kind == "parquet":
        path = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.table(values), path)
        shows = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        assert_steps(read_table(config(str(path), **names), shows, discrete=True), table, lengths)
        return
    frame = {"datasets": datasets.Dataset.from_dict, "arrow": pyarrow.table, "pandas": pandas.DataFrame}[kind](values)
    assert_steps(Dataset.from_frame(frame, **names).episodes("x"), table, lengths)


def test_lists_are_refused_where_one_number_is_meant_and_where_they_are_ragged() -> None:
    values = listed(drawn(2, continuous=False)[0])
    rows = len(values["obs"])
    with pytest.raises(DataError, match=r"the frame: column 'reward' holds more than one number a row"):
        Dataset.from_frame({**values, "reward": [[1.0, 2.0]] * rows})
    with pytest.raises(DataError, match=r"the frame: column 'obs' holds no numbers but object"):
        Dataset.from_frame({**values, "obs": [[1.0] * (1 + n % 2) for n in range(rows)]})
    with pytest.raises(DataError, match=r"column 'obs' holds nan in row 3, not a finite number"):
        Dataset.from_frame({**values, "obs": [[1.0, np.nan if n == 3 else 0.0] for n in range(rows)]})


def test_splits_are_no_table() -> None:
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"obs": [1.0]})})
    with pytest.raises(DataError, match=r"the frame has the splits train: give one of them, such as frame\['train'\]"):
        Dataset.from_frame(splits)
