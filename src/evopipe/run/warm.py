"""The transitions that a run begins with."""

from __future__ import annotations

from pathlib import Path

from evopipe import layout
from evopipe.algos import on_policy
from evopipe.errors import DataError
from evopipe.run.spec import Spec
from evopipe.storage.dataset import Transitions, read_transitions


def read_warm(spec: Spec, folder: Path) -> Transitions | None:
    """Read the transitions that fill the memory first, offline all there are; None if the run wants none.

    Raises:
        MissingInputError: `data/transitions.h5` is not there.
        DataError: it is damaged, holds no transition, or is of another environment.
    """
    limit = None if spec.train.mode == "offline" else spec.train.warm_start
    if limit == 0 or on_policy(spec.algo):
        return None
    path = layout.need(folder, layout.TRANSITIONS)
    found = read_transitions(path, limit)
    if not len(found):
        raise DataError(f"{path}: holds no transition; fetch at least one episode, then `dvc repro fetch buffer`")
    vectors, remedy = found.action.ndim == 2, "run `dvc repro fetch buffer` again"
    if vectors != spec.spaces.continuous:
        kind = "continuous" if vectors else "discrete"
        raise DataError(f"{path}: holds {kind} actions, {spec.env.id} has {spec.spaces.kind} ones; {remedy}")
    observations = found.obs.shape[1]
    actions = found.action.shape[1] if vectors else int(found.action.max()) + 1
    if observations != spec.observations or actions > spec.actions or (vectors and actions < spec.actions):
        what = "actions" if not vectors else "numbers in an action"
        raise DataError(
            f"{path}: holds observations of length {observations} and {actions} {what}, {spec.env.id} has "
            f"{spec.observations} and {spec.actions}; {remedy}"
        )
    return found
