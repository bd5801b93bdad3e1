"""What to change in the next run: rules that look at a run's signals, scores and steps, each for one problem.

A rule returns a sentence with the figures that it goes by, or nothing. Thresholds are far from what healthy runs show,
so a rule that is silent says nothing. A run that reached its target needs no advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median, pstdev
from typing import Any, TypeAlias

from evopipe.report.lives import Key
from evopipe.report.read import FinishedRun
from evopipe.report.words import thousands, value

MOST = 5  # sentences
_SYMPTOMS = frozenset({"members_alike", "flat"})  # of which a run that another rule explains is not told


@dataclass(frozen=True)
class Advice:
    """One sentence of advice on what to change in the next run.

    Attributes:
        rule: the name of the rule that gave the advice.
        text: the sentence.
        signal: the signal that shows the problem, to be drawn beside the sentence; empty if no signal does.
        section: the id of the section of the report's page that shows the problem; empty if none does.
    """

    rule: str
    text: str
    signal: str = ""
    section: str = ""


@dataclass(frozen=True)
class Facts:
    """The facts about a run, finished or not, from which the rules of advice draw their conclusions.

    Attributes:
        signals: means of the signals by name, for each (generation, slot); a slot is a member's place in the
            population.
        fitness: the fitness for each (generation, slot); NaN or infinite if the member diverged.
        hyper: hyper-parameters by name, for each (generation, slot).
        config: the algorithm's block of the parameters.
        train: the block `train` of the parameters.
        env: the block `env` of the parameters; empty for language models.
        algo: the algorithm's name.
        solved: whether the run ended because it reached the score `train.target`.
        training, evaluation: environment steps of the whole population in training, and in evaluations.
        chosen: the score by which the elite (the best member) was chosen.
        interval: the confidence interval of the elite's mean held-out return; None if it is not known yet.
    """

    signals: Mapping[Key, Mapping[str, float]]
    fitness: Mapping[Key, float]
    hyper: Mapping[Key, Mapping[str, float]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    algo: str = ""
    solved: bool = False
    training: int = 0
    evaluation: int = 0
    chosen: float = math.nan
    interval: tuple[float, float] | None = None

    @cached_property
    def generations(self) -> list[int]:
        return sorted({generation for generation, _ in self.fitness})

    @cached_property
    def recent(self) -> list[int]:
        """The last third of the generations, but at least two of them."""
        return self.generations[-max(2, len(self.generations) // 3) :]

    def each(self, name: str, generations: Sequence[int] | None = None) -> list[float]:
        """Return the finite values of the signal `name`, of all members in the given generations.

        If `generations` is None, these are all generations.
        """
        found = (own.get(name, math.nan) for key, own in self.signals.items() if _within(key, generations))
        return [x for x in found if math.isfinite(x)]

    def scores(self, generations: Sequence[int] | None = None) -> list[float]:
        """Return the finite fitness values of all members in the given generations; of all generations if None."""
        return [x for key, x in self.fitness.items() if _within(key, generations) and math.isfinite(x)]

    @cached_property
    def members(self) -> int:
        return len({slot for _, slot in self.fitness})

    @cached_property
    def returns(self) -> list[float]:
        """All finite returns of the run: fitness values, and mean returns of training episodes; `[0.0]` if there are
        none."""
        return [*self.scores(), *self.each("charts/episodic_return")] or [0.0]

    @cached_property
    def improved(self) -> bool:
        """Whether the best fitness after the first two generations clearly exceeds the best fitness in them.

        Clearly means by more than the larger of two amounts: the standard deviation of the fitness in the first two
        generations, and 2 % of their best fitness.
        """
        return _rose(self.scores(self.generations[:2]), self.scores(self.generations[2:]))


def _rose(first: Sequence[float], later: Sequence[float]) -> bool:
    return bool(first and later) and max(later) > max(first) + max(pstdev(first), 0.02 * abs(max(first)))


def _within(key: Key, generations: Sequence[int] | None) -> bool:
    return generations is None or key[0] in generations


def facts_of(run: FinishedRun, params: Mapping[str, Any]) -> Facts:
    """Return the facts that the rules of advice need, from a finished run; `params` has the layout of `params.yaml`."""
    algo, summary = run.policy["algo"], run.summary
    return Facts(
        signals=run.signals,
        fitness={key: node.fitness for key, node in run.nodes.items()},
        hyper={
            key: {name: x for name, x in node.traits.items() if isinstance(x, int | float)}
            for key, node in run.nodes.items()
        },
        config=params.get("algos", {}).get(algo, {}),
        train=params.get("train", {}),
        env=params.get("env", {}),
        algo=algo,
        solved=summary.reason == "target",
        training=summary.steps.training,
        evaluation=summary.steps.evaluation,
        chosen=summary.elite.score,
        interval=run.elite.interval,
    )


def column(run: FinishedRun, name: str) -> dict[Key, float | str]:
    """Return the finite values of the signal `name` by (generation, slot), for `figures.trajectory` to draw. A slot is
    a member's place in the population."""
    return {key: own[name] for key, own in run.signals.items() if math.isfinite(own.get(name, math.nan))}


