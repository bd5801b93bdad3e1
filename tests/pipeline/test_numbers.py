"""The numbers that a run leaves are those of its episodes: every one is played or computed anew by plain code."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from statistics import NormalDist, mean, median, stdev
from typing import Any

import gymnasium
import numpy as np
import pytest

import evopipe
from evopipe.policies import policy
from evopipe.problems.specs import make_spec
from evopipe.rng import Purpose
from tiny import params

MEMBERS, GENERATIONS, STEPS, ENVS, CAP = 3, 3, 96, 4, 30
EPISODES = {"eval": 5, "confirm": 7, "held out": 24}
SETTINGS = {
    "env.id": "LunarLander-v3", "env.num_envs": ENVS, "population.size": MEMBERS,
    "train.max_steps": GENERATIONS * STEPS, "train.evo_steps": STEPS, "train.learning_delay": 0,
    "train.eval_episodes": EPISODES["eval"], "train.eval_steps": CAP, "evaluate.steps": CAP,
    "train.confirm_episodes": EPISODES["confirm"], "evaluate.episodes": EPISODES["held out"],
    "evaluate.bootstrap": 4000, "evolution.mutation.before_training": True,
}  # fmt: skip
"""Unlike members in LunarLander, whose returns are no lengths."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module", autouse=True)
def result(folder: Path) -> evopipe.Result:
    """What the whole run gave, whose files lie in the folder."""
    return evopipe.train(params(SETTINGS), folder)


def content(folder: Path, name: str) -> Any:
    return json.loads((folder / "reports" / f"{name}.json").read_text())


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "reports" / f"{name}.csv").read_text().splitlines()))


def lineage(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "reports/lineage.jsonl").read_text().splitlines()]


def seeds(purpose: Purpose, number: int) -> list[int]:
    found: list[int] = make_spec(evopipe.parse_params(params(SETTINGS))).seeds(purpose, number).tolist()
    return found


def played(actor: Any, seed: int) -> tuple[float, int]:
    """Return and length of a greedy episode, by Gymnasium alone."""
    env = gymnasium.make("LunarLander-v3")
    obs, _ = env.reset(seed=seed)
    total, length, over = 0.0, 0, False
    while not over and length < CAP:
        obs, reward, terminated, truncated, _ = env.step(int(actor.act(obs)))
        total, length, over = total + float(reward), length + 1, terminated or truncated
    env.close()
    return total, length


@pytest.mark.thorough
def test_every_episode_that_was_written_is_its_own_members(folder: Path) -> None:
    """By the policies that are loaded by number, and by the exported one."""
    found: dict[str, list[Any]] = {}
    for row in rows(folder, "episodes"):
        found.setdefault(row["member"], []).append(row)
    assert [*found] == ["member_0", "member_1", "member_2", "elite"]
    actors = {f"member_{slot}": evopipe.load(folder / "models/trained", member=slot) for slot in range(MEMBERS)}
    actors["elite"] = evopipe.load(folder / "models/elite")
    for name, own in found.items():
        assert [int(row["seed"]) for row in own] == seeds(Purpose.HELD_OUT, EPISODES["held out"])
        for row in own[:3] + own[-2:]:
            total, length = played(actors[name], int(row["seed"]))
            assert float(row["return"]) == pytest.approx(total, rel=1e-4, abs=1e-3)
            assert int(row["length"]) == length
    assert len({tuple(row["return"] for row in own[:3]) for own in found.values()}) >= MEMBERS


def middle_half(values: list[float]) -> float:
    quarter = len(values) // 4
    return mean(sorted(values)[quarter : len(values) - quarter])


@pytest.mark.thorough
def test_the_held_out_scores_are_computed_from_the_episodes(folder: Path) -> None:
    evaluation = content(folder, "evaluation")
    scores = {**content(folder, "members"), "elite": evaluation["elite"]}
    every = rows(folder, "episodes")
    assert evaluation["episodes"] == EPISODES["held out"]
    assert evaluation["steps"] == sum(int(row["length"]) for row in every)
    assert evaluation["env"] == "LunarLander-v3"
    for name, score in scores.items():
        returns = [float(row["return"]) for row in every if row["member"] == name]
        lengths = [int(row["length"]) for row in every if row["member"] == name]
        expected = {
            "mean": mean(returns), "std": stdev(returns), "median": median(returns), "iqm": middle_half(returns),
            "min": min(returns), "max": max(returns), "mean_length": mean(lengths),
        }  # fmt: skip
        assert {key: score[key] for key in expected} == pytest.approx(expected)
        # An end lies near where the normal distribution has it; 0.35 is what chance and returns' skew explain.
        error = stdev(returns) / math.sqrt(len(returns))
        for end, side in zip(score["interval"], (-1, 1), strict=True):
            assert end == pytest.approx(mean(returns) + side * NormalDist().inv_cdf(0.975) * error, abs=0.35 * error)


def test_the_curve_is_computed_from_the_lineage(folder: Path) -> None:
    curve, records, best = rows(folder, "fitness"), lineage(folder)[1:], -math.inf
    assert len(curve) == len(records) == GENERATIONS
    for number, (row, record) in enumerate(zip(curve, records, strict=True), 1):
        fitness = [member["fitness"] for member in record["members"]]
        steps = number, number * STEPS, number * STEPS * MEMBERS
        assert tuple(int(row[name]) for name in ("generation", "step", "env_steps")) == steps
        assert (record["generation"], record["step"]) == steps[:2]
        assert [float(row[name]) for name in ("best", "mean")] == pytest.approx([max(fitness), mean(fitness)])
        assert float(row["elite"]) == record["champion"]["score"] >= best  # confirmed by other episodes
        best = float(row["elite"])
    assert best == content(folder, "train")["elite"]["score"]
    evaluated = [int(row["eval_steps"]) for row in curve]
    most = (MEMBERS * EPISODES["eval"] + EPISODES["confirm"]) * CAP
    assert all(0 < b - a <= most for a, b in zip([0, *evaluated], evaluated, strict=False))


