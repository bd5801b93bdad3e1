"""Games as Gymnasium environments of one seat: the other seats are played inside the environment.

A game is seen from one seat: a step is an action of this seat, and ends when this seat is to act again, or the game is
over. Who plays the other seats is drawn for each episode from the episode's seed. An episode is therefore a function of
its seed and its actions.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from evopipe.core import numpy_policy
from evopipe.errors import DataError, MissingInputError, ParamsError
from evopipe.own import NAME, foreign, import_name

_ARRAYS = "policy.npz"
_TRIES = 1000
_CHANCES = 1e-9

Player: TypeAlias = Callable[[np.ndarray, np.ndarray, np.random.Generator], int]
"""A function (observation `[O]`, whether each action is legal `[A]`, random generator) → one of the A actions."""


class Game(Protocol):
    """The protocol of a game in which `seats` players act one after another.

    Where players act at the same time, `turn` names them one after another, and no one sees what the others chose.

    Attributes:
        seats: the number of players, who are called 0, 1, ….
        observations: `O`, the length of an observation.
        actions: `A`, the number of actions.
        turn: the player who is to act; None when the game is over.
        returns: the sum of each player's rewards so far.
        cut: whether the game is over only because of a limit: then what would have followed is worth something.
    """

    seats: int
    observations: int
    actions: int
    cut: bool

    @property
    def turn(self) -> int | None: ...

    @property
    def returns(self) -> Sequence[float]: ...

    def reset(self, seed: int) -> None:
        """Begin the episode of this seed."""

    def look(self, seat: int) -> np.ndarray:
        """Return what a player observes, `[O]` float32."""

    def legal(self, seat: int) -> Sequence[int]:
        """Return the legal actions of the player who is to act, at least one."""

    def play(self, action: int) -> None:
        """Let the player who is to act take a legal action."""

    def shown(self) -> str:
        """Return the position as text."""

    def close(self) -> None: ...


class GameEnv(gymnasium.Env[np.ndarray, Any]):
    """A game as a Gymnasium environment of one seat. Legal actions are in `info["action_mask"]`.

    An episode of a seat that is never to act is begun anew.

    Args:
        game: the game.
        seat: the player whom the environment's actions are of; None draws one for each episode.
        opponent: who plays the other seats, see `player`.
        opponents: others who play them in place of `opponent`: mappings with the path of their arrays as `arrays`, the
            probability as `chance` with which one of them plays a seat in an episode, and optionally as `explore` the
            probability that its action is a random one. The file's name must be its hash, see `digest`. They draw
            actions from their policies; those of action values act greedily.
        render_mode: `ansi` for positions as text; None for none.
        loss_weight: the factor of negative rewards; above 1, losing is worse than winning is good.

    Raises:
        ParamsError: an argument cannot be used.
        MissingInputError: the file of a player does not exist.
        DataError: the file of a player is damaged, or its hash is another one.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012  Gymnasium's own way

    def __init__(
        self, game: Game, seat: int | None = None, opponent: str = "random",
        opponents: Sequence[Mapping[str, Any]] = (), render_mode: str | None = None, loss_weight: float = 1.0,
    ) -> None:  # fmt: skip
        self.game, self.render_mode, self._seat, self._loss_weight = game, render_mode, seat, loss_weight
        if seat is not None and not (type(seat) is int and 0 <= seat < game.seats):
            raise ParamsError(f"env.kwargs: seat: {seat!r:.40} is none of 0 to {game.seats - 1}; null draws one")
        if not (isinstance(loss_weight, int | float) and 0 < loss_weight < np.inf):
            raise ParamsError(f"env.kwargs: loss_weight: {loss_weight!r:.40} is no positive number; 1 changes nothing")
        self.observation_space = spaces.Box(-np.inf, np.inf, (game.observations,), np.float32)
        self.action_space = spaces.Discrete(game.actions)
        self._fixed = player(opponent, game)
        self._league = [league_player(each["arrays"], game, each.get("explore", 0.0)) for each in opponents]
        self._until = np.cumsum([each["chance"] for each in opponents])
        if len(self._until) and self._until[-1] > 1 + _CHANCES:
            raise ParamsError(f"env.kwargs: opponents: their chances add up to {self._until[-1]:g}, at most 1 can be")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random
        for _ in range(_TRIES):
            self.seat = int(draw.integers(self.game.seats)) if self._seat is None else self._seat
            self.players = [self._drawn(draw) for _ in range(self.game.seats)]
            self.game.reset(int(draw.integers(2**31)))
            self._others()
            if self.game.turn is not None:
                self._had = self.game.returns[self.seat]
                return self._seen()
        raise RuntimeError(f"seat {self.seat} was never to act in {_TRIES} games")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = int(action)
        if self.game.turn is None or chosen not in self.game.legal(self.seat):
            raise ValueError(f"action {chosen} is not legal here; info['action_mask'] says which actions are")
        self.game.play(chosen)
        self._others()
        had, self._had = self._had, self.game.returns[self.seat]
        gained = float(self._had - had)
        obs, info = self._seen()
        over, cut = self.game.turn is None, self.game.cut
        return obs, gained * (self._loss_weight if gained < 0 else 1.0), over and not cut, over and cut, info

    def render(self) -> Any:
        return self.game.shown() if self.render_mode == "ansi" else None

    def close(self) -> None:
        self.game.close()

    def _drawn(self, draw: np.random.Generator) -> Player:
        """Draw who plays a seat in this episode."""
        place = int(np.searchsorted(self._until, draw.random(), side="right"))
        return self._league[place] if place < len(self._league) else self._fixed

    def _others(self) -> None:
        """Let the others act until it is this seat's turn, or the game is over."""
        game = self.game
        while (turn := game.turn) is not None and turn != self.seat:
            legal = _mask(game, turn)
            action = int(self.players[turn](game.look(turn), legal, self.np_random))
            if not 0 <= action < len(legal) or not legal[action]:
                raise ValueError(f"the opponent in seat {turn} chose {action}, which is not legal there")
            game.play(action)

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        return self.game.look(self.seat), {"action_mask": _mask(self.game, self.seat).astype(np.int8)}