Rule: TypeAlias = Callable[[Facts], Advice | None]
RULES: list[Rule] = []
"""All rules, the weightiest first."""


def _rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def advise(facts: Facts) -> list[Advice]:
    """Apply all rules to a run, and return at most `MOST` sentences of advice, the most important first.

    The list is empty for a run that reached its target. Some rules name a cause, others only a symptom such as a flat
    curve. If any rule found a cause, sentences about symptoms are left out.
    """
    if facts.solved:
        return []
    found = [advice for rule in RULES if (advice := rule(facts)) is not None]
    causes = [advice for advice in found if advice.rule not in _SYMPTOMS]
    return (causes or found)[:MOST]


def _share(x: float) -> str:
    return f"{100 * x:.0f} %"


def _figure(x: float) -> str:
    """Four significant digits, with a true minus sign."""
    return value(float(x)) if abs(x) < 1e6 else thousands(x)


# --- rules ------------------------------------------------------------------------------------------------------------


@_rule
def no_reward(facts: Facts) -> Advice | None:
    returns = facts.each("charts/episodic_return")
    if len(facts.generations) < 2 or not facts.scores() or any(returns) or any(facts.scores()):
        return None
    if not returns and not facts.each("charts/episodes"):
        return None
    return Advice(
        "no_reward",
        f"No episode has seen a reward other than 0 in {thousands(facts.training)} training steps: give a reward for "
        "part of the way, start nearer the goal, or begin with a dataset (train.warm_start).",
        section="fitness",
    )


@_rule
def episodes_never_end(facts: Facts) -> Advice | None:
    ended, lengths = facts.each("charts/episodes"), facts.each("charts/episodic_length", facts.recent)
    each = facts.training / max(1, facts.members * facts.env.get("num_envs", 1))  # steps of an environment
    limit = facts.env.get("step_limit", math.inf)  # where the environment has no time limit
    if ended and not any(ended) and each >= 2000:
        seen = f"No training episode has ended in {thousands(each)} steps of each environment"
    elif lengths and {*lengths} == {limit}:
        seen = f"Every training episode was cut after env.step_limit, {thousands(limit)} steps, and none has ended"
    else:
        return None
    return Advice(
        "episodes_never_end",
        f"{seen}: members see only how episodes go on, and nothing of another start; give the environment a time limit "
        "(env.step_limit where it has none, or max_episode_steps).",
        "charts/episodes",
    )


@_rule
def time_limit_hidden(facts: Facts) -> Advice | None:
    lengths, ends = facts.each("charts/episodic_length"), facts.each("charts/terminated")
    if len(facts.generations) < 2 or len({*lengths}) != 1 or lengths[0] < 20 or not ends or facts.improved:
        return None
    if sum(ends) / len(ends) < 0.25 / lengths[0]:  # they were truncated, as a time limit should do
        return None
    return Advice(
        "time_limit_hidden",
        f"All training episodes were terminated at step {_figure(lengths[0])}, whatever members did: if this is a "
        "time limit, let the environment return truncated in the place of terminated, or show members the time that is "
        "left.",
        "charts/episodic_length",
    )


