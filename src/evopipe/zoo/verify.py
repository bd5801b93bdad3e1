"""Verification of a row of the zoo: training again gives equal bits, or an equal score on other machines or code."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evopipe.errors import DataError, MissingInputError
from evopipe.formats import interval, score
from evopipe.zoo.row import Seed, ZooRow, iqm_over_runs
from evopipe.zoo.train import result, run

_Tell = Callable[[str], None]
TOLERANCE = 0.1
"""Scores agree where intervals meet, or where means differ by at most this share, as for `evopipe verify --lock`."""


@dataclass(frozen=True)
class Compared:
    """The comparison of two runs of a row with the same seed.

    Attributes:
        seed: the seed.
        there: the results as recorded in the repository.
        here: the results of the new run on this machine.
    """

    seed: int
    there: Seed
    here: Seed

    @property
    def same(self) -> bool:
        """Whether the elites of both runs are equal to the bit."""
        return self.there.elite == self.here.elite

    @property
    def others(self) -> list[str]:
        """What differs between the two runs and so may change the bits of the result, by name.

        A name is `code` (evopipe's code), or a key of the fingerprint, which describes machine and libraries.
        """
        one, two = self.there.fingerprint, self.here.fingerprint
        names = [name for name in sorted({*one, *two} - {"evopipe"}) if one.get(name) != two.get(name)]
        return ["code"] * (self.there.code != self.here.code) + names

    def line(self) -> str:
        """Return the comparison as a line of text."""
        begin = f"seed {self.seed}: elite {self.here.elite[:12]}"
        if self.same:
            return f"{begin}, as recorded: the same bits"
        what = f"which differ in {', '.join(self.others)}" if self.others else "of the same code and a like machine"
        scores = f"score {_shown(self.here)}, recorded {_shown(self.there)}"
        return f"{begin}, recorded {self.there.elite[:12]}, {what}; {scores}"


def verify(row: ZooRow, seeds: Sequence[int] | None, jobs: int | None, show: _Tell, tell: _Tell, warn: _Tell) -> None:
    """Train a row again with some of its seeds, and compare the new elites with the recorded ones.

    An elite is the best member of a run. If all hashes of the elites are equal, the row is reproduced. If a hash
    differs although code, machine and libraries are the same, the row is not reproduced. If code, machine or libraries
    differ, the new score is compared with the score over all recorded seeds. The row is then reproduced if the 95 %
    intervals of the two scores overlap, or if the scores differ by at most 10 % (`TOLERANCE`). The score of one seed is
    the mean over its episodes, and the score of several is the interquartile mean over seeds.

    Args:
        row: the row.
        seeds: the seeds to train with; None for the best recorded seed.
        jobs: the number of seeds that run at the same time; None for one per CPU.
        show: a function that is called with each line of the result.
        tell: a function that is called with sentences on the progress.
        warn: a function that is called with warnings.

    Raises:
        MissingInputError: the row has no recorded results of a seed, or a package that it needs is not installed.
        DataError: the row is not reproduced.
        Interrupted: a signal asked the process to stop.
    """
    recorded = row.trained()
    if not recorded:
        raise MissingInputError(
            f"zoo: {row.name} has no results of its parameters: `evopipe zoo train {row.name}` first"
        )
    chosen = [*seeds] if seeds is not None else [max(recorded, key=lambda seed: recorded[seed].mean)]
    if unknown := [seed for seed in chosen if seed not in recorded]:
        raise MissingInputError(
            f"zoo: {row.name} was not trained with seed {unknown[0]}: it has {', '.join(map(str, recorded))}"
        )
    tell(f"{row.name}: seed {', '.join(map(str, chosen))} anew")
    with tempfile.TemporaryDirectory(prefix="evopipe-zoo-") as temporary:
        ended = run(row, chosen, Path(temporary) / row.name, jobs, warn)
        here = {swept.setting.params.seed: result(row, swept)[0] for swept in ended}
    compared = [Compared(seed, recorded[seed], here[seed]) for seed in chosen]
    for each in compared:
        show(each.line())
    show(judge(row.name, compared, recorded))


def judge(name: str, compared: Sequence[Compared], recorded: Mapping[int, Seed]) -> str:
    """Return a sentence that says whether a row was reproduced to the bit, or only by its score; for the rules see
    `verify`.

    Args:
        name: the row's name.
        compared: the comparisons, one for each seed that was trained again.
        recorded: all recorded results of the row, by seed.

    Raises:
        DataError: the row is not reproduced.
    """
    others = [each for each in compared if not each.same]
    if not others:
        return f"{name}: reproduced to the bit"
    if alike := [each.seed for each in others if not each.others]:
        raise DataError(
            f"zoo: {name}: not reproduced: seed {alike[0]} has other bits, though code and machine are like those that "
            "recorded it; `evopipe env check` says whether its environment is a function of its seed and actions"
        )
    mean, low, high = _scored([each.here for each in compared])
    there, least, most = _scored([*recorded.values()])
    told = f"{score(mean)} {interval((low, high))} here, {score(there)} {interval((least, most))} recorded"
    differing = ", ".join(dict.fromkeys(what for each in others for what in each.others))
    if not (low <= most and least <= high) and abs(mean - there) > TOLERANCE * abs(there):
        raise DataError(f"zoo: {name}: not reproduced: {told}; other bits were to be expected ({differing}), not that")
    return f"{name}: reproduced by its score, not to the bit ({differing} differ): {told}"


def _scored(seeds: Sequence[Seed]) -> tuple[float, float, float]:
    """Return a score and its interval: over episodes for one seed, over seeds for several."""
    if len(seeds) == 1:
        return seeds[0].mean, *seeds[0].interval
    iqm, (low, high) = iqm_over_runs(np.array([[each.mean] for each in seeds]))
    return iqm, low, high


def _shown(seed: Seed) -> str:
    return f"{score(seed.mean)} {interval(seed.interval)}"
