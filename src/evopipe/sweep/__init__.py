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
    """Run a sweep of a params file below `sweeps/NAME`, as `evopipe sweep` does; return its runs, the best first.

    Args:
        file: the params file.
        name: the sweep's name.
        sets: texts `KEY=V1,V2`; every combination of the values is run.
        samples: texts such as `KEY=loguniform(1e-4,1e-2)`, from which values are drawn.
        trials: the number of draws; None without `samples`.
        sampler: the method of drawing.
        jobs: the number of runs at the same time; None for one per CPU.
        saved: whether each run becomes a DVC experiment, where that is possible.
        tell: a function that is called with sentences on the progress.
        warn: a function that is called with warnings.

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