@_rule
def discount_too_short(facts: Facts) -> Advice | None:
    lengths = facts.each("charts/episodic_length", facts.recent)
    gamma = float(facts.config.get("gamma", 1.0))
    if evolved := [own["gamma"] for key, own in facts.hyper.items() if key[0] in facts.recent and "gamma" in own]:
        gamma = median(evolved)
    if not lengths or gamma > 0.95 or facts.improved:
        return None
    ahead = 1.0 / (1.0 - gamma)
    if median(lengths) < 25.0 * ahead:
        return None
    return Advice(
        "discount_too_short",
        f"γ of {value(gamma)} sees {_figure(ahead)} steps ahead, and episodes last {_figure(median(lengths))}: "
        f"what is rewarded later counts for nothing; raise gamma, to {_figure(1.0 - 5.0 / median(lengths))} or so.",
        "charts/episodic_length",
    )


@_rule
def diverged(facts: Facts) -> Advice | None:
    recent = [x for key, x in facts.fitness.items() if key[0] in facts.recent]
    ill = sum(not math.isfinite(x) for x in recent)
    if not recent or ill < 2 or ill < 0.25 * len(recent):
        return None
    rates = ", ".join(f"{n} {value(x)}" for n, x in _rates(facts).items())
    return Advice(
        "diverged",
        f"{ill} of the last {len(recent)} members diverged: lower the learning rate{f' ({rates})' if rates else ''} "
        "or grad_clip.",
        section="fitness",
    )


def _rates(facts: Facts) -> dict[str, float]:
    return {name: float(x) for name, x in facts.config.items() if name.split("_")[0] == "lr" and _number(x)}


def _number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


@_rule
def reward_scale(facts: Facts) -> Advice | None:
    returns, lengths = facts.each("charts/episodic_return"), facts.each("charts/episodic_length")
    if not returns or not lengths:
        return None
    step = median(abs(x) for x in returns) / max(1.0, median(lengths))
    if step < 300.0:
        return None
    return Advice(
        "reward_scale",
        f"A step is rewarded by {_figure(step)} in size on average: scale rewards to about 1, by a wrapper in "
        "env.wrappers or, on-policy, by train.normalise.rewards.",
        "charts/episodic_return",
    )


@_rule
def values_too_large(facts: Facts) -> Advice | None:
    values = facts.each("losses/q_values", facts.recent)
    if not values or not any(facts.returns):
        return None
    gamma, lengths = facts.config.get("gamma", 0.99), facts.each("charts/episodic_length")
    # Values go beyond a short time limit: of an endless episode as good as the best, or as bad as the worst one seen.
    endless = 1.0 / (1.0 - gamma) / max(1.0, median(lengths)) if lengths and gamma < 1 else 1.0
    low, high = (max(1.0, endless) * x for x in (min(0.0, *facts.returns), max(0.0, *facts.returns)))
    beyond = 1.5 * (high - low) + 10.0
    if low - beyond <= median(values) <= high + beyond:
        return None
    remedy = "lower the temperature, alpha" if facts.each("losses/alpha") else "lower the learning rate, or tau"
    return Advice(
        "values_too_large",
        f"Values are {_figure(median(values))}, and returns lie between {_figure(min(facts.returns))} and "
        f"{_figure(max(facts.returns))}: values are beyond what can be reached; {remedy}.",
        "losses/q_values",
    )


@_rule
def observations_unscaled(facts: Facts) -> Advice | None:
    sizes = facts.each("charts/observation_size", facts.recent)
    normalised = facts.train.get("normalise", {}).get("observations", False)
    if not sizes or normalised or median(sizes) < 50.0:
        return None
    return Advice(
        "observations_unscaled",
        f"A number of the observations is {_figure(median(sizes))} in size on average, and drowns the others: set "
        "train.normalise.observations, or scale it in the environment.",
        "charts/observation_size",
    )


@_rule
def support_too_narrow(facts: Facts) -> Advice | None:
    for end, bound, word in (("high", "v_max", "raise"), ("low", "v_min", "lower")):
        shares = facts.each(f"losses/support_{end}", facts.recent)
        if shares and median(shares) > 0.5:
            return Advice(
                "support_too_narrow",
                f"{_share(median(shares))} of the return distribution stands at {bound} "
                f"({value(facts.config.get(bound))}): {word} it.",
                f"losses/support_{end}",
            )
    return None


