"""Stage `report` of language models: what any other's is."""

from evopipe.stages.report import run as run
