"""Curricula: keyword arguments of the training environments, which a user's function changes from generation to
generation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from evopipe.errors import EnvironmentFailed
from evopipe.own import foreign, import_name

KEY = "train.curriculum"


class Taught(Protocol):
    """The protocol of a regime (training loop) whose environments can be made anew, between two generations."""

    def reopen(self, kwargs: Mapping[str, Any]) -> None:
        """Make the training environments anew with these keyword arguments, and begin an episode in each.

        Raises:
            ParamsError: the environment does not take the arguments.
            EnvironmentFailed: an environment raised an exception, or its spaces are not the same as before.
        """


class Curriculum:
    """A user's function that says in which environments members train next.

    The function must be pure: its result depends only on its arguments. A run that continues after a stop does not call
    it again for the generations before the stop.

    Args:
        name: the function's name, `module:function`.
        kwargs: the block `env.kwargs`, the arguments of the environment in which members are scored.

    Raises:
        ParamsError: the function does not exist, or cannot be called.
        EnvironmentFailed: importing the function's module raised an exception.
    """

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        self._name, self._function = name, import_name(name, KEY)
        self.kwargs: dict[str, Any] = json.loads(json.dumps(dict(kwargs)))

    def next(self, progress: float, score: float | None) -> dict[str, Any]:
        """Call the function; return all keyword arguments of the training environments, as JSON data.

        Args:
            progress: the share of the run that is done, from 0 to 1.
            score: the best score so far; None before the first generation's end.

        Raises:
            EnvironmentFailed: the function raised an exception, or returned something else than a dict of JSON values.
        """
        with foreign(f"{KEY}: {self._name}"):
            given = self._function(progress, score)
        try:
            if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
                raise TypeError
            found: dict[str, Any] = json.loads(json.dumps(dict(given), allow_nan=False))
        except (TypeError, ValueError):
            raise EnvironmentFailed(
                f"{KEY}: {self._name} returned {given!r:.80}, expected keyword arguments of the environment: a dict of "
                "names and plain values (numbers, texts, lists, dicts)"
            ) from None
        return {**self.kwargs, **found}
