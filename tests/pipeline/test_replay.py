"""`evopipe replay`: the elite's schedule of hyper-parameters from scratch, with other seeds."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evopipe import algos, formats
from evopipe.report import read
from evopipe.report.page import compose, without_measured
from evopipe.searchers.history import read_lineage
from tiny import call, write_params

PPO: dict[str, Any] = {"learn_step": 100, "batch_size": 50, "network": {"encoder": [8], "latent": 8}}
RUN = {
    "env.backend": "torch", "train.algo": "ppo", "train.evo_steps": 400, "train.max_steps": 1600,
    "train.replay.evaluation": False, "population.size": 4, "evolution.mutation.mutate_elite": True,
    "evolution.mutation.probabilities": {
        "none": 0.0, "architecture": 0.2, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.8,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose elite's values changed on the way."""
    folder = tmp_path_factory.mktemp("trained")
    block = algos.get("ppo").Config(**PPO).model_dump(mode="json")
    write_params(folder, {**RUN, "algos.ppo": block})
    (folder / ".dvc").mkdir()
    for stage in ("population", "train", "evaluate", "export"):
        done = call(folder, "-q", stage)
        assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def replayed(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("replayed") / "run"))
    done = call(folder, "replay", "--seeds", "2")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith("reports/replay.json: replays mean ")
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def told(folder: Path) -> Any:
    return json.loads((folder / "reports/replay.json").read_text())


def lines(folder: Path) -> dict[int, Path]:
    """The folders of the replays, by seed."""
    return {int(found.name.removeprefix("seed-")): found for found in folder.glob(".evopipe/replay/*/seed-*")}


@pytest.mark.thorough
def test_a_replay_goes_through_the_values_of_the_elites_line_at_its_steps(replayed: Path) -> None:
    """Looked up by plain code: the elite's ancestors, and when they were born; then what the replays lived through."""
    records = [json.loads(line) for line in (replayed / "reports/lineage.jsonl").read_text().splitlines()]
    elite = json.loads((replayed / "reports/train.json").read_text())["elite"]
    births = {}
    for record in records:
        for child in record["children"]:
            births.setdefault(child["id"], (record["step"], child))
    expected, id = {}, elite["id"]
    while id is not None:
        at, child = births[id]
        expected[at] = child["hyper"]
        id = child["parent"]
    end = next(record["step"] for record in records if record["generation"] == elite["generation"])
    assert len({json.dumps(hyper, sort_keys=True) for hyper in expected.values()}) > 1, "or nothing would be followed"
    assert told(replayed)["steps"] == end
    for seed, folder in lines(replayed).items():
        own = read_lineage((folder / "reports/lineage.jsonl").read_bytes(), f"seed {seed}")
        before = 0
        for record in own[1:]:
            (member,) = record.members
            now = max(at for at in expected if at <= before)
            assert dict(member.hyper) == expected[now], f"seed {seed}, steps {before} to {record.step}"
            before = record.step
        assert before == end
        (last,) = (m for record in records for m in record["members"]
                   if (record["generation"], m["id"]) == (elite["generation"], elite["id"]))  # fmt: skip
        assert own[-1].members[0].arch.to_json() == last["arch"]


@pytest.mark.thorough
def test_its_scores_are_held_out_ones_of_other_seeds(replayed: Path) -> None:
    found = told(replayed)
    assert [each["seed"] for each in found["replays"]] == [2, 3]
    for each in found["replays"]:
        scores = json.loads((lines(replayed)[each["seed"]] / "reports/evaluation.json").read_text())["elite"]
        assert (each["mean"], each["interval"]) == (scores["mean"], scores["interval"])
    means = [each["mean"] for each in found["replays"]]
    assert found["mean"] == pytest.approx(sum(means) / 2)
    assert min(means) <= found["interval"][0] <= found["interval"][1] <= max(means)
    elite = json.loads((replayed / "reports/evaluation.json").read_text())["elite"]
    assert (found["elite"]["mean"], found["elite"]["interval"]) == (elite["mean"], elite["interval"])
    assert means[0] != means[1], "other seeds live otherwise"


@pytest.mark.thorough
def test_what_was_trained_is_not_trained_again(replayed: Path) -> None:
    before, written = told(replayed), (replayed / "reports/replay.json").read_bytes()
    done = call(replayed, "replay", "models/elite", "--seeds", "2")
    assert (done.code, "generation" in done.err) == (0, False)
    assert (replayed / "reports/replay.json").read_bytes() == written
    more = call(replayed, "replay", "--seeds", "3")
    assert more.err.count("train: finished") == 1
    assert told(replayed)["replays"][:2] == before["replays"]
    call(replayed, "-q", "replay", "--seeds", "2")


