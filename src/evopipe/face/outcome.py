"""What a training function leaves beside the agents: their checkpoints, the elite, a tracker's record."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evopipe import policy
from evopipe.errors import need_package
from evopipe.face.breed import Breed
from evopipe.keys import content_key, state_folder
from evopipe.run.outs import write_results, write_timing
from evopipe.run.run import Champion, Run
from evopipe.schema.params import AnyParams
from evopipe.stages import tracking


class Checkpoints:
    """Every agent as a folder, after the generation in which each `every` environment steps of a member were taken.

    Args:
        run: what is trained.
        agents: returns the agents as they are.
        every: steps of each member; None for no checkpoints.
        path: how the folders' names begin: `path_INDEX_STEPS`, or `path_INDEX` with `overwrite`.
        overwrite: whether the next ones take the places of the last ones.
    """

    def __init__(
        self, run: Run[Any], agents: Callable[[], Sequence[Any]], every: int | None, path: str, overwrite: bool
    ) -> None:
        self._run, self._agents, self._every, self._path, self._overwrite = run, agents, every, path, overwrite
        self._saved = self._generation = 0

    def save(self) -> None:
        """Write what is due."""
        clock = self._run.clock
        if self._every is not None and clock.generation > self._generation:
            self._generation = clock.generation
            if clock.step // self._every > self._saved:
                self._saved = clock.step // self._every
                for agent in self._agents():
                    end = "" if self._overwrite else f"_{clock.step}"
                    agent.save_checkpoint(f"{self._path}_{agent.index}{end}")


def save_policy(folder: Path, breed: Breed, champion: Champion) -> None:
    """Write the elite as `evopipe.load` reads it, critic included.

    Raises:
        DiskError: it cannot be written.
    """
    told = {"score": champion.score, "standard_error": champion.error, "confirmed": champion.confirmed,
            "generation": champion.generation}  # fmt: skip
    about = json.loads(json.dumps({**breed.about, "hyper": dict(champion.member.hyper), "training": told}))
    card = (
        f"# {breed.algo} in {breed.params.env.id}\n\nThe elite of a training by evopipe, best of generation "
        f"{champion.generation}: mean return {champion.score:.4g} ± {champion.error:.2g}.\n\n"
        f"```python\nimport evopipe\n\npolicy = evopipe.load({str(folder)!r})\n```\n"
    )
    policy.save(folder, breed.algo, champion.member, about, program=False, card=card, critic=True)


@dataclass(frozen=True)
class Delivery:
    """Where a training's log goes, what is wrong with its delivery, and how its outcome is brought."""

    log: Path
    problems: Callable[[], list[str]]
    finished: Callable[[Champion], None]


@contextlib.contextmanager
def deliver(
    params: AnyParams, key: str | None, run: Run[Any], about: Mapping[str, Any], folder: Path, name: str | None = None
) -> Iterator[Delivery]:
    """Bring a training to the trackers that are asked for; without any its log stays in `folder`.

    `about` says what members were made for, `name` what people read.

    Raises:
        MissingInputError: Weights & Biases is asked for and not installed.
    """
    if not params.tracking.backends:
        yield Delivery(folder / "events.jsonl", list, lambda champion: None)
        return
    need_package("wandb", "wandb", "wb=True")
    if key is not None:
        os.environ["WANDB_API_KEY"] = key
    begun = hashlib.sha256()
    for member in run.members:
        for name in sorted(member.tensors):
            begun.update(member.tensors[name].numpy().tobytes())
    state = state_folder("train", content_key({**params.tracked(), "members": begun.hexdigest()}), Path())
    with tracking.outbox(params, state, Path(), name) as outbox:

        def finished(champion: Champion) -> None:
            write_results(run, champion, about, folder)
            write_timing(state / "events.jsonl", run.curve, folder)
            tracking.finish(params, state, folder)

        yield Delivery(state / "events.jsonl", outbox.problems, finished)
