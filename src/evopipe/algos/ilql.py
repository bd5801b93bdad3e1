"""Implicit language Q-learning: from games alone, a language model learns to play better than those who played them.

Snell et al., "Offline RL for natural language generation with implicit language Q-learning", ICLR 2023.

A token is an action, and all tokens before it are the state. The state after the last token of a turn is the one in
which the player writes again. A separate transformer, the critic, gives V, Q₁ and Q₂ of every token. With Q⁻ = min(Q₁⁻,
Q₂⁻)(s, a) of the target network, which follows the critic, a member's loss is the mean over the tokens that players
wrote of

    |τ − 1(Q⁻ < V)| (Q⁻ − V)²  +  Σₖ (r + γ (1 − over) V(s′) − Qₖ)²  −  α Σₖ log softmax(Qₖ(s, ·))(a)

where V(s′) is a constant. The first term is an expectile of Q, by which V follows the better actions in the games (eq.
5). The second is Q-learning that needs no other actions (eq. 6). The third is conservative Q-learning (Kumar et al.,
2020), which lowers the values of tokens that nobody wrote. The policy imitates with weights exp(ω (Q⁻ − V)), at most
`weight_limit`; ω = 0 is behaviour cloning.

Tokens are drawn from log π(a|s) + β min(0, min(Q₁⁻, Q₂⁻)(s, a) − V⁻(s)). Only negative advantages count: positive ones
would trust values of tokens that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch

from evopipe.algos import _games, _hyper
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.ops import language as ops
from evopipe.ops.value import expectile_loss, pick
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Games, Hyper, Learned, Tensor, Words

PAPER = "https://arxiv.org/abs/2206.11871"
REGIME = "games"
POLICY = "policy"
ACTS_WITH = ("critic_target",)


class Config(AlgoConfig):
    """Hyper-parameters of implicit language Q-learning (ILQL; Snell et al., 2023).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_policy: Annotated[float, _hyper.rate("Adam for the policy")] = 1e-3
    lr_critic: Annotated[float, _hyper.rate("Adam for the critic")] = 1e-3
    batch_size: _games.GamesAnUpdate = 64
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 0.05
    grad_clip: _hyper.GradientClip = 1.0
    expectile: float = hyper(0.8, doc="expectile τ of Q over the games' actions that V learns; 0.5: their mean",
        raising="V goes from the mean of these actions to the best", evolvable=True, gt=0, lt=1)  # fmt: skip
    cql: float = hyper(0.05, doc="α, weight of the conservative term", raising="keeps to tokens of the games",
        evolvable=True, ge=0)  # fmt: skip
    awac: float = hyper(0.0, doc="ω of the weights exp(ω (Q − V)) by which tokens are imitated; 0: behaviour cloning",
        unit="1 / return", raising="imitates the best actions only", evolvable=True, ge=0, le=1000)  # fmt: skip
    weight_limit: float = hyper(20.0, doc="upper limit of imitation weights", raising="few tokens may count more", gt=0)
    beta: float = hyper(8.0, doc="β, weight of the advantage in the logits of drawn tokens", unit="1 / return",
        raising="tokens follow the values more, imitation less", evolvable=True, ge=0, le=1000)  # fmt: skip
    decode: _games.Decoding = "greedy"
    temperature: _games.WritesAt = 1.0
    beams: _games.Beams = 4
    evolve: _hyper.Evolving = _hyper.ranges(lr_policy=(1e-5, 1e-2), lr_critic=(1e-5, 1e-2), beta=(1.0, 64.0))


@dataclass(frozen=True)
class State:
    policy: Net = parameters("policy", trainable=True)
    critic: Net = parameters("critic", trainable=True)
    critic_target: Net = parameters("critic")
    policy_adam: optim.Adam = moments("policy")
    critic_adam: optim.Adam = moments("critic")
    updates: Tensor = row()  # [P] float32


