"""What a run works on, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import numpy as np

from evopipe.run.clock import Clock
from evopipe.run.regime import Regime, Scoring
from evopipe.run.spec import JobT

RANKS = "runtime.shards.ranks: several are of language models, with engine: accelerate; set it to 1"
_MEMORY = "train.replay.capacity, population.size or env.num_envs"


def _nowhere(members: int, rows: int) -> Scoring:
    raise NotImplementedError("this problem has no held-out evaluation of its own")


@dataclass(frozen=True)
class Problem(Generic[JobT]):
    """An environment, a team, a corpus of text or users' agents, together with an algorithm. It holds all that differs
    between these.

    Attributes:
        spec: the configuration.
        live: builds the regime from the run's clock and the members' keys `[P]`; raises MissingInputError or DataError
            if the data to learn from is missing or damaged.
        held_out: builds what scores members at the end, from the number of members and of environments for each.
        described: returns the part of a policy's description that depends on the problem, as JSON data.
        values: the parameters that the result depends on.
        inputs: returns the files and folders that the result depends on, beside code and members; raises
            MissingInputError if one is missing.
        less: the parameters to lower if memory runs out, as text for an error message.
        neighbours: how many members share a memory, and have to live in one shard.
        undivided: what to change before members may live in shards, None where they may.
        parts: into how many shards the members are divided; 0 for none.
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
