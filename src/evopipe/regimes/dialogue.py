"""The regime of dialogues: members write completions of prompts, and learn from the rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evopipe import rng
from evopipe.core import optim
from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.core.net import score
from evopipe.language import hooks
from evopipe.language.generate import Sampling, Stops, Written, generate, texts
from evopipe.language.tokens import Corpus, Rows
from evopipe.language.vllm import VLLMEngine
from evopipe.ops import language as ops
from evopipe.regimes.measures import Measures
from evopipe.regimes.order import held_out, rows_at
from evopipe.regimes.probe import Probe, gradients
from evopipe.regimes.samples import EACH, Samples, episodes_of, scored_anew
from evopipe.rng import Purpose, Stream
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, Stopped
from evopipe.run.text import TextSpec
from evopipe.types import Text

AT_ONCE = 64  # prompts of each member that evaluation completes at a time
_UPDATES = 1 << 12  # more than a tick takes of any member: keeps the draws of different ticks apart
MEASURED = ("reward", "task", "length", "ended", "entropy", "kl", "effective", "drift", "failed")

Judge = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], tuple[np.ndarray, int]]
"""(rows, completions) → the rewards `[n]`, and how many of them could not be had and are 0."""


@dataclass(frozen=True)
class Completer:
    """Generator of completions: it lets members complete prompts of the dataset, and computes the rewards.

    Attributes:
        spec: the run's configuration.
        corpus: the dataset, as tokens.
        judge: a function of n rows of the dataset and their completions as texts. It returns the rewards `[n]`, and the
            number of failures. A reward that could not be computed is a failure, and counts as 0.
        engine: the vLLM engine that generates; None if torch does.
        truth: a function like `judge` that computes the task's own score, which is only reported. None if `judge` is
            not a reward model.
    """

    spec: TextSpec
    corpus: Corpus
    judge: Judge
    engine: VLLMEngine | None = None
    truth: Judge | None = None

    def write(self, cohort: Cohort, index: Rows, group: int, how: Sampling, when: int) -> tuple[Text, Written]:
        """Let every member of a cohort write `group` completions of each prompt.

        Return a `Text` to learn from, which has prompts and completions, and the completions as they were generated.

        Args:
            cohort: members that are computed as one batch.
            index: the prompts, as row numbers of the dataset.
            group: the number of completions of each prompt.
            how: how tokens are sampled.
            when: a number, such as that of the round. The random draws depend on it and on the members' keys.
        """
        spec, members = self.spec, len(cohort.members)
        base, leave = spec.base, spec.cohorts == "merged"
        batch = self.corpus.prompt_batch(index, base.pad)
        ids, real = (x.to(spec.device).expand(members, -1, -1).contiguous() for x in batch)
        policy = getattr(cohort.state, spec.algo.POLICY)
        structure: Any = policy.structure

        def active() -> Any:
            return structure.active(policy.frozen.views)

        limit, stop = spec.language.max_completion, self.stop(members * len(index))
        if self.engine is None:
            written = generate(base, active, ids, real, group, limit, how, cohort.keys, when, leave, stop)
        else:
            archs: list[Any] = [member.arch for member in cohort.members]
            own = list(zip(archs, structure.unpack(policy.values.cpu()), strict=True))
            written = self.engine.generate(own, ids, real, group, limit, how, cohort.keys, when, stop)
        if leave:  # columns that no completion of the cohort has
            width = max(1, int(written.lengths.max()))
            written = written.cut(width)
        ids, real = (x.repeat_interleave(group, dim=1) for x in (ids, real))
        text = Text(
            torch.cat((ids, written.ids), dim=-1), torch.cat((real, written.mask), dim=-1), written.mask,
            torch.zeros_like(written.ids), log_prob=written.log_prob,
        )  # fmt: skip
        return text, written

    def reward(self, written: Written, index: Rows, group: int, judge: Judge | None = None) -> tuple[Tensor, int]:
        """Return the rewards of R completions of each of P members, `[P, R]` float32, and the number of rewards that
        could not be computed and are 0.

        Each call of the judge gets the completions of one member, so that the rewards of a member do not depend on
        other members. If there are several processes, only one calls the judge and sends the others the result, because
        a judge may not be deterministic.

        Args:
            written: R completions of each of P members.
            index: the completions' prompts, as row numbers of the dataset.
            group: the number of completions of each prompt.
            judge: a function that computes the rewards; None for the function in the attribute `judge`.
        """
        told, together = written.log_prob.new_zeros(len(written.ids), written.ids.shape[1] + 1), self.spec.base.together
        if together.leads:
            asked = [self.corpus.rows[int(i)] for i in index for _ in range(group)]
            found = [(judge or self.judge)(asked, each) for each in self.texts(written, len(index))]
            told.copy_(torch.from_numpy(np.stack([np.append(values, failed) for values, failed in found])))
        together.tell(0, told)
        return told[:, :-1].contiguous(), int(told[:, -1].sum())

    def stop(self, prompts: int) -> Stops:
        """Return the configured texts that end a completion, once for each of `prompts` prompts.

        The result is empty if no such text is configured.
        """
        return [self.spec.language.stop] * prompts if self.spec.language.stop else ()

    def texts(self, written: Written, prompts: int) -> list[list[str]]:
        """Return every member's completions as decoded texts, one list per member.

        `written` holds the completions as generated, and `prompts` is the number of prompts.
        """
        return texts(self.spec.base, written, self.stop(len(written.ids) * prompts))

    def evaluate(self, cohorts: Sequence[Cohort], index: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score members by the rewards of their greedy completions of some prompts.

        Args:
            cohorts: the members, in groups that are computed as one batch.
            index: the prompts, as row numbers of the dataset.
            stopped: a function without arguments that returns whether the evaluation is to stop.

        Raises:
            Stopped: `stopped` returned True.
        """
        slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
        returns = np.full((len(slots), len(index)), np.nan)
        lengths = np.zeros(returns.shape, np.int64)
        for cohort in cohorts:
            places = [slots.index(slot) for slot in cohort.slots]
            how = Sampling.greedy(len(places), self.spec.device)
            for start in range(0, len(index), AT_ONCE):
                if stopped():
                    raise Stopped
                part = index[start : start + AT_ONCE]
                _, written = self.write(cohort, part, 1, how, 0)
                columns = np.arange(start, start + len(part))
                returns[np.ix_(np.array(places), columns)] = self.reward(written, part, 1)[0].cpu().numpy()
                lengths[np.ix_(np.array(places), columns)] = written.lengths.cpu().numpy()
        return Episodes(returns, lengths, returns.size)


