"""The problem of members that act in an environment, each as a single agent or as a team of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evopipe import layout
from evopipe.algos import get, on_policy
from evopipe.core.member import Member
from evopipe.envs.make import source_of
from evopipe.envs.workers import Workers
from evopipe.errors import UsageError
from evopipe.machine import configure, fingerprint
from evopipe.mutations import Mutation
from evopipe.params.load import Params
from evopipe.problems.specs import describe, make_spec
from evopipe.regimes.learners import learner_count
from evopipe.regimes.off_policy import OffPolicy
from evopipe.regimes.offline import Offline
from evopipe.regimes.on_policy import CollectRollouts, OnPolicy
from evopipe.regimes.warm import read_warm, wants_warm
from evopipe.run import session
from evopipe.run.clock import Clock
from evopipe.run.evaluate import HeldOut, in_environments
from evopipe.run.problem import RANKS, Problem
from evopipe.run.regime import Regime, Setup
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec
from evopipe.schema.shards import ShardsConfig
from evopipe.schema.train import TrainConfig

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions


SHORT = 10_000
"""Training steps of all members, up to which `runtime.env_workers: auto` starts no process: who waits awake between two
ticks would cost more of the CPUs than such a run."""


def _workers(asked: int | Literal["auto"], steps: int, alone: bool) -> int | Literal["auto"]:
    return 0 if asked == "auto" and (alone or steps <= SHORT) else asked


def problem_of(params: Params, folder: Path = Path(), alone: bool = False, together: None = None) -> Problem[EnvSpec]:
    """Return the `Problem` of a run in an environment: its configuration, training loop and final evaluation.

    Args:
        params: the parameters.
        folder: the project's folder, which has the outputs of earlier stages.
        alone: whether this process is a shard (a process with a part of the population) that has a single CPU. If so,
            the value `auto` of `runtime.env_workers` and of `runtime.learners` means no helper processes.
        together: always None, because only language models have shards of several processes.

    Raises:
        ParamsError: the environment is unknown or not supported.
    """
    runtime, spec = params.runtime, make_spec(params, configure(params.runtime))
    outside, sources = params.outside()
    neighbours = neighbours_of(params.train, params.population.size)
    steps = params.search.budget or params.population.size * params.train.max_steps
    workers = _workers(runtime.env_workers, steps, alone)

    def live(clock: Clock, keys: np.ndarray) -> Regime:
        asked = 1 if alone and runtime.learners == "auto" else runtime.learners
        learners = learner_count(asked, runtime.threads, spec.environments_first)
        return regime_of(Setup(spec, clock, keys, read_warm(spec, folder), Workers(workers, learners), learners))

    def held_out(members: int, rows: int) -> HeldOut:
        # The reported score is Gymnasium's, whatever build of the environment training stepped.
        return in_environments(spec, params.env.on_gymnasium, members, rows, params.evaluate.steps, Workers(workers))

    def inputs() -> list[Path]:
        warm = [layout.need(folder, layout.TRANSITIONS)] if wants_warm(spec) else []
        return [*warm, *sources, *source_of(params.env)]

    return Problem(
        spec, live, held_out, partial(describe, spec), {
            **params.tracked("seed", "env", "train", "evolution", "search", "runtime"),
            "kernels": fingerprint()["kernels"],  # `auto` takes what this machine has
            "outside": outside,
        }, inputs, policy=_policy, neighbours=neighbours,
        undivided=_undivided(runtime.shards, params.train, neighbours),
    )  # fmt: skip


def _policy(member: Member, described: Mapping[str, Any]) -> Any:
    """Make a policy for a callback. No result depends on it, so the stage does not depend on its code."""
    from evopipe.policies.policy import of_member

    return of_member(member, described)


def neighbours_of(train: TrainConfig, members: int) -> int:
    """Return the number of members that share one replay buffer; 1 if none is shared.

    `train` is the block `train` of the parameters, and `members` the size of the population.
    """
    if train.mode == "offline" or on_policy(get(train.algo)):
        return 1
    return train.replay.members(members)


def _undivided(shards: ShardsConfig, train: TrainConfig, neighbours: int) -> str | None:
    """Say where a member would not be alone with what is its own."""
    if shards.ranks > 1:
        return RANKS
    if train.curriculum is not None:
        return (
            "train.curriculum: shards do not make environments anew; set it to null, or runtime.shards.engine to none"
        )
    if train.self_play.every:
        return "train.self_play: shards do not make environments anew; set runtime.shards.engine to none"
    if neighbours > 1 and train.replay.sharing == "shared":
        return (
            "runtime.shards: members that share a memory cannot live apart; set train.replay.sharing: own, or to how "
            "many neighbours share one"
        )
    if train.mode == "offline" and train.replay.prioritised:
        return (
            "runtime.shards: a child would inherit its parent's priorities, which may lie in another shard; set "
            "train.replay.prioritised: false"
        )
    return None


def begin(
    spec: EnvSpec,
    members: Sequence[Member],
    warm: Transitions | None = None,
    births: Sequence[Mutation] | None = None,
    workers: Workers | None = None,
    learners: int = 1,
    collect_rollouts: CollectRollouts | None = None,
    league: Path | None = None,
) -> Run[EnvSpec]:
    """Return a new run that has not trained yet, for users who write their own training loop.

    What members learn from (replay buffer, rollouts or dataset) follows from the algorithm.

    Args:
        spec: the run's configuration.
        members: the initial members.
        warm: the dataset, as transitions: the only data of an offline run, else the first content of the replay
            buffers.
        births: the mutation that made each member; None if no mutation made them.
        workers: worker processes that step the environments; None steps them in this process.
        learners: the number of processes that may compute updates, including this one.
        collect_rollouts: a function (regime, ticks) that collects each rollout; `regime` is the training loop, see
            `OnPolicy`. None if the training loop collects rollouts itself.
        league: the folder for the opponents of self-play, which a run needs that goes on from a saved state; None makes
            a temporary one, which is removed when the run is closed.

    Raises:
        UsageError: `collect_rollouts` is given, but the algorithm is not on-policy.
    """
    return session.begin(problem_with(spec, warm, workers, learners, collect_rollouts), members, births, league)


def problem_with(
    spec: EnvSpec,
    warm: Transitions | None = None,
    workers: Workers | None = None,
    learners: int = 1,
    collect_rollouts: CollectRollouts | None = None,
    described: Mapping[str, Any] | None = None,
) -> Problem[EnvSpec]:
    """Return the `Problem` of a run whose configuration and dataset are given as objects, and not as parameters.

    Args:
        spec: the run's configuration.
        warm: the dataset, as transitions; None for no dataset.
        workers: worker processes that step the environments; None steps them in this process.
        learners: the number of processes that may compute updates, including this one.
        collect_rollouts: a function (regime, ticks) that collects each rollout; `regime` is the training loop, see
            `OnPolicy`. None if the training loop collects rollouts itself.
        described: JSON data that is stored with every policy.
    """

    def live(clock: Clock, keys: np.ndarray) -> Regime:
        return regime_of(Setup(spec, clock, keys, warm, workers, learners), collect_rollouts)

    return Problem(spec, live, described=lambda: described or {}, policy=_policy)


def regime_of(setup: Setup, collect_rollouts: CollectRollouts | None = None) -> Regime:
    """Return the regime for the configuration: `OffPolicy`, `OnPolicy` or `Offline`. A regime is a training loop over
    one kind of data.

    `setup` holds the run's configuration, clock, random keys, dataset and helper processes. `collect_rollouts` is a
    function (regime, ticks) that collects each rollout in place of the regime; None if the regime does it itself.

    Raises:
        UsageError: `collect_rollouts` is given, but the algorithm is not on-policy.
    """
    spec, warm = setup.spec, setup.warm
    if collect_rollouts is not None and not on_policy(spec.algo):
        raise UsageError(f"collect_rollouts: {spec.train.algo} collects no rollouts; take an on-policy algorithm")
    setup.clock.rewarded = warm is not None and bool(np.any(warm.reward))
    if spec.train.mode == "offline":
        return Offline(setup)
    return OnPolicy(setup, collect_rollouts) if on_policy(spec.algo) else OffPolicy(setup)
