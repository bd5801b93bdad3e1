"""Stage `evaluate`: score every member on held-out seeds."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe import layout, rng
from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed, Interrupted, translate_failures
from evopipe.machine import configure
from evopipe.ops.statistics import summary
from evopipe.rng import Purpose
from evopipe.run.evaluate import Stopped, in_environments
from evopipe.run.spec import Spec
from evopipe.schema.params import Params
from evopipe.signals import StopSignal
from evopipe.stages import shards
from evopipe.stages.setup import make_spec, read_members
from evopipe.stages.tell import tell, warn
from evopipe.storage.files import write_csv, write_json
from evopipe.track.formats import score

_BROKEN_SHARE = 0.1  # of a member's episodes that may be broken
_ROWS = 128  # environments that evaluation steps at a time, if there are that many episodes


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write the elite's scores, every member's, and every episode (`reports/`) from `models/trained`.

    Raises:
        MissingInputError, DataError: `models/trained` is not there, or is damaged.
        EnvironmentFailed: the environment raised, or returned something that is not finite too often.
        Interrupted: a signal came.
    """
    if shards.served(params.runtime.shards):
        return
    spec, n = make_spec(params, configure(params.runtime)), params.evaluate.episodes
    stored, trained = read_members(folder, layout.TRAINED, spec)
    names = [*(f"member_{i}" for i in range(len(stored) - 1)), "elite"]
    members = [replace(member, slot=i) for i, member in enumerate(stored)]  # the elite had another's slot
    seeds, rows = spec.seeds(Purpose.HELD_OUT, n), min(n, max(1, _ROWS // len(stored)))
    with (
        translate_failures(),
        shards.divided(params, len(members), folder, learn=False) as divided,
        Workers(params.runtime.env_workers) as workers,
        # The reported score is Gymnasium's, whatever build of the environment training stepped.
        closing(
            divided.held_out(spec, members, rows)
            or in_environments(spec, params.env.on_gymnasium, len(members), rows, params.evaluate.steps, workers)
        ) as scored,
        StopSignal() as stop,
    ):
        try:
            played = scored.evaluate(spec.form(members), seeds, lambda: stop.signum is not None)
        except (Stopped, EnvironmentFailed):
            if not stop.signum:
                raise
            raise Interrupted(stop.signum, "stopped, nothing was written; the same command begins it again") from None
    whole = _refuse_or_warn(np.isfinite(played.returns), params.env.id)
    scores, episodes = {}, []
    for m, (name, mine) in enumerate(zip(names, whole, strict=True)):
        returns, lengths = played.returns[m][mine], played.lengths[m][mine]
        chance = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, m)
        scores[name] = summary(returns, lengths, params.evaluate.bootstrap, chance)
        if "agents" in played.more:
            scores[name] |= _of_agents(spec, played.more["agents"][m][mine])
        episodes += [[name, *row] for row in zip(seeds[mine].tolist(), returns.tolist(), lengths.tolist(), strict=True)]
    elite, about = scores.pop("elite"), {"episodes": n, "steps": played.steps, "env": params.env.id}
    write_json(folder / layout.EVALUATION, {"elite": elite, **about})
    write_json(folder / layout.MEMBERS, scores)
    write_csv(folder / layout.EPISODES, ["member", "seed", "return", "length"], episodes)
    interval, fitness = "[{}, {}]".format(*map(score, elite["interval"])), trained["elite"]["score"]
    tell(f"elite: mean {score(elite['mean'])} over {n} held-out episodes, 95 % interval {interval}", quiet)
    if elite["interval"][1] < fitness:
        warn(f"held-out interval {interval} lies below the elite's fitness {score(fitness)}: raise train.eval_episodes")


def _of_agents(spec: Spec, returns: np.ndarray) -> dict[str, Any]:
    """Return the mean return of each agent of a team, and of each group the mean of its agents' sum, of `[n, K]`."""
    team = spec.spaces.team
    assert team is not None
    means = returns.mean(axis=0)
    groups = {name: float(means[list(places)].sum()) for name, places in spec.groups.items()}
    return {"agents": dict(zip(team.agents, means.tolist(), strict=True)), "groups": groups}


def _refuse_or_warn(whole: np.ndarray, env_id: str) -> np.ndarray:
    broken = int((~whole).sum())  # few are left out; more of them would make the scores a guess
    text = f"environment {env_id!r} returned non-finite observations or rewards in {broken} of {whole.size} episodes"
    if (~whole).mean(axis=1).max() > _BROKEN_SHARE:
        raise EnvironmentFailed(f"{text}: mend it, then run `evopipe evaluate` or `dvc repro` again")
    if broken:
        warn(f"{text}; they are left out of the scores")
    return whole
