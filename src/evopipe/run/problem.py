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
    """An environment, a team, a corpus of text or users' agents, with an algorithm: all that differs between them.

    Attributes:
        spec: the configuration.
        live: returns the regime of members by the run's clock and their keys `[P]`; raises MissingInputError or
            DataError if what they learn from is not there, or damaged.
        held_out: returns what scores so many members at the end, in so many environments each where they have any.
        described: returns as JSON data what a policy's description says of all this.
        values: the parameters that the outcome depends on.
        inputs: returns the files and folders that it depends on, beside the code and the members; raises
            MissingInputError if one is not there.
        less: the parameters that take memory, as a sentence names them.
        neighbours: how many members share a memory, and have to live in one shard.
        undivided: what to change before members may live in shards, None where they may.
        parts: into how many shards the members are divided, 0 where they are not.
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
