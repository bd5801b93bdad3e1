"""What censored runs say of a search: restricted means, shares that solve, log-rank tests, survival curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness import curves, search
from harness.results import MISSING, Result, made_by, names, table, values
from harness.stats import LEVEL

_FILES = {"full": "", "sequential": "_sequential"}
NAMES = tuple(
    f"search_{task}_{kind}{_FILES[each]}"
    for each in curves.CONFIRMATIONS
    for task in curves.TASKS
    for kind in curves.SPACES
)
"""The results files, in the order of the page."""
TITLES = {
    "cartpole": "CartPole, PPO",
    "acrobot": "Acrobot, PPO",
    "pendulum": "Pendulum, SAC",
    "mountaincar": "MountainCar, PPO",
    "mountaincar_continuous": "MountainCarContinuous, TD3",
    "cartpole_dqn": "CartPole, DQN",
    "acrobot_dqn": "Acrobot, DQN",
    "mountaincar_dqn": "MountainCar, DQN",
    "lander": "LunarLander, PPO",
}
_RESAMPLES = 20_000


class Runs(NamedTuple):
    """Runs of one contestant, a seed each: environment steps, cut at the budget, and whether these solved the task."""

    steps: np.ndarray
    solved: np.ndarray

    @classmethod
    def of(cls, result: Result, name: str) -> Runs:
        """Read the runs of a contestant."""
        budget = result["settings"]["lives"] * result["settings"]["life"]
        steps = np.minimum(np.array(values(result, name, "steps"), float), budget)
        return cls(steps, np.array(values(result, name, "solved"), bool))

    @property
    def share(self) -> float:
        """The share that solved the task."""
        return float(self.solved.mean())


class Mean(NamedTuple):
    """A mean or a ratio of means, with the ends of its interval."""

    value: float
    low: float
    high: float


def restricted(runs: Runs) -> Mean:
    """Return the mean of steps up to the budget, with its percentile bootstrap interval over seeds."""
    return _interval(float(runs.steps.mean()), _means(runs.steps, 0))


def over(one: Runs, other: Runs) -> Mean:
    """Return the ratio of two restricted means, with its bootstrap interval: seeds of both drawn by themselves."""
    ratios = _means(one.steps, 1) / _means(other.steps, 2)
    return _interval(float(one.steps.mean() / other.steps.mean()), ratios)


def _means(steps: np.ndarray, seed: int) -> np.ndarray:
    index = np.random.default_rng(seed).integers(len(steps), size=(_RESAMPLES, len(steps)))
    found: np.ndarray = steps[index].mean(axis=1)
    return found


def _interval(value: float, resampled: np.ndarray) -> Mean:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Mean(value, float(low), float(high))


def log_rank(one: Runs, other: Runs) -> float:
    """Return the two-sided p of the log-rank test that two contestants need as many steps; 1 where nothing tells them
    apart: neither ever solved, or all runs solved at once."""
    if len({*one.steps[one.solved], *other.steps[other.solved]}) < 2:
        return 1.0
    from scipy import stats

    def censored(runs: Runs) -> Any:
        return stats.CensoredData(uncensored=runs.steps[runs.solved], right=runs.steps[~runs.solved])

    return float(stats.logrank(censored(one), censored(other)).pvalue)


def curve(runs: Runs) -> tuple[list[float], list[float]]:
    """Return the steps at which a run solved the task, from 0 on, and the share that is not there yet after each. All
    are censored at the budget alone, so this share is the Kaplan-Meier curve."""
    at = sorted(runs.steps[runs.solved].tolist())
    return [0.0, *at], [1 - place / len(runs.steps) for place in range(len(at) + 1)]


def share_that_solves(result: Result) -> str:
    """Return how many draws of the table of curves solve the task, in words."""
    s = result["settings"]
    rows = curves.read(curves.path_of(s["task"], s["space"]))
    if not rows:
        return "no table of draws"
    solved: dict[int, list[bool]] = {}
    for row in rows:
        solved.setdefault(row.draw, []).append(row.confirmed)
    share = float(np.mean([np.mean(each) for each in solved.values()]))
    return f"{share:.0%} of {len(solved)} draws solve it"


def rows(result: Result) -> Iterator[list[str]]:
    """Return the table's rows, in the order of restricted means among those who are told the point and those who are
    not."""
    there = {name: Runs.of(result, name) for name in names(result) if name in search.CONTESTANTS}
    for told in (True, False):
        some = [name for name in there if search.CONTESTANTS[name].told == told]
        for name in sorted(some, key=lambda name: float(there[name].steps.mean())):
            runs, mean = there[name], restricted(there[name])
            ours = name in search.OURS
            cells = []
            for mine in search.COMPARED:
                if mine == name or mine not in there:
                    cells.append("–")
                    continue
                ratio = over(there[mine], runs)
                p = log_rank(there[mine], runs)
                cells.append(f"{ratio.value:.2f} × [{ratio.low:.2f}, {ratio.high:.2f}], p {_p(p)}")
            yield [
                f"**{name}**" if ours else name,
                "configured" if told else "drawn",
                f"{runs.solved.sum()} of {len(runs.solved)}",
                f"{_thousands(mean.value)} [{_thousands(mean.low)}, {_thousands(mean.high)}]",
                _thousands(float(np.mean(values(result, name, "training")))),
                *cells,
                *([_false(result, name)] if audited(result) else []),
            ]


def audited(result: Result) -> bool:
    """Whether winners were audited, see `search.audit`."""
    return any("audit" in run["result"] for run in result["runs"])


def _false(result: Result, name: str) -> str:
    """Return how many of a contestant's winners are below the target by the audit."""
    audits = [each for each in values(result, name, "audit") if each]
    return ", ".join(str(sum(audit[i] < result["settings"]["target"] for audit in audits)) for i in range(2))


