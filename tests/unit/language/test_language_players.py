"""A pipeline whose members are whole small GPTs: its parameters, its stages, chained runs, and exported players."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evopipe
import learned
from evopipe import algos, layout
from evopipe.errors import DataError, ParamsError, UsageError
from evopipe.params.load import load_params, parse_params
from evopipe.problems.text import make_spec
from evopipe.run.population import read_members
from evopipe.schema.write import dump_yaml
from players import SMALL, WORDS, small_params
from tiny import call


def write(folder: Path, algo: str, start: Path | None = None, **language: Any) -> None:
    (folder / "params.yaml").write_text(dump_yaml(small_params(algo, start, **language)), encoding="utf-8")


def run(folder: Path, algo: str, start: Path | None = None) -> Path:
    write(folder, algo, start)
    for stage in ("fetch", "buffer", "population", "train", "evaluate", "export"):
        answer = call(folder, stage)
        assert answer.code == 0, answer.err
    return folder


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which behaviour cloning ran."""
    return run(tmp_path_factory.mktemp("games"), "bc_language")


def test_games_go_through_all_stages(cloned: Path) -> None:
    for stage, outs in layout.TEXT_OUTS.items():
        for out in outs if stage != "report" else ():
            assert (cloned / out).exists(), f"{stage}: {out}"
    told = json.loads((cloned / layout.EVALUATION).read_text())
    assert -3.0 <= told["elite"]["mean"] <= 0.0
    assert told["behaviours"]["optimal"]["mean"] > told["behaviours"]["wrong"]["mean"]
    assert json.loads((cloned / layout.COMPLETIONS).read_text())[0].keys() == {"game", "return", "won"}


