"""Stage `evaluate`: score every member on held-out seeds."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from evopipe import rng
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Crew
from evopipe.errors import EnvironmentFailed, Interrupted, translate_failures
from evopipe.machine import configure
from evopipe.ops.statistics import bootstrap_interval, interquartile_mean
from evopipe.rng import Purpose
from evopipe.run.evaluate import Stopped, evaluate
from evopipe.schema.params import Params
from evopipe.signals import StopSignal
from evopipe.stages import paths
from evopipe.stages.setup import make_spec, read_members, with_slots
from evopipe.stages.tell import tell
from evopipe.storage.files import write_csv, write_json

BROKEN_SHARE = 0.1  # of a member's episodes that may be broken
ROWS = 128  # environments that evaluation steps at a time, where there are that many episodes


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write the elite's scores, every member's, and every episode (`reports/`) from `models/trained`.

    Raises:
        MissingInputError: `models/trained` is not there.
        DataError: it is damaged.
        EnvironmentFailed: the environment raised, or returned something that is not finite too often.
        Interrupted: a signal came.
    """
    device = configure(params.runtime)
    spec = make_spec(params, device)
    stored, _ = read_members(folder / paths.TRAINED, spec, "train")
    members = with_slots(stored)
    names = [*(f"member_{i}" for i in range(len(members) - 1)), "elite"]
    n = params.evaluate.episodes
    size = len(members) * min(n, max(1, ROWS // len(members)))
    crew = Crew(params.runtime.env_workers)
    # The reported score is Gymnasium's, whatever build of the environment training stepped.
    pool = EnvPool(params.env.on_gymnasium, size, what="evaluation", crew=crew)
    seeds, cohorts = spec.seeds(Purpose.HELD_OUT, n), spec.form(members)
    try:
        with StopSignal() as stop, translate_failures():
            stopped = lambda: stop.signum is not None  # noqa: E731
            played = evaluate(spec, cohorts, pool, seeds, params.evaluate.steps, stopped)
    except Stopped:
        raise Interrupted(
            stop.signum or signal.SIGTERM, "evaluation stopped, nothing was written; the same command begins it again"
        ) from None
    finally:
        pool.close()
        crew.close()
    whole = np.isfinite(played.returns)
    _refuse_or_warn(whole, params.env.id)
    summaries = {
        name: _summary(returns[kept], lengths[kept], params, i)
        for i, (name, returns, lengths, kept) in enumerate(
            zip(names, played.returns, played.lengths, whole, strict=True)
        )
    }
    elite = summaries.pop("elite")
    about = {"episodes": n, "steps": played.steps, "env": params.env.id}
    write_json(folder / paths.EVALUATION, {"elite": elite, **about})
    write_json(folder / paths.MEMBERS, summaries)
    rows = [
        [name, int(seeds[i]), float(played.returns[m, i]), int(played.lengths[m, i])]
        for m, name in enumerate(names)
        for i in range(n)
        if whole[m, i]
    ]
    write_csv(folder / paths.EPISODES, ["member", "seed", "return", "length"], rows)
    low, high = elite["interval"]
    tell(f"elite: mean {elite['mean']:.1f} over {n} held-out episodes, 95 % interval [{low:.1f}, {high:.1f}]", quiet)


def _refuse_or_warn(whole: np.ndarray, env_id: str) -> None:
    """Leave a few broken episodes out, with a warning; more of them would make the scores a guess."""
    broken = int((~whole).sum())
    if not broken:
        return
    text = f"environment {env_id!r} returned non-finite observations or rewards in {broken} of {whole.size} episodes"
    if (~whole).mean(axis=1).max() > BROKEN_SHARE:
        raise EnvironmentFailed(f"{text}: mend it, then run `evopipe evaluate` or `dvc repro` again")
    print(f"warning: {text}; they are left out of the scores", file=sys.stderr)


def _summary(returns: np.ndarray, lengths: np.ndarray, params: Params, index: int) -> dict[str, Any]:
    """Summarise one member's episodes."""
    chooser = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, index)
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "median": float(np.median(returns)),
        "iqm": interquartile_mean(returns),
        "interval": list(bootstrap_interval(returns, params.evaluate.bootstrap, chooser)),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "mean_length": float(lengths.mean()),
    }
