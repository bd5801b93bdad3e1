"""Measure the core: learn step against population size, matrix products in it, loop efficiency, evolution, checkpoints.

    python benchmarks/core.py [--threads 1] [--repeats 7] [--out benchmarks/results/core.json]

Every figure is a ratio or a time of things run in turn in this process; medians with the smallest and largest value.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from evopipe import parse_params, runtime
from evopipe.core.networks import Net
from evopipe.core.population import Cohort, dissolve
from evopipe.evolve.step import evolve
from evopipe.loops.online import Online
from evopipe.loops.problem import Problem, first_members
from evopipe.loops.steps import act, learn, updates_due
from evopipe.stages.setup import make_problem
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.types import Batch

WIDE, BATCH = 64, 64


def problem_of(threads: int, population: int, env: str = "CartPole-v1", **train: object) -> Problem:
    """Return a problem with 64-wide networks and batches of 64."""
    params = parse_params(
        {
            "env": {"id": env},
            "population": {"size": population},
            "train": {"warm_start": 0, "learning_delay": 500, "eval_episodes": 4, **train},
            "runtime": {"threads": threads, "device": "cpu"},
            "algos": {"dqn": {"batch_size": BATCH, "network": {"encoder": [WIDE], "latent": WIDE}}},
        }
    )
    return make_problem(params, runtime.configure(params.runtime))


def median_time(call: Callable[[], object], repeats: int, inner: int) -> list[float]:
    """Return `repeats` times of one call in µs, each the mean of `inner` calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(inner):
            call()
        times.append((time.perf_counter() - began) / inner * 1e6)
    return times


def spread(values: list[float]) -> dict[str, float]:
    """Return median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def random_batch(cohort: Cohort, obs: int, actions: int) -> Batch:
    """Return a batch of standard-normal transitions `[P, B, …]`."""
    generator = torch.Generator().manual_seed(1)
    p, b = cohort.weight.shape
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    action = torch.randint(actions, (p, b), generator=generator)
    return Batch(draw(p, b, obs), action, draw(p, b), torch.zeros(p, b), draw(p, b, obs), None, cohort.weight)


def update_call(threads: int, population: int) -> Callable[[], object]:
    """Return one learning step of a population as a call."""
    problem = problem_of(threads, population)
    members, _ = first_members(problem, population)
    (cohort,) = problem.form(members)
    batch = random_batch(cohort, problem.observations, problem.actions)
    return lambda: problem.algo.update(problem.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy)


def products_call(threads: int, population: int) -> Callable[[], object]:
    """Return the matrix products of that learning step alone: three forward passes, one backward."""
    problem = problem_of(threads, population)
    members, _ = first_members(problem, population)
    (cohort,) = problem.form(members)
    net: Net = cohort.state.target
    weights = [layer.weight for layer in net.views]
    inputs = [torch.randn(population, BATCH, weight.shape[1]) for weight in weights]
    deltas = [torch.randn(population, BATCH, weight.shape[2]) for weight in weights]

    def products() -> None:
        for _ in range(3):
            for x, weight in zip(inputs, weights, strict=True):
                torch.bmm(x, weight)
        for i, (x, weight, delta) in enumerate(zip(inputs, weights, deltas, strict=True)):
            torch.bmm(x.transpose(1, 2), delta)
            if i:
                torch.bmm(delta, weight.transpose(1, 2))

    return products


def learn_step(threads: int, repeats: int) -> dict[str, object]:
    """T(P) of the learn step, its slowdown, and the share of matrix products at 8 members, taken in turn."""
    sizes = (1, 2, 4, 8, 16)
    updates, products = {p: update_call(threads, p) for p in sizes}, products_call(threads, 8)
    for call in (*updates.values(), products):
        median_time(call, 1, 50)
    times: dict[int, list[float]] = {p: [] for p in sizes}
    alone: list[float] = []
    for _ in range(repeats):
        for p, call in updates.items():
            times[p] += median_time(call, 1, 200)
        with torch.no_grad():
            alone += median_time(products, 1, 200)
    return {
        "microseconds": {str(p): spread(t) for p, t in times.items()},
        "slowdown_8_over_1": spread([b / a for a, b in zip(times[1], times[8], strict=True)]),
        "matrix_product_share_at_8": spread([a / b for a, b in zip(alone, times[8], strict=True)]),
    }


def loop_efficiency(threads: int, repeats: int, env: str, ticks: int = 300) -> dict[str, float]:
    """Environment, acting and learning, each alone, over the whole loop's time for the same work."""
    return spread([_efficiency(threads, env, ticks) for _ in range(repeats)])


