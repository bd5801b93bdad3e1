"""`docs/benchmarks.md` from the results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness import stats
from harness.measurements import SCRIPTS, SEARCHES
from harness.stats import Ratio, Time

Result = Mapping[str, Any]
Results = Mapping[str, Result]

MACHINE = ("cpu", "processors", "cpu_capability", "device", "torch", "gymnasium", "python")
ENVPOOL = "evopipe, envpool"
NATIVE_RATE = 500_000  # steps per second of our own CartPole that are the aim
PRIORITY_DRAW, MEMORY = 300, 100  # µs of a prioritised draw, and MB of a million transitions, that are the aim
TENSORS = "evopipe, tensors"
# Names, and least ratios with the environments that the peer steps and with tensors.
TEAMS = {"maddpg": ("MADDPG", 4.0, 8.0), "matd3": ("MATD3", 4.0, 8.0), "ippo": ("IPPO", 2.5, 8.0)}
OFF_POLICY = {"td3": ("TD3", 8.0), "ddpg": ("DDPG", 8.0), "rainbow": ("Rainbow", 6.0)}  # names, least ratios
# Of language models: measurement, members, who else, in words, and the least ratio of their time to ours.
LANGUAGE = (
    ("grpo", "1", "TRL", "step of GRPO, 1 member, TRL over ours", 1.0),
    ("grpo", "4", "TRL", "step of GRPO, 4 members, four runs of TRL over ours", 2.0),
    ("grpo_small", "4", "PEFT models in a loop", "step of GRPO, 4 members, PEFT models in a loop over ours", 2.0),
    ("dpo", "1", "TRL", "step of DPO, 1 member, TRL over ours", 1.25),
    ("completions", "1", "one generate() a prompt", "16 prompts × 8, one `generate()` a prompt over ours", 5.0),
)
EQUAL_UPDATES = 0.02  # how far two contestants' numbers of updates may be apart
MISSING = "Not measured yet."


class UnequalWork(ValueError):
    """Contestants of one comparison did not do the same work."""


# --- reading results --------------------------------------------------------------------------------------------------


def names(result: Result) -> list[str]:
    """Return the contestants that ran, in their order."""
    ran = {run["contestant"] for run in result["runs"]}
    return [c["name"] for c in result["contestants"] if c["name"] in ran]


def values(result: Result, contestant: str, of: Callable[[Mapping[str, Any]], Any], turns: Sequence[int]) -> list[Any]:
    """Return a value of every turn."""
    by_turn = {run["turn"]: run["result"] for run in result["runs"] if run["contestant"] == contestant}
    return [of(by_turn[turn]) for turn in turns]


def turns(result: Result, *contestants: str) -> list[int]:
    """Return the turns in which all of these ran."""
    ran = {name: {run["turn"] for run in result["runs"] if run["contestant"] == name} for name in contestants}
    return sorted(set.intersection(*ran.values())) if ran else []


def paired(
    result: Result, over: str, under: str, of: Callable[[Mapping[str, Any]], float],
    of_under: Callable[[Mapping[str, Any]], float] | None = None,
) -> Ratio | None:  # fmt: skip
    """Return the ratio of two contestants' values over the turns that both ran."""
    both = turns(result, over, under)
    if not both:
        return None
    return stats.ratio(values(result, over, of, both), values(result, under, of_under or of, both))


def check_updates(result: Result) -> None:
    """Check that contestants made as many updates.

    Raises:
        UnequalWork: they did not.
    """
    if result["quick"]:
        return
    counts = {
        name: statistics.median(values(result, name, lambda r: r["updates"], turns(result, name)))
        for name in names(result)
    }
    if max(counts.values()) > (1 + EQUAL_UPDATES) * min(counts.values()):
        raise UnequalWork(f"{result['measurement']}: numbers of updates differ by more than 2 %: {counts}")


# --- words ------------------------------------------------------------------------------------------------------------


def number(x: float) -> str:
    """Three significant digits, thousands apart."""
    if x != x or x in (float("inf"), float("-inf")):
        return "∞" if x > 0 else "–"
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2 if abs(x) >= 1 else 3
    return f"{x:.{digits}f}"


def spread(many: Sequence[float]) -> str:
    """Median, smallest and largest."""
    return f"{number(statistics.median(many))} ({number(min(many))} – {number(max(many))})"


def told(r: Ratio | None, wide: bool = False) -> str:
    """A ratio with its interval, INCONCLUSIVE where it says too little."""
    if r is None:
        return "–"
    least = "≥ " if r.high == float("inf") else ""
    text = f"{least}{number(r.median)} × [{number(r.low)}, {number(r.high)}]"
    unclear = r.low <= 1 <= r.high if wide else stats.too_wide(r)
    return f"{text} INCONCLUSIVE" if unclear or r.pairs < stats.LEAST_PAIRS else text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def made_by(*results: Result) -> list[str]:
    """The commands that made results, and when they were made under load."""
    lines = []
    for result in results:
        cores = sorted({core for lane in result["machine"]["cores"] for core in lane})
        busy = max((run["load"] for run in result["runs"]), default=0.0)
        lanes = f", {result['lanes']} lanes" if result["lanes"] > 1 else ""
        count = 1 + max((run["turn"] for run in result["runs"]), default=-1)
        lines.append(
            f"`{result['command']}` · {count} turns, cores {_cores(cores)}{lanes}, {result['machine']['device']}, "
            f"revision {result['machine']['revision']}, highest load average {busy:.1f}"
        )
    return ["<small>" + "<br>".join(lines) + "</small>", ""]


