"""Members as players: objects that choose the next tokens of many members' games at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evopipe import rng
from evopipe.core.net import Net, forward
from evopipe.language.generate import Sampling, choose
from evopipe.language.gpt import Cache
from evopipe.rng import Purpose
from evopipe.types import Hyper, Tensor

Logits = Callable[[Mapping[str, Tensor]], Tensor]
"""Outputs `[P, n, …]` by network → what tokens are drawn by `[P, n, V]`."""


class Writer:
    """A callable object that chooses the next token of every game, where each of `P` members plays `n` games.

    A writer is called with three arguments: the tokens of the games so far, padded to L tokens, `[P · n, L]`; the
    number of tokens in each game, `[P · n]`; and how many tokens a player writes before the game answers (a turn). It
    returns a token for each game, `[P · n]`.

    The attention's keys and values of earlier tokens are cached, so that no token is computed twice. A game's random
    draws depend only on the game's seed and the token's position, so all members get the same draws.

    Args:
        nets: the networks that choose tokens, by name, for all members.
        logits: a function that converts the networks' outputs, by name, to the logits `[P, n, V]` of the `V` tokens.
        cfg: the algorithm's configuration, with `decode` and `beams`.
        hyper: hyper-parameters by name; `temperature` is `[P]`.
        seeds: `[n]`, the seeds of the games.
    """

    def __init__(self, nets: Mapping[str, Net], logits: Logits, cfg: Any, hyper: Hyper, seeds: np.ndarray) -> None:
        """Begin the games: every member plays one for each of the n `seeds` `[n]`. `nets` are the networks that choose
        tokens, and `logits` converts their outputs to logits. `cfg` has the settings `decode` and `beams`, and `hyper`
        the members' `temperature` `[P]`."""
        self.nets, self.logits, self.cfg = nets, logits, cfg
        self.members, self.games = len(next(iter(nets.values())).values), len(seeds)
        self.device = next(iter(nets.values())).values.device
        self.keys = torch.from_numpy(np.asarray(seeds, np.int64)).to(self.device)
        warmth = hyper["temperature"] if cfg.decode == "sample" else torch.zeros(self.members, device=self.device)
        self.how = Sampling(warmth, warmth.long() * 0, warmth * 0 + 1).rows(self.games)
        self.caches = {name: Cache() for name in nets}
        self.seen = torch.zeros(self.members, self.games, 0, dtype=torch.int64, device=self.device)
        self.said: dict[str, Tensor] = {}  # outputs of every token that was read
        self.plan: list[Tensor] = []  # tokens of a turn that are found and not yet written

    @torch.no_grad()
    def __call__(self, ids: np.ndarray, used: np.ndarray, turn: int = 1) -> np.ndarray:
        """Return the next token of every game `[P · n]`, given its tokens `[P · n, L]` and how many there are
        `[P · n]`.

        `turn` is how many tokens the player writes before the game answers. Beams cover whole turns, and those of all
        games begin at the same time.
        """
        shape = (self.members, self.games)
        x = torch.from_numpy(ids).to(self.device).unflatten(0, shape)
        at = torch.from_numpy(used).to(self.device).view(shape)
        if self.cfg.decode == "beam":
            if not self.plan:
                self.plan = list(self._beams(x, at, turn).unbind(-1))
            token = self.plan.pop(0)
        else:
            told = self._read(x[..., : int(at.max())], at - 1).log_softmax(dim=-1)
            now = torch.zeros(1, dtype=torch.int64, device=self.device)
            drawn = rng.uniform(self.keys, Purpose.GENERATE, now, ids.shape[1])[:, 0].expand(self.members, -1, -1)
            token = choose(told, self.how, drawn.gather(-1, at[..., None] - 1)[..., 0])
        found: np.ndarray = token.flatten().cpu().numpy()
        return found

    def _read(self, x: Tensor, column: Tensor) -> Tensor:
        """Return what the tokens after the columns `[P, n]` of rows `[P, n, L]` are drawn by, `[P, n, V]`."""
        width = min(self.seen.shape[-1], x.shape[-1])
        same = (x[..., :width] == self.seen[..., :width]).flatten(0, 1).all(dim=0).long()
        kept = min(int(same.cumprod(dim=0).sum()), x.shape[-1] - 1)
        outputs = {}
        for name, net in self.nets.items():
            structure: Any = net.structure
            self.caches[name].read = kept
            fresh = structure.forward(net.views, x[..., kept:], self.caches[name])
            before = self.said[name][:, :, :kept] if name in self.said else fresh[:, :, :0]
            self.said[name] = torch.cat((before, fresh), dim=2)
            outputs[name] = _at(self.said[name], column)
        self.seen = x.clone()  # the caller writes on into the same memory
        return self.logits(outputs)

    def _beams(self, x: Tensor, used: Tensor, turn: int) -> Tensor:
        """Return the most likely turn `[P, n, turn]` found by keeping the `beams` most likely beginnings."""
        rows, scores = x[:, :, None], torch.zeros(*used.shape, 1, device=self.device)
        for i in range(turn):
            flat, beams = rows.flatten(1, 2), rows.shape[2]
            column = (used + i).clamp(max=x.shape[-1])[..., None].expand(*used.shape, beams)
            said = {name: _at(forward(net, flat), column.flatten(1) - 1) for name, net in self.nets.items()}
            told = self.logits(said).log_softmax(dim=-1).unflatten(1, (-1, beams))  # [P, n, beams, V]
            total = (scores[..., None] + told).flatten(2)
            scores, best = total.topk(min(self.cfg.beams, total.shape[-1]), dim=-1)
            kept, token = best // told.shape[-1], best % told.shape[-1]
            rows = rows.gather(2, kept[..., None].expand(*kept.shape, x.shape[-1]))
            place = column[..., :1].clamp(max=x.shape[-1] - 1)[..., None].expand(*kept.shape, 1)
            rows = rows.scatter(3, place, token[..., None])
        first = (used[..., None] + torch.arange(turn, device=self.device)).clamp(max=x.shape[-1] - 1)
        return rows[:, :, 0].gather(-1, first)


def _at(x: Tensor, column: Tensor) -> Tensor:
    """Return `[P, n, O]`, of every row of `[P, n, L, O]` what stands at its column `[P, n]`."""
    return x.gather(2, column[..., None, None].expand(*column.shape, 1, x.shape[-1]))[:, :, 0]


def joint_writer(
    writers: Sequence[tuple[Writer, np.ndarray]], turn: int
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return one function that chooses the next tokens of the games of several writers.

    The function takes the tokens of all `R` games so far, padded to L tokens, `[R, L]`, and the number of tokens in
    each game, `[R]`. It returns a token for each game, `[R]` int64.

    Args:
        writers: pairs of a writer and the indices of the games that it plays.
        turn: the number of tokens that a player writes in a turn.
    """

    def act(ids: np.ndarray, used: np.ndarray) -> np.ndarray:
        found = np.zeros(len(ids), np.int64)
        for writer, rows in writers:
            found[rows] = writer(ids[rows], used[rows], turn)
        return found

    return act
