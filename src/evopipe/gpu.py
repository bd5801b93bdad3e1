"""Whether this machine's GPU computes what it should, by graphs and without, and what the graphs gain.

Every algorithm of the registry takes some ticks on made-up transitions, with members of unlike architectures:

* graphs against eager code on the same device: actions, losses and all of the members' numbers, to the bit;
* the device against the CPU: random draws and sampled rows to the bit, values, losses and gradients by tolerance;
* that learning makes the host wait for nothing, so that environments step meanwhile;
* the time of acting and learning, both ways in turn.

On the CPU the same logic runs with fixed buffers in place of graphs.
"""

from __future__ import annotations

import contextlib
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
from evopipe.buffers.replay import Replay, RowLayout
from evopipe.buffers.rollout import StepLayout
from evopipe.core import population
from evopipe.core.graphs import Capture, Paths
from evopipe.core.population import Cohort, Member
from evopipe.errors import EvopipeError, ResourceError, UsageError, did_you_mean
from evopipe.loops.acting import gather, step
from evopipe.loops.problem import Problem, first_members
from evopipe.loops.rollouts import RolloutLessons, learn_from_rollout
from evopipe.loops.steps import act, learn
from evopipe.machine import configure
from evopipe.rng import Purpose
from evopipe.schema.blocks import RuntimeConfig
from evopipe.schema.params import parse_params
from evopipe.stages.setup import make_problem
from evopipe.types import Chosen

TICKS = 6
ROWS = 4096  # transitions that the members share
CLOSE = 1e-3  # of the largest number: sums in another order, and a unit near 0 that falls on its other side
CPU = torch.device("cpu")


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
) -> list[Finding]:
    """Check some algorithms on a device.

    Args:
        names: of the registry; none for all of it.
        device: what to check.
        size: how much to compute.
        repeats: timings of each way.
        tell: told every finding at once.

    Returns:
        All findings.

    Raises:
        UsageError: there is no algorithm of a name.
    """
    found: list[Finding] = []
    for name in names:
        if name not in algos.names():
            guess = did_you_mean(name, algos.names()) or f", known are: {', '.join(algos.names())}"
            raise UsageError(f"gpu check: --algo: no algorithm {name!r}{guess}")
    for name in names or algos.names():
        for finding in _check(_Bench.of(name, device, size), repeats):
            found.append(finding)
            tell(finding)
    return found


def refuse(found: Sequence[Finding]) -> None:
    """Raise where a finding is bad.

    Raises:
        DeviceDisagrees: it names them.
    """
    bad = [f"{f.algo}: {f.what}: {f.result}" for f in found if f.good is False]
    if bad:
        raise DeviceDisagrees(
            "\n".join([*bad, "train with runtime.compile: off, or runtime.device: cpu, until it agrees"])
        )


@dataclass(frozen=True)
class _Bench:
    """One algorithm's members and made-up transitions, on the host."""

    algo: str
    problem: Problem
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
        problem = make_problem(params, device)
        draw = np.random.default_rng(0)
        obs, after = (draw.standard_normal((ROWS, problem.observations)).astype(np.float32) for _ in range(2))
        layout = RowLayout.of(problem.spaces, masked=False)
        continuous, count = problem.spaces.continuous, problem.actions
        action = draw.uniform(-1.0, 1.0, (ROWS, count)) if continuous else draw.integers(count, size=ROWS)
        over = draw.random(ROWS) < 0.1
        rows = layout.pack(obs, action, draw.standard_normal(ROWS), over, after)
        seen = draw.standard_normal((TICKS, size.members * size.envs, problem.observations)).astype(np.float32)
        return cls(algo, problem, first_members(problem, size.members)[0], rows, seen, size)

    def on(self, device: torch.device, capture: Capture = "none") -> _Live:
        """Set it up on a device."""
        problem = dataclasses.replace(self.problem, device=device, paths=Paths(capture))
        replay = Replay(RowLayout.of(problem.spaces, masked=False), 1, ROWS, device)
        replay.add(self.rows[None], np.ones((1, ROWS), bool))
        kind = _LiveOnPolicy if algos.on_policy(problem.algo) else _Live
        return kind(self, problem, replay)


@dataclass
class _Live:
    """The members on one device, taking one kind of path."""

    bench: _Bench
    problem: Problem
    replay: Replay

    def __post_init__(self) -> None:
        self.form(self.bench.members)

    def form(self, members: Sequence[Member]) -> None:
        self.cohorts: list[Cohort] = self.problem.form(members)

    def act(self, tick: int) -> np.ndarray:
        obs = self.bench.obs[tick % TICKS]
        return act(self.problem, self.cohorts, obs, np.ones((len(obs), self.problem.actions), bool), 0.3, tick)

    def learn(self, tick: int) -> list[torch.Tensor]:
        losses = []
        for i, cohort in enumerate(self.cohorts):
            self.cohorts[i], each = learn(self.problem, cohort, self.replay, tick, self.bench.size.updates)
            losses.append(each)
        return losses

    def run(self) -> list[torch.Tensor]:
        """Take all ticks, cohorts formed anew half-way; return everything that came out, on the host."""
        out = []
        for tick in range(TICKS):
            if tick == TICKS // 2:
                self.form(self.members)
            out.append(torch.from_numpy(self.act(tick)))
            out += [losses.cpu() for losses in self.learn(tick)]
        return out + [member.tensors[name] for member in self.members for name in sorted(member.tensors)]

    @property
    def members(self) -> list[Member]:
        return population.dissolve(self.cohorts)

    def seconds(self, work: Callable[[int], Any], calls: int = 20) -> float:
        _wait(self.problem.device)
        began = time.perf_counter()
        for tick in range(calls):
            work(tick)
        _wait(self.problem.device)
        return (time.perf_counter() - began) / calls