def test_games_of_ones_own_are_checked_line_by_line(tmp_path: Path) -> None:
    data = small_params("bc_language")
    data["fetch"] |= {"source": "jsonl", "jsonl": {"path": str(tmp_path / "own.jsonl")}}
    (tmp_path / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")
    games = ['{"guesses": ["ab", "ba"], "colours": ["yy", "gg"]}', '{"guesses": ["ab", "za"], "colours": ["yy", "gg"]}']
    (tmp_path / "own.jsonl").write_text("\n".join(games), encoding="utf-8")
    answer = call(tmp_path, "fetch")
    assert answer.code == 65
    assert "own.jsonl:2: turn 2: 'za' has letters that no word of the vocabulary has: z" in " ".join(answer.err.split())
    (tmp_path / "own.jsonl").write_text(games[0] + "\n", encoding="utf-8")
    assert call(tmp_path, "fetch").code == 0
    assert (tmp_path / layout.TEXT).read_text().count("\n") == 1


def test_an_exported_player_plays_the_games_of_its_evaluation(cloned: Path) -> None:
    policy: Any = evopipe.load(cloned / layout.ELITE)
    rows = [line.split(",") for line in (cloned / layout.EPISODES).read_text().splitlines()]
    seeds, returns, tries = (np.array([float(row[i]) for row in rows if row[0] == "elite"]) for i in (1, 2, 3))
    again = policy.task.play(seeds.astype(np.int64), policy.act(seeds.astype(np.int64)))
    assert again.returns.tolist() == returns.tolist()
    assert again.tries.tolist() == tries.tolist()


@pytest.mark.thorough
def test_the_report_shows_its_games(cloned: Path) -> None:
    assert call(cloned, "report").code == 0
    page = (cloned / layout.REPORT).read_text()
    shown = json.loads((cloned / layout.COMPLETIONS).read_text())
    assert page.count('<span class="tile') == 4 + sum(len("".join(each["game"]["guesses"])) for each in shown)
    assert page.count("<figcaption>won, return ") == sum(each["won"] for each in shown)
    assert "<td>consistent</td>" in page.replace("\n", "")


def test_a_word_is_played_in_the_terminal(cloned: Path) -> None:
    policy: Any = evopipe.load(cloned / layout.ELITE)
    played = policy.play(games=2, seed=5)
    answer = call(cloned, "play", "--episodes", "2", "--seed", "5")
    assert answer.code == 0
    lines = answer.out.splitlines()
    for row, total in zip(played.rows, played.returns, strict=True):
        for guess, told in zip(row["guesses"], row["colours"], strict=True):
            assert lines.pop(0) == "".join(f" {letter.upper()} " for letter in guess) + f"  {told or 'no word'}"
        assert lines.pop(0) == f"return {total:.1f}"
    assert lines == [f"wordle (gpt): mean return {played.returns.mean():.1f} of 2 games, {played.won.mean():.0%} won"]
    answer = call(cloned, "play", "--prompt", "<s>")
    assert answer.out == policy.generate("<s>") + "\n"


def test_an_exported_player_writes_on(cloned: Path) -> None:
    policy: Any = evopipe.load(cloned / layout.ELITE)
    prompts = ["<s>", "<s>ab<y><b>"]
    told = policy.generate(prompts, temperature=0.0)
    assert told == [policy.generate(prompt, temperature=0.0) for prompt in prompts]
    assert len({policy.generate("<s>", max_tokens=9, temperature=1.0, seed=seed) for seed in (0, 0, 1)}) == 2
    assert len({*policy.generate(["<s>"] * 3, max_tokens=9, temperature=1.0)}) == 3, "each draws for itself"
    for prompt, said in (("<s>c", "no token begins with 'c'"), ("", "a prompt is empty"), ("<s>" + "a" * 9, "at most")):
        with pytest.raises(UsageError, match=said):
            policy.generate(prompt)
    with pytest.raises(UsageError, match="max_tokens must be a whole number of at least 1"):
        policy.generate("<s>", max_tokens=-1)


def test_better_players_begin_with_a_cloned_one(cloned: Path, tmp_path: Path) -> None:
    """All their networks know what it knows; the outputs of values are fresh."""
    write(tmp_path, "ilql", cloned / layout.ELITE)
    assert call(tmp_path, "population").code == 0
    spec = make_spec(load_params(tmp_path / "params.yaml"))  # type: ignore[arg-type]
    members, _ = read_members(tmp_path, layout.POPULATION, spec)
    (*_, old), _ = read_members(cloned, layout.TRAINED, make_spec(load_params(cloned / "params.yaml")))  # type: ignore[arg-type]
    known = old.arch.named(spec.widths["policy"], old.tensors["policy"])
    for member in members:
        assert member.arch == old.arch
        assert torch.equal(member.tensors["policy"], old.tensors["policy"])
        assert torch.equal(member.tensors["critic"], member.tensors["critic_target"])
        parts = member.arch.named(spec.widths["critic"], member.tensors["critic"])
        assert [name for name in parts if not torch.equal(parts[name], known[name])] == ["output"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpt": {**SMALL, "hidden": 32}}, "width and heads' width must agree"),
        (
            {"kwargs": {"words": ["ab", "ca", "aa", "bb"], "tries": 3}},
            "was trained over other tokens (<pad> <s> <g> <y> <b> <x> a b) than wordle has here (<pad> <s> <g> <y> <b> "
            "<x> a b c)",
        ),
        ({"kwargs": {**WORDS, "tries": 4}}, "or over games of another length"),
        ({"task": "copy", "kwargs": {}}, "language.task: 'copy' has no games, which language.model gpt plays"),
    ],
)
def test_a_player_of_another_kind_is_refused(cloned: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    write(tmp_path, "ilql", cloned / layout.ELITE, **change)
    answer = call(tmp_path, "population")
    assert answer.code == 65
    assert said in " ".join(answer.err.split())


@pytest.mark.thorough
def test_values_of_games_are_learned_and_exported(cloned: Path, tmp_path: Path) -> None:
    policy: Any = evopipe.load(run(tmp_path, "ilql", cloned / layout.ELITE) / layout.ELITE)
    assert policy.play(games=3).rows == policy.play(games=3).rows
    weights = tmp_path / layout.ELITE / "weights.safetensors"
    weights.write_bytes((cloned / layout.ELITE / "weights.safetensors").read_bytes())
    with pytest.raises(DataError):
        evopipe.load(tmp_path / layout.ELITE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"evolution": {"mutation": {"probabilities": {"architecture": 0.1}}}},
            "evolution.mutation.probabilities.architecture: members adapt a base whose form they share: set it to 0",
        ),
        (
            {
                "language": {"model": "gpt"},
                "train": {"algo": "ilql"},
                "evolution": {"mutation": {"probabilities": {"rank": 0.1}}},
            },
            "evolution.mutation.probabilities.rank: members are GPTs, and `architecture` changes them: set it to 0",
        ),
        (
            {"language": {"model": "gpt"}, "train": {"algo": "grpo"}},
            "train.algo: grpo adapts a base, language.model gpt has none: take bc_language, ilql",
        ),
        (
            {"language": {}, "train": {"algo": "ilql"}},
            "train.algo: ilql learns from games, by models of its own: set language.model to gpt",
        ),
        (
            {"evolution": {"mutation": {"gpt": {"min_nodes": 512}}}},
            "evolution.mutation.gpt: min_nodes (512) is above max_nodes (256)",
        ),
    ],
)
def test_parameters_that_make_no_sense_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError) as refused:
        parse_params({"language": {}, **change})
    assert said in str(refused.value)


@pytest.mark.slow
def test_the_pipelines_of_five_letters_take_their_first_steps(tmp_path: Path) -> None:
    """As committed, models and words, but for how much of everything."""
    few = [("fetch.generate.rows", "200"), ("fetch.validation", "0.1"), ("fetch.test", "0.1"), ("population.size", "2"),
           ("train.max_steps", "2"), ("train.evo_steps", "1"), ("train.eval_episodes", "4"),
           ("train.confirm_episodes", "4"), ("evaluate.episodes", "4"), ("tracking.backends", "[]")]  # fmt: skip
    start: list[tuple[str, str]] = []
    for pipeline, algo in (("bc-five", "bc_language"), ("ilql-five", "ilql")):
        settings = [*few, *start, (f"algos.{algo}.batch_size", "4")]
        result = learned.run(f"pipelines/wordle/{pipeline}/params.yaml", 1, settings, tmp_path / pipeline)
        games: Any = result.policy
        assert -6.0 <= result.evaluation["elite"]["mean"] <= 0.0
        assert games.task.length == 56
        start = [("population.start", str(tmp_path / pipeline / layout.ELITE))]
    assert len(games.play(games=2).rows[0]["guesses"][0]) == 5


def test_algorithms_of_games_are_among_those_of_text() -> None:
    assert [name for name in algos.names("text") if algos.get(name).REGIME == "games"] == ["bc_language", "ilql"]
