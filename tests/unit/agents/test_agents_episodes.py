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
from evopipe.agents.learned import TokenValues
from evopipe.agents.model import Sampled
from evopipe.agents.records import files_of, record, show, summary, thin, write
from evopipe.cli import app
from evopipe.errors import DataError, MissingInputError
from evopipe.language.base import load_base
from evopipe.regimes.samples import token_texts
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
    assert page.count('<div class="row idle"') == 1  # of the episode that failed
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


def test_what_tokens_taught_is_told_token_by_token() -> None:
    one = done("5:0", 1.0)
    (trajectory,) = one.episode.trajectories
    between = len(trajectory.steps[1].model_output.prompt_ids) - len(trajectory.steps[0].model_output.prompt_ids) - 2
    values = TokenValues([0.5, 0.5, *[0.0] * between, -0.25], [-0.5, float("nan"), *[0.0] * between, -2.0])
    told = record(one, words.base(), (), {id(trajectory): [values]})
    first, last = (piece for piece in told["trajectories"][0]["rows"][0] if piece["written"])
    assert (first["tokens"], first["advantage"]) == (["1", "2"], [0.5, 0.5])
    assert (first["log_prob"], first["new_log_prob"]) == ([-1.0, -1.0], [-0.5, None])
    assert (last["tokens"], last["advantage"], last["new_log_prob"]) == (["4"], [-0.25], [-2.0])

    page = episodes_page("Copy", {"Rounds": [json.loads(json.dumps(told))]})
    tokens = re.findall(r'<i class="([^"]*)" title="([^"]*)">([^<]*)</i>', page)
    assert [(classes, text) for classes, _, text in tokens] == [("a10 r7", "1"), ("a10 r5", "2"), ("a3 r0", "4")]
    assert tokens[0][1] == "advantage +0.5, log-probability −1.0, then −0.5: ratio 1.649"
    assert tokens[1][1] == "advantage +0.5, log-probability −1.0"
    assert 'id="by-advantage" checked' in page
    assert "mean advantage +0.25; log-probability ratios from −1.0 to +0.5" in page
    assert (
        "by-advantage"
        not in episodes_page("Copy", {"Validation": [record(one, words.base(), ())]}).split("</style>")[1]
    )


def test_texts_of_tokens_add_up_and_keep_characters_whole() -> None:
    base = load_base(words.config(tiny={"characters": "", "hidden": 16, "layers": 1, "heads": 2}), 1)  # of bytes
    text = "aé€😀 \n\tz"
    ids = base.encode(text)
    found = token_texts(base, ids)
    assert len(found) == len(ids) > len(text)
    assert "".join(found) == text
    assert found[:3] == ["a", "", "é"]
    broken = ids[:2]  # half a character
    assert "".join(token_texts(base, broken)) == base.show(broken)


HOSTILE = "</script><script>alert(1)</script>\x00\x1b[31m\u202e<img src=x onerror=alert(2)>'\"&{{7*7}}{% raw %}\u2028"


def hostile(uid: str, tokens: int = 0) -> dict[str, Any]:
    """An episode of which every text that somebody else wrote is hostile."""
    call = {"function": {"name": HOSTILE, "arguments": HOSTILE}}
    texts = [f"{HOSTILE}{i}" for i in range(tokens or 1)]
    values = {"advantage": [1.0, *[-0.5] * (len(texts) - 1)], "log_prob": [-1.0] * len(texts)}
    piece = {"text": "".join(texts), "written": True, "step": 0, "tokens": texts, **values}
    piece["new_log_prob"] = [-1.5, *[-0.5] * (len(texts) - 1)]
    shown = {"text": HOSTILE, "written": False, "step": 0}
    step = {"reward": 1.0, "action": {"x": HOSTILE}, "done": True, "model_output": {"tool_calls": [call]}}
    trajectory = {"name": HOSTILE, "reward": 1.0, "steps": [step], "rows": [[shown, piece, shown]]}
    error = {"error_type": HOSTILE, "error_message": HOSTILE}
    return {
        "id": f"{HOSTILE}:{uid}", "task": {"q": HOSTILE}, "trajectories": [trajectory], "info": {"error": error},
        "termination_reason": HOSTILE, "is_correct": True, "slot": 1, "attempts": 2, "counts": True,
    }  # fmt: skip


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [hostile("0"), hostile("1")])
    (every,) = ([*read_episodes(tmp_path / "a.jsonl")],)
    assert len(every) == 2  # a line separator within a text ends no line
    page = episodes_page(HOSTILE, {HOSTILE: every})
    assert "<script" not in page
    assert "<img" not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", page)
    assert "49" not in page.partition("<body>")[2].replace("{{7*7}}", "")
    tags = set(re.findall(r"<([a-zA-Z!]+)", page))
    assert tags <= {
        "!doctype", "html", "head", "meta", "link", "title", "style", "body", "header", "p", "h", "dl", "div", "dt",
        "dd", "ul", "li", "span", "i", "form", "fieldset", "legend", "label", "input", "nav", "a", "main", "section",
        "table", "caption", "thead", "tr", "th", "tbody", "td", "details", "summary", "b", "code", "small", "ol",
        "footer",
    }  # fmt: skip
    assert not re.search(r"<[^>]*\son\w+=", page)
    assert "default-src 'none'" in page
    assert page.count('<details class="call">') == 4  # the calls, and what came back


