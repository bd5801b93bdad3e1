"""`docs/benchmarks.md` from the results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from harness import stats
from harness.aims import (
    OFF_POLICY,
    ON_POLICY,
    TEAMS,
    Figure,
    duration,
    figures,
    limit,
    part_of,
    seconds_key,
    solved_ratio,
    time_of,
)
from harness.measurements import SCRIPTS, SEARCHES
from harness.results import (
    Result,
    Results,
    Run,
    check_updates,
    made_by,
    names,
    number,
    paired,
    spread,
    table,
    told,
    turns,
    values,
    where,
)

MACHINE = ("cpu", "processors", "cpu_capability", "device", "torch", "gymnasium", "python")
MISSING = "Not measured yet."


def _outside(r: Run) -> float:
    """Microseconds outside `env.step()` per training step."""
    return float((r["seconds"] - r["step_seconds"]) / r["training_steps"] * 1e6)


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
        _machine, _summary, _end_to_end, _off_policy, _on_policy, _teams, _language, _roofline, _parts, _curve, _gpu,
        _loop, _scripts,
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
    header = ("figure", "aim", "farther", "measured", "processor", "")
    lines = ["## What was to be reached", ""]
    rows = figures(results)
    return [*lines, *(table(header, rows) if rows else [MISSING, ""]), *_not_won(results, rows)]


def _not_won(results: Results, rows: list[Figure]) -> list[str]:
    """List what a peer does better, or what is not shown to be better."""
    lost = []
    for name, algorithm in (("parts", ""), ("cqn", "CQN: ")):
        for size, part in _part_keys(results[name]) if name in results else []:
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


# --- end to end -------------------------------------------------------------------------------------------------------


def _work(s: Mapping[str, Any], title: str) -> str:
    """Say in a sentence what everyone did."""
    rollouts = f"rollouts of {s['learn_step']:,} steps, {s['epochs']} epochs of " if "epochs" in s else ""
    team = " steps of all agents" * bool(rollouts and s.get("team"))
    pace = "" if rollouts else f" an update every {s['learn_step']} steps,"
    return (
        f"{title} on {s['env']}: {s['population']} members of {s['num_envs']} environments, networks "
        f"{' × '.join(map(str, s['layers']))}, {rollouts}batches of {s['batch_size']:,}{team},{pace} "
        f"{s['population'] * s['max_steps']:,} training steps of the population."
    )


def _run(result: Result, title: str, more: str = "", picture: str = "") -> list[str]:
    """The part of one end-to-end measurement."""
    check_updates(result)
    return [
        f"### {title} · {where(result)}", "", _work(result["settings"], title) + more, "",
        *_runs(result), *_choices(result), *([picture, ""] if picture else []),
        "Where the seconds go (medians):", "", *_shares(result), *made_by(result),
    ]  # fmt: skip


def _runs(result: Result) -> list[str]:
    """The table of an end-to-end measurement's contestants."""
    rows = []
    for name in names(result):
        runs = values(result, name, lambda r: r)
        all_steps = [r["steps"] / r["seconds"] for r in runs if r["steps"]]
        outside = [_outside(r) for r in runs if r["step_seconds"]]
        ratios = [paired(result, name, "evopipe", key) for key in ("seconds", "processor_seconds")]
        rows.append((
            name,
            *(spread(values(result, name, key)) for key in ("seconds", "processor_seconds")),
            spread([r["training_steps"] / r["seconds"] for r in runs]),
            spread(all_steps),
            f"{spread(outside)} µs" if outside else "–",
            number(statistics.median(r["updates"] for r in runs)),
            *(told(None if name == "evopipe" else r) for r in ratios),
        ))  # fmt: skip
    header = (
        "", "seconds", "CPU seconds", "steps/s", "all steps/s", "outside `env.step()`", "updates",
        "its seconds over evopipe's", "its CPU seconds over evopipe's",
    )  # fmt: skip
    return table(header, rows)


