"""Datasets on disk: exact round trips, equal bytes, and content that must be refused with its place."""

from __future__ import annotations

import faulthandler
import json
import math
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from minari import MinariDataset
from minari import __version__ as minari_version
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.serialization import deserialize_space, serialize_space

from evopipe.data import transitions
from evopipe.data.d4rl import read_d4rl
from evopipe.data.described import space_from, space_to_text
from evopipe.data.episodes import EpisodeDataset, RecordedEpisode, check_fits
from evopipe.data.hdf5 import StoredArray, read_foreign
from evopipe.data.minari import read_minari, read_own, write_minari
from evopipe.data.transitions import SEAL, Transitions, read_transitions, sealed, write_transitions
from evopipe.errors import DataError, EvopipeError, MissingInputError, ResourceError

OBS, ACTIONS = 3, 4
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs", "episode")


def episode(steps: int, *, ends: str = "terminated", seed: int = 0, start: int = 0) -> RecordedEpisode:
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros(steps, bool), np.zeros(steps, bool)
    (terminated if ends == "terminated" else truncated)[-1:] = True
    obs = rng.normal(size=(steps + 1, OBS)).astype(np.float32)
    reward = rng.normal(size=steps).astype(np.float32)
    return RecordedEpisode(obs, rng.integers(ACTIONS, size=steps) + start, reward, terminated, truncated, seed)


def pack(episodes: list[RecordedEpisode]) -> Transitions:
    """Pack episodes whose actions count from 0 or are relative already."""
    return transitions.pack(episodes, lambda own: own)


def some() -> list[RecordedEpisode]:
    return [episode(5), episode(1, ends="truncated", seed=1), episode(9, ends="truncated", seed=2)]


def minari(folder: Path, episodes: list[RecordedEpisode], start: int = 0) -> Path:
    write_minari(
        folder,
        episodes,
        name="Test-v0/collect",
        observation_space=spaces.Box(-np.inf, np.inf, (OBS,), np.float32),
        action_space=spaces.Discrete(ACTIONS, start=start),
        env_spec=None,
        algorithm="test",
        description="a test",
    )
    return folder


def foreign(folder: Path) -> tuple[Path, Path]:
    """A dataset without evopipe's manifest: the folder and its HDF5 file."""
    minari(folder, some())
    (folder / "manifest.json").unlink()
    return folder, folder / "data" / "main_data.hdf5"


def transitions_file(folder: Path) -> Path:
    path = folder / "transitions.h5"
    write_transitions(path, pack(some()), {"mean": 0.5})
    return path


def resealed(path: Path) -> Path:
    """Give a file of transitions that was changed on purpose the checksum of what it holds now."""
    path.write_bytes(sealed(memoryview(bytearray(path.read_bytes()))))
    return path


def same(a: Transitions, b: Transitions) -> bool:
    return all(getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in FIELDS)


