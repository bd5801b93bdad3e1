"""A pipeline of language models: its parameters, its stages by the command line, its outs, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import words
from evopipe import layout
from evopipe.errors import DataError, ParamsError, UsageError
from evopipe.language.tokens import read_corpus
from evopipe.params.load import load_params, parse_params
from evopipe.params.text import LanguageParams
from evopipe.report.episodes import read_episodes
from evopipe.schema.write import block, dump_yaml
from tiny import call, digests

STAGES = ("fetch", "buffer", "population", "train", "evaluate", "export", "report")
OUTS = tuple(dict.fromkeys(out.as_posix() for outs in layout.TEXT_OUTS.values() for out in outs))


def write(folder: Path, **changes: Any) -> Path:
    """Write a whole params.yaml of a tiny run; changes are dotted keys with `__` for the dots."""
    data = words.small_params()
    for key, value in changes.items():
        *blocks, name = key.split("__")
        place = data
        for each in blocks:
            place = place.setdefault(each, {})
        place[name] = value
    path = folder / "params.yaml"
    path.write_text(dump_yaml(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all stages ran."""
    folder: Path = tmp_path_factory.mktemp("run")
    write(folder)
    for stage in STAGES:
        answer = call(folder, stage)
        assert answer.code == 0, answer.err
    return folder


@pytest.mark.thorough
def test_every_stage_writes_its_outs(finished: Path) -> None:
    for stage, outs in layout.TEXT_OUTS.items():
        for out in outs:
            assert (finished / out).exists(), f"{stage}: {out}"
    evaluation = json.loads((finished / layout.EVALUATION).read_text())
    assert {"elite", "base", "episodes"} <= evaluation.keys()
    assert 0 <= evaluation["elite"]["best_of_2"] <= 1
    lines = (finished / layout.MEASURES).read_text().splitlines()
    assert lines[0].startswith("generation,slot,reward,task,length,ended,entropy,kl,effective,drift,failed")
    assert len(lines) == 1 + 2 * 3  # two generations of three members
    shown = json.loads((finished / layout.COMPLETIONS).read_text())
    assert shown[0].keys() == {"prompt", "elite", "base"}


@pytest.mark.thorough
def test_the_report_shows_what_was_written(finished: Path) -> None:
    page = (finished / layout.REPORT).read_text()
    assert "What members did while they learned" in page
    for each in json.loads((finished / layout.COMPLETIONS).read_text()):
        assert f"<td>{each['prompt']}</td>" in page.replace("\n", "")


def test_what_is_reported_is_of_the_rows_of_the_test_alone(finished: Path) -> None:
    """Which no fitness saw, and no training; of each member, and of the base, the same."""
    corpus = read_corpus(finished / layout.TOKENS)
    with (finished / layout.EPISODES).open() as file:
        rows = list(csv.DictReader(file))
    for name in {row["member"] for row in rows}:
        seen = [int(row["seed"]) for row in rows if row["member"] == name]
        assert len(seen) == len(set(seen)) == 6
        assert set(seen) <= set(corpus.splits["test"].tolist())
    shown = json.loads((finished / layout.COMPLETIONS).read_text())
    for which in ("elite", "base"):  # what is shown of each is what it earned
        told = [float(row["return"]) for row in rows if row["member"] == which]
        assert [each[which]["reward"] for each in shown] == pytest.approx(told, abs=1e-5)


@pytest.mark.thorough
def test_a_second_run_gives_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    write(tmp_path)
    for stage in STAGES:
        assert call(tmp_path, "--quiet", stage).code == 0
    assert digests(tmp_path, OUTS) == digests(finished, OUTS)


