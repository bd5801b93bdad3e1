"""The regime of text: members learn from rows of a dataset, supervised or by preferences, and are scored on held-out
rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.core.net import score
from evopipe.language.hooks import reference
from evopipe.language.tokens import Corpus, Rows, with_end
from evopipe.regimes.learners import LearnerPool, Share
from evopipe.regimes.measures import Measures
from evopipe.regimes.order import held_out, rows_at
from evopipe.regimes.probe import Probe
from evopipe.regimes.samples import EACH, Samples, episodes_of, scored_anew
from evopipe.rng import Purpose, Stream
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.text import TextSpec
from evopipe.types import Text, TokenScores

AT_ONCE = 64  # rows that are scored at a time


class References:
    """The log-probabilities of a dataset's texts under the base model, which preference algorithms use as reference
    policy.

    The log-probabilities are computed once, in the order of the rows, so that a resumed run reads the same bits.

    Args:
        spec: the run's configuration, with the base model.
        corpus: the dataset, as tokens.
        rows: the numbers of the rows whose texts are needed.
    """

    def __init__(self, spec: TextSpec, corpus: Corpus, rows: np.ndarray) -> None:
        self._held: dict[int, list[Tensor]] = {}
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            text = on_device(corpus.batch(part, spec.base.pad), spec.device)
            told = reference(spec.base, text)[0].view(-1, len(part), text.mask.shape[-1])
            for i, row in enumerate(part.tolist()):
                self._held[row] = list(told[:, i].cpu())

    def of(self, index: Rows, text: Text) -> Tensor:
        """Return the base model's log-probabilities of the tokens in `text`, `[1, R, T]` for R rows of T tokens.

        `index` has the indices of the dataset's rows from which `text` was made. If the dataset has pairs of
        completions, `text` has two rows for each index.
        """
        width = text.mask.shape[-1]
        found = torch.zeros(text.mask.shape[1:])
        for i, row in enumerate(index):
            for answer, told in enumerate(self._held[int(row)]):
                n = min(width, len(told))
                found[answer * len(index) + i, :n] = told[:n]
        return found[None].to(text.mask.device)


class DataSource(Protocol):
    """Protocol of a dataset from which members learn, and on which they are evaluated."""

    @property
    def splits(self) -> Mapping[str, np.ndarray]:
        """The row numbers of each split by name: `train` for training, `validation` for scores during training, and
        `test` for the final evaluation."""

    @property
    def texts(self) -> Corpus | None:
        """The dataset, if it is of texts; None for games."""

    def batch(self, index: np.ndarray, members: int) -> Any:
        """Return a minibatch in the form that the algorithm's `update` reads.

        Args:
            index: the numbers of the dataset's rows.
            members: the number of members, all of which get the same rows.
        """

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score the members of the cohorts; return the episodes of the evaluation, one for each member and each row or
        game.

        Args:
            cohorts: the members, in groups that are computed as one batch.
            seeds: `[n]`, which select rows of the validation split, or the games that members play.
            stopped: a function without arguments that returns whether the evaluation is to stop.

        Raises:
            Stopped: `stopped` returned True.
        """


class TextSource:
    """A data source (see `DataSource`) of texts. In an evaluation, the seeds select rows of the validation split.

    `spec` is the run's configuration, and `corpus` the dataset as tokens.
    """

    def __init__(self, spec: TextSpec, corpus: Corpus) -> None:
        self.spec, self.corpus, self.splits = spec, corpus, corpus.splits
        kept = np.sort(np.concatenate([corpus.splits["train"], corpus.splits["validation"]]))
        asks = "reference" in spec.algo.asks(spec.algo_config)
        self.references = References(spec, corpus, kept) if asks else None

    @property
    def texts(self) -> Corpus | None:
        return self.corpus

    def batch(self, index: np.ndarray, members: int) -> Text:
        return rows_for(self.spec, self.corpus, index, members, self.references)

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        rows = self.splits["validation"]
        return evaluate_rows(
            self.spec, self.corpus, cohorts, rows[held_out(seeds, len(rows))], self.references, stopped
        )