class Dialogue:
    """The regime (see `run.regime.Regime`) of algorithms that learn from rewarded completions of prompts, such as GRPO.

    A tick of this regime is one round: every member writes completions, which are rewarded, and learns from them.

    Args:
        spec: the run's configuration.
        clock: the run's clock, which counts ticks.
        corpus: the dataset, as tokens.
        judge: a function that computes the rewards of completions, see `Completer`.
        truth: a function like `judge` that computes a second score, which is only reported. None if there is no such
            score.
        most: the reward of a completely right completion. The share of completions with this reward is reported as
            `accuracy`. If `most` is None, no `accuracy` is reported.

    Attributes:
        threshold: None, because there is no score at which the task counts as solved.
        remarks: empty, because there are no warnings for the user.
    """

    warm = 0
    threshold: float | None = None
    remarks: Sequence[str] = ()

    def __init__(
        self,
        spec: TextSpec,
        clock: Clock,
        corpus: Corpus,
        judge: Judge,
        truth: Judge | None = None,
        most: float | None = None,
    ) -> None:
        self.spec, self.clock, self.whole, self.most = spec, clock, True, most
        self.completer = Completer(spec, corpus, judge, _engine_of(spec, clock.members), truth)
        self.cohorts: Sequence[Cohort] = []
        self._probe = Probe(spec, clock)
        self.redraws = redraws_of(spec)
        names = (*MEASURED, *(["redrawn"] if self.redraws else []), *([] if most is None else ["accuracy"]))
        self.measures = Measures(clock.members, names)
        self.samples = Samples()

    def first(self, member: Member) -> Member:
        return member

    def inherit(self, parents: Sequence[int] | None) -> None:
        """Do nothing, because this regime stores nothing per member that a child could inherit."""

    def ended(self) -> np.ndarray:
        """Return the mean training return of each of the P slots (places in the population), `[P]`.

        All are NaN, because there are no episodes of an environment.
        """
        return np.full(self.clock.members, np.nan)

    def renew(self, slots: Sequence[int]) -> None:
        """Do nothing, because this regime stores nothing per slot (place in the population)."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        self.cohorts = cohorts
        self._probe.adopt(cohorts)

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        return self._probe.diagnostics.told(slots)

    def advance(self, most: int = 1) -> None:
        """Take one tick: every member writes a round of completions, and learns from their rewards. `most` has no
        effect."""
        self.whole = False
        rewarded = [self._round(cohort) for cohort in self.cohorts]
        self.clock.count(rewarded=any(rewarded))
        if self.clock.generation_over:
            self._probe.end(self.cohorts)
        self.whole = True

    def _round(self, cohort: Cohort) -> bool:
        spec, group = self.spec, self.spec.integer(cohort.members[0], "group_size")
        played = self._written(cohort, group, 0)
        redrawn = torch.zeros_like(cohort.losses)
        for wave in range(1, 1 + self.redraws):
            if not ops.without_spread(played.reward, group).any():
                break
            played, more = _refilled(played, self._written(cohort, group, wave), group, spec.base.pad)
            redrawn += more
        text, reward = replace(played.text, reward=played.reward), played.reward
        drawn = text.log_prob
        if self.completer.engine is not None:  # another program's numbers are not those that learning begins from
            text = scored_anew(spec, cohort, text)
        asks = spec.algo.asks(spec.algo_config)
        if "reference" in asks:
            text = replace(text, reference=hooks.reference(spec.base, text))
        if "value" in asks:
            with torch.no_grad():
                now = score(getattr(cohort.state, spec.algo.POLICY).frozen, text, cohort.state.value.frozen)
            text = replace(text, value=now.value)
        text = spec.algo.estimate(spec.algo_config, cohort.hyper, text, group)
        if self.completer.engine is None:
            drift = learn(spec, self.clock, cohort, text, self._probe)
        else:
            text, drift = corrected(spec, cohort, text, drawn, self._probe)
            learn(spec, self.clock, cohort, text, self._probe)
        self._measure(cohort, text, played, drift, redrawn, group)
        if self.clock.here + 1 >= self.clock.generation_ticks:
            self._sample(cohort, text, played, drawn, group)
        return bool((reward != 0).any())

    def _sample(self, cohort: Cohort, text: Text, played: _Played, drawn: Tensor | None, group: int) -> None:
        """Keep some completions of a round that was learned from, to be read."""
        n = min(EACH, text.mask.shape[1])
        rows = torch.arange(n, device=text.ids.device).expand(len(cohort.slots), n)
        some = take(replace(text, log_prob=drawn), rows)
        tasks = [[self.completer.corpus.rows[row] for row in own] for own in played.row[:, :n].tolist()]
        names = [f"{r // group}:{r % group}" for r in range(n)]
        most = 1.0 if self.most is None and self.completer.truth is None else self.most
        now, ended = scored_anew(self.spec, cohort, some), played.written.ended[:, :n]
        told = episodes_of(self.spec.base, cohort.slots, some, now, tasks, names, ended, most)
        self.samples.note(self.clock.generation, told)

    def _written(self, cohort: Cohort, group: int, wave: int) -> _Played:
        """Let members write completions of a round's prompts; those of a wave above 0 can replace others."""
        spec, completer, waves = self.spec, self.completer, 1 + self.redraws
        prompts, train = spec.integer(cohort.members[0], "rows") // group, completer.corpus.splits["train"]
        start = self.clock.tick * waves
        every = train[rows_at(spec.seed, len(train), start * prompts, waves * prompts)]
        index = every[wave * prompts : (wave + 1) * prompts]
        text, written = completer.write(cohort, index, group, sampling(cohort, spec), start + wave)
        if self.redraws:  # one width, whoever's groups are replaced by which
            text = _wider(text, max(len(completer.corpus.prompts[int(i)]) for i in every), 0, spec.base.pad)
        reward, failed = completer.reward(written, index, group)
        told = torch.full_like(reward, torch.nan)
        if completer.truth is not None:
            told, _ = completer.reward(written, index, group, completer.truth)
        row = torch.as_tensor(index, device=reward.device).repeat_interleave(group).expand(reward.shape)
        return _Played(text, written, reward, told, row, failed)

    def _measure(self, cohort: Cohort, text: Text, played: _Played, drift: Tensor, redrawn: Tensor, group: int) -> None:
        """Take note of a round, of each member."""
        written = played.written
        tokens = text.mask.flatten(1).sum(dim=1).clamp(min=1)
        kl = torch.full_like(drift, torch.nan)
        if text.reference is not None and text.log_prob is not None:
            apart = (text.reference - text.log_prob).masked_fill(~text.mask, 0.0)
            kl = (apart.exp() - apart - 1).flatten(1).sum(dim=1) / tokens
        assert text.reward is not None
        every = {
            "reward": text.reward.mean(dim=1),
            "task": played.told.mean(dim=1),
            "length": written.lengths.float().mean(dim=1),
            "ended": written.ended.float().mean(dim=1),
            "entropy": written.entropy.flatten(1).sum(dim=1) / tokens,
            "kl": kl,
            "effective": torch.ones_like(drift) if text.keep is None else text.keep.float().mean(dim=1),
            "drift": drift,
            "failed": torch.full_like(drift, played.failed / len(cohort.members)),
            "redrawn": redrawn * group / text.reward.shape[1],
        }
        if self.most is not None:
            every["accuracy"] = (text.reward >= self.most).float().mean(dim=1)
        self.measures.note(self.clock.generation, cohort.slots, every)
        self._probe.note(cohort, of_round(text.reward, group, every))

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score the members of `cohorts` by their completions of prompts.

        Each of the `seeds` selects a prompt of the validation split. `stopped` is a function that returns whether to
        stop.
        """
        rows = self.completer.corpus.splits["validation"]
        return self.completer.evaluate(cohorts, rows[held_out(seeds, len(rows))], stopped)

    def state(self) -> dict[str, Tensor]:
        return self.measures.state() | self._probe.diagnostics.state() | self.samples.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        self.measures.restore(tensors)
        self._probe.diagnostics.restore(tensors)
        self.samples.restore(tensors)
        return 0

    def close(self) -> None:
        """Do nothing, because this regime holds no processes or environments."""


@dataclass(frozen=True)
class _Played:
    """The completions of a round, and their rewards `[P, R]`."""

    text: Text
    written: Written
    reward: Tensor
    told: Tensor  # the task's own scores; NaN if nobody asks for them
    row: Tensor  # the dataset's rows that they answer
    failed: int


def redraws_of(spec: TextSpec) -> int:
    """Return how many times a round may replace completions whose rewards are all equal.

    If all completions of one prompt have the same reward, they teach nothing, and are replaced by completions of
    another prompt; see `algos.grpo`.
    """
    return int(getattr(spec.algo_config, "redraws", 0))


def _refilled(played: _Played, more: _Played, group: int, pad: int) -> tuple[_Played, Tensor]:
    """Replace groups without spread by those of `more` that have some; return also how many were, `[P]`."""
    source = ops.refill(ops.without_spread(played.reward, group), ~ops.without_spread(more.reward, group))
    rows = (source[..., None] * group + torch.arange(group, device=source.device)).flatten(1)
    width = max(each.text.mask.shape[-1] for each in (played, more))
    found: dict[str, Any] = {}
    for name in ("text", "written"):
        one, other = (_wider(getattr(each, name), 0, width, pad) for each in (played, more))
        both = [(f.name, getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
        found[name] = type(one)(**{  # fields of a Text that nobody has filled yet are None
            key: None if x is None else hooks.take(torch.cat((x, y), dim=1), rows) for key, x, y in both
        })  # fmt: skip
    values = {
        name: torch.cat((getattr(played, name), getattr(more, name)), dim=1) for name in ("reward", "told", "row")
    }
    found |= {name: hooks.take(x, rows) for name, x in values.items()}
    return _Played(**found, failed=played.failed + more.failed), (source >= source.shape[1]).sum(dim=1)


def _wider(x: Any, prompt: int, width: int, pad: int) -> Any:
    """Pad the prompts of a text on the left, or the completions of a text or of what was written on the right."""
    own, right = x.mask.shape[-1], max(0, width - x.mask.shape[-1])
    left = max(0, prompt - (x.ids.shape[-1] - own))

    def padded(name: str, value: Tensor | None) -> Tensor | None:
        if value is None or value.ndim < 3:
            return value
        ends = (left, right) if isinstance(x, Text) and name in ("ids", "real") else (0, right)
        return torch.nn.functional.pad(value, ends, value=pad if name == "ids" else 0)

    return replace(x, **{f.name: padded(f.name, getattr(x, f.name)) for f in fields(x)})


def of_round(reward: Tensor, group: int, every: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the training metrics of a round of completions, by name, `[P]` each.

    The metrics are the return, the length, the entropy, the spread of rewards within groups, and others.

    Args:
        reward: `[P, R]`, the rewards of P members' R completions each.
        group: the number of adjacent completions of one prompt.
        every: the means over the round's completions that are known already, by name, `[P]` each. The names are
            `reward`, `length`, `entropy`, `kl`, and one of `cut` and `ended`, the shares of completions that were cut
            off and that were not.
    """
    apart = reward.double().unflatten(1, (-1, group)).std(dim=2, correction=0)  # [P, groups]
    found = {
        "charts/episodic_return": every["reward"],
        "charts/episodic_length": every["length"],
        "losses/entropy": every["entropy"],
        "completions/reward_std": apart.mean(dim=1),
        "completions/silent": (apart == 0).double().mean(dim=1),
        "completions/cut": every["cut"] if "cut" in every else 1.0 - every["ended"],
    }
    return found if every["kl"].isnan().all() else found | {"losses/kl": every["kl"]}


