"""The parts of the library's own training loops, for users who write their own; see `examples/custom_loop.py`."""

from __future__ import annotations

from evopipe.core.cohort import Cohort, dissolve, form
from evopipe.core.member import Member
from evopipe.envs.make import make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.workers import Workers
from evopipe.machine import configure
from evopipe.memory.replay import Replay, RowLayout
from evopipe.mutations import Mutation, mutate
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec
from evopipe.regimes.learn import learn, updates_due
from evopipe.regimes.off_policy import OffPolicy
from evopipe.regimes.offline import Offline
from evopipe.regimes.on_policy import OnPolicy
from evopipe.run.act import act, take_note
from evopipe.run.evaluate import Episodes, evaluate
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.env import EnvConfig
from evopipe.schema.evolution import MutationConfig, TournamentConfig
from evopipe.searchers.apply import Evolved, evolve
from evopipe.searchers.tournament import Selection, tournament

__all__ = [
    "Cohort", "EnvConfig", "EnvPool", "EnvSpec", "Episodes", "Evolved", "Member", "Mutation", "MutationConfig",
    "OffPolicy", "Offline", "OnPolicy", "Replay", "RowLayout", "RowStep", "Run", "Selection",
    "TournamentConfig", "Workers", "act", "begin", "configure", "dissolve", "evaluate", "evolve",
    "first_members", "form", "learn", "make_env", "make_spec", "mutate", "take_note", "tournament",
    "updates_due",
]  # fmt: skip