class TextRows:
    """The regime (see `run.regime.Regime`) of algorithms that learn from rows of a dataset, such as SFT and DPO.

    A tick is an update on one minibatch, which has the same rows for all members.

    Args:
        spec: the run's configuration.
        clock: the run's clock, which counts ticks.
        source: the dataset.
        processes: the most learner processes that share the work. Results do not depend on their number.

    Attributes:
        threshold: None, because there is no score at which the task counts as solved.
        remarks: empty, because there are no warnings for the user.
    """

    threshold: float | None = None
    remarks: Sequence[str] = ()

    def __init__(self, spec: TextSpec, clock: Clock, source: DataSource, processes: int = 1) -> None:
        self.spec, self.clock, self.whole = spec, clock, True
        self.texts = source.texts
        self.train, self.batch, self.evaluate = source.splits["train"], source.batch, source.evaluate
        self.warm = len(self.train)
        self.clock.rewarded = True  # it learns from no reward
        self.cohorts: Sequence[Cohort] = []
        self.measures, self.samples = Measures(clock.members, ("loss",)), Samples()
        self._probe = Probe(spec, clock)
        self.learners = LearnerPool(spec, processes, self._ready)

    def first(self, member: Member) -> Member:
        return member

    def inherit(self, parents: Sequence[int] | None) -> None:
        """Do nothing, because this regime stores nothing per member that a child could inherit."""

    def ended(self) -> np.ndarray:
        """Return NaN for each of the P slots (places in the population), `[P]`, because there are no episodes."""
        return np.full(self.clock.members, np.nan)

    def renew(self, slots: Sequence[int]) -> None:
        """Do nothing, because this regime stores nothing per slot (place in the population)."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        self.cohorts = cohorts
        self._probe.adopt(cohorts)
        self.learners.adopt(cohorts, [1.0] * len(cohorts))

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        return self._probe.diagnostics.told(slots)

    def advance(self, most: int = 1) -> None:
        """Take one tick: every member makes an update on one minibatch. `most` has no effect."""
        self.whole = False
        ends = self.clock.here + 1 >= self.clock.generation_ticks
        before = [self._sampled(cohort) for cohort in self.cohorts] if ends else []
        for learn in self.learners.share_of(self.clock.tick, [[1]] * len(self.cohorts)):
            learn()
        for cohort in self.cohorts:
            self.measures.note(self.clock.generation, cohort.slots, {"loss": cohort.losses})
            ticks = self.clock.generation_ticks
            if self._probe.due(ticks, self.clock.here, ticks):
                batch, when = self._rows(cohort, self.clock.tick)
                self._probe.take(cohort, batch, Stream(cohort.keys, Purpose.PROBE, when), {})
        for cohort, some in zip(self.cohorts, before, strict=False):
            self._sample(cohort, some)
        self.clock.count()
        if self.clock.generation_over:
            self._probe.end(self.cohorts)
        self.whole = True

    def _sampled(self, cohort: Cohort) -> Text | None:
        """Return some rows of a tick's minibatch, with the present log-probabilities of their tokens; None for
        games."""
        if self.texts is None:
            return None
        index = self._index(cohort, self.clock.tick)
        some = on_device(self.texts.batch(index[:EACH], self.spec.base.pad), self.spec.device)
        some = _mapped(some, lambda x: x.expand(len(cohort.slots), *x.shape[1:]))
        return scored_anew(self.spec, cohort, some)

    def _sample(self, cohort: Cohort, some: Text | None) -> None:
        """Keep rows that a tick learned from, to be read; `some` has their log-probabilities of before."""
        if some is None or self.texts is None:
            return
        index, answers = self._index(cohort, self.clock.tick)[:EACH], len(self.texts.answers)
        if some.reward is None:  # of a pair the first is better; and what else is shown is to be written
            better = torch.arange(some.mask.shape[1], device=some.mask.device) < len(index)
            some = replace(some, reward=better.to(torch.float32).expand(some.mask.shape[:2]))
        rows = [int(row) for row in index]
        names = [f"{row}:{answer}" for answer in range(answers) for row in rows]
        tasks = [[self.texts.rows[row] for _ in range(answers) for row in rows]] * len(cohort.slots)
        now, ended = scored_anew(self.spec, cohort, some), some.mask.any(dim=-1)
        told = episodes_of(self.spec.base, cohort.slots, some, now, tasks, names, ended, 1.0)
        self.samples.note(self.clock.generation, told)

    def _ready(self, share: Share, cohort: Cohort, tick: int, due: Sequence[int]) -> Callable[[], None]:
        return partial(self._learn, cohort, tick)

    def _rows(self, cohort: Cohort, tick: int) -> tuple[Any, Tensor]:
        """Return the minibatch of a tick, and the tick, `[1]`."""
        return self.batch(self._index(cohort, tick), len(cohort.members)), torch.tensor([tick], device=self.spec.device)

    def _index(self, cohort: Cohort, tick: int) -> np.ndarray:
        """Return which rows of the dataset a tick's minibatch has."""
        size = self.spec.integer(cohort.members[0], "batch_size")
        found: np.ndarray = self.train[rows_at(self.spec.seed, len(self.train), tick * size, size)]
        return found

    def _learn(self, cohort: Cohort, tick: int) -> None:
        spec = self.spec
        batch, when = self._rows(cohort, tick)
        draw = Stream(cohort.keys, Purpose.UPDATE, when)
        found = spec.algo.update(spec.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, draw, 0)
        cohort.healthy.copy_(found.healthy)
        cohort.losses.copy_(found.losses)

    def state(self) -> dict[str, Tensor]:
        return self.measures.state() | self._probe.diagnostics.state() | self.samples.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        self.measures.restore(tensors)
        self._probe.diagnostics.restore(tensors)
        self.samples.restore(tensors)
        return 0

    def close(self) -> None:
        self.learners.close()


