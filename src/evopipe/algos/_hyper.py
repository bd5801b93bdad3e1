"""What the hyper-parameters mean that several algorithms have.

An algorithm's `Config` gives each its name and its default. What only one algorithm has, or means in a way of its own,
is declared in that algorithm's file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from evopipe.ops import policy
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import Evolve, hyper

_FASTER = "faster, less stable"


def rate(of: str, raising: str = _FASTER) -> Any:
    """Declare the learning rate of what `of` names."""
    return hyper(doc=f"learning rate of {of}", raising=raising, evolvable=True, gt=0, le=1)


def ranges(**ends: tuple[float, float]) -> dict[str, Evolve]:
    """Return a block `evolve`: between which ends the `rl_hp` mutation moves hyper-parameters."""
    return {name: Evolve(min=low, max=high) for name, (low, high) in ends.items()}


Evolving = Annotated[
    dict[str, Evolve], Field(description="which hyper-parameters the `rl_hp` mutation may change, and how far")
]
ACTOR_CRITIC_RANGES = ranges(lr_actor=(1e-4, 1e-2), lr_critic=(1e-4, 1e-2), batch_size=(32, 512), learn_step=(1, 8))
Network = Annotated[NetworkConfig, Field(description="architecture that members start from")]
NETWORK = NetworkConfig()
SharedEncoder = Annotated[bool, hyper(
    doc="one encoder, trained by the critics' loss alone, under heads of one hidden layer at least")]  # fmt: skip

Rate = Annotated[float, rate("Adam")]
ActorRate = Annotated[float, rate("the actor's Adam")]
CriticRate = Annotated[float, rate("the critics' Adam")]
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
RegressionLoss = Annotated[Literal["huber", "mse"], hyper(doc="regression loss of the temporal-difference error")]
PolicyDelay = Annotated[int, hyper(doc="critic updates for one of the actor and the targets",
    raising="slower, steadier actor", ge=1, le=1000)]  # fmt: skip
TargetNoise = Annotated[float, hyper(doc="standard deviation of the noise on target actions",
    raising="smoother targets", evolvable=True, ge=0, le=10)]  # fmt: skip
TargetNoiseLimit = Annotated[float, hyper(doc="largest such noise", raising="smoother targets", evolvable=True, ge=0,
    le=2)]  # fmt: skip

Epsilon = Annotated[float, hyper(doc="chance of a random action while it learns online", raising="explores more", ge=0,
    le=1)]  # fmt: skip
EpsilonStart = Annotated[float, hyper(doc="ε at the start", raising="more random actions early", ge=0, le=1)]
EpsilonEnd = Annotated[float, hyper(doc="ε at the end", raising="more random actions later", ge=0, le=1)]
EpsilonSteps = Annotated[int, hyper(doc="steps of the member until ε reaches its end", unit="environment steps",
    raising="explores longer", ge=1, le=10**12)]  # fmt: skip
RandomSteps = Annotated[int, hyper(doc="first steps of the member, with uniform actions", unit="environment steps",
    raising="explores longer at first", ge=0, le=10**12)]  # fmt: skip
Noise = Annotated[policy.Noise, hyper(doc="exploration noise: `gaussian`, or `ou` (Ornstein-Uhlenbeck)")]
NoiseDeviation = Annotated[float, hyper(
    doc="standard deviation of the noise on continuous actions while it learns online", raising="explores more", ge=0,
    le=10)]  # fmt: skip
NoiseReturn = Annotated[float, hyper(doc="how fast Ornstein-Uhlenbeck noise returns to 0", raising="less correlated",
    ge=0.05, le=1)]  # fmt: skip
