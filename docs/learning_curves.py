"""Learning curves on the algorithms' pages: from `docs/curves/<algorithm>.csv`, which `docs/add_curve.py` fills.

A row is a generation of a run: how far each member and the population were, the best member's fitness, the champion's
score. The last row of a run has the mean of the elite's held-out episodes too.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from harness.plots import COLOURS, GREY, picture

from evopipe.formats import score
from evopipe.schema.read import read_yaml

FOLDER = Path(__file__).parent / "curves"
_DRAWING = 2  # counts how they are drawn: another number draws all pictures anew
COLUMNS = ("pipeline", "env", "mode", "seed", "member_steps", "population_steps", "best", "champion", "held_out")

TESTS = {
    ("bc", "cqn-cartpole"): ("CQN must score more", "offline::test_cartpole_from_random_and_poor_play"),
    ("bc", "iql-pendulum"): (
        "IQL and TD3+BC must score more, by 300", "offline::test_pendulum_from_good_and_random_play"
    ),
    ("cqn", "cqn-cartpole"): (
        "each must reach 450, and more than cloning", "offline::test_cartpole_from_random_and_poor_play"
    ),
    ("ddpg", "ddpg-pendulum"): ("each must reach -200", "ddpg::test_pendulum_by_its_pipeline"),
    ("dqn", "dqn-cartpole"): ("each must reach 475", "dqn::test_cartpole_by_its_pipeline"),
    ("dqn", "dqn-catch"): ("each must reach 9.5", "image::test_catch_in_pixels_by_its_pipeline"),
    ("dqn", "dqn-frozenlake"): ("each must come within 0.05 of the best mean", "dqn::test_frozenlake_by_its_pipeline"),
    ("dqn", "dqn-minigrid"): ("each must reach 0.95", "image::test_minigrid_in_pixels_by_its_pipeline"),
    ("dqn", "dqn-mountaincar"): ("each must reach -110", "dqn::test_mountaincar_by_its_pipeline"),
    ("dqn", "dqn-taxi"): ("each must reach 7.5", "dqn::test_taxi_by_its_pipeline"),
    ("ippo", "ippo-meet"): ("each must reach 24", "ippo::test_meet_in_pixels_by_its_pipeline"),
    ("ippo", "ippo-spread"): ("each must reach -40", "ippo::test_spread_by_its_pipeline"),
    ("iql", "iql-pendulum"): (
        "each must reach 300 more than cloning", "offline::test_pendulum_from_good_and_random_play",
    ),
    ("maddpg", "maddpg-speaker-listener"): (
        "each must reach -18", "maddpg::test_speaker_and_listener_talk_by_their_pipeline"
    ),
    ("matd3", "matd3-speaker-listener"): (
        "each must reach -18", "matd3::test_speaker_and_listener_talk_by_their_pipeline"
    ),
    ("mappo", "mappo-spread"): ("each must reach -40", "mappo::test_spread_by_its_pipeline"),
    ("matd3", "matd3-spread"): ("each must reach -50", "matd3::test_spread_by_its_pipeline"),
    ("ppo", "ppo-acrobot"): ("each must reach -85", "ppo::test_acrobot_by_its_pipeline"),
    ("ppo", "ppo-bipedalwalker"): ("each must reach 250", "ppo::test_bipedalwalker_by_its_pipeline"),
    ("ppo", "ppo-cartpole"): (
        "each must reach 475, after 15 seconds of training at most", "ppo::test_cartpole_in_seconds_by_its_pipeline"
    ),
    ("ppo", "ppo-lunarlander"): ("each must reach 220", "ppo::test_lunarlander_by_its_pipeline"),
    ("ppo", "ppo-lunarlander-continuous"): ("each must reach 220", "ppo::test_continuous_lunarlander_by_its_pipeline"),
    ("ppo", "recurrent-ppo-masked-cartpole"): (
        "each must reach 400, and without a memory none may reach 200", "ppo::test_hidden_velocities_need_a_memory"
    ),
    ("rainbow", "rainbow-lunarlander"): ("each must reach 200", "rainbow::test_lunarlander_by_its_pipeline"),
    ("sac", "sac-halfcheetah"): ("each must reach 3000", "sac::test_halfcheetah_by_its_pipeline"),
    ("sac", "sac-pendulum"): ("each must reach -200", "sac::test_pendulum_by_its_pipeline"),
    ("td3", "ddpg-pendulum"): ("each must reach -200", "td3::test_pendulum"),
    ("td3", "td3-lunarlander-continuous"): ("each must reach 200", "td3::test_continuous_lunarlander_by_its_pipeline"),
    ("td3", "td3-mountaincar-continuous"): ("each must reach 90", "td3::test_continuous_mountaincar_by_its_pipeline"),
    ("td3bc", "iql-pendulum"): (
        "each must reach 300 more than cloning", "offline::test_pendulum_from_good_and_random_play"
    ),
}  # fmt: skip
"""What `make test-slow` asks of an algorithm on a pipeline, and the test, below `tests/learning/`."""
_SERIAL = " Members are trials, one at a time: another begins where one has lived `train.max_steps`."
_BEFORE = " The runs shown are tournaments of four, as the pipeline was before decision 0047."
NOTES = {
    ("dqn", "dqn-cartpole"): _BEFORE,
    ("dqn", "dqn-mountaincar"): _BEFORE,
    ("td3", "td3-mountaincar-continuous"): _BEFORE,
    ("dqn", "dqn-minigrid"): " It needs the extra `minigrid`, and is left out without.",
    ("ppo", "ppo-acrobot"): _BEFORE,
    ("ppo", "ppo-cartpole"): _SERIAL,
    ("sac", "sac-halfcheetah"): " It needs the extra `mujoco`, and is left out without.",
    ("sac", "sac-pendulum"): _SERIAL,
}


_SEEDS = (
    " The thick line is the mean over seeds, the band goes from the lowest to the highest; a run that is over counts "
    "on."
)


class Row(NamedTuple):
    """A generation; numbers as they stand in the file, so that reading and writing change nothing."""

    pipeline: str
    env: str
    mode: str
    seed: str
    member_steps: str
    population_steps: str
    best: str
    champion: str
    held_out: str

    @property
    def run(self) -> tuple[str, int]:
        """What no other run of the algorithm has."""
        return self.pipeline, int(self.seed)


def read(algo: str) -> list[Row]:
    """Return the rows of an algorithm, none where it has no curve yet.

    Raises:
        ValueError: the file has other columns.
    """
    file = FOLDER / f"{algo}.csv"
    if not file.is_file():
        return []
    header, *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
    if tuple(header) != COLUMNS:
        raise ValueError(f"{file}: its columns are {', '.join(header)}, expected {', '.join(COLUMNS)}")
    return [Row(*row) for row in rows]


def text(rows: Sequence[Row]) -> str:
    """Return the file's content: runs in order of pipeline and seed, generations as they were."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *sorted(rows, key=lambda row: row.run)])
    return stream.getvalue()


