"""The league of self-play: earlier members of the population, as files, against whom members train."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evopipe.core.member import Member
from evopipe.envs.games import checked, digest
from evopipe.errors import ParamsError
from evopipe.schema.train import SelfPlayConfig
from evopipe.searchers.history import Opponent
from evopipe.storage.files import write_bytes
from evopipe.storage.folders import write_folder
from evopipe.storage.tensors import dump_arrays

KEY = "train.self_play"


class League:
    """The opponents that self-play keeps, in files named by their hash.

    The league itself has no state: a run holds the list of its opponents, the oldest first. A file is never changed. It
    stays as long as a checkpoint names it, so that every checkpoint finds its opponents.

    Args:
        cfg: the block `train.self_play`.
        arrays: a function that returns a member's arrays by name; it raises ValueError if there are none.
        kwargs: the block `env.kwargs`.
        folder: the folder of the files; None makes a temporary one, which `close` removes.
    """

    def __init__(
        self, cfg: SelfPlayConfig, arrays: Callable[[Member], Mapping[str, np.ndarray]], kwargs: Mapping[str, Any],
        folder: Path | None,
    ) -> None:  # fmt: skip
        self._cfg, self._arrays, self._kwargs = cfg, arrays, dict(kwargs)
        self._temporary = None if folder is not None else Path(tempfile.mkdtemp(prefix="evopipe-league-"))
        self._folder = (folder or self._temporary or Path()).absolute()

    def refuse(self, member: Member) -> None:
        """Raise ParamsError if a member like this one cannot be an opponent."""
        try:
            self._arrays(member)
        except ValueError as error:
            raise ParamsError(f"{KEY}: members cannot be opponents: {error}; set {KEY}.every to 0") from None

    def after(self, generation: int, members: Sequence[Member], league: Sequence[Opponent]) -> tuple[Opponent, ...]:
        """Return the league after a generation, the oldest first: with the best of these members, if one joins now.

        Args:
            generation: the number of the generation.
            members: the members that were scored in it.
            league: the league before.

        Raises:
            DiskError: the member's file cannot be written.
        """
        able = [member for member in members if member.healthy and math.isfinite(member.fitness[-1])]
        if generation % self._cfg.every or not able:
            return tuple(league)
        best = max(able, key=lambda member: (member.fitness[-1], -member.slot))
        data = dump_arrays(self._arrays(best))
        joins = Opponent(best.id, generation, digest(data))
        write_bytes(self._path(joins), data)
        others = [each for each in league if each.arrays != joins.arrays]
        return (*others, joins)[-self._cfg.keep :]

    def arguments(self, lesson: Mapping[str, Any] | None, league: Sequence[Opponent]) -> dict[str, Any]:
        """Return all keyword arguments of training environments in which members meet this league.

        `lesson` holds the arguments that a curriculum chose; None for those of `env.kwargs`.
        """
        chances = self.chances(len(league))
        opponents = [
            {"arrays": str(self._path(each)), "chance": chance, "explore": self._cfg.explore}
            for each, chance in zip(league, chances, strict=True)
        ]
        return {**(self._kwargs if lesson is None else lesson), "opponents": opponents}

    def chances(self, size: int) -> list[float]:
        """Return the probability that an opponent is each of a league of `size`, the oldest first. What is missing to 1
        is that of the opponent of `env.kwargs`."""
        latest, older = self._cfg.latest, 1 - self._cfg.fixed - self._cfg.latest
        if size < 2:
            return [latest + older] * size
        return [older / (size - 1)] * (size - 1) + [latest]

    def check(self, league: Sequence[Opponent]) -> None:
        """Check that the files of a league are there, and are those that it was made of.

        Raises:
            MissingInputError: a file does not exist.
            DataError: the hash of a file is another one.
        """
        for each in league:
            checked(self._path(each))

    def write(self, league: Sequence[Opponent], folder: Path) -> None:
        """Write the files of a league to a folder, which is replaced."""
        write_folder(folder, {self._path(each).name: checked(self._path(each)) for each in league})

    def prune(self, named: Collection[str]) -> None:
        """Remove the files of all opponents whose hashes are not in `named`.

        A process may be killed in between, for what is left is removed by the next call. A file that cannot be removed
        stays.
        """
        for path in self._folder.glob("*.npz"):
            if path.stem not in named:
                with contextlib.suppress(OSError):
                    path.unlink()

    def close(self) -> None:
        """Remove the folder if it is a temporary one."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _path(self, opponent: Opponent) -> Path:
        return self._folder / f"{opponent.arrays}.npz"
