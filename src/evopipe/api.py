"""Runs from Python without DVC: `evopipe.train` and what it returns."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evopipe import layout, stages
from evopipe.errors import Interrupted
from evopipe.formats import interval, score
from evopipe.language.player import GamePolicy
from evopipe.language.policy import LanguagePolicy
from evopipe.params.load import AnyParams, any_params
from evopipe.policies.acting import Policy
from evopipe.policies.loading import load
from evopipe.policies.team import TeamPolicy
from evopipe.problems import check, part_of
from evopipe.run.callbacks import Callback
from evopipe.schema.tracking import TrackingConfig
from evopipe.searchers.history import Record, read_lineage
from evopipe.stages.tell import warn_once
from evopipe.storage.files import read_bytes, read_json
from evopipe.track import tracking


@dataclass(frozen=True, repr=False)
class Result:
    """The result of `evopipe.train`: the elite (the best member of the run), every member, and the content of the
    reports.

    Attributes:
        policy: the elite, as a policy that chooses actions.
        policies: every trained member as a policy, in the order of `members`; empty for language models.
        evaluation: the content of `reports/evaluation.json`, the elite's held-out scores.
        members: the content of `reports/members.json`, the held-out scores of every member.
        summary: the content of `reports/train.json`: steps, generations, best fitness, why training ended, and so on.
        lineage: the content of `reports/lineage.jsonl`, one record for each generation, the first for the initial
            members.

    Examples:
        >>> from evopipe import train
        >>> small = {"env": {"id": "CartPole-v1"}, "train": {"max_steps": 200, "evo_steps": 100, "eval_episodes": 2}}
        >>> result = train({**small, "evaluate": {"episodes": 4}})
        >>> len(result.members), len(result.policies), len(result.lineage)
        (4, 4, 3)
    """

    policy: Policy | TeamPolicy | LanguagePolicy | GamePolicy  # the elite
    # Every trained member, in the order of `members`: they know values too. None of language models.
    policies: list[Policy | TeamPolicy]
    evaluation: dict[str, Any]  # the content of `reports/evaluation.json`: the elite's held-out scores
    members: dict[str, Any]  # the content of `reports/members.json`: every member's
    summary: dict[str, Any]  # the content of `reports/train.json`
    lineage: list[Record]  # the content of `reports/lineage.jsonl`: one record a generation

    def __repr__(self) -> str:
        elite, steps = self.evaluation["elite"], self.summary["steps"]["all"]
        scored = f"{score(elite['mean'])} {interval(elite['interval'])} in {self.evaluation['episodes']} episodes"
        return f"<Result: elite {scored}; {len(self.members)} members, {steps:,} steps; {self.policy!r}>"


def run(
    params: str | Path | AnyParams | Mapping[str, Any], folder: str | Path | None = None, quiet: bool = True, *,
    on_generation: Callback | None = None, on_best: Callback | None = None, on_tick: Callback | None = None,
) -> Result:  # fmt: skip
    """Run all stages of a training in order, as `dvc repro` does but without DVC's cache, and return the results.

    The public name of this function is `evopipe.train`.

    Args:
        params: a params file, `Params`, or a mapping in the layout of `params.yaml` (missing keys take defaults).
        folder: where data, models and reports go; None keeps nothing on disk. The page `reports/report.html` is left
            out, with a warning, if matplotlib is not installed (extra `report`).
        quiet: whether to show nothing but warnings.
        on_generation: a function that is called with a `Snapshot` of the run when a generation has ended, as
            `train.callbacks.on_generation` is; None calls no function.
        on_best: such a function, called before `on_generation` if the generation has a new best member.
        on_tick: such a function, called within generations, each time that members have trained for another
            `train.callbacks.tick_steps` steps.

    Raises:
        EvopipeError: any error of a stage. It is an EnvironmentFailed if one of these functions raised an exception.

    Examples:
        >>> small = {"env": {"id": "CartPole-v1"}, "train": {"max_steps": 200, "evo_steps": 100, "eval_episodes": 2}}
        >>> result = evopipe.train({**small, "evaluate": {"episodes": 4}})
        >>> result.policy.act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
        True
    """
    settled = any_params(params)
    functions = {"on_generation": on_generation, "on_best": on_best, "on_tick": on_tick}
    if folder is not None:
        chosen = stages.runnable()
        result = _run(settled, Path(folder), quiet, chosen, functions)
        if chosen == stages.WITHOUT_REPORT:
            warn_once(stages.NO_REPORT)
        written = [stage.name for stage in chosen if stage.name in ("evaluate", "export", "report")]
        tracking.attach(settled.tracking, written, Path(folder))
        return result
    with tempfile.TemporaryDirectory(prefix="evopipe-") as temporary:
        untracked = settled.model_copy(update={"tracking": TrackingConfig(backends=())})
        try:
            return _run(untracked, Path(temporary), quiet, stages.WITHOUT_REPORT, functions)
        except Interrupted as stop:
            raise Interrupted(stop.exit_code - 128, "stopped; nothing is kept, for no `folder` was named") from None


def _run(
    params: AnyParams, folder: Path, quiet: bool, chosen: Sequence[layout.Stage],
    functions: Mapping[str, Callback | None],
) -> Result:  # fmt: skip
    check(params)
    for stage in chosen:
        if params.needs_dataset or not stage.dataset:
            more = {"functions": functions} if stage.name == "train" else {}
            stages.module_of(stage).run(params, quiet=quiet, folder=folder, **more)
    return Result(
        policy=load(folder / layout.ELITE),
        policies=part_of(params, "export").trained(folder / layout.TRAINED),
        evaluation=read_json(folder / layout.EVALUATION),
        members=read_json(folder / layout.MEMBERS),
        summary=read_json(folder / layout.TRAIN),
        lineage=read_lineage(read_bytes(folder / layout.LINEAGE), str(layout.LINEAGE)),
    )
