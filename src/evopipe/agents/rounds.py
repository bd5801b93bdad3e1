"""The regime of agents. In each tick every member plays a round of episodes and learns from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evopipe import algos, rng
from evopipe.agents import records
from evopipe.agents.ahead import Ahead
from evopipe.agents.blocking import IdleThreads, Processes
from evopipe.agents.engine import FAILED, Cancelled, Done, EpisodeJob, Outside, RolloutEngine
from evopipe.agents.learned import TokenValues, first_of, token_values
from evopipe.agents.model import Limits, Reply, Request, Sampled, Tokens
from evopipe.agents.rows import AdvantageSettings, RolloutBatch, RoundTrajectory, advantages, batch_of
from evopipe.agents.settings import Agents
from evopipe.agents.workflow import Workflow
from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.core.net import score
from evopipe.errors import EnvironmentFailed, ParamsError
from evopipe.language.base import stacked
from evopipe.language.generate import Sampling, generate
from evopipe.language.hooks import reference
from evopipe.ops.statistics import passes
from evopipe.parallel import available_cpus
from evopipe.regimes.dialogue import corrected, learn, of_round, redraws_of, sampling
from evopipe.regimes.measures import Measures
from evopipe.regimes.order import held_out, rows_at
from evopipe.regimes.probe import Probe
from evopipe.regimes.samples import scored_anew
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.text import TextSpec
from evopipe.types import Text

MEASURED = (
    "reward", "correct", "none", "all", "turns", "length", "entropy", "kl", "effective", "silent", "drift", "failed",
    "cut",
)  # fmt: skip
VALIDATED = ("mean", "pass@1", "pass@k", "failed")

_AT_ONCE = 512  # completions of each member that are decoded at a time


def _decode(
    spec: TextSpec, cohorts: Sequence[Cohort], purpose: Purpose, when: int, wave: Sequence[Request]
) -> list[Reply]:
    """Answer the requests of a wave by the members that they are of, each drawn by its episode and call alone."""
    found: dict[int, Reply] = {}
    for cohort in cohorts:
        own = [[i for i, request in enumerate(wave) if request.slot == slot] for slot in cohort.slots]
        for start in range(0, max(len(each) for each in own), _AT_ONCE):
            parts = [each[start : start + _AT_ONCE] for each in own]
            found |= _decode_part(spec, cohort, purpose, when, wave, parts)
    return [found[i] for i in range(len(wave))]


@torch.no_grad()
def _decode_part(
    spec: TextSpec, cohort: Cohort, purpose: Purpose, when: int, wave: Sequence[Request],
    parts: Sequence[Sequence[int]],
) -> dict[int, Reply]:  # fmt: skip
    """Complete requests `parts` of each member; where a member has fewer, pads stand and are thrown away."""
    base, device, width = spec.base, spec.device, max(len(part) for part in parts)
    pad = replace(wave[0], job=0, call=0, ids=[base.pad], limit=1, how=Sampled(0.0), stop=())
    asked = [each for part in parts for each in (*(wave[i] for i in part), *[pad] * (width - len(part)))]
    shape = (len(parts), width)
    ids, real = (x.view(*shape, -1).to(device) for x in stacked([each.ids for each in asked], base.pad, left=True))
    keys = np.repeat(cohort.keys.cpu().numpy(), width)
    tick, job, call = np.array([(when, each.job, each.call) for each in asked], dtype=np.int64).T
    drawn = torch.from_numpy(rng.seeds(keys, purpose, tick, job, call)).view(shape).to(device)
    how = zip(*(each.how for each in asked), strict=True)
    temperature, top_k, top_p = (torch.tensor(each, device=device).view(shape) for each in how)
    policy, stop = getattr(cohort.state, spec.algo.POLICY), [each.stop for each in asked]
    structure: Any = policy.structure
    written = generate(
        base, lambda: structure.active(policy.frozen.views), ids, real, 1, max(each.limit for each in asked),
        Sampling(temperature, top_k.long(), top_p), drawn, 0, spec.cohorts == "merged", stop if any(stop) else (),
    )  # fmt: skip
    lengths, tokens = written.lengths.tolist(), written.ids.tolist()
    log_probs, entropies = written.log_prob.tolist(), written.entropy.tolist()
    found = {}
    for p, part in enumerate(parts):
        for b, i in enumerate(part):
            n = min(lengths[p][b], wave[i].limit)
            found[i] = Reply(tokens[p][b][:n], log_probs[p][b][:n], entropies[p][b][:n])
    return found


class Rounds:
    """The training regime (see `run.regime.Regime`) of agents: in each tick every member plays a round of episodes and
    learns from them.

    Args:
        spec: the run's configuration.
        clock: the counts of steps and ticks.
        agents: the settings of the block `agents`.
        make: a function that returns the workflow of an episode, see `RolloutEngine`.
        tasks: the tasks of training.
        held: the tasks of validations.
        folder: the folder in which episodes are written; None to write none.
        outside: the server for agents that call the model over HTTP; None if there are no such agents.

    Attributes:
        threshold: None, because no task of this regime names a score at which it counts as solved.
    """

    warm = 0
    threshold: float | None = None

    def __init__(
        self, spec: TextSpec, clock: Clock, agents: Agents, make: Callable[..., Workflow],
        tasks: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]], folder: Path | None = None,
        outside: Outside | None = None,
    ) -> None:  # fmt: skip
        self.spec, self.clock, self.agents, self.whole = spec, clock, agents, True
        places, most = spec.base.places, spec.language.max_completion
        if places is not None and most >= places:
            raise ParamsError(
                f"data.max_response_length: completions of {most} tokens leave no place for a prompt, {spec.base.name} "
                f"has places for {places} tokens; lower it"
            )
        self.make, self.tasks, self.held, self.folder, self.outside = make, tasks, held, folder, outside
        self.tokens = Tokens(spec.base)
        self.processes, self.idle = Processes(min(agents.workers, available_cpus())), IdleThreads()
        self.cohorts: Sequence[Cohort] = []
        self.redraws = redraws_of(spec)
        self.measures = Measures(clock.members, (*MEASURED, *(["redrawn"] if self.redraws else [])))
        self._probe = Probe(spec, clock)
        self.remarks: list[str] = []
        self.masked = {*(reason.value for reason in FAILED), *agents.mask}  # reasons of what teaches nothing
        self._estimators = {role: algos.get(name) for role, name in agents.estimators.items()}
        self.validated = Measures(clock.members, VALIDATED)
        self.stopped: Callable[[], bool] = lambda: False  # asked while a round is played
        self._base = threading.Lock()  # who writes or learns has the base's layers for itself
        self._ahead = Ahead(self._played, spec.algo.POLICY)
        self.seen: Sequence[Done] = ()  # the episodes of the last validation
        self.said: list[str] = []  # to be told
        self._warned = self._told_late = False
        self.last: dict[str, Any] = {}  # of the first member's last validation, its episodes' own metrics too

    def first(self, member: Member) -> Member:
        return member

    def inherit(self, parents: Sequence[int] | None) -> None:
        """Do nothing, because this regime keeps no state that children could inherit."""

    def ended(self) -> np.ndarray:
        """Return NaN for each of the P members, `[P]`. Other regimes return the mean return of the member's training
        episodes that have ended."""
        return np.full(self.clock.members, np.nan)

    def renew(self, slots: Sequence[int]) -> None:
        """Do nothing. Other regimes prepare these slots (indices in the population) for new members; this regime keeps
        no data for a slot."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        self._ahead.drop()
        self.cohorts = cohorts
        self._probe.adopt(cohorts)

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        return self._probe.diagnostics.told(slots)

    # --- episodes -----------------------------------------------------------------------------------------------------

    def play(
        self, cohorts: Sequence[Cohort], jobs: Sequence[EpisodeJob], purpose: Purpose, when: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[Done]:  # fmt: skip
        """Run the episodes of `jobs` with the weights of `cohorts`; return the results in the order of the jobs, failed
        episodes included.

        Args:
            cohorts: the members, in groups that are computed as one batch.
            jobs: the episodes.
            purpose: what the random draws are for. Purpose and `when` together seed the draws.
            when: the tick of a training round, 0 for a validation.
            stopped: a function that returns whether to stop.

        Raises:
            Stopped: `stopped` returned True.
        """

        def decoder(wave: Sequence[Request]) -> list[Reply]:
            with self._base:
                return _decode(self.spec, cohorts, purpose, when, wave)

        engine = RolloutEngine(
            self.make, self.tokens, self.limits, decoder, self.agents, self.processes, outside=self.outside,
            idle=self.idle,
        )  # fmt: skip
        try:
            return engine.run(jobs, stopped)
        except Cancelled:
            raise Stopped from None
        finally:
            self._tell_late(engine.late)

    @property
    def limits(self) -> Limits:
        """The limits of every completion: the configured lengths, within the base model's context length."""
        language, places = self.spec.language, self.spec.base.places
        longest = language.max_prompt if places is None else max(1, places - language.max_completion)
        return Limits(min(language.max_prompt, longest), language.max_completion, tuple(language.stop))

    def decoder(self, member: Member) -> Callable[[Sequence[Request]], list[Reply]]:
        """Return a function that takes a list of requests and returns their replies in the same order.

        The model that writes the replies has the present weights of `member`. The random draws are the same as in
        validations.
        """
        return partial(_decode, self.spec, self.spec.form_alone(member), Purpose.EVALUATE, 0)

    def check(self, done: Sequence[Done]) -> Sequence[Done]:
        """Return the finished episodes `done` unchanged, if not too many of them failed.

        Raises:
            EnvironmentFailed: the share of failed episodes is above `agents.max_error_fraction`.
        """
        wrong = [each.episode for each in done if each.episode.termination_reason in FAILED]
        if len(wrong) > self.agents.max_error_fraction * len(done):
            told = wrong[0].info.get("error", {})
            raise EnvironmentFailed(
                f"{len(wrong)} of {len(done)} episodes failed, more than agents.max_error_fraction "
                f"({self.agents.max_error_fraction:g}); the first, of task {wrong[0].id}: {told.get('error_type')}: "
                f"{told.get('error_message')}"
            )
        return done

    def advance(self, most: int = 1) -> None:
        """Let every member play one round of episodes and learn from it. This is one tick; `most` has no effect.

        If the run is asked to stop, the round is not counted, and is played again when the run continues.
        """
        self.whole = True  # nothing has changed if an episode fails the run
        try:
            done, stale = self._next()
        except Stopped:
            return  # who asked for it saves the run, and this round is played again
        self._warn(done)
        self.whole = False
        by_slot = {slot: list(each) for slot, each in groupby(done, key=lambda d: d.job.slot)}
        sample = self._sample([*by_slot.values()])
        wanted = {id(trajectory) for one in sample for trajectory in one.episode.trajectories}
        values: dict[int, list[TokenValues]] = {}
        rewarded = False
        for cohort in self.cohorts:
            with self._base:
                rewarded |= self._round(cohort, [by_slot[slot] for slot in cohort.slots], stale, wanted, values)
        if self.agents.staleness:
            self._ahead.forget(self.clock.tick)
        self._record(done, sample, values)
        self.clock.count(rewarded=rewarded)
        if self.clock.generation_over:
            self._probe.end(self.cohorts)
        self.whole = True

    def _sample(self, done: Sequence[Sequence[Done]]) -> list[Done]:
        """Return the episodes of a round of which each token's values are written; none, but of the last round of a
        generation, unless all rounds are written."""
        clock, record = self.clock, self.agents.record
        last = clock.here + 1 >= clock.generation_ticks
        if self.folder is None or not (record == "all" or (record == "validation" and last)):
            return []
        return first_of(done, self.agents.sampled)

    def _record(self, done: Sequence[Done], sample: Sequence[Done], values: records.Values) -> None:
        """Write the episodes of a round: all of them, or a sample, of which few rounds are kept."""
        number, whole = self.clock.ticks + 1, self.agents.record == "all"  # `tick` comes again where members take turns
        if self.folder is None or not (whole or sample):
            return
        self.write(f"train-{number:06d}", done if whole else sample, values)
        if not whole:
            records.thin(self.folder, number, self.agents.sampled_rounds)

    def _tell_late(self, late: int) -> None:
        """Take note of episodes without which a batch of completions began, once."""
        if not late or self._told_late:
            return
        self._told_late = True
        text = (
            f"{late} episodes asked for no completion in agents.wave_seconds ({self.agents.wave_seconds:g} s); the "
            "others went on without them, and results are not reproducible bit by bit"
        )
        if self.outside is not None:
            text += ": a client with fewer connections than agents.at_once makes every batch wait so; lower the latter"
        self.said.append(text)

    def _warn(self, done: Sequence[Done]) -> None:
        """Take note of rounds that teach nothing for a reason that a person can mend, once."""
        long = sum(records.reason(one) == "max_prompt_length_exceeded" and not _turns(one) for one in done)
        if long and not self._warned:
            self._warned = True
            self.said.append(
                f"{long} of {len(done)} episodes of a round began with a prompt longer than language.max_prompt "
                f"({self.spec.language.max_prompt} tokens) or than the base has places for, and teach nothing: raise "
                "data.max_prompt_length, or shorten them"
            )

    def _next(self) -> tuple[list[Done], bool]:
        """Return the episodes of this tick's round, and whether earlier weights played them.

        With a staleness of k round n is played by the weights that members had after n − k rounds, but not before
        their generation: where it begins, all that came before was learned from. It raises what `_played` raises.
        """
        clock, k = self.clock, self.agents.staleness
        if not k:
            return self._played(self.cohorts, clock.tick, self.stopped), False
        end = clock.tick - clock.here + clock.generation_ticks
        self._ahead.ensure(range(clock.tick, min(clock.tick + k + 1, end)), self.cohorts, clock.tick)
        return self._ahead.take(clock.tick, self.stopped)

    def _played(self, cohorts: Sequence[Cohort], tick: int, stopped: Callable[[], bool]) -> list[Done]:
        """Play a round: the episodes of its tasks, of which those without spread are replaced by another task's.

        Raises:
            Stopped: the run is to end.
            EnvironmentFailed: the share of failed episodes is above `agents.max_error_fraction`.
        """
        found: dict[tuple[int, int], list[Done]] = {}  # by member, and place of the task in the round
        for wave in range(1 + self.redraws):
            jobs = [
                job for cohort in cohorts for job in self._jobs(cohort, tick, wave)
                if not self._says(found.get(self._group(job, cohort), []))
            ]  # fmt: skip
            if not jobs:
                break
            groups: dict[tuple[int, int], list[Done]] = {}
            of = {slot: cohort for cohort in cohorts for slot in cohort.slots}
            for one in self.check(self.play(cohorts, jobs, Purpose.GENERATE, tick, stopped)):
                groups.setdefault(self._group(one.job, of[one.job.slot]), []).append(one)
            found |= {key: each for key, each in groups.items() if not wave or self._says(each)}
        return [one for group in found.values() for one in group]

    def _group(self, job: EpisodeJob, cohort: Cohort) -> tuple[int, int]:
        """Return a job's member, and the place of its task in the round."""
        tasks, group = self._shape(cohort)
        return job.slot, job.place // group % tasks

    def _says(self, group: Sequence[Done]) -> bool:
        """Return whether rewards of trajectories of a role differ within a task's episodes."""
        rewards: dict[str, set[float]] = {}
        for one in group:
            if records.reason(one) not in self.masked:
                for trajectory in one.episode.trajectories:
                    rewards.setdefault(trajectory.name, set()).add(trajectory.reward)
        return any(len(each) > 1 for each in rewards.values())

    def _shape(self, cohort: Cohort) -> tuple[int, int]:
        """Tasks of a round, and rollouts of each."""
        one = cohort.members[0]
        group = self.spec.integer(one, "group_size")
        return self.spec.integer(one, "rows") // group, group

    def _jobs(self, cohort: Cohort, tick: int, wave: int) -> list[EpisodeJob]:
        tasks, group = self._shape(cohort)
        start, first = tick * (1 + self.redraws) + wave, wave * tasks * group
        index = rows_at(self.spec.seed, len(self.tasks), start * tasks, tasks)
        how = [x.tolist() for x in sampling(cohort, self.spec)]
        return [
            EpisodeJob(
                slot, first + n * group + g, f"{i}:{g}", own(self.tasks[int(i)]),
                Sampled(how[0][p], how[1][p], how[2][p]),
            )
            for p, slot in enumerate(cohort.slots) for n, i in enumerate(index) for g in range(group)
        ]  # fmt: skip

    def _round(
        self, cohort: Cohort, done: Sequence[Sequence[Done]], stale: bool, wanted: Collection[int],
        values: dict[int, list[TokenValues]],
    ) -> bool:  # fmt: skip
        """Let members learn from their episodes; return whether any was worth something. Put into `values` what the
        tokens of the trajectories were worth whose `id()` is wanted."""
        spec = self.spec
        tasks, group = self._shape(cohort)
        played = [
            [
                RoundTrajectory(each.job.place // group % tasks, trajectory, records.reason(each) not in self.masked)
                for each in member for trajectory in each.episode.trajectories if trajectory.steps
            ]
            for member in done
        ]  # fmt: skip
        batch = batch_of(played, spec.base.pad, spec.device)
        text, asks = batch.text, spec.algo.asks(spec.algo_config)
        silent, drift = 0, torch.zeros_like(cohort.losses)
        if any(batch.owner):
            policy, drawn = getattr(cohort.state, spec.algo.POLICY), text.log_prob
            if stale:
                text = scored_anew(spec, cohort, text)
            if "reference" in asks:
                text = replace(text, reference=reference(spec.base, text))
            if "value" in asks:
                with torch.no_grad():
                    text = replace(text, value=score(policy.frozen, text, cohort.state.value.frozen).value)
                text = spec.algo.estimate(spec.algo_config, cohort.hyper, text, group)
            else:
                text, silent = advantages(RolloutBatch(text, batch.owner, played), tasks, self._how(cohort))
            if stale:
                text, apart = corrected(spec, cohort, text, drawn, self._probe)
            drift = learn(spec, self.clock, cohort, text, self._probe)
            drift = apart if stale else drift
            if wanted:
                values |= token_values(spec, cohort, text, batch, wanted)
        self._measure(cohort, text, done, batch.owner, drift, silent)
        return any(each.episode.reward for member in done for each in member)

    def _how(self, cohort: Cohort) -> AdvantageSettings:
        cfg = self.spec.algo_config

        def of(algo: Any, config: Any) -> Callable[[Text, int], Text]:
            return lambda text, group: algo.estimate(config, cohort.hyper, text, group)

        estimate = {"": of(self.spec.algo, cfg)}
        for role, algo in self._estimators.items():
            estimate[role] = of(algo, algo.Config())
        return AdvantageSettings(self.agents.advantage, self.agents.gamma, estimate)

    def _measure(
        self, cohort: Cohort, text: Text, done: Sequence[Sequence[Done]], owner: Sequence[Sequence[int]],
        drift: Tensor, silent: int,
    ) -> None:  # fmt: skip
        tokens = text.mask.flatten(1).sum(dim=1).clamp(min=1)
        kl = torch.full_like(drift, torch.nan)
        if text.reference is not None and text.log_prob is not None:
            apart = (text.reference - text.log_prob).masked_fill(~text.mask, 0.0)
            kl = (apart.exp() - apart - 1).flatten(1).sum(dim=1) / tokens

        def each(value: Callable[[Done], float]) -> Tensor:
            return torch.tensor([float(np.mean([value(one) for one in member])) for member in done])

        _, group = self._shape(cohort)
        right = np.array([[one.episode.is_correct for one in member] for member in done]).reshape(len(done), -1, group)
        present = torch.tensor([max(1, len(rows)) for rows in owner])
        assert text.keep is not None
        kept = text.keep.cpu().sum(dim=1) / present
        entropy = [
            np.mean([e for one in member for part in one.entropies.values() for e in part] or [0.0]) for member in done
        ]
        every = {
            "reward": each(lambda one: one.episode.reward),
            "correct": each(lambda one: one.episode.is_correct),
            "none": torch.from_numpy((~right.any(axis=2)).mean(axis=1)),  # tasks that no rollout got right
            "all": torch.from_numpy(right.all(axis=2).mean(axis=1)),
            "turns": each(_turns),
            "length": each(_length),
            "entropy": torch.tensor(entropy),
            "kl": kl,
            "effective": kept,
            "silent": torch.full_like(drift, silent / len(cohort.slots)),
            "drift": drift,
            "failed": each(lambda one: one.episode.termination_reason in FAILED),
            "cut": each(lambda one: records.reason(one).endswith("length_exceeded")),
        }
        again = np.array([[one.job.place >= right.shape[1] * group for one in member] for member in done])
        every["redrawn"] = torch.from_numpy(again.mean(axis=1))
        self.measures.note(self.clock.generation, cohort.slots, every)
        reward = torch.tensor([[one.episode.reward for one in member] for member in done])
        self._probe.note(cohort, {k: x.to(drift.device) for k, x in of_round(reward, group, every).items()})

    # --- validation ---------------------------------------------------------------------------------------------------

    def validation(
        self, tasks: Sequence[Mapping[str, Any]], slots: Sequence[int], names: Sequence[Any]
    ) -> list[EpisodeJob]:
        """Return the jobs of a validation, in which each member plays each task `agents.samples` times.

        Args:
            tasks: the tasks.
            slots: the members, as indices in the population.
            names: a name for each task. The name of an episode is its task's name, a colon, and a number.
        """
        k, how = self.agents.samples, Sampled(self.agents.temperature)
        return [
            EpisodeJob(slot, n * k + s, f"{name}:{s}", own(task), how)
            for slot in slots for n, (name, task) in enumerate(zip(names, tasks, strict=True)) for s in range(k)
        ]  # fmt: skip

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Evaluate the `P` members of `cohorts` on n held-out tasks. Return, for each member and task, the mean reward
        and the number of tokens that the model wrote, `[P, n]` each.

        `seeds` select as many different tasks as there are seeds. If there are fewer tasks, all are taken. A failed
        episode gets the lowest reward of all episodes here that did not fail, so that no member gains by failing.
        `stopped` is a function that returns whether to stop.

        Raises:
            Stopped: `stopped` returned True.
            EnvironmentFailed: the share of failed episodes is above `agents.max_error_fraction`.
        """
        note = np.array_equal(seeds, self.spec.seeds(Purpose.EVALUATE, len(seeds)))  # no second look at one member
        index = held_out(seeds, len(self.held))
        return self.scored(cohorts, [self.held[int(i)] for i in index], index.tolist(), stopped, note)

    def scored(
        self, cohorts: Sequence[Cohort], tasks: Sequence[Mapping[str, Any]], index: Sequence[int],
        stopped: Callable[[], bool], note: bool = False,
    ) -> Episodes:  # fmt: skip
        """Let all `P` members play each of `n` tasks `agents.samples` times. Return, for each member and task, the mean
        reward and the number of tokens that the model wrote, `[P, n]` each.

        Args:
            cohorts: the members, in groups that are computed as one batch.
            tasks: the tasks.
            index: the number of each task in its dataset. The names of the task's episodes begin with this number.
            stopped: a function that returns whether to stop; it is called between completions.
            note: whether rewards and shares of right answers are also added to the record of validations.

        Raises:
            Stopped: `stopped` returned True.
            EnvironmentFailed: the share of failed episodes is above `agents.max_error_fraction`.
        """
        slots, k = sorted(slot for cohort in cohorts for slot in cohort.slots), self.agents.samples
        jobs = self.validation(tasks, slots, index)
        done = self.check(self.play(cohorts, jobs, Purpose.EVALUATE, 0, stopped))
        self.seen = done
        failed = np.array([one.episode.termination_reason in FAILED for one in done])
        rewards = np.array([one.episode.reward for one in done])
        rewards[failed] = np.nan if failed.all() else rewards[~failed].min()
        shape = (len(slots), len(index), k)
        right = np.array([one.episode.is_correct for one in done]).reshape(shape)
        lengths = np.array([_length(one) for one in done], dtype=np.int64).reshape(shape).sum(axis=2)
        self.last = {
            **passes(right[0]),
            "failed": float(failed.mean()),
            **_means([one.episode.metrics for one in done[: len(index) * k]]),
        }
        if note:
            told = (
                rewards.reshape(shape).mean(axis=(1, 2)), right.mean(axis=(1, 2)), right.any(axis=2).mean(axis=1),
                failed.reshape(shape).mean(axis=(1, 2)),
            )  # fmt: skip
            every = {name: torch.from_numpy(each) for name, each in zip(VALIDATED, told, strict=True)}
            self.validated.note(self.clock.generation, slots, every)
            if self.agents.record != "none":
                self.write(f"validation-{self.clock.generation + 1:06d}", done)
        return Episodes(rewards.reshape(shape).mean(axis=2), lengths, len(done))

    def write(self, name: str, done: Sequence[Done], values: records.Values | None = None) -> None:
        if self.folder is not None:
            told = [records.record(one, self.spec.base, self.masked, values) for one in done]
            records.write(self.folder / f"{name}.jsonl", told)

    def state(self) -> dict[str, Tensor]:
        return {
            **self._ahead.state(self.clock.tick),
            **self.measures.state(),
            **self._probe.diagnostics.state(),
            "validated": self.validated.state()["measures"],
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        self.measures.restore(tensors)
        self._probe.diagnostics.restore(tensors)
        self.validated.restore({"measures": tensors["validated"]})
        self._ahead.restore(tensors, self.cohorts)
        return 0

    def close(self) -> None:
        self._ahead.drop()
        self.processes.close()
        self.idle.close()
        if self.outside is not None:
            self.outside.close()


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it."""
    found: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.items():
            found.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in sorted(found.items())}


def _turns(one: Done) -> int:
    return sum(len(trajectory.steps) for trajectory in one.episode.trajectories)


def _length(one: Done) -> int:
    outs = (step.model_output for trajectory in one.episode.trajectories for step in trajectory.steps)
    return sum(len(out.completion_ids) for out in outs if out is not None)


def own(value: Any) -> Any:
    """Return a copy of a task's value, so that an episode may change it. Mappings and lists are copied at all depths;
    other objects are shared."""
    if isinstance(value, Mapping):
        return {key: own(each) for key, each in value.items()}
    return [own(each) for each in value] if isinstance(value, list) else value