def test_the_elite_writes_where_it_is_loaded(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import evopipe
    from evopipe.language.policy import LanguagePolicy

    policy = evopipe.load(finished / layout.ELITE)
    assert isinstance(policy, LanguagePolicy)
    shown = json.loads((finished / layout.COMPLETIONS).read_text())
    prompts = [each["prompt"] for each in shown]
    told = policy.generate(prompts)
    assert told == [each["elite"]["text"] for each in shown]
    assert policy.generate(prompts[0]) == told[0]
    assert [len(each) for each in policy.generate(prompts[:2], samples=3, temperature=1.0, max_tokens=2)] == [3, 3]
    answer = call(finished, "play", "--prompt", prompts[0])
    assert (answer.code, answer.out) == (0, told[0] + "\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{prompts[0]}\n{prompts[1]}\n"))  # a chat to the end of a file
    answer = call(finished, "play")
    assert (answer.code, answer.out.replace("you: ", "").split()) == (0, " ".join(told[:2]).split())


@pytest.mark.thorough
def test_an_elite_without_the_merged_model_is_its_adapter_over_the_base(finished: Path, tmp_path: Path) -> None:
    import evopipe

    copy = Path(shutil.copytree(finished, tmp_path / "run"))
    write(copy, export__merged=False)
    assert call(copy, "export").code == 0
    assert not (copy / layout.ELITE / "merged").exists()
    prompts = ["12=", "0="]
    one, two = (evopipe.load(folder / layout.ELITE).generate(prompts) for folder in (finished, copy))  # type: ignore[union-attr]
    assert one == two


@pytest.mark.thorough
def test_a_run_goes_on_from_trained_members_or_from_an_adapter_of_pefts(finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "run"))
    for start in ("models/trained", "models/elite"):
        write(copy, population__start=str(finished / start))
        answer = call(copy, "population")
        assert answer.code == 0, answer.err
        assert call(copy, "--quiet", "train").code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"env": {"id": "CartPole-v1"}}, "env: a run has either an environment or a language model: delete this block"),
        ({"train": {"algo": "dqn"}}, "train.algo: dqn serves environments: put `env` in the place of `language`"),
        ({"train": {"algo": "grop"}}, "train.algo: unknown algorithm 'grop', did you mean 'grpo'?"),
        (
            {"evolution": {"mutation": {"probabilities": {"activation": 0.1}}}},
            "evolution.mutation.probabilities.activation: members adapt a base whose form they share: delete this",
        ),
        ({"language": {"reward": "mine"}}, "language.reward: 'mine' is not of the form 'module:function'"),
        ({"language": {"ranks": 4}}, "language.ranks: unknown key, did you mean 'rank'?"),
        ({"language": {"tiny": {"hidden": 40, "heads": 3}}}, "language.tiny: hidden (40) must be a multiple of"),
        ({"algos": {"dqn": {}}}, "algos.dqn: unknown key"),
        (
            {"algos": {"grpo": {"rows": 8, "group_size": 4, "batch_size": 16, "evolve": {}}}},
            "algos.grpo.batch_size: 16",
        ),
        ({"algos": {"grpo": {"evolve": {"rows": {"min": 1, "max": 2}}}}}, "algos.grpo.evolve.rows: no hyper-parameter"),
        ({"fetch": {"validation": 0.8, "test": 0.8}}, "fetch.test: with `validation` it leaves nothing to learn from"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError) as refused:
        parse_params({"language": {}, **change})
    assert said in str(refused.value)


def test_an_environment_with_an_algorithm_of_text_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"train.algo: grpo trains language models: put `language` in the place of"):
        parse_params({"train": {"algo": "grpo"}})


def test_a_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, language__rank=0)
    with pytest.raises(ParamsError, match=r"params.yaml:\d+:\d+: language.rank: must be at least 1, got 0"):
        load_params(path)
    path.write_text(path.read_text() + "env: {id: CartPole-v1}\n")
    with pytest.raises(ParamsError, match=r"params.yaml:\d+:1: env: a run has either"):
        load_params(path)


def test_a_file_must_be_complete(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert isinstance(load_params(path), LanguageParams)
    assert call(tmp_path, "params", "check").out == "params.yaml: ok\n"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "max_prompt" not in line))
    with pytest.raises(ParamsError, match=r"language.max_prompt: missing key"):
        load_params(path)


