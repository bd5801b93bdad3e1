"""A run: generation after generation, members live on what their regime gives, then are scored, selected, mutated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from evopipe import rng
from evopipe.core.cohort import Cohort, dissolve
from evopipe.core.member import Member
from evopipe.core.structure import acting_networks
from evopipe.errors import DivergedError, EnvironmentFailed
from evopipe.evolve.lineage import Best, Born, Record, Scored
from evopipe.evolve.mutate import NONE, Mutation
from evopipe.evolve.select import draws, windowed
from evopipe.evolve.step import evolve
from evopipe.ops.statistics import mean_of_finite, standard_error
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes
from evopipe.run.race import hopeless, looks, race
from evopipe.run.regime import Regime
from evopipe.run.spec import JobT
from evopipe.storage import members as stored

_DIVERGED_IN_A_ROW = 3
_BROKEN_SHARE = 0.1  # of a member's evaluation episodes that may be broken


@dataclass(frozen=True)
class Champion:
    """The best member so far, as it was in its generation: its mean return and standard error, confirmed if a second,
    longer evaluation gave them; and its returns `[n]` on the run's evaluation seeds, not finite where one broke."""

    member: Member
    score: float
    error: float
    confirmed: bool
    generation: int
    returns: np.ndarray = field(compare=False)


