"""What IPPO and MAPPO have in common: all but what their critics read, which each function is given as `seen`.

`seen` makes of a crew and observations `[P, B, K, O]` what every agent's critic reads, `[P, B, K, inputs]`. Agents of
one environment lie next to each other: where shapes say `E` or `B`, it is `E · K` or `B · K` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from evopipe.algos import Answers, _ppo
from evopipe.algos._team import Crew, crew
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, remember, unroll
from evopipe.core.structure import Widths
from evopipe.ops.distributions import Distribution, distribution
from evopipe.rng import Stream
from evopipe.types import Chosen, Hyper, Learned, Sequences, Spaces, Tensor

Seen: TypeAlias = "Callable[[Crew, Tensor], Tensor]"
_OF_PADS = -1.4189385332046727  # log-deviation at which a Gaussian's entropy is 0: −½ log 2πe


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    critic: Net = parameters("critic", trainable=True)
    actor_adam: optim.Adam = moments("actor")
    critic_adam: optim.Adam = moments("critic")
    log_std: Tensor = row()  # [P, G · A] of continuous actions, group by group, else [P, 0]
    log_std_adam: Tensor = row()  # [P, G · A, 3], see ScalarAdam
    resting: Tensor = row()  # [P] float32, 1 until the next rollout
    updates: Tensor = row()  # [P] float32


def networks(cfg: Any, spaces: Spaces, reads: int) -> dict[str, Widths]:
    """Return an actor and a critic, which reads so many numbers, for every group of agents that share them."""
    of = crew(cfg, spaces)
    copies = len(of.groups)
    return {"actor": Widths(of.observed, spaces.actions, copies=copies), "critic": Widths(reads, 1, copies=copies)}


def init(cfg: Any, nets: Nets) -> State:
    actor, critic = nets["actor"], nets["critic"]
    *adams, zeros = optim.start(actor, critic)
    numbers = len(crew(cfg).groups) * cfg.spaces.actions if cfg.spaces.continuous else 0
    log_std = zeros[:, None].repeat(1, numbers) + torch.tensor(cfg.std).log()
    rows: tuple[Tensor, ...] = log_std, optim.ScalarAdam.start(log_std), zeros, zeros.clone()
    return State(actor, critic, *adams, *rows)


def _policy(cfg: Any, outputs: Tensor, log_std: Tensor, legal: Tensor | None) -> Distribution:
    """Return the distribution of actions: outputs `[P, B, K, A]`, log_std `[P, G · A]`, legal `[P, B, K, A]`.

    What an agent does not have of continuous actions has entropy 0, and the same density whatever is done.
    """
    of = crew(cfg)
    if not cfg.spaces.continuous:
        return distribution(cfg.spaces, outputs, None, of.legal(legal, outputs))
    own = of.of_group(log_std.unflatten(1, (len(of.groups), -1)))[:, None]  # [P, 1, K, A]
    return distribution(cfg.spaces, of.own(outputs), of.own(own, _OF_PADS), None, cfg.squash)


def _remembered(of: Crew, net: Net, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Take one step: x `[P, B, K, inputs]`, memory `[P, B · K, M]` → `[P, B, K, outputs]` and the memory after it."""
    out, after = remember(net, of.seated(x), of.seated(of.apart(memory)))
    return of.back(out), of.back(after).flatten(1, 2)


def step(
    seen: Seen, cfg: Any, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None
) -> Chosen:
    """Draw actions, or take the likeliest where `draw` is None: obs `[P, E, O]`, memory `[P, E, M]` before it."""
    of = crew(cfg)
    with torch.no_grad():
        of_actor, of_critic = _ppo.memories(memory, state.actor, state.critic)
        x = of.apart(obs)
        outputs, of_actor = _remembered(of, state.actor, of.named(x), of_actor)
        values, of_critic = _remembered(of, state.critic, seen(of, x), of_critic)
        v, memory = values[..., 0].flatten(1), torch.cat((of_actor, of_critic), dim=-1)
        chances = _policy(cfg, torch.nan_to_num(outputs), state.log_std, None if legal is None else of.apart(legal))
        action = chances.mode() if draw is None else chances.sample(draw)
        action = of.own(action) if cfg.spaces.continuous else action
        log_prob = torch.zeros_like(v) if draw is None else chances.log_prob(action).flatten(1)
        return Chosen(action.flatten(1, 2), log_prob, v, memory)


