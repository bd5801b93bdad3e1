"""The stages `fetch` and `buffer`, run as the pipeline runs them: in a working folder."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from minari import MinariDataset

from evopipe import layout
from evopipe.data.collect import GOOD
from evopipe.data.minari import read_own
from evopipe.data.transitions import Transitions, read_transitions, statistics
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError, MissingInputError, ParamsError
from evopipe.params.load import Params
from evopipe.policies import policy
from evopipe.problems.specs import make_spec
from evopipe.rng import Purpose, host
from evopipe.run.population import read_members
from evopipe.stages import buffer, fetch, population
from evopipe.storage.folders import read_folder, write_folder

CART = {"id": "CartPole-v1", "kwargs": {}}


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def params(env: str = "CartPole-v1", seed: int = 1, source: str = "collect", **parts: Any) -> Params:
    """Params with a small collection; `collect`, `minari`, `hdf5` and `kwargs` replace parts."""
    collect = {"episodes": 6, "policies": {"random": 1.0}, **parts.get("collect", {})}
    settings = {"source": source, "collect": collect}
    settings.update({name: parts[name] for name in ("minari", "hdf5") if name in parts})
    return Params.model_validate(
        {"seed": seed, "env": {"id": env, "kwargs": parts.get("kwargs", {})}, "fetch": settings}
    )


def own(name: str) -> str:
    return f"envs_for_tests:{name}-v0"


def report(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(f"reports/{name}.json").read_text())
    return content


def sums() -> dict[str, str]:
    files = sorted(path for path in Path.cwd().rglob("*") if path.is_file())
    return {str(path.relative_to(Path.cwd())): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(run: Any, settings: Params, kind: type[EvopipeError], *parts: str) -> None:
    with pytest.raises(kind) as failed:
        run(settings, quiet=True)
    for part in parts:
        assert part in str(failed.value)


def test_collect_then_buffer(capsys: pytest.CaptureFixture[str]) -> None:
    settings = params(collect={"episodes": 12, "policies": {"random": 2.0, "heuristic": 1.0}})
    draws = [host(1, Purpose.BEHAVIOUR, number).choice(2, p=[1 / 3, 2 / 3]) for number in range(12)]
    fetch.run(settings)
    buffer.run(settings)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("data/dataset: 12 episodes, ")
    assert lines[1].startswith("data/transitions.h5: ")

    fetched, buffered = report("fetch"), report("buffer")
    transitions = read_transitions(Path("data/transitions.h5"))
    assert fetched["transitions"] == buffered["transitions"] == len(transitions)
    assert [fetched["policies"][name]["episodes"] for name in ("heuristic", "random")] == [12 - sum(draws), sum(draws)]
    assert fetched["policies"]["heuristic"]["return"]["mean"] == 500.0
    assert fetched["policies"]["random"]["return"]["mean"] < 60.0
    assert fetched["policies"]["heuristic"]["episodes"] == buffered["truncations"]
    assert fetched["policies"]["random"]["episodes"] == buffered["terminations"]
    assert buffered["return"]["max"] == 500.0
    assert sum(buffered["actions"]) == len(transitions)
    np.testing.assert_allclose(buffered["obs"]["mean"], transitions.obs.mean(axis=0, dtype=np.float64))
    inside = ~(transitions.terminated | transitions.truncated)[:-1]
    np.testing.assert_array_equal(transitions.next_obs[:-1][inside], transitions.obs[1:][inside])
    assert MinariDataset("data/dataset/data").total_episodes == 12


def test_statistics_by_hand() -> None:
    """An end that is both counts as a termination, an episode without a step as none, an action nobody took as 0."""
    found = statistics(
        Transitions(
            obs=np.array([[1, 10], [2, 20], [6, 30]], np.float32),
            action=np.array([0, 2, 0]),
            reward=np.array([1, 2, -4], np.float32),
            terminated=np.array([False, True, False]),
            truncated=np.array([False, True, True]),
            next_obs=np.zeros((3, 2), np.float32),
            episode=np.array([0, 0, 2]),
        ),
        4,
    )
    deviation = {name: found[name].pop("std") for name in ("reward", "obs")}
    assert found == {
        "transitions": 3,
        "episodes": 2,
        "terminations": 1,
        "truncations": 1,
        "return": {"mean": -0.5, "std": 3.5, "min": -4.0, "max": 3.0},
        "length": {"mean": 1.5, "std": 0.5, "min": 1.0, "max": 2.0},
        "reward": {"mean": pytest.approx(-1 / 3), "min": -4.0, "max": 2.0},
        "obs": {"mean": [3.0, 20.0], "min": [1.0, 10.0], "max": [6.0, 30.0]},
        "actions": [2, 0, 1, 0],
    }
    assert deviation["reward"] == pytest.approx((62 / 9) ** 0.5)
    assert deviation["obs"] == pytest.approx([(14 / 3) ** 0.5, (200 / 3) ** 0.5])


def test_very_many_columns_are_described_as_one() -> None:
    rows = np.arange(3 * 129, dtype=np.float32).reshape(3, 129)

    def described(obs: np.ndarray) -> Any:
        ends = np.zeros(3, bool)
        return statistics(Transitions(obs, np.zeros(3, int), np.zeros(3), ends, ends, obs, np.zeros(3, int)), 1)["obs"]

    assert described(rows) == {
        "mean": [193.0], "std": [pytest.approx(((387**2 - 1) / 12) ** 0.5)], "min": [0.0], "max": [386.0],
    }  # fmt: skip
    assert described(rows[:, :128])["min"] == list(range(128))


def test_outs_are_equal_to_the_byte_and_follow_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        settings = params(seed=seed)
        fetch.run(settings, quiet=True)
        buffer.run(settings, quiet=True)
        seen.append(sums())
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == [
        "data/dataset/data/main_data.hdf5",
        "data/dataset/data/metadata.json",
        "data/dataset/manifest.json",
        "data/transitions.h5",
        "reports/buffer.json",
        "reports/fetch.json",
    ]
    assert seen[0]["data/transitions.h5"] != seen[2]["data/transitions.h5"]


def test_outs_may_go_to_another_folder() -> None:
    fetch.run(params(), quiet=True, folder=Path("elsewhere"))
    buffer.run(params(), quiet=True, folder=Path("elsewhere"))
    assert len(sums()) == 6
    assert all(name.startswith("elsewhere/") for name in sums())


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    settings = params()
    fetch.run(settings, quiet=True)
    buffer.run(settings, quiet=True)
    assert capsys.readouterr().out == ""


def test_a_missing_heuristic_gives_its_weight_to_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    fetch.run(params("Acrobot-v1", collect={"episodes": 1, "policies": {"heuristic": 0.5, "random": 0.5}}))
    note = "Acrobot-v1 has no heuristic, its weight went to random"
    assert report("fetch")["notes"] == [note]
    assert capsys.readouterr().out.splitlines()[0] == f"data/dataset: {note}"


@pytest.mark.parametrize(
    ("env", "collect", "text"),
    [
        ("Acrobot-v1", {"policies": {"heuristic": 1.0}}, "Acrobot-v1 has no heuristic; give `random` or `policy`"),
    ],
)
def test_unusable_mixes_are_refused(env: str, collect: dict[str, Any], text: str) -> None:
    refused(fetch.run, params(env, collect=collect), ParamsError, text)
    assert not Path("data/dataset").exists()


def exported(folder: Path, settings: Params, prefers: int = 0) -> policy.Policy:
    """A policy that was never trained and takes one action wherever it may."""
    population.run(settings, quiet=True, folder=Path("aside"))
    members, about = read_members(Path("aside"), layout.POPULATION, make_spec(settings))
    spaces = {name: about[name] for name in ("observations", "actions")}
    start = settings.env.kwargs.get("offset", 0)
    widths = make_spec(settings).widths["q"]
    members[0].arch.named(widths, members[0].tensors["q"])["output.bias"][prefers] += 100.0
    policy.save(folder, settings.train.algo, members[0], {**spaces, "action_start": start}, False, "a test")
    return policy.load(folder)


@pytest.mark.parametrize(("env", "kwargs"), [("CartPole-v1", {}), (own("Masked"), {"offset": 3})])
def test_an_exported_policy_is_a_behaviour(env: str, kwargs: dict[str, Any]) -> None:
    chosen = exported(Path("elite"), params(env, kwargs=kwargs))
    mix = {"policies": {"policy": 1.0}, "policy_path": "elite"}
    settings = params(env, kwargs=kwargs, collect=mix)
    fetch.run(settings, quiet=True)
    assert report("fetch")["policies"]["policy"]["episodes"] == 6
    first = read_own(Path("data/dataset")).episodes[0]
    if env == "CartPole-v1":
        np.testing.assert_array_equal(first.action, chosen.act(first.obs[:-1]))
    else:
        # To the left, but for the first cell, where that is illegal.
        assert first.action.tolist() == [4 if cell == 0 else 3 for cell in first.obs[:-1].argmax(axis=1)]


@pytest.mark.parametrize(
    ("env", "has"),
    [("Acrobot-v1", "6 observations and 3 discrete actions"), (own("Pairs"), "4 observations and 10 discrete actions")],
)
def test_a_policy_of_another_environment_is_refused(env: str, has: str) -> None:
    exported(Path("elite"), params())
    settings = params(env, collect={"policies": {"policy": 1.0}, "policy_path": "elite"})
    text = f"fetch.collect.policy_path: elite takes 4 observations and 2 discrete actions, the environment has {has}"
    refused(fetch.run, settings, ParamsError, text)


def test_a_policy_that_is_not_there() -> None:
    settings = params(collect={"policies": {"policy": 1.0}, "policy_path": "elite"})
    refused(fetch.run, settings, MissingInputError, "elite")


def test_a_rule_acts_in_the_environments_own_bounds() -> None:
    """Torques from −2 to 2, which an algorithm knows as −1 to 1."""
    fetch.run(params("Pendulum-v1", collect={"episodes": 1, "policies": {"heuristic": 1.0}}), quiet=True)
    (episode,) = read_own(Path("data/dataset")).episodes
    rule, env = GOOD["Pendulum-v1"], gymnasium.make("Pendulum-v1")
    expected = np.array([rule(env, obs) for obs in episode.obs[:-1]])
    np.testing.assert_allclose(episode.action, expected, rtol=1e-5, atol=1e-6)
    assert ((np.abs(expected) > 0.1) & (np.abs(expected) < 0.9)).any()
    assert (np.abs(expected) == 2.0).any()


def test_a_step_cap_truncates() -> None:
    settings = params(collect={"episodes": 3, "max_steps": 5})
    fetch.run(settings, quiet=True)
    buffer.run(settings, quiet=True)
    assert (report("buffer")["transitions"], report("buffer")["truncations"]) == (15, 3)


def test_masks_and_action_offsets_are_kept() -> None:
    settings = params(own("Masked"), kwargs={"offset": 4})
    fetch.run(settings, quiet=True)
    buffer.run(settings, quiet=True)
    raw = np.concatenate([episode.action for episode in read_own(Path("data/dataset")).episodes])
    transitions = read_transitions(Path("data/transitions.h5"))
    assert set(raw.tolist()) <= {4, 5}
    np.testing.assert_array_equal(transitions.action, raw - 4)
    assert not ((transitions.obs[:, 0] == 1.0) & (transitions.action == 0)).any()


@pytest.mark.parametrize("name", ["NanReward", "NanObs", "MaskedOut"])
def test_broken_steps_are_left_out_and_counted(name: str) -> None:
    settings = params(own(name))
    fetch.run(settings, quiet=True)
    buffer.run(settings, quiet=True)
    fetched, transitions = report("fetch"), read_transitions(Path("data/transitions.h5"))
    assert fetched["broken_steps"] > 0
    [note] = fetched["notes"]
    assert note.startswith(f"{fetched['broken_steps']} episodes cut where the environment gave a value that is not")
    assert np.bincount(transitions.episode).max() <= 3
    assert report("buffer")["truncations"] >= fetched["broken_steps"]


def test_an_environment_that_only_breaks_is_refused() -> None:
    refused(
        fetch.run, params(own("NanReward"), kwargs={"when": 1}), EnvironmentFailed, "no episode gave a finite first"
    )


def test_an_environment_that_raises_is_named() -> None:
    refused(fetch.run, params(own("Raises")), EnvironmentFailed, "behaviour environment", "the motor broke", "step 3")


def test_buffer_without_fetch() -> None:
    refused(buffer.run, params(), MissingInputError, "data/dataset: not there; run `evopipe fetch`")


def test_a_minari_folder_is_a_source(tmp_path: Path) -> None:
    fetch.run(params(), quiet=True)
    before = read_own(Path("data/dataset"))
    Path("data/dataset").rename("mine")
    settings = params(source="minari", minari={"dataset": "mine/data"})
    fetch.run(settings, quiet=True)
    buffer.run(settings, quiet=True)
    after = read_own(Path("data/dataset"))
    assert all(a.obs.tobytes() == b.obs.tobytes() for a, b in zip(before.episodes, after.episodes, strict=True))
    assert report("fetch")["source"] == "minari"


def test_a_d4rl_file_is_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File("d.hdf5", "w") as file:
        file["observations"] = np.random.default_rng(0).normal(size=(8, 4))
        file["actions"] = np.array([0, 1] * 4)
        file["rewards"] = np.ones(8)
        file["terminals"] = np.arange(8) == 2
        file["timeouts"] = np.arange(8) == 5
    settings = params(source="hdf5", hdf5={"path": "d.hdf5"})
    fetch.run(settings)
    buffer.run(settings)
    fetched, buffered = report("fetch"), report("buffer")
    assert (fetched["dropped_steps"], fetched["transitions"], fetched["episodes"]) == (2, 6, 3)
    assert (buffered["terminations"], buffered["truncations"]) == (1, 2)
    assert capsys.readouterr().out.startswith("data/dataset: 2 last steps of cut episodes left out")


def test_vectors_that_happen_to_be_whole_stay_vectors() -> None:
    with h5py.File("d.hdf5", "w") as file:
        file["observations"] = np.zeros((4, 3))
        file["actions"] = np.array([[-2.0], [0.0], [1.0], [2.0]])
        file["rewards"] = np.ones(4)
        file["terminals"] = np.arange(4) == 3
    settings = params("Pendulum-v1", source="hdf5", hdf5={"path": "d.hdf5"})
    fetch.run(settings, quiet=True)
    buffer.run(settings, quiet=True)
    assert read_transitions(Path("data/transitions.h5")).action.tolist() == [[-1.0], [0.0], [0.5], [1.0]]
    assert report("fetch")["notes"] == ["the file has no timeouts: an episode that was cut runs on into the next one"]


def test_a_dataset_of_another_environment_is_refused_by_both_stages() -> None:
    fetch.run(params(), quiet=True)
    other = params("Acrobot-v1", source="minari", minari={"dataset": "data/dataset"})
    text = "its action space is Discrete(2), env's Discrete(3): set `env` to the dataset's environment"
    refused(fetch.run, other, DataError, text)
    refused(buffer.run, other, DataError, text)


def test_an_empty_dataset_is_refused() -> None:
    fetch.run(params(), quiet=True)
    content = io.BytesIO()
    with h5py.File(content, "w"):
        pass
    files = read_folder(Path("data/dataset"))
    metadata = json.dumps({**json.loads(files["data/metadata.json"]), "total_episodes": 0}).encode()
    changed = {"data/metadata.json": metadata, "data/main_data.hdf5": content.getvalue()}
    write_folder(Path("data/dataset"), changed)
    refused(buffer.run, params(), DataError, "holds no step")
    settings = params(source="minari", minari={"dataset": "data/dataset"})
    refused(fetch.run, settings, DataError, "holds no step")


def test_a_source_that_is_not_there_is_named() -> None:
    refused(
        fetch.run, params(source="minari", minari={"dataset": "nowhere"}), MissingInputError, "'nowhere' is no folder"
    )
    refused(fetch.run, params(source="hdf5", hdf5={"path": "no.hdf5"}), MissingInputError, "no.hdf5: is not there")
