"""Each rule of advice at its thresholds, by hand: the last that is well, the first that is ill, and its words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from evopipe.report.advice import RULES, Advice, Facts, advise

Told = float | Sequence[float] | Mapping[tuple[int, int], float]
NAN = math.nan


def by_member(told: Told, generations: int, members: int) -> dict[tuple[int, int], float]:
    """A figure of every member, one of every generation, or of each member as it is."""
    if isinstance(told, Mapping):
        return dict(told)
    each = told if isinstance(told, Sequence) else [told] * generations
    return {(g + 1, slot): float(each[g]) for g in range(generations) for slot in range(members)}


def facts(
    fitness: Told = 1.0, signals: Mapping[str, Told] | None = None, generations: int = 4, members: int = 2, **of: Any
) -> Facts:
    found: dict[tuple[int, int], dict[str, float]] = {}
    for name, told in (signals or {}).items():
        for key, x in by_member(told, generations, members).items():
            found.setdefault(key, {})[name] = x
    return Facts(found, by_member(fitness, generations, members), **of)


def told(rule: str, *args: Any, **how: Any) -> str:
    """What a rule says of these facts; nothing, where it says nothing."""
    (of,) = [each for each in RULES if getattr(each, "__name__", "") == rule]
    found = of(facts(*args, **how))
    assert found is None or (isinstance(found, Advice) and found.rule == rule and bool(found.signal or found.section))
    return found.text if found else ""


RETURN, LENGTH, ENDED = "charts/episodic_return", "charts/episodic_length", "charts/episodes"


def test_no_reward() -> None:
    text = told("no_reward", 0.0, {RETURN: 0.0}, training=20_000)
    assert text.startswith("No episode has seen a reward other than 0 in 20k training steps")
    assert told("no_reward", 0.0, {ENDED: 0.0}), "no episode has ended, but it is known"
    assert told("no_reward", {(1, 0): 0.0, (2, 0): NAN}, {RETURN: 0.0}), "one generation that is scored"
    assert not told("no_reward", 0.0, {"losses/entropy": 0.0}), "of what was never looked at nothing is known"
    assert not told("no_reward", 0.0, {RETURN: 0.0}, generations=1)
    assert not told("no_reward", NAN, {RETURN: 0.0}), "nobody was scored"
    assert not told("no_reward", 0.0, {RETURN: {(1, 0): 0.0, (2, 1): -0.5}})
    assert not told("no_reward", {(1, 0): 0.0, (2, 0): 0.5}, {RETURN: 0.0})


def test_episodes_never_end() -> None:
    env = {"num_envs": 4}
    text = told("episodes_never_end", 1.0, {ENDED: 0.0}, env=env, training=16_000)
    assert text.startswith("No training episode has ended in 2k steps of each environment: ")
    assert not told("episodes_never_end", 1.0, {ENDED: 0.0}, env=env, training=15_999)
    assert not told("episodes_never_end", 1.0, {ENDED: {(1, 0): 0.0, (4, 1): 1.0}}, env=env, training=16_000)
    assert not told("episodes_never_end", 1.0, {}, env=env, training=16_000)
    assert told("episodes_never_end", 1.0, {ENDED: 0.0}, members=3, training=6_000), "one environment each"
    env = {"step_limit": 1500}
    text = told("episodes_never_end", 1.0, {LENGTH: [3.0, 1500.0, 1500.0, 1500.0]}, env=env)
    assert text.startswith("Every training episode was cut after env.step_limit, 1.5k steps, and none has ended: ")
    assert not told("episodes_never_end", 1.0, {LENGTH: [3.0, 1500.0, 1499.0, 1500.0]}, env=env)
    assert not told("episodes_never_end", 1.0, {LENGTH: 1500.0})


def test_time_limit_hidden() -> None:
    def says(length: Told = 40.0, ends: Told = 0.025, **how: Any) -> str:
        return told("time_limit_hidden", how.pop("fitness", 1.0), {LENGTH: length, "charts/terminated": ends}, **how)

    assert says().startswith("All training episodes were terminated at step 40, whatever members did: ")
    assert says(ends=[0.0, 0.0, 0.0, 0.025])  # a quarter of one in each episode, on average
    assert not says(ends=[0.0, 0.0, 0.0, 0.0249])
    assert says(length=20.0)
    assert not says(length=19.0)
    assert not says(length=[40.0, 40.0, 40.0, 41.0])
    assert says(generations=2)
    assert not says(generations=1)
    assert not says(fitness=[1.0, 1.0, 1.0, 2.0])
    assert not told("time_limit_hidden", 1.0, {LENGTH: 40.0})


def test_discount_too_short() -> None:
    def says(length: Told, gamma: float | None = 0.9, **how: Any) -> str:
        config = {} if gamma is None else {"gamma": gamma}
        return told("discount_too_short", how.pop("fitness", 1.0), {LENGTH: length}, config=config, **how)

    text = says(250.1)
    assert text.startswith("γ of 0.9 sees 10 steps ahead, and episodes last 250.1: ")
    assert text.endswith("raise gamma, to 0.98 or so.")
    assert not says(249.0)
    assert says(500.5, 0.95)
    assert not says(1e6, 0.951)
    assert not says(1e6, None)
    assert not says([1e3, 1e3, 9.0, 9.0]), "recent episodes count"
    assert not says(1e3, fitness=[1.0, 1.0, 1.0, 2.0])
    old, now = {"gamma": 0.5}, {"gamma": 0.9}
    evolved = {(g, slot): now if g > 2 else old for g in range(1, 5) for slot in range(2)}
    assert says(260.0, 0.99, hyper=evolved).startswith("γ of 0.9 ")
    assert not says(240.0, 0.5, hyper=evolved)
    ranges = {(4, slot): {"gamma": each} for slot, each in enumerate((0.8, 0.9, 0.99))}
    assert says(260.0, hyper=ranges, members=3).startswith("γ of 0.9 "), "the median"


def test_diverged() -> None:
    def says(ill: int, members: int, **how: Any) -> str:
        at = {(g, s): 1.0 for g in range(1, 5) for s in range(members)}
        recent = [key for key in at if key[0] > 2]
        at |= {key: (NAN, math.inf, -math.inf)[i % 3] for i, key in enumerate(recent[:ill])}
        return told("diverged", at, **how)

    assert says(2, 4).startswith("2 of the last 8 members diverged: lower the learning rate or grad_clip.")
    assert not says(2, 5)
    assert not says(1, 2)
    assert says(3, 6)
    rates = {"lr": 0.01, "lr_actor": 0.5, "lrs": 3.0, "lr_scale": True, "batch": 8}
    assert "the learning rate (lr 0.01, lr_actor 0.5) or grad_clip" in says(2, 4, config=rates)
    old = {(g, s): NAN if g < 3 else 1.0 for g in range(1, 5) for s in range(4)}
    assert not told("diverged", old), "it was long ago"


def test_reward_scale() -> None:
    assert told("reward_scale", 1.0, {RETURN: -6000.0, LENGTH: 20.0}).startswith("A step is rewarded by 300 in size")
    assert not told("reward_scale", 1.0, {RETURN: -5999.0, LENGTH: 20.0})
    assert told("reward_scale", 1.0, {RETURN: 300.0, LENGTH: 0.5}), "an episode has a step"
    assert not told("reward_scale", 1.0, {RETURN: 1e9})
    assert not told("reward_scale", 1.0, {LENGTH: 1.0})


def test_values_too_large() -> None:
    def says(values: Told, returns: Told = (0.0, -4.0, 10.0, 6.0), gamma: float = 0.5, **signals: Told) -> str:
        found = {"losses/q_values": values, RETURN: returns, LENGTH: 100.0}
        found |= {name.replace("_", "/", 1): x for name, x in signals.items()}
        return told("values_too_large", 0.0, found, config={"gamma": gamma})

    # Returns reach from −4 to 10: 1.5 times that, and 10, are 31 beyond either end.
    text = says(41.5)
    assert text.startswith("Values are 41.5, and returns lie between −4 and 10: values are beyond what can be reached")
    assert text.endswith("lower the learning rate, or tau.")
    assert says(41.5, losses_alpha=0.0).endswith("lower the temperature, alpha.")
    assert not says(41.0)
    assert says(-35.5)
    assert not says(-35.0)
    assert not says([1e9, 1e9, 1.0, 1.0]), "recent values count"
    assert not says(1e9, returns=0.0), "where nothing was rewarded nothing is known"
    # 1,000 steps ahead, where episodes last 100: what is endless is ten times as good.
    assert not says(319.0, gamma=0.999)
    assert says(321.0, gamma=0.999)
    assert says(41.5, gamma=1.0)
    assert not told("values_too_large", 0.0, {RETURN: 1.0})


def test_observations_unscaled() -> None:
    size = "charts/observation_size"
    assert told("observations_unscaled", 1.0, {size: 50.0}).startswith("A number of the observations is 50 in size")
    assert not told("observations_unscaled", 1.0, {size: 49.9})
    assert not told("observations_unscaled", 1.0, {size: [1e4, 1e4, 1.0, 1.0]})
    for of, says in ((True, False), (False, True)):
        assert bool(told("observations_unscaled", 1.0, {size: 60.0}, train={"normalise": {"observations": of}})) == says


def test_support_too_narrow() -> None:
    def says(**ends: float) -> str:
        signals = {f"losses/support_{end}": share for end, share in ends.items()}
        return told("support_too_narrow", 1.0, signals, config={"v_min": -3.0, "v_max": 7.0})

    assert says(high=0.51, low=0.9) == "51 % of the return distribution stands at v_max (7): raise it."
    assert says(low=0.51) == "51 % of the return distribution stands at v_min (−3): lower it."
    assert not says(high=0.5, low=0.5)
    assert not says()


def test_entropy_gone() -> None:
    def says(entropy: Told, deviation: Told | None = None, **how: Any) -> str:
        signals = {"losses/entropy": entropy} | ({} if deviation is None else {"losses/log_std": deviation})
        return told("entropy_gone", how.pop("fitness", 1.0), signals, **how)

    text = says([2.0, 9.0, 0.09, 0.09])
    assert text.startswith("The policy's entropy is 0.09, 2 in the first generation, and fitness has not risen: ")
    assert not says([2.0, 0.0, 0.11, 0.11])
    assert says(0.019), "it had none from the start"
    assert not says(0.02)
    assert not says([0.019, 0.5, 0.5, 0.5])
    assert says([2.0, 2.0, 1.0, 1.0], [0.0, 0.0, -3.6, -3.6])
    assert not says([2.0, 2.0, 1e-3, 1e-3], -3.5), "densities may be anything"
    assert says([2.0, 0.01, 0.01], generations=3)
    assert not says([2.0, 0.01], generations=2)
    assert not says([2.0, 2.0, 0.01, 0.01], fitness=[1.0, 1.0, 2.0, 2.0])
    assert not told("entropy_gone", 1.0, {"losses/log_std": -9.0})


def test_steps_too_large() -> None:
    kl, clip = "losses/approx_kl", "losses/clipfrac"
    text = told("steps_too_large", 1.0, {kl: 0.15, clip: 0.4})
    assert text.startswith(
        "A rollout moves the policy by 0.15 nats, 40 % of its steps beyond the clip: lower lr or epochs"
    )
    assert told("steps_too_large", 1.0, {kl: 0.2}).startswith("A rollout moves the policy by 0.2 nats: ")
    assert not told("steps_too_large", 1.0, {kl: 0.149})
    assert not told("steps_too_large", 1.0, {kl: [1.0, 1.0, 0.1, 0.1]})
    assert not told("steps_too_large", 1.0, {clip: 1.0})


def test_values_explain_nothing() -> None:
    name = "losses/explained_variance"
    text = told("values_explain_nothing", 1.0, {name: [0.9, -0.02, -0.5, -0.5]})
    assert text.startswith(
        "The values' explained variance is −0.5 and below 0 for every member in the last 3 generations"
    )
    assert not told("values_explain_nothing", 1.0, {name: [-1.0, -0.019, -1.0, -1.0]})
    assert not told("values_explain_nothing", 1.0, {name: -1.0}, generations=3)
    assert not told("values_explain_nothing", [1.0, 1.0, 1.0, 2.0], {name: -1.0})


def test_units_idle() -> None:
    assert told("units_idle", 1.0, {"charts/dormant": 0.7}).startswith("70 % of the hidden units do nothing: ")
    assert not told("units_idle", 1.0, {"charts/dormant": 0.69})
    assert not told("units_idle", [1.0, 1.0, 2.0, 2.0], {"charts/dormant": 0.9})
    assert not told("units_idle", 1.0, {"charts/dormant": [0.9, 0.9, 0.1, 0.1]})


def test_gradient_clipped() -> None:
    def says(share: Told = 1.0, norm: float = 1500.0, limit: Any = 0.5) -> str:
        signals = {"losses/grad_clipped": share, "losses/grad_norm": norm}
        return told("gradient_clipped", 1.0, signals, config={"grad_clip": limit})

    assert says().startswith("Every gradient was clipped: its norm is 1500, 3000 times grad_clip (0.5); ")
    assert not says(norm=1499.0)
    assert not says(share={(3, 0): 1.0, (4, 1): 0.99})
    assert says(share=[0.0, 0.0, 1.0, 1.0])
    assert not says(limit=None)
    assert not says(limit=True)
    assert says(limit=0.0, norm=3000.0)


def test_too_few_updates() -> None:
    def says(updates: Told, epsilon: bool = True, fitness: Told = 1.0) -> str:
        signals: dict[str, Told] = {"charts/updates_per_step": updates} | ({"charts/epsilon": 0.0} if epsilon else {})
        config, train = {"learn_step": 64}, {"learning_delay": 900}
        return told("too_few_updates", fitness, signals, config=config, train=train, algo="dqn")

    assert says(0.0199).startswith("Members make 0.0199 updates for each of their steps, which is little for dqn: ")
    assert says(0.0199).endswith("lower learn_step (64).")
    assert says([1.0, 1.0, 0.0, 0.0]).endswith("lower train.learning_delay (900) or learn_step (64).")
    assert not says(0.02)
    assert not says(0.0, epsilon=False)
    assert not says(0.0, fitness=[1.0, 1.0, 2.0, 2.0])


def test_actions_are_noise() -> None:
    text = told("actions_are_noise", 1.0, {"losses/log_std": 1.0})
    assert "are drawn with a deviation of 2.718: " in text
    assert not told("actions_are_noise", 1.0, {"losses/log_std": 0.99})
    assert not told("actions_are_noise", [1.0, 1.0, 2.0, 2.0], {"losses/log_std": 2.0})


def test_groups_silent() -> None:
    assert told("groups_silent", 1.0, {"completions/silent": 0.95}).startswith("In 95 % of the groups all completions ")
    assert not told("groups_silent", 1.0, {"completions/silent": 0.94})
    assert not told("groups_silent", 1.0, {"completions/silent": [1.0, 1.0, 0.5, 0.5]})


KL, ALIKE, GAMMA = "losses/approx_kl", "charts/updates_per_step", {"config": {"gamma": 0.9}}


@pytest.mark.parametrize(
    ("rule", "signals", "how", "says"),
    [  # of three members the middle one counts, however far the third is
        ("reward_scale", {RETURN: (1.0, 1.0, 1e9), LENGTH: 1.0}, {}, False),
        ("reward_scale", {RETURN: (400.0, 400.0, 0.0), LENGTH: (1.0, 1.0, 1e9)}, {}, True),
        ("values_too_large", {"losses/q_values": (1.0, 1.0, 1e9), RETURN: 1.0}, {}, False),
        ("observations_unscaled", {"charts/observation_size": (1.0, 1.0, 1e9)}, {}, False),
        ("support_too_narrow", {"losses/support_high": (0.4, 0.4, 1.0)}, {}, False),
        ("entropy_gone", {"losses/entropy": {(1, 0): 2.0, (1, 1): 2.0, (1, 2): 1e9, (4, 0): 0.2}}, {}, False),
        ("entropy_gone", {"losses/entropy": {(1, 0): 2.0, (4, 0): 0.05, (4, 1): 0.05, (4, 2): 50.0}}, {}, True),
        ("entropy_gone", {"losses/entropy": 1.0, "losses/log_std": (-4.0, -4.0, 90.0)}, {}, True),
        ("entropy_gone", {"losses/entropy": (0.01, 0.01, 9.0)}, {}, True),
        ("steps_too_large", {KL: (0.1, 0.1, 9.0)}, {}, False),
        ("units_idle", {"charts/dormant": (0.6, 0.6, 1.0)}, {}, False),
        ("gradient_clipped", {"losses/grad_clipped": 1.0, "losses/grad_norm": (1.0, 1.0, 1e9)},
        {"config": {"grad_clip": 0.5}}, False),
        ("too_few_updates", {ALIKE: (0.01, 0.01, 9.0), "charts/epsilon": 0.1}, {}, True),
        ("actions_are_noise", {"losses/log_std": (0.9, 0.9, 9.0)}, {}, False),
        ("groups_silent", {"completions/silent": (1.0, 1.0, 0.0)}, {}, True),
        ("discount_too_short", {LENGTH: (10.0, 10.0, 1e9)}, GAMMA, False),
        ("discount_too_short", {LENGTH: (500.0, 500.0, 0.0)}, GAMMA, True),
    ],
)  # fmt: skip
def test_the_middle_member_counts(rule: str, signals: Mapping[str, Any], how: Mapping[str, Any], says: bool) -> None:
    found = {
        name: {(g, slot): each[slot] for g in range(1, 5) for slot in range(3)} if isinstance(each, tuple) else each
        for name, each in signals.items()
    }
    assert bool(told(rule, 1.0, found, members=3, **how)) == says


def test_members_alike() -> None:
    apart = {(g, s): float(g) for g in range(1, 5) for s in range(3)}
    text = told("members_alike", apart, {RETURN: 5.0})
    assert text.startswith("All 3 members have one fitness in every generation, 4 in the last, so ")
    assert told("members_alike", [1.0, 1.0, 1.0], generations=3)
    assert not told("members_alike", [1.0, 1.0], generations=2)
    assert not told("members_alike", apart, {RETURN: {(1, 0): 5.0, (2, 0): 6.0}})
    assert not told("members_alike", apart | {(2, 1): 2.5})
    assert not told("members_alike", 1.0, members=1)
    assert not told("members_alike", 0.0)


def test_flat() -> None:
    def says(best: Sequence[float], returns: Told | None = None, **how: Any) -> str:
        return told("flat", best, {} if returns is None else {RETURN: returns}, generations=len(best), **how)

    steady = [100.0, 100.0, 81.0, 90.0, 100.0, 100.0, 95.0, 101.0]
    text = says(steady)
    assert text.startswith("The best fitness lies between 81 and 101 in all 8 generations: ")
    assert not says(steady[:7])
    assert not says([*steady[:7], 102.1]), "it rose by more than 2 %"
    assert not says([100.0, 100.0, 79.0, *steady[3:7], 100.0])
    assert not says([0.0] * 8)
    assert not says(steady, [1.0] * 6 + [2.0] * 2)
    assert says(steady, [2.0] * 8)
    assert not says([-90.0, -100.0, *[-113.0] * 6])
    assert says([-90.0, -100.0, *[-105.0] * 6])
    members = {(g, s): 100.0 - 99.0 * s for g in range(1, 9) for s in range(2)}
    assert told("flat", members, generations=8), "the best of each counts"


def test_at_a_bound() -> None:
    evolve = {"lr": {"min": 0.1, "max": 0.4}, "batch": {"min": 8, "max": 64}, "own": 3}

    def says(last: Sequence[float], first: float = 0.2, generations: int = 4, name: str = "lr") -> str:
        hyper = {
            (g, s): {name: last[s] if g > 1 else first} for g in range(1, generations + 1) for s in range(len(last))
        }
        fitness = {key: float(key[1]) for key in hyper}  # the higher a slot the better it is
        return told("at_a_bound", fitness, hyper=hyper, config={"evolve": evolve}, algo="dqn")

    text = says([0.2, 0.3, 0.4, 0.3965])
    assert text == "The 2 best members have lr at its bound, 0.4: raise algos.dqn.evolve.lr.max."
    assert says([0.2, 0.3, 0.1, 0.1]).endswith("0.1: lower algos.dqn.evolve.lr.min.")
    assert says([1, 1, 64, 64], 16, name="batch").endswith("64: raise algos.dqn.evolve.batch.max.")
    assert not says([0.4, 0.4, 0.4, 0.39]), "within a hundredth"
    assert not says([0.4, 0.4, 0.3, 0.4]), "the better half counts, all of it"
    assert says([0.2, 0.4, 0.4]), "two of three"
    assert not says([0.4, 0.4]), "one leads"
    assert not says([0.4] * 4, first=0.4), "it began there"
    assert not says([0.2, 0.3, 0.4, 0.4], generations=3)


def test_a_lead_is_luck_where_the_interval_ends_half_its_width_below() -> None:
    def says(chosen: float, interval: tuple[float, float] | None = (10.0, 14.0)) -> str:
        return told("lead_is_luck", chosen=chosen, interval=interval)

    assert says(16.0).startswith("The elite was chosen by 16 and its held-out mean lies in 10 to 14: ")
    assert not says(15.9)
    assert not says(14.0)
    assert not says(14.0, (14.0, 14.0))
    assert says(14.1, (14.0, 14.0))
    assert not says(NAN)
    assert not says(99.0, None)


def test_evaluation_costs() -> None:
    text = told("evaluation_costs", training=1000, evaluation=5001)
    assert text.startswith("Evaluation took 5.001k environment steps, training 1k: ")
    assert not told("evaluation_costs", training=1000, evaluation=5000)
    assert not told("evaluation_costs", training=0, evaluation=5000)
    assert not told("evaluation_costs", training=1000, evaluation=9000, train={"mode": "offline"})
    assert told("evaluation_costs", training=1000, evaluation=9000, train={"mode": "online"})


def test_a_rise_is_beyond_the_spread_of_the_first_two_generations_and_2_percent() -> None:
    def rose(*fitness: float) -> bool:
        return facts(fitness, generations=len(fitness), members=1).improved

    assert not rose(100.0, 100.0, 102.0)
    assert rose(100.0, 100.0, 102.1)
    assert not rose(90.0, 100.0, 105.0, 105.0)  # a deviation of 5
    assert rose(90.0, 100.0, 105.1, 1.0)
    assert not rose(-100.0, -100.0, -98.0)
    assert rose(-100.0, -100.0, -97.9)
    assert not rose(1.0, 9.0)
    assert rose(0.0, 0.0, 1e-9)


@pytest.mark.parametrize(("generations", "recent"), [(1, 1), (2, 2), (6, 2), (8, 2), (9, 3), (12, 4), (14, 4)])
def test_recent_is_the_last_third_two_at_least(generations: int, recent: int) -> None:
    found = facts(generations=generations)
    assert found.recent == list(range(1, generations + 1))[-recent:]
    assert found.members == 2


def test_symptoms_are_told_of_where_nothing_else_explains_them() -> None:
    found = facts(1.0, {"losses/approx_kl": 0.0}, generations=8)
    assert [each.rule for each in advise(found)] == ["members_alike", "flat"]
    found = facts(1.0, {"losses/approx_kl": 0.2}, generations=8)
    assert [each.rule for each in advise(found)] == ["steps_too_large"]
