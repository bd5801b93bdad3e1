"""Where each out lies, below the folder that a pipeline runs in, and which stage writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evopipe.errors import MissingInputError

DATASET = Path("data/dataset")
TRANSITIONS = Path("data/transitions.h5")
TEXT = Path("data/text.jsonl")
TOKENS = Path("data/tokens")
POPULATION = Path("models/population")
TRAINED = Path("models/trained")
ELITE = Path("models/elite")
FETCHED = Path("reports/fetch.json")
BUFFERED = Path("reports/buffer.json")
LINEAGE = Path("reports/lineage.jsonl")
FITNESS = Path("reports/fitness.csv")
TIMING = Path("reports/timing.csv")
TRAIN = Path("reports/train.json")
EVALUATION = Path("reports/evaluation.json")
MEMBERS = Path("reports/members.json")
EPISODES = Path("reports/episodes.csv")
MEASURES = Path("reports/language.csv")
COMPLETIONS = Path("reports/completions.json")
REPORT = Path("reports/report.html")
REPLAY = Path("reports/replay.json")  # of no stage: `evopipe replay` writes it
EPISODES_PAGE = Path("reports/episodes.html")  # of agents

OUTS = {
    "fetch": (DATASET, FETCHED),
    "buffer": (TRANSITIONS, BUFFERED),
    "population": (POPULATION,),
    "train": (TRAINED, LINEAGE, FITNESS, TIMING, TRAIN),
    "evaluate": (EVALUATION, MEMBERS, EPISODES),
    "export": (ELITE,),
    "report": (REPORT,),
}
"""What each stage writes, in the order in which they run."""
TEXT_OUTS = {
    **OUTS,
    "fetch": (TEXT, FETCHED),
    "buffer": (TOKENS, BUFFERED),
    "train": (*OUTS["train"], MEASURES),
    "evaluate": (*OUTS["evaluate"], COMPLETIONS),
}
"""The same where members are language models."""
WRITER = {out: stage for every in (OUTS, TEXT_OUTS) for stage, outs in every.items() for out in outs}

STATE = ".evopipe"
"""The folder below the DVC root that holds what is no out: runs that go on, and what trackers are told of them."""


def need(folder: Path, out: Path) -> Path:
    """Return where an out lies that an earlier stage wrote; `MissingInputError` if it is not there."""
    path, stage = folder / out, WRITER[out]
    if not path.exists():
        raise MissingInputError(f"{path}: not there; run `evopipe {stage}` or `dvc repro {stage}` first")
    return path


def program_files(agents: Sequence[str]) -> dict[str, str]:
    """Return the file of each agent's program in a team's exported folder, by the agent's name: `policy.NAME.pt2`."""
    names = [re.sub(r"[^A-Za-z0-9_-]", "_", name) for name in agents]
    if len({*names}) < len(names):
        names = [str(place) for place in range(len(names))]
    return {agent: f"policy.{name}.pt2" for agent, name in zip(agents, names, strict=True)}