def rows_for(spec: TextSpec, corpus: Corpus, index: np.ndarray, members: int, references: References | None) -> Text:
    """Return n rows of a dataset for each of P members, as a `Text` `[P, n, …]`.

    Args:
        spec: the run's configuration.
        corpus: the dataset, as tokens.
        index: the numbers of the rows.
        members: P; all members get the same rows.
        references: the base model's log-probabilities, which are put into the text; None if they are not needed.
    """
    text = on_device(corpus.batch(index, spec.base.pad), spec.device)
    if references is not None:
        text = replace(text, reference=references.of(index, text))
    if "end" in spec.algo.asks(spec.algo_config):
        text = with_end(text)
    return _mapped(text, lambda x: x.expand(members, *x.shape[1:]))


def scored(spec: TextSpec, cohort: Cohort, batch: Text) -> TokenScores:
    """Return the log-probabilities of a batch's tokens under the language model of each of a cohort's members, with the
    tokens' values if the algorithm needs values."""
    value = cohort.state.value.frozen if "value" in spec.algo.asks(spec.algo_config) else None
    return score(getattr(cohort.state, spec.algo.POLICY).frozen, batch, value)


@torch.no_grad()
def evaluate_rows(
    spec: TextSpec,
    corpus: Corpus,
    cohorts: Sequence[Cohort],
    index: np.ndarray,
    references: References | None,
    stopped: Callable[[], bool],
) -> Episodes:
    """Score members on rows of a dataset by the algorithm's function `fitness`; return one episode for each member and
    row.

    Args:
        spec: the run's configuration.
        corpus: the dataset, as tokens.
        cohorts: the members, in groups that are computed as one batch.
        index: the numbers of the rows.
        references: the base model's log-probabilities; None if the algorithm does not need them.
        stopped: a function without arguments that returns whether the evaluation is to stop.

    Raises:
        Stopped: `stopped` returned True.
    """
    slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
    returns = np.full((len(slots), len(index)), np.nan)
    lengths = np.zeros(returns.shape, np.int64)
    for cohort in cohorts:
        places = [slots.index(slot) for slot in cohort.slots]
        for start in range(0, len(index), AT_ONCE):
            if stopped():
                raise Stopped
            part = index[start : start + AT_ONCE]
            batch = rows_for(spec, corpus, part, len(places), references)
            now = scored(spec, cohort, batch)
            found = spec.algo.fitness(spec.algo_config, cohort.hyper, now, batch)
            columns = np.arange(start, start + len(part))
            returns[np.ix_(np.array(places), columns)] = found.cpu().numpy()
            lengths[np.ix_(np.array(places), columns)] = batch.mask.sum(dim=-1)[:, : len(part)].cpu().numpy()
    return Episodes(returns, lengths, returns.size)


@torch.no_grad()
def figures(
    spec: TextSpec, corpus: Corpus, cohorts: Sequence[Cohort], index: np.ndarray, references: References | None
) -> dict[str, np.ndarray]:
    """Return the mean of each statistic over rows of a dataset, for P members: arrays `[P]` by the statistic's name.

    The algorithm's function `figures` computes the statistics of every row. If the algorithm has no such function, the
    result is empty.

    Args:
        spec: the run's configuration.
        corpus: the dataset, as tokens.
        cohorts: the members, in groups that are computed as one batch.
        index: the indices of the rows in the dataset.
        references: the base model's log-probabilities; None if the algorithm does not need them.
    """
    told: dict[str, np.ndarray] = {}
    if spec.algo.figures is None:
        return told
    slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
    for cohort in cohorts:
        found: dict[str, list[Tensor]] = {}
        for start in range(0, len(index), AT_ONCE):
            batch = rows_for(spec, corpus, index[start : start + AT_ONCE], len(cohort.members), references)
            now = scored(spec, cohort, batch)
            for name, each in spec.algo.figures(spec.algo_config, cohort.hyper, now, batch).items():
                found.setdefault(name, []).append(each)
        for name, parts in found.items():
            means = torch.cat(parts, dim=1).mean(dim=1).double().cpu().numpy()
            told.setdefault(name, np.zeros(len(slots)))[[slots.index(slot) for slot in cohort.slots]] = means
    return told


def on_device(text: Text, device: torch.device) -> Text:
    return _mapped(text, lambda x: x.to(device))


def _mapped(text: Text, change: Callable[[Tensor], Tensor]) -> Text:
    found: dict[str, Any] = {}
    for name in text.__slots__:
        value = getattr(text, name)
        found[name] = None if value is None else change(value)
    return Text(**found)