@pytest.mark.thorough
def test_a_page_of_many_thousand_tokens_is_bounded(tmp_path: Path) -> None:
    row = hostile("0", 1)
    texts = [f"t{i} " for i in range(40_000)]
    piece = {
        "text": "".join(texts), "written": True, "step": 0, "tokens": texts, "advantage": [0.5] * len(texts),
        "log_prob": [-1.0] * len(texts), "new_log_prob": [-0.9] * len(texts),
    }  # fmt: skip
    row["trajectories"][0]["rows"] = [[piece]]
    page = episodes_page("long", {"Rounds": [row, row]})
    assert page.count("<i class=") == 60_001 - 1 + 2  # the budget, and the two of the key
    assert "characters more" in page  # the rest is text, which is cut
    assert len(page) < 12_000_000


def test_episodes_can_be_sorted_and_chosen() -> None:
    def episode(uid: str, reward: float, tokens: int, reason: str = "env_done") -> dict[str, Any]:
        step = {"reward": reward, "action": None, "done": True, "model_output": {"completion_ids": [1] * tokens}}
        trajectory = {"name": "a", "reward": reward, "steps": [step], "rows": []}
        return {"id": uid, "task": "t", "trajectories": [trajectory], "termination_reason": reason, "info": {},
                "is_correct": reward > 0}  # fmt: skip

    every = [episode("1:0", 0.0, 7), episode("1:1", 1.0, 3, "max_response_length_exceeded"), episode("2:0", 0.5, 9)]
    page = episodes_page("x", {"Rounds": every})
    assert re.findall(r'class="episode ([^"]*)" style="([^"]*)"', page) == [
        ("b0 wrong-answer", "--best:2;--worst:0;--longest:1"), ("b2 right cut", "--best:0;--worst:2;--longest:2"),
        ("b1 right", "--best:1;--worst:1;--longest:0"),
    ]  # fmt: skip
    assert re.findall(r'id="reward-b\d"> ([^<]*)</label>', page) == ["0.0", "0.5", "1.0"]
    many = episodes_page("x", {"Rounds": [episode(f"{i}:0", i / 100, 1) for i in range(101)]})
    assert re.findall(r'id="reward-b\d"> ([^<]*)</label>', many)[0::4] == ["0.0 to 0.2", "0.8 to 1.0"]
    assert [many.count(f'class="episode b{i} ') for i in range(5)] == [21, 20, 20, 20, 20]


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
    rounds = read_episodes(Path("run/episodes/train-000002.jsonl"))
    valued = [piece for each in rounds for one in each["trajectories"] for row in one["rows"] for piece in row
              if piece["written"]]  # fmt: skip
    assert all(len(piece["advantage"]) == len(piece["tokens"]) == len(piece["new_log_prob"]) for piece in valued)
    moved = any(
        abs(new - old) > 1e-3 for p in valued for new, old in zip(p["new_log_prob"], p["log_prob"], strict=True)
    )
    assert moved == any(
        any(piece["advantage"]) for piece in valued
    )  # where all rewards of a group are equal, nothing is learned
    assert moved or full == "false"
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
    Path("mixed.jsonl").write_text('{"letters": "12"}\n{"digits": "3"}\n')
    assert call("--tasks", "mixed.jsonl", "--out", "some.jsonl").exit_code == 0, "only some have failed"
    failed = call("--tasks", "others.jsonl", "--out", "failed.jsonl")
    assert "every episode failed; the first: KeyError: 'digits'" in str(failed.exception)
    assert read_episodes(Path("failed.jsonl"))[0]["termination_reason"] == "error"


