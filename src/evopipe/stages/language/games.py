"""What stages of language models do where members are whole models that play games."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe import layout
from evopipe.algos import get
from evopipe.core.member import Member
from evopipe.errors import DataError
from evopipe.evolve.mutate import NONE, Mutation
from evopipe.language import player
from evopipe.problems.text_data import task_of
from evopipe.rng import Purpose
from evopipe.run.evaluate import Episodes
from evopipe.run.games import play
from evopipe.run.language import LanguageSpec
from evopipe.run.spec import first_members
from evopipe.schema.text import LanguageParams
from evopipe.stages.evaluate import score_of, write
from evopipe.storage.files import parse_json, write_json
from evopipe.storage.folders import read_folder
from evopipe.types import Tensor

_SHOWN = 12  # games of the elite that are written down


def write_scores(
    params: LanguageParams, spec: LanguageSpec, told: Episodes, elite: Member, folder: Path
) -> dict[str, Any]:
    """Write what every member, the elite last, reached in games on held-out seeds, and some games; return the elite's
    scores."""
    task, seeds = task_of(spec.language), spec.seeds(Purpose.HELD_OUT, params.evaluate.episodes)
    names = [*(f"member_{i}" for i in range(len(told.returns) - 1)), "elite"]

    def scores(place: int, returns: np.ndarray, tries: np.ndarray, won: np.ndarray) -> dict[str, Any]:
        found = score_of(params, place, returns, tries)
        return {**found, "won": float(won.mean()), "tries": float(tries.mean())}

    played = [told.returns, told.lengths, told.more["won"]]
    found = {name: scores(m, *(x[m] for x in played)) for m, name in enumerate(names)}
    behaved = task.behaviours(seeds) if hasattr(task, "behaviours") else {}
    behaviours = {
        name: scores(len(names) + i, each.returns, each.tries, each.won)
        for i, (name, each) in enumerate(behaved.items())
    }
    best = found.pop("elite")
    about = {"episodes": len(seeds), "steps": told.steps, "env": spec.name}
    episodes = ((name, seeds, played[0][m], played[1][m].astype(int)) for m, name in enumerate(names))
    write(folder, {"elite": best, "behaviours": behaviours, **about}, found, episodes)
    again = play(spec, task, spec.form_alone(replace(elite, slot=0)), seeds[:_SHOWN], lambda: False)
    shown = [
        {"game": row, "return": float(returns), "won": bool(won)}
        for row, returns, won in zip(again.rows[0], again.episodes.returns[0], again.won[0], strict=True)
    ]
    write_json(folder / layout.COMPLETIONS, shown)
    return best


def go_on(spec: LanguageSpec, folder: Path, size: int) -> tuple[list[Member], list[Mutation]]:
    """Return members whose policy is an exported one; other networks begin as it, too, but for their outputs.
    `DataError` if it is damaged, or over other tokens, or of another width."""
    about = parse_json(read_folder(folder, only=(player.POLICY,))[player.POLICY], str(folder / player.POLICY))
    wanted = "population.start names a player over the same tokens, as `evopipe export` writes it"
    if not isinstance(about, dict) or about.get("kind") != "games":
        raise DataError(f"{folder}: is no exported player of games; {wanted}")
    if about.get("base") != spec.base.digest:
        had, now = " ".join(map(str, about.get("tokens", ()))), " ".join(spec.base.tokenizer)
        raise DataError(
            f"{folder}: was trained over other tokens ({had:.200}) than {spec.language.task} has here ({now:.200}), or "
            f"over games of another length; {wanted}"
        )
    *_, arch, rows = player.read(folder, about, get(str(about.get("algo"))))
    calm = spec.mutation.model_copy(update={"before_training": False})
    members, _ = first_members(replace(spec, begun=arch, mutation=calm), size)
    begun = [replace(member, tensors=_begin(spec, member, rows["policy"])) for member in members]
    wrong = spec.check(begun)
    if wrong is not None:
        raise DataError(f"{folder}: {wrong}")
    return begun, [NONE] * size


def _begin(spec: LanguageSpec, member: Member, row: Tensor) -> dict[str, Tensor]:
    """Return a fresh member's tensors with what a policy knows in all its networks."""
    widths, found = spec.widths, dict(member.tensors)
    known = member.arch.named(widths[spec.algo.POLICY], row)
    for name, (kind, network) in spec.traits.kinds.items():
        if kind == "parameters":
            found[name] = found[name].clone()
            for part, place in member.arch.named(widths[network], found[name]).items():
                if part != "output" or network == spec.algo.POLICY:
                    place.copy_(known[part])
    return found
