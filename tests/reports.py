"""Files of runs of any size, without the training: real members really evolve, only their scores are made up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe import layout
from evopipe.core.member import Member
from evopipe.mutations import Mutation
from evopipe.ops.statistics import summary
from evopipe.params.load import Params, parse_params
from evopipe.problems.specs import make_spec
from evopipe.run.outs import CURVE, TIMING
from evopipe.run.population import about_spec
from evopipe.run.spec import EnvSpec, first_members
from evopipe.searchers.apply import evolve
from evopipe.stages import export
from evopipe.storage import members as stored
from evopipe.storage.files import dump_json, write_bytes, write_csv, write_json
from tiny import params as tiny_params

STEPS = 5_000  # of each member, in a generation


def write_run(
    folder: Path,
    members: int = 20,
    generations: int = 50,
    diverge: float = 0.02,
    episodes: int = 100,
    overrides: Mapping[str, Any] | None = None,
) -> Params:
    """Write `reports/` (but for the report) and `models/elite` of a run of that size.

    Args:
        folder: where.
        members: of the population.
        generations: how many were evaluated.
        diverge: chance that a member diverges in a generation.
        episodes: held-out episodes of each member.
        overrides: parameters by dotted keys.

    Returns:
        the run's parameters.
    """
    params = parse_params(
        tiny_params({"env.id": "Acrobot-v1", "population.size": members, "evaluate.steps": None, **(overrides or {})})
    )
    problem = make_spec(params)
    chance = np.random.default_rng(7)
    current, births = first_members(problem, members)
    skill = dict.fromkeys((m.id for m in current), 0.0)
    records, curve, champion = [_beginning(current, births)], [], None
    for generation in range(1, generations + 1):
        current = [_scored(m, skill, diverge, generation, chance) for m in current]
        scores = [m.fitness[-1] for m in current]
        finite = [score for score in scores if math.isfinite(score)]
        best = current[int(np.argmax(scores))]
        if finite and (champion is None or best.fitness[-1] > champion[1]):
            champion = (best, best.fitness[-1], generation)
        curve.append(_row(generation, members, finite, champion))
        record = {
            "generation": generation,
            "step": generation * STEPS,
            "members": [{**about, "fitness": about["fitness"][-1]} for about in stored.pack(current, "")[1]],
            "champion": champion and {"id": champion[0].id, "score": champion[1]},
            "children": [],
        }
        records.append(record)
        if generation < generations and finite:
            current, record["children"] = _children(problem, current, scores, generation, skill, chance)
    assert champion is not None
    _write(folder, params, problem, current, champion, records, curve, episodes, chance)
    return params


def _beginning(members: list[Member], births: list[Mutation]) -> dict[str, Any]:
    children = [_birth(member, mutation, None) for member, mutation in zip(members, births, strict=True)]
    return {"generation": 0, "step": 0, "members": [], "champion": None, "children": children}


def _birth(child: Member, mutation: Mutation, parent_slot: int | None) -> dict[str, Any]:
    _, (about,) = stored.pack([child], "")
    described = {k: v for k, v in about.items() if k not in ("fitness", "healthy", "key")}
    return {**described, "parent_slot": parent_slot, "mutation": mutation.to_json()}


def _scored(
    member: Member, skill: dict[int, float], diverge: float, generation: int, chance: np.random.Generator
) -> Member:
    """Let a member learn a little, and score it."""
    skill[member.id] += float(chance.normal(6.0, 3.0)) * math.exp(-generation / 25)
    if chance.random() < diverge and member.slot:
        return replace(member, healthy=False, fitness=(*member.fitness, -math.inf))
    score = -450.0 + skill[member.id] * 2.2 + float(chance.normal(0, 15))
    return replace(member, healthy=True, fitness=(*member.fitness, score))


def _children(
    problem: EnvSpec,
    members: list[Member],
    scores: list[float],
    generation: int,
    skill: dict[int, float],
    chance: np.random.Generator,
) -> tuple[list[Member], list[dict[str, Any]]]:
    """The next generation, by the project's own evolution."""
    born = evolve(
        problem.tournament,
        problem.mutation,
        problem.traits,
        members,
        np.array(scores),
        problem.seed,
        generation,
        generation * len(members),
    )
    cost = {"none": 0.0, "architecture": 3.0, "parameters": 12.0, "activation": 8.0, "rl_hp": 1.0}
    for child, mutation, parent in zip(born.members, born.mutations, born.parents, strict=True):
        if child.id != members[parent].id:
            skill[child.id] = skill[members[parent].id] - cost[mutation.kind] + float(chance.normal(0, 4))
    rows = [_birth(*entry) for entry in zip(born.members, born.mutations, born.parents, strict=True)]
    return list(born.members), rows


