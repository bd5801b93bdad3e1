"""The `tracking` block of `params.yaml`. No stage depends on it: what a tracker shows is no result."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from evopipe.track import backends
from evopipe.types import Schema

if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[*(module.name for module in pkgutil.iter_modules(backends.__path__))]


class TrackingConfig(Schema):
    """Where runs can be looked at and compared. The local log is always written."""

    backends: tuple[Name, ...] = Field(
        ("mlflow",), strict=False, description="trackers that runs are brought to; none: the local log only"
    )
    experiment: str | None = Field(
        None, min_length=1, max_length=200, description="name that gathers runs in the tracker; null: `env.id`"
    )
    register_as: str | None = Field(
        None, min_length=1, max_length=200, description="model name under which MLflow registers the elite; null: none"
    )
    finish_seconds: float = Field(
        60.0, ge=0.0, le=86_400.0, description="how long a tracker may go on, in the background, after the run"
    )

    @field_validator("backends")
    @classmethod
    def _each_once(cls, names: tuple[Name, ...]) -> tuple[Name, ...]:
        if len(set(names)) < len(names):
            raise ValueError(f"a tracker is named twice ({', '.join(names)}): name each once")
        return names
