"""A table of learning curves: what trials with values drawn from a space would score, slice by slice.

A row is one draw with one seed: its values, then for each slice of its life the score and what evaluating it cost. A
row ends where the score was confirmed, where the member diverged, or with its life. Search strategies are replayed over
such a table in seconds, see `simulate`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evopipe.params.load import load_params, parse_params
from evopipe.schema.declare import evolvable
from evopipe.searchers import propose
from evopipe.searchers.contract import Bound
from harness import tournament

ROOT = Path(__file__).parents[2]
CURVES = ROOT / "benchmarks" / "curves"


@dataclass(frozen=True)
class Task:
    """A pipeline whose learner draws are trained with, the target, a trial's life in slices, the lowest return there
    is, if it is known, and how a score is confirmed."""

    pipeline: str
    target: float
    slice: int
    life: int
    backend: str = "c"
    lowest: float | None = None
    confirmation: str = "full"

    @property
    def slices(self) -> int:
        """A full life."""
        return self.life // self.slice


TASKS = {
    "cartpole": Task("ppo-cartpole", 475.0, 4096, 65_536, lowest=0.0),
    "acrobot": Task("ppo-acrobot", -100.0, 8192, 131_072, lowest=-500.0),
    "pendulum": Task("sac-pendulum", -200.0, 1000, 15_000, lowest=-2000.0),  # who hangs still has −1974
    "mountaincar": Task("ppo-mountaincar", -110.0, 16_384, 327_680, lowest=-200.0),
    "mountaincar_continuous": Task("td3-mountaincar-continuous", 90.0, 5000, 60_000, lowest=-100.0),
    "cartpole_dqn": Task("dqn-cartpole", 475.0, 2000, 40_000, lowest=0.0),
    "acrobot_dqn": Task("dqn-acrobot", -100.0, 4000, 80_000, lowest=-500.0),
    "mountaincar_dqn": Task("dqn-mountaincar", -110.0, 5000, 100_000, lowest=-200.0),
    "lander": Task("ppo-lunarlander", 200.0, 16_384, 491_520, backend="sync"),
}
_ACTOR_CRITIC = {
    "lr_actor": Bound(1e-6, 1e-1, log=True),
    "lr_critic": Bound(1e-6, 1e-1, log=True),
    "tau": Bound(0.01, 1.0, log=True),
    "batch_size": Bound(32, 256, whole=True),
}
HARD = {
    "ppo": {
        "lr": Bound(1e-6, 1e-1, log=True), "ent_coef": Bound(0.0, 0.5), "clip": Bound(0.01, 0.5),
        "gae_lambda": Bound(0.8, 0.9999), "batch_size": Bound(128, 512, whole=True),
    },
    "dqn": {
        "lr": Bound(1e-6, 1e-1, log=True), "tau": Bound(0.01, 1.0, log=True), "batch_size": Bound(16, 128, whole=True),
    },
    "sac": _ACTOR_CRITIC,
    "td3": _ACTOR_CRITIC,
}  # fmt: skip
"""ARLBench's spaces (Becktepe et al., 2024, https://arxiv.org/abs/2409.18827), as far as a member has the value: what
it normalises, and the number of its environments, belong to the run here. TD3 has that of SAC; DQN's batches go to 128,
as some of our files have them."""
SPACES = ("narrow", "hard")
OWN = "configured"
"""The table of the values that the pipeline's file sets, which are one draw."""
CONFIRM = 100  # episodes
CONFIRMATIONS = ("full", "sequential")


def space(task: Task, kind: str) -> dict[str, Bound]:
    """Return what is drawn: the pipeline's own ranges, the hard space, or nothing where values are the file's own."""
    if kind == OWN:
        return {}
    params = load_params(ROOT / "pipelines" / task.pipeline / "params.yaml")
    if kind == "hard":
        return HARD[params.train.algo]
    fields, ranges = type(params.algo_config).model_fields, params.algo_config.evolve
    whole = {name for name in evolvable(type(params.algo_config)) if fields[name].annotation is int}
    return {name: propose.bound(each.min, each.max, name in whole) for name, each in sorted(ranges.items())}