class Run(Generic[JobT]):
    """Generations of a population: its members, champion and lineage; `advance` and `close` are its regime's.

    The state between two ticks is `state()`: from it `restore()` continues bit for bit.
    """

    def __init__(
        self,
        spec: JobT,
        regime: Regime,
        clock: Clock,
        members: Sequence[Member],
        births: Sequence[Mutation] | None = None,
    ) -> None:
        self.spec, self.regime, self.clock = spec, regime, clock
        self.diverged = 0  # generations in a row of which no member was healthy
        self.next_id = max(member.id for member in members) + 1
        self.births = list(births or [NONE] * len(members))  # how each slot's member was made
        self.champion: Champion | None = None
        begun = [Born.of(member, mutation) for member, mutation in zip(members, self.births, strict=True)]
        self.lineage = [Record(0, 0, children=tuple(begun))]  # one record a generation
        self.curve: list[list[float | int | None]] = []  # one row a generation
        self.losses = [math.nan] * len(members)  # when the last generation ended
        self.cut = 0  # evaluation episodes that `env.step_limit` cut in the last generation
        self.reason = ""  # why the run is over, empty while it is not
        self.advance, self.close = regime.advance, regime.close
        self.last_good = [regime.first(member) for member in members]  # what to return to if all diverge
        self._form(self.last_good)

    def _form(self, members: Sequence[Member]) -> None:
        self.cohorts = self.spec.form(members)
        self.regime.adopt(self.cohorts)

    @property
    def members(self) -> list[Member]:
        return dissolve(self.cohorts)

    def close_generation(self, stopped: Callable[[], bool]) -> None:
        """Evaluate, record, and evolve unless the run ends here.

        Raises:
            Stopped: `stopped` said so while evaluating; the state is as before the call.
            DivergedError: no member is healthy, for the third generation in a row.
        """
        played, members = self._evaluate(stopped)
        champion, confirm_steps = self._crown(played, members, stopped)
        # From here on nothing can stop half-way: the state changes all at once.
        self.champion = champion
        self.cut = played.cut
        self.clock.eval_steps += played.steps + confirm_steps
        self.clock.begin_generation()
        self.losses = self._losses_here().tolist()
        window = self.spec.tournament.window
        fitness = np.array([windowed(m.fitness, window) if m.healthy else -np.inf for m in members])
        self._record(members)
        if self._reached():
            self.reason = "target"
        elif self.clock.tick >= self.clock.total:
            self.reason = "max_steps"
        if self.reason:
            self._form(members)
        elif np.isfinite(fitness).any():
            self.diverged = 0
            self._evolve(members, fitness)
        else:
            self._return_to_last_good()

    def _evaluate(self, stopped: Callable[[], bool]) -> tuple[Episodes, list[Member]]:
        """Evaluate every member on the run's fixed seeds; return its members with the new fitness."""
        acting = acting_networks(self.spec.algo.POLICY, self.spec.widths)
        cohorts = []
        for cohort in self.cohorts:
            finite = [getattr(cohort.state, network).finite for network in acting]
            cohorts.append(replace(cohort, healthy=cohort.healthy & torch.stack(finite).all(dim=0)))
        seeds = self.spec.seeds(Purpose.EVALUATE, self.spec.train.eval_episodes)
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

    def _play(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score members on these seeds, all of them or as far as the next generation asks, see `race`."""
        p, steps, cut = self.spec, 0, 0
        members = dissolve(cohorts) if p.racing else []
        racers = [member.slot for member in members if member.healthy]
        if not racers:
            return self.regime.evaluate(cohorts, seeds, stopped)

        def play(slots: Sequence[int], part: slice) -> np.ndarray:
            nonlocal steps, cut
            gave = self.regime.evaluate(p.form([members[slot] for slot in slots]), seeds[part], stopped)
            steps, cut = steps + gave.steps, cut + gave.cut
            return gave.returns

        chooser = rng.host(rng.run_key(p.seed), Purpose.SELECT, self.clock.generation + 1)  # as `evolve` will have it
        met = draws(p.tournament, len(members), chooser)
        returns = race(play, racers, met[p.tournament.elitism :], len(members), len(seeds), self._bar)
        return Episodes(returns, np.zeros(returns.shape, np.int64), steps, cut=cut)

    def _confirm(self, best: Member, bar: float, stopped: Callable[[], bool]) -> tuple[Episodes, bool]:
        """Score a member again, and say whether by all episodes: in a race it ends where the member is clearly below
        the bar, or the target."""
        seeds, alone = self.spec.seeds(Purpose.CONFIRM, self.spec.train.confirm_episodes), self.spec.form_alone(best)
        bar = max(bar, self._bar)
        whole = not (self.spec.racing and math.isfinite(bar))
        found: list[Episodes] = []
        for part in [slice(None)] if whole else looks(len(seeds)):
            found.append(self.regime.evaluate(alone, seeds[part], stopped))
            returns, lengths = (
                np.concatenate(x, axis=1) for x in zip(*((e.returns, e.lengths) for e in found), strict=True)
            )
            if hopeless(returns[0], bar, len(seeds)):
                break
        return Episodes(returns, lengths, sum(each.steps for each in found)), whole or part.stop == len(seeds)

    def _crown(
        self, played: Episodes, members: Sequence[Member], stopped: Callable[[], bool]
    ) -> tuple[Champion | None, int]:
        """Return the champion after this generation, and the steps that finding out cost.

        A new best that clears the target is evaluated again, longer: the best of many noisy scores is biased upwards.
        Scores that are not confirmed are compared on the same episodes, for the best of few is biased more: where a
        race ended early, the new best plays the other episodes too.
        """
        best = max(members, key=lambda m: (m.fitness[-1], -m.slot))
        held, returns, steps = self.champion, played.returns[best.slot], 0
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
        """The score that ends training early."""
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

    def _evolve(self, members: Sequence[Member], fitness: np.ndarray) -> None:
        p = self.spec
        born = evolve(p.tournament, p.mutation, p.traits, members, fitness, p.seed, self.clock.generation, self.next_id)
        self.next_id += len(members)
        self.births = list(born.mutations)
        made = zip(born.members, born.mutations, born.parents, strict=True)
        self.lineage[-1] = replace(self.lineage[-1], children=tuple(Born.of(*each) for each in made))
        self.regime.hand_down(born.parents)
        self.last_good = list(born.members)
        self._form(born.members)

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
        self.regime.hand_down(None)
        self._form(self.last_good)

    def _losses_here(self) -> Tensor:
        slots = torch.tensor([slot for cohort in self.cohorts for slot in cohort.slots])
        return torch.cat([cohort.losses.cpu() for cohort in self.cohorts])[slots.argsort()]

    def _record(self, members: Sequence[Member]) -> None:
        finite = [m.fitness[-1] for m in members if math.isfinite(m.fitness[-1])]
        champion, clock = self.champion, self.clock
        best, mean = max(finite, default=None), sum(finite) / len(finite) if finite else None
        elite = champion.score if champion else None
        self.curve.append([clock.generation, clock.step, clock.env_steps, clock.eval_steps, best, mean, elite])
        best_ever = None if champion is None else Best(champion.member.id, champion.score)
        scored = tuple(Scored.of(member) for member in members)
        self.lineage.append(Record(clock.generation, clock.step, scored, best_ever))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the whole run as tensors and JSON data."""
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
        return tensors, meta | {"births": [mutation.to_json() for mutation in self.births]}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> int:
        """Take a saved run over; return how many environments could not be brought back: they are not deterministic."""
        for name in _KEPT:
            setattr(self, name, meta[name])
        self.lineage, self.curve = [Record.from_json(record) for record in meta["lineage"]], list(self.curve)
        vars(self.clock).update(meta["clock"])
        self.births = [Mutation(**m) for m in meta["births"]]
        self.last_good = stored.unpack(tensors, meta["last_good"], "last_good")
        self._form(stored.unpack(tensors, meta["members"], "members"))
        for cohort in self.cohorts:
            cohort.losses.copy_(tensors["losses_here"][cohort.slots])
        if "champion" in meta:
            champion, returns = stored.unpack(tensors, meta["champion"], "champion")[0], tensors["champion_returns"]
            self.champion = Champion(champion, **meta["confirmed"], returns=returns.numpy())
        self.losses = tensors["losses"].tolist()
        return self.regime.restore(tensors)


_KEPT = ("diverged", "next_id", "reason", "curve")
