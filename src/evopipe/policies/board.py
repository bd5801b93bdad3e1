"""Environments that draw themselves as text, such as games: their text as pictures, and who plays whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from evopipe.envs.games import GameEnv
from evopipe.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

_INK, _PAPER = (30, 30, 30), (250, 250, 248)
_SCALE = 3  # times the size of the font, whose letters are 6 by 11 pixels
_EDGE = 8  # pixels around the text, before it is enlarged
_LEAST = (8, 3)  # columns and rows that there are at least: a position may grow


class TextFrames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that draws an environment's text (`render_mode` `ansi`) as frames `[H, W, 3]` uint8.

    All frames have the size that the first one needs, with a little room. What does not fit is cut off.

    Attributes:
        metadata: the environment's own, with one frame per second if it names no other rate.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.metadata = {"render_fps": 1, **env.metadata}
        self._size: tuple[int, int] | None = None

    def render(self) -> Any:
        """Return the current text as a frame."""
        text = str(self.env.render())
        lines = text.splitlines() or [""]
        if self._size is None:
            self._size = max(_LEAST[0], max(map(len, lines)) + 2), max(_LEAST[1], len(lines))
        return picture(lines, *self._size)


def picture(lines: list[str], columns: int, rows: int) -> npt.NDArray[np.uint8]:
    """Return text as a picture `[H, W, 3]` uint8 with room for so many columns and rows of letters of equal width.

    Letters that the font does not have become question marks.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default_imagefont()
    wide, high = (int(end) for end in font.getbbox("M")[2:])
    image = Image.new("RGB", (wide * columns + 2 * _EDGE, high * rows + 2 * _EDGE), _PAPER)
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines[:rows]):
        shown = line[:columns].encode("latin-1", "replace").decode("latin-1")
        draw.text((_EDGE, _EDGE + row * high), shown, _INK, font)
    return np.array(image.resize((image.width * _SCALE, image.height * _SCALE), Image.Resampling.NEAREST))


def seated(env: gymnasium.Env[Any, Any]) -> str | None:
    """Return which player of a game the policy is in the running episode, as text; None outside games."""
    game = env.unwrapped
    return f"the policy is player {game.seat + 1} of {game.game.seats}" if isinstance(game, GameEnv) else None


def against(opponent: str, folder: Path, env: gymnasium.Env[Any, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a game in which an opponent plays the other seats.

    Args:
        opponent: `random`, `itself`, the folder of another elite, the file of an opponent, or `module:function`.
        folder: the folder of the policy, who is meant by `itself`.
        env: the environment of the policy.
        kwargs: the environment's arguments.

    Raises:
        UsageError: the environment is not a game of several players.
    """
    if not isinstance(env.unwrapped, GameEnv):
        raise UsageError("play: --opponent is for games of several players, and this environment is none; leave it out")
    return {**kwargs, "opponent": str(folder) if opponent == "itself" else opponent}
