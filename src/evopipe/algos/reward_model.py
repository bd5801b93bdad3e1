"""Reward model: of two completions it gives the one that people preferred the higher number.

Bradley and Terry, "Rank analysis of incomplete block designs", 1952; of language models' completions Ouyang et al.,
"Training language models to follow instructions with human feedback", 2022, § 3.5.

A linear head on the hidden state behind a completion's last token gives its reward r. A member's loss is the mean over
pairs of

    −log σ(r(chosen) − r(rejected)).

Rewards are known but for a constant that all of a prompt's completions share: GRPO takes it out again. Where
`language.reward` of another pipeline names the exported folder, its members learn from this model's rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from evopipe.algos import _hyper, _language
from evopipe.algos._language import given
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, score
from evopipe.core.structure import Widths
from evopipe.ops import language as ops
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Hyper, Learned, Scored, Tensor, Text, Words

PAPER = "https://arxiv.org/abs/2203.02155"
REGIME = "text"
POLICY = "policy"
PAIRS = True


class Config(AlgoConfig):
    """Hyper-parameters of a reward model."""

    lr: _hyper.Rate = 1e-3
    lr_value: Annotated[float, _hyper.rate("the head's Adam")] = 1e-3
    batch_size: _language.PairsAnUpdate = 32
    grad_clip: _hyper.GradientClip = 1.0
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-5, 1e-2), lr_value=(1e-5, 1e-2))


@dataclass(frozen=True)
class State:
    policy: Net = parameters("policy", trainable=True)
    value: Net = parameters("value", trainable=True)
    adam: optim.Adam = moments("policy")
    value_adam: optim.Adam = moments("value")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, words: Words) -> Mapping[str, Widths]:
    """Return input and output width of every network: the head reads the policy's hidden states."""
    return {"policy": Widths(words.hidden, words.vocabulary), "value": Widths(words.hidden, 1, "head")}


def init(cfg: Config, nets: Nets) -> State:
    return State(nets["policy"], nets["value"], *optim.start(nets["policy"], nets["value"]))


def asks(cfg: Config) -> frozenset[str]:
    """Return what else has to be known of rows: values, and that behind the last token."""
    return frozenset({"value", "end"})


def margins(now: Scored, batch: Text) -> Tensor:
    """Return r(chosen) − r(rejected) of each pair, `[P, n]`: n chosen completions stand before n rejected ones."""
    chosen, rejected = ops.behind_last(given(now.value), batch.mask).chunk(2, dim=1)
    return chosen - rejected


def fitness(cfg: Config, hp: Hyper, now: Scored, batch: Text) -> Tensor:
    """Return the log-probability `[P, n]` of what was preferred, in nats."""
    return ops.preferred(margins(now, batch))


def figures(cfg: Config, hp: Hyper, now: Scored, batch: Text) -> dict[str, Tensor]:
    """Return what a report tells of each pair `[P, n]`: whether the chosen completion has the higher reward."""
    return {"accuracy": (margins(now, batch) > 0).float()}


def loss(cfg: Config, hp: Hyper, now: Scored, batch: Text) -> Tensor:
    """Return each member's loss `[P]`."""
    return ops.total(_language.pair_weights(batch), -ops.preferred(margins(now, batch)))


def update(cfg: Config, state: State, hp: Hyper, batch: Text, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    losses = loss(cfg, hp, score(state.policy, batch, state.value), batch)
    learners = (state.policy, state.adam, hp["lr"]), (state.value, state.value_adam, hp["lr_value"])
    healthy = _language.descend(losses, healthy, hp["grad_clip"], batch, state.updates, *learners)
    return Learned(losses.detach(), healthy)
