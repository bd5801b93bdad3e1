"""Whether this machine's GPU computes what it should, by graphs and without, and what the graphs gain.

Every algorithm of the registry takes some ticks on made-up transitions, with members of unlike architectures:

* graphs against eager code on the same device: actions, losses and all of the members' numbers, to the bit;
* the device against the CPU: random draws and sampled rows to the bit, values, losses and gradients by tolerance;
* that learning makes the host wait for nothing, so that environments step meanwhile;
* the time of acting and learning, both ways in turn.

On the CPU the same logic runs with fixed buffers in place of graphs.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from evopipe import algos, rng
from evopipe.core import population
from evopipe.core.graphs import Capture, Paths
from evopipe.core.population import Cohort, Member
from evopipe.errors import EvopipeError, ResourceError, UsageError, did_you_mean
from evopipe.machine import configure
from evopipe.memory.replay import Replay, RowLayout
from evopipe.memory.rollout import Rollout, StepLayout
from evopipe.rng import Purpose
from evopipe.run.act import act, gather, step
from evopipe.run.learn import learn
from evopipe.run.rollouts import learn_from_rollout
from evopipe.run.spec import Spec, first_members
from evopipe.schema.blocks import RuntimeConfig
from evopipe.schema.params import parse_params
from evopipe.stages.setup import make_spec
from evopipe.types import Chosen

_TICKS = 6
_ROWS = 4096  # transitions that the members share
_CLOSE = 1e-3  # of the largest number: sums in another order, and a unit near 0 that falls on its other side
_CPU = torch.device("cpu")


class DeviceDisagrees(EvopipeError):
    """The device computed something else than it should."""

    exit_code = 65


@dataclass(frozen=True)
class Finding:
    """One line of the check: whose, what was looked at, what came out; `good` is None where it is a figure only."""

    algo: str
    what: str
    result: str
    good: bool | None = None


@dataclass(frozen=True)
class Size:
    """How much is computed: members, environments of each, updates a tick."""

    members: int = 8
    envs: int = 16
    updates: int = 4


def find_device(kind: str) -> torch.device:
    """Return the device to check.

    Raises:
        ResourceError: it is `cuda`, and torch sees none.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        build = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is a build without CUDA"
        raise ResourceError(
            f"gpu check: torch sees no CUDA device here (torch {torch.__version__} {build}); run it on a machine with "
            "one, or try the check itself with --device cpu"
        )
    return configure(RuntimeConfig.model_validate({"device": kind}))


def check(
    names: Sequence[str], device: torch.device, size: Size, repeats: int, tell: Callable[[Finding], None]
) -> None:
    """Check some algorithms on a device.

    Args:
        names: of the registry; none for all of it.
        device: what to check.
        size: how much to compute.
        repeats: timings of each way.
        tell: told every finding at once.

    Raises:
        UsageError: there is no algorithm of a name.
        DeviceDisagrees: a finding is bad; it names them all.
    """
    for name in names:
        if name not in algos.names():
            guess = did_you_mean(name, algos.names()) or f", known are: {', '.join(algos.names())}"
            raise UsageError(f"gpu check: --algo: no algorithm {name!r}{guess}")
    bad = []
    for name in names or algos.names():
        for finding in _check(_Bench.of(name, device, size), repeats):
            tell(finding)
            if finding.good is False:
                bad.append(f"{name}: {finding.what}: {finding.result}")
    if bad:
        raise DeviceDisagrees(
            "\n".join([*bad, "train with runtime.compile: off, or runtime.device: cpu, until it agrees"])
        )


