"""A team: three agents learn to cover three landmarks, by MAPPO, in environments that are tensors."""

import evopipe

params = {
    "env": {"id": "simple_spread_v3", "backend": "torch", "num_envs": 32, "kwargs": {"max_cycles": 25}},
    "population": {"size": 2},
    "train": {"algo": "mappo", "max_steps": 64000, "evo_steps": 16000},
    "algos": {"mappo": {"learn_step": 1600, "batch_size": 400}},
}

with evopipe.Population(params) as population:
    for record in population.train():
        print(f"generation {record.generation}: return of an episode {[member.fitness for member in record.members]}")
    policy = population.elite
print(policy, "agents:", policy.agents)
