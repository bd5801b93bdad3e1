"""Evaluation: members play whole episodes greedily, on given seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from evopipe.algos import on_policy
from evopipe.core.cohort import Cohort
from evopipe.core.graphs import upload
from evopipe.envs import backends
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.workers import Workers
from evopipe.run.act import by_row, choose, gather, step
from evopipe.run.episodes import Episodes, Stopped
from evopipe.run.evaluate_tensors import evaluate_tensors
from evopipe.run.spec import EnvSpec
from evopipe.schema.env import EnvConfig

__all__ = ["Episodes", "Evaluator", "HeldOut", "Stopped", "evaluate", "in_environments"]


def evaluate(
    spec: EnvSpec,
    cohorts: Sequence[Cohort],
    pool: EnvPool,
    seeds: np.ndarray,
    cap: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    note: Note | None = None,
) -> Episodes:
    """Play one greedy episode for each seed with every member; return the episodes' returns and lengths.

    Args:
        spec: configuration.
        cohorts: the members, `P` in all, in groups whose networks are computed as one batch.
        pool: environments, at least `P`; each member uses up to `pool.rows // P` of them at a time.
        seeds: the n seeds of the episodes, `[n]`, the same for all members.
        cap: the most steps of an episode; None for no cap.
        stopped: a function that is called at every step and returns True to stop the evaluation.
        note: a function that is called with the data of every step, with the arguments of `Watch.note`; None for no
            call.

    Raises:
        Stopped: `stopped` returned True.
        EnvironmentFailed: an environment raised an exception or broke its contract.
    """
    slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
    place = {slot: p for p, slot in enumerate(slots)}
    rows = [np.array([place[slot] for slot in cohort.slots]) for cohort in cohorts]
    members, n = len(slots), len(seeds)
    width = min(pool.rows // members, n)
    agents = spec.spaces.agents
    returns, lengths = np.full((members, n, agents), np.nan), np.zeros((members, n), np.int64)
    episode = np.tile(np.arange(width), members)  # which episode each row plays
    waiting = np.full(members, width)  # next episode of each member
    running = np.arange(members * width)
    memories = [torch.zeros(len(c.members), width * agents, c.memory, device=spec.device) for c in cohorts]
    pool.reset(running, seeds[episode])
    steps = 0
    while len(running):
        if stopped():
            raise Stopped
        obs, legal = (x[: members * width].reshape(members, width * agents, -1) for x in (pool.obs, pool.mask))
        begins = pool.begins[: members * width].reshape(members, width * agents)
        chosen = []
        for i, (cohort, own) in enumerate(zip(cohorts, rows, strict=True)):
            if on_policy(spec.algo):
                seen, may, fresh = (upload(torch.from_numpy(x[own]), spec.device) for x in (obs, legal, begins))
                took = step(spec, cohort, cohort.normalised(seen), may, fresh, memories[i], None)
                memories[i] = took.memory
                chosen.append(took.action)
            else:
                chosen.append(choose(spec, cohort, obs[own], legal[own], None))
        actions = by_row(spec, gather(chosen, rows))[running]
        before = [x[running] for x in (pool.obs, pool.mask)] if note is not None else []  # copies
        gave = pool.step(actions, running)
        steps += len(running)
        over = gave.over
        if cap is not None:
            over |= pool.episode_length[running] >= cap
        if note is not None:
            cut = replace(gave, truncated=gave.truncated | (over & ~gave.terminated))
            note(np.array(slots)[running // width], running, episode[running], before[0], before[1], actions, cut)
        for row, broken in zip(running[over].tolist(), gave.broken[over].tolist(), strict=True):
            member = row // width
            returns[member, episode[row]] = np.nan if broken else pool.episode_return[row]
            lengths[member, episode[row]] = pool.episode_length[row]
            episode[row] = waiting[member]
            waiting[member] += 1
        again = running[over][episode[running[over]] < n]
        if len(again):
            pool.reset(again, seeds[episode[again]])
        running = running[episode[running] < n]
    limited = int((lengths >= pool.limit).sum()) if pool.limit is not None else 0
    return Episodes(spec.score(returns), lengths, steps, spec.of_agents(returns), limited)


Note: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, RowStep], None]
"""Told of a step: the slots `[n]` of those who act, their rows `[n]`, which episode of the evaluation each plays `[n]`,
observations `[n, O]`, legal actions `[n, A]`, actions, and what the step gave, truncated where an episode was cut."""


class Watch(Protocol):
    """The protocol of an object that receives every step of a run's evaluations, for example to store the
    transitions."""

    def begin(self) -> None:
        """Prepare for the steps of another evaluation."""

    def forget(self) -> None:
        """Discard all steps of this generation's evaluations, because an evaluation was stopped or failed.

        All evaluations of the generation are played again afterwards.
        """

    def note(
        self, slots: np.ndarray, rows: np.ndarray, episodes: np.ndarray, obs: np.ndarray, legal: np.ndarray,
        actions: np.ndarray, step: RowStep,
    ) -> None:  # fmt: skip
        """Receive the data of one step of an evaluation, in which n environments step.

        Args:
            slots: `[n]`, the slot (place in the population) of the member that acts in each environment.
            rows: `[n]`, the index of each environment in the pool.
            episodes: `[n]`, the number of the episode that each environment plays, an index of the evaluation's seeds.
            obs: `[n, O]`, the observations of O numbers before the step.
            legal: `[n, A]`, which of the A actions were legal before the step.
            actions: `[n, …]`, the actions.
            step: the results of the step; `truncated` is True too where the evaluation ended an episode at its cap.
        """


@dataclass(frozen=True)
class HeldOut:
    """An object that scores members in the final evaluation; it implements `Scoring`.

    Two functions do the work: `evaluate` and `close`. A shard (a process with a part of the population) that only
    evaluates uses this object in place of a `Regime` (training loop). For this purpose it also has the other attributes
    of a regime, as constants.

    Attributes:
        evaluate: the function that plays the episodes, see `Scoring.evaluate`.
        close: the function that closes the environments.
        warm: the number of transitions in the replay buffer at the start, 0.
        whole: whether the regime's state may be saved, True.
        threshold: the score at which the task is solved, None.
        remarks: sentences for the user, none.
    """

    evaluate: Callable[[Sequence[Cohort], np.ndarray, Callable[[], bool]], Episodes]
    close: Callable[[], None] = lambda: None
    warm: int = 0
    whole: bool = True
    threshold: float | None = None
    remarks: Sequence[str] = ()

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Do nothing, because members are passed to each call of `evaluate`."""