def refused(read: Callable[[], object], *parts: str, kind: type[EvopipeError] = DataError) -> None:
    with pytest.raises(kind) as failed:
        read()
    text = str(failed.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


def outcome(read: Callable[[], Any]) -> Any:
    """What was read, or the sentence that refused it."""
    try:
        return read()
    except DataError as error:
        return str(error)


# --- Packing and transitions ------------------------------------------------------------------------------------------


def test_packing_keeps_ends_apart_and_never_bridges_episodes() -> None:
    episodes = some()
    packed = pack(episodes)
    assert len(packed) == 15
    assert packed.episode.tolist() == [0] * 5 + [1] + [2] * 9
    assert np.flatnonzero(packed.terminated).tolist() == [4]
    assert np.flatnonzero(packed.truncated).tolist() == [5, 14]
    np.testing.assert_array_equal(packed.next_obs[4], episodes[0].obs[5])
    np.testing.assert_array_equal(packed.next_obs[14], episodes[2].obs[9])
    np.testing.assert_array_equal(packed.obs[1:5], packed.next_obs[:4])
    assert {name: getattr(packed, name).dtype.name for name in FIELDS} == {
        "obs": "float32",
        "action": "int64",
        "reward": "float32",
        "terminated": "bool",
        "truncated": "bool",
        "next_obs": "float32",
        "episode": "int64",
    }


def test_packing_counts_actions_from_zero() -> None:
    shifted = transitions.pack([episode(6, start=5)], lambda own: own - 5)
    np.testing.assert_array_equal(shifted.action, pack([episode(6)]).action)


def vectors(steps: int = 6, width: int = 2) -> RecordedEpisode:
    """An episode of continuous actions."""
    action = np.random.default_rng(1).uniform(-1, 1, (steps, width)).astype(np.float32)
    return replace(episode(steps), action=action)


def test_transitions_of_vectors_come_back_bit_for_bit(tmp_path: Path) -> None:
    path, packed = tmp_path / "transitions.h5", transitions.pack([vectors(), vectors(3)], lambda own: own / 2)
    write_transitions(path, packed, {})
    again = read_transitions(path)
    assert (again.action.dtype, again.action.shape) == (np.float32, (9, 2))
    assert same(again, packed)
    np.testing.assert_array_equal(again.action[:6], vectors().action / 2)


def test_a_minari_dataset_of_vectors_comes_back_bit_for_bit(tmp_path: Path) -> None:
    low, high = np.array([[-1.0, -3.0]], np.float32), np.array([[1.0, 5.0]], np.float32)
    write_minari(
        tmp_path / "set",
        [vectors(), vectors(3)],
        name="Test-v0/collect",
        observation_space=spaces.Box(-np.inf, np.inf, (OBS,), np.float32),
        action_space=spaces.Box(low, high),
        env_spec=None,
        algorithm="test",
        description="a test",
    )
    found = read_minari(tmp_path / "set")
    assert same(pack(found.episodes), pack([vectors(), vectors(3)]))
    assert found.action_space == spaces.Box(low, high)
    assert MinariDataset(str(tmp_path / "set" / "data"))[0].actions.shape == (6, 1, 2)
    check_fits(found, OBS, spaces.Box(low[0], high[0]))
    wider = spaces.Box(low, high + 1)
    refused(lambda: check_fits(found, OBS, wider), "its action space is Box(", "env's Box(", "(1, 2), float32)")
    refused(lambda: check_fits(found, OBS, spaces.Discrete(2)), "its action space is Box(", "env's Discrete(2): set")


def test_a_dataset_without_a_step_is_refused() -> None:
    refused(lambda: check_fits(EpisodeDataset([], "here"), OBS, spaces.Discrete(2)), "here: holds no step")


def test_transitions_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = transitions_file(tmp_path)
    assert same(read_transitions(path), pack(some()))
    assert len(read_transitions(path, limit=7)) == 7
    assert len(read_transitions(path, limit=0)) == 0
    assert len(read_transitions(path, limit=1000)) == 15


@pytest.mark.parametrize("odd", [None, 0.5, -0.0, 2.0, -1 / 255, 1e30])
def test_images_of_bytes_are_bytes_in_the_file(odd: float | None, tmp_path: Path) -> None:
    shown = np.random.default_rng(0).integers(256, size=(601, 40)).astype(np.uint8) / np.float32(255)
    shown[0] = np.arange(40) / np.float32(255)
    packed = pack([replace(episode(600), obs=shown)])
    if odd is not None:
        packed.next_obs[590, 3] = odd
    path = tmp_path / "transitions.h5"
    write_transitions(path, packed, {})
    with h5py.File(path) as file:
        assert file["obs"].dtype == np.uint8
        assert file["next_obs"].dtype == (np.uint8 if odd is None else np.float32)
    again = read_transitions(path)
    assert same(again, packed)
    assert (again.obs.tobytes(), again.next_obs.tobytes()) == (packed.obs.tobytes(), packed.next_obs.tobytes())
    assert again.obs.dtype == np.float32


def test_transitions_of_another_kind_are_refused(tmp_path: Path) -> None:
    refused(lambda: read_transitions(tmp_path / "none.h5"), "is not there", kind=MissingInputError)
    refused(lambda: read_transitions(tmp_path), "is not a regular file")
    (tmp_path / "text.h5").write_text("hello")
    refused(lambda: read_transitions(tmp_path / "text.h5"), "text.h5: is damaged or not written by evopipe, its check")
    with h5py.File(tmp_path / "other.h5", "w", userblock_size=SEAL) as file:
        file["obs"] = np.zeros(3)
    refused(
        lambda: read_transitions(tmp_path / "other.h5"), "other.h5: is damaged or not written by evopipe, its check"
    )
    other = resealed(tmp_path / "other.h5")
    refused(lambda: read_transitions(other), "not a transitions file of format 1")
    other.write_bytes(sealed(memoryview(bytearray(SEAL + 100))))
    refused(lambda: read_transitions(other), "other.h5: is truncated, damaged or not HDF5")


def replaced(path: Path, name: str, data: Any) -> Path:
    with h5py.File(path, "a") as file:
        del file[name]
        if data is not None:
            file[name] = data
    return path


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("obs", np.zeros((15, OBS)), "dataset 'obs' has dtype float64, expected float32"),
        ("action", np.zeros(14, np.int64), "ragged, dataset 'action' has 14 rows and 'obs' 15"),
        ("reward", np.full(15, np.nan, np.float32), "dataset 'reward' holds nan at index [0], not a finite float32"),
        ("next_obs", np.zeros((15, 2), np.float32), "'obs' (15, 3) and 'next_obs' (15, 2) differ"),
        ("action", np.full(15, -1), "dataset 'action' holds -1 at index [0], not from 0 to inf"),
        ("reward", np.zeros((15, 1), np.float32), "dataset 'reward' has shape (15, 1), expected 1 dimension(s)"),
        ("episode", None, "has no dataset 'episode'"),
        ("reward", ["a"] * 15, "dataset 'reward' has dtype object, expected bool or integer or float"),
    ],
)
def test_unusable_transitions_name_dataset_and_index(name: str, data: Any, text: str, tmp_path: Path) -> None:
    path = resealed(replaced(transitions_file(tmp_path), name, data))
    refused(lambda: read_transitions(path), str(path), text)


