"""Every algorithm against one agent of plain torch a member: what updates make of all that learns, and what it does.

Both compute in double precision, so that what differs is a fault and no rounding. The agents are written from the
papers' formulas; of the program they take the draws, and where a network's numbers lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import huber_loss

from evopipe import algos
from evopipe.core.arch import Arch
from evopipe.core.cohort import Cohort, create, dissolve, form
from evopipe.core.layout import Block
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.net import Net
from evopipe.core.padded import noisy
from evopipe.regimes.probe import probe
from evopipe.rng import Purpose, Stream, host, member_keys
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.declare import evolvable
from evopipe.types import Batch, Learned, Sequences, Spaces
from populations import problem, same
from reference import function, network

P, B, OBS, A = 3, 7, 4, 3  # members, transitions, numbers of an observation, actions
SPACES = {
    "discrete": Spaces(OBS, A),
    "continuous": Spaces(OBS, A, continuous=True),
}
ARCHS = [Arch((Block(width),), 6 + i, (Block(5),), "Tanh", False) for i, width in enumerate((5, 9, 18))]
UNLIKE = {
    "lr": (1e-3, 2e-3, 5e-3), "lr_actor": (2e-3, 1e-3, 4e-3), "lr_critic": (5e-3, 3e-3, 1e-3),
    "lr_alpha": (1e-2, 2e-2, 3e-2), "tau": (0.1, 0.5, 0.02), "grad_clip": (0.01, 0.3, 1e9), "alpha": (0.5, 2.5, 10.0),
    "expectile": (0.5, 0.7, 0.9), "beta": (0.3, 3.0, 50.0), "clip": (0.02, 0.1, 0.4), "vf_coef": (0.3, 0.7, 2.0),
    "ent_coef": (0.01, 0.05, 0.2), "target_kl": (0.0, 1e-9, 1e9),
}  # fmt: skip
"""Hyper-parameters, one a member."""
SOFT = ("sac", "tqc", "crossq", "redq")  # whose policies keep their entropy
CRITICS = [f"critic_{k}" for k in range(1, 11)]
SHARED = {"share_encoder": True}
RAINBOW = {"v_min": -2.0, "v_max": 3.0, "atoms": 5}
PLAIN = {"distributional": False, "dueling": False, "noisy": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("discrete", {}),
    "bc:continuous": ("continuous", {}),
    "dqn": ("discrete", {}),
    "dqn:plain": ("discrete", {"double": False, "loss": "mse"}),
    "cqn": ("discrete", {}),
    "cqn:plain": ("discrete", {"double": False, "loss": "mse"}),
    "rainbow": ("discrete", RAINBOW),
    "rainbow:quiet": ("discrete", {**RAINBOW, "noisy": False, "double": False, "dueling": False}),
    "rainbow:noise alone": ("discrete", {"distributional": False, "noisy": True, "dueling": False}),
    "rainbow:dueling alone": ("discrete", {**PLAIN, "dueling": True}),
    "qrdqn": ("discrete", {"quantiles": 5}),
    "qrdqn:double": ("discrete", {"quantiles": 7, "double": True}),
    "qrdqn:unmasked": ("discrete", {"quantiles": 1}),
    "ddpg": ("continuous", {"policy_delay": 2}),
    "ddpg:shared": ("continuous", SHARED),
    "td3": ("continuous", {"target_noise": 0.6}),
    "td3:shared": ("continuous", {**SHARED, "policy_delay": 3}),
    "td3bc": ("continuous", {}),
    "sac": ("discrete", {}),
    "sac:unmasked": ("discrete", {}),
    "sac:shared": ("discrete", {**SHARED, "target_entropy": 0.4}),
    "sac:continuous": ("continuous", {}),
    "sac:continuous:shared": ("continuous", {**SHARED, "learn_alpha": False}),
    "tqc": ("continuous", {"quantiles": 4, "dropped": 1, "target_entropy": -0.7}),
    "tqc:five": ("continuous", {"critics": 5, "quantiles": 3, "dropped": 2}),
    "crossq": ("continuous", {"wider": 2, "renorm_after": 2, "target_entropy": -0.7}),
    "crossq:alike": ("continuous", {"wider": 1, "renorm_after": 0, "policy_delay": 1, "beta1": 0.9}),
    "crossq:warming": ("continuous", {"wider": 3, "renorm_rate": 0.5, "policy_delay": 2, "learn_alpha": False}),
    "tqc:whole": ("continuous", {"critics": 3, "quantiles": 2, "dropped": 0, "learn_alpha": False}),
    "redq": ("continuous", {"critics": 4, "policy_delay": 2, "target_entropy": -0.7}),
    "redq:all": ("continuous", {"critics": 3, "subset": 3, "learn_alpha": False}),
    "redq:one": ("continuous", {"critics": 5, "subset": 1}),
    "iql": ("discrete", {}),
    "iql:continuous": ("continuous", {"weight_limit": 1.5}),
    "ppo": ("discrete", {}),
    "ppo:shared": ("discrete", {**SHARED, "clip_value": True}),
    "ppo:unmasked": ("discrete", {}),
    "ppo:continuous": ("continuous", {"normalise_advantage": False}),
    "ppo:squashed": ("continuous", {**SHARED, "squash": True, "clip_value": True}),
}
each_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Whatever is made without a type is in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Given:
    """A case: its algorithm, its configuration and three unlike members in one cohort."""

    def __init__(self, case: str) -> None:
        kind, config = CASES[case]
        self.name, self.masked = case.partition(":")[0], kind == "discrete" and not case.endswith("unmasked")
        self.algo, self.spaces = algos.get(self.name), SPACES[kind]
        self.cfg = self.algo.Config(**config).at(self.spaces)
        self.widths = self.algo.networks(self.cfg, self.spaces)
        names = evolvable(self.algo.Config)
        keys = [int(key) for key in member_keys(3, range(P))]
        bare = [
            Member(i, i, None, keys[i], ARCHS[i], {n: UNLIKE[n][i] if n in UNLIKE else 1.0 for n in names}, {})
            for i in range(P)
        ]
        rows = {
            name: [m.arch.initialise(w, host(m.key, Purpose.INIT, i)) for m in bare]
            for i, (name, w) in enumerate(self.widths.items())
        }
        self.fresh = create(bare, partial(self.algo.init, self.cfg), rows, self.widths)
        g, self.members = torch.Generator().manual_seed(1), []
        for m in self.fresh:
            tensors = {name: x.to(torch.get_default_dtype(), copy=True) for name, x in m.tensors.items()}
            for name, (what, of_network) in tensor_kinds(self.algo.State, self.widths).items():
                if what == "parameters":  # so that outputs are of some size, and targets unlike what they follow
                    tensors[name] += 0.3 * torch.randn(tensors[name].shape, generator=g)
                    for part, row in m.arch.named(self.widths[of_network], tensors[name]).items():
                        if part.endswith("norm"):  # a variance is none below 0
                            row.view(4, -1)[3].abs_()
                elif what == "scales":
                    tensors[name] *= 1.0 + torch.rand(tensors[name].shape, generator=g)
            tensors["updates"] += (0, 1, 5)[m.slot]
            if "log_alpha" in tensors:
                tensors["log_alpha"] = torch.tensor([-1.0, 0.5, -3.0])[m.slot]
                if self.spaces.continuous:  # deviations far beyond what they are clamped to
                    bias = m.arch.named(self.widths["actor"], tensors["actor"])["output.bias"]
                    bias[A:] += (0.0, 4.0, -30.0)[m.slot]
            if "log_std" in tensors:
                tensors["log_std"] += 0.1 * torch.randn(tensors["log_std"].shape, generator=g)
            self.members.append(replace(m, tensors=tensors))

    @property
    def on_policy(self) -> bool:
        return algos.on_policy(self.algo)

    @property
    def period(self) -> int:
        found = getattr(self.algo, "period", None)
        return found(self.cfg) if found else 1

    def cohort(self) -> Cohort:
        """A new cohort of the members; its one and only group."""
        (cohort,) = form(self.members, self.algo.State, self.widths, torch.device("cpu"), EnvSpec.pace)
        hyper = {name: torch.tensor([m.hyper[name] for m in cohort.members]) for name in cohort.hyper}
        return replace(cohort, hyper=hyper)

    def turns(self) -> list[int]:
        """Of some updates: two rounds of unlike ones; of a rollout its first minibatch, the others, another rollout."""
        return [0, 1, 1, 0] if self.on_policy else [*range(self.period)] * 2 + [0] * (self.period < 2)

    def update(self, cohort: Cohort, turn: int, at: int) -> Learned:
        """The cohort's tensors change in place."""
        batch = self.steps(cohort, at) if self.on_policy else self.transitions(at)
        draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([at]))
        learned = self.algo.update(self.cfg, cohort.state, cohort.hyper, batch, cohort.healthy, draw, turn)
        cohort.healthy.copy_(learned.healthy)
        return learned

    def updated(self, cohort: Cohort, turn: int, at: int) -> list[Member]:
        """The cohort's members after an update."""
        self.update(cohort, turn, at)
        return dissolve([cohort])

    def masks(self, g: torch.Generator, action: torch.Tensor) -> torch.Tensor | None:
        """Legal actions, those taken among them."""
        if not self.masked:
            return None
        return (torch.rand(*action.shape, A, generator=g) < 0.4).scatter(-1, action[..., None], True)

    def transitions(self, at: int) -> Batch:
        """Some terminated, masked where actions can be, with weights of no special shape."""
        g = torch.Generator().manual_seed(10 + at)
        weight = torch.rand(P, B, generator=g) * (torch.rand(P, B, generator=g) < 0.8)
        action = torch.randint(A, (P, B), generator=g)
        legal, next_legal = (self.masks(g, each) for each in (action, action.roll(1)))
        if self.spaces.continuous:
            action = 2 * torch.rand(P, B, A, generator=g) - 1
        return Batch(
            obs=torch.randn(P, B, OBS, generator=g), action=action, reward=2 * torch.randn(P, B, generator=g),
            discount=0.9 * (torch.rand(P, B, generator=g) > 0.3), next_obs=torch.randn(P, B, OBS, generator=g),
            next_legal=next_legal, weight=weight / weight.sum(dim=1, keepdim=True),
            legal=legal if getattr(self.algo, "MASKED_LOSS", False) else None,
        )  # fmt: skip

    def steps(self, cohort: Cohort, at: int) -> Sequences:
        """What policies have done, in sequences of one step.

        In the second minibatch the last member has none. The third and the fourth are what the second member's policy
        does: it is not far from itself.
        """
        g, shape = torch.Generator().manual_seed(10 + at), (P, B, 1)
        batch = self.transitions(at)
        batch.weight[2] *= at != 1
        log_prob = -2.0 - torch.rand(shape, generator=g)
        if self.spaces.continuous:
            log_prob = -0.5 * A * (1.0 + torch.rand(shape, generator=g))
        done = Sequences(
            obs=batch.obs[:, :, None], action=batch.action[:, :, None],
            legal=self.masks(g, batch.action[:, :, None]),
            log_prob=log_prob, value=torch.randn(shape, generator=g), advantage=3 * torch.randn(shape, generator=g),
            target=torch.randn(shape, generator=g), begins=torch.zeros(shape, dtype=torch.bool),
            memory=torch.zeros(P, B, 0), weight=batch.weight[..., None],
        )  # fmt: skip
        if at >= 2:
            algo: Any = self.algo
            with torch.no_grad():
                chances, _ = algo._evaluate(self.cfg, cohort.state, done, cohort.state.log_std)
            log_prob[1] = chances.log_prob(done.action.flatten(1, 2))[1, :, None]
        return done


