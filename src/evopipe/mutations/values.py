"""The data of mutations: facts that a mutation needs, the record of a change, the order in which kinds are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from evopipe.core.member import Member
from evopipe.core.structure import Widths
from evopipe.formats import number
from evopipe.schema.declare import Evolve


@dataclass(frozen=True)
class Traits:
    """The facts about an algorithm that mutation operators need.

    Attributes:
        widths: the input and output widths of every network, by the network's name.
        acting: the names of the networks that act, to which noise on weights is added.
        kinds: by each tensor's name, a pair: how the tensor changes with the architecture (such as `parameters`, or
            `row` if it never does), and the name of its network; see `tensor_kinds`.
        evolve: the ranges of the hyper-parameters that may mutate, by name.
        whole: the names of those hyper-parameters that are whole numbers.
    """

    widths: Mapping[str, Widths]  # of every network
    acting: Sequence[str]  # the networks that act: parameter noise goes there
    kinds: Mapping[str, tuple[str, str]]  # how each tensor changes with the architecture: `tensor_kinds`
    evolve: Mapping[str, Evolve]  # which hyper-parameters may mutate
    whole: frozenset[str]  # those of them that are whole numbers


@dataclass(frozen=True, slots=True)
class Mutation:
    """The record of one mutation.

    Attributes:
        kind: the kind of the mutation; `none` if nothing changed.
        what: a short text that names what changed, such as a hyper-parameter; empty if nothing changed.
        before, after: the values before and after the mutation; None if there are none, as for noise on weights.
    """

    kind: str
    what: str = ""
    before: Any = None
    after: Any = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "what": self.what, "before": self.before, "after": self.after}

    def describe(self) -> str:
        """Return the mutation as a short text such as `lr 0.001 → 0.002`; empty if nothing changed."""
        if self.before is None:
            return self.what
        values = (number(v) if isinstance(v, float) else str(v) for v in (self.before, self.after))
        return f"{self.what} {' → '.join(values)}"


NONE = Mutation("none")
Changed: TypeAlias = "tuple[Member, Mutation] | None"
"""What an operator gives: the changed member and what changed; None if nothing can change."""


def in_random_order(items: Sequence[Any], weights: Sequence[float], rng: np.random.Generator) -> Iterator[Any]:
    """Yield all items with a positive weight in a random order.

    Each next item is drawn from the remaining items with probability proportional to its weight.
    """
    left = [(item, weight) for item, weight in zip(items, weights, strict=True) if weight > 0]
    while left:
        total = np.cumsum([weight for _, weight in left])
        i = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
        yield left.pop(min(i, len(left) - 1))[0]
