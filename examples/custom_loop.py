"""A loop of one's own: a population of DQN agents learns CartPole and evolves."""

import numpy as np

from evopipe import parse_params, parts
from evopipe.rng import Purpose

params = parse_params({"env": {"id": "CartPole-v1", "num_envs": 8}, "runtime": {"device": "cpu", "threads": 1}})
spec, size, envs = parts.make_spec(params, parts.configure(params.runtime)), 4, 8
pool, eval_pool = parts.EnvPool(params.env, size * envs), parts.EnvPool(params.env, size * 8, what="evaluation")
members, _ = parts.first_members(spec, size)
layout = parts.RowLayout.of(spec.spaces, masked=False)
replay = parts.Replay(layout, memories=1, capacity=50_000, device=spec.device)
rows, tick, seeds = np.arange(size * envs), 0, np.random.default_rng(1)
pool.reset(rows, seeds.integers(2**31, size=len(rows)))

for generation in range(1, 7):
    cohorts = spec.form(members)
    for tick_here in range(300):
        obs = pool.obs.copy()
        epsilon = max(0.05, 1.0 - tick / 500)
        actions = parts.act(spec, cohorts, obs, pool.mask, epsilon, tick)
        step = pool.step(actions)
        packed = layout.pack(obs, actions, step.reward, step.terminated, step.obs)
        replay.add(packed[None], ~step.broken[None])
        over = rows[step.over]
        pool.reset(over, seeds.integers(2**31, size=len(over)))
        if tick > 20:
            for cohort in cohorts:
                if due := parts.updates_due(cohort, tick_here, envs):
                    parts.learn(spec, cohort, replay, tick, due)
        tick += 1
    played = parts.evaluate(spec, cohorts, eval_pool, spec.seeds(Purpose.EVALUATE, 8))
    fitness = played.returns.mean(axis=1)
    print(f"generation {generation}: fitness {np.round(fitness)}")
    members = parts.dissolve(cohorts)
    settings = spec.tournament, spec.mutation, spec.traits
    born = parts.evolve(*settings, members, fitness, params.seed, generation, next_id=size * generation)
    members = list(born.members)