def _mask(game: Game, seat: int) -> np.ndarray:
    """Whether each action is legal, `[A]`; all are when the game is over."""
    if game.turn is None:
        return np.ones(game.actions, np.bool_)
    mask = np.zeros(game.actions, np.bool_)
    mask[game.legal(seat)] = True
    return mask


def player(named: str, game: Game) -> Player:
    """Return a player of a game.

    Args:
        named: `random`; or the folder of an exported elite, or its file `policy.npz`, which acts greedily; or
            `module:function` for a user's own `Player`.
        game: the game.

    Raises:
        ParamsError: the text names no player, or the elite is one of another game.
        MissingInputError: the folder has no `policy.npz`.
        DataError: the file is damaged.
        EnvironmentFailed: importing the function's module raised an exception.
    """
    key = "env.kwargs: opponent"
    if not isinstance(named, str):
        raise ParamsError(f"{key}: {named!r:.40} is no text: name random, the folder of an elite, or module:function")
    if named == "random":
        return _random
    if NAME.fullmatch(named):
        function: Player = import_name(named, key)
        return _own(function, f"{key}: {named}")
    path = file_of(named)
    if not path.is_file():
        raise MissingInputError(f"{key}: {path}: not there; name random, the folder of an elite, or module:function")
    policy = _fitting(_read(path.read_bytes(), path), path, game)
    return lambda obs, legal, draw: int(policy.act(obs, legal))


def league_player(arrays: str, game: Game, explore: float = 0.0) -> Player:
    """Return a player of a league: an earlier member, whose network is in a file.

    A player with a policy draws its actions from the policy. A player with action values takes the action of highest
    value.

    Args:
        arrays: the path of the file with the network's arrays. The file's name is its own hash, see `digest`.
        game: the game to be played.
        explore: the probability that an action is instead a random legal one.

    Raises:
        MissingInputError: the file does not exist.
        DataError: the file is damaged, or its hash is another one.
        ParamsError: the arrays are of another game.
    """
    policy = _fitting(_kept(arrays), Path(arrays), game)
    greedy = bool(policy.held["values"])

    def act(obs: np.ndarray, legal: np.ndarray, draw: np.random.Generator) -> int:
        if explore and draw.random() < explore:
            return _random(obs, legal, draw)
        logits = np.where(legal, np.nan_to_num(policy.outputs(obs)), -np.inf)
        # The largest of logits with Gumbel noise is a draw from their softmax.
        return int((logits if greedy else logits + draw.gumbel(size=len(logits))).argmax())

    return act


def file_of(named: str) -> Path:
    """Return the path of the arrays that an opponent's name means, if it means any."""
    return Path(named) if named.endswith(".npz") else Path(named) / _ARRAYS


def digest(data: bytes) -> str:
    """Return the hash by which an opponent's file is named: 32 hex digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:32]


@lru_cache(maxsize=512)
def _kept(arrays: str) -> numpy_policy.Policy:
    """Read arrays whose name is their hash: what was read once need not be read again."""
    path = Path(arrays)
    return _read(checked(path), path)


def checked(path: Path) -> bytes:
    """Return the bytes of a file that is named by its hash.

    Raises:
        MissingInputError: the file does not exist.
        DataError: its hash is another one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingInputError(
            f"{path}: this opponent is not there ({error.strerror or error}); restore the file, or delete the folder "
            f"{path.parent.parent} to begin the run anew"
        ) from None
    if digest(data) != path.stem:
        raise DataError(
            f"{path}: this opponent's bytes have the hash {digest(data)}, not the one that it is named by; restore the "
            f"file, or delete the folder {path.parent.parent} to begin the run anew"
        )
    return data


def _read(data: bytes, path: Path) -> numpy_policy.Policy:
    try:
        return numpy_policy.Policy(io.BytesIO(data))
    except Exception as error:  # whatever a damaged archive makes of NumPy
        raise DataError(f"{path}: is no policy.npz of an elite ({type(error).__name__}); export it again") from error


def _fitting(policy: numpy_policy.Policy, path: Path, game: Game) -> numpy_policy.Policy:
    held = policy.held
    has = int(held["observations"]), str(held["kind"]), int(np.sum(held.get("choices", 0)))
    wanted = game.observations, "discrete", game.actions
    if has != wanted or int(np.sum(held["starts"])):
        raise ParamsError(
            f"env.kwargs: opponent: {path} takes {has[0]} observations and {has[2]} {has[1]} actions, this game has "
            f"{wanted[0]} and {wanted[2]} discrete ones; name an elite of this game"
        )
    return policy


def _random(obs: np.ndarray, legal: np.ndarray, draw: np.random.Generator) -> int:
    able = np.flatnonzero(legal)
    return int(able[draw.integers(len(able))])


def _own(function: Player, what: str) -> Player:
    def act(obs: np.ndarray, legal: np.ndarray, draw: np.random.Generator) -> int:
        with foreign(what):
            return int(function(obs, legal, draw))

    return act


gymnasium.register("OpenSpiel-v0", "evopipe.envs:from_openspiel")
gymnasium.register("PettingZoo-v0", "evopipe.envs:from_pettingzoo")
