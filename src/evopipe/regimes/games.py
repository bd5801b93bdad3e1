"""Learning from a dataset of games. Members are scored by games that they play themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evopipe.core.cohort import Cohort
from evopipe.language.tokens import Corpus
from evopipe.language.writing import Writer, joint_writer
from evopipe.ops import language as ops
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.text import TextSpec
from evopipe.types import Games

AT_ONCE = 128  # games that each member plays at a time


class Scores(NamedTuple):
    """The results of games that P members played, n games each.

    Attributes:
        episodes: the returns and lengths of the games; the length of a game is the number of the player's tries.
        won: `[P, n]` bool, whether each game was won.
        rows: for every member, its games as JSON data.
    """

    episodes: Episodes
    won: np.ndarray
    rows: list[list[dict[str, Any]]]


def play(
    spec: TextSpec, task: Any, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]
) -> Scores:
    """Let every member play one game for each seed, and return the results.

    Args:
        spec: the run's configuration.
        task: the text game, whose method `play` plays one game for each seed.
        cohorts: the members, in groups that are computed as one batch.
        seeds: `[n]`, the seeds of the games.
        stopped: a function without arguments that returns whether the evaluation is to stop.

    Raises:
        Stopped: `stopped` returned True.
    """
    slots, algo, cfg = sorted(slot for cohort in cohorts for slot in cohort.slots), spec.algo, spec.algo_config
    parts: list[list[np.ndarray]] = []
    rows: list[list[dict[str, Any]]] = [[] for _ in slots]
    for start in range(0, len(seeds), AT_ONCE):
        if stopped():
            raise Stopped
        part = seeds[start : start + AT_ONCE]
        place = np.arange(len(slots) * len(part)).reshape(len(slots), len(part))
        writers = []
        for cohort in cohorts:
            nets = {name: getattr(cohort.state, name).frozen for name in (algo.POLICY, *algo.ACTS_WITH)}
            writer = Writer(nets, partial(algo.logits, cfg, cohort.hyper), cfg, cohort.hyper, part)
            writers.append((writer, place[[slots.index(slot) for slot in cohort.slots]].ravel()))
        played = task.play(np.tile(part, len(slots)), joint_writer(writers, task.guess))
        parts.append([x.reshape(place.shape) for x in (played.returns, played.tries, played.won)])
        for mine, at in zip(rows, place, strict=True):
            mine += [played.rows[i] for i in at]
    returns, tries, won = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    return Scores(Episodes(returns, tries, int(tries.sum())), won, rows)


class GameSource:
    """A data source (see `regimes.text.DataSource`) of recorded games, on which members learn by imitation or offline
    RL.

    In an evaluation, members play games of their own, one for each seed.

    Args:
        spec: the run's configuration.
        corpus: the recorded games.
        task: the text game, which encodes recorded games as tokens and lets members play.
    """

    def __init__(self, spec: TextSpec, corpus: Corpus, task: Any) -> None:
        told = task.encode(corpus.rows)
        parts = (torch.from_numpy(x) for x in (told.ids, told.real, told.acts, told.reward, told.done))
        self.spec, self.task, self.splits, self.games = spec, task, corpus.splits, ops.games(*parts)

    @property
    def texts(self) -> None:
        return None

    def batch(self, index: np.ndarray, members: int) -> Games:
        def of(x: Tensor) -> Tensor:
            return x[torch.from_numpy(index)].to(self.spec.device).expand(members, -1, -1)

        return Games(*(of(getattr(self.games, name)) for name in Games.__slots__))

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        return play(self.spec, self.task, cohorts, seeds, stopped).episodes