def _end_to_end(results: Results) -> list[str]:
    lines = ["## End to end", ""]
    if "end_to_end" not in results:
        return [*lines, MISSING]
    result = results["end_to_end"]
    s = result["settings"]
    more = (
        f" Evolution and {s['eval_episodes']} evaluation episodes of each member every {s['evo_steps']:,} of its steps."
    )
    return [
        *lines,
        "All have the same first network; AgileRL and evopipe mutate all of it, but batch size and learn step, so that "
        "all make as many updates. SB3 trains as many single agents one after another. *CPU seconds* are the "
        "processors' of the contestant and of all processes that it began: the cores that it had shorten *seconds* "
        "only. *Steps/s* are training steps over all seconds; *all steps/s* count evaluation's steps too. Time outside "
        "`env.step()` is per training step, where the environments run in the contestant's own process.", "",
        *_run(result, "DQN", more, "![Steps per second](images/bench-end-to-end.svg)"),
    ]  # fmt: skip


def _off_policy(results: Results) -> list[str]:
    lines = ["## Other off-policy algorithms", ""]
    if not {*OFF_POLICY, "cqn"} & set(results):
        return [*lines, MISSING]
    lines += [
        "End to end as above, with AgileRL's published settings for each, but for the length of a generation and the "
        "delay before learning. TD3 and DDPG explore by the same Gaussian noise, and their actors learn once in two "
        "updates; AgileRL's critics read the action behind their latent layer, ours beside the observation, and where "
        "it says *share_encoders* its critics' encoders are copies of the actor's first one and do not learn. AgileRL "
        "has no SAC: there the peer is a loop over as many agents of Stable-Baselines3, which do not evolve. Rainbow "
        "has priorities, several steps, noise, dueling, double and 51 atoms on both sides.", "",
    ]  # fmt: skip
    for name, (title, *_) in OFF_POLICY.items():
        lines += _run(results[name], title) if name in results else []
    return [*lines, *(_cqn(results["cqn"]) if "cqn" in results else [])]


def _on_policy(results: Results) -> list[str]:
    lines = ["## PPO", ""]
    if not {*ON_POLICY, "ppo_native"} & set(results):
        return [*lines, MISSING]
    lines += [
        "End to end as above, with AgileRL's published settings, but for the length of a generation. Policy and value "
        "share their encoder on both sides. Batch size, learn step and epochs do not evolve. An update is one "
        "minibatch; time outside `env.step()` is per training step.", "",
    ]  # fmt: skip
    for name, (title, *_) in ON_POLICY.items():
        lines += _run(results[name], title, _sequences(results[name]["settings"])) if name in results else []
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
        lines += _run(results[name], title) if name in results else []
    return lines + (_learning(results["maddpg_learning"]) if "maddpg_learning" in results else [])


def _learning(result: Result) -> list[str]:
    """What fitness was after as many steps, of both sides."""
    s, who = result["settings"], names(result)
    both = turns(result, *who)
    curves = {name: values(result, name, "curve", both) for name in who}
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


def _sequences(s: Mapping[str, Any]) -> str:
    if not s["recurrent"]:
        return ""
    return (
        f" The first layer is an LSTM, learned in sequences of {s['max_seq_len']} steps. AgileRL counts sequences, so "
        "its batches are of as many as hold these steps; it begins one wherever an episode begins, and leaves out the "
        "last steps of most episodes, which ours learns from too."
    )


def _native(result: Result) -> list[str]:
    s, rates = result["settings"], values(result, "evopipe", "steps_per_second")
    return [
        f"### Environments as tensors · {where(result)}", "",
        f"evopipe's own {s['env']} (`env.backend: torch`), in the loop that trains: {s['population']} members of "
        f"{s['num_envs']} environments, networks {' × '.join(map(str, s['layers']))}. Stepping, acting and keeping the "
        f"rollout, before the first is learned from: {spread(rates)} environment steps a second.", "",
        *made_by(result),
    ]  # fmt: skip


