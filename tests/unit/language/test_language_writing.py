"""The writer of games by itself, over a network whose outputs say which token they are of."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from evopipe import rng
from evopipe.errors import UsageError
from evopipe.language.generate import choose
from evopipe.language.player import GamePolicy
from evopipe.language.writing import Writer
from evopipe.rng import Purpose

V = 10


def writer(seeds: list[int], decode: str = "sample", members: int = 1) -> tuple[Writer, list[tuple[int, list[int]]]]:
    """A writer, and what its network was asked for: how many tokens it has read before, and which ones come now."""
    asked: list[tuple[int, list[int]]] = []

    def forward(views: Any, x: torch.Tensor, cache: Any) -> torch.Tensor:
        asked.append((cache.read, x[0, 0].tolist()))
        return torch.nn.functional.one_hot(x, V).float()

    net: Any = SimpleNamespace(values=torch.zeros(members, 3), views=None, structure=SimpleNamespace(forward=forward))

    def logits(outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return outputs["actor"]

    cfg = SimpleNamespace(decode=decode, beams=2)
    hyper = {"temperature": torch.full((members,), 1.0)}
    return Writer({"actor": net}, logits, cfg, hyper, np.array(seeds)), asked


def test_tokens_are_read_anew_from_the_first_that_is_another() -> None:
    """Also where later ones are as they were, and where the caller writes into the memory of its last question."""
    write, asked = writer([5])
    memory = torch.tensor([[[1, 2, 3]]])
    assert int(write._read(memory, torch.tensor([[2]])).argmax()) == 3
    memory[0, 0, 0] = 9
    for column, token in ((0, 9), (1, 2), (2, 3)):
        assert int(write._read(memory, torch.tensor([[column]])).argmax()) == token
    longer = torch.tensor([[[9, 2, 3, 4, 7]]])
    assert int(write._read(longer, torch.tensor([[3]])).argmax()) == 4
    assert asked == [(0, [1, 2, 3]), (0, [9, 2, 3]), (2, [3]), (2, [3]), (3, [4, 7])]


def test_a_token_is_drawn_by_its_games_seed_and_its_own_place() -> None:
    seeds, length = [3, 8], 6
    write, _ = writer(seeds, members=2)
    ids, used = np.zeros((4, length), np.int64), np.array([1, 4, 2, 4])
    ids[:, 0] = 1
    found = write(ids, used)
    now = torch.zeros(1, dtype=torch.int64)
    u = rng.uniform(torch.tensor(seeds), Purpose.GENERATE, now, length)[:, 0]
    told = torch.nn.functional.one_hot(torch.from_numpy(ids), V).float().log_softmax(-1).view(2, 2, length, V)
    for member, game in ((0, 0), (0, 1), (1, 0), (1, 1)):
        place = int(used[2 * member + game]) - 1
        row = told[member : member + 1, game : game + 1, place]
        expected = choose(row, write.how.rows(1)._replace(**{n: x[:1, :1] for n, x in write.how._asdict().items()}),
                          u[game, place][None, None])  # fmt: skip
        assert found[2 * member + game] == int(expected)


class Counting(GamePolicy):
    """A player who writes the number of tokens that there are, and notes what it was asked for."""

    def _writer(self, seeds: Any, cfg: Any, hyper: Any) -> Any:
        self.began = [(seeds.tolist(), getattr(cfg, "decode", ""), {name: x.tolist() for name, x in hyper.items()})]
        self.turns: list[int] = []

        def write(ids: np.ndarray, used: np.ndarray, turn: int) -> np.ndarray:
            self.turns.append(turn)
            return used

        return write


def test_a_game_goes_on_by_as_many_tokens_as_are_asked_for_which_are_one_turn() -> None:
    task = SimpleNamespace(guess=2, length=9, tokens=[*"0123456789"])
    player = Counting({}, task, None, SimpleNamespace(model_copy=lambda update: SimpleNamespace(**update)), {}, {})
    assert player.generate("12") == "23"
    assert player.turns == [2, 2]
    (first,) = player.began
    assert player.generate(["1", "123"], max_tokens=4, temperature=0.5, seed=1) == ["1234", "3456"]
    assert player.turns == [4] * 4
    ((seeds, decode, hyper),) = player.began
    assert (len({*seeds, *first[0]}), decode, hyper) == (3, "sample", {"temperature": [0.5]})
    assert player.generate("12345", max_tokens=4) == "5678"
    with pytest.raises(UsageError, match="a game has 9 tokens at most, a prompt has 6 tokens, and 4 to be written"):
        player.generate("123456", max_tokens=4)
    with pytest.raises(UsageError, match="no token begins with 'x1'"):
        player.generate("1x1")
