"""The block `tracking` of `params.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from evopipe import plugins
from evopipe.schema.declare import Schema
from evopipe.schema.values import Names, files_of, or_of_a_package

TRACKERS = files_of("track/backends")
"""Evopipe's own, one file each."""
if TYPE_CHECKING:
    Tracker = str
else:
    Tracker = Annotated[Literal[*TRACKERS], or_of_a_package(plugins.TRACKERS, "tracking.backends", TRACKERS)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]


class TrackingConfig(Schema):
    """Settings of the trackers in which runs can be viewed and compared. A local log is always written."""

    backends: Names[Tracker] = Field(("mlflow",), description="trackers that receive the runs; []: the local log only")
    experiment: _Name | None = Field(
        None, description="name under which trackers group runs; null: `env.id`, or `language.task`"
    )
    register_as: _Name | None = Field(None, description="model name under which MLflow registers the elite; null: none")
    finish_seconds: float = Field(
        60.0,
        ge=0.0,
        le=86_400.0,
        description="seconds that a tracker may go on sending in the background after the run",
    )