def _row(generation: int, members: int, finite: list[float], champion: tuple[Member, float, int] | None) -> list[Any]:
    steps = generation * STEPS * members
    scores = (max(finite), sum(finite) / len(finite)) if finite else ("", "")
    return [generation, generation * STEPS, steps, steps // 2, *scores, champion[1] if champion else ""]


def _write(
    folder: Path,
    params: Params,
    problem: EnvSpec,
    members: list[Member],
    champion: tuple[Member, float, int],
    records: list[dict[str, Any]],
    curve: list[list[Any]],
    episodes: int,
    chance: np.random.Generator,
) -> None:
    elite, score, born = champion
    about = {
        **about_spec(problem),
        "elite": {
            "id": elite.id,
            "generation": born,
            "score": score,
            "standard_error": 2.0,
            "confirmed": True,
        },
    }
    stored.write(folder / layout.TRAINED, [*members, elite], about)
    lines = b"".join(dump_json(record, "lineage") for record in records)
    write_bytes(folder / layout.LINEAGE, lines)
    write_csv(folder / layout.FITNESS, CURVE, curve)
    seconds = [
        [row[0], 9.0 + 2.0 * float(chance.random()), STEPS * len(members), row[2] // (2 * row[0])] for row in curve
    ]
    write_csv(folder / layout.TIMING, TIMING, seconds)
    summary = {
        "reason": "max_steps",
        "generations": len(curve),
        "steps": {"each_member": curve[-1][1], "training": curve[-1][2], "evaluation": curve[-1][3], "all": 1},
        "broken_transitions": 0,
        "elite": about["elite"],
        "best_fitness": curve[-1][4] or None,
        "mean_fitness": curve[-1][5] or None,
        "target": -100.0,
        "warm_start": 0,
    }
    write_json(folder / layout.TRAIN, summary)
    _write_evaluation(folder, problem, [*members, elite], episodes, chance)
    export.run(params, quiet=True, folder=folder)


def _write_evaluation(
    folder: Path, problem: EnvSpec, members: list[Member], episodes: int, chance: np.random.Generator
) -> None:
    rows, summaries = [], {}
    seeds = chance.integers(0, 2**31, episodes)
    for index, member in enumerate(members):
        name = "elite" if index == len(members) - 1 else f"member_{index}"
        middle = member.fitness[-1] if math.isfinite(member.fitness[-1]) else -500.0
        returns = np.clip(chance.normal(middle, 60, episodes), -500, -60)
        rows += [[name, int(seed), float(value), int(-value)] for seed, value in zip(seeds, returns, strict=True)]
        summaries[name] = {
            "mean": float(returns.mean()),
            "std": float(returns.std()),
            "median": float(np.median(returns)),
            "iqm": float(np.median(returns)),
            "interval": summary(returns, np.ones(len(returns), np.int64), 200, chance)["interval"],
            "min": float(returns.min()),
            "max": float(returns.max()),
            "mean_length": float(-returns.mean()),
        }
        if team := problem.spaces.team:  # of n agents the i-th has i / (1 + … + n) of all
            share = float(returns.mean()) * np.arange(1, 1 + len(team.agents)) / np.arange(1 + len(team.agents)).sum()
            groups = {name: float(share[list(places)].sum()) for name, places in problem.groups.items()}
            summaries[name] |= {"agents": dict(zip(team.agents, share.tolist(), strict=True)), "groups": groups}
    write_csv(folder / layout.EPISODES, ["member", "seed", "return", "length"], rows)
    elite = summaries.pop("elite")
    write_json(folder / layout.EVALUATION, {"elite": elite, "episodes": episodes, "steps": 1, "env": problem.env.id})
    write_json(folder / layout.MEMBERS, summaries)
