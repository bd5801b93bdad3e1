"""`evopipe doctor`: what to change next in a run that goes on or has ended, by the rules of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evopipe.errors import EvopipeError, MissingInputError
from evopipe.formats import clean
from evopipe.layout import EVALUATION, STATE
from evopipe.params.load import load_params
from evopipe.report.advice import Advice, Facts, advise, facts_of
from evopipe.report.read import read
from evopipe.storage.files import read_json
from evopipe.storage.keys import dvc_root
from evopipe.track.events import End, Event, Generation, read_events
from evopipe.track.record import about_of
from evopipe.track.tracking import LOG


def examine(folder: Path = Path()) -> tuple[str, list[Advice]]:
    """Return a sentence about a folder's run, and advice on what to change next, the most important advice first.

    The sentence names the run and says how far its training has come. The run is the one that was trained last in the
    folder, finished or not. If there is no log of a training, it is the finished run whose results are in the folder.

    Raises:
        MissingInputError: there is no run, or no params.yaml.
        DataError, ParamsError: a file of the run cannot be used.
    """
    logs = sorted((dvc_root(folder) / STATE / "train").glob(f"*/{LOG}"), key=lambda path: path.stat().st_mtime)
    for log in reversed(logs):
        events = [event for _, event in read_events(log)]
        if any(isinstance(event, Generation) for event in events):
            params = _params(log.parent, folder)
            return _about(params, events), advise(facts_of_events(events, params, _interval(folder, events)))
    try:
        found = read(folder)
    except MissingInputError as error:
        raise MissingInputError(f"doctor: {folder} has no run whose first generation has ended ({error})") from None
    facts = facts_of(found, load_params(folder / "params.yaml").model_dump(mode="json"))
    steps = f"{facts.training:,} training and {facts.evaluation:,} evaluation steps"
    return f"{facts.algo}: {len(facts.generations)} generations, {steps}, ended", advise(facts)


def facts_of_events(
    events: list[Event], params: Mapping[str, Any], interval: tuple[float, float] | None = None
) -> Facts:
    """Return the facts about a training that the report's rules of advice need, taken from the events of its log.

    `params` has the layout of `params.yaml`; `interval` is the confidence interval of the held-out score of the run's
    best member, None if it is not known.
    """
    # A run that was killed repeats what came after its last checkpoint, to the same bits.
    told = {event.generation: event for event in events if isinstance(event, Generation)}
    rows = {(event.generation, row.slot): row for event in told.values() for row in event.members}
    last, algo = told[max(told)], str(params["train"]["algo"])
    return Facts(
        signals={key: {name: mean for name, (mean, _) in row.signals.items()} for key, row in rows.items()},
        fitness={key: row.fitness if row.healthy else math.nan for key, row in rows.items()},
        hyper={key: row.hyper for key, row in rows.items()},
        config=params.get("algos", {}).get(algo, {}),
        train=params["train"],
        env=params.get("env", {}),
        algo=algo,
        solved=_ending(events) == "target reached",
        training=last.env_steps,
        evaluation=last.eval_steps,
        chosen=last.elite,
        interval=interval,
    )


def told(head: str, found: list[Advice]) -> list[str]:
    """Return the result of `examine` as lines for a terminal: the sentence `head`, then the advice `found`, numbered
    from 1."""
    if not found:
        return [head, "  nothing stands out"]
    return [head, *(f"  {number}. {clean(advice.text)}" for number, advice in enumerate(found, start=1))]


def _ending(events: list[Event]) -> str | None:
    """Why a run ended; None if it goes on, or was killed."""
    return events[-1].reason if isinstance(events[-1], End) else None


def _about(params: Mapping[str, Any], events: list[Event]) -> str:
    last = [event for event in events if isinstance(event, Generation)][-1]
    steps = f"{last.env_steps:,} training and {last.eval_steps:,} evaluation steps"
    ending = _ending(events)
    state = "goes on, or was stopped" if ending is None else f"ended: {ending}"
    return clean(f"{params['train']['algo']} on {about_of(params)}: generation {last.generation}, {steps}, {state}")


def _params(record: Path, folder: Path) -> dict[str, Any]:
    """The parameters of a run: those that its record for trackers has, else those that lie in its folder."""
    try:
        return {**read_json(record / "run.json")["params"]}
    except (EvopipeError, KeyError, TypeError):
        return load_params(folder / "params.yaml").model_dump(mode="json")


def _interval(folder: Path, events: list[Event]) -> tuple[float, float] | None:
    """The interval of the elite's held-out mean, if the run has ended and was evaluated since."""
    if _ending(events) is None:
        return None
    try:
        low, high = read_json(folder / EVALUATION)["elite"]["interval"]
        return float(low), float(high)
    except (EvopipeError, KeyError, TypeError, ValueError):  # another stage will say so
        return None
