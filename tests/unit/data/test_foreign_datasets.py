"""Datasets that others recorded: real Minari ones of every served observation space, plain HDF5 files, and a remote."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from PIL import Image

from evopipe.data.minari import read_own
from evopipe.data.transitions import read_transitions
from evopipe.envs.spaces import ObservationSpace
from evopipe.errors import DataError, EvopipeError, MissingInputError, ResourceError
from evopipe.params.load import Params, parse_params
from evopipe.stages import buffer, fetch, population, train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Minari misses an author, a description, …

STEPS = 8
SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,)),
    "matrix": spaces.Box(-1, 1, (2, 2)),
    "discrete": spaces.Discrete(5, start=2),
    "multidiscrete": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "multibinary": spaces.MultiBinary(3),
    "small": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "large": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "grey": spaces.Box(0, 255, (33, 32), np.uint8),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 2, (2,)))),
    "nested": spaces.Dict(
        {
            "map": spaces.Box(0, 255, (40, 36, 3), np.uint8),
            "bag": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
            "arm": spaces.Dict({"angles": spaces.Box(-1, 1, (2, 2)), "gears": spaces.MultiDiscrete([2, 3])}),
        }
    ),
}


class Shows(gymnasium.Env[Any, Any]):
    """Shows random observations of a space."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, shows: str) -> None:
        self.observation_space, self.action_space, self.steps = SPACES[shows], spaces.Discrete(2), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), float(action), self.steps == STEPS, False, {}


gymnasium.register("Shows-v0", lambda **kwargs: Shows(**kwargs))


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "cache"))


def created(episodes: list[EpisodeBuffer], space: spaces.Space[Any], jpeg_encoding: bool) -> None:
    """Let Minari write a dataset, `tiny/set-v0`."""
    minari.create_dataset_from_buffers(
        "tiny/set-v0",
        episodes,
        observation_space=space,
        action_space=spaces.Discrete(2),
        jpeg_encoding=jpeg_encoding,
    )


def recorded(shows: str, jpeg_encoding: bool = True) -> list[EpisodeBuffer]:
    """Play three episodes into a dataset, and return them."""
    env, episodes = Shows(shows), []
    for number in range(3):
        seen, actions, rewards = [env.reset(seed=number)[0]], (number + np.arange(STEPS)) % 2, []
        for action in actions:
            obs, reward, *_ = env.step(action)
            seen.append(obs)
            rewards.append(reward)
        ends = (np.arange(STEPS) == STEPS - 1).tolist()
        episodes.append(EpisodeBuffer(number, None, None, stacked(seen), actions, rewards, ends, [False] * STEPS))
    created(episodes, env.observation_space, jpeg_encoding)
    return episodes


