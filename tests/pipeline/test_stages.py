"""What each stage says where its inputs are missing, damaged or of another run."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evopipe import layout
from evopipe.errors import DataError
from evopipe.policies import policy
from evopipe.storage.folders import read_folder, write_folder
from tiny import call, digests, write_params

STAGES = ("fetch", "buffer", "population", "train", "evaluate", "export", "report")
WARM = {"train.max_steps": 400, "train.warm_start": 50}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every stage ran."""
    folder = tmp_path_factory.mktemp("whole")
    write_params(folder, WARM)
    for stage in STAGES:
        answer = call(folder, stage)
        assert answer.code == 0, answer.err
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


# --- missing ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("stage", "out", "upstream"),
    [
        ("buffer", "data/dataset", "fetch"),
        ("train", "models/population", "population"),
        ("train", "data/transitions.h5", "buffer"),
        ("evaluate", "models/trained", "train"),
        ("export", "models/trained", "train"),
        ("export", "reports/evaluation.json", "evaluate"),
        ("report", "reports/timing.csv", "train"),
        ("report", "reports/lineage.jsonl", "train"),
        ("report", "reports/episodes.csv", "evaluate"),
        ("report", "models/elite", "export"),
    ],
)
def test_an_upstream_out_is_missing(folder: Path, stage: str, out: str, upstream: str) -> None:
    shutil.rmtree(folder / out) if (folder / out).is_dir() else (folder / out).unlink()
    answer = call(folder, stage)
    assert answer.code == 66
    assert answer.err.startswith(f"error: {out}: ")
    assert f"run `evopipe {upstream}` or `dvc repro {upstream}`" in answer.err


def test_nothing_was_ever_run(tmp_path: Path) -> None:
    write_params(tmp_path, WARM)
    for stage in ("buffer", "train", "evaluate", "export", "report"):
        assert call(tmp_path, stage).code == 66
    assert {path.name for path in tmp_path.iterdir()} == {"params.yaml"}


@pytest.mark.thorough
@pytest.mark.parametrize("fitness", [100.5, -1.0])
def test_a_held_out_interval_below_the_elites_fitness_is_warned_of(folder: Path, fitness: float) -> None:
    """No episode of 100 steps pays more than 100."""
    files = read_folder(folder / "models/trained")
    about = json.loads(files["members.json"])
    about["elite"]["score"] = fitness
    write_folder(folder / "models/trained", {**files, "members.json": json.dumps(about).encode()})
    answer = call(folder, "evaluate")
    assert answer.code == 0
    interval = re.search(r"95 % interval (\[.*\])", answer.out)
    assert interval is not None
    warning = (
        f"warning: held-out interval {interval[1]} lies below the elite's fitness 100.5: raise train.eval_episodes\n"
    )
    assert answer.err == (warning if fitness > 100 else "")


# --- damaged ----------------------------------------------------------------------------------------------------------


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("train", "models/population/members.safetensors"),
        ("train", "models/population/members.json"),
        ("train", "models/population/manifest.json"),
        ("train", "data/transitions.h5"),
        ("evaluate", "models/trained/members.safetensors"),
        ("export", "models/trained/members.json"),
    ],
)
@pytest.mark.thorough
def test_an_upstream_out_is_damaged(
    folder: Path, stage: str, path: str, damage: Callable[[Path, random.Random], None]
) -> None:
    draw, intact = random.Random(f"{stage} {path}"), (folder / path).read_bytes()
    for _ in range(8):
        damage(folder / path, draw)
        answer = call(folder, stage)
        assert answer.code == 65
        assert answer.err.startswith(f"error: {path}: ")
        assert "Traceback" not in answer.err
        (folder / path).write_bytes(intact)


@pytest.mark.parametrize("damage", [pytest.param(flip, marks=pytest.mark.thorough), cut])
def test_the_elite_is_damaged(folder: Path, damage: Callable[[Path, random.Random], None]) -> None:
    draw, elite = random.Random(4), folder / "models/elite"
    for name in ("policy.json", "policy.safetensors", "manifest.json"):
        intact = (elite / name).read_bytes()
        for _ in range(10):
            damage(elite / name, draw)
            with pytest.raises(DataError) as caught:
                policy.load(elite)
            assert str(caught.value).startswith(f"{elite / name}: ")
            (elite / name).write_bytes(intact)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"elite": {"mean": 3}}', '{"elite": NaN}'])
def test_the_evaluation_is_damaged(folder: Path, text: str) -> None:
    (folder / "reports/evaluation.json").write_text(text)
    answer = call(folder, "export")
    assert answer.code == 65
    assert answer.err.startswith("error: reports/evaluation.json: ")


@pytest.mark.parametrize("text", ["{", "3\n", '{"children": [3]}\n', "[]\n"])
def test_the_lineage_is_damaged(folder: Path, text: str) -> None:
    (folder / "reports/lineage.jsonl").write_text(text)
    answer = call(folder, "export")
    assert answer.code == 65
    assert answer.err.startswith("error: reports/lineage.jsonl:1: ")