@_rule
def entropy_gone(facts: Facts) -> Advice | None:
    first, now = facts.each("losses/entropy", facts.generations[:1]), facts.each("losses/entropy", facts.recent)
    if not first or not now or len(facts.generations) < 3 or facts.improved:
        return None
    deviations = facts.each("losses/log_std", facts.recent)
    gone = median(deviations) < -3.5 if deviations else median(now) < 0.05 * median(first)
    if not gone:
        gone = not deviations and median(first) < 0.02 and median(now) < 0.02
    if not gone:
        return None
    return Advice(
        "entropy_gone",
        f"The policy's entropy is {_figure(median(now))}, {_figure(median(first))} in the first generation, and "
        "fitness has not risen: it stopped exploring too early; raise ent_coef or alpha, or lower the learning rate.",
        "losses/entropy",
    )


@_rule
def steps_too_large(facts: Facts) -> Advice | None:
    found, clipped = facts.each("losses/approx_kl", facts.recent), facts.each("losses/clipfrac", facts.recent)
    if not found or median(found) < 0.15:
        return None
    return Advice(
        "steps_too_large",
        f"A rollout moves the policy by {_figure(median(found))} nats"
        f"{f', {_share(median(clipped))} of its steps beyond the clip' if clipped else ''}: lower lr or epochs, or set "
        "target_kl to 0.02.",
        "losses/approx_kl",
    )


@_rule
def values_explain_nothing(facts: Facts) -> Advice | None:
    recent = facts.generations[-3:]
    found = facts.each("losses/explained_variance", recent)
    if len(facts.generations) < 4 or not found or max(found) > -0.02 or facts.improved:
        return None
    return Advice(
        "values_explain_nothing",
        f"The values' explained variance is {_figure(median(found))} and below 0 for every member in the last "
        f"{len(recent)} generations: they are worse than a constant, so advantages are noise; set "
        "train.normalise.rewards, raise vf_coef, or give values a network of their own.",
        "losses/explained_variance",
    )


@_rule
def units_idle(facts: Facts) -> Advice | None:
    found = facts.each("charts/dormant", facts.recent)
    if not found or median(found) < 0.7 or facts.improved:
        return None
    return Advice(
        "units_idle",
        f"{_share(median(found))} of the hidden units do nothing: lower the learning rate, or set network.layer_norm.",
        "charts/dormant",
    )


@_rule
def gradient_clipped(facts: Facts) -> Advice | None:
    share, norm = facts.each("losses/grad_clipped", facts.recent), facts.each("losses/grad_norm", facts.recent)
    limit = facts.config.get("grad_clip")
    if not share or not norm or not _number(limit) or min(share) < 1.0:
        return None
    times = median(norm) / float(limit or 1.0)
    if times < 3000.0:
        return None
    return Advice(
        "gradient_clipped",
        f"Every gradient was clipped: its norm is {_figure(median(norm))}, {_figure(times)} times grad_clip "
        f"({value(limit)}); scale rewards or observations, or raise grad_clip.",
        "losses/grad_norm",
    )


@_rule
def too_few_updates(facts: Facts) -> Advice | None:
    found = facts.each("charts/updates_per_step", facts.recent)
    if not found or not facts.each("charts/epsilon") or median(found) >= 0.02 or facts.improved:
        return None
    remedy = f"learn_step ({value(facts.config.get('learn_step'))})"
    if not any(found):
        remedy = f"train.learning_delay ({value(facts.train.get('learning_delay'))}) or {remedy}"
    return Advice(
        "too_few_updates",
        f"Members make {_figure(median(found))} updates for each of their steps, which is little for {facts.algo}: "
        f"lower {remedy}.",
        "charts/updates_per_step",
    )


@_rule
def actions_are_noise(facts: Facts) -> Advice | None:
    found = facts.each("losses/log_std", facts.recent)
    if not found or median(found) < 1.0 or facts.improved:
        return None
    return Advice(
        "actions_are_noise",
        f"Actions go from −1 to 1, and are drawn with a deviation of {_figure(math.exp(median(found)))}: what members "
        "choose hardly shows in what they do; lower std or ent_coef.",
        "losses/log_std",
    )


