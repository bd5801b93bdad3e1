"""`docs/benchmarks.md` from the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import per_step, speed, stats, survival
from harness.aims import (
    Figure,
    duration,
    figures,
    part_of,
    seconds_key,
    solved_ratio,
    time_of,
)
from harness.measurements import SCRIPTS, SEARCHES
from harness.results import (
    MISSING,
    Result,
    Results,
    made_by,
    names,
    number,
    paired,
    spread,
    table,
    told,
    turns,
    values,
)

MACHINE = ("cpu", "processors", "cpu_capability", "device", "torch", "gymnasium", "python")


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
        _machine, _summary, speed.end_to_end, speed.off_policy, speed.on_policy, speed.teams, _language,
        speed.roofline, speed.parts, speed.curve, speed.gpu, _loop, _scripts,
        lambda r: _solved(r, "cartpole", "CartPole-v1, mean of 100 held-out episodes ≥ 475"),
        lambda r: _solved(r, "lunarlander", "LunarLander-v3, mean of 100 held-out episodes ≥ 200"),
        _searches, survival.section, per_step.section,
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
    header = ("figure", "aim", "farther", "measured", "processor", "")
    lines = ["## What was to be reached", ""]
    rows = figures(results)
    return [*lines, *(table(header, rows) if rows else [MISSING, ""]), *_not_won(results, rows)]


def _not_won(results: Results, rows: list[Figure]) -> list[str]:
    """List what a peer does better, or what is not shown to be better."""
    lost = []
    for name, algorithm in (("parts", ""), ("cqn", "CQN: ")):
        for size, part in speed.part_keys(results[name]) if name in results else []:
            r = paired(results[name], "AgileRL", "evopipe", part_of(size, part))
            if r and not r.low > 1:
                lost.append(f"{algorithm}{part}, {size} members: AgileRL takes {told(r)} our time")
    for name in ("cartpole", "lunarlander", *SEARCHES):
        for over in _others(results[name]) if name in results else []:
            for key in (seconds_key(results[name]), "steps"):
                r = solved_ratio(results[name], over, key)
                if r and not r.low > 1:
                    words = f"{_spoken(key)} to a solved {results[name]['settings']['env']}"
                    lost.append(f"{'search: ' * (name in SEARCHES)}{words} against {over}: {told(r, True)}")
    lost += [f"aim not shown: {f.words}, {f.aim}: {f.measured}" for f in rows if f.said != "**reached**"]
    if not results:
        return []
    if not lost:
        return ["Every ratio below is won, and every aim above is reached."]
    return ["What is not won, or not shown to be:", "", *(f"- {line}" for line in lost)]


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
                of = part_of(size, "step")
                each = [spread([x / 1e3 for x in values(result, n, of)]) for n in ("evopipe", *others)]
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
        spent = "processor_seconds"
        ratio = paired(result, "AgileRL", "evopipe", spent)
        fitness = {who: spread(values(result, who, "fitness", both)) for who in ("evopipe", "AgileRL")}
        seconds = {who: spread(values(result, who, spent, both)) for who in fitness}
        rows.append([
            f"{s['algo']}{', recurrent' if s['INIT_HP'].get('RECURRENT') else ''} on {s['env']}, "
            f"{s['max_steps']:,} steps", seconds["evopipe"], seconds["AgileRL"], told(ratio), fitness["evopipe"],
            fitness["AgileRL"],
        ])  # fmt: skip
    header = ("script", "evopipe, s", "AgileRL, s", "times as fast", "fitness, evopipe", "fitness, AgileRL")
    return [*lines, *table(header, rows), "", *made_by(*(results[name] for name in there))]


def _loop(results: Results) -> list[str]:
    lines = ["## Loop, checkpoint", ""]
    rows, used = [], []
    for name in ("efficiency_lander", "efficiency_cartpole"):
        if name in results:
            result = results[name]
            ran = values(result, "evopipe", lambda r: r["efficiency"])
            rows.append((f"loop efficiency, {result['settings']['env']}", spread(ran), "≥ 0.85"))
            used.append(result)
    if "checkpoint" in results:
        result = results["checkpoint"]
        ran = turns(result, "evopipe")
        ms, share = (values(result, "evopipe", key, ran) for key in ("milliseconds", "share"))
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
        runs = values(result, contestant, lambda r: r)
        for key in (first := seconds_key(result), "steps"):
            times = [time_of(r, key) for r in runs]
            r = solved_ratio(result, contestant, key) if contestant != "evopipe" else None
            rows.append(
                (
                    contestant if key == first else "",
                    _spoken(key),
                    f"{sum(r['solved'] for r in runs)} of {len(runs)}",
                    duration(stats.median_time(times)),
                    ", ".join(map(duration, times)),
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
    missing = [f"`{name}`" for name in SEARCHES if name not in results]
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
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
