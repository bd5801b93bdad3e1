"""Stage `evaluate`: scores every member on held-out seeds or rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from evopipe import layout
from evopipe.errors import EnvironmentFailed, Interrupted, translate_failures
from evopipe.params.load import AnyParams
from evopipe.problems import part_of, problem_of
from evopipe.rng import Purpose
from evopipe.run.evaluate import Stopped
from evopipe.run.population import read_members
from evopipe.scale.divide import divided, served
from evopipe.signals import StopSignal
from evopipe.stages.tell import tell_elite
from evopipe.storage.files import write_csv, write_json

_ROWS = 128  # environments that evaluation steps at a time, if there are that many episodes


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Run the stage `evaluate`: score every member of `models/trained` on held-out seeds or rows.

    The scores of the elite (the best member) and of every member, and all episodes, are written to `reports/`; for
    language models also the base model's scores and some completions. Inputs and outputs are below `folder`. `quiet`
    suppresses messages.
    """
    if served(params.runtime.shards):
        return
    problem, n = problem_of(params, folder), params.evaluate.episodes
    spec = problem.spec
    found, trained = read_members(folder, layout.TRAINED, spec)
    scoring = part_of(params, "evaluate").evaluation(params, problem, found, folder)
    members = [replace(member, slot=i) for i, member in enumerate(scoring.members)]  # the elite had another's slot
    seeds, rows = spec.seeds(Purpose.HELD_OUT, n), min(n, max(1, _ROWS // len(members)))
    with (
        translate_failures(problem.less),
        divided(scoring.problem, params, len(members), folder, learn=False) as problem,
        closing(problem.held_out(len(members), rows)) as scored,
        interruptible() as stopped,
    ):
        scored.adopt(cohorts := spec.form(members))
        told = scoring.told(scored.evaluate(cohorts, seeds, stopped), seeds, stopped)
    write_json(folder / layout.EVALUATION, told.evaluation)
    write_json(folder / layout.MEMBERS, told.members)
    episodes = [[name, *row] for name, *each in told.episodes for row in zip(*(x.tolist() for x in each), strict=True)]
    write_csv(folder / layout.EPISODES, ["member", "seed", "return", "length"], episodes)
    if told.shown is not None:
        write_json(folder / layout.COMPLETIONS, told.shown)
    tell_elite(told.evaluation["elite"], told.over, trained, quiet)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True once a signal has asked the process to stop.

    An evaluation inside the `with` block that calls this function can stop early; the context manager then raises
    `Interrupted`.
    """
    with StopSignal() as stop:
        try:
            yield lambda: stop.signum is not None
        except (Stopped, EnvironmentFailed):
            if not stop.signum:
                raise
            raise Interrupted(stop.signum, "stopped, nothing was written; the same command begins it again") from None