@_rule
def groups_silent(facts: Facts) -> Advice | None:
    found = facts.each("completions/silent", facts.recent)
    if not found or median(found) < 0.95:
        return None
    return Advice(
        "groups_silent",
        f"In {_share(median(found))} of the groups all completions have one reward, which teaches nothing: take easier "
        "prompts, raise group_size or temperature, or reward what is partly right.",
        "completions/silent",
    )


@_rule
def members_alike(facts: Facts) -> Advice | None:
    slots = facts.members
    if slots < 2 or len(facts.generations) < 3 or not any(facts.scores()):
        return None
    if any(len({*facts.scores([generation])}) != 1 for generation in facts.generations):
        return None
    if len({*facts.each("charts/episodic_return")}) > 1:  # what they do while they explore does have an effect
        return None
    return Advice(
        "members_alike",
        f"All {slots} members have one fitness in every generation, {_figure(facts.scores()[-1])} in the last, so "
        "there is nothing to select by: if more can be reached, see whether actions have an effect, and raise "
        "train.eval_episodes.",
        section="fitness",
    )


@_rule
def flat(facts: Facts) -> Advice | None:
    count = len(facts.generations)
    if count < 8 or facts.improved or not any(facts.scores()):
        return None
    first, later = (facts.each("charts/episodic_return", part) for part in (facts.generations[:2], facts.recent))
    if _rose(first, later):  # where rewards are rare, training episodes are the first to have them
        return None
    best = [max(found) for each in facts.generations if (found := facts.scores([each]))]
    if max(best) - min(best) > 0.2 * max(map(abs, best)):  # it moves, if not upwards
        return None
    return Advice(
        "flat",
        f"The best fitness lies between {_figure(min(best))} and {_figure(max(best))} in all {count} generations: "
        "if more can be reached, members do not learn it; try other learning rates, and see reports/signals.csv.",
        section="fitness",
    )


@_rule
def at_a_bound(facts: Facts) -> Advice | None:
    ranges = facts.config.get("evolve") or {}
    last = facts.generations[-1] if facts.generations else 0
    ranked = sorted((x, key) for key, x in facts.fitness.items() if key[0] == last and math.isfinite(x))
    leaders = [key for _, key in ranked[len(ranked) // 2 :]]
    if len(facts.generations) < 4 or len(leaders) < 2:
        return None
    for name, within in ranges.items():
        values = [facts.hyper.get(key, {}).get(name, math.nan) for key in leaders]
        began = {facts.hyper.get(key, {}).get(name) for key in facts.hyper if key[0] == facts.generations[0]}
        for end, word in (("max", "raise"), ("min", "lower")):
            if not isinstance(within, Mapping) or not _number(within.get(end)):
                continue
            bound = float(within[end])
            at = all(math.isclose(x, bound, rel_tol=0.01) for x in values)
            if at and any(x is None or not math.isclose(x, bound, rel_tol=0.01) for x in began):
                return Advice(
                    "at_a_bound",
                    f"The {len(leaders)} best members have {name} at its bound, {value(bound)}: {word} "
                    f"algos.{facts.algo}.evolve.{name}.{end}.",
                    section="trajectories",
                )
    return None


@_rule
def lead_is_luck(facts: Facts) -> Advice | None:
    if facts.interval is None or not math.isfinite(facts.chosen) or facts.interval[1] >= facts.chosen:
        return None
    gap, width = facts.chosen - facts.interval[1], facts.interval[1] - facts.interval[0]
    if gap < 0.5 * width:
        return None
    low, high = map(_figure, facts.interval)
    return Advice(
        "lead_is_luck",
        f"The elite was chosen by {_figure(facts.chosen)} and its held-out mean lies in {low} to {high}: its lead was "
        "noise; raise train.eval_episodes or train.confirm_episodes.",
        section="evaluation",
    )


@_rule
def evaluation_costs(facts: Facts) -> Advice | None:
    offline = facts.train.get("mode") == "offline"  # there is nothing to compare with
    if offline or facts.evaluation <= 5.0 * facts.training or not facts.training:
        return None
    return Advice(
        "evaluation_costs",
        f"Evaluation took {thousands(facts.evaluation)} environment steps, training {thousands(facts.training)}: lower "
        "train.eval_episodes, raise train.evo_steps, or set train.evaluation to race.",
        section="throughput",
    )
