"""What was to be reached: aims, and what the results say of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from harness import stats
from harness.results import Result, Results, Run, number, paired, told, turns, values, where
from harness.stats import Ratio, Time

TENSORS = "evopipe, tensors"
# End to end, by measurement: the title, whom it is compared with, and the least ratio, what more would be good.
OFF_POLICY = {
    "td3": ("TD3", "AgileRL", 5.0, 6.0), "ddpg": ("DDPG", "AgileRL", 5.0, 6.0), "sac": ("SAC", "SB3", 5.0, 6.0),
    "rainbow": ("Rainbow", "AgileRL", 8.0, None),
}  # fmt: skip
ON_POLICY = {"ppo": ("PPO", "AgileRL", 3.5, 4.2), "ppo_recurrent": ("Recurrent PPO", "AgileRL", 3.5, 4.2)}
COMPARED = {"end_to_end": ("DQN", "AgileRL", 5.0, 6.0), **OFF_POLICY, **ON_POLICY}
# Titles, and least ratios with the environments that the peer steps and with tensors.
TEAMS = {"maddpg": ("MADDPG", 4.0, 8.0), "matd3": ("MATD3", 4.0, 8.0), "ippo": ("IPPO", 2.5, 8.0)}
# Of language models: measurement, members, who else, in words, and the least ratio of their time to ours.
LANGUAGE = (
    ("grpo", "1", "TRL", "step of GRPO, 1 member, TRL over ours", 1.0),
    ("grpo", "4", "TRL", "step of GRPO, 4 members, four runs of TRL over ours", 2.0),
    ("grpo_small", "4", "PEFT models in a loop", "step of GRPO, 4 members, PEFT models in a loop over ours", 2.0),
    ("dpo", "1", "TRL", "step of DPO, 1 member, TRL over ours", 1.25),
    ("completions", "1", "one generate() a prompt", "16 prompts × 8, one `generate()` a prompt over ours", 5.0),
)
FRACTION, FRACTION_STRETCH = 0.5, 0.6  # of the machine's limit, that are the aim
RATE = 1_500_000  # steps per second of our own CartPole that are the aim
LANDED, LANDED_STRETCH = 187_500, 150_000  # steps to a solved LunarLander, evaluation counted: half of 375,000
UPDATE, DRAW, MEMORY = 150, 150, 100  # µs of a small update and of a prioritised draw, MB of a million transitions


def part_of(size: str, part: str) -> Callable[[Run], float]:
    """Return what reads a part's µs of a population of this size."""
    return lambda r: float(r[size][part])


def duration(t: Time) -> str:
    """A time in words."""
    return f"{'> ' if t.censored else ''}{number(t.value)}"


def time_of(r: Run, key: str = "seconds") -> Time:
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


class Figure(NamedTuple):
    """A figure that has an aim: what it is, the aim and a farther one, what was measured, where, and the verdict."""

    words: str
    aim: str
    stretch: str
    measured: str
    where: str
    said: str


def _ratio(
    words: str, result: Result, r: Ratio | None, least: float, stretch: float | None = None, wide: bool = False
) -> Figure:
    said = "not measured" if r is None else f"**{stats.verdict(r, least, wide)}**"
    return Figure(words, *_aims("≥", " ×", least, stretch), told(r, wide), where(result), said)


def _aims(sign: str, unit: str, least: float, stretch: float | None = None) -> tuple[str, str]:
    aim, more = (f"{sign} {x:,g}{unit}" if x and x < 1000 else f"{sign} {x:,}{unit}" for x in (least, stretch or 0))
    return aim, more if stretch else ""


def _alone(
    words: str, result: Result, many: list[float], aim: float, unit: str = "", stretch: float | None = None,
    most: bool = False,
) -> Figure:  # fmt: skip
    """A figure that no peer has a part in: to be at least the aim, or at most."""
    middle, (low, high) = statistics.median(many), stats.interval(many)
    r = Ratio(1 / middle, 1 / high, 1 / low, len(many)) if most else Ratio(middle, low, high, len(many))
    said = f"**{stats.verdict(r, 1 / aim if most else aim)}**"
    measured = f"{number(middle)}{unit} [{number(low)}, {number(high)}]"
    return Figure(words, *_aims("≤" if most else "≥", unit, aim, stretch), measured, where(result), said)