def _cqn(result: Result) -> list[str]:
    s = result["settings"]
    return [
        f"### CQN · {where(result)}", "",
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
        runs = values(result, name, lambda r: r)
        keys = sorted({key for run in runs for key in run["parts"]})
        medians = {key: statistics.median(run["parts"].get(key, 0.0) for run in runs) for key in keys}
        told_parts = ", ".join(f"{key} {number(x)}" for key, x in sorted(medians.items(), key=lambda item: -item[1]))
        rows.append((name, told_parts))
    return table(("", "seconds in"), rows)


# --- parts and limits -------------------------------------------------------------------------------------------------


def _roofline(results: Results) -> list[str]:
    lines, found = ["## The limit of this machine", ""], limit(results)
    if found is None:
        both = "roofline" in results and "end_to_end" in results
        return [*lines, "Measured on another processor than the run end to end: no limit of it." if both else MISSING]
    end = results["end_to_end"]
    lines += [
        f"On {where(results['roofline'])}. What nobody can leave out of the end-to-end run of DQN with these "
        "environments and this arithmetic, timed alone on one core, times the steps that evopipe took. Products are "
        "those of the fastest that is known for this processor:", "", *table(("", "each", "in the run"), found.rows),
        f"evopipe runs at {spread(found.fractions)} of that limit.",
    ]  # fmt: skip
    if "AgileRL" in names(end):
        peer = statistics.median(values(end, "AgileRL", "seconds"))
        lines.append(
            f"At the limit itself the ratio to AgileRL's {number(peer)} s would be {number(peer / found.least)} ×."
        )
    return [*lines, "", *made_by(results["roofline"])]


def _part_keys(result: Result) -> list[tuple[str, str]]:
    one = ("learn", "learn and sample")
    parts = one if result["measurement"] == "cqn" else ("learn", "act", "sample", "evolve")
    return [(str(size), part) for size in result["settings"]["sizes"] for part in parts]


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
        of = part_of(size, part)
        each = [spread(values(result, n, of)) if n in names(result) else "–" for n in ("evopipe", "AgileRL")]
        rows.append((f"{part}, {size} members", *each, told(paired(result, "AgileRL", "evopipe", of))))
    return table(("", "evopipe", "AgileRL", "AgileRL over evopipe"), rows)


def _curve(results: Results) -> list[str]:
    lines = ["## Time of a learn step against population size", ""]
    have = [results[name] for name in ("curve_64", "curve_128") if name in results]
    if not have:
        return [*lines, MISSING]
    lines += [
        "One learn step of all members, the same a member, and the share of it that its matrix products alone take "
        "(the forward passes and one backward), by torch's library or by our own kernels, whichever is faster. "
        "AgileRL's and SB3's steps of P members are P calls: a member takes as long for any P.", "",
    ]  # fmt: skip
    for result in have:
        lines += _members(result)
    return [*lines, "![Learn step against population size](images/bench-curve.svg)"]


def each(result: Result, size: str) -> list[float]:
    """Return every turn's µs a member of a learn step of so many members."""
    return values(result, "evopipe", lambda r: r[size]["learn"] / int(size))


def _members(result: Result) -> list[str]:
    s, rows = result["settings"], []
    for size in map(str, s["sizes"]):
        runs = [r[size] for r in values(result, "evopipe", lambda r: r)]
        share = [min(r["products"], r.get("own_products", r["products"])) / r["learn"] for r in runs]
        rows.append((size, spread([r["learn"] for r in runs]), spread(each(result, size)), spread(share)))
    return [
        f"### {s['layers'][0]} wide · {where(result)}", "",
        f"Networks {' × '.join(map(str, s['layers']))}, batches of {s['batch_size']}, {s['env']}:", "",
        *table(("members", "µs", "µs a member", "share of matrix products"), rows), *made_by(result),
    ]  # fmt: skip


def _gpu(results: Results) -> list[str]:
    lines = ["## On a GPU", ""]
    if "curve_64_cuda" not in results and "ppo_native_cuda" not in results:
        return [
            *lines,
            "No figures yet: no GPU was at hand. Where one is, these say whether it computes what it should, and how "
            "fast; the last command writes this page anew:", "", "```bash", "evopipe gpu check",
            "python benchmarks/run.py curve_64 ppo_native --device cuda", "python benchmarks/make_page.py", "```",
        ]  # fmt: skip
    return [
        *lines,
        *(_members(results["curve_64_cuda"]) if "curve_64_cuda" in results else []),
        *(_native(results["ppo_native_cuda"]) if "ppo_native_cuda" in results else []),
    ]


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