class Values(NamedTuple):
    """The critic's values of states. A state is a text up to some token.

    Attributes:
        first, second: `[…, V]`, the action values Q₁ and Q₂ of each of V tokens.
        state: `[…]`, the state value.
    """

    first: Tensor
    second: Tensor
    state: Tensor

    @classmethod
    def of(cls, outputs: Tensor) -> Values:
        first, second, state = outputs.tensor_split((outputs.shape[-1] // 2, outputs.shape[-1] - 1), dim=-1)
        return cls(first, second, state.squeeze(-1))


class Said(NamedTuple):
    """The outputs of the algorithm's networks for B games of L tokens, of P members.

    Attributes:
        policy: `[P, B, L, V]`, the policy's logits of each of V tokens of the vocabulary.
        critic: `[P, B, L, …]`, the outputs of the critic, see `Values`.
        target: `[P, B, L, …]`, the outputs of the target critic, see `Values`.
    """

    policy: Tensor
    critic: Tensor
    target: Tensor


def networks(cfg: Config, words: Words) -> Mapping[str, Widths]:
    """Return the input and output width of every network, by name.

    The critic's outputs are Q₁ of every token of the vocabulary, then Q₂ of every token, then the state value.
    `words` holds the size of the vocabulary.
    """
    v = words.vocabulary
    return {"policy": Widths(v, v), "critic": Widths(v, 2 * v + 1)}


def init(cfg: Config, nets: Nets) -> State:
    policy, critic = nets["policy"], nets["critic"]
    return State(policy, critic, critic.copy(), *optim.start(policy, critic))


def logits(cfg: Config, hp: Hyper, said: Mapping[str, Tensor]) -> Tensor:
    """Return the logits `[P, n, V]` from which tokens are sampled.

    The logits are log π + β · min(A, 0): the policy's log-probabilities, lowered for tokens with a negative advantage
    A. β is the hyper-parameter `beta`. A is the smaller of the target critic's two Q-values of a token, less its V.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        said: the networks' outputs by name, for n positions in texts of P members: `policy` `[P, n, V]` for V tokens of
            the vocabulary, and `critic_target` `[P, n, 2 V + 1]`: two Q-values of each token, and a value of the state.
    """
    values = Values.of(said["critic_target"])
    advantage = torch.minimum(values.first, values.second) - values.state[..., None]
    return said["policy"].log_softmax(dim=-1) + hp["beta"][:, None, None] * advantage.clamp(max=0.0)


def loss(cfg: Config, hp: Hyper, said: Said, batch: Games) -> tuple[Tensor, Tensor]:
    """Return the losses of each member's policy and of its critic, `[P]` each, on a minibatch of games.

    The policy imitates the tokens of the games, and a token counts more if its value is higher than that of its state.
    The critic's loss is an expectile loss of the state value, plus the squared errors of Q₁ and Q₂, plus a conservative
    term.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        said: the outputs of the networks for these games.
        batch: the games.
    """
    token, weight = batch.ids[..., 1:], ops.token_weights(batch.acts, "token")
    now, target = Values.of(said.critic), Values.of(said.target)
    lowest = torch.minimum(*(pick(q[..., :-1, :], token) for q in target[:2])).detach()
    gap = lowest - now.state[..., :-1]
    y = batch.reward + hp["gamma"][:, None, None] * ~batch.over * now.state.detach().gather(-1, batch.after)
    each = expectile_loss(gap, hp["expectile"][:, None, None])
    for q in now[:2]:
        each = each + (y - pick(q[..., :-1, :], token)).square()
        each = each - hp["cql"][:, None, None] * ops.log_probs(q[..., :-1, :], token)
    imitate = (hp["awac"][:, None, None] * gap.detach()).exp().clamp(max=cfg.weight_limit)
    policy = -imitate * ops.log_probs(said.policy[..., :-1, :], token)
    return ops.total(weight, policy), ops.total(weight, each)


def update(cfg: Config, state: State, hp: Hyper, batch: Games, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    with torch.no_grad():
        target = forward(state.critic_target, batch.ids)
    said = Said(forward(state.policy, batch.ids), forward(state.critic, batch.ids), target)
    policy, critic = loss(cfg, hp, said, batch)
    learners = (
        (state.policy, state.policy_adam, hp["lr_policy"]),
        (state.critic, state.critic_adam, hp["lr_critic"]),
    )
    healthy = optim.descend(policy + critic, healthy, hp["grad_clip"], *learners)
    optim.polyak(state.critic_target, state.critic, hp["tau"] * healthy)
    state.updates.add_(healthy)
    return Learned(critic.detach(), healthy)
