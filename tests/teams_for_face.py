"""A team by name, as a script would have made it."""

from __future__ import annotations

from typing import Any

from mpe2 import simple_speaker_listener_v4


def speaker_listener() -> Any:
    """Short episodes, actions that are vectors."""
    return simple_speaker_listener_v4.parallel_env(continuous_actions=True, max_cycles=10)
