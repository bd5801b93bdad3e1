"""The stage `evaluate` for environments: what is reported of members that were scored on held-out seeds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evopipe.core.member import Member
from evopipe.errors import EnvironmentFailed
from evopipe.params.load import Params
from evopipe.problems.told import Told, names_of, score_of
from evopipe.run.evaluate import Episodes
from evopipe.run.problem import Problem
from evopipe.run.spec import EnvSpec

_BROKEN_SHARE = 0.1  # of a member's episodes that may be broken


def evaluation(params: Params, problem: Problem[EnvSpec], trained: Sequence[Member], folder: Path) -> EnvEvaluation:
    """Return an `EnvEvaluation`, which holds the members to score and makes the report of the scores.

    Args:
        params: the parameters.
        problem: what the run works on, with its configuration.
        trained: the trained members, the elite (the best member) last.
        folder: the project's folder, which is not used.
    """
    return EnvEvaluation(params, problem, trained)


class EnvEvaluation:
    """The part of the stage `evaluate` for environments: it holds the members to score, and makes the report.

    `params` are the parameters, `problem` is what the run works on, and `trained` has the trained members, the elite
    (the best member) last.
    """

    def __init__(self, params: Params, problem: Problem[EnvSpec], trained: Sequence[Member]) -> None:
        self.params, self.problem, self.members = params, problem, list(trained)

    def told(self, played: Episodes, seeds: np.ndarray, stopped: Callable[[], bool]) -> Told:
        """Return the report of an evaluation in which each member played one episode for each of n seeds.

        Args:
            played: the episodes.
            seeds: `[n]`, the seeds of the episodes.
            stopped: not used, because nothing is played again.

        Raises:
            EnvironmentFailed: too many of a member's episodes were broken by a fault of the environment.
        """
        env, scores, episodes = self.params.env.id, {}, []
        whole = _refuse_or_warn(np.isfinite(played.returns), env)
        for m, (name, mine) in enumerate(zip(names_of(len(self.members)), whole, strict=True)):
            returns, lengths = played.returns[m][mine], played.lengths[m][mine]
            scores[name] = score_of(self.params, m, returns, lengths)
            if "agents" in played.more:
                scores[name] |= _of_agents(self.problem.spec, played.more["agents"][m][mine])
            episodes.append((name, seeds[mine], returns, lengths))
        about = {"elite": scores.pop("elite"), "episodes": len(seeds), "steps": played.steps, "env": env}
        return Told(about, scores, episodes, f"{len(seeds)} held-out episodes")


def _of_agents(spec: EnvSpec, returns: np.ndarray) -> dict[str, Any]:
    """Return the mean return of each agent of a team, and of each group the mean of its agents' sum, of `[n, K]`."""
    means = returns.mean(axis=0)
    groups = {name: float(means[list(places)].sum()) for name, places in spec.groups.items()}
    return {"agents": dict(zip(spec.spaces.who.agents, means.tolist(), strict=True)), "groups": groups}


def _refuse_or_warn(whole: np.ndarray, env_id: str) -> np.ndarray:
    broken = int((~whole).sum())  # few are left out; more of them would make the scores a guess
    text = f"environment {env_id!r} returned non-finite observations or rewards in {broken} of {whole.size} episodes"
    if (~whole).mean(axis=1).max() > _BROKEN_SHARE:
        raise EnvironmentFailed(f"{text}: mend it, then run `evopipe evaluate` or `dvc repro` again")
    if broken:
        print(f"warning: {text}; they are left out of the scores", file=sys.stderr)
    return whole