def value(seen: Seen, cfg: Any, state: State, obs: Tensor, memory: Tensor) -> Tensor:
    """Return V(s) `[P, B]`: obs `[P, B, O]`, memory `[P, B, M]` before it."""
    of = crew(cfg)
    with torch.no_grad():
        _, of_critic = _ppo.memories(memory, state.actor, state.critic)
        return _remembered(of, state.critic, seen(of, of.apart(obs)), of_critic)[0][..., 0].flatten(1)


def _chances(cfg: Any, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Distribution:
    """Return the distribution of actions: obs `[P, B, O]`, memory `[P, B, M]` before it."""
    of = crew(cfg)
    with torch.no_grad():
        of_actor, _ = _ppo.memories(memory, state.actor, state.critic)
        outputs, _ = _remembered(of, state.actor, of.named(of.apart(obs)), of_actor)
        return _policy(cfg, torch.nan_to_num(outputs), state.log_std, None if legal is None else of.apart(legal))


def answers(seen: Seen) -> Answers:
    def value_of(cfg: Any, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Tensor:
        return value(seen, cfg, state, obs, memory)

    return Answers(value_of, chances=_chances)


def greedy(cfg: Any, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the likeliest legal actions, from an empty memory: obs `[P, E, O]`."""
    of = crew(cfg)
    with torch.no_grad():
        outputs = torch.nan_to_num(of.run(state.actor, of.named(of.apart(obs))))
        best = _policy(cfg, outputs, state.log_std, None if legal is None else of.apart(legal)).mode()
        return (of.own(best) if cfg.spaces.continuous else best).flatten(1, 2)


def evaluate(seen: Seen, cfg: Any, state: State, batch: Sequences, log_std: Tensor) -> tuple[Distribution, Tensor]:
    """Return the policy and the values in the states of a minibatch, both over `[P, B · L, K]`."""
    of = crew(cfg)
    of_actor, of_critic = _ppo.memories(batch.memory, state.actor, state.critic)
    obs = of.apart(batch.obs).transpose(2, 3)  # [P, B, L, K, O]
    outputs, values = (
        _unrolled(of, net, read(of, obs.flatten(1, 2)).unflatten(1, obs.shape[1:3]), memory, batch.begins)
        for net, read, memory in ((state.actor, Crew.named, of_actor), (state.critic, seen, of_critic))
    )
    legal = None if batch.legal is None else in_rows(of, batch.legal)
    return _policy(cfg, outputs, log_std, legal), values[..., 0]


def _unrolled(of: Crew, net: Net, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
    """Take steps: x `[P, B, L, K, inputs]`, memory `[P, B · K, M]`, begins `[P, B · K, L]` → `[P, B · L, K, out]`."""
    found = unroll(net, of.seated(x.transpose(2, 3)), of.seated(of.apart(memory)), of.seated(of.apart(begins)))
    return of.back(found).transpose(2, 3).flatten(1, 2)


def in_rows(of: Crew, x: Tensor) -> Tensor:
    """Put agents behind time: `[P, B · K, L, …]` → `[P, B · L, K, …]`."""
    return of.apart(x).transpose(2, 3).flatten(1, 2)


def loss(seen: Seen, cfg: Any, state: State, hp: Hyper, batch: Sequences, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Return each member's loss, its groups' added up, and how far its policies have gone from the old ones, `[P]`."""
    of = crew(cfg)
    all_weight, advantage = in_rows(of, batch.weight), in_rows(of, batch.advantage)  # [P, B·L, K]
    weight = all_weight / of.over_group(all_weight.sum(dim=1)).clamp(min=1e-12)[:, None]  # sums to 1 in every group
    if cfg.normalise_advantage:
        mean = of.over_group((weight * advantage).sum(dim=1))[:, None]
        deviation = of.over_group((weight * (advantage - mean).square()).sum(dim=1)).sqrt()[:, None]
        advantage = (advantage - mean) / (deviation + 1e-8)
    chances, value = evaluate(seen, cfg, state, batch, log_std)
    each, distance = _ppo.objective(
        cfg, hp, chances, in_rows(of, batch.action), in_rows(of, batch.log_prob), advantage, value,
        in_rows(of, batch.value), in_rows(of, batch.target),
    )  # fmt: skip
    return (weight * each).sum(dim=(1, 2)), (all_weight * distance).sum(dim=(1, 2)).detach()


def update(seen: Seen, cfg: Any, state: State, hp: Hyper, batch: Sequences, healthy: Tensor, turn: int) -> Learned:
    """Learn from one minibatch, see `_ppo.update`."""

    def of_batch(*given: Any) -> tuple[Tensor, Tensor]:
        return loss(seen, *given)

    pairs = (state.actor, state.actor_adam), (state.critic, state.critic_adam)
    return _ppo.update(of_batch, pairs, cfg, state, hp, batch, healthy, turn)
