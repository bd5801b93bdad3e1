"""Small problems of random shapes for the CPU's own kernels: one for every seed and family, and all that comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from crews import Crewed, P, masks, transitions
from evopipe.core import optim
from evopipe.core.arch import Arch
from evopipe.core.cohort import Cohort
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.net import Net, forward
from evopipe.core.structure import Widths
from evopipe.memory.priorities import Priorities
from evopipe.memory.replay import Replay, RowLayout
from evopipe.native import actor_critic, header
from evopipe.native.policy import Lessons
from evopipe.rng import Purpose, Stream
from evopipe.types import Batch, Spaces, Team, Tensor
from reference import random_arch, random_row

CPU = torch.device("cpu")
FAMILIES: dict[str, Callable[[int], list[Tensor]]] = {}
"""What computes everything of a drawn case, by family."""


def family(name: str) -> Callable[[Callable[[int], list[Tensor]]], Callable[[int], list[Tensor]]]:
    def add(compute: Callable[[int], list[Tensor]]) -> Callable[[int], list[Tensor]]:
        FAMILIES[name] = compute
        return compute

    return add


class Draw:
    """Random sizes and numbers of a seed."""

    def __init__(self, seed: int) -> None:
        self.sizes, self.g = np.random.default_rng(seed), torch.Generator().manual_seed(seed)

    def size(self, first: int, last: int) -> int:
        return int(self.sizes.integers(first, last + 1))

    def maybe(self) -> bool:
        return self.size(0, 1) == 1

    def one(self, *of: Any) -> Any:
        return of[self.size(0, len(of) - 1)]

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.g)

    def share(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.g)

    def archs(self, **more: Any) -> list[Arch]:
        """One for each member, of any shape and activation; all or none normalise."""
        norm, names = self.maybe(), sorted(self.one(*ACTIVATIONS) for _ in range(P))  # as a cohort has them
        return [replace(random_arch(self.sizes, name, norm, 1, 40), **more) for name in names]

    def team(self, continuous: bool, **more: Any) -> Spaces:
        """Unlike agents, of whom some share a group."""
        agents = tuple(self.one(f"red_{k}", f"blue_{k}") for k in range(self.size(1, 4)))
        seen, does = ([self.size(1, last) for _ in agents] for last in (9, 17))
        return Spaces(max(seen), max(does), continuous=continuous, team=Team(agents, tuple(seen), tuple(does)), **more)


def alone(d: Draw, spaces: Spaces, rows: int, masked: bool) -> Batch:
    """Transitions of one agent, parts of longer rows as a memory gives them; pads at the second member's end."""
    o, a = spaces.observations, spaces.actions
    kept = d.normal(P, rows, 2 * o + a)
    legal = (d.share(P, rows, a) < 0.5).scatter(-1, torch.randint(a, (P, rows, 1), generator=d.g), True)
    action = kept[..., 2 * o :].clamp(-1, 1) if spaces.continuous else legal.int().argmax(-1)
    weight = d.share(P, rows) + 0.01
    weight[1, rows // 2 + 1 :] = 0.0
    return Batch(
        obs=kept[..., :o], next_obs=kept[..., o : 2 * o], action=action, reward=d.normal(P, rows),
        discount=0.9 * (d.share(P, rows) > 0.3), weight=weight / weight.sum(dim=1, keepdim=True),
        next_legal=legal.roll(1, 1) if masked else None, legal=legal if masked else None,
    )  # fmt: skip


def held(cohort: Cohort) -> list[Tensor]:
    return [*cohort.tensors(), cohort.healthy.float()]


def learned(d: Draw, given: Crewed, batches: list[Batch]) -> list[Tensor]:
    """All that some updates change and say."""
    cohort, told = given.cohort(), []
    for at, batch in enumerate(batches):
        found = given.update(cohort, batch, at, at)
        assert found.errors is not None
        told += [found.losses.detach(), torch.where(batch.weight > 0, found.errors, 0.0)]
    nets = [x for each in fields(cohort.state) if isinstance(x := getattr(cohort.state, each.name), Net)]
    assert not any(net.trainable and net.grad.any() for net in nets), "torch computed it"
    return [*told, *held(cohort)]


@family("value")
def of_values(seed: int) -> list[Tensor]:
    d = Draw(seed)
    spaces = Spaces(d.size(1, 11), d.size(2, 20))
    common = {"double": d.maybe()}
    name, config = d.one(
        ("dqn", {"loss": d.one("huber", "mse")}),
        ("dqn", {"target": "hard", "target_interval": 2}),
        ("cqn", {"loss": d.one("huber", "mse")}),
        ("rainbow", {"v_min": -3.0, "v_max": 3.0, "atoms": d.size(2, 55), "noisy": d.maybe(), "dueling": d.maybe()}),
        ("rainbow", {"distributional": False, "noisy": d.maybe(), "dueling": d.maybe()}),
    )
    given = Crewed(name, spaces, arch=d.archs(), **config, **common)
    rows, masked = d.size(1, 40), d.maybe()
    return learned(d, given, [alone(d, spaces, rows, masked) for _ in range(2)])


@family("actor-critic")
def of_actors_and_critics(seed: int) -> list[Tensor]:
    d = Draw(seed)
    spaces = Spaces(d.size(1, 11), d.size(1, 20), continuous=True)
    name = d.one("ddpg", "td3", "td3bc")
    given = Crewed(name, spaces, arch=d.archs(), policy_delay=d.size(1, 2))
    rows = d.size(1, 40)
    return learned(d, given, [alone(d, spaces, rows, False) for _ in range(2)])


@family("soft-actor-critic")
def of_soft_actors(seed: int) -> list[Tensor]:
    d = Draw(seed)
    spaces = Spaces(d.size(1, 11), d.size(2, 20), continuous=d.maybe())
    given = Crewed("sac", spaces, arch=d.archs())
    rows, masked = d.size(1, 40), not spaces.continuous and d.maybe()
    return learned(d, given, [alone(d, spaces, rows, masked) for _ in range(2)])


@family("teams")
def of_teams(seed: int) -> list[Tensor]:
    d = Draw(seed)
    spaces = d.team(d.maybe())
    given = Crewed(
        d.one("maddpg", "matd3"), spaces, arch=d.archs(), share=d.one("none", "group", "all"),
        temperature=d.one(0.7, 1.0), output_penalty=d.one(0.1, 0.001), policy_delay=1,
    )  # fmt: skip
    rows, masked = d.size(2, 40), not spaces.continuous and d.maybe()
    found = []
    for at in range(2):
        batch = transitions(spaces, seed + at, masked, rows=rows)
        weight = batch.weight.clone()
        weight[1, rows - 1 :] = 0.0
        weight[:, 0] += 0.1
        found.append(replace(batch, weight=weight))
    return learned(d, given, found)


def kinds(d: Draw) -> Spaces:
    o = d.size(1, 9)
    choices = tuple(d.size(2, 7) for _ in range(d.size(1, 4)))
    return d.one(  # type: ignore[no-any-return]
        Spaces(o, d.size(2, 20)),
        Spaces(o, d.size(1, 9), continuous=True),
        Spaces(o, sum(choices), kind="multidiscrete", choices=choices),
        Spaces(o, d.size(1, 9), kind="multibinary"),
    )


@family("policy")
def of_policies(seed: int) -> list[Tensor]:
    """Acting, values, and learning from a whole rollout."""
    d = Draw(seed)
    name = d.one("ppo", "ppo", "ippo", "mappo")
    spaces = kinds(d) if name == "ppo" else d.team(d.maybe())
    recurrent = d.maybe()
    only = {"share_encoder": d.maybe()} if name == "ppo" else {"share": d.one("none", "group", "all")}
    given = Crewed(
        name, spaces, arch=d.archs(kind="lstm" if recurrent else "mlp"), squash=spaces.continuous and d.maybe(),
        clip_value=d.maybe(), normalise_advantage=d.maybe(), **only,
    )  # fmt: skip
    cohort, k, o = given.cohort(), spaces.agents, spaces.observations
    ticks, envs, masked = d.size(2, 7), d.size(1, 9), not spaces.continuous and d.maybe()
    legal = None
    if masked:
        lead = P, envs
        legal = masks(spaces, lead, d.g).flatten(1, 2) if spaces.team else legal_choices(d, spaces, *lead)
    memory = 0.3 * d.normal(P, envs * k, cohort.memory)
    obs = d.normal(P, envs * k, o)
    draw = Stream(cohort.keys, Purpose.ACT, torch.tensor([seed]))
    told: list[Tensor] = []
    with torch.no_grad():
        for stream in (draw, None):
            told += given.algo.step(given.cfg, cohort.state, obs, legal, memory, stream)
        told.append(given.algo.value(given.cfg, cohort.state, obs, memory))
        told.append(given.algo.greedy(given.cfg, cohort.state, obs, legal))
    lessons = drawn_lessons(d, spaces, ticks, envs, masked, cohort.memory)
    found = given.algo.learn(given.cfg, cohort.state, cohort.hyper, lessons, cohort.healthy)
    assert found is not None, "torch computed it"
    return [*told, found.losses, found.healthy.float(), *held(cohort)]


def legal_choices(d: Draw, spaces: Spaces, *lead: int) -> Tensor:
    """Random legal actions, one at least of every choice."""
    if spaces.kind == "multibinary":
        return d.share(*lead, spaces.actions) < 0.7
    parts = []
    for count in spaces.choices:
        always = torch.randint(count, (*lead, 1), generator=d.g)
        parts.append((d.share(*lead, count) < 0.5).scatter(-1, always, True))
    return torch.cat(parts, dim=-1)


def drawn_lessons(d: Draw, spaces: Spaces, ticks: int, envs: int, masked: bool, memory: int) -> Lessons:
    """A random rollout, cut into stretches of one length; members take unlike minibatches of it."""
    k, lead = spaces.agents, (P, ticks, envs * spaces.agents)
    if spaces.team:
        legal = masks(spaces, (P, ticks * envs), d.g).view(*lead, -1)
    elif not spaces.continuous:
        legal = legal_choices(d, spaces, *lead)
    if spaces.continuous:
        action = 0.9 * (2 * d.share(*lead, spaces.actions) - 1)
    elif spaces.kind == "multibinary":
        action = (d.share(*lead, spaces.actions) < 0.5).float() * legal
    else:
        width = [spaces.actions] if spaces.kind == "discrete" else list(spaces.choices)
        action = torch.stack([part.int().argmax(-1).float() for part in legal.split(width, dim=-1)], dim=-1)
    numbers = torch.cat((-d.share(*lead, 1) * 3, d.normal(*lead, 1), (d.share(*lead, 1) < 0.2).float(),
                         d.normal(*lead, 2), (d.share(*lead, 1) < 0.9).float()), dim=-1)  # fmt: skip
    parts = [d.normal(*lead, spaces.observations), action, numbers, *([legal.float()] if masked else [])]
    rows = torch.cat(parts, dim=-1).contiguous()
    length = d.size(1, ticks) if memory else 1
    first = torch.arange(0, ticks, length)[:, None]
    tick = first + torch.arange(length)
    within, count, epochs = tick < ticks, len(first) * envs, 2
    batches = [d.size(1, count) for _ in range(P)]
    order = d.share(P, epochs, count).argsort(dim=2)
    return Lessons(
        rows, 0.3 * d.normal(P, ticks + 1, envs * k, memory), lambda: order, tick.clamp(max=ticks - 1), within,
        batches, [-(-count // n) for n in batches], [d.size(1, epochs) for _ in range(P)],
    )  # fmt: skip


@family("layers")
def of_layers(seed: int) -> list[Tensor]:
    """Dense layers under a loss of torch, a step of Adam and a target that follows."""
    d = Draw(seed)
    widths = d.one(Widths(d.size(1, 40), d.size(1, 40)), Widths(d.size(1, 40), 0, "encoder"))
    archs, rows = d.archs(), d.size(1, 40)
    shape = Arch.stack(archs, widths, CPU)
    net = Net(shape, shape.pack([random_row(arch, widths, d.sizes) for arch in archs]), trainable=True)
    target, adam = Net(shape, net.values.clone()), optim.Adam.start(net)
    x = d.normal(P, rows, widths.inputs).requires_grad_(True)
    out = forward(net, x)
    assert "_Dense" in type(out.grad_fn).__name__, "torch computed it"
    losses = (out * d.normal(*out.shape)).sum(dim=(1, 2))
    limit, lr = torch.tensor([0.5, 1e9, 1.0]), torch.tensor([0.1, 0.01, 1.0])
    healthy = optim.descend(losses, torch.ones(P, dtype=torch.bool), limit, (net, adam, lr))
    optim.polyak(target, net, torch.tensor([0.3, 0.7, 1.0]) * healthy)
    assert x.grad is not None
    return [out.detach(), net.grad, x.grad, net.values, target.values, adam.mean, adam.square]


@family("replay")
def of_memory(seed: int) -> list[Tensor]:
    """Batches, drawn uniformly or by priority, priorities, and draws by counter."""
    d = Draw(seed)
    agents, steps, capacity = d.one(0, 2), d.size(1, 4), d.size(40, 2500)
    layout = RowLayout(obs=6, actions=4, masked=False, continuous=d.maybe(), steps=steps, legal=False, agents=agents)
    trees = Priorities(P, capacity, 0.6, CPU) if d.maybe() else None
    replay = Replay(layout, P, capacity, CPU, trees)
    replay.rows.copy_((d.share(*replay.rows.shape) < 0.5).float())
    reward = slice(layout._reward, layout._reward + steps * layout.each)
    replay.rows[..., reward] = d.normal(*replay.rows[..., reward].shape)
    if steps > 1:
        taken = replay.rows[..., layout._mask - layout.each : layout._mask]
        taken.copy_(torch.randint(1, steps + 1, taken.shape, generator=d.g))
    if trees is not None:
        chance = d.share(P, capacity)
        trees.restore({"priorities": chance, "largest": chance.amax(dim=1)})
    draw = Stream(torch.randint(2**60, (P,), generator=d.g), Purpose.REPLAY, torch.tensor([seed]))
    slots, rows = [2, 0, 1], d.size(1, 70)
    filled, weight = torch.full((P,), capacity), torch.full((P, rows), 1 / rows)
    gamma = torch.tensor([0.99, 0.3, 1.0])
    batch, index = replay.batch(
        draw, torch.tensor(slots), replay.first(slots), filled, weight, torch.tensor(0.4), gamma
    )
    told = [index, batch.reward.clone(), batch.discount.clone(), batch.weight.clone()]
    if trees is not None:
        trees.update(torch.tensor(slots), index, d.normal(P, rows))
        told += trees.tensors()
    told += [draw.normal(rows), actor_critic.gumbels(draw, rows)]
    return told


def starving(weight: Tensor) -> tuple[Any, Any, Any]:
    """A job of more memory than there is, and a batch of one row a member."""
    job, batch = header.of("value_job"), header.of("minibatch")
    critic = header.of("network").packed(keep=1 << 58)
    of = header.of("learners").packed(critic=critic)
    rows = batch.pointer(batch.packed(weight=weight.data_ptr(), batch=1))
    return job.pointer(job.packed(of=of)), rows, header.of("update_call")(*[0] * 8)
