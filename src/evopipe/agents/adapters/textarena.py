"""Games of the package `textarena` for one player."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from evopipe.agents.adapters import AdaptedEnvironment
from evopipe.agents.adapters.text_spaces import seeds
from evopipe.agents.environment import BaseEnv
from evopipe.errors import ParamsError, need_package, suggestion, text_of
from evopipe.plugins import file_of

_ELSEWHERE = ("nltk", "word_lists", "OpenRouter", "openai")


class ArenaGame(BaseEnv):
    """A game of the package textarena for one player. A task is `{"seed": 7}`; only the last step has a reward.

    Args:
        game: the game's id, for example `GuessTheNumber-v0-train`.
        game_args: arguments of `textarena.make`.
        task: a mapping with the `seed`; without it the seed is 0.
    """

    def __init__(
        self, game: str, game_args: Mapping[str, Any] | None = None, task: Mapping[str, Any] | None = None
    ) -> None:
        import textarena

        self.seed = int((task or {}).get("seed", 0))
        self._chance = random.Random(self.seed).getstate()
        with self._own_chance():
            self.env: Any = textarena.make(game, **dict(game_args or {}))

    @staticmethod
    def is_multithread_safe() -> bool:
        return False  # games draw from the process's one generator

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        """Let a game draw from the generator of `random` as if nobody else did."""
        before = random.getstate()
        random.setstate(self._chance)
        try:
            yield
        finally:
            self._chance = random.getstate()
            random.setstate(before)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        with self._own_chance():
            try:
                self.env.reset(num_players=1, seed=self.seed)
            except AssertionError as error:
                raise ValueError(f"{self.env.env_id} is no game for one player: {text_of(error)}") from None
            return str(self.env.get_observation()[1]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        with self._own_chance():
            done, info = self.env.step(action=str(action))
            if not done:
                return str(self.env.get_observation()[1]), 0.0, False, dict(info)
            rewards, told = self.env.close()
        return "", float((rewards or {}).get(0, 0.0)), True, {**info, **(told or {}).get(0, {})}


def _asks_for(entry_point: str) -> str | None:
    """Return what a game would fetch from the network, by its source: word lists, or another model as its opponent."""
    file = file_of(entry_point.partition(":")[0])
    texts = [path.read_text(encoding="utf-8") for path in sorted(file.parent.rglob("*.py"))] if file is not None else []
    return next((word for word in _ELSEWHERE if any(word in text for text in texts)), None)


def adapted(game: str, key: str) -> AdaptedEnvironment:
    """Return the adapter of a textarena game, by its id.

    `key` is the parameter or argument that error messages name.

    Raises:
        ParamsError: textarena has no such game, or the game would fetch data from the network.
        MissingInputError: textarena is not installed.
    """
    need_package("textarena", "textarena", key)
    from textarena.envs.registration import ENV_REGISTRY

    if game not in ENV_REGISTRY:
        raise ParamsError(f"{key}: textarena has no game {game!r}{suggestion(game, ENV_REGISTRY)[:300]}")
    if (word := _asks_for(str(ENV_REGISTRY[game].entry_point))) is not None:
        raise ParamsError(f"{key}: {game} asks for what textarena does not bring ({word}): take a game without it")
    return AdaptedEnvironment(ArenaGame, {"game": game}, tasks=seeds)
