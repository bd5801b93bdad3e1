"""The problem that a run works on: an environment, a team, a corpus of text or users' agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import numpy as np

from evopipe.core.member import Member
from evopipe.errors import UsageError
from evopipe.run.clock import Clock
from evopipe.run.regime import Regime, Scoring
from evopipe.run.spec import JobT

RANKS = "runtime.shards.ranks: several are of language models, with engine: accelerate; set it to 1"
_MEMORY = "train.replay.capacity, population.size or env.num_envs"


def _nowhere(members: int, rows: int) -> Scoring:
    raise NotImplementedError("this problem has no held-out evaluation of its own")


def _no_policy(member: Member, described: Mapping[str, Any]) -> Any:
    raise UsageError("policy: members of this run become policies when it is over: read models/elite then")


@dataclass(frozen=True)
class Problem(Generic[JobT]):
    """The problem that a run works on (an environment, a team, a corpus of text or users' agents), with the functions
    that make the run's parts.

    Code that differs between these four kinds of problems is in the functions `live`, `held_out`, `described` and
    `inputs`.

    Attributes:
        spec: the configuration.
        live: a function that makes the regime (the training loop) from the run's clock and the random keys `[P]` of the
            P members; it raises MissingInputError or DataError if the data to learn from is missing or damaged.
        held_out: a function that makes the object that scores members in the final evaluation, from the number of
            members and the number of environments for each member.
        described: a function that returns the part of `policy.json` that is equal for all members, such as the spaces,
            as JSON data.
        values: the parameters that the result depends on.
        inputs: a function that returns the files and folders that the result depends on, in addition to code and
            members; it raises MissingInputError if one is missing.
        less: the parameters to lower if memory runs out, as text for an error message.
        neighbours: how many members share a replay buffer, and must therefore be in one shard (process).
        undivided: what to change before members can be divided into shards; None if they can be.
        parts: the number of shards into which the members are divided; 0 for none.
        policy: a function that makes a policy, which chooses actions. Its arguments are a member, and the data that
            `described` returned. It raises UsageError if members are language models.
    """

    spec: JobT
    live: Callable[[Clock, np.ndarray], Regime]
    held_out: Callable[[int, int], Scoring] = _nowhere
    described: Callable[[], Mapping[str, Any]] = dict
    values: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[], Sequence[Path]] = tuple
    less: str = _MEMORY
    neighbours: int = 1
    undivided: str | None = None
    parts: int = 0
    policy: Callable[..., Any] = _no_policy