def stacked(parts: list[Any]) -> Any:
    """Observations, one a step, as arrays `[T + 1, …]`, nested as they are."""
    if isinstance(parts[0], dict):
        return {key: stacked([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(stacked(list(each)) for each in zip(*parts, strict=True))
    return np.stack(parts)


def at(observations: Any, step: int) -> Any:
    """The observation of one step."""
    if isinstance(observations, dict):
        return {key: at(part, step) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(at(part, step) for part in observations)
    return observations[step]


def rows(shows: str, observations: Any, steps: range) -> np.ndarray:
    """What the environment's own observations are as rows, one at a time."""
    space = ObservationSpace.of(SPACES[shows])
    return np.stack([space.row(at(observations, step)) for step in steps])


def params(shows: str, algo: str = "cqn", **source: Any) -> Params:
    network = {"encoder": [16], "latent": 16, "conv": [{"channels": 4, "kernel": 3, "stride": 2}]}
    return parse_params(
        {
            "env": {"id": "Shows-v0", "kwargs": {"shows": shows}, "num_envs": 2},
            "fetch": source or {"source": "minari", "minari": {"dataset": "tiny/set-v0"}},
            "population": {"size": 2},
            "train": {
                "algo": algo, "mode": "offline", "max_steps": 40, "evo_steps": 20, "learning_delay": 0,
                "warm_start": 0, "eval_episodes": 1, "confirm_episodes": 2, "target": None,
            },
            "runtime": {"learners": 1, "env_workers": 0, "device": "cpu"},
            "tracking": {"backends": []},
            "algos": {algo: {"network": network, "batch_size": 8}},
        }
    )  # fmt: skip


def refused(call: Callable[[], object], *parts: str, kind: type[EvopipeError] = DataError) -> None:
    with pytest.raises(kind) as failed:
        call()
    assert "\n" not in str(failed.value)
    for part in parts:
        assert part in str(failed.value)


# --- Minari -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shows", SPACES)
@pytest.mark.thorough
def test_every_served_observation_becomes_its_row(shows: str) -> None:
    made = recorded(shows, jpeg_encoding=False)
    for stage in (fetch, buffer):
        stage.run(params(shows), quiet=True)
    found = read_transitions(Path("data/transitions.h5"))
    assert found.episode.tolist() == [0] * STEPS + [1] * STEPS + [2] * STEPS
    np.testing.assert_array_equal(
        found.obs, np.concatenate([rows(shows, each.observations, range(STEPS)) for each in made])
    )
    np.testing.assert_array_equal(
        found.next_obs, np.concatenate([rows(shows, each.observations, range(1, STEPS + 1)) for each in made])
    )
    assert found.action[:4].tolist() == [0, 1, 0, 1]
    assert np.flatnonzero(found.terminated).tolist() == [7, 15, 23]


def test_a_row_against_one_by_hand() -> None:
    space = spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.Box(0, 255, (3, 1, 2), np.uint8)})
    SPACES["by hand"] = space
    image = np.array([[[0, 51]], [[102, 153]], [[204, 255]]], np.uint8)  # 3 high, 1 wide, 2 channels
    observations = {"a": np.stack([image, image[::-1]]), "b": np.array([3, 1])}
    episode = EpisodeBuffer(0, None, None, observations, np.array([1]), [0.5], [True], [False])
    created([episode], space, jpeg_encoding=False)
    for stage in (fetch, buffer):
        stage.run(params("by hand"), quiet=True)
    found = read_transitions(Path("data/transitions.h5"))
    np.testing.assert_allclose(found.obs, [[0, 0.4, 0.8, 0.2, 0.6, 1, 0, 0, 1]], atol=1e-7)
    np.testing.assert_allclose(found.next_obs, [[0.8, 0.4, 0, 1, 0.6, 0.2, 1, 0, 0]], atol=1e-7)


@pytest.mark.parametrize("shows", ["large", "grey", "nested"])
def test_images_that_minari_compressed_are_what_minari_unpacks(shows: str) -> None:
    recorded(shows)
    for stage in (fetch, buffer):
        stage.run(params(shows), quiet=True)
    theirs = minari.load_dataset("tiny/set-v0")[1].observations
    found = read_transitions(Path("data/transitions.h5"))
    np.testing.assert_array_equal(found.obs[STEPS : 2 * STEPS], rows(shows, theirs, range(STEPS)))
    described = json.loads(Path("reports/buffer.json").read_text())["obs"]  # thousands of columns as one
    assert described["mean"] == pytest.approx([found.obs.mean(dtype=np.float64)])
    assert (described["min"], described["max"]) == ([found.obs.min()], [found.obs.max()])


def test_the_collected_rows_of_a_nested_space_are_a_source_too() -> None:
    collect: dict[str, Any] = {"source": "collect", "collect": {"episodes": 2, "policies": {"random": 1.0}}}
    fetch.run(params("nested", **collect), quiet=True)
    before = read_own(Path("data/dataset")).episodes
    Path("data/dataset").rename("mine")
    fetch.run(params("nested", source="minari", minari={"dataset": "mine"}), quiet=True)
    after = read_own(Path("data/dataset")).episodes
    assert [each.obs.tobytes() for each in before] == [each.obs.tobytes() for each in after]


@pytest.mark.thorough
def test_a_population_learns_from_them() -> None:
    recorded("nested")
    for stage in (fetch, buffer, population, train):
        stage.run(params("nested"), quiet=True)
    summary = json.loads(Path("reports/train.json").read_text())
    assert (summary["warm_start"], summary["steps"]["each_member"]) == (24, 40)


@pytest.mark.parametrize(
    ("has", "wanted", "texts"),
    [
        ("vector", "matrix", ("its observation space is Box(-1.0, 1.0, (3,), float32), env's Box(-1.0, 1.0, (2, 2)",)),
        ("discrete", "vector", ("its observation space is Discrete(5, start=2), env's Box(",)),
        ("small", "large", ("its observation space is Box(0, 255, (6, 5, 3), uint8), env's Box(0, 255, (40, 36, 3)",)),
        ("tuple", "nested", ("its observation space is Tuple(", "env's Dict(")),
        (
            "multibinary",
            "discrete",
            ("its observation space is MultiBinary(3), env's Discrete(5, start=2): set `env`",),
        ),
    ],
)
def test_spaces_that_differ_are_named_before_training(has: str, wanted: str, texts: tuple[str, ...]) -> None:
    recorded(has)
    refused(lambda: fetch.run(params(wanted), quiet=True), "cache/tiny/set-v0/data/main_data.hdf5: ", *texts)
    assert not Path("data/dataset").exists()


def altered(change: Callable[[dict[str, Any]], None], dataset_id: str = "tiny/set-v0") -> None:
    """Change the recorded observation space."""
    path = Path("cache") / dataset_id / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    space = json.loads(metadata["observation_space"])
    change(space)
    path.write_text(json.dumps({**metadata, "observation_space": json.dumps(space)}))


def test_the_part_that_differs_is_named() -> None:
    recorded("nested")
    altered(lambda space: space["subspaces"]["bag"]["subspaces"][0].update(n=4))
    text = "its observation['bag'][0] is Discrete(4, start=-1), env's Discrete(3, start=-1): set `env`"
    refused(lambda: fetch.run(params("nested"), quiet=True), text)


def test_a_space_of_something_else_is_refused() -> None:
    recorded("nested")
    text = {"type": "Text", "max_length": 9, "min_length": 1, "charset": "abc"}
    altered(lambda space: space["subspaces"].update(map=text))
    refused(lambda: fetch.run(params("nested"), quiet=True), "its observation space Dict(", "is not served")


def replaced(name: str, data: Any) -> str:
    """Put something else into the first episode."""
    file = "cache/tiny/set-v0/data/main_data.hdf5"
    with h5py.File(file, "a") as opened:
        del opened[f"episode_0/{name}"]
        if data is not None:
            opened[f"episode_0/{name}"] = data
    return file


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("observations/bag/_index_0", np.full(9, 2), "an observation['bag'][0] with the value 2, which is not in its"),
        ("observations/bag/_index_0", np.zeros(8, int), "an observation['bag'][0] of 8 steps beside others of"),
        ("observations/bag/_index_0", np.full(9, 0.5), "an observation['bag'][0] of fractions, its space has whole"),
        ("observations/bag", np.zeros(9), "'episode_0/observations/bag' is no group, the observation space has parts"),
        ("observations/arm/angles", None, "has no dataset 'episode_0/observations/arm/angles'"),
        ("observations/arm/angles", ["a"] * 9, "'episode_0/observations/arm/angles' has dtype object, expected"),
        ("observations/arm/angles", np.full((9, 2, 2), np.nan), "'episode_0/observations' holds nan at index [0, 0]"),
        ("observations/arm/gears", np.zeros((9, 3), int), "an observation['arm']['gears'] of shape (3,) a step"),
        ("observations/map", np.zeros((9, 40, 36, 1), np.uint8), "an observation['map'] of shape (40, 36, 1) a step"),
        ("observations/map", np.zeros((9, 30), np.uint8), "neither an image of shape (40, 36, 3) nor a JPEG of one at"),
        ("observations/map", np.zeros(9), "'episode_0/observations/map' has dtype float64, expected images of shape"),
        ("observations/map", np.uint8(3), "dataset 'episode_0/observations/map' has shape (), expected 1 dimension(s)"),
        ("observations/arm", h5py.SoftLink("/episode_1/observations/arm"), "is a link to"),
        ("observations/map", h5py.ExternalLink("other.h5", "map"), "is a link to"),
    ],
)
@pytest.mark.thorough
def test_unusable_nested_content_is_named(name: str, data: Any, text: str) -> None:
    recorded("nested")
    file = replaced(name, data)
    refused(lambda: fetch.run(params("nested"), quiet=True), file, text)