def test_the_last_fitness_of_every_member_is_the_mean_of_the_runs_own_episodes(folder: Path) -> None:
    for slot, scored in enumerate(lineage(folder)[-1]["members"]):
        actor = evopipe.load(folder / "models/trained", member=slot)
        assert (actor.about["id"], actor.about["hyper"]) == (scored["id"], scored["hyper"])
        total = mean(played(actor, seed)[0] for seed in seeds(Purpose.EVALUATE, EPISODES["eval"]))
        assert scored["fitness"] == pytest.approx(total, rel=1e-4, abs=1e-3)


def test_the_summary_is_of_the_curve_and_its_elite_of_the_lineage(folder: Path) -> None:
    summary, curve = content(folder, "train"), rows(folder, "fitness")
    training, evaluation = GENERATIONS * STEPS * MEMBERS, int(curve[-1]["eval_steps"])
    assert summary["steps"] == {
        "each_member": GENERATIONS * STEPS, "training": training, "evaluation": evaluation, "all": training + evaluation
    }  # fmt: skip
    assert (summary["generations"], summary["reason"]) == (GENERATIONS, "max_steps")
    assert [summary["best_fitness"], summary["mean_fitness"]] == [float(curve[-1][key]) for key in ("best", "mean")]
    elite = summary["elite"]
    crowned = next(record for record in lineage(folder)[1:] if record["champion"]["score"] == elite["score"])
    best = max(crowned["members"], key=lambda member: member["fitness"])
    assert (elite["generation"], elite["id"], elite["confirmed"]) == (crowned["generation"], best["id"], True)
    actor = evopipe.load(folder / "models/elite")
    assert mean(played(actor, seed)[0] for seed in seeds(Purpose.EVALUATE, EPISODES["eval"])) == pytest.approx(
        best["fitness"], rel=1e-4, abs=1e-3
    )
    returns = [played(actor, seed)[0] for seed in seeds(Purpose.CONFIRM, EPISODES["confirm"])]
    assert elite["score"] == pytest.approx(mean(returns), rel=1e-4, abs=1e-3)
    assert elite["standard_error"] == pytest.approx(stdev(returns) / math.sqrt(len(returns)), rel=1e-3)


def test_the_times_hold_every_step_of_the_run(folder: Path) -> None:
    timing, curve = rows(folder, "timing"), rows(folder, "fitness")
    assert [int(row["generation"]) for row in timing] == list(range(1, GENERATIONS + 1))
    assert [int(row["env_steps"]) for row in timing] == [STEPS * MEMBERS] * GENERATIONS
    total = np.cumsum([int(row["eval_steps"]) for row in timing]).tolist()
    assert total == [int(row["eval_steps"]) for row in curve]
    assert all(0.0 < float(row["seconds"]) < 60.0 for row in timing)


def test_the_model_card_has_the_evaluations_numbers_and_the_elites_settings(folder: Path) -> None:
    score, about = content(folder, "evaluation")["elite"], json.loads((folder / "models/elite/policy.json").read_text())
    card = (folder / "models/elite/README.md").read_text()
    assert about["evaluation"] == score
    assert about["training"] == content(folder, "train")["elite"]
    numbers = " | ".join(f"{score[name]:.4g}" for name in ("std", "median", "iqm"))
    low, high = score["interval"]
    assert f"| {EPISODES['held out']} | {score['mean']:.4g} | [{low:.4g}, {high:.4g}] | {numbers} |" in card
    elite = content(folder, "train")["elite"]
    scored = next(m for m in lineage(folder)[elite["generation"]]["members"] if m["id"] == elite["id"])
    assert (about["hyper"], about["arch"]) == (scored["hyper"], scored["arch"])
    for name, value in scored["hyper"].items():
        assert f"| {name} | {value:g} |" in card


def test_the_film_is_of_the_episode_that_is_nearest_the_mean(folder: Path) -> None:
    every = [row for row in rows(folder, "episodes") if row["member"] == "elite"]
    middle = mean(float(row["return"]) for row in every)
    typical = min(every, key=lambda row: abs(float(row["return"]) - middle))
    text = re.sub(r"<[^>]*>", " ", (folder / "reports/report.html").read_text().partition("</style>")[2])
    total = f"{float(typical['return']):.4g}".replace("-", "−")
    wanted = f"One held-out episode of the elite (seed {typical['seed']}): return {total} in {typical['length']} steps"
    assert wanted in " ".join(text.split())


def test_what_train_returns_is_what_the_files_say(folder: Path, result: evopipe.Result) -> None:
    assert result.evaluation == content(folder, "evaluation")
    assert result.members == content(folder, "members")
    assert result.summary == content(folder, "train")
    assert [record.to_json() for record in result.lineage] == lineage(folder)
    obs = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    loaded, values = policy.trained(folder / "models/trained"), []
    assert [each.about["slot"] for each in loaded] == list(range(MEMBERS))
    for slot, found in enumerate(zip(loaded, result.policies, strict=True)):
        alone = evopipe.load(folder / "models/trained", member=slot)
        values += [alone.q_values(obs).tobytes()]
        assert [each.q_values(obs).tobytes() for each in found] == values[-1:] * 2
    assert len({*values}) == MEMBERS
    assert np.array_equal(result.policy.act(obs), evopipe.load(folder / "models/elite").act(obs))
