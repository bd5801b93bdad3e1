"""Games of OpenSpiel (Lanctot et al., 2019, arXiv:1908.09453) as games for `envs.games`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyspiel

from evopipe.errors import ParamsError, did_you_mean

_KEY = "env.kwargs: game"


class OpenSpielGame:
    """A game of OpenSpiel, as `envs.games.Game`. Chance moves are drawn from the episode's seed.

    Observations are the game's information states, which hold all that a player has seen, or else its observations;
    both are flat.

    Args:
        name: the game's name in OpenSpiel; it may have parameters: `go(board_size=5)`.
        parameters: the game's parameters by name.

    Raises:
        ParamsError: OpenSpiel has no such game, the game takes no such parameter, or evopipe does not support it.
    """

    cut = False

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._game = _load(name, parameters)
        kind = self._game.get_type()
        if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
            raise ParamsError(f"{_KEY}: {name!r} is a mean-field game, which has no players to take turns")
        if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
            raise ParamsError(
                f"{_KEY}: {name!r} draws chance moves by itself, so no episode would follow from its seed"
            )
        self._remembers = bool(kind.provides_information_state_tensor)
        if not (self._remembers or kind.provides_observation_tensor):
            raise ParamsError(f"{_KEY}: {name!r} has no observations that are numbers; choose another game")
        shape = self._game.information_state_tensor_shape if self._remembers else self._game.observation_tensor_shape
        self.seats, self.actions = int(self._game.num_players()), int(self._game.num_distinct_actions())
        self.observations = int(np.prod(shape()))
        self._draw: np.random.Generator | None = None
        self._chosen: list[int] = []  # of players who act at the same time
        self._begin(0)

    @property
    def turn(self) -> int | None:
        if self._state.is_terminal():
            return None
        if not self._state.is_simultaneous_node():
            return int(self._state.current_player())
        # Who has no choice there takes no turn.
        return next(seat for seat in range(len(self._chosen), self.seats) if self._state.legal_actions(seat))

    @property
    def returns(self) -> Sequence[float]:
        returns: Sequence[float] = self._state.returns()
        return returns

    def reset(self, seed: int) -> None:
        """Begin the episode of this seed."""
        self._begin(seed)

    def look(self, seat: int) -> np.ndarray:
        """Return what a player observes, `[O]` float32."""
        state = self._state
        seen = state.information_state_tensor(seat) if self._remembers else state.observation_tensor(seat)
        return np.array(seen, np.float32)

    def legal(self, seat: int) -> Sequence[int]:
        """Return the legal actions of the player who is to act."""
        legal: Sequence[int] = self._state.legal_actions(seat)
        return legal

    def play(self, action: int) -> None:
        """Let the player who is to act take a legal action."""
        if self._state.is_simultaneous_node():
            seat = self.turn
            assert seat is not None
            self._chosen += [0] * (seat - len(self._chosen)) + [action]
            if any(self._state.legal_actions(other) for other in range(len(self._chosen), self.seats)):
                return
            self._state.apply_actions(self._chosen + [0] * (self.seats - len(self._chosen)))
            self._chosen = []
        else:
            self._state.apply_action(action)
        self._chance()

    def shown(self) -> str:
        """Return the position as text."""
        return str(self._state)

    def close(self) -> None:
        """Do nothing, because a game holds nothing but memory."""

    def _begin(self, seed: int) -> None:
        self._seed, self._draw = seed, None  # of the generator, which few games need
        self._state: Any = self._game.new_initial_state()
        self._chosen = []
        self._chance()

    def _chance(self) -> None:
        """Draw chance moves until a player is to act."""
        while self._state.is_chance_node():
            self._draw = self._draw or np.random.default_rng(self._seed)
            outcomes, chances = zip(*self._state.chance_outcomes(), strict=True)
            until = np.cumsum(chances)
            place = int(np.searchsorted(until, self._draw.random() * until[-1], side="right"))
            self._state.apply_action(outcomes[min(place, len(outcomes) - 1)])


def _load(name: str, parameters: Mapping[str, Any]) -> Any:
    """Load a game. OpenSpiel prints its errors itself, so what can be checked before is."""
    if not isinstance(name, str):
        raise ParamsError(f"{_KEY}: {name!r:.40} is no text; name a game of OpenSpiel")
    kinds = {kind.short_name: kind for kind in pyspiel.registered_games()}
    short = name.partition("(")[0]
    if short not in kinds:
        raise ParamsError(f"{_KEY}: OpenSpiel has no game {short!r}{did_you_mean(short, kinds)}")
    known = kinds[short].parameter_specification
    for key in parameters:
        if key not in known:
            more = did_you_mean(key, known) or f"; it takes {', '.join(sorted(known)) or 'none'}"
            raise ParamsError(f"env.kwargs: {short!r} of OpenSpiel takes no parameter {key!r}{more}")
    try:
        return pyspiel.load_game(name, dict(parameters)) if parameters else pyspiel.load_game(name)
    except (pyspiel.SpielError, TypeError, RuntimeError) as error:
        raise ParamsError(f"{_KEY}: OpenSpiel cannot make {name!r} with {dict(parameters)}: {error!s:.200}") from error
