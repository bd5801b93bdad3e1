"""What the report's rules of advice ask, of runs that tests make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evopipe.report.advice import Facts
from evopipe.run.run import Run
from populations import finish, problem, started


def facts_of(run: Run[Any]) -> Facts:
    """What is known of a run that has ended."""
    signals = {}
    for generation, slot, *cells in run.signals:
        told = dict(zip(run.signal_names, cells[::2], strict=False))
        signals[int(generation), int(slot)] = {name: float(x) for name, x in told.items() if x != ""}
    records = [record for record in run.lineage if record.members]
    return Facts(
        signals=signals,
        fitness={(r.generation, m.slot): m.fitness for r in records for m in r.members},
        hyper={(r.generation, m.slot): m.hyper for r in records for m in r.members},
        config=run.spec.algo_config.model_dump(mode="json"),
        train=run.spec.train.model_dump(mode="json"),
        env=run.spec.env.model_dump(mode="json"),
        algo=run.spec.train.algo,
        solved=run.reason == "target",
        training=run.clock.env_steps,
        evaluation=run.clock.eval_steps,
    )


def facts(
    algo: str, env: str, config: Mapping[str, Any], train: Mapping[str, Any], members: int = 2, env_config: Any = None,
    **more: Any,
) -> Facts:  # fmt: skip
    """What is known of a run of an algorithm in an environment."""
    p = problem(env, algo, config=config, train={"eval_episodes": 4, "eval_steps": None, **train}, **more)
    if env_config:
        p = replace(p, env=p.env.model_copy(update=env_config))
    run = started(p, members)
    finish(run)
    found = facts_of(run)
    run.close()
    return found
