"""Whether a GPU writes and learns language models as the CPU does: members of unlike ranks over a tiny base."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer

from evopipe import algos
from evopipe.core.member import tensor_kinds
from evopipe.core.net import score
from evopipe.language.data import generate
from evopipe.language.tokens import tokenise
from evopipe.run.clock import Clock
from evopipe.run.dialogue import Dialogue
from evopipe.run.language import LanguageSpec
from evopipe.run.run import Run
from evopipe.run.spec import first_members
from evopipe.run.text import TextRows, on_device, rows_for
from evopipe.schema.text import LanguageParams
from evopipe.stages.language.setup import form_of, judge_of, make_spec, task_of

CLOSE = 1e-3  # of the largest number: sums in another order
_ROWS, _SCORED = 200, 32  # rows of the task; those that are scored


def findings(
    name: str, device: torch.device, members: int, repeats: int, far: Callable[[torch.Tensor, torch.Tensor], float]
) -> Iterator[tuple[str, str, bool | None]]:
    """Say what was looked at, what came out, and whether that is good, None of a figure; `far` measures distance."""
    there, here = (_run(name, each, members) for each in (device, torch.device("cpu")))
    with closing(there.regime), closing(here.regime):
        found, expected = _numbers(there), _numbers(here)
        for what in expected:
            apart = max(map(far, found[what], expected[what]))
            yield f"{what} are the CPU's", f"{apart:.1e} of the largest apart, {CLOSE:.0e} allowed", apart <= CLOSE
        regime: Any = there.regime
        first = dict(zip(regime.measures.names, next(iter(regime.measures.rows()))[2:], strict=True))
        if "drift" in first:
            drift = first["drift"]
            yield "what learns is what wrote", f"{drift:.1e} apart, {CLOSE:.0e} allowed", 0 <= drift <= CLOSE
        timer = Timer("run.advance()", globals={"run": there}, num_threads=torch.get_num_threads())
        seconds = statistics.median(timer.timeit(3).mean for _ in range(repeats))
        yield "time of a step", f"{1e3 * seconds:.1f} ms", None


def _run(name: str, device: torch.device, members: int) -> Run[LanguageSpec]:
    rows = {"rows": 16, "group_size": 4, "batch_size": 16, "lr": 1e-2, "evolve": {}}
    able = algos.get(name).Config.model_fields
    params = LanguageParams.model_validate({
        "language": {
            "task": "reverse", "kwargs": {"shortest": 2, "by_place": True}, "rank": 4, "max_prompt": 8,
            "max_completion": 6,
        },
        "train": {"algo": name, "max_steps": 10**6, "evo_steps": 10**6},
        "evolution": {"mutation": {"probabilities": {"rank": 1.0, "rl_hp": 0.0}, "before_training": True}},
        "algos": {name: {key: value for key, value in rows.items() if key in able}},
    })  # fmt: skip
    spec, form = make_spec(params, device), form_of(params)
    made = generate(task_of(spec.language), spec.language.task, params.seed, _ROWS, form)
    corpus = tokenise(made, form, spec.base, spec.language, params.fetch, params.seed)
    first, _ = first_members(spec, members)
    clock = Clock.of(spec, members)
    of_text = spec.algo.REGIME == "text"
    regime: Any = TextRows(spec, clock, corpus) if of_text else Dialogue(spec, clock, corpus, judge_of(spec.language))
    return Run(spec, regime, clock, first)


def _numbers(run: Run[LanguageSpec]) -> dict[str, list[torch.Tensor]]:
    """Return what members say of the same rows before they learn; let all learn once, and return what came of it."""
    spec = run.spec
    cfg = spec.language
    pairs = generate(task_of(cfg), cfg.task, 1, _SCORED, "supervised")
    told = tokenise(pairs, "supervised", spec.base, cfg, LanguageParams().fetch, 1)
    said = []
    for cohort in run.cohorts:
        text = rows_for(spec, told, np.arange(len(told.rows)), len(cohort.members), None)
        now = score(getattr(cohort.state, spec.algo.POLICY).frozen, on_device(text, spec.device))
        said.append(now.log_prob.masked_fill(~text.mask.to(spec.device), 0.0).cpu())
    run.advance()
    kinds = tensor_kinds(spec.algo.State, spec.widths)
    names = [name for name, (kind, _) in kinds.items() if kind == "moments" and name.endswith(".mean")]
    moments = [member.tensors[name].cpu() for member in run.members for name in names]
    return {"log-probabilities": said, "losses": [run.state()[0]["losses_here"]], "first moments": moments}
