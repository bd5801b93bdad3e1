"""Exported policies of drawn algorithms, architectures and spaces, for the tests of what runs them elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from evopipe.algos import get
from evopipe.core import normalise
from evopipe.core.arch import Arch
from evopipe.core.cohort import create
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.policies import policy
from evopipe.schema.train import NormaliseConfig

ROWS = 32
SERVED = {
    "discrete": ("dqn", "cqn", "ppo", "sac", "iql", "bc"),
    "continuous": ("ddpg", "td3", "td3bc", "sac", "ppo", "iql", "bc"),
    "multidiscrete": ("ppo",),
    "multibinary": ("ppo",),
}


def action_space(kind: str, draw: np.random.Generator) -> ActionSpace:
    if kind == "discrete":
        return ActionSpace.of(spaces.Discrete(int(draw.integers(2, 19)), start=int(draw.integers(-2, 3))))
    if kind == "multidiscrete":
        return ActionSpace.of(spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[5, 0], [-1, 2]]))
    if kind == "multibinary":
        return ActionSpace.of(spaces.MultiBinary([2, 3]))
    size = int(draw.integers(1, 6))
    low = draw.normal(size=size).astype(np.float32)
    return ActionSpace.of(spaces.Box(low, low + draw.uniform(0.1, 9.0, size).astype(np.float32)))


def drawn(folder: Path, seed: int) -> tuple[policy.Policy, np.ndarray, np.ndarray]:
    """Export a policy of a drawn algorithm, architecture and space; return it, observations, and legal actions."""
    draw = np.random.default_rng(seed)
    kind = [*SERVED, "discrete", "continuous", "discrete"][seed % 7]
    algo_name = SERVED[kind][seed // 7 % len(SERVED[kind])]
    algo, space, inputs = get(algo_name), action_space(kind, draw), int(draw.integers(1, 9))
    options = {"share_encoder": bool(draw.integers(2)), "squash": bool(draw.integers(2))}
    options = {name: value for name, value in options.items() if name in algo.Config.model_fields}
    cfg = algo.Config.model_validate({**options, "network": {"head": [8]}})
    widths = lambda most: [int(n) for n in draw.integers(1, 40, int(draw.integers(0, most)))]  # noqa: E731
    blocks = [tuple(Block(n, bool(draw.integers(2))) for n in widths(4)) for _ in "ab"]
    activation = [*ACTIVATIONS][seed % len(ACTIVATIONS)]
    head = blocks[1] or (Block(7),)  # a shared encoder's critics need one
    arch = Arch(blocks[0], int(draw.integers(1, 40)), head, activation, bool(draw.integers(2)))
    observations = ObservationSpace.vector(inputs)
    known = space.spaces(observations)
    rows = {}
    for name, shape in algo.networks(cfg, known).items():
        row = arch.initialise(shape, draw)
        rows[name] = [row + 0.2 * torch.from_numpy(draw.normal(size=row.shape)).float()]
    bare = Member(0, 0, None, seed, arch, {}, {})
    (member,) = create([bare], partial(algo.init, cfg.at(known)), rows, algo.networks(cfg, known))
    obs = draw.normal(3.0, 2.0, (ROWS, inputs)).astype(np.float32)
    if draw.integers(2):
        seen = normalise.start(NormaliseConfig(observations=True, clip=1.5), known)
        tensors = normalise.after(seen, torch.from_numpy(draw.normal(2.0, 3.0, (500, inputs))).float())
        member = replace(member, tensors=member.tensors | tensors)
    about = {**space.to_json(), **observations.to_json(), "config": cfg.model_dump(mode="json"), "algo": algo_name}
    policy.save(folder, algo_name, member, about, program=False, card="")
    legal = draw.random((ROWS, space.size)) < 0.4
    if kind != "multibinary":
        ends = np.cumsum((0, *space.choices))
        for first, end in pairwise(ends):
            legal[np.arange(ROWS), draw.integers(first, end, ROWS)] = True
    return policy.load(folder), obs, legal