class Agent:
    """One member: its tensors by name, networks as flat leaves, and torch's own Adam for each that learns."""

    def __init__(self, given: Given, member: Member) -> None:
        self.cfg, self.arch, self.widths, self.hyper = given.cfg, member.arch, given.widths, member.hyper
        self.name, self.continuous, self.policy = given.name, given.spaces.continuous, given.algo.POLICY
        kinds = tensor_kinds(given.algo.State, given.widths)
        self.of = {name: of for name, (_, of) in kinds.items()}
        self.moved = [name.removesuffix(".mean") for name in kinds if name.endswith(".mean")]
        self.values = {
            name: member.tensors[name].clone().requires_grad_()
            for name, (kind, _) in kinds.items()
            if kind in ("parameters", "scales")
        } | {n: member.tensors[n].clone().requires_grad_() for n in ("log_alpha", "log_std") if n in member.tensors}
        self.adams: dict[str, torch.optim.Adam] = {}
        self.updates, self.resting = int(member.tensors["updates"]), False
        self.idle = False  # whether it did not learn from the last batch

    def net(self, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        return function(self.arch, self.widths[self.of[name]], self.values[name], torch.cat(inputs, dim=-1))

    def noisy(self, name: str, scale: str, draw: Stream, x: torch.Tensor) -> torch.Tensor:
        """A network whose every number behind the latent has noise: ε by the program, of this member alone."""
        widths = self.widths[self.of[name]]
        shape = self.arch.stack([self.arch], widths, torch.device("cpu"))
        zeros = torch.zeros(1, shape.size)
        eps = noisy(Net(shape, zeros), Net(shape, torch.ones_like(zeros)), draw)
        parts, sigma = (self.arch.named(widths, self.values[each]) for each in (name, scale))
        heard = dict(parts)
        for layer, views in (("head.0", eps[-2]), ("output", eps[-1])):
            rows, columns = parts[f"{layer}.weight"].shape
            for part, drawn in (("weight", views.weight[0, :rows, :columns]), ("bias", views.bias[0, 0, :columns])):
                heard[f"{layer}.{part}"] = parts[f"{layer}.{part}"] + sigma[f"{layer}.{part}"] * drawn
        return network(self.arch, heard, x)

    def encoded(self, obs: torch.Tensor, target: bool = False) -> torch.Tensor:
        name = "encoder_target" if target else "encoder"
        return self.net(name, obs) if name in self.values else obs

    def q(self, name: str, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Q(s, a): a head reads the action first, a whole network the observation."""
        return self.net(name, *((action, x) if "encoder" in self.values else (x, action)))[:, 0]

    def descend(self, loss: torch.Tensor, together: bool = False, **rates: float) -> None:
        """One step down a loss: gradients of each network by itself, or of all as one vector, are clipped to the limit.

        `__` in a name is a dot.
        """
        names = {
            name.replace("__", "."): rate for name, rate in rates.items() if name.replace("__", ".") in self.values
        }
        leaves = [self.values[name] for name in names]
        for leaf, grad in zip(leaves, torch.autograd.grad(loss, leaves, materialize_grads=True), strict=True):
            leaf.grad = grad
        for group in [leaves] if together else [[leaf] for leaf in leaves]:
            torch.nn.utils.clip_grad_norm_(group, self.hyper["grad_clip"])
        for name, rate in names.items():
            self.step(name, rate)

    def step(self, name: str, rate: float) -> None:
        if name not in self.adams:
            beta1 = 0.9 if name == "log_alpha" else getattr(self.cfg, "beta1", 0.9)
            self.adams[name] = torch.optim.Adam([self.values[name]], lr=rate, betas=(beta1, 0.999))
        self.adams[name].step()

    def follow(self, share: float, **pairs: str) -> None:
        """Mix so much of networks into their targets."""
        for target, online in pairs.items():
            for suffix in ("", *(f".{name}" for name in CRITICS)):
                if target + suffix in self.values:
                    with torch.no_grad():
                        t, o = self.values[target + suffix], self.values[online + suffix]
                        t.copy_((1 - share) * t + share * o)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything by a member's names."""
        found = {name: value.detach() for name, value in self.values.items()}
        for name in self.moved:
            mean, square, steps = self.moments(self.policy if name == "adam" else name.replace("_adam", ""))
            found |= {f"{name}.mean": mean, f"{name}.square": square, f"{name}.steps": steps}
        for name in ("log_alpha", "log_std"):
            if name in self.values:
                mean, square, steps = self.moments(name)
                found[f"{name}_adam"] = torch.stack((mean, square, steps.expand_as(mean)), dim=-1)
        return found | {"updates": torch.tensor(float(self.updates)), "resting": torch.tensor(float(self.resting))}

    def moments(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        zeros = torch.zeros_like(self.values[name])
        state = self.adams[name].state[self.values[name]] if name in self.adams else {}
        return state.get("exp_avg", zeros), state.get("exp_avg_sq", zeros), torch.as_tensor(state.get("step", 0.0))


def best(values: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """The best legal action `[B]`."""
    return (values if legal is None else values.masked_fill(~legal, -math.inf)).argmax(dim=1)


def of(values: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return values[torch.arange(len(action)), action]


def log_softmax(logits: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    return (logits if legal is None else logits.masked_fill(~legal, -math.inf)).log_softmax(dim=1)


Drawn = Callable[[Stream], torch.Tensor]
Found = tuple[torch.Tensor, torch.Tensor | None]
"""The loss that is told, and how wrong each transition was found."""


def bc(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    out = agent.net("actor", batch.obs)
    if agent.continuous:
        loss = ((torch.tanh(out) - batch.action) ** 2).mean(dim=1)
    else:
        loss = -of(out.log_softmax(dim=1), batch.action)
    loss = (batch.weight * loss).sum()
    agent.descend(loss, actor=agent.hyper["lr"])
    return loss, None


def fit(cfg: Any, error: torch.Tensor) -> torch.Tensor:
    return (
        huber_loss(error, torch.zeros(()).expand_as(error), reduction="none") if cfg.loss == "huber" else error**2 / 2
    )


def bootstrapped(agent: Agent, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        after = agent.net("target", batch.next_obs)
        chooses = agent.net("q", batch.next_obs) if agent.cfg.double else after
        return batch.reward + batch.discount * of(after, best(chooses, batch.next_legal))


def dqn(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    error = of(agent.net("q", batch.obs), batch.action) - bootstrapped(agent, batch)
    loss = (batch.weight * fit(agent.cfg, error)).sum()
    agent.descend(loss, q=agent.hyper["lr"])
    agent.follow(agent.hyper["tau"], target="q")
    return loss, error


def cqn(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    q = agent.net("q", batch.obs)
    error = of(q, batch.action) - bootstrapped(agent, batch)
    assert batch.legal is not None
    gap = q.masked_fill(~batch.legal, -math.inf).logsumexp(dim=1) - of(q, batch.action)
    loss = (batch.weight * (fit(agent.cfg, error) + agent.hyper["alpha"] * gap)).sum()
    agent.descend(loss, q=agent.hyper["lr"])
    agent.follow(agent.hyper["tau"], target="q")
    return loss, error


def rainbow(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    cfg, atoms = agent.cfg, agent.cfg.atoms if agent.cfg.distributional else 1
    z = torch.linspace(cfg.v_min, cfg.v_max, atoms)

    def out(name: str, scale: str, part: int, obs: torch.Tensor) -> torch.Tensor:
        flat = agent.noisy(name, scale, draw.part(part), obs) if cfg.noisy else agent.net(name, obs)
        found = flat.view(B, -1, atoms)
        return found[:, :1] + found[:, 1:] - found[:, 1:].mean(dim=1, keepdim=True) if cfg.dueling else found

    def mean(found: torch.Tensor) -> torch.Tensor:
        return (found.softmax(dim=2) * z).sum(dim=2) if cfg.distributional else found[:, :, 0]

    with torch.no_grad():
        after = out("target", "noise_target", 2, batch.next_obs)
        chooses = out("q", "noise", 1, batch.next_obs) if cfg.double else after
        after = of(after, best(mean(chooses), batch.next_legal))
    now = of(out("q", "noise", 1, batch.obs), batch.action)
    if cfg.distributional:
        apart, y, p = z[1] - z[0], torch.zeros(B, atoms), after.softmax(dim=1)
        for b in range(B):
            for j in range(atoms):
                at = ((batch.reward[b] + batch.discount[b] * z[j]).clamp(z[0], z[-1]) - z[0]) / apart
                for k in range(atoms):  # a triangle of an atom's width on each side
                    y[b, k] += p[b, j] * max(0.0, 1.0 - abs(float(at) - k))
        each = -(y * now.log_softmax(dim=1)).sum(dim=1)
        error = each + torch.xlogy(y, y).sum(dim=1)
    else:
        error = now[:, 0] - (batch.reward + batch.discount * after[:, 0])
        each = fit(Huber, error)
    loss = (batch.weight * each).sum()
    if cfg.noisy:
        agent.descend(loss, q=agent.hyper["lr"], noise=agent.hyper["lr"])
    else:
        agent.descend(loss, q=agent.hyper["lr"])
    agent.follow(agent.hyper["tau"], target="q", noise_target="noise")
    return loss, error


def acts(out: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions of a squashed Gaussian policy by its outputs `[B, 2 A]`, and their log-densities `[B]`."""
    mean, log_std = out[:, :A], out[:, A:].clamp(-20, 2)
    u = mean + log_std.exp() * noise.view(B, A)
    log_pi = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) + 2 * torch.cosh(u).log()
    return torch.tanh(u), log_pi.sum(dim=1)


def temper(agent: Agent, batch: Batch, log_pi: torch.Tensor) -> None:
    """A step of the temperature, of continuous actions."""
    if agent.cfg.learn_alpha:
        aim = -float(A) if agent.cfg.target_entropy == "auto" else agent.cfg.target_entropy
        agent.values["log_alpha"].grad = (batch.weight * (-log_pi.detach() - aim)).sum()
        agent.step("log_alpha", agent.hyper["lr_alpha"])


def tqc(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    """Kuznetsov et al. (2020), section 4, a transition at a time."""
    alpha, cfg = float(agent.values["log_alpha"].detach().exp()), agent.cfg
    names = [f"critic_{k}" for k in range(1, cfg.critics + 1)]

    y: list[list[torch.Tensor]] = []
    with torch.no_grad():
        action, log_pi = acts(agent.net("actor", batch.next_obs), drawn(draw))
        after = [agent.net(f"critics_target.{name}", batch.next_obs, action) for name in names]
        for b in range(B):
            pooled = sorted((z for of_one in after for z in of_one[b]), key=float)
            kept = pooled[: len(pooled) - cfg.dropped * cfg.critics]
            y.append([batch.reward[b] + batch.discount[b] * (z - alpha * log_pi[b]) for z in kept])
    now = [agent.net(f"critics.{name}", batch.obs, batch.action) for name in names]
    loss, errors = torch.zeros(()), torch.zeros(B)
    for theta in now:
        for b in range(B):
            targets = torch.stack(y[b])
            loss = loss + batch.weight[b] * by_quantiles(theta[b], targets) / cfg.quantiles
            errors[b] += abs(float(theta[b].detach().mean() - targets.mean())) / cfg.critics
    agent.descend(loss, **{f"critics__{name}": agent.hyper["lr_critic"] for name in names})
    action, log_pi = acts(agent.net("actor", batch.obs), drawn(draw.part(1)))
    q = torch.cat([agent.net(f"critics.{name}", batch.obs, action) for name in names], dim=1).mean(dim=1)
    agent.descend((batch.weight * (alpha * log_pi - q)).sum(), actor=agent.hyper["lr_actor"])
    temper(agent, batch, log_pi)
    agent.follow(agent.hyper["tau"], critics_target="critics")
    return loss, errors


def redq(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    """Chen et al. (2021), algorithm 1."""
    alpha, cfg = float(agent.values["log_alpha"].detach().exp()), agent.cfg

    with torch.no_grad():
        action, log_pi = acts(agent.net("actor", batch.next_obs), drawn(draw))
        after = of_critics(agent, "critics_target", batch.next_obs, action)[..., 0]
        numbers = draw.part(2).uniform(cfg.critics)[0].tolist()
        subset = sorted(range(cfg.critics), key=numbers.__getitem__)[: cfg.subset]
        y = batch.reward + batch.discount * (after[subset].amin(dim=0) - alpha * log_pi)
    errors = of_critics(agent, "critics", batch.obs, batch.action)[..., 0] - y
    loss = 0.5 * (batch.weight * errors**2).sum()
    names = [f"critic_{k}" for k in range(1, cfg.critics + 1)]
    agent.descend(loss, **{f"critics__{name}": agent.hyper["lr_critic"] for name in names})
    if turn == cfg.policy_delay - 1:
        action, log_pi = acts(agent.net("actor", batch.obs), drawn(draw.part(1)))
        q = of_critics(agent, "critics", batch.obs, action).mean(dim=(0, 2))
        agent.descend((batch.weight * (alpha * log_pi - q)).sum(), actor=agent.hyper["lr_actor"])
        temper(agent, batch, log_pi)
    agent.follow(agent.hyper["tau"], critics_target="critics")
    return loss, errors.detach().abs().mean(dim=0)


def crossq(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    """Bhatt et al. (2024), and algorithm 1 of Ioffe (2017) where a layer reads."""
    alpha, cfg = float(agent.values["log_alpha"].detach().exp()), agent.cfg
    present = (batch.weight > 0).repeat(2)
    moves: list[tuple[torch.Tensor, torch.Tensor]] = []  # of running statistics, those of the minibatch

    def by_minibatch(name: str, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        gain, shift, mean, variance = norm.view(4, -1)
        mean, variance = mean.detach(), variance.detach()
        own, own_variance = x[present].mean(dim=0), x[present].var(dim=0, correction=0)
        sigma_b, sigma = (own_variance + 1e-3).sqrt(), (variance + 1e-3).sqrt()
        r, d = (sigma_b / sigma).detach().clamp(1 / 3, 3), ((own - mean) / sigma).detach().clamp(-5, 5)
        if agent.updates < cfg.renorm_after:
            r, d = torch.ones_like(r), torch.zeros_like(d)
        moves.append((norm, torch.cat((own, own_variance)).detach()))
        return gain * ((x - own) / sigma_b * r + d) + shift

    with torch.no_grad():
        action, log_pi = acts(agent.net("actor", batch.next_obs), drawn(draw))
    both = torch.cat((torch.cat((batch.obs, batch.action), dim=1), torch.cat((batch.next_obs, action), dim=1)))
    names = ("critics.critic_1", "critics.critic_2")
    q = [
        function(agent.arch, agent.widths[agent.of[n]], agent.values[n], both, by_minibatch)[:, 0].chunk(2)
        for n in names
    ]
    after = torch.minimum(q[0][1], q[1][1]).detach()
    y = batch.reward + batch.discount * (after - alpha * log_pi)
    errors = [each[0] - y for each in q]
    loss = sum(0.5 * (batch.weight * e**2).sum() for e in errors)
    assert isinstance(loss, torch.Tensor)
    agent.descend(loss, **{n.replace(".", "__"): agent.hyper["lr_critic"] for n in names})
    with torch.no_grad():
        for norm, found in moves:
            running = norm.detach()[len(norm) // 2 :]
            running += cfg.renorm_rate * (found - running)
    if turn == cfg.policy_delay - 1:
        action, log_pi = acts(agent.net("actor", batch.obs), drawn(draw.part(1)))
        least = torch.minimum(*(agent.net(n, batch.obs, action)[:, 0] for n in names))
        agent.descend((batch.weight * (alpha * log_pi - least)).sum(), actor=agent.hyper["lr_actor"])
        temper(agent, batch, log_pi)
    return loss, (errors[0].abs() + errors[1].abs()) / 2


class Huber:
    loss = "huber"


def by_quantiles(theta: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Algorithm 1 of Dabney et al. (2018) for one transition: θ `[N]` at the midpoints against targets `[M]`."""
    total = torch.zeros(())
    for i, value in enumerate(theta, 1):
        tau = (2 * i - 1) / (2 * len(theta))
        for each in targets:
            u = each - value
            total = total + abs(tau - float(u < 0)) * (0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5) / len(targets)
    return total


def qrdqn(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    with torch.no_grad():
        after = agent.net("target", batch.next_obs).view(B, A, -1)
        chooses = agent.net("q", batch.next_obs).view(B, A, -1) if agent.cfg.double else after
        after = of(after, best(chooses.mean(dim=2), batch.next_legal))
        y = batch.reward[:, None] + batch.discount[:, None] * after
    now = of(agent.net("q", batch.obs).view(B, A, -1), batch.action)
    loss = (batch.weight * torch.stack([by_quantiles(*each) for each in zip(now, y, strict=True)])).sum()
    agent.descend(loss, q=agent.hyper["lr"])
    agent.follow(agent.hyper["tau"], target="q")
    return loss, now.mean(dim=1) - y.mean(dim=1)


def ddpg(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    with torch.no_grad():
        after = agent.encoded(batch.next_obs, target=True)
        action = torch.tanh(agent.net("actor_target", after))
        y = batch.reward + batch.discount * agent.q("critic_target", after, action)
    error = agent.q("critic", agent.encoded(batch.obs), batch.action) - y
    loss = (batch.weight * error**2).sum()
    agent.descend(loss, critic=agent.hyper["lr_critic"], encoder=agent.hyper["lr_critic"])
    if turn == agent.cfg.policy_delay - 1:
        x = agent.encoded(batch.obs).detach()
        climb = -(batch.weight * agent.q("critic", x, torch.tanh(agent.net("actor", x)))).sum()
        agent.descend(climb, actor=agent.hyper["lr_actor"])
        agent.follow(agent.hyper["tau"], encoder_target="encoder", actor_target="actor", critic_target="critic")
    return loss, error


def twins(agent: Agent, name: str, x: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
    return [agent.q(f"{name}.critic_{k}", x, action) for k in (1, 2)]


def squares(batch: Batch, values: Sequence[torch.Tensor], y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted squared errors of both critics, and the mean of their sizes."""
    errors = torch.stack([value - y for value in values])
    return (batch.weight * errors**2).sum(), errors.abs().mean(dim=0)


def smoothed(agent: Agent, batch: Batch, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The critics' loss of TD3."""
    deviation, limit = agent.hyper["target_noise"], agent.hyper["target_clip"]
    with torch.no_grad():
        after = agent.encoded(batch.next_obs, target=True)
        blur = (deviation * noise.view(B, A)).clamp(-limit, limit)
        action = (torch.tanh(agent.net("actor_target", after)) + blur).clamp(-1, 1)
        y = batch.reward + batch.discount * torch.minimum(*twins(agent, "critics_target", after, action))
    return squares(batch, twins(agent, "critics", agent.encoded(batch.obs), batch.action), y)


def td3(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    rate = agent.hyper["lr_critic"]
    loss, errors = smoothed(agent, batch, drawn(draw))
    agent.descend(loss, critics__critic_1=rate, critics__critic_2=rate, encoder=rate)
    if turn == agent.cfg.policy_delay - 1:
        x = agent.encoded(batch.obs).detach()
        climb = -(batch.weight * agent.q("critics.critic_1", x, torch.tanh(agent.net("actor", x)))).sum()
        agent.descend(climb, actor=agent.hyper["lr_actor"])
        agent.follow(agent.hyper["tau"], encoder_target="encoder", actor_target="actor", critics_target="critics")
    return loss, errors


def td3bc(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    rate = agent.hyper["lr_critic"]
    loss, errors = smoothed(agent, batch, drawn(draw))
    agent.descend(loss, critics__critic_1=rate, critics__critic_2=rate)
    if turn == agent.cfg.policy_delay - 1:
        action = torch.tanh(agent.net("actor", batch.obs))
        q = agent.q("critics.critic_1", batch.obs, action)
        scale = agent.hyper["alpha"] / float((batch.weight * q.detach().abs()).sum())
        climb = (batch.weight * (((action - batch.action) ** 2).mean(dim=1) - scale * q)).sum()
        agent.descend(climb, actor=agent.hyper["lr_actor"])
        agent.follow(agent.hyper["tau"], actor_target="actor", critics_target="critics")
    return loss, errors


def sac(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    alpha, cfg = float(agent.values["log_alpha"].detach().exp()), agent.cfg

    def expected(
        x: torch.Tensor, critics: str, read: torch.Tensor, legal: torch.Tensor | None, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """E[min Q − α log π] `[B]`, and the entropy."""
        out = agent.net("actor", x)
        if agent.continuous:
            action, log_pi = acts(out, noise)
            return torch.minimum(*twins(agent, critics, read, action)) - alpha * log_pi, -log_pi
        log_pi = log_softmax(out, legal)
        pi, log_pi = log_pi.exp(), log_pi.clamp(min=-1e9)
        q = torch.minimum(*(agent.net(f"{critics}.critic_{k}", read) for k in (1, 2)))
        return (pi * (q - alpha * log_pi)).sum(dim=1), -(pi * log_pi).sum(dim=1)

    with torch.no_grad():
        after, after_t = (agent.encoded(batch.next_obs, target=t) for t in (False, True))
        y = batch.reward + batch.discount * expected(
            after, "critics_target", after_t, batch.next_legal, drawn(draw)
        )[0]  # fmt: skip
    x = agent.encoded(batch.obs)
    if agent.continuous:
        values = twins(agent, "critics", x, batch.action)
    else:
        values = [of(agent.net(f"critics.critic_{k}", x), batch.action) for k in (1, 2)]
    loss, errors = squares(batch, values, y)
    loss = loss / 2
    rate = agent.hyper["lr_critic"]
    agent.descend(loss, critics__critic_1=rate, critics__critic_2=rate, encoder=rate)
    x = agent.encoded(batch.obs).detach()
    climb, entropy = expected(x, "critics", x, batch.legal, drawn(draw.part(1)))
    agent.descend(-(batch.weight * climb).sum(), actor=agent.hyper["lr_actor"])
    if cfg.learn_alpha:
        if cfg.target_entropy != "auto":
            aim = torch.tensor(cfg.target_entropy)
        else:
            legal = torch.full((B,), A) if batch.legal is None else batch.legal.sum(dim=1)
            aim = torch.tensor(-float(A)) if agent.continuous else 0.6 * legal.log()
        agent.values["log_alpha"].grad = (batch.weight * (entropy.detach() - aim)).sum()
        agent.step("log_alpha", agent.hyper["lr_alpha"])
    agent.follow(agent.hyper["tau"], encoder_target="encoder", critics_target="critics")
    return loss, errors


def iql(agent: Agent, batch: Batch, draw: Stream, drawn: Drawn, turn: int) -> Found:
    def taken(name: str) -> list[torch.Tensor]:
        if agent.continuous:
            return twins(agent, name, batch.obs, batch.action)
        return [of(agent.net(f"{name}.critic_{k}", batch.obs), batch.action) for k in (1, 2)]

    value, rate, hyper = agent.net("value", batch.obs)[:, 0], agent.hyper["lr_critic"], agent.hyper
    advantage = torch.minimum(*taken("critics_target")).detach() - value
    y = (batch.reward + batch.discount * agent.net("value", batch.next_obs)[:, 0]).detach()
    share = torch.where(advantage < 0, 1 - hyper["expectile"], hyper["expectile"])
    fits, errors = squares(batch, taken("critics"), y)
    fits = fits + (batch.weight * share * advantage**2).sum()
    out = agent.net("actor", batch.obs)
    if agent.continuous:
        log_pi = -0.5 * ((torch.tanh(out) - batch.action) ** 2).sum(dim=1)
    else:
        log_pi = of(log_softmax(out, batch.legal), batch.action)
    weight = (hyper["beta"] * advantage.detach()).exp().clamp(max=agent.cfg.weight_limit)
    imitation = -(batch.weight * weight * log_pi).sum()
    agent.descend(fits + imitation, value=rate, critics__critic_1=rate, critics__critic_2=rate, actor=hyper["lr_actor"])
    agent.follow(hyper["tau"], critics_target="critics")
    return fits, errors


def ppo(agent: Agent, batch: Sequences, draw: Stream, drawn: Drawn, turn: int) -> Found:
    cfg, hyper = agent.cfg, agent.hyper
    obs, action, log_prob, old, target, weight, advantage = (
        each[:, 0]
        for each in (batch.obs, batch.action, batch.log_prob, batch.value, batch.target, batch.weight, batch.advantage)
    )
    if cfg.normalise_advantage:
        mean = (weight * advantage).sum()
        advantage = (advantage - mean) / ((weight * (advantage - mean) ** 2).sum().sqrt() + 1e-8)
    x = agent.encoded(obs)
    value, out = agent.net("critic", x)[:, 0], agent.net("actor", x)
    legal = None if batch.legal is None else batch.legal[:, 0]
    chances: Any = torch.distributions.Categorical(
        logits=out if legal is None else out.masked_fill(~legal, torch.finfo(out.dtype).min)
    )
    if agent.continuous:
        chances = torch.distributions.Independent(torch.distributions.Normal(out, agent.values["log_std"].exp()), 1)
        entropy = chances.entropy()
        if cfg.squash:
            chances = torch.distributions.TransformedDistribution(chances, [torch.distributions.TanhTransform()])
    else:
        entropy = chances.entropy()
    apart = chances.log_prob(action) - log_prob
    ratio, clip = apart.exp(), hyper["clip"]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    error = (value - target) ** 2
    if cfg.clip_value:
        error = torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target) ** 2)
    loss = (weight * (-gain + hyper["vf_coef"] * error / 2 - hyper["ent_coef"] * entropy)).sum()
    far = hyper["target_kl"] > 0 and float((weight * (ratio - 1 - apart)).detach().sum()) > hyper["target_kl"]
    agent.resting = far or (agent.resting and turn > 0)
    agent.idle = agent.resting or not weight.any()
    if not agent.idle:
        rate = hyper["lr"]
        if agent.continuous:
            agent.descend(loss, True, encoder=rate, actor=rate, critic=rate, log_std=rate)
        else:
            agent.descend(loss, True, encoder=rate, actor=rate, critic=rate)
    return loss, None


PAPERS: Mapping[str, Callable[..., Found]] = {
    each.__name__: each for each in (bc, cqn, crossq, ddpg, dqn, iql, ppo, qrdqn, rainbow, redq, sac, td3, td3bc, tqc)
}


def row(batch: Any, i: int) -> Any:
    """One member's share of a batch."""
    found = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{name: None if x is None else x[i] for name, x in found.items()})


@each_case
def test_updates_are_those_of_one_agent_a_member(case: str) -> None:
    """Weights, targets, moments, temperatures, counts: each member's by its own hyper-parameters."""
    given = Given(case)
    cohort = given.cohort()
    agents = [Agent(given, m) for m in given.members]
    assert given.period == getattr(given.cfg, "policy_delay", 1)
    for at, turn in enumerate(given.turns()):
        batch = given.steps(cohort, at) if given.on_policy else given.transitions(at)
        learned = given.update(cohort, turn, at)
        assert learned.healthy.all()
        members = dissolve([cohort])
        for i, (agent, member) in enumerate(zip(agents, members, strict=True)):
            draw = Stream(cohort.keys[i : i + 1], Purpose.UPDATE, torch.tensor([at]))
            paper = PAPERS[given.name]
            loss, errors = paper(agent, row(batch, i), draw, lambda of: of.normal(B * A)[0].double(), turn)
            agent.updates += not agent.idle
            expected = agent.tensors()
            assert set(member.tensors) <= set(expected)
            torch.testing.assert_close(learned.losses[i], loss.detach(), rtol=1e-6, atol=1e-8)
            if learned.errors is not None:
                assert errors is not None
                torch.testing.assert_close(learned.errors[i].abs(), errors.detach().abs(), rtol=1e-6, atol=1e-8)
            assert (errors is None) == (learned.errors is None)
            for name, tensor in member.tensors.items():
                torch.testing.assert_close(
                    tensor.double(), expected[name].double(), rtol=1e-6, atol=1e-9,
                    msg=f"{name} of member {i} after update {at}: {{}}".format,
                )  # fmt: skip


class Watched(Agent):
    """An agent that keeps of its gradients, group by group of those clipped together, norms, and whether it clipped."""

    def __init__(self, given: Given, member: Member) -> None:
        super().__init__(given, member)
        self.norms: list[tuple[float, bool]] = []

    def descend(self, loss: torch.Tensor, together: bool = False, **rates: float) -> None:
        names = [name.replace("__", ".") for name in rates if name.replace("__", ".") in self.values]
        grads = torch.autograd.grad(
            loss, [self.values[name] for name in names], retain_graph=True, materialize_grads=True
        )
        norms = [float(grad.norm()) for grad in grads]
        norms = [math.hypot(*norms)] if together else norms
        self.norms += [(norm, norm > self.hyper["grad_clip"]) for norm in norms]
        super().descend(loss, together, **rates)


def told(agent: Agent, batch: Any, draw: Stream) -> dict[str, float]:
    """The signals of a member's minibatch by the papers' formulas, and by no more than numbers of one agent."""
    found: dict[str, torch.Tensor] = {}
    weight = (batch.weight / batch.weight.sum()).flatten()
    if agent.name == "bc":
        return {}
    if agent.name == "ppo":
        return told_of_ppo(agent, batch, weight)
    target = "critics_target" if "critics.critic_1" in agent.values else "critic_target"
    x, x_minus = agent.encoded(batch.obs), agent.encoded(batch.obs, target=True)

    def least(name: str, read: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        if agent.name in ("tqc", "redq"):
            return of_critics(agent, name, read, action).mean(dim=(0, 2))
        if name.startswith("critics"):
            if not agent.continuous:
                return torch.minimum(*(of(agent.net(f"{name}.critic_{k}", read), action) for k in (1, 2)))
            return torch.minimum(*twins(agent, name, read, action))
        return agent.q(name, read, action)

    if agent.name in ("dqn", "cqn", "qrdqn", "rainbow"):
        if agent.name == "rainbow":
            q, q_minus = (of_rainbow(agent, name, batch) for name in ("q", "target"))
        elif agent.name == "qrdqn":
            theta, theta_minus = (of(agent.net(n, batch.obs).view(B, A, -1), batch.action) for n in ("q", "target"))
            q, q_minus = theta.mean(dim=1), theta_minus.mean(dim=1)
            found["losses/quantile_low"] = (weight * theta.sort(dim=1).values[:, 0]).sum()
            found["losses/quantile_high"] = (weight * theta.sort(dim=1).values[:, -1]).sum()
        else:
            q, q_minus = (of(agent.net(name, batch.obs), batch.action) for name in ("q", "target"))
    else:
        online = target.removesuffix("_target")
        q = q_minus = least(online, x, batch.action)
        if agent.name != "crossq":
            q_minus = least(target, x_minus, batch.action)
        if agent.name in ("ddpg", "td3", "td3bc"):
            own = least(online, x, torch.tanh(agent.net("actor", x)))
            found["losses/actor_loss"] = -(weight * own).sum()
            if agent.name == "td3bc":
                found["losses/data_gap"] = (weight * (own - q)).sum()
        elif agent.name == "iql":
            out = agent.net("actor", batch.obs)
            own = least(online, x, torch.tanh(out) if agent.continuous else best(out, batch.legal))
            found["losses/data_gap"] = (weight * (own - q)).sum()
    if agent.name == "cqn":
        values = agent.net("q", batch.obs).masked_fill(~batch.legal, -math.inf)
        found["losses/data_gap"] = (weight * (values.amax(dim=1) - q)).sum()
    if agent.name == "tqc":
        theta = of_critics(agent, "critics", x, batch.action)
        found["losses/quantile_low"] = (weight * theta.amin(dim=(0, 2))).sum()
        found["losses/quantile_high"] = (weight * theta.amax(dim=(0, 2))).sum()
    if agent.name in SOFT:
        alpha, out = agent.values["log_alpha"].exp(), agent.net("actor", x)
        found["losses/alpha"] = alpha
        if agent.continuous:
            mean, log_std = out[:, :A], out[:, A:].clamp(-20, 2)
            u = mean + log_std.exp() * draw.normal(B * A)[0].double().view(B, A)
            normal = torch.distributions.Normal(mean, log_std.exp())
            log_pi = (normal.log_prob(u) + 2 * torch.cosh(u).log()).sum(dim=1)
            each, entropy = alpha * log_pi - least("critics", x, torch.tanh(u)), -log_pi
            found["losses/log_std"] = (weight * log_std.mean(dim=1)).sum()
        else:
            log_pi = log_softmax(out, batch.legal)
            pi, log_pi = log_pi.exp(), log_pi.clamp(min=-1e9)
            both = torch.minimum(*(agent.net(f"critics.critic_{k}", x) for k in (1, 2)))
            each, entropy = (pi * (alpha * log_pi - both)).sum(dim=1), -(pi * log_pi).sum(dim=1)
        found |= {"losses/actor_loss": (weight * each).sum(), "losses/entropy": (weight * entropy).sum()}
    if agent.name == "rainbow" and agent.cfg.distributional:
        ends = of(rainbow_logits(agent, "q", batch), batch.action).softmax(dim=1)
        found |= {
            "losses/support_low": (weight * ends[:, 0]).sum(),
            "losses/support_high": (weight * ends[:, -1]).sum(),
        }
    found |= {
        "losses/q_values": (weight * q).sum(),
        "losses/q_values_max": q[weight > 0].max(),
        "losses/target_gap": (weight * (q - q_minus).abs()).sum(),
    }
    if agent.name == "crossq":
        del found["losses/target_gap"]
    return {name: float(value.detach()) for name, value in found.items()}


def of_critics(agent: Agent, name: str, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """What each of M critics says of an action: values or quantiles, `[M, B, outputs]`."""
    return torch.stack([agent.net(f"{name}.critic_{k}", x, action) for k in range(1, agent.cfg.critics + 1)])


def rainbow_logits(agent: Agent, name: str, batch: Batch) -> torch.Tensor:
    out = agent.net(name, batch.obs).view(B, -1, agent.cfg.atoms if agent.cfg.distributional else 1)
    return out[:, :1] + out[:, 1:] - out[:, 1:].mean(dim=1, keepdim=True) if agent.cfg.dueling else out


def of_rainbow(agent: Agent, name: str, batch: Batch) -> torch.Tensor:
    out = of(rainbow_logits(agent, name, batch), batch.action)
    z = torch.linspace(agent.cfg.v_min, agent.cfg.v_max, agent.cfg.atoms)
    return (out.softmax(dim=1) * z).sum(dim=1) if agent.cfg.distributional else out[:, 0]


def told_of_ppo(agent: Agent, batch: Sequences, weight: torch.Tensor) -> dict[str, float]:
    cfg, clip = agent.cfg, agent.hyper["clip"]
    advantage, target, old = (x[:, 0] for x in (batch.advantage, batch.target, batch.value))
    if cfg.normalise_advantage:
        mean = (weight * advantage).sum()
        advantage = (advantage - mean) / ((weight * (advantage - mean) ** 2).sum().sqrt() + 1e-8)
    x = agent.encoded(batch.obs[:, 0])
    out, value = agent.net("actor", x), agent.net("critic", x)[:, 0]
    found = {}
    if agent.continuous:
        log_std = agent.values["log_std"]
        chances: Any = torch.distributions.Independent(torch.distributions.Normal(out, log_std.exp()), 1)
        entropy = chances.entropy()
        found["losses/log_std"] = float(log_std.detach().mean())
        if cfg.squash:
            chances = torch.distributions.TransformedDistribution(chances, [torch.distributions.TanhTransform()])
    else:
        legal = None if batch.legal is None else batch.legal[:, 0]
        low = torch.finfo(out.dtype).min
        chances = torch.distributions.Categorical(logits=out if legal is None else out.masked_fill(~legal, low))
        entropy = chances.entropy()
    apart = chances.log_prob(batch.action[:, 0]) - batch.log_prob[:, 0]
    ratio = apart.exp()
    error = (value - target) ** 2
    if cfg.clip_value:
        error = torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target) ** 2)
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    sums = {
        "losses/policy_loss": -gain, "losses/value_loss": error / 2, "losses/entropy": entropy,
        "losses/approx_kl": ratio - 1 - apart, "losses/clipfrac": ((ratio - 1).abs() > clip).double(),
    }  # fmt: skip
    return found | {name: float((weight * each).sum().detach()) for name, each in sums.items()}


def told_of_play(agent: Agent, batch: Any, draw: Stream, offline: bool) -> dict[str, float]:
    """What any algorithm's minibatch tells of its environment, and how far exploring actions lie from the greedy."""
    weight, sequences = (batch.weight / batch.weight.sum()).flatten(), isinstance(batch, Sequences)
    found = {}
    legal, counts = batch.legal if sequences else batch.next_legal, weight
    if not sequences:
        counts = weight * (batch.discount > 0)
        if "gamma" in agent.hyper:
            found["charts/terminated"] = float((weight * (batch.discount == 0)).sum())
    if legal is not None:
        share = legal.double().mean(dim=-1).flatten()
        found["charts/legal"] = float((counts * share).sum() / counts.sum())
    if agent.continuous and not sequences and not offline:
        mu = agent.net("actor", agent.encoded(batch.obs)).detach()
        noise = draw.normal(B * A)[0].double().view(B, A)
        if agent.name in SOFT:
            mu, log_std = mu[:, :A], mu[:, A:].clamp(-20, 2)
            act = torch.tanh(mu + log_std.exp() * noise)
        else:
            act = (torch.tanh(mu) + agent.cfg.noise_sd * noise).clamp(-1, 1)
        found["charts/noise"] = math.sqrt(float((weight * (act - torch.tanh(mu)).square().mean(dim=1)).sum()))
    return found


@each_case
@pytest.mark.thorough
def test_signals_are_those_of_one_agent_a_member(case: str) -> None:
    """The probe's own minibatch: what the algorithm tells, the gradient before it is clipped, and how wrong values are.
    It leaves no trace."""
    given = Given(case)
    cohort, turn = given.cohort(), given.period - 1
    batch = given.steps(cohort, 0) if given.on_policy else given.transitions(0)
    draw = Stream(cohort.keys, Purpose.PROBE, torch.tensor([0]))
    before = dissolve([cohort])
    spec: Any = SimpleNamespace(algo=given.algo, algo_config=given.cfg, spaces=given.spaces, period=given.period)
    offline = given.name in ("bc", "cqn", "iql", "td3bc")
    found = probe(spec, cohort, batch, draw, cohort.hyper, offline)
    assert all(same(a, b) for a, b in zip(before, dissolve([cohort]), strict=True))
    for i, member in enumerate(given.members):
        agent = Watched(given, member)
        own = Stream(cohort.keys[i : i + 1], Purpose.PROBE, torch.tensor([0]))
        expected = told(agent, row(batch, i), own.part(3))
        expected |= told_of_play(agent, row(batch, i), own.part(3).part(1), offline)
        agent.hyper = {**agent.hyper, "target_kl": 0.0}  # who rests has a gradient too
        _, errors = PAPERS[given.name](agent, row(batch, i), own, lambda of: of.normal(B * A)[0].double(), turn)
        expected["losses/grad_norm"] = math.sqrt(sum(norm**2 for norm, _ in agent.norms))
        expected["losses/grad_clipped"] = float(any(clipped for _, clipped in agent.norms))
        if errors is not None:
            weight = batch.weight[i] / batch.weight[i].sum()
            expected["losses/td_error"] = float((weight * errors.detach().abs()).sum())
        expected["charts/observation_size"] = float(batch.obs[i].abs().flatten(0, -2).mean(dim=0).max())
        assert found.keys() == expected.keys() | {"charts/dormant"}
        for name, value in expected.items():
            assert float(found[name][i]) == pytest.approx(value, rel=1e-6, abs=1e-9), (name, i)
        assert 0.0 <= float(found["charts/dormant"][i]) <= 1.0


def test_a_hard_target_is_copied_at_every_so_many_updates_of_its_member() -> None:
    """To the bit: after the third, sixth … update that the member took, whoever its neighbours are."""
    torch.set_default_dtype(torch.float32)
    given = Given("dqn")
    given.cfg = given.algo.Config(target="hard", target_interval=3).at(given.spaces)
    cohort = given.cohort()
    done = [0, 1, 5]  # as the members begin
    for at in range(8):
        cohort.healthy[2] = at < 4
        before = dissolve([cohort])
        for i, (old, new) in enumerate(zip(before, given.updated(cohort, 0, at), strict=True)):
            took = i < 2 or at < 4
            done[i] += took
            copied = took and done[i] % 3 == 0
            assert torch.equal(new.tensors["target"], (new if copied else old).tensors["q" if copied else "target"])
            assert float(new.tensors["updates"]) == done[i]


@each_case
def test_networks_begin_unlike_targets_as_their_copies_and_nothing_was_learned_yet(case: str) -> None:
    given = Given(case)
    kinds = tensor_kinds(given.algo.State, given.widths)
    weights = {name: of_network for name, (kind, of_network) in kinds.items() if kind == "parameters"}
    for member in given.fresh:
        online: dict[str, torch.Tensor] = {}
        for name, of_network in weights.items():
            assert torch.equal(online.setdefault(of_network, member.tensors[name]), member.tensors[name])
        found = list(online.values())
        assert not any(torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])
        starts = {"log_alpha": getattr(given.cfg, "alpha", 1.0), "log_std": getattr(given.cfg, "std", 1.0)}
        for name in set(member.tensors) - set(weights) - {"noise", "noise_target"}:  # moments and counts begin at 0
            expected = torch.full_like(member.tensors[name], math.log(starts.get(name, 1.0)))
            torch.testing.assert_close(member.tensors[name], expected)
    first, second, _ = given.fresh
    least = {n: min(len(each.tensors[n]) for each in (first, second)) for n in weights}
    assert not any(torch.equal(first.tensors[n][:size], second.tensors[n][:size]) for n, size in least.items())


@each_case
@pytest.mark.thorough
def test_a_frozen_member_stays_as_it_is(case: str) -> None:
    """Its targets too, which are not what they follow; its neighbours learn as ever."""
    given = Given(case)
    for turn in range(given.period):
        cohort = given.cohort()
        cohort.healthy[1] = False
        before, clean = dissolve([cohort]), given.updated(given.cohort(), turn, 0)
        after = given.updated(cohort, turn, 0)
        assert [m.healthy for m in after] == [True, False, True]
        assert all(torch.equal(after[1].tensors[n].to(x), x) for n, x in before[1].tensors.items() if n != "resting")
        assert all(same(after[i], clean[i]) for i in (0, 2))


@pytest.mark.parametrize("algo", ["td3", "sac", "iql:continuous", "td3bc"])
def test_twins_of_first_members_are_unlike(algo: str) -> None:
    p = problem(algo=algo)
    members = first_members(p, 2)[0]
    found = [m.tensors[f"critics.critic_{k}"] for m in members for k in (1, 2)]
    assert not any(torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])


@each_case
@pytest.mark.thorough
def test_a_gradient_that_is_none_of_any_network_freezes_its_member(case: str) -> None:
    """Though its loss is a number: every network that learns is asked, one of twins too."""
    given = Given(case)
    hyper = {"target_kl": 0.0}  # who rests does not learn, and finds nothing
    given.members = [replace(m, hyper={**m.hyper, **hyper} if given.on_policy else m.hyper) for m in given.members]
    turn = given.period - 1  # all networks learn
    names = [f.name for f in fields(given.algo.State) if f.metadata.get("trainable")]
    if not getattr(given.cfg, "noisy", True):
        names.remove("noise")
    for name in (n for n in names if getattr(given.cohort().state, n) is not None):
        for k in range(len(getattr(given.cohort().state, name).values) // P):
            cohort = given.cohort()
            net = getattr(cohort.state, name)
            spoilt = torch.zeros(len(net.values), 1, 1)
            spoilt[len(net.values) // P + k] = math.nan
            net.views[-1].weight.register_hook(partial(torch.add, spoilt))
            before = dissolve([cohort])[1]
            learned = given.update(cohort, turn, 0)
            assert learned.losses.isfinite().all()
            assert learned.healthy.tolist() == [True, False, True], (name, k)
            assert torch.equal(dissolve([cohort])[1].tensors[given.algo.POLICY], before.tensors[given.algo.POLICY])


@each_case
def test_a_number_that_is_none_in_any_network_freezes_its_member_at_once(case: str) -> None:
    """At every turn, also where only a later one would follow that network's own loss; nobody else notices."""
    given, kinds = Given(case), ("parameters", "scales")
    names = [f.name for f in fields(given.algo.State) if f.metadata["kind"] in kinds]
    if not getattr(given.cfg, "noisy", True):
        names = [name for name in names if not name.startswith("noise")]
    if given.on_policy:  # who rests does not learn, and finds nothing
        given.members = [replace(m, hyper={**m.hyper, "target_kl": 0.0}) for m in given.members]
    for turn in range(given.period):
        clean = given.updated(given.cohort(), turn, turn)
        for name in (n for n in names if getattr(given.cohort().state, n) is not None):
            for k in range(len(getattr(given.cohort().state, name).values) // P):  # one of twins alone
                cohort = given.cohort()
                net = getattr(cohort.state, name)
                row = len(net.values) // P + k
                net.values[row, net.structure.index[row]] = math.nan
                before = dissolve([cohort])[1]
                after = given.updated(cohort, turn, turn)
                assert [m.healthy for m in after] == [True, False, True], (name, k, turn)
                assert all(same(after[i], clean[i]) for i in (0, 2)), (name, k, turn)
                for each, tensor in before.tensors.items():
                    if tensor.isfinite().all() and not each.endswith(("target", *CRITICS)):
                        assert torch.equal(after[1].tensors[each].to(tensor), tensor), (name, k, turn, each)


# --- acting -----------------------------------------------------------------------------------------------------------

ENVS = 60
off_policy = pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("ppo")])


def output(agent: Agent, obs: torch.Tensor, noise: Stream | None = None) -> torch.Tensor:
    """What a member's policy says of its actions: values, logits or numbers before tanh."""
    if agent.policy == "actor":
        return agent.net("actor", agent.encoded(obs)).detach()
    if agent.name == "qrdqn":
        return agent.net("q", obs).detach().view(len(obs), A, -1).mean(dim=2)
    if not hasattr(agent.cfg, "atoms"):
        return agent.net("q", obs).detach()
    atoms = agent.cfg.atoms if agent.cfg.distributional else 1
    out = (agent.net("q", obs) if noise is None else agent.noisy("q", "noise", noise, obs)).detach()
    out = out.view(len(obs), -1, atoms)
    if agent.cfg.dueling:
        out = out[:, :1] + out[:, 1:] - out[:, 1:].mean(dim=1, keepdim=True)
    z = torch.linspace(agent.cfg.v_min, agent.cfg.v_max, atoms)
    return (out.softmax(dim=2) * z).sum(dim=2) if agent.cfg.distributional else out[:, :, 0]


def explored(agent: Agent, obs: torch.Tensor, legal: torch.Tensor, epsilon: float, draw: Stream) -> torch.Tensor:
    """What a member does where it explores, from the same draws."""
    if agent.continuous:
        mean, normal = output(agent, obs), draw.normal(ENVS * A).view(ENVS, A)
        if agent.name in SOFT:
            action = torch.tanh(mean[:, :A] + mean[:, A:].clamp(-20, 2).exp() * normal)
        else:
            action = torch.tanh(mean) + getattr(agent.cfg, "noise_sd", 0.0) * normal
        u = (draw if agent.name == "bc" else draw.part(1)).uniform(ENVS * (A + 1)).view(ENVS, A + 1)
        return torch.where(u[:, :1] < epsilon, 2 * u[:, 1:] - 1, action.clamp(-1, 1))
    if agent.name in SOFT:
        drawn = draw.uniform(ENVS * (A + 2))[0]
        u, gumbel = drawn[: 2 * ENVS].view(2, ENVS), drawn[2 * ENVS :].view(ENVS, A)
        action = best(output(agent, obs) - (-gumbel.log()).log(), legal)
    else:
        u = draw.uniform(2 * ENVS).view(2, ENVS)
        action = best(output(agent, obs, draw.part(1) if getattr(agent.cfg, "noisy", False) else None), legal)
    may = [row.nonzero()[:, 0] for row in legal]
    random = torch.stack([each[int(x * len(each))] for each, x in zip(may, u[1], strict=True)])
    return torch.where(u[0] < epsilon, random, action)


@off_policy
def test_actions_are_those_of_one_agent_a_member(case: str) -> None:
    """The best ones, and those while it trains: each member by its own network, rate and draws, never illegally."""
    given = Given(case)
    g, cohort = torch.Generator().manual_seed(2), given.cohort()
    obs = torch.randn(P, ENVS, OBS, generator=g)
    legal = torch.ones(P, ENVS, A, dtype=torch.bool)
    if not given.spaces.continuous:
        legal = (torch.rand(P, ENVS, A, generator=g) < 0.5).scatter(
            -1, torch.randint(A, (P, ENVS, 1), generator=g), True
        )
    epsilon, stream = torch.tensor([0.0, 0.4, 1.0]), Stream(cohort.keys, Purpose.ACT, torch.tensor([7]))
    greedy = given.algo.greedy(given.cfg, cohort.state, obs, legal)
    trains = given.algo.act(given.cfg, cohort.state, obs, legal, epsilon, stream)
    for i, member in enumerate(given.members):
        agent = Agent(given, member)
        out = output(agent, obs[i])
        expected = torch.tanh(out[:, :A]) if given.spaces.continuous else best(out, legal[i])
        torch.testing.assert_close(greedy[i], expected, rtol=0, atol=1e-9)
        draw = Stream(cohort.keys[i : i + 1], Purpose.ACT, torch.tensor([7]))
        taken = explored(agent, obs[i], legal[i], float(epsilon[i]), draw)
        torch.testing.assert_close(trains[i].to(taken), taken, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("algo", "config", "rates"),
    [
        ("bc", {}, (0.05, 0.05, 0.05, 0.05, 0.05)),
        ("td3bc", {}, (0.0, 0.0, 0.0, 0.0, 0.0)),
        ("cqn", {"epsilon": 0.3}, (0.3, 0.3, 0.3, 0.3, 0.3)),
        ("iql", {"epsilon": 0.3}, (0.3, 0.3, 0.3, 0.3, 0.3)),
        *(
            (name, {"random_steps": 100}, (1.0, 1.0, 1.0, 1.0, 0.0))
            for name in ("ddpg", "td3", "sac", "tqc", "crossq", "redq")
        ),
        ("dqn", {}, (0.9, 0.7, 0.5, 0.108, 0.1)),
        ("dqn", {"eps_schedule": "exponential"}, (0.9, 0.9 / 3**0.5, 0.3, 0.1 * 9**0.01, 0.1)),
        ("qrdqn", {}, (0.9, 0.7, 0.5, 0.108, 0.1)),
        ("rainbow", {"noisy": False}, (0.9, 0.7, 0.5, 0.108, 0.1)),
        ("rainbow", {"noisy": True}, (0.0, 0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_rates_of_exploration_by_hand(algo: str, config: dict[str, Any], rates: tuple[float, ...]) -> None:
    """After 0, 25, 50, 99 and 100 of 100 steps; and ever after what it was at their end."""
    found = algos.get(algo)
    schedule = {"eps_start": 0.9, "eps_end": 0.1, "eps_steps": 100}
    config = config | {name: value for name, value in schedule.items() if name in found.Config.model_fields}
    cfg = found.Config(**config)
    assert [found.explore(cfg, step) for step in (0, 25, 50, 99, 100)] == pytest.approx(rates, abs=1e-12)
    assert found.explore(cfg, 10**9) == pytest.approx(rates[-1], abs=1e-12)
