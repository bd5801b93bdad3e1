"""Environments: pools of those of Gymnasium and PettingZoo, and adapters for those of other interfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evopipe.errors import need_package

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

__all__ = ["from_dm_env", "from_openspiel", "from_pettingzoo"]


def from_dm_env(
    make: Callable[..., Any], reseed: Callable[[Any, int], None] | None = None, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """Return an environment of DeepMind's interface, `dm_env.Environment`, as a Gymnasium environment.

    An episode is a function of its seed and actions. By default the environment is made anew for each episode,
    with the episode's seed.

    Args:
        make: a function that makes the environment; its keyword arguments are `seed`, an int, and `kwargs`.
        reseed: a function (environment, seed) that seeds the next episode, where making the environment anew would take
            long; None makes it anew.
        kwargs: further keyword arguments of `make`, those of `env.kwargs`.

    Raises:
        MissingInputError: the package dm-env is not installed.
        ParamsError: Gymnasium has no space for an observation or action spec, for example for one of texts.
    """
    need_package("dm_env", "dm-env", "evopipe.envs.from_dm_env")
    from evopipe.envs.dm import DmEnv

    return DmEnv(make, reseed, kwargs)


def from_openspiel(
    game: str, seat: int | None = None, opponent: str = "random", opponents: Sequence[Mapping[str, Any]] = (),
    render_mode: str | None = None, loss_weight: float = 1.0, **kwargs: Any,
) -> gymnasium.Env[np.ndarray, Any]:  # fmt: skip
    """Return a game of OpenSpiel as a Gymnasium environment of one seat, whose other seats are played inside it.

    Observations are flat, `[O]` float32. Actions are OpenSpiel's, and those that are legal are in
    `info["action_mask"]`. A reward is what the seat's return has grown by. An episode is a function of its seed and
    actions.

    Args:
        game: the game's name in OpenSpiel, such as `tic_tac_toe`; it may have parameters, `go(board_size=5)`.
        seat: the player whose actions are the environment's, from 0; None draws one for each episode.
        opponent: who plays the other seats: `random`; the folder of an exported elite, which acts greedily; or
            `module:function`, called with an observation, legal actions `[A]` bool and a NumPy generator.
        opponents: earlier members who play them in place of `opponent`, with a probability each; self-play
            (`train.self_play`) sets this.
        render_mode: `ansi` for positions as text; None for none.
        loss_weight: the factor of negative rewards; above 1, losing is worse than winning is good.
        kwargs: parameters of the game.

    Raises:
        MissingInputError: the package open_spiel is not installed, or the opponent's file does not exist.
        ParamsError: the game, its parameters or the opponent cannot be used.
        DataError: an opponent's file is damaged.
    """
    need_package("pyspiel", "openspiel", "evopipe.envs.from_openspiel")
    from evopipe.envs.games import GameEnv
    from evopipe.envs.openspiel import OpenSpielGame

    return GameEnv(OpenSpielGame(game, kwargs), seat, opponent, opponents, render_mode, loss_weight)


def from_pettingzoo(
    game: str, seat: int | None = None, opponent: str = "random", opponents: Sequence[Mapping[str, Any]] = (),
    render_mode: str | None = None, loss_weight: float = 1.0, **kwargs: Any,
) -> gymnasium.Env[np.ndarray, Any]:  # fmt: skip
    """Return a game of PettingZoo as a Gymnasium environment of one seat, whose other seats are played inside it.

    Agents act in turn; where they would act at once, they are asked one after another and do not see what the others
    chose. All have the same spaces. Observations are flat, `[O]` float32; legal actions are in `info["action_mask"]`.

    Args:
        game: a module of PettingZoo, such as `tictactoe_v3`, or `module:function`.
        seat, opponent, opponents, render_mode, loss_weight: as for `from_openspiel`; seats are the `possible_agents` in
            their order.
        kwargs: arguments of the game's function.

    Raises:
        MissingInputError: the package pettingzoo is not installed, or the opponent's file does not exist.
        ParamsError: the game, its arguments or the opponent cannot be used.
        DataError: an opponent's file is damaged.
    """
    need_package("pettingzoo", "teams", "evopipe.envs.from_pettingzoo")
    from evopipe.envs.aec import AecGame
    from evopipe.envs.games import GameEnv

    # PettingZoo draws text where it is asked for `ansi`.
    drawing = {} if render_mode is None else {"render_mode": render_mode}
    return GameEnv(AecGame(game, drawing | kwargs), seat, opponent, opponents, render_mode, loss_weight)
