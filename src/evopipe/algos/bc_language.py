"""Behaviour cloning of games: a small language model learns to write what the players of a dataset wrote.

Snell et al., "Offline RL for natural language generation with implicit language Q-learning", ICLR 2023, § 5, where it
is the policy that others improve on.

A member's loss is the mean of −log π(token | all tokens before it) over the tokens that players wrote. What the game
wrote is read, but not learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evopipe.algos import _games, _hyper
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.ops import language as ops
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Games, Hyper, Learned, Tensor, Words

PAPER = "https://arxiv.org/abs/2206.11871"
REGIME = "games"
POLICY = "policy"


class Config(AlgoConfig):
    """Hyper-parameters of behaviour cloning of games, for language models.

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 2e-3
    batch_size: _games.GamesAnUpdate = 128
    grad_clip: _hyper.GradientClip = 1.0
    decode: _games.Decoding = "sample"
    temperature: _games.WritesAt = 1.0
    beams: _games.Beams = 4
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-5, 1e-2))


@dataclass(frozen=True)
class State:
    policy: Net = parameters("policy", trainable=True)
    adam: optim.Adam = moments("policy")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, words: Words) -> Mapping[str, Widths]:
    return {"policy": Widths(words.vocabulary, words.vocabulary)}


def init(cfg: Config, nets: Nets) -> State:
    return State(nets["policy"], *optim.start(nets["policy"]))


def logits(cfg: Config, hp: Hyper, said: Mapping[str, Tensor]) -> Tensor:
    """Return the logits `[P, n, V]` from which tokens are sampled. Behaviour cloning takes the policy's outputs
    unchanged.

    Args:
        cfg: the algorithm's configuration.
        hp: hyper-parameters, `[P]` each.
        said: the networks' outputs by name; `policy` is `[P, n, V]` for n positions in texts of P members, and V tokens
            of the vocabulary.
    """
    return said["policy"]


def loss(cfg: Config, hp: Hyper, said: Tensor, batch: Games) -> Tensor:
    """Return each member's loss `[P]` on a minibatch of games: the mean of −log π over the tokens that players wrote.

    Args:
        cfg: the algorithm's configuration.
        hp: hyper-parameters, `[P]` each.
        said: `[P, B, L, V]`, the policy's logits: B games of L tokens, and V tokens of the vocabulary.
        batch: the games.
    """
    log_prob = ops.log_probs(said[..., :-1, :], batch.ids[..., 1:])
    return ops.total(ops.token_weights(batch.acts, "token"), -log_prob)


def update(cfg: Config, state: State, hp: Hyper, batch: Games, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    losses = loss(cfg, hp, forward(state.policy, batch.ids), batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.policy, state.adam, hp["lr"]))
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy)
