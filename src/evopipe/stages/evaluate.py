"""Stage `evaluate`: score every member on held-out seeds."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from evopipe import layout, rng
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed, Interrupted, translate_failures
from evopipe.machine import configure
from evopipe.ops.statistics import summary
from evopipe.rng import Purpose
from evopipe.run.evaluate import Stopped, evaluate
from evopipe.schema.params import Params
from evopipe.signals import StopSignal
from evopipe.stages.setup import make_spec, read_members
from evopipe.stages.tell import tell
from evopipe.storage.files import write_csv, write_json

_BROKEN_SHARE = 0.1  # of a member's episodes that may be broken
_STOPPED = "stopped, nothing was written; the same command begins it again"
_ROWS = 128  # environments that evaluation steps at a time, where there are that many episodes


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write the elite's scores, every member's, and every episode (`reports/`) from `models/trained`.

    Raises:
        MissingInputError: `models/trained` is not there.
        DataError: it is damaged.
        EnvironmentFailed: the environment raised, or returned something that is not finite too often.
        Interrupted: a signal came.
    """
    spec, n = make_spec(params, configure(params.runtime)), params.evaluate.episodes
    stored, _ = read_members(folder, layout.TRAINED, spec)
    names = [*(f"member_{i}" for i in range(len(stored) - 1)), "elite"]
    cohorts = spec.form([replace(member, slot=i) for i, member in enumerate(stored)])  # the elite had another's slot
    seeds, size = spec.seeds(Purpose.HELD_OUT, n), len(stored) * min(n, max(1, _ROWS // len(stored)))
    with (
        Workers(params.runtime.env_workers) as workers,
        # The reported score is Gymnasium's, whatever build of the environment training stepped.
        closing(EnvPool(params.env.on_gymnasium, size, what="evaluation", workers=workers)) as pool,
        StopSignal() as stop,
        translate_failures(),
    ):
        try:
            played = evaluate(spec, cohorts, pool, seeds, params.evaluate.steps, lambda: stop.signum is not None)
        except (Stopped, EnvironmentFailed):
            if stop.signum is None:
                raise
            raise Interrupted(stop.signum, _STOPPED) from None
    whole = np.isfinite(played.returns)
    _refuse_or_warn(whole, params.env.id)
    scores, episodes = {}, []
    for m, name in enumerate(names):
        returns, lengths = played.returns[m][whole[m]], played.lengths[m][whole[m]]
        chance = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, m)
        scores[name] = summary(returns, lengths, params.evaluate.bootstrap, chance)
        columns = (seeds[whole[m]].tolist(), returns.tolist(), lengths.tolist())
        episodes += [[name, *row] for row in zip(*columns, strict=True)]
    elite, about = scores.pop("elite"), {"episodes": n, "steps": played.steps, "env": params.env.id}
    write_json(folder / layout.EVALUATION, {"elite": elite, **about})
    write_json(folder / layout.MEMBERS, scores)
    write_csv(folder / layout.EPISODES, ["member", "seed", "return", "length"], episodes)
    mean, (low, high) = elite["mean"], elite["interval"]
    tell(f"elite: mean {mean:.1f} over {n} held-out episodes, 95 % interval [{low:.1f}, {high:.1f}]", quiet)


def _refuse_or_warn(whole: np.ndarray, env_id: str) -> None:
    broken = int((~whole).sum())  # few are left out; more of them would make the scores a guess
    text = f"environment {env_id!r} returned non-finite observations or rewards in {broken} of {whole.size} episodes"
    if (~whole).mean(axis=1).max() > _BROKEN_SHARE:
        raise EnvironmentFailed(f"{text}: mend it, then run `evopipe evaluate` or `dvc repro` again")
    if broken:
        print(f"warning: {text}; they are left out of the scores", file=sys.stderr)