def _efficiency(threads: int, env: str, ticks: int) -> float:
    problem = problem_of(threads, 4, env)
    members, _ = first_members(problem, 4)
    loop = Online(problem, members)
    while loop.step <= problem.train.learning_delay:
        loop.advance()
    actions = []
    original = loop.pool.step
    loop.pool.step = lambda a, rows=None: (actions.append(a.copy()), original(a, rows))[1]  # type: ignore[method-assign]
    first, state = loop.ticks_here, loop.pool.state()
    began = time.perf_counter()
    for _ in range(ticks):
        loop.advance()
    whole = time.perf_counter() - began
    loop.pool.step = original  # type: ignore[method-assign]
    parts = _environment_alone(loop, state, actions) + _act_alone(loop, ticks) + _learn_alone(loop, first, ticks)
    loop.close()
    return parts / whole


def _environment_alone(loop: Online, state: dict[str, np.ndarray], actions: list[np.ndarray]) -> float:
    loop.pool.restore(state)
    began = time.perf_counter()
    for a in actions:
        step = loop.pool.step(a)
        over = np.flatnonzero(step.terminated | step.truncated)
        if len(over):
            loop.pool.reset(over, over)
    return time.perf_counter() - began


def _act_alone(loop: Online, ticks: int) -> float:
    began = time.perf_counter()
    for tick in range(ticks):
        act(loop.problem, loop.cohorts, loop.pool.obs, loop.pool.mask, 0.1, tick)
    return time.perf_counter() - began


def _learn_alone(loop: Online, first: int, ticks: int) -> float:
    began = time.perf_counter()
    for tick in range(first, first + ticks):
        for cohort in loop.cohorts:
            learn(loop.problem, cohort, loop.replay, tick, updates_due(cohort, tick, loop.problem.env.num_envs))
    return time.perf_counter() - began


def evolution(threads: int, repeats: int) -> dict[str, float]:
    """Milliseconds of dissolve + select + clone + mutate + form for 8 members."""
    problem = problem_of(threads, 8)
    members, _ = first_members(problem, 8)
    times = []
    for generation in range(repeats * 5):
        cohorts = problem.form(members)
        fitness = np.random.default_rng(generation).random(8)
        began = time.perf_counter()
        alive = dissolve(cohorts)
        born = evolve(problem.tournament, problem.mutation, problem.traits, alive, fitness, 1, generation, 100)
        problem.form(born.members)
        times.append((time.perf_counter() - began) * 1e3)
        members = list(born.members)
    return spread(times)


def checkpoints(threads: int, repeats: int, seconds: float) -> dict[str, object]:
    """Milliseconds of one checkpoint with a full replay of 10⁵ LunarLander transitions, and its share of wall time."""
    problem = problem_of(threads, 4, "LunarLander-v3")
    members, _ = first_members(problem, 4)
    loop = Online(problem, members)
    rows = np.zeros((1, 100_000, loop.replay.layout.size), np.float32)
    loop.replay.add(rows, np.ones(rows.shape[:2], bool))
    times = []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder) / "checkpoints")
        for i in range(repeats):
            began = time.perf_counter()
            store.save(i, *loop.state())
            times.append((time.perf_counter() - began) * 1e3)
    loop.close()
    return {"milliseconds": spread(times), "share_at_default_interval": statistics.median(times) / 1e3 / seconds}


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    interval = parse_params({}).runtime.checkpoint_seconds
    result = {
        "learn_step": learn_step(args.threads, args.repeats),
        "loop_efficiency": {env: loop_efficiency(args.threads, 5, env) for env in ("LunarLander-v3", "CartPole-v1")},
        "evolution_milliseconds_8_members": evolution(args.threads, args.repeats),
        "checkpoint": checkpoints(args.threads, args.repeats, interval),
        "fingerprint": runtime.fingerprint(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
