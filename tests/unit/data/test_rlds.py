"""Episodes of steps in RLDS's layout: what its last step means, in every kind of file; and folders of D4RL's files."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import h5py
import numpy as np
import pyarrow
import pytest
from gymnasium import spaces
from pyarrow import ipc, parquet

from evopipe import Dataset
from evopipe.data.d4rl import read_d4rl
from evopipe.data.episodes import EpisodeDataset
from evopipe.data.rlds import read_rlds
from evopipe.data.transitions import read_transitions
from evopipe.errors import DataError, MissingInputError
from evopipe.params.load import Params
from evopipe.schema.fetch import FetchConfig
from evopipe.stages import buffer, fetch

Steps = list[dict[str, Any]]
Write = Callable[[Path, list[Steps]], Path]

# Two episodes of pushes: 0, 1 and 2 lead to the terminal 3; 5 and 6 lead to 7, where time was up.
NOTHING = {"action": None, "reward": None, "discount": None}


def step(at: float, first: bool = False, **changes: Any) -> dict[str, Any]:
    made = {"observation": [at, at / 2], "action": [at + 0.25], "reward": 10 * at, "discount": 1.0}
    return {**made, "is_first": first, "is_last": False, "is_terminal": False, **changes}


def last(at: float, terminal: bool, **changes: Any) -> dict[str, Any]:
    return step(at, is_last=True, is_terminal=terminal, **{**NOTHING, **changes})


def episodes() -> list[Steps]:
    return [
        [step(0, True), step(1), step(2, discount=0.0), last(3, True)],
        [step(5, True), step(6), last(7, False)],
    ]


def in_a_row(content: list[Steps]) -> Steps:
    return [one for each in content for one in each]


def rows(path: Path, content: list[Steps]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(in_a_row(content)), path / "a.parquet")
    return path


def shards(path: Path, content: list[Steps]) -> Path:
    """The first episode is in three files, of which one has its last step alone."""
    all_steps = in_a_row(content)
    for number, part in enumerate((all_steps[:2], all_steps[2:3], all_steps[3:4], all_steps[4:])):
        parquet.write_table(pyarrow.Table.from_pylist(part), path / f"{number}.parquet")
    return path


def fixed(path: Path, content: list[Steps]) -> Path:
    """Observations are lists of a fixed length."""
    table = pyarrow.Table.from_pylist(in_a_row(content))
    two = pyarrow.list_(pyarrow.float32(), 2)
    place = table.column_names.index("observation")
    parquet.write_table(table.set_column(place, "observation", table.column(place).cast(two)), path / "a.parquet")
    return path


def lists(path: Path, content: list[Steps]) -> Path:
    table = pyarrow.Table.from_pylist([{"steps": each, "episode_id": str(n)} for n, each in enumerate(content)])
    parquet.write_table(table, path / "a.parquet")
    return path


def columns(path: Path, content: list[Steps]) -> Path:
    """An episode is an object of columns, as `tfds.as_numpy` gives its steps."""
    found = [{"steps": {name: [one[name] for one in each] for name in each[0]}} for each in content]
    parquet.write_table(pyarrow.Table.from_pylist(found), path / "a.parquet")
    return path


def json_list(path: Path, content: list[Steps]) -> Path:
    (path / "a.json").write_text(json.dumps([{"steps": each} for each in content]))
    return path / "a.json"


def json_lines(path: Path, content: list[Steps]) -> Path:
    (path / "a.jsonl").write_text("".join(json.dumps({"steps": each}) + "\n" for each in content))
    return path


def json_files(path: Path, content: list[Steps]) -> Path:
    """A file for each episode, and what is beside them."""
    for number, each in enumerate(content):
        (path / f"episode_{number}.json").write_text(json.dumps({"steps": each}))
    (path / "dataset_info.json").write_text('{"name": "pushes"}')
    return path


def of_datasets(path: Path, content: list[Steps]) -> Path:
    datasets.Dataset.from_list(in_a_row(content)).save_to_disk(path / "made", num_shards=2)
    return path / "made"


def arrow_file(path: Path, content: list[Steps]) -> Path:
    table = pyarrow.Table.from_pylist([{"steps": each} for each in content])
    with ipc.new_file(str(path / "a.arrow"), table.schema) as file:
        file.write_table(table)
    return path


WAYS: list[Write] = [rows, shards, fixed, lists, columns, json_list, json_lines, json_files, of_datasets, arrow_file]


def read(path: Path, shows: Any = None, discrete: bool = False, **fields: str) -> EpisodeDataset:
    return read_rlds(FetchConfig.Rlds(path=str(path), **fields), shows, discrete)


@pytest.mark.parametrize("write", WAYS)
def test_the_last_step_is_an_observation_alone(write: Write, tmp_path: Path) -> None:
    found = read(write(tmp_path, episodes()))
    one, two = found.episodes
    assert one.obs.tolist() == [[0, 0], [1, 0.5], [2, 1], [3, 1.5]]
    assert one.action.tolist() == [[0.25], [1.25], [2.25]]
    assert one.reward.tolist() == [0, 10, 20]
    assert (one.terminated.tolist(), one.truncated.tolist()) == ([False, False, True], [False] * 3)
    assert two.obs.tolist() == [[5, 2.5], [6, 3], [7, 3.5]]
    assert two.action.tolist() == [[5.25], [6.25]]
    assert two.reward.tolist() == [50, 60]
    assert (two.terminated.tolist(), two.truncated.tolist()) == ([False] * 2, [False, True])
    assert (found.dropped, found.notes) == (0, ())


@pytest.mark.parametrize("nothing", [math.nan, math.inf, 99.0])
def test_whatever_a_last_step_says_of_its_action_and_reward_is_not_looked_at(nothing: float, tmp_path: Path) -> None:
    made = episodes()
    for each in made:
        each[-1].update(action=[nothing], reward=nothing, discount=nothing)
    found = read(rows(tmp_path, made))
    assert [each.action.ravel().tolist() for each in found.episodes] == [[0.25, 1.25, 2.25], [5.25, 6.25]]
    assert [each.reward.tolist() for each in found.episodes] == [[0, 10, 20], [50, 60]]


@pytest.mark.parametrize("write", [rows, lists])
def test_an_episode_without_a_last_step_is_cut_at_its_last_observation(write: Write, tmp_path: Path) -> None:
    made = episodes()
    del made[0][-1]
    made[1][-1] = step(7)
    found = read(write(tmp_path, made))
    assert [each.obs[:, 0].tolist() for each in found.episodes] == [[0, 1, 2], [5, 6, 7]]
    assert [each.action.ravel().tolist() for each in found.episodes] == [[0.25, 1.25], [5.25, 6.25]]
    assert [each.truncated[-1] for each in found.episodes] == [True, True]
    assert not any(each.terminated.any() for each in found.episodes)
    assert found.dropped == 2
    assert found.notes == ("2 episodes without a last step (is_last) cut at their last observation",)


def test_lists_of_steps_need_no_flags_but_whether_the_last_is_terminal(tmp_path: Path) -> None:
    made = [[{k: v for k, v in one.items() if k not in ("is_first", "is_last")} for one in each] for each in episodes()]
    found = read(lists(tmp_path, made))
    assert [len(each) for each in found.episodes] == [3, 2]
    assert [bool(each.terminated[-1]) for each in found.episodes] == [True, False]
    assert found.dropped == 0


def test_an_episode_of_one_step_has_no_transition(tmp_path: Path) -> None:
    lone = last(9, False, is_first=True)
    assert [len(each) for each in read(rows(tmp_path, [[lone], *episodes(), [lone]])).episodes] == [3, 2]
    assert read(rows(tmp_path, [[lone]])).episodes == []


def test_observations_are_flattened_by_the_environments_space_and_fields_are_named(tmp_path: Path) -> None:
    made = episodes()
    for each in made:
        for one in each:
            at = one["observation"][0]
            one["observation"] = {"where": [at, -at], "door": int(at) % 2, "text": {"note": "x"}}
            one["taken"] = {"push": [float(at)], "speed": [1.0]}
    rows(tmp_path, made)
    (one, _) = read(tmp_path, action="taken.push", observation="observation.where").episodes
    assert one.obs.tolist() == [[0, 0], [1, -1], [2, -2], [3, -3]]
    assert one.action.tolist() == [[0], [1], [2]]
    for each in made:
        for step_ in each:
            del step_["observation"]["text"]
    shows = spaces.Dict(door=spaces.Discrete(2), where=spaces.Box(-9, 9, (2,)))
    (one, _) = read(rows(tmp_path, made), shows, action="taken.push").episodes
    assert one.obs.tolist() == [[1, 0, 0, 0], [0, 1, 1, -1], [1, 0, 2, -2], [0, 1, 3, -3]]


def test_images_and_discrete_actions(tmp_path: Path) -> None:
    made = episodes()
    for each in made:
        for one in each:
            one["observation"] = np.full((2, 3, 1), 51 * int(one["observation"][0] % 5), np.uint8).tolist()
            one["action"] = None if one["is_last"] else int(one["action"][0])
    (one, two) = read(json_list(tmp_path, made), spaces.Box(0, 255, (2, 3, 1), np.uint8), discrete=True).episodes
    np.testing.assert_allclose(one.obs, [[each / 5] * 6 for each in range(4)], rtol=1e-6)
    assert (one.action.dtype, one.action.tolist(), two.action.tolist()) == (np.int64, [0, 1, 2], [5, 6])


def changed(number: int, **changes: Any) -> list[Steps]:
    """The episodes with a step changed; None takes a field away from all."""
    made = in_a_row(episodes())
    made[number].update({name: value for name, value in changes.items() if value is not ...})
    gone = {name for name, value in changes.items() if value is ...}
    return [[{name: value for name, value in one.items() if name not in gone} for one in made]]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (changed(1, action=[math.nan]), "dataset 'action' holds nan at index [1, 0], not a finite float32"),
        (changed(3, observation=[math.inf, 0.0]), "dataset 'observation' holds inf at index [3, 0]"),
        (changed(1, action=None), "a.parquet: field 'action' has no value in step 1"),
        (changed(5, reward=None), "a.parquet: field 'reward' has no value in step 5"),
        (changed(3, observation=None), "a.parquet: field 'observation' has no value in step 3"),
        (changed(2, observation=[1.0, None]), "a.parquet: field 'observation' has no value in step 2"),
        (changed(6, observation=[1.0]), "a.parquet: field 'observation' has 1 values in step 6, and 2 before"),
        (changed(0, action={"a": 1.0}), "a.parquet: is damaged, or no Parquet file"),
        (changed(0, is_terminal=...), "a.parquet: a step has no field 'is_terminal'"),
        (changed(0, is_last=...), "a.parquet: a step has no field 'is_last'"),
        (changed(0, reward=...), "a.parquet: a step has no field 'reward'"),
        (changed(4, is_first=False), ": step 4 follows the last of an episode and is not first (is_first)"),
        (changed(1, is_terminal=True), ": step 1 is terminal (is_terminal) and not the last of its episode (is_last)"),
        (changed(1, is_last=None), "a.parquet: field 'is_last' has no value in step 1"),
    ],
)
@pytest.mark.thorough
def test_what_cannot_be_used_is_said_in_one_sentence(content: list[Steps], text: str, tmp_path: Path) -> None:
    if isinstance(content[0][0]["action"], dict):  # no table
        (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    else:
        rows(tmp_path, content)
    with pytest.raises(DataError) as error:
        read(tmp_path)
    assert text in str(error.value)
    assert str(error.value).startswith(str(tmp_path))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("is_last", [2] * 7, "field 'is_last' holds something else than true or false"),
        ("observation", ["a"] * 7, "field 'observation' holds string, no numbers"),
        ("action", [{"x": 1.0, "y": 2.0}] * 7, "field 'action' is x, y: name one, as action.x"),
        ("steps", [1.0] * 7, "field 'steps' holds double, no steps with fields"),
        ("steps", [{"reward": [1.0, 2.0], "action": [1.0]}] * 7, "field 'steps.action' has not a value for each step"),
        ("steps", [{"reward": [1.0], "action": 1.0}] * 7, "field 'steps.action' has not a value for each step"),
    ],
)
def test_fields_of_another_kind_are_refused(name: str, values: list[Any], text: str, tmp_path: Path) -> None:
    made = [{**one, name: value} for one, value in zip(in_a_row(episodes()), values, strict=True)]
    parquet.write_table(pyarrow.Table.from_pylist(made), tmp_path / "a.parquet")
    with pytest.raises(DataError) as error:
        read(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/a.parquet: {text}")


def test_places_without_such_files(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="nowhere: is not there; correct fetch"):
        read(tmp_path / "nowhere")
    with pytest.raises(MissingInputError, match=r"holds no file that ends in \.arrow, \.parquet, \.jsonl, \.json$"):
        read(tmp_path)
    (tmp_path / "d4rl-train.tfrecord-00000-of-00001").write_bytes(b"")
    with pytest.raises(DataError, match="holds TFRecord files, which need TensorFlow: write the steps as Parquet"):
        read(tmp_path)
    (tmp_path / "note.txt").write_text("")
    with pytest.raises(DataError, match=r"note\.txt: ends in none of"):
        read(tmp_path / "note.txt")
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(DataError, match=r"a\.json: holds no list of objects, and no object"):
        read(tmp_path)


def test_one_split_is_to_be_named(tmp_path: Path) -> None:
    made = datasets.Dataset.from_list(in_a_row(episodes()))
    datasets.DatasetDict(train=made, validation=made).save_to_disk(tmp_path / "both")
    with pytest.raises(DataError, match=r"both: has folders and no data: name one of them, such as \S+both/train$"):
        read(tmp_path / "both")
    assert [len(each) for each in read(tmp_path / "both/train").episodes] == [3, 2]


def test_files_without_steps_are_no_episodes(tmp_path: Path) -> None:
    rows(tmp_path, episodes())
    (tmp_path / "more").mkdir()
    empty = parquet.read_table(tmp_path / "a.parquet").slice(0, 0)
    parquet.write_table(empty, tmp_path / "b.parquet")
    parquet.write_table(empty, tmp_path / "more/a.parquet")
    assert [len(each) for each in read(tmp_path).episodes] == [3, 2]
    assert read(tmp_path / "more").episodes == []
    with pytest.raises(DataError, match="more: holds no step"):
        Dataset.from_rlds(tmp_path / "more")


def test_files_that_differ_are_told_apart(tmp_path: Path) -> None:
    rows(tmp_path, episodes())
    shutil.move(tmp_path / "a.parquet", tmp_path / "0.parquet")
    rows(tmp_path, [[{**one, "observation": [1.0]} for one in each] for each in episodes()])
    with pytest.raises(DataError, match="field 'observation' differs in shape between the files"):
        read(tmp_path)
    rows(tmp_path, [[{**one, "observation": {"x": [1.0]}} for one in each] for each in episodes()])
    with pytest.raises(DataError, match="field 'observation' differs between the files"):
        read(tmp_path)


def test_an_rlds_folder_is_a_source_and_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/rlds").mkdir(parents=True)
    made = episodes()
    for each in made:
        for one in each:
            one["observation"] = [one["observation"][0], 0.0, 1.0]
            one["action"] = [-2.0]
    rows(Path("data/rlds"), made)
    params = Params.model_validate({"env": {"id": "Pendulum-v1"}, "fetch": {"source": "rlds"}})
    fetch.run(params, quiet=True)
    buffer.run(params, quiet=True)
    found = read_transitions(Path("data/transitions.h5"))
    assert found.obs[:, 0].tolist() == [0, 1, 2, 5, 6]
    assert found.next_obs[:, 0].tolist() == [1, 2, 3, 6, 7]
    assert found.action.tolist() == [[-1.0]] * 5
    assert (found.terminated.tolist(), found.truncated.tolist()) == ([0, 0, 1, 0, 0], [0, 0, 0, 0, 1])
    data = Dataset.from_rlds("data/rlds")
    assert len(data) == 5
    assert data.columns["next_observations"][:, 0].tolist() == [1, 2, 3, 6, 7]
    assert data.columns["timeouts"].tolist() == [0, 0, 0, 0, 1]
    again = Dataset.from_d4rl(data.save("data/again.hdf5"))
    assert all((again.columns[name] == column).all() for name, column in data.columns.items())


# --- folders of D4RL's files ------------------------------------------------------------------------------------------


def d4rl(path: Path, at: int, terminals: list[int], timeouts: list[int]) -> None:
    n = len(terminals)
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(at, at + n, dtype=np.float32)[:, None]
        file["actions"] = np.full((n, 1), 0.5, np.float32)
        file["rewards"] = np.arange(n, dtype=np.float32)
        file["terminals"], file["timeouts"] = np.array(terminals, bool), np.array(timeouts, bool)


def test_a_folder_of_d4rls_files_is_read_in_order_and_no_episode_crosses_files(tmp_path: Path) -> None:
    d4rl(tmp_path / "b.h5", 10, [0, 0, 1], [0, 0, 0])
    d4rl(tmp_path / "a.hdf5", 0, [0, 1, 0, 0, 0], [0, 0, 0, 1, 0])
    (tmp_path / "readme.txt").write_text("")
    found = read_d4rl(tmp_path)
    # 0 and 1 end; 2 is followed by 3, whose time was up, after which nothing is known; 4 is cut by the file's end.
    assert [each.obs[:, 0].tolist() for each in found.episodes] == [[0, 1, 1], [2, 3], [10, 11, 12, 12]]
    assert [each.reward.tolist() for each in found.episodes] == [[0, 1], [2], [0, 1, 2]]
    assert [bool(each.terminated[-1]) for each in found.episodes] == [True, False, True]
    assert [bool(each.truncated[-1]) for each in found.episodes] == [False, True, False]
    assert found.dropped == 2
    assert found.notes == ("2 last steps of cut episodes left out: the file has no next observation for them",)
    assert Dataset.from_d4rl(tmp_path).columns["timeouts"].tolist() == [0, 0, 1, 0, 0, 0]


def test_a_folder_without_d4rls_files(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"holds no file that ends in \.hdf5 or \.h5$"):
        read_d4rl(tmp_path)