@dataclass(frozen=True)
class _Bench:
    """One algorithm's members and made-up transitions, on the host."""

    algo: str
    spec: Spec
    members: list[Member]
    rows: np.ndarray
    obs: np.ndarray
    size: Size

    @classmethod
    def of(cls, algo: str, device: torch.device, size: Size) -> _Bench:
        found = algos.get(algo)
        rollout = size.envs * size.updates
        own = {"learn_step": rollout, "batch_size": max(1, rollout // 2), "epochs": 2, "evolve": {}}
        params = parse_params(
            {
                "algos": {algo: own} if algos.on_policy(found) else {},
                "env": {"id": "CartPole-v1" if "discrete" in found.ACTIONS else "Pendulum-v1", "num_envs": size.envs},
                "train": {"algo": algo, "mode": "offline" if getattr(found, "OFFLINE_ONLY", False) else "online"},
                "evolution": {"mutation": {"before_training": True}},
            }
        )
        spec = make_spec(params, device)
        draw = np.random.default_rng(0)
        obs, after = (draw.standard_normal((_ROWS, spec.observations)).astype(np.float32) for _ in range(2))
        layout = RowLayout.of(spec.spaces, masked=False)
        continuous, count = spec.spaces.continuous, spec.actions
        action = draw.uniform(-1.0, 1.0, (_ROWS, count)) if continuous else draw.integers(count, size=_ROWS)
        over = draw.random(_ROWS) < 0.1
        rows = layout.pack(obs, action, draw.standard_normal(_ROWS), over, after)
        seen = draw.standard_normal((_TICKS, size.members * size.envs, spec.observations)).astype(np.float32)
        return cls(algo, spec, first_members(spec, size.members)[0], rows, seen, size)

    def on(self, device: torch.device, capture: Capture = "none") -> _Live:
        """Set it up on a device."""
        spec = dataclasses.replace(self.spec, device=device, paths=Paths(capture))
        replay = Replay(RowLayout.of(spec.spaces, masked=False), 1, _ROWS, device)
        replay.add(self.rows[None], np.ones((1, _ROWS), bool))
        kind = _LiveOnPolicy if algos.on_policy(spec.algo) else _Live
        return kind(self, spec, replay)


@dataclass
class _Live:
    """The members on one device, taking one kind of path."""

    bench: _Bench
    spec: Spec
    replay: Replay

    def __post_init__(self) -> None:
        self.form(self.bench.members)

    def form(self, members: Sequence[Member]) -> None:
        self.cohorts: list[Cohort] = self.spec.form(members)

    def act(self, tick: int) -> np.ndarray:
        obs = self.bench.obs[tick % _TICKS]
        return act(self.spec, self.cohorts, obs, np.ones((len(obs), self.spec.actions), bool), 0.3, tick)

    def learn(self, tick: int) -> list[torch.Tensor]:
        updates = self.bench.size.updates
        return [learn(self.spec, cohort, self.replay, tick, updates).clone() for cohort in self.cohorts]

    def run(self) -> list[torch.Tensor]:
        """Take all ticks, cohorts formed anew half-way; return everything that came out, on the host."""
        out = []
        for tick in range(_TICKS):
            if tick == _TICKS // 2:
                self.form(self.members)
            out.append(torch.from_numpy(self.act(tick)))
            out += [losses.cpu() for losses in self.learn(tick)]
        return out + [member.tensors[name] for member in self.members for name in sorted(member.tensors)]

    @property
    def members(self) -> list[Member]:
        return population.dissolve(self.cohorts)

    def seconds(self, work: Callable[[int], Any], calls: int = 20) -> float:
        _wait(self.spec.device)
        began = time.perf_counter()
        for tick in range(calls):
            work(tick)
        _wait(self.spec.device)
        return (time.perf_counter() - began) / calls


class _LiveOnPolicy(_Live):
    """Members that learn from what they have just done: a rollout of made-up observations and rewards."""

    def form(self, members: Sequence[Member]) -> None:
        super().form(members)
        layout, size = StepLayout(self.spec.spaces, masked=False), self.bench.size
        self.rollouts = [
            Rollout(layout, len(c.members), size.updates, size.envs, c.memory, self.spec.device) for c in self.cohorts
        ]

    def act(self, tick: int) -> np.ndarray:
        return gather([took.action for took in self._step(tick)], [cohort.slots for cohort in self.cohorts])

    def learn(self, tick: int) -> list[torch.Tensor]:
        ticks, losses = self.bench.size.updates, []
        for t in range(ticks):
            self._step(tick + t, t)
        for cohort, rollout in zip(self.cohorts, self.rollouts, strict=True):
            losses.append(learn_from_rollout(self.spec, cohort, rollout, ticks, tick).clone())
        return losses

    def _step(self, tick: int, place: int | None = None) -> list[Chosen]:
        """Let all choose; with a place, enter it there in the rollouts."""
        device, (members, envs) = self.spec.device, (self.bench.size.members, self.bench.size.envs)
        now, then = (
            torch.from_numpy(self.bench.obs[t % _TICKS]).view(members, envs, -1).to(device) for t in (tick, tick + 1)
        )
        legal = torch.ones(members, envs, self.spec.actions, dtype=torch.bool, device=device)
        no = torch.zeros(members, envs, dtype=torch.bool, device=device)
        found = []
        for cohort, rollout in zip(self.cohorts, self.rollouts, strict=True):
            rows = cohort.slots
            empty = torch.zeros(len(rows), envs, cohort.memory, device=device)
            found.append(step(self.spec, cohort, now[rows], legal[rows], no[rows], empty, tick))
            if place is not None:
                rollout.enter(place, now[rows], legal[rows], no[rows], empty, found[-1])
                over = then[rows][..., 0] > 1.0
                rollout.finish(place, then[rows], now[rows][..., 1], over, no[rows], no[rows])
        return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _check(bench: _Bench, repeats: int) -> Iterator[Finding]:
    algo, device = bench.algo, bench.spec.device
    capture: Capture = "graph" if device.type == "cuda" else "buffers"
    way = "graphs" if device.type == "cuda" else "fixed buffers"
    eager, fast = bench.on(device), bench.on(device, capture)
    equal = _to_the_bit(eager.run(), fast.run())
    given_up = fast.spec.paths.given_up
    yield Finding(algo, f"{way} were captured", "; ".join(given_up) or "yes", not given_up)
    yield Finding(algo, f"{way} compute what eager code does", *equal)
    yield from _against_cpu(bench)
    if device.type == "cuda":
        yield Finding(algo, "learning waits for nothing", *_waits(eager, fast))
    for what, name in (("act", "time to act"), ("learn", f"time of {bench.size.updates} updates")):
        pairs = [[live.seconds(getattr(live, what)) for live in (eager, fast)] for _ in range(repeats)]  # in turns
        slow, quick = (statistics.median(column) for column in zip(*pairs, strict=True))
        result = f"{slow * 1e6:.0f} µs eager, {quick * 1e6:.0f} µs with {way}: {slow / quick:.2f} ×"
        yield Finding(algo, name, result)


def _to_the_bit(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> tuple[str, bool]:
    """Say whether two lists of host tensors are the same."""
    differ = sum(x.shape != y.shape or x.numpy().tobytes() != y.numpy().tobytes() for x, y in zip(a, b, strict=True))
    return f"{differ} of {len(a)} tensors differ" if differ else f"{len(a)} tensors, to the bit", not differ


def _against_cpu(bench: _Bench) -> Iterator[Finding]:
    """Compare the device with the CPU."""
    there, here = bench.on(bench.spec.device), bench.on(_CPU)
    equal = _to_the_bit(_draws(there), _draws(here))
    yield Finding(bench.algo, "random draws and sampled rows are the CPU's", *equal)
    for what, read in (
        ("values", _values),
        ("losses of the first updates", lambda live: [torch.cat(_by_slot(live, live.learn(0)))]),
        ("first moments after them", _moments),
    ):
        far = max(_distance(a, b) for a, b in zip(read(there), read(here), strict=True))
        result = f"{far:.1e} of the largest apart, {_CLOSE:.0e} allowed"
        yield Finding(bench.algo, f"{what} are the CPU's", result, far <= _CLOSE)


def _draws(live: _Live) -> list[torch.Tensor]:
    """What the members draw and sample."""
    device = live.spec.device
    keys = torch.tensor([member.key for member in live.bench.members], device=device)
    u = rng.uniform(keys, Purpose.REPLAY, torch.arange(3, device=device), 64)
    return [u.cpu(), live.replay.sample(range(len(keys)), u).cpu()]


def _by_slot(live: _Live, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Rows of cohorts' tensors on the host, one a member, in slot order: a device groups members its own way."""
    rows = {
        s: row
        for cohort, part in zip(live.cohorts, parts, strict=True)
        for s, row in zip(cohort.slots, part.cpu(), strict=True)
    }
    return [rows[slot].reshape(-1) for slot in sorted(rows)]


def _values(live: _Live) -> list[torch.Tensor]:
    obs = torch.from_numpy(live.bench.obs[0]).to(live.spec.device).expand(1, -1, -1)
    p = live.spec
    best = getattr(p.algo, "values", None) or partial(p.algo.greedy, legal=None)
    values = [best(p.algo_config, c.state, obs.expand(len(c.members), -1, -1).contiguous()) for c in live.cohorts]
    return _by_slot(live, values)


def _moments(live: _Live) -> list[torch.Tensor]:
    kinds = population.tensor_kinds(live.spec.algo.State, live.spec.widths)
    names = [name for name, (kind, _) in kinds.items() if kind == "moments" and name.endswith(".mean")]
    return [member.tensors[name] for member in live.members for name in names]


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest number; infinite where one is not finite."""
    far = float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
    return far if np.isfinite(far) else float("inf")


def _waits(*lives: _Live) -> tuple[str, bool]:
    """Learn with every wait an error."""
    for live in lives:
        live.learn(0)
        torch.cuda.set_sync_debug_mode("error")
        try:
            live.learn(1)
        except RuntimeError as error:
            return f"{'eager' if live.spec.paths.capture == 'none' else 'graphs'}: {error}".splitlines()[0], False
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return "yes", True