class _LiveOnPolicy(_Live):
    """Members that learn from what they have just done: a rollout of made-up observations and rewards."""

    def form(self, members: Sequence[Member]) -> None:
        super().form(members)
        layout = StepLayout(self.problem.spaces, masked=False)
        self.lessons = RolloutLessons(self.problem, layout, lambda: self.bench.size.updates)
        self.lessons.adopt(self.cohorts)

    def act(self, tick: int) -> np.ndarray:
        return gather([took.action for took in self._step(tick)], [cohort.slots for cohort in self.cohorts])

    def learn(self, tick: int) -> list[torch.Tensor]:
        ticks, losses = self.bench.size.updates, []
        for t in range(ticks):
            self._step(tick + t, t)
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            self.cohorts[i], each = learn_from_rollout(self.problem, cohort, rollout, ticks, tick)
            losses.append(each)
        return losses

    def _step(self, tick: int, place: int | None = None) -> list[Chosen]:
        """Let all choose; with a place, enter it there in the rollouts."""
        device, (members, envs) = self.problem.device, (self.bench.size.members, self.bench.size.envs)
        now, then = (
            torch.from_numpy(self.bench.obs[t % TICKS]).view(members, envs, -1).to(device) for t in (tick, tick + 1)
        )
        legal = torch.ones(members, envs, self.problem.actions, dtype=torch.bool, device=device)
        no = torch.zeros(members, envs, dtype=torch.bool, device=device)
        found = []
        for cohort, rollout in zip(self.cohorts, self.lessons.rollouts, strict=True):
            rows = cohort.slots
            empty = torch.zeros(len(rows), envs, cohort.memory, device=device)
            found.append(step(self.problem, cohort, now[rows], legal[rows], no[rows], empty, tick))
            if place is not None:
                rollout.enter(place, now[rows], legal[rows], no[rows], empty, found[-1])
                over = then[rows][..., 0] > 1.0
                rollout.finish(place, then[rows], now[rows][..., 1], over, no[rows], no[rows])
        return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _check(bench: _Bench, repeats: int) -> Iterator[Finding]:
    algo, device = bench.algo, bench.problem.device
    capture: Capture = "graph" if device.type == "cuda" else "buffers"
    way = "graphs" if device.type == "cuda" else "fixed buffers"
    eager, fast = bench.on(device), bench.on(device, capture)
    differ = _different(eager.run(), fast.run())
    given_up = fast.problem.paths.given_up
    yield Finding(algo, f"{way} were captured", "; ".join(given_up) or "yes", not given_up)
    yield Finding(algo, f"{way} compute what eager code does", _count(differ), not any(differ))
    yield from (Finding(algo, *rest) for rest in _against_cpu(bench))
    if device.type == "cuda":
        yield Finding(algo, "learning waits for nothing", *_waits(eager, fast))
    for what in ("act", "learn"):
        slow, quick = _times(eager, fast, what, repeats)
        result = f"{slow * 1e6:.0f} µs eager, {quick * 1e6:.0f} µs with {way}: {slow / quick:.2f} ×"
        yield Finding(algo, "time to act" if what == "act" else f"time of {bench.size.updates} updates", result)


def _different(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> list[bool]:
    """Which of two lists of host tensors differ, in any bit."""
    return [x.shape != y.shape or x.numpy().tobytes() != y.numpy().tobytes() for x, y in zip(a, b, strict=True)]


def _count(differ: Sequence[bool]) -> str:
    return f"{sum(differ)} of {len(differ)} tensors differ" if any(differ) else f"{len(differ)} tensors, to the bit"


def _against_cpu(bench: _Bench) -> Iterator[tuple[str, str, bool]]:
    """Compare the device with the CPU: (what, result, good)."""
    there, here = bench.on(bench.problem.device), bench.on(CPU)
    draws = [_draws(live) for live in (there, here)]
    differ = _different(*draws)
    yield "random draws and sampled rows are the CPU's", _count(differ), not any(differ)
    for what, read in (
        ("values", _values),
        ("losses of the first updates", lambda live: [torch.cat(_by_slot(live, live.learn(0)))]),
        ("first moments after them", _moments),
    ):
        far = max(_distance(a, b) for a, b in zip(read(there), read(here), strict=True))
        yield f"{what} are the CPU's", f"{far:.1e} of the largest apart, {CLOSE:.0e} allowed", far <= CLOSE


def _draws(live: _Live) -> list[torch.Tensor]:
    """What the members draw and sample."""
    device = live.problem.device
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
    obs = torch.from_numpy(live.bench.obs[0]).to(live.problem.device).expand(1, -1, -1)
    p = live.problem
    best = getattr(p.algo, "values", None) or partial(p.algo.greedy, legal=None)
    values = [best(p.algo_config, c.state, obs.expand(len(c.members), -1, -1).contiguous()) for c in live.cohorts]
    return _by_slot(live, values)


def _moments(live: _Live) -> list[torch.Tensor]:
    kinds = population.tensor_kinds(live.problem.algo.State, live.problem.widths)
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
        try:
            with _no_waiting():
                live.learn(1)
        except RuntimeError as error:
            return f"{'eager' if live.problem.paths.capture == 'none' else 'graphs'}: {error}".splitlines()[0], False
    return "yes", True


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _times(eager: _Live, fast: _Live, what: str, repeats: int) -> tuple[float, float]:
    """Median seconds of one call, in turns."""
    pairs = [[live.seconds(getattr(live, what)) for live in (eager, fast)] for _ in range(repeats)]
    slow, quick = (statistics.median(column) for column in zip(*pairs, strict=True))
    return slow, quick