def section(algo: str, pipelines_algo: dict[str, str]) -> str:
    """Return what the page says of the curves.

    Args:
        algo: the algorithm.
        pipelines_algo: each pipeline's own `train.algo`.
    """
    rows = read(algo)
    if not rows:
        return ""
    parts = ["## Learning curves"]
    for pipeline in dict.fromkeys(row.pipeline for row in rows):
        mine = [row for row in rows if row.pipeline == pipeline]
        changes = [] if pipelines_algo[pipeline] == algo else [f"-S train.algo={algo}"]
        again = " ".join(["dvc exp run", *changes, "-S seed=2"])
        first = " ".join(["dvc exp run", *changes]) if changes else "dvc repro"
        parts.append(f"![{mine[0].env}: best fitness and champion's score by steps]({_link(algo, pipeline)})")
        parts.append(
            f"{mine[0].env}, by [pipelines/{pipeline}](../../pipelines/{pipeline}/params.yaml): `{first}` there; "
            f"another seed by `{again}`. Dots: the best member's fitness in each generation, a mean over few episodes. "
            "Lines: the score of the champion, the best member so far. Where there is no target, or the fitness "
            "reaches it, that score is measured anew, over `train.confirm_episodes` episodes on other seeds, so that a "
            "line may lie below its dots; until then it is the fitness. A run with a target ends where it is confirmed."
            + (_SEEDS if len({row.seed for row in mine}) > 1 else "")
            + _tested(algo, pipeline)
        )
        parts.append(_table(mine))
    return "\n\n".join(parts)