def test_a_single_bad_value_is_found_at_its_index(tmp_path: Path) -> None:
    path = transitions_file(tmp_path)
    with h5py.File(path, "a") as file:
        file["next_obs"][11, 2] = np.inf
    resealed(path)
    refused(lambda: read_transitions(path), "dataset 'next_obs' holds inf at index [11, 2]")
    assert len(read_transitions(path, limit=11)) == 11


# --- Minari -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["", "data"])
def test_a_minari_dataset_comes_back_bit_for_bit(inner: str, tmp_path: Path) -> None:
    dataset = read_minari(minari(tmp_path / "set", some(), start=2) / inner)
    assert dataset.action_space == spaces.Discrete(ACTIONS, start=2)
    assert [each.seed for each in dataset.episodes] == [0, 1, 2]
    assert same(pack(dataset.episodes), pack(some()))


def test_minari_itself_reads_what_we_write(tmp_path: Path) -> None:
    dataset = MinariDataset(str(minari(tmp_path / "set", some()) / "data"))
    assert (dataset.total_episodes, dataset.total_steps) == (3, 15)
    np.testing.assert_array_equal(dataset[2].observations, some()[2].obs)
    np.testing.assert_array_equal(dataset[0].terminations, some()[0].terminated)


ACTED = (spaces.Discrete(ACTIONS, start=2), spaces.Box(-2.0, np.array([1, np.inf], np.float32), (2,), np.float32))