# --- of another run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "upstream", "out"), [
    ("train", "population", "models/population"),
    ("evaluate", "train", "models/trained"),
    ("export", "train", "models/trained"),
])  # fmt: skip
def test_made_for_another_environment(folder: Path, stage: str, upstream: str, out: str) -> None:
    write_params(folder, {"env.id": "Acrobot-v1"})
    answer = call(folder, stage)
    assert (answer.code, answer.err) == (
        65,
        f"error: {out}: written for env 'CartPole-v1', params.yaml says 'Acrobot-v1'; "
        f"run `evopipe {upstream}` or `dvc repro {upstream}` again\n",
    )


def test_transitions_of_another_environment(folder: Path) -> None:
    write_params(folder, WARM | {"env.id": "Acrobot-v1"})
    assert call(folder, "population").code == 0
    answer = call(folder, "train")
    assert (answer.code, answer.err) == (
        65,
        "error: data/transitions.h5: holds observations of length 4 and 2 discrete actions, Acrobot-v1 has 6 and 3 "
        "discrete ones; run `dvc repro fetch buffer` again\n",
    )


def test_made_for_another_algorithm(folder: Path) -> None:
    from evopipe.params.load import load_params
    from evopipe.problems.specs import make_spec
    from evopipe.run.population import read_members
    from evopipe.storage import members as stored

    problem = make_spec(load_params(folder / "params.yaml"))
    members, about = read_members(folder, layout.POPULATION, problem)
    stored.write(folder / "models/population", members, about | {"algo": "ppo"})
    answer = call(folder, "train")
    assert (answer.code, answer.err) == (
        65,
        "error: models/population: written for algo 'ppo', params.yaml says 'dqn'; "
        "run `evopipe population` or `dvc repro population` again\n",
    )


# --- going on from trained members ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "code", "words"), [
    ({"population.start": "nowhere"}, 66, "nowhere: not there; population.start names a copy of models/trained"),
    ({"population.start": "models/start", "env.id": "Acrobot-v1"}, 65,
     "models/start: written for env 'CartPole-v1', params.yaml says 'Acrobot-v1'; population.start names a copy"),
])  # fmt: skip
def test_members_that_a_run_cannot_go_on_from(folder: Path, change: dict[str, Any], code: int, words: str) -> None:
    shutil.copytree(folder / "models/trained", folder / "models/start")
    before = (folder / "models/population/members.safetensors").read_bytes()
    write_params(folder, change)
    answer = call(folder, "population")
    assert answer.code == code
    assert words in answer.err
    assert answer.err.count("\n") == 1
    assert (folder / "models/population/members.safetensors").read_bytes() == before


def test_a_folder_of_another_kind_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder / "models/population")
    shutil.copytree(folder / "models/elite", folder / "models/population")
    answer = call(folder, "train")
    assert answer.code == 66
    assert answer.err.startswith("error: models/population/members.json: ")


# --- environments that no stage can serve -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("CartPoll-v1", "CartPole-v1"),
        ("nowhere:CartPole-v1", "nowhere"),
        ("envs_for_tests:Text-v0", "Text"),
        ("envs_for_tests:Several-v0", "Sequence(Discrete(2), stack=False)"),
    ],
)
def test_an_environment_that_cannot_be_used(folder: Path, env: str, words: str) -> None:
    write_params(folder, WARM | {"env.id": env, "fetch.collect.policies": {"heuristic": 0, "random": 1, "policy": 0}})
    before = digests(folder, ("data", "models", "reports"))
    said = set()
    answer = call(folder, "report")  # it makes no environment of the params, but must not pass off another's run
    assert answer.code == 65
    assert f"params.yaml says {env!r}; run `evopipe export`" in answer.err
    for stage in STAGES[:-1]:
        answer = call(folder, stage)
        assert answer.code == 65, (stage, answer.err)
        assert words in answer.err
        assert "Traceback" not in answer.err
        said.add(answer.err)
    assert len(said) == 1, "one fault, one sentence"
    assert digests(folder, ("data", "models", "reports")) == before


# --- outs -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_equal_runs_write_equal_bytes(whole: Path, tmp_path: Path) -> None:
    write_params(tmp_path, WARM)
    for stage in STAGES:
        assert call(tmp_path, stage).code == 0
    outs = ("data", "models", "reports")
    assert digests(tmp_path, outs) == digests(whole, outs)
    assert len(digests(whole, outs)) > 15


def test_the_member_that_is_exported_is_the_elite(folder: Path) -> None:
    """Which stands behind the last population; no slot's hyper-parameters are those of an elite by chance."""
    files = read_folder(folder / layout.TRAINED)
    about = json.loads(files["members.json"])
    for slot, member in enumerate(about["members"][:-1]):
        member["hyper"]["lr"] = 0.125 + slot / 8
    write_folder(folder / layout.TRAINED, {**files, "members.json": json.dumps(about).encode()})
    assert call(folder, "export").code == 0
    found = json.loads(read_folder(folder / layout.ELITE, only=("policy.json",))["policy.json"])
    assert found["hyper"] == about["members"][-1]["hyper"]


def test_a_finished_run_leaves_no_state(whole: Path) -> None:
    left: list[Any] = [path.name for path in whole.rglob(".evopipe/**/*") if path.is_file()]
    assert sorted(left) == [".gitignore", "events.jsonl"]
