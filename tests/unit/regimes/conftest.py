"""What tests of regimes have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evopipe.problems.env import begin
from evopipe.run.spec import EnvSpec, first_members


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """Makes runs, and closes them."""
    made: list[Any] = []

    def make(p: EnvSpec, members: int = 2) -> Any:
        made.append(begin(p, first_members(p, members)[0]))
        return made[-1]

    yield make
    for each in made:
        each.close()
