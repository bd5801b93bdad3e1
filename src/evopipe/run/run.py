"""A run: in each generation some members train and are scored, and a search strategy decides what becomes of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, cast

import numpy as np
import torch
from torch import Tensor

from evopipe import rng
from evopipe.core.cohort import Cohort, dissolve
from evopipe.core.member import Member
from evopipe.core.structure import acting_networks
from evopipe.errors import DivergedError, EnvironmentFailed
from evopipe.mutations import NONE, Mutation
from evopipe.ops.statistics import mean_of_finite, standard_error
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.curriculum import Taught
from evopipe.run.evaluate import Episodes
from evopipe.run.league import League
from evopipe.run.race import batches, hopeless, looks, race, reached
from evopipe.run.regime import Regime
from evopipe.run.spec import JobT, fresh
from evopipe.searchers.apply import NOBODY, carry_out
from evopipe.searchers.contract import Child, Draw, Fate, History, Keep, Living, Plan, Trial
from evopipe.searchers.history import Best, Born, Opponent, Record, Scored, in_lockstep
from evopipe.storage import members as stored

_DIVERGED_IN_A_ROW = 3
_BROKEN_SHARE = 0.1  # of a member's evaluation episodes that may be broken


@dataclass(frozen=True)
class Champion:
    """The best member of all generations so far, as it was in its best generation, with its score.

    Attributes:
        member: the member.
        score: the mean return.
        error: the standard error of the score.
        confirmed: whether score and error come from a second, longer evaluation.
        generation: the member's best generation.
        returns: `[n]`, the returns on the run's n evaluation seeds; not finite if the environment broke.
    """

    member: Member
    score: float
    error: float
    confirmed: bool
    generation: int
    returns: np.ndarray = field(compare=False)


class Run(Generic[JobT]):
    """The training of a population, generation by generation, with its members, its champion (best member) and its
    lineage.

    In a generation, members that have trained equally long form a group, and the groups train one after another.
    `waiting` holds the groups that have not trained yet, and `turn` switches to the next of them. The method `advance`
    is that of `regime`. `state()` returns the state between two steps. After `restore()` with this state,
    the run continues bit for bit.

    Args:
        spec: the configuration.
        regime: the regime, a training loop over one kind of data.
        clock: the counters, which the regime shares.
        members: the initial members.
        births: for each of these members the mutation that made it; None if none of them was mutated.
        league: the opponents' files of self-play; None without self-play. The run closes it.
    """

    def __init__(
        self,
        spec: JobT,
        regime: Regime,
        clock: Clock,
        members: Sequence[Member],
        births: Sequence[Mutation] | None = None,
        league: League | None = None,
    ) -> None:
        self.spec, self.regime, self.clock, self.league = spec, regime, clock, league
        self.diverged = 0  # generations in a row of which no member was healthy
        self.next_id = max(member.id for member in members) + 1
        self.trials = len(members)  # trials and children that have a key of their own
        self.births = list(births or [NONE] * len(members))  # how each slot's member was made
        self.champion: Champion | None = None
        begun = [Born.of(member, mutation) for member, mutation in zip(members, self.births, strict=True)]
        self.lineage = [Record(0, 0, children=tuple(begun))]  # one record a generation
        self.curve: list[list[float | int | None]] = []  # one row a generation
        self.losses = [math.nan] * len(members)  # when the last generation ended
        self.signals: list[list[float | int | str]] = []  # one row a generation and member
        self.signal_names: list[str] = []  # each has two columns of them: mean and last
        self.told: dict[int, dict[str, tuple[float, float]]] = {}  # of the last generation, by slot
        self.cut = 0  # evaluation episodes that `env.step_limit` cut in the last generation
        self.reason = ""  # why the run is over, empty while it is not
        self.advance = regime.advance
        self.searcher = spec.searcher(len(members), self.target)
        self.curriculum = spec.curriculum
        self.lesson = None if self.curriculum is None else self.curriculum.kwargs  # arguments of environments
        self.opponents: tuple[Opponent, ...] = ()  # whom members meet now, the oldest first
        if league is not None:
            league.refuse(members[0])
        self._teach(self._next_lesson(None), ())
        self.last_good = [regime.first(member) for member in members]  # what to return to if all diverge
        self.last_ages = [0] * len(members)
        self._begin(self.last_good, self.last_ages)

    def _begin(self, members: Sequence[Member], ages: Sequence[int]) -> None:
        """Begin a generation with these members, who have lived so many ticks each; the run is over if nobody lives."""
        self._held, self.ages = list(members), list(ages)
        plan = self.searcher.plan(self._history(), self._draw(self.clock.generation + 1))
        if plan is None:
            self.reason = "max_steps"
            self._form([self._held[slot] for slot in self.living])
            return
        self.plan = plan
        by_age: dict[int, list[int]] = {}
        for slot in sorted(plan.active):
            by_age.setdefault(self.ages[slot], []).append(slot)
        self.waiting = list(by_age.values())
        self.living: list[int] = []
        self.cohorts: list[Cohort] = []
        self.turn()

    def _next_lesson(self, champion: Champion | None) -> dict[str, Any] | None:
        """Ask the curriculum for the next environments' arguments; None without a curriculum."""
        if self.curriculum is None:
            return None
        return self.curriculum.next(self.share, None if champion is None else champion.score)

    def _teach(self, lesson: dict[str, Any] | None, opponents: Sequence[Opponent]) -> None:
        """Let members train in environments with these arguments, and against these opponents, from now on."""
        if (lesson, tuple(opponents)) == (self.lesson, self.opponents):
            return
        arguments = lesson or {} if self.league is None else self.league.arguments(lesson, opponents)
        cast("Taught", self.regime).reopen(arguments)
        self.lesson, self.opponents = lesson, tuple(opponents)

    def close(self) -> None:
        """Close the regime with its environments, and remove what is temporary."""
        self.regime.close()
        if self.league is not None:
            self.league.close()

    def turn(self) -> None:
        """Switch to the next group of members of this generation; the groups train one after another."""
        self._settle()
        self.living = self.waiting.pop(0)
        self.clock.turn(self.ages[self.living[0]], len(self.living), self.plan.steps)
        self._form([self._held[slot] for slot in self.living])

    def _settle(self) -> None:
        """Take note of what those who live have become."""
        self._held = self.members
        if self.living:
            for slot, loss in zip(self.living, self._losses_here().tolist(), strict=True):
                self.ages[slot], self.losses[slot] = self.clock.tick, loss

    def _form(self, members: Sequence[Member]) -> None:
        self.cohorts = self.spec.form(members)
        self.regime.adopt(self.cohorts)

    @property
    def members(self) -> list[Member]:
        """The members of all slots (places in the population), in the order of slots."""
        found = list(self._held)
        for member in dissolve(self.cohorts):
            found[member.slot] = member
        return found

    @property
    def active(self) -> list[int]:
        """The slots (places in the population) whose members train in this generation. They train all at once, or one
        group after another."""
        return sorted(self.plan.active)

    def close_generation(self, stopped: Callable[[], bool]) -> None:
        """End the generation: evaluate the members, update the champion (best member), record, and choose the next
        members.

        The search strategy chooses the next members, unless the run ends here.

        Raises:
            Stopped: `stopped` returned True during the evaluation; the state is as before the call.
            DivergedError: no member is healthy, for the third generation in a row.
        """
        self._settle()
        played, scored = self._evaluate(stopped)
        champion, confirm_steps = self._crown(played, scored, stopped)
        lesson, opponents = self._next_lesson(champion), self.opponents
        if self.league is not None:
            opponents = self.league.after(self.clock.generation + 1, scored, opponents)
        # From here on nothing can stop half-way: the state changes all at once.
        self.champion = champion
        self._take_signals()
        self.cut = played.cut
        self.clock.eval_steps += played.steps + confirm_steps
        self.clock.begin_generation()
        for member in scored:
            self._held[member.slot] = member
        self._record(scored)
        members, decided = list(self._held), None
        if self._reached():
            self.reason = "target"
        elif self._spent():
            self.reason = "max_steps"
        if self.reason:
            self._form([members[slot] for slot in self.living])
            return
        self._teach(lesson, opponents)
        decided = self.searcher.step(self._history(), self._draw(self.clock.generation))
        if decided is None:
            self._return_to_last_good()
        else:
            self.diverged = 0
            self._carry_out(decided, members)

    def _take_signals(self) -> None:
        """Take note of how learning went in the generation that is about to end."""
        self.told = dict(zip(self.active, self.regime.signals(self.active), strict=True))
        for name in sorted({name for found in self.told.values() for name in found}):
            if name not in self.signal_names:
                self.signal_names.append(name)
        for slot, found in self.told.items():
            values = (value for name in self.signal_names for value in found.get(name, ("", "")))
            cells = (value if isinstance(value, str) or math.isfinite(value) else str(value) for value in values)
            self.signals.append([self.clock.generation + 1, slot, *cells])

    def _spent(self) -> bool:
        """Whether the run's steps are used up."""
        budget = self.spec.search.budget
        if budget is not None and self.clock.spent >= budget:
            return True
        return not self.spec.strategy.RENEWS and min(self.ages) >= self.clock.total

    @property
    def share(self) -> float:
        """The share of the run that is done, from 0 to 1. A run that reaches its target ends before 1."""
        clock, budget = self.clock, self.spec.search.budget
        lived = 0.0 if self.spec.strategy.RENEWS else clock.env_steps / (clock.members * clock.total * clock.envs)
        return min(1.0, max(lived, 0.0 if budget is None else clock.spent / budget))

    @property
    def lived(self) -> dict[str, int]:
        """The environment steps that members have trained for.

        The dict has `each_member` if all members trained all the time. Otherwise it has `shortest_life` and
        `longest_life`, over all members that ever trained.
        """
        if in_lockstep(self.lineage):
            return {"each_member": self.clock.step}
        lives = {each.id: record.step if each.steps is None else each.steps
                 for record in self.lineage for each in record.members}  # fmt: skip
        return {"shortest_life": min(lives.values()), "longest_life": max(lives.values())}

    @property
    def place(self) -> str:
        """A text for users that says how far the run has come, such as `step 4000 of each member`."""
        if len({*self.ages}) == 1:
            return f"step {self.clock.step} of each member"
        return f"step {self.clock.env_steps} of the population"

    def _draw(self, generation: int) -> Draw:
        return partial(rng.host, rng.run_key(self.spec.seed), Purpose.SELECT, generation)

    def _history(self) -> History:
        members, each = self._held, self.clock.envs
        living = [
            Living(m.slot, m.id, m.parent, m.hyper, self.ages[m.slot] * each, m.fitness, m.healthy) for m in members
        ]
        return History(living, self.lineage, self.clock.generation, self.clock.spent, self.trials)

    def _evaluate(self, stopped: Callable[[], bool]) -> tuple[Episodes, list[Member]]:
        """Evaluate those who lived on the run's fixed seeds; return them with the new fitness, in slot order."""
        acting = acting_networks(self.spec.algo.POLICY, self.spec.widths)
        lived = self.cohorts
        if self.active != self.living:
            lived = self.spec.form([self._held[slot] for slot in self.active])
        cohorts = []
        for cohort in lived:
            finite = [getattr(cohort.state, network).finite for network in acting]
            cohorts.append(replace(cohort, healthy=cohort.healthy & torch.stack(finite).all(dim=0)))
        seeds = self.spec.seeds(Purpose.EVALUATE, self.spec.train.eval_episodes)
        if self.spec.search.fitness == "training":
            return self._by_training(dissolve(cohorts), seeds, stopped)
        played = self._play(cohorts, seeds, stopped)
        if not np.isfinite(played.returns).any():
            raise EnvironmentFailed(self.spec.broken)
        members = []
        for member, returns in zip(dissolve(cohorts), played.returns, strict=True):
            # Few broken episodes are left out; a member with many must not be judged by those that went well.
            broken = int((~np.isfinite(returns)).sum())
            mean = mean_of_finite(returns) if broken <= max(1, _BROKEN_SHARE * len(returns)) else math.nan
            healthy = member.healthy and math.isfinite(mean)
            members.append(replace(member, healthy=healthy, fitness=(*member.fitness, mean if healthy else -math.inf)))
        return played, members

    def _by_training(
        self, members: Sequence[Member], seeds: np.ndarray, stopped: Callable[[], bool]
    ) -> tuple[Episodes, list[Member]]:
        """Score members by the episodes that ended while they trained. Evaluated are only those of whom none ended, and
        the best, if it trained better than whoever was evaluated as the best before."""
        ended = self.regime.ended()
        found = Episodes(np.full((len(members), len(seeds)), np.nan), np.zeros((len(members), len(seeds)), np.int64), 0)
        fitness = [float(ended[member.slot]) if member.healthy else -math.inf for member in members]
        unknown = [place for place, each in enumerate(fitness) if math.isnan(each)]
        if unknown:
            found = self._score(members, unknown, found, seeds, stopped)
            for place in unknown:
                fitness[place] = mean_of_finite(found.returns[place])
        scored = []
        for member, mean in zip(members, fitness, strict=True):
            healthy = member.healthy and math.isfinite(mean)
            scored.append(replace(member, healthy=healthy, fitness=(*member.fitness, mean if healthy else -math.inf)))
        best = max(range(len(scored)), key=lambda place: (scored[place].fitness[-1], -place))
        before = (each.fitness for record in self.lineage for each in record.members)
        leads = scored[best].fitness[-1] > max(before, default=-math.inf)
        if scored[best].healthy and leads and best not in unknown:
            found = self._score(members, [best], found, seeds, stopped)
        return found, scored

    def _score(
        self, members: Sequence[Member], places: Sequence[int], found: Episodes, seeds: np.ndarray,
        stopped: Callable[[], bool],
    ) -> Episodes:  # fmt: skip
        """Evaluate some of the members; return what was found before with what they reached."""
        gave = self.regime.evaluate(self.spec.form([members[place] for place in places]), seeds, stopped)
        returns, lengths = found.returns.copy(), found.lengths.copy()
        returns[list(places)], lengths[list(places)] = gave.returns, gave.lengths
        return Episodes(returns, lengths, found.steps + gave.steps, cut=found.cut + gave.cut)

    def _play(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score members on these seeds, all of them or as far as the next generation asks, see `race`."""
        p, steps, cut = self.spec, 0, 0
        members = {member.slot: member for member in dissolve(cohorts)} if p.racing else {}
        racers = [slot for slot, member in members.items() if member.healthy]
        if not racers:
            return self.regime.evaluate(cohorts, seeds, stopped)

        def play(slots: Sequence[int], part: slice) -> np.ndarray:
            nonlocal steps, cut
            gave = self.regime.evaluate(p.form([members[slot] for slot in slots]), seeds[part], stopped)
            steps, cut = steps + gave.steps, cut + gave.cut
            return gave.returns

        met = self.plan.met or [self.active]
        returns = race(play, racers, met, self.clock.members, len(seeds), self._bar)[self.active]
        return Episodes(returns, np.zeros(returns.shape, np.int64), steps, cut=cut)

    def _confirm(self, best: Member, bar: float, stopped: Callable[[], bool]) -> tuple[Episodes, bool]:
        """Score a member again, and say whether that confirms it: by all episodes, or, if it is sequential, by as many
        as imply the target. In a race too it ends where the member is clearly below the bar, or the target."""
        p, train = self.spec, self.spec.train
        seeds, alone = p.seeds(Purpose.CONFIRM, train.confirm_episodes), p.form_alone(best)
        bar, lowest = max(bar, self._bar), train.lowest_score if p.sequential and self.target is not None else None
        whole = not ((p.racing or p.sequential) and math.isfinite(bar))
        found: list[Episodes] = []
        for part in [slice(0, len(seeds))] if whole else (batches if p.sequential else looks)(len(seeds)):
            found.append(self.regime.evaluate(alone, seeds[part], stopped))
            returns, lengths = (
                np.concatenate(x, axis=1) for x in zip(*((e.returns, e.lengths) for e in found), strict=True)
            )
            clear = lowest is not None and reached(returns[0], bar, lowest, len(seeds), train.target_sigmas)
            if clear or hopeless(returns[0], bar, len(seeds)):
                break
        return Episodes(returns, lengths, sum(each.steps for each in found)), clear or part.stop == len(seeds)

    def _crown(
        self, played: Episodes, members: Sequence[Member], stopped: Callable[[], bool]
    ) -> tuple[Champion | None, int]:
        """Return the champion after this generation, and the steps that finding out cost.

        A new best that clears the target is evaluated again, longer: the best of many noisy scores is biased upwards.
        Scores that are not confirmed are compared on the same episodes, for the best of few is biased more: where a
        race ended early, the new best plays the other episodes too.
        """
        best = max(members, key=lambda m: (m.fitness[-1], -m.slot))
        held, returns, steps = self.champion, played.returns[members.index(best)], 0
        if not (best.healthy and self._beats(returns)):
            return held, 0
        rest = self.spec.seeds(Purpose.EVALUATE, self.spec.train.eval_episodes)[len(returns) :]
        if len(rest):
            more = self.regime.evaluate(self.spec.form_alone(best), rest, stopped)
            returns, steps = np.concatenate((returns, more.returns[0])), more.steps
            if not self._beats(returns):
                return held, steps
        found, confirmed = returns, False
        if mean_of_finite(returns) >= self._bar:
            again, confirmed = self._confirm(best, held.score if held and held.confirmed else -math.inf, stopped)
            found, steps = again.returns[0], steps + again.steps
        score = mean_of_finite(found)
        better = confirmed and (held is None or not held.confirmed or score > held.score)
        if not (math.isfinite(score) and (better or (not confirmed and self._leads(returns)))):
            return held, steps
        error = standard_error(found[np.isfinite(found)])
        return Champion(best, score, error, confirmed, self.clock.generation + 1, returns), steps

    def _beats(self, returns: np.ndarray) -> bool:
        """Whether a member with these returns on the first evaluation seeds, `[k]`, may be the new champion. A
        confirmed score is worth more than a lucky one: only its like can beat it."""
        held, mean = self.champion, mean_of_finite(returns)
        if mean >= self._bar:
            return held is None or not held.confirmed or mean > held.score
        return self._leads(returns)

    def _leads(self, returns: np.ndarray) -> bool:
        """Whether returns `[k]` have a higher mean than the champion's on the same seeds, none of them confirmed."""
        held, mean = self.champion, mean_of_finite(returns)
        if held is None:
            return math.isfinite(mean)
        return not held.confirmed and mean > mean_of_finite(held.returns[: len(returns)])

    @property
    def target(self) -> float | None:
        """The score at which training ends early; None if there is no such score."""
        target = self.spec.train.target
        return self.regime.threshold if target == "auto" else target

    @property
    def _bar(self) -> float:
        """What fitness must reach to be confirmed."""
        return -math.inf if self.target is None else self.target

    def _reached(self) -> bool:
        if self.champion is None or self.target is None or not self.champion.confirmed:
            return False
        sigmas: float = self.spec.train.target_sigmas
        return self.champion.score - sigmas * self.champion.error >= self.target

    def _carry_out(self, decided: Sequence[Fate], members: Sequence[Member]) -> None:
        """Let every slot have the member that was decided on, and begin the next generation."""
        p, keys, ages = self.spec, [member.key for member in members], list(self.ages)
        for slot, fate in enumerate(decided):
            if isinstance(fate, Keep):
                continue
            ages[slot] = self.ages[fate.of] if isinstance(fate, Child) else 0
            if isinstance(fate, Trial) or ages[slot] < self.ages[slot]:  # else draws of a tick would come again
                keys[slot] = int(rng.member_keys(p.seed, [self.trials])[0])
                self.trials += 1
        born = carry_out(decided, p.mutation, p.traits, members, self.clock.generation, self.next_id, keys, self._new)
        self.next_id += len(members)
        unlived = {slot for slot, fate in enumerate(decided) if isinstance(fate, Keep)} - {*self.active}
        self.births = [self.births[slot] if slot in unlived else how for slot, how in enumerate(born.mutations)]
        parents = [None if parent == NOBODY else parent for parent in born.parents]
        made = zip(born.members, born.mutations, parents, born.why, strict=True)
        self.lineage[-1] = replace(self.lineage[-1], children=tuple(Born.of(*each) for each in made))
        self.regime.inherit(born.parents)
        if new := [slot for slot, fate in enumerate(decided) if isinstance(fate, Trial)]:
            self.regime.renew(new)
        self.last_good, self.last_ages = list(born.members), ages
        self._begin(born.members, ages)

    def _new(self, slot: int, id: int, key: int, values: Mapping[str, float]) -> Member:
        """Return the member of a new trial."""
        return self.regime.first(fresh(self.spec, [slot], [id], [key], [values])[0])

    def _return_to_last_good(self) -> None:
        """Go back to the last healthy generation: all its members diverged."""
        self.diverged += 1
        if self.diverged >= _DIVERGED_IN_A_ROW:
            block, rates = f"algos.{self.spec.train.algo}", self.spec.rates
            raise DivergedError(
                f"every member diverged in {self.diverged} generations in a row (generation {self.clock.generation}, "
                f"step {self.clock.step}), no elite was written: lower "
                f"{' and '.join(f'{block}.{rate}' for rate in rates)}, tighten grad_clip, or narrow "
                f"{' and '.join(f'evolve.{rate}.max' for rate in rates)}"
            )
        self.lineage[-1] = replace(self.lineage[-1], restored=True)
        self.regime.inherit(None)
        # They go on with the networks that they had, and with draws that they have not seen.
        self._begin(self.last_good, [max(both) for both in zip(self.ages, self.last_ages, strict=True)])

    def _losses_here(self) -> Tensor:
        """Return the losses of those who live now, in slot order."""
        slots = torch.tensor([slot for cohort in self.cohorts for slot in cohort.slots])
        return torch.cat([cohort.losses.cpu() for cohort in self.cohorts])[slots.argsort()]

    def _record(self, members: Sequence[Member]) -> None:
        finite = [m.fitness[-1] for m in members if math.isfinite(m.fitness[-1])]
        champion, clock = self.champion, self.clock
        best, mean = max(finite, default=None), sum(finite) / len(finite) if finite else None
        elite = champion.score if champion else None
        self.curve.append([clock.generation, clock.step, clock.env_steps, clock.eval_steps, best, mean, elite])
        best_ever = None if champion is None else Best(champion.member.id, champion.score)
        apart = len({*self.ages}) > 1  # else all have lived as long as the record says
        each = {slot: age * clock.envs for slot, age in enumerate(self.ages)} if apart else {}
        scored = tuple(Scored.of(member, each.get(member.slot)) for member in members)
        met = None if self.league is None else self.opponents
        record = Record(clock.generation, clock.step, scored, best_ever, curriculum=self.lesson, opponents=met)
        self.lineage.append(record)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the complete state of the run, as tensors by name and JSON data, to be stored in a checkpoint."""
        tensors = self.regime.state()
        meta: dict[str, Any] = {name: getattr(self, name) for name in _KEPT} | {"clock": vars(self.clock).copy()}
        groups = {"members": self.members, "last_good": self.last_good}
        if self.champion:
            groups["champion"] = [self.champion.member]
            meta["confirmed"] = {k: getattr(self.champion, k) for k in ("score", "error", "confirmed", "generation")}
            tensors["champion_returns"] = torch.from_numpy(self.champion.returns)
        for name, group in groups.items():
            packed, meta[name] = stored.pack(group, name)
            tensors |= packed
        tensors["losses"] = torch.tensor(self.losses)
        tensors["losses_here"] = self._losses_here()
        meta["lineage"] = [record.to_json() for record in self.lineage]
        meta["lesson"], meta["opponents"] = self.lesson, [asdict(each) for each in self.opponents]
        meta["plan"], meta["searcher"] = self.plan.to_json(), self.searcher.state()
        return tensors, meta | {"births": [mutation.to_json() for mutation in self.births]}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> int:
        """Restore a state that `state` returned.

        `tensors` and `meta` are the two results of `state`. The result is the number of environments that could not be
        restored because they are not deterministic.
        """
        for name in _KEPT:
            setattr(self, name, meta[name])
        opponents = [Opponent(**each) for each in meta["opponents"]]
        if self.league is not None:
            self.league.check(opponents)
        self._teach(meta["lesson"], opponents)
        self.lineage, self.curve = [Record.from_json(record) for record in meta["lineage"]], list(self.curve)
        self.signals, self.signal_names = list(self.signals), list(self.signal_names)
        vars(self.clock).update(meta["clock"])
        self.births = [Mutation(**m) for m in meta["births"]]
        self.last_good = stored.unpack(tensors, meta["last_good"], "last_good")
        self.plan = Plan(**meta["plan"])
        self.searcher.restore(meta["searcher"])
        self._held, self.ages = stored.unpack(tensors, meta["members"], "members"), list(self.ages)
        self._form([self._held[slot] for slot in self.living])
        for cohort in self.cohorts:
            cohort.losses.copy_(tensors["losses_here"][[self.living.index(slot) for slot in cohort.slots]])
        if "champion" in meta:
            champion, returns = stored.unpack(tensors, meta["champion"], "champion")[0], tensors["champion_returns"]
            self.champion = Champion(champion, **meta["confirmed"], returns=returns.numpy())
        self.losses = tensors["losses"].tolist()
        return self.regime.restore(tensors)


_KEPT = (
    "diverged", "next_id", "reason", "curve", "signals", "signal_names", "trials", "ages", "last_ages", "living",
    "waiting",
)  # fmt: skip
