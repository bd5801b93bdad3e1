"""The output files of a finished run: trained members, lineage, learning curve, summary and timing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.run.run import Champion, Run
from evopipe.storage import members
from evopipe.storage.files import dump_json, write_bytes, write_csv, write_json
from evopipe.track.events import Generation, Start, read_events

CURVE = ("generation", "step", "env_steps", "eval_steps", "best", "mean", "elite")
TIMING = ("generation", "seconds", "env_steps", "eval_steps")


def write_results(run: Run[Any], champion: Champion, about: Mapping[str, Any], folder: Path) -> None:
    """Write all output files of a finished run except its timing: trained members, lineage, learning curve, signals,
    summary.

    `folder` is the project's folder. The elite (the best member), `champion`, is stored after the members, as the last
    one. `about` is JSON data that identifies the algorithm and the environment or base model, as `about_spec` returns
    it. No file holds a clock time, so that equal runs write equal bytes.
    """
    elite = {
        "id": champion.member.id,
        "generation": champion.generation,
        "score": champion.score,
        "standard_error": champion.error,
        "confirmed": champion.confirmed,
    }
    members.write(folder / layout.TRAINED, [*run.members, champion.member], {**about, "elite": elite})
    lines = b"".join(dump_json(record.to_json(), str(layout.LINEAGE)) for record in run.lineage)
    write_bytes(folder / layout.LINEAGE, lines)
    write_csv(folder / layout.FITNESS, CURVE, [["" if x is None else x for x in row] for row in run.curve])
    columns = [column for name in run.signal_names for column in (name, f"{name}{layout.LAST}")]
    width = 2 + len(columns)
    write_csv(
        folder / layout.SIGNALS,
        ["generation", "slot", *columns],
        [[*row, *[""] * (width - len(row))] for row in run.signals],
    )
    clock = run.clock
    summary = {
        "reason": run.reason,
        "generations": clock.generation,
        "steps": {
            **run.lived,
            "training": clock.env_steps,
            "evaluation": clock.eval_steps,
            "all": clock.env_steps + clock.eval_steps,
        },
        "broken_transitions": clock.broken,
        "elite": elite,
        "best_fitness": run.curve[-1][4],
        "mean_fitness": run.curve[-1][5],
        "target": run.target,
        "warm_start": run.regime.warm,
        **({"remarks": run.regime.remarks} if run.regime.remarks else {}),
    }
    write_json(folder / layout.TRAIN, summary)


def write_timing(log: Path, curve: Sequence[Sequence[Any]], folder: Path) -> None:
    """Write `reports/timing.csv`: the seconds that each generation took, and the steps taken in these seconds.

    `log` is the path of the run's log of events, `curve` the learning curve with a row for each generation, and
    `folder` the project's folder. No other output file has clock times.

    If a run was killed and continued, it trained the generations after its last checkpoint twice; their rows have the
    seconds of the second time. If a run was stopped within a generation and continued, the generation's row has only
    the seconds and steps after that. Generations that are missing in the log are left out.
    """
    rows: dict[int, tuple[int, float, int, int]] = {}
    ends: dict[int, Sequence[Any]] = {int(row[0]): row for row in curve}
    began = 0  # training steps of the population at which the measured seconds begin
    with contextlib.suppress(OSError):  # a log that cannot be read costs the measurement, not the run
        for _, event in read_events(log):
            if isinstance(event, Start):
                began = event.resumed_env_steps or 0
            elif isinstance(event, Generation) and event.generation in ends:
                rows[event.generation] = _timing(event, began, ends)
                began = event.env_steps
    write_csv(folder / layout.TIMING, TIMING, [rows[generation] for generation in sorted(rows)])


def _timing(event: Generation, began: int, ends: Mapping[int, Sequence[Any]]) -> tuple[int, float, int, int]:
    """Return a row of `timing.csv`: seconds, and the steps of the population that were taken in them."""
    _, _, training, evaluation, *_ = ends.get(event.generation - 1, (0, 0, 0, 0))
    steps = max(0, event.env_steps - max(training, began))
    return event.generation, round(event.seconds, 3), steps, event.eval_steps - evaluation