def test_a_page_has_the_last_validation_until_there_is_an_elite_and_the_last_rounds(tmp_path: Path) -> None:
    names = [f"{kind}-{n:06d}" for kind in ("validation", "train") for n in (2, 4, 6, 8, 10)]
    paths = {name: tmp_path / f"{name}.jsonl" for name in names}
    for path in paths.values():
        path.touch()
    assert files_of(tmp_path) == {
        "Validation 10": paths["validation-000010"],
        "Last round of training": paths["train-000010"],
        "Round 8 of training": paths["train-000008"],
        "Round 6 of training": paths["train-000006"],
    }
    (tmp_path / "elite.jsonl").touch()
    assert files_of(tmp_path, 6) == {
        "Validation of the elite": tmp_path / "elite.jsonl",
        "Last round of training": paths["train-000006"],
        "Round 4 of training": paths["train-000004"],
        "Round 2 of training": paths["train-000002"],
    }


def test_of_rounds_up_to_one_the_last_are_kept_and_later_ones_stay(tmp_path: Path) -> None:
    """Those after it are of a run that went further and was killed."""
    for n in (2, 4, 6, 8):
        (tmp_path / f"train-{n:06d}.jsonl").touch()
    thin(tmp_path, 6, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"train-{n:06d}.jsonl" for n in (4, 6, 8)]


@pytest.mark.thorough
def test_samples_of_the_last_rounds_are_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last round of each generation, whatever was played; the advantage is that of the group, and tokens of a
    right answer are likelier afterwards than those of a wrong one."""
    monkeypatch.chdir(tmp_path)
    more = ["agents.record=validation", "trainer.total_training_steps=8", "agents.sampled_rounds=2",
            "actor_rollout_ref.rollout.n=4", "trainer.default_local_dir=run", "actor_rollout_ref.actor.optim.lr=3e-3",
            "agents.sampled=4"]  # fmt: skip
    make(more).train()
    kept = sorted(path.name for path in Path("run/episodes").glob("train-*"))
    assert kept == ["train-000006.jsonl", "train-000008.jsonl"]
    told = [read_episodes(Path("run/episodes") / name) for name in kept]
    assert [len(each) for each in told] == [4, 4]
    moved: dict[bool, list[float]] = {True: [], False: []}
    for episode in (episode for each in told for episode in each):
        for piece in (p for one in episode["trajectories"] for row in one["rows"] for p in row if p["written"]):
            for advantage, new, old in zip(piece["advantage"], piece["new_log_prob"], piece["log_prob"], strict=True):
                if advantage:
                    moved[advantage > 0].append(new - old)
    if moved[True] and moved[False]:
        assert sum(moved[True]) / len(moved[True]) > sum(moved[False]) / len(moved[False])

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = Path("run/reports/episodes.html")
    before = page.read_bytes()
    page.unlink()
    found = CliRunner().invoke(app, ["agent", "show", "run"])
    assert (found.exit_code, found.stdout) == (0, "run/reports/episodes.html: written\n")
    assert opened == [page.resolve().as_uri()]
    assert page.read_bytes() == before
    assert "Round 6 of training" in page.read_text()
    (tmp_path / "one.jsonl").write_bytes(Path("run/episodes/elite.jsonl").read_bytes())
    assert CliRunner().invoke(app, ["-q", "agent", "show", "one.jsonl", "--no-open"]).stdout == ""
    assert Path("one.html").exists()
    assert len(opened) == 1
    missing = CliRunner().invoke(app, ["agent", "show", "nowhere"])
    assert isinstance(missing.exception, MissingInputError)
    assert str(missing.exception).startswith("nowhere: holds no episodes; give the folder of a run")
