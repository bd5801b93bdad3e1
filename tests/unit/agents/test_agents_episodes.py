"""Episodes as files and as a page: what was shown and written, masks, roles and reasons; and who plays them again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from typer.testing import CliRunner

import words
from evopipe import AgentTrainer
from evopipe.agents import ChatAgent, CopyGame, Episode, ModelOutput, Step, TerminationReason, Trajectory
from evopipe.agents.engine import Done, EpisodeJob
from evopipe.agents.model import Sampled
from evopipe.agents.records import record, show, summary, write
from evopipe.cli import app
from evopipe.errors import DataError, MissingInputError
from evopipe.report.episodes import episodes_page, read_episodes

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 2,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "trainer.total_training_steps": 2, "trainer.test_freq": 2,
    "train.eval_episodes": 2, "train.confirm_episodes": 2, "evaluate.bootstrap": 100, "agents.record": "all",
    "actor_rollout_ref.actor.optim.lr": 0.1, "agents.temperature": 1.0,
}  # fmt: skip


def done(uid: str, reward: float, text: str = "12", reason: TerminationReason = TerminationReason.ENV_DONE) -> Done:
    """An episode of two turns: it was shown 0, wrote a text, was shown 3, and wrote 4."""
    base = words.base()
    first = base.prompt([{"role": "user", "content": "0"}], True, None)
    written, between = base.encode(text), words.special("<|end|><|user|>3<|end|><|assistant|>")
    outs = [
        ModelOutput(text, text, prompt_ids=first, completion_ids=written, logprobs=[-1.0] * len(written)),
        ModelOutput(
            "4", "4", prompt_ids=[*first, *written, *between], completion_ids=base.encode("4"), logprobs=[-1.0]
        ),
    ]
    steps = [Step(model_output=out, reward=reward * i, action=out.text) for i, out in enumerate(outs)]
    episode = Episode(
        uid, {"digits": "03"}, reason, reward > 0, [Trajectory("u", "solver", steps=steps, reward=reward)]
    )
    return Done(EpisodeJob(0, 0, uid, {}, Sampled()), episode, 1, {})


def test_a_record_says_which_tokens_were_shown_and_which_were_written() -> None:
    told = record(done("5:0", 1.0), words.base(), {"error"})
    (row,) = told["trajectories"][0]["rows"]
    assert [(piece["text"], piece["written"], piece["step"]) for piece in row] == [
        ("<|user|>0<|end|><|assistant|>", False, 0), ("12", True, 0),
        ("<|end|><|user|>3<|end|><|assistant|>", False, 1), ("4", True, 1),
    ]  # fmt: skip
    assert told["counts"]
    assert not record(done("5:0", 1.0, reason=TerminationReason.ERROR), words.base(), {"error"})["counts"]
    assert Episode.from_dict(json.loads(json.dumps(told))).trajectories[0].steps[1].reward == 1.0


def test_a_page_shows_text_as_text_with_its_reward_and_its_mask(tmp_path: Path) -> None:
    every = [record(done("5:0", 2.0), words.base(), ()), record(done("5:1", 0.0, "3"), words.base(), ())]
    every.append(record(done("6:0", 1.0, reason=TerminationReason.ERROR), words.base(), {"error"}))
    every[2]["info"]["error"] = {"error_type": "OSError", "error_message": "<script>alert(1)</script>"}
    write(tmp_path / "a.jsonl", every)
    show("Copy", {"Validation": tmp_path / "a.jsonl", "Nothing": tmp_path / "b.jsonl"}, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert re.findall(r'class="written" style="--share:(\d+)%" title="[^"]*">([^<]*)<', page) == [
        ("0", "12"), ("100", "4"), ("0", "3"), ("0", "4"), ("0", "12"), ("50", "4"),
    ]  # fmt: skip
    assert page.count('<pre class="row idle"') == 1  # of the episode that failed
    assert "&lt;|user|&gt;0&lt;|end|&gt;" in page
    assert [page.count(text) for text in ("env_done", "teaches nothing", "rewards alike")] == [3, 1, 0]
    assert "Nothing" not in page.partition("<main>")[2].replace("Nothing was written", "")
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", page)


def test_equal_rewards_of_a_task_are_said_and_long_lists_are_cut() -> None:
    one = record(done("5:0", 1.0), words.base(), ())
    every = [
        {**one, "id": f"5:{i}", "trajectories": [{**one["trajectories"][0], "rows": [], "steps": []}]}
        for i in range(203)
    ]
    page = episodes_page("Copy", {"Validation": every})
    assert "rewards alike: nothing to compare" in page
    assert "3 episodes more are in the files" in page
    assert page.count("<details") == 200


def test_files_that_hold_no_episodes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text in ("no", "{}", "[1]", '{"id": 1, "trajectories": []}'):
        path.write_text(json.dumps({"id": "1:0", "trajectories": []}) + "\n" + text + "\n")
        with pytest.raises(DataError, match=r"a\.jsonl:2: is no episode"):
            read_episodes(path)
    with pytest.raises(MissingInputError):
        read_episodes(tmp_path / "b.jsonl")


def make(config: Any) -> AgentTrainer:
    return AgentTrainer(
        agent_class=ChatAgent, env_class=CopyGame, config=[f"{k}={json.dumps(v)}" for k, v in SMALL.items()] + config,
        train_dataset=CopyGame.tasks(8), val_dataset=CopyGame.tasks(4, 9),
    )  # fmt: skip


@pytest.mark.parametrize("full", ["true", pytest.param("false", marks=pytest.mark.thorough)])
def test_an_elite_plays_tasks_as_its_validation_did(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = make([f"language.full={full}", "trainer.default_local_dir=run"]).train()
    page = Path("run/reports/episodes.html").read_text()
    assert "Validation of the elite" in page
    assert "Last round of training" in page
    again = make([f"language.full={full}", "population.start=run/models/elite"])
    found = again.play()
    assert found == read_episodes(Path("run/episodes/elite.jsonl"))
    assert sum(each["trajectories"][0]["reward"] for each in found) / 4 == trained.evaluation["elite"]["mean"]
    assert again.evaluate()["mean"] == trained.evaluation["elite"]["mean"]
    assert make([f"language.full={full}"]).play() != found  # the base's
    (one,) = again.play([{"digits": "7"}])
    assert (one["id"], len(one["trajectories"][0]["steps"])) == ("0:0", 1)
    assert summary([one, one]).startswith("2 episodes of 1 task, mean reward ")


@pytest.mark.thorough
def test_tasks_are_played_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_game.py").write_text(
        "import evopipe\nfrom evopipe.agents import ChatAgent, CopyGame\n\n\ndef make(config):\n"
        "    return evopipe.AgentTrainer(agent_class=ChatAgent, env_class=CopyGame, config=config,\n"
        "                                train_dataset=CopyGame.tasks(4))\n"
    )
    Path("tasks.jsonl").write_text('{"digits": "12"}\n{"digits": "3"}\n')
    overrides = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, ["agent", "run", "own_game:make", *words, *overrides])

    told = call("--tasks", "tasks.jsonl", "--out", "said.jsonl", "--page", "said.html")
    assert told.exit_code == 0
    assert re.match(
        r"said\.jsonl: 2 episodes of 2 tasks, mean reward [\d.]+, \d right; ended: env_done 2\n", told.stdout
    )
    assert [each["task"]["digits"] for each in read_episodes(Path("said.jsonl"))] == ["12", "3"]
    assert "evopipe episodes" in Path("said.html").read_text()
    assert isinstance(call("--policy", "nowhere").exception, MissingInputError)
    Path("others.jsonl").write_text('{"letters": "12"}\n')
    failed = call("--tasks", "others.jsonl", "--out", "failed.jsonl")
    assert "every episode failed; the first: KeyError: 'digits'" in str(failed.exception)
    assert read_episodes(Path("failed.jsonl"))[0]["termination_reason"] == "error"