@pytest.mark.parametrize("algo", ["bc_language", "dpo", "grpo", "ilql", "ppo_language", "reinforce", "sft"])
def test_an_algorithms_block_can_be_printed(algo: str, tmp_path: Path) -> None:
    from evopipe import algos

    answer = call(tmp_path, "params", "block", algo)
    assert (answer.code, answer.out) == (0, block(algo, algos.get(algo).Config()))


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spoil", "stage", "code", "said"),
    [
        (lambda f: write(f, seed=9), "train", 65, "holds tokens of another base"),
        (
            lambda f: write(f, train__algo="reinforce"),
            "train",
            65,
            "written for algo 'grpo', params.yaml says 'reinforce'",
        ),
        (lambda f: write(f, train__algo="dpo"), "train", 65, "holds tokens of reasoning rows"),
        (lambda f: shutil.rmtree(f / "data/tokens"), "train", 66, "data/tokens: not there; run `evopipe buffer`"),
        (lambda f: (f / "data/text.jsonl").unlink(), "buffer", 66, "data/text.jsonl: not there; run `evopipe fetch`"),
        (lambda f: (f / "data/text.jsonl").write_text('{"prompt": "1"}\n'), "buffer", 65, "data/text.jsonl:1:"),
        (lambda f: write(f, language__full=True), "train", 65, "holds adapters of rank 2, language.full is True"),
        (lambda f: write(f, language__model="nowhere/"), "population", 66, "is no folder"),
        (lambda f: write(f, language__task="juggle"), "fetch", 65, "language.task: no task 'juggle'"),
        (lambda f: (f / "reports/evaluation.json").unlink(), "export", 66, "reports/evaluation.json: not there"),
        (lambda f: (f / "reports/completions.json").write_text("{}"), "report", 65, "reports/completions.json"),
        (lambda f: (f / "models/elite/policy.json").unlink(), "report", 65, "policy.json"),
    ],
)
def test_a_stage_refuses_what_it_cannot_use(
    copied: Path, spoil: Callable[[Path], Any], stage: str, code: int, said: str
) -> None:
    spoil(copied)
    answer = call(copied, stage)
    assert answer.code == code, answer
    assert said in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


