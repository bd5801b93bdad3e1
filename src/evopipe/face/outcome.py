"""What a training function leaves beside the agents: their checkpoints, the elite, a tracker's record."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evopipe import policy, rng
from evopipe.core.member import Member
from evopipe.errors import need_package
from evopipe.face.breed import Breed
from evopipe.keys import content_key, state_folder
from evopipe.run.drive import train
from evopipe.run.outs import write_results, write_timing
from evopipe.run.run import Champion, Run
from evopipe.schema.params import AnyParams
from evopipe.signals import StopSignal
from evopipe.stages import tracking
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.track.console import console_sink
from evopipe.track.events import JsonlSink, Tracker


def checkpoints(
    run: Run[Any], agents: Callable[[], Sequence[Any]], every: int | None, path: str, overwrite: bool
) -> Callable[[], None]:
    """Return what writes every agent, as `agents` returns them, after the generation in which each `every` environment
    steps of a member were taken, None for never: to the folder `path_INDEX_STEPS`, or `path_INDEX` with `overwrite`."""
    saved = generation = 0

    def save() -> None:
        nonlocal saved, generation
        clock = run.clock
        if every is not None and clock.generation > generation:
            generation = clock.generation
            if clock.step // every > saved:
                saved = clock.step // every
                for agent in agents():
                    agent.save_checkpoint(f"{path}_{agent.index}{'' if overwrite else f'_{clock.step}'}")

    return save


def save_policy(folder: Path, breed: Breed, champion: Champion) -> None:
    """Write the elite as `evopipe.load` reads it, critic included. Raises DiskError if it cannot be written."""
    told = {"score": champion.score, "standard_error": champion.error, "confirmed": champion.confirmed,
            "generation": champion.generation}  # fmt: skip
    about = json.loads(json.dumps({**breed.about, "hyper": dict(champion.member.hyper), "training": told}))
    card = (
        f"# {breed.algo} in {breed.params.env.id}\n\nThe elite of a training by evopipe, best of generation "
        f"{champion.generation}: mean return {champion.score:.4g} ± {champion.error:.2g}.\n\n"
        f"```python\nimport evopipe\n\npolicy = evopipe.load({str(folder)!r})\n```\n"
    )
    policy.save(folder, breed.algo, champion.member, about, program=False, card=card, critic=True)


def entering(agents: Sequence[Any], seed: int) -> list[Member]:
    """Return agents' members as a run with this seed begins with them: in the order given, with its own draws."""
    keys, members = rng.member_keys(seed, range(len(agents))), [agent.member for agent in agents]
    ids = [member.id for member in members]
    if len({*ids}) < len(ids):
        ids = [*range(len(ids))]
    return [replace(member, slot=slot, id=ids[slot], key=int(keys[slot])) for slot, member in enumerate(members)]


def views(run: Run[Any], view: Callable[..., Any], breed: Any, before: Sequence[Any], each: int = 1) -> list[Any]:
    """Return agents, by a class of theirs, of a run's members as they are; `each` is what they count for a step."""
    found = [view(breed, member, birth) for member, birth in zip(run.members, run.births, strict=True)]
    for agent in found:
        agent.steps = [before[agent.index].steps[-1] + run.clock.step * each]
    return found


def conduct(
    run: Run[Any], params: AnyParams, about: Mapping[str, Any], folder: Path, between: Callable[[Tracker], None],
    quiet: bool, key: str | None, name: str | None = None,
) -> Champion:  # fmt: skip
    """Train to the end, bring it to the trackers that are asked for, and return the champion; `between` is called
    between two steps, and at the end. Checkpoints go to the folder, and the log if no tracker is asked for; `about`
    says what members were made for, `key` is of Weights & Biases, `name` what people read there. Raises
    MissingInputError if that is asked for and not installed, and what `run.drive.train` raises."""
    state, tracked = folder, bool(params.tracking.backends)
    if tracked:
        need_package("wandb", "wandb", "wb=True")
        if key is not None:
            os.environ["WANDB_API_KEY"] = key
        begun = hashlib.sha256()
        for member in run.members:
            for part in sorted(member.tensors):
                begun.update(member.tensors[part].numpy().tobytes())
        state = state_folder("train", content_key({**params.tracked(), "members": begun.hexdigest()}), Path())
    with StopSignal() as stop, tracking.outbox(params, state, Path(), name) as outbox:
        with Tracker([console_sink(quiet), JsonlSink(state / "events.jsonl")]) as tracker:

            def step() -> list[str]:
                between(tracker)
                return outbox.problems()

            champion = train(run, CheckpointStore(folder / "checkpoints"), math.inf, stop, tracker, step)
            between(tracker)
        if tracked:
            write_results(run, champion, about, folder)
            write_timing(state / "events.jsonl", run.curve, folder)
            tracking.finish(params, state, folder)
    return champion
