"""Stage `evaluate`: score every member on held-out seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe import layout, rng
from evopipe.errors import EnvironmentFailed, Interrupted, translate_failures
from evopipe.ops.statistics import summary
from evopipe.problems.env import problem_of
from evopipe.rng import Purpose
from evopipe.run.evaluate import Stopped
from evopipe.run.population import read_members
from evopipe.run.spec import Spec
from evopipe.scale.divide import divided, served
from evopipe.schema.params import AnyParams, Params
from evopipe.signals import StopSignal
from evopipe.stages.tell import tell, warn
from evopipe.storage.files import write_csv, write_json
from evopipe.track.formats import score

_BROKEN_SHARE = 0.1  # of a member's episodes that may be broken
_ROWS = 128  # environments that evaluation steps at a time, if there are that many episodes


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write the elite's scores, every member's, and every episode (`reports/`) from `models/trained`."""
    if served(params.runtime.shards):
        return
    problem, n = problem_of(params, folder), params.evaluate.episodes
    spec = problem.spec
    stored, trained = read_members(folder, layout.TRAINED, spec)
    names = [*(f"member_{i}" for i in range(len(stored) - 1)), "elite"]
    members = [replace(member, slot=i) for i, member in enumerate(stored)]  # the elite had another's slot
    seeds, rows = spec.seeds(Purpose.HELD_OUT, n), min(n, max(1, _ROWS // len(stored)))
    with (
        translate_failures(),
        divided(problem, params, len(members), folder, learn=False) as problem,
        closing(problem.held_out(len(members), rows)) as scored,
        interruptible() as stopped,
    ):
        scored.adopt(cohorts := spec.form(members))
        played = scored.evaluate(cohorts, seeds, stopped)
    whole = _refuse_or_warn(np.isfinite(played.returns), params.env.id)
    scores, episodes = {}, []
    for m, (name, mine) in enumerate(zip(names, whole, strict=True)):
        returns, lengths = played.returns[m][mine], played.lengths[m][mine]
        scores[name] = score_of(params, m, returns, lengths)
        if "agents" in played.more:
            scores[name] |= _of_agents(spec, played.more["agents"][m][mine])
        episodes.append((name, seeds[mine], returns, lengths))
    elite = scores.pop("elite")
    about = {"elite": elite, "episodes": n, "steps": played.steps, "env": params.env.id}
    write(folder, about, scores, episodes)
    tell_elite(elite, f"{n} held-out episodes", trained, quiet)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Give what says whether a signal asked to stop; what an evaluation raises because of it is `Interrupted`."""
    with StopSignal() as stop:
        try:
            yield lambda: stop.signum is not None
        except (Stopped, EnvironmentFailed):
            if not stop.signum:
                raise
            raise Interrupted(stop.signum, "stopped, nothing was written; the same command begins it again") from None


def score_of(params: AnyParams, place: int, returns: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """Return the scores of episodes, `[n]` each; those of another `place` have other draws of the bootstrap."""
    chance = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, place)
    return summary(returns, lengths, params.evaluate.bootstrap, chance)


def write(
    folder: Path,
    evaluation: Mapping[str, Any],
    members: Mapping[str, Any],
    episodes: Iterable[tuple[str, np.ndarray, np.ndarray, np.ndarray]],
) -> None:
    """Write the elite's scores, the members', and of each name the seeds, returns and lengths of its episodes."""
    write_json(folder / layout.EVALUATION, evaluation)
    write_json(folder / layout.MEMBERS, members)
    rows = [[name, *row] for name, *each in episodes for row in zip(*(x.tolist() for x in each), strict=True)]
    write_csv(folder / layout.EPISODES, ["member", "seed", "return", "length"], rows)


def tell_elite(elite: Mapping[str, Any], over: str, trained: Mapping[str, Any], quiet: bool) -> None:
    """Tell the elite's score, and warn if training, which said that it has `trained` it, thought too well of it."""
    interval, fitness = "[{}, {}]".format(*map(score, elite["interval"])), trained["elite"]["score"]
    tell(f"elite: mean {score(elite['mean'])} over {over}, 95 % interval {interval}", quiet)
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
