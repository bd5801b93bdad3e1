"""Small teams for tests of algorithms: unlike agents, three unlike members, random transitions; and one member of plain
torch, agent by agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from evopipe import algos
from evopipe.core.arch import Arch
from evopipe.core.cohort import Cohort, Grouping, create, dissolve, form
from evopipe.core.layout import Block
from evopipe.core.member import Member, tensor_kinds
from evopipe.rng import Purpose, Stream, host, member_keys
from evopipe.run.spec import EnvSpec
from evopipe.schema.declare import evolvable
from evopipe.types import ACTS, CUT, GONE, Batch, Learned, Spaces, Team
from reference import function

P, B = 3, 7
TEAM = Team(("red_0", "blue_0", "red_1"), (3, 5, 2), (2, 3, 3))  # agents that share do not stand side by side
K, OBS, A = 3, 5, 3
SPACES = {
    "discrete": Spaces(OBS, A, team=TEAM),
    "continuous": Spaces(OBS, A, continuous=True, team=TEAM),
}
GROUPS = {"none": [[0], [1], [2]], "group": [[0, 2], [1]], "all": [[0, 1, 2]]}
UNLIKE_HYPER = {
    "lr_actor": (2e-3, 1e-3, 4e-3), "lr_critic": (5e-3, 3e-3, 1e-3), "tau": (0.1, 0.5, 0.02),
    "grad_clip": (0.01, 0.3, 1e9), "lr": (1e-3, 2e-3, 5e-3), "clip": (0.02, 0.1, 0.4), "vf_coef": (0.3, 0.7, 2.0),
    "ent_coef": (0.01, 0.05, 0.2), "target_kl": (0.0, 1e-9, 1e9),
}  # fmt: skip
ARCHS = [Arch((Block(width),), 6 + i, (Block(5),), "Tanh", False) for i, width in enumerate((5, 9, 18))]


def own(agent: int, width: tuple[int, ...], room: int = 0) -> torch.Tensor:
    """Which of so many numbers, or of the widest agent's, an agent has."""
    return torch.arange(room or max(width)) < width[agent]


class Crewed:
    """Three members of an algorithm in one cohort: unlike in architecture and in hyper-parameters, or `alike`."""

    def __init__(self, name: str, spaces: Spaces, alike: bool = False, kind: str = "mlp",
                 arch: Arch | Sequence[Arch] | None = None, **config: Any) -> None:  # fmt: skip
        self.algo, self.spaces = algos.get(name), spaces
        self.cfg = self.algo.Config(**config).at(spaces)
        self.widths = dict(self.algo.networks(self.cfg, spaces))
        names, keys = evolvable(self.algo.Config), [int(key) for key in member_keys(3, range(P))]
        given = {name: getattr(self.cfg, name) for name in names}
        archs = [arch] * P if isinstance(arch, Arch) else arch
        self.unlike = archs is not None and arch is archs
        bare = [
            Member(
                i, i, None, keys[i],
                archs[i] if archs else replace(ARCHS[0 if alike else i], kind=kind),  # type: ignore[arg-type]
                given if alike else given | {n: UNLIKE_HYPER[n][i] for n in names if n in UNLIKE_HYPER}, {},
            )
            for i in range(P)
        ]  # fmt: skip
        rows = {
            name: [m.arch.initialise(w, host(m.key, Purpose.INIT, i)) for m in bare]
            for i, (name, w) in enumerate(self.widths.items())
        }
        g, self.members = torch.Generator().manual_seed(1), []
        for m in create(bare, partial(self.algo.init, self.cfg), rows, self.widths):
            tensors = {name: x.to(torch.get_default_dtype(), copy=True) for name, x in m.tensors.items()}
            for name, (what, _) in tensor_kinds(self.algo.State, self.widths).items():
                if what == "parameters":  # targets unlike what they follow
                    tensors[name] += 0.3 * torch.randn(tensors[name].shape, generator=g)
            if "log_std" in tensors:
                tensors["log_std"] += 0.1 * torch.randn(tensors["log_std"].shape, generator=g)
            self.members.append(replace(m, tensors=tensors))

    def cohort(self, *slots: int) -> Cohort:
        """A new cohort of the members, or of some."""
        members = [m for m in self.members if not slots or m.slot in slots]
        mode: Grouping = "whole" if self.unlike else "merged"
        (cohort,) = form(members, self.algo.State, self.widths, torch.device("cpu"), EnvSpec.pace, mode)
        hyper = {name: torch.tensor([m.hyper[name] for m in cohort.members]) for name in cohort.hyper}
        return replace(cohort, hyper=hyper)

    def update(self, cohort: Cohort, batch: Any, turn: int, at: int) -> Learned:
        """The cohort's tensors change in place."""
        draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([at]))
        learned = self.algo.update(self.cfg, cohort.state, cohort.hyper, batch, cohort.healthy, draw, turn)
        cohort.healthy.copy_(learned.healthy)
        return learned

    def updated(self, cohort: Cohort, batch: Any, turn: int, at: int) -> list[Member]:
        """The cohort's members after an update."""
        self.update(cohort, batch, turn, at)
        return dissolve([cohort])


