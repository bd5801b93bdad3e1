"""How a block of `params.yaml` is declared: its base, and the hyper-parameters of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from evopipe.schema.explain import explain, located, missing_keys
from evopipe.types import Spaces

COMPLETE = "complete"
"""The context of a validation in which every key must be given."""


class Schema(BaseModel):
    """Base of every block of `params.yaml`: immutable, strictly typed, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Put into sentences what is wrong with a block."""
        problems = list(missing_keys(cls, data)) if info.context == COMPLETE and isinstance(data, Mapping) else []
        try:
            made = handler(data)
        except ValidationError as error:
            raise located([*problems, *explain(error, cls, data)]) from None
        if problems:
            raise located(problems)
        return made


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


def hyper(
    default: Any = ..., *, doc: str, unit: str = "", raising: str = "", evolvable: bool = False, **bounds: Any
) -> Any:
    """Declare one hyper-parameter of an algorithm.

    Args:
        default: value where a caller gives none (`params.yaml` gives all); without it for a type, `Annotated`.
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