def _header(result: Result) -> tuple[str, ...]:
    return (*HEADER, "false winners") if audited(result) else HEADER


def _thousands(steps: float) -> str:
    return f"{steps / 1000:.0f}" if steps >= 10_000 else f"{steps / 1000:.1f}"


def _p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


HEADER = (
    "",
    "first trial",
    "solved",
    "steps, thousands",
    "training's",
    *(f"`{name}` over it" for name in search.COMPARED),
)


def lines(result: Result) -> list[str]:
    """Return the table of one task and space."""
    s = result["settings"]
    title = f"{TITLES[s['task']]}, {s['space']}: {s['target']:g}, budget {s['lives'] * s['life']:,} steps"
    return [f"{title}; {share_that_solves(result)}", "", *table(_header(result), rows(result))]


ABOUT = """Our strategies, and tuners that train *our* learner trial by trial: the same engine, target, life of a trial,
evaluation as a race and confirmation by 100 episodes under everybody, memories not shared. Environment steps of every
kind to a confirmed target: their mean, where a run that is not there at its budget of {lives} full lives counts as that
(a restricted mean), and a 95 % bootstrap interval over seeds; *training's* is the mean of training's steps alone, the
rest are evaluation's and confirmations'. Populations that begin no new trials live on until the
budget is spent. In bold what is ours. *First trial*: whether the file's own values are tried first (all members of
`tournament` begin with them), or nobody is told them. The last columns are ratios of means, below 1 where ours needs
fewer steps, and the p of a log-rank test, not corrected for the number of tests.

- Ours: {ours}. `prior` is random search with `search.proposer: prior`.
- Tuners: random search; Optuna's TPE with its median pruner, both by default; ASHA as published (η 4, trials wait and
  go on), and Optuna's pruner of that name over random search (factor 3, what is pruned is lost); SMAC 2.4's
  multi-fidelity facade; DEHB 0.1.2. Trials that SMAC, DEHB and ASHA take up again go on where they were.

Where the confirmation is sequential it is so for everybody: it ends when the 100 episodes are clear
([decision 0045](decisions/0045-sequential-confirmation.md)). Winners are then audited, at nobody's cost: *false
winners* are those whose mean over all 100 episodes is below the target, and those whose mean over 100 others is."""


def there(results: Mapping[str, Result]) -> dict[str, Result]:
    """Return the results of searches by name, in the order of the page."""
    return {name: results[name] for name in NAMES if name in results}


def picture_of(name: str) -> str:
    """Return the file of a result's survival curves."""
    return f"bench-{name.replace('_', '-')}.svg"


def section(results: Mapping[str, Result]) -> list[str]:
    """Return the page's section."""
    here = there(results)
    head = ["## Search strategies and tuners on one engine", ""]
    if not here:
        return [*head, MISSING]
    own = ", ".join(f"`{name}` of {each.size}" for name, each in search.OURS.items())
    text = ABOUT.format(lives=max(r["settings"]["lives"] for r in here.values()), ours=own)
    found = [*head, *text.splitlines()]
    for name, result in here.items():
        s = result["settings"]
        title = f"{TITLES[s['task']]}, {s['space']} space"
        title += ", sequential confirmation" if s.get("confirmation") == "sequential" else ""
        found += ["", f"### {title}", "", f"Target {s['target']:g}; {share_that_solves(result)}.", ""]
        found += [*table(_header(result), rows(result)), *_made_by(result)]
        found += [f"![{title}](images/{picture_of(name)})"]
    return found


def _made_by(result: Result) -> list[str]:
    """Return the command that made a result. Its turns are seeds, which begin with 1."""
    return made_by({**result, "runs": [{**run, "turn": run["turn"] - 1} for run in result["runs"]]})


def draw(axes: Any, result: Result, colours: Sequence[str]) -> None:
    """Draw survival curves: ours as lines, tuners dashed."""
    order = [name for name in names(result) if name in search.CONTESTANTS]
    budget = result["settings"]["lives"] * result["settings"]["life"]
    for ours in (True, False):
        for place, name in enumerate(name for name in order if (name in search.OURS) == ours):
            steps, left = curve(Runs.of(result, name))
            axes.step(
                [*(each / 1000 for each in steps), budget / 1000], [*left, left[-1]], where="post", label=name,
                color=colours[place % len(colours)], linestyle="-" if ours else "--",
                linewidth=2.0 if name in search.COMPARED else 1.0, alpha=1.0 if place < len(colours) else 0.55,
            )  # fmt: skip
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, min(budget, 1.05 * max(float(Runs.of(result, name).steps.max()) for name in order)) / 1000)
    axes.set_xlabel("environment steps of every kind, thousands")
    axes.set_ylabel("share of seeds not solved")
    axes.legend(frameon=False, fontsize=7, ncols=2)
