"""Declarations of the hyper-parameters that several algorithms have.

An algorithm's `Config` gives each its name and its default. What only one algorithm has, or means in a way of its own,
is declared in that algorithm's file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from evopipe.schema.declare import Evolve, hyper
from evopipe.schema.network import NetworkConfig

_FASTER = "faster, less stable"


def rate(of: str, raising: str = _FASTER) -> Any:
    """Declare a hyper-parameter field that is a learning rate.

    Args:
        of: the optimiser and what it trains, such as `Adam for the actor`, for the documentation.
        raising: the effect of a higher rate, for the documentation.
    """
    return hyper(doc=f"learning rate of {of}", raising=raising, evolvable=True, gt=0, le=1)


def ranges(**ends: tuple[float, float]) -> dict[str, Evolve]:
    """Return a block `evolve`: the ranges (lowest, highest) in which a mutation may change hyper-parameters.

    `ends` are the ranges by the hyper-parameters' names. The mutation that changes hyper-parameters is `rl_hp`.
    """
    return {name: Evolve(min=low, max=high) for name, (low, high) in ends.items()}


Evolving = Annotated[
    dict[str, Evolve], Field(description="ranges of the hyper-parameters that the mutation `rl_hp` may change, by name")
]
Network = Annotated[NetworkConfig, Field(description="architecture of the initial members' networks")]
NETWORK = NetworkConfig()
Rate = Annotated[float, rate("Adam")]
BatchSize = Annotated[int, hyper(doc="transitions in each minibatch", raising="steadier gradients, slower updates",
    evolvable=True, ge=1, le=65536)]  # fmt: skip
LearnStep = Annotated[int, hyper(doc="environment steps of a member between two updates", unit="environment steps",
    raising="fewer updates, faster", evolvable=True, ge=1, le=65536)]  # fmt: skip
Discount = Annotated[float, hyper(doc="discount factor γ", raising="looks further ahead", evolvable=True, ge=0, le=1)]
TargetShare = Annotated[float, hyper(doc="share of the online networks that an update mixes into the target networks",
    raising="targets follow faster, less stable", evolvable=True, ge=0, le=1)]  # fmt: skip
GradientClip = Annotated[float, hyper(doc="norm to which gradients are clipped", raising="allows larger steps",
    evolvable=True, gt=0)]  # fmt: skip
DoubleQ = Annotated[bool, hyper(doc="whether Q-learning is double: the online network chooses the target's action")]
Epsilon = Annotated[float, hyper(doc="probability of a random action in online training", raising="explores more",
    ge=0, le=1)]  # fmt: skip
EpsilonStart = Annotated[float, hyper(doc="initial chance ε of random actions", raising="explores more", ge=0, le=1)]
EpsilonEnd = Annotated[float, hyper(doc="final chance ε of random actions", raising="explores more later", ge=0, le=1)]
EpsilonSteps = Annotated[int, hyper(doc="environment steps of a member until ε is `eps_end`", unit="environment steps",
    raising="explores longer", ge=1, le=10**12)]  # fmt: skip
Share = Annotated[Literal["none", "group", "all"], hyper(
    doc="agents that share networks: `none`; `group`, the agents of each group; or `all` agents")]  # fmt: skip
Groups = Annotated[dict[str, Annotated[tuple[str, ...], Field(strict=False)]], hyper(
    doc="the agents of each group, by its name; {}: groups of agents with equal names up to the last `_`")]  # fmt: skip
BY_NAME: dict[str, tuple[str, ...]] = {}
Score = Annotated[Literal["sum", "mean"], hyper(
    doc="return of a team, by which a member is selected: the `sum` or the `mean` of its agents' returns")]  # fmt: skip
