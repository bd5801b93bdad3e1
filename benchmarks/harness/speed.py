"""The page's sections on speed: whole runs end to end, their parts, the limit of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from harness.aims import OFF_POLICY, ON_POLICY, TEAMS, limit, part_of
from harness.results import (
    MISSING,
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


def _outside(r: Run) -> float:
    """Microseconds outside `env.step()` per training step."""
    return float((r["seconds"] - r["step_seconds"]) / r["training_steps"] * 1e6)


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


def end_to_end(results: Results) -> list[str]:
    """DQN against all peers."""
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


def off_policy(results: Results) -> list[str]:
    """The other algorithms with a replay memory."""
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


def on_policy(results: Results) -> list[str]:
    """PPO."""
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


def teams(results: Results) -> list[str]:
    """Algorithms for teams."""
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


def roofline(results: Results) -> list[str]:
    """What nobody can leave out of the run end to end."""
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


def part_keys(result: Result) -> list[tuple[str, str]]:
    """Return the sizes and parts that were timed."""
    one = ("learn", "learn and sample")
    parts = one if result["measurement"] == "cqn" else ("learn", "act", "sample", "evolve")
    return [(str(size), part) for size in result["settings"]["sizes"] for part in parts]


def parts(results: Results) -> list[str]:
    """One round of a population, by parts."""
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
    for size, part in part_keys(result):
        of = part_of(size, part)
        each = [spread(values(result, n, of)) if n in names(result) else "–" for n in ("evopipe", "AgileRL")]
        rows.append((f"{part}, {size} members", *each, told(paired(result, "AgileRL", "evopipe", of))))
    return table(("", "evopipe", "AgileRL", "AgileRL over evopipe"), rows)


def curve(results: Results) -> list[str]:
    """A learn step against the number of members."""
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


def gpu(results: Results) -> list[str]:
    """The same on a GPU, or how to measure it."""
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
