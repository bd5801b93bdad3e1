"""Learning rates that evolve: members begin with rates drawn from a range; the lineage says what became of them."""

import evopipe

params = {
    "env": {"id": "CartPole-v1", "num_envs": 4},
    "population": {"size": 6},
    "train": {"algo": "ppo", "max_steps": 8192, "evo_steps": 2048, "target": None},
    "search": {"strategy": "pbt", "pbt": {"fraction": 0.25, "resample": 0.0}},
    "algos": {
        "ppo": {
            "learn_step": 512,
            "evolve": {"lr": {"min": 1e-5, "max": 1e-1, "grow": 1.5, "shrink": 0.67}},
        }
    },
}

with evopipe.Population(params) as population:
    while not population.reason:
        rates = [float(member.hyper["lr"]) for member in population.members]
        (record,) = population.train(generations=1)
        print(f"generation {record.generation}")
        for rate, member in zip(rates, record.members, strict=True):
            print(f"  {member.id}, a child of {member.parent}: learning rate {rate:.1e}, fitness {member.fitness:.1f}")
