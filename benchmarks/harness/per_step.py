"""Learning curves by environment step, with equal values and networks on both sides: rows, figures, their page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness import stats
from harness.results import MISSING, Result, Results, made_by, number, table, values

PREFIX = "per_step_"
EVOPIPE, SB3 = "evopipe", "SB3"
_RESAMPLES = 10_000

# Values of both sides. `floor` is what a policy that learned nothing scores: an area counts from there. `target` is the
# score of a first solved evaluation. `vf_coef` weighs the squared error, as SB3 has it; evopipe weighs half of it.
_PPO: dict[str, Any] = {
    "algo": "ppo", "widths": [64, 64], "activation": "Tanh", "num_envs": 8, "lr": 3e-4, "learn_step": 2048,
    "batch_size": 64, "epochs": 10, "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2, "ent_coef": 0.0, "vf_coef": 0.5,
    "grad_clip": 0.5, "std": 1.0,
}  # fmt: skip
_OFF: dict[str, Any] = {
    "widths": [64, 64], "activation": "ReLU", "num_envs": 1, "lr": 1e-3, "learn_step": 1, "batch_size": 100,
    "gamma": 0.99, "tau": 0.005, "capacity": 100_000, "random_steps": 1_000, "noise_sd": 0.1,
}  # fmt: skip
_PENDULUM: dict[str, Any] = {
    "env": "Pendulum-v1", "steps": 10_000, "every": 1_000, "floor": -1250.0, "target": -200.0,
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "per_step_ppo_cartpole": {
        **_PPO, "env": "CartPole-v1", "steps": 49_152, "every": 4_096, "floor": 20.0, "target": 475.0,
    },
    "per_step_ppo_acrobot": {
        **_PPO, "env": "Acrobot-v1", "steps": 65_536, "every": 4_096, "floor": -500.0, "target": -100.0,
    },
    "per_step_ppo_lunarlander": {
        **_PPO, "env": "LunarLander-v3", "steps": 245_760, "every": 16_384, "floor": -200.0, "target": 200.0,
        "num_envs": 16, "lr": 1e-3, "learn_step": 4_096, "epochs": 4, "batch_size": 128, "gamma": 0.999,
        "gae_lambda": 0.98, "ent_coef": 0.01,
    },
    "per_step_ppo_pendulum": {
        **_PPO, **_PENDULUM, "steps": 98_304, "every": 8_192, "num_envs": 4, "lr": 1e-3, "learn_step": 4_096,
        "gamma": 0.9,
    },
    "per_step_dqn_cartpole": {
        **_OFF, "algo": "dqn", "env": "CartPole-v1", "steps": 40_960, "every": 4_096, "floor": 20.0, "target": 475.0,
        "widths": [128, 128], "lr": 5e-4, "batch_size": 64, "target_interval": 250, "random_steps": 500,
        "eps_end": 0.04, "eps_steps": 8_000, "grad_clip": 10.0,
    },
    "per_step_sac_pendulum": {**_OFF, **_PENDULUM, "algo": "sac"},
    "per_step_td3_pendulum": {**_OFF, **_PENDULUM, "algo": "td3"},
    "per_step_ddpg_pendulum": {**_OFF, **_PENDULUM, "algo": "ddpg"},
}  # fmt: skip


def settings(name: str, quick: bool, device: str, threads: int) -> dict[str, Any]:
    """Return a row's settings; `quick` takes a tenth of its steps."""
    row = ROWS[name]
    steps = max(2 * row["every"], row["steps"] // 10) if quick else row["steps"]
    return {**row, "steps": steps, "episodes": 4 if quick else 20, "device": device, "threads": threads}


class Curves(NamedTuple):
    """One contestant's curves: training steps `[T]`, mean returns `[seeds, T]`."""

    steps: np.ndarray
    returns: np.ndarray

    @classmethod
    def of(cls, result: Result, contestant: str, kind: str) -> Curves:
        """Read the curves of one kind of evaluation, `greedy` or `sampled`, of all seeds that ran."""
        found = values(result, contestant, kind)
        return cls(np.array(values(result, contestant, "steps")[0]), np.array(found, float))

    def areas(self, floor: float) -> np.ndarray:
        """Return each seed's mean return above `floor` over the curve, `[seeds]`: the area under it by its length."""
        spent = np.diff(self.steps, prepend=0)
        areas: np.ndarray = ((self.returns - floor) * spent).sum(axis=1) / spent.sum()
        return areas

    def first(self, target: float) -> list[stats.Time]:
        """Return the steps of each seed's first evaluation that reaches `target`; censored where none does."""
        reached = self.returns >= target
        return [
            stats.Time(float(self.steps[row.argmax() if row.any() else -1]), censored=not row.any()) for row in reached
        ]


def ratio_of_means(over: Sequence[float], under: Sequence[float]) -> stats.Ratio:
    """Return the ratio of two groups' means and its 95 % bootstrap interval; seeds of the two groups are no pairs, so
    each group is drawn again by itself (Efron and Tibshirani, 1993, section 8.3).

    Raises:
        ValueError: a group is empty.
    """
    if not len(over) or not len(under):
        raise ValueError("no values")
    a, b, draw = np.array(over, float), np.array(under, float), np.random.default_rng(0)
    means = [x[draw.integers(len(x), size=(_RESAMPLES, len(x)))].mean(axis=1) for x in (a, b)]
    low, high = np.quantile(means[0] / means[1], [(1 - stats.LEVEL) / 2, (1 + stats.LEVEL) / 2])
    return stats.Ratio(float(a.mean() / b.mean()), float(low), float(high), min(len(a), len(b)))


def section(results: Results) -> list[str]:
    """Return the page's section."""
    lines = ["## Learning by environment step", ""]
    there = [name for name in ROWS if name in results]
    if not there:
        return [*lines, MISSING]
    lines += [
        "One member, no evolution, the same values and network widths on both sides; a seed each turn. Between "
        "stretches of training both play the same 20 episodes, greedily and, where a policy draws its actions, by "
        "drawing too; "
        "these steps are not counted. The area is the mean return over the curve above what a policy scores that "
        "learned nothing. Ratios are of the means over seeds, with a 95 % bootstrap interval.", "",
    ]  # fmt: skip
    rows = []
    for name in there:
        rows += _rows(results[name])
    missing = [f"`{name}`" for name in ROWS if name not in results]
    header = (
        "",
        "evaluation",
        "seeds",
        "area, evopipe",
        "area, SB3",
        "ratio",
        "≥ 0.95",
        "first solved, evopipe",
        "SB3",
    )
    lines += [*table(header, rows), *made_by(*(results[name] for name in there))]
    return [*lines, *(["Not measured yet: " + ", ".join(missing) + "."] if missing else [])]


def _rows(result: Result) -> list[tuple[str, ...]]:
    s, found = result["settings"], []
    kinds = [kind for kind in ("greedy", "sampled") if None not in values(result, EVOPIPE, kind)]
    for kind in kinds:
        ours, peer = (Curves.of(result, name, kind) for name in (EVOPIPE, SB3))
        areas = [each.areas(s["floor"]) for each in (ours, peer)]
        r = ratio_of_means(*areas)
        said = "reached" if r.low >= 0.95 else "not reached" if r.high < 0.95 else "open"
        title = f"{s['algo'].upper()}, {s['env']}, {s['steps']:,} steps" if kind == "greedy" else ""
        found.append((
            title, kind, f"{len(ours.returns)}, {len(peer.returns)}", *(number(float(a.mean())) for a in areas),
            f"{r.median:.2f} [{r.low:.2f}, {r.high:.2f}]", said, *(_first(each, s["target"]) for each in (ours, peer)),
        ))  # fmt: skip
    return found


def _first(curves: Curves, target: float) -> str:
    times = curves.first(target)
    median = stats.median_time(times)
    solved = sum(not time.censored for time in times)
    return f"{'> ' if median.censored else ''}{number(median.value)} ({solved} of {len(times)})"
