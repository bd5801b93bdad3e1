"""Stage `evaluate` of language models: score every member, and the base, on rows that no training saw."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evopipe import layout
from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.errors import translate_failures
from evopipe.language.generate import Sampling
from evopipe.problems.text import problem_of, room_of
from evopipe.problems.text_data import form_of
from evopipe.rng import Purpose
from evopipe.run.dialogue import AT_ONCE, Room, sampling
from evopipe.run.evaluate import Stopped
from evopipe.run.language import LESS, LanguageSpec
from evopipe.run.population import read_members
from evopipe.scale.divide import divided, served
from evopipe.schema.text import LanguageParams
from evopipe.stages.evaluate import interruptible, score_of, tell_elite, write
from evopipe.stages.language import games
from evopipe.storage.files import write_json
from evopipe.track.formats import score

_SHOWN = 12  # prompts of which the completions are written down


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write the elite's scores and the base's, every member's, every row's, and some completions (`reports/`)."""
    if served(params.runtime.shards):
        return
    problem, form = problem_of(params, folder), form_of(params)
    spec = problem.spec
    stored, trained = read_members(folder, layout.TRAINED, spec)
    seeds = spec.seeds(Purpose.HELD_OUT, params.evaluate.episodes)
    names = [*(f"member_{i}" for i in range(len(stored) - 1)), "elite"]
    of = None if form == "games" else room_of(params, spec, folder)
    if of is not None:  # beside what members learned, what they began from: the elite without its change of the base
        names.append("base")
        elite, policy = stored[-1], spec.algo.POLICY
        plain = {**elite.tensors, policy: torch.zeros_like(elite.tensors[policy])}
        stored = [*stored, replace(elite, tensors=plain)]
    everyone = [replace(member, slot=i) for i, member in enumerate(stored)]
    drawn: dict[str, float] = {}
    shown: list[dict[str, Any]] = []
    with (
        interruptible() as stopped,
        translate_failures(LESS),
        divided(problem, params, len(everyone), folder, learn=False) as problem,
        closing(problem.held_out(len(everyone), 1)) as scored,
    ):
        scored.adopt(cohorts := spec.form(everyone))
        played = scored.evaluate(cohorts, seeds, stopped)
        if of is not None:
            room, index = of
            if "end" not in spec.algo.asks(spec.algo_config):  # a reward model is not asked for text
                shown = _completions(room, spec.form([replace(m, slot=i) for i, m in enumerate(everyone[-2:])]), index)
            if form == "reasoning" and params.evaluate.samples:
                drawn = _pass_at(room, spec, everyone[-2], index, params.evaluate.samples, stopped)
    if of is None:
        best = games.write_scores(params, spec, played, everyone[-1], folder)
        tell_elite(best, f"{len(seeds)} games, {best['won']:.0%} of them won", trained, quiet)
        return
    scores = {
        name: score_of(params, m, np.nan_to_num(played.returns[m], nan=0.0), played.lengths[m])
        for m, name in enumerate(names)
    }
    for name, values in played.more.items():
        for m, value in enumerate(values.tolist()):
            scores[names[m]][name] = value
    best, base = scores.pop("elite"), scores.pop("base")
    about = {"episodes": len(index), "steps": played.steps, "env": spec.name}
    episodes = ((n, index, played.returns[m], played.lengths[m].astype(int)) for m, n in enumerate(names))
    write(folder, {"elite": {**best, **drawn}, "base": base, **about}, scores, episodes)
    write_json(folder / layout.COMPLETIONS, shown)
    tell_elite(best, f"{len(index)} held-out rows, the base's {score(base['mean'])}", trained, quiet)


def _completions(room: Room, cohorts: list[Cohort], index: np.ndarray) -> list[dict[str, Any]]:
    """Return what the elite (slot 0) and the base (slot 1) say to a few prompts, and how that is rewarded."""
    few = index[:_SHOWN]
    told: dict[int, list[dict[str, Any]]] = {}
    for cohort in cohorts:
        how = Sampling.greedy(len(cohort.members), room.spec.device)
        _, written = room.write(cohort, few, 1, how, 0)
        scored = "answer" in room.corpus.rows[int(few[0])]
        reward = room.reward(written, few, 1)[0].tolist() if scored else None
        for r, (slot, texts) in enumerate(zip(cohort.slots, room.texts(written, len(few)), strict=True)):
            told[slot] = [
                {"text": text, **({} if reward is None else {"reward": reward[r][i]})} for i, text in enumerate(texts)
            ]
    found = []
    for row, elite, base in zip(few, told[0], told[1], strict=True):
        if (prompt := room.corpus.rows[int(row)].get("prompt")) is not None:
            shown = prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
            found.append({"prompt": shown, "elite": elite, "base": base})
    return found


def _pass_at(
    room: Room, spec: LanguageSpec, elite: Member, index: np.ndarray, samples: int, stopped: Callable[[], bool]
) -> dict[str, float]:
    """Return the chance that the best of `samples` completions of the elite, drawn, is right: the mean of the best."""
    (cohort,) = spec.form_alone(replace(elite, slot=0))
    best = []
    for start in range(0, len(index), AT_ONCE):
        if stopped():
            raise Stopped
        part = index[start : start + AT_ONCE]
        _, written = room.write(cohort, part, samples, sampling(cohort, spec), start)
        best.append(room.reward(written, part, samples)[0].view(len(part), samples).amax(dim=1))
    return {f"best_of_{samples}": float(torch.cat(best).mean())}
