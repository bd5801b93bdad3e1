"""The elite's schedule of hyper-parameters, trained from scratch with other seeds: what `evopipe replay` does.

An elite is the best of many, and luck is part of that. If the values that its line went through are what made it good,
one member that goes through them alone, with other seeds, is as good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe import algos, layout
from evopipe.core.member import Member
from evopipe.errors import DataError, DivergedError, ParamsError, UsageError
from evopipe.formats import interval, score
from evopipe.mutations import NONE
from evopipe.ops.statistics import bootstrap_interval
from evopipe.params.load import AnyParams, parse_params
from evopipe.problems import problem_of
from evopipe.rng import member_keys
from evopipe.run.population import about_spec
from evopipe.run.spec import Spec, fresh
from evopipe.searchers.history import Schedule, read_lineage, schedule
from evopipe.stages import buffer, evaluate, fetch, train
from evopipe.stages.export import scored
from evopipe.stages.tell import tell
from evopipe.storage import members as stored
from evopipe.storage.files import read_bytes, read_json, write_json
from evopipe.storage.keys import CODE, content_key, state_folder

_SEEDS = 2**31
_NOT_FOLLOWED = {
    "architecture": "the architecture is the elite's last one from the start on",
    "activation": "the activation is the elite's last one from the start on",
    "parameters": "its weights get no noise",
}
"""What of a line's mutations a replay does not repeat, by kind."""


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Change the working folder to a run's folder inside a `with` block.

    `folder` may also be the folder of a run's exported elite (the best member), and then means the folder of that run.

    Raises:
        UsageError: the folder does not exist.
    """
    if (folder / "policy.json").is_file():
        folder = folder.absolute().parents[len(layout.ELITE.parts) - 1]
    if not folder.is_dir():
        raise UsageError(f"replay: {folder} is no folder; name the one that holds params.yaml, models/ and reports/")
    with contextlib.chdir(folder):
        yield


def run(params: AnyParams, seeds: int, quiet: bool = False) -> None:
    """Train one member from scratch with the hyper-parameter schedule of the elite (the run's best member), once for
    each of several other seeds.

    The seeds are the `seeds` numbers that follow the run's own seed. Each trained member is scored as the elite was.
    The results go to `reports/replay.json`. Finished trainings are kept, so that a stopped command continues where it
    was. `params` are the run's parameters, and `quiet` suppresses messages on progress.

    Raises:
        MissingInputError: a file of the run does not exist.
        DataError: a file is damaged, or is from a run with other parameters.
        ParamsError: the run's members did not begin with initial weights (`population.start`).
    """
    line, elite = _line(params)
    changes = [{"steps": at, "values": dict(values)} for at, values in _changes(line)]
    held_out = scored(Path(), ("mean", "interval"))["elite"]
    each = [(params.seed + n) % _SEEDS for n in range(1, seeds + 1)]
    every = [_alone(params, seed, changes[1:], line.steps) for seed in each]
    names, files = params.outside()
    what = {"line": [changes, line.arch.to_json(), line.steps], "params": params.tracked(), "outside": names}
    where = state_folder("replay", content_key(what, [*files, CODE]))
    replays = []
    for alone in every:
        replays.append(found := _replayed(alone, line, where / f"seed-{alone.seed}", quiet))
        tell(f"seed {alone.seed}: {'diverged' if found['mean'] is None else 'mean ' + score(found['mean'])}", quiet)
    told: dict[str, Any] = {
        "elite": {**elite, "mean": held_out["mean"], "interval": held_out["interval"]},
        "steps": line.steps,
        "schedule": changes,
        "not_followed": _not_followed(params, line),
        "replays": replays,
        **_over([each["mean"] for each in replays if each["mean"] is not None], params.evaluate.bootstrap),
    }
    write_json(layout.REPLAY, told)
    over = "all diverged" if told["mean"] is None else f"mean {score(told['mean'])} of {seeds} seeds"
    if told["interval"]:
        over += f", 95 % interval {interval(told['interval'])}"
    tell(f"{layout.REPLAY}: replays {over}; the elite {score(held_out['mean'])}; `evopipe report` shows both", quiet)


def _line(params: AnyParams) -> tuple[Schedule, Mapping[str, Any]]:
    """Return what the elite has lived through, and which one it is."""
    for out in (layout.TRAIN, layout.LINEAGE, layout.EVALUATION, layout.ELITE):
        layout.need(Path(), out)
    if params.population.start is not None:
        raise ParamsError(
            "population.start: the elite's line began in an earlier run, and a replay begins with first weights: "
            "replay that run, or train with population.start: null"
        )
    about, summary = read_json(layout.ELITE / "policy.json"), read_json(layout.TRAIN)
    try:
        made = about["provenance"]["params_hash"]
        elite = {name: summary["elite"][name] for name in ("id", "generation", "score")}
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{layout.TRAIN}, {layout.ELITE}: do not tell of an elite ({error!r}); run `dvc repro` again"
        ) from error
    if made != content_key(params.tracked()):
        raise DataError(f"{layout.ELITE}: was made with other parameters than params.yaml has; run `dvc repro` again")
    records = read_lineage(read_bytes(layout.LINEAGE), str(layout.LINEAGE))
    try:
        return schedule(records, elite["id"], elite["generation"]), elite
    except LookupError as error:
        raise DataError(f"{layout.LINEAGE}: {error.args[0]}; run `dvc repro train` again") from error


def _changes(line: Schedule) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Give the first values, all of them, and later on those that changed, with their steps."""
    before: Mapping[str, Any] = {}
    for at, values in line.values:
        changed = {name: value for name, value in values.items() if name not in before or before[name] != value}
        if changed:
            yield at, changed
        before = values


def _alone(params: AnyParams, seed: int, changes: Sequence[Mapping[str, Any]], steps: int) -> AnyParams:
    """Return the parameters of a replay: one member, and a schedule in the place of a search."""
    data = params.model_dump(mode="json")
    data |= {"seed": seed, "population": {"size": 1, "start": None}}
    data["search"] = {
        "strategy": "schedule", "schedule": {"changes": changes, "steps": steps}, "fitness": params.search.fitness,
    }  # fmt: skip
    data["train"] |= {"target": None}
    if "replay" in data["train"]:
        data["train"]["replay"]["sharing"] = "shared"  # with nobody, whatever number shared one
    data["evolution"]["mutation"]["before_training"] = False
    data["runtime"]["shards"]["engine"] = "none"
    data["tracking"]["backends"] = []
    return parse_params(data)


def _replayed(params: AnyParams, line: Schedule, folder: Path, quiet: bool) -> dict[str, Any]:
    """Train one replay in a folder, unless it is there, and return its scores; null where it diverged."""
    if not (folder / layout.TRAIN).exists():
        for stage in (fetch, buffer) if params.needs_dataset else ():
            stage.run(params, quiet=True, folder=folder)
        spec = problem_of(params, folder).spec
        member = _first(spec, line)
        about = {**about_spec(spec), "mutations": [NONE.to_json()]}
        stored.write(folder / layout.POPULATION, [member], about)
        try:
            train.run(params, quiet, folder)
        except DivergedError:
            return {"seed": params.seed, "mean": None, "interval": None, "score": None}
    if not (folder / layout.EVALUATION).exists():
        evaluate.run(params, quiet=True, folder=folder)
    elite = scored(folder, ("mean", "interval"))["elite"]
    summary = read_json(folder / layout.TRAIN)
    return {
        "seed": params.seed, "mean": elite["mean"], "interval": elite["interval"], "score": summary["elite"]["score"],
    }  # fmt: skip


def _first(spec: Spec, line: Schedule) -> Member:
    """Return the member that a replay begins with; `DataError` if the algorithm cannot have one of the values."""
    key = int(member_keys(spec.seed, [0])[0])
    (member,) = fresh(spec, [0], [0], [key], [line.values[0][1]], line.arch)
    for at, values in line.values:
        wrong = spec.check([replace(member, hyper=values)])
        if wrong is not None:
            said = wrong.removeprefix("member 0").lstrip(": ")
            raise DataError(
                f"{layout.LINEAGE}: from step {at} of the elite's life on: {said}; run `dvc repro train` again"
            )
    return member


def _not_followed(params: AnyParams, line: Schedule) -> list[str]:
    """Say what of the elite's life a replay does not repeat."""
    found = [sentence for kind, sentence in _NOT_FOLLOWED.items() if kind in line.kinds]
    others = sorted({*line.kinds} - {"none", "rl_hp", *_NOT_FOLLOWED})
    found += [f"mutations of the kind {kind} are left out" for kind in others]
    settings, size = params.train.model_dump(), params.population.size
    remembers = settings.get("mode") == "online" and not algos.on_policy(algos.get(params.train.algo))
    if remembers and settings["replay"]["sharing"] != "own" and size > 1:
        found.append("its memory holds its own transitions alone, not those of other members")
    return found


def _over(means: Sequence[float], resamples: int) -> dict[str, Any]:
    """Return the mean over replays, and its bootstrap interval where there are several."""
    x = np.array(means)
    spread = bootstrap_interval(x, resamples, np.random.default_rng(0)) if len(x) > 1 else None
    return {"mean": float(x.mean()) if len(x) else None, "interval": spread}