@pytest.mark.parametrize("acted", ACTED)
def test_minari_itself_would_write_these_bytes(acted: spaces.Space[Any], tmp_path: Path) -> None:
    episodes = some()
    if acted.shape:
        rng = np.random.default_rng(3)
        episodes = [replace(each, action=rng.random((len(each.reward), 2), np.float32)) for each in episodes]
    shown, spec = spaces.Box(-np.inf, np.inf, (OBS,), np.float32), gymnasium.spec("CartPole-v1")
    write_minari(
        tmp_path / "set", episodes, name="Test-v0/collect", observation_space=shown, action_space=acted, env_spec=spec,
        algorithm="test", description="a test",
    )  # fmt: skip
    (tmp_path / "theirs").mkdir()
    storage = MinariStorage.new(tmp_path / "theirs", shown, acted, spec, data_format="hdf5", jpeg_encoding=False)
    named = {"dataset_id": "evopipe/Test-v0/collect-v0", "minari_version": minari_version}
    storage.update_metadata({**named, "algorithm_name": "test", "description": "a test"})
    storage.update_episodes(
        EpisodeBuffer(
            id=number, seed=each.seed, observations=each.obs, actions=each.action, rewards=each.reward,
            terminations=each.terminated, truncations=each.truncated,
        )
        for number, each in enumerate(episodes)
    )  # fmt: skip
    for name in ("metadata.json", "main_data.hdf5"):
        ours, theirs = (tmp_path / "set/data" / name).read_bytes(), (tmp_path / "theirs" / name).read_bytes()
        assert ours == theirs if name.endswith("hdf5") else json.loads(ours) == json.loads(theirs)


def test_spaces_are_described_as_minari_describes_them() -> None:
    inner = {
        "box": spaces.Box(np.array([-1, -np.inf], np.float32), 3.0, (2,), np.float32),
        "bytes": spaces.Box(0, 255, (2, 2, 3), np.uint8),
        "pick": spaces.Discrete(5, start=-2),
        "picks": spaces.MultiDiscrete([2, 3], start=[1, 0]),
        "bits": spaces.MultiBinary(4),
        "said": spaces.Text(9, min_length=2, charset="abc"),
    }
    for space in (*inner.values(), spaces.Dict(inner), spaces.Tuple([*inner.values(), spaces.Dict(inner)])):
        text = space_to_text(space)
        assert sorted(text) == sorted(serialize_space(space))  # a Text's characters are a set
        assert space_from(text) == space == deserialize_space(text)
    with pytest.raises(TypeError, match=r"^a Sequence cannot be described as text$"):
        space_to_text(spaces.Sequence(spaces.Discrete(2)))


@pytest.mark.thorough
def test_equal_data_gives_equal_bytes_in_another_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import tests.unit.data.test_dataset as t; out = Path(sys.argv[1]);"
        "t.minari(out / 'set', t.some()); t.transitions_file(out)"
    )
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    root = str(Path(__file__).parents[3])
    env = {**os.environ, "PYTHONHASHSEED": "2", "PYTHONPATH": os.pathsep.join([root, f"{root}/src"])}
    subprocess.run([sys.executable, "-c", script, str(there)], check=True, env=env)
    minari(here / "set", some())
    transitions_file(here)
    ours, theirs = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (here, there)
    )
    assert ours == theirs
    assert len(ours) == 4


def test_a_damaged_own_dataset_is_noticed_by_its_manifest(tmp_path: Path) -> None:
    folder = minari(tmp_path / "set", some())
    file = folder / "data" / "main_data.hdf5"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for read in (read_minari, read_own):
        refused(lambda read=read: read(folder), "main_data.hdf5", "checksum")


def test_an_own_dataset_without_its_manifest_is_refused(tmp_path: Path) -> None:
    folder, _ = foreign(tmp_path / "set")
    refused(lambda: read_own(folder), "set/manifest.json: is not there: run the stage", kind=MissingInputError)


