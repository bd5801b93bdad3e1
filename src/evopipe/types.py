"""Dimension letters and the few types that every room shares.

Shapes in docstrings and comments use these letters:

`P` members · `E` environments per member · `T` time · `B` batch · `U` updates · `O` observation ·
`A` actions · `H` hidden units · `N` parameters of one network · `R` rows of an environment pool (`P × E`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

if TYPE_CHECKING:
    import torch


class Schema(BaseModel):
    """Base of every block of `params.yaml`: immutable, strictly typed, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Evolve(Schema):
    """How one RL hyper-parameter may mutate: multiplied by `grow` or `shrink`, then clipped to `[min, max]`."""

    min: float = Field(description="smallest value a mutation may reach")
    max: float = Field(description="largest value a mutation may reach")
    grow: float = Field(1.2, gt=1.0, description="factor of a growing mutation")
    shrink: float = Field(0.8, gt=0.0, lt=1.0, description="factor of a shrinking mutation")

    @model_validator(mode="after")
    def _ordered(self) -> Evolve:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


def hyper(default: Any, *, doc: str, unit: str = "", raising: str = "", evolvable: bool = False, **bounds: Any) -> Any:
    """Declare one hyper-parameter of an algorithm.

    Args:
        default: value where a caller gives none (`params.yaml` gives all).
        doc: what it does.
        unit: its unit, empty where it has none.
        raising: what raising it does.
        evolvable: whether the RL hyper-parameter mutation may change it. Such a value becomes a tensor `[P]`.
        **bounds: pydantic's `gt`, `ge`, `lt`, `le`.
    """
    extra: dict[str, Any] = {"unit": unit, "raising": raising, "evolvable": evolvable}
    return Field(default, description=doc, json_schema_extra=extra, **bounds)


def evolvable(schema: type[BaseModel]) -> list[str]:
    """Return the names of the hyper-parameters that `hyper` declared evolvable, in the order of the schema."""
    fields = schema.model_fields.items()
    return [
        name
        for name, field in fields
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("evolvable")
    ]


class Image(NamedTuple):
    """Where an image lies in an observation: `[channels, height, width]` from the column `start`."""

    start: int
    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """How many columns."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Spaces:
    """What an algorithm knows of an environment's spaces.

    Attributes:
        observations: `O`, length of an observation.
        actions: `A`, number of actions of a discrete space, dimensions of a continuous one.
        continuous: whether an action is a vector in [-1, 1]^A, which the environments stretch to their own bounds, or
            an index below A.
        images: which columns of an observation are images; what lies in none is a vector.
    """

    observations: int
    actions: int
    continuous: bool = False
    images: tuple[Image, ...] = ()

    @property
    def kind(self) -> str:
        """`discrete` or `continuous`."""
        return "continuous" if self.continuous else "discrete"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        images = {"images": [list(image) for image in self.images]} if self.images else {}
        return {"observations": self.observations, "actions": self.actions, "continuous": self.continuous, **images}


class AlgoConfig(Schema):
    """Base of every algorithm's `Config`: its hyper-parameters, and the spaces of the environment it is used in."""

    _spaces: Spaces | None = PrivateAttr(default=None)

    @property
    def spaces(self) -> Spaces:
        """What the algorithm knows of the environment's spaces."""
        if self._spaces is None:
            raise RuntimeError("this configuration knows no environment: use cfg.at(spaces)")
        return self._spaces

    def at(self, spaces: Spaces) -> Self:
        """Return the same hyper-parameters for an environment with these spaces."""
        config = self.model_copy()
        config._spaces = spaces
        return config


@dataclass(frozen=True, slots=True)
class Batch:
    """Transitions of every member, `[P, B, …]`, over one environment step or n.

    Attributes:
        obs: `[P, B, O]` float32.
        action: `[P, B]` int64, or `[P, B, A]` float32 in [-1, 1] where the space is continuous.
        reward: `[P, B]` float32, Σ γᵏ r over the steps, γ the member's own.
        discount: `[P, B]` float32, what the value of `next_obs` counts: γⁿ, 0 where the episode terminated on the way.
        next_obs: `[P, B, O]` float32, the true observation after the last step.
        next_legal: `[P, B, A]` bool, legal actions there; None where all always are.
        weight: `[P, B]` float32, how much a transition counts. Uniform sampling: (j < b_p) / b_p, which sums to 1.
    """

    obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    discount: torch.Tensor
    next_obs: torch.Tensor
    next_legal: torch.Tensor | None
    weight: torch.Tensor


class Learned(NamedTuple):
    """What an algorithm's `update` returns.

    Attributes:
        state: the new state.
        losses: `[P]`.
        healthy: `[P]` bool.
        errors: `[P, B]`, how wrong each transition was found (the temporal-difference error), for prioritised
            sampling; None from an algorithm that cannot say.
    """

    state: Any
    losses: torch.Tensor
    healthy: torch.Tensor
    errors: torch.Tensor | None = None
