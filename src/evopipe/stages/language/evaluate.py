"""Stage `evaluate` of language models: score every member, and the base, on rows that no training saw."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evopipe import layout, rng
from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.errors import Interrupted, translate_failures
from evopipe.language.generate import Sampling
from evopipe.machine import configure
from evopipe.ops.statistics import summary
from evopipe.rng import Purpose
from evopipe.run.dialogue import AT_ONCE, Room, sampling
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.language import LESS, LanguageSpec
from evopipe.schema.text import LanguageParams
from evopipe.signals import StopSignal
from evopipe.stages import shards
from evopipe.stages.language import games
from evopipe.stages.language.setup import form_of, held_out_of, make_spec, read_members, room_of
from evopipe.stages.tell import tell, warn
from evopipe.storage.files import write_csv, write_json
from evopipe.track.formats import score

_SHOWN = 12  # prompts of which the completions are written down


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write the elite's scores and the base's, every member's, every row's, and some completions (`reports/`).

    Raises:
        MissingInputError, DataError: `models/trained` or `data/tokens` is not there, or is damaged.
        Interrupted: a signal came.
    """
    if shards.served(params.runtime.shards):
        return
    spec, form = make_spec(params, configure(params.runtime)), form_of(params)
    stored, trained = read_members(folder, layout.TRAINED, spec)
    fitness, seeds = trained["elite"]["score"], spec.seeds(Purpose.HELD_OUT, params.evaluate.episodes)
    names = [*(f"member_{i}" for i in range(len(stored) - 1)), "elite"]
    of = None if form == "games" else room_of(params, spec, folder)
    if of is not None:  # beside what members learned, what they began from
        names.append("base")
        stored = [*stored, replace(stored[-1], tensors=_without(stored[-1], spec.algo.POLICY))]
    everyone, drawn, shown = [replace(member, slot=i) for i, member in enumerate(stored)], {}, []
    with StopSignal() as stop, translate_failures(LESS):

        def stopped() -> bool:
            return stop.signum is not None

        try:
            with (
                shards.divided(params, len(everyone), folder, learn=False) as divided,
                closing(divided.held_out(spec, everyone) or held_out_of(params, spec, folder, of)) as scored,
            ):
                played = scored.evaluate(spec.form(everyone), seeds, stopped)
            if of is not None and "end" not in spec.algo.asks(spec.algo_config):  # a reward model is not asked for text
                shown = _completions(of[0], spec.form([replace(m, slot=i) for i, m in enumerate(everyone[-2:])]), of[1])
            if of is not None and form == "reasoning":
                drawn = _pass_at(of[0], spec, everyone, of[1], params.evaluate.samples, stopped)
        except Stopped:
            raise Interrupted(
                stop.signum or 0, "stopped, nothing was written; the same command begins it again"
            ) from None
        if of is None:
            elite = games.write_scores(params, spec, played, everyone[-1], folder)
            _tell(elite, f"{len(seeds)} games, {elite['won']:.0%} of them won", fitness, quiet)
            return
    index = of[1]
    scores = _scores(params, names, played, index)
    for name, values in played.more.items():
        for m, value in enumerate(values.tolist()):
            scores[names[m]][name] = value
    elite, base = scores.pop("elite"), scores.pop("base")
    about = {"episodes": len(index), "steps": played.steps, "env": spec.name}
    write_json(folder / layout.EVALUATION, {"elite": {**elite, **drawn}, "base": base, **about})
    write_json(folder / layout.MEMBERS, scores)
    episodes = [
        [name, int(row), float(returns), int(length)]
        for m, name in enumerate(names)
        for row, returns, length in zip(index, played.returns[m], played.lengths[m], strict=True)
    ]
    write_csv(folder / layout.EPISODES, ["member", "seed", "return", "length"], episodes)
    write_json(folder / layout.COMPLETIONS, shown)
    _tell(elite, f"{len(index)} held-out rows, the base's {score(base['mean'])}", fitness, quiet)


def _tell(elite: dict[str, Any], over: str, fitness: float, quiet: bool) -> None:
    interval = "[{}, {}]".format(*map(score, elite["interval"]))
    tell(f"elite: mean {score(elite['mean'])} over {over}, 95 % interval {interval}", quiet)
    if elite["interval"][1] < fitness:
        warn(f"held-out interval {interval} lies below the elite's fitness {score(fitness)}: raise train.eval_episodes")


def _without(member: Member, network: str) -> dict[str, torch.Tensor]:
    """Return a member's tensors with the change of the base taken out: it is the base then."""
    return {**member.tensors, network: torch.zeros_like(member.tensors[network])}


def _scores(params: LanguageParams, names: list[str], played: Episodes, index: np.ndarray) -> dict[str, Any]:
    found = {}
    for m, name in enumerate(names):
        chance = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, m)
        returns = np.nan_to_num(played.returns[m], nan=0.0)
        found[name] = summary(returns, played.lengths[m], params.evaluate.bootstrap, chance)
    return found


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
    return [
        {"prompt": _shown(room.corpus.rows[int(row)]["prompt"]), "elite": told[0][i], "base": told[1][i]}
        for i, row in enumerate(few)
        if "prompt" in room.corpus.rows[int(row)]
    ]


def _shown(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)


def _pass_at(
    room: Room, spec: LanguageSpec, everyone: list[Member], index: np.ndarray, samples: int, stopped: Any
) -> dict[str, Any]:
    """Return the chance that the best of `samples` completions of the elite, drawn, is right: the mean of the best."""
    if not samples:
        return {}
    (cohort,) = spec.form_alone(replace(everyone[-2], slot=0))
    best = []
    for start in range(0, len(index), AT_ONCE):
        if stopped():
            raise Stopped
        part = index[start : start + AT_ONCE]
        _, written = room.write(cohort, part, samples, sampling(cohort, spec), start)
        best.append(room.reward(written, part, samples)[0].view(len(part), samples).amax(dim=1))
    return {f"best_of_{samples}": float(torch.cat(best).mean())}