@pytest.mark.parametrize("times", [8, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_truncated_and_flipped_foreign_datasets_end_in_one_sentence(times: int, tmp_path: Path) -> None:
    folder, file = foreign(tmp_path / "set")
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for size in rng.integers(len(whole), size=times // 4).tolist():
        file.write_bytes(whole[:size])
        refused(lambda: read_minari(folder), "main_data.hdf5")
    for place in rng.integers(len(whole), size=times).tolist():
        file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << (place % 8))]) + whole[place + 1 :])
        result = outcome(lambda: read_minari(folder))
        assert not isinstance(result, str) or "main_data.hdf5" in result


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("observations", np.zeros((5, OBS), np.float32), "'episode_0/observations' has 5 rows for 5 steps, expected 6"),
        ("rewards", np.zeros(4), "ragged, dataset 'episode_0/rewards' has 4 rows and 'episode_0/actions' 5"),
        ("rewards", np.array([0, 1, np.nan, 0, 0]), "dataset 'episode_0/rewards' holds nan at index [2]"),
        ("observations", np.full((6, OBS), 1e300), "dataset 'episode_0/observations' holds inf at index [0, 0]"),
        ("actions", np.full((5, 2), np.inf), "dataset 'episode_0/actions' holds inf at index [0, 0]"),
        ("actions", np.zeros((5, 2), int), "whole numbers are one index a step, vectors are floats"),
        ("terminations", np.array([1, 0, 0, 0, 0], bool), "'episode_0' ends at step 0 and goes on"),
        ("truncations", np.array([0, 0, 1, 0, 1], bool), "'episode_0' ends at step 2 and goes on"),
        ("truncations", np.array([0, 0, 0, 0, 7]), "dataset 'episode_0/truncations' holds 7 at index 4, expected 0 or"),
        ("rewards", ["a"] * 5, "dataset 'episode_0/rewards' has dtype object"),
        ("rewards", None, "has no dataset 'episode_0/rewards'"),
    ],
)
@pytest.mark.thorough
def test_unusable_minari_content_names_dataset_and_index(name: str, data: Any, text: str, tmp_path: Path) -> None:
    folder, file = foreign(tmp_path / "set")
    replaced(file, f"episode_0/{name}", data)
    refused(lambda: read_minari(folder), str(file), text)


def test_an_episode_whose_recording_stopped_counts_as_truncated(tmp_path: Path) -> None:
    folder, file = foreign(tmp_path / "set")
    replaced(file, "episode_0/terminations", np.zeros(5, bool))
    first = read_minari(folder).episodes[0]
    assert first.truncated.tolist() == [False] * 4 + [True]


def metadata(folder: Path, **changes: Any) -> None:
    path = folder / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"total_episodes": 4}, "holds 3 episodes, its metadata says 4"),
        ({"total_episodes": None}, "not the metadata of a Minari dataset"),
        ({"data_format": "arrow"}, "data format 'arrow' is not served; store the dataset as hdf5"),
        ({"observation_space": '{"type": "Dict"}'}, 'observation_space {"type": "Dict"} describes no space'),
        ({"observation_space": '{"type": ["Box"]}'}, "describes no space"),
        (
            {"observation_space": '{"type": "Box", "dtype": "float32", "shape": [1000000000], "low": 0, "high": 1}'},
            "describes no space (Box low.shape doesn't match",
        ),
        ({"action_space": '{"type": "Box", "shape": [2]}'}, 'action_space {"type": "Box", "shape": [2]} describes no'),
        ({"action_space": "{"}, "action_space { describes no space"),
        ({"action_space": "3"}, "action_space 3 describes no space"),
    ],
)
def test_unusable_metadata_is_named(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    folder, _ = foreign(tmp_path / "set")
    metadata(folder, **changes)
    refused(lambda: read_minari(folder), str(folder), text)


def test_metadata_never_builds_an_environment(tmp_path: Path) -> None:
    """Minari's own loader makes the environment of `env_spec` where the spaces are missing: a way to run any code."""
    folder, _ = foreign(tmp_path / "set")
    trap = tmp_path / "ran"
    spec = {"id": "X-v0", "entry_point": "pathlib:Path.touch", "kwargs": {"self": str(trap)}, "additional_wrappers": []}
    metadata(folder, env_spec=json.dumps(spec), observation_space=None, action_space=None)
    dataset = read_minari(folder)
    assert dataset.action_space is None
    assert not trap.exists()


def test_no_dataset_is_missing_input(tmp_path: Path) -> None:
    refused(lambda: read_minari(tmp_path), "holds no Minari dataset", kind=MissingInputError)
    refused(lambda: read_minari("data/typo"), "is no folder here and no remote id", kind=MissingInputError)
    refused(lambda: read_minari("../up-v0"), "is no folder here and no remote id", kind=MissingInputError)


def test_a_silent_remote_ends_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("evopipe.data.minari._REACH_SECONDS", 0.01)
    refused(
        lambda: read_minari("nobody/nothing-v0"),
        "the remote of 'nobody/nothing-v0' did not answer within 0.01 s; check the network, or give a local folder",
        kind=MissingInputError,
    )


def test_a_failing_remote_ends_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setenv("MINARI_REMOTE", "ftp://nowhere")
    refused(lambda: read_minari("nobody/nothing-v0"), "cannot be used (KeyError: 'ftp')", kind=MissingInputError)


def test_a_remote_id_in_the_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari(tmp_path / "name" / "set-v3", some())
    assert same(pack(read_minari("name/set-v3").episodes), pack(some()))


# --- HDF5 that reaches outside ----------------------------------------------------------------------------------------


def d4rl(path: Path, steps: int = 10, *, following: bool = False, **changes: Any) -> Path:
    """Three stretches: terminal at 3, timeout at 6, and cut by the file's end at 9."""
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(steps + 1, OBS)).astype(np.float32)
    content: dict[str, Any] = {
        "observations": walk[:-1],
        "actions": rng.integers(ACTIONS, size=steps),
        "rewards": np.arange(steps, dtype=np.float32),
        "terminals": np.arange(steps) == 3,
        "timeouts": np.arange(steps) == 6,
    }
    if following:
        content["next_observations"] = walk[1:].copy()
        content["next_observations"][[3, 6]] += 100.0
    with h5py.File(path, "w") as file:
        for name, data in {**content, **changes}.items():
            if data is not None:
                file[name] = data
    return path