def corrected(spec: TextSpec, cohort: Cohort, text: Text, drawn: Tensor | None, probe: Probe) -> tuple[Text, Tensor]:
    """Multiply the advantages of tokens by importance weights, because older weights or another engine generated the
    tokens.

    Return the text with the corrected advantages, and the drift `[P]` of the P members. A member's drift is
    the largest difference between a token's present log-probability and the one with which it was generated. As in TRL,
    only the policy term of the loss is corrected, because the other terms do not use advantages.

    Two metrics are recorded: the drift, and the share of importance weights that were bounded.

    Args:
        spec: the run's configuration, with the kind of correction.
        cohort: the members, which are computed as one batch.
        text: the text, with log-probabilities under the members' present weights, see `scored_anew`.
        drawn: the log-probabilities with which the tokens were generated; must not be None.
        probe: the recorder of metrics.
    """
    assert text.log_prob is not None
    assert text.advantage is not None
    assert drawn is not None
    cfg: Any = spec.algo_config  # a user's own algorithm may lack these keys
    how: ops.Correction = getattr(cfg, "correction", "sequence_mask")
    low, high = getattr(cfg, "correction_low", 0.0), getattr(cfg, "correction_high", 3.0)
    found = ops.importance(text.log_prob, drawn, text.mask, how, low, high)
    drift = ops.drift(text.log_prob, drawn, text.mask)
    probe.note(cohort, {"completions/drift": drift, "completions/bounded": found.bounded})
    return replace(text, advantage=text.advantage * found.weight), drift