def in_environments(
    spec: EnvSpec, env: EnvConfig, members: int, rows: int, cap: int | None, workers: Workers | None = None
) -> HeldOut:
    """Open environments for the final evaluation, and return the object that scores members in these environments.

    Args:
        spec: the run's configuration.
        env: the configuration of the environments; its backend may differ from that of training.
        members: the number of members.
        rows: the number of environments for each member.
        cap: the most steps of an episode; None for no cap.
        workers: worker processes that step the environments; None steps them in this process.
    """
    pool, play = _opened(spec, env, members * rows, workers)
    return HeldOut(lambda cohorts, seeds, stopped: play(spec, cohorts, pool, seeds, cap, stopped), pool.close)


def _opened(spec: EnvSpec, env: EnvConfig, rows: int, workers: Workers | None) -> tuple[Any, Callable[..., Episodes]]:
    """Return a pool to evaluate in, and how members play there: as tensors where the backend has any."""
    tensors = backends.as_tensors(env)
    if tensors is not None:
        return tensors(env, rows, spec.device), evaluate_tensors
    return EnvPool(env, rows, what="evaluation", workers=workers), evaluate


class Evaluator:
    """The evaluation of a run's members during training, with the environments that it uses.

    The object is called with cohorts (groups of members computed as one batch), n seeds `[n]`, and a function that
    returns whether to stop. It returns `Episodes`, as `Scoring.evaluate` does.

    Args:
        spec: the run's configuration.
        members: the number of members.
        workers: worker processes that step the environments; if None, this process steps them.
        on_host: whether the environments run on the host in any case. If False, they may be tensors on a device.

    Attributes:
        watch: an object that receives every step, or None. Set it only if `on_host` is True.
        pool: the environments.
    """

    def __init__(self, spec: EnvSpec, members: int, workers: Workers | None = None, on_host: bool = False) -> None:
        self._spec = spec
        self.watch: Watch | None = None
        each = min(spec.train.eval_episodes, max(8, 64 // members))
        if on_host:
            self.pool: Any = EnvPool(spec.env, members * each, what="evaluation", workers=workers)
            self._play: Callable[..., Episodes] = evaluate
        else:
            self.pool, self._play = _opened(spec, spec.env, members * each, workers)

    def __call__(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """See `evaluate`; an episode has `train.eval_steps` at most."""
        given = self._spec, cohorts, self.pool, seeds, self._spec.train.eval_steps, stopped
        if self.watch is None:
            return self._play(*given)
        self.watch.begin()
        try:
            return self._play(*given, self.watch.note)
        except BaseException:
            self.watch.forget()
            raise
