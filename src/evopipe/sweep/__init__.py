"""Sweeps: many runs of a grid or of drawn values, side by side in one set-up: `evopipe sweep`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from evopipe.errors import UsageError
from evopipe.parallel import available_cpus
from evopipe.sweep import experiments
from evopipe.sweep.run import FOLDER, SweptRun, sweep
from evopipe.sweep.settings import Sampler, makes_dataset, settings_of


def command(
    file: str, name: str, sets: Sequence[str], samples: Sequence[str], trials: int | None, sampler: Sampler,
    jobs: int | None, saved: bool, tell: Callable[[str], None], warn: Callable[[str], None],
) -> list[SweptRun]:  # fmt: skip
    """Run a sweep of the params file `file`, as `evopipe sweep` does; return its runs, the best first.

    The runs are written below `sweeps/NAME`, `jobs` at a time (None: one for each CPU). `sets`, `samples` and `trials`
    are explained at `settings_of`. If `saved`, each run becomes a DVC experiment.

    Raises:
        UsageError, ParamsError, MissingInputError: see `settings.settings_of`.
        BusyError, EnvironmentFailed, EvopipeError, Interrupted: see `run.sweep` and `experiments.save`.
    """
    if not re.fullmatch(r"[\w-][\w.-]*", name, re.ASCII) or name.endswith((".lock", ".")):
        raise UsageError(f"sweep: {name!r} cannot be the name of a folder: write letters, digits, - and _")
    here = Path()
    why = experiments.unfit(here) if saved else None
    dataset = saved and why is None and makes_dataset(here)
    settings = settings_of(file, sets, samples, trials, sampler, dataset)
    tell(f"{len(settings)} run{'s' * (len(settings) > 1)} in {FOLDER / name}")
    ended = sweep(settings, FOLDER / name, jobs or available_cpus(), dataset, tell, warn)
    if why is not None:
        tell(f"no DVC experiments were made: {why}")
    elif saved:
        made = experiments.save(here, name, ended)
        tell(
            f"{len(made)} DVC experiments were made: `dvc exp show` lists them" if made else "all were DVC experiments"
        )
    return ended