def test_a_part_that_the_space_has_not_is_refused() -> None:
    recorded("nested")
    with h5py.File("cache/tiny/set-v0/data/main_data.hdf5", "a") as file:
        file["episode_2/observations/arm/more"] = np.zeros(9)
    text = "'episode_2/observations/arm' holds 'more', which the observation space does not"
    refused(lambda: fetch.run(params("nested"), quiet=True), text)


def test_images_that_are_declared_and_not_there_take_no_memory() -> None:
    recorded("large")
    with h5py.File("cache/tiny/set-v0/data/main_data.hdf5", "a") as opened:
        del opened["episode_0/observations"]
        opened["episode_0"].create_dataset("observations", (10**9,), h5py.vlen_dtype(np.uint8), chunks=(1024,))
    text = "dataset 'episode_0/observations' declares 8000000000 bytes and holds 0"
    refused(lambda: fetch.run(params("large"), quiet=True), text)


def test_a_small_file_of_vast_images_takes_no_memory() -> None:
    """A million images of 4320 bytes, whose JPEGs are declared to be a byte each: four gigabytes unpacked."""
    recorded("large")
    with h5py.File("cache/tiny/set-v0/data/main_data.hdf5", "a") as opened:
        del opened["episode_0/observations"]
        opened["episode_0"].create_dataset("observations", (2**20, 1), np.uint8, chunks=(1024, 1))
    text = "main_data.hdf5: takes more than 1.0 GiB of memory, the limit for its size (64 times that and 1 GiB)"
    refused(lambda: fetch.run(params("large"), quiet=True), text, kind=ResourceError)
    assert not Path("data/dataset").exists()


