"""Problems, members and runs for tests, made from the same schemas that `params.yaml` fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from evopipe import algos, rng
from evopipe.core.population import Cohort, Member
from evopipe.envs.make import EnvConfig
from evopipe.evolve.mutate import MutationConfig
from evopipe.evolve.select import TournamentConfig
from evopipe.loops.config import TrainConfig
from evopipe.loops.online import Online
from evopipe.loops.problem import Problem, first_members, spaces_of
from evopipe.types import evolvable

CPU = torch.device("cpu")
ALIKE = {"bc", "bc_continuous", "ddpg", "iql", "iql:continuous", "sac:continuous", "td3bc"}


def cases(quick: Sequence[str] | None = None) -> list[Any]:
    """Every algorithm by name; one that serves two kinds of actions by `name:kind` for the second as well.

    Those whose shape another one has too, or all but the `quick` ones, are slow: their turn comes with `--slow`.
    """
    names = [name if i == 0 else f"{name}:{kind}" for name in algos.names() for i, kind in enumerate(_kinds(name))]
    slow = ALIKE if quick is None else {*names} - {*quick}
    return [pytest.param(name, id=name, marks=pytest.mark.slow if name in slow else ()) for name in names]


def _kinds(algo: str) -> list[str]:
    """The kinds of actions that an algorithm, or a case of it, is tested with; discrete ones first."""
    name, _, kind = algo.partition(":")
    return [kind] if kind else sorted(algos.get(name).ACTIONS, reverse=True)


def env_for(algo: str) -> str:
    """A small environment with actions that an algorithm serves."""
    return "CartPole-v1" if _kinds(algo)[0] == "discrete" else "Pendulum-v1"


def rates(algo: str) -> list[str]:
    """The names of an algorithm's learning rates."""
    return [name for name in evolvable(algos.get(algo.partition(":")[0]).Config) if name.startswith("lr")]


def problem(
    env: str | None = None,
    algo: str = "dqn",
    seed: int = 3,
    cohorts: Literal["merged", "exact"] = "exact",
    train: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    mutation: Mapping[str, Any] | None = None,
    tournament: Mapping[str, Any] | None = None,
    num_envs: int = 4,
    kwargs: Mapping[str, Any] | None = None,
) -> Problem:
    """A small problem: exact cohorts, a replay memory a member, nets of 16 units; any block can be changed."""
    name, own = algo.partition(":")[0], dict(kwargs or {})
    if env and env.startswith("envs_for_tests:") and _kinds(algo)[0] == "continuous":
        own["continuous"] = True
    found = algos.get(name)
    env_config = EnvConfig.model_validate({"id": env or env_for(algo), "num_envs": num_envs, "kwargs": own})
    block = {"network": {"encoder": [16], "latent": 16}, "batch_size": 32, "learn_step": 2, **(config or {})}
    small = {
        "algo": name, "max_steps": 600, "evo_steps": 200, "learning_delay": 50, "warm_start": 0, "eval_episodes": 2,
        "eval_steps": 30, "target": None, "confirm_episodes": 4,
        "replay": {"capacity": 2000, "sharing": "own"}, **(train or {}),
    }  # fmt: skip
    return Problem(
        seed=seed,
        env=env_config,
        train=TrainConfig.model_validate(small),
        tournament=TournamentConfig.model_validate(dict(tournament or {})),
        mutation=MutationConfig.model_validate(dict(mutation or {})),
        algo=found,
        algo_config=found.Config.model_validate(block),
        spaces=spaces_of(env_config, name),
        device=CPU,
        cohorts=cohorts,
    )


def started(p: Problem, size: int) -> Online:
    """A run with its first population."""
    return Online(p, first_members(p, size)[0])


def close_generation(run: Online) -> None:
    """Evaluate and evolve, undisturbed."""
    run.close_generation(lambda: False)


def finish(run: Online) -> None:
    """Advance a run to its end."""
    while not run.reason:
        close_generation(run) if run.generation_over else run.advance()


def advance(run: Online, ticks: int) -> None:
    """Take so many ticks, generations included."""
    for _ in range(ticks):
        if run.generation_over:
            close_generation(run)
        run.advance()


def same(a: Member, b: Member) -> bool:
    """Whether two members have equal tensors, to the bit, NaN included."""
    return set(a.tensors) == set(b.tensors) and all(equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal to the bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def equal_states(a: tuple[Any, Any], b: tuple[Any, Any]) -> list[str]:
    """Names of what differs between two run states."""
    tensors = [n for n in a[0].keys() | b[0].keys() if n not in a[0] or n not in b[0] or not equal(a[0][n], b[0][n])]
    return sorted(tensors) + [n for n in a[1].keys() | b[1].keys() if repr(a[1].get(n)) != repr(b[1].get(n))]


def of_slot(cohorts: Sequence[Cohort], slot: int) -> tuple[Cohort, int]:
    """The cohort that a slot's member trains in, and its row there."""
    cohort = next(c for c in cohorts if slot in c.slots)
    return cohort, cohort.slots.index(slot)


def alone(p: Problem, slot: int) -> Member:
    """The first member of a slot, moved to slot 0 with its own key: for a population of one."""
    key = int(rng.member_keys(p.seed, [slot])[0])
    member = first_members(p, slot + 1)[0][slot]
    assert member.key == key
    return replace(member, slot=0)