def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.h5"
    with h5py.File(path, "w") as file:
        file["rewards"] = np.zeros(10, np.float32)
    return path


def test_an_external_link_is_refused(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", rewards=h5py.ExternalLink(str(secret(tmp_path)), "rewards"))
    refused(lambda: read_d4rl(path), str(path), "'rewards' is a link to", "links are not followed")


def test_a_soft_link_is_refused(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", rewards=h5py.SoftLink("/observations"))
    refused(lambda: read_d4rl(path), "'rewards' is a link to")


def test_an_external_link_in_a_minari_episode_is_refused(tmp_path: Path) -> None:
    folder, file = foreign(tmp_path / "set")
    replaced(file, "episode_1/rewards", h5py.ExternalLink(str(secret(tmp_path)), "rewards"))
    refused(lambda: read_minari(folder), "'episode_1/rewards' is a link to")
    replaced(file, "episode_0", h5py.ExternalLink(str(secret(tmp_path)), "/"))
    refused(lambda: read_minari(folder), "'episode_0' is a link to")


def test_external_storage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_bytes(bytes(40))
    path = d4rl(tmp_path / "d.hdf5", rewards=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (10,), np.float32, external=[(str(tmp_path / "passwords"), 0, 40)])
    refused(lambda: read_d4rl(path), "dataset 'rewards' keeps its values in other files")


def test_a_virtual_dataset_is_refused(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", rewards=None)
    layout = h5py.VirtualLayout((10,), np.float32)
    layout[:] = h5py.VirtualSource(str(secret(tmp_path)), "rewards", (10,))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("rewards", layout)
    refused(lambda: read_d4rl(path), "dataset 'rewards' keeps its values in other files")


def test_a_dataset_that_declares_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", rewards=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (10**12,), np.float32, chunks=(1024,))
    refused(lambda: read_d4rl(path), "dataset 'rewards' declares 4000000000000 bytes and holds 0")


def test_numbers_of_a_width_that_no_type_has_are_refused(tmp_path: Path) -> None:
    """A flipped bit makes them of numbers that are."""
    path, wide = d4rl(tmp_path / "d.hdf5", rewards=None), h5py.h5t.STD_I64LE.copy()
    wide.set_size(10)
    with h5py.File(path, "a") as file:
        h5py.h5d.create(file.id, b"rewards", wide, h5py.h5s.create_simple((10,)))
    refused(lambda: read_d4rl(path), f"{path}: is truncated, damaged or not HDF5 (data type '<i10' not understood)")


# --- HDF5 that takes more than it shows -------------------------------------------------------------------------------


def bomb(group: h5py.Group, name: str, shape: tuple[int, ...], chunk: int) -> None:
    """A dataset of zeros, a byte each, a thousandth in the file: all its chunks are one that was compressed once."""
    chunks = (chunk, *shape[1:])
    packed = zlib.compress(bytes(math.prod(chunks)), 9)
    made = group.create_dataset(name, shape, np.uint8, chunks=chunks, compression="gzip")
    for row in range(0, shape[0], chunk):
        made.id.write_direct_chunk((row, *[0] * (len(shape) - 1)), packed)


def test_a_thousand_times_compressed_is_not_unpacked(tmp_path: Path) -> None:
    """Two megabytes that unpack to two gigabytes, and as float32 to eight."""
    path, steps = tmp_path / "d.hdf5", 2**22
    with h5py.File(path, "w") as file:
        for name in ("actions", "rewards", "terminals"):
            bomb(file, name, (steps,), steps)
        bomb(file, "observations", (steps, 512), steps // 128)
    assert 2e6 < path.stat().st_size < 3e6
    limit = (
        "takes more than 1.1 GiB of memory, the limit for its size (64 times that and 1 GiB); if you trust it, unpack"
    )
    refused(lambda: read_d4rl(path), f"{path}: {limit} it first with `h5repack -f NONE`", kind=ResourceError)


@pytest.mark.slow
def test_many_names_of_one_episode_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Seventy kilobytes, in which 400 episodes are the same: eight gigabytes, were they read."""
    folder, path = foreign(tmp_path / "set")
    steps = 2**20
    with h5py.File(path, "w") as file:
        first = file.create_group("episode_0")
        for name in ("actions", "rewards", "terminations", "truncations"):
            bomb(first, name, (steps,), steps)
        bomb(first, "observations", (steps + 1, OBS), steps + 1)
        for number in range(1, 400):
            file[f"episode_{number}"] = first
    metadata(folder, total_episodes=400)
    assert path.stat().st_size < 80e3
    refused(lambda: read_minari(folder), f"{path}: takes more than 1.0 GiB of memory", kind=ResourceError)


@pytest.mark.parametrize(
    ("signum", "kind", "text"),
    [
        (signal.SIGSEGV, DataError, "is damaged so that reading it crashed (process "),
        (signal.SIGKILL, ResourceError, "reading it took all memory there is (process "),
    ],
)
def test_a_crash_while_reading_ends_in_one_sentence(
    signum: signal.Signals, kind: type[EvopipeError], text: str, tmp_path: Path
) -> None:
    path = d4rl(tmp_path / "d.hdf5")

    def crash(file: h5py.File) -> None:
        faulthandler.disable()  # pytest's, which would print where
        os.kill(os.getpid(), signum)

    refused(lambda: read_foreign(path, crash), f"{path}: {text}", kind=kind)


def test_what_is_read_in_another_process_is_the_same_here(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5")
    pid, found = read_foreign(path, lambda file: (os.getpid(), StoredArray(file, "observations").numbers()))
    assert pid != os.getpid()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(found, file["observations"][:])
    found += 1  # it is this process's own


# --- D4RL -------------------------------------------------------------------------------------------------------------


def test_d4rl_without_next_observations_drops_what_is_not_known(tmp_path: Path) -> None:
    dataset = read_d4rl(d4rl(tmp_path / "d.hdf5"))
    assert [len(each) for each in dataset.episodes] == [4, 2, 2]
    assert dataset.dropped == 2
    packed = pack(dataset.episodes)
    assert packed.reward.tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    assert np.flatnonzero(packed.terminated).tolist() == [3]
    assert np.flatnonzero(packed.truncated).tolist() == [5, 7]
    inside = ~(packed.terminated | packed.truncated)
    np.testing.assert_array_equal(packed.next_obs[:-1][inside[:-1]], packed.obs[1:][inside[:-1]])


def test_d4rl_with_next_observations_keeps_every_step(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", following=True)
    dataset = read_d4rl(path)
    assert ([len(each) for each in dataset.episodes], dataset.dropped) == ([4, 3, 3], 0)
    packed = pack(dataset.episodes)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(packed.next_obs, file["next_observations"][:])
    assert np.flatnonzero(packed.terminated).tolist() == [3]
    assert np.flatnonzero(packed.truncated).tolist() == [6, 9]


def test_d4rl_rows_that_do_not_follow_are_not_bridged(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", following=True, terminals=np.zeros(10, bool), timeouts=np.zeros(10, bool))
    assert [len(each) for each in read_d4rl(path).episodes] == [4, 3, 3]


def test_d4rl_scalars_may_be_columns(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", actions=np.ones((10, 1), np.int32), rewards=np.ones((10, 1)))
    assert [len(each) for each in read_d4rl(path).episodes] == [4, 2, 2]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"terminals": None}, "has no dataset 'terminals'"),
        ({"rewards": np.zeros(9)}, "ragged, dataset 'rewards' has 9 rows and 'actions' 10"),
        ({"observations": np.full((10, OBS), np.nan)}, "dataset 'observations' holds nan at index [0, 0]"),
        ({"actions": np.zeros((10, 2), bool)}, "dataset 'actions' has dtype bool, expected float or integer"),
        ({"terminals": np.full(10, 2)}, "dataset 'terminals' holds 2 at index 0, expected 0 or 1"),
        ({"observations": np.zeros(10)}, "dataset 'observations' has shape (10,), expected 2 dimension(s)"),
    ],
)
def test_unusable_d4rl_content_names_dataset_and_index(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5", **changes)
    refused(lambda: read_d4rl(path), str(path), text)


def test_a_truncated_or_missing_d4rl_file(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "d.hdf5")
    path.write_bytes(path.read_bytes()[:-100])
    refused(lambda: read_d4rl(path), "is truncated, damaged or not HDF5")
    refused(lambda: read_d4rl(tmp_path / "no.hdf5"), "is not there", kind=MissingInputError)


# --- Fit --------------------------------------------------------------------------------------------------------------


def test_spaces_that_differ_are_named(tmp_path: Path) -> None:
    dataset = read_own(minari(tmp_path / "set", some()))
    check_fits(dataset, OBS, spaces.Discrete(ACTIONS))
    text = "episode 0 has observations of 3 numbers, env's have 8"
    refused(lambda: check_fits(dataset, 8, spaces.Discrete(ACTIONS)), text)
    for other in (spaces.Discrete(2), spaces.Discrete(ACTIONS, start=1), spaces.MultiBinary(ACTIONS)):
        text = f"its action space is Discrete(4), env's {other}: set `env`"
        refused(lambda other=other: check_fits(dataset, OBS, other), text)


def test_actions_may_lie_outside_of_their_bounds_as_far_as_rounding_goes() -> None:
    """By a ten-thousandth of the bounds' width, on either side."""
    low, high = np.array([-1.0, 0.0]), np.array([1.0, 10.0])
    space = spaces.Box(low, high, dtype=np.float64)
    for share, fits in ((-0.25, True), (0.0, True), (0.5e-4, True), (2e-4, False)):
        beyond = share * (high - low)
        for action in (low - beyond, [1.0, high[1] + beyond[1]]):
            rows = np.tile(np.array(action), (6, 1))
            found = EpisodeDataset([replace(vectors(), action=rows)], "here")
            if fits:
                check_fits(found, OBS, space)
            else:
                refused(lambda found=found: check_fits(found, OBS, space), "episode 0 took action", "at step 0")


def test_content_that_does_not_fit_is_named(tmp_path: Path) -> None:
    dataset = read_d4rl(d4rl(tmp_path / "d.hdf5", actions=np.arange(10)))
    fits = spaces.Discrete(ACTIONS)
    refused(lambda: check_fits(dataset, OBS, fits), "episode 1 took action 4 at step 0, env's go from 0 to 3")
    refused(lambda: check_fits(dataset, 5, fits), "episode 0 has observations of 3 numbers, env's have 5")
    box = spaces.Box(-1, 1, (1,))
    refused(lambda: check_fits(dataset, OBS, box), "episode 0 took actions that are indices, env's are vectors")
    wide = EpisodeDataset([vectors()], "here")
    refused(lambda: check_fits(wide, OBS, box), "episode 0 took actions of 2 numbers, env's have 1")
