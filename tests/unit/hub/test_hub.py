"""`evopipe push` and `pull` against a hub on loopback, and without any."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from huggingface_hub import ModelCard

import evopipe
import tiny
from evopipe.policies.policy import load
from evopipe.storage.files import read_json
from evopipe.storage.folders import write_folder
from hub_server import COMMIT, TOKEN, Hub, hub
from tiny import params, write_params

TINY = {"train.max_steps": 400, "population.size": 2}
ELITE = "models/elite"


def call(*words: str) -> tiny.Answer:
    return tiny.call(Path(), *words)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder."""
    folder = tmp_path_factory.mktemp("run")
    write_params(folder, TINY)
    evopipe.train(params(TINY), folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub() as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        address(monkeypatch, found.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield found


def address(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let the client, which read its environment when it was imported, ask there."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    files = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_a_dry_run_writes_what_a_push_pushes_and_pull_fetches_it(run: Path, server: Hub) -> None:
    code, said, wrong = call("push", f"run/{ELITE}", "me/cart", "--dry-run", "dry", "--no-film")
    assert (code, wrong) == (0, "")
    assert server.repos == {}
    assert call("push", f"run/{ELITE}", "me/cart", "--no-film")[0] == 0
    assert server.repos == {"me/cart": contents(Path("dry"))}
    code, said, wrong = call("pull", "me/cart", "fetched")
    assert (code, wrong) == (0, "")
    assert "pulled: me/cart to fetched: <Policy dqn, CartPole-v1" in said
    assert contents(Path("fetched")) == contents(Path("dry"))
    obs = [0.0, 0.1, 0.0, -0.1]
    assert evopipe.load("fetched").act(obs) == evopipe.load(f"run/{ELITE}").act(obs)


@pytest.mark.thorough
def test_the_card_is_what_leaderboards_read(run: Path) -> None:
    assert call("push", "run", "me/cart", "--dry-run", "dry")[0] == 0
    card, about = ModelCard.load(Path("dry/README.md")), read_json(Path("dry/policy.json"))
    (result,) = card.data.eval_results
    scores = about["evaluation"]
    assert result.metric_value == f"{scores['mean']:.2f} +/- {scores['std']:.2f}"
    assert (result.metric_type, result.task_type, result.dataset_type) == (
        "mean_reward", "reinforcement-learning", "CartPole-v1",
    )  # fmt: skip
    assert not result.verified
    assert (card.data.pipeline_tag, card.data.library_name) == ("reinforcement-learning", "evopipe")
    text = card.text
    assert "evopipe pull me/cart" in text
    assert 'evopipe.train("params.yaml"' in text
    files = contents(Path("dry"))
    for name in ("replay.gif", "lineage.svg"):
        assert f"]({name})" in text
        assert name in files
    assert files["replay.gif"].startswith(b"GIF89a")
    assert files["params.yaml"] == Path("run/params.yaml").read_bytes()
    picture = ElementTree.fromstring(files["lineage.svg"])
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    used = {*re.findall(r"var\(--(\w+)\)", files["lineage.svg"].decode())}
    assert "elite" in used
    assert used <= {*re.findall(r"--(\w+): #", picture.attrib["style"])}
    assert call("push", "run", "me/cart", "--dry-run", "again")[0] == 0
    assert contents(Path("again")) == files


def test_what_is_not_of_the_elite_is_left_out_and_told(run: Path) -> None:
    write_params(run, {**TINY, "seed": 77})
    (run / "reports/lineage.jsonl").unlink()
    code, _, wrong = call("push", "run", "me/cart", "--dry-run", "dry", "--no-film")
    assert code == 0
    assert "params.yaml is left out" in wrong
    assert "lineage.svg is left out" in wrong
    text = Path("dry/README.md").read_text()
    assert "lineage.svg" not in text
    assert read_json(Path("dry/policy.json"))["provenance"]["params_hash"] in text
    assert load("dry")


def test_an_elite_away_from_its_run_has_no_lineage(run: Path) -> None:
    shutil.copytree(run / ELITE, run / "kept/elite")  # two folders below another run, as its own elite is
    code, _, wrong = call("push", "run/kept/elite", "me/cart", "--dry-run", "dry", "--no-film")
    assert code == 0
    assert "lineage.svg is left out" in wrong
    assert "params.yaml" not in wrong
    assert "lineage.svg" not in contents(Path("dry"))


@pytest.mark.thorough
def test_another_elite_replaces_the_whole(run: Path, server: Hub) -> None:
    server.repos["me/cart"] = {"old.bin": b"1", "README.md": b"old"}
    assert call("push", "run", "me/cart", "--no-film")[0] == 0
    assert "old.bin" not in server.repos["me/cart"]
    assert len(server.commits) == 1


def test_nothing_is_pushed_where_the_commit_is_refused(run: Path, server: Hub) -> None:
    server.repos["me/cart"] = {"README.md": b"old"}
    server.refuses = 507
    code, _, wrong = call("push", "run", "me/cart", "--no-film")
    assert (code, wrong.count("\n")) == (75, 1)
    assert server.repos["me/cart"] == {"README.md": b"old"}


def test_a_hub_that_cannot_be_reached(run: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    address(monkeypatch, "http://127.0.0.1:9")
    for words in (("push", "run", "me/cart", "--no-film"), ("pull", "me/cart", "fetched")):
        code, _, wrong = call(*words)
        assert (code, wrong.count("\n")) == (75, 1), wrong
        assert wrong.startswith("error: hub: http://127.0.0.1:9 cannot be reached (")
    assert not Path("fetched").exists()


def test_who_is_not_logged_in_is_told(run: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}x")
    code, _, wrong = call("push", "run", "me/cart", "--no-film")
    assert code == 64
    assert wrong.endswith("log in with `hf auth login`\n")


@pytest.mark.parametrize("repo", ["cart", "me/../cart", "me/cart/x", "me/ca rt", "-me/cart", "me/" + "c" * 100, ""])
@pytest.mark.parametrize("command", ["push", "pull"])
def test_names_are_checked(run: Path, repo: str, command: str) -> None:
    words = ["push", "run", "--", repo] if command == "push" else ["pull", "--", repo, "fetched"]
    code, _, wrong = call(*words)
    assert (code, wrong.count("\n")) == (64, 1)
    assert "is no name of a repository" in wrong


def test_a_folder_that_is_no_elite(run: Path) -> None:
    code, _, wrong = call("push", "run/reports", "me/cart", "--dry-run", "dry")
    assert (code, wrong.count("\n")) == (66, 1)
    assert "holds no elite" in wrong
    (run / ELITE / "policy.safetensors").write_bytes(b"damaged")
    code, _, wrong = call("push", "run", "me/cart", "--dry-run", "dry")
    assert (code, wrong.count("\n")) == (65, 1)
    (run / ELITE / "policy.json").write_text('{"kind": "language"}')
    assert call("push", "run", "me/cart", "--dry-run", "dry")[0] == 65
    assert not Path("dry").exists()


@pytest.mark.thorough
def test_folders_in_use_stay(run: Path, server: Hub) -> None:
    server.repos["me/cart"] = {}
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("x")
    assert call("push", "run", "me/cart", "--dry-run", "mine", "--no-film")[0] == 64
    assert call("pull", "me/cart", "mine")[0] == 64
    assert contents(Path("mine")) == {"notes.txt": b"x"}


def pulled(server: Hub, files: dict[str, bytes], tmp: Path) -> tuple[int, str]:
    """What `pull` says of a repository that holds these files with a manifest that fits them."""
    write_folder(tmp / "made", files)
    server.repos["me/bad"] = contents(tmp / "made")
    code, _, wrong = call("pull", "me/bad", "fetched")
    return code, wrong


@pytest.mark.thorough
def test_what_comes_is_checked_before_the_folder_is_there(run: Path, server: Hub, tmp_path: Path) -> None:
    files = {name: data for name, data in contents(run / ELITE).items() if name != "manifest.json"}
    server.repos["me/none"] = {"model.pkl": b"cos\nsystem\n"}
    cases: dict[str, Any] = {"me/none": 66, "me/absent": 66}
    for repo, code in cases.items():
        assert call("pull", repo, "fetched")[0] == code
    assert pulled(server, {**files, "policy.json": b"{}"}, tmp_path)[0] == 65
    assert pulled(server, {**files, "policy.safetensors": b"no tensors"}, tmp_path)[0] == 65
    server.repos["me/bad"] = {**contents(run / ELITE), "policy.npz": b"other"}  # not what the manifest says
    assert call("pull", "me/bad", "fetched")[0] == 65
    server.repos["me/bad"] = {name: data for name, data in contents(run / ELITE).items() if name != "policy.npz"}
    assert call("pull", "me/bad", "fetched")[0] == 66
    assert call("pull", "me/bad", "fetched", "--revision", "other")[0] == 66
    assert not Path("fetched").exists()


def test_a_manifest_cannot_reach_outside(run: Path, server: Hub) -> None:
    good = (run / ELITE / "manifest.json").read_bytes()
    for name in ("../../outside.txt", "/tmp/outside.txt"):
        bad = good.replace(b'"policy.npz"', f'"{name}"'.encode())
        assert bad != good
        server.repos["me/bad"] = {**contents(run / ELITE), "manifest.json": bad, name: b"x"}
        assert call("pull", "me/bad", "fetched")[0] == 65
    assert not Path("fetched").exists()


@pytest.mark.thorough
def test_code_that_is_not_this_versions_is_named(run: Path, server: Hub, tmp_path: Path) -> None:
    files = {name: data for name, data in contents(run / ELITE).items() if name != "manifest.json"}
    code, wrong = pulled(server, {**files, "numpy_policy.py": b"raise SystemExit\n"}, tmp_path)
    assert code == 0
    assert wrong == (
        "warning: pull: fetched/numpy_policy.py is code that is not this version's own: read it before you run it\n"
    )


def test_the_commit_is_told(run: Path, server: Hub) -> None:
    assert COMMIT in call("push", "run", "me/cart", "--no-film")[1]
