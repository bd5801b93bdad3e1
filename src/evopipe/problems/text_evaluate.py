"""The stage `evaluate` for language models: what is reported of members that were scored on held-out rows or games."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.formats import score
from evopipe.language.generate import Sampling
from evopipe.ops.statistics import passes
from evopipe.params.text import LanguageParams
from evopipe.problems.text import completer_of, held_out_of
from evopipe.problems.text_data import form_of, task_of
from evopipe.problems.told import Told, names_of, score_of
from evopipe.regimes.dialogue import AT_ONCE, Completer, sampling
from evopipe.regimes.games import play
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.problem import Problem
from evopipe.run.text import TextSpec

_SHOWN = 12  # prompts of which the completions are written down, or games


def evaluation(
    params: LanguageParams, problem: Problem[TextSpec], trained: Sequence[Member], folder: Path
) -> TextEvaluation:
    """Return a `TextEvaluation`, which holds the members to score and makes the report of the scores.

    Args:
        params: the parameters.
        problem: what the run works on, with its configuration.
        trained: the trained members, the elite (the best member) last.
        folder: the project's folder.
    """
    return TextEvaluation(params, problem, trained, folder)


class TextEvaluation:
    """The part of the stage `evaluate` for language models: it holds the members to score, and makes the report.

    The base model is scored as one more member after the trained ones, for comparison; for games there is none.

    Args:
        params: the parameters.
        problem: what the run works on, with its configuration.
        trained: the trained members, the elite (the best member) last.
        folder: the project's folder.
    """

    def __init__(
        self, params: LanguageParams, problem: Problem[TextSpec], trained: Sequence[Member], folder: Path
    ) -> None:
        self.params, self.problem, self.members = params, problem, list(trained)
        self.spec = spec = problem.spec
        self.names, self.plays = names_of(len(trained)), form_of(spec.algo) == "games"
        if not self.plays:
            self.of = of = completer_of(spec, folder, params.evaluate.episodes)
            self.problem = replace(
                problem, held_out=lambda members, rows: held_out_of(spec, folder, params.evaluate.episodes, of)
            )
            # The base: the elite without its change of it.
            self.names.append("base")
            plain = {**trained[-1].tensors, spec.algo.POLICY: torch.zeros_like(trained[-1].tensors[spec.algo.POLICY])}
            self.members.append(replace(trained[-1], tensors=plain))

    def told(self, played: Episodes, seeds: np.ndarray, stopped: Callable[[], bool]) -> Told:
        """Return the report of an evaluation. For the report, the elite (the best member) generates some completions or
        games once more.

        Args:
            played: the scores of all members on held-out rows or in games.
            seeds: `[n]`, the seeds of the games; not used for rows.
            stopped: a function without arguments that returns whether to stop.

        Raises:
            Stopped: `stopped` returned True while completions were sampled for pass@k.
        """
        return self._games(played, seeds) if self.plays else self._rows(played, stopped)

    def _rows(self, played: Episodes, stopped: Callable[[], bool]) -> Told:
        params, spec = self.params, self.spec
        (completer, index), drawn, shown = self.of, {}, []
        if "end" not in spec.algo.asks(spec.algo_config):  # a reward model is not asked for text
            two = [replace(member, slot=i) for i, member in enumerate(self.members[-2:])]
            shown = _completions(completer, spec.form(two), index)
        if completer.corpus.form == "reasoning" and params.evaluate.samples:
            drawn = _pass_at(completer, spec, self.members[-2], index, params.evaluate.samples, stopped)
        scores = {
            name: score_of(params, m, np.nan_to_num(played.returns[m], nan=0.0), played.lengths[m])
            for m, name in enumerate(self.names)
        }
        for name, values in played.more.items():
            for m, value in enumerate(values.tolist()):
                scores[self.names[m]][name] = value
        best, base = scores.pop("elite"), scores.pop("base")
        about = {"base": base, "episodes": len(index), "steps": played.steps, "env": spec.name}
        lengths = played.lengths.astype(int)
        episodes = [(name, index, played.returns[m], lengths[m]) for m, name in enumerate(self.names)]
        over = f"{len(index)} held-out rows, the base's {score(base['mean'])}"
        return Told({"elite": {**best, **drawn}, **about}, scores, episodes, over, shown)

    def _games(self, played: Episodes, seeds: np.ndarray) -> Told:
        spec, names, task = self.spec, self.names, task_of(self.spec.language)

        def scores(place: int, returns: np.ndarray, tries: np.ndarray, won: np.ndarray) -> dict[str, Any]:
            found = score_of(self.params, place, returns, tries)
            return {**found, "won": float(won.mean()), "tries": float(tries.mean())}

        each = [played.returns, played.lengths, played.more["won"]]
        found = {name: scores(m, *(x[m] for x in each)) for m, name in enumerate(names)}
        behaved = task.behaviours(seeds) if hasattr(task, "behaviours") else {}
        behaviours = {
            name: scores(len(names) + i, told.returns, told.tries, told.won)
            for i, (name, told) in enumerate(behaved.items())
        }
        best = found.pop("elite")
        about = {"behaviours": behaviours, "episodes": len(seeds), "steps": played.steps, "env": spec.name}
        episodes = [(name, seeds, played.returns[m], played.lengths[m].astype(int)) for m, name in enumerate(names)]
        elite = spec.form_alone(replace(self.members[-1], slot=0))
        again = play(spec, task, elite, seeds[:_SHOWN], lambda: False)
        shown = [
            {"game": row, "return": float(returns), "won": bool(won)}
            for row, returns, won in zip(again.rows[0], again.episodes.returns[0], again.won[0], strict=True)
        ]
        over = f"{len(seeds)} games, {best['won']:.0%} of them won"
        return Told({"elite": best, **about}, found, episodes, over, shown)


def _completions(completer: Completer, cohorts: list[Cohort], index: np.ndarray) -> list[dict[str, Any]]:
    """Return what the elite (slot 0) and the base (slot 1) say to a few prompts, and how that is rewarded."""
    few = index[:_SHOWN]
    told: dict[int, list[dict[str, Any]]] = {}
    for cohort in cohorts:
        how = Sampling.greedy(len(cohort.members), completer.spec.device)
        _, written = completer.write(cohort, few, 1, how, 0)
        scored = "answer" in completer.corpus.rows[int(few[0])]
        reward = completer.reward(written, few, 1)[0].tolist() if scored else None
        for r, (slot, texts) in enumerate(zip(cohort.slots, completer.texts(written, len(few)), strict=True)):
            told[slot] = [
                {"text": text, **({} if reward is None else {"reward": reward[r][i]})} for i, text in enumerate(texts)
            ]
    found = []
    for row, elite, base in zip(few, told[0], told[1], strict=True):
        if (prompt := completer.corpus.rows[int(row)].get("prompt")) is not None:
            shown = prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
            found.append({"prompt": shown, "elite": elite, "base": base})
    return found


def _pass_at(
    completer: Completer,
    spec: TextSpec,
    elite: Member,
    index: np.ndarray,
    samples: int,
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Return the mean of the best reward of `samples` completions of the elite, drawn; and pass@k, see
    `ops.statistics.passes`: a completion is right if the task's own score is 1."""
    (cohort,) = spec.form_alone(replace(elite, slot=0))
    best, right = [], []
    for start in range(0, len(index), AT_ONCE):
        if stopped():
            raise Stopped
        part = index[start : start + AT_ONCE]
        _, written = completer.write(cohort, part, samples, sampling(cohort, spec), start)
        reward = completer.reward(written, part, samples)[0].view(len(part), samples)
        own = reward
        if completer.truth is not None:
            own = completer.reward(written, part, samples, completer.truth)[0].view(len(part), samples)
        best.append(reward.amax(dim=1))
        right.append(own >= 1.0)
    return {f"best_of_{samples}": float(torch.cat(best).mean()), **passes(torch.cat(right).cpu().numpy())}