def masks(spaces: Spaces, shape: tuple[int, ...], g: torch.Generator) -> torch.Tensor:
    """Random legal actions `[*shape, K, A]`, of each agent's own; one at least."""
    assert spaces.team is not None
    actions = spaces.team.actions
    legal = torch.rand(*shape, len(actions), spaces.actions, generator=g) < 0.5
    for k, n in enumerate(actions):
        always = torch.randint(n, (*shape, 1), generator=g)
        legal[..., k, :] = legal[..., k, :].scatter(-1, always, True) & own(k, actions, spaces.actions)
    return legal


def transitions(spaces: Spaces, at: int = 0, masked: bool = False, members: int = P, rows: int = B) -> Batch:
    """Random transitions of a team: some agents are gone, some terminate, some are truncated with others or alone, some
    come, some learn nothing of what they do; what is seen of those who are gone is noise. Pads are 0."""
    assert spaces.team is not None
    g, team = torch.Generator().manual_seed(10 + at), spaces.team
    shape = (members, rows, len(team.agents))
    alive = (torch.rand(shape, generator=g) < 0.8).to(torch.get_default_dtype())
    alive[..., 0] = 1.0
    seen = torch.stack([own(k, team.observations, spaces.observations) for k in range(len(team.agents))]).to(alive)
    obs, next_obs = (seen * torch.randn(*shape, spaces.observations, generator=g) for _ in range(2))
    next_alive = torch.tensor([GONE, ACTS, ACTS, CUT])[torch.randint(4, shape, generator=g)].to(alive)
    learns = alive * (torch.rand(shape, generator=g) < 0.8)
    learns[..., 0] = 1.0
    legal, next_legal = (masks(spaces, shape[:2], g) for _ in range(2))
    action = legal.to(alive).flatten(0, 2).multinomial(1, generator=g).view(shape)
    if spaces.continuous:
        action = 2 * torch.rand(*shape, spaces.actions, generator=g) - 1
    weight = torch.rand(shape[:2], generator=g) * (torch.rand(shape[:2], generator=g) < 0.8)
    return Batch(
        obs=obs, action=action, reward=alive * 2 * torch.randn(shape, generator=g),
        discount=0.9 * (next_alive > 0) * (torch.rand(shape, generator=g) > 0.1), next_obs=next_obs,
        next_legal=next_legal if masked else None, weight=weight / weight.sum(dim=1, keepdim=True),
        legal=legal if masked else None, alive=alive, learns=learns, next_alive=next_alive,
    )  # fmt: skip


def part(batch: Any, i: int, keep: bool = False) -> Any:
    """One member's share of a batch, with or without the axis of members."""
    found = {f.name: getattr(batch, f.name) for f in fields(batch)}
    at = slice(i, i + 1) if keep else i
    return replace(batch, **{name: None if x is None else x[at] for name, x in found.items()})


class Plain:
    """One member: flat rows by name as leaves, and torch's own Adam for each that learns."""

    def __init__(self, given: Crewed, member: Member, groups: list[list[int]]) -> None:
        self.cfg, self.arch, self.hyper, self.groups = given.cfg, member.arch, member.hyper, groups
        self.kinds = tensor_kinds(given.algo.State, given.widths)
        self.widths = given.widths
        self.values = {
            name: member.tensors[name].clone().requires_grad_()
            for name, (kind, _) in self.kinds.items()
            if kind == "parameters" or name == "log_std"
        }
        self.adams: dict[str, torch.optim.Adam] = {}

    def net(self, name: str, agent: int, x: torch.Tensor, twin: int = 0, twins: int = 1) -> torch.Tensor:
        """An agent's network `[B, inputs]` → `[B, outputs]`; where it shares one, who it is stands behind."""
        g = next(i for i, group in enumerate(self.groups) if agent in group)
        widest = max(map(len, self.groups))
        if widest > 1:
            who = torch.zeros(len(x), widest)
            who[:, self.groups[g].index(agent)] = 1.0
            x = torch.cat((x, who), dim=1)
        widths = self.widths[self.kinds[name][1]]
        row = self.values[name].chunk(widths.copies)[g * twins + twin]
        return function(self.arch, widths._replace(copies=1), row, x)

    def descend(self, loss: torch.Tensor, together: bool = False, **rates: float) -> None:
        """One step down a loss; the gradient of each network, a member's all in one, is clipped; or of all together."""
        leaves = [self.values[name] for name in rates]
        for leaf, grad in zip(leaves, torch.autograd.grad(loss, leaves, materialize_grads=True), strict=True):
            leaf.grad = grad
        for group in [leaves] if together else [[leaf] for leaf in leaves]:
            torch.nn.utils.clip_grad_norm_(group, self.hyper["grad_clip"])
        for name, rate in rates.items():
            if name not in self.adams:
                self.adams[name] = torch.optim.Adam([self.values[name]], lr=rate)
            self.adams[name].step()

    def follow(self, **pairs: str) -> None:
        """Mix `tau` of networks into their targets."""
        for target, online in pairs.items():
            with torch.no_grad():
                self.values[target].lerp_(self.values[online], self.hyper["tau"])

    def differs(self, tensors: Mapping[str, torch.Tensor], tolerance: float = 1e-8) -> list[str]:
        """Which of a member's parameters are others than these."""
        return [n for n, x in self.values.items() if not torch.allclose(tensors[n], x, rtol=1e-6, atol=tolerance)]