def figures(results: Results) -> list[Figure]:
    """Return what was to be reached, as far as it was measured."""
    listed: list[Figure] = []
    for name, (title, peer, *aims) in COMPARED.items():
        if name in results:
            over = "AgileRL" if peer == "AgileRL" else "Stable-Baselines3 in a loop"
            ratio = paired(results[name], peer, "evopipe", "seconds")
            listed.append(_ratio(f"steps/s of {title} end to end over {over}", results[name], ratio, *aims))
    if found := limit(results):
        end = results["end_to_end"]
        words = "fraction of the machine's limit, DQN end to end"
        listed.append(_alone(words, end, found.fractions, FRACTION, stretch=FRACTION_STRETCH))
    if "curve_64" in results and "8" in map(str, results["curve_64"]["settings"]["sizes"]):
        result = results["curve_64"]
        took = values(result, "evopipe", part_of("8", "learn"))
        listed.append(_alone("update of 8 members, 64 wide, batches of 64", result, took, UPDATE, " µs", most=True))
    if "ppo_native" in results:
        result = results["ppo_native"]
        rates = values(result, "evopipe", "steps_per_second")
        listed.append(_alone("steps/s of evopipe's own CartPole with PPO acting, on one core", result, rates, RATE))
    if "priorities" in results:
        result = results["priorities"]
        s, count = result["settings"], f"{result['settings']['capacity']:,}"
        words = f"prioritised draw of {s['population']} × {s['batch_size']} from {count} transitions"
        listed.append(_alone(words, result, values(result, "evopipe", "microseconds"), DRAW, " µs", most=True))
        words = f"memory of {count} transitions of {s['env']}, one step each"
        listed.append(_alone(words, result, values(result, "evopipe", "rows_megabytes"), MEMORY, " MB", most=True))
    if "cqn" in results:
        ratio = paired(results["cqn"], "AgileRL", "evopipe", part_of("4", "learn"))
        listed.append(_ratio("learn step of CQN, 4 members, AgileRL over ours", results["cqn"], ratio, 4.0))
    for name, (title, least, of_tensors) in TEAMS.items():
        if name in results:
            for ours, bound, place in (("evopipe", least, "mpe2"), (TENSORS, of_tensors, "tensors")):
                ratio = paired(results[name], "AgileRL", ours, "seconds")
                words = f"steps/s of {title} end to end over AgileRL, {place}"
                listed.append(_ratio(words, results[name], ratio, bound))
    for name, size, over, words, least in LANGUAGE:
        if name in results and size in map(str, results[name]["settings"]["sizes"]):
            ratio = paired(results[name], over, "evopipe", part_of(size, "step"))
            listed.append(_ratio(words, results[name], ratio, least))
    if "cartpole" in results:
        result = results["cartpole"]
        words = "seconds to a solved CartPole-v1, SB3 + Optuna over ours"
        listed.append(_ratio(words, result, solved_ratio(result, "SB3 + Optuna"), 5.0, wide=True))
        listed.append(_to_solved("seconds to a solved CartPole-v1 on 2 cores, median", result, "seconds", 45, " s"))
    if "lunarlander" in results:
        words = "environment steps to a solved LunarLander-v3, evaluation counted, median"
        listed.append(_to_solved(words, results["lunarlander"], "steps", LANDED, "", LANDED_STRETCH))
    return listed


def _to_solved(words: str, result: Result, key: str, aim: int, unit: str, stretch: int | None = None) -> Figure:
    middle = stats.median_time(found := values(result, "evopipe", lambda r: time_of(r, key)))
    said = "not reached" if middle.value > aim or middle.censored else "reached"
    said = said if len(found) >= stats.LEAST_PAIRS else "INCONCLUSIVE"
    return Figure(words, *_aims("≤", unit, aim, stretch), f"{duration(middle)}{unit}", where(result), f"**{said}**")


class Limit(NamedTuple):
    """What nobody can leave out of a run: rows of a table, seconds at the least, and what share of ours each turn's
    seconds that is."""

    rows: list[tuple[str, str, str]]
    least: float
    fractions: list[float]


def limit(results: Results) -> Limit | None:
    """Return the limit of the DQN run end to end; None where it was not measured on the processor of that run."""
    if not {"roofline", "end_to_end"} <= results.keys():
        return None
    result, end = results["roofline"], results["end_to_end"]
    if result["machine"]["cpu"] != end["machine"]["cpu"]:
        return None
    ways = {"torch's library": "products_microseconds", "our own kernels": "own_products_microseconds"}
    each = {way: values(result, "evopipe", key) for way, key in ways.items()}
    products = {way: statistics.median(found) for way, found in each.items() if None not in found}
    step = statistics.median(values(result, "evopipe", "step_microseconds"))
    cores = len(end["machine"]["cores"][0])
    training, steps = (statistics.median(values(end, "evopipe", key)) for key in ("training_steps", "steps"))
    environment, learning = step * steps / 1e6, min(products.values()) * training / 1e6
    least, took = (environment + learning) / cores, values(end, "evopipe", "seconds")
    rows = [("`env.step()` alone, random actions", f"{number(step)} µs a step", f"{number(environment)} s")]
    rows += [
        (f"matrix products of learning alone, by {way}", f"{number(x)} µs a training step",
         f"{number(x * training / 1e6)} s")
        for way, x in products.items()
    ]  # fmt: skip
    rows.append(
        (f"environment and the faster products, spread over {cores} cores without loss", "", f"{number(least)} s")
    )
    rows.append(("evopipe took", "", f"{number(statistics.median(took))} s"))
    return Limit(rows, least, [least / seconds for seconds in took])
