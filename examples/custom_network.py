"""A network of one's own: a torch module in the place of evopipe's layers, for every member."""

import torch
from torch import nn

import evopipe


class Gated(nn.Module):
    """One hidden layer whose units are gated."""

    def __init__(self, inputs, outputs, hidden=32):
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):  # [B, inputs] -> [B, outputs]
        return self.last(torch.tanh(self.value(x)) * torch.sigmoid(self.gate(x)))


if __name__ == "__main__":
    params = {
        "env": {"id": "CartPole-v1", "num_envs": 8},
        "population": {"size": 2},
        "train": {"algo": "ppo", "max_steps": 8192, "evo_steps": 2048, "target": None},
        "algos": {"ppo": {"learn_step": 512, "network": {"module": "custom_network:Gated", "kwargs": {"hidden": 32}}}},
    }
    with evopipe.Population(params) as population:
        for record in population.train():
            print(f"generation {record.generation}: fitness {[member.fitness for member in record.members]}")
        print(population.elite)
