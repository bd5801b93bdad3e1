"""Division of a training into shards: how many, what each needs, and which engine runs them (`runtime.shards`)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe.errors import ParamsError, need_package
from evopipe.params.load import AnyParams, parse_params
from evopipe.problems import problem_of
from evopipe.run.clock import Clock
from evopipe.run.problem import Problem
from evopipe.run.regime import Regime
from evopipe.run.spec import JobT, Spec
from evopipe.scale.shards import InProcess, ShardEngine, Shards
from evopipe.schema.shards import ShardsConfig


@contextlib.contextmanager
def divided(
    problem: Problem[JobT], params: AnyParams, members: int, folder: Path, learn: bool = True
) -> Iterator[Problem[JobT]]:
    """Yield the problem with its members divided into shards, and end the shards with the `with` block.

    A shard has some of the members, as a rule in a process of its own. The engine that `runtime.shards` names starts
    the processes, and carries messages to and from the shards.

    If `runtime.shards` sets neither an engine nor a number of shards, this process has all members, and the problem is
    yielded unchanged.

    Args:
        problem: the problem that the run or the evaluation works on. Use the yielded problem in its place afterwards.
        params: the run's parameters.
        members: the number of members.
        folder: the project's folder.
        learn: whether members are trained; if False, the shards only score members.

    Raises:
        MissingInputError: the engine's package is not installed.
        ParamsError: there are more shards than members, `runtime.cohorts` is not `exact`, or the members cannot be
            divided without a change of results.
        ResourceError: the engine does not start.
    """
    cfg = params.runtime.shards
    if cfg.engine == "none" and cfg.count in ("auto", 1):
        yield problem
        return
    if params.runtime.cohorts != "exact":
        raise ParamsError(
            "runtime.shards: members of a merged cohort are computed with their neighbours, and results would depend "
            "on the shards; set runtime.cohorts: exact"
        )
    if problem.undivided is not None:
        raise ParamsError(problem.undivided)
    engine: ShardEngine
    if cfg.engine == "ray":
        from evopipe.scale.on_ray import OnRay

        engine = OnRay(cfg, folder, make)
    elif cfg.engine == "accelerate":
        from evopipe.scale.ranks import Ranks

        engine = Ranks(cfg, make)
    else:
        engine = InProcess(make)
    with contextlib.closing(engine):
        values = params.model_dump(mode="json")
        yield in_shards(problem, cfg, values, members, folder, engine, problem.neighbours if learn else 1)


def in_shards(
    problem: Problem[JobT], cfg: ShardsConfig, values: Mapping[str, Any], members: int, folder: Path,
    engine: ShardEngine, each: int = 1,
) -> Problem[JobT]:  # fmt: skip
    """Return the problem with its members divided into the shards of a running engine.

    Args:
        problem: the problem that the run works on.
        cfg: the block `runtime.shards` of the parameters.
        values: all parameters as JSON data, from which each shard makes its own part of the problem.
        members: the number of members.
        folder: the project's folder.
        engine: the running engine.
        each: the number of adjacent members that share a replay buffer, and must therefore be in one shard.

    Raises:
        ParamsError: `runtime.shards.count` is too large. Every shard needs at least `each` members.
    """
    asked, most, spec = cfg.count, members // each, problem.spec
    count = min(most, engine.room) if asked == "auto" else asked
    if count > most:
        what = "members" if most == members else "memories of theirs"
        raise ParamsError(f"runtime.shards.count: {count} shards are more than there are {what} ({most})")

    def shards(clock: Clock, keys: np.ndarray, **more: Any) -> Shards:
        ends = np.linspace(0, len(keys) // each, count + 1).round().astype(int) * each
        slots = [range(first, end) for first, end in itertools.pairwise(ends.tolist())]
        about = {"params": values, "folder": str(folder.absolute()), **more}
        begin = [{**about, "keys": keys[own.start : own.stop].tolist()} for own in slots]
        return Shards(spec, clock, slots, begin, engine)

    def held_out(members: int, rows: int) -> Shards:
        return shards(Clock.of(spec, members), np.arange(members), **{"held out": rows})

    return replace(problem, live=shards, held_out=held_out, parts=count)


def served(cfg: ShardsConfig) -> bool:
    """Work as a worker process of `accelerate launch`, if this process is one; return whether it was one.

    `cfg` is the block `runtime.shards`. If its engine is not `accelerate`, the result is False. If no processes were
    launched yet, this process is replaced by `accelerate launch`, and the function does not return. In rank 0 the
    result is False at once, because rank 0 drives the run. In any other rank, the function returns True when the
    training has ended.
    """
    if cfg.engine != "accelerate":
        return False
    need_package("accelerate", "language", "runtime.shards.engine: accelerate")
    from evopipe.scale import ranks

    return ranks.served(cfg, make)


def make(about: Mapping[str, Any], together: Any = None) -> tuple[Spec, Regime, Clock]:
    """Return configuration, training loop (regime) and clock for one shard, made from the message `about`.

    The message has all parameters (`params`), the project's `folder` and the random `keys` of the shard's members. If
    it has the key `held out`, the shard serves the final evaluation: an object that scores members takes the place of
    the training loop. The value of this key is the number of environments for each member.

    `together` is the group of processes that form this shard, see `language.together.Together`; None if the shard is a
    single process.
    """
    params, keys = parse_params(about["params"]), np.array(about["keys"], np.int64)
    alone = params.runtime.shards.resources.get("cpu", 1.0) < 2  # with its one CPU it does all by itself
    problem = problem_of(params, Path(about["folder"]), alone, together)
    clock = Clock.of(problem.spec, len(keys))
    if rows := about.get("held out"):
        scored: Any = problem.held_out(len(keys), rows)
        return problem.spec, scored, clock
    return problem.spec, problem.live(clock, keys), clock