def test_a_jpeg_that_declares_a_vast_image_is_not_unpacked() -> None:
    recorded("large")
    packed = io.BytesIO()
    Image.new("RGB", (36, 40)).save(packed, format="JPEG")
    content = bytearray(packed.getvalue())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"  # 65500 × 65500: 12 GB
    replaced("observations", np.tile(np.frombuffer(bytes(content), np.uint8), (9, 1)))
    refused(lambda: fetch.run(params("large"), quiet=True), "nor a JPEG of one at index 0")


# --- Plain HDF5 -------------------------------------------------------------------------------------------------------


def file(observations: Any, n: int = 12, **more: Any) -> dict[str, Any]:
    """Write a file in D4RL layout, and return the block of `fetch` that names it."""
    content = {
        "actions": np.arange(n) % 2,
        "rewards": np.ones((n, 1)),
        "terminals": np.arange(n) % 6 == 5,
        "timeouts": np.zeros(n, bool),
        **more,
    }

    def put(group: Any, name: str, value: Any) -> None:
        if isinstance(value, dict | tuple):
            parts = value if isinstance(value, dict) else {f"_index_{i}": part for i, part in enumerate(value)}
            for key, part in parts.items():
                put(group.require_group(name), key, part)
        elif value is not None:
            group[name] = value

    with h5py.File("d.hdf5", "w") as opened:
        put(opened, "observations", observations)
        for name, value in content.items():
            put(opened, name, value)
    return {"source": "hdf5", "hdf5": {"path": "d.hdf5"}}


def samples(shows: str, n: int = 12) -> Any:
    space = SPACES[shows]
    space.seed(3)
    return stacked([space.sample() for _ in range(n)])


@pytest.mark.parametrize("shows", ["matrix", "multidiscrete", "small", "nested"])
def test_a_file_is_read_by_the_environments_space(shows: str) -> None:
    seen = samples(shows)
    settings = params(shows, **file(seen))
    for stage in (fetch, buffer):
        stage.run(settings, quiet=True)
    found = read_transitions(Path("data/transitions.h5"))
    np.testing.assert_array_equal(found.obs, rows(shows, seen, range(12)))
    np.testing.assert_array_equal(found.next_obs[:5], found.obs[1:6])
    assert np.flatnonzero(found.terminated).tolist() == [5, 11]


def test_next_observations_are_nested_alike() -> None:
    seen, following = samples("nested", 24), samples("nested", 24)
    half = stacked([at(seen, step) for step in range(12)])
    then = stacked([at(following, step) for step in range(12, 24)])
    settings = params("nested", **file(half, next_observations=then))
    for stage in (fetch, buffer):
        stage.run(settings, quiet=True)
    found = read_transitions(Path("data/transitions.h5"))
    np.testing.assert_array_equal(found.next_obs, rows("nested", then, range(12)))


def test_agilerls_layout_keeps_whole_numbers_as_columns_of_floats() -> None:
    seen = samples("discrete")
    settings = params("discrete", **file(seen[:, None].astype(np.float32), timeouts=None))
    for stage in (fetch, buffer):
        stage.run(settings, quiet=True)
    found = read_transitions(Path("data/transitions.h5"))
    np.testing.assert_array_equal(found.obs.argmax(axis=1), seen - 2)


@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_indices_of_actions_may_be_floats(shape: tuple[int, ...]) -> None:
    wanted = np.arange(12) % 2
    settings = params("vector", **file(np.zeros((12, 3)), actions=wanted.astype(np.float32).reshape(shape)))
    for stage in (fetch, buffer):
        stage.run(settings, quiet=True)
    assert read_transitions(Path("data/transitions.h5")).action.tolist() == wanted.tolist()


