"""Where stages read and write, below the folder that a pipeline runs in."""

from __future__ import annotations

from pathlib import Path

DATASET = Path("data/dataset")
TRANSITIONS = Path("data/transitions.h5")
POPULATION = Path("models/population")
TRAINED = Path("models/trained")
ELITE = Path("models/elite")
REPORTS = Path("reports")
LINEAGE = REPORTS / "lineage.jsonl"
FITNESS = REPORTS / "fitness.csv"
TIMING = REPORTS / "timing.csv"
TRAIN = REPORTS / "train.json"
EVALUATION = REPORTS / "evaluation.json"
MEMBERS = REPORTS / "members.json"
EPISODES = REPORTS / "episodes.csv"
REPORT = REPORTS / "report.html"
