"""Puts the root pipeline into the wheel, for `evopipe new`. An editable install reads it where it lies."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = ("dvc.yaml", "params.yaml")


class PipelineHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling calls `initialize` before it builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to what a wheel holds."""
        if version != "editable":
            build_data["force_include"] |= {name: f"evopipe/new/pipeline/{name}" for name in FILES}
