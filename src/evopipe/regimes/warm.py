"""The warm start: transitions of a dataset that a run starts with."""

from __future__ import annotations

from pathlib import Path

from evopipe import layout
from evopipe.algos import on_policy
from evopipe.data.transitions import Transitions, read_transitions
from evopipe.errors import DataError
from evopipe.run.spec import EnvSpec


def wants_warm(spec: EnvSpec) -> bool:
    """Return whether a run starts with transitions of a dataset: in offline training, or with `train.warm_start` above
    0."""
    return not on_policy(spec.algo) and (spec.train.mode == "offline" or spec.train.warm_start > 0)


def read_warm(spec: EnvSpec, folder: Path) -> Transitions | None:
    """Read the transitions of a dataset that a run starts with; None if the run starts without.

    In offline training they are all transitions of `data/transitions.h5` in the folder, otherwise the first
    `train.warm_start` of this file.

    Raises:
        MissingInputError: there is no `data/transitions.h5`.
        DataError: the file is damaged, holds no transition, or belongs to another environment.
    """
    if not wants_warm(spec):
        return None
    limit = None if spec.train.mode == "offline" else spec.train.warm_start
    path = layout.need(folder, layout.TRANSITIONS)
    found = read_transitions(path, limit)
    if not len(found):
        raise DataError(f"{path}: holds no transition; fetch at least one episode, then `dvc repro fetch buffer`")
    vectors, observations = found.action.ndim == 2, found.obs.shape[1]
    actions = found.action.shape[1] if vectors else int(found.action.max()) + 1
    fits = actions == spec.actions if vectors else actions <= spec.actions  # not every action need have been taken
    if vectors != spec.spaces.continuous or observations != spec.observations or not fits:
        kind = "continuous" if vectors else "discrete"
        raise DataError(
            f"{path}: holds observations of length {observations} and {actions} {kind} actions, {spec.env.id} has "
            f"{spec.observations} and {spec.actions} {spec.spaces.kind} ones; run `dvc repro fetch buffer` again"
        )
    return found
