"""What contract tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evopipe.core.member import Member
from evopipe.problems.env import begin
from evopipe.run.spec import EnvSpec, first_members


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """Makes runs, and closes them."""
    made: list[Any] = []

    def make(p: EnvSpec, members: int | list[Member], processes: int = 1) -> Any:
        found = first_members(p, members)[0] if isinstance(members, int) else members
        made.append(begin(p, found, learners=processes))
        return made[-1]

    yield make
    for each in made:
        each.close()
