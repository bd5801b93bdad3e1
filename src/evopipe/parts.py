"""The parts that the library's own loops are made of, for people who write their own; see `examples/custom_loop.py`."""

from __future__ import annotations

from evopipe.buffers.replay import Replay, RowLayout
from evopipe.core.population import Cohort, Member, dissolve, form
from evopipe.envs.make import make_env
from evopipe.envs.pool import EnvPool, Step
from evopipe.envs.workers import Crew
from evopipe.evolve.mutate import Mutation, mutate
from evopipe.evolve.select import Selection, tournament
from evopipe.evolve.step import Evolved, evolve
from evopipe.loops.evaluate import Episodes, evaluate
from evopipe.loops.on_policy import OnPolicy
from evopipe.loops.online import Online
from evopipe.loops.problem import Problem, first_members
from evopipe.loops.run import begin
from evopipe.loops.steps import act, learn, take_note, updates_due
from evopipe.machine import configure
from evopipe.schema.blocks import EnvConfig, MutationConfig, TournamentConfig
from evopipe.stages.setup import make_problem

__all__ = [
    "Cohort",
    "Crew",
    "EnvConfig",
    "EnvPool",
    "Episodes",
    "Evolved",
    "Member",
    "Mutation",
    "MutationConfig",
    "OnPolicy",
    "Online",
    "Problem",
    "Replay",
    "RowLayout",
    "Selection",
    "Step",
    "TournamentConfig",
    "act",
    "begin",
    "configure",
    "dissolve",
    "evaluate",
    "evolve",
    "first_members",
    "form",
    "learn",
    "make_env",
    "make_problem",
    "mutate",
    "take_note",
    "tournament",
    "updates_due",
]