def configured(task: Task, space: Mapping[str, Bound]) -> dict[str, float]:
    """Return the values of a pipeline's file, as far as they lie within a space."""
    own = load_params(ROOT / "pipelines" / task.pipeline / "params.yaml").algo_config
    return {name: propose.inside(bound, getattr(own, name)) for name, bound in space.items()}


def params_of(task: Task, values: Mapping[str, float], seed: int) -> Any:
    """Return the parameters of one trial: a population of one, whose values nothing changes."""
    file = tournament.of(ROOT / "pipelines" / task.pipeline / "params.yaml")
    data = parse_params(file).model_dump(mode="json")
    algo = data["train"]["algo"]
    data["seed"], data["population"]["size"] = seed, 1
    data["env"]["backend"] = task.backend
    data["train"] |= {
        "target": task.target, "target_sigmas": 0.0, "confirm_episodes": CONFIRM, "max_steps": task.life,
        "evo_steps": task.slice, "warm_start": 0, "evaluation": "race", "confirmation": task.confirmation,
        "lowest_score": task.lowest,
    }  # fmt: skip
    own = {**data["algos"][algo], **values, "evolve": {}}
    if "epochs" in own:  # as where a search draws them: a minibatch is at most the rollout
        own["batch_size"] = min(own["batch_size"], own["learn_step"])
    data["algos"] = {algo: own}
    data["runtime"] |= {"device": "cpu", "threads": 1, "env_workers": 0, "learners": 1}
    data["tracking"] |= {"backends": []}
    return parse_params(data)


@dataclass(frozen=True)
class Row:
    """One trial: `scores` of its slices so far, and `evaluated`, environment steps of evaluation and confirmation after
    each; whether its last score was `confirmed`."""

    draw: int
    seed: int
    values: Mapping[str, float]
    confirmed: bool
    scores: tuple[float, ...]
    evaluated: tuple[int, ...]

    def coarse(self, slices: int) -> Row:
        """Return the row as it would be with slices that are so many times as long. What a trial had reached within a
        slice it has at its end."""
        last = len(self.scores) - 1
        kept = [min(end, last) for end in range(slices - 1, last + slices, slices)]
        return replace(
            self, scores=tuple(self.scores[i] for i in kept), evaluated=tuple(self.evaluated[i] for i in kept)
        )


def path_of(name: str, kind: str) -> Path:
    return CURVES / f"{name}-{kind}.csv.gz"


def read(path: Path) -> list[Row]:
    """Read a table; an empty one if it is not there."""
    if not path.is_file():
        return []
    with gzip.open(path, "rt", newline="") as file:
        return [_row(each) for each in csv.DictReader(file)]


def _row(cells: Mapping[str, str]) -> Row:
    known = {"draw", "seed", "confirmed", "scores", "evaluated"}
    scores = tuple(float(each) for each in cells["scores"].split())
    evaluated = tuple(int(each) for each in cells["evaluated"].split())
    values = {name: float(cell) for name, cell in cells.items() if name not in known}
    return Row(int(cells["draw"]), int(cells["seed"]), values, cells["confirmed"] == "1", scores, evaluated)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table; the file is whole at any time, and equal rows are equal bytes."""
    rows = sorted(rows, key=lambda row: (row.draw, row.seed))
    text = io.StringIO()
    names = sorted(rows[0].values)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["draw", "seed", *names, "confirmed", "scores", "evaluated"])
    for row in rows:
        scores = " ".join("-inf" if math.isinf(score) else f"{score:.1f}" for score in row.scores)
        values = [f"{row.values[name]:.6g}" for name in names]
        table.writerow(
            [row.draw, row.seed, *values, int(row.confirmed), scores, " ".join(str(each) for each in row.evaluated)]
        )
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    os.replace(temporary, path)
