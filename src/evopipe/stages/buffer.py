"""Stage `buffer`: `data/dataset` into packed transitions with statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evopipe.envs.pool import EnvPool
from evopipe.errors import DataError, MissingInputError
from evopipe.layout import BUFFERED, DATASET, TRANSITIONS
from evopipe.schema.params import Params
from evopipe.stages.tell import tell
from evopipe.storage import safeio
from evopipe.storage.dataset import Transitions, check_spaces, pack, read_minari, write_transitions

_LISTED = 128  # most elements that are described one by one: images have thousands


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `data/transitions.h5` and `reports/buffer.json` below `folder`.

    Raises:
        MissingInputError: `data/dataset` is not there.
        DataError: it is empty, damaged, or does not fit the environment.
        DiskError: a file cannot be written.
    """
    source = folder / DATASET
    if not source.exists():
        raise MissingInputError(f"{source}: not there; run `evopipe fetch` or `dvc repro fetch` first")
    pool = EnvPool(params.env.on_gymnasium, 1, what="described")
    try:
        dataset = read_minari(source)
        if not sum(len(episode) for episode in dataset.episodes):
            raise DataError(f"{source}: holds no step; run `evopipe fetch` with at least one episode")
        check_spaces(dataset, pool.obs_size, pool.num_actions, pool.actions.start, pool.actions.bounds)
        transitions = pack(dataset.episodes, pool.actions.relative)
        stats = statistics(transitions, pool.num_actions)
    finally:
        pool.close()
    write_transitions(folder / TRANSITIONS, transitions, stats)
    safeio.write_json(folder / BUFFERED, stats)
    tell(
        f"{TRANSITIONS}: {stats['transitions']} transitions of {stats['episodes']} episodes, "
        f"{stats['terminations']} terminated, {stats['truncations']} truncated",
        quiet,
    )


def statistics(transitions: Transitions, num_actions: int) -> dict[str, Any]:
    """Describe transitions as plain numbers.

    Returns:
        Counts, returns by episode, reward, each observation element, and how often each action was taken, or each
        element of continuous ones.
    """
    returns = np.bincount(transitions.episode, weights=transitions.reward.astype(np.float64))
    lengths = np.bincount(transitions.episode).astype(np.float64)
    played = lengths > 0
    action = transitions.action
    return {
        "transitions": len(transitions),
        "episodes": int(played.sum()),
        "terminations": int(transitions.terminated.sum()),
        "truncations": int((transitions.truncated & ~transitions.terminated).sum()),
        "return": _summary(returns[played]),
        "length": _summary(lengths[played]),
        "reward": _summary(transitions.reward.astype(np.float64)),
        "obs": _by_element(transitions.obs),
        "actions": np.bincount(action, minlength=num_actions).tolist() if action.ndim == 1 else _by_element(action),
    }


def _by_element(rows: npt.NDArray[Any]) -> dict[str, list[float]]:
    """Describe each column of `[N, n]`; where there are very many, all of them as one."""
    wide = rows.astype(np.float64)
    if wide.shape[1] > _LISTED:
        wide = wide.reshape(-1, 1)
    return {name: getattr(wide, name)(axis=0).tolist() for name in ("mean", "std", "min", "max")}


def _summary(values: npt.NDArray[Any]) -> dict[str, float]:
    return {name: float(getattr(values, name)()) for name in ("mean", "std", "min", "max")}