@pytest.mark.thorough
def test_a_replay_that_was_killed_goes_on_to_the_same_scores(
    replayed: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evopipe import replay
    from evopipe.errors import Interrupted

    def killed(*args: Any, **more: Any) -> None:
        raise Interrupted(15, "stopped")

    with monkeypatch.context() as patch:
        patch.setattr(replay.evaluate, "run", killed)
        assert call(copy, "-q", "replay", "--seeds", "1").code == 143
    assert not (copy / "reports/replay.json").exists()
    done = call(copy, "replay", "--seeds", "2")
    assert done.err.count("train: finished") == 1, "the first was trained"
    assert told(copy)["replays"] == told(replayed)["replays"]


@pytest.mark.thorough
def test_the_report_shows_replays_beside_the_elite(replayed: Path) -> None:
    run = read.read(replayed)
    text = compose(run, {}, "No film.")
    section = text.partition('<section id="replays"')[2].partition("</section>")[0]
    found = told(replayed)
    assert formats.score(found["mean"]) in section
    assert section.count('class="plot replays"') == 2
    assert "the architecture is the elite&#39;s last one" in section or "architecture" not in {
        birth["mutation"]["kind"] for birth in run.policy["lineage"]
    }
    Text(text)
    (replayed / "reports/replay.json").rename(replayed / "kept.json")
    try:
        without = compose(read.read(replayed), {}, "No film.")
        assert 'id="replays"' not in without
        assert without_measured(without) == without_measured(text), "no stage writes it: clones need not have it"
    finally:
        (replayed / "kept.json").rename(replayed / "reports/replay.json")


class Text(HTMLParser):
    """Refuses tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "link", "img", "source", "wbr", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        """It is closed."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.thorough
def test_replays_of_another_elite_are_not_shown(replayed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(replayed, tmp_path / "other"))
    found = told(folder)
    found["elite"]["score"] += 1.0
    (folder / "reports/replay.json").write_text(json.dumps(found))
    assert read.read(folder).replays is None
    (folder / "reports/replay.json").write_text("{}")
    done = call(folder, "report")
    assert done.code == 65
    assert "reports/replay.json: does not hold what it should (elite: Field required); run `evopipe replay`" in done.err


@pytest.mark.thorough
def test_members_that_share_a_memory_and_begin_with_a_dataset_are_replayed_alone(tmp_path: Path) -> None:
    """Each from a dataset of its own seed."""
    write_params(
        tmp_path,
        {
            "train.evo_steps": 200, "train.max_steps": 400, "train.warm_start": 50, "train.replay.evaluation": False,
            "train.replay.sharing": 3, "population.size": 3,
        },
    )  # fmt: skip
    for words in (*(["-q", stage] for stage in ("fetch", "buffer", "population", "train", "evaluate", "export")),
                  ["-q", "replay", "--seeds", "2"]):  # fmt: skip
        done = call(tmp_path, *words)
        assert done.code == 0, done.err
    assert (
        told(tmp_path)["not_followed"][-1] == "its memory holds its own transitions alone, not those of other members"
    )
    data = [(folder / "data/transitions.h5").read_bytes() for folder in lines(tmp_path).values()]
    assert len({*data, (tmp_path / "data/transitions.h5").read_bytes()}) == 3


@pytest.mark.thorough
def test_language_models_are_replayed_too(tmp_path: Path) -> None:
    import words as language

    language.project(tmp_path)
    for words in (*(["-q", stage] for stage in ("fetch", "buffer", "population", "train", "evaluate", "export")),
                  ["-q", "replay", "--seeds", "1"], ["-q", "report"]):  # fmt: skip
        done = call(tmp_path, *words)
        assert done.code == 0, done.err
    assert [each["seed"] for each in told(tmp_path)["replays"]] == [4]
    assert '<section id="replays"' in (tmp_path / "reports/report.html").read_text()


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("models/elite", "models/elite: not there; run `evopipe export`"),
        ("reports/train.json", "reports/train.json: not there; run `evopipe train`"),
        ("reports/lineage.jsonl", "reports/lineage.jsonl: not there; run `evopipe train`"),
        ("reports/evaluation.json", "reports/evaluation.json: not there; run `evopipe evaluate`"),
        ("params.yaml", "params.yaml"),
    ],
)
def test_what_is_missing_is_named(copy: Path, out: str, said: str) -> None:
    shutil.rmtree(copy / out) if (copy / out).is_dir() else (copy / out).unlink()
    done = call(copy, "replay")
    assert (done.code, done.err.count("\n")) == (66, 1)
    assert said in done.err


def test_a_damaged_lineage_is_named(copy: Path) -> None:
    path = copy / "reports/lineage.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    elite = json.loads((copy / "reports/train.json").read_text())["elite"]
    gone = f"no member {elite['id']} was scored in generation {elite['generation']}"
    for text, said in (
        ("{\n", "reports/lineage.jsonl:1: is no record of a lineage"),
        ("".join(whole[: elite["generation"]]), f"reports/lineage.jsonl: {gone}; run `dvc repro train` again"),
        ("".join(whole).replace('"lr":0.001', '"lr":-1.0'), "the elite's life on: hyper.lr: must be"),
        ("".join(whole).replace('"gamma":', '"gamme":'), "the elite's life on: hyper.gamme: unknown key"),
    ):
        path.write_text(text)
        done = call(copy, "replay")
        assert (done.code, done.err.count("\n")) == (65, 1), done.err
        assert said in done.err


def test_other_parameters_than_the_elites_are_refused(copy: Path) -> None:
    params = (copy / "params.yaml").read_text()
    (copy / "params.yaml").write_text(params.replace("num_envs: 4", "num_envs: 8"))
    done = call(copy, "replay")
    assert (done.code, done.err) == (
        65, "error: models/elite: was made with other parameters than params.yaml has; run `dvc repro` again\n",
    )  # fmt: skip


def test_a_folder_that_is_none_and_no_seeds_are_usage_errors(copy: Path) -> None:
    assert call(copy, "replay", "nowhere").code == 64
    assert call(copy, "replay", "--seeds", "0").code == 64