def _tested(algo: str, pipeline: str) -> str:
    """Say what tests repeat, nothing where none does."""
    if (algo, pipeline) not in TESTS:
        return ""
    asked, test = TESTS[algo, pipeline]
    file, _, name = test.partition("::")
    params = read_yaml(Path(__file__).parents[1] / "pipelines" / pipeline / "params.yaml").data
    episodes = params["evaluate"]["episodes"]
    return (
        f" `make test-slow` repeats it with seeds 1, 2 and 3, over {episodes} held-out episodes: {asked} "
        f"(`tests/learning/test_{file}.py::{name}`)." + NOTES.get((algo, pipeline), "")
    )


def _link(algo: str, pipeline: str) -> str:
    return f"../curves/{_file(algo, pipeline)}"


def _file(algo: str, pipeline: str) -> str:
    return f"{algo}.{pipeline.rpartition('/')[2]}.svg"


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| Seed | Steps of each member | Steps of the population | Elite, mean of held-out episodes |",
        "| --- | --- | --- | --- |",
    ]
    scores: list[float] = []
    for row in rows:
        if row.held_out:
            steps = (f"{int(n):,}" for n in (row.member_steps, row.population_steps))
            lines.append(f"| {row.seed} | {' | '.join(steps)} | {score(float(row.held_out))} |")
            scores.append(float(row.held_out))
    if len(scores) > 1:
        lines.append(f"| mean | | | {score(sum(scores) / len(scores))} |")
    return "\n".join(lines)


def pictures(algo: str) -> dict[Path, bytes]:
    """Draw an algorithm's curves, a file for each pipeline."""
    rows = read(algo)
    drawn = {}
    for pipeline in dict.fromkeys(row.pipeline for row in rows):
        mine = [row for row in rows if row.pipeline == pipeline]
        drawn[FOLDER / _file(algo, pipeline)] = picture(lambda axes, mine=mine: _draw(axes, mine), 2.6, digest(mine))  # type: ignore[misc]
    return drawn


def summary(lines: Sequence[Sequence[tuple[int, float]]]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Return steps at which a line of scores changes, and the lines' mean, lowest and highest score there.

    A line keeps its score until the next, and its last one behind its end: the run was over. The steps begin where
    every line has a score.
    """
    first = max(line[0][0] for line in lines)
    steps = sorted({x for line in lines for x, _ in line if x >= first})
    scores = [[[y for at, y in line if at <= x][-1] for line in lines] for x in steps]
    means = [sum(each) / len(each) for each in scores]
    return steps, means, [min(each) for each in scores], [max(each) for each in scores]


def digest(rows: Sequence[Row]) -> str:
    """Name what is drawn: a picture carries it, so that it can be told fresh whatever matplotlib drew it."""
    return "data " + hashlib.sha256(f"{_DRAWING}{text(rows)}".encode()).hexdigest()[:16]


def stale(algo: str) -> list[Path]:
    """Return the pictures that are missing or show other data."""
    rows = read(algo)
    names = dict.fromkeys(row.pipeline for row in rows)
    wanted = {FOLDER / _file(algo, name): digest([row for row in rows if row.pipeline == name]) for name in names}
    return [path for path, name in wanted.items() if not path.is_file() or name not in path.read_text("utf-8")]


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    offline = rows[0].mode == "offline"
    seeds = list(dict.fromkeys(row.seed for row in rows))
    lines = []
    for number, seed in enumerate(seeds):
        mine = [row for row in rows if row.seed == seed]
        steps = [int(row.member_steps if offline else row.population_steps) for row in mine]
        colour, look = COLOURS[number % len(COLOURS)], {"linewidth": 0.9, "alpha": 0.6} if len(seeds) > 1 else {}
        best = [(x, float(row.best)) for x, row in zip(steps, mine, strict=True) if row.best]
        lines.append([(x, float(row.champion)) for x, row in zip(steps, mine, strict=True) if row.champion])
        axes.plot(*zip(*best, strict=True), "o", color=colour, markersize=2.5, alpha=0.5, markeredgewidth=0)
        xy = zip(*lines[-1], strict=True)
        axes.plot(*xy, drawstyle="steps-post", color=colour, label=f"seed {seed}", **{"linewidth": 1.6, **look})
    if len(seeds) > 1:
        x, mean, low, high = summary(lines)
        axes.fill_between(x, low, high, step="post", color=GREY, alpha=0.25, linewidth=0, label="lowest to highest")
        axes.plot(x, mean, drawstyle="steps-post", color=GREY, linewidth=2.2, label="mean")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.set_xlabel("learning steps of each member" if offline else "environment steps of the population")
    axes.set_ylabel("return")
    axes.grid(axis="y", color=GREY, alpha=0.2)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))  # outside: no line crosses it there
