"""The states of MinAtar's games as C keeps them, made of the package's objects, and states drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

SIDE = 10
Draw = np.random.Generator
State = list[npt.NDArray[np.uint8]]


class Drawn:
    """Numbers in [0, 1) in place of the package's generator: what C draws, its twin draws too, in this order."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = iter(numbers)

    def rand(self, *shape: int) -> Any:
        return next(self.numbers) if not shape else np.array([next(self.numbers) for _ in range(*shape)])

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        first, count = (0, low) if high is None else (low, high - low)
        found = first + np.floor(self.rand(1 if size is None else size) * count).astype(int)
        return int(found[0]) if size is None else found


def bits(board: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A board `[10, 10]` as C keeps it: a bit for each cell of a row."""
    return (board.astype(bool) << np.arange(SIDE)).sum(1).astype(np.uint16).view(np.uint8)


def whole(*numbers: Any) -> npt.NDArray[np.uint8]:
    return np.array(numbers, np.int32).view(np.uint8)


def breakout(game: Any) -> State:
    right, down = ((-1, -1), (1, -1), (1, 1), (-1, 1))[game.ball_dir]
    ball = game.ball_x, game.ball_y, right, down, game.last_x, game.last_y
    return [whole(game.pos, *ball, game.strike), bits(game.brick_map)]


def anywhere_in_breakout(game: Any, draw: Draw) -> None:
    game.ball_x, game.last_x, game.pos = draw.integers(SIDE, size=3).tolist()
    game.ball_y, game.last_y = draw.integers(SIDE - 1, size=2).tolist()
    game.ball_dir, game.strike = int(draw.integers(4)), bool(draw.integers(2))
    game.brick_map[1:4] = draw.random((3, SIDE)) < draw.choice([0.0, 0.02, 0.5, 1.0])


def freeway(game: Any) -> State:
    cars = [number for x, _, wait, pace in game.cars for number in (x, wait, pace)]
    return [whole(game.pos, game.move_timer, game.terminate_timer, *cars)]


def anywhere_in_freeway(game: Any, draw: Draw) -> None:
    game.pos, game.move_timer = int(draw.integers(1, SIDE)), int(draw.integers(4))
    game.terminate_timer = int(draw.choice([0, 1, 2500]))
    for car in game.cars:
        car[0], car[3] = int(draw.integers(SIDE)), int(draw.integers(1, 6) * draw.choice([-1, 1]))
        car[2] = int(draw.integers(6))


def space_invaders(game: Any) -> State:
    waits = game.enemy_move_interval, game.alien_move_timer, game.alien_shot_timer
    boards = game.alien_map, game.f_bullet_map, game.e_bullet_map
    return [whole(game.pos, game.shot_timer, game.alien_dir, *waits, game.ramp_index), *map(bits, boards)]


def anywhere_in_space_invaders(game: Any, draw: Draw) -> None:
    game.pos, game.shot_timer, game.alien_dir = (
        int(draw.integers(SIDE)),
        int(draw.integers(6)),
        int(draw.choice([-1, 1])),
    )
    game.enemy_move_interval, game.alien_move_timer = int(draw.integers(6, 13)), int(draw.integers(13))
    game.alien_shot_timer = int(draw.integers(11))
    few = draw.choice([0.005, 0.1, 0.5])
    game.alien_map[:] = draw.random((SIDE, SIDE)) < few * (np.arange(SIDE) < draw.choice([6, 10]))[:, None]
    game.alien_map[0, draw.integers(SIDE)] = 1
    for board in (game.f_bullet_map, game.e_bullet_map):
        board[:] = draw.random((SIDE, SIDE)) < 0.1


def asterix(game: Any) -> State:
    timers = game.spawn_speed, game.spawn_timer, game.move_speed, game.move_timer, game.ramp_timer, game.ramp_index
    lanes = [(0, 0, 0) if each is None else (1 + each[3], each[0], 2 * each[2] - 1) for each in game.entities]
    return [whole(game.player_x, game.player_y, *timers), whole(*lanes).ravel()]


def anywhere_in_asterix(game: Any, draw: Draw) -> None:
    game.player_x, game.player_y = int(draw.integers(SIDE)), int(draw.integers(1, 9))
    game.spawn_speed, game.spawn_timer = int(draw.integers(1, 11)), int(draw.integers(11))
    game.move_speed, game.move_timer = int(draw.integers(1, 6)), int(draw.integers(6))
    game.ramp_timer, game.ramp_index = int(draw.integers(-1, 3)), int(draw.integers(10))
    often = draw.choice([0.3, 1.0])
    for lane in range(8):
        who = [int(draw.integers(SIDE)), lane + 1, bool(draw.integers(2)), bool(draw.integers(2))]
        game.entities[lane] = who if draw.random() < often else None


def seaquest(game: Any) -> State:
    """The package's lists hold [x, y, to the right], and of those that have them steps until a move and a shot."""
    side, pace, level = 2 * game.sub_or - 1, game.move_speed, game.ramp_index
    sub = game.sub_x, game.sub_y, side, game.oxygen, game.diver_count, game.surface, game.shot_timer
    packed = [whole(*sub, game.e_spawn_speed, game.e_spawn_timer, game.d_spawn_timer, pace, level)]
    for each in (game.f_bullets, game.e_bullets, game.e_fish, game.e_subs, game.divers):
        shoal = np.zeros((32, 5), np.int8)
        for row, (x, y, right, *timers) in zip(shoal, each, strict=False):
            row[: 3 + len(timers)] = x, y, 2 * right - 1, *timers
        packed += [whole(len(each)), shoal.view(np.uint8).ravel()]
    return packed


def anywhere_in_seaquest(game: Any, draw: Draw) -> None:
    def some(most: int, *timers: int) -> list[list[Any]]:
        count = int(draw.integers(most))
        below = lambda end: int(draw.integers(end))  # noqa: E731
        return [[below(SIDE), 1 + below(8), bool(below(2)), *map(below, timers)] for _ in range(count)]

    game.sub_or = bool(draw.integers(2))
    game.sub_x, game.sub_y = int(draw.integers(SIDE - 1)) + game.sub_or, int(draw.choice([0, 1, 5, 8]))
    game.oxygen, game.diver_count = int(draw.choice([0, 1, 110, 200])), int(draw.integers(-1, 7))
    game.surface, game.shot_timer = bool(game.sub_y == 0 and draw.integers(2)), int(draw.integers(6))
    game.e_spawn_speed, game.move_speed = int(draw.integers(1, 21)), int(draw.integers(2, 6))
    game.e_spawn_timer, game.d_spawn_timer = draw.integers(2, size=2).tolist()
    game.ramp_index = int(draw.integers(10))
    most = int(draw.choice([4, 12]))
    game.f_bullets, game.e_bullets, game.divers = some(3), some(most), some(4, 6)
    game.e_fish, game.e_subs = some(most, 6), some(most, 6, 11)


GAMES: dict[str, tuple[Callable[[Any], State], Callable[[Any, Draw], None]]] = {
    "Breakout": (breakout, anywhere_in_breakout),
    "Freeway": (freeway, anywhere_in_freeway),
    "SpaceInvaders": (space_invaders, anywhere_in_space_invaders),
    "Asterix": (asterix, anywhere_in_asterix),
    "Seaquest": (seaquest, anywhere_in_seaquest),
}
"""Of each game: its state of the package's object, and what puts that into a state drawn at random."""
