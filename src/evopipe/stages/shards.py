"""A training in shards: how many, what each lives on, and which engine holds them (`runtime.shards`)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe.algos import get, on_policy
from evopipe.core.member import Member
from evopipe.envs.workers import Workers
from evopipe.errors import ParamsError, need_package
from evopipe.evolve.mutate import Mutation
from evopipe.machine import configure
from evopipe.run.clock import Clock
from evopipe.run.drive import regime_of
from evopipe.run.evaluate import in_environments
from evopipe.run.learners import learner_count
from evopipe.run.regime import Regime, Setup
from evopipe.run.run import JobT, Run
from evopipe.run.shards import Engine, Here, Shards
from evopipe.run.spec import Job
from evopipe.run.warm import read_warm
from evopipe.schema.params import AnyParams, Params, parse_params
from evopipe.schema.shards import ShardsConfig
from evopipe.stages.setup import make_spec
from evopipe.track.events import Message, Tracker


class _Divided:
    """A training whose members live in shards; where there is no engine, one process trains all."""

    def __init__(
        self, params: AnyParams, members: int, folder: Path, each: int = 1, engine: Engine | None = None
    ) -> None:
        asked, most = params.runtime.shards.count, members // each
        self._count = 0 if engine is None else min(most, engine.room) if asked == "auto" else asked
        if self._count > most:
            what = "members" if most == members else "memories of theirs"
            raise ParamsError(f"runtime.shards.count: {self._count} shards are more than there are {what} ({most})")
        self._params, self._folder, self._each, self._engine = params, folder, each, engine
        self._made: Shards | None = None

    @property
    def checkpoints(self) -> str:
        """Name of the folder of checkpoints: no other number of shards can go on from them."""
        return f"checkpoints-{self._count}" if self._count else "checkpoints"

    def begin(self, spec: JobT, members: Sequence[Member], births: Sequence[Mutation]) -> Run[JobT] | None:
        """Return the run at its beginning, None where one process trains all; for errors see `Shards`."""
        clock = Clock.of(spec, len(members))
        made = self._make(spec, clock, members, {})
        return None if made is None else Run(spec, made, clock, members, births)

    def held_out(self, spec: Job, members: Sequence[Member], rows: int = 1) -> Shards | None:
        """Return what scores members on held-out seeds, in so many environments each; None where one process does."""
        made = self._make(spec, Clock.of(spec, len(members)), members, {"held out": rows})
        if made is not None:
            made.adopt(spec.form(members))
        return made

    def _make(self, spec: Job, clock: Clock, members: Sequence[Member], more: Mapping[str, Any]) -> Shards | None:
        if self._engine is None:
            return None
        ends = np.linspace(0, len(members) // self._each, self._count + 1).round().astype(int) * self._each
        slots = [range(first, end) for first, end in itertools.pairwise(ends.tolist())]
        about = {"params": self._params.model_dump(mode="json"), "folder": str(self._folder.absolute()), **more}
        begin = [{**about, "keys": [members[slot].key for slot in own]} for own in slots]
        self._made = Shards(spec, clock, slots, begin, self._engine)
        return self._made

    def tell(self, tracker: Tracker) -> None:
        """Tell people what being apart has cost."""
        if self._made is not None and not isinstance(self._engine, Here):
            tracker.emit(Message("info", self._made.account))

    def also(self, more: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
        """Return what tells of shards that were made anew, and `more`."""

        def told() -> list[str]:
            said = [] if self._made is None else self._made.said
            found = [*said, *more()]
            said.clear()
            return found

        return told


@contextlib.contextmanager
def divided(params: AnyParams, members: int, folder: Path, learn: bool = True) -> Iterator[_Divided]:
    """Open the engine that `runtime.shards` names, for members to `learn`, or to be scored alone.

    Raises:
        MissingInputError: the package of the engine is not installed.
        ParamsError: what is asked for would change results, or there are more shards than members.
        ResourceError: the engine does not start.
    """
    cfg = params.runtime.shards
    if cfg.engine == "none" and cfg.count in ("auto", 1):
        yield _Divided(params, members, folder)
        return
    _refuse(params)
    engine: Engine
    if cfg.engine == "ray":
        from evopipe.stages.on_ray import OnRay

        engine = OnRay(cfg, folder, make)
    elif cfg.engine == "accelerate":
        from evopipe.stages.ranks import Ranks

        engine = Ranks(cfg, make)
    else:
        engine = Here(make)
    try:
        yield _Divided(params, members, folder, _together(params) if learn else 1, engine)
    finally:
        engine.close()


def served(cfg: ShardsConfig) -> bool:
    """Serve the process that writes, to its end, where this one is another rank of `accelerate launch`; return whether
    it was. Where `runtime.shards` wants ranks and nothing launched any, this process becomes their launcher."""
    if cfg.engine != "accelerate":
        return False
    need_package("accelerate", "language", "runtime.shards.engine: accelerate")
    from evopipe.stages import ranks

    return ranks.served(cfg, make)


def _refuse(params: AnyParams) -> None:
    """Raise ParamsError where a member would not be alone with what is its own."""
    if params.runtime.cohorts != "exact":
        raise ParamsError(
            "runtime.shards: members of a merged cohort are computed with their neighbours, and results would depend "
            "on the shards; set runtime.cohorts: exact"
        )
    cfg, of_words = params.runtime.shards, not isinstance(params, Params)
    if cfg.ranks > 1 and not (of_words and cfg.engine == "accelerate"):
        raise ParamsError("runtime.shards.ranks: several are of language models, with engine: accelerate; set it to 1")
    if not isinstance(params, Params):
        if params.language.engine != "transformers":
            raise ParamsError("runtime.shards: needs language.engine: transformers")
        if cfg.ranks > 1 and (params.runtime.rows_at_once is None or params.language.model == "gpt"):
            raise ParamsError(
                "runtime.shards.ranks: they divide rows over a base, in parts; set runtime.rows_at_once to the rows of "
                "a part, or ranks to 1"
            )
        return
    train = params.train
    offline = train.mode == "offline"
    if _together(params) > 1 and train.replay.sharing == "shared":
        raise ParamsError(
            "runtime.shards: members that share a memory cannot live apart; set train.replay.sharing: own, or to how "
            "many neighbours share one"
        )
    if offline and train.replay.prioritised:
        raise ParamsError(
            "runtime.shards: a child would inherit its parent's priorities, which may lie in another shard; set "
            "train.replay.prioritised: false"
        )


def _together(params: AnyParams) -> int:
    """How many neighbours share a memory, and so a shard."""
    if not isinstance(params, Params) or params.train.mode == "offline" or on_policy(get(params.train.algo)):
        return 1
    return params.train.replay.members(params.population.size)


def make(about: Mapping[str, Any], together: Any = None) -> tuple[Job, Regime, Clock]:
    """Return what a shard lives on: as `stages.train` makes it, with some of the members, and of them its part where
    it is several processes `together`."""
    params, folder = parse_params(about["params"]), Path(about["folder"])
    keys, device = np.array(about["keys"], np.int64), configure(params.runtime)
    if not isinstance(params, Params):
        from evopipe.stages.language import setup as text

        language = text.make_spec(params, device)
        if together is not None:
            language = replace(language, base=replace(language.base, together=together))
        clock = Clock.of(language, len(keys))
        if "held out" in about:
            return language, text.held_out_of(params, language, folder), clock  # type: ignore[return-value]
        return language, text.regime_of(language, clock, text.corpus_of(folder, language, text.form_of(params))), clock
    runtime, spec = params.runtime, make_spec(params, device)
    clock = Clock.of(spec, len(keys))
    alone = runtime.shards.resources.get("cpu", 1.0) < 2  # and with its one CPU it does all by itself
    asked = 1 if alone and runtime.learners == "auto" else runtime.learners
    learners = learner_count(asked, runtime.threads, spec.environments_first)
    workers = Workers(0 if alone and runtime.env_workers == "auto" else runtime.env_workers, learners)
    if rows := about.get("held out"):
        scored: Any = in_environments(spec, params.env.on_gymnasium, len(keys), rows, params.evaluate.steps, workers)
        return spec, scored, clock
    setup = Setup(spec, clock, keys, read_warm(spec, folder), workers, learners)
    return spec, regime_of(setup), clock
