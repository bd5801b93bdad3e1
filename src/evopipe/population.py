"""Populations in this process, which train generation by generation and can be inspected in between."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from evopipe.core.member import Member
from evopipe.data.transitions import Transitions
from evopipe.envs.workers import Workers
from evopipe.errors import UsageError, translate_failures
from evopipe.machine import configure
from evopipe.params.load import AnyParams, Params, env_params
from evopipe.policies import policy
from evopipe.policies.acting import Policy
from evopipe.policies.team import TeamPolicy
from evopipe.problems import check
from evopipe.problems.env import begin
from evopipe.problems.env_population import begun
from evopipe.problems.specs import describe, make_spec
from evopipe.regimes.learners import learner_count
from evopipe.regimes.warm import read_warm
from evopipe.rng import Purpose
from evopipe.run.callbacks import Callbacks
from evopipe.run.evaluate import in_environments
from evopipe.run.outs import write_results
from evopipe.run.population import about_spec
from evopipe.run.spec import EnvSpec
from evopipe.searchers.history import Record
from evopipe.stages import buffer, fetch


class Population:
    """A population of members that learn in environments and evolve, in this process, as many generations as the caller
    wants.

    Training is that of `evopipe.train` without files, trackers and checkpoints: equal parameters give equal bits. Close
    the population after use, or use it in a `with` statement, because its environments may run in processes.

    Args:
        params: a params file, `Params`, or a mapping in the layout of `params.yaml` (missing keys take defaults).

    Raises:
        ParamsError: a value cannot be used, or the algorithm does not support the environment.
        UsageError: the parameters are a language model's, or divide the members among processes (`runtime.shards`).
        MissingInputError, DataError: the members of `population.start`, or the dataset that training starts with, are
            missing or damaged.

    Examples:
        >>> small = {"env": {"id": "CartPole-v1"}, "train": {"max_steps": 300, "evo_steps": 100, "eval_episodes": 2}}
        >>> with evopipe.Population(small) as population:
        ...     records = population.train(generations=2)
        ...     population, len(records), population.elite.act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
        (<Population of 4 dqn in CartPole-v1, generation 2>, 2, True)
    """

    def __init__(self, params: str | os.PathLike[str] | AnyParams | Mapping[str, Any]) -> None:
        other = UsageError("Population: these parameters are of language models: call evopipe.train(params)")
        settled = env_params(params, other)
        if settled.runtime.shards.engine != "none":
            raise UsageError("Population: it trains in this process: set runtime.shards.engine to none")
        check(settled)
        self.params, runtime = settled, settled.runtime
        device = configure(runtime)
        _, members, births, _ = begun(settled)
        self._spec = make_spec(settled, device)
        self._described = describe(self._spec)
        make = partial(policy.of_member, described=self._described)
        self._callbacks = Callbacks(settled.train.callbacks, {}, Path(), make)
        learners = learner_count(runtime.learners, runtime.threads, self._spec.environments_first)
        with contextlib.ExitStack() as held:
            self._workers = held.enter_context(Workers(runtime.env_workers, learners))
            warm = _dataset(settled, self._spec)
            self._run = begin(self._spec, members, warm, births, self._workers, learners)
            held.callback(self._run.close)
            self._held = held.pop_all()

    def train(self, generations: int | None = None) -> list[Record]:
        """Train a number of generations, or until the run ends by the parameters in `train`; return the records of
        these generations.

        A generation is `train.evo_steps` environment steps of each member, then an evaluation of all members, selection
        and mutation. A record holds every member's fitness (mean undiscounted return) and parent. With
        `generations=None` only the parameters end the training.

        Raises:
            DivergedError: all members diverged in three generations in a row.
            EnvironmentFailed: the environment, or a callback, raised an exception or broke its contract.
        """
        run, begun = self._run, self.generation
        with translate_failures():
            while not run.reason and (generations is None or self.generation < begun + generations):
                if not run.clock.generation_over:
                    before = run.clock.ticks
                    run.advance(run.clock.generation_ticks)
                    self._callbacks.after_tick(run, before)
                elif run.waiting:
                    run.turn()
                else:
                    champion = run.champion
                    run.close_generation(lambda: False)
                    self._callbacks.after_generation(run, champion)
        return run.lineage[begun + 1 :]

    def evaluate(self, episodes: int | None = None) -> np.ndarray:
        """Play greedy episodes on the held-out seeds with every member; return the undiscounted returns `[P, n]`, P
        members.

        Returns are not finite where the environment failed.

        Args:
            episodes: `n`, the episodes of each member; None for `evaluate.episodes`.

        Raises:
            EnvironmentFailed: the environment raised an exception or broke its contract.
        """
        members, n = self.members, self.params.evaluate.episodes if episodes is None else episodes
        env, rows = self.params.env.on_gymnasium, min(n, max(1, _ROWS // len(members)))
        scored = in_environments(self._spec, env, len(members), rows, self.params.evaluate.steps, self._workers)
        with translate_failures(), contextlib.closing(scored):
            seeds = self._spec.seeds(Purpose.HELD_OUT, n)
            return scored.evaluate(self._spec.form(members), seeds, lambda: False).returns

    @property
    def members(self) -> list[Member]:
        """The members as data, ordered by slot (place in the population): architecture, hyper-parameters, weights,
        fitness, parent."""
        return self._run.members

    @property
    def policies(self) -> list[Policy | TeamPolicy]:
        """The members as policies that choose actions, ordered by slot (place in the population). Policies do not
        learn.

        The policies are copies, so that further training does not change their actions.
        """
        return [policy.of_member(member, self._described) for member in self.members]

    @property
    def elite(self) -> Policy | TeamPolicy:
        """The best member of all generations so far, as a policy with the weights that it had in its best
        generation.

        Raises:
            UsageError: no generation has ended.
        """
        champion = self._run.champion
        if champion is None:
            raise UsageError("elite: no generation has ended yet: call train(generations=1) first")
        return policy.of_member(champion.member, self._described)

    @property
    def lineage(self) -> list[Record]:
        """The records of all generations so far, in order; the first record is that of the initial members."""
        return list(self._run.lineage)

    @property
    def generation(self) -> int:
        """The number of generations that have ended."""
        return self._run.clock.generation

    @property
    def reason(self) -> str:
        """The reason why training is over: `target` if the target was reached, `max_steps` if the steps or the search's
        budget are used up. It is empty while training can go on.
        """
        return self._run.reason

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `models/trained` and `reports/` into a folder, as `evopipe train` does.

        The elite (the best member) is stored as the last member, after all others. `evopipe.load(folder /
        "models/trained", member=0)` loads a policy. Another run can start from the members with `population.start`.

        Raises:
            UsageError: no generation has ended.
            DiskError: a file cannot be written.
        """
        if self._run.champion is None:
            raise UsageError("save: no generation has ended yet: call train(generations=1) first")
        about = {**about_spec(self._spec), "policy": self._described}
        write_results(self._run, self._run.champion, about, Path(folder))

    def close(self) -> None:
        """Close the environments and their processes; members, policies and lineage can still be read."""
        self._held.close()

    def __len__(self) -> int:
        """How many members there are, `P`."""
        return self.params.population.size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        algo, env = self.params.train.algo, self.params.env.id
        return f"<Population of {len(self)} {algo} in {env}, generation {self.generation}>"


_ROWS = 128  # environments that a held-out evaluation steps at a time, if there are that many episodes


def _dataset(params: Params, spec: EnvSpec) -> Transitions | None:
    """Return the transitions that a run begins with, fetched as `fetch` in the parameters says; None if it has none."""
    if not params.needs_dataset:
        return None
    with tempfile.TemporaryDirectory(prefix="evopipe-") as folder:
        for stage in (fetch, buffer):
            stage.run(params, quiet=True, folder=Path(folder))
        return read_warm(spec, Path(folder))