def _cores(cores: Sequence[int]) -> str:
    return f"{cores[0]}–{cores[-1]}" if len(cores) > 1 else str(cores[0])


# --- what is compared -------------------------------------------------------------------------------------------------


def _field(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda r: r[key]


def _seconds(r: Mapping[str, Any]) -> float:
    return float(r["seconds"])


def _outside(r: Mapping[str, Any]) -> float:
    """Microseconds outside `env.step()` per training step."""
    return float((r["seconds"] - r["step_seconds"]) / r["training_steps"] * 1e6)


def _outside_ratio(result: Result) -> Ratio | None:
    """Return AgileRL's time outside `env.step()` over ours, environments in process."""
    both = [run["result"] for run in result["runs"] if run["contestant"] in ("AgileRL", "evopipe, no workers")]
    # Environments in processes of their own cannot be timed from here: then nothing is claimed.
    seen = all(run["step_seconds"] for run in both)
    return paired(result, "AgileRL", "evopipe, no workers", _outside) if seen else None


def time_of(r: Mapping[str, Any], key: str = "seconds") -> Time:
    """A run's time to solved, in seconds or steps."""
    return Time(float(r[key]), not r["solved"])


def seconds_key(result: Result) -> str:
    """Return which seconds of runs to a solved elite are compared: a processor's where all have them."""
    there = all("processor_seconds" in run["result"] for run in result["runs"])
    return "processor_seconds" if there else "seconds"


def solved_ratio(result: Result, over: str, key: str = "seconds", under: str = "evopipe") -> Ratio | None:
    """Return how many times as long another contestant took until solved, by seeds."""
    both = turns(result, over, under)
    if not both:
        return None
    pick = lambda r: time_of(r, key)  # noqa: E731
    return stats.ratio_of_times(values(result, over, pick, both), values(result, under, pick, both))


def targets(results: Results) -> list[tuple[str, float, Ratio | None, bool]]:
    """Return what was to be reached: in words, the least ratio, the measured ratio, whether any width is accepted."""
    end, cartpole = results.get("end_to_end"), results.get("cartpole")
    listed: list[tuple[str, float, Ratio | None, bool]] = []
    if end:
        listed += [
            ("steps/s end to end over AgileRL, Gymnasium", 10.0, paired(end, "AgileRL", "evopipe", _seconds), False),
            ("steps/s end to end over AgileRL, envpool", 12.0, paired(end, "AgileRL", ENVPOOL, _seconds), False),
            ("time outside `env.step()` of AgileRL over ours, in process", 12.0, _outside_ratio(end), False),
        ]  # fmt: skip
    for name, (title, least) in OFF_POLICY.items():
        if name in results:
            ratio = paired(results[name], "AgileRL", "evopipe", _seconds)
            listed.append((f"steps/s of {title} end to end over AgileRL", least, ratio, False))
    if "cqn" in results:
        ratio = paired(results["cqn"], "AgileRL", "evopipe", _part("4", "learn"))
        listed.append(("learn step of CQN, 4 members, AgileRL over ours", 4.0, ratio, False))
    if "ppo" in results:
        result = results["ppo"]
        gymnasium, envpool = (paired(result, "AgileRL", name, _seconds) for name in ("evopipe", ENVPOOL))
        listed += [
            ("steps/s of PPO end to end over AgileRL, Gymnasium", 5.0, gymnasium, False),
            ("steps/s of PPO end to end over AgileRL, envpool", 10.0, envpool, False),
            ("PPO's time outside `env.step()` of AgileRL over ours, in process", 10.0, _outside_ratio(result), False),
        ]
    if "ppo_recurrent" in results:
        ratio = paired(results["ppo_recurrent"], "AgileRL", "evopipe", _seconds)
        listed.append(("steps/s of recurrent PPO end to end over AgileRL", 5.0, ratio, False))
    for name, (title, least, of_tensors) in TEAMS.items():
        if name in results:
            for ours, bound, where in (("evopipe", least, "mpe2"), (TENSORS, of_tensors, "tensors")):
                ratio = paired(results[name], "AgileRL", ours, _seconds)
                listed.append((f"steps/s of {title} end to end over AgileRL, {where}", bound, ratio, False))
    for name, size, over, words, least in LANGUAGE:
        if name in results and size in map(str, results[name]["settings"]["sizes"]):
            listed.append((words, least, paired(results[name], over, "evopipe", _part(size, "step")), False))
    if cartpole:
        listed.append(
            (
                "seconds to a solved CartPole-v1, SB3 + Optuna over ours",
                5.0,
                solved_ratio(cartpole, "SB3 + Optuna"),
                True,
            )
        )
    return listed


# --- the page ---------------------------------------------------------------------------------------------------------

HEAD = """# Benchmarks

<!-- Written by `python benchmarks/make_page.py` from `benchmarks/results/`; do not edit. -->

`make bench` makes an environment for each peer, runs everything below in turns, and writes this page. It takes about
an hour on four cores (`make bench BENCH_ARGS="--lanes 2"`), goes on where it was after an interruption, and takes
`--device cuda`, `--only NAME`, `--repeats N`, `--quick` and more: `python benchmarks/run.py --help`.

## How it is measured

- Peers: AgileRL 2.58.0 (evolutionary DQN, TD3, DDPG and Rainbow by `train_off_policy`, PPO by `train_on_policy`, teams
  by `train_multi_agent_off_policy` and `train_multi_agent_on_policy`; CQN's learn step), Stable-Baselines3 2.9.2 (DQN,
  PPO, SAC), Optuna 5.0.0, Ray Tune 2.60.0 (PB2), TRL 1.16.0 (GRPO, DPO); each in an environment of its own under
  `benchmarks/.venvs`, all with the same torch, NumPy and Gymnasium.
- Contestants alternate (A B A B …) on the same pinned cores, at least five turns; every run is a fresh process. Imports
  are not counted; making populations and environments, logs, checkpoints and outputs are.
- A figure is the median over turns (smallest – largest). A ratio is the median over turns of the ratio within the turn,
  with a 95 % bootstrap interval over turns. It is **INCONCLUSIVE** with fewer than five turns, or where the upper end
  of its interval is more than 1.5 times the lower end; for times to a solved elite, whose intervals are as wide as
  seeds make them, where the interval holds 1. A target is *reached* where the whole interval lies above it,
  *not reached* where it lies below, otherwise INCONCLUSIVE.
- Environment steps are counted below every wrapper, where they happen, evaluation included. So are updates, and the
  page is not written where contestants of one comparison differ by more than 2 % in them.
- A run that was stopped by its budget of steps or seconds is *censored*: its time is a lower bound, is treated as one
  in medians and ratios, and is shown as `>`.
- Nobody tracks: evopipe writes its local log, events and checkpoints, no MLflow; AgileRL runs with `verbose=False`.
"""


def page(results: Results) -> str:
    """Return the page. Results that are missing are said to be."""
    sections = (
        _machine, _summary, _end_to_end, _off_policy, _on_policy, _teams, _language, _roofline, _parts, _curve,
        _threads, _loop, _scripts,
        lambda r: _solved(r, "cartpole", "CartPole-v1, mean of 100 held-out episodes ≥ 475"),
        lambda r: _solved(r, "lunarlander", "LunarLander-v3, mean of 100 held-out episodes ≥ 200"),
        _searches,
    )  # fmt: skip
    lines = HEAD.splitlines()
    for section in sections:
        lines += ["", *section(results)]
    return "\n".join(lines).rstrip() + "\n"


def _machine(results: Results) -> list[str]:
    rows = []
    seen: dict[tuple[str, ...], list[str]] = {}
    for name, result in results.items():
        m = result["machine"]
        key = tuple(str(m[k]) for k in MACHINE)
        seen.setdefault(key, []).append(name)
    for key, listed in seen.items():
        rows.append([*key, ", ".join(listed)])
    header = ("processor", "processors", "instructions", "device", "torch", "Gymnasium", "Python", "measurements")
    return ["## The machine", "", *(table(header, rows) if rows else [MISSING])]


def _summary(results: Results) -> list[str]:
    rows = []
    for words, bound, r, wide in targets(results):
        said = "not measured" if r is None else f"**{stats.verdict(r, bound, wide)}**"
        rows.append((words, f"≥ {bound:g} ×", told(r, wide), said))
    if "cartpole" in results:
        rows.append(_cartpole_seconds(results["cartpole"]))
    rows += _own_figures(results)
    lines = ["## What was to be reached", ""]
    lines += table(("figure", "aim", "measured", ""), rows) if rows else [MISSING, ""]
    return [*lines, *_not_won(results)]


def _cartpole_seconds(result: Result) -> tuple[str, str, str, str]:
    ran = turns(result, "evopipe")
    if not ran:
        return "seconds to a solved CartPole-v1 on 2 cores", "≤ 45 s", "–", "not measured"
    middle = stats.median_time(values(result, "evopipe", time_of, ran))
    said = "not reached" if middle.value > 45 or middle.censored else "reached"
    said = said if len(ran) >= stats.LEAST_PAIRS else "INCONCLUSIVE"
    return "seconds to a solved CartPole-v1 on 2 cores, median", "≤ 45 s", f"{_time(middle)} s", f"**{said}**"


def _own_figures(results: Results) -> list[tuple[str, str, str, str]]:
    """Rows of figures that are compared with an aim, and with no peer."""
    rows = [_native_rate(results["ppo_native"])] if "ppo_native" in results else []
    return rows + (_priority_figures(results["priorities"]) if "priorities" in results else [])


def _native_rate(result: Result) -> tuple[str, str, str, str]:
    rates = values(result, "evopipe", _field("steps_per_second"), turns(result, "evopipe"))
    middle, (low, high) = statistics.median(rates), stats.interval(rates)
    said = stats.verdict(Ratio(middle, low, high, len(rates)), NATIVE_RATE)
    words = "steps/s of evopipe's own CartPole with PPO acting, on one core"
    return words, f"≥ {NATIVE_RATE:,}", f"{number(middle)} [{number(low)}, {number(high)}]", f"**{said}**"


def _priority_figures(result: Result) -> list[tuple[str, str, str, str]]:
    s, ran = result["settings"], turns(result, "evopipe")
    times = values(result, "evopipe", _field("microseconds"), ran)
    size = statistics.median(values(result, "evopipe", _field("rows_megabytes"), ran))
    (low, high), count = stats.interval(times), f"{s['capacity']:,}"
    slow = "reached" if high <= PRIORITY_DRAW else "not reached" if low > PRIORITY_DRAW else "INCONCLUSIVE"
    return [
        (
            f"prioritised draw of {s['population']} × {s['batch_size']} from {count} transitions",
            f"≤ {PRIORITY_DRAW} µs", f"{number(statistics.median(times))} µs [{number(low)}, {number(high)}]",
            f"**{slow if len(ran) >= stats.LEAST_PAIRS else 'INCONCLUSIVE'}**",
        ),
        (
            f"memory of {count} transitions of {s['env']}, one step each", f"≤ {MEMORY} MB", f"{number(size)} MB",
            f"**{'reached' if size <= MEMORY else 'not reached'}**",
        ),
    ]  # fmt: skip


def _not_won(results: Results) -> list[str]:
    """List what a peer does better, or what is not shown to be better."""
    lost = []
    for name, algorithm in (("parts", ""), ("cqn", "CQN: ")):
        for size, part in _part_keys(results[name]) if name in results else []:
            r = paired(results[name], "AgileRL", "evopipe", _part(size, part))
            if r and not r.low > 1:
                lost.append(f"{algorithm}{part}, {size} members: AgileRL takes {told(r)} our time")
    for name in ("cartpole", "lunarlander", *SEARCHES):
        for over in _others(results[name]) if name in results else []:
            for key in (seconds_key(results[name]), "steps"):
                r = solved_ratio(results[name], over, key)
                if r and not r.low > 1:
                    words = f"{_spoken(key)} to a solved {results[name]['settings']['env']}"
                    lost.append(f"{'search: ' * (name in SEARCHES)}{words} against {over}: {told(r, True)}")
    for words, bound, r, wide in targets(results):
        if r and stats.verdict(r, bound, wide) != "reached":
            lost.append(f"aim not shown: {words}, ≥ {bound:g} ×: {told(r, wide)}")
    for words, aim, measured, said in _own_figures(results):
        if said != "**reached**":
            lost.append(f"aim not shown: {words}, {aim}: {measured}")
    if not results:
        return []
    if not lost:
        return ["Every ratio below is won, and every aim above is reached."]
    return ["What is not won, or not shown to be:", "", *(f"- {line}" for line in lost)]


def _end_to_end(results: Results) -> list[str]:
    lines = ["## End to end", ""]
    if "end_to_end" not in results:
        return [*lines, MISSING]
    result = results["end_to_end"]
    check_updates(result)
    s = result["settings"]
    lines += [
        f"DQN on {s['env']}: {s['population']} members of {s['num_envs']} environments, networks "
        f"{' × '.join(map(str, s['layers']))}, batches of {s['batch_size']}, an update every {s['learn_step']} steps, "
        f"{s['population'] * s['max_steps']:,} training steps of the population, evolution and {s['eval_episodes']} "
        f"evaluation episodes of each member every {s['evo_steps']:,} of its steps. All have the same first network; "
        "AgileRL and evopipe mutate all of it, but batch size and learn step, so that all make as many updates. SB3 "
        "trains as many single agents one after another. *Steps/s* are training steps over all seconds; *all steps/s* "
        "count evaluation's steps too. Time outside `env.step()` is per training step, where the environments run in "
        "the contestant's own process.",
        "",
    ]
    lines += [*_runs(result), *_choices(result), "![Steps per second](images/bench-end-to-end.svg)", ""]
    lines += ["Where the seconds go (medians):", "", *_shares(result), *made_by(result)]
    return lines


def _runs(result: Result) -> list[str]:
    """The table of an end-to-end measurement's contestants."""
    rows = []
    for name in names(result):
        runs = values(result, name, lambda r: r, turns(result, name))
        all_steps = [r["steps"] / r["seconds"] for r in runs if r["steps"]]
        outside = [_outside(r) for r in runs if r["step_seconds"]]
        r = paired(result, name, "evopipe", _seconds) if name != "evopipe" else None
        rows.append(
            (
                name,
                spread([r["seconds"] for r in runs]),
                spread([r["training_steps"] / r["seconds"] for r in runs]),
                spread(all_steps) if all_steps else "–",
                f"{spread(outside)} µs" if outside else "–",
                number(statistics.median(r["updates"] for r in runs)),
                told(r),
            )
        )
    header = ("", "seconds", "steps/s", "all steps/s", "outside `env.step()`", "updates", "its seconds over evopipe's")
    return table(header, rows)


def _off_policy(results: Results) -> list[str]:
    lines = ["## Other off-policy algorithms", ""]
    if not {*OFF_POLICY, "cqn"} & set(results):
        return [*lines, MISSING]
    lines += [
        "End to end as above, with AgileRL's published settings for each, but for the length of a generation and the "
        "delay before learning. TD3 and DDPG explore by the same Gaussian noise, and their actors learn once in two "
        "updates; AgileRL's critics read the action behind their latent layer, ours beside the observation, and where "
        "it says *share_encoders* its critics' encoders are copies of the actor's first one and do not learn. Rainbow "
        "has priorities, several steps, noise, dueling, double and 51 atoms on both sides.", "",
    ]  # fmt: skip
    for name, (title, _) in OFF_POLICY.items():
        if name in results:
            result = results[name]
            check_updates(result)
            s = result["settings"]
            lines += [
                f"{title} on {s['env']}: {s['population']} members of {s['num_envs']} environments, networks "
                f"{' × '.join(map(str, s['layers']))}, batches of {s['batch_size']}, an update every "
                f"{s['learn_step']} steps, {s['population'] * s['max_steps']:,} training steps of the population.", "",
                *_runs(result), *_choices(result), *_shares(result), *made_by(result),
            ]  # fmt: skip
    return [*lines, *(_cqn(results["cqn"]) if "cqn" in results else [])]


def _on_policy(results: Results) -> list[str]:
    lines = ["## PPO", ""]
    if not {"ppo", "ppo_recurrent", "ppo_native"} & set(results):
        return [*lines, MISSING]
    lines += [
        "End to end as above, with AgileRL's published settings, but for the length of a generation. Policy and value "
        "share their encoder on both sides. Batch size, learn step and epochs do not evolve. An update is one "
        "minibatch; time outside `env.step()` is per training step.", "",
    ]  # fmt: skip
    for name, title in (("ppo", "PPO"), ("ppo_recurrent", "Recurrent PPO")):
        if name in results:
            result = results[name]
            check_updates(result)
            s = result["settings"]
            lines += [
                f"{title} on {s['env']}: {s['population']} members of {s['num_envs']} environments, networks "
                f"{' × '.join(map(str, s['layers']))}, rollouts of {s['learn_step']:,} steps, {s['epochs']} epochs of "
                f"batches of {s['batch_size']:,}, {s['population'] * s['max_steps']:,} training steps of the "
                f"population.{_sequences(s)}", "",
                *_runs(result), *_choices(result), *_shares(result), *made_by(result),
            ]  # fmt: skip
    return [*lines, *(_native(results["ppo_native"]) if "ppo_native" in results else [])]


def _teams(results: Results) -> list[str]:
    lines = ["## Teams", ""]
    if not {*TEAMS} & set(results):
        return [*lines, MISSING]
    lines += [
        "End to end as above, with AgileRL's published settings, but for the length of a generation and the "
        "environment of IPPO; a step is one of all agents at once. AgileRL has a process for each environment; ours "
        "divides them among the cores, or steps them as tensors (*tensors*). Exploration is the same Gaussian noise, "
        "and a member's agents share networks in IPPO only.", "",
    ]  # fmt: skip
    for name, (title, *_) in TEAMS.items():
        if name in results:
            result = results[name]
            check_updates(result)
            s = result["settings"]
            rollouts = f"rollouts of {s['learn_step']:,} steps, {s['epochs']} epochs of " if "epochs" in s else ""
            pace = "of all agents" if rollouts else f"an update every {s['learn_step']} steps"
            lines += [
                f"{title} on {s['env']}: {s['population']} members of {s['num_envs']} environments, networks "
                f"{' × '.join(map(str, s['layers']))}, {rollouts}batches of {s['batch_size']}"
                f"{' steps ' if rollouts else ', '}{pace}, {s['population'] * s['max_steps']:,} training steps of the "
                "population.", "",
                *_runs(result), *_choices(result), *_shares(result), *made_by(result),
            ]  # fmt: skip
    return lines + (_learning(results["maddpg_learning"]) if "maddpg_learning" in results else [])


def _learning(result: Result) -> list[str]:
    """What fitness was after as many steps, of both sides."""
    s, who = result["settings"], names(result)
    both = turns(result, *who)
    curves = {name: values(result, name, _field("curve"), both) for name in who}
    rows = []
    for i in range(min(len(curve) for of in curves.values() for curve in of)):
        told = [spread([curve[i][best] for curve in curves[name]]) for name in who for best in (1, 0)]
        rows.append((f"{(i + 1) * s['evo_steps'] * s['population']:,}", *told))
    header = ("steps of the population", *(f"{name}, {what}" for name in who for what in ("mean", "best")))
    return [
        f"MADDPG's learning on {s['env']}: fitness of the members, returns of all agents summed up, after as many "
        f"steps of both sides, which evaluate in their own ways; median of {len(both)} turns.", "",
        *table(header, rows), *made_by(result),
    ]  # fmt: skip


def _language(results: Results) -> list[str]:
    kinds = {"grpo": "GRPO", "grpo_small": "GRPO in small batches", "dpo": "DPO", "completions": "Completions alone"}
    lines = ["## Language models", ""]
    if not any(name in results for name in kinds):
        return [*lines, MISSING]
    lines += [
        "One step of all members over a tiny Llama with adapters on all linear layers, ms. Peers take a step of one "
        "member after another's: TRL four runs in turn, PEFT a model of its own for each.", "",
    ]  # fmt: skip
    for name, title in kinds.items():
        if name in results:
            result, s = results[name], results[name]["settings"]
            work = f"{s['prompts']} prompts × {s['group']} completions × at most {s['tokens']} tokens"
            work = f"{s['pairs']} pairs × {s['tokens']} tokens" if name == "dpo" else work
            others = [other for other in names(result) if other != "evopipe"]
            rows = []
            for size in map(str, s["sizes"]):
                of = _part(size, "step")
                each = [
                    spread([x / 1e3 for x in values(result, n, of, turns(result, n))]) for n in ("evopipe", *others)
                ]
                ratios = [told(paired(result, other, "evopipe", of)) for other in others]
                rows.append((f"{title}, {size} member{'s' * (size != '1')}", *each, *ratios))
            lines += [f"{title}: {work}.", "", *table(("", "evopipe", *others, *(f"{n} over evopipe" for n in others)),
                      rows), *made_by(result), ""]  # fmt: skip
    return lines


def _scripts(results: Results) -> list[str]:
    lines = ["## The same script, another import", ""]
    there = [name for name in SCRIPTS if name in results]
    if not there:
        return [*lines, MISSING]
    lines += [
        "Scripts as AgileRL's pages have them, of four members and 16 environments each, run line by line by everyone "
        "with names of their own, for fewer steps than there. Seconds are a processor's (CPU time), of which other "
        "work on the machine takes nothing, for the whole script. Environments step in the script's own process, where "
        "AgileRL, by default a process each, is faster on one core; those of its teams have a process each. A fitness "
        "is the best agent's at the end, by its own `test`.", "",
    ]  # fmt: skip
    rows = []
    for name in there:
        result = results[name]
        s, both = result["settings"], turns(result, "AgileRL", "evopipe")
        if not both:
            continue
        spent = _field("processor_seconds")
        ratio = paired(result, "AgileRL", "evopipe", spent)
        fitness = {who: spread(values(result, who, _field("fitness"), both)) for who in ("evopipe", "AgileRL")}
        seconds = {who: spread(values(result, who, spent, both)) for who in fitness}
        rows.append([
            f"{s['algo']}{', recurrent' if s['INIT_HP'].get('RECURRENT') else ''} on {s['env']}, "
            f"{s['max_steps']:,} steps", seconds["evopipe"], seconds["AgileRL"], told(ratio), fitness["evopipe"],
            fitness["AgileRL"],
        ])  # fmt: skip
    header = ("script", "evopipe, s", "AgileRL, s", "times as fast", "fitness, evopipe", "fitness, AgileRL")
    return [*lines, *table(header, rows), "", *made_by(*(results[name] for name in there))]


def _sequences(s: Mapping[str, Any]) -> str:
    if not s["recurrent"]:
        return ""
    return (
        f" The first layer is an LSTM, learned in sequences of {s['max_seq_len']} steps. AgileRL counts sequences, so "
        "its batches are of as many as hold these steps; it begins one wherever an episode begins, and leaves out the "
        "last steps of most episodes, which ours learns from too."
    )


def _native(result: Result) -> list[str]:
    s, ran = result["settings"], turns(result, "evopipe")
    rates = values(result, "evopipe", _field("steps_per_second"), ran)
    return [
        f"evopipe's own {s['env']} (`env.backend: torch`), in the loop that trains: {s['population']} members of "
        f"{s['num_envs']} environments, networks {' × '.join(map(str, s['layers']))}. Stepping, acting and keeping the "
        f"rollout, before the first is learned from: {spread(rates)} environment steps a second on one core.", "",
        *made_by(result),
    ]  # fmt: skip


def _cqn(result: Result) -> list[str]:
    s = result["settings"]
    return [
        f"CQN's learn step of a whole population, µs: networks {' × '.join(map(str, s['layers']))}, {s['env']}, "
        f"batches of {s['batch_size']} that are there, or that are drawn from {s['capacity']:,} transitions.", "",
        *_compared(result), *made_by(result),
    ]  # fmt: skip


def _choices(result: Result) -> list[str]:
    lines = []
    for name, choice in result["choices"].items():
        tried = "; ".join(
            f"{', '.join(f'{k} {v}' for k, v in variant.items() if k != 'seconds')}: {number(variant['seconds'])} s"
            for variant in choice["tried"]
        )
        chosen = ", ".join(f"{k} {v}" for k, v in choice["chosen"].items())
        lines.append(f"{name} runs with its best of these, one generation each: {tried}. Chosen: {chosen}.")
    return [*lines, ""] if lines else []


def _shares(result: Result) -> list[str]:
    rows = []
    for name in names(result):
        runs = values(result, name, lambda r: r, turns(result, name))
        keys = sorted({key for run in runs for key in run["parts"]})
        medians = {key: statistics.median(run["parts"].get(key, 0.0) for run in runs) for key in keys}
        told_parts = ", ".join(f"{key} {number(x)}" for key, x in sorted(medians.items(), key=lambda item: -item[1]))
        rows.append((name, told_parts))
    return table(("", "seconds in"), rows)


def _roofline(results: Results) -> list[str]:
    lines = ["## The limit of this machine", ""]
    if "roofline" not in results or "end_to_end" not in results:
        return [*lines, MISSING]
    result, end = results["roofline"], results["end_to_end"]
    ran = turns(result, "evopipe")
    step, products = (
        statistics.median(values(result, "evopipe", _field(key), ran))
        for key in ("step_microseconds", "products_microseconds")
    )
    cores = len(end["machine"]["cores"][0])
    both = turns(end, "evopipe")
    training, steps, took = (
        statistics.median(values(end, "evopipe", _field(key), both)) for key in ("training_steps", "steps", "seconds")
    )
    environment, learning = step * steps / 1e6, products * training / 1e6
    least = (environment + learning) / cores
    rows = [
        ("`env.step()` alone, random actions", f"{number(step)} µs a step", f"{number(environment)} s"),
        ("matrix products of learning alone", f"{number(products)} µs a training step", f"{number(learning)} s"),
        (f"both, spread over {cores} cores without loss", "", f"{number(least)} s"),
        ("evopipe took", "", f"{number(took)} s"),
    ]
    lines += [
        "What nobody can leave out of the end-to-end run with these environments and this arithmetic, timed alone on "
        "one core, times the steps that evopipe took:", "",
    ]  # fmt: skip
    lines += table(("", "each", "in the run"), rows)
    lines += [f"evopipe runs at {number(least / took)} of that limit."]
    if "AgileRL" in names(end):
        peer = statistics.median(values(end, "AgileRL", _seconds, turns(end, "AgileRL")))
        lines += [f"At the limit itself the ratio to AgileRL's {number(peer)} s would be {number(peer / least)} ×."]
    return [*lines, "", *made_by(result)]


def _part_keys(result: Result) -> list[tuple[str, str]]:
    one = ("learn", "learn and sample")
    parts = one if result["measurement"] == "cqn" else ("learn", "act", "sample", "evolve")
    return [(str(size), part) for size in result["settings"]["sizes"] for part in parts]


def _part(size: str, part: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda r: float(r[size][part])


def _parts(results: Results) -> list[str]:
    lines = ["## The parts", ""]
    if "parts" not in results:
        return [*lines, MISSING]
    result = results["parts"]
    s = result["settings"]
    lines += [
        f"One round of a whole population, µs: every member learns from one batch of {s['batch_size']}, acts in "
        f"{s['num_envs']} environments, draws one batch from {s['capacity']:,} transitions, or all are selected, "
        "cloned and mutated. AgileRL's round is that many calls.", "",
        *_compared(result), *made_by(result),
    ]  # fmt: skip
    return lines


def _compared(result: Result) -> list[str]:
    """The table of parts timed alone."""
    rows = []
    for size, part in _part_keys(result):
        of = _part(size, part)
        each = [
            spread(values(result, n, of, turns(result, n))) if n in names(result) else "–"
            for n in ("evopipe", "AgileRL")
        ]
        rows.append((f"{part}, {size} members", *each, told(paired(result, "AgileRL", "evopipe", of))))
    return table(("", "evopipe", "AgileRL", "AgileRL over evopipe"), rows)


def _curve(results: Results) -> list[str]:
    lines = ["## Time of a learn step against population size", ""]
    have = [results[name] for name in ("curve_64", "curve_128") if name in results]
    if not have:
        return [*lines, MISSING]
    lines += [
        "T(P) / T(1) of one learn step of all members, and the share of it that its matrix products alone take (the "
        "forward passes and one backward). AgileRL's and SB3's steps of P members are P calls: T(P) / T(1) = P.", "",
    ]  # fmt: skip
    for result in have:
        s, ran = result["settings"], turns(result, "evopipe")
        rows = []
        for size in map(str, s["sizes"]):
            learn = values(result, "evopipe", _part(size, "learn"), ran)
            one = values(result, "evopipe", _part("1", "learn"), ran)
            products = values(result, "evopipe", _part(size, "products"), ran)
            share = [a / b for a, b in zip(products, learn, strict=True)]
            rows.append((size, spread(learn), told(stats.ratio(learn, one)), spread(share)))
        lines += [f"Networks {' × '.join(map(str, s['layers']))}, batches of {s['batch_size']}, {s['env']}:", ""]
        lines += table(("members", "µs", "T(P) / T(1)", "share of matrix products"), rows)
        lines += made_by(result)
    return [*lines, "![Learn step against population size](images/bench-curve.svg)"]


def _threads(results: Results) -> list[str]:
    lines = ["## Threads", ""]
    if "threads" not in results:
        return [*lines, MISSING]
    result = results["threads"]
    rows, first = [], "1 thread"
    for size in map(str, result["settings"]["sizes"]):
        of = _part(size, "learn")
        times = [spread(values(result, name, of, turns(result, name))) for name in names(result)]
        gains = [told(paired(result, first, name, of)) for name in names(result)[1:]]
        rows.append((size, *times, *gains))
    header = ("members", *names(result), *(f"gain of {name}" for name in names(result)[1:]))
    lines += [
        "`runtime.threads` is 1 by default. What more would give on this machine, learn step in µs, the main networks, "
        "all cores free:", "", *table(header, rows), *made_by(result),
    ]  # fmt: skip
    return lines


def _loop(results: Results) -> list[str]:
    lines = ["## Loop, checkpoint", ""]
    rows, used = [], []
    for name in ("efficiency_lander", "efficiency_cartpole"):
        if name in results:
            result = results[name]
            ran = values(result, "evopipe", lambda r: r["efficiency"], turns(result, "evopipe"))
            rows.append((f"loop efficiency, {result['settings']['env']}", spread(ran), "≥ 0.85"))
            used.append(result)
    if "checkpoint" in results:
        result = results["checkpoint"]
        ran = turns(result, "evopipe")
        ms, share = (values(result, "evopipe", _field(key), ran) for key in ("milliseconds", "share"))
        rows.append((f"checkpoint with {result['settings']['capacity']:,} transitions, ms", spread(ms), ""))
        rows.append(("its share of wall time at the default interval, %", spread([100 * x for x in share]), "≤ 2"))
        used.append(result)
    if not rows:
        return [*lines, MISSING]
    lines += [
        "Loop efficiency is environment, acting and learning, each timed alone on the same work, over the whole loop's "
        "time, all in one process: what the loop itself adds is the rest.", "",
        *table(("", "measured", "aim"), rows), *made_by(*used),
    ]  # fmt: skip
    return lines


def _time(t: Time) -> str:
    return f"{'> ' if t.censored else ''}{number(t.value)}"


def _others(result: Result) -> list[str]:
    """The contestants that are not evopipe."""
    return [name for name in names(result) if not name.startswith("evopipe")]


def _spoken(key: str) -> str:
    return key.replace("_", " ")


def _solved(results: Results, name: str, title: str) -> list[str]:
    lines = [f"## Time to a solved elite: {title}", ""]
    if name not in results:
        return [*lines, MISSING]
    s = results[name]["settings"]
    lines += [
        f"{_rule(s)} Search space of all: {_search(s)}"
        + (f" (SB3's {', '.join(s['fixed'])} fixed: its strongest setting)." if s["fixed"] else "."),
        "",
    ]
    return [*lines, *_times(results[name], name, title)]


def _rule(s: Mapping[str, Any]) -> str:
    return (
        f"The same rule for all: an evaluation that reaches {s['target']:g} is followed by {s['confirm_episodes']} "
        "episodes on other seeds; their mean decides, and all these steps and seconds are counted. A second hundred "
        f"episodes, not counted, show how lucky the decision was. Budget: {s['budget_steps']:,} environment steps or "
        f"{s['budget_seconds']:g} s."
    )


def _times(result: Result, name: str, title: str) -> list[str]:
    """The table of runs to a solved elite, and their picture."""
    rows = []
    for contestant in names(result):
        runs = values(result, contestant, lambda r: r, turns(result, contestant))
        for key in (first := seconds_key(result), "steps"):
            times = [time_of(r, key) for r in runs]
            r = solved_ratio(result, contestant, key) if contestant != "evopipe" else None
            rows.append(
                (
                    contestant if key == first else "",
                    _spoken(key),
                    f"{sum(r['solved'] for r in runs)} of {len(runs)}",
                    _time(stats.median_time(times)),
                    ", ".join(map(_time, times)),
                    told(r, wide=True),
                )
            )
        second = [number(r["second_score"]) for r in runs if r["solved"]]
        rows.append(("", "second hundred", "", "", ", ".join(second) or "–", ""))
    header = ("", "", "solved", "median", "seeds", "over evopipe's")
    return [*table(header, rows), *made_by(result), f"![{title}](images/bench-{name}.svg)"]


def _searches(results: Results) -> list[str]:
    lines = ["## A search from nothing: time to a solved elite", ""]
    there = [name for name in SEARCHES if name in results]
    if not there:
        return [*lines, MISSING]
    lines += [
        "Here nobody begins with values that serve. Members of evopipe and of PB2, and the first trials, have values "
        "drawn from the same space, the width of both layers among them; evopipe's evolution and the searchers go on "
        "from there. Both sides learn by the same algorithm with the same γ, λ, clipping and weights of the losses; "
        "what else it has is each side's own. SB3's trials are evaluated as often, and over as many episodes, as "
        "evopipe's members. Everybody has one core and one thread. Seconds are a processor's, since other work ran "
        "beside these; wall seconds are in the results.", "",
        "The searchers: Optuna's TPE with its median pruner; its random search; its asynchronous successive halving "
        "(factor 3) over random search; Ray Tune's PB2 with four members. PB2's scheduler, with its Gaussian process, "
        "is asked in the process that trains: Ray's own processes would take most of a core. It leaves a network's "
        "width as it is. Optuna's searchers draw the same first trials of a seed (TPE, as by default, ten): where one "
        "of these is solved they differ by what they pruned before it, or not at all. `evopipe, tensors` steps "
        "evopipe's own build of the environment.",
    ]  # fmt: skip
    for name in there:
        result, s = results[name], results[name]["settings"]
        title = f"{s['env']}, mean of {s['confirm_episodes']} held-out episodes ≥ {s['target']:g}"
        trials = (
            f"All learn by {s['algo'].upper()}. Trials: {s['sb3_envs']} environment{'s' * (s['sb3_envs'] > 1)}, at "
            f"most {s['trial_steps']:,} steps, evaluated every {s['trial_eval_every']:,} over {s['trial_episodes']} "
            f"episodes. Search space: {_search(s)}."
        )
        lines += ["", f"### {title}", "", f"{_rule(s)} {trials}", "", *_outcome(result), ""]
        lines += _times(result, name, title)
    return lines


def _outcome(result: Result) -> list[str]:
    """Say of each figure against whom it is won, lost or open."""
    lines = []
    for key in (seconds_key(result), "steps"):
        said: dict[str, list[str]] = {"won against": [], "lost to": [], "open against": []}
        for over in _others(result):
            r = solved_ratio(result, over, key)
            if r:
                clear = r.pairs >= stats.LEAST_PAIRS
                won, lost = clear and r.low > 1, clear and r.high < 1
                said["won against" if won else "lost to" if lost else "open against"].append(over)
        words = "; ".join(f"{how} {', '.join(who)}" for how, who in said.items() if who)
        if words:
            lines.append(f"- {_spoken(key)}: {words}")
    return lines


def _search(s: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {low:g} to {high:g}" for name, (low, high) in s["search"].items())