def learn(spec: TextSpec, clock: Clock, cohort: Cohort, text: Text, probe: Probe) -> Tensor:
    """Make the updates of one round (one tick), in several passes (`epochs`) over the completions.

    Return the drift `[P]` of the P members. A token has two log-probabilities: one computed in the first update, and
    one stored in `text`. The drift is the largest difference between these over all tokens of a member.

    Args:
        spec: the run's configuration.
        clock: the run's clock.
        cohort: the members, which are computed as one batch; they are updated in place.
        text: the completions, with advantages.
        probe: the recorder of metrics.
    """
    one, rows = cohort.members[0], text.ids.shape[1]
    parts = -(-rows // spec.integer(one, "batch_size"))
    healthy, drift, taken = cohort.healthy, None, 0
    for _ in range(spec.integer(one, "epochs")):
        now = torch.tensor([clock.tick * _UPDATES + taken], device=spec.device)
        order = rng.shuffled(cohort.keys, Purpose.REPLAY, now, rows)[:, 0]
        for part in order.tensor_split(parts, dim=1):
            batch = text if parts == 1 else take(text, part)
            draw = Stream(cohort.keys, Purpose.UPDATE, now + taken)
            with optim.watched() as seen:
                found = spec.algo.update(spec.algo_config, cohort.state, cohort.hyper, batch, healthy, draw, 0)
            probe.note(cohort, gradients(seen))
            healthy, taken = found.healthy, taken + 1
            drift = found.errors if drift is None else drift
    cohort.healthy.copy_(healthy)
    cohort.losses.copy_(found.losses)
    return torch.zeros_like(cohort.losses) if drift is None else drift.flatten(1).amax(dim=1)


def _engine_of(spec: TextSpec, members: int) -> VLLMEngine | None:
    """Return what writes completions in the place of this program's own loop, where the parameters name it."""
    if spec.language.engine == "transformers":
        return None
    return VLLMEngine(spec.base, members, max(spec.language.rank, spec.mutation.architecture.max_nodes))


def sampling(cohort: Cohort, spec: TextSpec) -> Sampling:
    """Return how the members of a cohort (batch) sample tokens in training: temperature, top-k and top-p of each
    member.

    A value that is not among the members' hyper-parameters is taken from the algorithm's configuration in `spec`.
    """
    ones = torch.ones_like(cohort.losses)

    def each(name: str, default: float) -> Tensor:
        return cohort.hyper.get(name, ones * getattr(spec.algo_config, name, default))

    return Sampling(each("temperature", 1.0), each("top_k", 0).long(), each("top_p", 1.0))


def take(text: Text, rows: Tensor) -> Text:
    """Select b rows of `text` for each of P members, and return them as a `Text`. `rows` `[P, b]` has the indices of
    the selected rows."""

    held = {f.name: getattr(text, f.name) for f in fields(Text)}
    some: dict[str, Any] = {name: None if x is None else hooks.take(x, rows) for name, x in held.items()}
    return Text(**some)