def test_where_memory_runs_out_a_sentence_says_what_of_a_language_model_takes_it(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    monkeypatch.setattr(torch.Tensor, "backward", full)
    answer = call(copied, "train")
    assert answer.code == 72
    assert "lower runtime.rows_at_once, population.size or language.max_completion" in " ".join(answer.err.split())


def test_where_nobody_is_rewarded_a_sentence_says_what_to_do(copied: Path) -> None:
    write(copied, language__reward="operator:sub", train__max_steps=9)  # no completion can be taken from a row
    answer = call(copied, "train")
    assert answer.code == 0
    assert answer.err.count("note: a completion's score raised TypeError: unsupported operand") == 1
    assert "no member has seen a reward other than 0 in 9 steps" in " ".join(answer.err.split())
    assert "begin from a base that is right now and then" in " ".join(answer.err.split())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model, below `judge`, and a run that learned from it."""
    folder: Path = tmp_path_factory.mktemp("judged")
    (folder / "judge").mkdir()
    pairs = {"shortest": 1, "longest": 2, "alphabet": "012", "worse": "any"}
    write(folder / "judge", train__algo="reward_model", language__kwargs=pairs)
    write(folder, language__reward="./judge/models/elite")
    for stage in STAGES:
        assert call(folder / "judge", stage).code == 0, stage
    for stage in STAGES:
        answer = call(folder, stage)
        assert answer.code == 0, answer.err
    return folder


@pytest.mark.thorough
def test_members_learn_from_a_reward_model_and_the_tasks_own_score_is_told_beside_it(judged: Path) -> None:
    import evopipe

    model = evopipe.load(judged / "judge/models/elite")
    shown = json.loads((judged / layout.COMPLETIONS).read_text())
    for each in shown:
        (reward,) = model.reward([each["prompt"]], [each["elite"]["text"]])
        assert reward == pytest.approx(each["elite"]["reward"], abs=1e-5)
    evaluation = json.loads((judged / layout.EVALUATION).read_text())
    assert 0 <= evaluation["elite"]["task"] <= 1
    rows = [line.split(",") for line in (judged / layout.MEASURES).read_text().splitlines()]
    assert rows[0][2:4] == ["reward", "task"]
    assert all(0 <= float(row[3]) <= 1 != float(row[2]) for row in rows[1:])
    page = " ".join((judged / layout.REPORT).read_text().split())
    assert "By the task itself, which nobody learned from" in page
    assert json.loads((judged / "judge" / layout.COMPLETIONS).read_text()) == []
    assert 'id="completions"' not in (judged / "judge" / layout.REPORT).read_text()


@pytest.mark.thorough
def test_an_adapter_with_its_head_rewards_as_the_merged_model_does(judged: Path, tmp_path: Path) -> None:
    import evopipe

    copied = shutil.copytree(judged / "judge", tmp_path / "judge")
    write(copied, train__algo="reward_model", export__merged=False)
    assert call(copied, "export").code == 0
    asked = ["01=", "2=", "12="], ["10", "0", ""]
    merged, adapter = (evopipe.load(each / "models/elite").reward(*asked) for each in (judged / "judge", copied))
    assert len(set(merged)) == 3
    assert adapter == pytest.approx(merged, abs=1e-5)
    # Beside others, and a longer one, it says the same.
    assert evopipe.load(copied / "models/elite").reward(["01="], ["10"]) == pytest.approx(merged[:1], abs=1e-5)


@pytest.mark.parametrize(
    ("reward", "code", "said"),
    [
        ("./nowhere", 66, "language.reward: nowhere is no exported reward model; run what writes it"),
        (
            "./models/elite",
            65,
            "language.reward: models/elite is no reward model; export one: train.algo: reward_model",
        ),
    ],
)
def test_what_is_no_reward_model_is_refused(copied: Path, reward: str, code: int, said: str) -> None:
    write(copied, language__reward=reward)
    answer = call(copied, "train")
    assert (answer.code, said in " ".join(answer.err.split())) == (code, True), answer.err


def test_a_language_model_without_a_head_gives_no_reward(finished: Path) -> None:
    import evopipe

    with pytest.raises(UsageError, match="reward: this is no reward model; train one"):
        evopipe.load(finished / layout.ELITE).reward(["0="], ["0"])


def test_a_base_that_changed_is_told(copied: Path) -> None:
    from evopipe.language import policy

    about = json.loads((copied / layout.ELITE / "policy.json").read_text())
    with pytest.raises(DataError, match="was trained over another base than tiny is now"):
        policy.load(copied / layout.ELITE, {**about, "merged": False, "base": "0" * 32})


def test_completions_of_last_rounds_are_kept_and_shown_with_the_numbers_of_their_tokens(finished: Path) -> None:
    rows = read_episodes(finished / layout.SAMPLES)
    assert [(row["round"], row["slot"]) for row in rows] == sorted(
        (g, p) for g in (1, 2) for p in range(3) for _ in range(8)
    )
    corpus = read_corpus(finished / layout.TOKENS)
    train = [corpus.rows[int(i)] for i in corpus.splits["train"]]
    for row in rows:
        assert row["task"] in train
        (one,) = row["trajectories"]
        shown, written = one["rows"][0]
        assert shown["text"].endswith(row["task"]["prompt"])
        assert "".join(written["tokens"]) == written["text"] == one["steps"][0]["model_response"]
        assert len({*written["advantage"]}) == 1
        assert all(-9 < each < 0 for each in (*written["log_prob"], *written["new_log_prob"]))
    answer = call(finished, "agent", "show", "--no-open")
    assert answer.code == 0, answer.err
    page = (finished / layout.EPISODES_PAGE).read_text()
    assert "Generation 2, last round of training" in page
    assert page.index("Generation 2, last") < page.index("Generation 1, last")
    assert 'title="advantage ' in page
