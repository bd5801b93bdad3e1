"""What the hyper-parameters mean that several algorithms have.

An algorithm's `Config` gives each its name and its default. What only one algorithm has, or means in a way of its own,
is declared in that algorithm's file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import Evolve, hyper

_FASTER = "faster, less stable"


def rate(of: str, raising: str = _FASTER) -> Any:
    """Declare a hyper-parameter field that is a learning rate.

    Args:
        of: what the optimiser trains, for the documentation.
        raising: what raising the rate does, for the documentation.
    """
    return hyper(doc=f"learning rate of {of}", raising=raising, evolvable=True, gt=0, le=1)


def ranges(**ends: tuple[float, float]) -> dict[str, Evolve]:
    """Return a block `evolve`: the ranges (lowest, highest) in which a mutation may change hyper-parameters.

    `ends` are the ranges by the hyper-parameters' names. The mutation is `rl_hp`.
    """
    return {name: Evolve(min=low, max=high) for name, (low, high) in ends.items()}


Evolving = Annotated[
    dict[str, Evolve], Field(description="which hyper-parameters the `rl_hp` mutation may change, and how far")
]
Network = Annotated[NetworkConfig, Field(description="architecture that members start from")]
NETWORK = NetworkConfig()
Rate = Annotated[float, rate("Adam")]
BatchSize = Annotated[int, hyper(doc="transitions an update", raising="steadier gradients, slower updates",
    evolvable=True, ge=1, le=65536)]  # fmt: skip
LearnStep = Annotated[int, hyper(doc="steps of the member between two updates", unit="environment steps",
    raising="fewer updates, faster", evolvable=True, ge=1, le=65536)]  # fmt: skip
Discount = Annotated[float, hyper(doc="discount", raising="looks further ahead", evolvable=True, ge=0, le=1)]
TargetShare = Annotated[float, hyper(doc="share of the online networks mixed into the targets",
    raising="targets follow faster, less stable", evolvable=True, ge=0, le=1)]  # fmt: skip
GradientClip = Annotated[float, hyper(doc="largest gradient norm", raising="larger steps let through", evolvable=True,
    gt=0)]  # fmt: skip
DoubleQ = Annotated[bool, hyper(doc="double Q-learning: the online network chooses the bootstrap action")]
Epsilon = Annotated[float, hyper(doc="chance of a random action while it learns online", raising="explores more", ge=0,
    le=1)]  # fmt: skip
EpsilonStart = Annotated[float, hyper(doc="ε at the start", raising="more random actions early", ge=0, le=1)]
EpsilonEnd = Annotated[float, hyper(doc="ε at the end", raising="more random actions later", ge=0, le=1)]
EpsilonSteps = Annotated[int, hyper(doc="steps of the member until ε reaches its end", unit="environment steps",
    raising="explores longer", ge=1, le=10**12)]  # fmt: skip
Share = Annotated[Literal["none", "group", "all"], hyper(
    doc="agents that share a network: `none`, those of a `group`, or `all`")]  # fmt: skip
Groups = Annotated[dict[str, Annotated[tuple[str, ...], Field(strict=False)]], hyper(
    doc="groups and their agents, each in one; {}: by what stands in agents' names before the last `_`")]  # fmt: skip
BY_NAME: dict[str, tuple[str, ...]] = {}
Score = Annotated[Literal["sum", "mean"], hyper(
    doc="what a member is judged by: its agents' returns summed up, or their mean")]  # fmt: skip