@pytest.mark.parametrize("shows", ["vector", "discrete", "small"])
def test_a_file_without_a_step_says_so(shows: str) -> None:
    none = np.zeros(0, np.float32)
    settings = params(
        shows, **file(samples(shows)[:0], actions=none.astype(int), rewards=none, terminals=none, timeouts=none)
    )
    refused(lambda: fetch.run(settings, quiet=True), "d.hdf5: holds no step; give a dataset with at least one episode")


@pytest.mark.parametrize(
    ("shows", "observations", "text"),
    [
        (
            "vector",
            np.zeros((12, 4)),
            "d.hdf5: 'observations' holds an observation of shape (4,) a step, env's has (3,): ",
        ),
        ("vector", np.zeros(12), "an observation of shape () a step, env's has (3,): "),
        ("discrete", np.zeros(12, int), "an observation with the value 0, which is not in its space"),
        ("small", np.zeros((12, 3, 6, 5), np.uint8), "an observation of shape (3, 6, 5) a step, env's has (6, 5, 3): "),
        ("nested", np.zeros((12, 4)), "'observations' is no group, the observation space has parts arm, bag, map"),
        ("vector", {"a": np.zeros(12)}, "'observations' is a group, expected a dataset"),
        ("vector", np.full((12, 3), 1e300), "dataset 'observations' holds inf at index [0, 0]"),
    ],
)
def test_a_file_of_other_spaces_is_refused(shows: str, observations: Any, text: str) -> None:
    settings = params(shows, **file(observations))
    refused(lambda: fetch.run(settings, quiet=True), text)


# --- A remote ---------------------------------------------------------------------------------------------------------

COMMIT = "1" * 40


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as Minari's remote uses, for one repository: the files below a folder."""

    folder: Path

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        files = {str(p.relative_to(self.folder)): p for p in sorted(self.folder.rglob("*")) if p.is_file()}
        prefix = f"/datasets/farama-minari/tiny/resolve/{'main' if '/main/' in path else COMMIT}/"
        if path == "/api/datasets":
            self._json([{"id": "farama-minari/tiny"}])
        elif path.startswith("/api/datasets/farama-minari/tiny/revision/"):
            about = {"id": "farama-minari/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self._json(about)
        elif path.startswith("/api/datasets/farama-minari/tiny/tree/"):
            self._json([{"type": "file", "path": n, "size": p.stat().st_size, "oid": n} for n, p in files.items()])
        elif path.removeprefix(prefix) in files:
            name = path.removeprefix(prefix)
            self._answer(200, files[name].read_bytes(), {"ETag": f'"{name.replace("/", "-")}"'})
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def _json(self, content: Any) -> None:
        self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _answer(self, code: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "X-Repo-Commit": COMMIT, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A remote on this machine that has `tiny/set-v0`; gives the folder of its files."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "remote"))
    recorded("tuple")
    folder = tmp_path / "remote" / "tiny"
    (folder / "namespace_metadata.json").write_text(json.dumps({"datasets": ["tiny/set-v0"]}))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("TinyHub", (Hub,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "MINARI_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield folder
    server.shutdown()
    server.server_close()


@pytest.mark.thorough
def test_a_remote_dataset_is_downloaded_once_and_completed_where_it_was_cut_short(remote: Path) -> None:
    part = Path("cache/tiny/set-v0/data/metadata.json")
    part.parent.mkdir(parents=True)
    part.write_text("{")
    fetch.run(params("tuple"), quiet=True)
    assert json.loads(Path("reports/fetch.json").read_text())["transitions"] == 24
    for path in remote.rglob("*"):
        path.unlink() if path.is_file() else None
    fetch.run(params("tuple"), quiet=True)  # from Minari's cache


@pytest.mark.thorough
def test_an_id_that_the_remote_has_not_is_named(remote: Path) -> None:
    settings = params("tuple", source="minari", minari={"dataset": "tiny/set-v7"})
    text = "fetch.minari.dataset: the remote has no dataset 'tiny/set-v7'; it has tiny/set-v0"
    refused(lambda: fetch.run(settings, quiet=True), text, kind=MissingInputError)


@pytest.mark.slow  # it waits for the network
def test_no_network_ends_in_one_sentence(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    text = "fetch.minari.dataset: the remote of 'tiny/set-v0'"
    refused(lambda: fetch.run(params("tuple"), quiet=True), text, "check the network, or", kind=MissingInputError)
